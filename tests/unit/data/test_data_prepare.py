"""Prepared data: made once, found again, whole or not there, whoever else works or dies meanwhile."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tuneyard_pipelines.data import DataError, PreparedData, encode, folders, prepare
from tuneyard_pipelines.data.tokens import EncodedSplit, TokenWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

prepare_module = sys.modules["tuneyard_pipelines.data.prepare"]
FORK = multiprocessing.get_context("fork")  # spares each process the imports


@dataclass(frozen=True)
class Split:
    validation: float = 0.1
    test: float = 0.1


@dataclass(frozen=True)
class Columns:
    source: int | str
    target: int | str


@dataclass(frozen=True)
class Data:
    source: str = "builtin/dates"
    columns: Columns | None = None
    header: bool = False
    examples: int = 400
    split: Split = field(default_factory=Split)


@dataclass(frozen=True)
class Config:
    type: str = "char"
    vocab_size: int = 300
    normalization: str = "nfc"
    segmenter: str = "none"
    vocabulary: str = "joint"


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
    prepared = prepare(Data(), 1, tmp_path)
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
    prepared = prepare(Data(examples=2000), 1, tmp_path)
    for side in (0, 1):
        split = [{pair[side] for pair in texts(prepared, name)} for name in ("train", "validation", "test")]
        assert sum(map(len, split)) == len(set.union(*split))


def test_found_again_without_being_made_again(tmp_path):
    prepared = prepare(Data(), 1, tmp_path)
    made = (prepared.folder / "manifest.json").stat()
    again = prepare(Data(), 1, tmp_path)
    assert again == prepared
    assert (again.folder / "manifest.json").stat().st_ino == made.st_ino


def test_the_fingerprint_follows_everything_that_matters(tmp_path):
    first, second = tsv(tmp_path / "a.tsv"), tsv(tmp_path / "b.tsv", 61)
    settings = [
        (Data(), 1),
        (Data(), 2),
        (Data(examples=401), 1),
        (Data(split=Split(0.1, 0.2)), 1),
        (Data(source=str(first)), 1),
        (Data(source=str(first), columns=Columns(2, 1)), 1),
        (Data(source=str(first), header=True), 1),
        (Data(source=str(second)), 1),
    ]
    found = [prepare(data, seed, tmp_path / "cache") for data, seed in settings]
    assert len({prepared.fingerprint for prepared in found}) == len(settings)
    assert len({prepared.folder for prepared in found}) == len(settings)


def test_split_fingerprints_follow_their_own_texts_only(tmp_path):
    path = tsv(tmp_path / "a.tsv")
    one = prepare(Data(source=str(path)), 1, tmp_path / "cache")
    source, target = texts(one, "train")[0]
    path.write_text(path.read_text().replace(f"{source}\t{target}\n", f"{source}\t{target}!\n"))
    two = prepare(Data(source=str(path)), 1, tmp_path / "cache")
    assert two.fingerprint != one.fingerprint
    assert (texts(two, "test") == texts(one, "test")) == (two.test_fingerprint == one.test_fingerprint)
    assert (texts(two, "validation") == texts(one, "validation")) == (
        two.validation_fingerprint == one.validation_fingerprint
    )
    assert one.validation_fingerprint != one.test_fingerprint


def test_a_moved_file_is_the_same_and_a_changed_one_is_not(tmp_path):
    path = tsv(tmp_path / "a.tsv")
    before = prepare(Data(source=str(path)), 1, tmp_path / "cache")
    moved = path.rename(tmp_path / "b.tsv")
    assert prepare(Data(source=str(moved)), 1, tmp_path / "cache") == replace(before, source=str(moved))
    stamps = moved.stat()
    moved.write_text(moved.read_text().replace("target 7\n", "target X\n"))
    os.utime(moved, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    after = prepare(Data(source=str(moved)), 1, tmp_path / "cache")
    assert after.fingerprint != before.fingerprint
    assert any("target X" in pair[1] for name in after.examples for pair in texts(after, name))


def test_columns_header_and_left_out_pairs(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("n\tzh\ten\n" + "".join(f"{n}\t第{n}\tno. {n}\n" for n in range(50)) + "50\t\tempty\n")
    prepared = prepare(Data(source=str(path), columns=Columns("en", "zh"), header=True), 1, tmp_path / "cache")
    assert prepared.left_out == 1
    assert sum(prepared.examples.values()) == 50
    assert sorted(pair for name in prepared.examples for pair in texts(prepared, name))[0] == ("no. 0", "第0")


def test_an_unknown_built_in_source(tmp_path):
    with pytest.raises(DataError, match=r"'builtin/date' is nothing that translation takes\. It takes builtin/dates"):
        prepare(Data(source="builtin/date"), 1, tmp_path)


def test_bad_data_leaves_nothing(tmp_path):
    with pytest.raises(DataError, match=r"the (test|validation) split is empty"):
        prepare(Data(examples=3), 1, tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def make_both(cache: Path) -> tuple[object, ...]:
    prepared = prepare(Data(examples=3000), 1, cache)
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
    def stop(*_: object) -> None:
        ready.send("now")
        time.sleep(600)

    if moment == "first file":
        prepare_module._save = stop
    elif moment == "second file":
        save = prepare_module._save
        prepare_module._save = lambda *arguments: (save(*arguments), stop())
    else:
        folders._flush = stop
    prepare(Data(), 1, cache)


@pytest.mark.parametrize("moment", ["first file", "second file", "flush"])
def test_killed_while_preparing(tmp_path, moment):
    here, there = FORK.Pipe(duplex=False)
    victim = start(prepare_and_stop_before, moment, tmp_path, there)
    assert here.recv() == "now"
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".lock", ".partial"]
    prepared = prepare(Data(), 1, tmp_path)
    assert texts(prepared, "train") == texts(prepare(Data(), 1, tmp_path / "undisturbed"), "train")
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.name != "undisturbed") == ["", ".lock"]


@pytest.mark.parametrize("damage", ["gone", "short", "manifest"])
def test_a_damaged_folder_is_made_again(tmp_path, damage):
    prepared = prepare(Data(), 1, tmp_path)
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
    assert texts(prepare(Data(), 1, tmp_path), "test") == before


def test_a_cache_that_cannot_be_written(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    with pytest.raises(
        DataError, match=r"prepared data cannot be written here \(Not a directory\).*TUNEYARD_HOME"
    ) as caught:
        prepare(Data(), 1, blocker / "cache")
    assert str(blocker) in str(caught.value)


def prepare_with_no_room(cache: Path) -> PreparedData:
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    return prepare(Data(), 1, cache)


def test_a_full_disk(tmp_path):
    victim = start(prepare_with_no_room, tmp_path)
    message = victim.pipe.recv()
    victim.join()
    assert "prepared data cannot be written here (File too large)" in message
    assert str(tmp_path) in message
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_whole_data_is_used_from_a_cache_that_cannot_be_written(tmp_path):
    prepared = prepare(Data(), 1, tmp_path)
    lock = next(tmp_path.glob("*.lock"))
    lock.unlink()
    lock.mkdir()  # no process can take this lock
    assert prepare(Data(), 1, tmp_path) == prepared


def test_encoded_splits(tmp_path):
    prepared = prepare(Data(), 1, tmp_path)
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
    prepared = prepare(Data(source=str(path)), 1, tmp_path / "cache")
    encoded = encode(prepared, Config())
    assert encoded.sizes.target == 4 + 2 * prepared.examples["train"]
    assert all(encoded.tokenizers["source"].unknown_share(source) == 1.0 for source, _ in texts(prepared, "test"))


def test_encoded_once_for_each_setting(tmp_path):
    prepared = prepare(Data(), 1, tmp_path)
    folders = [
        encode(prepared, Config(*setting)).folder for setting in (("char",), ("char", 999), ("bpe", 300), ("bpe", 280))
    ]
    assert folders[0] == folders[1]
    assert len(set(folders)) == 3
    assert encode(prepared, Config("bpe", 280)).sizes.target == 280


def test_silent_without_torch_and_with_nothing_in_the_home(tmp_path):
    script = """
import pathlib, sys
from types import SimpleNamespace as Some
from tuneyard_pipelines.data import encode, prepare
from tuneyard_pipelines.spec import Tokenizer
split = Some(validation=0.1, test=0.1)
data = Some(source="builtin/dates", columns=None, header=False, examples=400, split=split)
encode(prepare(data, 1, pathlib.Path(sys.argv[1])), Tokenizer(type="char")).split("train")
import huggingface_hub.constants
print({"torch", "tensorflow"} & set(sys.modules), huggingface_hub.constants.HF_HUB_OFFLINE)
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
    assert (quiet.stdout, quiet.stderr) == ("set() True\n", "")
    assert list((tmp_path / "home").iterdir()) == []


def test_the_manifest_is_readable(tmp_path):
    facts = json.loads((prepare(Data(), 1, tmp_path).folder / "manifest.json").read_text())["facts"]
    assert facts["examples"] == {"train": 320, "validation": 40, "test": 40}
