"""What Ray would print over the screen goes to the driver's log, or nowhere."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private import worker

from tuneyard_pipelines import sweep
from tuneyard_pipelines.cluster import _start_ray, quiet


def test_what_the_cluster_says_of_dead_workers_is_logged_and_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)  # put back at the end
    monkeypatch.setattr(ray, "init", lambda **settings: None)
    _start_ray()
    stopped = threading.Event()

    def poll() -> tuple[None, dict[str, Any]]:
        stopped.set()
        return None, {"job_id": None, "error_message": "(raylet) A worker died.\nIts memory ran out."}

    subscriber = SimpleNamespace(subscribe=lambda: None, poll=poll)
    cluster: Any = SimpleNamespace(gcs_error_subscriber=subscriber, current_job_id=ray.JobID.from_int(1))
    worker.listen_error_messages(cluster, stopped)
    assert capsys.readouterr() == ("", "")
    assert "Its memory ran out." in caplog.text


def test_no_traceback_of_a_trial_reaches_the_screen() -> None:
    quiet()
    assert not logging.getLogger("ray.tune.execution.tune_controller").isEnabledFor(logging.ERROR)


def test_after_a_full_disk_the_end_is_not_sent_again_and_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drained: list[object] = []
    monkeypatch.setattr(sweep.tracking, "drain", lambda shipper: drained.append(shipper) or True)
    folder = SimpleNamespace(path=tmp_path)
    journal: Any = SimpleNamespace(state=SimpleNamespace(attempt=1), append=lambda event: None, folder=folder)

    def close(cause: BaseException | None) -> None:
        try:
            if cause is not None:
                raise cause
        finally:
            sweep._close(journal, SimpleNamespace(), sweep._End("failed", "why"))  # type: ignore[arg-type]

    close(None)
    with pytest.raises(RuntimeError):
        close(RuntimeError())
    assert len(drained) == 2
    with pytest.raises(OSError, match="full"):
        close(OSError(28, "full"))
    monkeypatch.setattr(sweep.shutil, "disk_usage", lambda path: SimpleNamespace(free=8192))
    close(None)
    assert len(drained) == 2


def test_a_log_on_a_full_disk_says_nothing_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    quiet()
    log, handler = logging.getLogger("tuneyard_pipelines.full"), logging.FileHandler("/dev/full")
    log.addHandler(handler)
    log.warning("what the disk does not take")
    log.removeHandler(handler)
    assert capsys.readouterr().err == ""
