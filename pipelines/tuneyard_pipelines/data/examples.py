"""What a source gives: examples one after the other, and a count of everything in it that is not as it should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from tuneyard_pipelines.data.errors import DataError

Fate = Literal["left out", "mended", "kept"]


class Example(NamedTuple):
    """One example: a text for each column of the task, what may not stand in two splits, and its split if it is given.

    `keys` are compared place by place with those of other examples.
    """

    texts: tuple[str, ...]
    keys: tuple[str, ...]
    split: str | None = None


@dataclass(frozen=True)
class Finding:
    """What was found so many times in a source, what became of it, and where it stands first."""

    what: str
    fate: Fate
    count: int
    first: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


class Tally:
    """Counts findings while a source is read."""

    def __init__(self) -> None:
        self.lines = 0
        """Lines of plain text read, of which a document has many: what is left out of it are lines."""
        self._counts: dict[tuple[str, Fate], int] = {}
        self._first: dict[tuple[str, Fate], str] = {}

    def add(self, what: str, fate: Fate, first: str, count: int = 1) -> None:
        """`count` more of `what`; `first` is the place, with what stands there, if it is the first one."""
        kind = (what, fate)
        self._counts[kind] = self._counts.get(kind, 0) + count
        self._first.setdefault(kind, first)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them, what was left out first and the many before the few."""
        order: Sequence[Fate] = ("left out", "mended", "kept")
        found = [Finding(*kind, count, self._first[kind]) for kind, count in self._counts.items()]
        return tuple(sorted(found, key=lambda one: (order.index(one.fate), -one.count, one.what)))


def refuse(findings: Sequence[Finding], kept: int, most_share: float, place: str, *, lines: int = 0) -> None:
    """Raises DataError if nothing of a source is kept, or more than `most_share` was left out.

    The share is of its examples, of which `kept` are, or of its `lines` where lines are left out.
    """
    bad = [one for one in findings if one.fate == "left out"]
    count = sum(one.count for one in bad)
    whole = count + (lines or kept)
    share = count / max(whole, 1)
    unit = "lines" if lines else "examples"
    details = "; ".join(f"{one.count:,} {one.what}, the first at {one.first}" for one in bad)
    if not kept:
        raise DataError(f"{place}: nothing in it can be used{f': {details}' if details else ': it holds no text'}.")
    if share > most_share:
        raise DataError(
            f"{place}: {count:,} of {whole:,} {unit} ({share:.1%}) cannot be used, more than "
            f"data.max_bad_share ({most_share:g}): {details}. Mend them, or set data.max_bad_share to "
            f"{_above(share)} to train without them."
        )


def _above(share: float) -> str:
    return f"{min(1.0, share * 1.001 + 0.0005):.3f}"


def findings_of(plain: Sequence[Mapping[str, Any]]) -> tuple[Finding, ...]:
    """Back from `Finding.to_dict`."""
    return tuple(Finding(one["what"], one["fate"], one["count"], one["first"]) for one in plain)
