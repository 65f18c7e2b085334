"""`tuneyard model`: registered models, and what they predict."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from tuneyard import settings
from tuneyard.cli.output import Json, Mlflow, table, visible, when
from tuneyard_pipelines.errors import InputError

app = typer.Typer(help="List, look at and use registered models.", no_args_is_help=True, rich_markup_mode=None)
Registered = Annotated[str, typer.Argument(metavar="MODEL", help="NAME (its candidate), NAME@ALIAS or NAME/VERSION.")]
AnyModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="NAME (its candidate), NAME@ALIAS, NAME/VERSION, or sweep:ID/TRIAL (the winner of a sweep).",
    ),
]


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
                when(v.created_ms),
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
    mlflow: Mlflow = None,
    as_json: Json = False,
) -> None:
    """What the model makes of each text, one line each: a line end in it is shown as \\n; --json is exact."""
    given = [_whole(text, "model predict") for text in texts] if texts else _stdin()
    from tuneyard.local import load_model

    predictions = load_model(model, mlflow=mlflow).predict(given)
    if as_json:
        print(
            json.dumps(
                [{"text": a, "prediction": b} for a, b in zip(given, predictions, strict=True)], ensure_ascii=False
            )
        )
    else:
        for text, prediction in zip(given, predictions, strict=True):
            print(f"{_one_line(text)}\t{_one_line(prediction)}" if texts else _one_line(prediction))


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
