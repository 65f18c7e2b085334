"""Model FLOPs utilisation: how much of what its devices could do at most a training makes use of. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MFU = "train/model_flops_utilization"
PEAK, MEASURED_PEAK = "system/peak_flops_per_s", "system/measured_peak_flops_per_s"


@dataclass(frozen=True)
class Peak:
    """The most that a device can do, in FLOP/s; measured here, or by its data sheet."""

    flops_per_s: float
    measured: bool


@dataclass(frozen=True)
class Reach:
    """A training of `flops_per_token` (`cost.flops_per_token`) by workers that have a device of this `peak` each.

    Its utilisation is that of Chowdhery et al. 2022 (appendix B): tokens a second, times the FLOPs of a token's forward
    and backward pass, over the peak of all devices. What is computed again, or for padding, is no use; attention is
    counted over the whole `model.sequence_length`, also where a sequence is shorter. A share of a GPU counts as the
    whole one.
    """

    flops_per_token: int
    peak: Peak
    workers: int

    @property
    def facts(self) -> dict[str, float]:
        """The peak of all devices, under a name that says where it is from."""
        return {MEASURED_PEAK if self.peak.measured else PEAK: self.workers * self.peak.flops_per_s}

    def of(self, tokens_per_second: float) -> float:
        """The utilisation at this speed of all workers, as a share."""
        return tokens_per_second * self.flops_per_token / (self.workers * self.peak.flops_per_s)


def told(metrics: Mapping[str, float]) -> str:
    """The utilisation that a trial's metrics tell, in words; empty where they tell none."""
    measured = MEASURED_PEAK in metrics
    peak = metrics.get(MEASURED_PEAK if measured else PEAK)
    if peak is None or MFU not in metrics:
        return ""
    return f"model FLOPs utilisation {metrics[MFU]:.1%} (of {_rate(peak)}{' measured here' if measured else ''})"


def _rate(flops_per_s: float) -> str:
    for unit, name in ((1e15, "PFLOP/s"), (1e12, "TFLOP/s")):
        if flops_per_s >= unit:
            return f"{flops_per_s / unit:.3g} {name}"
    return f"{flops_per_s / 1e9:.3g} GFLOP/s"
