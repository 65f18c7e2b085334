"""Errors a person can act on, told apart by whose fault they are; the command line gives each type its exit code."""

from __future__ import annotations

import errno

UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
"""The numbers of an OSError that says: this disk takes no more; not the fault of what wrote."""


class TuneyardError(Exception):
    """The work failed. The message names the value, the rule and the next step."""

    exit_code = 1


class InputError(TuneyardError):
    """What the user gave is wrong: a spec, a file, an option, an amount of resources."""

    exit_code = 2


class CapacityError(InputError):
    """More is asked of the cluster than any of its nodes has."""


class UnreachableError(TuneyardError):
    """A service (tracking server, cluster) did not answer."""

    exit_code = 3


class RefusedError(TuneyardError):
    """The request is understood and not allowed in the present state."""

    exit_code = 4


def first_line(cause: BaseException) -> str:
    """What an exception says, short enough for a message."""
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0][:500]
