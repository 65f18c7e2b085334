"""How all figures look: one font, colours that the colour-blind can tell apart, room for legends and labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tuneyard_pipelines.report.axes import escaped
from tuneyard_pipelines.report.trials import Table

if TYPE_CHECKING:
    import plotly.graph_objects as go

FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"
BEST, PLAIN, FAINT = "#c1272d", "#0072b2", "#b4bac2"
# Okabe and Ito (2008), "Color Universal Design", without its yellow, which is too pale on white.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#5d5d5d")
# Viridis without its palest end, from best to worst.
SCALE = [[0, "#440154"], [0.25, "#3b528b"], [0.5, "#21918c"], [0.75, "#5ec962"], [1, "#bddf26"]]


def drawn(traces: Sequence[Any], *, height: int, **layout: Any) -> go.Figure:
    """A figure of `traces` in the house's look; `height` in pixels."""
    import plotly.graph_objects as go

    figure = go.Figure(
        data=traces,
        layout={
            "template": "plotly_white",
            "font": {"family": FONT, "size": 13},
            "margin": {"l": 80, "r": 30, "t": 50, "b": 60},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            "hoverlabel": {"align": "left"},
            "height": height,
        },
    )
    return figure.update_layout(**layout)


def color_of(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def table_figure(table: Table) -> go.Figure:
    """The table as a Plotly figure, for pages that show figures only."""
    import plotly.graph_objects as go

    columns = zip(*table.rows, strict=True) if table.rows else [() for _ in table.head]
    trace = go.Table(
        header={"values": [f"<b>{escaped(name)}</b>" for name in table.head], "align": "left"},
        cells={"values": [[escaped(cell) for cell in column] for column in columns], "align": "left", "height": 26},
    )
    height = min(700, 90 + 26 * (len(table.rows) + 1))
    return drawn([trace], height=height, margin={"l": 0, "r": 0, "t": 10, "b": 10})
