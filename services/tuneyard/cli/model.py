"""`tuneyard model`: registered models, and what they predict."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tuneyard import settings
from tuneyard.cli.output import Json, Mlflow, ago, table, table_width, visible, when
from tuneyard_pipelines.errors import InputError

if TYPE_CHECKING:
    from tuneyard.local import Answer, Step

app = typer.Typer(help="List, look at and use registered models.", no_args_is_help=True, rich_markup_mode=None)
Registered = Annotated[str, typer.Argument(metavar="MODEL", help="NAME (its candidate), NAME@ALIAS or NAME/VERSION.")]
AnyModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="NAME (its candidate), NAME@ALIAS, NAME/VERSION, or sweep:ID/TRIAL (the winner of a sweep).",
    ),
]


COLUMNS = 80
LONGEST_TOKEN = 16

inspect = typer.Typer(help="Look into a model.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(inspect, name="inspect")


@app.command("list")
def list_(mlflow: Mlflow = None, as_json: Json = False) -> None:
    """All registered models and their versions."""
    from tuneyard import registry
    from tuneyard_pipelines import tracking

    uri = settings.tracking_uri(settings.find_home(), mlflow)
    found = registry.list_models(tracking.connect(uri)) if registry.exists(uri) else []
    if as_json:
        print(json.dumps([version.to_dict() for version in found]))
    elif not found:
        print(registry.nothing_in(uri))
    else:
        rows = [
            (
                v.name,
                str(v.version),
                ", ".join(v.aliases),
                v.tags.get("metric", ""),
                v.tags.get("score", ""),
                ago(v.created_ms),
            )
            for v in found
        ]
        table(("model", "version", "aliases", "metric", "score", "registered"), rows)


@app.command()
def show(model: Registered, mlflow: Mlflow = None, as_json: Json = False) -> None:
    """One version: where it comes from and how it scored."""
    from tuneyard import registry
    from tuneyard.sweeps import predict_command

    home = settings.find_home()
    uri = settings.tracking_uri(home, mlflow)
    version = registry.look_up(uri, model)
    if as_json:
        print(json.dumps(version.to_dict()))
        return
    facts = {
        "model": f"{version.name}/{version.version}",
        "aliases": ", ".join(version.aliases) or "none",
        "what": version.description,
        "registered": when(version.created_ms),
        "run": version.run_id,
        **version.tags,
    }
    if "digest" in version.tags:
        name = f"{version.name}/{version.version}"
        facts["next"] = predict_command(name, None if settings.is_default(home, uri) else uri)
    table(None, list(facts.items()))


@app.command()
def predict(
    model: AnyModel,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Without texts: lines of stdin.")
    ] = None,
    beam: Annotated[int | None, typer.Option(metavar="N", help="Search with N texts at a time; 1 is greedy.")] = None,
    n_best: Annotated[
        int | None, typer.Option("--n-best", metavar="N", help="Show N candidates: the best of the beam, or N draws.")
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(metavar="X", help="A score is log-probability / length ** X, 1 if not given; more favors long."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(metavar="X", help="Draw tokens by chance; below 1 the likely ones more often.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(metavar="K", help="Draw only from the K likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(metavar="P", help="Draw only from the likeliest that together reach P.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(metavar="P", help="Draw only what is at least P times as likely as the likeliest.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of the draws; the same one repeats them.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="The most tokens to write: else 64, or all of a translation.")
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Show each token with its probability, and the five likeliest there.")
    ] = False,
    mlflow: Mlflow = None,
    as_json: Json = False,
) -> None:
    """What the model makes of each text, one line each: a line end in it is shown as \\n; --json is exact.

    It takes the likeliest token each time, unless --beam or --temperature is given.
    """
    given = [_whole(text, "model predict") for text in texts] if texts else _stdin()
    from tuneyard.local import load_model

    asked = {
        "beam": beam,
        "n_best": n_best,
        "length_penalty": length_penalty,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "max_new_tokens": max_new_tokens,
    }
    how = {name: value for name, value in asked.items() if value is not None}
    answers = load_model(model, mlflow=mlflow).decode(given, steps=steps, **how)
    _warn(answers)
    if as_json:
        print(json.dumps([_exact(answer, steps=steps) for answer in answers], ensure_ascii=False))
    elif steps or n_best is not None:
        for number, answer in enumerate(answers):
            print(("\n" if number else "") + _one_line(answer.text))
            for place, candidate in enumerate(answer.candidates, start=1):
                print(f"{place:>3}  {candidate.score:>8.3f}  {_one_line(candidate.text)}".rstrip())
                if steps:
                    _show_steps(candidate.steps)
    else:
        for answer in answers:
            said = _one_line(answer.candidates[0].text)
            print(f"{_one_line(answer.text)}\t{said}" if texts else said)


@inspect.callback()
def _inspected(context: typer.Context, model: AnyModel) -> None:
    context.obj = model


@inspect.command()
def tokens(
    context: typer.Context,
    text: Annotated[str, typer.Argument(metavar="TEXT")],
    side: Annotated[
        str | None, typer.Option(metavar="SIDE", help="source (as it is read) or target, of a translation model.")
    ] = None,
    mlflow: Mlflow = None,
    as_json: Json = False,
) -> None:
    """How the model cuts a text: each piece, its id, its bytes in UTF-8, and whether it is unknown; --json is exact."""
    given = _whole(text, "model inspect")
    from tuneyard.local import load_model

    pieces = load_model(context.obj, mlflow=mlflow).pieces(given, side)
    if as_json:
        found = [{"piece": p.text, "id": p.id, "bytes": p.utf8.hex(), "unknown": p.unknown} for p in pieces]
        print(json.dumps(found, ensure_ascii=False))
        return
    rows = [(visible(p.text), str(p.id), p.utf8.hex(" "), "yes" if p.unknown else "") for p in pieces]
    table(("piece", "id", "bytes", "unknown"), rows)


def _warn(answers: Sequence[Answer]) -> None:
    """On stderr, what is amiss with the texts: the first of each kind, and how many there are."""
    found: dict[str, list[int]] = {}
    for number, answer in enumerate(answers, start=1):
        for note in answer.notes:
            found.setdefault(note, []).append(number)
    for note, numbers in found.items():
        more = f" (and {len(numbers) - 1} more)" if len(numbers) > 1 else ""
        print(f"warning: text {numbers[0]}{more}: {note}", file=sys.stderr)


def _exact(answer: Answer, *, steps: bool) -> dict[str, object]:
    candidates = [
        {
            "text": candidate.text,
            "score": candidate.score,
            **({"steps": [step.to_dict() for step in candidate.steps]} if steps else {}),
        }
        for candidate in answer.candidates
    ]
    return {
        "text": answer.text,
        "prediction": answer.candidates[0].text,
        "candidates": candidates,
        "cut": answer.cut,
    }


def _show_steps(steps: Sequence[Step]) -> None:
    """A line a token; long tokens are cut to what a terminal has room for."""
    head = ("step", "token", "p", "likeliest", *[""] * (max((len(step.likeliest) for step in steps), default=1) - 1))
    rows: list[list[str]] = []
    for longest in range(LONGEST_TOKEN, 1, -1):
        rows = [
            [
                str(number),
                _cut(step.taken.text, longest),
                _percent(step.taken.probability),
                *(f"{_cut(token.text, longest)} {_percent(token.probability)}" for token in step.likeliest),
            ]
            for number, step in enumerate(steps, start=1)
        ]
        if table_width(head, rows) <= COLUMNS:
            break
    table(head, rows)


def _cut(text: str, longest: int) -> str:
    """The text as it is shown, cut to so many columns."""
    shown, kept = visible(text), len(text)
    while table_width([shown], []) > longest:
        kept -= 1
        shown = f"{visible(text[:kept])}…"
    return shown


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.0995 else f"{100 * share:.1f}%"


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r")


def _stdin() -> list[str]:
    if sys.stdin.isatty():
        raise InputError("model predict: no TEXT given and nothing on stdin; give texts, or pipe one a line")
    try:  # not the text stream: it may follow another locale, or let bytes through that are no text
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as cause:
        raise InputError(f"stdin: not UTF-8 ({cause}); convert it first, for example with iconv") from cause
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def _whole(text: str, command: str) -> str:
    """Raises InputError where the shell gave bytes that are not UTF-8: Python keeps those as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as cause:
        raise InputError(f"{command}: TEXT {text!r} is not UTF-8; convert it first, for example with iconv") from cause
    return text
