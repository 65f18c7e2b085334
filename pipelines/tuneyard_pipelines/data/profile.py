"""What each tokenizer makes of the data, and how the data fits each `sequence_length`: counted by the real batching."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tuneyard_pipelines.catalog import TASK_DATA, tokenizer_name
from tuneyard_pipelines.data import sources
from tuneyard_pipelines.data.order import pair_batches, window_batches
from tuneyard_pipelines.data.prepare import kept
from tuneyard_pipelines.data.text_tokenizer import TextTokenizer
from tuneyard_pipelines.data.tokens import EncodedSplit, TokenLists
from tuneyard_pipelines.data_facts import Bucket, DataFacts, Fit, Lengths, TokenizerFacts
from tuneyard_pipelines.ranges import Choice, Integers, LogUniform, Uniform
from tuneyard_pipelines.spec import SweepSpec, Tokenizer

if TYPE_CHECKING:
    from tuneyard_pipelines.data.prepare import EncodedData, PreparedData
    from tuneyard_pipelines.data.tokens import Ints

BUCKETS = 12
MOST_TOKENIZERS = 6
"""Of a sweep, that are looked at; the others are counted."""
_BATCHED = 200_000  # pairs that are put into batches for their padding
_SAMPLED_EXAMPLES, _SAMPLED_CHARACTERS = 2_000, 1 << 16
_LONGEST_CHARACTERS = 1 << 14  # of a text, about which no more is asked than whether it fits


@dataclass(frozen=True)
class Candidate:
    """A tokenizer of a sweep, with the values of `sequence_length` and the largest `batch_tokens` that go with it."""

    tokenizer: Tokenizer
    sequence_lengths: tuple[int, ...]
    batch_tokens: int

    @property
    def name(self) -> str:
        """`char`, `bpe 4000`."""
        return tokenizer_name({f"data.tokenizer.{key}": value for key, value in self.tokenizer})


def candidates(spec: SweepSpec) -> tuple[Candidate, ...]:
    """The tokenizers of a sweep, of all its variants, in the order in which they are named; of a range its ends."""
    found: dict[str, Candidate] = {}
    for variant in spec.by_variant.values():
        values = variant.values
        keys = [key for key in values if key.startswith("data.tokenizer.")]
        lengths = _ends(values["model.sequence_length"])
        batch_tokens = max(_ends(values["training.batch_tokens"]))
        for chosen in itertools.product(*(_ends(values[key]) for key in keys)):
            named = {key.rpartition(".")[2]: value for key, value in zip(keys, chosen, strict=True)}
            made = Candidate(Tokenizer.model_validate(named), tuple(lengths), batch_tokens)
            if known := found.get(made.name):
                both = sorted({*known.sequence_lengths, *lengths})
                made = Candidate(known.tokenizer, tuple(both), max(batch_tokens, known.batch_tokens))
            found[made.name] = made
    return tuple(found.values())


def facts(
    prepared: PreparedData,
    encoded: Sequence[tuple[Candidate, EncodedData]],
    *,
    task: str,
    seed: int,
    most: int | None = None,
    omitted: int = 0,
) -> DataFacts:
    """What is known of prepared data and of what tokenizers made of it; lengths of the first `most` examples.

    `omitted`: how many more tokenizers the sweep has.
    """
    return DataFacts(
        source=prepared.source,
        task=task,
        examples=prepared.examples,
        text_bytes=prepared.text_bytes,
        looked_at=sum(prepared.examples.values()),
        approximate=False,
        tokenizers=tuple(_facts(candidate, data, prepared, seed, most) for candidate, data in encoded),
        tokenizers_omitted=omitted,
    )


def quickly(spec: SweepSpec, cache: Path) -> DataFacts:
    """What is known of a sweep's data: from the cache if all of it is there, else from its beginning.

    Raises DataError for a source that cannot be used.
    """
    all_of_them = candidates(spec)
    wanted = all_of_them[:MOST_TOKENIZERS]
    omitted = len(all_of_them) - len(wanted)
    configs = [candidate.tokenizer for candidate in wanted]
    if found := kept(spec.data, configs, cache, seed=spec.seed, task=spec.task):
        prepared, encoded = found
        both = list(zip(wanted, encoded, strict=True))
        return facts(prepared, both, task=spec.task, seed=spec.seed, most=_BATCHED, omitted=omitted)
    texts = sources.beginning(sources.local(spec.data, cache), spec.task, spec.seed)
    return estimated(spec.data.source, texts, wanted, task=spec.task, seed=spec.seed, omitted=omitted)


def estimated(
    source: str,
    texts: Iterable[tuple[str, ...]],
    wanted: Sequence[Candidate],
    *,
    task: str,
    seed: int,
    omitted: int = 0,
) -> DataFacts:
    """What the beginning of a source tells: tokenizers learn from it and cut it.

    `texts`: those of the first examples, of which 2,000 or enough for about 65,536 characters are taken.
    """
    sample: list[tuple[str, ...]] = []
    characters = 0
    for row in itertools.islice(texts, _SAMPLED_EXAMPLES):
        sample.append(tuple(text[:_LONGEST_CHARACTERS] for text in row))
        characters += sum(map(len, sample[-1]))
        if characters >= _SAMPLED_CHARACTERS:
            break
    columns = TASK_DATA[task].columns
    return DataFacts(
        source=source,
        task=task,
        examples={},
        text_bytes={},
        looked_at=len(sample),
        approximate=True,
        tokenizers=tuple(_estimated(sample, columns, candidate, seed) for candidate in wanted) if sample else (),
        tokenizers_omitted=omitted,
    )


def measure(config: Tokenizer, rows: Sequence[tuple[str, ...]]) -> list[list[int]]:
    """The tokens of each text by column, of a tokenizer that learns from these examples."""
    tokenizer = TextTokenizer.train([text for row in rows for text in row], config)
    return [list(map(len, tokenizer.encode_batch(list(side)))) for side in zip(*rows, strict=True)]


def _facts(
    candidate: Candidate, data: EncodedData, prepared: PreparedData, seed: int, most: int | None
) -> TokenizerFacts:
    counts = data.counts["train"]
    train, validation = (_first(data.split(name), most) for name in ("train", "validation"))
    tokens = sum(count.tokens for count in counts.values())
    return TokenizerFacts(
        name=candidate.name,
        vocab_size={column: tokenizer.vocab_size for column, tokenizer in data.tokenizers.items()},
        unknown_share=data.unknown_share("validation"),
        tokens_per_example=tokens / max(prepared.examples["train"], 1),
        bytes_per_token=prepared.text_bytes.get("train", 0) / max(tokens, 1),
        lengths={name: summary(texts.lengths) for name, texts in train.columns.items()},
        fits=fits(train, validation, candidate, seed=seed),
    )


def _estimated(
    sample: Sequence[tuple[str, ...]], columns: Sequence[str], candidate: Candidate, seed: int
) -> TokenizerFacts:
    sides = {name: [row[at] for row in sample] for at, name in enumerate(columns)}
    if candidate.tokenizer.vocabulary == "separate":
        learned = {name: TextTokenizer.train(side, candidate.tokenizer) for name, side in sides.items()}
    else:
        joint = TextTokenizer.train([text for row in sample for text in row], candidate.tokenizer)
        learned = dict.fromkeys(columns, joint)
    split = EncodedSplit.of({name: learned[name].encode_batch(side) for name, side in sides.items()})
    tokens = sum(len(texts.flat) for texts in split.columns.values())
    return TokenizerFacts(
        name=candidate.name,
        vocab_size={name: tokenizer.vocab_size for name, tokenizer in learned.items()},
        unknown_share=None,
        tokens_per_example=tokens / len(sample),
        bytes_per_token=sum(len(text.encode()) for row in sample for text in row) / max(tokens, 1),
        lengths={name: summary(texts.lengths) for name, texts in split.columns.items()},
        fits=fits(split, split, candidate, seed=seed),
    )


def fits(train: EncodedSplit, validation: EncodedSplit, candidate: Candidate, *, seed: int) -> tuple[Fit, ...]:
    """How two splits fit each `sequence_length` of a candidate."""
    return tuple(
        fit(train, validation, sequence_length=length, batch_tokens=candidate.batch_tokens, seed=seed)
        for length in candidate.sequence_lengths
    )


def summary(lengths: Ints, buckets: int = BUCKETS) -> Lengths:
    """Quantiles, and counts in at most `buckets` equal parts up to the 99th percentile and one for the rest."""
    if not len(lengths):
        return Lengths(0, 0.0, 0.0, 0.0, 0, ())
    shortest, longest, p99 = int(lengths.min()), int(lengths.max()), float(np.quantile(lengths, 0.99))
    width = max(1, math.ceil((int(p99) - shortest + 1) / buckets))
    bounds = [*range(shortest, int(p99) + 1, width)]
    bounds.append(min(bounds[-1] + width, longest + 1))
    if bounds[-1] <= longest:
        bounds.append(longest + 1)
    counts = [int(np.count_nonzero((lengths >= low) & (lengths < high))) for low, high in itertools.pairwise(bounds)]
    return Lengths(
        shortest=shortest,
        median=float(np.median(lengths)),
        mean=float(lengths.mean()),
        p99=p99,
        longest=longest,
        buckets=tuple(
            Bucket(low, high - 1, count) for (low, high), count in zip(itertools.pairwise(bounds), counts, strict=True)
        ),
    )


def fit(train: EncodedSplit, validation: EncodedSplit, *, sequence_length: int, batch_tokens: int, seed: int) -> Fit:
    """How two splits fit a `sequence_length`, batches as in the first pass of training."""
    over, over_validation = (_longest(split) > sequence_length for split in (train, validation))
    cells, tokens, batches = (
        _windows(train, sequence_length, batch_tokens, seed)
        if "text" in train.columns
        else _pairs(train, np.flatnonzero(~over), batch_tokens, seed)
    )
    return Fit(
        sequence_length=sequence_length,
        too_long=_share(over),
        cut=_share(over_validation),
        padding=1 - tokens / cells if cells else 0.0,
        batch_tokens=tokens / batches if batches else 0.0,
        batches=batches,
    )


def _pairs(train: EncodedSplit, kept: Ints, batch_tokens: int, seed: int) -> tuple[int, int, int]:
    """Cells, tokens and number of the batches of a pass; of the first ones where there are many pairs."""
    source, target = (train[name].lengths + 1 for name in ("source", "target"))
    looked_at = kept[:_BATCHED]
    cells = tokens = 0
    batches = pair_batches(source + target, looked_at, batch_tokens=batch_tokens, seed=seed, number=0)
    for members in batches:
        cells += len(members) * int(source[members].max() + target[members].max())
        tokens += int((source[members] + target[members]).sum())
    scale = len(kept) / max(len(looked_at), 1)
    return round(cells * scale), round(tokens * scale), round(len(batches) * scale)


def _windows(train: EncodedSplit, length: int, batch_tokens: int, seed: int) -> tuple[int, int, int]:
    stream_tokens = int((train["text"].lengths + 1).sum())
    batches = window_batches(stream_tokens, sequence_length=length, batch_tokens=batch_tokens, seed=seed, number=0)
    cells = 0
    for starts in batches:
        ends = np.minimum(starts + length, stream_tokens)
        cells += len(starts) * int((ends - np.maximum(starts, 0)).max())
    return cells, stream_tokens, len(batches)


def _longest(split: EncodedSplit) -> Ints:
    """Of each example the tokens of its longest text, the end token included."""
    lengths: Ints = np.max([texts.lengths for texts in split.columns.values()], axis=0) + 1
    return lengths


def _first(split: EncodedSplit, most: int | None) -> EncodedSplit:
    """The first `most` examples of a split, without a copy."""
    if most is None or len(split) <= most:
        return split
    columns = {
        name: TokenLists(texts.flat[: texts.bounds[most]], texts.bounds[: most + 1])
        for name, texts in split.columns.items()
    }
    return EncodedSplit(split.ids[:most], columns)


def _share(chosen: Any) -> float:
    return float(np.count_nonzero(chosen) / len(chosen)) if len(chosen) else 0.0


def _ends(held: Any) -> list[Any]:
    """The values of a choice, the ends of another range, or the one value."""
    if isinstance(held, Choice):
        return list(held.values)
    return sorted({held.low, held.high}) if isinstance(held, Integers | Uniform | LogUniform) else [held]
