"""Files that people have sent to the service, by what is in them: sent once, kept once, found by every node.

HOME/uploads/DIGEST/NAME            a whole file; DIGEST is the SHA-256 of its bytes
HOME/uploads/.DIGEST-PERSON.part    what has come so far of one that a person sends
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from tuneyard_pipelines.errors import InputError, RefusedError

PIECE_BYTES = 8 << 20
"""A file is sent in pieces of at most so much."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[\w][\w .@+,-]{0,199}")


class TooLargeError(InputError):
    """More than is taken."""


@dataclass(frozen=True)
class Upload:
    """A file that was sent, or as much of it as has come; `path` is where the cluster finds it once it is whole."""

    digest: str
    name: str
    received_bytes: int
    path: str | None


@dataclass(frozen=True)
class Uploads:
    """The files in one folder, none larger than `limit_bytes`."""

    folder: Path
    limit_bytes: int

    def all(self) -> list[Upload]:
        """Every whole file, the newest first."""
        found = sorted(self.folder.glob("*/*"), key=lambda path: path.stat().st_mtime, reverse=True)
        return [_whole(path) for path in found if _DIGEST.fullmatch(path.parent.name)]

    def look(self, digest: str, name: str, person: str) -> Upload:
        """How much of it there is. Raises InputError for what is no digest or no name."""
        whole, part = self._places(digest, name, person)
        if whole.exists():
            return _whole(whole)
        return Upload(digest, name, part.stat().st_size if part.exists() else 0, None)

    def take(self, digest: str, name: str, person: str, *, offset: int, total_bytes: int, piece: bytes) -> Upload:
        """The next piece of a file; with the last one it is whole, if its bytes are those of the digest.

        Raises RefusedError for a piece that does not go on where the last one ended, TooLargeError past the limit,
        InputError for bytes of another digest; then all of them are thrown away.
        """
        whole, part = self._places(digest, name, person)
        if whole.exists():
            return _whole(whole)
        if total_bytes > self.limit_bytes:
            raise TooLargeError(
                f"{name}: {total_bytes:,} bytes; the service takes {self.limit_bytes:,} at most: put it into a folder "
                "that the service reads, or have whoever runs it raise TUNEYARD_UPLOAD_LIMIT"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as out:
            fcntl.flock(out, fcntl.LOCK_EX)
            received = out.tell()
            if offset != received or offset + len(piece) > total_bytes:
                raise RefusedError(f"{name}: {received:,} of {total_bytes:,} bytes are here; go on from there")
            out.write(piece)
            out.flush()
            if received + len(piece) < total_bytes:
                return Upload(digest, name, received + len(piece), None)
            os.fsync(out.fileno())
            with part.open("rb") as source:
                found = hashlib.file_digest(source, "sha256").hexdigest()
            if found != digest:
                part.unlink()
                raise InputError(f"{name}: its bytes have the digest {found}, not {digest}; send it again")
            whole.parent.mkdir(exist_ok=True)
            part.replace(whole)
        return _whole(whole)

    def _places(self, digest: str, name: str, person: str) -> tuple[Path, Path]:
        if _DIGEST.fullmatch(digest) is None:
            raise InputError(f"digest: found {digest[:80]!r}; allowed: the SHA-256 of the file, 64 hexadecimal digits")
        if _NAME.fullmatch(name) is None:
            raise InputError(
                f"name: found {name[:80]!r}; allowed: a file's name of letters, digits, blanks and . _ @ + , -"
            )
        return self.folder / digest / name, self.folder / f".{digest}-{person}.part"


def digest_of(path: Path) -> str:
    """SHA-256, in hexadecimal digits."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _whole(path: Path) -> Upload:
    return Upload(path.parent.name, path.name, path.stat().st_size, str(path))
