"""Files that a spec is about to name, from the machine of whoever submits it."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from tuneyard.api.problems import responses
from tuneyard.api.service import Door, Parts, Submitter, Viewer
from tuneyard.uploads import Upload

router = APIRouter(prefix="/api/v1", route_class=Door, tags=["uploads"], responses=responses(401, 403, 422))
Digest = Annotated[str, Path(max_length=64, description="SHA-256 of the whole file, in hexadecimal digits.")]
Name = Annotated[str, Query(max_length=200, description="The file's name, without a folder.")]


@router.get("/uploads")
def list_(service: Parts, person: Viewer) -> list[Upload]:
    """The files that were sent, the newest first."""
    return service.uploads.all()


@router.get("/uploads/{digest}")
def look(digest: Digest, name: Name, service: Parts, person: Submitter) -> Upload:
    """How much of a file is here already; once it is whole, where."""
    return service.uploads.look(digest, name, person.name)


@router.put("/uploads/{digest}", responses=responses(409, 413))
async def take(
    digest: Digest,
    name: Name,
    request: Request,
    service: Parts,
    person: Submitter,
    offset: Annotated[int, Query(ge=0, le=2**62, description="Where this piece begins: how much is here already.")],
    total_bytes: Annotated[int, Query(ge=0, le=2**62)],
) -> Upload:
    """The next piece of a file, as it is."""
    piece = await request.body()
    return await asyncio.to_thread(
        service.uploads.take, digest, name, person.name, offset=offset, total_bytes=total_bytes, piece=piece
    )
