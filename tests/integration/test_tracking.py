"""What MLflow shows of a sweep, against a real store: each run once, each value once, each status true."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from driven_sweep import DrivenSweep
from mlflow.exceptions import MlflowException
from waiting import until

from tuneyard_pipelines import evidence, mlflow_runs, tracking
from tuneyard_pipelines.errors import UnreachableError
from tuneyard_pipelines.journal import (
    OUTCOMES,
    AttemptEnded,
    LegFailed,
    SweepState,
    TrialState,
    WinnerRegistered,
    WinnerScored,
)
from tuneyard_pipelines.lease import Lease
from tuneyard_pipelines.standing import Shown, sweep_shown, trial_shown
from tuneyard_pipelines.tracking import Shipper, drain, reconcile

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

pytestmark = pytest.mark.integration

Sweep = DrivenSweep
MakeSweep = Callable[..., DrivenSweep]
NOBODY = "http://127.0.0.1:9"
TRIAL = TrialState("t001", 1, "t01", {}, 0)


def runs_of(client: MlflowClient, sweep: Sweep) -> tuple[Run, dict[str, Run]]:
    """The parent and the children by trial; fails when there are more."""
    experiment = client.get_experiment_by_name(sweep.folder.header().spec.name)
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], f"tags.`tuneyard.sweep_id` = '{sweep.folder.sweep_id}'")
    parents = [run for run in found if "tuneyard.trial_id" not in run.data.tags]
    assert len(parents) == 1
    children = {run.data.tags["tuneyard.trial_id"]: run for run in found if run is not parents[0]}
    assert len(children) == len(found) - 1
    assert all(run.data.tags["mlflow.parentRunId"] == parents[0].info.run_id for run in children.values())
    return parents[0], children


def series(client: MlflowClient, run: Run, key: str) -> list[tuple[int, float, int]]:
    return sorted((m.step, m.value, m.timestamp) for m in client.get_metric_history(run.info.run_id, key))


def files(client: MlflowClient, run: Run, path: str | None = None) -> set[str]:
    found: set[str] = set()
    for item in client.list_artifacts(run.info.run_id, path):
        found |= files(client, run, item.path) if item.is_dir else {item.path}
    return found


@pytest.mark.parametrize(
    ("outcome", "status"),
    {
        "completed": "FINISHED",
        "stopped_early": "FINISHED",
        "diverged": "FAILED",
        "out_of_memory": "FAILED",
        "stalled": "FAILED",
        "no_metric": "FAILED",
        "error": "FAILED",
        "cancelled": "KILLED",
    }.items(),
)
def test_an_ended_trial_shows_its_outcome_whatever_became_of_the_sweep(outcome: str, status: str) -> None:
    assert outcome in OUTCOMES
    trial = replace(TRIAL, outcome=outcome, message="why")
    for ended in (None, AttemptEnded(1, "lost", "gone", 0), AttemptEnded(1, "finished", "", 0)):
        assert trial_shown(trial, SweepState(ended=ended)) == Shown(status, outcome, "why")


def test_an_open_trial_shows_what_is_done_for_it() -> None:
    running = replace(TRIAL, running=True)
    assert trial_shown(running, SweepState()) == Shown("RUNNING")
    assert trial_shown(TRIAL, SweepState()) == Shown("SCHEDULED")
    lost, interrupted = AttemptEnded(1, "lost", "gone", 0), AttemptEnded(1, "interrupted", "resume it", 0)
    assert trial_shown(running, SweepState(ended=lost)) == Shown("FAILED", "error", "gone")
    assert trial_shown(TRIAL, SweepState(ended=lost)) == Shown("KILLED", "cancelled", "gone")
    assert trial_shown(running, SweepState(ended=interrupted)) == Shown("KILLED", "cancelled", "resume it")
    assert trial_shown(TRIAL, SweepState(ended=interrupted)) == Shown("KILLED", "cancelled", "resume it")


def test_a_sweep_shows_how_it_ended() -> None:
    assert sweep_shown(SweepState()) == Shown("RUNNING")
    for state, status in {
        "finished": "FINISHED",
        "interrupted": "KILLED",
        "failed": "FAILED",
        "lost": "FAILED",
    }.items():
        assert sweep_shown(SweepState(ended=AttemptEnded(1, state, "m", 0))) == Shown(status, state, "m")


def test_an_idle_gpu_is_told_by_the_run_of_its_trial(make_sweep: MakeSweep, client: MlflowClient) -> None:
    sweep = make_sweep()
    sweep.begin()
    for number in (1, 2):
        sweep.start(sweep.create(number, heads=2**number))
    failed = LegFailed("t001", 1, 0, "error", "killed", sweep.now_ms(), idle_gpu_ms=2_700_000)
    sweep.journal.append(failed)
    Shipper(sweep.folder, client).ship()
    _, children = runs_of(client, sweep)
    told = {name: run.data.tags.get("tuneyard.idle_gpu") for name, run in children.items()}
    assert told == {"t001": "its GPUs were idle for 0.75 GPU-hours", "t002": None}


def test_statuses_follow_the_trials(make_sweep: MakeSweep, client: MlflowClient) -> None:
    sweep = make_sweep()
    shipper = Shipper(sweep.folder, client)
    sweep.begin()
    for number in (1, 2, 3):
        sweep.create(number, heads=2**number)
    sweep.start("t001")
    sweep.start("t002")

    def shown() -> dict[str, tuple[str, str | None, str | None]]:
        shipper.ship()
        parent, children = runs_of(client, sweep)
        return {
            name: (run.info.status, run.data.tags.get("tuneyard.outcome"), run.data.tags.get("tuneyard.reason"))
            for name, run in {"sweep": parent, **children}.items()
        }

    assert shown() == {
        "sweep": ("RUNNING", None, None),
        "t001": ("RUNNING", None, None),
        "t002": ("RUNNING", None, None),
        "t003": ("SCHEDULED", None, None),
    }
    sweep.reach("t001", 0, 0.5)
    sweep.fail("t002", 0, "diverged", "loss is nan")
    sweep.end("t002", "diverged", "loss is nan")
    sweep.start("t003")
    assert shown() == {
        "sweep": ("RUNNING", None, None),
        "t001": ("SCHEDULED", None, None),
        "t002": ("FAILED", "diverged", "loss is nan"),
        "t003": ("RUNNING", None, None),
    }
    sweep.close("interrupted", "go on with: resume")
    assert shown() == {
        "sweep": ("KILLED", "interrupted", "go on with: resume"),
        "t001": ("KILLED", "cancelled", "go on with: resume"),
        "t002": ("FAILED", "diverged", "loss is nan"),
        "t003": ("KILLED", "cancelled", "go on with: resume"),
    }
    shipper = Shipper(sweep.folder, client)
    sweep.begin(host="node-2")
    sweep.start("t003")
    assert shown() == {
        "sweep": ("RUNNING", None, None),
        "t001": ("SCHEDULED", None, None),
        "t002": ("FAILED", "diverged", "loss is nan"),
        "t003": ("RUNNING", None, None),
    }
    sweep.reach("t003", 2, 0.9)
    sweep.end("t003", "completed")
    sweep.end("t001", "stopped_early")
    sweep.close("finished")
    assert shown() == {
        "sweep": ("FINISHED", "finished", None),
        "t001": ("FINISHED", "stopped_early", None),
        "t002": ("FAILED", "diverged", "loss is nan"),
        "t003": ("FINISHED", "completed", None),
    }
    _, children = runs_of(client, sweep)
    assert children["t003"].info.end_time == sweep.folder.state().trials["t003"].ended_ms


def test_a_run_tells_where_it_comes_from(make_sweep: MakeSweep, client: MlflowClient) -> None:
    sweep = make_sweep()
    sweep.begin()
    sweep.create(1, heads=8)
    Shipper(sweep.folder, client).ship()
    parent, children = runs_of(client, sweep)
    child = children["t001"]
    header = sweep.folder.header()
    assert child.info.run_name == "t01 heads=8"
    assert child.info.start_time == sweep.folder.state().trials["t001"].created_ms
    params = {
        key: str(value) for key, value in header.spec.at({"model.num_heads": 8}).flat().items() if value is not None
    }
    expected = {**params, "data.source": "builtin/dates", "data.fingerprint": "f" * 64}
    assert child.data.params == expected
    assert child.data.params["model.num_heads"] == "8"
    assert parent.info.run_name == f"{header.spec.name} {sweep.folder.sweep_id}"
    assert parent.info.start_time == sweep.folder.state().started_ms
    assert parent.data.params["model.num_heads"] == "[1, 2, 4, 8]"
    assert parent.data.tags["team"] == "nlp"
    [given] = parent.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("builtin/dates", "f" * 32)
    assert files(client, parent) == {"spec.yaml"}
    assert parent.info.artifact_uri.startswith((header.home / "artifacts").as_uri())


def test_r13_what_differs_by_attempt_stands_in_tags(make_sweep: MakeSweep, client: MlflowClient) -> None:
    sweep = make_sweep()
    sweep.begin(host="node-1")
    sweep.create(1)
    sweep.create(2)
    sweep.start("t001")
    Shipper(sweep.folder, client).ship()
    before = runs_of(client, sweep)[1]["t001"].data.params
    sweep.begin(host="node-2")
    sweep.start("t001")
    sweep.start("t002")
    Shipper(sweep.folder, client).ship()
    parent, children = runs_of(client, sweep)
    assert children["t001"].data.params == before

    def told(run: Run) -> list[tuple[int, str, str]]:
        return [
            (a["attempt"], a["host"], a["versions"]["torch"]) for a in json.loads(run.data.tags["tuneyard.attempts"])
        ]

    both = [(1, "node-1", "2.1"), (2, "node-2", "2.2")]
    assert told(parent) == told(children["t001"]) == both
    assert told(children["t002"]) == both[1:]


def test_r2_shipping_again_gives_one_run_and_one_value_a_step(make_sweep: MakeSweep, client: MlflowClient) -> None:
    sweep = make_sweep()
    sweep.begin()
    sweep.create(1)
    sweep.start("t001")
    odd = {"val/loss": math.nan, "a": math.inf, "b": -math.inf, "zero": 0.0, "less": -2.5}
    sweep.measure("t001", 1, odd)
    shipper = Shipper(sweep.folder, client)
    shipper.ship()
    sweep.measure("t001", 2, {"val/loss": 0.5})
    shipper.ship()
    shipper.ship()
    Shipper(sweep.folder, client).ship()  # as after the driver's death
    sweep.begin()
    sweep.start("t001")
    sweep.measure("t001", 2, {"val/loss": 0.7})  # the second attempt goes over the same steps
    sweep.measure("t001", 3, {"val/loss": 0.3})
    Shipper(sweep.folder, client).ship()
    _, children = runs_of(client, sweep)
    run = children["t001"]
    steps, values, times = zip(*series(client, run, "val/loss"), strict=True)
    assert steps == (1, 2, 3)
    assert math.isnan(values[0])
    assert values[1:] == (0.5, 0.3)
    assert len(set(times)) == 3
    assert all(time_ms > 1_700_000_000_000 for time_ms in times)
    assert {key: len(series(client, run, key)) for key in odd} == {**dict.fromkeys(odd, 1), "val/loss": 3}
    assert [series(client, run, key)[0][1] for key in ("zero", "less")] == [0.0, -2.5]
    assert series(client, run, "a")[0][1] > 1e308
    assert series(client, run, "b")[0][1] < -1e308


def test_r12_names_are_kept_apart(make_sweep: MakeSweep, client: MlflowClient) -> None:
    sweep = make_sweep()
    sweep.begin()
    sweep.create(1)
    names = ["a:b", "a/b", "a b", "a.b", "a-b", "a_b", "x" * 250]
    for number, name in enumerate(names):
        sweep.measure("t001", 1, {name: float(number)})
    for refused in ("val/MAP@10", "loss[d=1]", "", "x" * 300, "a//b", "../a", "."):
        with pytest.raises(ValueError, match="metric name"):
            sweep.measure("t001", 1, {refused: 1.0})
        with pytest.raises(MlflowException):
            client.log_metric("no-run", refused, 1.0)
    Shipper(sweep.folder, client).ship()
    assert runs_of(client, sweep)[1]["t001"].data.metrics == {name: float(n) for n, name in enumerate(names)}


def test_r12_a_value_too_long_for_a_param_is_marked_and_whole_in_the_spec(
    make_sweep: MakeSweep, client: MlflowClient
) -> None:
    rules = [f"num_heads {' ' * 950}> -{number}" for number in range(1, 9)]
    long = f"constraints={json.dumps(rules)}"
    tag = f"tags={{{'k' * 250}: '{'v' * 7000}'}}"
    sweep = make_sweep(long, tag)
    sweep.begin()
    Shipper(sweep.folder, client).ship()
    parent, _ = runs_of(client, sweep)
    found = parent.data.params["constraints"]
    assert len(found) <= 6000
    assert found.endswith("... (whole in spec.yaml of the sweep)")
    assert parent.data.tags["k" * 250] == "v" * 7000


def test_more_values_and_params_than_one_request_takes(make_sweep: MakeSweep, client: MlflowClient) -> None:
    sweep = make_sweep()
    sweep.begin()
    sweep.create(1)
    sweep.measure("t001", 1, {f"m{number}": float(number) for number in range(2_100)})
    shipper = Shipper(sweep.folder, client)
    shipper.ship()
    run_id = shipper.child("t001")
    assert shipper._runs is not None
    shipper._runs._log_params(run_id, {f"p{number}": number for number in range(250)} | {"absent": None})
    run = client.get_run(run_id)
    assert {f"m{n}": float(n) for n in range(2_100)} == run.data.metrics
    assert {f"p{n}": str(n) for n in range(250)}.items() <= run.data.params.items()
    assert "absent" not in run.data.params


def test_files_of_a_trial_arrive_when_it_ends(make_sweep: MakeSweep, client: MlflowClient) -> None:
    sweep = make_sweep()
    sweep.begin()
    for number in (1, 2):
        sweep.create(number)
        sweep.start(f"t00{number}")
        sweep.reach(f"t00{number}", 0, 0.5)
    first = sweep.folder.attempt("t001", 1)
    (first / "trial.log").write_text("log of attempt 1")
    (first / "samples.tsv").write_text("old samples")
    (first / "stack.txt").touch()
    second = sweep.folder.attempt("t002", 1)
    (second / "stack-7.txt").write_text("Thread 0x1")
    shipper = Shipper(sweep.folder, client)
    shipper.ship()
    assert files(client, runs_of(client, sweep)[1]["t001"]) == set()
    sweep.begin()
    sweep.start("t001", 2)
    sweep.reach("t001", 2, 0.9, step=20)
    (sweep.folder.attempt("t001", 2) / "samples.tsv").write_text("new samples")
    sweep.end("t001", "completed")
    sweep.end("t002", "stalled", "no step")
    Shipper(sweep.folder, client).ship()
    shipper.ship()
    _, children = runs_of(client, sweep)
    assert files(client, children["t001"]) == {
        "a1/trial.log",
        "samples.tsv",
        "checkpoint/manifest.json",
        "checkpoint/state.ckpt",
    }
    assert files(client, children["t002"]) == {"a1/stack-7.txt"}
    local = Path(client.download_artifacts(children["t001"].info.run_id, "checkpoint/manifest.json"))
    assert json.loads(local.read_text())["facts"]["step"] == 20
    assert Path(client.download_artifacts(children["t001"].info.run_id, "samples.tsv")).read_text() == "new samples"


def test_the_test_score_arrives_with_its_evidence_once(make_sweep: MakeSweep, client: MlflowClient) -> None:
    sweep = make_sweep()
    sweep.begin()
    sweep.create(1)
    sweep.start("t001", 2)
    sweep.reach("t001", 2, 0.9, step=20)
    sweep.end("t001", "completed")
    shipper = Shipper(sweep.folder, client)
    shipper.ship()
    held = evidence.write(
        sweep.folder.evidence("t001"),
        {"id": [1]},
        metrics={"test/bleu": 12.5, "test/exact_match": 0.0},
        cut_off=0,
        test_fingerprint="f",
        metric_signature={},
        decoding={},
    )
    sweep.journal.append(WinnerScored("t001", held.metrics, held.digest, "m", sweep.now_ms()))
    for each in (shipper, shipper, Shipper(sweep.folder, client)):
        each.ship()
    run = runs_of(client, sweep)[1]["t001"]
    [(step, value, time_ms)] = series(client, run, "test/bleu")
    assert (step, value, time_ms) == (20, 12.5, sweep.folder.state().scored.time_ms)
    assert run.data.metrics["test/exact_match"] == 0.0
    assert {"evidence/evidence.json", "evidence/test.parquet"} <= files(client, run)
    assert run.data.tags["tuneyard.evidence"] == held.digest


def test_the_note_tells_the_best_and_plan_against_truth(make_sweep: MakeSweep, client: MlflowClient) -> None:
    sweep = make_sweep()
    sweep.begin()
    shipper = Shipper(sweep.folder, client)

    def told() -> str:
        shipper.ship()
        parent, _ = runs_of(client, sweep)
        return str(parent.data.tags["mlflow.note.content"])

    assert told().startswith("what this is about\n\nTrials: 4 asked for, 0 created")
    for number, score in ((1, 0.0), (2, -1.0)):
        sweep.create(number, heads=number)
        sweep.start(f"t00{number}")
        sweep.reach(f"t00{number}", 0, score)
    assert "2 created (2 waiting)" in told()
    _, children = runs_of(client, sweep)
    link = f"#/experiments/{children['t001'].info.experiment_id}/runs/{children['t001'].info.run_id}"
    assert f"**Best: [t01 heads=1]({link})**, val/exact_match 0, 1,000 tokens" in told()
    assert "Trials: 4 asked for, 2 created (2 waiting)\nTokens trained: 2,000" in told()
    sweep.journal.append(WinnerScored("t001", {"test/bleu": 1.25}, "d", "m", sweep.now_ms()))
    sweep.folder.evidence("t001").mkdir(parents=True)
    sweep.journal.append(WinnerRegistered("t001", "dates", 7, "", sweep.now_ms()))
    assert "On the test split, t001: test/bleu 1.25" in told()
    assert "Registered as [dates version 7](#/models/dates/versions/7)" in told()
    assert f"`tuneyard sweep show {sweep.folder.sweep_id}`" in told()
    assert str(sweep.folder.path) in told()


class Flaky:
    """A client whose server goes away at the 1st, 3rd, 6th, 10th ... call; `done`: after it did what was asked."""

    def __init__(self, client: MlflowClient, *, done: bool) -> None:
        self._client, self._done = client, done
        self.calls = self.failures = 0
        self._next = 1

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        def flaky(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls != self._next:
                return call(*args, **kwargs)
            self.failures += 1
            self._next += self.failures + 1
            if self._done:
                call(*args, **kwargs)
            raise MlflowException("the server is gone")

        return flaky


def test_a_report_is_in_the_folder_even_if_mlflow_never_answers(make_sweep: MakeSweep) -> None:
    sweep = make_sweep()
    sweep.begin()
    sweep.create(1)
    sweep.start("t001")
    sweep.reach("t001", 2, 0.5)
    sweep.end("t001", "completed")
    sweep.close("finished")
    from mlflow import MlflowClient

    shipper = Shipper(sweep.folder, MlflowClient("http://127.0.0.1:9"))
    assert not drain(shipper, timeout_s=0)
    assert "t001" in (sweep.folder.report / "report.html").read_text()


def test_a_report_that_could_not_be_written_is_not_named(
    make_sweep: MakeSweep, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_sweep()
    sweep.begin()
    sweep.close("failed", "nothing came of it")
    monkeypatch.setattr(tracking.report, "write", lambda *args: 1 / 0)
    assert drain(Shipper(sweep.folder, client))
    parent, _ = runs_of(client, sweep)
    assert parent.info.status == "FAILED"
    assert "Report:" not in parent.data.tags["mlflow.note.content"]


@pytest.mark.parametrize("done", [False, True], ids=["request lost", "answer lost"])
def test_r15_a_server_that_comes_and_goes_loses_and_doubles_nothing(
    make_sweep: MakeSweep, client: MlflowClient, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    monkeypatch.setattr(tracking, "METRICS_A_BATCH", 20)
    sweep = make_sweep()
    flaky = Flaky(client, done=done)
    shipper = Shipper(sweep.folder, flaky)  # type: ignore[arg-type]

    def until_shipped() -> None:
        for _ in range(60):
            try:
                return shipper.ship()
            except MlflowException:
                continue
        pytest.fail("never shipped")

    sweep.begin()
    sweep.create(1)
    sweep.start("t001")
    sweep.measure("t001", 1, {f"m{number}": 1.0 for number in range(50)})
    until_shipped()
    sweep.close("interrupted", "why")
    until_shipped()
    sweep.begin()
    sweep.start("t001")
    sweep.create(2, heads=4)
    sweep.start("t002")
    sweep.measure("t002", 1, {"val/loss": 2.0})
    until_shipped()
    for trial in ("t001", "t002"):
        sweep.reach(trial, 2, 0.5)
        sweep.end(trial, "completed")
    sweep.close("finished")
    until_shipped()
    assert flaky.failures >= 8
    parent, children = runs_of(client, sweep)
    assert set(children) == {"t001", "t002"}
    assert children["t001"].data.metrics == {f"m{number}": 1.0 for number in range(50)}
    assert len(series(client, children["t001"], "m7")) == len(series(client, children["t002"], "val/loss")) == 1
    assert {run.info.status for run in (parent, *children.values())} == {"FINISHED"}
    assert "tuneyard.reason" not in children["t001"].data.tags
    for run in children.values():
        assert run.data.params["model.num_heads"] in "24"
        assert run.data.params["data.fingerprint"] == "f" * 64
        assert "checkpoint/state.ckpt" in files(client, run)
    assert parent.data.params["search.trials"] == "4"
    assert len(parent.inputs.dataset_inputs) == 1
    shown = files(client, parent)
    assert {file for file in shown if not file.startswith("report/")} == {"spec.yaml"}
    assert "report/report.html" in shown


def test_a_server_that_is_not_there_is_told_within_seconds(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(UnreachableError, match=f"MLflow at {NOBODY} does not answer .*--mlflow URI"):
        tracking.connect(NOBODY)
    assert time.monotonic() - begun < 15


def test_r15_what_was_not_taken_is_kept_and_sent_by_the_next_look(
    make_sweep: MakeSweep, client: MlflowClient, mlflow_uri: str
) -> None:
    sweep = make_sweep(uri=NOBODY)
    sweep.begin()
    sweep.create(1)
    sweep.start("t001")
    sweep.measure("t001", 1, {"val/loss": 2.0})
    for _ in range(2):
        with pytest.raises(UnreachableError, match=NOBODY):
            reconcile(sweep.folder, 9)
    assert [type(event) for event in tracking.Tail(sweep.folder.journal).events()].count(AttemptEnded) == 1
    sweep.move_to(mlflow_uri)
    assert reconcile(sweep.folder, 10)
    _, children = runs_of(client, sweep)
    assert [value for _, value, _ in series(client, children["t001"], "val/loss")] == [2.0]
    assert not reconcile(sweep.folder, 11)


def test_drain_marks_the_folder_when_everything_has_arrived(make_sweep: MakeSweep, client: MlflowClient) -> None:
    sweep = make_sweep()
    sweep.begin()
    assert tracking.unfinished_business(sweep.folder)

    class Gone:
        def __getattr__(self, name: str) -> Any:
            raise MlflowException("gone")

    assert not drain(Shipper(sweep.folder, Gone()), timeout_s=0)  # type: ignore[arg-type]
    assert tracking.unfinished_business(sweep.folder)
    assert drain(Shipper(sweep.folder, client), timeout_s=0)
    assert not tracking.unfinished_business(sweep.folder)
    sweep.begin()
    assert tracking.unfinished_business(sweep.folder)


def test_r15_the_reason_of_an_outage_is_what_the_database_said(make_sweep: MakeSweep) -> None:
    class Full:
        def __getattr__(self, name: str) -> Any:
            raise MlflowException(f"(raised as a result of Query-invoked autoflush)\n(sqlite3) {name}: disk is full\n")

    sweep = make_sweep()
    sweep.begin()
    assert not drain(Shipper(sweep.folder, Full()), timeout_s=0)  # type: ignore[arg-type]
    first = tracking.outage(sweep.folder)
    assert first is not None
    assert first.reason == "(sqlite3) get_experiment_by_name: disk is full"
    assert not drain(Shipper(sweep.folder, Full()), timeout_s=0)  # type: ignore[arg-type]
    assert tracking.outage(sweep.folder) == first, "since the first failure"


def test_the_background_ships_and_outlives_trouble(
    make_sweep: MakeSweep, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "PASS_S", 0.01)
    sweep = make_sweep()
    sweep.begin()
    sweep.create(1)
    flaky = Flaky(client, done=False)

    def arrived() -> bool:
        experiment = client.get_experiment_by_name(sweep.folder.header().spec.name)
        runs = client.search_runs([experiment.experiment_id]) if experiment else []
        return len(runs) == 2 and flaky.failures > 2

    with tracking.in_background(Shipper(sweep.folder, flaky)):  # type: ignore[arg-type]
        until(arrived)
    assert set(runs_of(client, sweep)[1]) == {"t001"}


def test_r1_the_next_look_closes_what_a_dead_driver_left_open(make_sweep: MakeSweep, client: MlflowClient) -> None:
    sweep = make_sweep()
    sweep.begin(host="node-7")
    for number in (1, 2, 3):
        sweep.create(number)
    sweep.start("t001")
    sweep.start("t003", 2)
    sweep.reach("t003", 2, 0.5)
    sweep.end("t003", "completed")
    Shipper(sweep.folder, client).ship()

    alive = Lease.take(sweep.folder.path)
    assert not reconcile(sweep.folder, 5), "somebody drives it"
    assert sweep.folder.state().ended is None
    alive.release()

    assert reconcile(sweep.folder, 1_700_000_009_000)
    ended = sweep.folder.state().ended
    assert (ended.state, ended.time_ms) == ("lost", 1_700_000_009_000)
    reason = f"the driver on node-7 is gone; go on with: tuneyard sweep resume {sweep.folder.sweep_id}"

    def shown() -> dict[str, tuple[str, str | None, str | None]]:
        parent, children = runs_of(client, sweep)
        return {
            name: (run.info.status, run.data.tags.get("tuneyard.outcome"), run.data.tags.get("tuneyard.reason"))
            for name, run in {"sweep": parent, **children}.items()
        }

    closed = {
        "sweep": ("FAILED", "lost", reason),
        "t001": ("FAILED", "error", reason),
        "t002": ("KILLED", "cancelled", reason),
        "t003": ("FINISHED", "completed", None),
    }
    assert shown() == closed
    journal = sweep.folder.journal.read_bytes()
    assert not reconcile(sweep.folder, 1_700_000_010_000)
    assert sweep.folder.journal.read_bytes() == journal
    assert not (sweep.folder.path / "lease").exists()
    assert shown() == closed


def test_r1_a_sweep_that_was_accepted_and_never_driven_gets_no_run(make_sweep: MakeSweep, client: MlflowClient) -> None:
    sweep = make_sweep()
    assert not reconcile(sweep.folder, 5)
    assert client.get_experiment_by_name(sweep.folder.header().spec.name) is None


def test_an_ended_sweep_whose_end_was_not_shipped_is_shipped(make_sweep: MakeSweep, client: MlflowClient) -> None:
    sweep = make_sweep()
    sweep.begin()
    sweep.close("failed", "why")
    assert reconcile(sweep.folder, 5)
    parent, _ = runs_of(client, sweep)
    assert (parent.info.status, parent.data.tags["tuneyard.reason"]) == ("FAILED", "why")
    assert not reconcile(sweep.folder, 6)


def test_a_deleted_experiment_is_restored_when_the_sweep_goes_on(make_sweep: MakeSweep, client: MlflowClient) -> None:
    sweep = make_sweep()
    sweep.begin()
    sweep.create(1)
    sweep.start("t001")
    Shipper(sweep.folder, client).ship()
    _, before = runs_of(client, sweep)
    experiment = client.get_experiment_by_name(sweep.folder.header().spec.name)
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    sweep.begin()
    sweep.start("t001")
    Shipper(sweep.folder, client).ship()
    restored = client.get_experiment(experiment.experiment_id)
    assert restored.lifecycle_stage == "active"
    parent, after = runs_of(client, sweep)
    assert after["t001"].info.run_id == before["t001"].info.run_id
    assert parent.info.status == "RUNNING"


def test_two_sweeps_of_one_name_share_the_experiment_and_nothing_else(
    make_sweep: MakeSweep, client: MlflowClient
) -> None:
    sweeps = [make_sweep(), make_sweep()]
    for sweep in sweeps:
        sweep.begin()
        sweep.create(1)
        Shipper(sweep.folder, client).ship()
    ids = {
        run.info.run_id for sweep in sweeps for run in (runs_of(client, sweep)[0], *runs_of(client, sweep)[1].values())
    }
    assert len(ids) == 4
    assert len({runs_of(client, sweep)[0].info.experiment_id for sweep in sweeps}) == 1


@pytest.mark.parametrize(
    ("uri", "own"),
    [
        ("sqlite:////x/mlflow.db", False),
        ("postgresql://u@h/db", False),
        ("mysql+pymysql://u@h/db", False),
        ("http://host", True),
        ("https://host", True),
        ("databricks", True),
    ],
)
def test_files_lie_in_the_home_unless_a_server_keeps_them(tmp_path: Path, uri: str, own: bool) -> None:
    location = mlflow_runs.artifact_location(uri, tmp_path)
    assert location is None if own else location == (tmp_path / "artifacts").as_uri()
