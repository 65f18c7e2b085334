"""Who asked to be told of a sweep is told of every change, from one thread, and cannot harm it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import pytest
from driven_sweep import DrivenSweep
from waiting import PATIENCE_S

from tuneyard import progress
from tuneyard.progress import Progress, Watch, telling

MakeSweep = Callable[..., DrivenSweep]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks again at once."""
    monkeypatch.setattr(progress, "REFRESH_S", 0.001)


class Listener:
    """Keeps what it is told, and by which thread; `wait` until something was."""

    def __init__(self) -> None:
        self.told: list[Progress] = []
        self.threads: set[str] = set()
        self._changed = threading.Condition()

    def __call__(self, now: Progress) -> None:
        with self._changed:
            self.told.append(now)
            self.threads.add(threading.current_thread().name)
            self._changed.notify()

    def wait(self, until: Callable[[Progress], bool]) -> Progress:
        with self._changed:
            assert self._changed.wait_for(lambda: any(map(until, self.told)), timeout=PATIENCE_S), self.told
            return next(filter(until, self.told))


def test_every_stage_is_told_in_its_order_by_one_thread(make_sweep: MakeSweep, looks: None) -> None:
    listener, sweep = Listener(), make_sweep("search.trials=1")
    with telling(listener) as teller:
        listener.wait(lambda now: now == Progress("preparing", "preparing"))
        teller.preparing("reading", 0.25)
        assert str(listener.wait(lambda now: now.doing == "reading")) == "reading 25%"
        teller.preparing("learning a vocabulary (bpe)", math.nan)
        assert str(listener.wait(lambda now: now.share is None and now.doing.startswith("learning"))) == (
            "learning a vocabulary (bpe)"
        )
        teller.accepted(sweep.folder)
        sweep.start(sweep.create(1))
        sweep.measure("t001", 10, {"train/tokens": 1500})
        half = listener.wait(lambda now: now.tokens == 1500)
        assert (half.stage, half.sweep_id, half.share, half.trials) == ("training", "5eed0001", 0.5, {"running": 1})
        assert (half.best, half.score) == ("", None)
        sweep.reach("t001", 0, 0.75)
        sweep.end("t001", "completed")
        scoring = listener.wait(lambda now: now.stage == "scoring")
        assert str(scoring) == "scoring t001 on the test split ..., 1 completed, best so far t001 0.7500"
        sweep.close("finished")
        listener.wait(lambda now: now.stage == "ended")
    assert [listener.told[0].stage, listener.told[-1].stage] == ["preparing", "ended"]
    assert listener.told[-1].doing == "finished"
    assert listener.threads == {"progress"}
    assert all(now != after for now, after in zip(listener.told, listener.told[1:], strict=False)), "changes only"


def test_a_sweep_that_goes_on_is_not_told_as_ended_before(
    make_sweep: MakeSweep, looks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, sweep = Listener(), make_sweep()
    sweep.close("interrupted")
    looked, refresh = threading.Semaphore(0), Watch.refresh
    monkeypatch.setattr(Watch, "refresh", lambda watch: (refresh(watch), looked.release())[0])
    with telling(listener) as teller:
        teller.accepted(sweep.folder)
        for _ in range(2):  # the first look was told by the second
            assert looked.acquire(timeout=PATIENCE_S)
        sweep.begin()
        listener.wait(lambda now: now.stage == "training")
        sweep.close("finished")
        listener.wait(lambda now: now.stage == "ended")
    assert [now.stage for now in listener.told] == ["preparing", "training", "ended"]


def test_what_on_progress_raises_is_logged_and_it_is_not_called_again(
    make_sweep: MakeSweep, looks: None, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Progress] = []
    failed = threading.Event()

    def fails(now: Progress) -> None:
        calls.append(now)
        failed.set()
        raise ZeroDivisionError("no widget")

    with telling(fails) as teller:
        assert failed.wait(PATIENCE_S)
        teller.accepted(make_sweep().folder)
    assert len(calls) == 1
    assert "on_progress failed at 'preparing' and is not called again; the sweep goes on" in caplog.text
    assert "ZeroDivisionError: no widget" in caplog.text


def test_the_last_word_comes_after_an_error_too(looks: None) -> None:
    listener = Listener()

    def fails() -> None:
        with telling(listener) as teller:
            teller.preparing("reading", 1.0)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert listener.told[-1].doing == "reading"
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_nobody_who_listens_needs_no_thread() -> None:
    with telling(None):
        assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_the_share_of_a_budget_of_epochs_is_not_known(make_sweep: MakeSweep) -> None:
    sweep = make_sweep("training.max_tokens=null", "training.max_epochs=2")
    sweep.start(sweep.create(1))
    watch = Watch(sweep.folder)
    watch.refresh()
    assert watch.progress().share is None
    assert str(watch.progress()) == "training, 1 running"
