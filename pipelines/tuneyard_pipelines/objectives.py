"""What a task makes of a point: its training stream, Lightning module, validation batches, samples, and an example.

A trial knows no task by name: it takes the objective of its configuration and what an `Objective` offers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tuneyard_modules.baselines import CountingNetwork
from tuneyard_modules.inspection import Attentive, attention_maps
from tuneyard_modules.language_modeling import (
    CountingModule,
    LanguageBatch,
    LanguageModelingModule,
    LanguageSettings,
)
from tuneyard_modules.masked_lm import MaskedBatch, MaskedLanguageModule, MaskedSettings
from tuneyard_modules.objective import Optimization, SequenceModule
from tuneyard_modules.translation import TranslationBatch, TranslationModule, TranslationSettings
from tuneyard_pipelines import masks
from tuneyard_pipelines.data import BOS, EOS, PAD, UNK, EncodedData, PreparedData, TextTokenizer
from tuneyard_pipelines.data.batching import BatchStream, eval_batches
from tuneyard_pipelines.data.stream import ALONE, Batch, Budget, Sharing, Stream
from tuneyard_pipelines.data.windows import (
    MaskedStream,
    WindowStream,
    evaluation_windows,
    masked_windows,
    unknown_bits,
)
from tuneyard_pipelines.formulas import with_mask
from tuneyard_pipelines.package import continued
from tuneyard_pipelines.spec import TrialConfig

SAMPLES = 20
CONTINUED, PROMPT_TOKENS, NEW_TOKENS = 5, 16, 48
SHOWN_TOKENS = 24  # of a heat map: more would not be readable


@dataclass(frozen=True)
class AttentionMap:
    """Where one kind of attention looks: weights (layers, heads, queries, keys) and the tokens along both sides."""

    kind: str
    weights: Tensor
    queries: Sequence[str]
    keys: Sequence[str]


class Objective(Protocol):
    """One point of a task with its data."""

    @property
    def stream(self) -> Stream[Any]:
        """The training batches."""
        ...

    @property
    def validation(self) -> Sequence[Any]:
        """The validation batches."""
        ...

    @property
    def facts(self) -> Mapping[str, float]:
        """Numbers about the data, logged once."""
        ...

    def module(self, network: nn.Module) -> SequenceModule:
        """The network with its loss and its validation."""
        ...

    def samples(self, module: Any) -> list[tuple[str, ...]]:
        """A head, and rows of what the model says of validation examples; the module is in evaluation mode."""
        ...

    def attention(self, network: nn.Module) -> list[AttentionMap]:
        """Where the network looks in the one example that all trials share; empty where it has no attention."""
        ...


def objective(config: TrialConfig, prepared: PreparedData, encoded: EncodedData, sharing: Sharing = ALONE) -> Objective:
    """The objective of a point, as a worker has it that shares its batches with others: its parts of them."""
    kinds: dict[str, Callable[[TrialConfig, PreparedData, EncodedData, Sharing], Objective]] = {
        "translation": Translation,
        "language_modeling": LanguageModeling,
        "masked_lm": MaskedLanguageModeling,
    }
    return kinds[config.task](config, prepared, encoded, sharing)


class Translation:
    """Pairs of texts, scored by what the model says."""

    def __init__(self, config: TrialConfig, prepared: PreparedData, encoded: EncodedData, sharing: Sharing) -> None:
        self._config, self._prepared, self._encoded, self._sharing = config, prepared, encoded, sharing
        length, batch_tokens = config.model.sequence_length, config.training.batch_tokens
        self.stream = BatchStream(
            encoded.split("train"),
            sequence_length=length,
            batch_tokens=batch_tokens,
            seed=config.seed,
            budget=Budget(*config.training.budget),
            sharing=sharing,
        )
        whole, cut = eval_batches(encoded.split("validation"), sequence_length=length, batch_tokens=batch_tokens)
        self.validation: list[TranslationBatch] = _shared(whole, sharing)
        self.facts = {
            "data/train_too_long": float(self.stream.too_long),
            "data/val_cut_off": float(cut),
            "data/val_unknown_share": encoded.unknown_share("validation"),
        }

    def module(self, network: nn.Module) -> TranslationModule:
        validation = self._prepared.split("validation")
        return TranslationModule(
            network,
            optimization(self._config, self._sharing.split),
            TranslationSettings(
                max_length=self._config.model.sequence_length, label_smoothing=self._config.training.label_smoothing
            ),
            decode=self._encoded.tokenizers["target"].decode,
            references=dict(zip(validation["id"], validation["target"], strict=True)),
        )

    def samples(self, module: TranslationModule) -> list[tuple[str, ...]]:
        validation = self._prepared.split("validation")
        row = {example: index for index, example in enumerate(validation["id"])}
        batch = self.validation[0]
        said = module.translate(batch.source_BS[:SAMPLES])
        pairs = [validation[row[example]] for example in batch.ids[:SAMPLES]]
        return [
            ("source", "target", "prediction"),
            *((pair["source"], pair["target"], text) for pair, text in zip(pairs, said, strict=True)),
        ]

    def attention(self, network: nn.Module) -> list[AttentionMap]:
        if not isinstance(network, Attentive):
            return []
        source_side, target_side = (self._encoded.tokenizers[column] for column in ("source", "target"))
        length = min(self._config.model.sequence_length, SHOWN_TOKENS)
        pair = self._prepared.split("validation")[0]
        source = [*source_side.encode(pair["source"])[: length - 1], EOS]
        target = [BOS, *target_side.encode(pair["target"])[: length - 1]]
        maps = attention_maps(network, torch.tensor(source), torch.tensor(target))
        sources, targets = spelled(source_side, source), spelled(target_side, target)
        sides = {"encoder": (sources, sources), "decoder": (targets, targets), "cross": (targets, sources)}
        return [AttentionMap(kind, weights, *sides[kind]) for kind, weights in maps.items()]


class LanguageModeling:
    """Documents, scored by how likely the model finds every token of the validation text."""

    def __init__(self, config: TrialConfig, prepared: PreparedData, encoded: EncodedData, sharing: Sharing) -> None:
        self._config, self._prepared, self._encoded, self._sharing = config, prepared, encoded, sharing
        length, batch_tokens = config.model.sequence_length, config.training.batch_tokens
        self.stream = WindowStream(encoded.split("train"), **_windows(config, sharing))
        held_out = evaluation_windows(encoded.split("validation"), sequence_length=length, batch_tokens=batch_tokens)
        self.validation: list[LanguageBatch] = _shared(held_out, sharing)
        self._unknown_bits = unknown_bits(encoded.counts["validation"]["text"].unknown_characters)
        self.facts = {
            "data/train_tokens": float(self.stream.tokens_per_pass),
            "data/val_tokens": float(sum(batch.tokens for batch in held_out)),
            "data/val_unknown_share": encoded.unknown_share("validation"),
        }

    def module(self, network: nn.Module) -> LanguageModelingModule:
        kind: Callable[..., LanguageModelingModule] = LanguageModelingModule
        if isinstance(network, CountingNetwork):
            kind = partial(CountingModule, pass_tokens=self.stream.tokens_per_pass)
        return kind(
            network,
            optimization(self._config, self._sharing.split),
            LanguageSettings(label_smoothing=self._config.training.label_smoothing),
            text_bytes=self._prepared.text_bytes["validation"],
            extra_bits=self._unknown_bits,
        )

    def samples(self, module: LanguageModelingModule) -> list[tuple[str, ...]]:
        tokenizer = self._encoded.tokenizers["text"]
        texts = self._prepared.split("validation")["text"][:CONTINUED]
        rows: list[tuple[str, ...]] = [("text", "continuation")]
        for text in texts:
            ids = tokenizer.encode(text)[:PROMPT_TOKENS]
            rows.append((tokenizer.decode(ids), continued(module.network, tokenizer, ids, NEW_TOKENS)))
        return rows

    def attention(self, network: nn.Module) -> list[AttentionMap]:
        if not isinstance(network, Attentive):
            return []
        tokenizer = self._encoded.tokenizers["text"]
        shown = min(self._config.model.sequence_length, SHOWN_TOKENS)
        ids = [BOS, *tokenizer.encode(self._prepared.split("validation")[0]["text"])[: shown - 1]]
        maps = attention_maps(network, torch.tensor(ids))
        tokens = spelled(tokenizer, ids)
        return [AttentionMap("self", maps["self"], tokens, tokens)]


class MaskedLanguageModeling:
    """Documents with masks, scored by how likely the model finds the words behind them."""

    def __init__(self, config: TrialConfig, prepared: PreparedData, encoded: EncodedData, sharing: Sharing) -> None:
        self._config, self._prepared, self._encoded, self._sharing = config, prepared, encoded, sharing
        length, batch_tokens = config.model.sequence_length, config.training.batch_tokens
        self.settings = masked_settings(config, encoded)
        self.stream = MaskedStream(encoded.split("train"), self.settings, **_windows(config, sharing))
        held_out = masked_windows(
            encoded.split("validation"),
            sequence_length=length,
            batch_tokens=batch_tokens,
            settings=self.settings,
            seed=config.seed,
        )
        self.validation: list[MaskedBatch] = _shared(held_out, sharing)
        self.facts = {
            "data/train_tokens": float(self.stream.tokens_per_pass),
            "data/val_tokens": float(sum(batch.tokens for batch in held_out)),
            "data/val_masked_tokens": float(sum(int((b.target_BT != PAD).sum()) for b in held_out)),
            "data/val_unknown_share": encoded.unknown_share("validation"),
        }

    def module(self, network: nn.Module) -> MaskedLanguageModule:
        return MaskedLanguageModule(network, optimization(self._config, self._sharing.split), self.settings)

    def samples(self, module: MaskedLanguageModule) -> list[tuple[str, ...]]:
        tokenizer, mask_id = self._encoded.tokenizers["text"], self.settings.mask_id
        batch = self.validation[0]
        rows: list[tuple[str, ...]] = [("text", "prediction", "masked")]
        with torch.inference_mode():
            said_BT = module.network(batch.shown_BT[:SAMPLES])[..., :mask_id].argmax(dim=-1)
        for shown_T, said_T, target_T in zip(batch.shown_BT, said_BT, batch.target_BT, strict=False):
            behind = [place for place in target_T.nonzero().flatten().tolist() if shown_T[place] == mask_id]
            told = [tokenizer.continuation([int(side[place])]) for side in (said_T, target_T) for place in behind]
            half = len(behind)
            text = masks.written(tokenizer, [token for token in shown_T.tolist() if token != PAD], mask_id)
            rows.append((text, " | ".join(told[:half]), " | ".join(told[half:])))
        return rows

    def attention(self, network: nn.Module) -> list[AttentionMap]:
        if not isinstance(network, Attentive):
            return []
        shown_T = self.validation[0].shown_BT[0, :SHOWN_TOKENS]
        maps = attention_maps(network, shown_T)
        tokens = spelled(self._encoded.tokenizers["text"], shown_T.tolist(), self.settings.mask_id)
        return [AttentionMap("self", maps["self"], tokens, tokens)]


def _windows(config: TrialConfig, sharing: Sharing) -> dict[str, Any]:
    """How documents are cut to train on."""
    return {
        "sequence_length": config.model.sequence_length,
        "batch_tokens": config.training.batch_tokens,
        "seed": config.seed,
        "budget": Budget(*config.training.budget),
        "sharing": sharing,
    }


def _shared(batches: list[Batch], sharing: Sharing) -> list[Batch]:
    """A worker's own of the batches that all validate together."""
    return batches[sharing.rank :: sharing.workers]


def masked_settings(config: TrialConfig, encoded: EncodedData) -> MaskedSettings:
    """How words are hidden: the mask follows the ids of the text."""
    return MaskedSettings(mask_id=with_mask(encoded.sizes) - 1, label_smoothing=config.training.label_smoothing)


def optimization(config: TrialConfig, split: int = 1) -> Optimization:
    """How the weights of a point are moved, where every batch comes in `split` pieces."""
    training = config.training
    return Optimization(
        learning_rate=training.learning_rate,
        schedule=training.schedule,
        warmup=training.warmup,
        decay=training.decay,
        min_learning_rate_share=training.min_learning_rate_share,
        accumulate=training.accumulate,
        split=split,
        weight_decay=training.weight_decay,
        gradient_clip=training.gradient_clip,
        adam_beta2=training.adam_beta2,
        average=training.average,
        ema_decay=training.ema_decay,
        last_checkpoints=training.last_checkpoints,
    )


def spelled(tokenizer: TextTokenizer, ids: Sequence[int], mask_id: int = -1) -> list[str]:
    """Each token as a reader sees it; special ones by name, white space made visible."""
    names = {PAD: "<pad>", BOS: "<start>", EOS: "<end>", UNK: "<unknown>", mask_id: "<mask>"}
    return [names.get(token) or tokenizer.continuation([token]).replace(" ", "␣").replace("\n", "⏎") for token in ids]
