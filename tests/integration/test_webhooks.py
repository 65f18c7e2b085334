"""A real dispatcher tells a receiver what became of a sweep, also when it is killed in the midst of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from driven_sweep import SPEC
from receiver import Receiver, receiving
from waiting import until

from tuneyard import settings
from tuneyard.database import Database
from tuneyard.queue import Queue
from tuneyard.store import Lead, Store
from tuneyard.webhooks import Webhooks
from tuneyard_pipelines.spec import parse

pytestmark = pytest.mark.integration


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def test_what_a_killed_dispatcher_was_about_to_tell_the_next_one_tells(tmp_path: Path, receiver: Receiver) -> None:
    home = tmp_path / ".tuneyard"
    settings.make_home(home)
    database = Database(settings.database_url(home, {}))
    store, hooks = Store(database), Webhooks(database)
    store.migrate()
    hooks.create(receiver.url, (), "json", created_by="root", now_ms=int(time.time() * 1000))
    queue = Queue(store, home, "ann")
    sweep_id = queue.submit(parse(SPEC, file="spec.yaml")).job.sweep_id
    queue.cancel(sweep_id)
    environment = {
        **os.environ,
        "TUNEYARD_HOME": str(home),
        "TUNEYARD_RAY": "http://127.0.0.1:9",
        "TUNEYARD_WEBHOOK_NETWORKS": "127.0.0.1",
    }
    command = [sys.executable, "-m", "tuneyard.dispatcher"]
    receiver.held.clear()
    with (tmp_path / "out").open("ab") as out:
        first = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        try:
            until(lambda: receiver.requests)
        finally:
            first.kill()
            first.wait()
        receiver.held.set()
        store.release(Lead("", store.leader().token))  # so that the next one need not watch it for its time
        second = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        try:
            until(lambda: hooks.all()[0].waiting == 0)
        finally:
            second.send_signal(signal.SIGTERM)
            ended = second.wait()
    database.close()
    assert ended == 0
    before, after = receiver.requests
    assert (json.loads(after.body)["type"], json.loads(after.body)["data"]["sweep_id"]) == ("sweep.cancelled", sweep_id)
    assert (before.body, before.headers["webhook-id"]) == (after.body, after.headers["webhook-id"])
    assert "whsec_" not in (tmp_path / "out").read_text()
