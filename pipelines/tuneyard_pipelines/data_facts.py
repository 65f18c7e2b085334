"""What is known of a sweep's data before it trains, in numbers: sizes, lengths, unknown tokens, padding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Bucket:
    """So many texts have from `low` to `high` tokens."""

    low: int
    high: int
    count: int


@dataclass(frozen=True)
class Lengths:
    """How long the texts of a column are, in tokens without special ones."""

    shortest: int
    median: float
    mean: float
    p99: float
    longest: int
    buckets: tuple[Bucket, ...]

    def __str__(self) -> str:
        """`3 to 163 tokens ▁▃█▅▂, median 30, 99 % up to 67`: the counts of the buckets as bars."""
        most = max((bucket.count for bucket in self.buckets), default=0)
        bars = "".join(_BARS[math.ceil((len(_BARS) - 1) * bucket.count / most)] for bucket in self.buckets)
        return (
            f"{self.shortest:,} to {self.longest:,} tokens {bars}, median {self.median:,.0f}, "
            f"99 % up to {self.p99:,.0f}"
        )


@dataclass(frozen=True)
class Fit:
    """How the data fits a `sequence_length`.

    `too_long`: the share of training examples that are longer: pairs are left out of training then, documents are seen
    in parts. `cut`: that share of validation, where nothing is left out: pairs are cut off. `padding`: the share of a
    training batch's cells that hold no token. `batch_tokens`: unpadded tokens of a batch, on average; `batches` in a
    pass.
    """

    sequence_length: int
    too_long: float
    cut: float
    padding: float
    batch_tokens: float
    batches: int


@dataclass(frozen=True)
class TokenizerFacts:
    """What a tokenizer makes of the data.

    `vocab_size`: ids by column, all the same where the columns share them. `unknown_share`: of validation's tokens;
    None where that is not known.
    """

    name: str
    vocab_size: Mapping[str, int]
    unknown_share: float | None
    tokens_per_example: float
    bytes_per_token: float
    lengths: Mapping[str, Lengths]
    fits: tuple[Fit, ...]


@dataclass(frozen=True)
class DataFacts:
    """What is known of a source; `examples` and `text_bytes` are by split.

    With `approximate` it is from the first `looked_at` examples alone, and both are empty.
    """

    source: str
    task: str
    examples: Mapping[str, int]
    text_bytes: Mapping[str, int]
    looked_at: int
    approximate: bool
    tokenizers: tuple[TokenizerFacts, ...]
    tokenizers_omitted: int = 0
    """How many more the sweep has."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @property
    def unit(self) -> str:
        """What an example is."""
        return "pairs" if self.task == "translation" else "documents"

    @property
    def size(self) -> str:
        """How much there is, in words."""
        if self.approximate:
            return f"~ from the first {self.looked_at:,} {self.unit}"
        splits = ", ".join(f"{count:,} {name}" for name, count in self.examples.items())
        return f"{sum(self.examples.values()):,} {self.unit} ({splits}), {size(self.total_bytes)} of text"

    @property
    def total_bytes(self) -> int:
        return sum(self.text_bytes.values())

    def lines(self) -> list[tuple[str, str]]:
        """Label and fact: few lines, for a plan."""
        about = "~" if self.approximate else ""
        return [
            ("data", f"{self.source}: {self.size}"),
            *(line for one in self.tokenizers for line in self._lines(one, about)),
            *([("", f"and {self.tokenizers_omitted} more tokenizers")] if self.tokenizers_omitted else []),
        ]

    def _lines(self, one: TokenizerFacts, about: str) -> list[tuple[str, str]]:
        unknown = "" if one.unknown_share is None else f", {one.unknown_share:.2%} unknown in validation"
        lost = "left out" if self.unit == "pairs" else "longer"
        return [
            ("fit", f"{one.name}, {about}{one.tokens_per_example:,.1f} tokens a {self.unit[:-1]}{unknown}"),
            *(("", f"{column}: {about}{lengths}") for column, lengths in one.lengths.items()),
            *(
                (
                    "",
                    f"length {fit.sequence_length}: {about}{fit.too_long:.1%} {lost}, {about}{fit.padding:.1%} "
                    f"padding, {about}{fit.batch_tokens:,.0f} tokens a batch",
                )
                for fit in one.fits
            ),
        ]


def size(amount_bytes: float) -> str:
    """`812 B`, `1.2 MB`."""
    steps = min(3, max(0, len(f"{amount_bytes:.0f}") - 1) // 3)
    return f"{amount_bytes / 1000**steps:,.1f} {('B', 'KB', 'MB', 'GB')[steps]}" if steps else f"{amount_bytes:.0f} B"
