from __future__ import annotations

import pytest

from tuneyard_pipelines import spec
from tuneyard_pipelines.units import duration_s, size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("20m", 1200), ("1h30m", 5400), ("1d", 86_400), ("1d2h3m4s", 93_784), ("7d", 604_800)],
)
def test_durations(text, seconds):
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "10", "0s", "10 m", "30m1h", "1h1h", "-1s", "1.5h", "8d", "99999999999s", "١s", "10M"]
)
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match="a duration of 1s to 7d"):
        duration_s(text)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("4GiB", 4 << 30),
        ("4 GiB", 4 << 30),
        ("512MiB", 512 << 20),
        ("8GB", 8 * 10**9),
        ("1.5GiB", 3 << 29),
        ("2048KiB", 2 << 20),
        ("1073741824", 1 << 30),
        ("1073741824B", 1 << 30),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(text, amount):
    assert size_bytes(text) == amount


@pytest.mark.parametrize("text", ["", "GiB", "4gib", "4G", "-1GiB", "1023KiB", "1025TiB", "1e9", "4  GiB"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="an amount of memory"):
        size_bytes(text)


def test_resources_keep_what_was_written_and_tell_the_plain_amount():
    held = spec.Resources.model_validate({"memory_per_worker": "1.5GiB", "stall_timeout": "1h30m"})
    assert spec.Resources.model_validate(held.model_dump()) == held
    assert (held.memory_per_worker, held.memory_per_worker_bytes) == ("1.5GiB", 3 << 29)
    assert (held.stall_timeout, held.stall_timeout_s) == ("1h30m", 5400)
    assert spec.Resources.model_validate({"memory_per_worker": 1 << 30}).memory_per_worker_bytes == 1 << 30
