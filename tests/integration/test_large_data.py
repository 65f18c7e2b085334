"""Data larger than the memory there is: prepared and cut into tokens, with little more than a small file takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ALLOWED_BYTES = 64 << 20  # of address space, beyond what the libraries take
SHARE_OF_TEXT = 0.25  # with it, 5 GB of text take 1.25 GB more than nearly none

SCRIPT = """
import json, pathlib, resource, sys
from tuneyard_pipelines.data import encode, prepare
from tuneyard_pipelines.spec import DataSpec, Tokenizer

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def make(path):
    prepared = prepare(DataSpec(source=path), 1, cache, "language_modeling")
    encode(prepared, Tokenizer(type="byte"))
    return sum(prepared.examples.values()), peak_bytes()

first, small, large, cache = sys.argv[1:4] + [pathlib.Path(sys.argv[4])]
make(first)  # imports what is needed
address_bytes = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limit_bytes = address_bytes + int(sys.argv[5])
resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
print(json.dumps([make(small), make(large)]))
"""


def written(path: Path, documents: int) -> Path:
    with path.open("w") as file:
        for number in range(documents):
            file.write(f"{number} " + "a line that goes on for a while " * 18 + "\n")
    return path


def test_a_file_larger_than_the_memory_that_is_left(tmp_path):
    files = [written(tmp_path / f"{count}.txt", count) for count in (200, 20_000, 140_000)]
    assert files[-1].stat().st_size > 1.2 * ALLOWED_BYTES
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, files), str(tmp_path / "cache"), str(ALLOWED_BYTES)],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    (fewer, before_bytes), (more, after_bytes) = json.loads(answer.stdout)
    assert (fewer, more) == (20_000, 140_000)
    text_bytes = files[2].stat().st_size - files[1].stat().st_size
    assert after_bytes - before_bytes < SHARE_OF_TEXT * text_bytes
