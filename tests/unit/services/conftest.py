"""What the tests of the service share: the command line in this process, sweeps that no driver runs, an empty queue."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from driven_sweep import DrivenSweep, driven_sweep
from receiver import Receiver, receiving

from tuneyard.cli import main
from tuneyard.database import Database
from tuneyard.webhooks import Webhooks


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Cli = Callable[..., Done]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`tuneyard` with these words, in a folder of its own whose home is `.tuneyard`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def call(*words: str, stdin: str | bytes = "") -> Done:
        monkeypatch.setattr(sys, "argv", ["tuneyard", *words])
        given = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), errors="surrogateescape"))
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Done(int(ended.value.code or 0), said.out, said.err)

    return call


@pytest.fixture
def make_sweep(tmp_path: Path) -> Callable[..., DrivenSweep]:
    """Makes the folder of a sweep whose MLflow never answers; its first attempt has begun."""

    def make(*overrides: str, sweep_id: str = "5eed0001", uri: str = "http://127.0.0.1:9") -> DrivenSweep:
        sweep = driven_sweep(
            home=tmp_path / ".tuneyard", sweep_id=sweep_id, name="dates", overrides=overrides, uri=uri, data=None
        )
        sweep.begin()
        return sweep

    return make


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database to copy."""
    path = tmp_path_factory.mktemp("migrated") / "queue.db"
    made = Database(f"sqlite:///{path}")
    made.migrate()
    made.close()
    return path


@pytest.fixture
def database(migrated: Path, tmp_path: Path) -> Iterator[Database]:
    """Of an empty queue, in SQLite."""
    shutil.copy(migrated, tmp_path)
    made = Database(f"sqlite:///{tmp_path / 'queue.db'}")
    yield made
    made.close()


@pytest.fixture
def hooks(database: Database) -> Webhooks:
    return Webhooks(database)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made
