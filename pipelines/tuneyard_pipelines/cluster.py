"""The Ray cluster of a driver: the one there is or one of its own, quiet, and with room for every kind of trial."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import ray

from tuneyard_pipelines.capacity import ACCELERATOR, Node, Shape, never_fits
from tuneyard_pipelines.errors import CapacityError
from tuneyard_pipelines.spec import Resources

log = logging.getLogger(__name__)

HEAD, HEAD_SHARE = "node:__internal_head__", 0.001  # which the head of every cluster has 1 of, free for such uses
ACCELERATOR_SHARE = 0.001  # a node has 1 of its kind, whatever it runs: Ray's own requests take so much of it
OBJECT_STORE_BYTES = 200 << 20  # trials read memory-mapped files; Ray's own default takes a third of the memory


@contextlib.contextmanager
def cluster(shapes: Iterable[Shape]) -> Iterator[None]:
    """A Ray cluster that can run trials of each of these shapes: the one this process is connected to, or its own.

    Raises CapacityError for a shape that it could not hold if it were empty; such a trial would wait for ever.
    """
    quiet()
    own = not ray.is_initialized()
    try:
        if own:
            _start_ray()
        check_resources(shapes, nodes())
        yield
    finally:
        if own:
            ray.shutdown()


def _start_ray() -> None:
    local: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    with _signals_afterwards():
        ray._private.worker.print_to_stdstream = _log_ray  # Ray has no setting for it
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **({} if os.environ.get("RAY_ADDRESS") else local))


def _log_ray(data: Mapping[str, Any], ignore_prefix: bool) -> None:
    """What the cluster says about workers that died and memory that ran out: not over the screen."""
    for line in data["lines"]:
        log.warning("%s", line)


def quiet() -> None:
    """No telemetry, no progress bars and no result files of Ray's own; for the driver and for every worker."""
    for name, value in {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AIR_NEW_OUTPUT": "0",
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }.items():
        os.environ.setdefault(name, value)
    logging.raiseExceptions = False  # a log that a full disk does not take is no reason to fill the screen
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # a trial's traceback: its own log has it, too


def request(resources: Resources) -> dict[str, float]:
    """What Ray reserves for one worker of a trial: a bundle of a placement group."""
    kind = resources.accelerator_type
    asked = {
        "CPU": resources.cpus_per_worker,
        "GPU": resources.gpus_per_worker,
        "memory": resources.memory_per_worker_bytes,
        **({f"{ACCELERATOR}{kind}": ACCELERATOR_SHARE} if kind else {}),
    }
    return {name: amount for name, amount in asked.items() if amount}


def reserved(resources: Resources) -> dict[str, float]:
    """What Ray reserves for the process of a trial: what its worker takes, or where it has several, hardly anything.

    These have a reservation of their own. If the trial's process, which waits for them, held what they need, they would
    wait for it for ever.
    """
    return request(resources) if resources.workers == 1 else {HEAD: HEAD_SHARE}


def only_own_gpus(resources: Resources) -> None:
    """Have torch see no GPU where none is asked for; otherwise Ray shows those that are this worker's."""
    if not resources.gpus_per_worker:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves it unset, which would show every GPU


def check_resources(shapes: Iterable[Shape], there: Sequence[Node]) -> None:
    """Raises CapacityError, naming what exists, unless the empty nodes hold a trial of each shape."""
    for shape in shapes:
        if reason := never_fits(shape, there):
            raise CapacityError(reason)


def nodes() -> list[Node]:
    """What each node that is there holds."""
    return [Node.of(node["Resources"]) for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _signals_afterwards() -> Iterator[None]:
    """What SIGINT and SIGTERM do, they do once Ray has started: in the middle they would be lost, or crash it.

    Ray puts a handler of its own in the place of SIGTERM's, which exits; the one before it is put back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda number, frame: heard.append(number))
    try:
        yield
    except SystemExit:  # Ray's own handler
        heard.append(signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    if heard:
        signal.raise_signal(heard[0])
