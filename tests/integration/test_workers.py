"""Two workers train as one does: the same losses, scores and weights, and those of PyTorch's own data parallel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from shared_training import together, train_interrupted, train_plainly, train_shared
from tiny_sweep import tiny

from tuneyard_pipelines import checkpoints, data
from tuneyard_pipelines.build import build_network
from tuneyard_pipelines.data import PreparedData, encode
from tuneyard_pipelines.journal import AttemptStarted, Header, Journal, SweepFolder
from tuneyard_pipelines.leg import Leg
from tuneyard_pipelines.metrics import MetricReader
from tuneyard_pipelines.reach import MEASURED_PEAK, MFU
from tuneyard_pipelines.spec import SweepSpec
from tuneyard_pipelines.trial import run_leg

pytestmark = pytest.mark.integration

STEPS = 50
CLOSE = 1e-4
CLOCKED = ("system/", "train/tokens_per_second", MFU)
ALIKE = {
    "model__num_heads": 2,
    "model__sequence_length": 24,
    "model__dropout": 0.0,
    "training__max_steps": STEPS,
    "training__batch_tokens": 700,
    "training__evaluations": 2,
    "resources__memory_per_worker": "64GiB",  # this process holds much else
}


def spec(task: str, text: Path, **changes: Any) -> SweepSpec:
    if task == "translation":
        return tiny(**ALIKE | changes)
    family = {"language_modeling": "gpt", "masked_lm": "bert"}[task]
    return tiny(task=task, data={"source": str(text)}, model__architecture=family, **ALIKE | changes)


def make(home: Path, sweep_id: str, spec: SweepSpec) -> SweepFolder:
    prepared = data.prepare(spec.data, spec.seed, home / "data", spec.task)
    folder = SweepFolder(home / "sweeps" / sweep_id)
    header = Header(sweep_id, spec, "", home, prepared.folder, prepared.fingerprint, "http://127.0.0.1:9", 1, {})
    folder.create(header)
    Journal(folder).append(AttemptStarted(1, 1, "node-1", {}, {}))
    return folder


def train(folder: SweepFolder, split: int = 1) -> None:
    result = run_leg(Leg(str(folder.path), "t001", {}, 1, 0, split=split))
    assert result.outcome is None, result.message


def values(folder: SweepFolder) -> dict[tuple[str, int], float]:
    """What depends neither on the clock nor on the process."""
    found = MetricReader(folder, "t001").new(folder.state())
    return {(m.key, m.step): m.value for m in found if not m.key.startswith(CLOCKED)}


def weights(folder: SweepFolder) -> dict[str, torch.Tensor]:
    newest = checkpoints.whole(folder.trial("t001"))[-1]
    found: dict[str, torch.Tensor] = torch.load(newest.state, weights_only=True)["state_dict"]
    return found


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(f"line {n} of {n * n} says that {n % 7} is not {n % 11}" for n in range(400)))
    return path


@pytest.mark.parametrize("task", ["translation", "language_modeling", "masked_lm"])
def test_two_workers_have_the_losses_and_scores_of_one(task: str, text: Path, tmp_path: Path) -> None:
    alone, shared = (make(tmp_path, name, spec(task, text)) for name in ("0a10e001", "0a10e002"))
    train(alone)
    together(train_shared, 2, str(shared.path))
    one, two = values(alone), values(shared)
    assert {step for key, step in one if key == "train/loss"} == {10, 20, 30, 40, 50}
    assert two == pytest.approx(one, rel=CLOSE, nan_ok=True)
    system = {m.key for m in MetricReader(shared, "t001").new(shared.state()) if "system/" in m.key}
    assert system == {"system/rank0/memory_bytes", "system/rank1/memory_bytes", MEASURED_PEAK}


def test_pytorchs_own_data_parallel_has_the_same_losses(text: Path, tmp_path: Path) -> None:
    shared = make(tmp_path, "0a10e003", spec("translation", text))
    header = shared.header()
    config = header.spec.at({})
    torch.manual_seed(config.seed)
    network = build_network(config, encode(PreparedData.open(header.data), config.tokenizer).sizes)
    torch.save(network.state_dict(), shared.path / "start.pt")
    together(train_plainly, 2, str(shared.path), str(tmp_path / "losses.pt"))
    plain = torch.load(tmp_path / "losses.pt", weights_only=True)
    together(train_shared, 2, str(shared.path))
    ours = {step: value for (key, step), value in values(shared).items() if key == "train/loss"}
    assert ours == pytest.approx({step: plain[step - 1] for step in ours}, rel=CLOSE)


def test_three_workers_with_dropout_draw_each_its_own_and_a_leg_goes_on_where_it_was_cut(
    text: Path, tmp_path: Path
) -> None:
    given = spec("translation", text, model__dropout=0.3)
    whole, legs = (make(tmp_path, name, given) for name in ("0a10e004", "0a10e005"))
    together(train_shared, 3, str(whole.path))
    together(train_interrupted, 3, str(legs.path))
    together(train_shared, 3, str(legs.path))
    assert values(legs) == pytest.approx(values(whole), rel=CLOSE, nan_ok=True)
    state = torch.load(checkpoints.whole(whole.trial("t001"))[-1].state, weights_only=True)
    drawn = {tuple(one["torch"].tolist()) for one in state["random_states"]}
    assert len(drawn) == 3


@pytest.mark.parametrize("task", ["translation", "language_modeling", "masked_lm"])
def test_batches_in_parts_have_the_losses_of_whole_ones(task: str, text: Path, tmp_path: Path) -> None:
    given = spec(task, text, training__accumulate=2, training__max_steps=20)
    whole, parts = (make(tmp_path, name, given) for name in ("0a10e006", "0a10e007"))
    train(whole)
    train(parts, split=3)
    assert values(parts) == pytest.approx(values(whole), rel=CLOSE, nan_ok=True)
