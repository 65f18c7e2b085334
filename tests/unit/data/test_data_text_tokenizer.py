"""Tokenizers: nothing is lost, nothing can be forged, one file holds everything."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import tokenizers

from tuneyard_pipelines.data import BOS, EOS, PAD, UNK, DataError, TextTokenizer


@dataclass(frozen=True)
class Config:
    type: str
    vocab_size: int = 300


TEXTS = [
    "The quick brown fox. <pad> <bos> <eos> <unk>",
    "  two  spaces\tand a tab ",
    "词典 café ÿ <eos><eos><eos>",
    "<eos> " * 30,
]
KINDS = [Config("char"), Config("bpe"), Config("byte")]


@pytest.fixture(params=KINDS, ids=lambda config: config.type)
def tokenizer(request) -> TextTokenizer:
    return TextTokenizer.train(TEXTS, request.param)


@pytest.mark.parametrize("text", ["<eos>", "<pad>", "<bos><eos>", "a <unk> b", "<eos><eos><eos>", "<eos> "])
def test_special_tokens_cannot_be_forged(tokenizer, text):
    ids = tokenizer.encode(text)
    assert min(ids) > UNK
    assert len(ids) > 1
    assert tokenizer.decode(ids) == text


def test_special_tokens_cannot_be_forged_after_loading(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    assert min(TextTokenizer.load(tmp_path / "tokenizer.json").encode("<eos> <unk>")) > UNK


@pytest.mark.parametrize("text", [*TEXTS, "", " ", "   fox", "fox   ", "\tand\t", " .  . "])
def test_known_text_comes_back_whole(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.unknown_share(text) == 0.0


def test_canonically_equal_texts_have_the_same_ids(tokenizer):
    assert tokenizer.encode("cafe\u0301") == tokenizer.encode("caf\u00e9")
    assert tokenizer.decode(tokenizer.encode("cafe\u0301")) == "caf\u00e9"


def test_the_alphabet_is_in_normal_form_too():
    decomposed = TextTokenizer.train(["cafe\u0301"], Config("char"))
    assert decomposed.unknown_share("caf\u00e9") == 0.0


def test_char_has_every_character_of_the_texts_and_no_other():
    tokenizer = TextTokenizer.train(["abc", "cd\n"], Config("char"))
    assert tokenizer.vocab_size == 4 + len("abcd\n")
    assert tokenizer.encode("abzzd") == [*tokenizer.encode("ab"), UNK, UNK, *tokenizer.encode("d")]
    assert tokenizer.unknown_share("abzz") == 0.5
    assert tokenizer.decode(tokenizer.encode("abzzd")) == "abd"
    assert tokenizer.unknown_share("") == 0.0


def test_bpe_knows_every_text():
    tokenizer = TextTokenizer.train(["abc"], Config("bpe"))
    assert tokenizer.decode(tokenizer.encode("Ünïcödé 詞 \U0001f600")) == "Ünïcödé 詞 \U0001f600"
    assert tokenizer.unknown_share("詞") == 0.0


def test_a_byte_is_a_token():
    tokenizer = TextTokenizer.train([], Config("byte"))
    assert tokenizer.vocab_size == 260
    assert tokenizer.encode("\x00A\u00e9") == [4, 4 + 65, 4 + 0xC3, 4 + 0xA9]
    assert tokenizer.decode(range(4, 4 + 128)) == bytes(range(128)).decode()


def test_bytes_are_encoded_as_the_library_would(tmp_path):
    tokenizer = TextTokenizer.train([], Config("byte"))
    tokenizer.save(tmp_path / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in [*TEXTS, "".join(map(chr, range(0x250))), "詞\U0001f600"]:
        assert library.encode(text, add_special_tokens=False).ids == tokenizer.encode(text)


def test_bpe_merges_and_keeps_to_its_size():
    texts = [f"the number {number} is written here" for number in range(50)]
    small, large = (TextTokenizer.train(texts, Config("bpe", size)) for size in (260, 290))
    assert (small.vocab_size, large.vocab_size) == (260, 290)
    assert len(large.encode("the number")) < len(small.encode("the number")) == len("the number")


def test_bpe_too_small_for_the_bytes():
    with pytest.raises(DataError, match=r"data\.tokenizer\.vocab_size: 259 .*at least 260"):
        TextTokenizer.train(["abc"], Config("bpe", 259))


def test_decoding_stops_at_the_end_and_leaves_specials_out(tokenizer):
    ids = tokenizer.encode("fox")
    assert tokenizer.decode([BOS, *ids, PAD, EOS, *ids]) == "fox"
    assert tokenizer.decode([EOS]) == ""


def test_a_batch_is_encoded_as_its_texts(tokenizer):
    assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]


def test_the_same_texts_give_the_same_vocabulary(tokenizer, tmp_path):
    for config in KINDS:
        for name in ("one", "two"):
            TextTokenizer.train(TEXTS * 20, config).save(tmp_path / name)
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_saved_and_loaded(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]
    json.loads(path.read_text(encoding="utf-8"))
    loaded = TextTokenizer.load(path)
    assert loaded.vocab_size == tokenizer.vocab_size
    assert loaded.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
    assert loaded.decode(loaded.encode(TEXTS[1])) == TEXTS[1]


@pytest.mark.parametrize("content", [None, "", "{}", '{"version": "1.0"'])
def test_no_tokenizer_in_the_file(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=r"tokenizer\.json: no tokenizer can be read"):
        TextTokenizer.load(path)


def test_another_tokenizer_is_refused(tmp_path):
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(
        str(tmp_path / "other.json")
    )
    with pytest.raises(DataError, match="does not begin with <pad>"):
        TextTokenizer.load(tmp_path / "other.json")
