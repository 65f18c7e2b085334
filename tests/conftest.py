"""What holds for every test: no network, no telemetry, one thread a process, no settings of the person who runs it."""

from __future__ import annotations

import os

from hypothesis import settings

SETTINGS = {
    "OMP_NUM_THREADS": "1",  # before torch is imported: the suite's processes share few cores
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
    "NO_COLOR": "1",
}
UNSET = (
    "TUNEYARD_HOME",
    "TUNEYARD_SERVICE",
    "TUNEYARD_TOKEN",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_RUN_ID",
    "RAY_ADDRESS",
    "FORCE_COLOR",
)

os.environ.update(SETTINGS)
for name in UNSET:
    os.environ.pop(name, None)

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
