"""The keys of training: what fits together, what may be a range, and what a plan makes of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, get_args

import pytest
from small_spec import accepted, refused

from tuneyard_modules.objective import Optimization
from tuneyard_modules.schedules import SCHEDULES
from tuneyard_pipelines import cost
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.objectives import optimization
from tuneyard_pipelines.plan import plan
from tuneyard_pipelines.ranges import Choice
from tuneyard_pipelines.sections import words_of
from tuneyard_pipelines.spec import SweepSpec, Training
from tuneyard_pipelines.trial import PRECISION


def test_every_scalar_may_be_a_range() -> None:
    written: dict[str, Any] = {
        "schedule": ["cosine", "noam"],
        "accumulate": [1, 2],
        "precision": ["32", "bf16-mixed"],
        "average": ["none", "ema", "last"],
        "early_stopping": [2, 5],
        "compile": [True, False],
        "deterministic": [False, True],
    }
    overrides = [f"training.{key}={json.dumps(held)}" for key, held in written.items()]
    read = accepted(*overrides, "search.trials=3")
    assert {key.removeprefix("training."): held for key, held in read.ranges.items()} == {
        key: Choice(tuple(held)) for key, held in written.items()
    }
    again = SweepSpec.model_validate_json(read.model_dump_json(by_alias=True))
    assert again.ranges == read.ranges
    training = read.at({key: held.value(1) for key, held in read.ranges.items()}).training
    assert {key: getattr(training, key) for key in written} == {key: held[1] for key, held in written.items()}
    assert len(plan(accepted("training.compile=[true, false]", "search.algorithm=grid")).variants[0].varied) == 1


@pytest.mark.parametrize("written", ["[true, true]", "[1, 0]", "{int: [0, 1]}", "yes please"])
def test_a_range_of_truth_values_holds_each_once(written: str) -> None:
    assert "training.compile: found" in refused(f"training.compile={written}", "search.trials=2")


def test_32_may_be_a_number() -> None:
    assert accepted("training.precision=32").at({}).training.precision == "32"
    both = accepted("training.precision=[32, bf16-mixed]", "search.trials=2")
    assert both.ranges["training.precision"] == Choice(("32", "bf16-mixed"))
    assert "allowed: one of 32, bf16-mixed, 16-mixed" in refused("training.precision=64")
    assert tuple(PRECISION) == words_of(Training.model_fields["precision"].annotation)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["precision=16-mixed"],
            "training.precision: found 16-mixed, which needs a GPU; set resources.gpus_per_worker",
        ),
        (["precision=[32, 16-mixed]"], "training.precision: found 16-mixed, which needs a GPU"),
        (["schedule=noam", "warmup=0"], "training.warmup: found 0; noam falls from the end of warm-up on"),
        (["schedule=[cosine, inverse_sqrt]", "warmup={uniform: [0, 0.1]}"], "training.warmup: found 0; inverse_sqrt"),
        (["schedule=warmup_stable_decay", "warmup=0.3", "decay=[0.2, 0.8]"], "found 0.8 beside a warmup of 0.3"),
        (["decay=0.1"], "training.decay: goes with schedule: warmup_stable_decay only; take it out"),
        (["ema_decay=0.9", "average=last"], "training.ema_decay: goes with average: ema only"),
        (["last_checkpoints=[2, 3]", "average=ema"], "training.last_checkpoints: goes with average: last only"),
        (["average=[none, ema]", "ema_decay=[0.9, 0.99]"], "none has no ema_decay: none would be tried twice"),
        (["accumulate=0"], "training.accumulate: found 0; allowed: an integer from 1"),
        (["early_stopping=0"], "training.early_stopping: found 0; allowed: an integer from 1"),
        (["schedule=step"], "training.schedule: found"),
        (["lr_scheduler=noam"], "did you mean schedule?"),
        (["patience=3"], "did you mean early_stopping (counted in validations)?"),
        (["gradient_accumulation_steps=3"], "did you mean accumulate?"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_remedy(overrides: list[str], message: str) -> None:
    assert message in refused(*(f"training.{one}" for one in overrides), "search.trials=2")


def test_what_fits_is_taken() -> None:
    accepted("training.precision=16-mixed", "resources.gpus_per_worker=1")
    accepted("training.schedule=warmup_stable_decay", "training.warmup=0.2", "training.decay=0.8")
    accepted("training.average=[none, ema]", "training.ema_decay=0.99", "search.trials=2")
    accepted("training.average=ema", "training.ema_decay=[0.9, 0.99]", "search.trials=2")


def test_an_optimization_is_what_the_spec_says() -> None:
    """Its defaults are the spec's, and each of its settings has a key but Adam's first moment, and what a leg tells."""
    ours = asdict(optimization(accepted().at({})))
    assert ours == asdict(Optimization(learning_rate=1e-3))
    assert ours.keys() - Training.model_fields.keys() == {"adam_beta1", "split"}
    changed = {
        "schedule": "warmup_stable_decay",
        "warmup": 0.1,
        "decay": 0.3,
        "min_learning_rate_share": 0.1,
        "accumulate": 3,
        "weight_decay": 0.2,
        "gradient_clip": 2.0,
        "adam_beta2": 0.9,
        "learning_rate": 0.01,
    }
    ema, last = {"average": "ema", "ema_decay": 0.9}, {"average": "last", "last_checkpoints": 3}
    for more in (ema, last):
        written = changed | more
        read = asdict(optimization(accepted(*(f"training.{key}={held}" for key, held in written.items())).at({})))
        assert {key: read[key] for key in written} == written
    assert tuple(get_args(Training.model_fields["schedule"].annotation)) == SCHEDULES


def test_a_step_over_several_batches_has_their_tokens() -> None:
    one, four = (plan(accepted("training.batch_tokens=512", f"training.accumulate={n}")) for n in (1, 4))
    assert (one.most_tokens, four.most_tokens) == (100 * 512, 400 * 512)
    assert accepted("training.accumulate=4").at({}).training.budget == ("steps", 100, 4)


@pytest.mark.parametrize(("average", "copies"), [("none", 0), ("ema", 1), ("last", 4)])
def test_an_average_has_its_memory(average: str, copies: int) -> None:
    sizes = VocabSizes(50)
    more = ["training.last_checkpoints=3"] if average == "last" else []
    plain = accepted().at({}).flat()
    held = accepted(f"training.average={average}", *more).at({}).flat()
    grown = cost.memory_bytes(held, sizes) - cost.memory_bytes(plain, sizes)
    assert grown == copies * 4 * cost.parameters(plain, sizes)


def test_a_key_that_goes_with_another_word_is_no_part_of_a_point() -> None:
    assert "training.ema_decay" not in accepted().at({}).flat()
    assert accepted("training.average=ema").at({}).flat()["training.ema_decay"] == 0.999


def test_a_variant_that_takes_another_word_leaves_what_went_with_the_first() -> None:
    variants = "variants={kept: {}, plain: {training: {average: none}}, last: {training: {average: last}}}"
    read = accepted("training.average=ema", "training.ema_decay=0.9", variants)
    decays = {name: one.at({}).flat().get("training.ema_decay") for name, one in read.by_variant.items()}
    assert decays == {"kept": 0.9, "plain": None, "last": None}
