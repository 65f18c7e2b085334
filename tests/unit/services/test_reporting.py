"""The bar of what is done to the data: on a terminal only, and for each doing its own."""

from __future__ import annotations

import math

import pytest

from tuneyard.cli.output import ago, reporting


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "90")


@pytest.mark.usefixtures("terminal")
def test_a_terminal_sees_what_is_done_and_how_much_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting() as tell:
        tell("reading", 0.4)
    said = capsys.readouterr()
    assert any("reading" in line and " 40%" in line for line in said.err.splitlines())
    assert said.out == ""


@pytest.mark.usefixtures("terminal")
def test_what_has_no_known_end_shows_no_share_of_what_was_before(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting() as tell:
        tell("reading", 0.4)
        tell("starting Ray", math.nan)
    lines = [line for line in capsys.readouterr().err.splitlines() if "starting Ray" in line]
    assert lines
    assert not [line for line in lines if "40%" in line]


def test_a_pipe_sees_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting() as tell:
        tell("reading", 0.4)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("past_s", "said"),
    [
        (0, "0 s ago"),
        (-0.5, "0 s ago"),
        (59.9, "59 s ago"),
        (60, "1 min ago"),
        (3599, "59 min ago"),
        (3600, "1 h ago"),
        (86_399, "23 h ago"),
        (86_400 * 29.5, "29 d ago"),
        (86_400 * 30, "2023-10-15"),
        (-3600, "2023-11-14 23:13:20Z"),
    ],
)
def test_q6_how_long_ago_is_the_same_everywhere(past_s: float, said: str) -> None:
    now_ms = 1_700_000_000_000
    assert ago(now_ms - int(past_s * 1000), now_ms) == said
