"""The benchmarks' verdict stands in the exit code, and no test run takes one along."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def measurement(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import measurement

    return measurement


@pytest.mark.parametrize(
    ("ratio", "side", "ok"),
    [
        (0.97, "at_least", True),
        (0.9699, "at_least", False),
        (0.97, "at_most", True),
        (0.9701, "at_most", False),
        (math.nan, "at_least", False),
        (math.nan, "at_most", False),
        (math.inf, "at_most", False),
    ],
)
def test_a_missed_bound_is_told_and_fails(measurement: Any, ratio: float, side: str, ok: bool) -> None:
    results = {
        "kept": measurement.Measured(1.0, 1.0, "at_most", {}),
        "this": measurement.Measured(ratio, 0.97, side, {}),
    }
    told = json.loads(measurement.as_json(results), parse_constant=pytest.fail)
    assert (told["this"]["ok"], told["this"]["bound"]) == (ok, 0.97)
    assert told["this"]["ratio"] == (ratio if math.isfinite(ratio) else None)
    assert measurement.exit_code(results) == (0 if ok else 1)


def test_no_test_run_takes_a_benchmark_along() -> None:
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", str(BENCHMARKS)],
        cwd=BENCHMARKS.parents[1],
        capture_output=True,
        text=True,
    )
    assert collected.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, collected.stdout
