"""The processes of infra/compose/compose.yaml over a PostgreSQL, from the first token to a registered model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import psycopg
import pytest
from deployment import Deployment, deployed
from postgres import Postgres
from tiny_sweep import runs_of, tiny
from waiting import until

from tuneyard.client import Client
from tuneyard.jobs import ENDED
from tuneyard.supervisor import members
from tuneyard_pipelines.journal import SweepFolder

pytestmark = pytest.mark.integration

SPEC = tiny(search__algorithm="random", search__trials=1, register={"name": "dates"}).text()


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("deployment"), postgres) as made:
        yield made


@pytest.fixture(scope="module")
def token(deployment: Deployment) -> str:
    """The first one, made as docs/deployment.md has one make it."""
    made = deployment.call("api", "tuneyard", "token", "create", "ann", "--role", "admin", "--here")
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def test_a_sweep_that_is_submitted_becomes_a_registered_model(deployment: Deployment, token: str) -> None:
    client = Client(deployment.url("api"), token)
    sweep_id = client.submit(SPEC).sweep_id
    done = until(lambda: found if (found := client.sweep(sweep_id)).state in ENDED else None, looking_s=0.5)
    assert done.state == "succeeded", deployment.said() + "".join(client.logs(sweep_id))
    assert [(one.name, one.version) for one in client.models()] == [("dates", 1)]
    runs = runs_of(deployment.url("mlflow"), SweepFolder(deployment.home / "sweeps" / sweep_id))
    assert [run.info.status for run in runs.values()] == ["FINISHED"] * 2
    files = Path(runs["parent"].info.artifact_uri.removeprefix("file://"))
    assert files.is_relative_to(deployment.home / "artifacts")
    assert (files / "report").is_dir(), "drivers write what MLflow shows"
    assert list(deployment.home.glob("*.db")) == [], "all is kept in PostgreSQL"


def test_the_service_reaches_database_ray_and_mlflow(deployment: Deployment, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx2.get(f"{deployment.url('api')}/readyz", headers=headers, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("host", "status"), [("mlflow:5000", 200), ("localhost:5000", 200), ("elsewhere:5000", 403)])
def test_mlflow_answers_by_the_names_that_it_has(deployment: Deployment, host: str, status: int) -> None:
    url = f"{deployment.url('mlflow')}/api/2.0/mlflow/experiments/search?max_results=1"
    assert httpx2.get(url, headers={"Host": host}, trust_env=False).status_code == status


def test_secrets_are_asked_for_and_stand_in_no_command_and_no_environment(deployment: Deployment) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(host=str(deployment.sockets), user="tuneyard", dbname="tuneyard", passfile="/dev/null")
    assert httpx2.get(f"{deployment.dashboard}/api/jobs/", trust_env=False).status_code == 401
    secrets = [(deployment.secrets / name).read_text().strip() for name in ("postgres_password", "ray_token")]
    processes = [process for part in deployment.running.values() for process in members(part.pid)]
    assert len(processes) > len(deployment.running)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # a worker of a sweep that is over
            told = "\n".join([*process.cmdline(), *process.environ().values()])
            assert not any(secret in told for secret in secrets), process.cmdline()
