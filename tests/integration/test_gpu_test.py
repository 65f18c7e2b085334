"""The test of a cluster's GPUs: what it says where there is none, and of what was trained elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tuneyard import doctor
from tuneyard_pipelines import gpu_test
from tuneyard_pipelines.gpu_test import spec_for, told
from tuneyard_pipelines.journal import SweepFolder, SweepState
from tuneyard_pipelines.spec import SweepSpec, parse

pytestmark = pytest.mark.integration
Run = Callable[..., tuple[SweepFolder, SweepState]]


def test_a_cluster_without_gpus_is_a_problem_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    [finding] = doctor.gpu_test(tmp_path)  # on the Ray that runs here
    assert (finding.about, finding.verdict) == ("GPU test", "problem")
    assert finding.found.startswith("the cluster has no GPU (nodes: ")
    assert "0 GPU" in finding.found
    assert not list(tmp_path.glob("gpu-test-*"))


def test_a_trial_counts_once_it_was_trained_on_a_gpu_and_learned(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = run(on_the_cpu(spec_for(1)))
    [trial] = told(folder)
    assert (trial.trial, trial.outcome, trial.message) == ("t001", "completed", "")
    assert trial.last_loss < trial.first_loss
    assert trial.tokens_per_second > 0
    assert not trial.trained
    there = replace(trial, gpu_memory_bytes=1.0)
    assert there.trained
    assert not replace(there, last_loss=trial.first_loss).trained
    assert not replace(there, outcome="error").trained


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_each_gpu_trains(tmp_path: Path) -> None:
    test = gpu_test.run(tmp_path)
    assert test.trials
    assert all(trial.trained for trial in test.trials), test.trials


def on_the_cpu(spec: SweepSpec) -> SweepSpec:
    return parse(spec.text(), file="gpu-test", overrides=("resources.gpus_per_worker=0", "training.max_steps=20"))
