"""What every training objective shares: optimiser, schedule, clipping, the check for divergence, averages, resuming.

A step's learning rate follows from the share of the budget that its first batch carries, so that there is no scheduler
to restore. What a later leg needs besides weights and optimiser is in the checkpoint: counters, averages and random
generators.

Workers that train together have each a part of every batch. The loss is the sum over all target tokens of a step by
their number, whoever has them: a model is trained alike by one worker and by several.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from tuneyard_modules import workers
from tuneyard_modules.averaging import Average, LastCheckpoints, MovingAverage
from tuneyard_modules.schedules import Schedule, factor


class Divergence(Exception):
    """The loss or its gradient is not finite. The weights are still those before the step that the message names."""


class TrainingBatch(Protocol):
    """What the base class wants to know of a batch, or of a worker's part of one."""

    @property
    def tokens(self) -> int:
        """Unpadded tokens, those of the other workers' parts with them."""
        ...

    @property
    def share(self) -> float:
        """Share of the training budget used before this batch, 0 to 1."""
        ...


@dataclass(frozen=True)
class Optimization:
    """How the weights are moved: AdamW (Loshchilov and Hutter 2019), its schedule and the gradient's largest norm.

    `warmup` and `decay` are shares of the budget, `min_learning_rate_share` a share of the peak `learning_rate`;
    see `schedules.factor`. A step is over `accumulate` batches, each of which comes in `split` parts, one after the
    other: less memory, and the same step. `average` says which weights are validated and kept: those that were
    moved, or an average of them (`averaging`).
    """

    learning_rate: float
    schedule: Schedule = "cosine"
    warmup: float = 0.05
    decay: float = 0.2
    min_learning_rate_share: float = 0.02
    accumulate: int = 1
    split: int = 1
    weight_decay: float = 0.01
    gradient_clip: float = 1.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.98
    average: Literal["none", "ema", "last"] = "none"
    ema_decay: float = 0.999
    last_checkpoints: int = 5

    @property
    def parts_per_step(self) -> int:
        """How many backward passes an update of the weights is over."""
        return self.accumulate * self.split


class Loader:
    """What `begin()` yields, as one loader for a Trainer, which would take a plain list for a collection of loaders.

    Lightning begins it anew for every stretch of training between two validations: where it begins with what the
    module has counted, a run goes on at the very next batch, in the same process and from a checkpoint alike.
    """

    def __init__(self, begin: Callable[[], Iterable[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return iter(self._begin())


class SequenceModule(pl.LightningModule):
    """The base of an objective, which defines `summed_loss` and, where it validates, the validation hooks of an epoch.

    `batches_trained` and `tokens_trained` count since the start of training, over all legs and workers. Training
    metrics go to the trainer's loggers every `log_every_n_steps` steps, at the number of steps done and in full
    precision. The trainer's `accumulate_grad_batches` must be `optimization.parts_per_step`, and a stretch between
    validations whole steps.
    """

    def __init__(self, optimization: Optimization, *, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.optimization = optimization
        self.tokens_trained = 0
        self._parts_trained = 0
        self._clock = clock
        self._sums: list[Tensor] = []  # of each part of this step so far: summed loss and target tokens of all workers
        self._last: tuple[float, float] | None = None
        self._measured_from: tuple[float, int] = (clock(), 0)
        self._random_states: list[dict[str, Any]] = []  # of a checkpoint, by worker
        self._average = _average(optimization)
        self._averaged = contextlib.ExitStack()

    @property
    def batches_trained(self) -> int:
        """Whole ones, over all legs."""
        return self._parts_trained // self.optimization.split

    @abstractmethod
    def summed_loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The loss to minimise, summed over the batch's target tokens, and their number; scalars."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss, whose value is looked at together with its gradient's.

        It is a mean over the target tokens that all workers have in this part of a step. Of several parts, each is
        weighed by its tokens as shares of the first one's, since those to come are not known yet; the gradient is
        brought to a mean over all of them once they are.
        """
        if self._between_steps:
            self._sums = []
        summed, tokens = self.summed_loss(batch)
        self._sums.append(workers.total(torch.stack([summed.detach().double(), tokens.double()])))
        first = self._sums[0][1].clamp(min=1).to(summed.dtype)
        return summed * workers.count() / first  # the gradient is the mean of those of the workers

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW with weight decay on matrices only."""
        settings = self.optimization
        return torch.optim.AdamW(
            decay_groups(self, settings.weight_decay),
            lr=settings.learning_rate,
            betas=(settings.adam_beta1, settings.adam_beta2),
            fused=self._scaler is None,  # fused, it would unscale the gradient after it was clipped
        )

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Scale the gradient to a norm of at most `gradient_clip`; raises Divergence if it or the loss is not finite.

        This runs between the backward pass and the optimiser. Loss and norm leave the device in one transfer. In 16
        bits too large a gradient is nothing but a step left out, as long as the scale of the loss can still fall.
        """
        parameters = [parameter for parameter in self.parameters() if parameter.grad is not None]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        loss = self._mean_over_tokens(gradients)
        norm = get_total_norm(gradients)
        loss_value, norm_value = torch.stack([loss, norm.double()]).tolist()
        scaled_too_high = self._scaler is not None and self._scaler.get_scale() > 1.0
        if not math.isfinite(loss_value) or not (math.isfinite(norm_value) or scaled_too_high):
            raise Divergence(
                f"training step {self.global_step + 1}: loss {loss_value}, gradient norm {norm_value}; both must be "
                "finite: lower the learning rate, warm up for longer or clip the gradient harder"
            )
        if self.optimization.gradient_clip < norm_value < math.inf:
            clip_grads_with_norm_(parameters, self.optimization.gradient_clip, norm)
        self._last = (loss_value, norm_value)

    def on_train_start(self) -> None:
        """Go on with the random numbers where the checkpoint left off."""
        if self._random_states:
            set_random_state(self._random_states[workers.rank()], self.device)
            self._random_states = []

    def on_train_epoch_start(self) -> None:
        """Leave validation out of the measured speed."""
        self._measured_from = (self._clock(), self.tokens_trained)

    def on_train_batch_start(self, batch: TrainingBatch, batch_idx: int) -> None:
        """Set the learning rate for this step."""
        if not self._between_steps:
            return
        rate = self.learning_rate(batch.share)
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = rate

    def on_train_batch_end(self, outputs: Any, batch: TrainingBatch, batch_idx: int) -> None:
        """Count the batch, and after a step follow it with the average and log it when its turn has come."""
        self._parts_trained += 1
        self.tokens_trained += batch.tokens
        if not self._between_steps:
            return
        if self._average is not None:
            self._average.updated(list(self.parameters()))
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and self.global_step % every == 0:
            self._log_training()

    def on_validation_start(self) -> None:
        """Validate the average."""
        if self._average is not None:
            self._average.validated(list(self.parameters()))
        self._averaged.enter_context(self.averaged())

    def on_validation_end(self) -> None:
        """Go on with the weights that the optimiser moves."""
        self._averaged.close()

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The network has its averaged weights, where there are some, as long as the context lasts."""
        average = None if self._average is None else self._average.weights()
        if average is None:
            yield
            return
        weights: list[Tensor] = list(self.parameters())
        moved = [weight.detach().clone() for weight in weights]
        _put(weights, average)
        try:
            yield
        finally:
            _put(weights, moved)

    def log_validation(self, scores: Mapping[str, float]) -> None:
        """Log scores of a validation as val/..., at the number of steps done."""
        # Lightning takes "step" for the logger's step, which it would otherwise count on its own.
        step = {"step": float(self.global_step)}
        self.log_dict({f"val/{name}": score for name, score in scores.items()} | step, batch_size=1)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move the tensors of a batch; ids and counts stay."""
        fields: dict[str, Any] = batch._asdict()
        return batch._replace(**{name: held.to(device) for name, held in fields.items() if isinstance(held, Tensor)})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what the next leg needs to go on as if nothing had happened; plain types and tensors only.

        The state under `state_dict` is the one that was validated; of an average, `moved` is the optimiser's.
        """
        checkpoint["batches_trained"] = self.batches_trained
        checkpoint["tokens_trained"] = self.tokens_trained
        checkpoint["random_states"] = workers.told(random_state(self.device))
        if self._average is not None and (average := self._average.weights()) is not None:
            checkpoint["average"] = self._average.state_dict()
            checkpoint["moved"] = checkpoint["state_dict"]
            held = dict(zip(self.parameters(), average, strict=True))
            named = {name: held[weight] for name, weight in self.named_parameters(remove_duplicate=False)}
            checkpoint["state_dict"] = checkpoint["state_dict"] | named

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take counters and average up again; the random generators wait until training starts."""
        self._parts_trained = checkpoint["batches_trained"] * self.optimization.split
        self.tokens_trained = checkpoint["tokens_trained"]
        # One that an earlier version wrote holds the state of its only worker.
        self._random_states = checkpoint.get("random_states") or [checkpoint["random_state"]]
        if self._average is not None:
            average = [checkpoint["state_dict"][name].to(self.device) for name, _ in self.named_parameters()]
            self._average.load_state_dict(checkpoint["average"], average)
            checkpoint["state_dict"] = checkpoint["moved"]  # Lightning loads it after this

    def learning_rate(self, share: float) -> float:
        """The learning rate when `share` of the budget is used."""
        settings = self.optimization
        return settings.learning_rate * factor(
            settings.schedule,
            share,
            warmup=settings.warmup,
            floor=settings.min_learning_rate_share,
            decay=settings.decay,
        )

    @property
    def _between_steps(self) -> bool:
        return self._parts_trained % self.optimization.parts_per_step == 0

    @property
    def _scaler(self) -> torch.amp.GradScaler | None:
        """What scales the loss in 16 bits."""
        scaler: torch.amp.GradScaler | None = getattr(self.trainer.precision_plugin, "scaler", None)
        return scaler

    def _mean_over_tokens(self, gradients: list[Tensor]) -> Tensor:
        """The step's loss; brings the gradients, so far a mean over parts, to the same mean over target tokens."""
        loss, tokens = torch.stack(self._sums).sum(0).unbind()
        if len(self._sums) > 1:
            torch._foreach_mul_(gradients, len(self._sums) * self._sums[0][1].clamp(min=1) / tokens.clamp(min=1))
        return loss / tokens.clamp(min=1)

    def _log_training(self) -> None:
        now_s, (since_s, since_tokens) = self._clock(), self._measured_from
        self._measured_from = (now_s, self.tokens_trained)
        metrics = {
            "train/tokens": float(self.tokens_trained),
            "train/tokens_per_second": (self.tokens_trained - since_tokens) / max(now_s - since_s, 1e-9),
        }
        if self._last is not None:  # a network that counts has neither
            metrics["train/loss"], metrics["train/grad_norm"] = self._last
            metrics["train/learning_rate"] = self.trainer.optimizers[0].param_groups[0]["lr"]
        for logger in self.loggers:
            logger.log_metrics(metrics, step=self.global_step)


def _average(settings: Optimization) -> Average | None:
    match settings.average:
        case "none":
            return None
        case "ema":
            return MovingAverage(settings.ema_decay)
        case "last":
            return LastCheckpoints(settings.last_checkpoints)


@torch.no_grad()
def _put(weights: list[Tensor], values: list[Tensor]) -> None:
    torch._foreach_copy_(weights, values)


def decay_groups(module: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Optimiser groups: matrices (embeddings among them, for they are the output's too) decay, vectors do not."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in parameters if parameter.ndim >= 2], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of every generator that training may draw from, in types that `torch.load(weights_only=True)` takes."""
    numpy_state: Any = np.random.get_state(legacy=False)
    return {
        "python": random.getstate(),
        "numpy": {**numpy_state, "state": {**numpy_state["state"], "key": numpy_state["state"]["key"].tolist()}},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Put back what `random_state` returned; the generator of a GPU only where training goes on on one."""
    random.setstate(state["python"])
    key = np.array(state["numpy"]["state"]["key"], dtype=np.uint32)
    np.random.set_state({**state["numpy"], "state": {**state["numpy"]["state"], "key": key}})
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
