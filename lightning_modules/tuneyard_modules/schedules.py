"""Learning-rate schedules as pure functions of the share of the budget that is used: nothing to keep or restore.

After a warm-up to the peak, which is the learning rate that is set (Goyal et al. 2017):

cosine                half a cosine down to `floor`, without restarts (Loshchilov and Hutter 2017)
linear                a straight line down to `floor` (Devlin et al. 2019)
inverse_sqrt          peak * sqrt(warmup / share), as in fairseq (Ott et al. 2019)
noam                  the same after a warm-up from 0: section 5.3 of Vaswani et al. 2017
constant              the peak
warmup_stable_decay   the peak, and in the last `decay` of the budget a straight line down to `floor` (Hu et al. 2024
                      named it; the straight line is that of Haegele et al. 2024)

Papers count steps where this counts shares. Both inverse square roots depend on step / warm-up steps alone, which is
share / warmup where batches are of one size; Vaswani's factor d_model ** -0.5 is part of the peak that is set.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

Schedule = Literal["cosine", "inverse_sqrt", "noam", "linear", "constant", "warmup_stable_decay"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


def factor(schedule: Schedule, share: float, *, warmup: float, floor: float, decay: float = 0.2) -> float:
    """The factor on the peak learning rate, 0 to 1: a straight line up to 1, then what the table above says.

    `share` is the used share of the budget, 0 at the start and 1 at the end (more counts as 1); `warmup` the share
    spent rising, from `floor` on, of noam from 0: its first update moves nothing. Raises ValueError for an inverse
    square root without a warm-up, where it would begin infinitely high.
    """
    if schedule in ("inverse_sqrt", "noam") and warmup <= 0.0:
        raise ValueError(f"warmup={warmup}: {schedule} falls from the end of warm-up on; it must be above 0")
    share = min(share, 1.0)
    if share < warmup:
        start = 0.0 if schedule == "noam" else floor
        return start + (1.0 - start) * share / warmup
    match schedule:
        case "cosine":
            return _cosine(_passed(share, warmup), floor)
        case "linear":
            return _line(_passed(share, warmup), floor)
        case "inverse_sqrt" | "noam":
            return math.sqrt(warmup / share)
        case "constant":
            return 1.0
        case "warmup_stable_decay":
            return _line(_passed(share, 1.0 - decay), floor)


def _passed(share: float, start: float) -> float:
    """How much of the way from `start` to 1 is done, 0 to 1."""
    return max(0.0, (share - start) / (1.0 - start)) if start < 1.0 else 1.0


def _cosine(passed: float, floor: float) -> float:
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * passed))


def _line(passed: float, floor: float) -> float:
    return 1.0 - (1.0 - floor) * passed
