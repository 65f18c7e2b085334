"""Data sections of a spec, what their sources give, and splits of plain keys."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuneyard_pipelines.data import sources
from tuneyard_pipelines.data.examples import Finding, Tally
from tuneyard_pipelines.data.splits import SPLITS, Ledger
from tuneyard_pipelines.spec import DataSpec


def data_spec(source: str | Path = "builtin/dates", **keys: Any) -> DataSpec:
    """The section `data` with these keys."""
    return DataSpec.model_validate({"source": str(source), **keys})


def read(path: Path, task: str = "translation", **keys: Any) -> tuple[list[tuple[str, ...]], dict[str, Finding]]:
    """The texts of all examples of a file, and what was found beside them, by what it is."""
    tally = Tally()
    examples = sources.examples(data_spec(path, **keys), task, 1, tally)
    return [example.texts for example in examples], {one.what: one for one in tally.findings}


def split(
    keys: Sequence[tuple[str, ...]],
    *,
    validation: float | None = 0.1,
    test: float | None = 0.1,
    seed: int = 1,
    sizes: Sequence[int] | None = None,
    given: Sequence[str | None] | None = None,
    unit: str = "pairs",
) -> dict[str, list[int]]:
    """Positions in `keys` for each split."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger", seed)
        for number, held in enumerate(keys):
            ledger.append(held, sizes[number] if sizes else 1, given[number] if given else None)
        made = ledger.assign(validation=validation, test=test, place="pairs.tsv", unit=unit)
    return {name: [int(place) for place in (made.codes == code).nonzero()[0]] for code, name in enumerate(SPLITS)}
