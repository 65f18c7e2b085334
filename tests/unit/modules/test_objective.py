"""What every objective shares: groups, rates, clipping, divergence, logging, and legs that equal the unbroken run."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.plugins.precision import MixedPrecision

from tuneyard_modules.objective import Divergence, Loader, Optimization, SequenceModule, decay_groups
from tuneyard_modules.transformer import EncoderDecoder, TransformerConfig
from tuneyard_modules.translation import TranslationBatch, TranslationModule, TranslationSettings

OPTIMIZATION = Optimization(learning_rate=0.01, warmup=0.2, min_learning_rate_share=0.1, gradient_clip=1.0)
STEPS, STEPS_PER_STRETCH = 18, 3


class Recorder(Logger):
    """Keeps what a Trainer logs."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    @property
    def name(self) -> str:
        return "recorder"

    @property
    def version(self) -> str:
        return "0"

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))


ONE_TOKEN = torch.tensor(1)


class Batch(NamedTuple):
    value: torch.Tensor
    tokens: int
    share: float


class Line(SequenceModule):
    """One weight times the batch."""

    def __init__(self, optimization: Optimization = OPTIMIZATION, **kwargs: Any) -> None:
        super().__init__(optimization, **kwargs)
        self.weight = torch.nn.Parameter(torch.ones(1, 1))

    def summed_loss(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return (self.weight * batch.value).sum(), ONE_TOKEN


def _trainer(**kwargs: Any) -> pl.Trainer:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    options: dict[str, Any] = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
    }
    return pl.Trainer(**(options | kwargs))


def _line_batches(*values: float) -> Loader:
    count = len(values)
    return Loader(lambda: [Batch(torch.tensor([[value]]), 10, index / count) for index, value in enumerate(values)])


def test_only_matrices_decay() -> None:
    network = EncoderDecoder(TransformerConfig(11, 8, 2, 1, max_length=6, positions="learned"))
    decayed, free = decay_groups(network, 0.3)
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.3, 0.0)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    decayed_names = {names[id(parameter)] for parameter in decayed["params"]}
    free_names = {names[id(parameter)] for parameter in free["params"]}
    assert decayed_names | free_names == set(names.values())
    assert not decayed_names & free_names
    assert {"embedding.weight", "source_positions.table_TD", "encoder.0.attention.query.weight"} <= decayed_names
    assert all(name.endswith("bias") or "norm" in name for name in free_names)


def test_the_learning_rate_follows_the_share_of_the_budget() -> None:
    recorder = Recorder()
    _trainer(logger=recorder).fit(Line(), _line_batches(*[1.0] * 10))
    rates = [row["train/learning_rate"] for _, row in recorder.rows]
    assert rates[0] == pytest.approx(0.01 * 0.1)
    assert rates[2] == pytest.approx(0.01)
    assert rates[6] == pytest.approx(0.01 * 0.55)


def test_the_gradient_is_clipped_by_its_norm() -> None:
    class Graded(Line):
        def on_train_batch_end(self, *args: Any) -> None:
            super().on_train_batch_end(*args)
            assert self.weight.grad is not None
            gradients.append(self.weight.grad.item())

    gradients: list[float] = []
    recorder, module = Recorder(), Graded()
    _trainer(logger=recorder).fit(module, _line_batches(5.0, 0.25))
    assert [row["train/grad_norm"] for _, row in recorder.rows] == [5.0, 0.25]
    assert gradients == pytest.approx([1.0, 0.25], rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_divergence_leaves_the_weights_alone(bad: float) -> None:
    module, trainer = Line(), _trainer()
    good = Line()
    _trainer().fit(good, Loader(lambda: [Batch(torch.tensor([[1.0]]), 10, index / 4) for index in range(2)]))
    with pytest.raises(Divergence, match=f"training step 3: loss {bad}"):
        trainer.fit(module, _line_batches(1.0, 1.0, bad, 1.0))
    assert torch.equal(module.weight, good.weight)
    assert (trainer.global_step, module.batches_trained) == (2, 2)


class Root(Line):
    """Where it begins its gradient is infinite."""

    def summed_loss(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return (self.weight - 1.0).sqrt().sum(), ONE_TOKEN


def test_an_infinite_gradient_of_a_finite_loss_is_divergence() -> None:
    module = Root()
    with pytest.raises(Divergence, match=r"training step 1: loss 0\.0, gradient norm inf"):
        _trainer().fit(module, _line_batches(1.0))
    assert module.weight.item() == 1.0


def test_training_metrics_reach_the_logger_at_the_steps_done() -> None:
    recorder, ticks = Recorder(), iter(range(100))
    module = Line(clock=lambda: float(next(ticks)))
    _trainer(logger=recorder, log_every_n_steps=2).fit(module, _line_batches(*[0.5] * 5))
    assert [step for step, _ in recorder.rows] == [2, 4]
    first = recorder.rows[0][1]
    assert set(first) == {
        f"train/{name}" for name in ("loss", "learning_rate", "grad_norm", "tokens", "tokens_per_second")
    }
    assert (first["train/tokens"], first["train/grad_norm"], first["train/tokens_per_second"]) == (20.0, 0.5, 20.0)
    assert first["train/loss"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("ends_by", ["max_epochs", "should_stop"])
def test_r8_legs_equal_the_unbroken_run(tmp_path: Path, ends_by: str) -> None:
    whole = _leg(tmp_path / "whole.ckpt", stretches=6, ends_by=ends_by)
    legs = [_leg(tmp_path / "legs.ckpt", stretches=stretches, ends_by=ends_by) for stretches in (2, 3, 6)]
    assert [step for leg in legs for step in leg.batches] == whole.batches == list(range(STEPS))
    assert [row for leg in legs for row in leg.rows] == whole.rows
    assert legs[-1].counters == whole.counters == (STEPS, STEPS, sum(range(100, 100 + STEPS)))
    assert all(torch.equal(legs[-1].weights[name], weight) for name, weight in whole.weights.items())
    assert [step for step, row in whole.rows if "val/loss" in row] == [3, 6, 9, 12, 15, 18]
    assert [step for step, row in whole.rows if "train/loss" in row] == list(range(2, STEPS + 1, 2))


EVERY_OPTION = [
    pytest.param({"accumulate": 3, "schedule": "linear"}, "32-true", id="accumulation"),
    pytest.param({"average": "ema", "schedule": "noam"}, "32-true", id="ema"),
    pytest.param({"average": "last", "last_checkpoints": 2, "schedule": "warmup_stable_decay"}, "32-true", id="last"),
    pytest.param({"average": "ema", "accumulate": 3}, "bf16-mixed", id="bf16"),
]


@pytest.mark.parametrize(("options", "precision"), EVERY_OPTION)
def test_r8_legs_equal_the_unbroken_run_with_every_option(
    tmp_path: Path, options: dict[str, Any], precision: str
) -> None:
    whole = _leg(tmp_path / "whole.ckpt", stretches=6, precision=precision, **options)
    legs = [
        _leg(tmp_path / "legs.ckpt", stretches=stretches, precision=precision, **options) for stretches in (1, 3, 6)
    ]
    assert [row for leg in legs for row in leg.rows] == whole.rows
    assert legs[-1].counters == whole.counters
    assert whole.counters[0] == STEPS // options.get("accumulate", 1)
    assert all(torch.equal(legs[-1].weights[name], weight) for name, weight in whole.weights.items())
    kept, again = (torch.load(tmp_path / name, weights_only=True) for name in ("whole.ckpt", "legs.ckpt"))
    for key in {"state_dict", "moved"} & kept.keys():
        assert all(torch.equal(again[key][name], weight) for name, weight in kept[key].items())
    plain = _leg(tmp_path / "plain.ckpt", stretches=6)
    assert plain.rows != whole.rows, "the option does something"


class Seen(Line):
    """Notes the weight after every update, in every validation and at the end of each."""

    def __init__(self, optimization: Optimization) -> None:
        super().__init__(optimization)
        self.moved, self.validated, self.after = list[float](), list[float](), list[float]()

    def on_train_batch_end(self, *args: Any) -> None:
        super().on_train_batch_end(*args)
        self.moved.append(self.weight.item())

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.validated.append(self.weight.item())

    def on_train_epoch_end(self) -> None:
        self.after.append(self.weight.item())


def _seen(checkpoint: Path, **options: Any) -> tuple[Seen, dict[str, Any]]:
    """Six updates with a validation after every two, and what is kept at the end."""
    module, trainer = Seen(replace(OPTIMIZATION, **options)), _trainer(max_epochs=3)
    trainer.fit(module, _line_batches(1.0, 0.3), _line_batches(1.0))
    trainer.save_checkpoint(checkpoint)
    return module, torch.load(checkpoint, weights_only=True)


def test_an_exponential_moving_average_by_hand(tmp_path: Path) -> None:
    seen, kept = _seen(tmp_path / "a.ckpt", average="ema", ema_decay=0.4)
    mean, means = seen.moved[0], [seen.moved[0]]
    for update, weight in enumerate(seen.moved[1:], start=2):
        decay = min(0.4, (1 + update) / (10 + update))
        mean = decay * mean + (1 - decay) * weight
        means.append(mean)
    assert (1 + 2) / (10 + 2) < 0.4 < (1 + 6) / (10 + 6), "both sides of the least are met"
    assert seen.validated == pytest.approx(means[1::2], rel=1e-6)
    assert seen.after == seen.moved[1::2], "training goes on with its own weights"
    assert kept["state_dict"]["weight"].item() == pytest.approx(means[-1], rel=1e-6)
    assert kept["moved"]["weight"].item() == seen.moved[-1]
    with seen.averaged():
        assert seen.weight.item() == kept["state_dict"]["weight"].item()
    assert seen.weight.item() == seen.moved[-1]


def test_the_mean_of_the_last_checkpoints_by_hand(tmp_path: Path) -> None:
    seen, kept = _seen(tmp_path / "a.ckpt", average="last", last_checkpoints=2)
    first, second, third = seen.moved[1::2]
    means = [first, (first + second) / 2, (second + third) / 2]
    assert seen.validated == pytest.approx(means, rel=1e-6)
    assert seen.after == [first, second, third]
    assert kept["state_dict"]["weight"].item() == pytest.approx(means[-1], rel=1e-6)
    assert kept["moved"]["weight"].item() == third


def test_without_an_average_a_checkpoint_is_what_it_was(tmp_path: Path) -> None:
    seen, kept = _seen(tmp_path / "a.ckpt")
    assert seen.validated == seen.moved[1::2]
    assert not {"moved", "average"} & kept.keys()


def test_tied_weights_are_averaged_once_and_kept_under_all_their_names(tmp_path: Path) -> None:
    class Tied(Seen):
        def __init__(self) -> None:
            super().__init__(replace(OPTIMIZATION, average="ema", ema_decay=0.5))
            self.again = self.weight

    module, trainer = Tied(), _trainer()
    trainer.fit(module, _line_batches(1.0, 0.3, 1.0), _line_batches(1.0))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    kept = torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"]
    assert kept["weight"].item() == kept["again"].item() == module.validated[0] != module.moved[-1]


class Gradients(pl.Callback):
    """Keeps the gradient of every update, clipped."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        if (len(self.kept) + 1) == trainer.global_step:
            self.kept.append(torch.cat([one.grad.flatten() for one in pl_module.parameters() if one.grad is not None]))


def _update(batches: list[TranslationBatch], accumulate: int) -> tuple[torch.Tensor, dict[str, float]]:
    pl.seed_everything(5, verbose=False)
    module = _translation(replace(OPTIMIZATION, accumulate=accumulate, gradient_clip=0.05), dropout=0.0)
    gradients, recorder = Gradients(), Recorder()
    trainer = _trainer(logger=recorder, callbacks=[gradients], accumulate_grad_batches=accumulate)
    trainer.fit(module, Loader(lambda: batches))
    assert (trainer.global_step, module.batches_trained) == (1, len(batches))
    [(step, row)] = recorder.rows
    assert step == 1
    return gradients.kept[0], row


def test_accumulated_batches_are_one_batch_of_all_their_tokens() -> None:
    long, short, last = _batch(0), _batch(1), _batch(2)
    target = short.target_BT[:3].clone()
    target[:, 2], target[:, 3:] = 2, 0  # fewer target tokens a row
    parts = [long, short._replace(source_BS=short.source_BS[:3], target_BT=target, share=0.9), last]
    whole = long._replace(
        ids=[0] * 11,
        source_BS=torch.cat([part.source_BS for part in parts]),
        target_BT=torch.cat([part.target_BT for part in parts]),
        tokens=sum(part.tokens for part in parts),
    )
    (parted, row), (at_once, expected) = _update(parts, 3), _update([whole], 1)
    torch.testing.assert_close(parted, at_once, atol=1e-6, rtol=1e-5)
    assert row["train/loss"] == pytest.approx(expected["train/loss"], rel=1e-6)
    assert row["train/grad_norm"] == pytest.approx(expected["train/grad_norm"], rel=1e-5)
    assert row["train/grad_norm"] > 0.05, "clipped once all of it is there"
    for name in ("train/learning_rate", "train/tokens"):
        assert row[name] == expected[name]


def test_divergence_in_the_first_batch_of_a_step_is_seen() -> None:
    module, trainer = Line(replace(OPTIMIZATION, accumulate=2)), _trainer(accumulate_grad_batches=2)
    with pytest.raises(Divergence, match="training step 2: loss nan"):
        trainer.fit(module, _line_batches(1.0, 1.0, math.nan, 1.0))


class Halves:
    """Training in 16 bits, on a CPU for want of a GPU: the same scaling of the loss."""

    def __init__(self, scale: float) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        self.plugin = MixedPrecision("16-mixed", device="cpu", scaler=self.scaler)


def test_in_16_bits_the_gradient_is_clipped_as_it_is_without_the_scale() -> None:
    found = {}
    for name, more in {"32": {}, "16": {"plugins": [Halves(2.0**10).plugin]}}.items():
        gradients, recorder = Gradients(), Recorder()
        _trainer(logger=recorder, callbacks=[gradients], **more).fit(Line(), _line_batches(5.0, 0.25))
        found[name] = [
            *torch.stack(gradients.kept).flatten().tolist(),
            *(r["train/grad_norm"] for _, r in recorder.rows),
        ]
    assert found["16"] == pytest.approx([1.0, 0.25, 5.0, 0.25], rel=1e-3)
    assert found["16"] == pytest.approx(found["32"], rel=1e-3)


def test_in_16_bits_a_gradient_that_overflows_costs_a_step_and_no_trial() -> None:
    class Overflows(Line):
        def summed_loss(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
            return (self.weight.half() * batch.value.half()).sum().float(), ONE_TOKEN

    halves, module = Halves(2.0**16), Overflows()
    _trainer(plugins=[halves.plugin]).fit(module, _line_batches(2.0))
    assert (module.weight.item(), halves.scaler.get_scale()) == (1.0, 2.0**15)
    hopeless = Halves(1.0)
    with pytest.raises(Divergence, match="gradient norm inf"):
        _trainer(plugins=[hopeless.plugin]).fit(Root(), _line_batches(1.0))


def test_legs_differ_without_the_random_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _leg(tmp_path / "whole.ckpt", stretches=4)
    _leg(tmp_path / "legs.ckpt", stretches=2)
    monkeypatch.setattr(SequenceModule, "on_train_start", lambda self: None)
    last = _leg(tmp_path / "legs.ckpt", stretches=4)
    assert not all(torch.equal(last.weights[name], weight) for name, weight in whole.weights.items())


def test_every_generator_goes_on(tmp_path: Path) -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(()).item()

    class Draws(Line):
        def on_train_end(self) -> None:
            drawn.append(draw())

    drawn: list[tuple[float, float, float]] = []
    pl.seed_everything(3, verbose=False)
    trainer = _trainer()
    trainer.fit(Draws(), _line_batches(1.0))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    expected = draw()
    pl.seed_everything(4, verbose=False)
    _trainer(max_epochs=2).fit(Draws(), _line_batches(1.0), ckpt_path=tmp_path / "a.ckpt", weights_only=True)
    assert drawn[1] == expected


class _Run(NamedTuple):
    batches: list[int]
    rows: list[tuple[int | None, dict[str, float]]]
    weights: dict[str, torch.Tensor]
    counters: tuple[int, int, int]


class _Keep(pl.Callback):
    """Saves after every validation, as a trial does, and notes which batches were trained on."""

    def __init__(self, checkpoint: Path, stop_at: int | None) -> None:
        self.checkpoint, self.stop_at, self.batches = checkpoint, stop_at, list[int]()

    def on_train_batch_start(self, trainer: Any, module: Any, batch: TranslationBatch, batch_idx: int) -> None:
        self.batches.append(batch.ids[0])

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.save_checkpoint(self.checkpoint)
        if trainer.global_step == self.stop_at:
            trainer.should_stop = True


def _translation(optimization: Optimization, *, dropout: float) -> TranslationModule:
    config = TransformerConfig(13, 16, 2, 1, max_length=9, dropout=dropout)
    return TranslationModule(
        EncoderDecoder(config),
        optimization,
        TranslationSettings(max_length=8, label_smoothing=0.1),
        decode=lambda ids: " ".join(map(str, ids)),
        references=dict.fromkeys(range(4), "5 6 7"),
        clock=lambda: 0.0,
    )


def _leg(
    checkpoint: Path, stretches: int, ends_by: str = "max_epochs", precision: Any = "32-true", **options: Any
) -> _Run:
    """Train up to the end of a stretch, from the checkpoint where there is one."""
    resumes = checkpoint.exists()
    pl.seed_everything(7 if not resumes else 1234, verbose=False)
    module = _translation(replace(OPTIMIZATION, weight_decay=0.1, **options), dropout=0.1)
    by_epochs = ends_by == "max_epochs"
    keep, recorder = _Keep(checkpoint, None if by_epochs else stretches * STEPS_PER_STRETCH), Recorder()
    max_epochs = stretches if by_epochs else -1
    trainer = _trainer(
        max_epochs=max_epochs,
        logger=recorder,
        log_every_n_steps=2,
        callbacks=[keep],
        precision=precision,
        accumulate_grad_batches=module.optimization.accumulate,
    )
    train = Loader(lambda: _stretch(module.batches_trained))
    validation = Loader(lambda: [_batch(index)._replace(ids=list(range(4))) for index in (90, 91)])
    trainer.fit(module, train, validation, ckpt_path=checkpoint if resumes else None, weights_only=resumes)
    weights = {name: weight.clone() for name, weight in module.state_dict().items()}
    counters = (trainer.global_step, module.batches_trained, module.tokens_trained)
    return _Run(keep.batches, recorder.rows, weights, counters)


def _stretch(position: int) -> Iterator[TranslationBatch]:
    """From any position to the next mark."""
    mark = (position // STEPS_PER_STRETCH + 1) * STEPS_PER_STRETCH
    return (_batch(index) for index in range(position, mark))


def _batch(index: int) -> TranslationBatch:
    generator = torch.Generator().manual_seed(index)
    source = torch.randint(4, 13, (4, 6), generator=generator)
    target = torch.randint(4, 13, (4, 5), generator=generator)
    target[:, 0], target[:, -1], source[:, -1] = 1, 2, 2
    return TranslationBatch([index] * 4, source, target, 100 + index, index / STEPS)
