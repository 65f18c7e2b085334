"""The commands of the queue in this process: what they say of sweeps that no dispatcher has taken yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from driven_sweep import SPEC, DrivenSweep
from service import serving

from tuneyard import jobs, logins
from tuneyard.jobs import DriverEnd
from tuneyard.queue import Queue
from tuneyard.store import Store

Cli = Callable[..., SimpleNamespace]
MakeSweep = Callable[..., DrivenSweep]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """The queue behind the service of the home in which the commands run, as ann, an admin."""
    home = tmp_path / ".tuneyard"
    (tmp_path / "spec.yaml").write_text(SPEC)
    with serving(home) as served:
        logins.keep(home, logins.Login(served.url, served.token("ann", "admin")))
        yield Queue(served.service.store, home, "ann")


def submitted(cli: Cli, *options: str) -> str:
    done = cli("sweep", "submit", "spec.yaml", *options)
    assert done.code == 0, done.err
    return str(done.out.split()[1])


def test_a_submitted_sweep_waits_and_is_shown_as_such(cli: Cli, queue: Queue) -> None:
    sweep_id = submitted(cli, "--priority", "70", "--set", "search.trials=2")
    entry = queue.store.get(sweep_id)
    assert (entry.job.state, entry.owner, entry.priority, entry.name) == ("queued", "ann", 70, "dates")
    assert "trials: 2" in queue.folder(sweep_id).submitted.read_text()
    facts = dict(line.split(maxsplit=1) for line in cli("sweep", "show", sweep_id[:4]).out.splitlines())
    assert facts["sweep"] == f"{sweep_id} (dates), queued"
    assert (facts["owner"], facts["priority"]) == ("ann", "70")
    assert facts["history"].endswith("ann: submitted")
    shown = json.loads(cli("sweep", "show", sweep_id, "--json").out)
    assert (shown["state"], shown["where"], shown["leaderboard"]) == ("queued", "queued", [])
    assert cli("sweep", "trials", sweep_id).out == "no trials yet\n"


def test_the_list_says_which_sweeps_are_queued_and_which_are_local(
    cli: Cli, queue: Queue, make_sweep: MakeSweep
) -> None:
    local = make_sweep()
    local.close("interrupted", "stopped by a signal")
    (local.folder.path / "shipped").write_text("1")
    sweep_id = submitted(cli)
    listed = json.loads(cli("sweep", "list", "--json").out)
    assert [(view["sweep_id"], view["where"]) for view in listed] == [(sweep_id, "queued"), ("5eed0001", "local")]


@pytest.mark.parametrize("reachable", [True, False])
def test_a_shell_completes_the_id_of_a_sweep(
    cli: Cli, queue: Queue, make_sweep: MakeSweep, tmp_path: Path, reachable: bool
) -> None:
    make_sweep(sweep_id="5eed0001")
    sweep_id = submitted(cli)
    if not reachable:
        logins.keep(tmp_path / ".tuneyard", logins.Login("http://127.0.0.1:9", "nobody"))

    def completed(*words: str) -> set[str]:
        asked = {"COMP_WORDS": " ".join(("tuneyard", *words)), "COMP_CWORD": str(len(words))}
        command = [Path(sys.executable).with_name("tuneyard")]
        environment = {**os.environ, **asked, "_TUNEYARD_COMPLETE": "complete_bash"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return set(done.stdout.split())

    assert completed("sweep", "show", "") == ({"5eed0001", sweep_id} if reachable else {"5eed0001"})
    assert completed("sweep", "logs", "5e") == {"5eed0001"}
    assert completed("sweep", "sto") == {"stop"}


def test_what_is_queued_is_watched_compared_and_its_trials_heard(cli: Cli, queue: Queue, make_sweep: MakeSweep) -> None:
    make_sweep().close("finished")
    sweep_id = submitted(cli, "--set", "training.max_tokens=9000")
    attempt = queue.folder(sweep_id).attempt("t001", 1)
    attempt.mkdir(parents=True)
    (attempt / "trial.log").write_text("trained\n")
    assert cli("sweep", "logs", sweep_id, "--trial", "t001").out == "trained\n"
    assert "has trained none of that name" in cli("sweep", "logs", sweep_id, "--trial", "2").err
    compared = json.loads(cli("sweep", "compare", "5eed", sweep_id, "--json").out)
    assert {"label": "training.max_tokens", "one": "3000", "other": "9000"} in compared["spec"]
    cli("sweep", "cancel", sweep_id)
    done = cli("sweep", "watch", sweep_id)
    assert done.code == 1
    assert f"sweep {sweep_id} cancelled" in done.err


def test_the_queue_is_shown_in_its_order(cli: Cli, queue: Queue) -> None:
    assert "nothing waits" in cli("queue", "show").out
    low, high = submitted(cli, "--priority", "1"), submitted(cli, "--priority", "99")
    rows = cli("queue", "show").out.splitlines()
    assert [row.split()[0] for row in rows] == ["id", high, low]
    assert cli("sweep", "set", low, "--priority", "100").code == 0
    waiting = json.loads(cli("queue", "show", "--json").out)["waiting"]
    assert [(one["sweep_id"], one["priority"]) for one in waiting] == [(low, 100), (high, 99)]


def test_a_waiting_sweep_is_cancelled_and_may_be_resumed(cli: Cli, queue: Queue) -> None:
    sweep_id = submitted(cli)
    for _ in range(2):
        assert "is cancelled (user_cancel)" in cli("sweep", "cancel", sweep_id).out
    assert "is queued" in cli("sweep", "resume", sweep_id).out


def test_one_that_has_not_begun_takes_no_more_points(cli: Cli, queue: Queue) -> None:
    sweep_id = submitted(cli)
    done = cli("sweep", "extend", sweep_id, "--trials", "2")
    assert (done.code, done.out) == (2, "")
    assert "has not begun" in done.err


def test_pausing_needs_a_reason_and_is_told(cli: Cli, queue: Queue) -> None:
    assert cli("queue", "pause").code == 2
    cli("queue", "pause", "--reason", "new disks")
    assert "by ann: new disks" in cli("queue", "show").out
    assert cli("queue", "resume").code == 0
    assert queue.store.paused() is None


def test_limits_are_set_for_one_owner_or_for_all(cli: Cli, queue: Queue) -> None:
    cli("queue", "limit", "*", "--sweeps", "2")
    said = cli("queue", "limit", "bob", "--gpus", "4", "--gpu-hours", "10.5")
    assert [row.split() for row in said.out.splitlines()] == [
        ["owner", "sweeps", "GPUs", "GPU-hours"],
        ["*", "2", "any", "any"],
        ["bob", "any", "4", "10.5"],
    ]
    assert cli("queue", "limit", "bob").out == said.out, "to look changes nothing"
    assert "bob" not in cli("queue", "limit", "bob", "--none").out
    assert cli("queue", "limit", "bob", "--none", "--gpus", "1").code == 2


def test_an_id_that_begins_like_that_of_a_local_sweep_is_not_guessed(
    cli: Cli, queue: Queue, make_sweep: MakeSweep
) -> None:
    sweep_id = submitted(cli)
    make_sweep(sweep_id=f"{sweep_id[:3]}zzzzz").close("interrupted")
    done = cli("sweep", "cancel", sweep_id[:3])
    assert done.code == 2
    assert f"{sweep_id[:3]}zzzzz" in done.err
    assert queue.store.get(sweep_id).job.state == "queued"


def test_a_damaged_sweep_hides_no_other_of_the_queue_and_says_what_is_wrong(cli: Cli, queue: Queue) -> None:
    bad, good = submitted(cli), submitted(cli)
    (queue.folder(bad).path / "sweep.json").write_text("{")
    assert [sweep["sweep_id"] for sweep in json.loads(cli("sweep", "list", "--json").out)] == [good, bad]
    facts = dict(line.split(maxsplit=1) for line in cli("sweep", "show", bad).out.splitlines())
    assert "sweep.json" in facts["warning"]


@pytest.mark.parametrize(
    "words",
    [
        ("sweep", "cancel", "nothere"),
        ("sweep", "set", "nothere", "--priority", "3"),
        ("sweep", "submit", "spec.yaml", "--priority", "101"),
        ("sweep", "submit", "missing.yaml"),
        ("sweep", "submit", "spec.yaml", "--set", "model.d_model=0"),
        ("sweep", "run"),
        ("sweep", "run", "--sweep-id", "nothere"),
        ("queue", "limit", "bob", "--sweeps", "-1"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(cli: Cli, queue: Queue, words: tuple[str, ...]) -> None:
    done = cli(*words)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert queue.store.entries().entries == ()
    assert list((queue.home / "sweeps").glob("*")) == []


def test_without_a_service_it_is_said_how_to_have_one(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    done = cli("sweep", "submit", "spec.yaml")
    assert done.code == 3
    assert "tuneyard up" in done.err
    assert "tuneyard login URL" in done.err
    assert not (tmp_path / ".tuneyard").exists()


def test_while_the_service_is_away_local_sweeps_are_shown_and_no_others(
    cli: Cli, tmp_path: Path, make_sweep: MakeSweep
) -> None:
    make_sweep().close("interrupted")
    logins.keep(tmp_path / ".tuneyard", logins.Login("http://127.0.0.1:9", "ty_x"))
    listed = cli("sweep", "list", "--json")
    assert [sweep["where"] for sweep in json.loads(listed.out)] == ["local"]
    assert "the service at http://127.0.0.1:9 does not answer" in listed.err
    assert cli("sweep", "show", "5eed").code == 0
    assert cli("sweep", "show", "abc").code == 3


@pytest.mark.parametrize(
    "words", [("resume",), ("stop",), ("retry",), ("extend", "--trials", "2"), ("add", "--point", "num_heads=2")]
)
def test_a_sweep_of_the_queue_is_never_driven_behind_its_back(
    cli: Cli, make_sweep: MakeSweep, words: tuple[str, ...]
) -> None:
    sweep = make_sweep()
    sweep.folder.submitted.write_text(SPEC)
    sweep.close("interrupted")
    command, *options = words
    refused = cli("sweep", command, "5eed", *options)
    assert refused.code == 3
    assert "its service is not here; start that with: tuneyard up" in refused.err
    assert not sweep.folder.control.exists()
    assert cli("sweep", "show", "5eed").code == 0


def test_a_login_that_is_revoked_hides_no_local_sweep_and_none_that_lies_here(
    cli: Cli, queue: Queue, tmp_path: Path, make_sweep: MakeSweep
) -> None:
    make_sweep().close("interrupted")
    of_the_queue = make_sweep(sweep_id="abc00001")
    of_the_queue.folder.submitted.write_text(SPEC)
    of_the_queue.close("interrupted")
    login = logins.read(tmp_path / ".tuneyard")
    assert login is not None
    logins.keep(tmp_path / ".tuneyard", logins.Login(login.url, login.token[:-1] + "~"))
    listed = cli("sweep", "list", "--json")
    assert {sweep["sweep_id"]: sweep["where"] for sweep in json.loads(listed.out)} == {
        "5eed0001": "local",
        "abc00001": "queued",
    }
    assert "unknown, expired or revoked" in listed.err
    assert cli("sweep", "show", "5eed").code == 0


def test_whoever_runs_the_service_makes_the_first_token(cli: Cli, tmp_path: Path) -> None:
    made = cli("token", "create", "ann", "--role", "admin", "--here")
    assert made.code == 0, made.err
    with serving(tmp_path / ".tuneyard") as served:
        assert cli("login", served.url, stdin=made.out).out == f"{served.url}: logged in as ann, admin\n"
        assert cli("whoami").out == f"ann, admin, at {served.url}\n"
        assert "good" in cli("token", "list").out
        other = json.loads(cli("token", "create", "bob", "--days", "3", "--json").out)
        assert cli("token", "revoke", other["token_id"]).code == 0
        assert cli("login", served.url, stdin=other["secret"]).code == 4
    assert cli("logout").out == "logged out\n"
    assert cli("whoami").code == 3


@pytest.mark.parametrize("url", ["ftp://x", "http://h:abc", "http://[::1", "http://ann:pw@h", "h:1"])
def test_a_login_at_what_is_no_address_is_refused(cli: Cli, url: str) -> None:
    assert cli("login", url, stdin="ty_x").code == 2
    assert cli("login", "http://127.0.0.1:9", stdin="tökén").code == 2
    assert cli("login", "http://127.0.0.1:9", stdin="").code == 2


def test_waiting_ends_with_the_sweep(cli: Cli, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose driver fails before the first look."""
    take = Store.submit

    def submit(store: Store, *arguments: object) -> object:
        entry = take(store, *arguments)  # type: ignore[arg-type]
        claimed = store.change(entry, jobs.claimed(entry.job, 2), actor="d", now_ms=2, what="claimed")
        end = DriverEnd("failed", "trial_errors", "no trial completed")
        ended = jobs.driver_ended(jobs.started(claimed.job, 3), end, 4, most_losses=1)
        store.change(claimed, ended, actor="d", now_ms=4, what="driver ended")
        return entry

    monkeypatch.setattr(Store, "submit", submit)
    done = cli("sweep", "submit", "spec.yaml", "--wait")
    assert done.code == 1
    assert done.out.splitlines()[-1] == "failed (trial_errors)"
    assert "no trial completed" in done.err


def test_q10_what_a_spec_names_on_this_machine_goes_with_it(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a service elsewhere; that of this home reads it where it lies."""
    (tmp_path / "pairs.csv").write_text("text,target\n" + "a,b\n" * 9)
    read = "source: pairs.csv, columns: {source: text, target: target}, header: true"
    (tmp_path / "spec.yaml").write_text(SPEC.replace("source: builtin/dates, examples: 200", read))
    with serving(tmp_path / "elsewhere" / ".tuneyard") as served:
        monkeypatch.setenv("TUNEYARD_SERVICE", served.url)
        monkeypatch.setenv("TUNEYARD_TOKEN", served.token("ann"))
        done = cli("sweep", "submit", "spec.yaml")
        assert done.code == 0, done.err
        kept = Path(served.client("ann").uploads()[0].path or "")
        assert kept.is_relative_to(tmp_path / "elsewhere")
        assert str(kept) in served.service.store.waiting()[0].spec_text
        assert cli("data", "add", "pairs.csv").out == f"{kept}\n"
        assert str(kept) in cli("data", "list").out
        (tmp_path / "spec.yaml").write_text((tmp_path / "spec.yaml").read_text().replace("pairs.csv", "'*.csv'"))
        refused = cli("sweep", "submit", "spec.yaml")
        assert refused.code == 2
        assert "only single files are sent" in refused.err
