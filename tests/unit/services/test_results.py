"""A sweep in Python: how it stands, and its trials and curves as frames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from driven_sweep import DrivenSweep

import tuneyard
from tuneyard import Progress, Sweep, SweepSpec, open_sweep
from tuneyard_pipelines import spec
from tuneyard_pipelines.errors import InputError

MakeSweep = Callable[..., DrivenSweep]
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def ended(make_sweep: MakeSweep) -> Sweep:
    sweep = make_sweep("search.trials=3")
    for number, heads in ((1, 1), (2, 2), (3, 4)):
        sweep.start(sweep.create(number, heads))
    for step, loss in ((5, 2.0), (10, 1.5)):
        sweep.measure("t001", step, {"train/loss": loss, "val/exact_match": step / 20})
    sweep.measure("t002", 5, {"train/loss": 3.0})
    sweep.reach("t001", 0, 0.5)
    sweep.reach("t002", 2, 0.75)
    sweep.end("t002", "completed")
    sweep.fail("t003", 0, "diverged", "loss is nan")
    sweep.end("t003", "diverged", "loss is nan")
    sweep.close("interrupted", "stopped by a signal")
    return Sweep(sweep.folder)


def test_trials_are_rows_best_first_with_a_column_for_each_varied_key(ended: Sweep) -> None:
    trials = ended.trials()
    columns = ["trial", "variant", "outcome", "score", "share", "tokens", "seconds", "message", "model.num_heads"]
    assert list(trials.columns) == columns
    assert trials["trial"].tolist() == ["t002", "t001", "t003"]
    assert trials["outcome"].tolist() == ["completed", "cancelled", "diverged"]
    assert trials["score"].tolist()[:2] == [0.75, 0.5]
    assert pd.isna(trials["score"][2])
    assert trials["model.num_heads"].tolist() == [2, 1, 4]
    assert trials["message"][2] == "loss is nan"
    assert (trials["seconds"] > 0).all(), "what the journal's own times tell"
    assert str(trials.dtypes["score"]) == "float64"


def test_keys_that_a_variant_does_not_vary_are_missing_there(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(
        "variants.heads.model.num_heads=[1,2]",
        "variants.layers.model.num_heads=1",
        "variants.layers.model.num_layers=[1,2]",
    )
    from tuneyard_pipelines.journal import TrialCreated

    sweep.journal.append(TrialCreated("t001", 1, "t01", {"model.num_heads": 2}, 5, "heads"))
    sweep.journal.append(TrialCreated("t002", 2, "t02", {"model.num_layers": 2}, 5, "layers"))
    trials = Sweep(sweep.folder).trials().set_index("trial")
    assert trials["variant"].to_dict() == {"t001": "heads", "t002": "layers"}
    assert trials.loc["t001", "model.num_heads"] == 2
    assert trials.isna().loc["t001", "model.num_layers"]
    assert trials.isna().loc["t002", "model.num_heads"]


def test_curves_are_a_row_a_value(ended: Sweep) -> None:
    curves = ended.curves()
    assert list(curves.columns) == ["trial", "step", "metric", "value", "time"]
    losses = curves[curves["metric"] == "train/loss"].pivot(index="step", columns="trial", values="value")
    assert losses["t001"].tolist() == [2.0, 1.5]
    assert losses["t002"].dropna().tolist() == [3.0]
    assert str(curves["time"].dt.tz) == "UTC"
    assert curves["time"].min().year == 2023


def test_a_sweep_that_has_not_begun_has_empty_frames(make_sweep: MakeSweep) -> None:
    sweep = Sweep(make_sweep().folder)
    assert (len(sweep.trials()), len(sweep.curves())) == (0, 0)
    assert "model.num_heads" in sweep.trials().columns
    assert (sweep.best, sweep.report, sweep.test) == (None, None, {})


def test_how_it_stands_is_what_the_command_line_says(ended: Sweep) -> None:
    assert (ended.id, ended.state, ended.metric) == ("5eed0001", "interrupted", "val/exact_match")
    assert ended.best is not None
    assert (ended.best.trial, ended.best.score, ended.best.point) == ("t002", 0.75, {"model.num_heads": 2})
    assert "best    t002 val/exact_match 0.75" in repr(ended)
    assert "tuneyard sweep resume 5eed0001" in repr(ended)
    assert ended.spec.search.trials == 3


def test_a_sweep_is_opened_by_the_beginning_of_its_id(
    ended: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_sweep("5eed", home=tmp_path / ".tuneyard") == ended
    monkeypatch.chdir(tmp_path)
    assert tuneyard.open_sweep("5eed") == ended
    with pytest.raises(InputError, match="sweep 'beef': not in"):
        open_sweep("beef")


def test_the_model_of_a_sweep_without_a_winner_is_refused(ended: Sweep) -> None:
    with pytest.raises(InputError, match="this sweep has: none, for it has no winner yet"):
        ended.model()


def test_going_on_with_what_is_done_leaves_it_as_it_is(make_sweep: MakeSweep, tmp_path: Path) -> None:
    sweep = make_sweep("search.trials=1")
    sweep.start(sweep.create(1))
    sweep.reach("t001", 0, 0.5)
    sweep.end("t001", "completed")
    sweep.close("finished")
    (sweep.folder.path / "shipped").write_text("1")  # MLflow knows everything
    before, told = sweep.folder.journal.read_bytes(), list[Progress]()
    resumed = tuneyard.resume_sweep("5eed", home=tmp_path / ".tuneyard", on_progress=told.append)
    assert (resumed, resumed.state) == (Sweep(sweep.folder), "finished")
    assert sweep.folder.journal.read_bytes() == before
    assert [now.stage for now in told] == ["preparing", "ended"]


def test_a_spec_is_loaded_and_planned() -> None:
    loaded = SweepSpec.load(str(EXAMPLES / "dates.yaml"), ["search.trials=5"])
    assert loaded == spec.load(EXAMPLES / "dates.yaml", ["search.trials=5"])
    planned = tuneyard.plan_sweep(SweepSpec.load(EXAMPLES / "every_key.yaml"), calibrate=False)
    assert str(planned).splitlines() == planned.lines()
