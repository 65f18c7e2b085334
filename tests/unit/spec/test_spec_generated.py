from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
import yaml

from tuneyard_pipelines import architectures, catalog, spec
from tuneyard_pipelines.plan import plan
from tuneyard_pipelines.sections import nested, words_of
from tuneyard_pipelines.spec_errors import all_keys, field_at

EXAMPLES = Path(__file__).parents[3] / "examples"


def declared():
    for key in all_keys(spec.SweepSpec):
        yield key, field_at(spec.SweepSpec, tuple(key.split(".")))[0]


def test_every_key_has_a_meaning():
    assert [key for key, field in declared() if not field.description] == []


def test_numbers_have_a_unit_or_a_meaning_of_their_own():
    without = {"version", "seed", "training.learning_rate", "training.weight_decay", "training.adam_beta2"}
    for key, field in declared():
        bounded = any(type(mark).__name__ in ("Ge", "Gt", "Le", "Lt") for mark in field.metadata)
        if bounded and key not in without:
            assert field.json_schema_extra["unit"], key


def test_the_example_of_every_key_is_as_generated_and_loads():
    path = EXAMPLES / "every_key.yaml"
    assert path.read_text() == spec.every_key()
    loaded = spec.load(path)
    assert plan(loaded).problems == ()
    text = spec.every_key()
    for key, _ in declared():
        assert f"{key.rpartition('.')[2]}:" in text, key
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(
    "key",
    [
        "training.max_steps",
        "training.max_epochs",
        "data.columns",
        "data.header",
        "data.generate",
        "data.config",
        "data.revision",
    ],
)
def test_the_keys_behind_a_comment_sign_are_real(key):
    lines = spec.every_key().splitlines()
    word = key.rpartition(".")[2]
    assert any(line.strip().startswith(f"# {word}:") for line in lines)


def test_the_example_of_dates_varies_heads_layers_and_length():
    loaded = spec.load(EXAMPLES / "dates.yaml")
    assert {"model.num_heads", "model.num_layers", "model.sequence_length"} <= loaded.ranges.keys()
    planned = plan(loaded)
    assert planned.problems == ()
    assert planned.trials >= 12


def test_the_schema_is_valid_and_agrees_with_the_reader():
    schema = spec.json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    good = yaml.safe_load((EXAMPLES / "dates.yaml").read_text())
    validator.validate(good)
    validator.validate(yaml.safe_load((EXAMPLES / "every_key.yaml").read_text()))
    for section, key, held in [
        ("model", "n_head", 3),
        ("model", "num_heads", "four"),
        ("model", "num_heads", []),
        ("model", "num_heads", [1, 1]),
        ("model", "num_heads", {"uniform": [1, 2]}),
        ("model", "num_heads", 0),
        ("model", "d_ff", 0),
        ("model", "dropout", [0.1, 2]),
        ("model", "architecture", ["transformer"]),
        ("search", "trials", 0),
        ("search", "scheduler", "pbt"),
        ("search", "algorithm", "pbt"),
        ("data", "columns", {"source": 0, "target": 1}),
        ("data", "generate", {"languages": []}),
    ]:
        bad = {**good, section: {**good[section], key: held}}
        assert not validator.is_valid(bad), (section, key, held)
        with pytest.raises(spec.SpecError):
            spec.parse(yaml.safe_dump(bad), file="bad.yaml")
    for section, key, held in [
        ("model", "num_heads", {"int": [1, 3], "step": 2}),
        ("model", "dropout", {"uniform": [0, 0.5]}),
        ("model", "d_ff", None),
        ("search", "scheduler", {"type": "asha", "min_share": 0.2}),
        ("search", "scheduler", "none"),
        ("resources", "memory_per_worker", 1 << 30),
    ]:
        fine = {**good, section: {**good[section], key: held}}
        validator.validate(fine)
        spec.parse(yaml.safe_dump(fine), file="fine.yaml")


def test_every_object_of_the_schema_is_closed():
    schema = spec.json_schema()
    for name, part in schema["$defs"].items():
        assert part["additionalProperties"] is False, name
    assert schema["additionalProperties"] is False


def test_the_words_of_the_spec_are_those_of_the_catalog():
    fields = spec.SweepSpec.model_fields
    assert words_of(fields["task"].annotation) == tuple(catalog.TASKS)
    assert words_of(spec.Model.model_fields["architecture"].annotation) == architectures.names()
    assert words_of(spec.Search.model_fields["metric"].annotation) == tuple(catalog.METRICS)
    assert words_of(spec.TrialConfig.model_fields["task"].annotation) == tuple(catalog.TASKS)
    assert get_args(catalog.Mode) == ("min", "max")
    assert nested(fields["model"]) is spec.Model
    for task in catalog.TASKS.values():
        assert set(task.metrics) <= catalog.METRICS.keys()
        assert architectures.of_task(task.name)[0] == task.architecture
    known = set(spec.load(EXAMPLES / "dates.yaml").values)
    for architecture in architectures.OURS.values():
        assert {key for rule in architecture.rules for key in rule.keys} <= known
        assert architecture.defaults.keys() <= known
    for metric in catalog.METRICS.values():
        assert set(metric.incomparable_over) <= known


def test_reading_a_spec_imports_nothing_heavy():
    heavy = ["torch", "ray", "mlflow", "datasets", "optuna", "numpy", "pandas", "pytorch_lightning"]
    code = (
        "import sys; from pathlib import Path; from tuneyard_pipelines import catalog, plan, proposals, space, spec;"
        f"plan.plan(spec.load(Path({str(EXAMPLES / 'every_key.yaml')!r})));"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
