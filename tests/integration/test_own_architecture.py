"""An installed package's architecture from its entry point to the registered model, through the Python API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tuneyard_pipelines.journal import SweepFolder

pytestmark = pytest.mark.integration
EXAMPLE = Path(__file__).parents[2] / "examples/linear_attention"
SPEC = """
name: linear
task: language_modeling
data: {source: text.txt, split: {validation: 0.2, test: 0.2}, tokenizer: {type: byte}}
model: {d_model: 16, num_heads: 2, num_layers: 1, dropout: 0.0, sequence_length: 80}
training: {max_steps: 20, batch_tokens: 256, learning_rate: 0.01, evaluations: 2}
search: {algorithm: grid, scheduler: none}
resources: {memory_per_worker: 2GiB}
variants:
  gpt: {model: {architecture: gpt}, training: {learning_rate: 1.0e-6}}
  linear: {model: {architecture: linear_attention}}
constraints: ["parameters < 10000"]
register: {name: linear}
"""
SCRIPT = """
import json, sys
import tuneyard

told = []
sweep = tuneyard.run_sweep("spec.yaml", on_progress=told.append)
trials = sweep.trials()
linear = trials[trials["variant"] == "linear"].iloc[0]
print(json.dumps({
    "state": sweep.state,
    "id": sweep.id,
    "outcomes": trials["outcome"].tolist(),
    "scores": trials["score"].tolist(),
    "linear": linear["trial"],
    "best": sweep.best.trial,
    "stages": list(dict.fromkeys(now.stage for now in told)),
    "doing": sorted({now.doing for now in told if now.stage == "preparing"}),
    "metrics": sorted(set(sweep.curves()["metric"])),
    "said": sweep.model().predict(["the ", "ein"]),
    "registered": tuneyard.load_model("linear@candidate").predict(["the ", "ein"]),
    "report": sweep.report.exists(),
}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example as pip installs it, in a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", folder, EXAMPLE], check=True)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    texts = [f"the window of a model is what it sees, ein Fenster {number}." for number in range(40)]
    (folder / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    (folder / "spec.yaml").write_text(SPEC)
    return folder


def run(place: Path, site: Path | None, *command: str) -> subprocess.CompletedProcess[str]:
    """A process that finds our packages as this one does, and the example where `site` is given."""
    parts = [*([str(site)] if site else []), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, parts)),
        "TUNEYARD_HOME": str(place / "home"),
    }
    return subprocess.run([sys.executable, *command], cwd=place, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def ended(site: Path, place: Path) -> dict[str, Any]:
    done = run(place, site, "-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_it_is_trained_beside_ours_and_the_winner_predicts(ended: dict[str, Any]) -> None:
    assert (ended["state"], ended["outcomes"]) == ("finished", ["completed", "completed"])
    assert all(0 < score < 9 for score in ended["scores"])
    assert ended["registered"] == ended["said"]
    assert len(ended["said"]) == 2
    assert ended["best"] == ended["linear"]
    assert ended["report"]
    assert {"train/loss", "val/bits_per_byte", "train/tokens_per_second"} <= set(ended["metrics"])


def test_every_stage_was_told_with_what_is_done_to_the_data(ended: dict[str, Any]) -> None:
    assert ended["stages"][:2] == ["preparing", "training"]
    assert ended["stages"][-1] == "ended"
    assert "preparing" in ended["doing"]


def test_it_is_not_shown_where_it_looks_but_what_it_says(ended: dict[str, Any], place: Path) -> None:
    folder = SweepFolder(place / "home/sweeps" / ended["id"])
    for trial in ("t001", "t002"):
        names = {path.name for path in folder.attempt(trial, 1).iterdir()}
        assert "samples.tsv" in names
        assert ("attention.png" in names) == (trial != ended["linear"])
        assert "cannot be shown" not in (folder.attempt(trial, 1) / "trial.log").read_text()


def test_its_package_is_recorded_with_its_version(ended: dict[str, Any], place: Path) -> None:
    sweep = place / "home/sweeps" / ended["id"]
    assert json.loads((sweep / "sweep.json").read_text())["versions"]["tuneyard-linear-attention"] == "0.1.0"
    began = json.loads((sweep / "trials.jsonl").read_text().splitlines()[0])
    assert began["versions"]["tuneyard-linear-attention"] == "0.1.0"
    [requirements] = (place / "home/artifacts").rglob("requirements.txt")
    assert "tuneyard-linear-attention==0.1.0" in requirements.read_text().splitlines()
    [packed] = sweep.glob("trials/*/model/model.json")
    assert json.loads(packed.read_text())["packages"] == {"tuneyard-linear-attention": "0.1.0"}


def test_without_the_package_spec_sweep_and_model_say_what_is_missing(ended: dict[str, Any], place: Path) -> None:
    asked = {
        ("sweep", "plan", "spec.yaml"): "spec.yaml:11: variants.linear.model.architecture: found",
        ("sweep", "show", ended["id"]): "linear_attention'); it was made with ",
        ("model", "predict", "linear", "the "): "needs tuneyard-linear-attention==0.1.0, which is not installed here",
    }
    for words, said in asked.items():
        done = run(place, None, "-c", "from tuneyard.cli import main; main()", *words)
        assert done.returncode == 2
        assert said in done.stderr
