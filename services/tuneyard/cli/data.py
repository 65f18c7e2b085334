"""`tuneyard data`: what is in a source, what is wrong with it, and what tokenizers and lengths make of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuneyard.cli.output import Json, Set, Task, one_line, reporting, table
from tuneyard.cli.service import find_client, the_client
from tuneyard_pipelines.data_facts import Lengths, TokenizerFacts, size
from tuneyard_pipelines.errors import InputError

if TYPE_CHECKING:
    from tuneyard.local import DataView
    from tuneyard_pipelines.data_facts import DataFacts

app = typer.Typer(help="Look at data before training on it.", no_args_is_help=True, rich_markup_mode=None)
BAR = 40
SHOWN_CHARACTERS = 160


@app.command()
def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A data file on this machine.")], as_json: Json = False
) -> None:
    """Send a file to the service, which keeps it once; prints the path by which a spec may name it."""
    if not file.is_file():
        raise InputError(f"{file}: there is no such file; name one data file")
    kept = the_client().upload(file)
    print(json.dumps(asdict(kept)) if as_json else kept.path)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """The built-in data, and the files that the service keeps."""
    from tuneyard_pipelines.catalog import BUILTIN_DATA

    client = find_client()
    kept = client.uploads() if client else []
    if as_json:
        print(json.dumps({"builtin": list(BUILTIN_DATA), "kept": [asdict(one) for one in kept]}))
        return
    for name in BUILTIN_DATA:
        print(name)
    if kept:
        print()
        table(("file", "size", "path"), [(one.name, size(one.received_bytes), one.path or "") for one in kept])


@app.command()
def show(
    source: Annotated[
        str,
        typer.Argument(metavar="NAME|FILE|SPEC", help="builtin/NAME, a data file or pattern, or a sweep's YAML file."),
    ],
    task: Task = None,
    overrides: Set = [],  # noqa: B006  (typer reads the default)
    as_json: Json = False,
) -> None:
    """Examples, splits, what is wrong with them, tokens, lengths, padding; of a file, as `init` would use it."""
    from tuneyard.local import find_data, show_data

    spec = find_data(source, task=task, overrides=overrides)
    with reporting() as progress:
        view = show_data(spec, progress=progress)
    if as_json:
        print(json.dumps(view.to_dict(), ensure_ascii=False))
        return
    _print(view)


def _print(view: DataView) -> None:
    facts = view.facts
    table(None, [("source", facts.source), ("task", facts.task), ("examples", facts.size)])
    print()
    rows = [(name, f"{count:,}", size(facts.text_bytes.get(name, 0))) for name, count in facts.examples.items()]
    table(("split", facts.unit, "text"), rows)
    print()
    if view.findings:
        found = [(one.what, one.fate, f"{one.count:,}", one_line(one.first)) for one in view.findings]
        table(("found", "what became of it", "count", "first"), found)
    else:
        print("nothing wrong was found")
    for name, examples in view.examples.items():
        print(f"\nfirst of {name}")
        for example in examples:
            for place, (column, text) in enumerate(example.items()):
                mark = "-" if place == 0 else " "
                # The text stands last: what runs from right to left, or is wide, moves no column.
                print(f"  {mark} {f'{column}  ' if len(example) > 1 else ''}{one_line(text, SHOWN_CHARACTERS)}")
    for one in facts.tokenizers:
        print()
        _tokenizer(one, facts)
    if facts.tokenizers_omitted:
        print(f"\nand {facts.tokenizers_omitted} more tokenizers; a spec with fewer shows each")


def _tokenizer(one: TokenizerFacts, facts: DataFacts) -> None:
    unknown = "" if one.unknown_share is None else f"{one.unknown_share:.3%} of validation's tokens"
    table(
        None,
        [
            ("tokenizer", f"{one.name}, {_ids(one)} ids"),
            ("unknown", unknown),
            ("tokens", f"{one.tokens_per_example:,.1f} a {facts.unit[:-1]}, {one.bytes_per_token:.2f} bytes each"),
        ],
    )
    for column, lengths in one.lengths.items():
        print(
            f"\n{one.name}: tokens of a {column} in train: {lengths.shortest:,} to {lengths.longest:,}, "
            f"median {lengths.median:,.0f}, 99 % up to {lengths.p99:,.0f}"
        )
        _bars(lengths)
    over = ("left out of train", "cut in validation")
    if facts.unit == "documents":
        over = ("longer in train", "longer in validation")
    print()
    table(
        ("sequence_length", *over, "padding", "tokens a batch", "batches a pass"),
        [
            (
                f"{fit.sequence_length:,}",
                f"{fit.too_long:.2%}",
                f"{fit.cut:.2%}",
                f"{fit.padding:.1%}",
                f"{fit.batch_tokens:,.0f}",
                f"{fit.batches:,}",
            )
            for fit in one.fits
        ],
    )


def _ids(one: TokenizerFacts) -> str:
    if len(set(one.vocab_size.values())) == 1:
        return f"{next(iter(one.vocab_size.values())):,}"
    return ", ".join(f"{count:,} {column}" for column, count in one.vocab_size.items())


def _bars(lengths: Lengths) -> None:
    most = max((bucket.count for bucket in lengths.buckets), default=0)
    table(
        None,
        [
            (
                f"  {bucket.low:,}" + (f"-{bucket.high:,}" if bucket.high > bucket.low else ""),
                f"{bucket.count:,}",
                "#" * round(BAR * bucket.count / most) or ("." if bucket.count else ""),
            )
            for bucket in lengths.buckets
        ],
    )
