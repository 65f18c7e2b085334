"""`tuneyard sweep stop|extend|add|retry|resume`: what is refused, what is put down, and when this process drives."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from driven_sweep import DrivenSweep

from tuneyard import local, requests, sweeps
from tuneyard_pipelines.control import Add, Extend, Resume, Retry, Stop, ask, wishes
from tuneyard_pipelines.errors import InputError
from tuneyard_pipelines.journal import AttemptEnded, SweepFolder

Cli = Callable[..., SimpleNamespace]
MakeSweep = Callable[..., DrivenSweep]

VARIED = ("model.num_layers=[1, 2]", "training.learning_rate={loguniform: [1e-3, 1e-2]}", "model.d_model=[16, 18]")
POINT = "num_heads=2,num_layers=1,learning_rate=0.002,d_model=18"
VARIANTS = ("variants={a: {model: {num_layers: 2}}, '1': {}}",)
DRIVE = """
import sys, time
from pathlib import Path
from tuneyard_pipelines.lease import Lease
Lease.take(Path(sys.argv[1]))
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def drives(monkeypatch: pytest.MonkeyPatch) -> list[SweepFolder]:
    """The sweeps that a command went on with in this process; nothing trains."""
    called: list[SweepFolder] = []
    monkeypatch.setattr(local, "go_on", lambda folder, **where: called.append(folder))
    return called


@pytest.fixture
def driven(make_sweep: MakeSweep) -> Iterator[SweepFolder]:
    """A sweep that another process drives."""
    folder = make_sweep("search.trials=4").folder
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVE, str(folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    yield folder
    process.communicate("")


def ended(made: DrivenSweep) -> SweepFolder:
    made.close("finished")
    (made.folder.path / "shipped").write_text("1")
    return made.folder


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ("num_heads", "write KEY=VALUE,KEY=VALUE with each key once, as in num_heads=4,num_layers=2"),
        ("", "write KEY=VALUE,KEY=VALUE"),
        ("=4", "write KEY=VALUE,KEY=VALUE"),
        ("num_heads=2,", "write KEY=VALUE,KEY=VALUE"),
        ("num_heads=2,num_heads=4", "with each key once"),
        ("num_heads=[2", "'[2' is no value of num_heads"),
        ("num_heads=2024-13-45", "'2024-13-45' is no value of num_heads"),
        (POINT.replace("num_heads", "heads"), "'heads' is no varied key; a point names d_model, num_heads"),
        (POINT + ",dropout=0.1", "'dropout' is no varied key"),
        ("num_heads=2,num_layers=1,d_model=16", "training.learning_rate is missing; a point names d_model"),
        (POINT.replace("0.002", "0.1"), "learning_rate: found 0.1; allowed: a number from 0.001 to 0.01"),
        (POINT.replace("0.002", "nan"), "learning_rate: found nan; allowed: a number from"),
        (POINT.replace("0.002", ""), "learning_rate: found None; allowed: a number from"),
        (POINT.replace("heads=2", "heads=3"), "num_heads: found 3; allowed: one of 1, 2, 4, 8"),
        (POINT.replace("heads=2", "heads=true"), "num_heads: found True; allowed: one of 1, 2, 4, 8"),
        (POINT.replace("heads=2", "heads=4"), "the point breaks d_model % num_heads == 0"),
        (POINT.replace("layers=1", "layers=2"), "the point breaks num_layers < 2 or d_model < 18"),
        (POINT + ",variant=a", "there are no variants"),
        (POINT + ",variant={}", "there are no variants"),
    ],
)
def test_a_point_that_does_not_belong_is_refused_and_nothing_is_put_down(
    cli: Cli, make_sweep: MakeSweep, drives: list[SweepFolder], point: str, message: str
) -> None:
    folder = make_sweep(*VARIED, "constraints=[num_layers < 2 or d_model < 18]").folder
    done = cli("sweep", "add", "5eed", "--point", point)
    assert done.code == 2
    assert done.err.startswith(f"error: --point {point}: ")
    assert message in done.err
    assert (done.out, drives, folder.control.exists()) == ("", [], False)


@pytest.mark.parametrize("variant", ["", "variant=b,", "variant={},", "variant=,", "variant=01,"])
def test_a_point_names_its_variant(make_sweep: MakeSweep, variant: str) -> None:
    folder = make_sweep(*VARIANTS).folder
    with pytest.raises(InputError, match=r"variant must be one of a, 1"):
        requests.add(folder, [f"{variant}num_heads=2"])
    [added] = requests.add(folder, ["variant=1,num_heads=2"])
    assert isinstance(added, Add)
    assert (added.variant, added.point) == ("1", {"model.num_heads": 2})


def test_a_point_is_read_like_the_spec(make_sweep: MakeSweep) -> None:
    folder = make_sweep(*VARIED).folder
    written = ["learning_rate=2e-3, num_layers=1 ,d_model=18,model.num_heads=2", POINT.replace("0.002", "0.003")]
    first, second = requests.add(folder, written)
    assert isinstance(first, Add)
    assert isinstance(second, Add)
    point = {"model.d_model": 18, "model.num_heads": 2, "model.num_layers": 1, "training.learning_rate": 0.002}
    assert (first.variant, first.point) == ("", point)
    assert second.point == {**point, "training.learning_rate": 0.003}


def test_a_point_that_is_there_is_refused(make_sweep: MakeSweep) -> None:
    made = make_sweep(*VARIANTS)
    made.create(1)  # of no variant: another point than any of theirs
    assert requests.add(made.folder, ["variant=a,num_heads=2"])
    plain = make_sweep(sweep_id="plain")
    plain.create(1, heads=2)
    with pytest.raises(InputError, match=r"--point num_heads=2: the sweep has this point \(t001\); name another"):
        requests.add(plain.folder, ["num_heads=4", "num_heads=2"])
    with pytest.raises(InputError, match=r"--point num_heads=4: the sweep has this point \(named twice\)"):
        requests.add(plain.folder, ["num_heads=4", "num_heads=4"])
    ask(plain.folder, requests.add(plain.folder, ["num_heads=8"]))
    with pytest.raises(InputError, match=r"--point num_heads=8: the sweep has this point \(asked for already\)"):
        requests.add(plain.folder, ["num_heads=8"])


def test_a_point_is_held_to_what_it_costs_with_the_vocabulary_of_the_data(make_sweep: MakeSweep) -> None:
    import json

    folder = make_sweep("constraints=[parameters < 10000]").folder
    assert requests.add(folder, ["num_heads=8"])
    header = json.loads((folder.path / "sweep.json").read_text())
    (folder.path / "sweep.json").write_text(json.dumps({**header, "characters": 600}))
    with pytest.raises(InputError, match="the point breaks parameters < 10000"):
        requests.add(folder, ["num_heads=8"])


def test_more_trials_are_a_multiple_of_the_variants(cli: Cli, make_sweep: MakeSweep, drives: list[SweepFolder]) -> None:
    folder = ended(make_sweep(*VARIANTS))
    done = cli("sweep", "extend", "5eed", "--trials", "3")
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: --trials 3: 2 variants have an equal share each; give a multiple of 2\n"
    assert cli("sweep", "extend", "5eed", "--trials", "0").code == 2
    assert (folder.control.exists(), drives) == (False, [])
    cli("sweep", "extend", "5eed", "--trials", "4")
    assert (wishes(folder).more, drives) == (4, [folder])


def test_a_whole_grid_has_no_more_points(cli: Cli, make_sweep: MakeSweep, drives: list[SweepFolder]) -> None:
    folder = ended(make_sweep("search={algorithm: grid}"))
    done = cli("sweep", "extend", "5eed", "--trials", "3")
    assert done.code == 2
    assert done.err.startswith("error: sweep 5eed0001 tries every point of its grid; ")
    assert (folder.control.exists(), drives) == (False, [])


def test_a_retry_needs_something_that_failed(cli: Cli, make_sweep: MakeSweep, drives: list[SweepFolder]) -> None:
    made = make_sweep()
    for number, outcome in ((1, "completed"), (2, "cancelled"), (3, "out_of_budget"), (4, "stopped_early")):
        made.end(made.create(number), outcome)
    folder = ended(made)
    done = cli("sweep", "retry", "5eed")
    said = "error: sweep 5eed0001: no trial has failed; go on with: tuneyard sweep resume\n"
    assert (done.code, done.err, folder.control.exists(), drives) == (2, said, False, [])
    made.end(made.create(5), "diverged")
    ended(made)
    cli("sweep", "retry", "5eed")
    assert wishes(folder).retried_ms > 0
    assert drives == [folder]


def test_resuming_asks_for_nothing_but_that_a_stopped_sweep_goes_on(
    cli: Cli, make_sweep: MakeSweep, drives: list[SweepFolder]
) -> None:
    folder = ended(make_sweep())
    cli("sweep", "resume", "5eed")
    assert (folder.control.exists(), drives) == (False, [folder])
    ask(folder, [Stop(1)])
    cli("sweep", "resume", "5eed")
    assert (wishes(folder).stopped, wishes(folder).heard, drives) == (False, 2, [folder, folder])


def test_each_request_says_what_it_means(make_sweep: MakeSweep) -> None:
    made = make_sweep()
    made.end(made.create(1), "error")
    [stop] = requests.stop(made.folder)
    assert isinstance(stop, Stop)
    ask(made.folder, [stop])
    kinds = [
        requests.resume(made.folder),
        requests.extend(made.folder, 2),
        requests.retry(made.folder),
    ]
    assert [type(asked) for [asked] in kinds] == [Resume, Extend, Retry]
    assert all(asked.time_ms > 1_700_000_000_000 for [asked] in kinds)


@pytest.mark.parametrize("command", ["stop", "resume", "retry", "extend", "add"])
def test_an_unknown_sweep_is_refused(cli: Cli, make_sweep: MakeSweep, command: str) -> None:
    make_sweep()
    words = {"extend": ("--trials", "2"), "add": ("--point", "num_heads=2")}.get(command, ())
    done = cli("sweep", command, "beef", *words)
    assert done.code == 2
    assert done.err.startswith("error: sweep 'beef': not in ")


@pytest.mark.parametrize(
    ("words", "wished"),
    [
        (("stop",), {"stopped": True, "heard": 1}),
        (("extend", "--trials", "3"), {"more": 3, "heard": 1}),
        (("add", "--point", "num_heads=8"), {"added": (("", {"model.num_heads": 8}),), "heard": 1}),
        (("add", "--point", "num_heads=8", "--point", "num_heads=4"), {"heard": 2}),
    ],
)
def test_a_driver_that_runs_is_told_and_the_command_returns_at_once(
    cli: Cli, driven: SweepFolder, drives: list[SweepFolder], words: tuple[str, ...], wished: dict[str, object]
) -> None:
    done = cli("sweep", words[0], "5eed", *words[1:])
    said = "the driver of sweep 5eed0001 follows; see it with: tuneyard sweep show 5eed0001\n"
    assert (done.code, done.out, done.err) == (0, said, "")
    assert drives == [], "one driver is enough"
    found = wishes(driven)
    assert {key: getattr(found, key) for key in wished} == wished


def test_a_stop_of_a_sweep_that_nobody_drives_comes_to_its_end_here(
    cli: Cli, make_sweep: MakeSweep, drives: list[SweepFolder]
) -> None:
    folder = make_sweep().folder
    cli("sweep", "stop", "5eed")
    assert (wishes(folder).stopped, drives) == (True, [folder])


@pytest.mark.parametrize(
    ("state", "heard", "goes_on"), [("finished", 0, True), ("finished", 1, False), ("failed", 1, True)]
)
def test_what_was_asked_after_the_last_look_is_unfinished_work(
    make_sweep: MakeSweep, state: str, heard: int, goes_on: bool
) -> None:
    made = make_sweep()
    ask(made.folder, [Extend(1, 1)])
    made.journal.append(AttemptEnded(1, state, "", made.now_ms(), heard))
    assert sweeps.unfinished(made.folder) == goes_on


@pytest.mark.parametrize("early", [True, False])
def test_a_sweep_that_ended_early_is_unfinished_work_and_says_how_to_go_on(make_sweep: MakeSweep, early: bool) -> None:
    made = make_sweep()
    made.begin()
    made.create(1)
    made.journal.append(AttemptEnded(1, "finished", "budget.wall_clock (1s) was used up", made.now_ms(), 0, early))
    (made.folder.path / "shipped").write_text("1")
    assert sweeps.unfinished(made.folder) == early
    assert sweeps.look(made.folder).resumable == early


def test_there_is_nothing_to_stop_in_a_sweep_that_has_ended(make_sweep: MakeSweep) -> None:
    folder = ended(make_sweep())
    with pytest.raises(InputError, match=r"has ended; see it with: tuneyard sweep show"):
        requests.stop(folder)


def test_a_stop_whose_driver_was_lost_can_be_asked_for_again(make_sweep: MakeSweep) -> None:
    made = make_sweep()
    made.begin()
    ask(made.folder, requests.stop(made.folder))
    made.close("lost")
    assert [type(asked) for asked in requests.stop(made.folder)] == [Stop]


def test_a_retry_that_no_driver_has_heard_of_can_be_gone_on_with(make_sweep: MakeSweep) -> None:
    made = make_sweep("search.trials=1")
    made.begin()
    made.end(made.create(1), "error", "disk on fire")
    made.close("failed")
    (made.folder.path / "shipped").write_text("1")
    assert not sweeps.look(made.folder).resumable, "every trial failed for good"
    ask(made.folder, requests.retry(made.folder))
    assert sweeps.look(made.folder).resumable


def test_asking_loads_no_ray(tmp_path: Path) -> None:
    heavy = ["torch", "ray", "mlflow", "pytorch_lightning", "tuneyard_modules"]
    script = (
        "import sys\nfrom pathlib import Path\nfrom tuneyard import requests\n"
        "from tuneyard_pipelines.journal import SweepFolder\n"
        "folder = SweepFolder(Path(sys.argv[1]))\nrequests.ask(folder, requests.stop(folder))\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
