"""How busy this process's GPU is, how long it was idle, and what it, or a CPU, could do at most."""

from __future__ import annotations

import functools
import json
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tuneyard_pipelines.journal import write_atomic
from tuneyard_pipelines.reach import Peak

log = logging.getLogger(__name__)

IDLE_SHARE, IDLE_AFTER_S = 0.10, 30 * 60.0  # a GPU that computes for less of so long a time is idle
LONGEST_S = 10.0  # a sample stands for no more time before it: meanwhile nobody may have looked
NOTE_EVERY_S = 60.0
TERA = 1e12


@dataclass(frozen=True)
class _Sheet:
    """TFLOP/s without sparsity: of 32-bit numbers on the plain cores; of TF32, fp16 and bf16 on the tensor cores."""

    fp32: float
    tf32: float | None
    fp16: float
    bf16: float | None


_V100_SXM2, _V100_PCIE = _Sheet(15.7, None, 125, None), _Sheet(14, None, 112, None)
_A100, _H100, _H100_PCIE = _Sheet(19.5, 156, 312, 312), _Sheet(67, 494.5, 989.5, 989.5), _Sheet(51, 378, 756.5, 756.5)
_SHEETS = {
    "Tesla V100-SXM2-16GB": _V100_SXM2,
    "Tesla V100-SXM2-32GB": _V100_SXM2,
    "Tesla V100-PCIE-16GB": _V100_PCIE,
    "Tesla V100-PCIE-32GB": _V100_PCIE,
    "Tesla T4": _Sheet(8.1, None, 65, None),
    "NVIDIA A10": _Sheet(31.2, 62.5, 125, 125),
    "NVIDIA L4": _Sheet(30.3, 60, 121, 121),
    "NVIDIA L40S": _Sheet(91.6, 183, 362.05, 362.05),
    "NVIDIA A100-SXM4-40GB": _A100,
    "NVIDIA A100-SXM4-80GB": _A100,
    "NVIDIA A100-PCIE-40GB": _A100,
    "NVIDIA A100 80GB PCIe": _A100,
    "NVIDIA H100 80GB HBM3": _H100,
    "NVIDIA H100 PCIe": _H100_PCIE,
    "NVIDIA H200": _H100,
    "NVIDIA B200": _Sheet(75, 1125, 2250, 2250),
}
"""By the driver's name of a whole GPU, from NVIDIA's data sheets: V100 (2020), T4 (2019), A10 (2021), L4 (2023), L40S
(2023), A100 (2022), H100 (2023), H200 (2024), HGX B200 (2025). Where one states a rate with sparsity alone, its half.
Names must be the same: an A10G, an H100 NVL or a slice by MIG has other rates."""


def utilization(device: int = 0) -> float | None:
    """The share of the last second or less in which the GPU computed anything, for whomever; no context is made on it.

    `device` counts among those that CUDA_VISIBLE_DEVICES leaves. None where that is not told: no GPU, no driver, a
    slice by MIG.
    """
    try:
        import pynvml  # what torch asks
    except ImportError:
        return None
    try:
        return torch.cuda.utilization(device) / 100
    except (pynvml.NVMLError, RuntimeError, ImportError, LookupError, TypeError, ValueError, OSError):
        return None  # some of these come of what stands in CUDA_VISIBLE_DEVICES


def peak_flops_per_s(device_name: str, precision: str, *, tf32: bool = False) -> float | None:
    """By the data sheet; `precision` as in a spec, `tf32`: whether 32-bit products may be rounded to TF32.

    None for a GPU that is not known, and for bf16 where the GPU has no hardware for it.
    """
    sheet = _SHEETS.get(device_name)
    if sheet is None:
        return None
    wide = sheet.tf32 if tf32 and sheet.tf32 else sheet.fp32
    rate = {"32": wide, "16-mixed": sheet.fp16, "bf16-mixed": sheet.bf16}[precision]
    return None if rate is None else rate * TERA


def peak(device: torch.device, precision: str) -> Peak | None:
    """What `device` can do at most; None where it cannot even be measured. Measured once in a process."""
    if device.type == "cuda":
        tf32 = torch.backends.cuda.matmul.allow_tf32
        rate = peak_flops_per_s(torch.cuda.get_device_name(device), precision, tf32=tf32)
        if rate is not None:
            return Peak(rate, measured=False)
    rate = _measured(device, precision, torch.get_num_threads())
    return None if rate is None else Peak(rate, measured=True)


@functools.lru_cache
def _measured(device: torch.device, precision: str, threads: int) -> float | None:
    """FLOP/s of the largest matrix product that takes no more than moments; `threads` tell results apart."""
    kind = {"32": torch.float32, "16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}[precision]
    size, best = 256, 0.0
    try:
        while size <= 4096:
            a = torch.full((size, size), 0.5, dtype=kind, device=device)  # no random numbers: training draws from them
            took_s = min(_product_s(a, device) for _ in range(3))
            best = max(best, 2 * size**3 / took_s)
            if took_s > 0.01:
                break
            size *= 2
    except RuntimeError:  # out of memory, or no product in this precision
        return best or None
    return best


def _product_s(a: torch.Tensor, device: torch.device) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda device: None)
    wait(device)
    begun_s = time.perf_counter()
    torch.mm(a, a)
    wait(device)
    return max(time.perf_counter() - begun_s, 1e-9)


class GpuWatch:
    """Looks at one GPU about once a second for as long as a leg holds it; `mean` may be asked by another thread.

    Idle is a GPU whose mean utilisation over the last half an hour (`IDLE_AFTER_S`) is below `IDLE_SHARE`. For how long
    it was goes to the file `note`, as GPU time in milliseconds. The clock is in seconds, from anywhere.
    """

    def __init__(
        self,
        note: Path,
        *,
        gpus: float,
        stop: bool,
        read: Callable[[], float | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`gpus`: the share that is held; `stop`: an idle one ends the leg; `read` tells the utilisation, if it can."""
        self._note, self._gpus, self._stop, self._read, self._clock = note, gpus, stop, read, clock
        self._unasked: list[float] = []
        self._window: deque[tuple[float, float]] = deque()  # seconds, and the utilisation in them
        self._window_s = self._busy_s = 0.0
        self._last_s = clock()
        self._idle = False
        self._idle_s = self._noted_s = 0.0

    def look(self) -> tuple[str, str] | None:
        """Sample once; outcome and reason when the leg is to end, since the GPU is idle."""
        now_s = self._clock()
        took_s, self._last_s = min(max(0.0, now_s - self._last_s), LONGEST_S), now_s
        share = self._read()
        if share is None:
            return None
        self._unasked.append(share)
        self._add(took_s, share)
        was_idle, self._idle = self._idle, self._is_idle()
        if self._idle:
            self._idle_s += took_s if was_idle else self._window_s
            self._tell(first=not was_idle)
        elif was_idle:  # what was counted is not counted again
            self._tell(first=False)
            self._window.clear()
            self._window_s = self._busy_s = 0.0
        if self._idle and self._stop:
            return "cancelled", f"resources.on_idle_gpu is stop, and {self._what()}"
        return None

    def mean(self) -> float | None:
        """The mean utilisation since this was asked last; where nobody has looked meanwhile, that of this moment."""
        shares, self._unasked = self._unasked, []
        return sum(shares) / len(shares) if shares else self._read()

    def _add(self, took_s: float, share: float) -> None:
        self._window.append((took_s, share))
        self._window_s += took_s
        self._busy_s += took_s * share
        while self._window and self._window_s - self._window[0][0] >= IDLE_AFTER_S:
            old_s, old_share = self._window.popleft()
            self._window_s -= old_s
            self._busy_s -= old_s * old_share

    def _is_idle(self) -> bool:
        return self._window_s >= IDLE_AFTER_S and self._busy_s < IDLE_SHARE * self._window_s

    def _tell(self, *, first: bool) -> None:
        if first:
            log.warning("%s; resources.on_idle_gpu is %s", self._what(), "stop" if self._stop else "flag")
        if first or not self._idle or self._idle_s - self._noted_s >= NOTE_EVERY_S:
            write_atomic(self._note, json.dumps({"gpu_ms": round(1000 * self._gpus * self._idle_s)}))
            self._noted_s = self._idle_s

    def _what(self) -> str:
        share = max(0.0, self._busy_s) / self._window_s
        return f"its GPU computed for {share:.1%} of the last {IDLE_AFTER_S / 60:.0f} minutes"
