"""Every family from a spec to what its model says, under real Ray: a sweep for each task, a variant for each family."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_sweep import runs_of

from tuneyard_pipelines import architectures, package
from tuneyard_pipelines.journal import SweepFolder, SweepState
from tuneyard_pipelines.spec import load

pytestmark = pytest.mark.integration
TASKS: dict[str, dict[str, Any]] = {
    "language_modeling": {"data": {"source": "quotes.txt"}, "text": "the window"},
    "masked_lm": {"data": {"source": "quotes.txt"}, "text": "the [MASK] of a model"},
    "translation": {"data": {"source": "builtin/reverse", "examples": 200}, "text": "a b c"},
}
Ended = tuple[SweepFolder, SweepState]


@pytest.fixture(scope="module", params=list(TASKS))
def ended(run: Callable[..., Ended], tmp_path_factory: pytest.TempPathFactory, request: Any) -> Ended:
    folder = tmp_path_factory.mktemp("families")
    chance = random.Random(0)
    words = ["the", "window", "of", "a", "model", "is", "what", "it", "sees", "of", "ein", "Fenster"]
    quotes = [" ".join(chance.choices(words, k=12)) + f" {number}." for number in range(40)]
    (folder / "quotes.txt").write_text("\n\n".join(quotes), encoding="utf-8")
    families = architectures.of_task(request.param)
    spec = {
        "name": "families",
        "task": request.param,
        "data": {**TASKS[request.param]["data"], "split": {"validation": 0.2, "test": 0.2}},
        "model": {"d_model": 16, "num_layers": 1, "num_heads": 1, "sequence_length": 24, "dropout": 0.1},
        "training": {"max_steps": 10, "batch_tokens": 256, "learning_rate": 0.01, "evaluations": 2},
        "search": {"algorithm": "grid", "scheduler": "none", "max_concurrent_trials": 1},  # libraries are read once
        "resources": {"memory_per_worker": "2GiB"},
        "variants": {name: {"model": {"architecture": name}} for name in families},
        "register": {"name": f"families-{request.param.replace('_', '-')}"},
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    return run(load(folder / "spec.yaml"))


def test_every_family_is_trained_and_the_best_says_something(ended: Ended, mlflow_uri: str) -> None:
    folder, state = ended
    spec = folder.header().spec
    runs = runs_of(mlflow_uri, folder)
    assert {trial.variant for trial in state.trials.values()} == set(architectures.of_task(spec.task))
    for trial in state.trials.values():
        assert trial.outcome == "completed", trial
        assert trial.score is not None
        assert math.isfinite(trial.score)
        metrics = runs[trial.id].data.metrics
        counts = architectures.find(trial.variant).counts
        assert ("train/loss" in metrics) != counts, "a network that counts has no loss to lower"
        assert runs[trial.id].data.params["model.architecture"] == trial.variant
    assert state.scored is not None
    assert all(math.isfinite(score) for score in state.scored.metrics.values())
    assert state.registered is not None
    model = package.load(folder.model(state.scored.trial), state.scored.model)
    text = TASKS[spec.task]["text"]
    (answer,) = model.decode([text], steps=True)
    assert answer.candidates[0].steps
    if spec.task == "masked_lm":
        assert answer.candidates[0].text.startswith("the ")
        assert len(answer.candidates[0].steps) == 1
        lines = (folder.attempt(state.scored.trial, 1) / "samples.tsv").read_text().splitlines()
        assert lines[0] == "text\tprediction\tmasked"
        assert any("[MASK]" in line for line in lines)


def test_the_manifest_names_the_family(ended: Ended) -> None:
    folder, state = ended
    assert state.scored is not None
    facts = json.loads((folder.model(state.scored.trial) / package.MODEL).read_text())
    assert facts["config"]["model"]["architecture"] == state.trials[state.scored.trial].variant


def test_a_trial_of_each_family_can_be_built_from_its_checkpoint(ended: Ended, tmp_path: Path) -> None:
    """Ties, buffers and counts come back: what is loaded scores as the checkpoint says."""
    import torch

    from tuneyard_pipelines import checkpoints
    from tuneyard_pipelines.data import PreparedData, encode
    from tuneyard_pipelines.objectives import objective
    from tuneyard_pipelines.trial import load_network

    folder, state = ended
    header = folder.header()
    prepared = PreparedData.open(header.data)
    for trial in state.trials.values():
        config = header.spec.variant(trial.variant).at(trial.point)
        encoded = encode(prepared, config.tokenizer)
        best = checkpoints.whole(folder.trial(trial.id))[-1]
        network = load_network(best, config, encoded.sizes).eval()
        made = objective(config, prepared, encoded)
        module = made.module(network).eval()
        found: dict[str, float] = {}
        module.log_dict = lambda scores, found=found, **_: found.update(scores)  # type: ignore[method-assign]
        module.on_validation_epoch_start()
        with torch.inference_mode():
            for number, batch in enumerate(made.validation):
                module.validation_step(batch, number)
        module.on_validation_epoch_end()
        for name in ("val/loss", "val/accuracy"):
            assert found[name] == pytest.approx(best.facts.metrics[name], rel=1e-5), trial.variant
