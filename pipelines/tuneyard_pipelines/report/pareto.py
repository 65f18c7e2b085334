"""What a score costs: every trial's best score against its parameters or tokens, and the trials that none outdoes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tuneyard_pipelines.report.axes import SCORE_FACTOR, escaped, log_like, log_ticks
from tuneyard_pipelines.report.style import BEST, PLAIN, color_of, drawn
from tuneyard_pipelines.report.trials import Figure, Omitted, Sweep, Trial, cost, counted, number

MOST_POINTS = 2000


def score_by_parameters(sweep: Sweep) -> Figure | Omitted:
    return _score_by(sweep, "parameters", lambda trial: trial.parameters)


def score_by_tokens(sweep: Sweep) -> Figure | Omitted:
    return _score_by(sweep, "tokens", lambda trial: trial.tokens)


def _score_by(sweep: Sweep, what: str, amount: Callable[[Trial], int | None]) -> Figure | Omitted:
    name, title = f"score_by_{what}", f"Score against {what}"
    priced = [(trial, paid) for trial in sweep.trials if trial.scored and (paid := amount(trial)) and paid > 0]
    if not priced:
        return Omitted(name, title, f"no trial has a score and a number of {what}.")
    front = _front(priced, sweep)
    ahead = {trial.id for trial, _ in front}
    rest = [pair for pair in priced if pair[0].id not in ahead]
    shown = rest if len(rest) <= MOST_POINTS else [rest[i * len(rest) // MOST_POINTS] for i in range(MOST_POINTS)]
    named: Sequence[tuple[str | None, str, str]] = [
        (variant, escaped(variant) or "(no variant)", color_of(index)) for index, variant in enumerate(sweep.variants)
    ] or [(None, "trial", PLAIN)]
    traces = [
        _dots([pair for pair in shown if variant in (None, pair[0].variant)], label, color)
        for variant, label, color in named
    ]
    steps = _dots(front, "not outdone", BEST) | {
        "mode": "lines+markers",
        "line": {"shape": "hv", "color": BEST, "width": 1.5},
    }
    scores = [trial.score for trial, _ in priced if trial.score is not None]
    ticks = log_ticks([paid for _, paid in priced])
    figure = drawn(
        [*[trace for trace in traces if trace["x"]], steps],
        height=430,
        xaxis={"title": what, "type": "log", "tickvals": ticks, "ticktext": [_amount(tick) for tick in ticks]},
        yaxis={"title": escaped(sweep.metric), "type": "log" if log_like(scores, SCORE_FACTOR) else "linear"},
        hovermode="closest",
    )
    least, most = front[0], front[-1]
    ends = f"from {_told(*least, what)} to {_told(*most, what)}" if least is not most else f"only {_told(*least, what)}"
    thin = f" Of {len(rest):,} other trials, {len(shown):,} are drawn." if len(shown) < len(rest) else ""
    left_out = len(sweep.trials) - len(priced)
    without = f"; {counted(left_out, 'trial')} without a score or {what} left out" if left_out else ""
    caption = (
        f"In red {counted(len(front), 'trial')} of {len(priced):,} whose score none reached with as few {what}: "
        f"{ends}; an open mark is a trial that stopped before its full budget{without}.{thin}"
    )
    return Figure(name, title, caption, figure)


def _front(priced: Sequence[tuple[Trial, int]], sweep: Sweep) -> list[tuple[Trial, int]]:
    """The Pareto front, cheapest first; of trials that are equal in both, all."""
    front: list[tuple[Trial, int]] = []
    for trial, paid in sorted(priced, key=lambda pair: (pair[1], cost(pair[0].score, sweep.mode), pair[0].number)):
        lowest = cost(front[-1][0].score, sweep.mode) if front else float("inf")
        equal = bool(front) and paid == front[-1][1] and trial.score == front[-1][0].score
        if cost(trial.score, sweep.mode) < lowest or equal:
            front.append((trial, paid))
    return front


def _dots(pairs: Sequence[tuple[Trial, int]], label: str, color: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [paid for _, paid in pairs],
        "y": [trial.score for trial, _ in pairs],
        "name": label,
        "marker": {
            "color": color,
            "size": 9,
            "symbol": ["circle" if trial.full else "circle-open" for trial, _ in pairs],
        },
        "text": [escaped(trial.name + (f" ({trial.variant})" if trial.variant else "")) for trial, _ in pairs],
        "hovertemplate": "%{text}<br>%{x:,}: %{y:.4g}<extra></extra>",
    }


def _amount(amount: float) -> str:
    """`89k`, `1.5M`, `2G`."""
    power = min(max(int(math.log10(amount)) // 3, 0), 4)
    return f"{amount / 1000**power:.3g}{'kMGT'[power - 1] if power else ''}"


def _told(trial: Trial, paid: int, what: str) -> str:
    return f"{trial.id} ({number(paid)} {what}, {number(trial.score or 0.0)})"
