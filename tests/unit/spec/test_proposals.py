from __future__ import annotations

import math
import random

import pytest

from tuneyard_pipelines import proposals, spec
from tuneyard_pipelines.proposals import Observed, propose, startup_trials
from tuneyard_pipelines.space import Space

SMALLEST = "name: a\ntask: translation\ndata: {source: builtin/dates}\ntraining: {max_tokens: 9000}\n"


def space(*overrides: str) -> Space:
    return Space(spec.parse(SMALLEST, file="a.yaml", overrides=overrides))


S1 = space("model.d_model=[64, 96, 100]", "model.num_heads=[3, 4, 6]", "search.trials=9")


def run(over: Space, algorithm: str, seed: int, trials: int, score) -> list[Observed]:
    history: list[Observed] = []
    while len(history) < trials and (point := propose(over, algorithm, seed, history)) is not None:
        history.append(Observed(point, ((1.0, score(point)),), finished=True))
    return history


@pytest.mark.parametrize("algorithm", ["grid", "random", "tpe"])
def test_s1_exactly_the_feasible_points_are_tried_and_then_none_is_left(algorithm):
    history = run(S1, algorithm, 3, 100, lambda point: point["model.d_model"])
    assert sorted(S1.identity(observed.point) for observed in history) == [(64, 4), (96, 3), (96, 4), (96, 6), (100, 4)]
    assert propose(S1, algorithm, 3, history) is None


def test_grid_goes_in_order():
    history = run(S1, "grid", 1, 100, lambda point: 0.0)
    assert [S1.identity(observed.point) for observed in history] == [(64, 4), (96, 3), (96, 4), (96, 6), (100, 4)]


@pytest.mark.parametrize("algorithm", ["random", "tpe"])
def test_s3_a_range_of_whole_numbers_gives_both_ends_and_nothing_else(algorithm):
    over = space("model.num_layers={int: [1, 2]}", "model.dropout={uniform: [0, 0.5]}", "search.trials=15")
    assert startup_trials(15) == 3, "so that tpe draws from its model, not at random"
    history = [Observed(over.sample(random.Random(number)), ((1.0, number % 3),), True) for number in range(3)]
    drawn = [propose(over, algorithm, seed, history) for seed in range(500)]
    layers = [point["model.num_layers"] for point in drawn]
    assert set(layers) == {1, 2}
    assert all(type(value) is int for value in layers)
    assert all(type(point["model.dropout"]) is float and 0 <= point["model.dropout"] <= 0.5 for point in drawn)


def test_s3_grid_takes_both_ends():
    over = space("model.num_layers={int: [1, 2]}", "search.algorithm=grid")
    assert [observed.point["model.num_layers"] for observed in run(over, "grid", 1, 500, lambda point: 0.0)] == [1, 2]


@pytest.mark.parametrize("algorithm", ["random", "tpe"])
def test_the_last_points_of_a_space_are_found(algorithm):
    over = space("training.batch_tokens={int: [1, 30]}", "search.trials=30", "constraints=[batch_tokens % 2 == 0]")
    history = run(over, algorithm, 5, 100, lambda point: -point["training.batch_tokens"])
    assert sorted(observed.point["training.batch_tokens"] for observed in history) == list(range(2, 31, 2))


def test_proposals_repeat_for_the_same_seed_and_history_and_differ_between_seeds():
    over = space("model.dropout={uniform: [0, 0.5]}", "model.num_heads=[1, 2, 4]", "search.trials=20")
    for algorithm in ("random", "tpe"):
        first, again = (run(over, algorithm, 1, 8, lambda point: point["model.dropout"]) for _ in range(2))
        assert first == again
        assert run(over, algorithm, 2, 8, lambda point: point["model.dropout"]) != first


def test_random_does_not_look_at_scores_and_tpe_does():
    over = space("model.dropout={uniform: [0, 0.5]}", "search.trials=20")
    rising = [Observed({"model.dropout": n / 40}, ((1.0, n / 20),), True) for n in range(20)]
    falling = [Observed(observed.point, ((1.0, -observed.scores[0][1]),), True) for observed in rising]
    assert propose(over, "random", 1, rising) == propose(over, "random", 1, falling)
    high, low = (propose(over, "tpe", 1, history)["model.dropout"] for history in (rising, falling))
    assert low < 0.25 < high


def test_the_mode_of_the_metric_is_kept():
    least = space("model.dropout={uniform: [0, 0.5]}", "search={trials: 20, metric: val/loss}")
    rising = [Observed({"model.dropout": n / 40}, ((1.0, n / 20),), True) for n in range(20)]
    assert propose(least, "tpe", 1, rising)["model.dropout"] < 0.25


def test_tpe_ranks_by_how_far_a_trial_came_and_takes_what_is_not_finite_for_the_worst():
    over = space("model.dropout={uniform: [0, 0.5]}", "search.trials=20")
    promoted = [Observed({"model.dropout": 0.4 + n / 100}, ((1 / 3, 0.9), (1.0, 0.5)), True) for n in range(4)]
    left = [Observed({"model.dropout": n / 100}, ((1 / 3, 0.8),)) for n in range(16)]
    assert propose(over, "tpe", 1, promoted + left)["model.dropout"] > 0.25
    for bad in (math.nan, math.inf, -math.inf):
        broken = [Observed({"model.dropout": n / 100}, ((1.0, bad),), True) for n in range(16)]
        fine = [Observed({"model.dropout": 0.4 + n / 100}, ((1.0, 0.1),), True) for n in range(4)]
        assert propose(over, "tpe", 1, broken + fine)["model.dropout"] > 0.25
    silent = [Observed({"model.dropout": n / 100}, (), True) for n in range(16)]
    assert propose(over, "tpe", 1, silent + fine)["model.dropout"] > 0.25


def test_points_that_run_are_history_too():
    over = space("model.num_heads=[1, 2, 4]", "search.trials=3")
    running = [Observed({"model.num_heads": heads}) for heads in (1, 4)]
    for algorithm in ("grid", "random", "tpe"):
        assert propose(over, algorithm, 1, running) == {"model.num_heads": 2}


def test_numbers_are_ordered_for_tpe_however_they_are_listed_and_texts_are_not():
    over = space(
        "model.num_heads=[8, 1, 4]",
        "model.positions=[learned, sinusoidal]",
        "model.num_layers={int: [1, 5], step: 2}",
        "search.trials=3",
    )
    heads, layers, positions = (proposals._Axis(key, held) for key, held in over.ranges.items())
    assert [heads.internal(value) for value in (1, 4, 8)] == [0, 1, 2]
    assert [heads.value(index) for index in range(3)] == [1, 4, 8]
    assert type(positions.distribution).__name__ == "CategoricalDistribution"
    assert (type(layers.distribution).__name__, layers.distribution.step) == ("IntDistribution", 2)


def test_tpe_starts_with_a_fifth_of_the_trials_at_random():
    assert [startup_trials(trials) for trials in (None, 1, 12, 20, 36, 50, 1000)] == [3, 3, 3, 4, 7, 10, 10]


def test_tpe_is_quiet_and_leaves_optunas_logging_as_it_was(caplog, capfd):
    import optuna

    before = optuna.logging.get_verbosity()
    run(space("model.dropout={uniform: [0, 0.5]}", "search.trials=6"), "tpe", 1, 6, lambda point: 0.5)
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")


def test_tpe_beats_random_on_a_smooth_hill():
    over = space(
        "model.num_heads=[1, 2, 4, 8]",
        "model.num_layers=[1, 2, 3]",
        "model.sequence_length=[24, 32, 48]",
        "training.learning_rate={loguniform: [1e-4, 1e-1]}",
        "search.trials=24",
    )

    def hill(point):
        return -(
            (math.log2(point["model.num_heads"]) - 2) ** 2
            + (point["model.num_layers"] - 2) ** 2
            + ((point["model.sequence_length"] - 32) / 8) ** 2
            + (math.log10(point["training.learning_rate"]) + 2.3) ** 2
        )

    def mean_best(algorithm):
        seeds = range(3)
        return sum(max(o.scores[0][1] for o in run(over, algorithm, seed, 24, hill)) for seed in seeds) / len(seeds)

    assert mean_best("tpe") > mean_best("random")
