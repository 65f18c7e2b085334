"""Scores over the space that was searched: parallel coordinates of its keys; maps of heads, layers and length."""

from __future__ import annotations

import math
from typing import Any

from tuneyard_pipelines.report.axes import SCORE_FACTOR, axis, escaped, grouped, key_labels, varied_keys
from tuneyard_pipelines.report.style import SCALE, drawn
from tuneyard_pipelines.report.trials import (
    Figure,
    Omitted,
    Sweep,
    Trial,
    comparable,
    cost,
    counted,
    number,
)

HEADS, LAYERS, LENGTH = "model.num_heads", "model.num_layers", "model.sequence_length"
MOST_LINES = 2000
MOST_LENGTHS, MOST_CELLS = 9, 12
_COLUMNS = 3


def parallel_coordinates(sweep: Sweep) -> Figure | Omitted:
    """One line a trial across its keys to its score; a key that its variant does not vary is at the tick `-`."""
    name, title = "parallel_coordinates", "Parallel coordinates"
    keys = varied_keys(sweep.trials)
    compared = comparable(sweep)
    if not keys:
        return Omitted(name, title, "no key is varied.")
    if not compared.trials:
        return Omitted(name, title, "no trial has a score yet.")
    pairs = sorted(
        zip(compared.trials, compared.scores, strict=True), key=lambda pair: cost(pair[1], sweep.mode), reverse=True
    )  # the best is drawn last and lies on top
    if len(pairs) > MOST_LINES:
        pairs = [pairs[index * (len(pairs) - 1) // (MOST_LINES - 1)] for index in range(MOST_LINES)]
    trials, scores = [trial for trial, _ in pairs], [score for _, score in pairs]
    short = key_labels(keys)
    dimensions = [_dimension(short[key], [trial.point.get(key) for trial in trials]) for key in keys]
    if sweep.variants:
        dimensions.insert(0, _dimension("variant", [trial.variant or None for trial in trials]))
    dimensions.append(_dimension(sweep.metric, [float(score) for score in scores], continuous=True))
    ends = dimensions[-1]
    line = {
        "color": ends["values"],
        "colorscale": SCALE,
        "reversescale": sweep.mode == "max",
        "showscale": True,
        "colorbar": {"thickness": 12, "tickvals": ends["tickvals"], "ticktext": ends["ticktext"]},
    }
    trace = {
        "type": "parcoords",
        "line": line,
        "dimensions": dimensions,
        "labelfont": {"size": 14},
        "tickfont": {"size": 12},
        "rangefont": {"size": 1, "color": "rgba(0,0,0,0)"},
    }
    longest = max(len(text) for text in dimensions[0]["ticktext"])
    figure = drawn([trace], height=460, margin={"l": 40 + 7 * longest, "r": 60, "t": 70, "b": 40})
    left_out = len(sweep.trials) - len(compared.trials)
    without = f"; {counted(left_out, 'trial')} without a score there {'is' if left_out == 1 else 'are'} left out"
    thin = f" Of {len(compared.trials):,} lines, {len(trials):,} evenly by score are drawn." * (
        len(trials) < len(compared.trials)
    )
    caption = (
        f"One line a trial, from its keys to its {sweep.metric} at {compared.place} ({counted(len(trials), 'line')}"
        f"{without if left_out else ''}); darker is better, and a drag along an axis keeps only the lines that pass "
        f"there.{thin}"
    )
    return Figure(name, title, caption, figure)


def heads_layers_map(sweep: Sweep) -> Figure | Omitted:
    """A heat map for each sequence length: the best score of every pair of heads and layers that was tried."""
    name, title = "heads_layers_length", "Heads and layers for each sequence length"
    varied = [key for key in (HEADS, LAYERS, LENGTH) if key in varied_keys(sweep.trials)]
    compared = comparable(sweep)
    if len(varied) < 2:
        told = f"only {varied[0]} is varied" if varied else "none of them is varied"
        return Omitted(name, title, f"it takes two of {HEADS}, {LAYERS} and {LENGTH}, and {told}.")
    whole = [all(key in trial.values for key in varied) for trial in compared.trials]
    trials = [trial for trial, has in zip(compared.trials, whole, strict=True) if has]
    scores = [score for score, has in zip(compared.scores, whole, strict=True) if has]
    if not trials:
        return Omitted(name, title, "no trial that has these keys has a score yet.")
    heads, layers, lengths = (
        grouped([trial.values.get(key) for trial in trials], most)
        for key, most in ((HEADS, MOST_CELLS), (LAYERS, MOST_CELLS), (LENGTH, MOST_LENGTHS))
    )
    cells: dict[tuple[int, int, int], list[tuple[float, Trial]]] = {}
    for trial, score, length, layer, head in zip(trials, scores, lengths.of, layers.of, heads.of, strict=True):
        cells.setdefault((length or 0, layer or 0, head or 0), []).append((score, trial))
    facets = max(1, len(lengths.labels))
    columns = min(_COLUMNS, facets)
    grid = _grid(facets, columns)
    traces = [
        _facet(sweep, {key[1:]: found for key, found in cells.items() if key[0] == facet}, heads, layers, facet)
        for facet in range(facets)
    ]
    axes: dict[str, Any] = {}
    for facet, (x, y) in enumerate(grid):
        suffix = "" if facet == 0 else str(facet + 1)
        axes[f"xaxis{suffix}"] = _ticks(heads.labels, "heads") | {"domain": x, "anchor": f"y{suffix}"}
        axes[f"yaxis{suffix}"] = _ticks(layers.labels, "layers" if facet % columns == 0 else "") | {
            "domain": y,
            "anchor": f"x{suffix}",
        }
    heading = {"showarrow": False, "xref": "paper", "yref": "paper", "xanchor": "center", "yanchor": "bottom"}
    notes = [
        {**heading, "text": f"length {escaped(label)}", "x": sum(x) / 2, "y": y[1]}
        for label, (x, y) in zip(lengths.labels, grid, strict=False)
    ]
    height = 110 + math.ceil(facets / columns) * (120 + 40 * min(len(layers.labels), MOST_CELLS))
    color = {"colorscale": SCALE, "reversescale": sweep.mode == "max", "colorbar": {"thickness": 12}}
    figure = drawn(traces, height=height, annotations=notes, coloraxis=color, **axes)
    best_score, best = min(
        ((score, trial) for found in cells.values() for score, trial in found),
        key=lambda found: (cost(found[0], sweep.mode), found[1].number),
    )
    short = key_labels(varied)
    where = ", ".join(f"{short[key]} {best.values[key]}" for key in varied)
    caption = (
        f"Each cell holds the best {sweep.metric} at {compared.place} of the trials that share it ({len(cells):,} "
        f"cells of {counted(len(trials), 'trial')}; empty ones were not tried); the best is {number(best_score)} with "
        f"{where}."
    )
    return Figure(name, title, caption, figure)


def _dimension(label: str, values: list[Any], *, continuous: bool = False) -> dict[str, Any]:
    """An axis of parallel coordinates. Its ticks are shown as they are, its label as HTML."""
    placed = axis(values, even=False, factor=SCORE_FACTOR) if continuous else axis(values)
    places = [place for place, _ in placed.ticks] + list(placed.places)
    low, high = min(places), max(places)
    room = 0.0 if high > low else 1.0
    return {
        "label": escaped(label),
        "values": list(placed.places),
        "tickvals": [place for place, _ in placed.ticks],
        "ticktext": [text for _, text in placed.ticks],
        "range": [low - room, high + room],
    }


def _facet(
    sweep: Sweep, cells: dict[tuple[int, int], list[tuple[float, Trial]]], heads: Any, layers: Any, facet: int
) -> dict[str, Any]:
    """`cells`: (layers, heads) -> scores and trials, as indices of groups."""
    z: list[list[float | None]] = [[None] * len(heads.labels) for _ in layers.labels]
    told = [[""] * len(heads.labels) for _ in layers.labels]
    for (layer, head), found in cells.items():
        score, best = min(found, key=lambda entry: (cost(entry[0], sweep.mode), entry[1].number))
        z[layer][head] = score
        told[layer][head] = (
            f"{heads.labels[head]} heads, {layers.labels[layer]} layers: best {number(score)} of "
            f"{counted(len(found), 'trial')}<br>{escaped(best.name)}"
        )
    suffix = "" if facet == 0 else str(facet + 1)
    return {
        "type": "heatmap",
        "z": z,
        "text": [["" if score is None else number(score) for score in row] for row in z],
        "texttemplate": "%{text}",
        "hovertext": told,
        "hoverinfo": "text",
        "hoverongaps": False,
        "coloraxis": "coloraxis",
        "xgap": 2,
        "ygap": 2,
        "xaxis": f"x{suffix}",
        "yaxis": f"y{suffix}",
    }


def _grid(facets: int, columns: int) -> list[tuple[list[float], list[float]]]:
    """The facets' places on the page, row by row from the top, as shares of its width and height."""
    rows = math.ceil(facets / columns)
    wide, high = 1 / columns, 1 / rows
    return [
        (
            [facet % columns * wide + 0.0, (facet % columns + 1) * wide - 0.05 * (columns > 1)],
            [1 - (facet // columns + 1) * high + 0.16 * high * (rows > 1), 1 - facet // columns * high - 0.08 * high],
        )
        for facet in range(facets)
    ]


def _ticks(labels: tuple[str, ...], title: str) -> dict[str, Any]:
    return {
        "title": title,
        "tickvals": list(range(len(labels))),
        "ticktext": [escaped(label) for label in labels],
        "range": [-0.5, len(labels) - 0.5],
        "showgrid": False,
        "zeroline": False,
    }
