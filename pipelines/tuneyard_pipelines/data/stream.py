"""Training batches as a pure function of seed and position, counted against a budget: a leg goes on anywhere."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tuneyard_pipelines.data.tokens import Ints


@dataclass(frozen=True)
class Budget:
    """How long to train: `amount` unpadded tokens, steps or epochs (passes over what is kept).

    A step is an optimiser update over `batches_per_step` batches.
    """

    unit: Literal["tokens", "steps", "epochs"]
    amount: float
    batches_per_step: int = 1


@dataclass(frozen=True)
class Cursor:
    """How far training has come: batches and unpadded tokens trained on since the start, over all passes."""

    position: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Sharing:
    """Who trains on what of a batch: `workers` at once, of which this is number `rank`, in `split` turns each."""

    workers: int = 1
    rank: int = 0
    split: int = 1


ALONE = Sharing()


@dataclass(frozen=True)
class Piece:
    """What a worker trains on at once: the `rows` of a batch's `members`.

    `tokens` are those of all workers' rows in this turn. `silent`: there are fewer rows than workers, and this one has
    that of another, to learn nothing from. `position` counts batches from the start of training; `share` of the budget
    is used before this one.
    """

    members: Ints
    rows: Ints
    tokens: int
    silent: bool
    position: int
    share: float

    @property
    def own(self) -> Ints:
        return self.members[self.rows]


Batch = TypeVar("Batch")


class Stream(ABC, Generic[Batch]):
    """The training batches of one trial, from any cursor on, in passes over the same examples."""

    tokens_per_pass: int

    def __init__(self, budget: Budget, sharing: Sharing = ALONE) -> None:
        self._budget, self._sharing = budget, sharing

    @abstractmethod
    def _batches(self, number: int) -> list[Ints]:
        """The members of each batch of pass `number`, in training order."""

    @abstractmethod
    def _tokens(self, members: Ints) -> int:
        """How many unpadded tokens these have."""

    @abstractmethod
    def _build(self, piece: Piece) -> Batch:
        """What a model reads of a piece; of a silent one, without any target."""

    def share(self, cursor: Cursor) -> float:
        """The share of the budget that is used up at `cursor`; 1 or more when it is all used.

        Epochs are counted by their tokens, so that the last pass ends at exactly 1.
        """
        if self._budget.unit == "steps":
            return cursor.position / (self._budget.amount * self._budget.batches_per_step)
        if self._budget.unit == "tokens":
            return cursor.tokens / self._budget.amount
        return cursor.tokens / (self._budget.amount * self.tokens_per_pass)

    def between(self, start: Cursor, until_share: float) -> Iterator[Batch]:
        """The batches from `start` until `until_share` of the budget is used; the step that crosses it is the last.

        `start` lies between two steps, and so does the end. Passes before `start` are planned again to find the place:
        milliseconds each. Of a batch that is split comes one piece after the other.
        """
        position, tokens = start.position, start.tokens
        skip = position
        for number in itertools.count():
            batches = self._batches(number)
            for members in batches[skip:]:
                share = self.share(Cursor(position, tokens))
                if share >= until_share and position % self._budget.batches_per_step == 0:
                    return
                for piece in self._pieces(members, position, share):
                    tokens += piece.tokens
                    yield self._build(piece)
                position += 1
            skip = max(skip - len(batches), 0)

    def _pieces(self, members: Ints, position: int, share: float) -> Iterator[Piece]:
        sharing = self._sharing
        for turn in range(sharing.split):
            of_all = np.arange(turn, len(members), sharing.split)
            own = of_all[sharing.rank :: sharing.workers]
            rows = own if len(own) else np.zeros(1, dtype=np.int64)
            yield Piece(members, rows, self._tokens(members[of_all]), not len(own), position, share)
