"""A sweep of language models over two variants under real Ray, to the registered model that goes on with a text."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient
from tiny_sweep import runs_of

from tuneyard_pipelines import package
from tuneyard_pipelines.journal import SweepFolder, SweepState
from tuneyard_pipelines.spec import load
from tuneyard_pipelines.tracking import as_default

pytestmark = pytest.mark.integration
SPEC = """
name: quotes
task: language_modeling
data: {source: quotes.txt, split: {validation: 0.2, test: 0.2}}
model: {d_model: 16, num_heads: 2, num_layers: 1, dropout: 0.0}
training: {max_steps: 8, batch_tokens: 256, learning_rate: 0.01, evaluations: 2}
search: {algorithm: grid, scheduler: {type: asha, min_share: 0.5, reduction_factor: 2}, max_concurrent_trials: 1}
resources: {memory_per_worker: 2GiB}
variants:
  bytes: {data: {tokenizer: {type: byte}}, model: {sequence_length: [16, 32]}}
  pairs: {data: {tokenizer: {type: bpe, vocab_size: 270}}, model: {sequence_length: [8, 16]}}
register: {name: quotes}
"""
Ended = tuple[SweepFolder, SweepState]


@pytest.fixture(scope="module")
def ended(run: Callable[..., Ended], tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("text")
    chance = random.Random(0)
    words = ["the", "window", "of", "a", "model", "is", "what", "it", "sees", "of", "ein", "Fenster"]
    quotes = [" ".join(chance.choices(words, k=12)) + f" {number}." for number in range(40)]
    (folder / "quotes.txt").write_text("\n\n".join(quotes), encoding="utf-8")
    (folder / "spec.yaml").write_text(SPEC)
    return run(load(folder / "spec.yaml"))


def test_s13_each_variant_has_its_share_and_its_best_gets_the_full_budget(ended: Ended) -> None:
    _, state = ended
    by_variant = {
        name: [trial for trial in state.trials.values() if trial.variant == name] for name in ("bytes", "pairs")
    }
    assert [len(trials) for trials in by_variant.values()] == [2, 2]
    for trials in by_variant.values():
        assert sorted(str(trial.outcome) for trial in trials) == ["completed", "stopped_early"]
        best = min(trials, key=lambda trial: trial.legs[0].score or math.inf)
        assert best.outcome == "completed", "promoted among its own variant"
    completed = [trial for trial in state.trials.values() if trial.outcome == "completed"]
    assert state.scored is not None
    assert state.scored.trial == min(completed, key=lambda trial: trial.score or math.inf).id


def test_tokenizers_are_compared_by_bits_per_byte(ended: Ended, mlflow_uri: str) -> None:
    folder, state = ended
    runs = runs_of(mlflow_uri, folder)
    for trial in state.trials.values():
        metrics = runs[trial.id].data.metrics
        assert {"val/bits_per_byte", "val/loss", "val/perplexity", "val/accuracy"} <= metrics.keys()
        assert runs[trial.id].data.params["variant"] == trial.variant
        if trial.variant == "bytes":  # a token is a byte, and each of the 8 documents has an end besides
            nats = metrics["val/loss"] * metrics["data/val_tokens"]
            documents = folder.header().examples["validation"]
            assert metrics["val/bits_per_byte"] == pytest.approx(
                nats / math.log(2) / (metrics["data/val_tokens"] - documents), rel=1e-4
            )
    assert state.scored is not None
    assert 0 < state.scored.metrics["test/bits_per_byte"] < 9


def test_every_trial_shows_one_example_and_the_sweep_its_report(ended: Ended, client: MlflowClient) -> None:
    folder, state = ended
    runs = runs_of(client.tracking_uri, folder)
    shown = []
    for trial in state.trials.values():
        names = {file.path for file in client.list_artifacts(runs[trial.id].info.run_id)}
        assert {"attention.png", "attention.json", "samples.tsv"} <= names
        [attention] = folder.trial(trial.id).glob("a1/attention.json")
        [one] = json.loads(attention.read_text())["maps"]
        shown.append("".join(one["keys"])[7:15])
        assert all(sum(row) == pytest.approx(1.0, abs=0.01) for head in one["weights"][0] for row in head)
    assert len(set(shown)) == 1, "the same example for all, however it is cut into tokens"
    report = {Path(file.path).name for file in client.list_artifacts(runs["parent"].info.run_id, "report")}
    assert {"report.html", "leaderboard.json", "learning_curves.json", "parallel_coordinates.json"} <= report
    assert "Report:" in runs["parent"].data.tags["mlflow.note.content"]


def test_the_winner_goes_on_with_a_text_here_and_through_mlflow(ended: Ended, mlflow_uri: str) -> None:
    folder, state = ended
    assert state.scored is not None
    model = package.load(folder.model(state.scored.trial), state.scored.model)
    texts = ["the window ", "", "ein Fenster ß 窗"]
    said = model.predict(texts)
    assert len(said) == 3
    with as_default(mlflow_uri):
        served = mlflow.pyfunc.load_model("models:/quotes@candidate")
    assert served.predict(texts) == said
