"""Errors a person can act on, told apart by whose fault they are; the command line gives each type its exit code."""

from __future__ import annotations


class TuneyardError(Exception):
    """The work failed. The message names the value, the rule and the next step."""

    exit_code = 1


class InputError(TuneyardError):
    """What the user gave is wrong: a spec, a file, an option, an amount of resources."""

    exit_code = 2


class UnreachableError(TuneyardError):
    """A service (tracking server, cluster) did not answer."""

    exit_code = 3


class RefusedError(TuneyardError):
    """The request is understood and not allowed in the present state."""

    exit_code = 4
