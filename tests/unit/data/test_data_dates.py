"""builtin/dates: what it writes means one day, is the same everywhere, and has lengths that a sweep can cut off."""

from __future__ import annotations

import datetime
import subprocess
import sys

import babel
import pytest

from tuneyard_pipelines.data import dates

LEAP_YEAR = [datetime.date(2024, 1, 1) + datetime.timedelta(days) for days in range(366)]


def test_no_text_of_a_leap_year_means_two_days():
    meaning: dict[str, datetime.date] = {}
    for form in dates.forms():
        for day in LEAP_YEAR:
            written = form.write(day)
            for case in dates.CASES:
                text = dates.cased(written, case)
                assert meaning.setdefault(text, day) == day, (form, text)
    assert len(meaning) > 60 * 366


def test_no_language_reads_one_of_ours_as_another_day():
    """The short and medium form of the third of September, in any language, is never our ninth of March."""
    ours = {form.write(datetime.date(2024, 3, 9)) for form in dates.forms()}
    for name in babel.localedata.locale_identifiers():
        if "_" not in name or name.startswith("en_"):
            locale = babel.Locale.parse(name)
            for pattern in ("short", "medium"):
                text = babel.dates.format_date(datetime.date(2024, 9, 3), pattern, locale=locale)
                assert text not in ours, name


def test_ten_locales_with_chinese_german_french_english():
    assert len(dates.PATTERNS) >= 10
    assert {"zh_Hans", "de", "fr", "en_US", "en_GB"} <= dates.PATTERNS.keys()


@pytest.mark.parametrize(
    ("locale", "pattern", "text"),
    [
        ("en_US", "full", "Sunday, March 3, 2024"),
        ("de", "EEEE, 'den' d. MMMM y", "Sonntag, den 3. März 2024"),
        ("fr", "full", "dimanche 3 mars 2024"),
        ("zh_Hans", "full", "2024年3月3日星期日"),
        ("ru", "long", "3 марта 2024 г."),  # CLDR has a narrow no-break space, which nobody types
    ],
)
def test_writes_as_people_do(locale, pattern, text):
    assert dates.Form(locale, pattern) in dates.forms()
    assert dates.Form(locale, pattern).write(datetime.date(2024, 3, 3)) == text


def test_capitals():
    form = dates.Form("fr", "full")
    text = form.write(datetime.date(2024, 3, 3))
    assert [dates.cased(text, case) for case in ("as written", "capitalised")] == [text, "Dimanche 3 mars 2024"]
    assert dates.cased("March 3, 2024", "lower") == "march 3, 2024"


def test_an_example_depends_on_seed_and_index_only():
    many = dates.generate(60, seed=7)
    assert dates.generate(20, seed=7) == many[:20]
    assert dates.example(7, 41) == many[41]
    assert dates.generate(20, seed=8) != many[:20]


def test_the_same_in_another_process():
    script = "from tuneyard_pipelines.data import dates; print(dates.generate(50, seed=3))"
    environment = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "99", "PYTHONUTF8": "1"}
    answer = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == repr(dates.generate(50, seed=3))


def test_every_locale_and_case_is_drawn_and_the_targets_are_days_in_range():
    pairs = dates.generate(3000, seed=1)
    days = [datetime.date.fromisoformat(target) for _, target in pairs]
    assert all(dates.FIRST_DAY <= day <= dates.LAST_DAY for day in days)
    assert len({day.year for day in days}) == 100
    sources = {source for source, _ in pairs}
    for locale in dates.PATTERNS:
        written = {form.write(day) for form in dates.forms() if form.locale == locale for day in days[:150]}
        assert sources & written, locale


def test_lengths_spread_over_24_and_32_and_stay_below_48():
    lengths = [len(source) for source, _ in dates.generate(4000, seed=1)]
    longer = [sum(length > limit for length in lengths) / len(lengths) for limit in (24, 32, 47)]
    assert 0.15 < longer[0] < 0.30
    assert 0.01 < longer[1] < 0.10
    assert longer[2] == 0
