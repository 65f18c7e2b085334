"""Bad input as a user meets it: one message that names place, value and remedy, the right exit code, nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tiny_sweep import TINY
from waiting import until

pytestmark = pytest.mark.e2e

TUNEYARD = Path(sys.executable).with_name("tuneyard")
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    def call(*arguments: str, text: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [TUNEYARD, *arguments],
            cwd=tmp_path,
            env={**os.environ, **environment},
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )

    (tmp_path / "good.yaml").write_text(yaml.safe_dump(TINY))
    return call


def spec(folder: Path, text: str) -> str:
    (folder / "spec.yaml").write_text(text)
    return "spec.yaml"


def nothing_was_made(folder: Path) -> bool:
    home = folder / ".tuneyard"
    return not (home / "sweeps").exists() and not (home / "mlflow.db").exists()


HEAD = "version: 1\nname: bad\ntask: translation\ndata: {source: builtin/dates}\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(
            "model: {head: [1, 2]}\ntraining: {max_steps: 4}\n", ["spec.yaml:5", "head", "num_heads"], id="key"
        ),
        pytest.param(
            "model: {num_heads: four}\ntraining: {max_steps: 4}\n",
            ["spec.yaml:5", "model.num_heads", "four"],
            id="type",
        ),
        pytest.param(
            "model: {num_heads: []}\ntraining: {max_steps: 4}\n", ["spec.yaml:5", "model.num_heads"], id="empty-range"
        ),
        pytest.param(
            "training: {max_steps: 4}\nregister: {name: [a, b]}\n", ["spec.yaml:6", "register.name"], id="s4-range"
        ),
        pytest.param("training: {max_steps: 4, lr: 0.1}\n", ["spec.yaml:5", "learning_rate"], id="s6-s14-other-word"),
        pytest.param(
            "training: {max_steps: 4}\nsearch: {scheduler: hyperband, trials: 2}\n",
            ["spec.yaml:6", "hyperband", "asha"],
            id="s11-scheduler",
        ),
        pytest.param(
            "model: {d_model: [9, 15], num_heads: [2, 4]}\ntraining: {max_steps: 4}\nsearch: {trials: 2}\n",
            ["num_heads", "no point is feasible"],
            id="s2-no-feasible-point",
        ),
        pytest.param(
            "training: {max_steps: 4, learning_rate: {uniform: [0.001, 0.01]}}\nsearch: {algorithm: grid}\n",
            ["grid", "training.learning_rate"],
            id="s9-grid-over-continuous",
        ),
    ],
)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_spec_that_cannot_run_is_refused_before_anything_is_made(
    cli: Cli, tmp_path: Path, command: str, body: str, said: list[str]
) -> None:
    done = cli("sweep", command, spec(tmp_path, HEAD + body))
    assert done.returncode == 2, done.stdout + done.stderr
    for word in said:
        assert word in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert nothing_was_made(tmp_path)


def test_a_missing_spec_is_named(cli: Cli, tmp_path: Path) -> None:
    done = cli("sweep", "run", "absent.yaml")
    assert done.returncode == 2
    assert "absent.yaml" in done.stderr
    assert nothing_was_made(tmp_path)


def test_a_missing_data_file_is_named_with_its_line(cli: Cli, tmp_path: Path) -> None:
    text = "version: 1\nname: bad\ntask: translation\ndata:\n  source: absent.tsv\ntraining: {max_steps: 4}\n"
    done = cli("sweep", "run", spec(tmp_path, text))
    assert done.returncode == 2
    assert "spec.yaml:5" in done.stderr
    assert "absent.tsv" in done.stderr
    assert nothing_was_made(tmp_path)


def test_an_empty_split_is_refused_with_its_counts(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("one\teins\n")
    text = "version: 1\nname: bad\ntask: translation\ndata: {source: pairs.tsv}\ntraining: {max_steps: 4}\n"
    done = cli("sweep", "run", spec(tmp_path, text))
    assert done.returncode == 2
    assert "pairs.tsv" in done.stderr
    assert "validation" in done.stderr
    assert nothing_was_made(tmp_path)


def test_s8_more_gpus_than_exist_are_refused_at_once_with_what_exists(cli: Cli, tmp_path: Path) -> None:
    asked = ("--set", "resources.workers=8", "--set", "resources.gpus_per_worker=1")
    done = cli("sweep", "run", "good.yaml", *asked)
    assert done.returncode == 2, done.stderr
    assert "8 workers with 1 CPU, 1 GPU" in done.stderr
    assert "0 GPU" in done.stderr
    assert not (tmp_path / ".tuneyard" / "sweeps").exists()


def test_a_home_that_cannot_be_written_is_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = cli("sweep", "run", "good.yaml", TUNEYARD_HOME=str(tmp_path / "file" / "home"))
    assert done.returncode == 2
    assert str(tmp_path / "file" / "home") in done.stderr
    assert "TUNEYARD_HOME" in done.stderr


def test_a_tracking_server_that_does_not_answer_is_exit_3(cli: Cli, tmp_path: Path) -> None:
    done = cli("sweep", "run", "good.yaml", "--mlflow", "http://127.0.0.1:9")
    assert done.returncode == 3, done.stderr
    assert "http://127.0.0.1:9" in done.stderr
    assert "--mlflow" in done.stderr
    assert not (tmp_path / ".tuneyard" / "sweeps").exists()


def test_ctrl_c_before_the_sweep_is_accepted_leaves_nothing(cli: Cli, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [TUNEYARD, "sweep", "run", "good.yaml"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until((tmp_path / ".tuneyard").exists)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert errors.endswith("interrupted; nothing was made\n")
    assert "Traceback" not in errors
    assert not (tmp_path / ".tuneyard" / "sweeps").exists()


def test_what_is_not_there_is_said_with_what_is(cli: Cli) -> None:
    listed = cli("sweep", "list")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert ".tuneyard/sweeps" in listed.stdout, "an empty list says where it looked"
    shown = cli("sweep", "show", "abc")
    assert shown.returncode == 2
    assert "'abc'" in shown.stderr
    predicted = cli("model", "predict", "nobody@candidate", "text")
    assert predicted.returncode == 2
    assert "nobody" in predicted.stderr
    assert "Traceback" not in predicted.stderr


def test_the_schema_and_the_plan_are_printed_without_making_anything(cli: Cli, tmp_path: Path) -> None:
    schema = cli("sweep", "schema")
    assert json.loads(schema.stdout)["$schema"].startswith("https://json-schema.org/draft/2020-12")
    planned = cli("sweep", "plan", "good.yaml", "--no-calibrate", "--json")
    assert planned.returncode == 0
    assert json.loads(planned.stdout)["trials"] == 4
    assert not (tmp_path / ".tuneyard").exists()
