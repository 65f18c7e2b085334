"""Files as they come: pairs and documents, whole, clean and in order; what is wrong is counted by kind and place."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from held_data import data_spec, read
from pyarrow import parquet
from real_data import TANG, TATOEBA

from tuneyard_pipelines.data import DataError, documents, lines, prepare, sources, tables
from tuneyard_pipelines.data.examples import Tally
from tuneyard_pipelines.errors import InputError

LM = "language_modeling"


def written(tmp_path: Path, content: str | bytes, name: str = "pairs.tsv") -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def failure(path: Path, task: str = "translation", **keys: object) -> str:
    with pytest.raises(DataError) as caught:
        read(path, task, **keys)
    assert isinstance(caught.value, InputError)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700
    return str(caught.value)


def left_out(path: Path, task: str = "translation", **keys: object) -> dict[str, tuple[int, str]]:
    _, found = read(path, task, **keys)
    return {what: (one.count, one.first) for what, one in found.items() if one.fate == "left out"}


def test_pairs_in_order(tmp_path):
    assert read(written(tmp_path, "Hi.\t嗨。\nRun.\t跑。\n")) == ([("Hi.", "嗨。"), ("Run.", "跑。")], {})


def test_byte_order_mark_carriage_returns_no_last_line_end(tmp_path):
    path = written(tmp_path, b"\xef\xbb\xbfHi.\tSalut.\r\nRun.\tCours.")
    assert read(path) == ([("Hi.", "Salut."), ("Run.", "Cours.")], {})


def test_only_line_feeds_end_a_line(tmp_path):
    assert read(written(tmp_path, "a\u2028b\tc\u0085d\x0ce\n"))[0] == [("a\u2028b", "c\u0085d\x0ce")]


def test_quotes_are_text_between_tabs(tmp_path):
    assert read(written(tmp_path, '"Hi\t"x" y\n'))[0] == [('"Hi', '"x" y')]


def test_normal_form_and_outer_white_space(tmp_path):
    assert read(written(tmp_path, " cafe\u0301 \t x  y\n"))[0] == [("caf\u00e9", "x  y")]


def test_columns_by_number_and_by_name(tmp_path):
    path = written(tmp_path, "id\tzh\ten\n1\t嗨\tHi\n")
    assert read(path, columns={"source": "en", "target": "zh"}, header=True)[0] == [("Hi", "嗨")]
    assert read(path, columns={"source": 3, "target": "zh"}, header=True)[0] == [("Hi", "嗨")]
    assert read(path, columns={"source": 2, "target": 3})[0] == [("zh", "en"), ("嗨", "Hi")]


def test_one_sided_pairs_blank_lines_and_other_widths(tmp_path):
    path = written(tmp_path, "a\tb\n\tb\na\t \n\n   \nc\td\n\t\na\tb\tc\nalone\n")
    pairs, found = read(path)
    assert pairs == [("a", "b"), ("c", "d")]
    assert {what: (one.fate, one.count, one.first) for what, one in found.items()} == {
        "pairs with an empty side": ("left out", 2, f"{path}:2"),
        "rows with more or fewer columns": ("left out", 2, f"{path}:8: 3 columns, line 1 has 2: 'a\\tb\\tc'"),
        "blank lines": ("kept", 3, f"{path}:4"),
    }


def test_control_characters_are_taken_out_and_counted(tmp_path):
    path = written(tmp_path, "a\x00b\tc\x1b[31md\n" + "e\tf\n" * 30)
    pairs, found = read(path)
    assert pairs[:2] == [("ab", "c[31md"), ("e", "f")]
    [(what, one)] = found.items()
    assert (one.fate, one.count, one.first) == ("mended", 1, f"{path}:1: {lines.shown(chr(0).join('ab'))}")
    assert "control characters" in what


@pytest.mark.parametrize("content", [b"a\tb\nc\td\r\ne\tf\rg\th\n", b"a\tb\rc\td\re\tf\ng\th"])
def test_any_mixture_of_line_ends(tmp_path, content):
    path = written(tmp_path, content)
    pairs, found = read(path)
    assert pairs == [("a", "b"), ("c", "d"), ("e", "f"), ("g", "h")]
    assert [(what, one.fate) for what, one in found.items()] == [("files with mixed line ends", "kept")]
    assert read(written(tmp_path, b"a\tb\rc\td\r"))[1] == {}


def test_text_from_right_to_left_is_kept_as_it_is(tmp_path):
    path = written(tmp_path, "shalom\tשָׁלוֹם\nsalaam\tسلام\n")
    pairs, found = read(path)
    assert pairs[1] == ("salaam", "سلام")
    assert found["texts with letters that run from right to left"].count == 2


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-32"])
def test_an_encoding_is_seen_by_its_mark(tmp_path, encoding):
    assert read(written(tmp_path, "Hi\t嗨\nRun\t跑\r\n".encode(encoding)))[0] == [("Hi", "嗨"), ("Run", "跑")]


TEXT = "早上好，今天天气很好\tGood morning\n我们一起去学校学习中文\tWe learn\n" * 40


JAPANESE = "今日は天気がいいですね\tthe weather is good\nありがとうございました\tthanks\n" * 40
TRADITIONAL = "早上好，今天天氣很好\tGood\n我們一起去學校學習中文\tWe learn\n" * 40
LATIN = "hello\thi\n" * 200 + "bonjour, c'était très bien à Besançon\tgood day\n" * 3


@pytest.mark.parametrize(
    ("text", "encoding", "name"),
    [
        (TEXT, "gb18030", "gb18030"),
        (TEXT, "gbk", "gb18030"),
        ("不是本地的不开心\tnot\n" * 40, "gb18030", "gb18030"),
        (TEXT, "utf-16-le", "utf-16-le"),
        (TEXT, "utf-16-be", "utf-16-be"),
        (TEXT, "utf-32-le", "utf-32-le"),
        (TRADITIONAL, "big5", "big5"),
        (TRADITIONAL, "gb18030", "gb18030"),
        (JAPANESE, "shift_jis", "cp932"),
        (JAPANESE, "euc-jp", "euc-jp"),
        ("안녕하세요 여러분\thello\n" * 40, "euc-kr", "euc-kr"),
        (LATIN, "latin-1", "cp1252"),
        ("доброе утро, как дела\tgood morning\n" * 40, "cp1251", "cp1251"),
    ],
)
def test_another_encoding_is_told_by_name_and_taken_when_it_is_named(tmp_path, text, encoding, name):
    path = written(tmp_path, text.encode(encoding))
    message = failure(path)
    foreign = next(line for line in text.splitlines() if not line.isascii())
    assert f"looks like {name}, in which a line reads {foreign[:20]!r}"[:-1] in message
    assert f"set data.encoding: {name}" in message
    assert read(path, encoding=name)[0][-1][0] == text.splitlines()[-1].split("\t")[0]


def test_no_text_at_all(tmp_path):
    assert "zero bytes: it is no text" in failure(written(tmp_path, bytes(range(1, 200)) * 9 + b"\0" * 200))


def test_a_mark_is_no_text_whatever_the_encoding_is_called(tmp_path):
    for name, encoding in (("UTF_8", "utf-8-sig"), ("u8", "utf-8-sig"), ("utf-16-le", "utf-16-le")):
        mark = "\ufeff" if encoding == "utf-16-le" else ""
        assert read(written(tmp_path, f"{mark}a\tb\n".encode(encoding)), encoding=name)[0] == [("a", "b")]


def test_an_encoding_that_it_is_not(tmp_path):
    assert "data.encoding is not what it is written in" in failure(written(tmp_path, b"a\tb\n" * 9), encoding="utf-32")


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.tsv")
    assert "no file but a device or a pipe" in failure(tmp_path / "pipe.tsv")
    (tmp_path / "loop.tsv").symlink_to(tmp_path / "loop.tsv")
    assert "Name another path" in failure(tmp_path / "loop.tsv")
    assert "File name too long" in failure(tmp_path / f"{'x' * 300}.tsv")


def test_a_row_that_swallows_others_counts_as_all_of_its_lines(tmp_path):
    rows = [f"aa {number},bb {number}" for number in range(100)]
    rows[10], rows[90] = '"aa 10,bb', 'aa 90",bb,90'
    path = written(tmp_path, "\n".join(rows), "a.csv")
    with pytest.raises(DataError, match=r"81 of 100 examples"):
        prepare(data_spec(path), 1, tmp_path / "cache")


def test_a_row_of_csv_with_a_line_that_is_no_text_is_left_out_whole(tmp_path):
    path = written(tmp_path, '"grün\n'.encode() + b'caf\xe9 middle\nlast",tgt\n' + "grün,b\n".encode() * 30, "a.csv")
    pairs, found = read(path)
    assert pairs == [("grün", "b")] * 30
    assert [(one.count, one.first) for one in found.values()] == [(3, f"{path}:1")]


def test_one_broken_line_of_a_file_with_carriage_returns_is_one_line(tmp_path):
    path = written(tmp_path, "é\tb\r".encode() * 30 + b"a\xff\tb\r")
    pairs, found = read(path)
    assert (len(pairs), found["lines that are not UTF-8"].count) == (30, 1)


def test_lines_that_are_not_utf8_are_counted(tmp_path):
    path = written(tmp_path, "é\tb\n".encode() * 30 + b"a\xff\tb\n" + b"c\td\n")
    pairs, found = read(path)
    assert len(pairs) == 31
    assert found["lines that are not UTF-8"].first == f"{path}:31: 'a\ufffd\\tb'"


def test_a_line_of_a_megabyte(tmp_path):
    path = written(tmp_path, b"a\tb\n" + b"x" * (tables.MAX_ROW + 5_000_000) + b"\nc\td\n")
    pairs, found = read(path)
    assert pairs == [("a", "b"), ("c", "d")]
    assert found["lines longer than 1,048,576 characters"].count == 1
    limit = written(tmp_path, b"a\t" + b"x" * (tables.MAX_ROW - 2) + b"\r\nc\td\n")
    assert len(read(limit)[0]) == 2


def test_packed_files(tmp_path):
    path = written(tmp_path, gzip.compress("Hi\t嗨\n".encode()), "a.tsv.gz")
    assert read(path)[0] == [("Hi", "嗨")]
    assert "this .gz is not whole" in failure(written(tmp_path, gzip.compress(b"a\tb\n" * 9000)[:-9], "b.tsv.gz"))
    assert "is no whole .gz (Not a gzipped file" in failure(written(tmp_path, b"a\tb\n", "c.tsv.gz"))


def test_a_pattern_is_all_its_files_in_order(tmp_path):
    for name in ("b.tsv", "a.tsv", "c.tsv"):
        written(tmp_path, f"{name}\tx\n", name)
    (tmp_path / "d.tsv").mkdir()
    assert [source for source, _ in read(tmp_path / "*.tsv")[0]] == ["a.tsv", "b.tsv", "c.tsv"]
    assert "no file fits this pattern" in failure(tmp_path / "z*.tsv")
    odd = written(tmp_path, "x\ty\n", "[1].tsv")
    assert read(odd)[0] == [("x", "y")]


def test_missing_file_folder_and_a_file_where_a_folder_should_be(tmp_path):
    assert "no such file" in failure(tmp_path / "missing.tsv")
    assert "no such file" in failure(written(tmp_path, "a\tb\n") / "more.tsv")
    (tmp_path / "folder.tsv").mkdir()
    assert "this is a folder" in failure(tmp_path / "folder.tsv")


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user's rights, which only root can")
def test_no_right_to_read(tmp_path):
    path = written(tmp_path, "a\tb\n")
    path.chmod(0)
    tmp_path.chmod(0o755)
    script = (
        "import os, pathlib\nfrom tuneyard_pipelines.data import DataError, lines\nos.seteuid(65534)\n"
        "try: lines.TextFile.look(pathlib.Path('pairs.tsv'))\nexcept DataError as error: print(error)"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    answer = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "Permission denied" in answer.stdout
    assert "chmod +r pairs.tsv" in answer.stdout


def test_columns_that_do_not_exist(tmp_path):
    path = written(tmp_path, "en\tzh\nHi\t嗨\n")
    message = failure(path, columns={"source": "en", "target": "fr"}, header=True)
    assert "no column 'fr'" in message
    assert "'en', 'zh'" in message
    assert "no column 3: line 1 has 2 columns" in failure(path, columns={"source": 1, "target": 3})
    assert "data.header is false" in failure(path, columns={"source": "en", "target": "zh"})
    assert "no column 2: line 1 has 1 column" in failure(written(tmp_path, "no tabs here\n"))
    twice = written(tmp_path, "en\ten\na\tb\n")
    assert "'en' is there 2 times" in failure(twice, columns={"source": "en", "target": 2}, header=True)


@pytest.mark.parametrize("content", ["", "source\ttarget\n", "\ta\n"])
def test_nothing_in_it(tmp_path, content):
    path = written(tmp_path, content)
    with pytest.raises(DataError, match=r"nothing in it can be used"):
        prepare(data_spec(path, header=content.startswith("source")), 1, tmp_path / "cache")


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
    raw = "\ufeff\r\n\r\nEine Zeile,\r\nnoch eine.\r\n \t\r\n\r\n  zwei\r\n\r\n\r\ndrei\r\n\r\n".encode()
    assert read(written(tmp_path, raw, "a.txt"), LM) == ([("Eine Zeile,\nnoch eine.",), ("  zwei",), ("drei",)], {})


@pytest.mark.parametrize("around", ["", "\n\n"])
def test_without_blank_lines_between_others_every_line_is_a_document(tmp_path, around):
    assert read(written(tmp_path, f"{around}eins\nzwei{around}", "a.txt"), LM)[0] == [("eins",), ("zwei",)]


def test_a_document_without_end_is_parted_and_none_of_it_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MAX_DOCUMENT", 50)
    path = written(tmp_path, "a\n\n" + "".join(f"line {number}\n" for number in range(20)), "a.txt")
    texts, found = read(path, LM)
    assert "\n".join(text for (text,) in texts[1:]) == "\n".join(f"line {number}" for number in range(20))
    assert max(len(text) for (text,) in texts) <= 50
    assert found["documents parted for their length"].fate == "mended"


def test_csv_with_quotes_commas_and_line_breaks(tmp_path):
    text = '\ufeffn,body\r\n1,"Er sagte: ""Ja, ja.""\r\n\r\nDann ging er."\r\n2,\r\n\r\n3,drei\r\n'
    path = written(tmp_path, text, "a.csv")
    texts, found = read(path, LM, columns={"text": "body"}, header=True)
    assert texts == [('Er sagte: "Ja, ja."\n\nDann ging er.',), ("drei",)]
    assert {what: one.count for what, one in found.items()} == {"empty texts": 1, "blank lines": 1}
    assert read(path, LM, columns={"text": 2})[0][0] == ("body",)


def test_csv_that_is_broken_costs_its_lines(tmp_path):
    path = written(tmp_path, 'a\n"b"c\nd\n"e\nf\ng\n', "a.csv")
    assert read(path, LM)[0] == [("a",), ("d",)]
    count, first = left_out(path, LM)["lines that are not CSV"]
    assert count == 4
    assert first.startswith(f"{path}:2 (")


def test_jsonl(tmp_path):
    rows = [{"text": "eins\n\nzwei", "n": 1}, {"n": [2], "text": "\u2028 drei"}, {"text": " \n"}]
    path = written(tmp_path, "\n".join(map(json.dumps, rows)) + "\n\n", "a.jsonl")
    texts, found = read(path, LM)
    assert texts == [("eins\n\nzwei",), ("\u2028 drei",)]
    assert {what: one.count for what, one in found.items()} == {"empty texts": 1, "blank lines": 1}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"text": 3}', "lines with a value that is no text"),
        ('{"text": null}', "lines with a value that is no text"),
        ('{"body": "a"}', "lines without a key 'text'"),
        ('{"text": "a"', "lines that are no JSON object"),
        ("[" * 100_000, "lines that are no JSON object"),
        (f'{{"n": {"9" * 5_000}}}', "lines that are no JSON object"),
        ('["a"]', "lines that are no JSON object"),
        ('{"text": "a\\ud83d"}', "lines with half a surrogate pair"),
    ],
)
def test_lines_of_json_that_cannot_be_used(tmp_path, line, what):
    path = written(tmp_path, f'{{"text": "a"}}\n{line}\n', "a.jsonl")
    count, first = left_out(path, LM)[what]
    assert count == 1
    assert first.startswith(f"{path}:2")
    assert len(first) < 300


def test_jsonl_without_the_key_in_any_line(tmp_path):
    path = written(tmp_path, '{"body": "a"}\n{"title": "b"}\n', "a.jsonl")
    assert "no line has all of the keys 'text'; there are 'body', 'title'" in failure(path, LM)


def test_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table(
        {"n": [1, 2, 3], "en": ["Hi", None, " Run "], "zh": pa.array(["嗨", "x", "跑"]).dictionary_encode()}
    )
    parquet.write_table(table, path)
    pairs, found = read(path, columns={"source": "en", "target": "zh"})
    assert pairs == [("Hi", "嗨"), ("Run", "跑")]
    assert {what: one.first for what, one in found.items()} == {"rows with a value that is no text": f"{path}, row 2"}
    assert "there is no column 'source': there are 'n', 'en', 'zh'" in failure(path)
    assert "column 'n' holds int64, no text" in failure(path, columns={"source": "n", "target": "zh"})
    assert "not a whole Parquet file" in failure(written(tmp_path, path.read_bytes()[:-20], "b.parquet"))


def test_documents_may_be_longer_than_the_csv_library_takes(tmp_path):
    long = "x" * 3_000_000
    assert read(written(tmp_path, f"{long}\n", "a.csv"), LM)[0] == [(long,)]
    assert read(written(tmp_path, json.dumps({"text": long}), "a.jsonl"), LM)[0] == [(long,)]


def test_tables_hold_pairs_too(tmp_path):
    path = written(tmp_path, 'de,en\n"Ja, ja.",Yes.\nNein.,\n', "a.csv")
    pairs, found = read(path, columns={"source": "en", "target": "de"}, header=True)
    assert (pairs, list(found)) == ([("Yes.", "Ja, ja.")], ["pairs with an empty side"])
    path = written(tmp_path, '{"en": " Yes.", "de": "Ja."}\n', "a.jsonl")
    assert read(path, columns={"source": "de", "target": "en"})[0] == [("Ja.", "Yes.")]


def test_duplicate_columns_of_texts_and_groups(tmp_path):
    path = written(tmp_path, "a\tb\tx\nc\td\ty\n")
    found = list(sources.examples(data_spec(path, split={"group_by": [3, 1]}), "translation", 1, Tally()))
    assert [example.keys for example in found] == [("x", "a", "a\0b"), ("y", "c", "c\0d")]


@pytest.mark.skipif(not TATOEBA.exists(), reason="needs the Tatoeba sentences")
def test_tatoeba():
    pairs, found = read(TATOEBA)
    assert len(pairs) == 26388
    assert pairs[0] == ("Hi.", "嗨。")
    assert found == {}


@pytest.mark.skipif(not TANG.exists(), reason="needs the Tang quatrains")
def test_tang_quatrains():
    texts, found = read(TANG, LM)
    assert texts[0] == ("四時運灰琯，一夕變冬春。送寒餘雪盡，迎歲早梅新。",)
    assert len(texts) + sum(one.count for one in found.values()) == len(TANG.read_text().splitlines())


def test_numbers_may_group_examples(tmp_path):
    lines_of = "".join(json.dumps({"text": f"text {number}", "doc": number % 3}) + "\n" for number in range(6))
    path = written(tmp_path, lines_of, "a.jsonl")
    spec = data_spec(path, split={"group_by": ["doc"]})
    assert [one.keys[0] for one in sources.examples(spec, LM, 1, Tally())] == ["0", "1", "2"] * 2
    table = pa.table({"text": ["a", "b"], "doc": [7, 8]})
    parquet.write_table(table, tmp_path / "a.parquet")
    spec = data_spec(tmp_path / "a.parquet", split={"group_by": ["doc"]})
    assert [one.keys[0] for one in sources.examples(spec, LM, 1, Tally())] == ["7", "8"]


def test_parquet_with_bytes_that_are_no_text(tmp_path):
    broken = pa.array([b"fine", b"\xff\xfe"], pa.binary()).view(pa.string())
    parquet.write_table(pa.table({"text": broken}), tmp_path / "a.parquet")
    assert "row 1 or one soon after it cannot be read ('utf-8' codec" in failure(tmp_path / "a.parquet", LM)


def test_lines_left_out_of_documents_are_a_share_of_the_lines(tmp_path):
    document = "eine Straße\n".encode() * 100 + b"\n"
    documents_of = b"".join(b"%d " % number + document for number in range(40))
    path = written(tmp_path, documents_of + b"\xff broken\n\n" * 3 + document, "a.txt")
    prepared = prepare(data_spec(path), 1, tmp_path / "cache", LM)
    assert (prepared.left_out, prepared.lines) == (3, 41 * 101 + 3)
    with pytest.raises(DataError, match=r"3 of 4,147 lines \(0\.1%\) cannot be used"):
        prepare(data_spec(path, max_bad_share=0.0005), 1, tmp_path / "cache", LM)
