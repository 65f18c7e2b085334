"""The tables: trials in their order, failures by their cause, the forecast beside what was measured."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tuneyard_pipelines.report.axes import MISSING, cut, escaped, key_labels, varied_keys, written
from tuneyard_pipelines.report.style import PLAIN, drawn, table_figure
from tuneyard_pipelines.report.trials import Figure, Omitted, Sweep, Table, Trial, counted, number, ordered, ranks

MOST_ROWS = 300
MOST_IDS = 12
LONGEST_MESSAGE, LONGEST_CELL = 300, 80
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|[-+]?\d[\d_,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


def leaderboard(sweep: Sweep) -> Figure | Omitted:
    """Rank, trial, varied keys, cost, score and state of every trial, best first, failed ones last with their cause."""
    title = "Leaderboard"
    if not sweep.trials:
        return Omitted("leaderboard", title, "there is no trial yet.")
    trials, rank = ordered(sweep), ranks(sweep)
    keys = varied_keys(sweep.trials)
    short = key_labels(keys)
    sized = any(trial.parameters is not None for trial in trials)
    head = (
        "rank",
        "trial",
        *(["variant"] if sweep.variants else []),
        *(short[key] for key in keys),
        *(["parameters"] if sized else []),
        "tokens",
        "budget",
        sweep.metric,
        "state",
    )
    rows = tuple(
        (
            str(rank.get(trial.id, "")),
            trial.id,
            *([trial.variant or MISSING] if sweep.variants else []),
            *(written(trial.point[key]) if key in trial.point else MISSING for key in keys),
            *(["" if trial.parameters is None else f"{trial.parameters:,}"] if sized else []),
            f"{trial.tokens:,}",
            f"{100 * trial.share:.3g} %",
            number(trial.score) if trial.score is not None and trial.scored else "",
            f"{trial.state}: {cut(trial.message, LONGEST_CELL)}" if trial.message else trial.state,
        )
        for trial in trials[:MOST_ROWS]
    )
    full = sum(trial.full and trial.scored and not trial.failed for trial in trials)
    more = f" Only the first {MOST_ROWS:,} of {len(trials):,} trials are listed." if len(trials) > MOST_ROWS else ""
    caption = (
        f"{full:,} of {counted(len(trials), 'trial')} had the full budget and stand first, by {sweep.metric} "
        f"({'lower' if sweep.mode == 'min' else 'higher'} is better); those that stopped earlier follow, failed ones "
        f"come last.{more}"
    )
    table = Table(head, rows)
    return Figure("leaderboard", title, caption, table_figure(table), table)


def failures(sweep: Sweep) -> Figure | Omitted:
    """A bar for each way to fail, and the messages; messages that differ in numbers only are one."""
    title = "Failures by cause"
    failed = sorted((trial for trial in sweep.trials if trial.failed), key=lambda trial: trial.number)
    if not failed:
        return Omitted("failures", title, "no trial failed.")
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in failed:
        groups.setdefault((trial.state, _NUMBER.sub("#", trial.message)), []).append(trial)
    largest = sorted(groups.items(), key=lambda group: -len(group[1]))
    counts: dict[str, int] = {}
    for trial in failed:
        counts[trial.state] = counts.get(trial.state, 0) + 1
    outcomes = sorted(counts, key=lambda outcome: counts[outcome])
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [counts[outcome] for outcome in outcomes],
        "y": list(range(len(outcomes))),
        "text": [str(counts[outcome]) for outcome in outcomes],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": PLAIN},
        "hovertext": [escaped(outcome) for outcome in outcomes],
        "hoverinfo": "text+x",
    }
    figure = drawn(
        [bars],
        height=150 + 36 * len(outcomes),
        margin={"l": 130, "r": 60, "t": 40, "b": 50},
        xaxis={"title": "trials", "dtick": max(1, round(max(counts.values()) / 8)), "rangemode": "tozero"},
        yaxis={"tickvals": list(range(len(outcomes))), "ticktext": [escaped(outcome) for outcome in outcomes]},
    )
    rows = tuple(
        (outcome, f"{len(trials):,}", cut(trials[0].message, LONGEST_MESSAGE) or "(no message)", _ids(trials))
        for (outcome, _), trials in largest[:MOST_ROWS]
    )
    most = max(counts, key=lambda outcome: counts[outcome])
    causes = counted(len(groups), "different cause")
    caption = (
        f"{len(failed):,} of {counted(len(sweep.trials), 'trial')} failed, for {causes}, most as {most} "
        f"({counts[most]:,}); messages that differ in numbers only are one, shown as its first trial had it."
    )
    return Figure("failures", title, caption, figure, Table(("outcome", "trials", "message", "which"), rows))


def forecast(sweep: Sweep) -> Figure | Omitted:
    """What was forecast beside what was measured, and measured / forecast."""
    title = "Forecast and truth"
    if not sweep.forecast:
        return Omitted("forecast", title, "no forecast was made for this sweep.")
    quantities = list(dict.fromkeys((*sweep.forecast, *sweep.measured)))
    rows = tuple(
        (name, _amount(sweep.forecast.get(name)), _amount(sweep.measured.get(name)), _ratio(sweep, name) or "")
        for name in quantities
    )
    ratios = [f"{name} {ratio} times" for name in quantities if (ratio := _ratio(sweep, name))]
    caption = f"Measured over forecast: {', '.join(ratios) or 'nothing can be compared'}; 1 is a forecast that held."
    table = Table(("quantity", "forecast", "measured", "ratio"), rows)
    return Figure("forecast", title, caption, table_figure(table), table)


def _ids(trials: Sequence[Trial]) -> str:
    shown = ", ".join(trial.id for trial in trials[:MOST_IDS])
    return f"{shown} and {len(trials) - MOST_IDS:,} more" if len(trials) > MOST_IDS else shown


def _amount(amount: float | None) -> str:
    return "" if amount is None else number(amount)


def _ratio(sweep: Sweep, name: str) -> str | None:
    planned, found = (sweep.forecast or {}).get(name), sweep.measured.get(name)
    return f"{found / planned:.2f}" if planned and found is not None else None
