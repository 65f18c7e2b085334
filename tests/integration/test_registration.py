"""The winner in a real registry: registered once, checked when loaded, `candidate` at the best of its kind."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlflow
import pytest
import torch
from driven_sweep import SPEC, DrivenSweep
from mlflow.exceptions import MlflowException

from tuneyard import local, registry
from tuneyard_pipelines import data, evidence, package, registration, tracking
from tuneyard_pipelines.build import build_network
from tuneyard_pipelines.data.text_tokenizer import sizes
from tuneyard_pipelines.errors import InputError, RefusedError, TuneyardError
from tuneyard_pipelines.journal import WinnerScored
from tuneyard_pipelines.registration import CANDIDATE, best_version, settle_candidate
from tuneyard_pipelines.spec import parse

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

pytestmark = pytest.mark.integration

Sweep = DrivenSweep
MakeSweep = Callable[..., DrivenSweep]
MakeVersion = Callable[..., "ModelVersion"]
GROUP = {
    "tuneyard.metric": "val/exact_match",
    "tuneyard.metric_signature": "sig",
    "tuneyard.validation_fingerprint": "fp",
}


@pytest.fixture
def name(client: MlflowClient, request: pytest.FixtureRequest) -> str:
    """A registered model of this test alone."""
    name = f"m{abs(hash(request.node.nodeid)) % 10**8}"
    client.create_registered_model(name)
    return name


@pytest.fixture
def make_version(client: MlflowClient, name: str, tmp_path: Path) -> MakeVersion:
    def make(score: float, mode: str = "max", **other: str) -> ModelVersion:
        tags = {**GROUP, "tuneyard.mode": mode, "tuneyard.score": repr(score)}
        tags |= {f"tuneyard.{key}": value for key, value in other.items()}
        return client.create_model_version(name, tmp_path.as_uri(), tags=tags)

    return make


def candidate(client: MlflowClient, name: str) -> int | None:
    number = client.get_registered_model(name).aliases.get(CANDIDATE)
    return None if number is None else int(number)


def test_the_first_version_becomes_the_candidate(client: MlflowClient, name: str, make_version: MakeVersion) -> None:
    assert settle_candidate(client, name, make_version(0.0)) == "candidate is now version 1"
    assert candidate(client, name) == 1


def test_g9_a_better_one_takes_its_place_and_a_worse_one_does_not(
    client: MlflowClient, name: str, make_version: MakeVersion
) -> None:
    settle_candidate(client, name, make_version(0.5))
    said = settle_candidate(client, name, make_version(0.4))
    assert said == "candidate is version 1, which scores 0.5 against 0.4"
    same = settle_candidate(client, name, make_version(0.5))
    assert same == "candidate is version 1, which scores the same, 0.5", "the oldest of equals"
    assert settle_candidate(client, name, make_version(0.6)) == "candidate is now version 4"
    assert candidate(client, name) == 4


def test_where_less_is_better_the_least_is_the_candidate(
    client: MlflowClient, name: str, make_version: MakeVersion
) -> None:
    for score, expected in ((1.0, 1), (2.0, 1), (-0.5, 3), (0.0, 3), (-10.0, 5)):
        settle_candidate(client, name, make_version(score, mode="min"))
        assert candidate(client, name) == expected


def test_twelve_versions_are_told_apart_as_numbers(client: MlflowClient, name: str, make_version: MakeVersion) -> None:
    made = [make_version(0.1), *(make_version(0.5) for _ in range(11))]
    for version in reversed(made):
        settle_candidate(client, name, version)
    assert candidate(client, name) == 2, "as text, 10 would come first"


@pytest.mark.parametrize("key", ["metric", "metric_signature", "validation_fingerprint"])
def test_what_cannot_be_compared_leaves_the_candidate_and_says_why(
    client: MlflowClient, name: str, make_version: MakeVersion, key: str
) -> None:
    settle_candidate(client, name, make_version(0.5))
    said = settle_candidate(client, name, make_version(0.9, **{key: "other"}))
    assert said == (
        f"candidate stays at version 1: {key} differ, so the scores cannot be compared; move it by hand if version 2 "
        "is meant to follow"
    )
    assert candidate(client, name) == 1
    settle_candidate(client, name, make_version(0.6))
    assert candidate(client, name) == 3, "the better of the other kind counts for nothing"


def test_a_candidate_moved_by_hand_to_another_kind_is_followed(
    client: MlflowClient, name: str, make_version: MakeVersion
) -> None:
    settle_candidate(client, name, make_version(0.5))
    moved = make_version(0.1, metric="val/bleu")
    client.set_registered_model_alias(name, CANDIDATE, str(moved.version))
    settle_candidate(client, name, make_version(0.2, metric="val/bleu"))
    assert candidate(client, name) == 3


def test_versions_that_others_made_are_left_alone(
    client: MlflowClient, name: str, make_version: MakeVersion, tmp_path: Path
) -> None:
    client.create_model_version(name, tmp_path.as_uri())
    assert settle_candidate(client, name, make_version(0.5)) == "candidate is now version 2"
    client.set_registered_model_alias(name, CANDIDATE, "1")
    assert settle_candidate(client, name, make_version(0.6)).startswith("candidate stays at version 1")
    assert candidate(client, name) == 1


class Meanwhile:
    """A client whose first setting of the alias comes after something else has happened."""

    def __init__(self, client: MlflowClient, happens: Callable[[], object]) -> None:
        self._client, self._happens = client, [happens]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def set_registered_model_alias(self, *args: Any) -> None:
        if self._happens:
            self._happens.pop()()
        self._client.set_registered_model_alias(*args)


def test_of_two_sweeps_that_end_together_the_better_is_the_candidate(
    client: MlflowClient, name: str, make_version: MakeVersion
) -> None:
    mine = make_version(0.5)

    def other_sweep_ends() -> None:
        settle_candidate(client, name, make_version(0.9))
        assert candidate(client, name) == 2

    said = settle_candidate(Meanwhile(client, other_sweep_ends), name, mine)  # type: ignore[arg-type]
    assert candidate(client, name) == 2
    assert said == "candidate is version 2, which scores 0.9 against 0.5"


def test_of_two_kinds_that_end_together_neither_is_fought_over(
    client: MlflowClient, name: str, make_version: MakeVersion
) -> None:
    sets = itertools.count()

    class Counting(Meanwhile):
        def set_registered_model_alias(self, *args: Any) -> None:
            assert next(sets) < 3
            super().set_registered_model_alias(*args)

    mine = make_version(0.5)

    def other_sweep_ends() -> None:
        settle_candidate(client, name, make_version(0.9, metric="val/bleu"))

    settle_candidate(Counting(client, other_sweep_ends), name, mine)  # type: ignore[arg-type]
    assert candidate(client, name) in (1, 2)


def test_a_registry_that_fails_is_not_taken_for_one_without_a_candidate(
    client: MlflowClient, name: str, make_version: MakeVersion
) -> None:
    settle_candidate(client, name, make_version(0.5))

    class Failing(Meanwhile):
        def get_registered_model(self, name: str) -> Any:
            raise MlflowException("500")

        def get_model_version_by_alias(self, name: str, alias: str) -> Any:
            raise MlflowException("500")

    better = make_version(0.9, metric="val/bleu")
    with pytest.raises(MlflowException):
        settle_candidate(Failing(client, lambda: None), name, better)  # type: ignore[arg-type]
    assert candidate(client, name) == 1


def test_the_best_version_by_its_tags(make_version: MakeVersion) -> None:
    made = [make_version(score) for score in (-2.0, 0.0, -1.0, 0.0)]
    assert int(best_version(made).version) == 2
    assert int(best_version(list(reversed(made))).version) == 2


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> data.PreparedData:
    spec = parse(SPEC, file="spec.yaml")
    return data.prepare(spec.data, spec.seed, tmp_path_factory.mktemp("cache"))


@pytest.fixture
def won(make_sweep: MakeSweep, client: MlflowClient, name: str, prepared: data.PreparedData) -> Sweep:
    """A sweep whose winner is packed and scored, and not registered yet."""
    sweep = make_sweep(f"register.name={name}", data=prepared.folder)
    sweep.begin()
    sweep.create(1, heads=2)
    sweep.start("t001", 2)
    sweep.reach("t001", 2, 0.75)
    sweep.end("t001", "completed")
    config = sweep.folder.header().spec.at({"model.num_heads": 2})
    encoded = data.encode(prepared, config.tokenizer)
    torch.manual_seed(0)
    network = build_network(config, encoded.sizes)
    package.pack(sweep.folder.model("t001"), network, encoded.tokenizers, config)
    found = evidence.write(
        sweep.folder.evidence("t001"),
        {"id": [1, 2]},
        metrics={"test/bleu": 12.5},
        cut_off=0,
        test_fingerprint=prepared.test_fingerprint,
        metric_signature={"bleu": "nrefs:1"},
        decoding={},
    )
    model = package.digest(sweep.folder.model("t001"))
    sweep.journal.append(WinnerScored("t001", found.metrics, found.digest, model, sweep.now_ms()))
    return sweep


def register(sweep: Sweep, client: MlflowClient) -> Any:
    shipper = tracking.Shipper(sweep.folder, client)
    shipper.ship()
    best = sweep.journal.state.trials["t001"]
    return registration.register(
        sweep.journal, sweep.folder.header(), best, shipper.child("t001"), client, sweep.now_ms
    )


def test_the_winner_is_registered_once_and_loads_with_the_same_answers(
    won: Sweep,
    client: MlflowClient,
    name: str,
    prepared: data.PreparedData,
    mlflow_uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = register(won, client)
    assert (first.trial, first.name, first.version) == ("t001", name, 1)
    assert first.candidate == "candidate is now version 1"
    assert register(won, client).version == 1, "found again by an attempt that knows nothing of the first"
    [version] = client.search_model_versions(f"name = '{name}'")
    assert client.get_run(version.run_id).data.tags["tuneyard.trial_id"] == "t001"
    packed = won.folder.model("t001")
    tags = version.tags
    assert {
        "tuneyard.sweep_id": won.folder.sweep_id,
        "tuneyard.trial_id": "t001",
        "tuneyard.metric": "val/exact_match",
        "tuneyard.mode": "max",
        "tuneyard.score": "0.75",
        "tuneyard.metric_signature": evidence.signature_digest({"bleu": "nrefs:1"}),
        "tuneyard.validation_fingerprint": prepared.validation_fingerprint,
        "tuneyard.test_fingerprint": prepared.test_fingerprint,
        "tuneyard.digest": package.digest(packed),
        "tuneyard.evidence_uri": f"runs:/{version.run_id}/evidence",
        "tuneyard.test/bleu": "12.5",
    }.items() <= tags.items()

    texts = ["12 mai 1999", "", "May 1st, 2001"]
    expected = package.load(packed).predict(texts)
    ours = local.load_model(name, home=tmp_path, mlflow=mlflow_uri)
    assert ours.predict(texts) == expected
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_uri)
    served = mlflow.pyfunc.load_model(f"models:/{name}@candidate")
    place = Path(mlflow.artifacts.download_artifacts(f"models:/{name}/1"))
    assert list(served.predict(texts)) == expected
    requirements = (place / "requirements.txt").read_text()
    assert all(
        f"{package_name}==" in requirements for package_name in ("tuneyard", "torch", "tokenizers", "safetensors")
    )
    assert not [
        path for path in place.rglob("*") if path.suffix in (".pkl", ".pickle", ".pt", ".pth", ".bin", ".joblib")
    ]


class Dying:
    """A client that is interrupted when it is asked for `call`."""

    def __init__(self, client: MlflowClient, call: str) -> None:
        self._client, self._call = client, call

    def __getattr__(self, name: str) -> Any:
        if name == self._call:
            raise KeyboardInterrupt
        return getattr(self._client, name)


@pytest.mark.parametrize("at", ["packing", "create_model_version"])
def test_r1_an_interrupted_registration_leaves_one_model_when_it_is_tried_again(
    won: Sweep, client: MlflowClient, name: str, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    dying = Dying(client, at)
    with monkeypatch.context() as interrupted:
        if at == "packing":
            interrupted.setattr(registration.Model, "log", lambda **arguments: dying.packing)
        with pytest.raises(KeyboardInterrupt):
            register(won, dying)  # type: ignore[arg-type]
    made = register(won, client)
    [version] = client.search_model_versions(f"name = '{name}'")
    run = client.get_run(version.run_id)
    [model] = client.search_logged_models([run.info.experiment_id])
    assert (made.version, model.status) == (1, "READY")
    assert model.model_id in version.source


def test_a_model_is_used_without_writing_into_the_store(
    won: Sweep, client: MlflowClient, name: str, mlflow_uri: str, tmp_path: Path
) -> None:
    register(won, client)
    store = tmp_path / "artifacts"
    before = sorted(store.rglob("*"))
    assert local.load_model(name, home=tmp_path, mlflow=mlflow_uri)
    assert sorted(store.rglob("*")) == before


@pytest.mark.parametrize("changed", ["weights.safetensors", "manifest.json"])
def test_g8_a_registered_model_whose_files_were_changed_is_refused(
    won: Sweep, client: MlflowClient, name: str, mlflow_uri: str, tmp_path: Path, changed: str
) -> None:
    register(won, client)
    place = local._download(registry.find(client, name), mlflow_uri)
    assert package.load(place)
    if changed == "manifest.json":  # another model, whole in itself
        held = package.load(place)
        package.pack(place, build_network(held.config, sizes(held.tokenizers)), held.tokenizers, held.config)
        assert package.load(place)
    else:
        content = bytearray((place / changed).read_bytes())
        content[-1] ^= 1
        (place / changed).write_bytes(content)
    with pytest.raises(RefusedError, match="the model is not loaded"):
        local.load_model(name, home=tmp_path, mlflow=mlflow_uri)


def test_the_settings_of_the_process_stay_the_users(
    won: Sweep, client: MlflowClient, name: str, mlflow_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "MLFLOW_EXPERIMENT_ID")
    for setting in settings:
        monkeypatch.delenv(setting, raising=False)
    register(won, client)
    local.load_model(name, home=tmp_path, mlflow=mlflow_uri)
    assert not [setting for setting in settings if setting in os.environ]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mine")
    with tracking.as_default(mlflow_uri):
        assert mlflow.get_tracking_uri() == mlflow.get_registry_uri() == mlflow_uri
    assert mlflow.get_tracking_uri() == os.environ["MLFLOW_TRACKING_URI"] == "http://mine"


def test_damaged_evidence_is_not_registered(won: Sweep, client: MlflowClient, name: str) -> None:
    (won.folder.evidence("t001") / evidence.TABLE).unlink()
    with pytest.raises(TuneyardError, match="the evidence is gone or damaged"):
        register(won, client)
    assert client.search_model_versions(f"name = '{name}'") == []


def test_a_model_is_found_by_name_alias_and_version(client: MlflowClient, name: str, make_version: MakeVersion) -> None:
    for score in (0.5, 0.4, 0.3):
        settle_candidate(client, name, make_version(score))
    client.set_registered_model_alias(name, "champion", "2")
    assert registry.find(client, name).version == 1
    assert registry.find(client, f"{name}@champion").version == 2
    found = registry.find(client, f"{name}/3")
    assert (found.version, found.aliases, found.tags["score"]) == (3, (), "0.3")
    assert registry.find(client, f"{name}@candidate").aliases == ("candidate",)
    assert [version.version for version in registry.versions(client, name)] == [3, 2, 1]
    assert [v.version for v in registry.list_models(client) if v.name == name] == [3, 2, 1]
    for wrong, what in ((f"{name}/4", "version 4"), (f"{name}@prod", "alias 'prod'")):
        with pytest.raises(InputError, match=f"{name} has no {what}; versions: 3, 2, 1; aliases: candidate, champion"):
            registry.find(client, wrong)


def test_an_unknown_model_is_refused_with_those_that_exist(client: MlflowClient, name: str) -> None:
    with pytest.raises(InputError, match=f"no registered model 'nothing'; there are: .*{name}"):
        registry.find(client, "nothing")
    with pytest.raises(InputError, match=f"{name} has no alias 'candidate'; versions: none; aliases: none"):
        registry.find(client, name)


def test_a_model_that_others_registered_is_not_loaded_here(
    client: MlflowClient, name: str, mlflow_uri: str, tmp_path: Path
) -> None:
    client.create_model_version(name, tmp_path.as_uri())
    with pytest.raises(InputError, match="was not packaged by Tuneyard"):
        local.load_model(f"{name}/1", home=tmp_path, mlflow=mlflow_uri)
