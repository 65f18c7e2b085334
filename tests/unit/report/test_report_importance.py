"""Importance: keys that matter are told from chance, others are not, and variants do not lend keys their difference."""

from __future__ import annotations

import random

import pytest
from reported_sweep import searched, sweep, trial

from tuneyard_pipelines.report import Figure, Omitted, Trial, importance
from tuneyard_pipelines.report.importance import FEWEST_TRIALS, importance_figure, importances

SURE, UNSURE = "#0072b2", "#b4bac2"


def test_keys_that_matter_are_told_from_those_that_do_not() -> None:
    found = {entry.key: entry for entry in importances(searched(60), resamples=40)}
    assert found["model.sequence_length"].certain
    assert found["model.num_heads"].certain
    assert found["model.sequence_length"].share > found["model.num_heads"].share > 0.05
    assert not found["model.dropout"].certain
    assert not found["training.learning_rate"].certain
    assert all(entry.low <= entry.share <= entry.high <= 1.1 for entry in found.values())


def test_chance_is_not_told_as_importance() -> None:
    """Of 5 keys in each of 5 sweeps of noise."""
    wrong = 0
    for seed in range(5):
        rng = random.Random(seed)
        keys = [f"training.k{n}" for n in range(5)]
        trials = [
            trial(
                n,
                {key: rng.choice(["a", "b", "c"]) if key < "training.k2" else rng.random() for key in keys},
                rng.random(),
            )
            for n in range(1, 25)
        ]
        wrong += sum(entry.certain for entry in importances(sweep(trials), resamples=20))
    assert wrong <= 1


@pytest.mark.parametrize("mode", ["max", "min"])
def test_a_text_key_counts_as_categories(mode: str) -> None:
    rng = random.Random(3)
    quality = {"gpt": 0.9, "gpt2": 0.1, "gpt20": 0.8}
    trials = []
    for n in range(1, 31):
        kind = rng.choice(list(quality))
        point = {"model.positions": kind, "training.seed": rng.random()}
        trials.append(trial(n, point, quality[kind] + rng.gauss(0, 0.02)))
    kind, other = importances(sweep(trials, mode), resamples=40)
    assert kind.certain
    assert kind.share > 0.3
    assert not other.certain


def test_a_key_is_not_credited_with_what_variants_differ_by() -> None:
    """The wide one of each pair is common in the better variant, and changes nothing there."""
    rng = random.Random(5)
    trials = []
    for variant, quality, wide in (("gpt", 0.8, 0.98), ("lstm", 0.2, 0.02)):
        for _ in range(30):
            point = {"model.d_model": 64 if rng.random() < wide else 32}
            trials.append(trial(len(trials) + 1, point, quality + rng.gauss(0, 0.05), variant=variant))
    variant, width = importances(sweep(trials), resamples=40)
    assert (variant.key, variant.certain) == ("variant", True)
    assert not width.certain
    assert width.share < 0.05


def test_a_key_is_judged_on_trials_that_the_forest_has_not_seen() -> None:
    """Where it had, a random column, by which it knows each of them again, would seem to explain the most."""
    rng = random.Random(1)
    trials = [trial(n, {"model.num_heads": rng.choice([1, 2])}, rng.random()) for n in range(1, 81)]
    (heads,) = importances(sweep(trials), resamples=20)
    assert abs(heads.share) < 0.08


def test_keys_of_one_variant_only_are_measured_within_it() -> None:
    rng = random.Random(7)
    trials: list[Trial] = []
    for n in range(1, 61):
        heads = rng.choice([1, 2])
        kind = {"model.positions": rng.choice(["learned"] * 15 + ["sinusoidal"])}
        point = {"model.num_heads": heads} | kind if n % 2 else {"training.hidden": rng.random()}
        score = (0.7 + 0.1 * heads if n % 2 else 0.2) + rng.gauss(0, 0.02)
        trials.append(trial(n, point, score, variant="gpt" if n % 2 else "lstm"))
    found = {entry.key: entry for entry in importances(sweep(trials), resamples=40)}
    assert found["model.num_heads"].certain
    assert not found["training.hidden"].certain
    assert abs(found["model.positions"].share) < 0.05


def test_the_same_seed_gives_the_same_and_another_does_not() -> None:
    once, again = (importances(searched(24), resamples=10) for _ in range(2))
    assert once == again
    other = searched(24)
    assert importances(sweep(other.trials, seed=9), resamples=10) != once


def test_the_figure_marks_what_cannot_be_told_from_chance() -> None:
    part = importance_figure(searched(60))
    assert isinstance(part, Figure)
    (dots,) = part.figure.data
    ticks = part.figure.layout.yaxis.ticktext
    color = dict(zip(ticks, dots.marker.color, strict=True))
    assert (color["length"], color["heads"], color["lr"], color["dropout"]) == (SURE, SURE, UNSURE, UNSURE)
    assert ticks[-1] == "length"
    assert part.caption.startswith("length 0.")
    assert "lr" in part.caption.partition(" cannot be told from chance")[0].partition("explain the score; ")[2]
    assert all(low >= 0 and high >= 0 for low, high in zip(dots.error_x.arrayminus, dots.error_x.array, strict=True))


def test_too_few_trials_equal_scores_and_one_value_say_so() -> None:
    few = importance_figure(searched(FEWEST_TRIALS - 1))
    equal = importance_figure(sweep([trial(n, {"model.num_heads": n}, 0.5) for n in range(1, 10)]))
    alike = importance_figure(sweep([trial(n, {"model.num_heads": 4}, n / 10) for n in range(1, 10)]))
    assert [part.reason for part in (few, equal, alike) if isinstance(part, Omitted)] == [
        "it takes 8 trials that can be compared; found 7 trials.",
        "all 9 trials have the same score.",
        "no key has two values among the trials that can be compared.",
    ]


def test_more_trials_than_it_takes_are_drawn_at_random_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importance, "MOST_TRIALS", 20)
    part = importance_figure(searched(60, points=6))
    assert isinstance(part, Figure)
    assert "54 trials at 11 % of the budget, 20 of them drawn at random" in part.caption
