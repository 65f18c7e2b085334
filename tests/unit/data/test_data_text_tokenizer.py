"""Tokenizers: nothing is lost, nothing can be forged, one file holds everything."""

from __future__ import annotations

import importlib.metadata
import json
import random
from dataclasses import dataclass

import pytest
import tokenizers

from tuneyard_pipelines.data import BOS, EOS, PAD, UNK, DataError, TextTokenizer, text_tokenizer
from tuneyard_pipelines.data.text_tokenizer import Piece


@dataclass(frozen=True)
class Config:
    type: str
    vocab_size: int = 300
    normalization: str = "nfc"
    segmenter: str = "none"
    vocabulary: str = "joint"


TEXTS = [
    "The quick brown fox. <pad> <bos> <eos> <unk>",
    "  two  spaces\tand a tab ",
    "词典 café ÿ <eos><eos><eos>",
    "<eos> " * 30,
]
KNOWN = [*TEXTS, "a <unk> b fox fox.", "café . .\tand\t"]
KINDS = [
    Config("char"),
    Config("word"),
    Config("word", segmenter="jieba"),
    Config("bpe"),
    Config("byte"),
    Config("unigram"),
    Config("unigram", normalization="nfkc"),
]


@pytest.fixture(params=KINDS, ids=lambda config: f"{config.type}-{config.segmenter}-{config.normalization}")
def tokenizer(request) -> TextTokenizer:
    return TextTokenizer.train(KNOWN, request.param)


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
    assert UNK not in tokenizer.encode("caf\u00e9")
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


def trained(texts, kind, **settings) -> TextTokenizer:
    return TextTokenizer.train(texts, Config(kind, **settings))


def spelled(tokenizer: TextTokenizer, text: str) -> list[str]:
    return [piece.text for piece in tokenizer.pieces(text)]


def test_a_word_is_one_token_at_the_beginning_and_after_a_blank():
    tokenizer = trained(["The cat sat,  the cat. The end"], "word")
    assert spelled(tokenizer, "The cat, The  cat.") == [" The", " cat", ",", " The", " ", " cat", "."]
    first, _, _, again, *_ = tokenizer.encode("The cat, The  cat.")
    assert first == again
    assert tokenizer.decode(tokenizer.encode("The cat, The  cat.")) == "The cat, The  cat."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("清华大学 Uni 大学", ["清", "华", "大", "学", " Uni", " ", "大", "学"]),
        ("ひらカナ", ["ひ", "ら", "カ", "ナ"]),
        ("ไทย", ["ไ", "ท", "ย"]),
        (" 大", [" ", " ", "大"]),
        ("नमस्ते दुनिया", [" नमस्ते", " दुनिया"]),
        ("x_1=\t2\r\n", [" x_1", "=", "\t", "2", "\r", "\n"]),
    ],
)
def test_words_of_many_scripts(text, words):
    tokenizer = trained([text], "word")
    assert spelled(tokenizer, text) == words
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_most_frequent_words_are_kept():
    texts = [f"often word{number}" for number in range(400)]
    tokenizer = trained(texts, "word", vocab_size=300)
    assert tokenizer.vocab_size == 300
    assert tokenizer.encode("often") == [4]
    unknown = tokenizer.encode("often never seen")
    assert unknown == [4, UNK, UNK]
    assert tokenizer.decode(unknown) == "often"
    assert tokenizer.unknown_characters("often never seen", unknown) == len(" never seen")
    assert trained(["a few"], "word").vocab_size == 4 + 2


def test_jieba_cuts_chinese_and_nothing_else():
    text = "我来到北京清华大学 in Beijing, 大学。"
    plain, cut = (trained([text], "word", segmenter=segmenter) for segmenter in ("none", "jieba"))
    assert spelled(cut, text) == ["我", "来到", "北京", "清华大学", " in", " Beijing", ",", " ", "大学", "。"]
    assert spelled(plain, text)[:4] == list("我来到北")
    assert (cut.requirements, plain.requirements) == (("rjieba",), ())


def test_the_library_alone_does_not_read_what_a_segmenter_cuts(tmp_path):
    trained(["清华大学"], "word", segmenter="jieba").save(tmp_path / "tokenizer.json")
    with pytest.raises(Exception, match="line 1"):
        tokenizers.Tokenizer.from_str(json.dumps(json.loads((tmp_path / "tokenizer.json").read_text())))


def test_a_segmenter_that_is_not_installed(monkeypatch, tmp_path):
    trained(["清华大学"], "word", segmenter="jieba").save(tmp_path / "tokenizer.json")

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    for act in (
        lambda: trained(["清华大学"], "word", segmenter="jieba"),
        lambda: TextTokenizer.load(tmp_path / "tokenizer.json"),
    ):
        with pytest.raises(DataError, match=r"jieba needs the package rjieba.*pip install rjieba"):
            act()


def test_unigram_finds_the_pieces_that_words_are_made_of():
    stems = ("walk", "talk", "jump", "look", "sing", "read")
    tokenizer = trained([f"{stem}{end} {stem}" for stem in stems for end in ("ing", "er", "s")] * 20, "unigram")
    assert spelled(tokenizer, "talking jumps") == [" talk", "ing", " jump", "s"]
    assert 4 + len({*"".join(stems), *"inger s"}) < tokenizer.vocab_size <= 300


def test_unigram_keeps_the_most_frequent_characters_where_all_would_take_more_than_half():
    rare = [chr(0x4E00 + number) for number in range(400)]
    tokenizer = trained([*rare, "ab" * 50], "unigram")
    assert tokenizer.vocab_size <= 300
    known = [character for character in rare if UNK not in tokenizer.encode(character)]
    assert known == rare[: (300 - 4) // 2 - 3]  # beside a, b and the blank
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab"


def test_unigram_reads_its_texts_twice():
    with pytest.raises(ValueError, match="give a list"):
        trained(iter(["abc"]), "unigram")


@pytest.mark.parametrize("kind", ["word", "bpe", "unigram"])
def test_a_vocabulary_is_learned_from_the_first_characters(monkeypatch, kind):
    monkeypatch.setattr(text_tokenizer, "LEARNED_CHARACTERS", 40)
    beyond = ["early " * 4, "early " * 2 + "e" * 4 + "late " * 500, "late " * 500]
    short, whole = trained(beyond, kind), trained(["early " * 6 + "eeee"], kind)
    assert short.encode("early late") == whole.encode("early late")
    monkeypatch.setattr(text_tokenizer, "LEARNED_CHARACTERS", 1 << 28)
    assert trained(beyond, kind).encode("early late") != short.encode("early late")


@pytest.mark.parametrize("kind", ["char", "word", "byte", "bpe", "unigram"])
def test_normal_forms(kind, tmp_path):
    text = "ﬁn cafe\u0301 Ａ"
    known = [text, "fin caf\u00e9 A"]
    expected = {"none": text, "nfc": "ﬁn caf\u00e9 Ａ", "nfkc": "fin caf\u00e9 A"}
    for form, normal in expected.items():
        tokenizer = trained(known, kind, normalization=form)
        tokenizer.save(tmp_path / "tokenizer.json")
        for made in (tokenizer, TextTokenizer.load(tmp_path / "tokenizer.json")):
            assert made.decode(made.encode(text)) == normal


def test_pieces_say_what_a_token_stands_for():
    assert trained([], "byte").pieces("é") == [
        Piece("\ufffd", 4 + 0xC3, b"\xc3", False),
        Piece("\ufffd", 4 + 0xA9, b"\xa9", False),
    ]
    [piece] = trained(["é" * 50], "bpe").pieces("é")
    assert (piece.text, piece.utf8, piece.unknown) == ("é", "é".encode(), False)
    known, unknown = trained(["the"], "word").pieces("the fox")
    assert known == Piece(" the", 4, b" the", False)
    assert unknown == Piece(" fox", UNK, b" fox", True)
    assert [piece.text for piece in trained(["ab"], "char").pieces("azzb")] == ["a", "z", "z", "b"]


def test_characters_without_a_token_are_counted(tokenizer):
    assert tokenizer.unknown_characters("fox", tokenizer.encode("fox")) == 0
    text = "fox ЖЖЖ"
    ids = tokenizer.encode(text)
    assert tokenizer.unknown_characters(text, ids) == (
        0 if UNK not in ids else 3 + (tokenizer.pieces(text)[-1].text[0] == " ")
    )


def test_what_follows_a_text_keeps_its_blank(tokenizer):
    text = "The fox. fox"
    ids = tokenizer.encode(text)
    assert tokenizer.continuation(tokenizer.encode("fox")).strip() == "fox"
    for cut in range(1, len(ids)):
        assert tokenizer.decode(ids[:cut]) + tokenizer.continuation(ids[cut:]) == text
    assert tokenizer.continuation([EOS, *ids]) == ""


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


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_long_texts_without_a_blank_are_learned_in_parts(kind):
    draws = random.Random(1)
    lines = ["".join(draws.choices("acgt", k=5_000)) for _ in range(3)]
    tokenizer = TextTokenizer.train(lines, Config(kind, 400))
    ids = tokenizer.encode(lines[0])
    assert tokenizer.decode(ids) == lines[0]
    assert len(ids) < 2_500
