"""Learning-rate schedules as pure functions of the share of the budget that is used: nothing to keep or restore."""

from __future__ import annotations

import math


def warmup_cosine(share: float, *, warmup: float, floor: float) -> float:
    """The factor on the peak learning rate: linear from `floor` to 1, then half a cosine back to `floor`.

    `share` is the used share of the budget, 0 at the start and 1 at the end (more counts as 1); `warmup` the share
    spent rising; `floor` the least factor. The cosine is that of Loshchilov and Hutter 2017, without restarts.
    """
    if share < warmup:
        return floor + (1.0 - floor) * share / warmup
    fall = min(1.0, (share - warmup) / (1.0 - warmup)) if warmup < 1.0 else 1.0
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * fall))
