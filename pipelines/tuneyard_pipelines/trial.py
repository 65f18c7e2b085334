"""One leg of one trial: from the newest whole checkpoint of a point to the next rung of its budget.

A Lightning epoch is here the stretch of batches between two validations: the stream of batches ends at each mark, the
trainer validates, and a checkpoint is written. What happened stands in the trial's folder; nothing here knows of Ray or
MLflow.

Of several workers each is a process that runs this leg, over a process group of torch that is there already. All take
the same decisions at the same steps; the first one, rank 0, writes metrics, checkpoints, pictures and the result.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.plugins.io import TorchCheckpointIO
from torch import nn

from tuneyard_modules import workers
from tuneyard_modules.objective import Divergence, Loader
from tuneyard_pipelines import checkpoints, cost, evidence, gpus, package, pictures, promotion, quota, reach
from tuneyard_pipelines.budget import HARD_STOP_S
from tuneyard_pipelines.build import build_network
from tuneyard_pipelines.checkpoints import Checkpoint, Facts
from tuneyard_pipelines.control import Finish, finishing
from tuneyard_pipelines.data import PreparedData, encode
from tuneyard_pipelines.data.stream import Cursor, Sharing
from tuneyard_pipelines.errors import UNWRITABLE, TuneyardError, first_line
from tuneyard_pipelines.evaluate import score_test
from tuneyard_pipelines.evidence import Evidence
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.gpus import GpuWatch
from tuneyard_pipelines.journal import SAMPLES, Header, SweepFolder
from tuneyard_pipelines.leg import LEFT, NO_SPACE, Leg, LegResult, stands
from tuneyard_pipelines.metrics import MetricFile, MetricValue
from tuneyard_pipelines.objectives import objective
from tuneyard_pipelines.reach import MFU, Reach
from tuneyard_pipelines.spec import Resources, TrialConfig
from tuneyard_pipelines.watchdog import IDLE_GPU, Watchdog, by_rank

log = logging.getLogger(__name__)

LOG_EVERY_N_STEPS = 10
LOOK_S = 1.0
PRECISION: dict[str, Any] = {"32": "32-true", "bf16-mixed": "bf16-mixed", "16-mixed": "16-mixed"}  # Lightning's words
ALONE: Mapping[str, Any] = {"devices": 1}
# Of DistributedDataParallel. Its buffers are constants here; to send them at each forward pass would have a worker with
# one batch more to validate wait for the others for ever.
DATA_PARALLEL: Mapping[str, Any] = {"broadcast_buffers": False}
SAME_SHARE = 1e-9  # shares of the budget that differ by less are the same mark

gc.freeze()  # the libraries stay: to look at their objects after every leg would take half a second of it


def run_leg(leg: Leg, callbacks: Sequence[pl.Callback] = (), group: Mapping[str, Any] = ALONE) -> LegResult:
    """Train one leg; whatever goes wrong inside is the result's outcome, not an exception.

    `callbacks` watch the training beside ours; `group` are options of Lightning's Trainer that tell it of the other
    workers. The process itself may end: `explain_death` tells why. What a worker other than the first tells is of use
    only where its outcome is a failure.
    """
    try:
        header = SweepFolder(Path(leg.folder)).header()
        resources = header.spec.variant(leg.variant).resources_at(leg.point)
        overdue = _overdue(SweepFolder(Path(leg.folder)), leg.attempt)
        gpu = _gpu_watch(leg.attempt_folder, resources)
        with (
            _notes(leg.attempt_folder),
            _watchdog(leg.attempt_folder, resources, lambda: gpu.look() or overdue()) as watchdog,
        ):
            try:
                return _Run(leg, header, watchdog, gpu).train(callbacks, group)
            except Exception:
                log.exception("trial %s failed", leg.trial)
                raise
    except Divergence as cause:
        return LegResult("diverged", str(cause))
    except (MemoryError, torch.OutOfMemoryError) as cause:
        return LegResult("out_of_memory", first_line(cause))
    except Exception as cause:  # whatever a trial does, it ends that trial only
        if isinstance(cause, OSError) and cause.errno in UNWRITABLE:
            return LegResult(NO_SPACE, first_line(cause))
        if "can't allocate memory" in str(cause):  # torch's CPU allocator raises a plain RuntimeError
            return LegResult("out_of_memory", first_line(cause))
        if _was_left(cause):
            return LegResult(LEFT, first_line(cause))
        return LegResult("error", f"{type(cause).__name__}: {first_line(cause)}")
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _was_left(cause: Exception) -> bool:
    """Whether this worker failed since another one is gone. Gloo has no exception of its own."""
    return workers.count() > 1 and (isinstance(cause, torch.distributed.DistError) or "gloo" in str(cause))


def score_and_pack(folder: str, trial: str) -> tuple[Evidence, str]:
    """Score a trial's best checkpoint on the test split and package it, both into its folder; gives the model's digest.

    Evidence that is there already, of these very weights, stands: the test split is looked at once.
    """
    place = SweepFolder(Path(folder))
    header = place.header()
    ended = place.state().trials[trial]
    config = header.spec.variant(ended.variant).at(ended.point)
    _reset_process(config)
    best = checkpoints.best(checkpoints.whole(place.trial(trial)), header.spec.mode)
    if best is None:
        raise TuneyardError(f"trial {trial}: no whole checkpoint with a finite score is left in {place.trial(trial)}")
    prepared = PreparedData.open(header.data)
    encoded = encode(prepared, config.tokenizer)
    network = load_network(best, config, encoded.sizes)
    package.pack(place.model(trial), network, encoded.tokenizers, config)
    model = package.digest(place.model(trial))
    found = evidence.read(place.evidence(trial))
    if found is None or found.model not in ("", model):
        if config.resources.gpus_per_worker:
            network.to("cuda")
        with _watchdog(place.scoring(trial), config.resources) as watchdog:
            found = score_test(network, config, prepared, encoded, place.evidence(trial), model, watchdog.alive)
    return found, model


def load_network(checkpoint: Checkpoint, config: TrialConfig, sizes: VocabSizes) -> nn.Module:
    """The network as it was at a checkpoint."""
    network = build_network(config, sizes)
    state = torch.load(checkpoint.state, map_location="cpu", weights_only=True)["state_dict"]
    network.load_state_dict({key.removeprefix("network."): value for key, value in state.items()})
    return network


def compile_in_place(network: nn.Module) -> None:
    """Compile what `forward` does; the names of the weights stay. Raises TuneyardError without a C++ compiler."""
    compiler = os.environ.get("CXX", "g++").split()[0]
    if shutil.which(compiler) is None:
        raise TuneyardError(
            f"training.compile: there is no C++ compiler {compiler} here, which torch.compile needs; install it on "
            "every machine that trains, or set training.compile to false"
        )
    torch.compiler.reset()  # of legs before: their networks would count against the limit of this one's recompilations
    network.compile(dynamic=True)  # batches differ in their shape


@contextlib.contextmanager
def _notes(folder: Path) -> Iterator[None]:
    """What is logged meanwhile stands in the trial's log; of each worker but the first in one of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / (f"rank{rank}.log" if (rank := workers.rank()) else "trial.log"))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger("tuneyard_pipelines")
    level = root.level
    root.setLevel(logging.INFO)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()


def _watchdog(
    folder: Path, resources: Resources, overdue: Callable[[], tuple[str, str] | None] = lambda: None
) -> Watchdog:
    return Watchdog(
        folder,
        rank=workers.rank(),
        stall_timeout_s=resources.stall_timeout_s,
        memory_bytes=resources.memory_per_worker_bytes,
        overdue=overdue,
    )


def _gpu_watch(folder: Path, resources: Resources) -> GpuWatch:
    """To be made by the thread that trains: the others do not know which of several GPUs is this worker's."""
    there = bool(resources.gpus_per_worker) and torch.cuda.is_available()
    return GpuWatch(
        by_rank(folder, IDLE_GPU, workers.rank()),
        gpus=resources.gpus_per_worker,
        stop=resources.on_idle_gpu == "stop",
        read=functools.partial(gpus.utilization, torch.cuda.current_device()) if there else lambda: None,
    )


def _overdue(folder: SweepFolder, attempt: int) -> Callable[[], tuple[str, str] | None]:
    """Outcome and reason, once a leg has not come to its end in the time that it was given to."""

    heard_s: list[float] = []  # by the clock of this node, whatever that of the driver says

    def look() -> tuple[str, str] | None:
        told = finishing(folder, attempt)
        if told is None:
            return None
        heard_s.append(time.monotonic())
        del heard_s[1:]
        if time.monotonic() < heard_s[0] + HARD_STOP_S:
            return None
        return told.outcome, f"{told.reason}; it did not come to its end within {HARD_STOP_S:.0f} s"

    return look


class _Run:
    """The parts of one leg, put together."""

    def __init__(self, leg: Leg, header: Header, watchdog: Watchdog, gpu: GpuWatch) -> None:
        self.leg, self.spec, self.watchdog, self.gpu = leg, header.spec.variant(leg.variant), watchdog, gpu
        self.whole_spec, self.config = header.spec, self.spec.at(leg.point)
        self.sweep = SweepFolder(Path(leg.folder))
        self.folder = self.sweep.trial(leg.trial)
        self.parts_per_step = self.config.training.accumulate * leg.split
        _reset_process(self.config)
        prepared = PreparedData.open(header.data)
        encoded = encode(prepared, self.config.tokenizer)
        self.reach = _reach(self.config, encoded.sizes) if self.first else None
        sharing = Sharing(workers.count(), workers.rank(), leg.split)
        self.objective = objective(self.config, prepared, encoded, sharing)
        self.stream = self.objective.stream
        self.network = build_network(self.config, encoded.sizes)
        if self.config.training.compile:
            compile_in_place(self.network)
        self.module = self.objective.module(self.network)
        if sharing.rank:  # all began with the same weights; what they drop out is drawn by each for itself
            pl.seed_everything(_seed(self.config.seed, sharing.rank), verbose=False)
        self.finish: Finish | None = None
        self.interrupted = False  # between two validations, by a driver that is told to end
        self.best_score: float | None = None
        self.since_best = 0
        self._looked_s = 0.0

    def train(self, callbacks: Sequence[pl.Callback], group: Mapping[str, Any]) -> LegResult:
        until = self.spec.rungs()[self.leg.rung]
        # As the first worker sees the folder: a shared disk may show the others an older state.
        kept = workers.told(checkpoints.whole(self.folder) if self.first else [])[0]
        newest = next(reversed(kept), None)
        if newest is not None:
            best = checkpoints.best(kept, self.spec.mode)
            self.best_score = best.facts.score if best else None
            self.since_best = newest.facts.since_best
        if newest is None or (newest.facts.share < until - SAME_SHARE and not self.gave_up):
            self._fit(newest, until, callbacks, group)
            if self.first and not self.interrupted:
                with self.module.averaged():
                    self._show()
        return self._result() if self.first else LegResult()

    @property
    def first(self) -> bool:
        """Whether this is the worker that writes."""
        return workers.rank() == 0

    def _fit(
        self, newest: Checkpoint | None, until: float, callbacks: Sequence[pl.Callback], group: Mapping[str, Any]
    ) -> None:
        training = self.config.training
        logger = MetricLogger(
            MetricFile(self.leg.attempt_folder / "metrics.jsonl") if self.first else None, self.gpu, self.reach
        )
        logger.log_metrics({**self.objective.facts, **(self.reach.facts if self.reach else {})}, step=0)
        trainer = pl.Trainer(
            accelerator="gpu" if self.config.resources.gpus_per_worker else "cpu",
            precision=PRECISION[training.precision],
            accumulate_grad_batches=self.parts_per_step,
            max_epochs=-1,
            logger=logger,
            log_every_n_steps=LOG_EVERY_N_STEPS,
            callbacks=[*callbacks, _Marks(self, until)],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            **{
                **group,
                "plugins": [
                    _StateFile(lambda needed_bytes: quota.room(self.sweep, self.whole_spec, needed_bytes)),
                    *group.get("plugins", ()),
                ],
            },
        )
        try:
            trainer.fit(
                self.module,
                Loader(self._stretch),
                Loader(lambda: self.objective.validation),
                ckpt_path=str(newest.state) if newest else None,
                weights_only=True,
            )
        finally:
            logger.close()
        if self.first and (text := reach.told(logger.newest)):
            log.info("%s", text)

    def _stretch(self) -> Iterator[Any]:
        """The batches up to the next validation; at least one step, and no more once the sweep comes to its end."""
        for number, batch in enumerate(self.stream.between(self.cursor(), self.next_mark())):
            if number and number % self.parts_per_step == 0 and self.must_finish():
                self.interrupted = self.finish is not None and self.finish.interrupts
                return
            yield batch

    def must_finish(self) -> bool:
        """Whether the driver has told its trials to come to an end; looked up about once a second.

        All workers hear of it at the same step, whichever saw it first.
        """
        if self.finish is not None:
            return True
        heard, now_s = None, time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            heard = finishing(self.sweep, self.leg.attempt)
        if workers.any_of(heard is not None):
            self.finish = next(told for told in workers.told(heard) if told is not None)
        return self.finish is not None

    def judge(self, score: float | None) -> None:
        """Note whether a validation is better than all before it."""
        better = promotion.cost(score, self.spec.mode) < promotion.cost(self.best_score, self.spec.mode)
        self.best_score, self.since_best = (score, 0) if better else (self.best_score, self.since_best + 1)

    @property
    def gave_up(self) -> bool:
        """Whether nothing got better for as long as training.early_stopping waits."""
        patience = self.config.training.early_stopping
        return patience is not None and self.since_best >= patience

    def cursor(self) -> Cursor:
        return Cursor(self.module.batches_trained, self.module.tokens_trained)

    def next_mark(self) -> float:
        """The next share of the budget at which to validate: evaluations spread evenly, and every rung."""
        evaluations = self.config.training.evaluations
        marks = sorted({k / evaluations for k in range(1, evaluations + 1)} | set(self.spec.rungs()))
        share = self.stream.share(self.cursor())
        return next((mark for mark in marks if mark > share + SAME_SHARE), 1.0)

    def _result(self) -> LegResult:
        kept = checkpoints.whole(self.folder)
        if not kept:
            raise TuneyardError(f"{self.folder}: the checkpoints that were just written are gone or damaged")
        arrived = kept[-1].facts.share >= self.spec.rungs()[self.leg.rung] - SAME_SHARE
        if self.finish is not None and not arrived:
            return stands(self.folder, self.spec.mode, self.finish.outcome, self.finish.reason)
        if checkpoints.best(kept, self.spec.mode) is None:
            known = self.spec.metric in kept[-1].facts.metrics
            outcome, message = "diverged" if known else "no_metric", "finite" if known else "reported"
            return stands(self.folder, self.spec.mode, outcome, f"{self.spec.metric} was never {message}")
        if self.gave_up and not arrived:
            message = f"training.early_stopping: no better {self.spec.metric} in {self.since_best} validations in a row"
            return stands(self.folder, self.spec.mode, "stopped_early", message)
        return stands(self.folder, self.spec.mode)

    def _show(self) -> None:
        """What the model says now, and where it looks: files for people, without which a trial is whole, too."""
        self.module.eval()
        folder = self.leg.attempt_folder
        try:
            rows = self.objective.samples(self.module)
            lines = ["\t".join(text.replace("\t", " ").replace("\n", "⏎") for text in row) for row in rows]
            (folder / SAMPLES).write_text("\n".join(lines) + "\n", encoding="utf-8")
            pictures.attention(folder, self.objective.attention(self.network), self.leg.trial)
        except Exception as cause:
            if isinstance(cause, OSError) and cause.errno in UNWRITABLE:  # ends the attempt
                raise
            log.exception("samples or attention of %s cannot be shown", self.leg.trial)


class _Marks(pl.Callback):
    """At every mark: a checkpoint, and the end of the leg when its rung is reached."""

    def __init__(self, run: _Run, until: float) -> None:
        self._run, self._until = run, until

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        self._run.watchdog.alive()
        if self._run.interrupted:
            trainer.limit_val_batches = 0  # no mark was reached: that is left to a later attempt

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self._run.watchdog.alive()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        run, module = self._run, self._run.module
        share = run.stream.share(run.cursor())
        metrics: dict[str, float] = {}
        score = None
        if not run.interrupted:
            metrics = {key: float(value) for key, value in trainer.callback_metrics.items() if key.startswith("val/")}
            score = metrics.get(run.spec.metric)
            score = score if score is not None and math.isfinite(score) else None
            run.judge(score)
        facts = Facts(
            step=trainer.global_step,
            position=module.batches_trained,
            tokens=module.tokens_trained,
            share=share,
            score=score,
            # The sweep's own metric stays, finite or not: it tells a trial that diverged from one that never reported.
            metrics={key: value for key, value in metrics.items() if math.isfinite(value) or key == run.spec.metric},
            since_best=run.since_best,
        )

        def write(path: Path) -> None:
            trainer.save_checkpoint(path, weights_only=False)  # all workers must, and the first one writes

        if run.first:
            checkpoints.save(run.leg.attempt_folder / "checkpoints", facts, write)
            checkpoints.prune(run.folder, run.spec.mode, run.leg.attempt)
        else:
            write(run.leg.attempt_folder)
        if share >= self._until - SAME_SHARE or run.gave_up or run.must_finish():
            trainer.should_stop = True


class _StateFile(TorchCheckpointIO):
    """Writes a checkpoint straight to its place, within the sweep's quota; Lightning's own way fills /tmp first."""

    def __init__(self, room: Callable[[int], contextlib.AbstractContextManager[None]]) -> None:
        self._room = room

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        with self._room(_size_bytes(checkpoint)):
            torch.save(checkpoint, path)


def _size_bytes(value: Any) -> int:
    """What the tensors in a checkpoint take, and a little for all the rest."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size() + 1024
    if isinstance(value, Mapping):
        return sum(map(_size_bytes, value.values())) + 1024
    return sum(map(_size_bytes, value)) if isinstance(value, list | tuple) else 16


class MetricLogger(Logger):
    """Lightning's values to the trial's metric file, with the time at which they came.

    A worker without a file tells the one that has it how its process stands. `newest` are the last values by name.
    """

    def __init__(self, file: MetricFile | None, gpu: GpuWatch, reach: Reach | None) -> None:
        super().__init__()
        self._file, self._gpu, self._reach = file, gpu, reach
        self.newest: dict[str, float] = {}

    @property
    def name(self) -> str:
        return "tuneyard"

    @property
    def version(self) -> str:
        return "0"

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        now_ms = int(time.time() * 1000)
        values = {key: float(value) for key, value in metrics.items() if key != "epoch"}
        if self._reach is not None and "train/tokens_per_second" in values:
            values[MFU] = self._reach.of(values["train/tokens_per_second"])
        if "train/tokens" in values:
            values |= _system(self._gpu)
        self.newest |= values
        if self._file is not None:
            self._file.write(MetricValue(key, int(step or 0), value, now_ms) for key, value in values.items())

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """The point is known without it."""

    def close(self) -> None:
        """Have all of it on disk."""
        if self._file is not None:
            self._file.close()


def _system(gpu: GpuWatch) -> dict[str, float]:
    """How the processes of all workers stand; those of several are told apart by rank."""
    busy = gpu.mean()
    told = workers.told(_memory() | ({} if busy is None else {"gpu_utilization": busy}))
    if len(told) == 1:
        return {f"system/{name}": value for name, value in told[0].items()}
    return {f"system/rank{rank}/{name}": value for rank, values in enumerate(told) for name, value in values.items()}


def _memory() -> dict[str, float]:
    """Bytes that this process holds, and that its tensors held on its GPU at most."""
    memory = {"memory_bytes": float(psutil.Process().memory_info().rss)}
    if torch.cuda.is_available():
        memory["gpu_memory_bytes"] = float(torch.cuda.max_memory_allocated())
    return memory


def _reach(config: TrialConfig, sizes: VocabSizes) -> Reach | None:
    """None for a network that counts, and for a device of which nothing is known."""
    flops = cost.flops_per_token(config.flat(), sizes)
    device = "cuda" if config.resources.gpus_per_worker and torch.cuda.is_available() else "cpu"
    peak = gpus.peak(torch.device(device), config.training.precision) if flops else None
    return Reach(flops, peak, workers.count()) if peak else None


def _seed(seed: int, rank: int) -> int:
    """One of a worker's own."""
    return int(np.random.SeedSequence([seed, rank]).generate_state(1)[0])


def _reset_process(config: TrialConfig) -> None:
    """A reused process starts every leg alike."""
    pl.seed_everything(config.seed, verbose=False)
    torch.set_num_threads(config.resources.cpus_per_worker)
    torch.set_default_dtype(torch.float32)
    deterministic = config.training.deterministic
    torch.use_deterministic_algorithms(True, warn_only=not deterministic)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # matrix products on a GPU refuse without it
