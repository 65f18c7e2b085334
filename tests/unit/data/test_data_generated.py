"""Built-in data that is made: what tells one setting from another, what is not shared, and when there is too little."""

from __future__ import annotations

import itertools

import pytest

from tuneyard_pipelines.catalog import GENERATED, TASK_DATA
from tuneyard_pipelines.data import DataError, generated, prepare
from tuneyard_pipelines.keys import DataSpec, Generate, Split

SMALL = {"min_length": 1, "max_length": 3, "symbols": 3}


def spec(source: str, examples: int = 20, **settings: object) -> DataSpec:
    return DataSpec(source=source, examples=examples, generate=Generate.model_validate(settings))


@pytest.mark.parametrize("source", GENERATED)
def test_what_is_made_follows_exactly_from_its_origin(source):
    def made(data):
        return [generated.origin(data), *generated.examples(data, "translation", 1)]

    few = made(spec(source))
    assert few[0]["builtin"] == source
    assert few[0]["examples"] == len(few) - 1 == 20
    assert made(spec(source, 40))[1:21] == few[1:]
    others = {"min_length": 5, "max_length": 10, "symbols": 17, "distractors": 1, "languages": ["ko"], "largest": 9999}
    for name, value in others.items():
        other = made(spec(source, **{name: value}))
        assert (other[0] != few[0]) == (name in GENERATED[source])
        assert (other[1:] != few[1:]) == (name in GENERATED[source])


def test_the_origin_of_dates_is_as_it_was():
    assert list(generated.origin(spec("builtin/dates"))) == ["builtin", "version", "examples"]


@pytest.mark.parametrize(
    ("source", "keys"),
    [
        ("builtin/copy", lambda source, target: (source,)),
        ("builtin/sort", lambda source, target: (source,)),
        ("builtin/recall", lambda source, target: (source,)),
        ("builtin/numbers", lambda source, target: (source, target)),
        ("builtin/dates", lambda source, target: (source, target)),
    ],
)
def test_what_two_splits_may_not_share(source, keys):
    data = spec(source)
    for example in generated.examples(data, "translation", 1):
        assert example.keys == keys(*example.texts)
    alone = data.model_copy(update={"split": Split(group_by="example")})
    for example in generated.examples(alone, "translation", 1):
        assert example.keys == example.texts[:1]


@pytest.mark.parametrize("source", TASK_DATA["language_modeling"].builtin[1:])
def test_a_document_is_source_and_target(source):
    data = spec(source)
    pairs = generated.examples(data, "translation", 1)
    for pair, document in zip(pairs, generated.examples(data, "language_modeling", 1), strict=True):
        assert document.texts == ("=".join(pair.texts),)
        assert document.keys == pair.keys


@pytest.mark.parametrize(
    ("source", "settings", "possible", "message"),
    [
        (
            "builtin/copy",
            SMALL,
            39,
            "with min_length: 1, max_length: 3, symbols: 3 has only 39 different ones. Ask for",
        ),
        (
            "builtin/numbers",
            {"languages": ["de", "th"], "largest": 99},
            200,
            "languages: de, th, largest: 99 has only 2",
        ),
        (
            "builtin/recall",
            {"min_length": 1, "max_length": 1, "symbols": 2},
            20,
            "distractors: 0 has only 20 different",
        ),
    ],
)
def test_too_few_different_ones(source, settings, possible, message):
    assert generated.origin(spec(source, possible, **settings))
    with pytest.raises(DataError) as caught:
        generated.origin(spec(source, possible + 1, **settings))
    assert str(caught.value).startswith(f"data.examples: found {possible + 1}, but {source} with ")
    assert message in str(caught.value)
    assert f"Ask for at most {possible}, or raise " in str(caught.value)


def test_the_most_that_can_be_asked_for_is_counted_at_once():
    data = spec("builtin/recall", 10**8, min_length=4096, max_length=4096, symbols=4096, distractors=65536)
    assert generated.origin(data)["distractors"] == 65536


@pytest.mark.parametrize("source", GENERATED)
def test_is_prepared_with_splits_that_share_no_key(source, tmp_path):
    data = spec(source, 400)
    prepared = prepare(data, 1, tmp_path)
    assert sum(prepared.examples.values()) == 400
    assert prepared.examples["validation"] == pytest.approx(20, abs=5)
    keys = {example.texts: example.keys for example in generated.examples(data, "translation", 1)}
    held = []
    for name in prepared.examples:
        split = prepared.split(name)
        held.append({key for pair in zip(split["source"], split["target"], strict=True) for key in keys[pair]})
    assert not any(one & other for one, other in itertools.combinations(held, 2))


def test_documents_are_prepared(tmp_path):
    prepared = prepare(spec("builtin/sort", 300), 1, tmp_path, "language_modeling")
    assert all("=" in text for text in prepared.split("train")["text"])
