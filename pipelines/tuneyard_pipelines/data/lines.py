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
import re
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
_UTF_8 = ("utf-8", "utf-8-sig")
_KANA = re.compile("[\u3041-\u30ff]")
_HANGUL = re.compile("[\uac00-\ud7a3]")
_HAN = re.compile("[\u3400-\u9fff]")
_OTHERS = ["cp1252", "cp1251", "koi8_r", "iso8859_7", "cp1253", "cp1255", "cp1256", "cp874"]
codecs.register_error("tuneyard.broken", lambda error: (_BROKEN, cast(UnicodeDecodeError, error).end))


class UnnamedEncodingError(DataError):
    """A file is not UTF-8, and `likely` is the encoding that fits it."""

    def __init__(self, message: str, likely: str) -> None:
        super().__init__(message)
        self.likely = likely


@dataclass(frozen=True)
class TextFile:
    """A file of text and its encoding."""

    path: Path
    encoding: str

    @classmethod
    def look(cls, path: Path, encoding: str = AUTO) -> TextFile:
        """See from its beginning how `path` is to be read.

        Raises DataError if it cannot be read, holds no text, or has an encoding that must be named.
        """
        with opened(path) as file, _readable(path):
            sample = file.read(_SAMPLE_BYTES)
        if encoding == AUTO:
            encoding = _encoding(path, sample)
        elif codecs.lookup(encoding).name in _UTF_8:
            encoding = "utf-8-sig"  # with or without the mark
        return cls(path, encoding)

    def lines(self, tally: Tally, *, limit: int, broken: bool = False) -> Iterator[tuple[int, str]]:
        """Each line with its number from 1 and without its end, which is a line feed, a carriage return, or both.

        `limit` is in characters. What holds no text is left out and counted; with `broken`, a line comes in its place
        that `is_broken`, for a reader of records that go over several lines.
        """
        with opened(self.path) as file, _readable(self.path):
            text = io.TextIOWrapper(file, self.encoding, errors="tuneyard.broken", newline="")
            ends: set[str] = set()
            number = 0
            while line := text.readline(limit + 2):
                number += 1
                body = line.rstrip("\r\n") if line[-1] in "\r\n" else line
                if number == 1:
                    body = body.removeprefix("\ufeff")
                if len(body) > limit:
                    while line[-1] not in "\r\n" and (line := text.readline(_SKIPPED_CHARACTERS)):
                        pass
                    what = f"lines longer than {limit:,} characters"
                elif _BROKEN in body:
                    what = f"lines that are not {self.encoding.removesuffix('-sig').upper()}"
                else:
                    if end := line[len(line.rstrip("\r\n")) :]:
                        if ends and end not in ends:
                            tally.add("files with mixed line ends", "kept", f"{self.path}:{number}")
                        ends.add(end)
                    yield number, body
                    continue
                if broken:
                    yield number, _BROKEN
                else:
                    tally.add(what, "left out", f"{self.path}:{number}: {shown(body.replace(_BROKEN, chr(0xFFFD)))}")


def is_broken(text: str) -> bool:
    """Whether a line that holds no text went into this."""
    return _BROKEN in text


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
    try:
        if path.is_dir():
            raise DataError(f"{path}: this is a folder. Name a file in it, or a pattern such as {path}/*.txt.")
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: this is no file but a device or a pipe. Write what comes out of it to a file.")
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{path}: no such file. A relative data.source counts from the folder of the spec file: correct the path."
        ) from None
    except PermissionError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). Give this user the right to read it: chmod +r {path}"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Name another path.") from None


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeError as error:
        raise DataError(f"{path}: data.encoding is not what it is written in ({error}). Set the right one.") from None
    except gzip.BadGzipFile as error:
        raise DataError(f"{path}: is no whole .gz ({error}). Copy it again, or take .gz off its name.") from None
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: this .gz is not whole ({error}). Copy it again, and check it with: gzip -t") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read to its end ({error.strerror or error}).") from None


def _encoding(path: Path, sample: bytes) -> str:
    for mark, name in _MARKS.items():
        if sample.startswith(mark):
            return name
    decoder = codecs.getincrementaldecoder("utf-8")("tuneyard.broken")
    lines = decoder.decode(sample).splitlines()
    foreign = [line for line in lines if not line.isascii()]
    broken = sum(_BROKEN in line for line in foreign)
    if sample.count(b"\0") > len(sample) // 50 or 2 * broken > len(foreign):
        raise _unnamed(path, sample)
    return "utf-8"


def _unnamed(path: Path, sample: bytes) -> DataError:
    """What a file is that is not UTF-8, and the remedy."""
    name = _likely(sample)
    if name is None:
        what = "holds zero bytes: it is no text" if b"\0" in sample else "is not UTF-8, nor any encoding known here"
        return DataError(f"{path}: {what}. Save it as UTF-8, or name its encoding with data.encoding.")
    lines = sample.decode(name, "replace").splitlines()
    reads = next((line for line in lines if not line.isascii()), lines[0])
    return UnnamedEncodingError(
        f"{path}: is not UTF-8, but looks like {name}, in which a line reads {shown(reads)}. If that is right, set "
        f"data.encoding: {name}; else set the right one, or save the file as UTF-8.",
        name,
    )


def _likely(sample: bytes) -> str | None:
    """The encoding that fits text which is not UTF-8; None where none does."""
    if sample.count(b"\0") > len(sample) // 50:
        return _wide(sample)
    foreign = b"\n".join(line for line in sample.splitlines() if not line.isascii())
    for name, letters, least in (("cp932", _KANA, 0.1), ("euc-jp", _KANA, 0.1), ("euc-kr", _HANGUL, 0.9)):
        if _share(letters, _read_as(name, foreign)) >= least:  # Chinese read as Korean is half Hangul
            return name
    common = {name: _common_share(_read_as(name, foreign), name) for name in ("gb18030", "big5")}
    likelier = max(common, key=lambda name: common[name])
    if common[likelier] > 0.6:
        return likelier
    from charset_normalizer import from_bytes

    best = from_bytes(foreign, cp_isolation=_OTHERS).best()
    return best.encoding.replace("_", "-") if best else None


def _wide(sample: bytes) -> str | None:
    """UTF-16 or UTF-32 without a mark: the zero bytes of its ASCII stand at every second place, or three in four."""
    zeros = [sample[place::4].count(b"\0") / max(1, len(sample) // 4) for place in range(4)]
    order = ["utf-32-le", "utf-16-le", "utf-32-be", "utf-16-be"]
    for name, (few, many) in zip(
        order, (([0], [2, 3]), ([0, 2], [1, 3]), ([3], [0, 1]), ([1, 3], [0, 2])), strict=True
    ):
        if max(zeros[place] for place in few) < 0.05 and min(zeros[place] for place in many) > 0.1:
            text = sample.decode(name, "replace")
            odd = sum(not (letter.isprintable() or letter.isspace()) for letter in text)
            return name if odd <= 0.02 * len(text) else None
    return None


def _read_as(name: str, sample: bytes) -> str:
    """What is not ASCII of a sample in an encoding; "" if not all of it can be read."""
    text = codecs.getincrementaldecoder(name)("replace").decode(sample)
    return "" if "\ufffd" in text else "".join(letter for letter in text if not letter.isascii())


def _share(letters: re.Pattern[str], text: str) -> float:
    return len(letters.findall(text)) / max(len(text), 1)


def _common_share(text: str, encoding: str) -> float:
    """The share of Chinese characters of the first level of GB 2312 or of Big5, which are those in daily use.

    0 where other letters are more.
    """
    first, last = (b"\xb0", b"\xd8") if encoding == "gb18030" else (b"\xa4", b"\xc7")
    han = _HAN.findall(text)
    common = [character for character in han if first <= character.encode(encoding) < last]
    return len(common) / len(han) if len(han) >= 0.3 * len(text) and han else 0.0
