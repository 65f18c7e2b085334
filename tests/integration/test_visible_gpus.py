"""Which GPUs a worker sees, by what its trial asks for: on a Ray of its own that pretends to have two."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.integration

SCRIPT = """
import json, os, sys
import ray, ray.train
from ray.train.torch import TorchConfig, TorchTrainer
from tuneyard_pipelines.cluster import OBJECT_STORE_BYTES, only_own_gpus, quiet, request
from tuneyard_pipelines.spec import Resources

quiet()
ray.init(num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=OBJECT_STORE_BYTES)

class Worker:
    def sees(self, resources):
        only_own_gpus(resources)
        return os.environ.get("CUDA_VISIBLE_DEVICES")

def wants(gpus, workers=1):
    return Resources(workers=workers, gpus_per_worker=gpus, memory_per_worker="256MiB")

def reserved(resources):
    asked = request(resources)
    return dict(num_cpus=asked.pop("CPU"), num_gpus=asked.pop("GPU", 0), memory=asked.pop("memory"), resources=asked)

def actors(gpus, count):
    resources = wants(gpus)
    held = [ray.remote(Worker).options(**reserved(resources)).remote() for _ in range(count)]
    return ray.get([one.sees.remote(resources) for one in held])

def task(gpus):
    resources = wants(gpus)
    return ray.get(ray.remote(lambda: Worker().sees(resources)).options(**reserved(resources)).remote())

def together(folder):
    resources = wants(1, workers=2)

    def work():
        context = ray.train.get_context()
        seen = [Worker().sees(resources), context.get_local_rank()]
        with open(os.path.join(folder, f"rank{context.get_world_rank()}"), "w") as out:
            json.dump(seen, out)

    TorchTrainer(
        work,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker=request(resources)),
        run_config=ray.train.RunConfig(name="two", storage_path=folder),
    ).fit()
    return [json.load(open(os.path.join(folder, f"rank{rank}"))) for rank in range(2)]

found = {
    "none": task(0),
    "none of an actor": actors(0, 1),
    "half": task(0.5),
    "halves": actors(0.5, 4),
    "whole": task(1),
    "wholes": actors(1, 2),
    "together": together(sys.argv[1]),
}
print(json.dumps(found))
ray.shutdown()
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("two")
    ran = subprocess.run([sys.executable, "-c", SCRIPT, str(folder)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_a_worker_without_a_gpu_sees_none(seen: dict[str, Any]) -> None:
    assert (seen["none"], seen["none of an actor"]) == ("", [""]), "empty, for unset would show all"


def test_a_worker_sees_the_gpu_that_it_holds_or_shares(seen: dict[str, Any]) -> None:
    assert seen["half"] in ("0", "1")
    assert seen["whole"] in ("0", "1")
    assert sorted(seen["halves"]) == ["0", "0", "1", "1"], "two share one"
    assert sorted(seen["wholes"]) == ["0", "1"]


def test_workers_of_one_trial_see_those_of_their_node_and_take_one_each_by_local_rank(seen: dict[str, Any]) -> None:
    """Ray Train shows them to all of its workers, as NCCL likes it, and makes each one's its present device."""
    assert [sorted(visible.split(",")) for visible, _ in seen["together"]] == [["0", "1"]] * 2
    assert [rank for _, rank in seen["together"]] == [0, 1]
