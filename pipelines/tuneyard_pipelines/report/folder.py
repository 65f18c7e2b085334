"""A sweep to report, read from its folder."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping

from tuneyard_pipelines.journal import (
    AttemptStarted,
    LegEnded,
    LegFailed,
    LegStarted,
    SweepFolder,
    SweepState,
    Tail,
    TrialState,
)
from tuneyard_pipelines.metrics import MetricReader
from tuneyard_pipelines.ranges import Scalar
from tuneyard_pipelines.report.trials import CurvePoint, Sweep, Trial
from tuneyard_pipelines.spec import SweepSpec

_TOKENS, _LOSS = "train/tokens", "train/loss"
Counter = Callable[[Mapping[str, Scalar]], int | None]


def from_folder(folder: SweepFolder, parameters: Counter = lambda values: None) -> Sweep:
    """The sweep as it stands. `parameters` counts a model's parameters from all keys of its point.

    Raises InputError when the folder holds no sweep.
    """
    header, state = folder.header(), folder.state()
    spec = header.spec
    busy_s, wall_s = _durations_s(folder)
    trials = [_trial(folder, state, trial, spec, parameters, busy_s.get(trial.id)) for trial in state.trials.values()]
    return Sweep(
        name=spec.name,
        sweep_id=header.sweep_id,
        metric=spec.metric,
        mode=spec.mode,
        trials=tuple(trials),
        measured={"seconds": wall_s, "tokens": sum(trial.tokens for trial in trials), "trials": len(trials)},
        seed=spec.seed,
    )


def _trial(
    folder: SweepFolder,
    state: SweepState,
    trial: TrialState,
    spec: SweepSpec,
    parameters: Counter,
    seconds: float | None,
) -> Trial:
    variant: str = getattr(trial, "variant", "")
    values = spec.at(trial.point).flat()
    shares = spec.rungs()
    scores = {shares[leg.rung] if leg.rung < len(shares) else leg.share: leg.score for leg in trial.legs}
    outcome, message = _ending(trial, state)
    return Trial(
        id=trial.id,
        number=trial.number,
        name=trial.name,
        point=trial.point,
        values=values,
        state=outcome,
        variant=variant,
        message=message,
        score=trial.score,
        share=max(scores, default=0.0),
        tokens=trial.tokens,
        parameters=parameters(values),
        seconds=seconds,
        scores=scores,
        curves=_curves(folder, state, trial, {spec.metric, _LOSS}),
    )


def _ending(trial: TrialState, state: SweepState) -> tuple[str, str]:
    """A trial that was open when its sweep ended was cancelled, or fell with a driver that died."""
    if trial.outcome is not None or state.ended is None:
        return trial.state, trial.message
    fell = state.ended.state == "lost" and trial.running
    return "error" if fell else "cancelled", state.ended.message


def _curves(folder: SweepFolder, state: SweepState, trial: TrialState, wanted: set[str]) -> dict[str, list[CurvePoint]]:
    """The tokens of a step are what the trial counted at it, or in between by the nearest two counts."""
    metrics = MetricReader(folder, trial.id).new(state)
    counts = {0: 0.0} | {metric.step: metric.value for metric in metrics if metric.key == _TOKENS}
    counts |= {leg.step: float(leg.tokens) for leg in trial.legs}
    steps = sorted(counts)
    curves: dict[str, list[CurvePoint]] = {}
    for metric in sorted(metrics, key=lambda metric: metric.step):
        if metric.key in wanted:
            tokens = _tokens(metric.step, steps, counts)
            curves.setdefault(metric.key, []).append((metric.step, tokens, metric.value))
    return curves


def _tokens(step: int, steps: list[int], counts: Mapping[int, float]) -> float:
    """Linear between counts, and on at the last two counts' rate after them."""
    if step in counts or len(steps) == 1:
        return counts.get(step, 0.0)
    after = min(max(bisect.bisect_left(steps, step), 1), len(steps) - 1)
    left, right = steps[after - 1], steps[after]
    return counts[left] + (counts[right] - counts[left]) * (step - left) / (right - left)


def _durations_s(folder: SweepFolder) -> tuple[dict[str, float], float]:
    """Seconds that each trial's whole legs took, and that drivers were at work up to their last event."""
    begun_ms: dict[str, int] = {}
    busy_s: dict[str, float] = {}
    wall_s, started_ms, last_ms = 0.0, None, 0
    for event in Tail(folder.journal).events():
        match event:
            case AttemptStarted():
                wall_s += (last_ms - started_ms) / 1000 if started_ms is not None else 0.0
                started_ms = event.time_ms
            case LegStarted():
                begun_ms[event.trial] = event.time_ms
            case LegEnded() | LegFailed() if event.trial in begun_ms:
                took_s = (event.time_ms - begun_ms.pop(event.trial)) / 1000
                busy_s[event.trial] = busy_s.get(event.trial, 0.0) + took_s
            case _:
                pass
        last_ms = max(last_ms, event.time_ms)
    return busy_s, wall_s + ((last_ms - started_ms) / 1000 if started_ms is not None else 0.0)
