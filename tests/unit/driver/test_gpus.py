"""What is made of readings of a GPU: how busy it was, for how long it was idle, and how near its peak a model came."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from tuneyard_pipelines import gpus, reach, trial
from tuneyard_pipelines.gpus import IDLE_AFTER_S, LONGEST_S, GpuWatch, peak_flops_per_s, utilization
from tuneyard_pipelines.metrics import MetricFile
from tuneyard_pipelines.reach import MEASURED_PEAK, MFU, PEAK, Peak, Reach
from tuneyard_pipelines.spec import Resources
from tuneyard_pipelines.watchdog import IDLE_GPU, by_rank, idle_gpu_ms, last_words

MINUTE_S = 60


@dataclass
class Gpu:
    """A clock and a reading that a test moves."""

    now_s: float = 1000.0
    share: float | None = 0.0
    reads: int = 0
    verdicts: list[tuple[str, str] | None] = field(default_factory=list)

    def read(self) -> float | None:
        self.reads += 1
        return self.share

    def watch(self, folder: Path, *, gpus: float = 1.0, stop: bool = False, rank: int = 0) -> GpuWatch:
        note = by_rank(folder, IDLE_GPU, rank)
        return GpuWatch(note, gpus=gpus, stop=stop, read=self.read, clock=lambda: self.now_s)

    def passes(self, watch: GpuWatch, seconds: float, share: float | None, step_s: float = 1.0) -> None:
        self.share = share
        for _ in range(round(seconds / step_s)):
            self.now_s += step_s
            self.verdicts.append(watch.look())


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


def noted_s(folder: Path) -> float:
    file = folder / IDLE_GPU
    return json.loads(file.read_text())["gpu_ms"] / 1000 if file.exists() else 0.0


def test_a_gpu_is_idle_once_it_did_little_for_half_an_hour(
    gpu: Gpu, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = gpu.watch(tmp_path)
    gpu.passes(watch, IDLE_AFTER_S - 1, 0.05)
    assert (noted_s(tmp_path), caplog.records) == (0.0, [])
    gpu.passes(watch, 1, 0.05)
    assert noted_s(tmp_path) == IDLE_AFTER_S
    gpu.passes(watch, 10 * MINUTE_S, 0.05)
    assert noted_s(tmp_path) == IDLE_AFTER_S + 10 * MINUTE_S
    [said] = caplog.records
    assert said.levelno == logging.WARNING
    assert said.getMessage() == "its GPU computed for 5.0% of the last 30 minutes; resources.on_idle_gpu is flag"
    assert set(gpu.verdicts) == {None}, "flagged, not stopped"


@pytest.mark.parametrize(("share", "idle"), [(0.099, True), (0.101, False)])
def test_the_bound_is_a_tenth_of_the_time(gpu: Gpu, tmp_path: Path, share: float, idle: bool) -> None:
    gpu.passes(gpu.watch(tmp_path), 2 * IDLE_AFTER_S, share)
    assert (noted_s(tmp_path) > 0) is idle


def test_bursts_count_by_their_share_of_the_time(gpu: Gpu, tmp_path: Path) -> None:
    rarely = gpu.watch(tmp_path)
    for _ in range(40):
        gpu.passes(rarely, 57, 0.0)
        gpu.passes(rarely, 3, 1.0)
    assert noted_s(tmp_path) > 0, "5 % of every minute"
    often = gpu.watch(tmp_path / "often")
    for _ in range(40):
        gpu.passes(often, 48, 0.0)
        gpu.passes(often, 12, 1.0)
    assert noted_s(tmp_path / "often") == 0


def test_no_second_is_counted_twice_when_it_works_in_between(gpu: Gpu, tmp_path: Path) -> None:
    watch = gpu.watch(tmp_path)
    gpu.passes(watch, 40 * MINUTE_S, 0.0)
    assert noted_s(tmp_path) == 40 * MINUTE_S
    gpu.passes(watch, 10 * MINUTE_S, 1.0)
    once_s = noted_s(tmp_path)
    assert 43 * MINUTE_S - 2 <= once_s <= 43 * MINUTE_S, "until the last half an hour was busy for 3 minutes"
    gpu.passes(watch, 26 * MINUTE_S, 0.0)
    assert noted_s(tmp_path) == once_s, "7 of the last 30 minutes were busy, then 4"
    gpu.passes(watch, 20 * MINUTE_S, 0.0)
    assert noted_s(tmp_path) == pytest.approx(once_s + 49 * MINUTE_S, abs=MINUTE_S)


def test_where_stop_is_asked_for_an_idle_gpu_ends_the_leg(gpu: Gpu, tmp_path: Path) -> None:
    watch = gpu.watch(tmp_path, stop=True)
    gpu.passes(watch, IDLE_AFTER_S - 1, 0.0)
    assert set(gpu.verdicts) == {None}
    gpu.passes(watch, 1, 0.0)
    assert gpu.verdicts[-1] == (
        "cancelled",
        "resources.on_idle_gpu is stop, and its GPU computed for 0.0% of the last 30 minutes",
    )
    assert noted_s(tmp_path) == IDLE_AFTER_S, "noted before the process ends"


def test_a_process_that_did_not_run_watched_nothing(gpu: Gpu, tmp_path: Path) -> None:
    watch = gpu.watch(tmp_path, stop=True)
    gpu.passes(watch, 5 * IDLE_AFTER_S, 0.0, step_s=5 * IDLE_AFTER_S)
    gpu.passes(watch, IDLE_AFTER_S - LONGEST_S - 1, 0.0)
    assert set(gpu.verdicts) == {None}
    gpu.passes(watch, 1, 0.0)
    assert gpu.verdicts[-1] is not None


def test_without_readings_nothing_is_told(gpu: Gpu, tmp_path: Path) -> None:
    watch = gpu.watch(tmp_path, stop=True)
    gpu.passes(watch, 2 * IDLE_AFTER_S, None)
    assert (watch.mean(), noted_s(tmp_path), set(gpu.verdicts)) == (None, 0.0, {None})


def test_the_mean_is_of_the_time_since_it_was_asked_for(gpu: Gpu, tmp_path: Path) -> None:
    watch = gpu.watch(tmp_path)
    gpu.passes(watch, 1, 0.2)
    gpu.passes(watch, 1, 0.6)
    assert watch.mean() == pytest.approx(0.4)
    gpu.passes(watch, 1, 0.9)
    assert watch.mean() == pytest.approx(0.9)
    gpu.share, gpu.reads = 0.3, 0
    assert (watch.mean(), gpu.reads) == (0.3, 1), "nobody has looked: it does itself"


def test_idle_time_of_all_workers_is_told_once(gpu: Gpu, tmp_path: Path) -> None:
    for rank, held in enumerate((1.0, 0.5)):
        gpu.passes(gpu.watch(tmp_path, gpus=held, rank=rank), IDLE_AFTER_S, 0.0)
    by_rank(tmp_path, IDLE_GPU, 2).write_text('{"gpu_ms": 5')  # of one that was killed as it wrote
    assert idle_gpu_ms(tmp_path) == 1.5 * 1000 * IDLE_AFTER_S
    assert (idle_gpu_ms(tmp_path), list(tmp_path.iterdir())) == (0, [])


@pytest.mark.parametrize("cause", [RuntimeError("no driver"), ModuleNotFoundError("no binding"), IndexError()])
def test_a_gpu_that_cannot_be_read_is_no_fault_of_the_training(
    monkeypatch: pytest.MonkeyPatch, cause: Exception
) -> None:
    def read(device: int) -> int:
        raise cause

    monkeypatch.setattr(torch.cuda, "utilization", read)
    assert utilization(0) is None
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 30 + device)
    pytest.importorskip("pynvml")
    assert utilization(1) == 0.31, "a share, of the device that was named"


def test_what_nvml_refuses_as_on_mig_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pynvml = pytest.importorskip("pynvml")

    def read(device: int) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(torch.cuda, "utilization", read)
    assert utilization(0) is None


@pytest.mark.parametrize(
    ("name", "precision", "tf32", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16-mixed", False, 312),
        ("NVIDIA A100-SXM4-80GB", "32", False, 19.5),
        ("NVIDIA A100-SXM4-80GB", "32", True, 156),
        ("NVIDIA H100 80GB HBM3", "16-mixed", False, 989.5),
        ("NVIDIA H100 PCIe", "bf16-mixed", False, 756.5),
        ("Tesla T4", "32", True, 8.1),  # it has no TF32
        ("Tesla T4", "bf16-mixed", False, None),
        ("NVIDIA A10G", "32", False, None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16-mixed", False, None),
    ],
)
def test_a_peak_is_that_of_the_very_gpu_in_the_precision(
    name: str, precision: str, tf32: bool, tera: float | None
) -> None:
    found = peak_flops_per_s(name, precision, tf32=tf32)
    assert found == (None if tera is None else pytest.approx(tera * 1e12))


def test_where_no_sheet_tells_the_peak_is_measured_once_and_draws_no_random_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus._measured.cache_clear()
    took: list[int] = []

    def product(a: torch.Tensor, device: torch.device) -> float:
        took.append(a.shape[0])
        return 0.004 * (a.shape[0] / 256) ** 3 if len(took) > 1 else 0.1

    monkeypatch.setattr(gpus, "_product_s", product)
    before = torch.get_rng_state()
    found = gpus.peak(torch.device("cpu"), "32")
    assert found == Peak(pytest.approx(2 * 256**3 / 0.004), measured=True)
    assert took == [256] * 3 + [512] * 3, "the best of three; none larger once one takes a while"
    assert gpus.peak(torch.device("cpu"), "32") == found
    assert len(took) == 6
    assert torch.equal(before, torch.get_rng_state())
    gpus._measured.cache_clear()


def test_a_device_without_products_in_a_precision_has_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    def product(a: torch.Tensor, device: torch.device) -> float:
        raise RuntimeError("not implemented")

    gpus._measured.cache_clear()
    monkeypatch.setattr(gpus, "_product_s", product)
    assert gpus.peak(torch.device("cpu"), "16-mixed") is None
    gpus._measured.cache_clear()


def test_utilisation_of_a_model_is_its_flops_over_the_peak_of_all_devices() -> None:
    two = Reach(flops_per_token=6_000_000, peak=Peak(62e12, measured=True), workers=2)
    assert two.of(tokens_per_second=6_200_000) == pytest.approx(0.3)
    assert two.facts == {MEASURED_PEAK: 124e12}
    assert Reach(1, Peak(5e9, measured=False), 1).facts == {PEAK: 5e9}


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({MFU: 0.3149, MEASURED_PEAK: 62e12}, "model FLOPs utilisation 31.5% (of 62 TFLOP/s measured here)"),
        ({MFU: 0.5, PEAK: 1.979e15}, "model FLOPs utilisation 50.0% (of 1.98 PFLOP/s)"),
        ({MFU: 0.004, MEASURED_PEAK: 48.3e9}, "model FLOPs utilisation 0.4% (of 48.3 GFLOP/s measured here)"),
        ({PEAK: 1e12}, ""),
        ({MFU: 0.5}, ""),
    ],
)
def test_it_is_told_with_what_it_is_a_share_of(metrics: dict[str, float], said: str) -> None:
    assert reach.told(metrics) == said


def test_both_are_logged_with_the_speed(gpu: Gpu, tmp_path: Path) -> None:
    watch, model = gpu.watch(tmp_path), Reach(1_000_000, Peak(1e9, measured=True), workers=1)
    file = MetricFile(tmp_path / "metrics.jsonl")
    logger = trial.MetricLogger(file, watch, model)
    gpu.passes(watch, 1, 0.4)
    logger.log_metrics({"val/loss": 1.0}, step=1)
    assert logger.newest == {"val/loss": 1.0}, "nothing is asked of a GPU beside the training"
    logger.log_metrics({"train/tokens": 5.0, "train/tokens_per_second": 250.0}, step=2)
    logger.close()
    told = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    values = {one["key"]: one["value"] for one in told if one["step"] == 2}
    assert (values[MFU], values["system/gpu_utilization"]) == (0.25, 0.4)


@pytest.mark.parametrize("action", ["flag", "stop"])
def test_the_gpu_that_is_watched_is_the_one_that_the_training_thread_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, action: str
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(gpus, "utilization", lambda device: asked.append(device) or 0.0)
    monkeypatch.setattr(gpus, "IDLE_AFTER_S", 1e-9)
    held = trial._gpu_watch(tmp_path, Resources(gpus_per_worker=0.5, on_idle_gpu=action))
    verdict = held.look()
    assert asked == [3]
    assert (verdict is not None and verdict[0]) == ("cancelled" if action == "stop" else False)
    assert trial._gpu_watch(tmp_path, Resources()).look() is None
    assert asked == [3], "who holds no GPU looks at none"


def test_a_watchdog_ends_the_process_of_an_idle_gpu(tmp_path: Path) -> None:
    code = """
import itertools, sys, time
from pathlib import Path
from tuneyard_pipelines.gpus import GpuWatch
from tuneyard_pipelines.watchdog import IDLE_GPU, Watchdog
folder, minutes = Path(sys.argv[1]), itertools.count()
watch = GpuWatch(folder / IDLE_GPU, gpus=1, stop=True, read=lambda: 0.0, clock=lambda: 10.0 * next(minutes))
for _ in range(179):
    assert watch.look() is None
with Watchdog(folder, stall_timeout_s=60, memory_bytes=1 << 50, overdue=watch.look):
    time.sleep(50)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "its GPU computed for 0.0% of the last 30 minutes; resources.on_idle_gpu is stop\n"
    said = last_words(tmp_path)
    assert said is not None
    assert said[0] == "cancelled"
    assert "resources.on_idle_gpu is stop" in said[1]
    assert idle_gpu_ms(tmp_path) == 1000 * IDLE_AFTER_S
