"""Where values stand: texts each at its own tick, numbers by size or logarithm, what is missing below."""

from __future__ import annotations

import math

import pytest

from tuneyard_pipelines.report.axes import axis, escaped, grouped, key_labels, log_like, log_ticks


def test_texts_that_share_a_prefix_stay_apart_and_sorted() -> None:
    placed = axis(["gpt2", "gpt", "gpt2-xl", "gpt"])
    assert placed.places == (1, 0, 2, 0)
    assert placed.ticks == ((0, "gpt"), (1, "gpt2"), (2, "gpt2-xl"))


def test_texts_of_digits_are_texts() -> None:
    placed = axis(["10", "1", "2"])
    assert placed.places == (1, 0, 2)
    assert placed.ticks == ((0, "1"), (1, "10"), (2, "2"))


def test_kinds_that_print_alike_get_different_ticks() -> None:
    assert [text for _, text in axis([1, "1", True, "true", "-"]).ticks] == ["True", "1", '"-"', '"1"', '"true"']


def test_long_texts_are_cut_unless_that_makes_them_equal() -> None:
    same = "x" * 40
    assert [text for _, text in axis([same + "a", same + "b", "y" * 40]).ticks] == [
        f'"{same}a"',
        f'"{same}b"',
        "y" * 27 + "…",
    ]


def test_few_numbers_stand_evenly() -> None:
    assert axis([1, 8, 2, 4]).places == (0, 3, 1, 2)
    assert axis([0.0, 1e-4, 0.1, 0.1]).ticks == ((0, "0"), (1, "0.0001"), (2, "0.1"))
    assert axis([-1, 0, -2]).places == (1, 2, 0)


def test_what_is_drawn_log_uniformly_stands_by_its_logarithm() -> None:
    values = [10 ** (-3 + n / 20) for n in range(20)]
    placed = axis(values)
    assert placed.log
    assert placed.places == pytest.approx([-3 + n / 20 for n in range(20)])
    assert placed.ticks[0] == (pytest.approx(-3), "0.001")


def test_what_is_drawn_uniformly_stands_by_its_size() -> None:
    values = [0.05 + n / 40 for n in range(20)]
    placed = axis(values)
    assert not placed.log
    assert placed.places == pytest.approx(values)
    assert [text for _, text in placed.ticks] == ["0.05", "0.169", "0.288", "0.406", "0.525"]


@pytest.mark.parametrize("gone", [None, math.nan, math.inf, -math.inf])
def test_what_is_missing_stands_below_at_a_tick_of_its_own(gone: float | None) -> None:
    assert axis([4, gone, 8]).places == (0, -1, 1)
    assert axis([4, gone, 8]).ticks[0] == (-1, "-")
    values = [n / 7 for n in range(20)]
    placed = axis([*values, gone])
    assert placed.places[-1] < min(values)
    assert placed.ticks[0] == (placed.places[-1], "-")


def test_axes_of_nothing_and_of_one_value() -> None:
    assert axis([]).ticks == ()
    assert axis([None, None]).ticks == ((-1, "-"),)
    assert axis([0.37]).ticks == ((0, "0.37"),)
    assert axis([0.37], even=False).ticks == ((0.37, "0.37"),)


def test_zeros_and_negatives_have_no_logarithm() -> None:
    assert not log_like([0.0, 1.0, 10.0, 100.0], 4)
    assert not log_like([-1.0, 1.0, 100.0], 4)
    assert log_like([1.0, 10.0, 100.0], 4)
    assert not log_like([], 4)


def test_groups_are_values_while_they_are_few() -> None:
    assert grouped(["b", None, "a"], 1).labels == ("a", "b")
    assert grouped([8, 1, 8, math.nan], 6) == grouped([8, 1, 8, None], 6)
    assert grouped([8, 1, 8, None], 6).of == (1, 0, 1, None)


def test_many_numbers_are_grouped_equally() -> None:
    groups = grouped([*range(1, 13), 12, None], 6, 3)
    assert groups.labels == ("1 to 5", "6 to 9", "10 to 12")
    assert groups.of == (0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, None)


def test_keys_with_one_short_name_keep_their_own() -> None:
    names = key_labels(["model.dropout", "training.dropout", "model.num_heads"])
    assert list(names.values()) == ["model.dropout", "training.dropout", "heads"]


def test_text_is_shown_by_plotly_as_it_is() -> None:
    assert escaped("<script>&</script>") == "&lt;script&gt;&amp;&lt;/script&gt;"
    assert escaped("a\ud800b") == "a?b"


def test_ticks_of_a_cost_are_round_or_its_ends() -> None:
    assert log_ticks([49_000, 129_000]) == [50_000, 100_000]
    assert log_ticks([1e3, 1e6]) == [1e3, 1e4, 1e5, 1e6]
    assert log_ticks([61_000, 64_000]) == [61_000, 64_000]
    assert log_ticks([7]) == [7]
