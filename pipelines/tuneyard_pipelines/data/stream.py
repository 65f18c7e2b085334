"""Training batches as a pure function of seed and position, counted against a budget: a leg goes on anywhere."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

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


class Counted(Protocol):
    """A batch that knows its unpadded tokens."""

    @property
    def tokens(self) -> int: ...


Batch = TypeVar("Batch", bound=Counted)


class Stream(ABC, Generic[Batch]):
    """The training batches of one trial, from any cursor on, in passes over the same examples."""

    tokens_per_pass: int

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    @abstractmethod
    def _batches(self, number: int) -> list[Ints]:
        """The members of each batch of pass `number`, in training order."""

    @abstractmethod
    def _build(self, members: Ints, share: float) -> Batch:
        """The batch of these members; `share` of the budget is used before it."""

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
        milliseconds each.
        """
        position, tokens = start.position, start.tokens
        skip = position
        for number in itertools.count():
            batches = self._batches(number)
            for members in batches[skip:]:
                share = self.share(Cursor(position, tokens))
                if share >= until_share and position % self._budget.batches_per_step == 0:
                    return
                batch = self._build(members, share)
                position, tokens = position + 1, tokens + batch.tokens
                yield batch
            skip = max(skip - len(batches), 0)
