"""Lines of a text file as they come: UTF-8 with or without a byte order mark, numbered, of bounded length, digested."""

from __future__ import annotations

import codecs
import hashlib
from typing import TYPE_CHECKING

from tuneyard_pipelines.data.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from pathlib import Path

_SHOWN_CHARACTERS = 60


def read(path: Path, digest: hashlib._Hash, *, limit_bytes: int) -> Iterator[tuple[int, str]]:
    """Each line with its number from 1 and without its end; `digest` takes in its bytes.

    Only a line feed ends a line. Raises DataError for a file that cannot be read, bytes that are not UTF-8, and a line
    of more than `limit_bytes`.
    """
    with opened(path) as file:
        number = 0
        while line := file.readline(limit_bytes + 1):
            number += 1
            digest.update(line)
            if len(line) > limit_bytes:
                raise DataError(
                    f"{path}:{number}: the line is longer than {limit_bytes} bytes: "
                    f"{shown(line[:400].decode('utf-8', 'replace'))}. "
                    "Part longer texts; and check that the file has line ends and is a text file."
                )
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            try:
                yield number, line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}:{number}: byte {error.start + 1} of the line, 0x{line[error.start]:02x}, is not UTF-8: "
                    f"{shown(line[:400].decode('utf-8', 'replace'))}. Save the file as UTF-8, for example: "
                    f"iconv -f GB18030 -t UTF-8 {path.name} (with the encoding it has in place of GB18030)."
                ) from None


def sha256(path: Path) -> str:
    """The digest of the file's bytes, as `read` takes them in. Raises DataError if it cannot be read."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def opened(path: Path) -> BufferedReader:
    """The file, open for its bytes. Raises DataError if that cannot be."""
    if path.is_dir():
        raise DataError(f"{path}: this is a folder. data.source takes one file: name a file in it.")
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


def shown(text: str) -> str:
    """The text for an error: quoted, on one line, cut."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")
