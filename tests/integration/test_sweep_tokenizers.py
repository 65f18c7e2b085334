"""A sweep whose sources and targets have vocabularies of their own, from the plan's numbers to the registered model."""

from __future__ import annotations

from collections.abc import Callable

import mlflow
import pytest
from tiny_sweep import runs_of, tiny

from tuneyard_pipelines import package
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.journal import SweepFolder, SweepState
from tuneyard_pipelines.report.folder import from_folder
from tuneyard_pipelines.tracking import as_default

pytestmark = pytest.mark.integration
Ended = tuple[SweepFolder, SweepState]


@pytest.fixture(scope="module")
def ended(run: Callable[..., Ended]) -> Ended:
    variants = {
        name: {"data": {"tokenizer": {"vocabulary": "separate", **tokenizer}}}
        for name, tokenizer in {
            "words": {"type": "word", "segmenter": "jieba"},
            "pieces": {"type": "unigram", "vocab_size": 400},
        }.items()
    }
    spec = tiny(
        name="sides",
        model__num_heads=2,
        model__sequence_length=48,
        search__metric="val/exact_match",
        search__max_concurrent_trials=1,
        variants=variants,
        register={"name": "sides"},
    )
    return run(spec)


def test_what_a_trial_costs_is_what_it_built(ended: Ended) -> None:
    folder, state = ended
    header = folder.header()
    assert set(header.vocabularies) == {"word 4000 jieba separate", "unigram 400 separate"}
    shown = {trial.id: trial for trial in from_folder(folder).trials}
    assert {trial.state for trial in shown.values()} == {"completed"}
    assert state.scored is not None
    model = package.load(folder.model(state.scored.trial), state.scored.model)
    best = shown[state.scored.trial]
    assert best.parameters == sum(weights.numel() for weights in model.network.parameters())
    name = {"words": "word 4000 jieba separate", "pieces": "unigram 400 separate"}[best.variant]
    held = {column: tokenizer.vocab_size for column, tokenizer in model.tokenizers.items()}
    assert header.vocabularies[name] == VocabSizes(held["target"], held["source"])


def test_what_the_vocabulary_lacks_is_a_metric_of_every_trial(ended: Ended, mlflow_uri: str) -> None:
    folder, state = ended
    runs = runs_of(mlflow_uri, folder)
    shares = {trial.variant: runs[trial.id].data.metrics["data/val_unknown_share"] for trial in state.trials.values()}
    assert set(shares) == {"words", "pieces"}
    assert all(0 <= share < 0.2 for share in shares.values())


def test_the_winner_translates_the_same_here_and_through_mlflow(ended: Ended, mlflow_uri: str) -> None:
    folder, state = ended
    assert state.scored is not None
    model = package.load(folder.model(state.scored.trial), state.scored.model)
    texts = ["3. März 2024", "2024年3月3日", ""]
    with as_default(mlflow_uri):
        served = mlflow.pyfunc.load_model("models:/sides@candidate")
    assert served.predict(texts) == model.predict(texts)
