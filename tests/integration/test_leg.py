"""Legs of one trial, one after the other in this process: cut anywhere, they are the unbroken run."""

from __future__ import annotations

import copy
import errno
import gc
import os
import shutil
from collections import Counter
from dataclasses import dataclass, field
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from tiny_sweep import tiny
from torch import nn

from tuneyard_modules.objective import Loader
from tuneyard_modules.translation import TranslationModule
from tuneyard_pipelines import checkpoints, control, cost, data, pictures, reach
from tuneyard_pipelines.checkpoints import Checkpoint
from tuneyard_pipelines.control import Finish
from tuneyard_pipelines.journal import AttemptStarted, Header, Journal, SweepFolder
from tuneyard_pipelines.leg import NO_SPACE, Leg, LegResult
from tuneyard_pipelines.metrics import MetricReader, MetricValue
from tuneyard_pipelines.objectives import objective
from tuneyard_pipelines.spec import SweepSpec
from tuneyard_pipelines.trial import compile_in_place, load_network, run_leg

pytestmark = pytest.mark.integration

TRIAL = "t001"
POINT = {"model.num_heads": 2, "model.sequence_length": 48}
SPEC = tiny(
    training__max_steps=18,
    search__scheduler={"type": "asha", "min_share": 0.11, "reduction_factor": 3},
    resources__memory_per_worker="64GiB",  # this process holds much else
)
RUNG_STEPS = (2, 6, 18)
VALIDATED = {2, 5, 6, 9, 14, 18}  # the rungs, and four evaluations of 18 steps


@dataclass
class Begun(pl.Callback):
    """Notes from which step each training went on, and in which precision."""

    steps: list[int] = field(default_factory=list)
    precisions: list[str] = field(default_factory=list)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.steps.append(trainer.global_step)
        self.precisions.append(str(trainer.precision))


class BlindAfter(pl.Callback):
    """Lets validations after optimiser step `step` see broken weights, so that the best checkpoint is an older one."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.weights = {key: value.clone() for key, value in pl_module.state_dict().items()}
        if trainer.global_step > self.step:
            with torch.no_grad():
                next(pl_module.parameters()).fill_(torch.nan)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        pl_module.load_state_dict(self.weights)


@dataclass
class Trial:
    """A sweep's folder under its first attempt, and one trial of it."""

    folder: SweepFolder
    spec: SweepSpec = SPEC

    def run(self, rung: int, *callbacks: pl.Callback, attempt: int = 1) -> LegResult:
        return run_leg(Leg(str(self.folder.path), TRIAL, POINT, attempt, rung), callbacks)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        return checkpoints.whole(self.folder.trial(TRIAL))

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        state: dict[str, Any] = torch.load(self.checkpoints[-1].state, weights_only=True)
        return state["state_dict"]

    @property
    def log(self) -> str:
        return (self.folder.attempt(TRIAL, 1) / "trial.log").read_text()

    def metrics(self) -> list[MetricValue]:
        return MetricReader(self.folder, TRIAL).new(self.folder.state())

    def values(self) -> dict[tuple[str, int], float]:
        """What depends neither on the clock nor on the process."""
        varying = ("train/tokens_per_second", reach.MFU, reach.MEASURED_PEAK, "system/memory_bytes")
        return {(m.key, m.step): m.value for m in self.metrics() if m.key not in varying}


def make(home: Path, sweep_id: str, spec: SweepSpec = SPEC) -> Trial:
    prepared = data.prepare(spec.data, spec.seed, home / "data")
    folder = SweepFolder(home / "sweeps" / sweep_id)
    folder.create(
        Header(sweep_id, spec, "text", home, prepared.folder, prepared.fingerprint, "http://127.0.0.1:9", 1, {})
    )
    Journal(folder).append(AttemptStarted(1, 1, "node-1", {}, {}))
    return Trial(folder, spec)


def changed(**training: Any) -> SweepSpec:
    """The spec with other keys of training."""
    return SPEC.model_copy(update={"training": SPEC.training.model_copy(update=training)})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("legs")


@pytest.fixture(scope="module")
def unbroken(home: Path) -> Trial:
    trial = make(home, "unbroken")
    result = trial.run(rung=2)
    assert (result.outcome, result.step, result.share) == (None, 18, 1.0), result.message
    assert {m.step for m in trial.metrics() if m.key == "val/loss"} == VALIDATED
    return trial


def test_each_logged_step_tells_how_much_of_the_machine_the_training_made_use_of(unbroken: Trial) -> None:
    values = {(one.key, one.step): one.value for one in unbroken.metrics()}
    config = SPEC.at(POINT)
    encoded = data.encode(data.PreparedData.open(unbroken.folder.header().data), config.tokenizer)
    flops = cost.flops_per_token(config.flat(), encoded.sizes)
    peak = values[reach.MEASURED_PEAK, 0]
    assert values[reach.MFU, 10] == pytest.approx(values["train/tokens_per_second", 10] * flops / peak)
    assert f"model FLOPs utilisation {values[reach.MFU, 10]:.1%} (of " in unbroken.log
    assert not [key for key, _ in values if "gpu" in key], "there is none"


def test_r8_a_trial_cut_into_rungs_is_the_unbroken_trial(home: Path, unbroken: Trial) -> None:
    trial, begun = make(home, "rungs"), Begun()
    results = [trial.run(rung, begun) for rung in range(3)]
    assert begun.steps == [0, *RUNG_STEPS[:-1]]
    assert [result.step for result in results] == list(RUNG_STEPS)
    assert trial.checkpoints[-1].facts == unbroken.checkpoints[-1].facts
    assert trial.weights.keys() == unbroken.weights.keys()
    assert all(torch.equal(trial.weights[name], weight) for name, weight in unbroken.weights.items())
    assert trial.values() == unbroken.values()
    assert results[-1] == unbroken.run(rung=2)


def test_a_leg_that_has_reached_its_rung_is_answered_at_once(home: Path) -> None:
    trial, begun = make(home, "again"), Begun()
    first = trial.run(1, begun)
    before = trial.metrics()
    for rung in (1, 0):
        assert trial.run(rung, begun) == first
    assert begun.steps == [0], "trained once only"
    assert trial.metrics() == before


def test_r9_a_leg_goes_on_from_the_older_checkpoint_when_the_newest_is_cut_short(home: Path, unbroken: Trial) -> None:
    trial, begun = make(home, "damaged"), Begun()
    assert trial.run(1, BlindAfter(step=2)).outcome is None
    older, newest = trial.checkpoints
    assert (older.facts.step, newest.facts.step) == (2, 6)
    os.truncate(newest.state, newest.state.stat().st_size // 2)

    result = trial.run(2, begun)
    assert (result.outcome, result.step, result.share) == (None, 18, 1.0), result.message
    assert begun.steps == [2], "from the older one that is whole"
    assert f"WARNING checkpoint {newest.path} is damaged and not used" in trial.log
    assert all(torch.equal(trial.weights[name], weight) for name, weight in unbroken.weights.items())
    written = (trial.folder.attempt(TRIAL, 1) / "metrics.jsonl").read_text()
    assert written.count('"val/loss", "step": 6,') == 2, "steps 3 to 6 were made twice"
    counted = Counter((m.key, m.step) for m in trial.metrics())
    assert set(counted.values()) == {1}
    assert {step for key, step in counted if key == "val/loss"} == VALIDATED


def test_r9_without_a_whole_checkpoint_a_leg_begins_anew(home: Path, unbroken: Trial) -> None:
    trial, begun = make(home, "none"), Begun()
    trial.run(0)
    [only] = trial.checkpoints
    os.truncate(only.state, 10)
    result = trial.run(2, begun)
    assert (result.outcome, begun.steps) == (None, [0])
    assert f"WARNING checkpoint {only.path} is damaged and not used" in trial.log
    assert trial.values() == unbroken.values()


def test_a_leg_frees_what_it_made_and_does_not_look_at_the_libraries(home: Path) -> None:
    def modules() -> int:
        return sum(type(one) is TranslationModule for one in gc.get_objects())

    trial = make(home, "freed")
    gc.collect()
    before = modules()
    gc.disable()
    try:
        assert trial.run(0).outcome is None
        assert modules() == before
    finally:
        gc.enable()
    assert gc.get_freeze_count() > 0


@pytest.mark.parametrize("cause", [OSError("cannot open resource"), ValueError("no such glyph")])
def test_what_cannot_be_drawn_costs_no_trial(home: Path, monkeypatch: pytest.MonkeyPatch, cause: Exception) -> None:
    def fail(*args: Any) -> None:
        raise cause

    monkeypatch.setattr(pictures, "attention", fail)
    trial = make(home, f"drawn-{type(cause).__name__}")
    assert trial.run(0).outcome is None
    assert "cannot be shown" in (trial.folder.attempt(TRIAL, 1) / "trial.log").read_text()


def test_a_full_disk_while_drawing_is_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pictures, "attention", fail)
    assert make(home, "full-drawing").run(0).outcome == NO_SPACE


def test_a_leg_whose_sweep_cannot_be_read_is_an_error_and_no_exception(tmp_path: Path) -> None:
    result = run_leg(Leg(str(tmp_path / "gone"), TRIAL, {}, 1, 0))
    assert result.outcome == "error"
    assert "sweep.json cannot be read" in result.message


def test_a_disk_that_takes_no_more_is_not_the_trials_fault(home: Path) -> None:
    class Full(pl.Callback):
        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "state.ckpt")

    trial = make(home, "full")
    result = trial.run(0, Full())
    assert (result.outcome, result.message) == (NO_SPACE, "[Errno 28] No space left on device: 'state.ckpt'")
    assert trial.run(0).outcome is None, "with space again it goes on"


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate": 2, "average": "ema", "precision": "bf16-mixed"},
        {"average": "last", "last_checkpoints": 2, "schedule": "noam"},
    ],
    ids=["accumulated ema in bf16", "last checkpoints"],
)
def test_r8_with_other_ways_of_training_a_cut_trial_is_the_unbroken_one(home: Path, options: dict[str, Any]) -> None:
    spec = changed(**options)
    whole, cut = make(home, f"whole-{options['average']}", spec), make(home, f"cut-{options['average']}", spec)
    begun = Begun()
    result = whole.run(2, begun)
    assert begun.precisions == [options.get("precision", "32-true")]
    assert [cut.run(rung).step for rung in range(3)] == list(RUNG_STEPS)
    assert cut.run(2) == result
    facts = whole.checkpoints[-1].facts
    assert (facts.step, facts.position, facts.share) == (18, 18 * options.get("accumulate", 1), 1.0)
    assert cut.checkpoints[-1].facts == facts
    assert cut.values() == whole.values()
    states = [torch.load(trial.checkpoints[-1].state, weights_only=True) for trial in (whole, cut)]
    for key in ("state_dict", "moved"):
        assert all(torch.equal(states[1][key][name], weight) for name, weight in states[0][key].items())


@dataclass
class Interrupts(pl.Callback):
    """The driver is told to end once optimiser step `step` is made."""

    folder: SweepFolder
    step: int

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == self.step:
            control.finish(self.folder, 1, Finish("interrupted", "told to end", 1))


@pytest.mark.parametrize("step", [1, 2, 15], ids=["at a mark", "just after one", "between two"])
def test_r10_an_interrupted_leg_saves_where_it_is_and_the_next_attempt_goes_on_there(
    home: Path, unbroken: Trial, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuneyard_pipelines.trial.LOOK_S", 0.0)
    trial, begun = make(home, f"interrupted-{step}"), Begun()
    first = trial.run(2, Interrupts(trial.folder, step))
    assert first.outcome == "interrupted", first.message
    assert step <= first.step <= step + 2, "it ends with the step that was begun, and the one fetched early"
    validated = {m.step for m in trial.metrics() if m.key == "val/loss"}
    assert validated == {one for one in VALIDATED if one <= first.step}, "no validation but those planned"
    Journal(trial.folder).append(AttemptStarted(2, 2, "node-1", {}, trial.folder.seals()))
    assert trial.run(2, begun, attempt=2) == unbroken.run(2)
    assert begun.steps == [first.step]
    assert trial.values() == unbroken.values()
    assert all(torch.equal(trial.weights[name], weight) for name, weight in unbroken.weights.items())


def test_r10_what_was_interrupted_has_waited_and_averaged_as_if_it_had_not_been(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuneyard_pipelines.trial.LOOK_S", 0.0)
    spec = changed(average="last", last_checkpoints=2, early_stopping=9, accumulate=2)
    left, trial = make(home, "left-alone", spec), make(home, "interrupted-average", spec)
    whole = left.run(2)
    first = trial.run(2, Interrupts(trial.folder, 10))
    assert (first.outcome, first.step) == ("interrupted", 11)
    Journal(trial.folder).append(AttemptStarted(2, 2, "node-1", {}, trial.folder.seals()))
    assert trial.run(2, attempt=2) == whole
    assert trial.checkpoints[-1].facts == left.checkpoints[-1].facts
    assert trial.values() == left.values()


def test_what_is_loaded_is_the_average_that_was_validated(home: Path) -> None:
    trial = make(home, "average", changed(average="ema"))
    trial.run(1)
    kept = trial.checkpoints[-1]
    moved = torch.load(kept.state, weights_only=True)["moved"]
    config, prepared = trial.spec.at(POINT), data.PreparedData.open(trial.folder.header().data)
    encoded = data.encode(prepared, config.tokenizer)
    network = load_network(kept, config, encoded.sizes)
    assert not any(
        torch.equal(moved[f"network.{name}"], one) for name, one in network.state_dict().items() if one.ndim > 1
    )
    parts = objective(config, prepared, encoded)
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    [scores] = trainer.validate(parts.module(network), Loader(lambda: parts.validation), verbose=False)
    assert scores["val/loss"] == pytest.approx(kept.facts.metrics["val/loss"], rel=1e-6)


PATIENT = changed(evaluations=9, early_stopping=2)  # one every two steps, and at the rungs 2, 6 and 18


class Fails(pl.Callback):
    """Ends a training in the middle, after step `step`."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step > self.step:
            raise RuntimeError("failed")


def test_a_trial_stops_itself_once_nothing_gets_better_whatever_comes_between(home: Path) -> None:
    trial, begun = make(home, "patient", PATIENT), Begun()
    result = trial.run(2, BlindAfter(step=8), begun)
    assert (result.outcome, result.step) == ("stopped_early", 12)
    assert result.message == "training.early_stopping: no better val/loss in 2 validations in a row"
    assert [kept.facts.step for kept in trial.checkpoints] == [8, 12]
    assert (result.score, result.share) == (trial.checkpoints[0].facts.score, 12 / 18)
    assert trial.run(2, begun) == result, "asked again, it trains no more"
    assert begun.steps == [0]

    broken = make(home, "patient-broken", PATIENT)
    assert broken.run(2, BlindAfter(step=8), Fails(step=10), begun).outcome == "error"
    assert broken.checkpoints[-1].facts.since_best == 1
    assert broken.run(2, BlindAfter(step=8), begun) == result
    assert begun.steps == [0, 0, 10], "it goes on, and has not forgotten how long it has waited"


def test_a_trial_that_would_stop_at_its_rung_has_reached_it_and_stops_on_the_way_to_the_next(home: Path) -> None:
    trial, begun = make(home, "patient-rung", changed(early_stopping=1)), Begun()
    reached = trial.run(1, BlindAfter(step=5), begun)
    assert (reached.outcome, reached.step) == (None, 6)
    further = trial.run(2, begun)
    assert (further.outcome, further.step, further.score) == ("stopped_early", 6, reached.score)
    assert begun.steps == [0]


def test_what_never_had_a_score_diverged_whatever_its_patience(home: Path) -> None:
    result = make(home, "patient-nan", PATIENT).run(2, BlindAfter(step=0))
    assert (result.outcome, result.message) == ("diverged", "val/loss was never finite")
    assert result.step == 4, "and is not trained to the end for it"


def test_a_strictly_deterministic_leg_leaves_the_next_one_as_it_was(home: Path, unbroken: Trial) -> None:
    @dataclass
    class Strict(pl.Callback):
        found: list[bool] = field(default_factory=list)

        def on_train_start(self, *args: Any) -> None:
            assert torch.are_deterministic_algorithms_enabled()
            self.found.append(not torch.is_deterministic_algorithms_warn_only_enabled())

    strict, trial = Strict(), make(home, "strict", changed(deterministic=True))
    assert trial.run(2, strict).outcome is None
    assert make(home, "lax").run(0, strict).outcome is None
    assert strict.found == [True, False]
    assert trial.values() == unbroken.values()


def test_a_compiled_network_trains_as_it_does_otherwise(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as a whole, but not turned into C++, which takes minutes: that is tried on a small part below."""
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="eager", fullgraph=True))
    model = SPEC.model.model_copy(update={"dropout": 0.0})
    plain = make(home, "eager", SPEC.model_copy(update={"model": model}))
    compiled = make(home, "compiled", changed(compile=True).model_copy(update={"model": model}))
    assert (plain.run(0).outcome, compiled.run(0).outcome) == (None, None)
    losses = [{key: value for key, value in one.values().items() if key[0] == "val/loss"} for one in (plain, compiled)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert compiled.weights.keys() == plain.weights.keys()
    assert 2 <= torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4, "to train and to validate, of any shape"


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.outer(nn.functional.gelu(self.inner(values)))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_what_is_compiled_in_cpp_computes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    plain = Small()
    compiled = copy.deepcopy(plain)
    compile_in_place(compiled)
    for rows in (5, 7):
        values = torch.randn(rows, 4)
        found, expected = compiled(values), plain(values)
        torch.testing.assert_close(found, expected)
        found.square().sum().backward()
        expected.square().sum().backward()
    for one, other in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert compiled.state_dict().keys() == plain.state_dict().keys()
    assert list(tmp_path.rglob("*.so")), "something was compiled"


def test_without_a_compiler_a_trial_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    result = make(home, "no-compiler", changed(compile=True)).run(0)
    assert result.outcome == "error"
    assert "training.compile: there is no C++ compiler no-such-compiler here" in result.message
