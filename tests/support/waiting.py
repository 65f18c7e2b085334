"""To wait for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

PATIENCE_S = 600  # ends what hangs; that a machine is slow is no failure


def until(
    condition: Callable[[], Found], *, looking_s: float = 0.02, meanwhile: Callable[[], object] = lambda: None
) -> Found:
    """What the condition answers once that is true; `meanwhile` is called before each look, and may raise."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        meanwhile()
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(looking_s)
    return found
