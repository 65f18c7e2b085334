"""Durations and amounts of memory as people write them: `1h30m`, `4GiB`."""

from __future__ import annotations

import re

DURATION_FORMS = "a duration of 1s to 7d such as 90s, 10m or 1h30m"
SIZE_FORMS = "an amount of memory of 1MiB to 1024TiB such as 4GiB, 512MiB or 8GB"

_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_BYTES = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_DURATION = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", re.ASCII)
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?([KMGT]i?B|B|)", re.ASCII)


def duration_s(text: str, most_days: int = 7) -> int:
    """Seconds in a duration: days, hours, minutes, seconds in this order, each at most once. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(DURATION_FORMS)
    seconds = sum(int(count or 0) * unit for count, unit in zip(match.groups(), _SECONDS.values(), strict=True))
    if not 1 <= seconds <= most_days * _SECONDS["d"]:
        raise ValueError(DURATION_FORMS)
    return seconds


def size_bytes(text: str) -> int:
    """Bytes in an amount of memory; a bare number is bytes, KB is 1000 and KiB is 1024. Raises ValueError."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(SIZE_FORMS)
    amount = int(float(match[1]) * _BYTES[match[2]])
    if not 2**20 <= amount <= 2**50:
        raise ValueError(SIZE_FORMS)
    return amount
