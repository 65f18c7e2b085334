"""Runs the benchmarks and prints what they measured as one JSON object; exits 1 when a bound is missed.

python tests/benchmarks [NAME ...]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))
os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # before torch is imported
for name in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI", "TUNEYARD_HOME"):
    os.environ.pop(name, None)

from measurement import Measured, as_json, exit_code  # noqa: E402
from planning import planning  # noqa: E402
from queueing import listing, submitting  # noqa: E402
from search_tokens import search_tokens  # noqa: E402
from serving import (  # noqa: E402
    reading,
    reading_postgresql,
    submitting_at_once,
    submitting_at_once_postgresql,
    submitting_paced,
    submitting_paced_postgresql,
)
from slots import slots  # noqa: E402
from training_step import logging_every_step, training_step  # noqa: E402

BENCHMARKS: Mapping[str, Callable[[], Measured]] = {
    benchmark.__name__: benchmark
    for benchmark in (
        training_step,
        logging_every_step,
        slots,
        search_tokens,
        planning,
        submitting,
        listing,
        reading,
        reading_postgresql,
        submitting_at_once,
        submitting_at_once_postgresql,
        submitting_paced,
        submitting_paced_postgresql,
    )
}


def main(names: list[str]) -> int:
    unknown = set(names) - BENCHMARKS.keys()
    if unknown:
        print(f"no benchmark {', '.join(sorted(unknown))}; there is {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    measured = {name: BENCHMARKS[name]() for name in names or BENCHMARKS}
    print(as_json(measured))
    return exit_code(measured)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
