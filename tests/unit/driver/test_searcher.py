"""The searcher: the journal is all it knows, so that any attempt goes on where the last one stopped."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ray.tune.search import Searcher

from tuneyard_pipelines import checkpoints, promotion
from tuneyard_pipelines.capacity import Node, Shape, fits_beside
from tuneyard_pipelines.checkpoints import Facts
from tuneyard_pipelines.control import Wishes
from tuneyard_pipelines.errors import TuneyardError
from tuneyard_pipelines.journal import AttemptStarted, Journal, SweepFolder, TrialState
from tuneyard_pipelines.leg import NO_SPACE, LegResult
from tuneyard_pipelines.searcher import MOST_HALVINGS, LegSearcher, observed, rules
from tuneyard_pipelines.watchdog import ENDED, IDLE_GPU, MEMORY

MakeFolder = Callable[..., SweepFolder]
NO_SCHEDULER = "search.scheduler=none"


class Attempt:
    """A driver without Tune: asks the searcher for legs and answers for them, one at a time."""

    def __init__(self, folder: SweepFolder, nodes: Sequence[Node] = ()) -> None:
        self.journal = Journal(folder)
        self.number = self.journal.state.attempt + 1
        self.journal.append(AttemptStarted(self.number, 0, "node-1", {}, folder.seals()))
        self.spec = folder.header().spec

        def fits(running: Sequence[Shape], shape: Shape) -> bool:
            return not nodes or fits_beside(shape, running, nodes)

        self.searcher = LegSearcher(self.journal, self.spec, self.number, lambda: 7, fits=fits)
        self._asked = 0

    def ask(self) -> tuple[str, Any]:
        """Tune's name for the leg, and what was suggested."""
        self._asked += 1
        name = f"tune-{self._asked}"
        return name, self.searcher.suggest(name)

    def answer(self, name: str, result: LegResult) -> None:
        self.searcher.on_trial_complete(name, {"leg": json.dumps(result.to_dict()), "training_iteration": 1})

    def go_on(self, legs: int | None = None, score: Callable[[int], float] = float) -> int:
        """Run legs one after the other; returns how many."""
        done = 0
        while legs is None or done < legs:
            name, suggested = self.ask()
            if suggested == Searcher.FINISHED:
                break
            leg = suggested["leg"]
            number = self.trial(leg["trial"]).number
            share = self.spec.rungs()[leg["rung"]]
            self.answer(name, LegResult(share=share, tokens=10, step=1, score=score(number), metrics={"val/loss": 1.0}))
            self.keep(leg["trial"])
            done += 1
        return done

    def keep(self, trial: str) -> None:
        """A checkpoint to go on from."""
        folder = self.journal.folder.attempt(trial, self.number) / "checkpoints"
        checkpoints.save(folder, Facts(1, 1, 10, 0.1, None, {}), lambda path: path.touch())

    def trial(self, name: str) -> TrialState:
        return self.journal.state.trials[name]

    @property
    def points(self) -> list[tuple[Any, ...]]:
        return [tuple(trial.point.items()) for trial in self.journal.state.trials.values()]


def test_a_leg_says_all_that_a_process_needs(make_folder: MakeFolder) -> None:
    folder = make_folder()
    attempt = Attempt(folder)
    name, suggested = attempt.ask()
    [trial] = attempt.journal.state.trials.values()
    assert suggested == {
        "leg": {
            "folder": str(folder.path),
            "trial": "t001",
            "point": trial.point,
            "attempt": 1,
            "rung": 0,
            "variant": "",
            "split": 1,
        }
    }
    assert json.loads(json.dumps(suggested)) == suggested
    assert (trial.running, trial.pending, trial.name[:4]) == (True, 0, "t01 ")
    assert folder.state() == attempt.journal.state, "on disk before anything acts on it"
    attempt.answer(name, LegResult(share=1 / 9, tokens=330, step=5, score=0.25, metrics={"val/bleu": 4.0}))
    [ended] = attempt.trial("t001").legs
    assert (ended.rung, ended.share, ended.tokens, ended.step, ended.score) == (0, 1 / 9, 330, 5, 0.25)
    assert (ended.metrics, ended.attempt, ended.time_ms) == ({"val/bleu": 4.0}, 1, 7)


def test_the_asked_for_number_of_distinct_points_is_tried_and_the_best_completes(make_folder: MakeFolder) -> None:
    attempt = Attempt(make_folder())
    attempt.go_on(score=lambda number: -float(number))
    trials = attempt.journal.state.trials.values()
    assert len(trials) == len(set(attempt.points)) == 9
    assert [trial.id for trial in trials if trial.outcome == "completed"] == ["t001"]
    assert attempt.ask()[1] == Searcher.FINISHED


@pytest.mark.parametrize(
    ("algorithm", "cut_after"), [("random", 0), ("random", 4), ("random", 8), ("grid", 4), ("tpe", 6)]
)
def test_r2_an_attempt_goes_on_where_the_last_one_died(make_folder: MakeFolder, algorithm: str, cut_after: int) -> None:
    overrides = (NO_SCHEDULER, f"search.algorithm={algorithm}")
    undisturbed = Attempt(make_folder(*overrides, sweep_id="a"))
    undisturbed.go_on()
    first = Attempt(make_folder(*overrides, sweep_id="b"))
    first.go_on(cut_after)
    _, running = first.ask()  # and dies in the middle of a leg

    second = Attempt(first.journal.folder)
    name, again = second.ask()
    assert again["leg"] == {**running["leg"], "attempt": 2}, "the leg that was cut off comes first"
    second.answer(name, LegResult(share=1.0, tokens=10, step=1, score=float(cut_after + 1)))
    assert second.go_on() == 9 - cut_after - 1
    assert len(second.points) == len(set(second.points)) == 9
    assert second.points == undisturbed.points, "chance depends on the journal alone"
    assert all(trial.outcome == "completed" for trial in second.journal.state.trials.values())


def test_a_failed_leg_is_tried_again_as_often_as_the_spec_says(make_folder: MakeFolder) -> None:
    attempt = Attempt(make_folder("search.retries=1"))
    name, _ = attempt.ask()
    attempt.answer(name, LegResult("error", "ValueError: odd"))
    trial = attempt.trial("t001")
    assert (trial.outcome, trial.running, trial.pending) == (None, False, 0)
    name, again = attempt.ask()
    assert (again["leg"]["trial"], again["leg"]["rung"]) == ("t001", 0)
    attempt.answer(name, LegResult("stalled", "no step"))
    trial = attempt.trial("t001")
    assert (trial.outcome, trial.message) == ("stalled", "no step")
    assert [failed.outcome for failed in trial.failures] == ["error", "stalled"]
    assert attempt.ask()[1]["leg"]["trial"] == "t002"


def test_failures_of_an_earlier_attempt_count_too(make_folder: MakeFolder) -> None:
    first = Attempt(make_folder("search.retries=1"))
    name, _ = first.ask()
    first.answer(name, LegResult("error", "once"))
    second = Attempt(first.journal.folder)
    name, _ = second.ask()
    second.answer(name, LegResult("error", "twice"))
    assert second.trial("t001").outcome == "error"


def test_without_retries_the_first_failure_is_the_end(make_folder: MakeFolder) -> None:
    attempt = Attempt(make_folder("search.retries=0"))
    name, _ = attempt.ask()
    attempt.answer(name, LegResult("error", "once"))
    assert attempt.trial("t001").outcome == "error"


@pytest.mark.parametrize("outcome", ["diverged", "out_of_memory", "no_metric"])
def test_what_would_happen_again_is_not_tried_again(make_folder: MakeFolder, outcome: str) -> None:
    attempt = Attempt(make_folder("search.retries=5"))
    name, _ = attempt.ask()
    attempt.answer(name, LegResult(outcome, "why"))
    assert (attempt.trial("t001").outcome, attempt.trial("t001").message) == (outcome, "why")


def test_a_trial_that_runs_out_of_memory_has_its_batches_halved_where_that_is_asked_for(
    make_folder: MakeFolder,
) -> None:
    attempt = Attempt(make_folder("search.retries=0", "resources.on_out_of_memory=halve_batch"))
    for halvings in range(MOST_HALVINGS + 1):
        name, suggested = attempt.ask()
        assert (suggested["leg"]["trial"], suggested["leg"]["split"]) == ("t001", 2**halvings)
        attempt.answer(name, LegResult("out_of_memory", "grew"))
    assert attempt.trial("t001").failures[0].message == "grew; it goes on with every batch in 2 parts"
    assert (attempt.trial("t001").outcome, attempt.trial("t001").message) == ("out_of_memory", "grew")
    _, suggested = attempt.ask()
    assert (suggested["leg"]["trial"], suggested["leg"]["split"]) == ("t002", 1), "no other trial is cut"


def test_r4_a_third_of_all_trials_diverges_and_the_sweep_ends_with_a_winner(make_folder: MakeFolder) -> None:
    for algorithm in ("random", "tpe"):
        attempt = Attempt(make_folder(f"search.algorithm={algorithm}", sweep_id=algorithm))
        while True:
            name, suggested = attempt.ask()
            if suggested == Searcher.FINISHED:
                break
            number = attempt.trial(suggested["leg"]["trial"]).number
            share = attempt.spec.rungs()[suggested["leg"]["rung"]]
            bad = LegResult("diverged", "loss is nan")
            good = LegResult(share=share, score=-float(number))
            attempt.answer(name, bad if number % 3 == 1 else good)
            attempt.keep(suggested["leg"]["trial"])
        outcomes = [trial.outcome for trial in attempt.journal.state.trials.values()]
        assert outcomes.count("diverged") == 3
        assert attempt.trial("t002").outcome == "completed"


def test_r7_a_process_that_is_gone_is_explained_by_what_it_left(make_folder: MakeFolder) -> None:
    attempt = Attempt(make_folder("search.retries=1"))
    name, suggested = attempt.ask()
    left = attempt.journal.folder.attempt("t001", 1)
    left.mkdir(parents=True)
    (left / MEMORY).write_text("grew to 5 GiB")
    attempt.searcher.on_trial_complete(name, None, error=True)
    assert (attempt.trial("t001").outcome, attempt.trial("t001").message) == ("out_of_memory", "grew to 5 GiB")

    name, suggested = attempt.ask()
    attempt.searcher.on_trial_complete(name, {"leg": "a report of an earlier leg"}, error=True)
    [failed] = attempt.trial(suggested["leg"]["trial"]).failures
    assert failed.outcome == "error"
    assert "gone without a word" in failed.message


def idle(attempt: Attempt, trial: str, hours: float) -> Path:
    """A leg leaves for how long its GPU was idle."""
    left = attempt.journal.folder.attempt(trial, attempt.number)
    left.mkdir(parents=True, exist_ok=True)
    (left / IDLE_GPU).write_text(json.dumps({"gpu_ms": round(hours * 3_600_000)}))
    return left


def test_idle_gpus_of_all_legs_are_summed_and_said_at_the_end(make_folder: MakeFolder) -> None:
    folder = make_folder("search.trials=1", NO_SCHEDULER, "search.retries=1")
    attempt = Attempt(folder)
    name, _ = attempt.ask()
    left = idle(attempt, "t001", 0.5)
    attempt.answer(name, LegResult("error", "killed"))
    assert not (left / IDLE_GPU).exists(), "a later leg does not count it again"
    assert attempt.trial("t001").idle_gpu == "its GPUs were idle for 0.50 GPU-hours"
    idle(attempt, "t001", 0.75)
    attempt.go_on()
    trial = attempt.trial("t001")
    assert (trial.outcome, trial.idle_gpu_ms) == ("completed", 1.25 * 3_600_000)
    assert trial.message == "its GPUs were idle for 1.25 GPU-hours"
    assert folder.state().trials["t001"] == trial, "as the journal has it"


@pytest.mark.parametrize("step", [0, 3])
def test_a_trial_that_is_stopped_alone_stands_as_it_is_for_as_long_as_the_attempt_lasts(
    make_folder: MakeFolder, step: int
) -> None:
    folder = make_folder("search.trials=2", NO_SCHEDULER, "search.retries=3")
    attempt = Attempt(folder)
    name, _ = attempt.ask()
    left = idle(attempt, "t001", 0.5)
    (left / ENDED).write_text(json.dumps(["cancelled", "resources.on_idle_gpu is stop"]))
    if step:
        checkpoints.save(left / "checkpoints", Facts(step, 1, 10, 0.1, 0.5, {}), lambda path: path.touch())
    attempt.searcher.on_trial_complete(name, None, error=True)
    trial = attempt.trial("t001")
    assert (trial.outcome, trial.failures, trial.share) == ("cancelled", (), 0.1 if step else 0.0)
    assert trial.message == "resources.on_idle_gpu is stop; its GPUs were idle for 0.50 GPU-hours"
    assert trial.idle_gpu_ms == 0.5 * 3_600_000
    attempt.go_on()
    assert attempt.trial("t001") == trial, "it is not tried again"
    assert attempt.trial("t002").outcome == "completed"


@pytest.mark.parametrize("result", [None, {}, {"training_iteration": 1, "done": True}])
def test_r5_a_leg_that_ends_well_without_a_report_is_no_metric(
    make_folder: MakeFolder, result: dict[str, Any] | None
) -> None:
    attempt = Attempt(make_folder("search.retries=5"))
    name, _ = attempt.ask()
    attempt.searcher.on_trial_complete(name, result)
    trial = attempt.trial("t001")
    assert (trial.outcome, trial.running) == ("no_metric", False), "it would end so again: not tried again"
    assert trial.message == "the trial's process ended well and reported nothing"
    assert [failed.outcome for failed in trial.failures] == ["no_metric"]
    assert attempt.ask()[1]["leg"]["trial"] == "t002"


@pytest.mark.parametrize("result", [None, {}, {"training_iteration": 1}])
def test_r5_a_process_that_died_without_a_report_is_an_error(
    make_folder: MakeFolder, result: dict[str, Any] | None
) -> None:
    attempt = Attempt(make_folder("search.retries=0"))
    name, _ = attempt.ask()
    attempt.searcher.on_trial_complete(name, result, error=True)
    assert attempt.trial("t001").outcome == "error"
    assert "gone without a word" in attempt.trial("t001").message


def test_what_keeps_the_journal_from_being_written_ends_the_attempt(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tune swallows what a searcher raises on a trial's end, and would wait for legs for ever."""

    def full(event: object) -> None:
        raise OSError(28, "No space left on device")

    attempt = Attempt(make_folder())
    name, _ = attempt.ask()
    monkeypatch.setattr(attempt.journal, "append", full)
    attempt.answer(name, LegResult(share=1 / 9, score=1.0))
    with pytest.raises(OSError, match="No space left on device"):
        attempt.ask()


def test_while_it_stops_nothing_begins_and_no_cut_off_leg_counts_as_failed(make_folder: MakeFolder) -> None:
    attempt = Attempt(make_folder())
    name, _ = attempt.ask()
    attempt.searcher.stopping = True
    before = attempt.journal.state
    assert attempt.ask()[1] is None, "a leg is still on its way out"
    attempt.searcher.on_trial_complete(name, None, error=True)
    assert attempt.ask()[1] == Searcher.FINISHED
    assert attempt.journal.state == before
    assert Attempt(attempt.journal.folder).ask()[1]["leg"]["trial"] == "t001"


@pytest.mark.parametrize(
    "overrides",
    [
        ("search.algorithm=random", "search.trials=100"),
        ("search.algorithm=tpe", "search.trials=100"),
        ("search.algorithm=grid", "search.trials=null"),
    ],
)
def test_an_exhausted_space_ends_the_sweep(make_folder: MakeFolder, overrides: tuple[str, ...]) -> None:
    attempt = Attempt(make_folder(NO_SCHEDULER, *overrides, 'constraints=["sequence_length == 24"]'))
    attempt.go_on()
    assert len(attempt.points) == len(set(attempt.points)) == 6
    assert attempt.ask()[1] == Searcher.FINISHED
    again = Attempt(attempt.journal.folder)
    assert again.ask()[1] == Searcher.FINISHED


def test_an_exhausted_space_waits_for_legs_that_run(make_folder: MakeFolder) -> None:
    attempt = Attempt(make_folder("search.trials=100", 'constraints=["sequence_length == 24", "num_layers == 1"]'))
    names = [attempt.ask()[0] for _ in range(3)]
    assert attempt.ask()[1] is None
    for score, name in enumerate(names):
        attempt.answer(name, LegResult(share=1 / 9, score=float(score)))
        attempt.keep(f"t00{score + 1}")
    assert attempt.ask()[1]["leg"]["rung"] == 1


def test_tune_may_pickle_it(make_folder: MakeFolder) -> None:
    attempt = Attempt(make_folder())
    attempt.ask()
    pickle.loads(pickle.dumps(attempt.searcher))
    assert attempt.ask()[1]["leg"]["trial"] == "t002"


def test_the_proposals_see_every_score_a_trial_had(make_folder: MakeFolder) -> None:
    attempt = Attempt(make_folder())
    attempt.go_on(3)
    attempt.go_on(1)
    seen = observed(attempt.trial("t003"))
    assert seen.scores == ((1 / 9, 3.0), (1 / 3, 3.0))
    assert (seen.point, seen.finished) == (attempt.trial("t003").point, False)
    name, _ = attempt.ask()
    attempt.answer(name, LegResult("diverged", "nan"))
    [(_, trial)] = [(t.id, t) for t in attempt.journal.state.trials.values() if t.outcome == "diverged"]
    assert observed(trial).finished
    name, _ = attempt.ask()
    attempt.answer(name, LegResult(share=1 / 9, score=None))
    assert math.isnan(observed(list(attempt.journal.state.trials.values())[-1]).scores[0][1])


def test_a_trial_that_stopped_itself_is_over_and_may_win(make_folder: MakeFolder) -> None:
    folder = make_folder()
    attempt = Attempt(folder)
    name, _ = attempt.ask()
    why = "training.early_stopping: no better val/loss in 2 validations in a row"
    attempt.answer(name, LegResult("stopped_early", why, share=0.05, tokens=10, step=1, score=100.0))
    attempt.keep("t001")
    trial = attempt.trial("t001")
    assert (trial.outcome, trial.message, trial.final) == ("stopped_early", why, True)
    assert (trial.share, trial.score, trial.rung) == (0.05, 100.0, None), "how far it came is what it was"
    assert observed(trial).scores == ((1.0, 100.0),)
    attempt.go_on()
    assert attempt.trial("t001") == trial, "it was sent no further"
    found = promotion.winner(attempt.journal.state.trials, attempt.spec.mode)
    assert found == trial
    assert Attempt(folder).ask()[1] == Searcher.FINISHED


def test_the_rules_are_those_of_the_spec(make_folder: MakeFolder) -> None:
    [found] = rules(make_folder().header().spec, Wishes()).values()
    assert found.rungs == pytest.approx((1 / 9, 1 / 3, 1.0))
    assert (found.reduction_factor, found.trials, found.mode) == (3, 9, "max")
    spec = (
        make_folder("search.metric=val/loss", "search.algorithm=grid", "search.trials=null", sweep_id="g").header().spec
    )
    assert rules(spec, Wishes())[""].mode == "min"
    assert rules(spec, Wishes())[""].trials > 18


def test_a_full_disk_ends_the_attempt_and_no_trial(make_folder: MakeFolder) -> None:
    folder = make_folder(NO_SCHEDULER)
    attempt = Attempt(folder)
    name, suggested = attempt.ask()
    attempt.answer(name, LegResult(NO_SPACE, "[Errno 28] No space left on device"))
    trial = attempt.trial(suggested["leg"]["trial"])
    assert (trial.outcome, trial.failures) == (None, ())
    with pytest.raises(TuneyardError, match=r"No space left on device; free space"):
        attempt.ask()
    again = Attempt(folder)
    assert again.ask()[1]["leg"]["trial"] == trial.id, "the next attempt goes on with it"


@pytest.mark.parametrize("damaged", [0, -1], ids=["first", "last"])
def test_a_new_trial_never_takes_the_id_of_one_whose_creation_was_lost(make_folder: MakeFolder, damaged: int) -> None:
    folder = make_folder(NO_SCHEDULER)
    attempt = Attempt(folder)
    attempt.go_on(2)
    lines = folder.journal.read_text().splitlines()
    created = [number for number, line in enumerate(lines) if "TrialCreated" in line]
    lines[created[damaged]] = "x" + lines[created[damaged]]
    folder.journal.write_text("\n".join(lines) + "\n")
    again = Attempt(folder)
    known = set(again.journal.state.trials)
    assert again.ask()[1]["leg"]["trial"] == "t003"
    assert len(known) == 1


def test_a_mixed_sweep_takes_all_of_the_cluster_and_waits_for_none_for_ever(make_folder: MakeFolder) -> None:
    """Of 4 cores all are taken as long as the next trial fits; one that does not is the first to go on."""
    folder = make_folder(
        "model={d_model: 16, num_heads: 1, num_layers: 1, sequence_length: [24, 32, 48]}",
        "resources={workers: [1, 2], memory_per_worker: 1GiB}",
        "search={algorithm: grid, scheduler: none}",
    )
    attempt = Attempt(folder, [Node(4, 0, 64 << 30)])
    running: dict[str, dict[str, Any]] = {}
    waited, taken = set(), []
    while True:
        name, suggested = attempt.ask()
        if suggested == Searcher.FINISHED:
            break
        if suggested is not None:
            running[name] = suggested["leg"]
            taken.append(sum(leg["point"]["resources.workers"] for leg in running.values()))
            continue
        [*begun, last] = attempt.journal.state.trials.values()
        if last.pending is None and last.rung is None:
            waited.add(last.id)
            assert all(trial.attempts for trial in begun), "none was left out"
        name, leg = running.popitem()
        attempt.answer(name, LegResult(share=1.0, tokens=10, step=1, score=1.0, metrics={"val/loss": 1.0}))
        attempt.keep(leg["trial"])
    assert max(taken) == 4
    assert waited
    assert {trial.outcome for trial in attempt.journal.state.trials.values()} == {"completed"}
    assert len(attempt.journal.state.trials) == 6


def test_what_has_no_room_is_handed_out_all_the_same_once_nothing_runs(make_folder: MakeFolder) -> None:
    """A node was lost, perhaps: Ray waits for it, and so does the trial."""
    attempt = Attempt(make_folder("resources.workers=4"), [Node(2, 0, 64 << 30)])
    assert attempt.ask()[1]["leg"]["trial"] == "t001"
    assert attempt.ask()[1] is None
    assert attempt.trial("t002").attempts == ()
