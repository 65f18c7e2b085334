"""The smallest spec with overrides, as it is accepted or refused."""

from __future__ import annotations

import pytest

from tuneyard_pipelines import spec
from tuneyard_pipelines.spec import SpecError, SweepSpec

SMALLEST = "{version: 1, name: dates, task: translation, data: {source: builtin/dates}, training: {max_steps: 100}}"


def accepted(*overrides: str) -> SweepSpec:
    return spec.parse(SMALLEST, file="dates.yaml", overrides=overrides)


def refused(*overrides: str) -> str:
    """All that is wrong with it."""
    with pytest.raises(SpecError) as caught:
        accepted(*overrides)
    return str(caught.value)
