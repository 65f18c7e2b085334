"""The keys of a spec, each declared once: type, bounds, default, meaning, unit.

The plain classes hold one value a key; `Ranged` marks the sections whose keys may be ranges in a spec, so that words
and bounds stand in one place and every end and choice of a range is held to them.
"""

from __future__ import annotations

import codecs
import unicodedata
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
)

from tuneyard_pipelines import architectures, units
from tuneyard_pipelines.catalog import BUILTIN_DATA, DATA_FILES, NUMBER_LANGUAGES, is_data_file, is_data_set
from tuneyard_pipelines.sections import OneOf, Part, Ranged, Says, refusal
from tuneyard_pipelines.spec_yaml import shown_value

NAME = r"[a-z0-9][a-z0-9._-]{0,63}"
NAME_RULE = "1 to 64 of a-z, 0-9, dot, dash and underscore, beginning with a letter or digit"


def _key(default: Any, description: str, unit: str = "", **more: Any) -> Any:
    """A key's default, meaning and unit; `more` are pydantic's bounds and examples."""
    return Field(default, description=description, json_schema_extra={"unit": unit} if unit else None, **more)


def _section(default: Any, description: str) -> Any:
    return Field(default_factory=default, description=description)


def _whole(value: Any) -> Any:
    """`3e6` and `4.0` are whole numbers, as in JSON schema."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


def _clean(text: str) -> str:
    """Refuses what databases and terminals choke on. Raises ValueError."""
    for position, character in enumerate(text, start=1):
        if unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t":
            raise ValueError(f"character {position} is U+{ord(character):04X}, a control character")
    return text


def _architecture(name: str) -> str:
    """Raises ValueError for one that there is not."""
    if name not in architectures.names():
        raise ValueError
    return name


def _precision(value: Any) -> Any:
    """YAML reads 32 as a number."""
    return "32" if type(value) is int and value == 32 else value


TaskName = Literal["translation", "language_modeling", "masked_lm"]
Whole = Annotated[int, BeforeValidator(_whole)]
Precision = Annotated[
    Literal["32", "bf16-mixed", "16-mixed"],
    BeforeValidator(_precision),
    WithJsonSchema({"enum": ["32", 32, "bf16-mixed", "16-mixed"]}),
]
Text = Annotated[str, AfterValidator(_clean)]
Name = Annotated[str, Field(pattern=f"^{NAME}$"), Says(NAME_RULE)]
Architecture = Annotated[str, AfterValidator(_architecture), OneOf(architectures.names)]


class Model(Part):
    """What is trained: a family of models, and the keys that it follows (the table in docs/models.md)."""

    architecture: Architecture | None = _key(
        None,
        "The family of models, one for all trials of a variant; left out, transformer for translation, gpt for "
        "language_modeling, bert for masked_lm. Installed packages add others.",
        examples=["transformer"],
    )
    d_model: Whole = _key(128, "Width of embeddings and layers; a multiple of num_heads.", "features", ge=1, le=16384)
    num_heads: Whole | None = _key(
        None,
        "Attention heads of every layer; left out, 4, and 1 for seq2seq, where attention: multi_head has more.",
        "heads",
        ge=1,
        le=1024,
        examples=[4],
    )
    num_kv_heads: Whole | None = _key(
        None,
        "Of gpt: heads of keys and values, each shared by an equal number of num_heads queries; left out, num_heads.",
        "heads",
        ge=1,
        le=1024,
        examples=[2],
    )
    num_layers: Whole = _key(
        2, "Layers; of an encoder-decoder, of the encoder and of the decoder: so many each.", "layers", ge=1, le=128
    )
    num_decoder_layers: Whole | None = _key(
        None, "Layers of transformer's decoder; left out, num_layers.", "layers", ge=1, le=128, examples=[2]
    )
    sequence_length: Whole = _key(
        64,
        "Longest source and longest target, the end token included; of documents, the window: how many tokens are "
        "seen at once.",
        "tokens",
        ge=2,
        le=65536,
    )
    d_ff: Whole | None = _key(
        None,
        "Width inside the feed-forward part, and of nplm's hidden layer; left out, 4 * d_model.",
        "features",
        ge=1,
        le=65536,
        examples=[512],
    )
    dropout: float = _key(0.1, "Share of activations dropped in training.", "share", ge=0, lt=1)
    norm: Literal["pre", "post"] | None = _key(
        None,
        "Layer norms before the sub-layers of attention models, or after them; left out, post for bert, pre otherwise.",
        examples=["pre"],
    )
    positions: Literal["sinusoidal", "learned", "rotary"] | None = _key(
        None,
        "How a token's place is told to attention; left out, sinusoidal for transformer, learned for gpt and bert.",
        examples=["sinusoidal"],
    )
    activation: Literal["tanh", "relu", "gelu", "swiglu"] | None = _key(
        None,
        "Of rnn tanh or relu, left out tanh; in the feed-forward part of attention models relu, gelu or swiglu, left "
        "out relu for transformer, gelu for gpt and bert.",
        examples=["relu"],
    )
    bias: bool = _key(True, "Whether the linear maps of attention and feed-forward add a bias.")
    without: Literal["nothing", "positions", "residual", "norm", "feed_forward", "scaling"] = _key(
        "nothing", "A part to take out of an attention model, to see what it is worth; scaling is that of scores."
    )
    gradient_checkpointing: bool = _key(
        False,
        "Whether attention layers keep only their inputs in training and compute the rest again: less memory, a third "
        "more to compute.",
    )
    tied_embeddings: bool = _key(
        True, "Whether one matrix embeds tokens and gives the output, in models without attention layers."
    )
    cell: Literal["rnn", "lstm", "gru"] = _key("lstm", "Of seq2seq: what its encoder and decoder are made of.")
    attention: Literal["none", "dot", "scaled_dot", "additive", "multi_head"] = _key(
        "additive", "Of seq2seq: how the decoder looks at the source; none gives it one vector for all steps."
    )
    teacher_forcing: float = _key(
        1.0,
        "Of seq2seq: share of the steps of training that read the right token; others read the model's own.",
        "share",
        ge=0,
        le=1,
    )
    kernel_size: Whole = _key(3, "Of conv: how many tokens a filter sees.", "tokens", ge=1, le=1024)
    order: Whole = _key(
        3, "Of n-grams: how many tokens long, the one that is predicted included.", "tokens", ge=1, le=16
    )
    window: Whole = _key(5, "Of cbow: how many tokens are seen on each side of a mask.", "tokens", ge=1, le=1024)


class Training(Part):
    """How a trial is trained: its budget, batches, optimiser (AdamW) and which of its weights are kept."""

    max_tokens: Whole | None = _key(
        None,
        "Budget of a trial. Exactly one of max_tokens, max_steps, max_epochs is given.",
        "tokens without padding, source and target both counted",
        ge=1,
        le=10**15,
        examples=[3_000_000],
    )
    max_steps: Whole | None = _key(
        None,
        "The budget as optimiser updates, each over `accumulate` batches.",
        "updates",
        ge=1,
        le=10**12,
        examples=[2_000],
    )
    max_epochs: float | None = _key(
        None, "The budget as passes over the training split.", "passes", gt=0, le=10**6, examples=[10]
    )
    batch_tokens: Whole = _key(4096, "Size of a batch, without padding.", "tokens", ge=1, le=10**9)
    accumulate: Whole = _key(
        1,
        "Batches to an optimiser update, whose gradient is the mean over the target tokens of all of them: a larger "
        "batch in the memory of a smaller one.",
        "batches",
        ge=1,
        le=10_000,
    )
    learning_rate: float = _key(1e-3, "Peak learning rate.", gt=0, le=10)
    schedule: Literal["cosine", "inverse_sqrt", "noam", "linear", "constant", "warmup_stable_decay"] = _key(
        "cosine",
        "How the learning rate goes on after warm-up: cosine and linear fall to min_learning_rate_share; inverse_sqrt "
        "falls as sqrt(warmup / used share), and so does noam, whose warm-up begins at 0; constant stays; "
        "warmup_stable_decay stays, and falls linearly to min_learning_rate_share in the last `decay` of the budget.",
    )
    warmup: float = _key(
        0.05,
        "Share of the budget in which the learning rate rises to its peak, from min_learning_rate_share of it.",
        "share",
        ge=0,
        lt=1,
    )
    decay: float = _key(0.2, "Share of the budget at its end in which warmup_stable_decay falls.", "share", gt=0, le=1)
    min_learning_rate_share: float = _key(
        0.02,
        "Where warm-up begins and cosine, linear and warmup_stable_decay end, as a share of the peak learning rate.",
        "share",
        ge=0,
        le=1,
    )
    weight_decay: float = _key(0.01, "AdamW's decay of weight matrices.", ge=0, le=10)
    gradient_clip: float = _key(1.0, "Largest norm of a gradient; longer ones are scaled down.", "norm", gt=0, le=10**6)
    label_smoothing: float = _key(0.0, "Share of the target spread over the vocabulary.", "share", ge=0, lt=1)
    adam_beta2: float = _key(0.98, "Decay of AdamW's second moment.", ge=0, lt=1)
    evaluations: Whole = _key(10, "Validations, spread evenly over the budget.", "evaluations", ge=1, le=10_000)
    early_stopping: Whole | None = _key(
        None,
        "After so many validations in a row without a better search.metric a trial ends as stopped_early and stands as "
        "it is; left out, none does.",
        "evaluations",
        ge=1,
        le=10_000,
        examples=[5],
    )
    average: Literal["none", "ema", "last"] = _key(
        "none",
        "Which weights are validated, scored and packaged: those that the optimiser moves, their exponential moving "
        "average (ema), or the mean of those at the last validations (last).",
    )
    ema_decay: float = _key(
        0.999,
        "Share of itself that the ema keeps at an update; at update t at most (1 + t) / (10 + t).",
        "share",
        ge=0,
        lt=1,
    )
    last_checkpoints: Whole = _key(
        5, "How many validations the average of type last goes back, with this one.", "checkpoints", ge=1, le=100
    )
    precision: Precision = _key(
        "32",
        "Bits of a number in matrix products; mixed: weights and optimiser keep 32. bf16-mixed on any machine, "
        "16-mixed (with a scaled loss) on a GPU only. Validation is as training, the test in 32.",
    )
    compile: bool = _key(
        False, "Whether the network is compiled by torch.compile, for which a worker needs a C++ compiler (g++)."
    )
    deterministic: bool = _key(
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

    type: Literal["char", "word", "byte", "bpe", "unigram"] = _key(
        "char",
        "One token a character, a word, or a byte of UTF-8; or pieces of words that are learned: by byte-pair encoding "
        "(bpe), or the likeliest ones (unigram, Kudo 2018).",
    )
    vocab_size: Whole = _key(
        4000,
        "Largest vocabulary of word, bpe and unigram; char takes what occurs, byte all 256.",
        "tokens",
        ge=260,
        le=1_000_000,
    )
    normalization: Literal["nfc", "nfkc", "none"] = _key(
        "nfc",
        "Unicode normal form that a text is brought to first; nfkc makes one of what only looks different, such as "
        "full-width letters, and what the model says has this form.",
    )
    segmenter: Literal["none", "jieba"] = _key(
        "none", "What cuts Chinese into words for type: word; with none each character is a word."
    )
    vocabulary: Literal["joint", "separate"] = _key(
        "joint",
        "Of translation: joint learns one vocabulary for sources and targets, which share their embedding; separate "
        "learns one for each.",
    )


MODEL = Ranged(Model, fixed=("architecture",))
TRAINING = Ranged(Training)
TOKENIZER = Ranged(Tokenizer)
# Under their own names, so that a spec can be pickled.
ModelRanges, TrainingRanges, TokenizerRanges = MODEL.variant, TRAINING.variant, TOKENIZER.variant


def _column(value: Any) -> str | int:
    named = isinstance(value, str) and value != ""
    numbered = type(value) is int and value >= 1
    if not named and not numbered:
        raise ValueError
    column: str | int = value
    return column


def _source(value: str) -> str:
    if value.startswith("builtin/") and value not in BUILTIN_DATA:
        raise refusal(f"no built-in data {shown_value(value)}; there is {', '.join(BUILTIN_DATA)}")
    if not value.startswith("builtin/") and not is_data_set(value) and not is_data_file(value, DATA_FILES):
        raise ValueError
    return _clean(value)


Column = Annotated[
    str | int,
    PlainValidator(_column),
    WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer", "minimum": 1}]}),
    Says("a column's name (with header: true), its number, counted from 1, or a key of a .jsonl file"),
]


class Columns(Part):
    """Which columns of a file hold the texts: source and target for translation, text for other tasks."""

    source: Column | None = _key(None, "Column of the text to translate.", examples=[1])
    target: Column | None = _key(None, "Column of its translation.", examples=[2])
    text: Column | None = _key(None, "Column of the documents of other tasks.", examples=["text"])


def _held_back(value: Any) -> float | int | str:
    held: float | int | str = value
    if isinstance(value, str) and value and is_data_file(value, DATA_FILES):
        return _clean(value)
    if type(value) is int and 1 <= value <= 10**9:
        return held
    if type(value) is float and 0 < value < 0.5:
        return held
    raise ValueError


HeldBack = Annotated[
    float | int | str,
    PlainValidator(_held_back),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5},
                {"type": "integer", "minimum": 1, "maximum": 10**9},
                {"type": "string", "minLength": 1},
            ]
        }
    ),
    Says("a share above 0 and below 0.5, a number of examples, or the path of a file"),
]


def _group_by(value: Any) -> str | tuple[str | int, ...]:
    if value in ("text", "example"):
        return str(value)
    if not isinstance(value, list | tuple) or not value or len(value) > 5:
        raise ValueError
    return tuple(_column(column) for column in value)


class Split(Part):
    """What is held back: shares (of the pairs, or of the documents' bytes), numbers of examples, or given files."""

    validation: HeldBack = _key(0.05, "For choosing among trials: a share, a number of examples, or a file of its own.")
    test: HeldBack = _key(0.05, "For the final score: a share, a number of examples, or a file of its own.")
    group_by: Annotated[
        Literal["text", "example"] | tuple[str | int, ...],
        PlainValidator(_group_by),
        WithJsonSchema(
            {
                "anyOf": [
                    {"enum": ["text", "example"]},
                    {"type": "array", "minItems": 1, "maxItems": 5, "items": {"type": ["string", "integer"]}},
                ]
            }
        ),
        Says("text, example, or a list of up to 5 columns such as [author]"),
    ] = _key(
        "text",
        "What stays on one side: examples with a text in common, equal examples only, or those that are equal in these "
        "columns of the file.",
    )


_NO_FILES = ("idna", "punycode", "utf-7", "unicode-escape", "raw-unicode-escape")  # encodings, but of no text file


def _encoding(value: str) -> str:
    """Raises ValueError for what is no encoding of text."""
    if value != "auto":
        try:
            "".encode(value)
            odd = codecs.lookup(value).name in _NO_FILES
        except LookupError:
            raise ValueError from None
        if odd:
            raise ValueError
    return value


def _languages(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError
    for word in value:
        if word not in NUMBER_LANGUAGES:
            raise refusal(f"found {shown_value(word)}; allowed: {_LANGUAGES}")
        if value.count(word) > 1:
            raise refusal(f"found {word} twice; name each language once")
    return tuple(value)


_LANGUAGES = f"a list of {', '.join(NUMBER_LANGUAGES)}"


class Generate(Part):
    """What the built-in data that is made, not read, is like."""

    min_length: Whole = _key(
        4,
        "Shortest sequence of builtin/copy, reverse and sort, and fewest pairs of builtin/recall.",
        "symbols, or pairs",
        ge=1,
        le=65536,
    )
    max_length: Whole = _key(
        16,
        "Longest sequence, and most pairs; every length up to it is as likely as another.",
        "symbols, or pairs",
        ge=1,
        le=65536,
    )
    symbols: Whole = _key(
        16,
        "How many different symbols there are: digits, letters, then Han characters; of builtin/recall, how many "
        "letters, each of which can be paired with a digit.",
        "symbols",
        ge=2,
        le=4096,
    )
    distractors: Whole = _key(
        0, "Letters without a digit at random places among the pairs of builtin/recall.", "letters", ge=0, le=65536
    )
    languages: Annotated[
        tuple[str, ...],
        BeforeValidator(_languages),
        WithJsonSchema(
            {"type": "array", "items": {"enum": list(NUMBER_LANGUAGES)}, "minItems": 1, "uniqueItems": True}
        ),
        Says(_LANGUAGES),
    ] = _key(NUMBER_LANGUAGES, "Languages in whose words builtin/numbers writes.")
    largest: Whole = _key(
        999_999,
        "Largest number of builtin/numbers; the smallest is 0, and small ones are drawn more often.",
        "whole number",
        ge=9,
        le=999_999,
    )


_SHORT = Says("text of 1 to 256 characters; put a number in quotes")


class DataSpec(Part):
    """Pairs of texts or documents: where they come from, how they are split and cut into tokens."""

    source: Annotated[
        str,
        Field(max_length=4096),
        AfterValidator(_source),
        Says(
            f"one of {', '.join(BUILTIN_DATA)}, hub/OWNER/NAME, or the path of a .tsv, .txt, .csv, .jsonl or .parquet "
            "file, or of a folder"
        ),
    ] = _key(
        ...,
        "Where texts come from. For translation: builtin/dates, builtin/numbers (in words -> in digits), or a file of "
        "pairs (.tsv and .txt parted by tabs, .csv, .jsonl, .parquet). For other tasks: builtin/stdlib, the "
        "sources of Python's standard library, or a file of documents (.txt parted by blank lines, .csv, .jsonl, "
        ".parquet). All but .parquet may be packed as .gz; corpus/*.txt means all files that fit. For both: sequences "
        "of symbols with their copy (builtin/copy), reverse (builtin/reverse) or order (builtin/sort), and "
        "builtin/recall, pairs and then a key (A7 C2 F9 ? C -> 2); in a document, = stands between the two; and a "
        "data set of the Hugging Face hub (hub/OWNER/NAME), or a folder laid out like one, with the splits that it "
        "gives. A relative path counts from the folder of this file.",
        examples=["builtin/dates"],
    )
    columns: Columns | None = _key(
        None,
        "Columns of the file, by name or by number from 1; left out, the first ones, or of .jsonl, .parquet and data "
        "sets source and target, or text. translation.de is de inside of translation.",
        examples=[{}],
    )
    config: Annotated[Text, Field(min_length=1, max_length=256), _SHORT] | None = _key(
        None, "Which config of a data set; left out, its default one.", examples=["default"]
    )
    revision: Annotated[Text, Field(min_length=1, max_length=256), _SHORT] = _key(
        "main", "Branch, tag or commit of a data set of the hub; the sweep keeps the commit."
    )
    header: bool = _key(False, "Whether the file's first line names the columns.")
    encoding: Annotated[str, AfterValidator(_encoding), Says("auto, or an encoding such as utf-8, utf-16, gb18030")] = (
        _key(
            "auto",
            "How the file writes characters as bytes; auto is UTF-8, or UTF-16 where the file begins with its mark.",
        )
    )
    max_bad_share: float = _key(
        0.05, "So much of a source may be unusable, and is left out; more of it is refused.", "share", ge=0, le=1
    )
    examples: Whole = _key(
        20_000, "How many examples built-in data that is made has: any but builtin/stdlib.", "examples", ge=10, le=10**8
    )
    generate: Generate = _section(
        Generate, "What the examples of builtin/numbers, copy, reverse, sort and recall are like."
    )
    split: Split = _section(Split, "Which shares of the data are held back: of pairs, or of the documents' bytes.")
    tokenizer: Annotated[Part, TOKENIZER] = _section(lambda: TOKENIZER.variant(), "How text becomes tokens.")


_SCHEDULERS = "none, asha, or {type: asha, min_share: 0.11, reduction_factor: 3}"


class Scheduler(Part):
    """Which trials get their full budget: all (none), or the best of each rung (asha)."""

    type: Annotated[Literal["none", "asha"], Says(_SCHEDULERS)] = _key(
        "asha", "none gives every trial its full budget; asha promotes the best of each rung to the next."
    )
    min_share: float = _key(
        0.11,
        "The lowest rung is the smallest reduction_factor^-k that is not below this share.",
        "share of the budget",
        ge=0.0001,
        lt=1,
    )
    reduction_factor: Whole = _key(3, "Of so many trials of a rung, one goes on to the next.", "trials", ge=2, le=100)

    @model_serializer(mode="plain")
    def _written(self) -> str | dict[str, Any]:
        if self.type == "none":
            return "none"
        return {"type": self.type, "min_share": self.min_share, "reduction_factor": self.reduction_factor}


def _scheduler(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


class Search(Part):
    """Which points are tried, and how long each."""

    algorithm: Literal["tpe", "random", "grid"] = _key(
        "tpe", "How points are chosen: tpe learns from scores, random does not, grid takes all in order."
    )
    scheduler: Annotated[
        Scheduler,
        BeforeValidator(_scheduler, json_schema_input_type=Literal["none", "asha"] | Scheduler),
        Says(_SCHEDULERS),
    ] = _section(Scheduler, "none, asha, or asha with its settings.")
    trials: Whole | None = _key(
        None,
        "How many points are tried; grid may leave it out and tries all.",
        "trials",
        ge=1,
        le=100_000,
        examples=[12],
    )
    max_concurrent_trials: Whole | None = _key(
        None, "How many run at once; left out, as many as fit.", "trials", ge=1, le=100_000, examples=[2]
    )
    metric: (
        Literal[
            "val/exact_match",
            "val/accuracy",
            "val/bleu",
            "val/chrf",
            "val/bits_per_byte",
            "val/loss",
            "val/perplexity",
        ]
        | None
    ) = _key(
        None,
        "What is compared; left out, val/exact_match for translation, val/bits_per_byte for language_modeling, "
        "val/loss for masked_lm.",
        examples=["val/exact_match"],
    )
    include: Annotated[
        tuple[dict[str, Any], ...],
        Field(strict=False, max_length=1000),
        Says("a list of points such as [{num_heads: 4, learning_rate: 0.001}], each with a value for every varied key"),
    ] = _key(
        (),
        "Points to start from, tried first and counted among the trials; each names every varied key, and its variant "
        "where there are some.",
    )
    retries: Whole = _key(1, "How often a failed trial starts again from its checkpoint.", "times", ge=0, le=100)


def _duration(value: str) -> str:
    units.duration_s(value)
    return value


def _size(value: str) -> str:
    units.size_bytes(value)
    return value


class Resources(Part):
    """What one trial takes of the machine."""

    cpus_per_worker: Whole = _key(1, "CPU cores of a trial.", "cores", ge=1, le=4096)
    gpus_per_worker: Whole = _key(0, "GPUs of a trial.", "GPUs", ge=0, le=1024)
    memory_per_worker: Annotated[
        str,
        BeforeValidator(lambda value: str(value) if type(value) is int else value),
        AfterValidator(_size),
        WithJsonSchema({"type": ["string", "integer"]}),
        Says(units.SIZE_FORMS),
    ] = _key("4GiB", "Memory of a trial.", "bytes, or with a unit: KiB MiB GiB TiB, KB MB GB TB")
    stall_timeout: Annotated[str, AfterValidator(_duration), Says(units.DURATION_FORMS)] = _key(
        "10m", "A trial that makes no step for so long is ended as stalled.", "duration in d, h, m, s"
    )

    @property
    def memory_per_worker_bytes(self) -> int:
        return units.size_bytes(self.memory_per_worker)

    @property
    def stall_timeout_s(self) -> int:
        return units.duration_s(self.stall_timeout)


class Budget(Part):
    """What the whole sweep may take. At a limit the running trials make a last evaluation, and the best is kept."""

    wall_clock: Annotated[str, AfterValidator(_duration), Says(units.DURATION_FORMS)] | None = _key(
        None,
        "Longest time from the start of the driver to the end of its last training; each resume begins anew.",
        "duration in d, h, m, s",
        examples=["20m"],
    )
    trial_hours: float | None = _key(
        None,
        "Sum of the time that trials train, over all attempts.",
        "hours of a trial",
        gt=0,
        le=10**7,
        examples=[2.0],
    )
    checkpoint_bytes: Annotated[
        str | None,
        BeforeValidator(lambda value: str(value) if type(value) is int else value),
        AfterValidator(lambda value: None if value is None else _size(value)),
        WithJsonSchema({"type": ["string", "integer", "null"]}),
        Says(units.SIZE_FORMS),
    ] = _key(
        None,
        "Most that all checkpoints of the sweep take on disk; the best and those of running trials stay.",
        "bytes, or with a unit: KiB MiB GiB TiB, KB MB GB TB",
        examples=["20GiB"],
    )

    @property
    def wall_clock_s(self) -> int | None:
        return None if self.wall_clock is None else units.duration_s(self.wall_clock)

    @property
    def checkpoint_limit_bytes(self) -> int | None:
        return None if self.checkpoint_bytes is None else units.size_bytes(self.checkpoint_bytes)


class VariantData(Part):
    """What a variant changes of the data."""

    tokenizer: Annotated[Part, TOKENIZER] = _section(lambda: TOKENIZER.variant(), "How text becomes tokens.")


class Variant(Part):
    """What a variant of the sweep sets in place of the spec's own keys."""

    model: Annotated[Part, MODEL] = _section(lambda: MODEL.variant(), "What is trained.")
    training: Annotated[Part, TRAINING] = _section(lambda: TRAINING.variant(), "How a trial is trained.")
    data: VariantData = _section(VariantData, "How text becomes tokens.")

    @model_serializer(mode="wrap")
    def _what_it_sets(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A default that it does not set must not take the place of the spec's own key."""
        return _set_only(self, whole(self))


def _set_only(part: Part, written: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for name in (name for name in written if name in part.model_fields_set):
        inner = getattr(part, name)
        kept[name] = _set_only(inner, written[name]) if isinstance(inner, Part) else written[name]
    return kept


class Registration(Part):
    """Where the best trial's model goes."""

    name: Name = _key(..., "Name of the registered model.", examples=["dates"])
