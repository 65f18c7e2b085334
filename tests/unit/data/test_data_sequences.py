"""builtin/copy, reverse, sort and recall: what is asked, what the answer is, and how many there are."""

from __future__ import annotations

import itertools
import subprocess
import sys
import unicodedata
from collections import Counter

import pytest

from tuneyard_pipelines.data import recall, sequences

SMALL = {"min_length": 1, "max_length": 3, "symbols": 3}


def made(name: str, count: int, seed: int = 1, **settings: int) -> list[tuple[str, str]]:
    return [sequences.example(name, seed, index, **settings) for index in range(count)]


def recalled(count: int, seed: int = 1, **settings: int) -> list[tuple[str, str]]:
    return [recall.example(seed, index, **settings) for index in range(count)]


def test_symbols_are_characters_in_order_that_no_normalisation_changes():
    assert len(sequences.SYMBOLS) == len(set(sequences.SYMBOLS)) >= 4096
    assert "".join(sorted(sequences.SYMBOLS)) == sequences.SYMBOLS
    assert sequences.SYMBOLS[:63] == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz一"
    assert len(sequences.LETTERS) == 4096
    for form in ("NFC", "NFKC"):
        assert unicodedata.normalize(form, sequences.SYMBOLS) == sequences.SYMBOLS


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("builtin/copy", lambda source: source),
        ("builtin/reverse", lambda source: "".join(reversed(source))),
        ("builtin/sort", lambda source: "".join(symbol * source.count(symbol) for symbol in sequences.SYMBOLS[:20])),
    ],
)
def test_the_target_is_the_copy_the_reverse_or_the_order(name, target):
    pairs = made(name, 200, min_length=2, max_length=9, symbols=20)
    assert [target(source) for source, _ in pairs] == [answer for _, answer in pairs]
    assert any(source != answer for source, answer in pairs) == (name != "builtin/copy")


def test_every_length_is_as_likely_and_every_sequence_is_drawn():
    sources = [source for source, _ in made("builtin/copy", 3_000, **SMALL)]
    lengths = Counter(map(len, sources))
    assert [lengths[length] / 3_000 for length in (1, 2, 3)] == pytest.approx([1 / 3] * 3, abs=0.03)
    every = {"".join(symbols) for length in (1, 2, 3) for symbols in itertools.product("012", repeat=length)}
    assert set(sources) == every
    assert list(sequences.counts(**SMALL)) == [3, 9, 27]


def test_the_sources_of_two_kinds_differ():
    copied, turned = (made(name, 20, **SMALL) for name in ("builtin/copy", "builtin/reverse"))
    assert [source for source, _ in copied] != [source for source, _ in turned]


def test_an_example_depends_on_seed_and_index_only():
    settings = {"min_length": 5, "max_length": 9, "symbols": 62}
    for make in (lambda *given, **more: made("builtin/sort", *given, **more), recalled):
        more = settings | ({"distractors": 3} if make is recalled else {})
        many = make(40, 7, **more)
        assert make(20, 7, **more) == many[:20]
        assert make(40, 8, **more) != many


def test_the_same_in_another_process():
    script = (
        "from tuneyard_pipelines.data import recall, sequences\n"
        "print([sequences.example('builtin/sort', 3, n, min_length=2, max_length=70, symbols=99) for n in range(30)])\n"
        "print([recall.example(3, n, min_length=2, max_length=7, symbols=99, distractors=4) for n in range(30)])\n"
    )
    environment = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "99", "PYTHONUTF8": "1"}
    answer = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == [
        str(made("builtin/sort", 30, 3, min_length=2, max_length=70, symbols=99)),
        str(recalled(30, 3, min_length=2, max_length=7, symbols=99, distractors=4)),
    ]


def test_the_layout():
    """Any change of what a seed gives is a new VERSION."""
    settings = {"min_length": 3, "max_length": 3, "symbols": 9}
    assert recall.VERSION == sequences.VERSION == "1"
    assert recall.example(1, 0, **settings, distractors=0) == ("A3 H3 D0 ? H", "3")
    assert recall.example(1, 0, **settings, distractors=2) == ("A3 F H3 D0 E ? H", "3")
    assert sequences.example("builtin/sort", 1, 0, **settings) == ("532", "235")


def test_recall_asks_for_one_of_different_keys():
    for source, answer in recalled(300, min_length=2, max_length=8, symbols=9, distractors=5):
        shown, _, asked = source.partition(" ? ")
        words = shown.split(" ")
        pairs = [word for word in words if len(word) == 2]
        alone = [word for word in words if len(word) == 1]
        assert 2 <= len(pairs) <= 8
        assert len(alone) == 5 == len(words) - len(pairs)
        assert len({key for key, _ in pairs}) == len(pairs)
        assert dict(pairs)[asked] == answer
        assert {key for key, _ in pairs} | set(alone) <= set("ABCDEFGHI")
        assert {value for _, value in pairs} <= set("0123456789")


def test_every_place_is_asked_for_and_distractors_stand_anywhere():
    places, alone = Counter(), Counter()
    for source, _ in recalled(2_000, min_length=3, max_length=3, symbols=6, distractors=1):
        words = source.split(" ")
        keys = [word[0] for word in words[:4] if len(word) == 2]
        places[keys.index(words[-1])] += 1
        alone[next(place for place, word in enumerate(words) if len(word) == 1)] += 1
    assert [places[place] / 2_000 for place in range(3)] == pytest.approx([1 / 3] * 3, abs=0.04)
    assert [alone[place] / 2_000 for place in range(4)] == pytest.approx([1 / 4] * 4, abs=0.04)


@pytest.mark.parametrize("distractors", [0, 1])
def test_the_counts_of_recall_are_of_what_is_drawn(monkeypatch, distractors):
    monkeypatch.setattr(recall.string, "digits", "01")
    settings = {"min_length": 1, "max_length": 2, "symbols": 2, "distractors": distractors}
    drawn = {source for source, _ in recalled(6_000, **settings)}
    by_pairs = Counter(sum(len(word) == 2 for word in source.split(" ")) for source in drawn)
    assert list(recall.counts(**settings)) == [by_pairs[1], by_pairs[2]]
