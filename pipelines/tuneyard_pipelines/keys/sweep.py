"""The keys of a sweep as a whole: search, budget, variants, registration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
)

from tuneyard_pipelines import units
from tuneyard_pipelines.keys.declared import Name, Whole, key, section
from tuneyard_pipelines.keys.point import MODEL, TOKENIZER, TRAINING
from tuneyard_pipelines.keys.resources import duration, size
from tuneyard_pipelines.sections import Part, Says

_SCHEDULERS = "none, asha, or {type: asha, min_share: 0.11, reduction_factor: 3}"


class Scheduler(Part):
    """Which trials get their full budget: all (none), or the best of each rung (asha)."""

    type: Annotated[Literal["none", "asha"], Says(_SCHEDULERS)] = key(
        "asha", "none gives every trial its full budget; asha promotes the best of each rung to the next."
    )
    min_share: float = key(
        0.11,
        "The lowest rung is the smallest reduction_factor^-k that is not below this share.",
        "share of the budget",
        ge=0.0001,
        lt=1,
    )
    reduction_factor: Whole = key(3, "Of so many trials of a rung, one goes on to the next.", "trials", ge=2, le=100)

    @model_serializer(mode="plain")
    def _written(self) -> str | dict[str, Any]:
        if self.type == "none":
            return "none"
        return {"type": self.type, "min_share": self.min_share, "reduction_factor": self.reduction_factor}


def _scheduler(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


class Search(Part):
    """Which points are tried, and how long each."""

    algorithm: Literal["tpe", "random", "grid"] = key(
        "tpe", "How points are chosen: tpe learns from scores, random does not, grid takes all in order."
    )
    scheduler: Annotated[
        Scheduler,
        BeforeValidator(_scheduler, json_schema_input_type=Literal["none", "asha"] | Scheduler),
        Says(_SCHEDULERS),
    ] = section(Scheduler, "none, asha, or asha with its settings.")
    trials: Whole | None = key(
        None,
        "How many points are tried; grid may leave it out and tries all.",
        "trials",
        ge=1,
        le=100_000,
        examples=[12],
    )
    max_concurrent_trials: Whole | None = key(
        None, "How many run at once; left out, as many as fit.", "trials", ge=1, le=100_000, examples=[2]
    )
    metric: (
        Literal[
            "val/exact_match",
            "val/accuracy",
            "val/bleu",
            "val/chrf",
            "val/bits_per_byte",
            "val/loss",
            "val/perplexity",
        ]
        | None
    ) = key(
        None,
        "What is compared; left out, val/exact_match for translation, val/bits_per_byte for language_modeling, "
        "val/loss for masked_lm.",
        examples=["val/exact_match"],
    )
    include: Annotated[
        tuple[dict[str, Any], ...],
        Field(strict=False, max_length=1000),
        Says("a list of points such as [{num_heads: 4, learning_rate: 0.001}], each with a value for every varied key"),
    ] = key(
        (),
        "Points to start from, tried first and counted among the trials; each names every varied key, and its variant "
        "where there are some.",
    )
    retries: Whole = key(1, "How often a failed trial starts again from its checkpoint.", "times", ge=0, le=100)


class Budget(Part):
    """What the whole sweep may take. At a limit the running trials make a last evaluation, and the best is kept."""

    wall_clock: Annotated[str, AfterValidator(duration), Says(units.DURATION_FORMS)] | None = key(
        None,
        "Longest time from the start of the driver to the end of its last training; each resume begins anew.",
        "duration in d, h, m, s",
        examples=["20m"],
    )
    trial_hours: float | None = key(
        None,
        "Sum of the time that trials train, over all attempts.",
        "hours of a trial",
        gt=0,
        le=10**7,
        examples=[2.0],
    )
    gpu_hours: float | None = key(
        None,
        "Sum of the time that GPUs are held by trials that train, over all attempts.",
        "hours of a GPU",
        gt=0,
        le=10**7,
        examples=[2.0],
    )
    checkpoint_bytes: Annotated[
        str | None,
        BeforeValidator(lambda value: str(value) if type(value) is int else value),
        AfterValidator(lambda value: None if value is None else size(value)),
        WithJsonSchema({"type": ["string", "integer", "null"]}),
        Says(units.SIZE_FORMS),
    ] = key(
        None,
        "Most that all checkpoints of the sweep take on disk; the best and those of running trials stay.",
        "bytes, or with a unit: KiB MiB GiB TiB, KB MB GB TB",
        examples=["20GiB"],
    )

    @property
    def wall_clock_s(self) -> int | None:
        return None if self.wall_clock is None else units.duration_s(self.wall_clock)

    @property
    def checkpoint_limit_bytes(self) -> int | None:
        return None if self.checkpoint_bytes is None else units.size_bytes(self.checkpoint_bytes)


class VariantData(Part):
    """What a variant changes of the data."""

    tokenizer: Annotated[Part, TOKENIZER] = section(lambda: TOKENIZER.variant(), "How text becomes tokens.")


class Variant(Part):
    """What a variant of the sweep sets in place of the spec's own keys."""

    model: Annotated[Part, MODEL] = section(lambda: MODEL.variant(), "What is trained.")
    training: Annotated[Part, TRAINING] = section(lambda: TRAINING.variant(), "How a trial is trained.")
    data: VariantData = section(VariantData, "How text becomes tokens.")

    @model_serializer(mode="wrap")
    def _what_it_sets(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A default that it does not set must not take the place of the spec's own key."""
        return _set_only(self, whole(self))


def _set_only(part: Part, written: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for name in (name for name in written if name in part.model_fields_set):
        inner = getattr(part, name)
        kept[name] = _set_only(inner, written[name]) if isinstance(inner, Part) else written[name]
    return kept


class Registration(Part):
    """Where the best trial's model goes."""

    name: Name = key(..., "Name of the registered model.", examples=["dates"])
