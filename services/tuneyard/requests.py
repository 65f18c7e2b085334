"""What a person asks of a sweep, checked against it before it is put down for the driver to follow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tuneyard_pipelines.errors import InputError

if TYPE_CHECKING:
    from tuneyard_pipelines.control import Request
    from tuneyard_pipelines.journal import SweepFolder


def stop(folder: SweepFolder) -> list[Request]:
    """Raises InputError for a sweep that has ended."""
    from tuneyard_pipelines.control import Stop

    ended = folder.state().ended
    if ended is not None and ended.state == "finished":
        raise InputError(f"sweep {folder.sweep_id} has ended; see it with: tuneyard sweep show {folder.sweep_id}")
    return [Stop(_now_ms())]


def resume(folder: SweepFolder) -> list[Request]:
    """Nothing, unless the sweep was stopped: then that it is to go on."""
    from tuneyard_pipelines.control import Resume, wishes

    return [Resume(_now_ms())] if wishes(folder).stopped else []


def extend(folder: SweepFolder, trials: int) -> list[Request]:
    """Raises InputError for a number that the variants cannot share equally, and for a sweep of a whole grid."""
    from tuneyard_pipelines.control import Extend

    spec = folder.header().spec
    count = len(spec.by_variant)
    if trials % count:
        raise InputError(f"--trials {trials}: {count} variants have an equal share each; give a multiple of {count}")
    if spec.search.trials is None:
        raise InputError(f"sweep {folder.sweep_id} tries every point of its grid; add other points with: sweep run")
    return [Extend(trials, _now_ms())]


def add(folder: SweepFolder, points: Sequence[str]) -> list[Request]:
    """`num_heads=4,learning_rate=0.002` each. Raises InputError for a point that does not belong or is there."""
    from tuneyard_pipelines.control import Add, wishes
    from tuneyard_pipelines.space import Space
    from tuneyard_pipelines.spec import VARIANT

    header, state = folder.header(), folder.state()
    asked: list[Request] = []
    known = {(trial.variant, _identity(trial.point)): trial.id for trial in state.trials.values()}
    known |= {(name, _identity(point)): "asked for already" for name, point in wishes(folder).added}
    for text in points:
        written = _read(text)
        name = written.pop(VARIANT, "")
        if name not in header.spec.by_variant:
            variants = ", ".join(header.spec.variants)
            raise InputError(
                f"--point {text}: " + (f"variant must be one of {variants}" if variants else "there are no variants")
            )
        try:
            space = Space(header.spec.variant(name), vocabularies=header.vocabularies)
            point = space.read_point(written)
        except ValueError as error:
            raise InputError(f"--point {text}: {error}") from None
        if (there := known.get((name, _identity(point)))) is not None:
            raise InputError(f"--point {text}: the sweep has this point ({there}); name another")
        known[name, _identity(point)] = "named twice"
        asked.append(Add(point, name, _now_ms()))
    return asked


def retry(folder: SweepFolder) -> list[Request]:
    """Raises InputError where nothing failed."""
    from tuneyard_pipelines.control import Retry
    from tuneyard_pipelines.journal import FAILURES

    if not any(trial.outcome in FAILURES for trial in folder.state().trials.values()):
        raise InputError(f"sweep {folder.sweep_id}: no trial has failed; go on with: tuneyard sweep resume")
    return [Retry(_now_ms())]


def ask(folder: SweepFolder, asked: Sequence[Request]) -> bool:
    """Put the requests into the sweep's folder; whether a driver is there to follow them."""
    from tuneyard_pipelines import control, lease

    if asked:
        control.ask(folder, asked)
    return lease.driven(folder.path)


def _read(text: str) -> dict[str, Any]:
    """Raises InputError for what is no list of KEY=VALUE."""
    import yaml

    from tuneyard_pipelines.spec import VARIANT

    values: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or not key or key in values:
            raise InputError(
                f"--point {text}: write KEY=VALUE,KEY=VALUE with each key once, as in num_heads=4,num_layers=2"
            )
        if key == VARIANT:  # a name, also one of digits
            values[key] = value.strip()
            continue
        try:
            values[key] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError):  # ValueError: the 31st of a month that has none
            raise InputError(f"--point {text}: {value!r} is no value of {key}") from None
        if isinstance(values[key], str):
            values[key] = _number(values[key])
    return values


def _number(text: str) -> float | str:
    """`1e-3` is a number, which YAML takes for text."""
    try:
        return float(text)
    except ValueError:
        return text


def _identity(point: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(point.items()))


def _now_ms() -> int:
    return int(time.time() * 1000)
