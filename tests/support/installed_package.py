"""Packages with architectures of their own, as pip would leave them in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuneyard_pipelines import architectures

ARCHITECTURE = """
from tuneyard_pipelines import formulas
from tuneyard_pipelines.architectures import Architecture, Rule

ARCHITECTURE = Architecture(
    tasks=("language_modeling",),
    network="{module}_network:build",
    cost=formulas.GPT,
    keys=("model.d_model", "model.num_heads", "model.num_layers", "model.d_ff", "model.dropout", "model.positions"),
    rules=(Rule("num_layers <= 2", "shallow", ("model.num_layers",), lambda point: point["model.num_layers"] <= 2),),
    defaults={{"model.num_heads": 4, "model.positions": "sinusoidal"}},
)
"""
NETWORK = "from tuneyard_pipelines.build import gpt as build\n"


def install(folder: Path, package: str, names: list[str], *, version: str = "1.0", source: str = ARCHITECTURE) -> str:
    """Leave a package in `folder` that names an architecture by each of `names`; gives the name of its module."""
    module = package.replace("-", "_")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(source.format(module=module))
    (folder / f"{module}_network.py").write_text(NETWORK)
    facts = folder / f"{module}-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    entries = "\n".join(f"{name} = {module}:ARCHITECTURE" for name in names)
    (facts / "entry_points.txt").write_text(f"[{architectures.GROUP}]\n{entries}\n")
    return module


@contextmanager
def looked_up_anew() -> Iterator[None]:
    """What is installed is asked for again, now and afterwards."""
    for ask in (architectures._entries, architectures.find):
        ask.cache_clear()
    try:
        yield
    finally:
        for ask in (architectures._entries, architectures.find):
            ask.cache_clear()
