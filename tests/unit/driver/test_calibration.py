"""The speed of this machine, measured in a process of its own: what it returns, remembers and refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tuneyard_pipelines import calibration
from tuneyard_pipelines.cost import flops_per_token
from tuneyard_pipelines.errors import TuneyardError
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.spec import TrialConfig

VOCAB = VocabSizes(20)


def point(d_model: int = 8, **training: float) -> tuple[TrialConfig, VocabSizes]:
    model = {
        "architecture": "transformer",
        "positions": "sinusoidal",
        "d_model": d_model,
        "num_heads": 2,
        "num_layers": 1,
        "sequence_length": 8,
    }
    plain = {"task": "translation", "seed": 1, "model": model, "tokenizer": {}}
    return TrialConfig.model_validate({**plain, "training": {"max_steps": 5, "batch_tokens": 64, **training}}), VOCAB


def measure(folder, *points, gpus=0, threads=1, timeout_s=100.0):
    return calibration.measure(points, threads=threads, gpus=gpus, folder=folder, timeout_s=timeout_s)


def test_speeds_are_measured_once_and_kept_for_machine_and_shape(tmp_path):
    folder = tmp_path / "speeds"
    speed = measure(folder, point(16), point(8))
    assert [flops for flops, _ in speed.points] == [flops_per_token(point(d)[0].flat(), VOCAB) for d in (8, 16)]
    assert all(rate > 0 for _, rate in speed.points)
    assert "threads=1" in speed.machine
    # No process can start in so short a time: these are remembered, and those are not.
    assert measure(folder, point(16), point(8), timeout_s=0.001) == speed
    assert measure(folder, point(16, learning_rate=0.5), point(8), timeout_s=0.001) == speed
    for others in ((point(8),), (point(16), point(8, batch_tokens=128))):
        with pytest.raises(TuneyardError, match="longer than"):
            measure(folder, *others, timeout_s=0.001)
    with pytest.raises(TuneyardError, match="longer than"):
        measure(folder, point(16), point(8), threads=2, timeout_s=0.001)
    (kept,) = folder.iterdir()
    kept.write_text('{"points": [[')
    with pytest.raises(TuneyardError, match="longer than"):
        measure(folder, point(16), point(8), timeout_s=0.001)


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"points": []}', '{"points": [[1, 0]], "machine": "x"}', "\0"])
def test_a_damaged_result_is_no_result(tmp_path, kept):
    damaged = tmp_path / "speed.json"
    damaged.write_text(kept)
    assert calibration._read(damaged) is None


def test_the_time_limit_says_what_to_do_and_leaves_nothing(tmp_path):
    with pytest.raises(TuneyardError, match=r"1 points took longer than 0\.01 s; measure smaller points"):
        measure(tmp_path, point(), timeout_s=0.01)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(tmp_path):
    with pytest.raises(TuneyardError, match=r"could not be measured: resources\.gpus_per_worker is not 0, but torch"):
        measure(tmp_path, point(), gpus=1)


def test_the_process_says_in_a_line_what_it_cannot_read():
    ran = subprocess.run(
        [sys.executable, "-m", "tuneyard_pipelines.calibration"], input="{", capture_output=True, text=True
    )
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.startswith("JSONDecodeError: ")
    assert ran.stderr.count("\n") == 1


def test_asking_for_a_measurement_needs_no_torch():
    code = "import sys, tuneyard_pipelines.calibration; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
