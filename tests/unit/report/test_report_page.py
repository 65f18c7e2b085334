"""The files: one page that needs nothing else and runs nothing that people wrote, and figures as JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import plotly.io
import pytest
from reported_sweep import searched, sweep, trial

from tuneyard_pipelines.report import Figure, Sweep, figures, write

EVIL = "</script><script>alert('x')</script><img src=x onerror=alert(1)>&\"'"


class Page(HTMLParser):
    """What a browser would run, load and show."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.shown: list[str] = []
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href") and (value or "#")[0] != "#"]
        if tag in ("script", "style"):
            self._inside.append(tag)
            self.scripts += [""] if tag == "script" else []

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if self._inside == ["script"]:
            self.scripts[-1] += data
        elif not self._inside:
            self.shown.append(data)


@pytest.fixture(scope="module")
def reported() -> Sweep:
    return replace(searched(12), forecast={"seconds": 10.0}, measured={"seconds": 12.0})


@pytest.fixture(scope="module")
def folder(reported: Sweep, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "new"
    write(reported, folder)
    return folder


@pytest.fixture(scope="module")
def drawn(reported: Sweep) -> list[Figure]:
    return figures(reported)


def test_every_figure_is_a_file_that_plotly_reads(drawn: list[Figure], folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {"report.html", *(f"{part.name}.json" for part in drawn)}
    assert len(drawn) == 10
    for part in drawn:
        assert plotly.io.from_json((folder / f"{part.name}.json").read_text()) == part.figure


def test_the_page_needs_nothing_else(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    page = Page(text)
    assert page.loaded == []
    assert {"link", "iframe", "object", "img"} & set(page.tags) == set()
    assert sum("plotly.js v" in script for script in page.scripts) == 1
    drawing = [script for script in page.scripts if "Plotly.newPlot" in script and "plotly.js v" not in script]
    assert len(drawing) == 8
    assert all('"modeBarButtonsToRemove": ["sendChartToCloud"' in script for script in drawing)


def test_the_page_says_what_the_parts_say(drawn: list[Figure], folder: Path) -> None:
    shown = "".join(Page((folder / "report.html").read_text()).shown)
    for part in drawn:
        assert part.caption in shown
        if part.table is not None:
            assert all(cell in shown for row in part.table.rows for cell in row)
    assert "12 trials: 2 completed, 1 diverged, 9 stopped_early." in shown
    assert "heads: " in shown


def test_what_cannot_be_drawn_is_named_with_its_reason(tmp_path: Path) -> None:
    write(sweep([trial(1, {"model.num_heads": 2})]), tmp_path)
    shown = "".join(Page((tmp_path / "report.html").read_text()).shown)
    assert "Failures by cause: no trial failed." in shown
    assert "Which keys explain the score: it takes 8 trials" in shown


def test_an_empty_sweep_is_a_page(tmp_path: Path) -> None:
    assert [path.name for path in write(sweep([]), tmp_path)] == ["report.html"]
    shown = "".join(Page((tmp_path / "report.html").read_text()).shown)
    assert "0 trials." in shown
    assert "No trial has a score yet" in shown


def test_nothing_that_people_wrote_becomes_markup(tmp_path: Path) -> None:
    curves = {"val/exact_match": [(1, 1.0, 0.5)]}
    trials = [
        trial(
            n,
            {
                "model.positions": f"{EVIL}{n % 3}",
                f"training.{EVIL}": n,
                "model.num_heads": n % 2,
                "model.num_layers": 1,
            },
            n / 20,
            name=EVIL,
            variant=f"{EVIL}{n % 2}",
            parameters=n,
            curves=curves,
        )
        for n in range(1, 12)
    ]
    trials.append(trial(99, {}, None, id=EVIL, state="error", message=EVIL))
    told = replace(sweep(trials), name=EVIL, sweep_id=EVIL, forecast={EVIL: 1.0}, measured={EVIL: 2.0})
    write(replace(told, metric=EVIL, trials=[replace(t, curves={EVIL: [(1, 1.0, 0.5)]}) for t in trials]), tmp_path)
    page = Page((tmp_path / "report.html").read_text())
    assert "img" not in page.tags
    assert all("Plotly" in script and "<script>alert" not in script for script in page.scripts)
    assert "alert('x')" in "".join(page.shown)


def test_plotly_gets_no_markup_but_its_own() -> None:
    """Plotly reads tags in every text but the ticks of parallel coordinates, which it shows as they are."""
    point = {"model.positions": "<b>", "model.num_heads": 1, "model.num_layers": 2, "training.<b>": 1}
    curves = {"<b>": [(1, 1.0, 0.5)], "train/loss": [(1, 1.0, 0.5)]}
    trials = [
        trial(
            n, point | {"model.num_heads": n}, n / 20, name="<b>", variant="<b>" * (n % 2), curves=curves, parameters=n
        )
        for n in range(1, 10)
    ]
    trials.append(trial(99, {}, None, state="error", id="<b>", message="<b>"))
    told = replace(sweep(trials), name="<b>", metric="<b>", forecast={"<b>": 1.0})
    for part in figures(told):
        raw = json.loads(part.figure.to_json())
        for trace in raw["data"]:
            if trace["type"] == "parcoords":
                trace["dimensions"] = [axis["label"] for axis in trace["dimensions"]]
                del trace["line"]["colorbar"]
        text = re.sub(r'"(<b>[^<"]+</b>|<b>&lt;b&gt;</b>|<b>training.&lt;b&gt;</b>)"', "", json.dumps(raw["data"]))
        assert "<b>" not in text + json.dumps({**raw["layout"], "template": {}}), part.name


def test_a_second_report_replaces_the_first(tmp_path: Path) -> None:
    write(sweep([trial(1, score=None, state="error", message="gone")]), tmp_path)
    (tmp_path / "notes.json").write_text("mine")
    assert (tmp_path / "failures.json").exists()
    write(sweep([trial(1)]), tmp_path)
    assert not (tmp_path / "failures.json").exists()
    assert (tmp_path / "notes.json").read_text() == "mine"
    assert not list(tmp_path.glob(".*"))


def test_the_same_sweep_gives_the_same_page(reported: Sweep, folder: Path, tmp_path: Path) -> None:
    write(reported, tmp_path)
    assert (tmp_path / "report.html").read_bytes() == (folder / "report.html").read_bytes()


def test_importing_the_report_loads_no_drawing_and_no_training() -> None:
    tell = "import sys, tuneyard_pipelines.report; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = set(
        subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, check=True).stdout.split()
    )
    assert loaded & {"plotly", "sklearn", "numpy", "pandas", "mlflow", "torch", "ray", "datasets"} == set()
