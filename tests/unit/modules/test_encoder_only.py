"""The encoder-only transformer: BERT's size, its start, its padding and its mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from tuneyard_modules.inspection import Attentive, attention_maps
from tuneyard_modules.transformer import EncoderOnly, TransformerConfig


def network(**changes: Any) -> EncoderOnly:
    shape = {"vocab_size": 19, "d_model": 16, "num_heads": 4, "num_layers": 2, "max_length": 12}
    torch.manual_seed(0)
    return EncoderOnly(TransformerConfig(**(shape | changes))).eval()


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(4, 18, (rows, length), generator=torch.Generator().manual_seed(rows * 31 + length))


def test_it_has_exactly_the_parameters_of_bert_without_segments() -> None:
    """Hugging Face's BertForMaskedLM of the base size has 109,514,298, two segments among them."""
    with torch.device("meta"):
        bert = EncoderOnly(TransformerConfig(30522, 768, 12, 12, max_length=512))
    assert sum(parameter.numel() for parameter in bert.parameters()) == 109_514_298 - 2 * 768


def test_it_starts_with_the_weights_of_bert() -> None:
    for name, weight in network(vocab_size=500, d_model=128, max_length=100).state_dict().items():
        if name.endswith("bias"):
            assert not weight.any()
        elif "norm" in name:
            assert (weight == 1).all()
        else:
            assert weight.std().item() == pytest.approx(0.02, rel=0.03), name


def test_its_own_choices_are_those_of_bert() -> None:
    config = network().config
    assert (config.norm, config.positions, config.activation) == ("post", "learned", "gelu")
    config = network(norm="pre", positions="rotary", activation="relu").config
    assert (config.norm, config.positions, config.activation) == ("pre", "rotary", "relu")


def test_every_place_sees_both_sides() -> None:
    model, tokens = network(), ids(1, 9)
    before = model(tokens)
    tokens[0, 5] = model.mask_id
    assert not torch.isclose(model(tokens), before, atol=1e-7).all(-1).any()


def test_padding_is_not_seen() -> None:
    model, tokens = network(), ids(2, 7)
    assert_close(model(F.pad(tokens, (0, 5)))[:, :7], model(tokens))
    maps = attention_maps(model, F.pad(tokens[0], (0, 5)))
    assert isinstance(model, Attentive)
    assert maps["self"].shape == (2, 4, 12, 12)
    assert not maps["self"][..., 7:].any()


def test_the_mask_is_the_last_id() -> None:
    assert network().mask_id == 18
    assert network().max_length == 12


def test_too_long_a_text_is_refused() -> None:
    with pytest.raises(ValueError, match="13 tokens is longer than max_length=12"):
        network()(ids(1, 13))


def test_dropout_acts_in_training_only() -> None:
    model, tokens = network(dropout=0.5), ids(2, 7)
    assert torch.equal(model(tokens), model(tokens))
    model.train()
    assert not torch.allclose(model(tokens), model(tokens))
