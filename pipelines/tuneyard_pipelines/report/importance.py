"""Which keys explain the score, each with an interval, and which of them cannot be told from chance.

The scores' ranks are predicted from the keys by a small random forest, on trials drawn with replacement. On those that
were not drawn, one key is shuffled among the trials of each variant, and the error grows (Breiman 2001, "Random
Forests", section 10); half of that is the share of the variance that the key explained (Gregorutti et al. 2017,
"Correlation and variable importance in random forests"). A column of random numbers takes part as the null (as in Kursa
and Rudnicki 2010, "Feature Selection with the Boruta Package"), and its share is subtracted. Drawing again and again
gives the interval (Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13); it is wide, for each
time the forest sees two thirds of the trials and is judged by the others.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuneyard_pipelines.ranges import Scalar
from tuneyard_pipelines.report.axes import axis, escaped, key_labels, varied_keys
from tuneyard_pipelines.report.style import FAINT, PLAIN, drawn
from tuneyard_pipelines.report.trials import Comparison, Figure, Omitted, Sweep, comparable, counted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Integers = npt.NDArray[np.int64]

FEWEST_TRIALS = 8
MOST_TRIALS = 400
RESAMPLES = 100
_SHUFFLES = 4
_TREES = 10
_INTERVAL = (0.05, 0.95)


@dataclass(frozen=True)
class Importance:
    """Share of the variance of the scores' ranks that a key explains beyond a random column; 90 % interval."""

    key: str
    share: float
    low: float
    high: float

    @property
    def certain(self) -> bool:
        return self.low > 0


@dataclass(frozen=True)
class _Feature:
    """A key's columns for the forest, and for each trial the set that it may be shuffled in."""

    key: str
    columns_ND: Floats
    among_N: Integers


def importance_figure(sweep: Sweep) -> Figure | Omitted:
    name, title = "importance", "Which keys explain the score"
    compared = comparable(sweep)
    if len(compared.trials) < FEWEST_TRIALS:
        have = counted(len(compared.trials), "trial")
        return Omitted(name, title, f"it takes {FEWEST_TRIALS} trials that can be compared; found {have}.")
    if len(set(compared.scores)) == 1:
        return Omitted(name, title, f"all {len(compared.trials):,} trials have the same score.")
    found = importances(sweep)
    if not found:
        return Omitted(name, title, "no key has two values among the trials that can be compared.")
    short = {"variant": "variant"} | key_labels(varied_keys(sweep.trials))
    rising = sorted(found, key=lambda entry: (entry.certain, entry.share))
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [entry.share for entry in rising],
        "y": list(range(len(rising))),
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [entry.high - entry.share for entry in rising],
            "arrayminus": [entry.share - entry.low for entry in rising],
            "color": "#777777",
        },
        "marker": {"size": 11, "color": [PLAIN if entry.certain else FAINT for entry in rising]},
        "text": [_told(entry) for entry in rising],
        "hovertemplate": "%{text}<extra></extra>",
    }
    longest = max(len(short[entry.key]) for entry in rising)
    figure = drawn(
        [trace],
        height=160 + 34 * len(rising),
        margin={"l": 40 + 8 * min(longest, 40), "r": 30, "t": 40, "b": 60},
        xaxis={"title": "share explained beyond a random column", "zerolinecolor": "#333333", "zerolinewidth": 2},
        yaxis={
            "tickvals": list(range(len(rising))),
            "ticktext": [escaped(short[entry.key]) for entry in rising],
            "range": [-0.6, len(rising) - 0.4],
            "zeroline": False,
        },
    )
    certain = [f"{short[entry.key]} {entry.share:.2f}" for entry in reversed(rising) if entry.certain]
    unclear = [short[entry.key] for entry in reversed(rising) if not entry.certain]
    words = [f"{', '.join(certain)} explain{'s' if len(certain) == 1 else ''} the score"] if certain else []
    words += [f"{', '.join(unclear)} cannot be told from chance"] if unclear else []
    used = min(len(compared.trials), MOST_TRIALS)
    thin = f", {used:,} of them drawn at random" if used < len(compared.trials) else ""
    caption = (
        f"{'; '.join(words)}: share of the scores' ranks that a key explains beyond a random column, with its 90 % "
        f"interval, which must clear 0 ({counted(len(compared.trials), 'trial')} at {compared.place}{thin})."
    )
    return Figure(name, title, caption, figure)


def importances(sweep: Sweep, *, resamples: int = RESAMPLES) -> list[Importance]:
    """Of every key with two values among the comparable trials, and of the variant; the same for the same seed.

    At least FEWEST_TRIALS can be compared, with two scores.
    """
    import numpy as np

    rng = np.random.default_rng(sweep.seed)
    compared = _sampled(comparable(sweep), rng)
    features = _features(sweep, compared)
    if not features:
        return []
    rank_N = _ranks(compared.scores)
    trials = len(rank_N)
    columns_ND = np.concatenate([feature.columns_ND for feature in features], axis=1)
    gains: list[Floats] = []
    while len(gains) < resamples:
        drawn_N = rng.integers(0, trials, trials)
        held_M = np.setdiff1d(np.arange(trials), drawn_N)
        if len(held_M) < 2:
            continue
        with_null_ND = np.column_stack([columns_ND, rng.random(trials)])
        shuffled = [with_null_ND[held_M], *_shuffled(with_null_ND[held_M], held_M, features, rng)]
        predicted = _forest(with_null_ND[drawn_N], rank_N[drawn_N], np.concatenate(shuffled), rng)
        predicted_SM = predicted.reshape(len(shuffled), -1)
        error_S = ((predicted_SM - rank_N[held_M]) ** 2).mean(axis=1) / (2 * rank_N.var())
        gain_K = error_S[1:].reshape(len(features) + 1, _SHUFFLES).mean(axis=1) - error_S[0]
        gains.append(gain_K[:-1] - gain_K[-1])
    low_K, high_K = np.quantile(np.array(gains), _INTERVAL, axis=0)
    return [
        Importance(feature.key, float(share), float(low), float(high))
        for feature, share, low, high in zip(features, np.mean(gains, axis=0), low_K, high_K, strict=True)
    ]


def _told(entry: Importance) -> str:
    verdict = "" if entry.certain else "<br>cannot be told from chance"
    return f"{entry.share:.3f}, 90 % interval {entry.low:.3f} to {entry.high:.3f}{verdict}"


def _sampled(compared: Comparison, rng: np.random.Generator) -> Comparison:
    if len(compared.trials) <= MOST_TRIALS:
        return compared
    chosen = sorted(rng.choice(len(compared.trials), MOST_TRIALS, replace=False).tolist())
    return Comparison(
        compared.share,
        tuple(compared.trials[index] for index in chosen),
        tuple(compared.scores[index] for index in chosen),
    )


def _features(sweep: Sweep, compared: Comparison) -> list[_Feature]:
    """A key is shuffled within a variant only, so that it is not credited with what the variants differ by."""
    import numpy as np

    variants = [trial.variant for trial in compared.trials]
    names = sorted(set(variants))
    features = []
    if len(names) > 1:
        features.append(_Feature("variant", _columns(variants), np.zeros(len(variants), dtype=np.int64)))
    for key in varied_keys(compared.trials):
        values = [trial.point.get(key) for trial in compared.trials]
        if len({value for value in values if value is not None}) > 1:
            features.append(_Feature(key, _columns(values), np.array([names.index(variant) for variant in variants])))
    return features


def _columns(values: Sequence[Scalar | None]) -> Floats:
    """Numbers as one column, what is missing at their median; texts as one column a text."""
    import numpy as np

    placed = axis(values, even=False)
    known = [value for value in values if value is not None]
    if all(isinstance(value, int | float) for value in known):
        middle = statistics.median(
            place for place, value in zip(placed.places, values, strict=True) if value is not None
        )
        column = [middle if value is None else place for place, value in zip(placed.places, values, strict=True)]
        return np.array(column, dtype=np.float64)[:, None]
    texts = sorted({str(value) for value in known})
    return np.array([[float(value is not None and str(value) == text) for text in texts] for value in values])


def _ranks(scores: Sequence[float]) -> Floats:
    """Equal scores share the mean of their ranks, so that one extreme score does not outweigh all others."""
    import numpy as np

    _, index_N, count_U = np.unique(np.array(scores, dtype=np.float64), return_inverse=True, return_counts=True)
    ranks_U = np.cumsum(count_U) - (count_U + 1) / 2
    ranks: Floats = ranks_U[index_N]
    return ranks


def _forest(seen_ND: Floats, rank_N: Floats, asked_RD: Floats, rng: np.random.Generator) -> Floats:
    """What a random forest that has `seen_ND` predicts for `asked_RD`.

    Its trees one by one and unchecked: for so few trials, a forest of scikit-learn's takes five times as long.
    """
    import numpy as np
    from sklearn import config_context
    from sklearn.tree import DecisionTreeRegressor

    seen, asked = seen_ND.astype(np.float32), asked_RD.astype(np.float32)
    sum_R = np.zeros(len(asked))
    with config_context(skip_parameter_validation=True):
        for _ in range(_TREES):
            rows = rng.integers(0, len(rank_N), len(rank_N))
            tree = DecisionTreeRegressor(min_samples_leaf=2, max_features=0.6, random_state=int(rng.integers(2**31)))
            sum_R += tree.fit(seen[rows], rank_N[rows], check_input=False).predict(asked, check_input=False)
    predicted_R: Floats = sum_R / _TREES
    return predicted_R


def _shuffled(
    held_MD: Floats, held_M: Integers, features: Sequence[_Feature], rng: np.random.Generator
) -> list[Floats]:
    """_SHUFFLES copies for each feature and at last for the random column, each with that one shuffled."""
    import numpy as np

    everywhere = np.zeros(len(held_M), dtype=np.int64)
    plans: list[tuple[int, Integers]] = [
        *((feature.columns_ND.shape[1], feature.among_N[held_M]) for feature in features),
        (1, everywhere),
    ]
    copies, first = [], 0
    for width, among_M in plans:
        for _ in range(_SHUFFLES):
            copy_MD = held_MD.copy()
            for group in np.unique(among_M):
                (rows,) = np.nonzero(among_M == group)
                copy_MD[rows, first : first + width] = held_MD[rng.permutation(rows), first : first + width]
            copies.append(copy_MD)
        first += width
    return copies
