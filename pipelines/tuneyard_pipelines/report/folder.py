"""A sweep to report, read from its folder."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Mapping

from tuneyard_pipelines import cost
from tuneyard_pipelines.catalog import vocab_sizes
from tuneyard_pipelines.journal import AttemptEnded, AttemptStarted, Header, SweepFolder, SweepState, Tail, TrialState
from tuneyard_pipelines.metrics import MetricReader
from tuneyard_pipelines.report.trials import CurvePoint, Sweep, Trial
from tuneyard_pipelines.standing import trial_shown

TRAINING = "seconds of training, all trials"
_TOKENS, _LOSS, _SPEED = "train/tokens", "train/loss", "train/tokens_per_second"


def from_folder(folder: SweepFolder) -> Sweep:
    """The sweep as it stands. Raises InputError when the folder holds no sweep."""
    header, state = folder.header(), folder.state()
    trials = [_trial(folder, header, state, trial) for trial in state.trials.values()]
    measured = {
        "trials": float(len(trials)),
        "tokens": float(sum(trial.tokens for trial in trials)),
        TRAINING: sum(trial.tokens / speed for trial in trials if (speed := _speed(trial)) > 0),
        "seconds from start to end": _wall_s(folder),
    }
    return Sweep(
        name=header.spec.name,
        sweep_id=header.sweep_id,
        metric=header.spec.metric,
        mode=header.spec.mode,
        trials=tuple(trials),
        forecast=header.forecast or None,
        measured=measured,
        seed=header.spec.seed,
    )


def _trial(folder: SweepFolder, header: Header, state: SweepState, trial: TrialState) -> Trial:
    spec = header.spec.variant(trial.variant)
    values = spec.at(trial.point).flat()
    shares = spec.rungs()
    scores = {shares[leg.rung] if leg.rung < len(shares) else leg.share: leg.score for leg in trial.legs}
    if trial.cut is not None:
        scores[trial.cut.share] = trial.cut.score
    share = max(scores, default=0.0)
    if trial.final:
        scores[1.0] = trial.score
    shown = trial_shown(trial, state)  # one that was open when its sweep ended did not go on waiting
    return Trial(
        id=trial.id,
        number=trial.number,
        name=trial.name,
        point=trial.point,
        values=values,
        state=shown.outcome or trial.state,
        variant=trial.variant,
        message=shown.reason,
        score=trial.score,
        share=share,
        final=trial.final,
        tokens=trial.tokens,
        parameters=cost.parameters(values, vocab_sizes(values, header.vocabularies)),
        seconds=trial.trained_ms / 1000,
        scores=scores,
        curves=_curves(folder, state, trial, {spec.metric, _LOSS, _SPEED}),
    )


def _speed(trial: Trial) -> float:
    """Tokens a second in training; 0 where it was never measured."""
    return statistics.median([value for _, _, value in trial.curves.get(_SPEED, ())] or [0.0])


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


def _wall_s(folder: SweepFolder) -> float:
    """Seconds that drivers were at work, each up to its last event."""
    wall_s, started_ms, last_ms = 0.0, None, 0
    for event in Tail(folder.journal).events():
        if isinstance(event, AttemptStarted):
            wall_s += (last_ms - started_ms) / 1000 if started_ms is not None else 0.0
            started_ms = event.time_ms
        if not (isinstance(event, AttemptEnded) and event.state == "lost"):  # written when somebody looked
            last_ms = max(last_ms, event.time_ms)
    return wall_s + ((last_ms - started_ms) / 1000 if started_ms is not None else 0.0)
