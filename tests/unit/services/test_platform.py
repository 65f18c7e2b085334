"""The parts of the platform that need no process: ports, what the home is given and gets back, who is told what."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tuneyard import logins, platform, settings
from tuneyard.accounts import Accounts
from tuneyard.database import Database
from tuneyard.platform import State
from tuneyard.ports import Ports, choose, free_ports, is_free, who_listens
from tuneyard.supervisor import Standing, last_lines, left_over, lives, next_pause_s
from tuneyard_pipelines.errors import InputError, RefusedError

Cli = Callable[..., object]
ANY = Ports(0, 0, 0, 0)
SECRETS = {
    "TUNEYARD_DATABASE": "postgresql://u:secret@db/queue",
    "PGPASSWORD": "secret",
    "PGPASSFILE": "/run/secrets/pgpass",
    "MLFLOW_TRACKING_URI": "https://u:secret@team",
    "MLFLOW_TRACKING_PASSWORD": "secret",
    "RAY_AUTH_TOKEN": "secret",
    "TUNEYARD_TOKEN": "secret",
    "RAY_ADDRESS": "10.0.0.1:6379",
    "PATH": "/bin",
}


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def state(**changes: object) -> State:
    """Of a platform whose supervisor is this process."""
    made = State(
        mark="mark",
        host=socket.gethostname(),
        pid=os.getpid(),
        started=0.0,
        state="ready",
        since_ms=0,
        ports=Ports(),
        database="sqlite:///queue.db",
        tracking_uri="http://127.0.0.1:5000",
        ray_folder="/nowhere",
        parts=(Standing("mlflow", "ready", 0, 0, "http://127.0.0.1:5000"),),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def kept(home: Path, found: State) -> None:
    (home / "platform").mkdir(parents=True, exist_ok=True)
    (home / "platform" / "state.json").write_text(json.dumps(asdict(found)))


def test_what_dies_waits_twice_as_long_each_time_until_it_was_well_for_a_minute() -> None:
    pauses_s, pause_s = [], 0.0
    for _ in range(7):
        pause_s = next_pause_s(pause_s, healthy_s=59.0)
        pauses_s.append(pause_s)
    assert pauses_s == [1, 2, 4, 8, 16, 30, 30]
    assert next_pause_s(30.0, healthy_s=60.0) == 1


def test_a_taken_port_is_named_with_who_has_it_and_the_option(taken: int) -> None:
    expected = rf"port {taken} is taken by .+ \(process {os.getpid()}\); .* --mlflow-port \(0 takes any that is free\)"
    with pytest.raises(RefusedError, match=expected):
        choose(replace(ANY, mlflow=taken), None)
    assert who_listens(taken).endswith(f"(process {os.getpid()})")


def test_one_port_for_two_parts_is_refused(taken: int) -> None:
    with pytest.raises(InputError, match=rf"--ray-port {taken}: this is --port, too"):
        choose(Ports(api=taken, mlflow=0, ray=taken, dashboard=0), None)


def test_any_port_is_that_of_the_time_before_where_it_is_free(taken: int) -> None:
    before = Ports(*free_ports(3), dashboard=taken)
    chosen = choose(ANY, before)
    assert replace(chosen, dashboard=0) == replace(before, dashboard=0)
    assert chosen.dashboard not in (0, taken)
    assert len(set(vars(chosen).values())) == 4
    given = choose(replace(ANY, ray=before.api), before)  # what is asked for goes before what was
    assert given.ray == before.api
    assert given.api not in (0, before.api)


def test_a_listener_at_all_addresses_is_in_the_way() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        assert not is_free(server.getsockname()[1])


def test_jobs_inherit_no_secret_and_no_cluster_of_somebody_else() -> None:
    home = Path("/home/ann/.tuneyard")
    inherited = platform.environment_of_servers(home, SECRETS)
    assert "secret" not in " ".join(inherited.values())
    assert "RAY_ADDRESS" not in inherited
    assert inherited["RAY_AUTH_TOKEN_PATH"] == str(home / "platform" / "ray_token")
    services = platform.environment_of_services(home, Ports(), SECRETS)
    assert {name: services[name] for name in platform.DATABASE} == {name: SECRETS[name] for name in platform.DATABASE}
    assert (services["MLFLOW_TRACKING_URI"], services["TUNEYARD_LISTEN"]) == ("http://127.0.0.1:5000", "127.0.0.1:8700")
    assert "MLFLOW_TRACKING_PASSWORD" not in services


@pytest.mark.parametrize("before", [None, "https://team"])
def test_the_home_has_the_platforms_mlflow_as_long_as_it_is_up(tmp_path: Path, before: str | None) -> None:
    (tmp_path / "platform").mkdir()
    if before:
        settings.keep_tracking_uri(tmp_path, before)
    alone = settings.tracking_uri(tmp_path, None, {})
    platform.give_tracking_uri(tmp_path, "http://127.0.0.1:5000")
    assert settings.tracking_uri(tmp_path, None, {}) == "http://127.0.0.1:5000"
    platform.take_tracking_uri(tmp_path, "http://127.0.0.1:5000")
    assert settings.tracking_uri(tmp_path, None, {}) == alone
    assert list((tmp_path / "platform").iterdir()) == []


def test_an_mlflow_that_somebody_named_meanwhile_stays(tmp_path: Path) -> None:
    (tmp_path / "platform").mkdir()
    platform.give_tracking_uri(tmp_path, "http://127.0.0.1:5000")
    settings.keep_tracking_uri(tmp_path, "https://other")
    platform.take_tracking_uri(tmp_path, "http://127.0.0.1:5000")
    assert settings.tracking_uri(tmp_path, None, {}) == "https://other"


def test_commands_are_let_in_as_long_as_it_is_up(tmp_path: Path, database: Database) -> None:
    url, accounts = "http://127.0.0.1:8700", Accounts(database)
    platform.log_in(tmp_path, url, database)
    first = logins.read(tmp_path)
    assert first is not None
    person = accounts.let_in(first.token, 0)
    assert person is not None
    assert person.role == "admin"
    assert (tmp_path / logins.FILE).stat().st_mode & 0o777 == 0o600
    platform.log_in(tmp_path, url, database)  # after one that was killed
    second = logins.read(tmp_path)
    assert second is not None
    assert accounts.let_in(first.token, 0) is None
    assert accounts.let_in(second.token, 0)
    platform.log_out(tmp_path, url, database)
    assert logins.read(tmp_path) is None
    assert accounts.let_in(second.token, 0) is None


def test_another_services_login_stays(tmp_path: Path, database: Database) -> None:
    logins.keep(tmp_path, logins.Login("https://team", "token"))
    platform.log_out(tmp_path, "http://127.0.0.1:8700", database)
    assert logins.read(tmp_path) is not None


def test_the_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    kept(tmp_path, state())
    assert platform.read(tmp_path) == state()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"ports": {"api": 1}, "parts": [{}]}'])
def test_a_state_that_is_none_is_no_obstacle(tmp_path: Path, text: str) -> None:
    (tmp_path / "platform").mkdir()
    (tmp_path / "platform" / "state.json").write_text(text)
    assert platform.read(tmp_path) is None
    assert not platform.is_up(tmp_path)


def test_a_number_that_went_to_another_process_is_nothing_of_ours() -> None:
    assert not lives(os.getpid(), 0.0)
    assert left_over(os.getsid(0), 0.0, "mark") == []


def test_nothing_is_up(cli: Cli, tmp_path: Path) -> None:
    home = tmp_path / ".tuneyard"
    kept(home, state(pid=1, state="ready"))  # what one left that was killed
    done = cli("status")
    assert (done.code, done.out) == (3, f"no platform is up in {home}; start one with: tuneyard up\n")  # type: ignore[attr-defined]
    told = json.loads(cli("status", "--json").out)  # type: ignore[attr-defined]
    assert told == {"up": False, "healthy": False, "home": str(home), "left": []}
    done = cli("down")
    assert (done.code, done.out) == (0, f"nothing is up in {home}\n")  # type: ignore[attr-defined]
    found = platform.read(home)
    assert found is not None
    assert found.state == "ended"


def test_the_end_of_a_log_is_told_whole_lines_first(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    assert last_lines(log) == ""
    log.write_bytes(b"\n".join(b"line %d" % number for number in range(100)) + b"\n\xff\n\n")
    assert last_lines(log, 2) == "  line 99\n  \ufffd"
