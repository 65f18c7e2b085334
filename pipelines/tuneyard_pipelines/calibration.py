"""How fast this machine trains: a few real steps of given points, in a process of their own, remembered by machine.

As `python -m tuneyard_pipelines.calibration` it is that process: a request as JSON on stdin, [FLOPs of a token, FLOPs
per second] of each point on stdout. B batch, T target length, V vocabulary.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tuneyard_pipelines import architectures
from tuneyard_pipelines.cost import Speed, flops_per_token
from tuneyard_pipelines.errors import TuneyardError, first_line
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.journal import write_atomic
from tuneyard_pipelines.spec import TrialConfig

STEPS, ENOUGH_S = 8, 1.5  # what a point is measured for after a step to warm up, whichever comes first
STEP_FLOPS = 10**11  # a step of a large model has fewer examples: one CPU core works on so many for some seconds


def measure(
    points: Sequence[tuple[TrialConfig, VocabSizes]],
    *,
    threads: int,
    gpus: float,
    folder: Path,
    timeout_s: float = 120.0,
) -> Speed:
    """The speed of training `points`, each with the sizes of its vocabularies, on `threads` threads of this machine.

    A result in `folder` of the same machine and points is taken as it is; a new one is kept there. Raises TuneyardError
    when the measurement fails or takes longer than `timeout_s`. With `gpus` it runs on CUDA: untested.
    """
    device = "cuda" if gpus else "cpu"
    machine = _machine(threads, device)
    cache = folder / f"speed-{_digest(machine, points)}.json"
    if (known := _read(cache)) is not None:
        return known
    request = {
        "threads": threads,
        "device": device,
        "points": [{"config": config.model_dump(mode="json"), "sizes": asdict(sizes)} for config, sizes in points],
    }
    speed = Speed.from_dict({"points": _ask(request, timeout_s), "machine": machine})
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(cache, json.dumps(speed.to_dict()))
    return speed


def main() -> None:
    """Measure what stdin asks for. Exits with a message when that cannot be done."""
    try:
        request = json.load(sys.stdin)
        _prepare(request["threads"], request["device"])
        rates = [
            _rate(
                TrialConfig.model_validate_json(json.dumps(point["config"])),
                VocabSizes(**point["sizes"]),
                request["device"],
            )
            for point in request["points"]
        ]
    except Exception as cause:
        sys.exit(first_line(cause) if isinstance(cause, TuneyardError) else f"{type(cause).__name__}: {cause}")
    print(json.dumps(rates))


def _machine(threads: int, device: str) -> str:
    torch = importlib.metadata.version("torch")
    return f"{platform.node()}, {_cpu_model()}, threads={threads}, torch {torch}, {device}"


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def _digest(machine: str, points: Sequence[tuple[TrialConfig, VocabSizes]]) -> str:
    """Of what decides the speed; learning rate, budget and seed do not."""
    shapes = [
        [
            config.model.model_dump(),
            config.training.batch_tokens,
            config.training.label_smoothing > 0,
            config.training.precision,
            asdict(sizes),
        ]
        for config, sizes in points
    ]
    return hashlib.sha256(json.dumps([machine, shapes], sort_keys=True).encode()).hexdigest()[:16]


def _read(cache: Path) -> Speed | None:
    """None where nothing is kept, or nothing whole."""
    try:
        return Speed.from_dict(json.loads(cache.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ask(request: dict[str, Any], timeout_s: float) -> Any:
    """What a fresh process answers, one that has the trial's threads from its start."""
    threads = str(request["threads"])
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if request["device"] == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    # -P: a file of the current folder must not stand in for a library.
    command = [sys.executable, "-P", "-m", "tuneyard_pipelines.calibration"]
    failed = "the speed of training could not be measured"
    try:
        ran = subprocess.run(
            command, input=json.dumps(request), env=environment, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        raise TuneyardError(
            f"{failed}: a few steps of {len(request['points'])} points took longer than {timeout_s:g} s; measure "
            "smaller points, or allow more time"
        ) from None
    if ran.returncode < 0:
        raise TuneyardError(
            f"{failed}: signal {-ran.returncode} ended the process; if memory ran out, measure smaller points"
        )
    if ran.returncode:
        raise TuneyardError(f"{failed}: {(ran.stderr.strip().splitlines() or ['no reason was given'])[-1]}")
    return json.loads(ran.stdout)


def _prepare(threads: int, device: str) -> None:
    """The settings under which a trial runs."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise TuneyardError(
            "resources.gpus_per_worker is not 0, but torch finds no CUDA device here; measure on a machine with a GPU, "
            "or set resources.gpus_per_worker to 0"
        )
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)


def _rate(config: TrialConfig, sizes: VocabSizes, device: str) -> tuple[int, float]:
    """FLOPs of a token and FLOPs per second of one point: the median step, forward, backward, clipping and AdamW.

    Whatever is compiled in a trial is not here.
    """
    import torch
    from torch.nn import functional as F

    from tuneyard_pipelines.build import build_network

    values, length = config.flat(), config.model.sequence_length
    flops = flops_per_token(values, sizes)
    sequences = architectures.find(str(config.model.architecture)).cost.sequences
    tokens = min(config.training.batch_tokens, STEP_FLOPS // flops)
    rows = max(1, tokens // (sequences * length))
    network = build_network(config, sizes).to(device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=config.training.learning_rate, fused=True)
    half = torch.float16 if config.training.precision == "16-mixed" else torch.bfloat16
    least = min(sizes.target, sizes.source or sizes.target)
    steps_s: list[float] = []
    for _ in range(1 + STEPS):
        begun_s = time.perf_counter()
        # No padding: the number 0 is left out.
        *sources, target_BT = torch.randint(1, least, (sequences, rows, length + 1), device=device)
        with torch.autocast(device, half, enabled=config.training.precision != "32"):
            logits_BTV = network(*(source[:, 1:] for source in sources), target_BT[:, :-1])
            loss = F.cross_entropy(
                logits_BTV.flatten(0, 1), target_BT[:, 1:].flatten(), label_smoothing=config.training.label_smoothing
            )
        optimizer.zero_grad()
        loss.backward()
        # As in a trial, a look at the norm waits for a GPU at every step.
        torch.nn.utils.clip_grad_norm_(network.parameters(), config.training.gradient_clip).item()
        optimizer.step()
        steps_s.append(time.perf_counter() - begun_s)
        if sum(steps_s[1:]) >= ENOUGH_S:
            break
    return flops, flops * rows * sequences * length / statistics.median(steps_s[1:])


if __name__ == "__main__":
    main()
