"""Prepared documents: split by bytes and by module, counted, encoded, found again; and vocabularies known before."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from held_data import data_spec
from real_data import TANG

from tuneyard_pipelines.data import UNK, DataError, PreparedData, count_vocabulary, encode, prepare, stdlib
from tuneyard_pipelines.spec import DataSpec

NAMES = ("train", "validation", "test")


@dataclass(frozen=True)
class Config:
    type: str = "byte"
    vocab_size: int = 300
    normalization: str = "nfc"
    segmenter: str = "none"
    vocabulary: str = "joint"


def tenths(source: str) -> DataSpec:
    return data_spec(source, split={"validation": 0.1, "test": 0.1})


def language(data: DataSpec, cache: Path, seed: int = 1) -> PreparedData:
    return prepare(data, seed, cache, "language_modeling")


def counted(data: DataSpec, config: Config, cache: Path) -> tuple[int, bool]:
    sizes, exact = count_vocabulary(data, config, cache, seed=1, task="language_modeling")
    assert sizes.source is None
    return sizes.target, exact


@pytest.fixture
def poems(tmp_path) -> DataSpec:
    path = tmp_path / "poems.jsonl"
    texts = [f"Zeile {number} é\n\n{'x' * (number % 7)}" for number in range(80)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, " ", *texts[:9]]))
    return tenths(str(path))


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> PreparedData:
    return language(data_spec("builtin/stdlib"), tmp_path_factory.mktemp("cache"))


def test_documents_are_on_disk_and_counted(poems, tmp_path):
    prepared = language(poems, tmp_path / "cache")
    assert prepared.columns == ("text",)
    assert sum(prepared.examples.values()) == 89
    assert prepared.left_out == 1
    for name in NAMES:
        split = prepared.split(name)
        assert {key: feature.dtype for key, feature in split.features.items()} == {"id": "int64", "text": "string"}
        assert prepared.text_bytes[name] == sum(len(text.encode()) for text in split["text"])
    assert PreparedData.open(prepared.folder) == language(poems, tmp_path / "cache") == prepared


def test_equal_documents_are_on_one_side(poems, tmp_path):
    prepared = language(poems, tmp_path / "cache")
    texts = [set(prepared.split(name)["text"]) for name in NAMES]
    assert sum(map(len, texts)) == len(set.union(*texts)) == 80


def test_no_module_and_no_text_of_the_standard_library_is_in_two_splits(python):
    sources = stdlib.read()
    module = dict(zip(sources.texts, sources.modules, strict=True))
    texts = [set(python.split(name)["text"]) for name in NAMES]
    modules = [{module[text] for text in split} for split in texts]
    assert sum(map(len, texts)) == len(set.union(*texts))
    assert sum(map(len, modules)) == len(set.union(*modules))
    assert python.version == stdlib.VERSION
    assert python.left_out == sources.left_out


def test_shares_of_the_standard_library_are_of_its_bytes(python):
    total = sum(python.text_bytes.values())
    assert python.text_bytes["test"] / total == pytest.approx(0.05, abs=0.002)
    assert python.text_bytes["validation"] / total == pytest.approx(0.05, abs=0.002)


def test_the_standard_library_is_encoded_by_bytes(python):
    encoded = encode(python, Config())
    for name in ("validation", "test"):
        split = encoded.split(name)
        assert list(split.columns) == ["text"]
        assert split["text"].flat.dtype == "uint16"
        assert len(split["text"].flat) == python.text_bytes[name]
        assert encoded.tokenizers["text"].decode(split["text"][3]) == python.split(name)[3]["text"]


def test_a_tokenizer_learns_from_training_documents_only(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n".join(chr(0x4E00 + number) for number in range(100)))
    prepared = language(tenths(str(path)), tmp_path / "cache")
    encoded = encode(prepared, Config("char"))
    assert encoded.sizes.target == 4 + prepared.examples["train"]
    assert all(ids == [UNK] for ids in encoded.split("test")["text"])


def test_the_way_a_file_is_read_is_part_of_its_fingerprint(tmp_path):
    found = []
    for name in ("a.txt", "a.csv", "a.tsv"):
        path = tmp_path / name
        path.write_text("".join(f"eins {number}\n" for number in range(40)))
        if name != "a.tsv":
            found.append(language(tenths(str(path)), tmp_path / "cache").fingerprint)
        if name != "a.txt":
            path.write_text("".join(f"eins {number}\t,zwei {number}\n" for number in range(40)))
            found.append(prepare(tenths(str(path)), 1, tmp_path / "cache").fingerprint)
    assert len(set(found)) == len(found) == 4


def test_a_source_that_does_not_fit_the_task(tmp_path):
    with pytest.raises(
        DataError, match=r"'builtin/dates' is nothing that language_modeling takes\. It takes builtin/st"
    ):
        language(tenths("builtin/dates"), tmp_path)
    with pytest.raises(DataError, match=r"'a\.tsv' is nothing that language_modeling takes"):
        language(tenths("a.tsv"), tmp_path)
    with pytest.raises(DataError, match=r"'builtin/stdlib' is nothing that translation takes"):
        prepare(tenths("builtin/stdlib"), 1, tmp_path)


def test_too_few_documents_are_told_as_documents(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("eins\nzwei\ndrei\n")
    with pytest.raises(DataError, match=r"the (test|validation) split is empty \(3 documents: train 3.*more documents"):
        language(tenths(str(path)), tmp_path / "cache")


def test_data_that_was_prepared_before_columns_were_kept_is_found_again(tmp_path):
    first = prepare(tenths("builtin/dates"), 1, tmp_path)
    manifest = first.folder / "manifest.json"
    held = json.loads(manifest.read_text())
    for fact in ("columns", "text_bytes", "version", "findings"):
        del held["facts"][fact]
    manifest.write_text(json.dumps(held))
    assert prepare(tenths("builtin/dates"), 1, tmp_path) == replace(first, text_bytes={}, version="", findings=())


@pytest.mark.parametrize("kind", ["char", "word", "byte", "bpe", "unigram"])
def test_a_vocabulary_is_known_once_the_data_is_encoded(poems, tmp_path, kind):
    cache = tmp_path / "cache"
    config = Config(kind, 290)
    before, exact = counted(poems, config, cache)
    assert exact == (kind == "byte")
    assert not cache.exists()
    size = encode(language(poems, cache), config).sizes.target
    assert counted(poems, config, cache) == (size, True)
    assert before >= size


def test_characters_are_counted_in_a_first_part(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("ab\n" * 10 + "cafe\u0301\n" * 10)
    assert counted(tenths(str(path)), Config("char"), tmp_path) == (4 + len("abcf\u00e9"), False)
    assert count_vocabulary(tenths("builtin/dates"), Config("char"), tmp_path, seed=1)[0].target > 100
    monkeypatch.setattr(sys.modules["tuneyard_pipelines.data.prepare"], "_COUNTED_CHARACTERS", 15)
    assert counted(tenths(str(path)), Config("char"), tmp_path) == (4 + 2, False)


def test_counting_reads_what_is_wrong_with_a_source(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        counted(tenths(str(tmp_path / "a.txt")), Config("char"), tmp_path)


@pytest.mark.skipif(not TANG.exists(), reason="needs the Tang quatrains")
def test_tang_quatrains(tmp_path):
    data = tenths(str(TANG))
    prepared = language(data, tmp_path)
    encoded = encode(prepared, Config("char"))
    assert prepared.text_bytes["test"] / sum(prepared.text_bytes.values()) == pytest.approx(0.1, abs=0.001)
    assert counted(data, Config("char"), tmp_path) == (encoded.sizes.target, True)
    assert encoded.tokenizers["text"].decode(encoded.split("train")["text"][0]) == prepared.split("train")[0]["text"]
