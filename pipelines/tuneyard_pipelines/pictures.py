"""Attention weights as a picture for people and as numbers for programs.

attention.png     one small map a layer (row) and head (column), for each kind of attention
attention.json    {"maps": [{"kind", "queries", "keys", "weights": layers x heads x queries x keys}]}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tuneyard_pipelines.journal import ATTENTION_NUMBERS as NUMBERS
from tuneyard_pipelines.journal import ATTENTION_PICTURE as PICTURE
from tuneyard_pipelines.objectives import AttentionMap

if TYPE_CHECKING:
    from PIL import Image, ImageFont

MOST_LAYERS, MOST_HEADS = 6, 8  # more maps would not be readable; the numbers hold all of them
MOST_CHARACTERS = 10  # of a token beside a map
_CELL, _FONT, _LABEL, _GAP, _TITLE = 11, 10, 70, 12, 18  # pixels


def attention(folder: Path, maps: Sequence[AttentionMap], title: str) -> None:
    """Write both files; none where there are no maps."""
    if not maps:
        return
    numbers = [
        {
            "kind": one.kind,
            "queries": list(one.queries),
            "keys": list(one.keys),
            "weights": np.round(one.weights.numpy(), 4).tolist(),
        }
        for one in maps
    ]
    (folder / NUMBERS).write_text(json.dumps({"maps": numbers}, ensure_ascii=False), encoding="utf-8")
    _draw(maps, title).save(folder / PICTURE)


def _draw(maps: Sequence[AttentionMap], title: str) -> Image.Image:
    """All maps on one picture; drawn pixel by pixel, since a plotting library takes a second for thirty tokens."""
    from PIL import Image, ImageDraw

    font = _font()
    rows = [(one, layer) for one in maps for layer in range(min(len(one.weights), MOST_LAYERS))]
    columns = max(min(one.weights.shape[1], MOST_HEADS) for one in maps)
    width = columns * (_LABEL + _CELL * max(len(one.keys) for one in maps) + _GAP) + _GAP
    heights = [_TITLE + _CELL * len(one.queries) + _LABEL + _GAP for one, _ in rows]
    picture = Image.new("RGB", (max(width, 420), 2 * _TITLE + sum(heights)), "white")
    pen = ImageDraw.Draw(picture)
    pen.text((_GAP, 4), f"{title}: where each token (row) looks (column), from 0 dark to 1 bright", "black", font)
    top = 2 * _TITLE
    for (one, layer), height in zip(rows, heights, strict=True):
        for head in range(min(one.weights.shape[1], MOST_HEADS)):
            left = _GAP + head * (_LABEL + _CELL * len(one.keys) + _GAP) + _LABEL
            pen.text((left, top), f"{one.kind}, layer {layer + 1}, head {head + 1}", "black", font)
            cells = Image.fromarray(_colours(one.weights[layer, head].numpy()))
            size = (_CELL * len(one.keys), _CELL * len(one.queries))
            picture.paste(cells.resize(size, Image.Resampling.NEAREST), (left, top + _TITLE))
            for place, token in enumerate(one.queries):
                pen.text((left - 3, top + _TITLE + _CELL * place), token[:MOST_CHARACTERS], "black", font, anchor="ra")
            picture.paste(_columns(one.keys, font), (left, top + _TITLE + size[1] + 3))
        top += height
    return picture


def _columns(tokens: Sequence[str], font: ImageFont.FreeTypeFont) -> Image.Image:
    """The tokens under a map, each read from the bottom up to its column."""
    from PIL import Image, ImageDraw

    lying = Image.new("RGB", (_LABEL, _CELL * len(tokens)), "white")
    pen = ImageDraw.Draw(lying)
    for place, token in enumerate(tokens):
        pen.text((_LABEL, _CELL * place), token[:MOST_CHARACTERS], "black", font, anchor="ra")
    return lying.transpose(Image.Transpose.ROTATE_90)


def _colours(weights: np.ndarray) -> np.ndarray:
    """Weights of 0 to 1 as red, green and blue of viridis."""
    from matplotlib import colormaps

    rgba: np.ndarray = colormaps["viridis"](np.clip(weights, 0.0, 1.0), bytes=True)
    return np.ascontiguousarray(rgba[..., :3])


def _font() -> ImageFont.FreeTypeFont:
    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), _FONT)
