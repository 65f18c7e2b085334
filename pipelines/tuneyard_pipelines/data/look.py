"""A first look at a file: its encoding, its columns and what each holds, in which scripts, how long, how much of it."""

from __future__ import annotations

import dataclasses
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tuneyard_pipelines.catalog import GENERATED, NAMED, TASK_DATA, file_kind
from tuneyard_pipelines.data import documents, hub, lines, sources, tables
from tuneyard_pipelines.data.errors import DataError
from tuneyard_pipelines.data.examples import Finding, Tally

if TYPE_CHECKING:
    from tuneyard_pipelines.spec import DataSpec

Kind = Literal["text", "number", "date", "code", "category", "note", "empty", "other"]

BUILTIN = "builtin"
"""The kind of a source that is made or installed here."""
DATA_SET = "data set"
"""The kind of a data set of the hub, and of a folder laid out like one."""
ROWS = 5_000
"""Rows that are kept, at most; fewer where they are long."""
_CHARACTERS, _READ_CHARACTERS = 1 << 22, 1 << 26  # kept, and read
_SCRIPT_CHARACTERS = 20_000
_FEW = 20  # values: below it nothing is said of what repeats
_NUMBER = re.compile(r"[-+]?[\d][\d.,'  ]*%?|[-+]?\.\d+")
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ]\d.*)?")
_NAME = re.compile(r"\w[\w .()/#-]{0,39}")
_LANGUAGES = (
    " en de fr es it pt nl sv da fi pl cs ru uk el tr ar he fa hi ja ko zh th vi id english german deutsch french "
    "spanish italian portuguese dutch swedish polish russian chinese japanese korean arabic hebrew turkish greek hindi "
)
SOURCES = ("source", "src", "input", "question", "from", "original", "noisy")
TARGETS = ("target", "tgt", "trg", "output", "answer", "to", "translation", "clean")
BODIES = ("text", "body", "content", "poem", "review", "story", "article", "document", "lyrics", "abstract", "message")
_OTHERS = ("id", "title", "author", "date", "name", "label", "category", "score", "rating", "sentence", "url", "year")
_SCRIPTS = {"CJK": "Han", "HIRAGANA": "Kana", "KATAKANA": "Kana"}  # by the first word of a character's name
_FUNCTION_WORDS = {
    "English": "the of and to in is that it was for with you",
    "German": "der die und das ist nicht ein ich zu den mit auf",
    "French": "le la les de et est un une pas que des vous",
    "Spanish": "el la los de y es un una que no por con",
    "Italian": "il di che la un è non per una sono del con",
    "Portuguese": "o de que não um uma os para com é em do",
    "Dutch": "de het een en van ik is niet dat je te op",
}


_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Column:
    """A column as `data.columns` names it, what it holds, and the values that were looked at, "" for what is no text.

    `filled`: the share of rows with a value.
    """

    name: str | int
    kind: Kind
    filled: float
    values: tuple[str, ...] = field(repr=False)

    @property
    def median_characters(self) -> float:
        return float(np.median([len(value) for value in self.values if value] or [0]))

    @property
    def median_bytes(self) -> float:
        return float(np.median([len(value.encode()) for value in self.values if value] or [0]))


@dataclass(frozen=True)
class Look:
    """What was seen of a source.

    `columns` are those of a table; of plain text there is none, and `texts` are its documents. They hold `sampled`
    rows, evenly from the `read` ones of the first file, which are all of it if `whole`. `encoding` is auto where none
    has to be named.
    """

    source: str
    kind: str
    size_bytes: int
    files: int = 1
    encoding: str = lines.AUTO
    header: bool = False
    columns: tuple[Column, ...] = ()
    texts: tuple[str, ...] = field(default=(), repr=False)
    sampled: int = 0
    read: int = 0
    whole: bool = True
    findings: tuple[Finding, ...] = ()

    @property
    def bad_share(self) -> float:
        """The share of what was read that cannot be used."""
        bad = sum(one.count for one in self.findings if one.fate == "left out")
        return bad / max(bad + self.read, 1)

    @property
    def counted(self) -> bool:
        """Whether all rows were read."""
        return self.whole and self.files == 1

    @property
    def rows(self) -> int:
        """How many rows there are: counted, or judged by the bytes of those that were read."""
        return self.read if self.counted else max(self.read, round(self.sampled * self.size_bytes / self.seen_bytes))

    @property
    def seen_bytes(self) -> int:
        """UTF-8 bytes of what was looked at, a line end or comma for each text included."""
        held = [self.texts, *(column.values for column in self.columns)]
        return max(1, sum(len(text.encode()) + 1 for values in held for text in values))


def look(source: str) -> Look:
    """Look at a file, or the first of those that a pattern means. Raises DataError for what cannot be read."""
    paths = sources.files(source)
    path = paths[0]
    kind = file_kind(path.name)
    encoding = lines.AUTO if kind == ".parquet" else lines.encoding_of(path)
    tally = Tally()
    size_bytes = sum(one.stat().st_size * (3 if one.suffix.lower() == ".gz" else 1) for one in paths)
    made = Look(source, kind, size_bytes, len(paths), encoding)
    if kind == ".txt" and not _tabbed(path, encoding):
        found = documents.read(lines.TextFile.look(path, encoding), tally)
        sample = _sampled(text for _, text in found)
        return dataclasses.replace(_seen(made, sample, tally, ()), texts=tuple(sample.taken))
    names, sample = _named(path, encoding, tally) if kind in NAMED else _numbered(path, kind, encoding, tally)
    rows = sample.taken
    header = kind not in NAMED and _is_header(rows)
    if header:
        named = [str(cell).strip() for cell in rows[0]]
        unique = len(set(named)) == len(named) and all(named)
        names, rows = (named if unique else names), rows[1:]
        sample = _Sample(rows, sample.read - 1, sample.whole)
    columns = [_column(name, [row[place] for row in rows]) for place, name in enumerate(names)]
    if sum(column.kind == "text" for column in columns) < 2:  # texts may all begin alike
        columns = [dataclasses.replace(one, kind="text") if one.kind == "note" else one for one in columns]
    return _seen(made, sample, tally, columns, header=header)


def look_at_examples(data: DataSpec, task: str, seed: int) -> Look:
    """Look at a source that has no file with columns, by the examples that `task` reads from it."""
    sample = _sampled(sources.beginning(data, task, seed), _row_size)
    names = TASK_DATA[task].columns
    columns = tuple(Column(name, "text", 1.0, tuple(row[at] for row in sample.taken)) for at, name in enumerate(names))
    made = _seen(Look(data.source, BUILTIN, 0), sample, Tally(), columns)
    return dataclasses.replace(made, read=data.examples) if data.source in GENERATED else made


def look_at_data_set(source: str, folder: Path) -> Look:
    """Look at a data set of the hub or a folder laid out like one, in its only or first config.

    Raises DataError for what cannot be read.
    """
    names = hub.look(folder).columns
    texts = [name for name in names if _holds_text(folder, name)]
    sample = _sampled((row.texts for row in hub.rows(folder, None, texts)), _row_size)
    held = [_column(name, [row[place] for row in sample.taken]) for place, name in enumerate(texts)]
    empty = ("",) * len(sample.taken)
    columns = (*held, *(Column(name, "other", 1.0, empty) for name in names if name not in texts))
    size_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return _seen(Look(source, DATA_SET, size_bytes), sample, Tally(), columns)


def scripts(texts: Sequence[str]) -> tuple[str, ...]:
    """The scripts of which a tenth of the letters are, the most frequent first."""
    counts: Counter[str] = Counter()
    for character in "".join(itertools.islice(texts, 500))[:_SCRIPT_CHARACTERS]:
        if character.isalpha():
            counts[_script(character)] += 1
    total = sum(counts.values())
    return tuple(script for script, count in counts.most_common() if count >= total / 10)


def _script(letter: str) -> str:
    word = unicodedata.name(letter, "OTHER").partition(" ")[0]
    return _SCRIPTS.get(word, word.capitalize())


def language(texts: Sequence[str]) -> str:
    """A guess at the language, from the script or frequent words; "" where neither tells."""
    found = scripts(texts)
    if not found:
        return ""
    by_script = {"Kana": "Japanese", "Hangul": "Korean", "Greek": "Greek", "Hebrew": "Hebrew", "Thai": "Thai"}
    if named := next((by_script[script] for script in found if script in by_script), ""):
        return named
    if found[0] == "Han":
        return "Chinese"
    words = Counter(re.findall(r"\w+", " ".join(itertools.islice(texts, 500))[:_SCRIPT_CHARACTERS].lower()))
    shares = {name: sum(words[word] for word in frequent.split()) for name, frequent in _FUNCTION_WORDS.items()}
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] > 0.1 * sum(words.values()) else ""


def is_language(name: str) -> bool:
    """Whether a column's name is a language's, such as en or German."""
    return f" {name.lower()} " in _LANGUAGES


def alike(one: Column, other: Column) -> bool:
    """Whether two columns look like the two sides of pairs: about as long, and long where the other is."""
    ratio = max(one.median_bytes, 1) / max(other.median_bytes, 1)
    return 0.2 < ratio < 5 and _correlation(one, other) > 0.3


def same_language(one: Column, other: Column) -> bool:
    """Whether nothing tells the languages of two columns apart."""
    return scripts(one.values)[:1] == scripts(other.values)[:1] and language(one.values) == language(other.values)


def _correlation(one: Column, other: Column) -> float:
    lengths = np.array([(len(a), len(b)) for a, b in zip(one.values, other.values, strict=True) if a and b])
    if len(lengths) < 3 or not lengths.std(axis=0).all():
        return 0.0
    return float(np.corrcoef(lengths.T)[0, 1])


def _holds_text(folder: Path, name: str) -> bool:
    try:
        next(hub.rows(folder, None, [name]), None)
    except DataError:
        return False
    return True


@dataclass(frozen=True)
class _Sample:
    """Every so many of what was read, how many that were, and whether these are all."""

    taken: list[Any]
    read: int
    whole: bool


def _sampled(found: Iterator[Any], size: Callable[[Any], int] = len) -> _Sample:
    """At most ROWS, evenly from all of what is read; `size` in characters."""
    taken: list[Any] = []
    every, read, characters, held = 1, 0, 0, 0
    for one in found:
        if characters >= _READ_CHARACTERS:
            return _Sample(taken, read, False)
        characters += size(one)
        if read % every == 0:
            taken.append(one)
            held += size(one)
        read += 1
        if len(taken) > ROWS or held > _CHARACTERS:
            taken = taken[::2]
            every, held = 2 * every, sum(map(size, taken))
    return _Sample(taken, read, True)


def _seen(made: Look, sample: _Sample, tally: Tally, columns: Sequence[Column], *, header: bool = False) -> Look:
    return dataclasses.replace(
        made,
        header=header,
        columns=tuple(columns),
        sampled=len(sample.taken),
        read=sample.read,
        whole=sample.whole,
        findings=tally.findings,
    )


def _row_size(row: Sequence[Any]) -> int:
    return sum(len(cell) for cell in row if isinstance(cell, str))


def _tabbed(path: Path, encoding: str) -> bool:
    """Whether tabs part the lines into columns."""
    found = lines.TextFile.look(path, encoding).lines(Tally(), limit=tables.MAX_DOCUMENT)
    first = [line for _, line in itertools.islice(found, 200) if line.strip()]
    tabs = Counter(line.count("\t") for line in first)
    most, count = tabs.most_common(1)[0] if first else (0, 0)
    return most > 0 and count >= 0.9 * len(first)


def _numbered(path: Path, kind: str, encoding: str, tally: Tally) -> tuple[list[Any], _Sample]:
    width = tables.width(path, encoding)
    names = list(range(1, width + 1))
    if not names:
        raise DataError(f"{path}: its first line is blank, and tells no columns. Delete it.")
    found = tables.rows(path, names, tally, encoding=encoding)
    sample = _sampled((list(cells) for _, cells in found), _row_size)
    if width == 1 and kind == ".csv" and sum(";" in row[0] for row in sample.taken) > 0.9 * len(sample.taken):
        raise DataError(
            f"{path}: its columns seem to be parted by semicolons. Save it with commas, or as .tsv with tabs."
        )
    return names, sample


def _named(path: Path, encoding: str, tally: Tally) -> tuple[list[Any], _Sample]:
    records = _parquet(path) if file_kind(path.name) == ".parquet" else _json(path, encoding, tally)
    found = _sampled(records, lambda record: _row_size(list(record.values())))
    names = list(dict.fromkeys(name for record in found.taken for name in record))
    rows = [[record.get(name) for name in names] for record in found.taken]
    return names, _Sample(rows, found.read, found.whole)


def _json(path: Path, encoding: str, tally: Tally) -> Iterator[dict[str, Any]]:
    for _, _, record in tables.json_objects(lines.TextFile.look(path, encoding), tally):
        yield record


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    """Rows without what is neither text nor number: a picture in each would fill the memory."""
    import pyarrow as pa

    file = tables.parquet_file(path)
    schema = file.schema_arrow
    plain = [one.name for one in schema if schema.names.count(one.name) == 1 and _is_plain(one.type)]
    try:
        for batch in file.iter_batches(batch_size=1000, columns=plain):
            yield from batch.to_pylist()
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"{path}: it cannot be read to its end ({error}). Write it again.") from None


def _is_plain(kind: Any) -> bool:
    import pyarrow.types as types

    held = kind.value_type if types.is_dictionary(kind) else kind
    tests = (types.is_string, types.is_large_string, types.is_integer, types.is_floating, types.is_boolean)
    return any(test(held) for test in tests)


def _is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns: by known words, or as words over columns of numbers or dates."""
    if len(rows) < 2 or not all(_NAME.fullmatch(cell.strip()) for cell in rows[0]):
        return False
    first = [cell.strip().lower() for cell in rows[0]]
    words = (*SOURCES, *TARGETS, *BODIES, *_OTHERS)
    if all(cell in words or is_language(cell) for cell in first) or any(cell in (*BODIES, *_OTHERS) for cell in first):
        return True
    kinds = [_column(0, [row[place] for row in rows[1:]]).kind for place in range(len(first))]
    return any(
        kind in ("number", "date") and not _NUMBER.fullmatch(cell) and not _DATE.fullmatch(cell)
        for kind, cell in zip(kinds, first, strict=True)
    )


def _column(name: str | int, held: Sequence[Any]) -> Column:
    values = tuple(value if isinstance(value, str) and not _SURROGATES.search(value) else "" for value in held)
    there = [value for value in held if value is not None and value != ""]
    filled = len(there) / max(len(held), 1)
    return Column(name, _kind(there), filled, values)


def _kind(held: Sequence[Any]) -> Kind:
    if not held:
        return "empty"
    texts = [value.strip() for value in held if isinstance(value, str)]
    if len(texts) < 0.5 * len(held):
        return "number" if all(isinstance(value, int | float | str) for value in held) else "other"

    def share(holds: Any) -> float:
        return sum(map(bool, map(holds, texts))) / len(texts)

    distinct = len(set(texts)) / len(texts)
    many = len(texts) >= _FEW
    if share(_NUMBER.fullmatch) > 0.95:
        return "number"
    if share(_DATE.fullmatch) > 0.9:
        return "date"
    if share(lambda text: text.isascii() and " " not in text and any(map(str.isdigit, text))) > 0.9 and distinct > 0.9:
        return "code"
    if many and distinct < 0.1 and np.mean([len(text) for text in texts]) < 40:
        return "category"
    if many and Counter(text[:12] for text in texts).most_common(1)[0][1] > 0.9 * len(texts):
        return "note"
    return "text"
