"""Bytes carry any text there and back, white space survives words, and nothing in a text is a special token."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import normalizers

from tuneyard_pipelines.data import UNK, TextTokenizer
from tuneyard_pipelines.spec import Tokenizer

LEARNED = ["the quick brown fox", "<eos><pad> <unk>\n  two", "清华大学 が สวัสดี"]
NORMAL = {
    "nfc": normalizers.NFC().normalize_str,
    "nfkc": normalizers.NFKC().normalize_str,
    "none": lambda text: text,
}


def tokenizer(kind: str, form: str, segmenter: str = "none") -> TextTokenizer:
    config = Tokenizer(type=kind, vocab_size=300, normalization=form, segmenter=segmenter)
    return TextTokenizer.train(LEARNED, config)


OF_BYTES = [(tokenizer(kind, form), form) for kind in ("byte", "bpe") for form in NORMAL]
OF_WORDS = [
    (tokenizer(kind, form, segmenter), form)
    for kind, segmenter in (("word", "none"), ("word", "jieba"), ("unigram", "none"), ("char", "none"))
    for form in NORMAL
]


@given(st.text(), st.sampled_from(OF_BYTES))
@example("<eos><pad>\x00\r\n \U0010ffff", OF_BYTES[0])
@example("e\u0301\u1100\u1161", OF_BYTES[2])
def test_any_text_comes_back_from_its_bytes(text, held):
    made, form = held
    ids = made.encode(text)
    assert made.decode(ids) == NORMAL[form](text)
    assert all(UNK < token < made.vocab_size for token in ids)


@given(st.text())
def test_a_byte_is_a_token(text):
    assert len(OF_BYTES[0][0].encode(text)) == len(NORMAL["nfc"](text).encode())


@pytest.mark.parametrize(
    "alphabet", ["<eospadunk> \n\t\u3000", "the \u00a0\u2028\r\n清学大が ส_1", "a \u0301\ufdd0\u200d\U0010ffffAé\x00"]
)
def test_a_text_of_known_words_comes_back_whole(alphabet):
    @given(st.text(st.sampled_from(alphabet)), st.sampled_from(OF_WORDS))
    def comes_back(text, held):
        made, form = held
        ids = made.encode(text)
        pieces = made.pieces(text)
        assert [piece.id for piece in pieces] == ids
        assert not {0, 1, 2} & set(ids)
        if UNK not in ids:
            assert made.decode(ids) == NORMAL[form](text)
            assert made.unknown_characters(text, ids) == 0
        else:
            assert made.unknown_characters(text, ids) >= ids.count(UNK)

    comes_back()


@given(st.text(), st.sampled_from(OF_BYTES + OF_WORDS))
def test_what_follows_a_text_is_decoded_as_its_rest(text, held):
    made, _ = held
    ids = made.encode(f"the quick{text}")
    first = made.encode("the")
    if ids[: len(first)] == first:
        assert made.decode(first) + made.continuation(ids[len(first) :]) == made.decode(ids)
