"""R1, R11: what SIGINT and SIGTERM do to a driver, with real signals."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import until

from tuneyard_pipelines.cluster import _signals_afterwards
from tuneyard_pipelines.sweep import _Signals

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """SIGUSR1 as Tune's own handler would hear it."""
    seen: list[int] = []
    yield seen
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


class Searching:
    """A searcher whose legs train for so many looks."""

    def __init__(self, looks: int = 0) -> None:
        self.stopping = self.interrupted = False
        self.looks = looks

    def interrupt(self) -> None:
        self.interrupted = True

    def training(self) -> bool:
        self.looks -= 1
        return self.looks >= 0


@BOTH
def test_r1_r11_under_tune_a_signal_ends_its_run_in_order(number: int, heard: list[int]) -> None:
    searcher: Any = Searching()
    with _Signals() as signals:
        signals.searcher = searcher
        signal.signal(signal.SIGUSR1, lambda got, frame: heard.append(got))
        signal.raise_signal(number)
        assert searcher.stopping
        until(lambda: heard)
        assert heard == [signal.SIGUSR1]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_r10_tune_ends_once_the_legs_that_train_have_saved(heard: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuneyard_pipelines.sweep.LOOK_S", 0.001)
    searcher: Any = Searching(looks=3)
    with _Signals() as signals:
        signals.searcher = searcher
        signal.signal(signal.SIGUSR1, lambda got, frame: heard.append(searcher.looks))
        signal.raise_signal(signal.SIGTERM)
        until(lambda: heard)
    assert searcher.interrupted
    assert heard == [-1], "not before the last look saw none"


class Full(Searching):
    """On a disk that does not take the word to its legs."""

    def interrupt(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("searcher", "save_s"), [(Searching(looks=1_000_000), 0.0), (Full(looks=1_000_000), 600.0)], ids=["late", "full"]
)
def test_r10_legs_that_save_too_late_or_hear_nothing_are_not_waited_for(
    searcher: Any, save_s: float, heard: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuneyard_pipelines.sweep.SAVE_S", save_s)
    with _Signals() as signals:
        signals.searcher = searcher
        signal.signal(signal.SIGUSR1, lambda got, frame: heard.append(got))
        signal.raise_signal(signal.SIGTERM)
        until(lambda: heard)


@BOTH
def test_r1_between_legs_a_signal_raises(number: int, heard: list[int]) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), _Signals():
        signal.raise_signal(number)
    assert signal.getsignal(number) == before


def test_before_tune_listens_its_signal_is_harmless() -> None:
    searcher: Any = Searching()
    with _Signals() as signals:
        signals.searcher = searcher
        signal.raise_signal(signal.SIGTERM)
        assert signals._saving is not None
        signals._saving.join()  # its signal was sent
    assert searcher.stopping


@BOTH
def test_while_ray_starts_a_signal_waits_and_is_not_lost(number: int) -> None:
    before = {each: signal.signal(each, signal.default_int_handler) for each in (signal.SIGINT, signal.SIGTERM)}
    reached: list[str] = []
    try:
        with pytest.raises(KeyboardInterrupt):
            hear_while_starting(number, reached)
        assert reached
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_the_exit_of_rays_own_handler_is_an_interruption() -> None:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), _signals_afterwards():
            raise SystemExit(15)
    finally:
        signal.signal(signal.SIGTERM, before)


def hear_while_starting(number: int, reached: list[str]) -> None:
    with _signals_afterwards():
        signal.raise_signal(number)
        reached.append("the end of the start")
