"""Architectures of installed packages: listed beside ours, used like ours, and their faults told with their names."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml
from installed_package import install, looked_up_anew

from tuneyard_pipelines import architectures, package, spec
from tuneyard_pipelines.architectures import Architecture, Package
from tuneyard_pipelines.errors import InputError
from tuneyard_pipelines.formulas import GPT, VocabSizes
from tuneyard_pipelines.plan import plan
from tuneyard_pipelines.spec import SpecError, SweepSpec

Install = Callable[..., str]
SPEC = """
name: texts
task: language_modeling
data: {source: builtin/stdlib, tokenizer: {type: byte}}
model: {architecture: NAME, d_model: 16, num_heads: 2, num_layers: [1, 2, 3], sequence_length: 16}
training: {max_steps: 1}
search: {algorithm: grid}
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """install(package, names, source=...) into a folder on the path; its modules are forgotten afterwards."""
    folder, modules = tmp_path / "site", list[str]()
    monkeypatch.syspath_prepend(str(folder))

    def go(package: str, names: list[str], **more: str) -> str:
        modules.append(install(folder, package, names, **more))
        return modules[-1]

    with looked_up_anew():
        yield go
    for name in modules:
        for loaded in (name, f"{name}_network"):
            sys.modules.pop(loaded, None)


def parse(name: str, *overrides: str) -> SweepSpec:
    return spec.parse(SPEC.replace("NAME", name), file="spec.yaml", overrides=overrides)


def refused(name: str, *overrides: str) -> str:
    with pytest.raises(SpecError) as told:
        parse(name, *overrides)
    return str(told.value)


def test_an_installed_one_is_listed_checked_and_planned_like_ours(installed: Install) -> None:
    module = installed("my-nets", ["mine"])
    assert architectures.names() == (*architectures.OURS, "mine")
    assert module not in sys.modules, "nothing is imported to list it"
    accepted = parse("mine")
    assert accepted.at({"model.num_layers": 1}).model.positions == "sinusoidal"
    [planned] = plan(accepted).variants
    assert (planned.points, planned.feasible_points) == (3, 2)
    assert planned.broken_rules["num_layers <= 2"] == 1
    assert planned.smallest is not None
    assert planned.smallest.parameters == GPT.parameters(accepted.at({"model.num_layers": 1}).flat(), VocabSizes(260))
    assert accepted.architectures == ("mine",)
    assert architectures.packages(["gpt", "mine", "mine"]) == (Package("my-nets", "1.0"),)
    assert f"{module}_network" not in sys.modules, "the network is imported where it is built"


def test_the_schema_and_a_slip_of_the_pen_know_it(installed: Install) -> None:
    installed("my-nets", ["retention"])
    schema = spec.json_schema()
    good = yaml.safe_load(SPEC.replace("NAME", "retention"))
    jsonschema.Draft202012Validator(schema).validate(good)
    good["model"]["architecture"] = "retentoin"
    assert not jsonschema.Draft202012Validator(schema).is_valid(good)
    told = refused("retentoin")
    assert "spec.yaml:5" in told
    assert f"did you mean retention? allowed: one of {', '.join(architectures.OURS)}, retention" in told
    assert "it takes one value, not a range" in refused("[gpt, retention]")


def test_a_task_that_it_does_not_learn_is_refused(installed: Install) -> None:
    installed("my-nets", ["mine"])
    told = refused("mine", "task=translation", "data.source=builtin/dates")
    assert "found mine; translation takes transformer" in told
    assert "mine" not in told.partition("takes")[2]
    others = [name for name, one in architectures.OURS.items() if "language_modeling" in one.tasks]
    assert f"found transformer; language_modeling takes {', '.join(others)}, mine" in refused("transformer")


BROKEN = {
    "import torch_of_nowhere": r"ModuleNotFoundError: No module named 'torch_of_nowhere'",
    "1 / 0": r"ZeroDivisionError: division by zero",
    "ARCHITECTURE = 'gpt'": r"is of type str, not tuneyard_pipelines.architectures.Architecture",
    "": r"has no attribute 'ARCHITECTURE'",
}


@pytest.mark.parametrize("source", BROKEN)
def test_a_broken_package_is_named_where_it_is_asked_for_and_only_there(installed: Install, source: str) -> None:
    installed("my-nets", ["mine"], source=source, version="2.3")
    told = refused("mine")
    assert "spec.yaml:5: model.architecture: " in told
    assert "architecture 'mine' of the package my-nets 2.3: my_nets:ARCHITECTURE" in told
    assert BROKEN[source] in told
    assert parse("gpt").values["model.architecture"] == "gpt"
    assert "language_modeling takes gpt" in refused("transformer")
    assert "mine" in json.dumps(spec.json_schema())


def test_two_packages_of_one_name_are_both_named(installed: Install) -> None:
    installed("my-nets", ["mine"])
    installed("your-nets", ["mine", "yours"])
    told = refused("mine")
    assert "'mine' is named by" in told
    assert "my-nets 1.0" in told
    assert "your-nets 1.0" in told
    parse("yours")
    parse("gpt")


def test_a_package_that_takes_the_name_of_ours_is_told(installed: Install) -> None:
    installed("my-nets", ["gpt", "mine"])
    assert "'gpt' is named by Tuneyard and by my-nets 1.0; uninstall all but one" in refused("gpt")
    assert "'gpt' is named by Tuneyard and by my-nets" in refused("null"), "what stands for it where it is left out"
    told = refused("mine", "variants.ours.model.architecture=gpt", "variants.theirs.model.architecture=mine")
    assert "variants.ours.model.architecture: architecture 'gpt' is named by" in told
    parse("mine")


def test_what_is_not_there_is_told_with_what_is() -> None:
    with pytest.raises(InputError, match="no architecture 'rwkv'; there is transformer"):
        architectures.find("rwkv")


def test_a_network_must_name_a_function() -> None:
    with pytest.raises(ValueError, match=r"network='my_package\.network' must be module:function"):
        Architecture(("translation",), "my_package.network", GPT, ())
    with pytest.raises(ValueError, match=r"'training\.warmup' is none of the section model"):
        Architecture(("translation",), "my_package.network:build", GPT, ("training.warmup",))


def test_a_network_that_cannot_be_imported_is_named_with_its_package(installed: Install, tmp_path: Path) -> None:
    from tuneyard_pipelines.build import build_network

    installed("my-nets", ["mine"])
    (tmp_path / "site/my_nets_network.py").write_text("import torch\n")
    config = parse("mine").at({"model.num_layers": 1})
    with pytest.raises(
        InputError, match=r"'mine' of the package my-nets 1\.0: my_nets_network:build cannot be imported"
    ):
        build_network(config, VocabSizes(260))


def test_a_packed_model_needs_the_package_that_its_architecture_comes_from(installed: Install, tmp_path: Path) -> None:
    from tuneyard_pipelines.build import build_network
    from tuneyard_pipelines.data import TextTokenizer

    installed("my-nets", ["mine"], version="2.3")
    config = parse("mine").at({"model.num_layers": 1})
    tokenizer = TextTokenizer.train(["a text"], config.tokenizer)
    folder = tmp_path / "model"
    package.pack(folder, build_network(config, VocabSizes(tokenizer.vocab_size)), {"text": tokenizer}, config)
    assert json.loads((folder / "model.json").read_text())["packages"] == {"my-nets": "2.3"}
    assert len(package.load(folder).predict(["a"])) == 1

    (tmp_path / "site/my_nets_network.py").write_text(
        "from tuneyard_pipelines.build import gpt\n"
        "def build(model, sizes):\n"
        "    return gpt(model.model_copy(update={'d_ff': 8}), sizes)\n"
    )
    del sys.modules["my_nets_network"]
    with pytest.raises(InputError, match=r"weights do not fit .*; it was made with my-nets==2\.3: install that"):
        package.load(folder)

    (tmp_path / "site").rename(tmp_path / "elsewhere")
    with looked_up_anew(), pytest.raises(InputError, match=r"needs my-nets==2\.3, which is not installed here"):
        package.load(folder)
