"""builtin/numbers: what it writes is what people say, means one number, and is the same everywhere."""

from __future__ import annotations

import random
import subprocess
import sys
import unicodedata

import pytest

from tuneyard_pipelines.catalog import NUMBER_LANGUAGES
from tuneyard_pipelines.data import numbers

SETTINGS = {"languages": NUMBER_LANGUAGES, "largest": 999_999}


@pytest.mark.parametrize(
    ("language", "number", "words"),
    [
        ("de", 401_216, "vierhunderteintausendzweihundertsechzehn"),
        ("de", 21_071, "einundzwanzigtausendeinundsiebzig"),
        ("en", 80_342, "eighty thousand, three hundred and forty-two"),
        ("es", 21_501, "veintiún mil quinientos uno"),
        ("es", 131_016, "ciento treinta y un mil dieciséis"),
        ("fa", 1_387, "هزار و سیصد و هشتاد و هفت"),
        ("fi", 1_021, "tuhat kaksikymmentäyksi"),
        ("fr", 80_271, "quatre-vingt mille deux cent soixante et onze"),
        ("fr", 97, "quatre-vingt-dix-sept"),
        ("id", 11_100, "sebelas ribu seratus"),
        ("ja", 994_316, "九十九万四千三百十六"),
        ("ko", 19_449, "만 구천사백사십구"),
        ("pl", 22_005, "dwadzieścia dwa tysiące pięć"),
        ("ru", 41_002, "сорок одна тысяча два"),
        ("th", 149_921, "หนึ่งแสนสี่หมื่นเก้าพันเก้าร้อยยี่สิบเอ็ด"),
    ],
)
def test_writes_as_people_do(language, number, words):
    assert numbers.write(number, language) == words


def test_no_words_mean_two_numbers():
    """All numbers to 1,300 and some of each size above, in all languages at once."""
    rng = random.Random(5)
    some = [*range(1_300), *(10**power + rng.randrange(9 * 10**power) for power in (3, 4, 5) for _ in range(400))]
    meaning: dict[str, int] = {}
    for language in NUMBER_LANGUAGES:
        mine = {numbers.write(number, language): number for number in some}
        assert len(mine) == len(set(some)), language
        for words, number in mine.items():
            assert meaning.setdefault(words, number) == number, (language, words)
            assert words == unicodedata.normalize("NFC", words).strip()
    assert len(meaning) > 11 * len(set(some))


def test_an_example_depends_on_seed_and_index_only():
    many = [numbers.example(7, index, **SETTINGS) for index in range(40)]
    assert numbers.example(7, 31, **SETTINGS) == many[31]
    assert [numbers.example(8, index, **SETTINGS) for index in range(40)] != many


def test_the_same_in_another_process():
    made = "[numbers.example(3, index, languages=('ja', 'pl'), largest=9999) for index in range(30)]"
    script = f"from tuneyard_pipelines.data import numbers; print({made})"
    environment = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "99", "PYTHONUTF8": "1"}
    answer = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert (
        answer.stdout.strip() == f"{[numbers.example(3, n, languages=('ja', 'pl'), largest=9999) for n in range(30)]}"
    )


def test_every_language_and_number_is_drawn_and_small_ones_more_often():
    made = [numbers.example(1, index, languages=("en", "ko"), largest=12) for index in range(900)]
    assert set(made) == {(numbers.write(n, language), str(n)) for n in range(13) for language in ("en", "ko")}
    drawn = [int(numbers.example(1, index, **SETTINGS | {"languages": ("id",)})[1]) for index in range(3_000)]
    below = [sum(number < limit for number in drawn) / len(drawn) for limit in (1_000, 100_000)]
    assert below == pytest.approx([0.1, 0.464], abs=0.03)
    assert max(drawn) > 990_000


def test_counts():
    assert list(numbers.counts(languages=("en", "ko"), largest=12)) == [13, 13]
