"""A spec that the queue has accepted is read for ever, and means what it meant: some of each version, as stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from tuneyard_pipelines import spec

HERE = Path(__file__).parent
STORED = {int(path.stem.removeprefix("specs_v")): path.read_text() for path in HERE.glob("specs_v*.yaml")}


def test_there_are_some_of_every_version() -> None:
    assert set(get_args(spec.SweepSpec.model_fields["version"].annotation)) == STORED.keys()


@pytest.mark.parametrize(
    ("version", "text"), [(version, text) for version, texts in STORED.items() for text in texts.split("\n---\n")]
)
def test_a_stored_spec_is_read_with_all_that_it_says(version: int, text: str) -> None:
    said = yaml.safe_load(text)
    read = spec.parse(text, file="stored.yaml")
    assert (read.version, read.name, read.task) == (version, said["name"], said["task"])
    overlays = said.get("variants") or {"": {}}
    assert read.by_variant.keys() == overlays.keys()
    for name, overlay in overlays.items():
        meant = read.by_variant[name]
        stated = dict(_keys(said, "")) | dict(_keys(overlay, ""))
        known = stated.keys() & meant.values.keys()
        assert known
        ranges = {key for key in known if isinstance(stated[key], list | dict)}
        assert ranges == known & meant.ranges.keys()
        assert {key: meant.values[key] for key in known - ranges} == {key: stated[key] for key in known - ranges}


def _keys(part: dict[str, Any], under: str) -> Iterator[tuple[str, Any]]:
    """Dotted key and value of all that is no section."""
    for key, value in part.items():
        if isinstance(value, dict) and f"{under}{key}" in ("model", "training", "data", "data.tokenizer"):
            yield from _keys(value, f"{under}{key}.")
        else:
            yield f"{under}{key}", value
