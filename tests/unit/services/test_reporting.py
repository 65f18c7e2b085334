"""The bar of what is done to the data: on a terminal only, and for each doing its own."""

from __future__ import annotations

import math

import pytest

from tuneyard.cli.output import reporting


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
