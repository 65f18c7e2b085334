"""Order, comparison and words: which trials stand where, which are compared, and which value pays."""

from __future__ import annotations

import math

import pytest
from reported_sweep import RUNGS, searched, sweep, trial

from tuneyard_pipelines.report import sentences
from tuneyard_pipelines.report.trials import comparable, ordered, ranks


def test_full_budgets_stand_first_then_lesser_ones_then_no_score_then_failures() -> None:
    trials = [
        trial(1, score=0.9, share=0.3, state="diverged"),
        trial(2, score=0.8, share=0.3, state="stopped_early"),
        trial(3, score=None, share=0.0, state="waiting"),
        trial(4, score=0.1),
        trial(5, score=0.2),
        trial(6, score=0.5, share=0.6, state="out_of_budget"),
        trial(7, score=math.nan, share=0.3, state="running"),
    ]
    assert [entry.number for entry in ordered(sweep(trials))] == [5, 4, 6, 2, 7, 3, 1]
    assert [entry.number for entry in ordered(sweep(trials, "min"))] == [4, 5, 6, 2, 7, 3, 1]
    assert ranks(sweep(trials)) == {"t005": 1, "t004": 2, "t006": 3, "t002": 4}


def test_a_trial_that_stopped_itself_stands_among_full_budgets() -> None:
    trials = [
        trial(1, score=0.1),
        trial(2, score=0.8, share=0.3, state="stopped_early", final=True),
        trial(3, score=0.9),
    ]
    assert [entry.number for entry in ordered(sweep(trials))] == [3, 2, 1]


def test_equal_scores_share_a_rank() -> None:
    trials = [trial(1, score=0.2), trial(2, score=0.5), trial(3, score=0.5), trial(4, score=0.5, share=0.3)]
    assert ranks(sweep(trials)) == {"t002": 1, "t003": 1, "t001": 3, "t004": 4}


def test_trials_are_compared_where_most_have_a_score() -> None:
    low, middle, _ = RUNGS
    trials = [
        trial(1, score=0.9, scores=dict(zip(RUNGS, (0.1, 0.5, 0.9), strict=True))),
        trial(2, score=0.3, share=low),
        trial(3, score=0.6, share=middle, scores={low: 0.2, middle: 0.6}),
        trial(4, score=None, share=low, scores={low: None}),
    ]
    compared = comparable(sweep(trials))
    assert (compared.share, compared.scores) == (pytest.approx(low, abs=1e-6), (0.1, 0.3, 0.2))
    assert comparable(sweep([trial(1), trial(2)])).place == "the full budget"
    assert comparable(sweep([trial(1, score=math.inf)])).trials == ()


def heads(*pairs: tuple[object, float], **more: object) -> list[object]:
    return [trial(n, {"model.num_heads": value}, score, **more) for n, (value, score) in enumerate(pairs, start=1)]


def told(trials: list[object], mode: str = "max") -> str:
    (sentence,) = sentences(sweep(trials, mode))
    return sentence


def test_a_clear_difference_is_told_with_counts() -> None:
    pairs = [(4, 0.80 + n / 100) for n in range(8)] + [(1, 0.30 + n / 100) for n in range(8)]
    assert told(heads(*pairs)) == (
        "heads: 4 has the best val/exact_match, 0.87 (8 trials, median 0.835); then 1 with 0.37 (8 trials, median "
        "0.335). 4 is better than 1 beyond chance."
    )
    assert told(heads(*pairs), "min").startswith("heads: 1 has the best val/loss, 0.3 (8 trials, median 0.335); then 4")


def test_a_difference_within_noise_is_told_with_the_spread() -> None:
    pairs = [(value, 0.5 + (n * 7 % 10) / 20 + value / 1000) for n in range(10) for value in (1, 2)]
    assert (
        "No difference can be told from chance: the best scores are 0.001 apart, and scores within one value spread"
        in (told(heads(*pairs)))
    )


def test_what_beats_some_values_only_is_told_so() -> None:
    pairs = [(value, quality + n / 100) for value, quality in ((1, 0.1), (4, 0.60), (8, 0.605)) for n in range(9)]
    assert "8 is better than 1 beyond chance, and cannot be told from 4: scores within" in told(heads(*pairs))


def test_few_trials_are_a_hint() -> None:
    assert "With 1 trial of 8 this is a hint, not an answer" in told(heads((8, 0.9), (4, 0.1), (4, 0.2), (4, 0.3)))


def test_equal_bests_are_named_together() -> None:
    assert "1 and 2 share the best val/exact_match, 0.5 (1 trial)" in told(heads((1, 0.5), (2, 0.5)))


def test_one_value_or_no_score_says_so() -> None:
    assert told(heads((4, 0.5), (4, 0.6))) == "heads: only 4 was compared."
    assert sentences(sweep([])) == ["No trial has a score yet, so nothing can be said about the values of keys."]
    assert sentences(sweep(heads((4, None)))) == sentences(sweep([]))


def test_many_numbers_are_told_as_intervals() -> None:
    trials = [trial(n, {"training.learning_rate": n / 1000}, n / 100) for n in range(1, 25)]
    assert told(trials).startswith(
        "lr: 0.019 to 0.024 has the best val/exact_match, 0.24 (6 trials, median 0.215); then 0.013 to 0.018 with 0.18"
    )


def test_a_key_is_not_credited_with_what_variants_differ_by() -> None:
    """Width 2 is common in the better variant, and within each variant it changes nothing."""
    trials = []
    for variant, quality, wide in (("gpt", 0.8, 9), ("gpt2", 0.2, 3)):
        for n in range(12):
            point = {"model.d_model": 2 if n < wide else 1}
            trials.append(trial(len(trials) + 1, point, quality + (n * 5 % 12) / 100, variant=variant))
    variant, *widths = sentences(sweep(trials))
    assert variant.startswith("variant: gpt has the best")
    assert "gpt is better than gpt2 beyond chance" in variant
    assert [width.partition(":")[0] for width in widths] == ["width of gpt", "width of gpt2"]
    assert all("beyond chance" not in width for width in widths)


def test_the_same_seed_tells_the_same() -> None:
    assert sentences(searched(30)) == sentences(searched(30))
