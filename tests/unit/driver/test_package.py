"""A packaged model: the same answers from the same bytes, and none from others."""

from __future__ import annotations

import importlib.metadata
import json
import math
import pickletools
from pathlib import Path
from typing import Any

import pytest
import torch

from tuneyard_pipelines import package, registration, spec
from tuneyard_pipelines.build import build_network
from tuneyard_pipelines.catalog import TASK_DATA
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


def made(task: str = "translation", **settings: str) -> TextModel:
    """An untrained model with tokenizers of these settings."""
    text = {"translation": "builtin/dates", "language_modeling": "builtin/stdlib"}[task]
    tokenizer = {"type": "word", **settings}
    written = {"name": "a", "task": task, "data": {"source": text, "tokenizer": tokenizer}}
    shape = {"d_model": 16, "num_heads": 2, "num_layers": 1, "sequence_length": 16}
    written |= {"model": shape, "training": {"max_steps": 1}, "search": {"trials": 1}}
    config = spec.parse(json.dumps(written), file="spec.yaml").at({})
    known = {"source": ["清华大学 12 мая", "清华 大学"], "target": ["12 may of Tsinghua"], "text": ["清华大学 12 мая"]}
    columns = TASK_DATA[task].columns
    tokenizers = {column: TextTokenizer.train(known[column], config.tokenizer) for column in columns}
    if config.tokenizer.vocabulary == "joint":
        tokenizers = dict.fromkeys(columns, tokenizers[columns[0]])
    torch.manual_seed(0)
    return TextModel(build_network(config, sizes(tokenizers)).eval(), tokenizers, config)


KINDS = [{"type": kind} for kind in ("char", "word", "byte", "bpe", "unigram")]
OTHERS = [{"segmenter": "jieba"}, {"normalization": "nfkc"}, {"normalization": "none", "type": "char"}]
SEPARATE = [{"vocabulary": "separate", **settings} for settings in (*KINDS, {"segmenter": "jieba"})]


@pytest.mark.parametrize("settings", [*KINDS, *OTHERS, *SEPARATE], ids=str)
def test_a_model_of_every_tokenizer_says_the_same_once_it_is_loaded(settings: dict[str, str], tmp_path: Path) -> None:
    model = made(**settings)
    package.pack(tmp_path, model.network, model.tokenizers, model.config)
    loaded = package.load(tmp_path, package.digest(tmp_path))
    texts = ["清华大学 12 мая", "ﬁ е́ 12", " <eos> ", ""]
    assert loaded.predict(texts) == model.predict(texts)
    assert loaded.config == model.config
    separate = settings.get("vocabulary") == "separate"
    assert (loaded.tokenizers["source"] is loaded.tokenizers["target"]) == (not separate)
    for side in ("source", "target"):
        assert [loaded.pieces(text, side) for text in texts] == [model.pieces(text, side) for text in texts]
    files = {"tokenizer.source.json", "tokenizer.target.json"} if separate else {TOKENIZER}
    assert {path.name for path in tmp_path.iterdir()} == {WEIGHTS, MODEL, MANIFEST, *files}


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_a_language_model_of_every_tokenizer_says_the_same_once_it_is_loaded(
    settings: dict[str, str], tmp_path: Path
) -> None:
    model = made("language_modeling", **settings)
    package.pack(tmp_path, model.network, model.tokenizers, model.config)
    assert package.load(tmp_path).predict(["12 мая", ""]) == model.predict(["12 мая", ""])


@pytest.mark.parametrize("kind", ["word", "unigram"])
def test_a_language_model_goes_on_where_the_text_ends(kind: str) -> None:
    model = made("language_modeling", type=kind)
    token = model.tokenizers["text"].encode("清 мая")[-1]
    piece = model.pieces("清 мая")[-1].text
    with torch.no_grad():  # now always the likeliest
        model.network.norm.weight.zero_()
        model.network.norm.bias.copy_(100 * model.network.embedding.weight[token])
    assert model.predict(["12", ""]) == [piece * 64, (piece * 64).removeprefix(" ")]


def test_a_package_of_before_separate_vocabularies_is_still_read(model: TextModel, packed: Path) -> None:
    facts = json.loads((packed / MODEL).read_text())
    assert facts.keys() == {"format", "tuneyard", "vocab_size", "config"}, "a joint vocabulary is packed as it was"
    for key in ("normalization", "segmenter", "vocabulary"):
        del facts["config"]["tokenizer"][key]
    (packed / MODEL).write_text(json.dumps(facts))
    forge(packed, {name: package._sha256(packed / name) for name in (MODEL, TOKENIZER, WEIGHTS)})
    assert package.load(packed).predict(TEXTS) == model.predict(TEXTS)


def test_a_model_that_cuts_by_a_package_says_which_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = made(segmenter="jieba")
    package.pack(tmp_path, model.network, model.tokenizers, model.config)
    held = importlib.metadata.version("rjieba")
    assert json.loads((tmp_path / MODEL).read_text())["packages"] == {"rjieba": held}
    assert f"rjieba=={held}" in registration.requirements(tmp_path)

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(package, "version", missing)
    with pytest.raises(InputError, match=f"this model needs rjieba=={held}, which is not installed here"):
        package.load(tmp_path)


def test_predictions_do_not_depend_on_the_company(model: TextModel) -> None:
    many = TEXTS * 30
    assert model.predict(many) == model.predict(TEXTS) * 30
    assert [model.predict([text])[0] for text in TEXTS] == model.predict(TEXTS)
    assert model.predict([]) == []


def spread(model: TextModel, seed: int = 1) -> TextModel:
    """Large weights, unlike those training starts with, so that what is said depends on the text."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.normal_(std=0.4)
    model.network.double()
    return model


WAYS: list[dict[str, Any]] = [
    {"beam": 4, "n_best": 3},
    {"beam": 3, "n_best": 3, "length_penalty": 0.0, "max_new_tokens": 5},
    {"temperature": 1.5, "n_best": 3, "seed": 7},
    {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.02},
    {},
]


@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("task", ["translation", "language_modeling"])
def test_an_answer_is_the_same_alone_and_its_scores_are_those_of_its_steps(task: str, how: dict[str, Any]) -> None:
    model = spread(made(task, type="char"))
    texts = ["12 мая", "清华", "", "大学12", "清华大学 12 мая 清华大学 12 мая", "12 мая"]
    answers = model.decode(texts, steps=True, **how)
    assert model.predict(texts, **how) == [answer.candidates[0].text for answer in answers]
    assert [one.text for one in answers[0].candidates] == [one.text for one in answers[-1].candidates]
    penalty, most = how.get("length_penalty", 1.0), how.get("max_new_tokens", 64 if task != "translation" else 15)
    for text, answer in zip(texts, answers, strict=True):
        (alone,) = model.decode([text], steps=True, **how)
        assert [one.text for one in alone.candidates] == [one.text for one in answer.candidates]
        assert len(answer.candidates) == how.get("n_best", 1)
        if "temperature" not in how:
            scores = [one.score for one in answer.candidates]
            assert scores == sorted(scores, reverse=True)
        for one in answer.candidates:
            assert len(one.steps) <= most
            nats = sum(math.log(step.taken.probability) for step in one.steps)
            assert one.score == pytest.approx(nats / len(one.steps) ** penalty)
            said = "".join(step.taken.text for step in one.steps if step.taken.id > 3)
            assert one.text == said
            for step in one.steps:
                assert len(step.likeliest) == 5
                chances = [token.probability for token in step.likeliest]
                assert chances == sorted(chances, reverse=True)
                assert sum(chances) <= 1 + 1e-9
                assert step.taken in step.likeliest or step.taken.probability <= chances[-1]
    assert {one.steps for answer in model.decode(texts, **how) for one in answer.candidates} == {()}


def test_a_longer_translation_than_the_model_writes_is_not_asked_of_it() -> None:
    model = spread(made(type="char"))
    assert model.predict(["12 мая"], max_new_tokens=10**9) == model.predict(["12 мая"])
    assert len(model.predict(["12 мая"], max_new_tokens=3)[0]) <= 3


def test_what_a_model_says_by_itself_it_finds_as_likely_when_it_is_given() -> None:
    model = spread(made(type="char"))
    (answer,) = model.decode(["12 мая"], beam=4, n_best=4, length_penalty=0.0)
    for one in answer.candidates:
        if len(one.text) < 15 and model.tokenizers["target"].encode(one.text):
            (scored,) = model.score(["12 мая"], [one.text])
            assert (scored.text, scored.score) == (one.text, pytest.approx(one.score))
    with pytest.raises(
        InputError, match="reference 'may may may may may': its 20 tokens, the end counted, are more than"
    ):
        model.score(["12 мая"], ["may may may may may"])
    with pytest.raises(InputError, match="references: 1 for 2 texts; give one for each"):
        model.score(["12 мая", "12"], ["may"])


@pytest.mark.parametrize("kind", ["char", "word", "bpe", "unigram"])
def test_a_given_continuation_is_scored_after_its_text(kind: str) -> None:
    model = spread(made("language_modeling", type=kind))
    tokenizer, text, given = model.tokenizers["text"], "清华大学 12", " мая 12"
    whole = tokenizer.encode(text + given)[:15]
    logits = model.network(torch.tensor([[1, *whole[:-1]]]))[0].log_softmax(-1).detach()
    first, second = model.score([text, ""], [given, text + given])
    assert [step.taken.id for step in second.steps][:15] == whole
    nats = [float(logits[place, token]) for place, token in enumerate(whole)]
    assert [math.log(step.taken.probability) for step in second.steps[:15]] == pytest.approx(nats)
    kept = len(second.steps) - len(first.steps)
    assert [step.taken.id for step in first.steps] == [step.taken.id for step in second.steps[kept:]]
    assert 0 < kept <= len(tokenizer.encode(text))
    if len(second.steps) <= 15:
        assert first.score == pytest.approx(sum(nats[kept:]))
    assert "".join(step.taken.text for step in first.steps if step.taken.id > 3) in text + given


def test_what_is_amiss_with_a_text_is_said() -> None:
    translates, goes_on = made(type="char"), made("language_modeling", type="char")
    texts = ["12", "", "xyz", "1" * 15, "1" * 16, "x" * 40]
    assert [(answer.cut, answer.notes) for answer in translates.decode(texts)] == [
        (0, ()),
        (0, ("it is empty: there is nothing to translate",)),
        (0, ("none of its tokens is known to the model: what it says has nothing to do with it",)),
        (0, ()),
        (1, ("it was cut off after 15 tokens, the most that the model reads",)),
        (
            25,
            (
                "it was cut off after 15 tokens, the most that the model reads",
                "none of its tokens is known to the model: what it says has nothing to do with it",
            ),
        ),
    ]
    assert [(answer.cut, answer.notes) for answer in goes_on.decode(["", "1" * 16, "1" * 20])] == [
        (0, ()),
        (0, ()),
        (4, ("only its last 16 tokens were read, the most that the model reads",)),
    ]


@pytest.mark.parametrize(
    ("how", "rule"),
    [
        ({"beam": 2, "temperature": 0.5}, r"beam=2 and temperature=0\.5 exclude each other"),
        ({"beam": 5000}, "beam=5000 is larger than the vocabulary: it has 14 tokens; give at most that many"),
        ({"beams": 5}, "beams: no setting of decoding; there are beam, n_best, length_penalty"),
        ({"beam": "5"}, "beam='5' must be a whole number"),
        ({"n_best": 2}, "n_best=2 is more than beam=1"),
    ],
)
def test_settings_that_cannot_be_are_the_users_fault(how: dict[str, Any], rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        made(type="char").predict(["12"], **how)


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
