"""The spec that is written for each kind of file: what it chooses, that it is accepted, and that its budget fits."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import strangers_data
import yaml

from tuneyard_pipelines import suggest
from tuneyard_pipelines.data import DataError, look
from tuneyard_pipelines.data.profile import measure
from tuneyard_pipelines.spec import SweepSpec, parse
from tuneyard_pipelines.suggest import Draft


def drafted(path: Path, task: str | None = None, *, choice: int = 0) -> Draft:
    seen = look.look(str(path))
    readings, _ = suggest.readings(seen, task)
    return suggest.draft(seen, readings[choice], path=path.name, name=suggest.slug(path.stem), measure=measure)


def spec_of(path: Path, **options: Any) -> SweepSpec:
    made = suggest.within(drafted(path, **options), 1e-4, slots=2)
    return parse(made.text(), file=str(path.with_name("x.yaml")))


def ways(path: Path, task: str | None = None) -> tuple[list[tuple[str, list[str | int]]], bool]:
    readings, clear = suggest.readings(look.look(str(path)), task)
    return [(one.task, [column.name for column in one.columns]) for one in readings], clear


def test_each_of_the_four_kinds_has_its_task_columns_and_tokenizer(tmp_path: Path) -> None:
    found = {}
    for name, write in strangers_data.FOUR.items():
        spec = spec_of(write(tmp_path / name))
        columns = spec.data.columns.model_dump(exclude_none=True) if spec.data.columns else {}
        found[name] = (spec.task, columns, spec.data.header, spec.data.tokenizer.type)  # type: ignore[attr-defined]
    assert found == {
        "pairs.tsv": ("translation", {"source": 1, "target": 2}, False, "char"),
        "novel.txt": ("language_modeling", {}, False, "byte"),
        "reviews.csv": ("language_modeling", {"text": "review"}, True, "byte"),
        "poems.jsonl": ("language_modeling", {"text": "text"}, False, "byte"),
    }


def test_documents_can_be_asked_to_have_words_hidden(tmp_path: Path) -> None:
    for name in ("novel.txt", "reviews.csv", "poems.jsonl"):
        spec = spec_of(strangers_data.FOUR[name](tmp_path / name), task="masked_lm")
        assert (spec.task, spec.architecture, spec.metric) == ("masked_lm", "bert", "val/loss")
    with pytest.raises(DataError, match="no column of text for masked_lm"):
        ways(strangers_data.FOUR["pairs.tsv"](tmp_path / "pairs.tsv"), "masked_lm")


def test_the_comments_tell_what_was_seen(tmp_path: Path) -> None:
    text = suggest.within(drafted(strangers_data.write_reviews(tmp_path / "My Reviews.csv")), 1e-4, slots=2).text()
    assert "\nname: my-reviews\n" in text
    assert "300 documents" in text.splitlines()[0]
    assert "# not used: id (code), date (date), stars (number), kind (category)" in text
    assert "2 at once" in text
    assert yaml.safe_load(text)["register"] == {"name": "my-reviews"}


def test_a_file_in_gb18030_is_read_by_name_and_by_characters(tmp_path: Path) -> None:
    spec = spec_of(strangers_data.write_chinese(tmp_path / "a.txt"))
    assert (spec.data.encoding, spec.data.tokenizer.type) == ("gb18030", "char")  # type: ignore[attr-defined]


def test_a_header_makes_names_of_columns(tmp_path: Path) -> None:
    spec = spec_of(strangers_data.write_pairs(tmp_path / "a.tsv", header="de\ten"))
    assert spec.data.header
    assert spec.data.columns is not None
    assert (spec.data.columns.source, spec.data.columns.target) == ("de", "en")


def test_what_is_clear_and_what_must_be_asked(tmp_path: Path) -> None:
    pairs = strangers_data.write_pairs(tmp_path / "a.tsv")
    assert ways(pairs) == ([("translation", [1, 2])], True)  # nothing but pairs is read from .tsv
    three = tmp_path / "b.csv"
    lines = [line.replace("\t", ",") for line in pairs.read_text().splitlines()]
    three.write_text("".join(f"{line},{line[::-1].split(',')[1]}\n" for line in lines))
    found, clear = ways(three)
    assert (found[0], clear) == (("translation", [1, 2]), False)
    assert ("language_modeling", [3]) in found
    assert ways(three, "language_modeling")[0][0][0] == "language_modeling"


def test_short_answers_of_digits_are_pairs_and_numbered_lines_are_not(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"the {n}th day of the year\t2024-{1 + n % 12:02}-{1 + n % 28:02}\n" for n in range(60)))
    spec = spec_of(path)
    assert (spec.task, spec.metric) == ("translation", "val/exact_match")
    path = tmp_path / "b.csv"
    path.write_text("".join(f"{n},sentence {chr(97 + n % 26)} is here\n" for n in range(90)))
    assert ways(path) == ([("language_modeling", [2])], True)


def test_data_without_a_text_is_told_with_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("".join(f"{n},{n * n},2024-01-0{1 + n % 9}\n" for n in range(40)))
    with pytest.raises(DataError, match=r"column of text is seen. There are: 1 \(number\), 2 \(number\), 3 \(date\)"):
        ways(path)
    with pytest.raises(DataError, match="no column of text for translation"):
        ways(strangers_data.write_novel(tmp_path / "b.txt"), "translation")


@pytest.mark.parametrize("count", [1, 19])
def test_too_little_is_refused_with_what_is_needed(tmp_path: Path, count: int) -> None:
    path = strangers_data.write_pairs(tmp_path / "a.tsv", count, header="source\ttarget")
    with pytest.raises(DataError, match=rf"{count} pairs .* at least 20 with 1.0 KB are needed"):
        drafted(path)
    (tmp_path / "b.txt").write_text("one line of a book. " * 100)
    with pytest.raises(DataError, match=r"1 documents .* Blank lines part the documents"):
        drafted(tmp_path / "b.txt")


def test_a_share_that_cannot_be_used_is_allowed_for_and_told(tmp_path: Path) -> None:
    path = strangers_data.write_pairs(tmp_path / "a.tsv")
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{line}\n" if n % 8 else f"{line}\tmore\tthan two\n" for n, line in enumerate(lines, 1)))
    text = drafted(path).text()
    assert 0.125 < yaml.safe_load(text)["data"]["max_bad_share"] < 0.2
    assert "12.5% cannot be used: rows with more or fewer columns" in text


def test_a_side_with_few_different_texts_splits_by_example(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"input": "is number {n} small?", "output": "it is {n % 7}"}}\n' for n in range(400)))
    spec = spec_of(path)
    assert (spec.task, spec.data.split.group_by) == ("translation", "example")


def test_chapters_of_a_book_stay_on_one_side(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        "".join(f'{{"book": "Book {n % 30}", "text": "a sentence with the number {n} in it"}}\n' for n in range(400))
    )
    assert spec_of(path).data.split.group_by == ("book",)


def test_lengths_come_from_the_quantiles_of_tokens(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{'ab ' * (n % 10 + 1)}x{n}\t{'é' * (n % 7)}c{n}\n" for n in range(500)))
    lengths = yaml.safe_load(drafted(path, "translation").text())["model"]["sequence_length"]
    longest = max(len(line.split("\t")[0]) for line in path.read_text().splitlines()) + 1
    assert lengths == sorted(set(lengths))
    assert longest - 8 <= lengths[-1] <= longest + 8


def test_the_budget_fills_the_time_within_what_the_data_bears(tmp_path: Path) -> None:
    made = drafted(strangers_data.write_pairs(tmp_path / "a.tsv"))
    fast = suggest.within(made, 1e-9, slots=2)
    assert fast.training["max_tokens"] == pytest.approx(60 * made.tokens_per_pass, rel=0.06)  # passes bound it
    middle = suggest.within(made, suggest.TRAINING_S / 400_000, slots=2)
    assert (middle.training["max_tokens"], middle.trials) == (pytest.approx(400_000, rel=0.4), 12)
    slow = suggest.within(made, 0.01, slots=1)
    assert slow.trials == 3
    assert slow.training["max_tokens"] >= 9 * 30 * made.training["batch_tokens"]
    assert {fast.model["dropout"], slow.model["dropout"]} <= {0.0, 0.1}


@pytest.mark.parametrize(
    ("stem", "name"),
    [("My File (2)", "my-file-2"), ("données", "donn-es"), ("---", "data"), ("a" * 99, "a" * 64), ("1984", "1984")],
)
def test_a_name_is_made_of_a_files_name(tmp_path: Path, stem: str, name: str) -> None:
    assert suggest.slug(stem) == name
    made = dataclasses.replace(drafted(strangers_data.write_pairs(tmp_path / "a.tsv")), name=name)
    assert parse(made.text(), file=str(tmp_path / "x.yaml")).name == name


@pytest.mark.parametrize("name", ["null", "on", "1e5"])
def test_a_name_that_yaml_would_read_as_something_else_is_quoted(tmp_path: Path, name: str) -> None:
    made = dataclasses.replace(drafted(strangers_data.write_pairs(tmp_path / "a.tsv")), name=name)
    spec = parse(made.text(), file=str(tmp_path / "x.yaml"))
    assert spec.name == spec.model_dump(by_alias=True)["register"]["name"] == name


def test_rows_with_an_empty_side_are_allowed_for(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(
        "".join(f"Sentence number {n} here\t{'' if n % 10 == 0 else f'Satz Nummer {n} hier'}\n" for n in range(600))
    )
    spec = spec_of(path)
    assert 0.1 < spec.data.max_bad_share < 0.2
    assert "10.0% cannot be used" in drafted(path).text()


def test_numbers_of_json_are_no_side_of_a_pair(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        "".join(
            json.dumps({"question": f"how much is {n} plus one, please?", "answer": n + 1}) + "\n" for n in range(400)
        )
    )
    assert spec_of(path).task == "language_modeling"
