"""The report as files: `report.html`, which needs nothing else, and every figure as Plotly's JSON."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tuneyard_pipelines.journal import write_atomic
from tuneyard_pipelines.report.axes import storable
from tuneyard_pipelines.report.curves import learning_curves, training_curves
from tuneyard_pipelines.report.importance import importance_figure
from tuneyard_pipelines.report.pareto import score_by_parameters, score_by_tokens
from tuneyard_pipelines.report.points import heads_layers_map, parallel_coordinates
from tuneyard_pipelines.report.tables import failures, forecast, leaderboard
from tuneyard_pipelines.report.trials import Figure, Omitted, Sweep, Table, comparable, counted, number, ordered
from tuneyard_pipelines.report.values import sentences

PAGE = "report.html"
_DRAW: Mapping[str, Callable[[Sweep], Figure | Omitted]] = {
    "leaderboard": leaderboard,
    "learning_curves": learning_curves,
    "training_curves": training_curves,
    "importance": importance_figure,
    "parallel_coordinates": parallel_coordinates,
    "heads_layers_length": heads_layers_map,
    "score_by_parameters": score_by_parameters,
    "score_by_tokens": score_by_tokens,
    "failures": failures,
    "forecast": forecast,
}
# The figures stay on the machine: no button that sends them to Plotly's service.
_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d"],
}
_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif; color: #1d2129;
  max-width: 1280px; margin: 2rem auto; padding: 0 1.5rem; background: #fff; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; overflow-wrap: anywhere; } h2 { font-size: 1.2rem; margin: 2.6rem 0 .3rem; }
p, li { max-width: 62rem; overflow-wrap: anywhere; }
.caption { color: #57606a; margin: .2rem 0 .8rem; }
nav a { margin-right: 1rem; white-space: nowrap; } a { color: #0a58a8; }
.wide { overflow: auto; max-height: 34rem; border: 1px solid #d8dee4; border-radius: 6px; }
table { border-collapse: collapse; font-size: .88rem; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #eaeef2; vertical-align: top;
  max-width: 34rem; overflow-wrap: break-word; }
th { background: #f3f5f7; position: sticky; top: 0; white-space: nowrap; }
"""


def figures(sweep: Sweep) -> list[Figure]:
    """The figures that can be drawn, in the report's order."""
    return [part for part in parts(sweep) if isinstance(part, Figure)]


def parts(sweep: Sweep) -> list[Figure | Omitted]:
    """Every figure, or why it cannot be drawn."""
    return [draw(sweep) for draw in _DRAW.values()]


def write(sweep: Sweep, folder: Path) -> list[Path]:
    """Replace `report.html` and `NAME.json` of every figure in `folder`, without those that are no longer drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = parts(sweep)
    texts = {PAGE: page(sweep, drawn)}
    texts |= {f"{part.name}.json": part.figure.to_json() for part in drawn if isinstance(part, Figure)}
    for name in _DRAW.keys() - {Path(file).stem for file in texts}:
        (folder / f"{name}.json").unlink(missing_ok=True)
    for file, text in texts.items():
        write_atomic(folder / file, text)
    return [folder / file for file in texts]


def page(sweep: Sweep, drawn: list[Figure | Omitted]) -> str:
    """The page. What people named is escaped; Plotly's script stands in it once, before the first figure."""
    shown = [part for part in drawn if isinstance(part, Figure)]
    omitted = [part for part in drawn if isinstance(part, Omitted)]
    title = _escaped(f"{sweep.name}: report of sweep {sweep.sweep_id}")
    compared = comparable(sweep)
    basis = (
        f"Scores are compared at {compared.place}, which {counted(len(compared.trials), 'trial')} reached with a score."
    )
    body = [
        f"<h1>{title}</h1>",
        *(f"<p>{_escaped(line)}</p>" for line in _summary(sweep)),
        "<nav>" + " ".join(f'<a href="#{part.name}">{_escaped(part.title)}</a>' for part in shown) + "</nav>",
        '<h2 id="values">Which value pays</h2>',
        f'<p class="caption">{_escaped(basis)}</p>' if compared.trials else "",
        "<ul>" + "".join(f"<li>{_leading(sentence)}</li>" for sentence in sentences(sweep)) + "</ul>",
    ]
    script_due = True
    for part in shown:
        body.append(f'<h2 id="{part.name}">{_escaped(part.title)}</h2><p class="caption">{_escaped(part.caption)}</p>')
        if part.figure.data[0].type != "table":
            body.append(_plot(part, with_script=script_due))
            script_due = False
        if part.table is not None:
            body.append(_table(part.table))
    if omitted:
        left_out = "".join(f"<li>{_escaped(f'{part.title}: {part.reason}')}</li>" for part in omitted)
        body.append(f'<h2 id="omitted">Left out</h2><ul>{left_out}</ul>')
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _summary(sweep: Sweep) -> list[str]:
    states: dict[str, int] = {}
    for trial in sweep.trials:
        states[trial.state] = states.get(trial.state, 0) + 1
    counts = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
    better = "lower" if sweep.mode == "min" else "higher"
    first = next(iter(ordered(sweep)), None)
    lines = [f"{counted(len(sweep.trials), 'trial')}{f': {counts}' if counts else ''}."]
    if first is not None and first.scored and not first.failed and first.score is not None:
        budget = "its full budget" if first.full else f"{100 * first.share:.3g} % of its budget"
        lines.append(f"Best: {first.name}, {sweep.metric} {number(first.score)} with {budget} ({better} is better).")
    measured = ", ".join(f"{name} {number(amount)}" for name, amount in sweep.measured.items())
    return [*lines, *([f"Measured: {measured}."] if measured else [])]


def _leading(sentence: str) -> str:
    """The key of a sentence about its values stands out."""
    key, colon, rest = sentence.partition(": ")
    return f"<b>{_escaped(key)}</b>{colon}{_escaped(rest)}" if colon else _escaped(sentence)


def _plot(part: Figure, *, with_script: bool) -> str:
    drawn: Any = part.figure.to_html(
        full_html=False, include_plotlyjs=with_script, div_id=f"plot-{part.name}", config=_CONFIG
    )
    return str(drawn)


def _table(table: Table) -> str:
    head = "".join(f"<th>{_escaped(name)}</th>" for name in table.head)
    rows = "".join("<tr>" + "".join(f"<td>{_escaped(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _escaped(text: str) -> str:
    return html.escape(storable(text))
