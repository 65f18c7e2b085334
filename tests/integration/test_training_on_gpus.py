"""Training on a real GPU: precision, kernels, what is logged, memory that does not suffice; skipped without one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytorch_lightning as pl
import ray.cloudpickle
import torch
from tiny_sweep import tiny
from torch.nn.attention import SDPBackend, sdpa_kernel

from tuneyard_modules.attention import CAUSAL, attention
from tuneyard_pipelines.journal import SweepFolder, SweepState
from tuneyard_pipelines.leg import Leg
from tuneyard_pipelines.metrics import MetricReader
from tuneyard_pipelines.reach import MEASURED_PEAK, MFU, PEAK
from tuneyard_pipelines.spec import SweepSpec

pytestmark = [
    pytest.mark.integration,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # callbacks go to processes that cannot import this
Run = Callable[..., tuple[SweepFolder, SweepState]]


@dataclass
class Note(pl.Callback):
    """Writes down how the training stands; `memory_share`: of the GPU, what it may take at most."""

    folder: Path
    memory_share: float = 1.0

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.memory_share < 1:
            torch.cuda.set_per_process_memory_fraction(self.memory_share)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        first = next(pl_module.parameters())
        noted = {
            "device": first.device.type,
            "visible": os.environ["CUDA_VISIBLE_DEVICES"],
            "precision": str(trainer.precision),
            "weights": str(first.dtype),
            "fused": trainer.optimizers[0].param_groups[0]["fused"],
        }
        (self.folder / f"note{trainer.global_rank}.json").write_text(json.dumps(noted))

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        torch.cuda.set_per_process_memory_fraction(1.0)  # the process trains other legs


def on_gpu(steps: int = 60, precision: str = "bf16-mixed", gpus: float = 1, workers: int = 1) -> SweepSpec:
    return tiny(
        model__num_heads=2,
        model__sequence_length=48,
        training__max_steps=steps,
        training__precision=precision,
        resources__gpus_per_worker=gpus,
        resources__workers=workers,
        resources__memory_per_worker="8GiB",  # CUDA's libraries count
    )


def noting(memory_share: float = 1.0) -> Callable[[Leg], Sequence[pl.Callback]]:
    return lambda leg: [Note(leg.attempt_folder, memory_share)]


def noted(folder: SweepFolder) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder.attempt("t001", 1) / "note0.json").read_text())
    return found


def test_bf16_trains_with_fused_adamw_and_tells_how_busy_the_gpu_was(run: Run) -> None:
    folder, state = run(on_gpu(), noting())
    trial = state.trials["t001"]
    assert trial.outcome == "completed", trial.message
    found = noted(folder)
    visible = found.pop("visible")
    assert found == {"device": "cuda", "precision": "bf16-mixed", "weights": "torch.float32", "fused": True}
    assert str(visible).isdecimal(), "one GPU of all"
    values = MetricReader(folder, "t001").new(state)
    busy = [one.value for one in values if one.key == "system/gpu_utilization"]
    assert busy
    assert all(0 <= value <= 1 for value in busy)
    reached = [one.value for one in values if one.key == MFU]
    assert reached
    assert all(0 < value < 1 for value in reached)
    assert {one.key for one in values} & {PEAK, MEASURED_PEAK}
    assert max(one.value for one in values if one.key == "system/gpu_memory_bytes") > 0


@pytest.mark.parametrize("gpus", [0, 0.5])
def test_a_worker_with_no_gpu_or_half_of_one_sees_as_many(run: Run, gpus: float) -> None:
    folder, state = run(on_gpu(steps=4, precision="32", gpus=gpus), noting())
    assert state.trials["t001"].outcome == "completed", state.trials["t001"].message
    found = noted(folder)
    assert found["device"] == ("cuda" if gpus else "cpu")
    assert str(found["visible"]).isdecimal() if gpus else found["visible"] == ""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_workers_train_on_a_gpu_each_and_tell_of_their_own(run: Run) -> None:
    folder, state = run(on_gpu(workers=2), noting())
    assert state.trials["t001"].outcome == "completed", state.trials["t001"].message
    keys = {one.key for one in MetricReader(folder, "t001").new(state)}
    assert {f"system/rank{rank}/gpu_{what}" for rank in (0, 1) for what in ("utilization", "memory_bytes")} <= keys


def test_too_little_memory_of_the_gpu_is_an_outcome_of_its_own(run: Run) -> None:
    _, state = run(on_gpu(steps=4), noting(memory_share=1e-6))
    trial = state.trials["t001"]
    assert trial.outcome == "out_of_memory", trial.message
    assert [failed.outcome for failed in trial.failures] == ["out_of_memory"], "not tried again"


def test_attention_in_bf16_has_fused_kernels_and_flash_where_no_tensor_masks_it() -> None:
    """Torch's flash kernel takes no tensor for a mask: there the memory-efficient one serves, or cuDNN's."""
    query, key, value = (torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    mask = torch.ones(128, 128, dtype=torch.bool, device="cuda").tril()
    for kernels, seen in (
        ([SDPBackend.FLASH_ATTENTION], None),
        ([SDPBackend.FLASH_ATTENTION], CAUSAL),
        ([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION], mask),
    ):
        with sdpa_kernel(kernels):
            context, _ = attention(query, key, value, seen)
        plain, _ = attention(query.float(), key.float(), value.float(), seen, need_weights=True)
        torch.testing.assert_close(context.float(), plain, atol=2e-2, rtol=2e-2)
