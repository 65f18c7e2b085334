"""What the tests of the driver's parts share: a sweep's folder without a driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tuneyard_pipelines import spec
from tuneyard_pipelines.journal import Header, SweepFolder

SPEC = """
version: 1
name: dates
task: translation
seed: 3
data: {source: builtin/dates, examples: 200}
model: {d_model: 16, num_heads: [1, 2, 4], num_layers: [1, 2], sequence_length: [24, 32, 48]}
training: {max_tokens: 3000, batch_tokens: 256}
search: {algorithm: random, scheduler: {type: asha, min_share: 0.11, reduction_factor: 3}, trials: 9}
"""

MakeFolder = Callable[..., SweepFolder]


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Makes the folder of a sweep; overrides are those of the command line."""

    def make(*overrides: str, sweep_id: str = "5eed0001", created_ms: int = 1_000) -> SweepFolder:
        folder = SweepFolder(tmp_path / "sweeps" / sweep_id)
        folder.create(
            Header(
                sweep_id=sweep_id,
                spec=spec.parse(SPEC, file="spec.yaml", overrides=overrides),
                spec_text=SPEC,
                home=tmp_path,
                data=tmp_path / "data",
                data_fingerprint="f" * 64,
                tracking_uri="http://127.0.0.1:9",
                created_ms=created_ms,
                versions={"tuneyard": "0.1.0"},
            )
        )
        return folder

    return make
