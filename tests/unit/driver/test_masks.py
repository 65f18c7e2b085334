"""Masks in texts: read, written, filled by the likeliest words, and refused where there is nothing to fill."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from tuneyard_modules.decoding import Decoding
from tuneyard_pipelines import masks
from tuneyard_pipelines.data import TextTokenizer
from tuneyard_pipelines.errors import InputError
from tuneyard_pipelines.masks import Filler
from tuneyard_pipelines.spec import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer.train(["the quick brown fox, 春眠不覺曉"], Tokenizer(type="char"))


class Constant(nn.Module):
    """The same logits at every place, and what it was shown."""

    def __init__(self, logits_V: Tensor) -> None:
        super().__init__()
        self.logits_V = nn.Parameter(logits_V)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        self.shown = tokens_BT.tolist()
        return self.logits_V.expand(*tokens_BT.shape, -1)


@pytest.fixture
def filler(tokenizer: TextTokenizer) -> Filler:
    logits_V = torch.full((tokenizer.vocab_size + 1,), -5.0)
    for text, logit in (("q", 2.0), ("眠", 1.0), ("x", -1.0)):
        logits_V[tokenizer.encode(text)[0]] = logit
    logits_V[:4] = logits_V[-1] = 9.0  # special tokens and the mask itself are never told
    return Filler(Constant(logits_V).eval(), tokenizer, length=12)


def test_masks_are_read_and_written(tokenizer: TextTokenizer) -> None:
    mask_id = tokenizer.vocab_size
    ids = masks.read(tokenizer, "[MASK]the[MASK][MASK] fox", mask_id)
    assert ids == [mask_id, *tokenizer.encode("the"), mask_id, mask_id, *tokenizer.encode(" fox")]
    assert masks.written(tokenizer, ids, mask_id) == "[MASK]the[MASK][MASK] fox"


def test_the_likeliest_fill_and_every_choice_of_them_is_ranked(filler: Filler, tokenizer: TextTokenizer) -> None:
    (answer,) = filler.answers(["[MASK]uic[MASK]"], Decoding(beam=4, n_best=4), steps=True)
    assert [one.text for one in answer.candidates][::3] == ["quicq", "眠uic眠"]
    assert {one.text for one in answer.candidates} == {"quicq", "quic眠", "眠uicq", "眠uic眠"}
    assert filler.network.shown[0][-1] == 2, "the end of the text is shown"
    words = tokenizer.vocab_size - 4 - 3
    total = math.exp(2) + math.exp(1) + math.exp(-1) + words * math.exp(-5)
    assert answer.candidates[0].score == pytest.approx(math.log(math.exp(2) / total), rel=1e-5)
    first, second = answer.candidates[0].steps
    assert [token.text for token in first.likeliest[:3]] == ["q", "眠", "x"]
    assert first.taken.probability == pytest.approx(math.exp(2) / total, rel=1e-5)
    assert second.taken.text == "q"


def test_what_cannot_be_filled_is_refused_with_the_remedy(filler: Filler) -> None:
    none, long, good = filler.answers(["the", "[MASK]" + "t" * 12, "[MASK]"], Decoding())
    assert none.candidates[0].text == "the"
    assert none.notes == ("it has no [MASK], which stands for a token to be told: nothing was filled",)
    assert "it has 13 tokens, more than the 12 that the model sees at once" in long.notes[0]
    assert good.candidates[0].text == "q", "the others are answered all the same"
    with pytest.raises(InputError, match=r"^temperature: a mask is filled by its likeliest tokens"):
        filler.answers(["[MASK]"], Decoding(temperature=1.0))
    with pytest.raises(InputError, match="no probability for a text"):
        filler.scores(["[MASK]"], ["q"])


def test_a_text_of_which_nothing_is_known_is_told(filler: Filler) -> None:
    (answer,) = filler.answers(["ЖЖ[MASK]"], Decoding())
    assert "none of its tokens is known" in answer.notes[0]
    (answer,) = filler.answers(["[MASK]"], Decoding())
    assert answer.candidates[0].text == "q"
    assert answer.notes == ()
