"""The notebook of the examples, cell by cell in a kernel of this environment, with a home of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

pytestmark = pytest.mark.integration
EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "tuneyard.ipynb"


def said(cell: NotebookNode) -> str:
    """All that a cell printed or gave, as text."""
    return "\n".join(
        output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.get("outputs", ())
    )


def test_the_notebook_holds_no_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


def test_every_cell_runs_and_shows_what_its_text_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(EXAMPLES / "dates.yaml", tmp_path)
    monkeypatch.setenv("TUNEYARD_HOME", str(tmp_path / "home"))
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))  # nothing is left in the home of who runs the tests
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=None, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()

    planned, ran, table, plot, predicted = [cell for cell in notebook.cells if cell.cell_type == "code"][1:]
    assert "trials     3" in said(planned)
    lines = said(ran).splitlines()
    assert lines[0] == "preparing"
    assert {output.output_type for output in ran.outputs} == {"stream", "execute_result"}, "nothing of Ray's"
    assert any(line.startswith("training") and "running" in line for line in lines)
    assert any(line.startswith("finished, 3 completed, best so far t0") for line in lines)
    assert "model   dates version 1" in said(ran)
    assert "model.num_heads" in said(table)
    assert "3 rows" not in said(table), "a table, not a text cut short"
    assert [output.output_type for output in plot.outputs] == ["display_data"]
    assert "image/png" in plot.outputs[0].data
    assert said(predicted).startswith("['")
    assert (tmp_path / "home/mlflow.db").exists()
