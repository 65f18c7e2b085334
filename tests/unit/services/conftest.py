"""What the tests of the service share: the command line in this process, and sweeps that no driver runs."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from driven_sweep import DrivenSweep, driven_sweep

from tuneyard.cli import main


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
