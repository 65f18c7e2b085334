"""What the pages of docs/ say of models is what there is."""

from __future__ import annotations

import re
from pathlib import Path

from tuneyard_pipelines import architectures
from tuneyard_pipelines.keys import Model
from tuneyard_pipelines.sections import words_of

MODELS = (Path(__file__).resolve().parents[2] / "docs/models.md").read_text(encoding="utf-8")
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
