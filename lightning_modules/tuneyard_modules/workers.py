"""What the workers that train one model together tell each other; one that trains alone hears itself.

All of them must call each of these, in the same order: they wait for one another.
"""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Told = TypeVar("Told")


def count() -> int:
    """How many there are."""
    return dist.get_world_size() if _together() else 1


def rank() -> int:
    """Which of them this process is, from 0."""
    return dist.get_rank() if _together() else 0


def total(values: Tensor) -> Tensor:
    """The sum over all workers, on each of them the same to the last bit."""
    if not _together():
        return values
    summed = values.clone()
    dist.all_reduce(summed)
    return summed


def any_of(flag: bool) -> bool:
    """Whether the flag of some worker is set."""
    return flag if not _together() else bool(total(torch.tensor([int(flag)])).item())


def told(value: Told) -> list[Told]:
    """What each worker says, by rank: anything that can be pickled."""
    if not _together():
        return [value]
    values: list[Told | None] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values  # type: ignore[return-value]


def _together() -> bool:
    together: bool = dist.is_available() and dist.is_initialized()
    return together
