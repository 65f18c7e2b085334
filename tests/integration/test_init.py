"""From a stranger's file to a registered model: `init`, then the spec that it wrote, only made shorter."""

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

from tuneyard_pipelines.journal import SweepFolder, SweepState
from tuneyard_pipelines.spec import load

pytestmark = pytest.mark.integration

TUNEYARD = Path(sys.executable).with_name("tuneyard")
SHORTER = ["search.trials=1", "training.max_tokens=4000", "training.evaluations=1", "model.num_layers=1"]
Cli = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("stranger")
    for name, write in strangers_data.FOUR.items():
        write(made / name)
    return made


@pytest.fixture(scope="module")
def cli(folder: Path) -> Cli:
    """What a command prints, in the stranger's folder."""

    def call(*arguments: str) -> str:
        environment = {key: value for key, value in os.environ.items() if key != "TUNEYARD_HOME"}
        done = subprocess.run(
            [TUNEYARD, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


@pytest.mark.parametrize("name", list(strangers_data.FOUR))
def test_a_file_becomes_a_registered_model(
    cli: Cli, folder: Path, run: Callable[..., tuple[SweepFolder, SweepState]], name: str
) -> None:
    stem = Path(name).stem
    *_, train = cli("init", name, "--yes").splitlines()
    assert train.split() == ["train", "tuneyard", "sweep", "run", f"{stem}.yaml"]
    _, state = run(load(folder / f"{stem}.yaml", SHORTER))
    assert state.ended is not None
    assert state.ended.state == "finished", state.ended.message
    assert state.registered is not None
    assert (state.registered.name, state.registered.version) == (stem, 1)


@pytest.mark.skipif(not TATOEBA.exists(), reason="needs the sentence pairs of Tatoeba on this machine")
def test_real_sentence_pairs_with_a_note_on_every_line_are_read(cli: Cli) -> None:
    cli("init", str(TATOEBA), "--yes", "--task", "translation", "--out", "tatoeba.yaml")
    facts = json.loads(cli("data", "show", "tatoeba.yaml", "--json"))
    assert sum(facts["examples"].values()) == 26_388
    assert facts["tokenizers"][0]["unknown_share"] < 0.01
