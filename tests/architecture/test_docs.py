"""What the pages of docs/ say of models, of the queue, of the platform and of its settings is what there is."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from tuneyard import jobs
from tuneyard.admission import Active, Limits, Rules, Sweep, decide
from tuneyard.ports import OPTIONS, Ports
from tuneyard.settings import VARIABLES
from tuneyard_pipelines import architectures
from tuneyard_pipelines.capacity import Node, Shape
from tuneyard_pipelines.keys import Model
from tuneyard_pipelines.sections import words_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MODELS = (DOCS / "models.md").read_text(encoding="utf-8")
QUEUE = (DOCS / "queue.md").read_text(encoding="utf-8")
PLATFORM = (DOCS / "platform.md").read_text(encoding="utf-8")
ROWS = [line.split("|")[1:-1] for line in MODELS.splitlines() if line.startswith("| `")]
FAMILIES = [cells for cells in ROWS if len(cells) == 5]
OF_ALL = {"sequence_length", "d_model", "num_layers", "dropout"}


def row(name: str) -> list[str]:
    """The cells of a family's last row, which holds most."""
    return [cells for cells in FAMILIES if re.search(rf"`{name}`", cells[0])][-1]


def test_every_family_has_a_row_with_its_keys_its_source_and_its_proof() -> None:
    for name, one in architectures.OURS.items():
        _, what, keys, source, proof = row(name)
        assert what.strip(), name
        assert re.search(r"\d{4}", source), name
        assert proof.strip(), name
        if "the same" not in keys:
            rows = " ".join(cells[2] for cells in FAMILIES if re.search(rf"`{name}`", cells[0]))
            wanted = {key.removeprefix("model.") for key in one.keys} - OF_ALL
            assert {key for key in wanted if f"`{key}`" not in rows} == set(), name


def test_no_key_is_named_that_there_is_not() -> None:
    named = {word for cells in FAMILIES for word in re.findall(r"`(\w+)`", cells[2])}
    assert named <= Model.model_fields.keys()


def test_every_part_that_can_be_left_out_is_explained() -> None:
    explained = {cells[0].strip(" `") for cells in ROWS if len(cells) == 2}
    assert explained == set(words_of(Model.model_fields["without"].annotation))


def test_the_queues_diagram_is_its_table() -> None:
    assert f"```mermaid\n{jobs.diagram()}\n```" in QUEUE


def test_every_state_of_the_queue_is_explained() -> None:
    explained = re.findall(r"^- ((?:`\w+`(?:, )?)+):", QUEUE, re.MULTILINE)
    assert re.findall(r"\w+", " ".join(explained)) == list(jobs.STATES)


def test_every_reason_of_the_queue_has_its_row_with_what_follows() -> None:
    again = dict.fromkeys(jobs.LOSSES, "waits again, up to a limit") | {"preempted": "waits again"}
    rows = [f"| `{name}` | {what} | {again.get(name, 'has ended')} |" for name, what in jobs.REASONS.items()]
    told = QUEUE.partition("## The reasons")[2].partition("\n## ")[0]
    assert [line for line in told.splitlines() if line.startswith("| `")] == rows


def test_what_a_waiting_sweep_says_is_said_so() -> None:
    named = QUEUE.partition("| it says |")[2].partition("\n## ")[0].splitlines()[2:]
    told = {line.split(" | ")[0].removeprefix("| ") for line in named if line.startswith("|")}
    large, small = queued("large", gpus=4), queued("small", owner="eve")
    others = [queued(f"s{at}", owner=f"o{at}", gpus=4) for at in range(3)]
    two, three = [running("r1", gpus=2)], [running("r1", gpus=3), running("r2", gpus=3)]
    eight = [running(f"r{at}", owner="bob") for at in range(8)]
    limited = {"ann": Limits(gpus=3)}
    said = {
        *waits([*others, large], two),
        *waits([large, small], two),
        *waits([queued("one", gpus=2)], three, nodes=2),
        *waits([*others, large], eight),
        *waits([small], [running("r1"), running("r2")], paused="new disks"),
        *waits([queued("mine")], [running("r1"), running("r2")], limits={"ann": Limits(sweeps=2)}),
        *waits([queued("a", gpus=2), queued("b", gpus=1)], [running("r1", gpus=2)], limits=limited),
        *waits([queued("a", gpus=1)], [running("r1", gpus=3)], limits=limited),
        *waits([queued("a", gpus=1)], [], limits={"ann": Limits(gpu_hours=10, used_gpu_hours=10)}),
        *waits([small], [], nodes=0),
    }
    assert told <= {re.sub(r"behind \w+", "behind ID", text) for text in said}


def test_the_ports_of_the_platform_are_those_it_takes() -> None:
    told: dict[str, int] = {}
    for line in PLATFORM.partition("### What runs")[2].partition("\n###")[0].splitlines():
        cells = line.split("|")
        if len(cells) == 6:
            numbers = [int(number) for number in re.findall(r"\d+", cells[3])]
            told |= dict(zip(re.findall(r"`(--[\w-]+)`", cells[4]), numbers, strict=True))
    assert told == {OPTIONS[part]: port for part, port in vars(Ports()).items()}


def test_every_setting_has_one_row_with_its_meaning_and_default() -> None:
    told = [line for page in DOCS.glob("*.md") for line in page.read_text(encoding="utf-8").splitlines()]
    rows = [f"| `{name}` | {one.meaning} | {one.shown} |" for name, one in VARIABLES.items() if not one.inner]
    assert sorted(line for line in told if line.startswith("| `TUNEYARD_")) == sorted(rows)


def test_every_variable_that_is_read_is_a_setting() -> None:
    sources = [path for room in ("services", "pipelines", "lightning_modules") for path in (ROOT / room).rglob("*.py")]
    named = Counter(name for path in sources for name in re.findall(r'"(TUNEYARD_[A-Z_]+)"', path.read_text()))
    assert named.keys() == VARIABLES.keys()
    assert [name for name, times in named.items() if times == 1] == [], "declared, and read nowhere"


def queued(id: str, *, owner: str = "ann", gpus: int = 0) -> Sweep:
    return Sweep(id, owner, 50, {"large": 2, "small": 3}.get(id, 1), Shape(1, gpus, 1 << 30), most_trials=1)


def running(id: str, *, owner: str = "ann", gpus: int = 0) -> Active:
    return Active(**vars(queued(id, owner=owner, gpus=gpus)), trials=1, begun=True)


def waits(waiting: list[Sweep], active: list[Active], *, nodes: int = 1, **rules: Any) -> list[str]:
    there = [Node(16, 4, 64 << 30)] * nodes
    return list(decide(waiting, active, there, Rules(8, **rules)).waits.values())
