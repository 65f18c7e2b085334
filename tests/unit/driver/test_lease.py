"""The lease: one driver a sweep, whoever dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
from waiting import until

from tuneyard_pipelines import lease
from tuneyard_pipelines.errors import RefusedError
from tuneyard_pipelines.lease import DEAD_AFTER_S, Holder, Lease, driven

TAKE_AND_WAIT = """
import sys, time
from pathlib import Path
from tuneyard_pipelines.lease import Lease
Lease.take(Path(sys.argv[1]))
print("taken", flush=True)
time.sleep(60)
"""


@pytest.fixture
def other_driver(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A second process that holds the lease of `tmp_path`."""
    process = subprocess.Popen([sys.executable, "-c", TAKE_AND_WAIT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    yield process
    process.kill()
    process.communicate()


def put(folder: Path, holder: Holder) -> None:
    (folder / "lease").write_text(json.dumps(asdict(holder)))


def elsewhere(silent_s: float) -> Holder:
    return Holder(host="node-9", pid=7, started=1.0, heartbeat=time.time() - silent_s)


def test_a_second_driver_is_refused_and_follows_at_once_when_the_first_is_killed(
    tmp_path: Path, other_driver: subprocess.Popen[str]
) -> None:
    assert driven(tmp_path)
    with pytest.raises(RefusedError, match=f"driven by process {other_driver.pid} on {socket.gethostname()}"):
        Lease.take(tmp_path)
    assert driven(tmp_path)

    other_driver.kill()
    until(lambda: psutil.Process(other_driver.pid).status() == psutil.STATUS_ZOMBIE)  # dead, if not yet waited for
    assert not driven(tmp_path)
    mine = Lease.take(tmp_path)
    assert driven(tmp_path)
    mine.release()


def test_release_lets_the_next_one_in(tmp_path: Path) -> None:
    first = Lease.take(tmp_path)
    with pytest.raises(RefusedError):
        Lease.take(tmp_path)
    first.release()
    assert not driven(tmp_path)
    assert not (tmp_path / "lease").exists()
    Lease.take(tmp_path).release()


def test_another_host_is_known_by_its_heartbeat_alone(tmp_path: Path) -> None:
    put(tmp_path, elsewhere(silent_s=DEAD_AFTER_S - 5))
    assert driven(tmp_path)
    with pytest.raises(RefusedError, match=r"on node-9 \(seen 55 s ago\)"):
        Lease.take(tmp_path)
    put(tmp_path, elsewhere(silent_s=DEAD_AFTER_S + 1))
    assert not driven(tmp_path)
    Lease.take(tmp_path).release()


def test_a_process_that_has_the_number_of_a_dead_driver_is_not_it(tmp_path: Path) -> None:
    started = psutil.Process().create_time()
    put(tmp_path, Holder(socket.gethostname(), os.getpid(), started, time.time()))
    assert driven(tmp_path)
    put(tmp_path, Holder(socket.gethostname(), os.getpid(), started - 100, time.time()))
    assert not driven(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"host": "node-9"}'])
def test_a_damaged_lease_holds_nobody_off(tmp_path: Path, content: str) -> None:
    (tmp_path / "lease").write_text(content)
    assert not driven(tmp_path)
    Lease.take(tmp_path).release()


def test_the_heart_beats_until_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_S", 0.01)
    mine = Lease.take(tmp_path)

    def seen() -> float:
        holder = lease.read(tmp_path / "lease")
        assert holder is not None
        return holder.heartbeat

    first = seen()
    until(lambda: seen() > first)
    assert mine.held()
    mine.release()
    assert not mine.held()
    assert not (tmp_path / "lease").exists()


def test_a_disk_that_is_full_for_a_while_costs_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, failed = lease.write_atomic, []

    def full_at_first(path: Path, text: str) -> None:
        if len(failed) < 3:
            failed.append(path)
            raise OSError(28, "No space left on device")
        write(path, text)

    mine = Lease.take(tmp_path)
    mine.release()
    monkeypatch.setattr(lease, "HEARTBEAT_S", 0.01)
    mine = Lease.take(tmp_path)
    before = lease.read(tmp_path / "lease")
    monkeypatch.setattr(lease, "write_atomic", full_at_first)
    until(lambda: len(failed) == 3 and lease.read(tmp_path / "lease") != before)
    assert mine.held()
    mine.release()


def test_a_lease_that_another_took_is_noticed_and_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_S", 0.01)
    mine = Lease.take(tmp_path)
    theirs = elsewhere(silent_s=0)
    with lease._locked(tmp_path / "lease"):
        put(tmp_path, theirs)
    until(lambda: not mine.held())
    mine.release()
    assert lease.read(tmp_path / "lease") == theirs


def test_what_a_dead_driver_left_half_done_goes_when_the_next_one_begins(
    tmp_path: Path, other_driver: subprocess.Popen[str]
) -> None:
    (tmp_path / "tune-x1" / "a1").mkdir(parents=True)
    (tmp_path / "tune-x1" / "a1" / "state.json").touch()
    for name in (".lease.4711", ".shipped.4711"):
        (tmp_path / name).touch()
    kept = {"trials.jsonl", ".hidden", ".notes.txt", "driver.log.1"}
    for name in kept:
        (tmp_path / name).touch()
    with pytest.raises(RefusedError):
        Lease.take(tmp_path)
    assert (tmp_path / "tune-x1").exists(), "it is at work"
    other_driver.kill()
    other_driver.wait()
    Lease.take(tmp_path).release()
    assert {path.name for path in tmp_path.iterdir()} == kept | {"lease.lock"}


def test_a_dead_drivers_lease_is_removed_and_a_living_ones_kept(
    tmp_path: Path, other_driver: subprocess.Popen[str]
) -> None:
    assert not lease.free(tmp_path)
    assert not lease.free(tmp_path, surely_gone=True), "a process of this host is seen, whatever is said of it"
    other_driver.kill()
    other_driver.wait()
    assert lease.free(tmp_path)
    assert lease.read(tmp_path / "lease") is None
    assert lease.free(tmp_path), "there is none"


def test_of_another_host_the_heartbeat_counts_unless_its_driver_is_known_to_be_gone(tmp_path: Path) -> None:
    put(tmp_path, elsewhere(silent_s=5))
    assert not lease.free(tmp_path)
    assert lease.free(tmp_path, surely_gone=True)
    put(tmp_path, elsewhere(silent_s=DEAD_AFTER_S + 5))
    assert lease.free(tmp_path)


def test_the_process_that_drives_is_told_to_end(tmp_path: Path, other_driver: subprocess.Popen[str]) -> None:
    lease.end(tmp_path)
    assert other_driver.wait() == -signal.SIGTERM
    lease.end(tmp_path)  # nothing is there any more
