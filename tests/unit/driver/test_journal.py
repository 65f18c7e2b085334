"""The journal: what a replay gives, whatever happened to the file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneyard_pipelines.errors import InputError, RefusedError
from tuneyard_pipelines.journal import (
    EVENTS,
    OUTCOMES,
    AttemptEnded,
    AttemptStarted,
    Event,
    Journal,
    LegCut,
    LegEnded,
    LegFailed,
    LegStarted,
    SweepFolder,
    SweepState,
    Tail,
    TrialCreated,
    TrialEnded,
    WinnerRegistered,
    WinnerScored,
)

MakeFolder = Callable[..., SweepFolder]

BEGUN = AttemptStarted(attempt=1, time_ms=10, host="node-1", versions={"ray": "2"}, sealed={})
CREATED = TrialCreated("t001", 1, "t01 heads=2", {"model.num_heads": 2}, 11)
STARTED = LegStarted("t001", 1, 0, 12)
ENDED = LegEnded("t001", 1, 0, share=0.11, tokens=330, step=7, score=0.5, metrics={"val/loss": 2.0}, time_ms=13)
CUT_SHORT = LegCut("t001", 1, 1, 0.2, 400, 12, 0.6, {"val/bleu": 5.0}, 14)
FAILED = LegFailed("t001", 1, 1, "error", "killed", 14)
OVER = TrialEnded("t001", "error", "killed", 15)
SCORED = WinnerScored("t001", {"test/bleu": 3.0}, "abc", "def", 16)
REGISTERED = WinnerRegistered("t001", "dates", 1, "candidate is now version 1", 17)
CLOSED = AttemptEnded(1, "finished", "", 18)
STORY: Sequence[Event] = (
    BEGUN,
    CREATED,
    STARTED,
    ENDED,
    LegStarted("t001", 1, 1, 13),
    CUT_SHORT,
    FAILED,
    OVER,
    SCORED,
    REGISTERED,
    CLOSED,
)

trials = st.sampled_from(["t001", "t002", "t003", "t404"])
small = st.integers(0, 5)
finite = st.floats(allow_nan=False, allow_infinity=False)
metrics = st.dictionaries(st.sampled_from(["val/loss", "val/bleu", "a:b"]), finite, max_size=2)
words = st.text(max_size=12)
times = st.integers(0, 2**41)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        AttemptStarted,
        attempt=small,
        time_ms=times,
        host=words,
        versions=st.dictionaries(words, words, max_size=2),
        sealed=st.dictionaries(
            st.sampled_from(["trials/t001/a1/metrics.jsonl", "trials/t002/a2/metrics.jsonl"]), small
        ),
    ),
    st.builds(
        TrialCreated,
        trial=st.sampled_from(["t001", "t002", "t003"]),
        number=small,
        name=words,
        point=st.dictionaries(words, st.one_of(st.booleans(), small, finite, words), max_size=3),
        time_ms=times,
    ),
    st.builds(LegStarted, trial=trials, attempt=small, rung=small, time_ms=times),
    st.builds(
        LegEnded,
        trial=trials,
        attempt=small,
        rung=small,
        share=finite,
        tokens=small,
        step=small,
        score=st.none() | finite,
        metrics=metrics,
        time_ms=times,
    ),
    st.builds(
        LegFailed,
        trial=trials,
        attempt=small,
        rung=small,
        outcome=st.sampled_from(OUTCOMES),
        message=words,
        time_ms=times,
    ),
    st.builds(
        LegCut,
        trial=trials,
        attempt=small,
        rung=small,
        share=finite,
        tokens=small,
        step=small,
        score=st.none() | finite,
        metrics=metrics,
        time_ms=times,
    ),
    st.builds(TrialEnded, trial=trials, outcome=st.sampled_from(OUTCOMES), message=words, time_ms=times),
    st.builds(WinnerScored, trial=trials, metrics=metrics, evidence=words, time_ms=times),
    st.builds(WinnerRegistered, trial=trials, name=words, version=small, candidate=words, time_ms=times),
    st.builds(AttemptEnded, attempt=small, state=words, message=words, time_ms=times),
)


def replay(story: Sequence[Event]) -> SweepState:
    state = SweepState()
    for event in story:
        state = state.after(event)
    return state


def lines(story: Sequence[Event]) -> list[bytes]:
    return [json.dumps({"event": type(event).__name__, **asdict(event)}).encode() + b"\n" for event in story]


def folder_with(path: Path, content: bytes) -> SweepFolder:
    folder = SweepFolder(path)
    folder.journal.write_bytes(content)
    return folder


def test_every_event_is_read_back(tmp_path: Path) -> None:
    assert {type(event).__name__ for event in STORY} == set(EVENTS)
    journal = Journal(SweepFolder(tmp_path))
    for event in STORY:
        journal.append(event)
    assert list(Tail(journal.folder.journal).events()) == list(STORY)


def test_a_driver_that_fell_trained_up_to_its_last_word_and_not_until_somebody_looked() -> None:
    lost = AttemptEnded(1, "lost", "the driver is gone", 900_000)
    state = replay([*STORY[:3], lost, AttemptStarted(2, 1_000_000, "node-1", {}, {})])
    assert state.trials["t001"].trained_ms == 0
    state = replay([*STORY[:5], lost, AttemptStarted(2, 1_000_000, "node-1", {}, {})])
    assert state.trials["t001"].trained_ms < 20


def test_a_story_gives_its_states() -> None:
    state = replay(STORY[:2])
    assert (state.attempt, state.started_ms, state.ended) == (1, 10, None)
    assert state.trials["t001"].state == "waiting"
    assert state.trials["t001"].rung is None

    trial = replay(STORY[:3]).trials["t001"]
    assert (trial.state, trial.running, trial.pending, trial.attempts) == ("running", True, 0, (1,))

    trial = replay(STORY[:4]).trials["t001"]
    assert (trial.state, trial.running, trial.pending) == ("waiting", False, None)
    assert (trial.rung, trial.score, trial.tokens) == (0, 0.5, 330)

    trial = replay(STORY[:6]).trials["t001"]
    assert (trial.running, trial.pending, trial.rung) == (False, 1, 0)
    assert (trial.score, trial.tokens, trial.share, trial.trained_ms) == (0.6, 400, 0.2, 2)

    trial = replay(STORY[:7]).trials["t001"]
    assert (trial.running, trial.pending, trial.failures, trial.outcome) == (False, 1, (FAILED,), None)

    state = replay(STORY)
    trial = state.trials["t001"]
    assert (trial.state, trial.outcome, trial.message, trial.ended_ms) == ("error", "error", "killed", 15)
    assert (state.scored, state.registered, state.ended) == (SCORED, REGISTERED, CLOSED)


def test_a_journal_of_before_variants_and_requests_is_still_read(tmp_path: Path) -> None:
    """Fields that came later have defaults: a folder outlives the version that wrote it."""
    later = {"TrialCreated": "variant", "AttemptEnded": "heard"} | dict.fromkeys(
        ("LegEnded", "LegFailed", "LegCut", "TrialEnded"), "idle_gpu_ms"
    )
    old = []
    for line in lines(STORY):
        record = json.loads(line)
        record.pop(later.get(record["event"], ""), None)
        old.append(json.dumps(record).encode() + b"\n")
    assert b"variant" not in b"".join(old)
    assert b"idle_gpu_ms" not in b"".join(old)
    state = folder_with(tmp_path, b"".join(old)).state()
    assert state == replay(STORY)
    assert (state.trials["t001"].variant, state.ended and state.ended.heard) == ("", 0)
    assert state.of("") == state
    assert state.of("gpt").trials == {}


def test_idle_gpus_of_every_leg_count_however_it_ended() -> None:
    legs = [replace(event, idle_gpu_ms=10**at) for at, event in enumerate((ENDED, FAILED, CUT_SHORT))]
    ended = TrialEnded("t001", "cancelled", "", 60, idle_gpu_ms=1000)
    assert replay([BEGUN, CREATED, STARTED, *legs, ended]).trials["t001"].idle_gpu_ms == 1111
    assert replay([BEGUN, CREATED, STARTED, ENDED]).trials["t001"].idle_gpu == ""


def test_a_header_of_before_forecasts_is_still_read(make_folder: MakeFolder) -> None:
    folder = make_folder()
    written = json.loads((folder.path / "sweep.json").read_text())
    for later in ("examples", "left_out", "vocabularies", "forecast", "findings"):
        del written[later]
    del written["spec"]["variants"], written["spec"]["budget"], written["spec"]["search"]["include"]
    (folder.path / "sweep.json").write_text(json.dumps(written))
    header = folder.header()
    assert (header.vocabularies, header.forecast, header.examples, header.left_out) == ({}, {}, {}, 0)
    assert header.spec == make_folder(sweep_id="new").header().spec


def test_a_leg_that_was_cut_leaves_the_trial_where_it_came_to() -> None:
    state = replay([BEGUN, CREATED, STARTED, ENDED, LegStarted("t001", 1, 1, 20), replace(CUT_SHORT, time_ms=50)])
    state = state.after(TrialEnded("t001", "out_of_budget", "why", 51))
    trial = state.trials["t001"]
    assert (trial.rung, trial.pending, trial.running, trial.state) == (0, 1, False, "out_of_budget")
    assert (trial.share, trial.tokens, trial.score) == (0.2, 400, 0.6), "of the cut, not of the rung before"
    assert trial.trained_ms == (13 - 12) + (50 - 20)

    state = state.after(replace(BEGUN, attempt=2, time_ms=100)).after(LegStarted("t001", 2, 1, 110))
    trial = state.trials["t001"]
    assert (trial.outcome, trial.message, trial.ended_ms) == (None, "", None), "it is open again"
    assert (trial.share, trial.attempts, trial.trained_ms) == (0.2, (1, 2), 31)

    trial = state.after(replace(ENDED, attempt=2, rung=1, share=0.33, time_ms=150)).trials["t001"]
    assert (trial.cut, trial.share, trial.rung, trial.pending, trial.trained_ms) == (None, 0.33, 1, None, 71)


def test_training_of_an_attempt_that_died_counts_to_the_last_event() -> None:
    state = replay([BEGUN, CREATED, replace(CREATED, trial="t002", number=2), STARTED, LegStarted("t002", 1, 0, 20)])
    state = state.after(replace(ENDED, trial="t002", time_ms=60)).after(replace(BEGUN, attempt=2, time_ms=9_000))
    assert [trial.trained_ms for trial in state.trials.values()] == [60 - 12, 60 - 20]
    assert state.after(replace(BEGUN, attempt=3, time_ms=9_500)).trials == state.trials, "once"


def test_a_new_attempt_stops_what_ran_and_keeps_where_it_was_sent() -> None:
    again = replace(BEGUN, attempt=2, time_ms=50, host="node-2")
    state = replay([BEGUN, CREATED, STARTED, AttemptEnded(1, "lost", "gone", 20), again])
    trial = state.trials["t001"]
    assert (trial.running, trial.pending) == (False, 0)
    assert (state.attempt, state.started_ms, state.ended) == (2, 10, None)
    assert [started.host for started in state.attempts] == ["node-1", "node-2"]
    further = state.after(LegStarted("t001", 2, 0, 60)).after(LegStarted("t001", 2, 0, 61))
    assert further.trials["t001"].attempts == (1, 2)


@pytest.mark.parametrize(
    "event", [STARTED, ENDED, CUT_SHORT, FAILED, OVER, SCORED, REGISTERED], ids=lambda event: type(event).__name__
)
def test_an_event_of_an_unknown_trial_changes_nothing(event: Event) -> None:
    assert replay([BEGUN, event]) == replay([BEGUN])


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"half a li",
        b"[1, 2]",
        b"null",
        b"\x00\xff\xfe",
        b'{"event": "Rebooted", "trial": "t001", "time_ms": 3}',
        b'{"event": ["TrialEnded"]}',
        b'{"event": "TrialEnded", "trial": "t001"}',
        b'{"event": "AttemptEnded", "attempt": 1, "state": "lost", "message": "", "time_ms": 1, "mood": "bad"}',
        b'{"trial": "t001"}',
    ],
)
def test_a_damaged_line_is_stepped_over(tmp_path: Path, garbage: bytes) -> None:
    whole = lines(STORY)
    for place in (0, 3, len(whole)):
        content = b"".join([*whole[:place], garbage + b"\n", *whole[place:]])
        assert folder_with(tmp_path, content).state() == replay(STORY)


def test_a_line_torn_anywhere_is_ignored_and_the_next_one_stands_alone(tmp_path: Path) -> None:
    *whole, last = lines(STORY[:4])
    for cut in (0, 1, 2, len(last) // 2, len(last) - 3, len(last) - 2):
        folder = folder_with(tmp_path, b"".join(whole) + last[:cut])
        assert folder.state() == replay(STORY[:3])
        journal = Journal(folder)
        assert journal.state == replay(STORY[:3])
        journal.append(FAILED)
        assert journal.state == folder.state() == replay([*STORY[:3], FAILED])


def test_an_event_that_lacks_its_line_end_only_has_happened(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, b"".join(lines(STORY[:4]))[:-1])
    journal = Journal(folder)
    assert journal.state == folder.state() == replay(STORY[:4])


def test_a_line_torn_by_a_full_disk_does_not_spoil_the_next(tmp_path: Path) -> None:
    journal = Journal(SweepFolder(tmp_path))
    journal.append(BEGUN)
    with journal.folder.journal.open("ab") as out:  # the same driver goes on after a write that failed half-way
        out.write(b'{"event": "TrialCr')
    journal.append(CLOSED)
    assert journal.folder.state() == replay([BEGUN, CLOSED])


def test_a_driver_that_lost_its_lease_writes_nothing_more(tmp_path: Path) -> None:
    held = [True]
    journal = Journal(SweepFolder(tmp_path), lambda: held[0])
    journal.append(BEGUN)
    held[0] = False
    with pytest.raises(RefusedError, match="taken over by another driver"):
        journal.append(CREATED)
    assert journal.state == journal.folder.state() == replay([BEGUN])


def test_text_of_any_kind_survives(tmp_path: Path) -> None:
    journal = Journal(SweepFolder(tmp_path))
    journal.append(BEGUN)
    journal.append(CREATED)
    message = "日付 \u2028 \x85 \r\n \udcff \x00"
    journal.append(TrialEnded("t001", "error", message, 9))
    assert journal.folder.state().trials["t001"].message == message


def test_a_folder_without_a_journal_is_a_sweep_that_has_not_begun(tmp_path: Path) -> None:
    assert SweepFolder(tmp_path).state() == SweepState()
    assert Journal(SweepFolder(tmp_path)).state == SweepState()


@settings(max_examples=60, deadline=None)
@given(st.lists(events, max_size=15), st.lists(st.integers(0, 10_000), max_size=6))
def test_reading_as_it_grows_gives_the_state_of_reading_all(story: list[Event], cuts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        journal = Journal(SweepFolder(Path(name)))
        for event in story:
            journal.append(event)
        assert journal.state == replay(story) == journal.folder.state()
        content = journal.folder.journal.read_bytes() if story else b""
        tail, state = Tail(Path(name) / "growing"), SweepState()
        for end in [*sorted(cut for cut in cuts if cut < len(content)), len(content)]:
            (Path(name) / "growing").write_bytes(content[:end])
            for event in tail.events():
                state = state.after(event)
        assert state == replay(story)


def test_seals_of_a_later_attempt_never_reopen_a_file() -> None:
    first, orphan, second = (f"trials/t00{n}/a{a}/metrics.jsonl" for n, a in ((1, 1), (2, 1), (1, 2)))
    state = replay(
        [
            BEGUN,
            replace(BEGUN, attempt=2, sealed={first: 100}),
            replace(BEGUN, attempt=3, sealed={first: 900, orphan: 50, second: 70}),
        ]
    )
    assert state.sealed == {first: 100, second: 70}


def test_the_header_is_read_back_as_it_was_written(make_folder: MakeFolder) -> None:
    folder = make_folder("description=日付")
    header = folder.header()
    assert header.spec.description == "日付"
    assert header.spec.ranges["model.num_heads"].size == 3
    assert (header.sweep_id, header.data_fingerprint, header.created_ms) == ("5eed0001", "f" * 64, 1_000)
    assert isinstance(header.home, Path)
    assert header == folder.header()


def test_a_spec_that_needs_what_is_no_longer_installed_is_told_with_what_it_was_made_with(
    make_folder: MakeFolder,
) -> None:
    folder = make_folder()
    raw = json.loads((folder.path / "sweep.json").read_text())
    raw["spec"]["model"]["architecture"] = "retention"
    (folder.path / "sweep.json").write_text(json.dumps({**raw, "versions": {"tuneyard": "0.1.0", "my-nets": "2.3"}}))
    with pytest.raises(InputError, match=r"architecture: found 'retention'\); it was made with .*my-nets 2\.3"):
        folder.header()


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"sweep_id": "x", "spec": {}}'])
def test_a_folder_without_a_whole_header_is_no_sweep(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(InputError, match="not the folder of a sweep"):
        SweepFolder(tmp_path).header()
