"""Every figure by its data: what is drawn, what is a gap, what is left out and why, and how it bears 2,000 trials."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from reported_sweep import RUNGS, searched, sweep, trial

from tuneyard_pipelines.report import Figure, Omitted, Sweep, Trial, parts
from tuneyard_pipelines.report.curves import MOST_LINES, MOST_POINTS, learning_curves, training_curves
from tuneyard_pipelines.report.importance import importance_figure
from tuneyard_pipelines.report.pareto import score_by_parameters, score_by_tokens
from tuneyard_pipelines.report.points import heads_layers_map, parallel_coordinates
from tuneyard_pipelines.report.tables import MOST_ROWS, failures, forecast, leaderboard

HEADS, LAYERS, LENGTH = "model.num_heads", "model.num_layers", "model.sequence_length"
DRAWING = [
    leaderboard,
    learning_curves,
    training_curves,
    parallel_coordinates,
    heads_layers_map,
    score_by_parameters,
    score_by_tokens,
    failures,
    forecast,
]


def drawn(part: Figure | Omitted) -> Figure:
    assert isinstance(part, Figure), part
    return part


def traces(part: Figure | Omitted) -> list[dict[str, Any]]:
    """As Plotly has them, in plain lists."""
    found: list[dict[str, Any]] = json.loads(drawn(part).figure.to_json())["data"]
    return found


def why(part: Figure | Omitted) -> str:
    assert isinstance(part, Omitted), part
    return part.reason


class TestLeaderboard:
    def test_a_row_tells_all_of_a_trial(self) -> None:
        trials = [
            trial(1, {HEADS: 4}, 0.5, parameters=1_234, share=1 / 3, state="stopped_early", tokens=1_000),
            trial(2, {HEADS: 2}, 0.25, parameters=99),
            trial(3, {HEADS: 1}, None, state="out_of_memory", message="needed 9 GiB", share=0.0),
        ]
        table = drawn(leaderboard(sweep(trials))).table
        assert table is not None
        assert table.head == ("rank", "trial", "heads", "parameters", "tokens", "budget", "val/exact_match", "state")
        assert table.rows == (
            ("1", "t002", "2", "99", "3,000,000", "100 %", "0.25", "completed"),
            ("2", "t001", "4", "1,234", "1,000", "33.3 %", "0.5", "stopped_early"),
            ("", "t003", "1", "", "0", "0 %", "", "out_of_memory: needed 9 GiB"),
        )

    def test_variants_and_their_own_keys_have_columns(self) -> None:
        trials = [
            trial(1, {HEADS: 4}, 0.5, variant="gpt"),
            trial(2, {"model.d_model": 64, "training.dropout": 0.1}, 0.4, variant="lstm"),
            trial(3, {"model.dropout": 0.2}, 0.3),
        ]
        table = drawn(leaderboard(sweep(trials))).table
        assert table is not None
        assert table.head[2:7] == ("variant", "heads", "width", "training.dropout", "model.dropout")
        assert [row[2:7] for row in table.rows] == [
            ("gpt", "4", "-", "-", "-"),
            ("lstm", "-", "64", "0.1", "-"),
            ("-", "-", "-", "-", "0.2"),
        ]

    def test_the_figure_holds_the_tables_cells(self) -> None:
        (cells,) = traces(leaderboard(sweep([trial(1, {HEADS: 4}, 0.5)])))
        assert cells["header"]["values"][1:3] == ["<b>trial</b>", "<b>heads</b>"]
        assert cells["cells"]["values"][1:3] == [["t001"], ["4"]]

    def test_the_longest_part_is_cut_and_says_so(self) -> None:
        figure = drawn(leaderboard(sweep([trial(n, {HEADS: 1}) for n in range(1, 2001)])))
        assert figure.table is not None
        assert len(figure.table.rows) == MOST_ROWS
        assert "Only the first 300 of 2,000 trials are listed." in figure.caption


class TestCurves:
    def test_what_is_not_finite_is_a_gap(self) -> None:
        points = [(1, 100.0, 0.5), (2, 200.0, math.nan), (3, 300.0, math.inf), (4, 400.0, 0.0), (5, 500.0, -1.0)]
        (line,) = traces(training_curves(sweep([trial(1, curves={"train/loss": points})])))
        assert line["x"] == [100, 200, 300, 400, 500]
        assert line["y"] == [0.5, None, None, 0.0, -1.0]
        assert line["connectgaps"] is False

    def test_the_best_lies_on_top_thick_and_named(self) -> None:
        curves = {"val/exact_match": [(1, 10.0, 0.1), (2, 20.0, 0.2)]}
        trials = [trial(n, score=score, curves=curves) for n, score in ((1, 0.3), (2, 0.9), (3, 0.1))]
        trials.append(trial(4, score=0.95, state="diverged", curves=curves))
        failed, third, second, first, *_ = traces(learning_curves(sweep(trials)))
        assert (first["name"], second["name"], third["name"], failed["name"]) == ("best: t002", "t001", "t003", "t004")
        assert first["line"]["width"] > second["line"]["width"]
        assert len({line["line"]["color"] for line in (first, second, third, failed)}) == 4
        smallest = drawn(learning_curves(sweep(trials, "min").__class__(**{**vars(sweep(trials)), "mode": "min"})))
        assert smallest.figure.data[3].name == "best: t003"

    def test_variants_have_a_colour_and_a_legend(self) -> None:
        curves = {"val/exact_match": [(1, 10.0, 0.1)]}
        pairs = [("gpt", 0.3), ("gpt2", 0.2), ("gpt", 0.1), ("gpt2", 0.05)]
        trials = [trial(n, score=score, variant=v, curves=curves) for n, (v, score) in enumerate(pairs, start=1)]
        lines = traces(learning_curves(sweep(trials)))
        color = {line["name"]: line["line"]["color"] for line in lines}
        assert color["t003"] == color["gpt"] != color["gpt2"] == color["t002"] == color["t004"]

    def test_a_diverged_loss_has_a_logarithmic_axis_and_a_score_has_none(self) -> None:
        falling = {"train/loss": [(n, float(n), 10 ** (3 - n / 10)) for n in range(1, 40)]}
        assert drawn(training_curves(sweep([trial(1, curves=falling)]))).figure.layout.yaxis.type == "log"
        assert drawn(learning_curves(searched(24))).figure.layout.yaxis.type == "linear"

    def test_many_long_lines_are_thinned_but_keep_their_peaks(self) -> None:
        def curve(n: int) -> dict[str, list[tuple[int, float, float]]]:
            return {
                "train/loss": [(s, s * 10.0, 9.0 if s == 777 else math.nan if s == 500 else 1.0) for s in range(2000)]
            }

        trials = [trial(n, score=n / 100, curves=curve(n)) for n in range(1, 101)]
        part = drawn(training_curves(sweep(trials)))
        lines = [line for line in traces(part) if len(line["x"]) > 2]
        assert len(lines) == MOST_LINES
        assert {line["name"] for line in lines} > {f"t{n:03d}" for n in range(71, 100)}
        assert all(len(line["x"]) <= MOST_POINTS and {9.0, None} <= set(line["y"]) for line in lines)
        assert "Of 100 trials, 60 are drawn" in part.caption

    def test_nothing_finite_says_so(self) -> None:
        nan = trial(1, curves={"train/loss": [(1, 1.0, math.nan)]})
        assert why(training_curves(sweep([nan]))) == "no trial has a finite value of train/loss yet."


class TestParallelCoordinates:
    def test_categories_have_sorted_ticks_and_stay_apart(self) -> None:
        words = ["gpt2", "gpt", "10", "1"]
        trials = [trial(n, {"model.positions": word}, n / 10) for n, word in enumerate(words, start=1)]
        (lines,) = traces(parallel_coordinates(sweep(trials)))
        kind, score = lines["dimensions"]
        assert kind["ticktext"] == ["1", "10", "gpt", "gpt2"]
        assert kind["tickvals"] == [0, 1, 2, 3]
        assert dict(zip(score["values"], kind["values"], strict=True)) == {0.1: 3, 0.2: 2, 0.3: 1, 0.4: 0}

    def test_a_key_that_a_variant_does_not_vary_is_missing(self) -> None:
        trials = [
            trial(1, {HEADS: 4}, 0.1, variant="gpt"),
            trial(2, {HEADS: 8}, 0.2, variant="gpt"),
            trial(3, {"model.d_model": 32}, 0.3, variant="lstm"),
        ]
        (lines,) = traces(parallel_coordinates(sweep(trials)))
        variant, heads, width, score = lines["dimensions"]
        assert variant["ticktext"] == ["gpt", "lstm"]
        assert score["values"] == [0.1, 0.2, 0.3]
        assert [heads["ticktext"][heads["tickvals"].index(place)] for place in heads["values"]] == ["4", "8", "-"]
        assert [width["ticktext"][width["tickvals"].index(place)] for place in width["values"]] == ["-", "-", "32"]
        assert all(axis["range"][0] <= min(axis["values"]) for axis in lines["dimensions"])

    def test_learning_rates_stand_by_their_logarithm(self) -> None:
        (lines,) = traces(parallel_coordinates(searched(24)))
        (rate,) = [axis for axis in lines["dimensions"] if axis["label"] == "lr"]
        assert all(-3 <= place <= -2 for place in rate["values"])

    @pytest.mark.parametrize(("mode", "top"), [("max", 0.9), ("min", 0.1)])
    def test_the_best_is_drawn_last_and_dark(self, mode: str, top: float) -> None:
        trials = [trial(n, {HEADS: n}, score) for n, score in ((1, 0.5), (2, 0.9), (3, 0.1))]
        (lines,) = traces(parallel_coordinates(sweep(trials, mode)))
        assert lines["dimensions"][-1]["values"][-1] == top
        assert lines["line"]["reversescale"] is (mode == "max")

    def test_only_what_can_be_compared_is_drawn(self) -> None:
        part = drawn(parallel_coordinates(searched(24)))
        assert len(part.figure.data[0].dimensions[0]["values"]) == 22
        assert "at 11 % of the budget (22 lines; 2 trials without a score there are left out)" in part.caption


class TestMap:
    def test_cells_hold_the_best_of_their_trials_and_empty_ones_nothing(self) -> None:
        cells = [(1, 1, 24, 0.1), (1, 1, 24, 0.3), (2, 1, 24, 0.2), (2, 2, 32, 0.7), (2, 2, 32, math.nan)]
        trials = [
            trial(n, {HEADS: h, LAYERS: y, LENGTH: s}, score) for n, (h, y, s, score) in enumerate(cells, start=1)
        ]
        short, long = traces(heads_layers_map(sweep(trials)))
        assert short["z"] == [[0.3, 0.2], [None, None]]
        assert long["z"] == [[None, None], [None, 0.7]]
        assert short["hovertext"][0][0].startswith("1 heads, 1 layers: best 0.3 of 2 trials<br>t02 ")
        smallest, _ = traces(heads_layers_map(sweep(trials, "min")))
        assert smallest["z"][0][0] == 0.1
        layout = drawn(heads_layers_map(sweep(trials))).figure.layout
        assert [note.text for note in layout.annotations] == ["length 24", "length 32"]
        assert (layout.xaxis.ticktext, layout.yaxis2.ticktext) == (("1", "2"), ("1", "2"))

    def test_a_key_that_is_not_varied_counts_with_its_one_value(self) -> None:
        trials = [trial(n, {HEADS: n, LENGTH: 24}, n / 10) for n in (1, 2)]
        (only,) = traces(heads_layers_map(sweep(trials)))
        assert only["z"] == [[0.1, 0.2]]

    def test_it_takes_two_of_the_keys(self) -> None:
        assert why(heads_layers_map(sweep([trial(1, {HEADS: 1})]))) == (
            "it takes two of model.num_heads, model.num_layers and model.sequence_length, and only model.num_heads is "
            "varied."
        )

    def test_a_variant_without_heads_is_no_cell(self) -> None:
        other = replace(trial(3, {"model.d_model": 8}, 0.9, variant="lstm"), values={"model.d_model": 8})
        trials = [trial(n, {HEADS: n, LAYERS: 1}, n / 10, variant="gpt") for n in (1, 2)]
        (only,) = traces(heads_layers_map(sweep([*trials, other])))
        assert only["z"] == [[0.1, 0.2]]

    def test_many_lengths_share_facets(self) -> None:
        trials = [trial(n, {HEADS: 1 + n % 4, LENGTH: 16 + n}, n / 100) for n in range(1, 60)]
        part = drawn(heads_layers_map(sweep(trials)))
        assert len(part.figure.data) == 9
        assert part.figure.layout.annotations[0].text == "length 17 to 23"


class TestScoreAgainstCost:
    def test_the_front_is_what_none_outdoes(self) -> None:
        found = [(10, 0.5), (20, 0.4), (30, 0.6), (30, 0.6), (40, 0.6), (5, 0.1)]
        trials = [trial(n, score=score, parameters=cost) for n, (cost, score) in enumerate(found, start=1)]
        rest, front = traces(score_by_parameters(sweep(trials)))
        assert list(zip(front["x"], front["y"], strict=True)) == [(5, 0.1), (10, 0.5), (30, 0.6), (30, 0.6)]
        assert list(zip(rest["x"], rest["y"], strict=True)) == [(20, 0.4), (40, 0.6)]
        _, least = traces(score_by_parameters(sweep(trials, "min")))
        assert list(zip(least["x"], least["y"], strict=True)) == [(5, 0.1)]

    def test_it_is_logarithmic_and_zeros_stay_out(self) -> None:
        trials = [trial(1, tokens=0), trial(2, tokens=100), trial(3, score=math.inf, tokens=5), trial(4, tokens=1000)]
        part = drawn(score_by_tokens(sweep(trials)))
        assert part.figure.layout.xaxis.type == "log"
        assert sorted(x for line in traces(part) for x in line["x"]) == [100, 1000]
        assert "2 trials without a score or tokens left out" in part.caption

    def test_an_open_mark_stopped_early(self) -> None:
        (front,) = traces(score_by_tokens(sweep([trial(1, share=1 / 9, score=0.1), trial(2, score=0.5)])))
        assert front["marker"]["symbol"] == ["circle-open", "circle"]

    def test_without_a_count_it_says_so(self) -> None:
        assert why(score_by_parameters(sweep([trial(1)]))) == "no trial has a score and a number of parameters."


class TestFailures:
    def test_messages_that_differ_in_numbers_only_are_one(self) -> None:
        said = [
            ("diverged", "loss nan at step 12"),
            ("diverged", "loss nan at step 3,400"),
            ("out_of_memory", "needed 1.5e+10 bytes at 0xdeadBEEF"),
            ("out_of_memory", "needed 7 bytes at 0x12"),
            ("out_of_memory", "killed"),
            ("error", "needed 7 bytes at 0x12"),
            ("cancelled", "asked to"),
        ]
        trials = [trial(n, score=None, state=s, message=m) for n, (s, m) in enumerate(said, start=1)]
        part = drawn(failures(sweep(trials)))
        assert part.table is not None
        assert part.table.rows == (
            ("diverged", "2", "loss nan at step 12", "t001, t002"),
            ("out_of_memory", "2", "needed 1.5e+10 bytes at 0xdeadBEEF", "t003, t004"),
            ("out_of_memory", "1", "killed", "t005"),
            ("error", "1", "needed 7 bytes at 0x12", "t006"),
        )
        (bars,) = traces(part)
        assert bars["x"] == [1, 2, 3]
        assert part.figure.layout.yaxis.ticktext == ("error", "diverged", "out_of_memory")
        assert part.caption.startswith("6 of 7 trials failed, for 4 different causes, most as out_of_memory (3)")

    def test_no_failure_says_so(self) -> None:
        assert why(failures(sweep([trial(1)]))) == "no trial failed."


class TestForecast:
    def test_the_forecast_stands_beside_the_truth(self) -> None:
        told = replace(
            sweep([trial(1)]),
            forecast={"seconds": 200.0, "tokens": 0.0, "trials": 3.0},
            measured={"seconds": 250.0, "tokens": 9.0, "gpu_hours": 1.5},
        )
        table = drawn(forecast(told)).table
        assert table is not None
        assert table.rows == (
            ("seconds", "200", "250", "1.25"),
            ("tokens", "0", "9", ""),
            ("trials", "3", "", ""),
            ("gpu_hours", "", "1.5", ""),
        )

    def test_none_says_so(self) -> None:
        assert why(forecast(sweep([trial(1)]))) == "no forecast was made for this sweep."


EDGES: dict[str, Sweep] = {
    "no trial": sweep([]),
    "one trial": sweep([trial(1, {HEADS: 4, LAYERS: 2}, 0.5, parameters=10)]),
    "one trial, nothing varied": sweep([trial(1)]),
    "one trial at work": sweep([trial(1, {HEADS: 4}, None, share=0.0, state="running", tokens=0, scores={})]),
    "all failed": sweep([trial(n, {HEADS: n}, None, state="error", share=0.0, scores={}) for n in range(1, 12)]),
    "all equal": sweep([trial(n, {HEADS: n % 2, LAYERS: n % 3}, 0.5) for n in range(1, 12)]),
    "odd numbers": sweep(
        [
            trial(n, {"training.weight_decay": value, HEADS: n}, score)
            for n, (value, score) in enumerate(
                [(0.0, 0.0), (-1.0, -5.0), (math.nan, 1e300), (math.inf, -math.inf), (1e-9, math.nan), (1e9, None)] * 2,
                start=1,
            )
        ],
        "min",
    ),
    "a low loss": searched(24, mode="min"),
}


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("draw", DRAWING)
def test_every_figure_is_drawn_or_says_why(draw: Callable[[Sweep], Figure | Omitted], name: str) -> None:
    part = draw(EDGES[name])
    if isinstance(part, Omitted):
        assert part.reason.endswith(".")
    else:
        assert not any(word in part.figure.to_json() for word in ("NaN", "Infinity"))
        assert part.caption.endswith(".")
        assert not any(word in part.caption for word in ("nan", "inf,", "None"))


def test_two_thousand_trials_are_drawn_within_a_few_hundred_kilobytes() -> None:
    many = searched(2000, points=30)
    for draw in DRAWING:
        part = draw(many)
        if isinstance(part, Figure):
            assert len(part.figure.to_json()) < 600_000, part.name


def test_a_trial_of_more_than_one_rung_is_shown_once_a_figure() -> None:
    ladder: Trial = trial(1, {HEADS: 4}, 0.9, scores=dict(zip(RUNGS, (0.1, 0.5, 0.9), strict=True)))
    (lines,) = traces(parallel_coordinates(sweep([ladder])))
    assert lines["dimensions"][-1]["values"] == [0.9]


def test_the_parts_stand_in_one_order_under_their_names() -> None:
    names = [part.name for part in parts(sweep([]))]
    assert names[:2] == ["leaderboard", "learning_curves"]
    assert len(names) == len(DRAWING) + 1
    assert isinstance(importance_figure(sweep([])), Omitted)
