"""What `tuneyard sweep plan` of the examples costs, from the first instruction to the last."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measurement import Measured, spread

ROOT = Path(__file__).parents[2]
EXAMPLES = ("dates.yaml", "every_key.yaml")
ALLOWED_S = 1.5
RUNS = 5


def planning() -> Measured:
    """CPU seconds, user's and system's, of the dearer example, of the 1.5 that it may take."""
    cpu_s: dict[str, list[float]] = {name: [] for name in EXAMPLES}
    with tempfile.TemporaryDirectory() as home:
        for _ in range(RUNS + 1):
            for name in EXAMPLES:
                cpu_s[name].append(_plan(ROOT / "examples" / name, Path(home)))
    warm_s = {name: values[1:] for name, values in cpu_s.items()}  # the first run may compile bytecode
    return Measured(
        ratio=max(map(statistics.median, warm_s.values())) / ALLOWED_S,
        bound=1.0,
        side="at_most",
        details={f"{name}_cpu_s": spread(values, 3) for name, values in warm_s.items()},
    )


def _plan(spec: Path, home: Path) -> float:
    """CPU seconds of one run; raises CalledProcessError when it fails."""
    command = [str(Path(sys.executable).with_name("tuneyard")), "sweep", "plan", str(spec), "--no-calibrate"]
    process = subprocess.Popen(command, env={**os.environ, "TUNEYARD_HOME": str(home)}, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_utime + used.ru_stime
