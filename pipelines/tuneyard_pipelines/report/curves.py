"""Learning curves: one line a trial, against the tokens it was trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tuneyard_pipelines.report.axes import SCORE_FACTOR, escaped, log_like
from tuneyard_pipelines.report.style import BEST, FAINT, SCALE, color_of, drawn
from tuneyard_pipelines.report.trials import CurvePoint, Figure, Omitted, Sweep, Trial, counted, number, ordered, ranks

MOST_LINES = 60
MOST_POINTS = 240
_TRAINING = "train/loss"


def learning_curves(sweep: Sweep) -> Figure | Omitted:
    """The sweep's metric on validation."""
    return _curves(sweep, sweep.metric, "learning_curves", f"Learning curves: {sweep.metric}")


def training_curves(sweep: Sweep) -> Figure | Omitted:
    return _curves(sweep, _TRAINING, "training_curves", "Learning curves: loss in training")


def _curves(sweep: Sweep, metric: str, name: str, title: str) -> Figure | Omitted:
    """Lines of the best trials lie on top; values that are not finite are gaps."""
    trials = [trial for trial in ordered(sweep) if any(math.isfinite(y) for *_, y in trial.curves.get(metric, ()))]
    if not trials:
        return Omitted(name, title, f"no trial has a finite value of {metric} yet.")
    rank = ranks(sweep)
    best = next((trial for trial in trials if rank.get(trial.id) == 1), None)
    shown = _chosen(trials)
    lines = [_line(trial, metric, sweep, rank, best) for trial in reversed(shown)]
    finite = [y for line in lines for y in line["y"] if y is not None]
    extra = _variant_legend(sweep) if sweep.variants else _rank_legend(rank) if len(rank) > 1 else []
    figure = drawn(
        [*lines, *extra],
        height=480,
        xaxis={"title": "tokens", "rangemode": "tozero", "tickformat": "~s"},
        yaxis={
            "title": escaped(metric),
            "type": "log" if log_like(finite, SCORE_FACTOR) else "linear",
            "exponentformat": "power",
        },
        hovermode="closest",
        showlegend=True,
    )
    told = f"{best.id} is best with {sweep.metric} {number(best.score)}" if best and best.score is not None else ""
    by = "variant" if sweep.variants else "rank" if extra else ""
    thin = f" Of {len(trials):,} trials, {len(shown)} are drawn: the best, and others evenly by rank." * (
        len(shown) < len(trials)
    )
    caption = (
        f"One line a trial ({counted(len(shown), 'line')}){f', coloured by {by}' if by else ''}"
        f"{f'; {told}, drawn thick' if told else ''}; failed trials are grey, values not finite are gaps.{thin}"
    )
    return Figure(name, title, caption, figure)


def _chosen(trials: Sequence[Trial]) -> list[Trial]:
    if len(trials) <= MOST_LINES:
        return list(trials)
    half = MOST_LINES // 2
    rest = trials[half:]
    return [*trials[:half], *(rest[index * len(rest) // half] for index in range(half))]


def _line(trial: Trial, metric: str, sweep: Sweep, rank: dict[str, int], best: Trial | None) -> dict[str, Any]:
    points = _thinned([point for point in sorted(trial.curves[metric]) if math.isfinite(point[1])])
    is_best = trial is best
    line = {"color": BEST if is_best else _color(trial, sweep, rank), "width": 3.5 if is_best else 1.3}
    place = f", rank {rank[trial.id]}" if trial.id in rank else f", {trial.state}"
    told = trial.name + (f" ({trial.variant})" if trial.variant else "") + place
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(points) < 40 else "lines",
        "x": [tokens for _, tokens, _ in points],
        "y": [value if math.isfinite(value) else None for *_, value in points],
        "connectgaps": False,
        "line": line,
        "marker": {"size": 7 if is_best else 4},
        "name": f"best: {escaped(trial.id)}" if is_best else escaped(trial.id),
        "showlegend": is_best,
        "text": escaped(told),
        "hovertemplate": "%{text}<br>%{x:,} tokens: %{y:.4g}<extra></extra>",
    }


def _color(trial: Trial, sweep: Sweep, rank: dict[str, int]) -> str:
    from plotly.colors import sample_colorscale

    if trial.id not in rank:
        return FAINT
    if sweep.variants:
        return color_of(sweep.variants.index(trial.variant))
    last = max(rank.values())
    color: str = sample_colorscale(SCALE, [(rank[trial.id] - 1) / max(last - 1, 1)])[0]
    return color


def _variant_legend(sweep: Sweep) -> list[dict[str, Any]]:
    """A legend's entry for each variant, whichever of its trials are drawn."""
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [None],
            "y": [None],
            "line": {"color": color_of(index)},
            "name": escaped(variant) or "(no variant)",
        }
        for index, variant in enumerate(sweep.variants)
    ]


def _rank_legend(rank: dict[str, int]) -> list[dict[str, Any]]:
    last = max(rank.values())
    marker = {
        "color": [1, last],
        "colorscale": SCALE,
        "showscale": True,
        "colorbar": {"title": {"text": "rank"}, "tickvals": [1, last], "thickness": 12, "len": 0.9},
    }
    return [
        {"type": "scatter", "mode": "markers", "x": [None] * 2, "y": [None] * 2, "marker": marker, "showlegend": False}
    ]


def _thinned(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """At most MOST_POINTS: the lowest and the highest value of every stretch, and a gap where it has one."""
    if len(points) <= MOST_POINTS:
        return list(points)
    stretch = math.ceil(3 * len(points) / (MOST_POINTS - 2))
    kept = {points[0], points[-1]}
    for start in range(0, len(points), stretch):
        within = points[start : start + stretch]
        finite = [point for point in within if math.isfinite(point[2])]
        kept.update([point for point in within if not math.isfinite(point[2])][:1])
        if finite:
            kept.update((min(finite, key=lambda point: point[2]), max(finite, key=lambda point: point[2])))
    return sorted(kept)
