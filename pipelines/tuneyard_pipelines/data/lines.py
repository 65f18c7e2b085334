"""Lines of a text file as they come: plain or gzip, in the encoding that it has, numbered, of bounded length.

A line that cannot be decoded, or is too long, is left out and counted. The encoding is seen from the byte order mark;
without one it is UTF-8, and a file that is not is refused with the name of the encoding that fits it.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from tuneyard_pipelines.data.errors import DataError

if TYPE_CHECKING:
    from tuneyard_pipelines.data.examples import Tally

AUTO = "auto"
_SHOWN_CHARACTERS = 60
_SAMPLE_BYTES = 1 << 18
_SKIPPED_CHARACTERS = 1 << 20
_BROKEN = "\udfff"  # what stands for undecodable bytes: no encoding gives half a surrogate pair
_MARKS = {  # the longer ones first: UTF-32 begins as UTF-16 does
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_UTF_8 = ("utf-8", "utf8", "utf-8-sig")
codecs.register_error("tuneyard.broken", lambda error: (_BROKEN, cast(UnicodeDecodeError, error).end))


class UnnamedEncodingError(DataError):
    """A file is not UTF-8, and `likely` is the encoding that fits it."""

    def __init__(self, message: str, likely: str) -> None:
        super().__init__(message)
        self.likely = likely


@dataclass(frozen=True)
class TextFile:
    """A file of text, with its encoding and what ends a line in it."""

    path: Path
    encoding: str
    line_end: str

    @classmethod
    def look(cls, path: Path, encoding: str = AUTO) -> TextFile:
        """See from its beginning how `path` is to be read.

        Raises DataError if it cannot be read, holds no text, or has an encoding that must be named.
        """
        with opened(path) as file, _readable(path):
            sample = file.read(_SAMPLE_BYTES)
        if encoding == AUTO:
            encoding = _encoding(path, sample)
        elif encoding.lower() in _UTF_8:
            encoding = "utf-8-sig"  # with or without the mark
        text = sample.decode(encoding, "replace")
        return cls(path, encoding, "\r" if "\r" in text and "\n" not in text else "\n")

    def lines(self, tally: Tally, *, limit: int) -> Iterator[tuple[int, str]]:
        """Each line with its number from 1 and without its end, those left out that hold no text.

        `limit` is in characters. A carriage return inside of a line becomes a line feed.
        """
        with opened(self.path) as file, _readable(self.path):
            text = io.TextIOWrapper(file, self.encoding, errors="tuneyard.broken", newline=self.line_end)
            ends: set[str] = set()
            number = 0
            while line := text.readline(limit + 2):
                number += 1
                place = f"{self.path}:{number}"
                body = line.removesuffix(self.line_end).removesuffix("\r")
                if len(body) > limit:
                    while not line.endswith(self.line_end) and (line := text.readline(_SKIPPED_CHARACTERS)):
                        pass
                    tally.add(f"lines longer than {limit:,} characters", "left out", f"{place}: {shown(body)}")
                    continue
                if _BROKEN in body:
                    what = f"lines that are not {self.encoding.removesuffix('-sig').upper()}"
                    tally.add(what, "left out", f"{place}: {shown(body.replace(_BROKEN, chr(0xFFFD)))}")
                    continue
                if end := line[len(body) :]:
                    if ends and end not in ends:
                        tally.add("files with mixed line ends", "kept", place)
                    ends.add(end)
                if "\r" in body:
                    tally.add("carriage returns inside of a line", "mended", f"{place}: {shown(body)}")
                    body = body.replace("\r", "\n")
                yield number, body


def sha256(path: Path) -> str:
    """The digest of the file's bytes as they lie on disk. Raises DataError if it cannot be read."""
    with _raw(path) as file, _readable(path):
        return hashlib.file_digest(cast(io.BufferedReader, file), "sha256").hexdigest()


def encoding_of(path: Path) -> str:
    """AUTO for a file that needs no encoding named, else the one that fits it best.

    Raises DataError if it cannot be read, or holds no text.
    """
    try:
        TextFile.look(path)
    except UnnamedEncodingError as error:
        return error.likely
    return AUTO


def opened(path: Path) -> BinaryIO:
    """The file, open for its bytes, unpacked if it is a .gz. Raises DataError if that cannot be."""
    if path.suffix.lower() != ".gz":
        return _raw(path)
    _raw(path).close()  # says in words why it cannot be opened
    return cast(BinaryIO, gzip.open(path))


def shown(text: str) -> str:
    """The text for an error: quoted, on one line, cut."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")


def _raw(path: Path) -> BinaryIO:
    if path.is_dir():
        raise DataError(f"{path}: this is a folder. Name a file in it, or a pattern such as {path}/*.txt.")
    try:
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{path}: no such file. A relative data.source counts from the folder of the spec file: correct the path."
        ) from None
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). Give this user the right to read it: chmod +r {path}"
        ) from None


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: this .gz is not whole ({error}). Copy it again, and check it with: gzip -t") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read to its end ({error.strerror or error}).") from None


def _encoding(path: Path, sample: bytes) -> str:
    for mark, name in _MARKS.items():
        if sample.startswith(mark):
            return name
    decoder = codecs.getincrementaldecoder("utf-8")("tuneyard.broken")
    lines = decoder.decode(sample).split("\n")
    foreign = [line for line in lines if not line.isascii()]
    broken = sum(_BROKEN in line for line in foreign)
    if sample.count(b"\0") > len(sample) // 50 or 2 * broken > len(foreign):
        raise _unnamed(path, sample)
    return "utf-8"


def _unnamed(path: Path, sample: bytes) -> DataError:
    """What a file is that is not UTF-8, and the remedy."""
    if 0 < sample.count(b"\0") <= len(sample) // 10:
        return DataError(f"{path}: holds zero bytes: it is no text. Name a file of text.")
    name = _likely(sample)
    if name is None:
        return DataError(
            f"{path}: is not UTF-8, nor any encoding that is known here. Save it as UTF-8, or name it with "
            "data.encoding."
        )
    begins = sample[:200].decode(name, "replace")
    return UnnamedEncodingError(
        f"{path}: is not UTF-8, but looks like {name}, in which it begins {shown(begins)}. If that reads well, set "
        f"data.encoding: {name}; else set the right one, or save the file as UTF-8.",
        name,
    )


def _likely(sample: bytes) -> str | None:
    """The encoding that fits text which is not UTF-8; None where none does."""
    from charset_normalizer import from_bytes

    if b"\0" in sample:
        little = sample[1::2].count(b"\0") >= sample[::2].count(b"\0")
        return "utf-16-le" if little else "utf-16-be"
    if _chinese(sample):
        return "gb18030"
    best = from_bytes(sample).best()
    return best.encoding.replace("_", "-") if best else None


def _chinese(sample: bytes) -> bool:
    """Whether this is GB18030: all of it can be read so, and nine in ten of the Chinese characters are common ones."""
    text = codecs.getincrementaldecoder("gb18030")("replace").decode(sample)
    han = [character for character in text if "\u3400" <= character <= "\u9fff"]
    if not han or "\ufffd" in text or any("\ue000" <= character <= "\uf8ff" for character in text):
        return False
    common = sum(character.encode("gb18030") < b"\xd8" for character in han)  # level 1 of GB 2312, by sound
    return common > 0.85 * len(han)
