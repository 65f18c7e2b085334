"""Trains every point of a small space in full, once, and keeps the scores that each had at every rung.

search_table.json is its result, so that searches can be compared without training. Made anew, in minutes, by:
python tests/benchmarks/search_table.py
"""

from __future__ import annotations

import json
import math
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from measurement import accepted

from tuneyard_pipelines.leg import Leg
from tuneyard_pipelines.space import Space
from tuneyard_pipelines.spec import Point, SweepSpec, parse
from tuneyard_pipelines.trial import run_leg

TABLE = Path(__file__).with_suffix(".json")
SPEC = """
version: 1
name: search-table
task: language_modeling
seed: 1
data: {source: builtin/stdlib, split: {validation: 0.002, test: 0.002}, tokenizer: {type: byte}}
model:
  architecture: gpt
  d_model: 32
  num_heads: [1, 2, 4]
  num_layers: [1, 2]
  sequence_length: [16, 64]
  dropout: 0.0
training:
  max_tokens: 160000
  batch_tokens: 512
  evaluations: 1
  learning_rate: [1.0e-3, 4.0e-3, 1.6e-2]
search:
  algorithm: tpe
  scheduler: {type: asha, min_share: 0.11, reduction_factor: 3}
  trials: 36
  metric: val/bits_per_byte
resources: {memory_per_worker: 64GiB}
"""


@dataclass(frozen=True)
class Trained:
    """A point, and at each rung the tokens trained so far and the best validation so far."""

    point: Point
    tokens: Sequence[int]
    scores: Sequence[float]


def the_spec(seed: int = 1) -> SweepSpec:
    return parse(SPEC, file="search_table.py", overrides=[f"seed={seed}"])


def read() -> list[Trained]:
    return [Trained(**row) for row in json.loads(TABLE.read_text())["points"]]


def make() -> None:
    """Train the grid, point by point in this process, and write TABLE."""
    spec, began_s = the_spec(), time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        folder = accepted(Path(home), spec)
        rows = []
        for number, point in enumerate(Space(spec).grid(), 1):
            trial = f"t{number:03d}"
            legs = [run_leg(Leg(str(folder.path), trial, point, 1, rung)) for rung in range(len(spec.rungs()))]
            failed = next((leg for leg in legs if leg.outcome), None)
            if failed is not None:
                raise SystemExit(f"{point}: {failed.outcome}: {failed.message}")
            scores = [round(leg.score or math.inf, 5) for leg in legs]
            rows.append({"point": point, "tokens": [leg.tokens for leg in legs], "scores": scores})
            print(json.dumps(rows[-1]), round(time.monotonic() - began_s), "s", file=sys.stderr)
    made = {
        "made_by": "python tests/benchmarks/search_table.py",
        "python": platform.python_version(),
        "torch": version("torch"),
        "seconds": round(time.monotonic() - began_s),
        "metric": spec.metric,
    }
    lines = ",\n".join(json.dumps(row) for row in rows)
    TABLE.write_text(f'{json.dumps(made)[:-1]}, "points": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    make()
