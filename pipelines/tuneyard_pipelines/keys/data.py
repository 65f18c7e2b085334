"""The keys of data: where texts come from, how they are read and split."""

from __future__ import annotations

import codecs
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema

from tuneyard_pipelines.catalog import BUILTIN_DATA, DATA_FILES, NUMBER_LANGUAGES, is_data_file, is_data_set
from tuneyard_pipelines.keys.declared import Text, Whole, clean, key, section
from tuneyard_pipelines.keys.point import TOKENIZER
from tuneyard_pipelines.sections import Part, Says, refusal
from tuneyard_pipelines.spec_yaml import shown_value


def _column(value: Any) -> str | int:
    named = isinstance(value, str) and value != ""
    numbered = type(value) is int and value >= 1
    if not named and not numbered:
        raise ValueError
    column: str | int = value
    return column


def _source(value: str) -> str:
    if value.startswith("builtin/") and value not in BUILTIN_DATA:
        raise refusal(f"no built-in data {shown_value(value)}; there is {', '.join(BUILTIN_DATA)}")
    if not value.startswith("builtin/") and not is_data_set(value) and not is_data_file(value, DATA_FILES):
        raise ValueError
    return clean(value)


Column = Annotated[
    str | int,
    PlainValidator(_column),
    WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer", "minimum": 1}]}),
    Says("a column's name (with header: true), its number, counted from 1, or a key of a .jsonl file"),
]


class Columns(Part):
    """Which columns of a file hold the texts: source and target for translation, text for other tasks."""

    source: Column | None = key(None, "Column of the text to translate.", examples=[1])
    target: Column | None = key(None, "Column of its translation.", examples=[2])
    text: Column | None = key(None, "Column of the documents of other tasks.", examples=["text"])


def _held_back(value: Any) -> float | int | str:
    held: float | int | str = value
    if isinstance(value, str) and value and is_data_file(value, DATA_FILES):
        return clean(value)
    if type(value) is int and 1 <= value <= 10**9:
        return held
    if type(value) is float and 0 < value < 0.5:
        return held
    raise ValueError


HeldBack = Annotated[
    float | int | str,
    PlainValidator(_held_back),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5},
                {"type": "integer", "minimum": 1, "maximum": 10**9},
                {"type": "string", "minLength": 1},
            ]
        }
    ),
    Says("a share above 0 and below 0.5, a number of examples, or the path of a file"),
]


def _group_by(value: Any) -> str | tuple[str | int, ...]:
    if value in ("text", "example"):
        return str(value)
    if not isinstance(value, list | tuple) or not value or len(value) > 5:
        raise ValueError
    return tuple(_column(column) for column in value)


class Split(Part):
    """What is held back: shares (of the pairs, or of the documents' bytes), numbers of examples, or given files."""

    validation: HeldBack = key(0.05, "For choosing among trials: a share, a number of examples, or a file of its own.")
    test: HeldBack = key(0.05, "For the final score: a share, a number of examples, or a file of its own.")
    group_by: Annotated[
        Literal["text", "example"] | tuple[str | int, ...],
        PlainValidator(_group_by),
        WithJsonSchema(
            {
                "anyOf": [
                    {"enum": ["text", "example"]},
                    {"type": "array", "minItems": 1, "maxItems": 5, "items": {"type": ["string", "integer"]}},
                ]
            }
        ),
        Says("text, example, or a list of up to 5 columns such as [author]"),
    ] = key(
        "text",
        "What stays on one side: examples with a text in common, equal examples only, or those that are equal in these "
        "columns of the file.",
    )


_NO_FILES = ("idna", "punycode", "utf-7", "unicode-escape", "raw-unicode-escape")  # encodings, but of no text file


def _encoding(value: str) -> str:
    """Raises ValueError for what is no encoding of text."""
    if value != "auto":
        try:
            "".encode(value)
            odd = codecs.lookup(value).name in _NO_FILES
        except LookupError:
            raise ValueError from None
        if odd:
            raise ValueError
    return value


def _languages(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError
    for word in value:
        if word not in NUMBER_LANGUAGES:
            raise refusal(f"found {shown_value(word)}; allowed: {_LANGUAGES}")
        if value.count(word) > 1:
            raise refusal(f"found {word} twice; name each language once")
    return tuple(value)


_LANGUAGES = f"a list of {', '.join(NUMBER_LANGUAGES)}"


class Generate(Part):
    """What the built-in data that is made, not read, is like."""

    min_length: Whole = key(
        4,
        "Shortest sequence of builtin/copy, reverse and sort, and fewest pairs of builtin/recall.",
        "symbols, or pairs",
        ge=1,
        le=65536,
    )
    max_length: Whole = key(
        16,
        "Longest sequence, and most pairs; every length up to it is as likely as another.",
        "symbols, or pairs",
        ge=1,
        le=65536,
    )
    symbols: Whole = key(
        16,
        "How many different symbols there are: digits, letters, then Han characters; of builtin/recall, how many "
        "letters, each of which can be paired with a digit.",
        "symbols",
        ge=2,
        le=4096,
    )
    distractors: Whole = key(
        0, "Letters without a digit at random places among the pairs of builtin/recall.", "letters", ge=0, le=65536
    )
    languages: Annotated[
        tuple[str, ...],
        BeforeValidator(_languages),
        WithJsonSchema(
            {"type": "array", "items": {"enum": list(NUMBER_LANGUAGES)}, "minItems": 1, "uniqueItems": True}
        ),
        Says(_LANGUAGES),
    ] = key(NUMBER_LANGUAGES, "Languages in whose words builtin/numbers writes.")
    largest: Whole = key(
        999_999,
        "Largest number of builtin/numbers; the smallest is 0, and small ones are drawn more often.",
        "whole number",
        ge=9,
        le=999_999,
    )


_SHORT = Says("text of 1 to 256 characters; put a number in quotes")


class DataSpec(Part):
    """Pairs of texts or documents: where they come from, how they are split and cut into tokens."""

    source: Annotated[
        str,
        Field(max_length=4096),
        AfterValidator(_source),
        Says(
            f"one of {', '.join(BUILTIN_DATA)}, hub/OWNER/NAME, or the path of a .tsv, .txt, .csv, .jsonl or .parquet "
            "file, or of a folder"
        ),
    ] = key(
        ...,
        "Where texts come from. For translation: builtin/dates, builtin/numbers (in words -> in digits), or a file of "
        "pairs (.tsv and .txt parted by tabs, .csv, .jsonl, .parquet). For other tasks: builtin/stdlib, the "
        "sources of Python's standard library, or a file of documents (.txt parted by blank lines, .csv, .jsonl, "
        ".parquet). All but .parquet may be packed as .gz; corpus/*.txt means all files that fit. For both: sequences "
        "of symbols with their copy (builtin/copy), reverse (builtin/reverse) or order (builtin/sort), and "
        "builtin/recall, pairs and then a key (A7 C2 F9 ? C -> 2); in a document, = stands between the two; and a "
        "data set of the Hugging Face hub (hub/OWNER/NAME), or a folder laid out like one, with the splits that it "
        "gives. A relative path counts from the folder of this file.",
        examples=["builtin/dates"],
    )
    columns: Columns | None = key(
        None,
        "Columns of the file, by name or by number from 1; left out, the first ones, or of .jsonl, .parquet and data "
        "sets source and target, or text. translation.de is de inside of translation.",
        examples=[{}],
    )
    config: Annotated[Text, Field(min_length=1, max_length=256), _SHORT] | None = key(
        None, "Which config of a data set; left out, its default one.", examples=["default"]
    )
    revision: Annotated[Text, Field(min_length=1, max_length=256), _SHORT] = key(
        "main", "Branch, tag or commit of a data set of the hub; the sweep keeps the commit."
    )
    header: bool = key(False, "Whether the file's first line names the columns.")
    encoding: Annotated[str, AfterValidator(_encoding), Says("auto, or an encoding such as utf-8, utf-16, gb18030")] = (
        key(
            "auto",
            "How the file writes characters as bytes; auto is UTF-8, or UTF-16 where the file begins with its mark.",
        )
    )
    max_bad_share: float = key(
        0.05, "So much of a source may be unusable, and is left out; more of it is refused.", "share", ge=0, le=1
    )
    examples: Whole = key(
        20_000, "How many examples built-in data that is made has: any but builtin/stdlib.", "examples", ge=10, le=10**8
    )
    generate: Generate = section(
        Generate, "What the examples of builtin/numbers, copy, reverse, sort and recall are like."
    )
    split: Split = section(Split, "Which shares of the data are held back: of pairs, or of the documents' bytes.")
    tokenizer: Annotated[Part, TOKENIZER] = section(lambda: TOKENIZER.variant(), "How text becomes tokens.")
