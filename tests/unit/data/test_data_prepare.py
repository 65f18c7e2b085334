"""Prepared data: made once, found again, whole or not there, whoever else works or dies meanwhile."""

from __future__ import annotations

import importlib.metadata
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from held_data import data_spec

from tuneyard_pipelines.data import (
    DataError,
    PreparedData,
    TextTokenizer,
    arrow,
    count_vocabulary,
    encode,
    folders,
    prepare,
    text_tokenizer,
)
from tuneyard_pipelines.data.prepare import TokenCounts
from tuneyard_pipelines.data.splits import Ledger
from tuneyard_pipelines.data.tokens import EncodedSplit, TokenWriter
from tuneyard_pipelines.formulas import VocabSizes

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from tuneyard_pipelines.spec import DataSpec

FORK = multiprocessing.get_context("fork")  # spares each process the imports


@dataclass(frozen=True)
class Config:
    type: str = "char"
    vocab_size: int = 300
    normalization: str = "nfc"
    segmenter: str = "none"
    vocabulary: str = "joint"


def dates_or(source: str = "builtin/dates", **keys: object) -> DataSpec:
    """Four hundred dates, or what else; tenths are held back."""
    size = {"examples": 400} if source == "builtin/dates" else {}
    return data_spec(source, **{"split": {"validation": 0.1, "test": 0.1}, **size, **keys})


def tsv(path: Path, count: int = 60) -> Path:
    path.write_text("".join(f"source {number}\ttarget {number}\n" for number in range(count)), encoding="utf-8")
    return path


def start(work: Callable[..., object], *arguments: object) -> BaseProcess:
    """A process of its own that does `work` and sends what it returns, or the words of its DataError, down `pipe`."""

    def run() -> None:
        try:
            there.send(work(*arguments))
        except DataError as error:
            there.send(str(error))

    here, there = FORK.Pipe(duplex=False)
    process = FORK.Process(target=run)
    process.start()
    there.close()
    process.pipe = here
    return process


def texts(prepared: PreparedData, name: str) -> list[tuple[str, str]]:
    split = prepared.split(name)
    return list(zip(split["source"], split["target"], strict=True))


def test_splits_are_on_disk_mapped_and_complete(tmp_path):
    prepared = prepare(dates_or(), 1, tmp_path)
    assert prepared.examples == {"train": 320, "validation": 40, "test": 40}
    assert prepared.source == "builtin/dates"
    assert prepared.left_out == 0
    ids = []
    for name, count in prepared.examples.items():
        split = prepared.split(name)
        assert split.num_rows == count
        assert {key: feature.dtype for key, feature in split.features.items()} == {
            "id": "int64",
            "source": "string",
            "target": "string",
        }
        assert split.cache_files, "not mapped from a file"
        ids += split["id"][:]
    assert sorted(ids) == list(range(400))
    assert PreparedData.open(prepared.folder) == prepared


def test_no_text_of_one_split_is_in_another(tmp_path):
    prepared = prepare(dates_or(examples=2000), 1, tmp_path)
    for side in (0, 1):
        split = [{pair[side] for pair in texts(prepared, name)} for name in ("train", "validation", "test")]
        assert sum(map(len, split)) == len(set.union(*split))


def test_found_again_without_being_made_again(tmp_path):
    prepared = prepare(dates_or(), 1, tmp_path)
    made = (prepared.folder / "manifest.json").stat()
    again = prepare(dates_or(), 1, tmp_path)
    assert again == prepared
    assert (again.folder / "manifest.json").stat().st_ino == made.st_ino


def test_the_fingerprint_follows_everything_that_matters(tmp_path):
    first, second = tsv(tmp_path / "a.tsv"), tsv(tmp_path / "b.tsv", 61)
    settings = [
        (dates_or(), 1),
        (dates_or(), 2),
        (dates_or(examples=401), 1),
        (dates_or(split={"validation": 0.1, "test": 0.2}), 1),
        (dates_or(source=str(first)), 1),
        (dates_or(source=str(first), columns={"source": 2, "target": 1}), 1),
        (dates_or(source=str(first), header=True), 1),
        (dates_or(source=str(second)), 1),
    ]
    found = [prepare(data, seed, tmp_path / "cache") for data, seed in settings]
    assert len({prepared.fingerprint for prepared in found}) == len(settings)
    assert len({prepared.folder for prepared in found}) == len(settings)


def test_split_fingerprints_follow_their_own_texts_only(tmp_path):
    path = tsv(tmp_path / "a.tsv")
    one = prepare(dates_or(source=str(path)), 1, tmp_path / "cache")
    source, target = texts(one, "train")[0]
    path.write_text(path.read_text().replace(f"{source}\t{target}\n", f"{source}\t{target}!\n"))
    two = prepare(dates_or(source=str(path)), 1, tmp_path / "cache")
    assert two.fingerprint != one.fingerprint
    assert (texts(two, "test") == texts(one, "test")) == (two.test_fingerprint == one.test_fingerprint)
    assert (texts(two, "validation") == texts(one, "validation")) == (
        two.validation_fingerprint == one.validation_fingerprint
    )
    assert one.validation_fingerprint != one.test_fingerprint


def test_a_moved_file_is_the_same_and_a_changed_one_is_not(tmp_path):
    path = tsv(tmp_path / "a.tsv")
    before = prepare(dates_or(source=str(path)), 1, tmp_path / "cache")
    moved = path.rename(tmp_path / "b.tsv")
    assert prepare(dates_or(source=str(moved)), 1, tmp_path / "cache") == replace(before, source=str(moved))
    stamps = moved.stat()
    moved.write_text(moved.read_text().replace("target 7\n", "target X\n"))
    os.utime(moved, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    after = prepare(dates_or(source=str(moved)), 1, tmp_path / "cache")
    assert after.fingerprint != before.fingerprint
    assert any("target X" in pair[1] for name in after.examples for pair in texts(after, name))


def test_columns_header_and_left_out_pairs(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("n\tzh\ten\n" + "".join(f"{n}\t第{n}\tno. {n}\n" for n in range(50)) + "50\t\tempty\n")
    prepared = prepare(
        dates_or(source=str(path), columns={"source": "en", "target": "zh"}, header=True), 1, tmp_path / "cache"
    )
    assert prepared.left_out == 1
    assert sum(prepared.examples.values()) == 50
    assert sorted(pair for name in prepared.examples for pair in texts(prepared, name))[0] == ("no. 0", "第0")


def test_a_built_in_source_of_another_task(tmp_path):
    with pytest.raises(DataError, match=r"'builtin/stdlib' is nothing that translation takes\. It takes builtin/dates"):
        prepare(dates_or(source="builtin/stdlib"), 1, tmp_path)


def test_bad_data_leaves_nothing(tmp_path):
    with pytest.raises(DataError, match=r"the (test|validation) split is empty"):
        prepare(dates_or(examples=10, split={"validation": 0.01, "test": 0.01}), 1, tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def make_both(cache: Path) -> tuple[object, ...]:
    prepared = prepare(dates_or(examples=3000), 1, cache)
    encoded = encode(prepared, Config())
    return tuple((folder / "manifest.json").stat().st_ino for folder in (prepared.folder, encoded.folder)), prepared


def test_two_processes_at_once_make_one_result(tmp_path):
    both = [start(make_both, tmp_path) for _ in range(2)]
    answers = [one.pipe.recv() for one in both]
    for one in both:
        one.join()
    assert answers[0] == answers[1] == make_both(tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".lock"]


def prepare_and_stop_before(moment: str, cache: Path, ready: Connection) -> None:
    def stop(*_: object, **__: object) -> None:
        ready.send("now")
        time.sleep(600)

    if moment == "reading":
        arrow.Writer.append = stop
    elif moment == "splitting":
        Ledger.assign = stop
    else:
        folders._flush = stop
    prepare(dates_or(), 1, cache)


@pytest.mark.parametrize("moment", ["reading", "splitting", "flush"])
def test_killed_while_preparing(tmp_path, moment):
    here, there = FORK.Pipe(duplex=False)
    victim = start(prepare_and_stop_before, moment, tmp_path, there)
    assert here.recv() == "now"
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".lock", ".partial"]
    prepared = prepare(dates_or(), 1, tmp_path)
    assert texts(prepared, "train") == texts(prepare(dates_or(), 1, tmp_path / "undisturbed"), "train")
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.name != "undisturbed") == ["", ".lock"]


@pytest.mark.parametrize("damage", ["gone", "short", "manifest"])
def test_a_damaged_folder_is_made_again(tmp_path, damage):
    prepared = prepare(dates_or(), 1, tmp_path)
    arrow = next((prepared.folder / "test").glob("*.arrow"))
    before = texts(prepared, "test")
    if damage == "gone":
        arrow.unlink()
    elif damage == "short":
        os.truncate(arrow, 100)
    else:
        (prepared.folder / "manifest.json").write_text('{"facts": {')
    with pytest.raises(DataError, match="no whole prepared data"):
        PreparedData.open(prepared.folder)
    assert texts(prepare(dates_or(), 1, tmp_path), "test") == before


def test_a_file_that_changes_while_it_is_read(tmp_path):
    path = tsv(tmp_path / "a.tsv")

    def meanwhile(doing: str, share: float) -> None:
        if doing == "splitting":
            path.write_text(path.read_text().replace("target 7\n", "target X\n"))

    with pytest.raises(DataError, match=r"a\.tsv: it was changed while it was read"):
        prepare(dates_or(source=str(path)), 1, tmp_path / "cache", progress=meanwhile)
    assert [left.suffix for left in (tmp_path / "cache").iterdir()] == [".lock"]


def test_what_is_wrong_is_kept_with_the_data_and_held_to_the_share_each_time(tmp_path):
    path = tsv(tmp_path / "a.tsv")
    path.write_text(path.read_text() + "one side\t\n" * 2 + "source 1\ttarget 1\n")
    prepared = prepare(dates_or(source=str(path)), 1, tmp_path / "cache")
    assert prepared.left_out == 2
    assert [(one.what, one.fate, one.count) for one in prepared.findings] == [
        ("pairs with an empty side", "left out", 2),
        ("examples that stood before", "kept", 1),
    ]
    assert PreparedData.open(prepared.folder).findings == prepared.findings
    with pytest.raises(
        DataError, match=r"2 of 63 examples \(3\.2%\) cannot be used, more than data\.max_bad_share \(0\.01\)"
    ):
        prepare(dates_or(source=str(path), max_bad_share=0.01), 1, tmp_path / "cache")


def test_given_files_and_numbers(tmp_path):
    tsv(tmp_path / "a.tsv", 80)
    (tmp_path / "v.tsv").write_text("".join(f"valid {number}\tv {number}\n" for number in range(9)) + "source 3\tx\n")
    given = {"validation": str(tmp_path / "v.tsv"), "test": 12}
    prepared = prepare(dates_or(source=str(tmp_path / "a.tsv"), split=given), 1, tmp_path / "cache")
    assert prepared.examples == {"train": 68, "validation": 10, "test": 12}
    assert all(source.startswith(("valid", "source 3")) for source, _ in texts(prepared, "validation"))
    assert "training examples that share a text with a given split" in {one.what for one in prepared.findings}
    (tmp_path / "v.tsv").write_text("another\tone\n")
    assert prepare(dates_or(source=str(tmp_path / "a.tsv"), split=given), 1, tmp_path / "cache") != prepared


def test_grouped_by_a_column(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"text {number}\tziel {number}\tauthor {number % 20}\n" for number in range(200)))
    keys = {"validation": 0.1, "test": 0.1, "group_by": [3]}
    prepared = prepare(dates_or(source=str(path), split=keys), 1, tmp_path / "cache")
    authors = [{int(one.split()[1]) % 20 for one in prepared.split(name)["source"]} for name in prepared.examples]
    assert sum(map(len, authors)) == 20
    keys["group_by"] = "example"
    assert prepare(dates_or(source=str(path), split=keys), 1, tmp_path / "cache").examples["test"] == 20


def test_a_cache_that_cannot_be_written(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    with pytest.raises(
        DataError, match=r"prepared data cannot be written here \(Not a directory\).*TUNEYARD_HOME"
    ) as caught:
        prepare(dates_or(), 1, blocker / "cache")
    assert str(blocker) in str(caught.value)


def prepare_with_no_room(cache: Path) -> PreparedData:
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    return prepare(dates_or(), 1, cache)


def test_a_full_disk(tmp_path):
    victim = start(prepare_with_no_room, tmp_path)
    message = victim.pipe.recv()
    victim.join()
    assert "prepared data cannot be written here (File too large)" in message
    assert str(tmp_path) in message
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_whole_data_is_used_from_a_cache_that_cannot_be_written(tmp_path):
    prepared = prepare(dates_or(), 1, tmp_path)
    lock = next(tmp_path.glob("*.lock"))
    lock.unlink()
    lock.mkdir()  # no process can take this lock
    assert prepare(dates_or(), 1, tmp_path) == prepared


def test_encoded_splits(tmp_path):
    prepared = prepare(dates_or(), 1, tmp_path)
    encoded = encode(prepared, Config())
    for name in prepared.examples:
        raw, ids = prepared.split(name), encoded.split(name)
        assert ids["source"].flat.dtype == "uint16"
        assert ids.ids.tolist() == raw["id"][:]
        for side in ("source", "target"):
            if name == "train":
                assert [encoded.tokenizers[side].decode(row) for row in ids[side]] == raw[side][:]
            assert list(ids[side]) == encoded.tokenizers[side].encode_batch(raw[side][:])
    assert encoded.folder.is_relative_to(prepared.folder)
    assert PreparedData.open(prepared.folder) == prepared


@pytest.mark.parametrize("kind", ["char", "word", "byte", "bpe", "unigram"])
def test_each_column_may_have_a_vocabulary_of_its_own(tmp_path, kind):
    data = dates_or()
    prepared = prepare(data, 1, tmp_path)
    joint, separate = (encode(prepared, Config(kind, 290, vocabulary=name)) for name in ("joint", "separate"))
    assert joint.tokenizers["source"] is joint.tokenizers["target"]
    assert joint.sizes == VocabSizes(joint.tokenizers["target"].vocab_size)
    assert separate.folder != joint.folder
    assert {path.name for path in separate.folder.glob("tokenizer*")} == {
        "tokenizer.source.json",
        "tokenizer.target.json",
    }
    assert separate.sizes == VocabSizes(
        target=separate.tokenizers["target"].vocab_size, source=separate.tokenizers["source"].vocab_size
    )
    train = prepared.split("train")
    for side in ("source", "target"):
        alone = TextTokenizer.train(list(train[side]), Config(kind, 290))
        assert separate.tokenizers[side].vocab_size == alone.vocab_size
        assert list(separate.split("train")[side]) == alone.encode_batch(list(train[side]))
    if kind == "char":
        assert separate.sizes.target < separate.sizes.source <= joint.sizes.target
    counted, exact = count_vocabulary(data, Config(kind, 290, vocabulary="separate"), tmp_path, seed=1)
    assert (counted, exact) == (separate.sizes, True)


def test_what_a_vocabulary_lacks_is_counted_by_split_and_column(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(
        "".join(f"same w{number}\t{' '.join(str(number))}\n" for number in range(100, 200)), encoding="utf-8"
    )
    prepared = prepare(dates_or(source=str(path)), 1, tmp_path / "cache")
    for form in ("word", "unigram"):
        encoded = encode(prepared, Config(form))
        assert encoded.counts["train"]["source"].unknown == 0
    held = encode(prepared, Config("word")).counts["test"]
    texts = prepared.split("test")["source"]
    assert held["source"] == TokenCounts(2 * len(texts), len(texts), sum(len(text) - len("same") for text in texts))
    assert held["target"] == TokenCounts(3 * len(texts), 0, 0)
    assert encode(prepared, Config("word")).unknown_share("test") == pytest.approx(1 / 5)
    assert encode(prepared, Config("byte")).unknown_share("test") == 0.0


def test_learning_reads_the_columns_side_by_side(tmp_path, monkeypatch):
    """A source that alone fills what is read would leave nothing of the targets."""
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{'source ' * 9}{number}\ttarget {number}\n" for number in range(100)), encoding="utf-8")
    prepared = prepare(dates_or(source=str(path)), 1, tmp_path / "cache")
    monkeypatch.setattr(text_tokenizer, "LEARNED_CHARACTERS", 2_000)
    assert encode(prepared, Config("word")).tokenizers["target"].unknown_share("target") == 0.0


def test_a_segmenter_is_a_part_of_what_tokens_are_made_by(tmp_path, monkeypatch):
    prepared = prepare(dates_or(), 1, tmp_path)
    plain, cut = (encode(prepared, Config("word", segmenter=name)) for name in ("none", "jieba"))
    assert plain.folder != cut.folder
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1")
    assert encode(prepared, Config("word", segmenter="jieba")).folder not in (plain.folder, cut.folder)
    assert encode(prepared, Config("word")).folder == plain.folder


def test_a_text_without_tokens_and_many_ids(tmp_path):
    with TokenWriter(tmp_path / "none", ["text"], 300) as writer:
        writer.append([7], {"text": [[]]})
    with TokenWriter(tmp_path / "many", ["text"], 70_000) as writer:
        writer.append([1, 2], {"text": [[69_999, 4], []]})
        writer.append([], {"text": []})
        writer.append([5], {"text": [[4, 4, 5]]})
    none, many = (EncodedSplit.open(tmp_path / name, ["text"])["text"] for name in ("none", "many"))
    assert list(none) == [[]]
    assert list(many) == [[69_999, 4], [], [4, 4, 5]]
    assert many.lengths.tolist() == [2, 0, 3]
    assert many.shares_of(4) == pytest.approx([1 / 2, 0, 2 / 3])


def test_the_tokenizer_learns_from_training_only(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{chr(0x4E00 + number)}\t{chr(0x5E00 + number)}\n" for number in range(100)))
    prepared = prepare(dates_or(source=str(path)), 1, tmp_path / "cache")
    encoded = encode(prepared, Config())
    assert encoded.sizes.target == 4 + 2 * prepared.examples["train"]
    assert all(encoded.tokenizers["source"].unknown_share(source) == 1.0 for source, _ in texts(prepared, "test"))


def test_encoded_once_for_each_setting(tmp_path):
    prepared = prepare(dates_or(), 1, tmp_path)
    folders = [
        encode(prepared, Config(*setting)).folder for setting in (("char",), ("char", 999), ("bpe", 300), ("bpe", 280))
    ]
    assert folders[0] == folders[1]
    assert len(set(folders)) == 3
    assert encode(prepared, Config("bpe", 280)).sizes.target == 280


def test_silent_without_torch_and_with_nothing_in_the_home(tmp_path):
    script = """
import pathlib, sys
from tuneyard_pipelines.data import encode, prepare
from tuneyard_pipelines.spec import DataSpec, Tokenizer
data = DataSpec(source="builtin/dates", examples=400)
prepared = prepare(data, 1, pathlib.Path(sys.argv[1]))
prepared.split("train")[:], encode(prepared, Tokenizer(type="char")).split("train")
print({"torch", "tensorflow"} & set(sys.modules))
"""
    (tmp_path / "home").mkdir()
    variables = {"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    quiet = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "cache")],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (quiet.stdout, quiet.stderr) == ("set()\n", "")
    assert list((tmp_path / "home").iterdir()) == []


def test_the_manifest_is_readable(tmp_path):
    facts = json.loads((prepare(dates_or(), 1, tmp_path).folder / "manifest.json").read_text())["facts"]
    assert facts["examples"] == {"train": 320, "validation": 40, "test": 40}
