"""A packaged model: the same answers from the same bytes, and none from others."""

from __future__ import annotations

import json
import pickletools
from pathlib import Path

import pytest
import torch

from tuneyard_pipelines import package, spec
from tuneyard_pipelines.build import build_network
from tuneyard_pipelines.data import TextTokenizer
from tuneyard_pipelines.data.text_tokenizer import sizes
from tuneyard_pipelines.errors import InputError, RefusedError
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.package import MANIFEST, MODEL, WEIGHTS, TextModel
from tuneyard_pipelines.spec import TrialConfig

TEXTS = ["12 mai 1999", "", "一九九九年", "x" * 500, "May 1st, 2001"]
TOKENIZER = "tokenizer.json"
FILES = {WEIGHTS, TOKENIZER, MODEL, MANIFEST}


@pytest.fixture
def config() -> TrialConfig:
    text = """
version: 1
name: dates
task: translation
data: {source: builtin/dates}
model: {d_model: 16, num_heads: 2, num_layers: 1, sequence_length: 16}
training: {max_steps: 1}
search: {trials: 1}
"""
    return spec.parse(text, file="spec.yaml").at({})


@pytest.fixture
def model(config: TrialConfig) -> TextModel:
    torch.manual_seed(0)
    tokenizer = TextTokenizer.train(["12 mai 1999", "may 1st, 2001", "一九九八年"], config.tokenizer)
    network = build_network(config, VocabSizes(tokenizer.vocab_size))
    return TextModel(network.eval(), {"source": tokenizer, "target": tokenizer}, config)


@pytest.fixture
def packed(model: TextModel, tmp_path: Path) -> Path:
    package.pack(tmp_path / "model", model.network, model.tokenizers, model.config)
    return tmp_path / "model"


def forge(folder: Path, manifest: object) -> None:
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_what_is_loaded_says_the_same(model: TextModel, packed: Path) -> None:
    loaded = package.load(packed, package.digest(packed))
    assert loaded.config == model.config
    assert loaded.predict(TEXTS) == model.predict(TEXTS)
    assert any(loaded.predict(TEXTS)), "an untrained model says something, too"
    for name, value in model.network.state_dict().items():
        assert torch.equal(loaded.network.state_dict()[name], value)
    assert not loaded.network.training


def test_predictions_do_not_depend_on_the_company(model: TextModel) -> None:
    many = TEXTS * 30
    assert model.predict(many) == model.predict(TEXTS) * 30
    assert [model.predict([text])[0] for text in TEXTS] == model.predict(TEXTS)
    assert model.predict([]) == []


def test_g8_no_file_is_a_pickle(packed: Path) -> None:
    assert {path.name for path in packed.iterdir()} == FILES
    for path in packed.iterdir():
        content = path.read_bytes()
        assert not content.startswith(b"PK"), "torch's own format is a zip that holds a pickle"
        with pytest.raises(ValueError):
            list(pickletools.genops(content))


def test_packing_twice_gives_the_same_digest(model: TextModel, packed: Path) -> None:
    before = package.digest(packed)
    package.pack(packed, model.network, model.tokenizers, model.config)
    assert package.digest(packed) == before


@pytest.mark.parametrize("name", [WEIGHTS, TOKENIZER, MODEL])
def test_g8_a_flipped_bit_is_refused(packed: Path, name: str) -> None:
    content = bytearray((packed / name).read_bytes())
    content[len(content) // 2] ^= 1
    (packed / name).write_bytes(content)
    for expected in (None, package.digest(packed)):
        with pytest.raises(RefusedError, match=f"{name}: its content is not what was packed"):
            package.load(packed, expected)


def test_g8_files_and_manifest_changed_together_are_refused_where_the_digest_is_known(
    packed: Path, model: TextModel
) -> None:
    registered = package.digest(packed)
    package.pack(packed, build_network(model.config, sizes(model.tokenizers)), model.tokenizers, model.config)
    package.load(packed)
    with pytest.raises(RefusedError, match=r"manifest\.json is not the one that was registered"):
        package.load(packed, registered)


def test_g8_a_manifest_that_leaves_files_out_or_names_others_is_refused(packed: Path) -> None:
    whole = json.loads((packed / MANIFEST).read_text())
    outside = packed.parent / "outside"
    outside.write_text("secret")
    forged = [
        {},
        [],
        None,
        "manifest",
        {name: digest for name, digest in whole.items() if name != WEIGHTS},
        {**whole, "../outside": package._sha256(outside)},
        {**whole, str(outside): package._sha256(outside)},
    ]
    for manifest in forged:
        forge(packed, manifest)
        with pytest.raises(RefusedError, match="does not name the files of a packaged model"):
            package.load(packed)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_folder_without_one_of_the_files_is_no_model(packed: Path, name: str) -> None:
    (packed / name).unlink()
    with pytest.raises(InputError, match="not a packaged model"):
        package.load(packed)


def test_a_torn_manifest_is_no_model(packed: Path) -> None:
    (packed / MANIFEST).write_text((packed / MANIFEST).read_text()[:-3])
    with pytest.raises(InputError, match="not a packaged model"):
        package.load(packed)
