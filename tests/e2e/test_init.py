"""From a stranger's file to a registered model: `init`, then `sweep run` on what it wrote, only made shorter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import strangers_data
from real_data import TATOEBA

pytestmark = pytest.mark.e2e

TUNEYARD = Path(sys.executable).with_name("tuneyard")
SHORTER = ["search.trials=1", "training.max_tokens=4000", "training.evaluations=1", "model.num_layers=1"]
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    folder = tmp_path_factory.mktemp("stranger")

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [TUNEYARD, *arguments],
            cwd=folder,
            env={key: value for key, value in os.environ.items() if key != "TUNEYARD_HOME"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    for name, write in strangers_data.FOUR.items():
        write(folder / name)
    return call


@pytest.mark.parametrize("name", list(strangers_data.FOUR))
def test_a_file_becomes_a_registered_model(cli: Cli, name: str) -> None:
    stem = Path(name).stem
    written = cli("init", name, "--yes")
    assert written.returncode == 0, written.stderr
    *_, train = written.stdout.splitlines()
    assert train.split() == ["train", "tuneyard", "sweep", "run", f"{stem}.yaml"]
    shorter = [word for override in SHORTER for word in ("--set", override)]
    ran = cli("sweep", "run", f"{stem}.yaml", "--no-calibrate", *shorter)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"registered {stem} version 1" in ran.stdout


@pytest.mark.skipif(not TATOEBA.exists(), reason="needs the sentence pairs of Tatoeba on this machine")
def test_real_sentence_pairs_with_a_note_on_every_line_are_read(cli: Cli) -> None:
    written = cli("init", str(TATOEBA), "--yes", "--task", "translation", "--out", "tatoeba.yaml")
    assert written.returncode == 0, written.stderr
    facts = json.loads(cli("data", "show", "tatoeba.yaml", "--json").stdout)
    assert sum(facts["examples"].values()) == 26_388
    assert facts["tokenizers"][0]["unknown_share"] < 0.01
