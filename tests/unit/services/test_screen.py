"""A running sweep on screen: what a hand-made folder shows, on how many lines, and the line of each event."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
from driven_sweep import DrivenSweep
from rich.console import Console, Group

from tuneyard import sweeps
from tuneyard.cli import screen
from tuneyard.cli.screen import line, render, watching
from tuneyard.progress import Watch
from tuneyard_pipelines import reach, tracking
from tuneyard_pipelines.errors import UnreachableError
from tuneyard_pipelines.journal import (
    AttemptEnded,
    AttemptStarted,
    Event,
    LegEnded,
    LegFailed,
    LegStarted,
    TrialCreated,
    TrialEnded,
    WinnerRegistered,
    WinnerScored,
)
from tuneyard_pipelines.spec import short_name

MakeSweep = Callable[..., DrivenSweep]


def shown(watch: Watch, *, height: int = 24, width: int = 80) -> list[str]:
    """The screen's lines; nothing in them was cut or broken by the terminal's width unless it says so."""
    watch.refresh()
    return printed(render(watch, height, width), width=width)


def printed(group: Group, *, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(group)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert all(len(text) <= width for text in lines)
    return [text.rstrip() for text in lines]


def row(lines: list[str], trial: str) -> list[str]:
    return next(text.split() for text in lines if text.startswith(trial))


def lines_while(sweep: DrivenSweep, *steps: Callable[[], object]) -> None:
    """The screen without a terminal, which looks once after each step."""
    left = list(steps)

    def wait(seconds: float) -> bool:
        left.pop(0)()
        return not left

    screen._lines(sweep.folder, SimpleNamespace(wait=wait))  # type: ignore[arg-type]


def test_running_completed_and_failed_trials_are_a_line_each_under_the_best(make_sweep: MakeSweep) -> None:
    sweep = make_sweep()
    for number, heads in ((1, 1), (2, 2), (3, 4), (4, 8)):
        sweep.create(number, heads)
    for number, trial in enumerate(("t001", "t002", "t003")):
        sweep.start(trial)
        sweep.measure(trial, 10, {"train/loss": 1.5 - number, "train/tokens": 990, "val/exact_match": 0.2})
    sweep.reach("t001", 2, 0.75)
    sweep.end("t001", "completed")
    sweep.fail("t002", 0, "diverged", "loss is nan")
    sweep.end("t002", "diverged", "loss is nan")

    lines = shown(Watch(sweep.folder))
    assert lines[0] == "best so far t001 val/exact_match 0.7500   2,980 tokens"
    assert lines[1].split() == ["trial", "heads", "tokens", "train/loss", "val/exact_match", "state"]
    assert row(lines, "t001") == ["t001", "1", "1,000", "1.5000", "0.7500", "completed"]
    assert row(lines, "t002") == ["t002", "2", "990", "0.5000", "0.2000", "diverged"]
    assert row(lines, "t003") == ["t003", "4", "990", "-0.5000", "0.2000", "running"]
    assert row(lines, "t004") == ["t004", "8", "0", "waiting"]
    assert [text[:4] for text in lines[2:]] == ["t001", "t003", "t004", "t002"], "what failed comes last"


def test_a_trial_is_shown_with_the_score_that_it_is_ordered_by(make_sweep: MakeSweep) -> None:
    sweep = make_sweep()
    sweep.create(1)
    sweep.start("t001")
    sweep.measure("t001", 5, {"val/exact_match": 0.8})
    sweep.measure("t001", 10, {"val/exact_match": 0.6})
    assert row(shown(Watch(sweep.folder)), "t001")[-2:] == ["0.6000", "running"], "the newest while there is no score"
    sweep.reach("t001", 0, 0.8)
    assert row(shown(Watch(sweep.folder)), "t001")[-2:] == ["0.8000", "waiting"], "then the best"


def test_what_a_trial_wrote_last_is_read_after_its_end(make_sweep: MakeSweep) -> None:
    sweep = make_sweep()
    sweep.create(1)
    sweep.start("t001")
    sweep.measure("t001", 5, {"train/loss": 2.0, "val/exact_match": 0.1})
    watch = Watch(sweep.folder)
    assert row(shown(watch), "t001")[-3:] == ["2.0000", "0.1000", "running"]
    sweep.measure("t001", 10, {"train/loss": 1.0, "val/exact_match": 0.3})
    sweep.fail("t001", 0, "stalled", "no step for 600 s")
    sweep.end("t001", "stalled", "no step for 600 s")
    assert row(shown(watch), "t001")[-3:] == ["1.0000", "0.3000", "stalled"]


def test_r17_zero_and_negative_scores_are_values(make_sweep: MakeSweep) -> None:
    sweep = make_sweep()
    for number, score in ((1, -0.5), (2, 0.0), (3, None)):
        trial = sweep.create(number)
        sweep.start(trial)
        sweep.reach(trial, 0, score)
    lines = shown(Watch(sweep.folder))
    assert lines[0].startswith("best so far t002 val/exact_match 0.0000")
    assert [text.split()[0] for text in lines[2:]] == ["t002", "t001", "t003"]
    assert row(lines, "t002")[-2:] == ["0.0000", "waiting"]
    assert row(lines, "t001")[-2:] == ["-0.5000", "waiting"]
    assert row(lines, "t003")[-2:] == ["1,000", "waiting"]


@pytest.mark.parametrize(("height", "rows", "hidden"), [(40, 30, 0), (32, 30, 0), (31, 28, 2), (20, 17, 13)])
def test_a_long_table_keeps_the_best_and_what_runs_and_says_how_many_more(
    make_sweep: MakeSweep, height: int, rows: int, hidden: int
) -> None:
    sweep = make_sweep("search.trials=30")
    for number in range(1, 31):
        trial = sweep.create(number)
        sweep.start(trial)
        if number <= 28:
            sweep.reach(trial, 0, number / 100)
    lines = shown(Watch(sweep.folder), height=height)
    assert lines[0].startswith("best so far t028")
    trials = [text[:4] for text in lines if text.startswith("t0")]
    assert trials[:2] == ["t028", "t027"]
    assert trials[-2:] == ["t029", "t030"], "these run"
    assert len(trials) == rows
    assert len(lines) <= height
    assert (lines[-1] == f"... and {hidden} more") == bool(hidden)


def test_many_keys_on_80_columns_are_still_a_line_a_trial(make_sweep: MakeSweep) -> None:
    sweep = make_sweep("training.learning_rate=[0.0012345, 0.002]", "model.positions=[sinusoidal, learned]")
    point = {"model.num_heads": 8, "model.positions": "sinusoidal", "training.learning_rate": 0.0012345}
    for number in (1, 2):
        sweep.journal.append(TrialCreated(f"t00{number}", number, f"t0{number}", point, 1))
        sweep.reach(f"t00{number}", 2, 0.5)
        sweep.end(f"t00{number}", "stopped_early")
    lines = shown(Watch(sweep.folder))
    assert [text[:4] for text in lines[2:]] == ["t001", "t002"]


@pytest.mark.parametrize(("width", "left_out"), [(105, 0), (104, 1), (93, 1), (80, 3), (64, 4), (63, 5), (48, 6)])
def test_on_narrow_screens_columns_are_left_out_and_no_number_is_cut(
    make_sweep: MakeSweep, width: int, left_out: int
) -> None:
    values = {
        "model.num_heads": [8, 4],
        "model.positions": ["sinusoidal", "learned"],
        "model.dropout": [0.1, 0.25],
        "training.learning_rate": [0.0012345, 0.002],
        "training.warmup": [0.1, 0.05],
    }
    sweep = make_sweep(*(f"{key}={value}" for key, value in values.items() if key != "model.num_heads"))
    keys = list(sweep.folder.header().spec.ranges)
    point = {key: values[key][0] for key in keys}
    sweep.journal.append(TrialCreated("t001", 1, "t01", point, 1))
    sweep.start("t001", 2)
    sweep.measure("t001", 10, {"train/loss": 1.25})
    sweep.reach("t001", 2, 0.123456, step=12345)
    sweep.end("t001", "stopped_early")
    gone = ["train/loss", *map(short_name, reversed(keys))][:left_out]
    head = ["trial", *map(short_name, keys), "tokens", "train/loss", "val/exact_match", "state"]
    cells = ["t001", *(sweeps.cell(value) for value in point.values()), "1,234,500", "1.2500", "0.1235"]
    expected = [(name, cell) for name, cell in zip(head, [*cells, "stopped_early"], strict=True) if name not in gone]
    lines = shown(Watch(sweep.folder), width=width)
    assert list(zip(lines[1].split(), lines[2].split(), strict=True)) == expected


def test_what_is_done_after_the_last_leg_is_said(make_sweep: MakeSweep, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep("search.trials=2")

    def train(number: int) -> None:
        sweep.start(sweep.create(number), 2)
        sweep.reach(f"t00{number}", 2, number / 2)
        sweep.end(f"t00{number}", "completed")

    scoring, registering = "scoring t002 on the test split ...", "registering dates ..."
    sending = "sending the rest to MLflow ..."
    said = []
    for step in (
        lambda: train(1),
        lambda: train(2),
        lambda: sweep.journal.append(WinnerScored("t002", {}, "e", "m", 5)),
        lambda: sweep.journal.append(WinnerRegistered("t002", "dates", 3, "", 5)),
        lambda: sweep.close("finished"),
    ):
        step()
        said.append([text for text in (scoring, registering, sending) if text in shown(Watch(sweep.folder))[0]])
        lines_while(sweep, lambda: None)
        told = capsys.readouterr().out.splitlines()
        assert [text for text in told if text in (scoring, registering, sending)] == said[-1]
    assert said == [[], [scoring], [registering], [sending], []]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_r11_the_first_signal_is_answered_whoever_hears_it(
    number: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(screen, "_say", said.append)
    before = signal.signal(number, lambda number, frame: None)
    try:
        with watching("going on ..."):
            signal.raise_signal(signal.SIGCHLD)
            signal.raise_signal(number)
            while not said or not said[-1].startswith("stopping ..."):
                pass
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)
    assert said == ["going on ...", "stopping ... trials save where they are, in 15 s at most; again, and they do not"]
    assert capfd.readouterr() == ("", "")
    assert signal.set_wakeup_fd(-1) == -1


def test_a_reader_that_went_away_does_not_end_the_sweep(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = make_sweep()
    reads, writes = os.pipe()
    os.close(reads)
    closed = os.fdopen(writes, "w")
    monkeypatch.setattr("sys.stdout", closed)
    with watching("going on ...") as announce:
        announce(sweep.folder)
    lines_while(sweep, lambda: None)
    monkeypatch.undo()
    with pytest.raises(BrokenPipeError):
        closed.close()


def test_the_time_left_is_what_this_attempt_has_shown(make_sweep: MakeSweep) -> None:
    sweep, now_s = make_sweep(), [100.0]
    sweep.create(1)
    watch = Watch(sweep.folder, clock_s=lambda: now_s[0])
    watch.refresh()
    assert watch.left_s() is None, "nothing runs yet"
    sweep.start("t001")
    sweep.measure("t001", 1, {"train/tokens": 100})
    watch.refresh()
    now_s[0] = 110.0
    assert watch.left_s() is None, "nothing was trained since"
    sweep.measure("t001", 2, {"train/tokens": 300})
    watch.refresh()
    expected = watch._expected
    assert expected is not None
    assert watch.left_s() == pytest.approx((expected - 300) * 10 / 200)
    left_s = int(watch.left_s() or 0)
    assert shown(watch)[0].endswith(f"about {left_s // 60}:{left_s % 60:02d} left")
    sweep.measure("t001", 3, {"train/tokens": 10**9})
    watch.refresh()
    assert watch.left_s() == 0.0


def test_r15_what_mlflow_does_not_take_is_said_with_its_time(
    make_sweep: MakeSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make_sweep("search.trials=30", uri="http://user:s3cr3t@host")
    for number in range(1, 31):
        sweep.create(number)
    outage = {"since_ms": 1_700_000_000_000, "reason": "no route to http://user:s3cr3t@host"}
    file = sweep.folder.path / tracking.OUTAGE
    file.write_text(json.dumps(outage))
    lines = shown(Watch(sweep.folder), height=20)
    assert lines[1].startswith("MLflow fails since 22:13:20Z; training goes on and nothing is lost")
    assert len(lines) == 20
    said = sweeps.outage_text(sweep.folder, sweep.folder.header())
    assert "(http://user:***@host: no route to http://user:***@host)" in said
    lines_while(sweep, lambda: None, lambda: None, file.unlink, lambda: None)
    out = capsys.readouterr().out
    assert out.count("22:13:20Z") == out.count("MLflow has taken everything again") == 1
    assert len(shown(Watch(sweep.folder), height=20)) == 20
    assert sweeps.outage_text(sweep.folder, sweep.folder.header()) == ""


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (AttemptStarted(2, 5, "node-2", {}, {}), "attempt 2 on node-2"),
        (LegStarted("t001", 1, 0, 5), "t01 heads=2: training to 11% of the budget"),
        (LegEnded("t001", 1, 0, 0.1, 1234, 5, 0.0, {}, 5), "t01 heads=2: val/exact_match 0.0000 at 1,234 tokens"),
        (
            LegEnded("t001", 1, 0, 0.1, 1234, 5, None, {}, 5),
            "t01 heads=2: val/exact_match no finite score at 1,234 tokens",
        ),
        (LegFailed("t001", 1, 0, "diverged", "loss is nan", 5), "t01 heads=2: diverged loss is nan"),
        (TrialEnded("t001", "completed", "", 5), "t01 heads=2: completed"),
        (
            WinnerScored("t001", {"test/loss": 0.5, "test/bleu": 20.0}, "e", "m", 5),
            "t01 heads=2: test/bleu 20.0000, test/loss 0.5000",
        ),
        (
            WinnerRegistered("t001", "dates", 3, "candidate stays at 2", 5),
            "registered dates version 3; candidate stays at 2",
        ),
        (TrialCreated("t002", 2, "t02", {}, 5), None),
        (AttemptEnded(1, "finished", "", 5), None),
    ],
)
def test_an_event_is_one_line_or_none(make_sweep: MakeSweep, event: Event, said: str | None) -> None:
    sweep = make_sweep()
    sweep.create(1)
    header, state = sweep.folder.header(), sweep.folder.state()
    assert line(event, header, state.after(event)) == said


def test_how_much_of_its_devices_a_trial_made_use_of_is_said_at_the_end_of_a_leg(
    make_sweep: MakeSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make_sweep()

    def train() -> None:
        sweep.start(sweep.create(1))
        sweep.measure("t001", 0, {reach.MEASURED_PEAK: 62e12})
        sweep.measure("t001", 10, {reach.MFU: 0.31})
        sweep.reach("t001", 0, 0.5)

    lines_while(sweep, train, lambda: None)
    said = [line for line in capsys.readouterr().out.splitlines() if "tokens" in line]
    reached = "model FLOPs utilisation 31.0% (of 62 TFLOP/s measured here)"
    assert said == [f"t01 heads=2: val/exact_match 0.5000 at 1,000 tokens, {reached}"]


def test_without_a_terminal_every_event_until_the_end_is_printed(
    make_sweep: MakeSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make_sweep()
    with watching("going on ...") as announce:
        announce(sweep.folder)
        sweep.create(1)
        sweep.start("t001")
        sweep.reach("t001", 0, 0.5)
    assert capsys.readouterr().out.splitlines() == [
        "going on ...",
        f"sweep 5eed0001 in {sweep.folder.path}",
        "attempt 1 on node-1",
        "t01 heads=2: training to 11% of the budget",
        "t01 heads=2: val/exact_match 0.5000 at 1,000 tokens",
    ]


def test_what_was_left_out_of_the_data_is_said_at_the_start(
    make_sweep: MakeSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make_sweep()
    path = sweep.folder.path / "sweep.json"
    findings = [
        {"what": "pairs with an empty side", "fate": "left out", "count": 1200, "first": "a.tsv:7"},
        {"what": "blank lines", "fate": "kept", "count": 5, "first": "a.tsv:9"},
    ]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"findings": findings}))
    with watching("going on ...") as announce:
        announce(sweep.folder)
    said = [text for text in capsys.readouterr().out.splitlines() if text.startswith("data")]
    assert said == ["data: 1,200 pairs with an empty side left out, the first at a.tsv:7"]


def test_a_sweep_is_followed_through_its_states_and_through_a_service_that_is_away(
    make_sweep: MakeSweep, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "WATCH_S", 0.0)
    view = sweeps.look(make_sweep().folder)
    waits = replace(view, state="queued", queue={"waits_for": "needs 4 GPUs"})
    going_on = replace(view, state="running", trial_states={"running": 2})
    ended = replace(view, state="cancelled", trial_states={"cancelled": 2})
    looks: Iterator[sweeps.View | None] = iter([waits, waits, None, going_on, None, going_on, ended, ended])
    asked: list[int] = []

    def look(trials: int) -> sweeps.View:
        asked.append(trials)
        if (found := next(looks)) is None:
            raise UnreachableError("the service is away")
        return found

    assert screen.follow(look, 99) == ended
    assert asked == [1] * 7 + [99]
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["queued: needs 4 GPUs", "running   2 running"]
    assert said[2].split(maxsplit=1) == ["sweep", "5eed0001 (dates), cancelled"]


def test_on_a_terminal_what_is_followed_is_as_much_of_the_leaderboard_as_has_room(make_sweep: MakeSweep) -> None:
    made = make_sweep()
    for number in range(1, 9):
        made.start(made.create(number))
    made.reach("t003", 0, 0.5)
    view = sweeps.look(made.folder)
    lines = printed(screen._standing(view, "running   8 running", height=8), width=70)
    assert lines[0] == "5eed0001 (dates)   running   8 running"
    assert [line.split()[0] for line in lines[1:]] == ["trial", "t003", "t001", "t002", "t004", "..."]
    assert lines[-1] == "... and 4 more"
