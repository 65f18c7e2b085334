"""A first look: what kind of column each is, headers, encodings, languages, and files of every kind."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import strangers_data
from pyarrow import parquet

from tuneyard_pipelines.data import DataError, look
from tuneyard_pipelines.data.look import Look
from tuneyard_pipelines.spec import DataSpec


def kinds(seen: Look) -> list[tuple[str | int, str]]:
    return [(column.name, column.kind) for column in seen.columns]


def test_pairs_without_a_header(tmp_path: Path) -> None:
    seen = look.look(str(strangers_data.write_pairs(tmp_path / "a.tsv")))
    assert kinds(seen) == [(1, "text"), (2, "text")]
    assert (seen.header, seen.encoding, seen.read, seen.rows, seen.counted) == (False, "auto", 400, 400, True)
    assert [look.language(column.values) for column in seen.columns] == ["English", "German"]
    assert look.alike(*seen.columns)
    assert not look.same_language(*seen.columns)


@pytest.mark.parametrize("header", ["English\tGerman", "en\tde", "source\ttarget"])
def test_a_header_of_known_words_is_seen(tmp_path: Path, header: str) -> None:
    seen = look.look(str(strangers_data.write_pairs(tmp_path / "a.tsv", header=header)))
    assert (seen.header, seen.rows) == (True, 400)
    assert [name for name, _ in kinds(seen)] == header.split("\t")


@pytest.mark.parametrize("first", ["Hi.\tSalut.", "Hello there\tBonjour toi", "1\t2"])
def test_a_first_row_of_texts_is_no_header(tmp_path: Path, first: str) -> None:
    assert not look.look(str(strangers_data.write_pairs(tmp_path / "a.tsv", header=first))).header


def test_names_over_numbers_and_dates_are_a_header_in_any_language(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("Nummer,Satz\n" + "".join(f"{n},Der Satz hat die Nummer {n}\n" for n in range(30)))
    seen = look.look(str(path))
    assert kinds(seen) == [("Nummer", "number"), ("Satz", "text")]


def test_a_table_with_five_columns(tmp_path: Path) -> None:
    seen = look.look(str(strangers_data.write_reviews(tmp_path / "a.csv")))
    assert kinds(seen) == [
        ("id", "code"),
        ("date", "date"),
        ("stars", "number"),
        ("kind", "category"),
        ("review", "text"),
    ]


def test_a_note_that_stands_on_every_line_is_no_text(tmp_path: Path) -> None:
    lines = strangers_data.write_pairs(tmp_path / "a.tsv").read_text().splitlines()
    path = tmp_path / "b.tsv"
    path.write_text("".join(f"{line}\tCC-BY 2.0 (France) by user {n}\n" for n, line in enumerate(lines)))
    assert kinds(look.look(str(path))) == [(1, "text"), (2, "text"), (3, "note")]


def test_texts_that_all_begin_alike_stay_texts_where_there_are_no_others(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"Translate this, please: {n}\tdas ist Satz {n}\n" for n in range(30)))
    assert kinds(look.look(str(path))) == [(1, "text"), (2, "text")]


def test_lines_of_json_with_values_of_all_kinds(tmp_path: Path) -> None:
    seen = look.look(str(strangers_data.write_poems(tmp_path / "a.jsonl")))
    assert kinds(seen) == [("author", "category"), ("title", "text"), ("text", "text")]
    path = tmp_path / "b.jsonl"
    rows: list[dict[str, Any]] = [{"n": n, "x": {"y": 1}, "t": f"a text number {n}", "z": None} for n in range(30)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "broken\n")
    seen = look.look(str(path))
    assert kinds(seen) == [("n", "number"), ("x", "other"), ("t", "text"), ("z", "empty")]
    assert [(one.what, one.count) for one in seen.findings] == [("lines that are no JSON object", 1)]
    assert seen.bad_share == pytest.approx(1 / 31)


def test_parquet_and_gzip(tmp_path: Path) -> None:
    table = pa.table({"n": list(range(30)), "body": [f"words and words {n}" for n in range(30)]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert kinds(look.look(str(tmp_path / "a.parquet"))) == [("n", "number"), ("body", "text")]
    packed = tmp_path / "a.tsv.gz"
    packed.write_bytes(gzip.compress(strangers_data.write_pairs(tmp_path / "a.tsv").read_bytes()))
    assert look.look(str(packed)).rows == 400


def test_plain_text_is_documents_unless_tabs_part_it(tmp_path: Path) -> None:
    seen = look.look(str(strangers_data.write_novel(tmp_path / "a.txt", chapters=2)))
    assert (seen.columns, seen.rows) == ((), 2 * 26)
    assert seen.texts[0] == "Chapter 1"
    assert kinds(look.look(str(strangers_data.write_pairs(tmp_path / "b.txt")))) == [(1, "text"), (2, "text")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_an_encoding_that_a_file_tells_is_not_named(tmp_path: Path, encoding: str) -> None:
    assert look.look(str(strangers_data.write_novel(tmp_path / "a.txt", encoding=encoding))).encoding == "auto"


def test_an_encoding_that_must_be_named_is_found(tmp_path: Path) -> None:
    seen = look.look(str(strangers_data.write_chinese(tmp_path / "a.txt")))
    assert (seen.encoding, look.language(seen.texts)) == ("gb18030", "Chinese")


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\0\1\2 words " * 50)
    with pytest.raises(DataError, match="holds zero bytes"):
        look.look(str(tmp_path / "a.txt"))
    (tmp_path / "a.csv").write_text("a;b\n" * 30)
    with pytest.raises(DataError, match="parted by semicolons"):
        look.look(str(tmp_path / "a.csv"))
    (tmp_path / "a.tsv").write_text("")
    with pytest.raises(DataError, match="tells no columns"):
        look.look(str(tmp_path / "a.tsv"))
    with pytest.raises(DataError, match="no such file"):
        look.look(str(tmp_path / "b.tsv"))


def test_a_sample_is_taken_evenly_from_all_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "ROWS", 10)
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"row {n}\ttext {n}\n" for n in range(100)))
    seen = look.look(str(path))
    assert (seen.read, seen.rows, seen.counted) == (100, 100, True)
    assert 5 <= seen.sampled <= 10
    assert seen.columns[0].values[0] == "row 0"
    assert int(seen.columns[0].values[-1].split()[1]) >= 85


def test_rows_of_what_is_not_read_whole_are_judged_by_their_bytes(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(look, "_READ_CHARACTERS", 4_000)
    seen = look.look(str(strangers_data.write_pairs(tmp_path / "a.tsv")))
    assert not seen.counted
    assert seen.read < 100
    assert 350 <= seen.rows <= 450
    for name in ("b.tsv", "c.tsv"):
        strangers_data.write_pairs(tmp_path / name)
    assert 1_050 <= look.look(str(tmp_path / "*.tsv")).rows <= 1_350


def test_built_in_data_and_folders_are_looked_at_by_their_examples(tmp_path: Path) -> None:
    data = DataSpec.model_validate({"source": "builtin/dates", "examples": 5_000})
    seen = look.look_at_examples(data, "translation", seed=1)
    assert (kinds(seen), seen.rows) == ([("source", "text"), ("target", "text")], 5_000)
    strangers_data.write_reviews(tmp_path / "train.csv")
    folder = look.look_at_data_set("hub/a/b", tmp_path)
    assert dict(kinds(folder))["review"] == "text"
    assert dict(kinds(folder))["stars"] == "number"
    assert folder.source == "hub/a/b"


@pytest.mark.parametrize(
    ("texts", "scripts", "language"),
    [
        (["это просто слова"], ("Cyrillic",), ""),
        (["日本語のテキスト"], ("Han", "Kana"), "Japanese"),
        (["한국어 텍스트"], ("Hangul",), "Korean"),
        (["نص عربي"], ("Arabic",), ""),
        (["1234 5678"], (), ""),
        ([], (), ""),
    ],
)
def test_scripts_and_languages(texts: Sequence[str], scripts: tuple[str, ...], language: str) -> None:
    assert set(look.scripts(texts)) == set(scripts)
    assert look.language(texts) == language
