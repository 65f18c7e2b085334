"""`tuneyard sweep` in this process: what it prints of hand-made folders, and what it says before it trains."""

from __future__ import annotations

import contextlib
import errno
import json
import shlex
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
import yaml
from driven_sweep import SPEC, DrivenSweep

from tuneyard import local, settings, sweeps
from tuneyard.cli.sweep import _interruptible
from tuneyard_pipelines import reach, spec, sweep
from tuneyard_pipelines.errors import InputError, TuneyardError
from tuneyard_pipelines.journal import SweepFolder, WinnerRegistered
from tuneyard_pipelines.spec import SweepSpec

Cli = Callable[..., SimpleNamespace]
MakeSweep = Callable[..., DrivenSweep]
SECRET = "postgresql+psycopg2://user:s3cr3t@host:5432/mlflow"


def closed(made: DrivenSweep) -> DrivenSweep:
    """Two trials, one scored zero; interrupted, and MLflow knows everything."""
    for number in (1, 2):
        made.start(made.create(number))
    made.reach("t001", 0, 0.0)
    made.close("interrupted", "stopped by a signal")
    (made.folder.path / "shipped").write_text("1")
    return made


def test_show_and_trials_and_list_print_the_sweep(cli: Cli, make_sweep: MakeSweep) -> None:
    made = closed(make_sweep())
    shown = cli("sweep", "show", "5eed")
    assert [text.split(maxsplit=1) for text in shown.out.splitlines()] == [
        ["sweep", "5eed0001 (dates), interrupted"],
        ["trials", "2 cancelled"],
        ["why", "stopped by a signal"],
        ["best", "t001 val/exact_match 0"],
        ["folder", str(made.folder.path)],
        ["runs", "experiment 'dates' in http://127.0.0.1:9"],
        ["next", "tuneyard sweep resume 5eed0001"],
    ]
    trials = cli("sweep", "trials", "5eed").out
    assert [text.split() for text in trials.splitlines()] == [
        ["trial", "heads", "tokens", "val/exact_match", "state"],
        ["t001", "2", "1,000", "0.0000", "cancelled"],
        ["t002", "2", "0", "cancelled"],
    ]
    assert [row["score"] for row in json.loads(cli("sweep", "trials", "5eed", "--json").out)] == [0.0, None]
    assert json.loads(cli("sweep", "show", "5eed", "--json").out)["state"] == "interrupted"


def test_the_logs_of_a_sweep_and_of_its_trials_are_printed(cli: Cli, make_sweep: MakeSweep) -> None:
    made = closed(make_sweep())
    (made.folder.path / "driver.log").write_text("driven\n")
    made.folder.attempt("t001", 1).mkdir(parents=True, exist_ok=True)
    (made.folder.attempt("t001", 1) / "trial.log").write_text("gelernt: größer\n")
    assert cli("sweep", "logs", "5eed").out == "driven\n"
    assert cli("sweep", "logs", "5eed", "--trial", "1", "--follow").out == "gelernt: größer\n"
    for unknown in ("t009", "x", "-1", "../t001"):
        done = cli("sweep", "logs", "5eed", f"--trial={unknown}")
        assert (done.code, done.out) == (2, "")
        assert f"trial {unknown!r}: sweep 5eed0001 has trained none of that name" in done.err


def test_two_sweeps_are_compared_side_by_side(cli: Cli, make_sweep: MakeSweep) -> None:
    closed(make_sweep())
    longer = make_sweep("training.max_tokens=9000", "model.num_heads=[2,4]", "tags.team=other", sweep_id="aaaa0002")
    longer.start(longer.create(1, heads=4))
    longer.reach("t001", 0, 0.5)
    longer.close("finished")
    (longer.folder.path / "shipped").write_text("1")
    done = cli("sweep", "compare", "5eed", "aaaa")
    assert done.code == 0, done.err
    results, spec = (block.splitlines() for block in done.out.split("\n\n"))
    rows = [line.split("  ") for line in results]
    told = {row[0]: [cell.strip() for cell in row[1:] if cell.strip()] for row in rows if row[0]}
    assert told["sweep"] == ["5eed0001 (dates)", "aaaa0002 (dates)"]
    assert told["state"] == ["interrupted", "finished"]
    assert told["val/exact_match"] == ["0", "0.5"]
    assert "model.num_heads" in done.out
    assert [line.split(maxsplit=1) for line in spec] == [
        ["model.num_heads", "[1, 2, 4, 8]  [2, 4]"],
        ["training.max_tokens", "3000          9000"],
    ]
    assert cli("sweep", "compare", "5eed", "5eed").out.endswith("their specs are the same\n")
    found = json.loads(cli("sweep", "compare", "5eed", "aaaa", "--json").out)
    assert found["warning"] == ""
    assert {"label": "training.max_tokens", "one": "3000", "other": "9000"} in found["spec"]


@pytest.mark.parametrize(
    ("override", "warning"),
    [
        ("seed=4", "their data or its split differ: their scores are of different texts"),
        ("data.examples=300", "their data or its split differ: their scores are of different texts"),
        ("search.metric=val/loss", "one was chosen by val/exact_match, the other by val/loss"),
        ("model.d_model=32", ""),
    ],
)
def test_a_comparison_says_where_scores_say_little(
    cli: Cli, make_sweep: MakeSweep, override: str, warning: str
) -> None:
    closed(make_sweep())
    closed(make_sweep(override, sweep_id="aaaa0002"))
    assert json.loads(cli("sweep", "compare", "5eed", "aaaa", "--json").out)["warning"] == warning


@pytest.mark.parametrize(("state", "code"), [("finished", 0), ("interrupted", 1), ("failed", 1)])
def test_a_sweep_that_has_ended_is_watched_no_longer(cli: Cli, make_sweep: MakeSweep, state: str, code: int) -> None:
    made = make_sweep()
    made.start(made.create(1))
    made.close(state, "why it did")
    (made.folder.path / "shipped").write_text("1")
    done = cli("sweep", "watch", "5eed")
    assert done.code == code
    assert f"5eed0001 (dates), {state}" in done.out
    assert ("why it did" in done.err) == bool(code)


def test_the_list_warns_of_a_damaged_folder_and_shows_the_others(cli: Cli, make_sweep: MakeSweep) -> None:
    closed(make_sweep())
    damaged = make_sweep(sweep_id="bad00001").folder
    (damaged.path / "sweep.json").write_text("{")
    listed = cli("sweep", "list")
    assert listed.code == 0
    assert [text.split()[0] for text in listed.out.splitlines()] == ["id", "5eed0001"]
    assert listed.err.startswith(f"warning: {damaged.path}: sweep.json cannot be read")
    assert [view["sweep_id"] for view in json.loads(cli("sweep", "list", "--json").out)] == ["5eed0001"]
    assert cli("sweep", "show", "bad").code == 2


def test_a_sweep_in_a_home_that_cannot_be_written_is_shown_with_a_warning(cli: Cli, make_sweep: MakeSweep) -> None:
    made = make_sweep()
    (made.folder.path / "lease.lock").mkdir()  # as root, a folder of mode 0500 can be written
    shown = cli("sweep", "show", "5eed")
    assert shown.code == 0
    assert "5eed0001 (dates), lost" in shown.out
    assert "warning" in shown.out
    assert "lease.lock" in shown.out


def test_the_last_screen_tells_what_each_trial_made_of_its_devices(make_sweep: MakeSweep) -> None:
    made = make_sweep()
    made.begin()
    trials = [made.create(number, heads=number) for number in (1, 2, 4)]
    for trial, shares in zip(trials, ((0.2, 0.31), (0.05,), ()), strict=True):
        made.start(trial)
        for step, share in enumerate(shares, start=1):
            made.measure(trial, step, {reach.MFU: share})
    told = "t001 31.0%, t002 5.0% of what their devices could compute at most"
    assert sweeps.utilisation(made.folder, trials) == told
    assert sweeps.utilisation(made.folder, trials[2:]) == ""


@pytest.mark.parametrize(
    ("uri", "browse"),
    [
        ("sqlite:////home/a b/mlflow.db", "mlflow server --backend-store-uri 'sqlite:////home/a b/mlflow.db'"),
        ("https://mlflow.example.org", None),
        ("databricks", None),
        ("databricks://profile", None),
    ],
)
def test_the_next_steps_can_be_typed_as_they_stand(make_sweep: MakeSweep, uri: str, browse: str | None) -> None:
    made = closed(make_sweep(uri=uri))
    made.journal.append(WinnerRegistered("t001", "our dates", 3, "candidate is 3", 5))
    commands = [value for label, value in sweeps.look(made.folder).facts() if label == "next"]
    assert [command for command in commands if command.startswith("mlflow")] == (
        [f"{browse} --port 5000"] if browse else []
    )
    assert shlex.split(commands[-1]) == ["tuneyard", "model", "predict", "our dates/3", "TEXT", "--mlflow", uri]


def test_the_server_is_named_only_where_a_command_would_ask_another(
    make_sweep: MakeSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, uri in enumerate((f"sqlite:///{tmp_path / '.tuneyard' / 'mlflow.db'}", "http://host:5000", SECRET)):
        made = closed(make_sweep(uri=uri, sweep_id=f"5eed000{number}"))
        made.journal.append(WinnerRegistered("t001", "dates", 3, "candidate is 3", 5))
    plain = "tuneyard model predict dates/3 TEXT"

    def said(number: int) -> str:
        return sweeps.look(sweeps.find(tmp_path / ".tuneyard", f"5eed000{number}")).facts()[-1][1]

    assert said(0) == plain
    assert said(1) == f"{plain} --mlflow http://host:5000"
    assert said(2) == f"{plain} --mlflow 'postgresql+psycopg2://user:***@host:5432/mlflow'"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    assert said(1) == plain
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:///no/server")
    assert said(1) == f"{plain} --mlflow http://host:5000"


@pytest.mark.parametrize(("trials", "offered"), [(2, False), (3, True)])
def test_resume_is_offered_only_where_something_is_left_to_do(
    make_sweep: MakeSweep, trials: int, offered: bool
) -> None:
    made = make_sweep(f"search.trials={trials}")
    for number in (1, 2):
        made.start(made.create(number))
        made.end(f"t00{number}", "diverged", "loss is nan")
    made.close("failed", "why")
    (made.folder.path / "shipped").write_text("1")
    assert (("next", "tuneyard sweep resume 5eed0001") in sweeps.look(made.folder).facts()) == offered


def test_a_password_is_never_shown(cli: Cli, make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_sweep(uri=SECRET)
    made.close("failed", f"MLflow at {SECRET} did not take the model")
    masked = "postgresql+psycopg2://user:***@host:5432/mlflow"
    warned = cli("sweep", "show", "5eed")  # reconciling fails: no such driver or host
    assert "warning" in warned.out
    said = [warned]
    (made.folder.path / "shipped").write_text("1")
    said += [cli("sweep", "show", "5eed", *words) for words in ((), ("--json",))]
    said.append(cli("model", "list", "--mlflow", SECRET))
    said.append(cli("model", "list", "--mlflow", SECRET.replace("postgresql", "oracle")))
    assert [done.code for done in said] == [0, 0, 0, 3, 2]
    for done in said:
        assert "s3cr3t" not in done.out + done.err
        assert masked in (done.out + done.err).replace("oracle", "postgresql")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at http://u:p@ss/w@h:1/x: no", "at http://u:***@h:1/x: no"),
        ("postgresql://:p@h/d", "postgresql://:***@h/d"),
        ("http://token@h:5000 and a:b@c", "http://token@h:5000 and a:b@c"),
        ("http://h:5000, mail a@b", "http://h:5000, mail a@b"),
        ("sqlite:////a:b@c.db", "sqlite:////a:b@c.db"),
    ],
)
def test_a_password_is_masked_in_any_text(text: str, shown: str) -> None:
    assert settings.without_passwords(text) == shown


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[SweepSpec, str]]:
    """No sweep runs; gives spec and text of those that would, up to where they would be accepted."""
    calls: list[tuple[SweepSpec, str]] = []

    def run(accepted: SweepSpec, text: str, *, announce: Callable[[SweepFolder], None], **where: Any) -> SweepFolder:
        calls.append((accepted, text))
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "run", run)
    return calls


def spec_file(folder: Path) -> str:
    (folder / "spec.yaml").write_text(SPEC)
    return "spec.yaml"


@pytest.mark.parametrize("width", [16, 20])
def test_points_that_break_a_rule_are_told_before_training(
    cli: Cli, tmp_path: Path, trained: list[tuple[SweepSpec, str]], width: int
) -> None:
    done = cli("sweep", "run", spec_file(tmp_path), "--set", f"model.d_model={width}")
    told = [text for text in done.out.splitlines() if "points" in text or "break" in text]
    broken = ["points     4, 3 feasible", "           1 break d_model % num_heads == 0"]
    assert told == ([] if width == 16 else broken)
    assert len(trained) == 1


def test_the_spec_is_read_once_and_kept_as_it_was_accepted(
    cli: Cli, tmp_path: Path, trained: list[tuple[SweepSpec, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    opening = Path.open

    def counted(path: Path, *arguments: Any, **options: Any) -> Any:
        opened.append(path.name)
        return opening(path, *arguments, **options)

    file = spec_file(tmp_path)
    monkeypatch.setattr(Path, "open", counted)
    cli("sweep", "run", file, "--set", "model.dropout=0.2")
    assert opened.count("spec.yaml") == 1
    ((accepted, text),) = trained
    assert accepted == spec.parse(SPEC, file="spec.yaml", overrides=["model.dropout=0.2"])
    assert spec.parse(text, file="spec.yaml") == accepted
    assert yaml.safe_load(text)["model"]["num_heads"] == [1, 2, 4, 8]


def test_a_loaded_spec_takes_no_overrides(tmp_path: Path, trained: list[tuple[SweepSpec, str]]) -> None:
    loaded = spec.parse(SPEC, file="spec.yaml")
    with pytest.raises(InputError, match=r"overrides: seed=2: a spec that is loaded already takes none"):
        local.run_sweep(loaded, home=tmp_path, overrides=["seed=2"])
    assert trained == []
    spec_file(tmp_path)
    for given in (tmp_path / "spec.yaml", str(tmp_path / "spec.yaml")):
        with pytest.raises(KeyboardInterrupt):
            local.run_sweep(given, home=tmp_path, overrides=["seed=2"])
    assert [accepted.seed for accepted, _ in trained] == [2, 2]


def test_ctrl_c_says_whether_there_is_a_sweep_to_go_on_with(
    cli: Cli, tmp_path: Path, make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_sweep().folder
    go_on = "interrupted; go on with: tuneyard sweep resume 5eed0001\n"

    def interrupted(announced: Sequence[SweepFolder]) -> Callable[..., None]:
        def stand_in(*given: object, announce: Callable[[SweepFolder], None], **where: object) -> None:
            for accepted in announced:
                announce(accepted)
            raise KeyboardInterrupt

        return stand_in

    file = spec_file(tmp_path)
    for announced, said in (([], "interrupted; nothing was made\n"), ([folder], go_on)):
        monkeypatch.setattr(local, "train", interrupted(announced))
        done = cli("sweep", "run", file)
        assert (done.code, done.err) == (130, said)
    monkeypatch.setattr(local, "go_on", interrupted([]))
    done = cli("sweep", "resume", "5e")
    assert (done.code, done.err) == (130, go_on)
    assert "reading the spec" not in done.out
    assert "preparing data" not in done.out


def test_a_full_disk_names_the_sweep_to_go_on_with(
    cli: Cli, tmp_path: Path, make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_sweep().folder

    def full(*given: object, announce: Callable[[SweepFolder], None], **where: object) -> None:
        announce(folder)
        raise OSError(errno.ENOSPC, "No space left on device", "/home/trials.jsonl")

    monkeypatch.setattr(local, "train", full)
    done = cli("sweep", "run", spec_file(tmp_path))
    said = "error: [Errno 28] No space left on device: '/home/trials.jsonl'; free space, then "
    assert (done.code, done.err) == (1, f"{said}go on with: tuneyard sweep resume 5eed0001\n")

    def trial_full(*given: object, announce: Callable[[SweepFolder], None], **where: object) -> None:
        announce(folder)
        raise TuneyardError("trial t001 could not write; free space")

    monkeypatch.setattr(local, "train", trial_full)
    done = cli("sweep", "run", spec_file(tmp_path))
    go_on = "; go on with: tuneyard sweep resume 5eed0001\n"
    assert (done.code, done.err) == (1, f"error: trial t001 could not write; free space{go_on}")
    monkeypatch.setattr(settings, "find_home", lambda: full(announce=lambda folder: None))
    done = cli("sweep", "list")
    assert (done.code, done.err) == (1, f"{said}try again\n")


def test_a_wrong_option_is_the_users_input(cli: Cli) -> None:
    done = cli("sweep", "show")
    assert done.code == 2
    assert "Missing argument 'ID'" in done.err


def test_r11_ctrl_c_that_an_import_has_swallowed_ends_the_sweep_before_it_is_made(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run() -> None:
        with _interruptible([]) as unless_interrupted:
            unless_interrupted()
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            unless_interrupted()

    with pytest.raises(typer.Exit) as ended:
        run()
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "interrupted; nothing was made\n"
