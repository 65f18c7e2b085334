"""Attention weights as a picture for people and as numbers for programs.

attention.png     one small map a layer (row) and head (column), for each kind of attention
attention.json    {"maps": [{"kind", "queries", "keys", "weights": layers x heads x queries x keys}]}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tuneyard_pipelines.objectives import AttentionMap

PICTURE, NUMBERS = "attention.png", "attention.json"
MOST_LAYERS, MOST_HEADS = 6, 8  # more maps would not be readable; the numbers hold all of them
MAP_INCHES = 2.6
_TINY, _SMALL = 5, 8  # points


def attention(folder: Path, maps: Sequence[AttentionMap], title: str) -> None:
    """Write both files."""
    numbers = [
        {
            "kind": one.kind,
            "queries": list(one.queries),
            "keys": list(one.keys),
            "weights": [
                [[[round(w, 4) for w in row] for row in head] for head in layer] for layer in one.weights.tolist()
            ],
        }
        for one in maps
    ]
    (folder / NUMBERS).write_text(json.dumps({"maps": numbers}, ensure_ascii=False), encoding="utf-8")
    _draw(folder / PICTURE, maps, title)


def _draw(path: Path, maps: Sequence[AttentionMap], title: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [(one, layer) for one in maps for layer in range(min(len(one.weights), MOST_LAYERS))]
    columns = max(min(one.weights.shape[1], MOST_HEADS) for one in maps)
    figure = Figure(figsize=(0.8 + MAP_INCHES * columns, 0.8 + MAP_INCHES * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{title}: where each token (row) looks (column)", fontsize=_SMALL + 2)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axes_row, (one, layer) in zip(grid, rows, strict=True):
        for head, axes in enumerate(axes_row):
            if head >= one.weights.shape[1]:
                axes.set_axis_off()
                continue
            axes.imshow(one.weights[layer, head].numpy(), cmap="viridis", vmin=0.0, vmax=1.0, aspect="auto")
            axes.set_title(f"{one.kind}, layer {layer + 1}, head {head + 1}", fontsize=_SMALL)
            axes.set_xticks(range(len(one.keys)), one.keys, fontsize=_TINY, rotation=90)
            axes.set_yticks(range(len(one.queries)), one.queries, fontsize=_TINY)
    figure.savefig(path, dpi=110)
