"""`tuneyard data show` and `tuneyard init` in this process: what they print, write, ask and refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import strangers_data

from tuneyard import local
from tuneyard.cli.output import one_line
from tuneyard_pipelines import calibration
from tuneyard_pipelines.cost import Speed
from tuneyard_pipelines.errors import TuneyardError
from tuneyard_pipelines.spec import SweepSpec, load

Cli = Callable[..., SimpleNamespace]
SHOWN = """\
version: 1
name: shown
task: translation
data: {source: builtin/dates, examples: 200, tokenizer: {type: char}}
model: {sequence_length: [16, 48]}
training: {max_steps: 5}
search: {algorithm: grid}
"""


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measured machine: a real measurement takes seconds, and has its own tests."""
    monkeypatch.setattr(calibration, "measure", lambda *_, **__: Speed(((10**6, 10.0**10),), "a machine"))


def test_a_spec_is_shown_with_splits_findings_examples_and_lengths(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "shown.yaml").write_text(SHOWN)
    shown = cli("data", "show", "shown.yaml")
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[0].split() == ["source", "builtin/dates"]
    assert "200 pairs (180 train, 10 validation, 10 test)" in lines[2]
    assert "nothing wrong was found" in lines
    assert [line for line in lines if line.startswith("first of")] == [
        "first of train",
        "first of validation",
        "first of test",
    ]
    head = next(place for place, line in enumerate(lines) if line.startswith("sequence_length"))
    assert lines[head].split("  ")[1].strip() == "left out of train"
    assert [line.split()[0] for line in lines[head + 1 :]] == ["16", "48"]
    plain = json.loads(cli("data", "show", "shown.yaml", "--json").out)
    assert plain["examples"] == {"train": 180, "validation": 10, "test": 10}
    assert [fit["sequence_length"] for fit in plain["tokenizers"][0]["fits"]] == [16, 48]
    assert list(plain["first_examples"]["train"][0]) == ["source", "target"]
    more = json.loads(cli("data", "show", "shown.yaml", "--set", "data.examples=300", "--json").out)
    assert sum(more["examples"].values()) == 300


def test_a_file_is_shown_as_a_spec_would_use_it_and_no_spec_is_written(cli: Cli, tmp_path: Path) -> None:
    strangers_data.write_poems(tmp_path / "poems.jsonl")
    shown = cli("data", "show", "poems.jsonl")
    assert "language_modeling" in shown.out
    assert "longer in train" in shown.out
    assert not list(tmp_path.glob("*.yaml"))
    overridden = cli("data", "show", "poems.jsonl", "--set", "model.sequence_length=[8]", "--json")
    assert [one["fits"][0]["sequence_length"] for one in json.loads(overridden.out)["tokenizers"]] == [8]


def test_what_is_wrong_with_a_file_is_shown_in_a_table(cli: Cli, tmp_path: Path) -> None:
    path = strangers_data.write_pairs(tmp_path / "a.tsv")
    more = ("one\ttwo\tthree", "a \x1b[31mred\x1b[0m word\tein rotes Wort", "شكرا جزيلا\tvielen Dank")
    path.write_text(path.read_text() + "".join(f"{line}\n" for line in more))
    out = cli("data", "show", "a.tsv").out
    assert "rows with more or fewer columns" in out
    assert "left out" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines\tand \x1b[31m", "two\\nlines\\tand \\x1b[31m"),
        ("\u202eevil", "\\u202eevil"),
        ("שלום", "\u2068שלום\u2069"),
        ("می\u200cخواهم", "\u2068می\u200cخواهم\u2069"),
        ("x" * 9, "xxxx…"),
        ("ไทย", "ไทย"),
    ],
)
def test_a_text_on_a_terminal_steers_nothing(text: str, shown: str) -> None:
    assert one_line(text, 5 if text.startswith("xxx") else None) == shown


def test_built_in_data_is_shown_by_its_name(cli: Cli, tmp_path: Path) -> None:
    out = cli("data", "show", "builtin/reverse", "--set", "data.examples=200").out
    assert "builtin/reverse" in out
    wrong = cli("data", "show", "builtin/dates", "--task", "language_modeling")
    assert (wrong.code, wrong.err) == (
        2,
        "error: --task language_modeling: builtin/dates is nothing that this task takes; leave the option out\n",
    )


@pytest.mark.parametrize("name", list(strangers_data.FOUR))
def test_init_writes_a_spec_that_is_accepted(cli: Cli, tmp_path: Path, name: str) -> None:
    strangers_data.FOUR[name](tmp_path / name)
    done = cli("init", name, "--yes")
    assert (done.code, done.out.splitlines()[0].split()) == (0, ["written", f"{Path(name).stem}.yaml"])
    spec = load(tmp_path / f"{Path(name).stem}.yaml")
    assert Path(spec.data.source) == tmp_path / name
    planned = local.plan_sweep(spec, home=tmp_path / ".tuneyard")
    assert planned.training_s is not None
    assert planned.training_s <= 500
    assert not list(tmp_path.glob(".*.partial"))


def test_init_overwrites_only_by_force_and_writes_where_it_is_told(cli: Cli, tmp_path: Path) -> None:
    strangers_data.write_pairs(tmp_path / "a.tsv")
    (tmp_path / "a.yaml").write_text("mine")
    refused = cli("init", "a.tsv", "--yes")
    assert (refused.code, refused.err) == (
        2,
        "error: a.yaml: is there already; write over it with --force, or name another place with --out\n",
    )
    assert (tmp_path / "a.yaml").read_text() == "mine"
    (tmp_path / "specs").mkdir()
    assert cli("init", "a.tsv", "--yes", "--out", "specs/b.yaml").code == 0
    assert "source: ../a.tsv" in (tmp_path / "specs" / "b.yaml").read_text()
    assert load(tmp_path / "specs" / "b.yaml").name == "b"
    assert cli("init", "a.tsv", "--yes", "--force").code == 0
    lost = cli("init", "a.tsv", "--yes", "--out", "nowhere/c.yaml")
    assert lost.code == 2
    assert lost.err == "error: nowhere/c.yaml: its folder is not there; make it, or name another place with --out\n"


def test_init_asks_what_it_cannot_see_where_someone_can_answer(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = strangers_data.write_pairs(tmp_path / "a.tsv").read_text().splitlines()
    three = [(*row.split("\t"), row[::-1].split("\t")[0]) for row in rows]
    (tmp_path / "b.csv").write_text("".join(",".join(row) + "\n" for row in three))
    assert load_of(cli("init", "b.csv"), tmp_path).task == "translation"  # nobody is there: the defaults
    asked = cli_at_terminal(cli, monkeypatch, "init", "b.csv", "--force", stdin="9\n3\n")
    assert "This can be read in several ways" in asked.out
    spec = load_of(asked, tmp_path)
    assert spec.task == "language_modeling"
    quiet = cli_at_terminal(cli, monkeypatch, "init", "b.csv", "--force", "--yes", stdin="")
    assert "several ways" not in quiet.out


def load_of(done: SimpleNamespace, folder: Path) -> SweepSpec:
    assert done.code == 0, done.err
    return load(folder / "b.yaml")


def cli_at_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch, *words: str, stdin: str) -> SimpleNamespace:
    monkeypatch.setattr("tuneyard.cli.init._someone_is_there", lambda: True)
    return cli(*words, stdin=stdin)


def test_init_says_what_cannot_be_used(cli: Cli, tmp_path: Path) -> None:
    strangers_data.write_pairs(tmp_path / "few.tsv", 7)
    done = cli("init", "few.tsv", "--yes")
    assert done.code == 2
    assert "few.tsv: 7 pairs" in done.err
    assert not (tmp_path / "few.yaml").exists()
    assert "no such file" in cli("init", "missing.csv").err
    strangers_data.write_novel(tmp_path / "a.txt", chapters=1)
    assert "no column of text for translation" in cli("init", "a.txt", "--task", "translation").err


def test_init_on_a_machine_that_cannot_be_measured_writes_a_spec_all_the_same(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> Speed:
        raise TuneyardError("no")

    monkeypatch.setattr(calibration, "measure", fails)
    strangers_data.write_pairs(tmp_path / "a.tsv")
    assert cli("init", "a.tsv", "--yes").code == 0
    assert load(tmp_path / "a.yaml").search.trials


def test_a_plan_shows_how_the_data_fits(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise TuneyardError("no time for it")

    monkeypatch.setattr(calibration, "measure", fails)
    (tmp_path / "shown.yaml").write_text(SHOWN)
    before = cli("sweep", "plan", "shown.yaml")
    assert "data       builtin/dates: ~ from the first 200 pairs" in before.out
    assert "\n           length 16: ~" in before.out
    assert before.out.count("tokens a batch\n") == 2
    assert "\n           target: ~10 to 10 tokens █, median 10, 99 % up to 10\n" in before.out
    cli("data", "show", "shown.yaml")
    after = json.loads(cli("sweep", "plan", "shown.yaml", "--json").out)["data"]
    assert (after["approximate"], after["examples"]["train"]) == (False, 180)
    assert after["tokenizers"][0]["unknown_share"] is not None
