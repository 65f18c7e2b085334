"""Documents as they come, from plain text and tables: whole, clean, in order; a fault is named by file and line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tuneyard_pipelines.data import DataError, documents, pairs, tables

TANG = Path("/work/shared/data/tang-quatrains/quatrains.jsonl")


def written(tmp_path: Path, content: str | bytes, name: str) -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def failure(path: Path, **options) -> str:
    with pytest.raises(DataError) as caught:
        documents.read(path, **options)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700
    return str(caught.value)


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ("  indented\n\n\tmore  ", "  indented\n\n\tmore  "),
        ("\n \t\n  first\nlast  \n \n\n", "  first\nlast  "),
        ("a\r\nb\r\n", "a\nb"),
        ("cafe\u0301", "caf\u00e9"),
        (" \n\t\r\n", ""),
        ("", ""),
    ],
)
def test_a_document_is_cleaned(raw, kept):
    assert documents.clean(raw) == kept


def test_blank_lines_part_the_documents_of_a_text_file(tmp_path):
    raw = "\ufeff\n\nEine Zeile,\r\nnoch eine.\r\n \t\r\n\n  zwei\n\n\ndrei\n\n".encode()
    path = written(tmp_path, raw, "a.txt")
    found = documents.read(path)
    assert found.texts == ["Eine Zeile,\nnoch eine.", "  zwei", "drei"]
    assert found.empty == 0
    assert found.sha256 == hashlib.sha256(raw).hexdigest()


@pytest.mark.parametrize("around", ["", "\n\n"])
def test_without_blank_lines_between_others_every_line_is_a_document(tmp_path, around):
    assert documents.read(written(tmp_path, f"{around}eins\nzwei{around}", "a.txt")).texts == ["eins", "zwei"]


def test_csv_with_quotes_commas_and_line_breaks(tmp_path):
    text = '\ufeffn,body\r\n1,"Er sagte: ""Ja, ja.""\r\n\r\nDann ging er."\r\n2,\n\n3,drei\n'
    path = written(tmp_path, text, "a.csv")
    found = documents.read(path, text="body", header=True)
    assert found.texts == ['Er sagte: "Ja, ja."\n\nDann ging er.', "drei"]
    assert found.empty == 2
    assert documents.read(path, text=2).texts[0] == "body"


def test_jsonl(tmp_path):
    lines = [{"text": "eins\n\nzwei", "n": 1}, {"n": [2], "text": "\u2028 drei"}, {"text": " \n"}]
    path = written(tmp_path, "\n".join(map(json.dumps, lines)) + "\n\n", "a.jsonl")
    found = documents.read(path, text="text")
    assert found.texts == ["eins\n\nzwei", "\u2028 drei"]
    assert found.empty == 2


def test_documents_may_be_longer_than_the_csv_library_takes(tmp_path):
    long = "x" * 3_000_000
    assert documents.read(written(tmp_path, f"{long}\n", "a.csv")).texts == [long]
    assert documents.read(written(tmp_path, json.dumps({"text": long}), "a.jsonl"), text="text").texts == [long]


def test_tables_hold_pairs_too(tmp_path):
    path = written(tmp_path, 'de,en\n"Ja, ja.",Yes.\nNein.,\n', "a.csv")
    found = pairs.read(path, source="en", target="de", header=True)
    assert (found.pairs, found.empty) == ([("Yes.", "Ja, ja.")], 1)
    path = written(tmp_path, '{"en": " Yes.", "de": "Ja."}\n', "a.jsonl")
    assert pairs.read(path, source="de", target="en").pairs == [("Ja.", "Yes.")]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.csv", "a,b\nc,d,e\n", {}, ":2: 3 columns, but line 1 has 2: 'c,d,e'. Every line needs as many commas"),
        ("a.csv", 'a,b\n"x\ny",z\n"c,d\ne,f\n', {}, ":4: the row that begins here is not CSV (unexpected end of data"),
        ("a.csv", 'a\n"b"c\n', {}, ":2: the row that begins here is not CSV"),
        ("a.csv", "a,b\n", {"text": "c", "header": True}, ":1: there is no column 'c': the columns are 'a', 'b'"),
        ("a.csv", "a,b\n", {"text": 3}, ":1: there is no column 3: line 1 has 2 columns"),
        ("a.csv", "a\n", {"text": "a"}, ": column 'a' is a name, and data.header is false"),
        ("a.csv", b"a\n\xff\n", {}, ":2: byte 1 of the line, 0xff, is not UTF-8"),
        ("a.jsonl", '{"text": "a"}\n{"text": 3}\n', {"text": "text"}, ":2: 'text' is no text: '3'"),
        ("a.jsonl", '{"text": null}\n', {"text": "text"}, ":1: 'text' is no text: 'null'"),
        (
            "a.jsonl",
            '{"text": "a"}\n{"body": 3}\n',
            {"text": "text"},
            ":2: there is no key 'text': the keys are 'body'",
        ),
        ("a.jsonl", '{"text": "a"\n', {"text": "text"}, ":1: this line is not JSON"),
        ("a.jsonl", "[" * 100_000 + "\n", {"text": "text"}, ":1: this line is not JSON"),
        ("a.jsonl", f'{{"n": {"9" * 5_000}}}\n', {"text": "text"}, ":1: this line is not JSON"),
        ("a.jsonl", '["a"]\n', {"text": "text"}, ":1: this line holds no object"),
        ("a.jsonl", '{"text": "a\\ud83d"}\n', {"text": "text"}, ":1: 'text' holds half a surrogate pair"),
        ("a.txt", b"a\n\nb\xe9\n", {}, ":3: byte 2 of the line, 0xe9"),
        ("a.txt", " \n\n", {}, ": no document in this file (0 empty ones)"),
        ("a.csv", "text\n", {"header": True}, ": no document in this file"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, name, content, options, message):
    path = written(tmp_path, content, name)
    assert f"{path}{message}" in failure(path, **options)


def test_a_line_over_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_DOCUMENT_BYTES", 50)
    path = written(tmp_path, '{"text": "a"}\n' + "x" * 51, "a.jsonl")
    assert ":2: the line is longer than 50 bytes" in failure(path, text="text")


@pytest.mark.skipif(not TANG.exists(), reason="needs the Tang quatrains")
def test_tang_quatrains():
    found = documents.read(TANG, text="text")
    assert found.texts[0] == "四時運灰琯，一夕變冬春。送寒餘雪盡，迎歲早梅新。"
    assert len(found.texts) + found.empty == len(TANG.read_text().splitlines())
