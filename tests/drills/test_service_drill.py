"""The service is killed -9 in the midst of a sweep: the sweep goes on, and who follows or submits hardly notices."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from queue_platform import Platform, platform_in
from tiny_sweep import tiny
from waiting import PATIENCE_S, until

from tuneyard.accounts import Accounts
from tuneyard.client import Client
from tuneyard.database import Database
from tuneyard.jobs import ENDED
from tuneyard.sweeps import Listed
from tuneyard_pipelines.errors import UnreachableError

pytestmark = pytest.mark.e2e

SPEC = tiny(
    name="service",
    model__num_heads=[1, 2, 4],
    training__learning_rate={"loguniform": [1e-3, 1e-2]},
    training__max_steps=300,
    search__algorithm="random",
    search__trials=8,
    search__max_concurrent_trials=1,
).text()


def test_a_sweep_is_followed_over_the_death_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuneyard.client.RESTART_S", float(PATIENCE_S))
    database, uri = f"sqlite:///{tmp_path}/queue.db", f"sqlite:///{tmp_path}/mlflow.db"
    with platform_in(tmp_path, database=database, uri=uri) as platform:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            listen = f"127.0.0.1:{probe.getsockname()[1]}"
        client = Client(f"http://{listen}", _token(database))
        service = _serve(platform, listen, client)
        try:
            sweep_id = client.submit(SPEC).sweep_id
            entry = platform.queue.store.get(sweep_id)
            followed: list[str] = []
            following = threading.Thread(
                target=lambda: followed.extend(client.logs(sweep_id, follow=True)), daemon=True
            )
            following.start()
            platform.dispatch()
            platform.wait(lambda: platform.ended_trials(entry) >= 2)
            assert followed, "its log is followed before the kill"
            service.kill()
            service.wait()
            platform.wait(lambda: platform.ended_trials(entry) >= 3)
            with pytest.raises(UnreachableError):
                client.sweep(sweep_id)
            late: list[Listed] = []
            submitting = threading.Thread(target=lambda: late.append(client.submit(SPEC, priority=1)), daemon=True)
            submitting.start()
            service = _serve(platform, listen, client)
            assert client.sweep(sweep_id).state == "running", "too late for a kill in the sweep's midst"
            submitting.join()
            platform.wait_for(entry, *ENDED)
            following.join()
            view = client.sweep(sweep_id)
            assert (view.state, view.queue["attempt"]) == ("succeeded", 1), view.message
            assert "".join(followed) == (platform.queue.folder(sweep_id).path / "driver.log").read_text()
            assert client.trials(sweep_id).total == 8
            client.cancel(late[0].sweep_id)
            assert {sweep.sweep_id for sweep in client.sweeps()} == {sweep_id, late[0].sweep_id}
        finally:
            service.kill()
            service.wait()


def _token(database: str) -> str:
    opened = Database(database)
    _, token = Accounts(opened).create("ann", "submitter", created_by="tests", now_ms=int(time.time() * 1000))
    opened.close()
    return token


def _serve(platform: Platform, listen: str, client: Client) -> subprocess.Popen[bytes]:
    """Once it answers."""
    environment = {**platform.environment, "TUNEYARD_LISTEN": listen}
    with (platform.home / "service.out").open("ab") as out:
        process = subprocess.Popen([sys.executable, "-m", "tuneyard.api"], env=environment, stdout=out, stderr=out)

    def answers() -> bool:
        assert process.poll() is None, (platform.home / "service.out").read_text()
        try:
            client.whoami()
        except UnreachableError:
            return False
        return True

    until(answers, looking_s=0.2)
    return process
