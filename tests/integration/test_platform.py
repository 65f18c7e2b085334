"""`tuneyard up` with all that it runs: what it says, what is killed and comes back, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from tiny_sweep import tiny
from waiting import until

from tuneyard import doctor, logins, platform, settings
from tuneyard.platform import State
from tuneyard.supervisor import lives, members
from tuneyard_pipelines.tracking import connect

pytestmark = pytest.mark.integration

SPEC = tiny(search__algorithm="random", search__trials=2, register={"name": "dates"}).text()
ANY_PORTS = ("--port", "0", "--mlflow-port", "0", "--ray-port", "0", "--dashboard-port", "0")


@dataclass(frozen=True)
class Here:
    """A home, and the command line in it."""

    home: Path

    @property
    def state(self) -> State:
        found = platform.read(self.home)
        assert found is not None
        return found

    @property
    def said(self) -> str:
        return (self.home.parent / "said").read_text()

    def command(self, *words: str) -> list[str]:
        return [str(Path(sys.executable).with_name("tuneyard")), *words]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "TUNEYARD_HOME": str(self.home)}

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), env=self.environment, cwd=self.home.parent, capture_output=True, text=True
        )

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.call("status", "--json").stdout)
        return told

    def healthy(self) -> bool:
        return bool(self.status()["healthy"])

    def start(self) -> subprocess.Popen[bytes]:
        with (self.home.parent / "said").open("wb") as said:
            process = subprocess.Popen(
                self.command("up", *ANY_PORTS), env=self.environment, cwd=self.home.parent, stdout=said, stderr=said
            )
        until(lambda: "the platform is ready" in self.said or process.poll() is not None, looking_s=0.2)
        assert process.poll() is None, self.said
        return process

    def nothing_is_left(self, of: State) -> None:
        """No process of its parts, nobody at its ports, and the home as it was before."""
        assert [process for part in of.parts if part.pid for process in members(part.pid)] == []
        listening = {one.laddr.port for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
        assert listening.isdisjoint(vars(of.ports).values())
        assert settings.tracking_uri(self.home, None, {}) == f"sqlite:///{self.home}/mlflow.db"
        assert logins.read(self.home) is None
        assert not Path(of.ray_folder).exists()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    """With a platform in the foreground, in a home in which a run was recorded before."""
    here = Here(tmp_path_factory.mktemp("up") / "home")
    settings.make_home(here.home)
    connect(f"sqlite:///{here.home / 'mlflow.db'}").create_experiment("before", (here.home / "artifacts").as_uri())
    here.start()
    try:
        yield here
    finally:
        here.call("down")


def test_all_is_ready_and_said(here: Here) -> None:
    told = here.status()
    assert told["healthy"]
    assert {part["name"]: part["state"] for part in told["parts"]} == dict.fromkeys(
        ("mlflow", "ray", "api", "dispatcher"), "ready"
    )
    assert told["queue"] == {"running": 0, "queued": 0}
    assert all(address in here.said for address in here.state.addresses().values())
    shown = here.call("status")
    assert (shown.returncode, "queue: 0 running, 0 queued" in shown.stdout) == (0, True)
    assert (here.home / "platform" / "state.json").stat().st_mode & 0o777 == 0o600
    assert (here.home / "platform" / "ray_token").stat().st_mode & 0o777 == 0o600


def test_the_command_line_is_let_in(here: Here) -> None:
    login = logins.read(here.home)
    assert login is not None
    headers = {"Authorization": f"Bearer {login.token}"}
    answer = httpx2.get(f"{login.url}/readyz", headers=headers, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text


def test_mlflow_shows_what_was_recorded_before_and_keeps_files_where_sweeps_without_it_do(here: Here) -> None:
    client = connect(settings.tracking_uri(here.home, None, {}))
    assert client.get_experiment_by_name("before") is not None
    made = client.get_experiment(client.create_experiment("since"))
    assert made.artifact_location.startswith(f"{(here.home / 'artifacts').as_uri()}/")


def test_the_doctor_finds_all_parts_well_and_none_beyond_loopback(here: Here) -> None:
    state = here.state
    (listening,) = doctor.listening(state)
    assert listening.verdict == "ok", listening.found
    assert [finding.found for finding in doctor.parts(here.home, state) if "is up" not in finding.found] == []
    (ray,) = doctor.ray(here.home, state, {})
    assert ray.verdict == "ok"


def test_a_second_one_is_refused_with_the_addresses(here: Here) -> None:
    for words in (("up", *ANY_PORTS), ("up", "--detach", *ANY_PORTS)):
        refused = here.call(*words)
        assert refused.returncode == 4
        assert f"is up already (process {here.state.pid})" in refused.stderr
        assert here.state.addresses()["API"] in refused.stderr


def test_parts_that_are_killed_come_back_and_leave_nobody_behind(here: Here) -> None:
    before = {part.name: part for part in here.state.parts}
    for part in before.values():
        assert part.pid is not None
        os.kill(part.pid, signal.SIGKILL)
    until(lambda: all(part.restarts for part in here.state.parts), looking_s=0.2)
    until(here.healthy, looking_s=1)
    for part in here.state.parts:
        old = before[part.name].pid
        assert old is not None
        assert part.pid != old
        assert members(old) == []
        assert f"{part.name} (process {old}) ended with exit code -9; again in 1 s" in here.said


def test_a_submitted_sweep_becomes_a_registered_model(here: Here) -> None:
    (here.home.parent / "sweep.yaml").write_text(SPEC)
    done = here.call("sweep", "submit", "sweep.yaml", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr + here.said
    sweep_id = done.stdout.split()[1]
    shown = json.loads(here.call("sweep", "show", sweep_id[:6], "--json").stdout)
    assert (shown["state"], shown["where"], shown["model"]) == ("succeeded", "queued", "dates version 1")
    assert json.loads(here.call("sweep", "list", "--json").stdout)[0]["trial_states"] == {"completed": 2}
    assert f"{sweep_id}-a1: succeeded" in here.call("sweep", "logs", sweep_id).stdout
    assert "dates" in here.call("model", "list").stdout


def test_what_a_killed_supervisor_leaves_is_ended_by_the_next_and_down_ends_that(here: Here) -> None:
    of = here.state
    psutil.Process(of.pid).kill()
    until(lambda: not platform.is_up(here.home))
    assert here.call("status").returncode == 3
    second = here.call("up", "--detach", *ANY_PORTS)
    assert second.returncode == 0, second.stderr
    assert here.state.ports == of.ports
    assert [process for part in of.parts if part.pid for process in members(part.pid)] == []
    of = here.state
    down = here.call("down")
    assert down.returncode == 0, down.stderr
    here.nothing_is_left(of)
    assert not lives(of.pid, of.started)


def test_ctrl_c_ends_all_and_is_no_failure(tmp_path: Path) -> None:
    here = Here(tmp_path / "home")
    process = here.start()
    of = here.state
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0, here.said
    here.nothing_is_left(of)
    ended = [line.split("ending ")[1] for line in here.said.splitlines() if "ending " in line]
    assert ended == ["dispatcher", "api", "mlflow", "ray"]


@pytest.mark.parametrize("detached", [(), ("--detach",)])
def test_a_part_that_does_not_start_is_told_and_nothing_is_left_running(tmp_path: Path, detached: tuple[str]) -> None:
    here = Here(tmp_path / "home")
    here.home.mkdir()
    (here.home / "mlflow.db").write_text("no database " * 1000)
    failed = here.call("up", *detached, *ANY_PORTS)
    assert failed.returncode == 1
    assert "error: mlflow ended with exit code" in failed.stderr
    assert "mlflow.log" in failed.stderr
    assert here.call("status").returncode == 3
    assert platform.left(here.state) == []
    assert [part.state for part in here.state.parts] == ["ended"] * 4
    assert Path(here.state.ray_folder).exists()  # Ray's own logs may say why
    assert here.call("down").returncode == 0
    assert not Path(here.state.ray_folder).exists()
