"""The keys of resources: what they take, as ranges too, what fits together, and which shapes trials may have."""

from __future__ import annotations

import pickle

import pytest
from small_spec import accepted, refused

from tuneyard_pipelines import spec
from tuneyard_pipelines.capacity import Shape
from tuneyard_pipelines.ranges import Choice, Integers
from tuneyard_pipelines.space import Space
from tuneyard_pipelines.spec import TrialConfig, display_name

GIB = 1 << 30


def test_left_out_a_trial_is_one_process_without_a_gpu() -> None:
    resources = accepted().at({}).resources
    assert (resources.workers, resources.cpus_per_worker, resources.gpus_per_worker) == (1, 1, 0)
    assert (resources.memory_per_worker_bytes, resources.accelerator_type) == (4 * GIB, None)
    assert (resources.stall_timeout_s, resources.on_out_of_memory, resources.on_idle_gpu) == (600, "end", "flag")
    assert accepted().shapes == (Shape(1, 0, 4 * GIB, 1),)


@pytest.mark.parametrize("gpus", ["0", "0.01", "0.5", "1", "1.0", "[0, 0.25, 1]"])
def test_a_worker_has_no_gpu_a_share_of_one_or_one(gpus: str) -> None:
    accepted(f"resources.gpus_per_worker={gpus}", "search.trials=2")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        *(
            ([f"resources.gpus_per_worker={gpus}"], "for N GPUs set workers to N and gpus_per_worker to 1")
            for gpus in ("8", "1.5", "0.001", "-1", "[1, 2]")
        ),
        (["resources.gpus_per_worker={uniform: [0.1, 0.9]}"], "not a form of range that this key takes"),
        (["resources.workers=0"], "resources.workers: found 0; allowed: an integer from 1 to 1024"),
        (["resources.workers=1025"], "resources.workers: found 1025; allowed: an integer from 1 to 1024"),
        (
            ["resources={workers: [1, 2], gpus_per_worker: [0.5, 1]}"],
            "resources.gpus_per_worker: found 0.5 beside 2 workers, which need a GPU each to train together",
        ),
        (["resources.accelerator_type=A100"], "resources.accelerator_type: goes with a GPU only; take it out, or set"),
        (
            ["resources.accelerator_type=[A100, H100]", "resources.gpus_per_worker=[0, 1]", "search.trials=2"],
            "goes with a GPU only",
        ),
        (
            ["resources={gpus_per_worker: 1, accelerator_type: A 100}"],
            "allowed: the name that Ray has for the kind of GPU",
        ),
        (["resources.on_out_of_memory=halve"], "did you mean halve_batch? allowed: one of end, halve_batch"),
        (["resources.on_idle_gpu=kill"], "allowed: one of flag, stop"),
        (["resources.stall_timeout=[5m, 10m]"], "it takes one value, not a range"),
        (
            ["training.precision=16-mixed", "resources.gpus_per_worker=[0, 1]", "search.trials=2"],
            "found 16-mixed, which needs a GPU; set resources.gpus_per_worker",
        ),
        (
            ["training.batch_tokens=3", "resources.workers=4"],
            "training.batch_tokens: found 3, the tokens of all 4 workers together; with a token for each it is 4",
        ),
        (
            ["training.batch_tokens=[4, 3]", "resources.workers={int: [1, 4]}", "search.trials=2"],
            "training.batch_tokens: found 3",
        ),
        (
            [
                "task=language_modeling",
                "data.source=builtin/stdlib",
                "model.architecture=ngram",
                "resources.workers=[1, 2]",
                "search.trials=2",
            ],
            "resources.workers: found 2; ngram counts and has no gradients to share: it takes 1",
        ),
        (["variants={a: {resources: {workers: 2}}}"], "unknown key"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_remedy(overrides: list[str], message: str) -> None:
    assert message in refused(*overrides)


def test_what_fits_is_taken() -> None:
    accepted("training.batch_tokens=4", "resources.workers=4")
    accepted("resources={gpus_per_worker: 0.5, accelerator_type: A100-80_G}")
    accepted("training.precision=16-mixed", "resources.gpus_per_worker=[0.5, 1]", "search.trials=2")


def test_resources_vary_like_any_key_of_a_point() -> None:
    mixed = accepted(
        "resources={workers: [1, 2], cpus_per_worker: {int: [1, 3]}, memory_per_worker: [1GiB, 2GiB]}",
        "resources.stall_timeout=5m",
        'constraints=["workers * cpus_per_worker <= 4"]',
        "search={algorithm: grid, include: [{workers: 2, cpus_per_worker: 2, memory_per_worker: 2GiB}]}",
    )
    assert mixed.ranges == {
        "resources.workers": Choice((1, 2)),
        "resources.cpus_per_worker": Integers(1, 3),
        "resources.memory_per_worker": Choice(("1GiB", "2GiB")),
    }
    point = Space(mixed).included[0]
    assert point == {"resources.workers": 2, "resources.cpus_per_worker": 2, "resources.memory_per_worker": "2GiB"}
    assert display_name(7, point) == "t07 workers=2 cpus_per_worker=2 memory_per_worker=2GiB"
    config = mixed.at(point)
    assert (config.resources.workers, config.resources.stall_timeout_s) == (2, 300)
    assert config.flat()["resources.workers"] == 2
    assert not config.flat().keys() & {"resources.stall_timeout", "resources.on_out_of_memory", "resources.on_idle_gpu"}
    assert spec.parse(mixed.text(), file="again.yaml") == mixed
    assert pickle.loads(pickle.dumps(mixed)) == mixed


def test_the_shapes_are_those_of_points_that_may_be_tried() -> None:
    mixed = accepted(
        "resources={workers: [1, 2], cpus_per_worker: {int: [1, 3]}, memory_per_worker: 1GiB}",
        'constraints=["workers * cpus_per_worker <= 4", "workers <= num_heads"]',
        "search.trials=2",
    )
    assert [(shape.workers, shape.cpus) for shape in mixed.shapes] == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]


def test_of_very_many_choices_the_ends_stand_for_all() -> None:
    many = accepted("resources.workers={int: [1, 1000]}", "search.trials=2")
    assert [shape.workers for shape in many.shapes] == [1, 1000]
    more = accepted("resources={workers: {int: [1, 200]}, cpus_per_worker: {int: [1, 200]}}", "search.trials=2")
    assert {(shape.workers, shape.cpus) for shape in more.shapes} == {(1, 1), (1, 200), (200, 1), (200, 200)}


def test_the_gpus_of_a_trial_are_those_of_its_point() -> None:
    mixed = accepted("resources={workers: [1, 4], gpus_per_worker: 1}", "search.trials=2")
    points = ({"resources.workers": 1}, {"resources.workers": 4})
    assert {shape.gpus_at(point) for shape in mixed.shapes for point in points[:1]} == {1.0}
    assert {shape.gpus_at(point) for shape in mixed.shapes for point in points[1:]} == {4.0}


def test_a_package_of_before_has_the_resources_that_are_left_out() -> None:
    held = accepted().at({}).model_dump(mode="json")
    del held["resources"]
    assert TrialConfig.model_validate(held) == accepted().at({})
