"""`tuneyard model`: what a real registry shows, what predicts, and that a read of nothing makes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from driven_sweep import DrivenSweep
from torch import nn

from tuneyard import local, registry
from tuneyard.cli import model as model_cli
from tuneyard.cli import output
from tuneyard_pipelines import package, tracking
from tuneyard_pipelines.answers import Answer, Candidate, Step, Token
from tuneyard_pipelines.build import build_network
from tuneyard_pipelines.catalog import TASK_DATA
from tuneyard_pipelines.data import TextTokenizer
from tuneyard_pipelines.errors import InputError
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.journal import WinnerScored
from tuneyard_pipelines.package import TextModel
from tuneyard_pipelines.spec import Tokenizer, parse

Cli = Callable[..., SimpleNamespace]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database with two versions of `dates`: 1 is the champion and scored zero, 2 is the candidate."""
    folder = tmp_path_factory.mktemp("registry")
    client = tracking.connect(uri := f"sqlite:///{folder / 'mlflow.db'}")
    client.create_registered_model("dates")
    for score in ("0.0", "0.9"):
        tags = {"tuneyard.metric": "val/exact_match", "tuneyard.score": score, "team": "nlp"}
        client.create_model_version("dates", f"file:{folder}", description="of sweep 5eed0001", tags=tags)
    client.set_registered_model_alias("dates", "champion", "1")
    client.set_registered_model_alias("dates", "candidate", "2")
    return uri


def test_the_list_has_every_version_newest_first(cli: Cli, uri: str) -> None:
    done = cli("model", "list", "--mlflow", uri)
    head, *rows = [text.split()[:5] for text in done.out.splitlines()]
    assert head == ["model", "version", "aliases", "metric", "score"]
    assert rows == [
        ["dates", "2", "candidate", "val/exact_match", "0.9"],
        ["dates", "1", "champion", "val/exact_match", "0.0"],
    ]
    listed = json.loads(cli("model", "list", "--mlflow", uri, "--json").out)
    assert [(v["version"], v["aliases"], v["tags"]["score"]) for v in listed] == [
        (2, ["candidate"], "0.9"),
        (1, ["champion"], "0.0"),
    ]


@pytest.mark.parametrize(("model", "version"), [("dates", 2), ("dates@champion", 1), ("dates/1", 1)])
def test_a_model_is_shown_by_name_alias_or_version(cli: Cli, uri: str, model: str, version: int) -> None:
    shown = cli("model", "show", model, "--mlflow", uri).out
    assert f"dates/{version}\n" in shown
    assert "of sweep 5eed0001" in shown
    assert json.loads(cli("model", "show", model, "--mlflow", uri, "--json").out)["version"] == version


def test_a_model_that_can_be_used_here_says_how(cli: Cli, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tracking.connect(uri).create_model_version("dates", "file:/x", tags={"tuneyard.digest": "d"})
    model = f"dates/{made.version}"
    plain = f"next        tuneyard model predict {model} TEXT"
    assert cli("model", "show", model, "--mlflow", uri).out.splitlines()[-1] == f"{plain} --mlflow {uri}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert cli("model", "show", model).out.splitlines()[-1] == plain
    assert "next" not in cli("model", "show", "dates/1").out
    tracking.connect(uri).delete_model_version("dates", made.version)


def test_a_version_that_is_not_there_is_told_with_what_is(cli: Cli, uri: str) -> None:
    done = cli("model", "show", "dates/7", "--mlflow", uri)
    assert (done.code, done.err) == (
        2,
        "error: dates/7: dates has no version 7; versions: 2, 1; aliases: candidate, champion\n",
    )


@pytest.mark.parametrize("command", ["show", "predict", "inspect"])
def test_what_may_stand_for_a_model_is_in_the_help(cli: Cli, command: str) -> None:
    said = " ".join(cli("model", command, "--help").out.split())
    assert "NAME (its candidate), NAME@ALIAS" in said
    assert "NAME/VERSION" in said
    assert ("sweep:ID/TRIAL" in said) == (command != "show")


def test_a_read_of_a_database_that_is_not_there_makes_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "connect", lambda uri: pytest.fail("MLflow would make its database"))
    place = f"no registered models in sqlite:///{tmp_path / '.tuneyard' / 'mlflow.db'}; a sweep with `register: "
    listed = cli("model", "list")
    assert (listed.code, listed.out.startswith(place)) == (0, True)
    assert cli("model", "list", "--json").out == "[]\n"
    for words in (["show", "dates"], ["predict", "dates", "text"]):
        refused = cli("model", *words)
        assert refused.code == 2
        assert refused.err.startswith(f"error: dates: {place}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("uri", "there"),
    [
        ("sqlite:///absent.db", False),
        ("sqlite+pysqlite:///absent.db?timeout=5", False),
        ("sqlite:////", True),
        ("http://localhost:5000", True),
        ("postgresql://localhost/mlflow", True),
    ],
)
def test_only_an_sqlite_file_can_be_missing(uri: str, there: bool) -> None:
    assert registry.exists(uri) is there


class Upper:
    def decode(self, texts: list[str], *, steps: bool) -> list[Answer]:
        return [Answer(text, (Candidate(text.upper(), -0.5),), 0, ()) for text in texts]


@pytest.fixture
def upper(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every model writes in capitals; gives the names that were asked for."""
    asked: list[str] = []

    def load(name: str, *, mlflow: str | None = None) -> Upper:
        asked.append(name)
        return Upper()

    monkeypatch.setattr(local, "load_model", load)
    return asked


def test_predictions_of_stdin_are_a_line_each_and_of_texts_beside_them(cli: Cli, upper: list[str]) -> None:
    assert cli("model", "predict", "dates@champion", stdin="à\r\n\nb c\n").out == "À\n\nB C\n"
    assert cli("model", "predict", "dates", "à", "b").out == "à\tÀ\nb\tB\n"
    answer = cli("model", "predict", "dates", "--json", stdin="à\n").out
    assert "À" in answer
    candidates = [{"text": "À", "score": -0.5}]
    assert json.loads(answer) == [{"text": "à", "prediction": "À", "candidates": candidates, "cut": 0}]
    assert upper == ["dates@champion", "dates", "dates"]


def test_text_that_is_not_utf_8_is_refused_with_its_place(cli: Cli, upper: list[str]) -> None:
    done = cli("model", "predict", "dates", stdin="gut\nsp\xe4t\n".encode("latin-1"))
    assert done.code == 2
    assert done.err.startswith("error: stdin: not UTF-8 ('utf-8' codec can't decode byte 0xe4 in position 6")
    assert done.err.endswith("convert it first, for example with iconv\n")
    done = cli("model", "predict", "dates", "gut", b"sp\xe4t".decode("utf-8", "surrogateescape"))
    assert (done.code, done.err) == (
        2,
        "error: model predict: TEXT 'sp\\udce4t' is not UTF-8; convert it first, for example with iconv\n",
    )
    assert upper == []


@pytest.fixture
def cutting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Puts a model with tokenizers of these settings in every place; gives the names that were asked for."""

    def put(task: str = "translation", **settings: str) -> list[str]:
        asked: list[str] = []
        known = {"source": ["12 мая", "שלום a\u202e\n"], "target": ["12 may"], "text": ["a b"]}
        config = Tokenizer(**settings)  # type: ignore[arg-type]
        columns = TASK_DATA[task].columns
        made = {column: TextTokenizer.train(known[column], config) for column in columns}
        if config.vocabulary == "joint":
            made = dict.fromkeys(columns, made[columns[0]])
        model = TextModel(nn.Linear(1, 1), made, None)  # type: ignore[arg-type]

        def load(name: str, *, mlflow: str | None = None) -> TextModel:
            asked.append(name)
            return model

        monkeypatch.setattr(local, "load_model", load)
        return asked

    return put


def test_the_tokens_of_a_text_are_told_with_their_bytes(cli: Cli, cutting: Callable[..., list[str]]) -> None:
    asked = cutting(type="word")
    assert cli("model", "inspect", "sweep:5eed/t002", "tokens", "12 мая x").out.splitlines() == [
        "piece  id  bytes                 unknown",
        "␣12    5   20 31 32",
        "␣мая   7   20 d0 bc d0 b0 d1 8f",
        "␣x     3   20 78                 yes",
    ]
    answer = cli("model", "inspect", "dates@champion", "tokens", "12 x", "--json").out
    assert json.loads(answer) == [
        {"piece": " 12", "id": 5, "bytes": "203132", "unknown": False},
        {"piece": " x", "id": 3, "bytes": "2078", "unknown": True},
    ]
    assert asked == ["sweep:5eed/t002", "dates@champion"]


def test_each_side_is_cut_by_its_own_tokenizer(cli: Cli, cutting: Callable[..., list[str]]) -> None:
    cutting(type="char", vocabulary="separate")
    unknown = {
        side: [
            one["unknown"] for one in json.loads(cli("model", "inspect", "dates", "tokens", "1y", *side, "--json").out)
        ]
        for side in ((), ("--side", "source"), ("--side", "target"))
    }
    assert unknown == {(): [False, True], ("--side", "source"): [False, True], ("--side", "target"): [False, False]}
    done = cli("model", "inspect", "dates", "tokens", "1", "--side", "middle")
    assert (done.code, done.err) == (2, "error: --side middle: one of source, target\n")
    cutting("language_modeling", type="char")
    done = cli("model", "inspect", "dates", "tokens", "1", "--side", "source")
    assert (done.code, done.err) == (2, "error: --side source: a language model has one: leave it out\n")


def test_no_text_garbles_the_table_of_its_tokens(cli: Cli, cutting: Callable[..., list[str]]) -> None:
    cutting(type="char")
    out = cli("model", "inspect", "dates", "tokens", "a\u202e\n ש\u0301大\x1b").out
    assert [line.split()[0] for line in out.splitlines()[1:]] == [
        "a",
        "\\u202e",
        "\\n",
        "␣",
        "\u2068ש\u2069",
        "◌\u0301",
        "大",
        "\\x1b",
    ]
    assert set(out) & {"\u202e", "\x1b", "\t", "\r"} == set()
    columns = [re.match(r"\S+ +", line) for line in out.splitlines()]
    assert {output._width(column[0]) for column in columns if column} == {len("\\u202e") + 2}


def test_bytes_that_are_no_character_by_themselves(cli: Cli, cutting: Callable[..., list[str]]) -> None:
    cutting(type="byte")
    rows = [line.split() for line in cli("model", "inspect", "dates", "tokens", "é").out.splitlines()]
    assert rows == [["piece", "id", "bytes", "unknown"], ["\ufffd", "199", "c3"], ["\ufffd", "173", "a9"]]
    refused = cli("model", "inspect", "dates", "tokens", b"\xe4".decode("utf-8", "surrogateescape"))
    assert (refused.code, refused.err.startswith("error: model inspect: TEXT '\\udce4' is not UTF-8")) == (2, True)


def test_only_line_ends_part_the_lines_of_stdin(cli: Cli, upper: list[str]) -> None:
    assert cli("model", "predict", "dates", stdin="a\u2028b\x0cc\nd").out == "A\u2028B\x0cC\nD\n"
    assert cli("model", "predict", "dates", stdin="").out == ""


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TextModel]:
    """Puts an untrained model with characters for tokens in every place."""

    def put(task: str = "translation") -> TextModel:
        written = {
            "name": "a",
            "task": task,
            "data": {"source": {"translation": "builtin/dates", "language_modeling": "builtin/stdlib"}[task]},
            "model": {"d_model": 16, "num_heads": 2, "num_layers": 1, "sequence_length": 16},
            "training": {"max_steps": 1},
            "search": {"trials": 1},
        }
        config = parse(json.dumps(written), file="spec.yaml").at({})
        tokenizer = TextTokenizer.train(["12 мая 清华大学 \n"], Tokenizer(type="char"))
        torch.manual_seed(1)
        network = build_network(config, VocabSizes(tokenizer.vocab_size)).eval()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.normal_(std=0.3)
        model = TextModel(network, dict.fromkeys(TASK_DATA[task].columns, tokenizer), config)
        monkeypatch.setattr(local, "load_model", lambda name, *, mlflow=None: model)
        return model

    return put


def test_candidates_stand_under_their_text_best_first(cli: Cli, reading: Callable[..., TextModel]) -> None:
    answers = reading().decode(["12 мая", "大"], beam=4, n_best=3)
    done = cli("model", "predict", "dates", "12 мая", "大", "--beam", "4", "--n-best", "3")
    expected = [
        "\n".join(
            [
                answer.text,
                *(
                    f"  {place}  {one.score:>8.3f}  {one.text.replace(chr(10), chr(92) + 'n')}".rstrip()
                    for place, one in enumerate(answer.candidates, 1)
                ),
            ]
        )
        for answer in answers
    ]
    assert (done.out, done.err) == ("\n\n".join(expected) + "\n", "")
    told = json.loads(cli("model", "predict", "dates", "12 мая", "--beam", "4", "--n-best", "3", "--json").out)
    assert [(one["text"], one["score"]) for one in told[0]["candidates"]] == [
        (one.text, pytest.approx(one.score)) for one in answers[0].candidates
    ]
    assert told[0]["prediction"] == answers[0].candidates[0].text


@pytest.mark.parametrize("task", ["translation", "language_modeling"])
def test_steps_fit_a_terminal_and_are_exact_in_json(cli: Cli, reading: Callable[..., TextModel], task: str) -> None:
    (answer,) = reading(task).decode(["12 мая"], steps=True, max_new_tokens=6, temperature=1.0, seed=3)
    asked = ("12 мая", "--steps", "--max-new-tokens", "6", "--temperature", "1", "--seed", "3")
    lines = cli("model", "predict", "dates", *asked).out.splitlines()
    assert lines[0] == "12 мая"
    assert lines[1].split()[:2] == ["1", f"{answer.candidates[0].score:.3f}"]
    assert lines[2].split() == ["step", "token", "p", "likeliest"]
    for number, (line, step) in enumerate(zip(lines[3:], answer.candidates[0].steps, strict=True), start=1):
        shown = [f"{output.visible(token.text)} {model_cli._percent(token.probability)}" for token in step.likeliest]
        taken = [output.visible(step.taken.text), model_cli._percent(step.taken.probability)]
        assert line.split() == [str(number), *taken, *" ".join(shown).split()]
    (told,) = json.loads(cli("model", "predict", "dates", *asked, "--json").out)
    assert [step["token"] for step in told["candidates"][0]["steps"]] == [
        step.taken.text for step in answer.candidates[0].steps
    ]
    assert told["candidates"][0]["steps"][0]["likeliest"][0].keys() == {"token", "id", "probability"}


def test_no_token_is_too_long_for_the_table_of_steps(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("Donaudampfschifffahrtsgesellschaft", "清华大学清华大学", "ab", "\u202e\n" * 20):
        token = Token(text, 7, 0.123456)
        model_cli._show_steps([Step(token, (token,) * 5)] * 3)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 4
        assert max(map(output._width, lines)) <= 80
        assert ("…" in lines[1]) == (text != "ab")
    assert [model_cli._percent(share) for share in (1.0, 0.995, 0.0995, 0.0994, 0.0004, 0.0)] == [
        "100%",
        "100%",
        "10%",
        "9.9%",
        "0.0%",
        "0.0%",
    ]


def test_what_is_amiss_with_texts_is_told_beside_the_answers(cli: Cli, reading: Callable[..., TextModel]) -> None:
    reading()
    done = cli("model", "predict", "dates", "--json", stdin="12\n\nxyz\n\n" + "1" * 20 + "\n")
    assert done.err.splitlines() == [
        "warning: text 2 (and 1 more): it is empty: there is nothing to translate",
        "warning: text 3: none of its tokens is known to the model: what it says has nothing to do with it",
        "warning: text 5: it was cut off after 15 tokens, the most that the model reads",
    ]
    assert [told["cut"] for told in json.loads(done.out)] == [0, 0, 0, 0, 5]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--beam", "99"), "beam=99 is larger than the vocabulary: it has "),
        (("--beam", "5", "--temperature", "0.8"), "beam=5 and temperature=0.8 exclude each other: "),
        (("--n-best", "3"), "n_best=3 is more than beam=1: raise beam, or draw with a temperature above 0"),
        (("--top-p", "0.9"), "top_p=0.9 only matters to draws"),
        (("--temperature", "nan"), "temperature=nan must be a finite number"),
    ],
)
def test_options_that_cannot_be_are_answered(
    cli: Cli, reading: Callable[..., TextModel], words: tuple[str, ...], said: str
) -> None:
    reading()
    done = cli("model", "predict", "dates", "12", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {said}")
    assert done.err.count("\n") == 1


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, str | None]]:
    """Which folders were loaded, and the digests that they had to have."""
    calls: list[tuple[Path, str | None]] = []
    monkeypatch.setattr(package, "load", lambda folder, expected=None: calls.append((folder, expected)))
    return calls


def test_the_winner_of_a_sweep_is_held_against_the_digest_in_its_journal(
    make_sweep: Callable[..., DrivenSweep], tmp_path: Path, loaded: list[tuple[Path, str | None]]
) -> None:
    sweep, home = make_sweep(), tmp_path / ".tuneyard"
    sweep.create(1)
    sweep.create(2)
    with pytest.raises(InputError, match=r"sweep:5eed/t002: only the winner .* has: none, for it has no winner yet"):
        local.load_model("sweep:5eed/t002", home=home)
    sweep.journal.append(WinnerScored("t002", {}, "evidence", "digest-of-the-model", 5))
    for trial in ("t001", "", "../t002", "t002/../t002"):
        with pytest.raises(InputError, match=r"only the winner .* has: sweep:5eed0001/t002"):
            local.load_model(f"sweep:5eed/{trial}", home=home)
    for sweep_id in ("..", "../sweeps/5eed0001", "", "beef"):
        with pytest.raises(InputError, match=r"not in .*; there are: 5eed0001|only the winner"):
            local.load_model(f"sweep:{sweep_id}/t002", home=home)
    assert loaded == []
    local.load_model("sweep:5eed/t002", home=home)
    assert loaded == [(sweep.folder.model("t002"), "digest-of-the-model")]
