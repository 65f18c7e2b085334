"""Workers of one trial as plain processes with a process group, without Ray; what they do is imported by name."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pytorch_lightning.plugins.environments import TorchElasticEnvironment
from pytorch_lightning.strategies import DDPStrategy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from tuneyard_modules import workers
from tuneyard_modules.objective import decay_groups
from tuneyard_pipelines import checkpoints, trial
from tuneyard_pipelines.build import build_network
from tuneyard_pipelines.control import Finish
from tuneyard_pipelines.data import PreparedData, encode
from tuneyard_pipelines.data.stream import Cursor, Sharing
from tuneyard_pipelines.journal import SweepFolder
from tuneyard_pipelines.leg import Leg
from tuneyard_pipelines.objectives import objective
from tuneyard_pipelines.trial import DATA_PARALLEL, run_leg


def together(work: Callable[..., None], count: int, *arguments: Any) -> None:
    """Run `work` in so many processes with a process group."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_worker, (count, port, work, arguments), nprocs=count)


def _worker(rank: int, count: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GROUP_RANK": "0"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
    dist.init_process_group("gloo")
    try:
        work(*arguments)
    finally:
        dist.destroy_process_group()


def train_shared(path: str) -> None:
    result = run_leg(Leg(path, "t001", {}, 1, 0), (), _group())
    assert result.outcome is None, result.message


def train_interrupted(path: str) -> None:
    """As if the driver had told only the second worker to end, between two validations."""
    asked = iter(range(sys.maxsize))

    def finishing(folder: SweepFolder, attempt: int) -> Finish | None:
        told = workers.rank() == 1 and next(asked) >= 7
        return Finish("interrupted", "told to end", 1) if told else None

    trial.finishing, trial.LOOK_S = finishing, 0.0
    run_leg(Leg(path, "t001", {}, 1, 0), (), _group())
    steps = [one.facts.step for one in checkpoints.whole(SweepFolder(Path(path)).trial("t001"))]
    assert steps, "saved where it was"
    assert steps[-1] < 25, "before the first validation"


def train_plainly(path: str, out: str) -> None:
    """Nothing of Lightning or of our modules' steps: a loop over PyTorch's DistributedDataParallel."""
    header = SweepFolder(Path(path)).header()
    config = header.spec.at({})
    torch.manual_seed(config.seed)
    prepared = PreparedData.open(header.data)
    encoded = encode(prepared, config.tokenizer)
    found = objective(config, prepared, encoded, Sharing(workers.count(), workers.rank()))
    start = torch.load(Path(path) / "start.pt", weights_only=True)
    network = build_network(config, encoded.sizes)
    network.load_state_dict(start)
    module = found.module(network)
    parallel = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(decay_groups(module, config.training.weight_decay), betas=(0.9, 0.98))
    losses = []
    for batch in found.stream.between(Cursor(), 1.0):
        logits_BTV = parallel(batch.source_BS, batch.target_BT[:, :-1])
        next_BT = batch.target_BT[:, 1:]
        nll_BT = -logits_BTV.log_softmax(-1).gather(-1, next_BT[..., None])[..., 0]
        summed, tokens = nll_BT[next_BT != 0].sum(), (next_BT != 0).sum().float()
        totals = torch.stack([summed.detach(), tokens])
        dist.all_reduce(totals)
        for group in optimizer.param_groups:
            group["lr"] = module.learning_rate(batch.share)
        optimizer.zero_grad()
        (summed * dist.get_world_size() / totals[1]).backward()
        clip_grad_norm_(network.parameters(), config.training.gradient_clip)
        optimizer.step()
        losses.append(float(totals[0] / totals[1]))
    if not workers.rank():
        torch.save(losses, out)


def _group() -> dict[str, Any]:
    return {
        "devices": workers.count(),
        "strategy": DDPStrategy(**DATA_PARALLEL),
        "plugins": [TorchElasticEnvironment()],
    }
