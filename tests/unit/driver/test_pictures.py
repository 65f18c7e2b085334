"""Attention maps for people and programs: every token is drawn as it is, and the numbers are those of the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from tuneyard_pipelines import pictures
from tuneyard_pipelines.objectives import AttentionMap

TOKENS = ["<start>", "$$", "$\\fra$", "窗", "␣w", "⏎"]


def maps(layers: int = 2, heads: int = 3) -> AttentionMap:
    weights = torch.rand(layers, heads, len(TOKENS), len(TOKENS), generator=torch.Generator().manual_seed(1)).tril()
    return AttentionMap("self", weights / weights.sum(-1, keepdim=True), TOKENS, TOKENS)


def test_the_numbers_are_the_weights_and_the_tokens(tmp_path: Path) -> None:
    shown = maps()
    pictures.attention(tmp_path, [shown], "t001")
    [one] = json.loads((tmp_path / pictures.NUMBERS).read_text())["maps"]
    assert (one["kind"], one["queries"], one["keys"]) == ("self", TOKENS, TOKENS)
    assert torch.tensor(one["weights"]).allclose(shown.weights, atol=1e-4)


def test_the_picture_holds_a_map_for_each_layer_and_head(tmp_path: Path) -> None:
    pictures.attention(tmp_path, [maps()], "t001")
    small = Image.open(tmp_path / pictures.PICTURE).convert("RGB")
    colours = {colour for _, colour in small.getcolors(1 << 20) or []}
    assert (253, 231, 36) in colours, "the first token sees nothing but itself: viridis at 1"
    pictures.attention(tmp_path, [maps(layers=4), maps(heads=8)], "t001")
    large = Image.open(tmp_path / pictures.PICTURE)
    assert large.height > 2 * small.height
    assert large.width > 2 * small.width


@pytest.mark.parametrize("layers", [1, 50])
def test_so_many_layers_as_can_be_read(tmp_path: Path, layers: int) -> None:
    pictures.attention(tmp_path, [maps(layers=layers, heads=40)], "t001")
    assert Image.open(tmp_path / pictures.PICTURE).height < 2000


def test_a_network_without_attention_leaves_nothing(tmp_path: Path) -> None:
    pictures.attention(tmp_path, [], "t001")
    assert list(tmp_path.iterdir()) == []
