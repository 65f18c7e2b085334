"""An accepted spec written out reads as itself, wherever the file lies."""

from __future__ import annotations

from pathlib import Path

from tuneyard_pipelines.spec import SweepSpec, load, parse

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_every_example_reads_back_from_its_text(tmp_path: Path) -> None:
    for path in sorted(EXAMPLES.glob("*.yaml")):
        spec = load(path)
        assert parse(spec.text(), file="/elsewhere/spec.yaml") == spec, path.name


def test_a_relative_source_and_text_in_other_scripts_survive(tmp_path: Path) -> None:
    (tmp_path / "诗.tsv").write_text("a\tb\n" * 20, encoding="utf-8")
    written = """
        {version: 1, name: t, description: 'yes', task: translation,
         data: {source: 诗.tsv, columns: {source: 1, target: 2}},
         model: {sequence_length: 8}, training: {max_steps: 1}, search: {trials: 1}}
    """
    (tmp_path / "s.yaml").write_text(written, encoding="utf-8")
    spec = SweepSpec.load(tmp_path / "s.yaml")
    again = parse(spec.text(), file="/elsewhere/spec.yaml")
    assert again == spec
    assert "诗.tsv" in spec.text()
    assert Path(again.data.source) == tmp_path / "诗.tsv"
