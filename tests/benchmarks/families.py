"""Compares the families of models on real text, where that lies beside the repository, and prints one JSON object.

python tests/benchmarks/families.py [quatrains | tatoeba]    each a matter of tens of minutes on two cores

Every variant has the same training tokens and its own learning rates; a variant's score is that of its best trial on
validation. The winner is scored on the test split, with sacrebleu's signature where it translates.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # before torch is imported
for name in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI", "TUNEYARD_HOME"):
    os.environ.pop(name, None)

from tuneyard import SweepSpec, run_sweep  # noqa: E402
from tuneyard_pipelines import evidence  # noqa: E402
from tuneyard_pipelines.journal import SweepFolder  # noqa: E402
from tuneyard_pipelines.spec import SpecError  # noqa: E402

HERE = Path(__file__).parent
SENTENCE = "我不喜欢水课"  # no training text has its last word, an easy course


def main(names: list[str]) -> int:
    known = ("quatrains", "tatoeba")
    if unknown := set(names) - set(known):
        print(f"no comparison {', '.join(sorted(unknown))}; there is {', '.join(known)}", file=sys.stderr)
        return 2
    print(json.dumps({name: compared(name) for name in names or known}, indent=1, ensure_ascii=False))
    return 0


def compared(name: str) -> dict[str, Any]:
    """What a comparison gives, or why it was not made."""
    try:
        spec = SweepSpec.load(HERE / f"{name}.yaml")
    except SpecError as error:
        return {"skipped": str(error)}
    with tempfile.TemporaryDirectory() as home:
        sweep = run_sweep(spec, home=Path(home))
        trials = sweep.trials().sort_values("score", ascending=spec.mode == "min")
        best = trials.drop_duplicates("variant")
        found: dict[str, Any] = {
            "metric": spec.metric,
            "variants": dict(zip(best["variant"], best["score"].round(4), strict=True)),
            "minutes": {
                variant: round(float(seconds) / 60, 1)
                for variant, seconds in trials.groupby("variant")["seconds"].max().items()
            },
            "test": sweep.test,
        }
        if spec.task == "translation":
            scored = evidence.read(SweepFolder(sweep.path).evidence(str(best["trial"].iloc[0])))
            found["signature"] = dict(scored.metric_signature) if scored else {}
            found["says"] = {SENTENCE: sweep.model().predict([SENTENCE])[0]}
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
