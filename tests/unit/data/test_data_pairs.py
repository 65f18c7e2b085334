"""Tab-separated files as they come: every way in which one can be wrong is one message with place, value and remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuneyard_pipelines.data import DataError, lines, pairs, tables
from tuneyard_pipelines.errors import InputError

TATOEBA = Path("/work/shared/data/tatoeba-cmn-eng/cmn.txt")


def written(tmp_path: Path, content: str | bytes, name: str = "pairs.tsv") -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def failure(path: Path, **options) -> str:
    with pytest.raises(DataError) as caught:
        pairs.read(path, **options)
    assert isinstance(caught.value, InputError)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_reads_pairs_in_order(tmp_path):
    found = pairs.read(written(tmp_path, "Hi.\t嗨。\nRun.\t跑。\n"))
    assert found.pairs == [("Hi.", "嗨。"), ("Run.", "跑。")]
    assert found.empty == 0
    assert found.sha256 == lines.sha256(tmp_path / "pairs.tsv")


def test_byte_order_mark_carriage_returns_no_last_line_end(tmp_path):
    found = pairs.read(written(tmp_path, b"\xef\xbb\xbfHi.\tSalut.\r\nRun.\tCours."))
    assert found.pairs == [("Hi.", "Salut."), ("Run.", "Cours.")]


def test_only_line_feeds_end_a_line(tmp_path):
    found = pairs.read(written(tmp_path, "a\u2028b\tc\u0085d\x0ce\n"))
    assert found.pairs == [("a\u2028b", "c\u0085d\x0ce")]


def test_quotes_are_text(tmp_path):
    assert pairs.read(written(tmp_path, '"Hi\t"x" y\n')).pairs == [('"Hi', '"x" y')]


def test_normal_form_and_outer_white_space(tmp_path):
    assert pairs.read(written(tmp_path, " cafe\u0301 \t x  y\n")).pairs == [("caf\u00e9", "x  y")]


def test_columns_by_number_and_by_name(tmp_path):
    path = written(tmp_path, "id\tzh\ten\n1\t嗨\tHi\n")
    assert pairs.read(path, source="en", target="zh", header=True).pairs == [("Hi", "嗨")]
    assert pairs.read(path, source=3, target="zh", header=True).pairs == [("Hi", "嗨")]
    assert pairs.read(path, source=2, target=3).pairs == [("zh", "en"), ("嗨", "Hi")]


def test_pairs_with_an_empty_side_and_blank_lines_are_counted(tmp_path):
    found = pairs.read(written(tmp_path, "a\tb\n\tb\na\t \n\n   \nc\td\n"))
    assert found.pairs == [("a", "b"), ("c", "d")]
    assert found.empty == 4


def test_missing_file(tmp_path):
    assert "no such file" in failure(tmp_path / "missing.tsv")


def test_a_file_where_a_folder_should_be(tmp_path):
    assert "no such file" in failure(written(tmp_path, "a\tb\n") / "more.tsv")


def test_folder(tmp_path):
    (tmp_path / "folder.tsv").mkdir()
    assert "this is a folder" in failure(tmp_path / "folder.tsv")


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user's rights, which only root can")
def test_no_right_to_read(tmp_path):
    path = written(tmp_path, "a\tb\n")
    path.chmod(0)
    tmp_path.chmod(0o755)
    script = (
        "import os, pathlib\nfrom tuneyard_pipelines.data import DataError, pairs\nos.seteuid(65534)\n"
        "try: pairs.read(pathlib.Path('pairs.tsv'))\nexcept DataError as error: print(error)"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    answer = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "Permission denied" in answer.stdout
    assert "chmod +r pairs.tsv" in answer.stdout


@pytest.mark.parametrize("content", ["", "\n\n", "\ta\n", "source\ttarget\n"])
def test_nothing_in_it(tmp_path, content):
    header = content.startswith("source")
    if content == "\n\n":
        assert "there is no column" in failure(written(tmp_path, content))
    else:
        assert "no pair" in failure(written(tmp_path, content), header=header)


def test_a_line_with_another_number_of_columns(tmp_path):
    message = failure(written(tmp_path, "a\tb\nc\td\te\n"))
    assert ":2: 3 columns, but line 1 has 2" in message
    assert repr("c\td\te") in message
    assert "tab" in message
    assert ":3: 1 column," in failure(written(tmp_path, "a\tb\nc\td\nalone\n"))


def test_a_long_line_is_shown_cut(tmp_path):
    message = failure(written(tmp_path, "a\tb\n" + "x" * 5000 + "\n"))
    assert len(message) < 500 + len(str(tmp_path))


def test_bytes_that_are_not_utf8(tmp_path):
    message = failure(written(tmp_path, b"a\tb\n" + "嗨\t跑\n".encode("gb18030")))
    assert ":2: byte 1 of the line, 0xe0" in message
    assert "iconv" in message


def test_utf16(tmp_path):
    assert ":1: byte 1 of the line, 0xff" in failure(written(tmp_path, "a\tb\n".encode("utf-16")))


def test_a_column_that_does_not_exist(tmp_path):
    path = written(tmp_path, "en\tzh\nHi\t嗨\n")
    message = failure(path, source="en", target="fr", header=True)
    assert "no column 'fr'" in message
    assert "'en', 'zh'" in message
    assert "no column 3: line 1 has 2 columns" in failure(path, target=3)
    assert "no column 0" in failure(path, source=0)
    assert "data.header is false" in failure(path, source="en", target="zh")


def test_a_name_that_is_there_twice(tmp_path):
    assert "'en' is there 2 times" in failure(written(tmp_path, "en\ten\na\tb\n"), source="en", target=2, header=True)


def test_one_column(tmp_path):
    assert "no column 2: line 1 has 1 column" in failure(written(tmp_path, "no tabs here\n"))


def test_a_line_over_the_limit(tmp_path):
    message = failure(written(tmp_path, b"a\tb\n" + b"x" * (tables.MAX_ROW_BYTES + 1)))
    assert f":2: the line is longer than {tables.MAX_ROW_BYTES} bytes" in message


@pytest.mark.skipif(not TATOEBA.exists(), reason="needs the Tatoeba sentences")
def test_tatoeba():
    found = pairs.read(TATOEBA)
    assert len(found.pairs) == 26388
    assert found.pairs[0] == ("Hi.", "嗨。")
