"""Requests in a sweep's folder: whole whoever writes them, followed once however often they are read."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneyard_pipelines import control
from tuneyard_pipelines.control import Add, Extend, Finish, Inbox, Request, Resume, Retry, Stop, Wishes, wishes
from tuneyard_pipelines.journal import SweepFolder

WRITE = """
import sys
from pathlib import Path
from tuneyard_pipelines.control import Add, Extend, ask
from tuneyard_pipelines.journal import SweepFolder
folder, number = SweepFolder(Path(sys.argv[1])), int(sys.argv[2])
sys.stdin.readline()
for turn in range(40):
    ask(folder, [Extend(1, turn), Add({"model.num_heads": number, "model.num_layers": turn}, "x" * 30_000, turn)])
"""

requests: st.SearchStrategy[Request] = st.one_of(
    st.builds(Stop, st.integers(0, 9)),
    st.builds(Extend, st.integers(1, 5), st.integers(0, 9)),
    st.builds(Add, st.dictionaries(st.sampled_from("ab"), st.integers(0, 2)), st.sampled_from(["", "v"]), st.just(1)),
    st.builds(Retry, st.integers(0, 9)),
    st.builds(Resume, st.integers(0, 9)),
)


def folded(asked: list[Request]) -> Wishes:
    found = Wishes()
    for request in asked:
        found = found.after(request)
    return found


def test_what_was_asked_is_read_back(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    assert wishes(folder) == Wishes(), "nothing was asked yet"
    point = {"model.num_heads": 4, "training.learning_rate": 0.002, "model.positions": "learned"}
    control.ask(folder, [Extend(3, 1), Add(point, "deep", 2)])
    control.ask(folder, [Retry(7), Extend(2, 8)])
    assert wishes(folder) == Wishes(more=5, added=(("deep", point),), retried_ms=7, stopped=False, heard=4)
    control.ask(folder, [])
    assert wishes(folder).heard == 4


@pytest.mark.parametrize("after", [Extend(1, 2), Add({}, "", 2), Retry(2), Resume(2)])
def test_anything_that_is_asked_after_a_stop_goes_on(after: Request) -> None:
    assert folded([after, Stop(1)]).stopped
    assert not folded([Stop(1), after]).stopped
    assert folded([Stop(1), after, Stop(3)]).stopped


def test_a_point_that_is_asked_for_twice_is_added_once_for_each_variant() -> None:
    asked = folded([Add({"a": 1}, "v", 1), Add({"a": 1}, "v", 2), Add({"a": 1}, "w", 3)])
    assert (asked.added, asked.heard) == ((("v", {"a": 1}), ("w", {"a": 1})), 3)


@settings(max_examples=60)
@given(asked=st.lists(requests, max_size=8), reads=st.lists(st.integers(0, 2000), max_size=5))
def test_reading_as_it_grows_and_reading_again_give_the_same(
    tmp_path_factory: pytest.TempPathFactory, asked: list[Request], reads: list[int]
) -> None:
    folder, growing = (SweepFolder(tmp_path_factory.mktemp(name)) for name in ("whole", "growing"))
    for request in asked:
        control.ask(folder, [request])
    content = folder.control.read_bytes() if asked else b""
    inbox = Inbox(growing)
    for end in sorted(min(read, len(content)) for read in reads):
        growing.control.write_bytes(content[:end])
        inbox.read()
    growing.control.write_bytes(content)
    assert inbox.read() == inbox.read() == wishes(folder) == folded(asked), "each request is followed once"


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"half a li",
        b"[1, 2]",
        b"null",
        b"\x00\xff\xfe",
        b'{"ask": "dance", "time_ms": 1}',
        b'{"ask": ["stop"], "time_ms": 1}',
        b'{"ask": "stop"}',
        b'{"ask": "extend", "time_ms": 1}',
        b'{"ask": "stop", "time_ms": 1, "loudly": true}',
        b'{"time_ms": 1}',
        b'{"event": "AttemptEnded", "time_ms": 1}',
    ],
)
def test_a_line_that_holds_something_else_is_stepped_over(tmp_path: Path, garbage: bytes) -> None:
    folder = SweepFolder(tmp_path)
    control.ask(folder, [Extend(1, 1)])
    with folder.control.open("ab") as out:
        out.write(garbage + b"\n")
    control.ask(folder, [Extend(2, 2)])
    assert wishes(folder) == Wishes(more=3, heard=2)


def test_a_torn_line_does_not_spoil_the_next(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    inbox = Inbox(folder)
    control.ask(folder, [Extend(1, 1)])
    with folder.control.open("ab") as out:
        out.write(b'{"ask": "sto')
    assert inbox.read().heard == 1
    control.ask(folder, [Extend(2, 2)])
    assert inbox.read() == wishes(folder) == Wishes(more=3, heard=2)


def test_what_several_processes_ask_at_once_survives_whole(tmp_path: Path) -> None:
    """Each request is larger than the buffer of a file, so that it takes several writes."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE, str(tmp_path), str(number)], stdin=subprocess.PIPE)
        for number in range(4)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    assert [writer.wait() for writer in writers] == [0] * 4
    for writer in writers:
        writer.communicate()
    folder = SweepFolder(tmp_path)
    asked = wishes(folder)
    assert (asked.more, asked.heard, len(asked.added)) == (160, 320, 160)
    for number in range(4):
        mine = [point["model.num_layers"] for _, point in asked.added if point["model.num_heads"] == number]
        assert mine == list(range(40)), "those of one process in their order"
    kinds = [json.loads(line)["ask"] for line in folder.control.read_text().splitlines()]
    assert kinds == ["extend", "add"] * 160, "what is asked together stays together"


def test_who_asks_waits_for_who_is_writing(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    asking = threading.Thread(target=control.ask, args=(folder, [Extend(1, 1)]))
    with folder.control.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        asking.start()
        asking.join(0.2)
        assert wishes(folder).heard == 0
    asking.join()
    assert wishes(folder).heard == 1


def test_the_end_of_an_attempt_is_told_to_its_own_trials(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    assert control.finishing(folder, 1) is None
    why = Finish("out_of_budget", "budget.wall_clock (20m) was used up", 5)
    control.finish(folder, 1, why)
    assert control.finishing(folder, 1) == why
    assert control.finishing(folder, 2) is None, "the next attempt begins anew"
    later = Finish("cancelled", "stopped by its user", 6)
    control.finish(folder, 1, later)
    assert control.finishing(folder, 1) == later
    assert [path.name for path in tmp_path.iterdir()] == ["finish.a1"], "in one step, and nothing half written"
