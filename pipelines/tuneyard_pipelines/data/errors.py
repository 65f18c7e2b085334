"""The error of data that cannot be used as it is: exit code 2, with the place, the value and the remedy."""

from __future__ import annotations

from tuneyard_pipelines.errors import InputError


class DataError(InputError):
    """A source, a line of it, a split, a tokenizer setting or the folder of prepared data cannot be used."""
