"""YAML text -> plain data and, for every key, the place where it was written.

Only what reads the same everywhere is taken: scalars as in YAML 1.2's core schema. What YAML 1.1 readers turn into
something else (`no`, `010`, `10:30`) is refused and named instead of guessed, and so are aliases, tags and several
documents in one file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

LARGEST_BYTES = 1 << 20
DEEPEST = 16
MOST_ENTRIES = 20_000

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where it stands, under which dotted key, and what to do about it."""

    place: str
    key: str
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.key, self.message) if part)


class UnreadableError(Exception):
    """The text is no document that a spec could be in; carries the one problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass
class Document:
    """A mapping of plain data, the place of every key, and what was written in a way that reads two ways."""

    file: str
    data: dict[str, Any]
    places: dict[Path, str] = field(default_factory=dict)
    doubts: list[tuple[Path, Problem]] = field(default_factory=list)

    def place(self, path: Path) -> str:
        """Where `path` stands, or the nearest thing around it that was written."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return self.file

    def set(self, override: str) -> None:
        """Apply one `model.d_model=128`; the value is read as YAML. Raises UnreadableError."""
        shown = f"--set {shortened(override)}"
        key, equals, value = override.partition("=")
        parts = tuple(key.strip().split("."))
        if not equals or not all(parts):
            raise UnreadableError(Problem(shown, "", "write KEY=VALUE, such as --set model.d_model=128"))
        written = _Reader(shown, value, lines=False).read(allow_scalar=True)
        target = self.data
        for depth, part in enumerate(parts[:-1], start=1):
            inner = target.setdefault(part, {})
            if not isinstance(inner, dict):
                outer = ".".join(parts[:depth])
                raise UnreadableError(
                    Problem(shown, outer, f"holds {shown_value(inner)}, and so no key {parts[depth]}")
                )
            self.places.setdefault(parts[:depth], shown)
            target = inner
        target[parts[-1]] = written.data
        self.doubts = [(path, doubt) for path, doubt in self.doubts if path[: len(parts)] != parts]
        self.places = {path: place for path, place in self.places.items() if path[: len(parts)] != parts}
        self.places[parts] = shown
        self.doubts += [
            ((*parts, *path), Problem(shown, dotted((*parts, *path)), doubt.message)) for path, doubt in written.doubts
        ]


def read(text: str, file: str, overrides: Sequence[str] = ()) -> Document:
    """Read a document whose top is a mapping, then apply overrides in order. Raises UnreadableError."""
    document = _Reader(file, text).read()
    for override in overrides:
        document.set(override)
    return document


def written(values: Mapping[str, Any]) -> str:
    """Plain data as YAML, in its order; by libyaml where it is there, which is ten times as fast."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(dict(values), Dumper=dumper, sort_keys=False, allow_unicode=True))


def dotted(path: Path) -> str:
    """`("model", "num_heads", 1)` -> `model.num_heads[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f"{'.' if text else ''}{shortened(part)}"
    return text


def shown_value(value: Any) -> str:
    """A value as a person wrote it, on one line and cut."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        text = '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, list):
        text = "[" + ", ".join(shown_value(entry) for entry in value[:8]) + (", .." if len(value) > 8 else "") + "]"
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{key}: {shown_value(entry)}" for key, entry in list(value.items())[:8]) + "}"
    else:
        text = str(value)
    return shortened(text)


def shortened(text: str, longest: int = 72) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."


_NULL = re.compile(r"~|null|Null|NULL|")
_TRUTH = {word: word.lower() == "true" for name in ("true", "false") for word in (name, name.title(), name.upper())}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_TWO_WAYS = (
    (
        re.compile(r"(?:yes|no|on|off)", re.IGNORECASE),
        'some YAML readers take it for a boolean; write true, false or "{0}"',
    ),
    (
        re.compile(r"[-+]?(?:0[0-9_]+|0o[0-7_]+)", re.ASCII),
        'some YAML readers take it for octal; write a decimal number or "{0}"',
    ),
    (re.compile(r"[-+]?0[xb][0-9a-fA-F_]+", re.ASCII), 'not a decimal number; write a decimal number or "{0}"'),
    (
        re.compile(r"[-+]?[0-9]+(?::[0-9]{1,2})+(?:\.[0-9]*)?", re.ASCII),
        'some YAML readers count it in sixties; write "{0}" or a plain number',
    ),
)
_MOST_DIGITS = 100


class _Reader:
    """Builds plain data from YAML events, which bounds everything before it is built."""

    def __init__(self, file: str, text: str, *, lines: bool = True) -> None:
        self.file, self.text, self.lines = file, text, lines
        self.document = Document(file, {})
        self.entries = 0

    def read(self, *, allow_scalar: bool = False) -> Document:
        if len(self.text) > LARGEST_BYTES or len(self.text.encode(errors="replace")) > LARGEST_BYTES:
            raise self._unreadable(None, f"larger than {LARGEST_BYTES:,} bytes; a spec is a short text file")
        try:
            data = self._document()
        except yaml.MarkedYAMLError as error:
            raise self._unreadable(error.problem_mark or error.context_mark, self._explained(error)) from None
        except yaml.YAMLError as error:
            reason = getattr(error, "reason", "cannot be read")
            raise self._unreadable(None, f"not YAML: {reason}; save it as UTF-8 text") from None
        except UnicodeError:
            raise self._unreadable(None, "holds half a character (a surrogate); save it as UTF-8 text") from None
        if not allow_scalar and not isinstance(data, dict):
            found = "an empty file" if data is None else f"{shown_value(data)} at the top"
            raise self._unreadable(None, f"found {found}; a spec is a mapping: name: .., task: .., data: .., model: ..")
        self.document.data = data
        return self.document

    def _document(self) -> Any:
        events = yaml.parse(self.text, Loader=_LOADER)
        data: Any = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._unreadable(event.start_mark, "a second document begins; one file holds one spec")
            elif isinstance(event, yaml.NodeEvent):
                data = self._node(event, events, ())
        return data

    def _node(self, event: Any, events: Iterator[Any], path: Path) -> Any:
        mark = event.start_mark
        self.entries += 1
        if self.entries > MOST_ENTRIES:
            raise self._unreadable(mark, f"more than {MOST_ENTRIES:,} entries; a spec is short")
        if len(path) > DEEPEST:
            raise self._unreadable(mark, f"nested more than {DEEPEST} levels deep")
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            sign = "*" if isinstance(event, yaml.AliasEvent) else "&"
            raise self._unreadable(
                mark, f"{sign}{shortened(event.anchor)}: anchors and aliases are not read; write the value out"
            )
        if event.tag is not None:
            raise self._unreadable(mark, f"the tag {shortened(event.tag)} is not read; leave it out")
        if path:
            self.document.places.setdefault(path, self._place(mark))
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, path)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(events, path)
        return self._mapping(events, path)

    def _sequence(self, events: Iterator[Any], path: Path) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            values.append(self._node(event, events, (*path, len(values))))
        return values

    def _mapping(self, events: Iterator[Any], path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.anchor or event.tag:
                raise self._unreadable(event.start_mark, "a key must be a plain word")
            key, place = event.value, self._place(event.start_mark)
            here = (*path, key)
            if key in values:
                first = self.document.places[here]
                message = f"stands twice (first at {first}); keep one"
                self.document.doubts.append((here, Problem(place, dotted(here), message)))
                self._node(next(events), events, here)
                continue
            self.document.places[here] = place
            values[key] = self._node(next(events), events, here)
        return values

    def _scalar(self, event: Any, path: Path) -> Any:
        text: str = event.value
        if not event.implicit[0]:  # quoted or a block: text as it stands
            return text
        if _NULL.fullmatch(text):
            return None
        if text in _TRUTH:
            return _TRUTH[text]
        for form, reason in _TWO_WAYS:
            if form.fullmatch(text):
                return self._doubt(event, path, reason.format(shortened(text)))
        if _INT.fullmatch(text) or _FLOAT.fullmatch(text):
            return self._number(event, path)
        if _NOT_FINITE.fullmatch(text):
            return self._doubt(event, path, "not a finite number; write a number")
        return text

    def _number(self, event: Any, path: Path) -> Any:
        text: str = event.value
        if len(text) > _MOST_DIGITS:
            return self._doubt(event, path, "a number with too many digits; write it shorter")
        if _INT.fullmatch(text):
            return int(text)
        value = float(text)
        return (
            value if math.isfinite(value) else self._doubt(event, path, "too large for a number; write a smaller one")
        )

    def _doubt(self, event: Any, path: Path, reason: str) -> str:
        text: str = event.value
        problem = Problem(self._place(event.start_mark), dotted(path), f"found {shortened(text)}; {reason}")
        self.document.doubts.append((path, problem))
        return text

    def _place(self, mark: Any) -> str:
        return f"{self.file}:{mark.line + 1}" if self.lines and mark is not None else self.file

    def _unreadable(self, mark: Any, message: str) -> UnreadableError:
        return UnreadableError(Problem(self._place(mark), "", message))

    def _explained(self, error: yaml.MarkedYAMLError) -> str:
        mark = error.problem_mark or error.context_mark
        lines = self.text.splitlines()
        line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
        if "\t" in line[: len(line) - len(line.lstrip())] or "'\\t'" in str(error.problem):
            return "a tab begins the line or a value; YAML is indented with spaces"
        return f"not YAML: {error.problem or error.context}; {_SYNTAX_HINT}"


_SYNTAX_HINT = "check indentation, the space after each colon, and closing quotes and brackets"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
