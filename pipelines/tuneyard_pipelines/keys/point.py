"""The keys of which a trial has one value each: model, training, tokenizer.

The plain classes hold one value a key; `Ranged` marks the sections whose keys may be ranges in a spec, so that words
and bounds stand in one place and every end and choice of a range is held to them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from tuneyard_pipelines import architectures
from tuneyard_pipelines.keys.declared import Whole, key
from tuneyard_pipelines.sections import OneOf, Part, Ranged


def _architecture(name: str) -> str:
    """Raises ValueError for one that there is not."""
    if name not in architectures.names():
        raise ValueError
    return name


def _precision(value: Any) -> Any:
    """YAML reads 32 as a number."""
    return "32" if type(value) is int and value == 32 else value


TaskName = Literal["translation", "language_modeling", "masked_lm"]
Precision = Annotated[
    Literal["32", "bf16-mixed", "16-mixed"],
    BeforeValidator(_precision),
    WithJsonSchema({"enum": ["32", 32, "bf16-mixed", "16-mixed"]}),
]
Architecture = Annotated[str, AfterValidator(_architecture), OneOf(architectures.names)]


class Model(Part):
    """What is trained: a family of models, and the keys that it follows (the table in docs/models.md)."""

    architecture: Architecture | None = key(
        None,
        "The family of models, one for all trials of a variant; left out, transformer for translation, gpt for "
        "language_modeling, bert for masked_lm. Installed packages add others.",
        examples=["transformer"],
    )
    d_model: Whole = key(128, "Width of embeddings and layers; a multiple of num_heads.", "features", ge=1, le=16384)
    num_heads: Whole | None = key(
        None,
        "Attention heads of every layer; left out, 4, and 1 for seq2seq, where attention: multi_head has more.",
        "heads",
        ge=1,
        le=1024,
        examples=[4],
    )
    num_kv_heads: Whole | None = key(
        None,
        "Of gpt: heads of keys and values, each shared by an equal number of num_heads queries; left out, num_heads.",
        "heads",
        ge=1,
        le=1024,
        examples=[2],
    )
    num_layers: Whole = key(
        2, "Layers; of an encoder-decoder, of the encoder and of the decoder: so many each.", "layers", ge=1, le=128
    )
    num_decoder_layers: Whole | None = key(
        None, "Layers of transformer's decoder; left out, num_layers.", "layers", ge=1, le=128, examples=[2]
    )
    sequence_length: Whole = key(
        64,
        "Longest source and longest target, the end token included; of documents, the window: how many tokens are "
        "seen at once.",
        "tokens",
        ge=2,
        le=65536,
    )
    d_ff: Whole | None = key(
        None,
        "Width inside the feed-forward part, and of nplm's hidden layer; left out, 4 * d_model.",
        "features",
        ge=1,
        le=65536,
        examples=[512],
    )
    dropout: float = key(0.1, "Share of activations dropped in training.", "share", ge=0, lt=1)
    norm: Literal["pre", "post"] | None = key(
        None,
        "Layer norms before the sub-layers of attention models, or after them; left out, post for bert, pre otherwise.",
        examples=["pre"],
    )
    positions: Literal["sinusoidal", "learned", "rotary"] | None = key(
        None,
        "How a token's place is told to attention; left out, sinusoidal for transformer, learned for gpt and bert.",
        examples=["sinusoidal"],
    )
    activation: Literal["tanh", "relu", "gelu", "swiglu"] | None = key(
        None,
        "Of rnn tanh or relu, left out tanh; in the feed-forward part of attention models relu, gelu or swiglu, left "
        "out relu for transformer, gelu for gpt and bert.",
        examples=["relu"],
    )
    bias: bool = key(True, "Whether the linear maps of attention and feed-forward add a bias.")
    without: Literal["nothing", "positions", "residual", "norm", "feed_forward", "scaling"] = key(
        "nothing", "A part to take out of an attention model, to see what it is worth; scaling is that of scores."
    )
    gradient_checkpointing: bool = key(
        False,
        "Whether attention layers keep only their inputs in training and compute the rest again: less memory, a third "
        "more to compute.",
    )
    tied_embeddings: bool = key(
        True, "Whether one matrix embeds tokens and gives the output, in models without attention layers."
    )
    cell: Literal["rnn", "lstm", "gru"] = key("lstm", "Of seq2seq: what its encoder and decoder are made of.")
    attention: Literal["none", "dot", "scaled_dot", "additive", "multi_head"] = key(
        "additive", "Of seq2seq: how the decoder looks at the source; none gives it one vector for all steps."
    )
    teacher_forcing: float = key(
        1.0,
        "Of seq2seq: share of the steps of training that read the right token; others read the model's own.",
        "share",
        ge=0,
        le=1,
    )
    kernel_size: Whole = key(3, "Of conv: how many tokens a filter sees.", "tokens", ge=1, le=1024)
    order: Whole = key(
        3, "Of n-grams: how many tokens long, the one that is predicted included.", "tokens", ge=1, le=16
    )
    window: Whole = key(5, "Of cbow: how many tokens are seen on each side of a mask.", "tokens", ge=1, le=1024)


class Training(Part):
    """How a trial is trained: its budget, batches, optimiser (AdamW) and which of its weights are kept."""

    max_tokens: Whole | None = key(
        None,
        "Budget of a trial. Exactly one of max_tokens, max_steps, max_epochs is given.",
        "tokens without padding, source and target both counted",
        ge=1,
        le=10**15,
        examples=[3_000_000],
    )
    max_steps: Whole | None = key(
        None,
        "The budget as optimiser updates, each over `accumulate` batches.",
        "updates",
        ge=1,
        le=10**12,
        examples=[2_000],
    )
    max_epochs: float | None = key(
        None, "The budget as passes over the training split.", "passes", gt=0, le=10**6, examples=[10]
    )
    batch_tokens: Whole = key(
        4096, "Size of a batch, of all workers together, without padding.", "tokens", ge=1, le=10**9
    )
    accumulate: Whole = key(
        1,
        "Batches to an optimiser update, whose gradient is the mean over the target tokens of all of them: a larger "
        "batch in the memory of a smaller one.",
        "batches",
        ge=1,
        le=10_000,
    )
    learning_rate: float = key(1e-3, "Peak learning rate.", gt=0, le=10)
    schedule: Literal["cosine", "inverse_sqrt", "noam", "linear", "constant", "warmup_stable_decay"] = key(
        "cosine",
        "How the learning rate goes on after warm-up: cosine and linear fall to min_learning_rate_share; inverse_sqrt "
        "falls as sqrt(warmup / used share), and so does noam, whose warm-up begins at 0; constant stays; "
        "warmup_stable_decay stays, and falls linearly to min_learning_rate_share in the last `decay` of the budget.",
    )
    warmup: float = key(
        0.05,
        "Share of the budget in which the learning rate rises to its peak, from min_learning_rate_share of it.",
        "share",
        ge=0,
        lt=1,
    )
    decay: float = key(0.2, "Share of the budget at its end in which warmup_stable_decay falls.", "share", gt=0, le=1)
    min_learning_rate_share: float = key(
        0.02,
        "Where warm-up begins and cosine, linear and warmup_stable_decay end, as a share of the peak learning rate.",
        "share",
        ge=0,
        le=1,
    )
    weight_decay: float = key(0.01, "AdamW's decay of weight matrices.", ge=0, le=10)
    gradient_clip: float = key(1.0, "Largest norm of a gradient; longer ones are scaled down.", "norm", gt=0, le=10**6)
    label_smoothing: float = key(0.0, "Share of the target spread over the vocabulary.", "share", ge=0, lt=1)
    adam_beta2: float = key(0.98, "Decay of AdamW's second moment.", ge=0, lt=1)
    evaluations: Whole = key(10, "Validations, spread evenly over the budget.", "evaluations", ge=1, le=10_000)
    early_stopping: Whole | None = key(
        None,
        "After so many validations in a row without a better search.metric a trial ends as stopped_early and stands as "
        "it is; left out, none does.",
        "evaluations",
        ge=1,
        le=10_000,
        examples=[5],
    )
    average: Literal["none", "ema", "last"] = key(
        "none",
        "Which weights are validated, scored and packaged: those that the optimiser moves, their exponential moving "
        "average (ema), or the mean of those at the last validations (last).",
    )
    ema_decay: float = key(
        0.999,
        "Share of itself that the ema keeps at an update; at update t at most (1 + t) / (10 + t).",
        "share",
        ge=0,
        lt=1,
    )
    last_checkpoints: Whole = key(
        5, "How many validations the average of type last goes back, with this one.", "checkpoints", ge=1, le=100
    )
    precision: Precision = key(
        "32",
        "Bits of a number in matrix products; mixed: weights and optimiser keep 32. bf16-mixed on any machine, "
        "16-mixed (with a scaled loss) on a GPU only. Validation is as training, the test in 32.",
    )
    compile: bool = key(
        False, "Whether the network is compiled by torch.compile, for which a worker needs a C++ compiler (g++)."
    )
    deterministic: bool = key(
        False,
        "Whether an operation that has no deterministic algorithm ends the trial; otherwise it runs. Where there is "
        "one, it is used in any case.",
    )

    @property
    def budget(self) -> tuple[Literal["tokens", "steps", "epochs"], int | float, int]:
        """The budget's unit and amount, and the batches of a step."""
        if self.max_tokens is not None:
            return "tokens", self.max_tokens, self.accumulate
        if self.max_steps is not None:
            return "steps", self.max_steps, self.accumulate
        if self.max_epochs is not None:
            return "epochs", self.max_epochs, self.accumulate
        raise ValueError("a training without a budget; give one of max_tokens, max_steps, max_epochs")


class Tokenizer(Part):
    """How text becomes tokens; trained on the training split only."""

    type: Literal["char", "word", "byte", "bpe", "unigram"] = key(
        "char",
        "One token a character, a word, or a byte of UTF-8; or pieces of words that are learned: by byte-pair encoding "
        "(bpe), or the likeliest ones (unigram, Kudo 2018).",
    )
    vocab_size: Whole = key(
        4000,
        "Largest vocabulary of word, bpe and unigram; char takes what occurs, byte all 256.",
        "tokens",
        ge=260,
        le=1_000_000,
    )
    normalization: Literal["nfc", "nfkc", "none"] = key(
        "nfc",
        "Unicode normal form that a text is brought to first; nfkc makes one of what only looks different, such as "
        "full-width letters, and what the model says has this form.",
    )
    segmenter: Literal["none", "jieba"] = key(
        "none", "What cuts Chinese into words for type: word; with none each character is a word."
    )
    vocabulary: Literal["joint", "separate"] = key(
        "joint",
        "Of translation: joint learns one vocabulary for sources and targets, which share their embedding; separate "
        "learns one for each.",
    )


MODEL = Ranged(Model, fixed=("architecture",))
TRAINING = Ranged(Training)
TOKENIZER = Ranged(Tokenizer)
# Under their own names, so that a spec can be pickled.
ModelRanges, TrainingRanges, TokenizerRanges = MODEL.variant, TRAINING.variant, TOKENIZER.variant
