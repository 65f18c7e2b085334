"""Bytes carry any text there and back, and nothing in a text is a special token."""

from __future__ import annotations

import unicodedata
from types import SimpleNamespace

from hypothesis import example, given
from hypothesis import strategies as st

from tuneyard_pipelines.data import UNK, TextTokenizer

BYTES = TextTokenizer.train([], SimpleNamespace(type="byte"))


@given(st.text())
@example("<eos><pad>\x00\r\n \U0010ffff")
def test_any_text_comes_back_from_its_bytes(text):
    ids = BYTES.encode(text)
    normal = unicodedata.normalize("NFC", text)
    assert BYTES.decode(ids) == normal
    assert len(ids) == len(normal.encode())
    assert all(UNK < token < 260 for token in ids)
