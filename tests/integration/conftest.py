"""One Ray, one MLflow database and one PostgreSQL for all tests of this folder; each sweep has a home of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import ray
from driven_sweep import DrivenSweep, driven_sweep
from postgres import Postgres

from tuneyard_pipelines import sweep, tracking
from tuneyard_pipelines.cluster import OBJECT_STORE_BYTES, quiet
from tuneyard_pipelines.journal import SweepFolder, SweepState
from tuneyard_pipelines.spec import SweepSpec

if TYPE_CHECKING:
    from mlflow import MlflowClient


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    quiet()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=OBJECT_STORE_BYTES)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def mlflow_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"
    tracking.connect(uri)
    return uri


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.stop()


_numbers = itertools.count()


@pytest.fixture(scope="session")
def run(cluster: None, mlflow_uri: str, home: Path) -> Callable[..., tuple[SweepFolder, SweepState]]:
    """Run a sweep to its end: run(spec, callbacks) -> (folder, state)."""

    def go(spec: SweepSpec, callbacks: sweep.MakeCallbacks | None = None) -> tuple[SweepFolder, SweepState]:
        sweep_id = f"sweep{next(_numbers)}"
        folder = sweep.run(spec, "text", home=home, tracking_uri=mlflow_uri, sweep_id=sweep_id, callbacks=callbacks)
        return folder, folder.state()

    return go


@pytest.fixture(scope="session")
def client(mlflow_uri: str) -> MlflowClient:
    return tracking.connect(mlflow_uri)


@pytest.fixture
def make_sweep(tmp_path: Path, mlflow_uri: str) -> Callable[..., DrivenSweep]:
    """Makes the folder of a sweep that no driver runs; those of one test share a name that no other test has."""
    name = f"n{next(_numbers)}"

    def make(*overrides: str, uri: str = mlflow_uri, data: Path | None = None) -> DrivenSweep:
        return driven_sweep(
            home=tmp_path, sweep_id=f"{name}-{next(_numbers)}", name=name, overrides=overrides, uri=uri, data=data
        )

    return make
