"""The keys of what a trial takes of the cluster: its workers, and what each of them has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from tuneyard_pipelines import units
from tuneyard_pipelines.keys.declared import Whole, key
from tuneyard_pipelines.sections import Listed, Part, Ranged, Says

LEAST_GPU = 0.01
_GPUS = (
    f"0, a share of a GPU from {LEAST_GPU} to less than 1, or 1: a worker trains on one GPU; for N GPUs set workers to "
    "N and gpus_per_worker to 1"
)
_ACCELERATOR = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"


def duration(value: str) -> str:
    """Refuses what is no duration. Raises ValueError."""
    units.duration_s(value)
    return value


def size(value: str) -> str:
    """Refuses what is no amount of memory. Raises ValueError."""
    units.size_bytes(value)
    return value


def _gpus(value: float) -> float:
    if value and not LEAST_GPU <= value <= 1:
        raise ValueError(_GPUS)
    return value


class Resources(Part):
    """What one trial takes of the cluster: so many workers, each with all of its own on one node."""

    workers: Whole = key(
        1, "Processes that train one model together, each on a part of every batch.", "processes", ge=1, le=1024
    )
    cpus_per_worker: Whole = key(1, "CPU cores of a worker.", "cores", ge=1, le=4096)
    gpus_per_worker: Annotated[
        float,
        AfterValidator(_gpus),
        WithJsonSchema(
            {"anyOf": [{"type": "number", "const": 0}, {"type": "number", "minimum": LEAST_GPU, "maximum": 1}]}
        ),
        Says(_GPUS),
        Listed(),
    ] = key(0.0, "GPUs of a worker, which shares one with others where this is below 1.", "GPUs")
    memory_per_worker: Annotated[
        str,
        BeforeValidator(lambda value: str(value) if type(value) is int else value),
        AfterValidator(size),
        WithJsonSchema({"type": ["string", "integer"]}),
        Says(units.SIZE_FORMS),
    ] = key("4GiB", "Memory of a worker.", "bytes, or with a unit: KiB MiB GiB TiB, KB MB GB TB")
    accelerator_type: (
        Annotated[
            str,
            Field(pattern=f"^{_ACCELERATOR}$"),
            Says("the name that Ray has for the kind of GPU, such as A100, H100 or T4"),
        ]
        | None
    ) = key(None, "The kind of GPU that a worker needs; left out, any.", examples=["A100"])
    stall_timeout: Annotated[str, AfterValidator(duration), Says(units.DURATION_FORMS)] = key(
        "10m", "A trial that makes no step for so long is ended as stalled.", "duration in d, h, m, s"
    )
    on_out_of_memory: Literal["end", "halve_batch"] = key(
        "end",
        "What follows when a trial's memory does not suffice: end; or halve_batch, where it starts again from its "
        "checkpoint with every batch in two parts whose gradients are accumulated, as often as needed: the batch of an "
        "update stays what it was.",
    )
    on_idle_gpu: Literal["flag", "stop"] = key(
        "flag",
        "What follows when a GPU computes less than 10 % of the time for 30 minutes: the trial is flagged, or stopped.",
    )

    @property
    def memory_per_worker_bytes(self) -> int:
        return units.size_bytes(self.memory_per_worker)

    @property
    def stall_timeout_s(self) -> int:
        return units.duration_s(self.stall_timeout)


RESOURCES = Ranged(Resources, fixed=("stall_timeout", "on_out_of_memory", "on_idle_gpu"))
ResourcesRanges = RESOURCES.variant  # under its own name, so that a spec can be pickled
