"""Sweeps: submit, look at, ask something of."""

from __future__ import annotations

import asyncio
import codecs
import json
import time
from collections.abc import AsyncIterator, Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from tuneyard import logs as said
from tuneyard import sweeps
from tuneyard.accounts import Person
from tuneyard.api.problems import NotAllowedError, responses
from tuneyard.api.service import Door, Parts, Service, Submitter, Viewer, own
from tuneyard.jobs import ENDED, State
from tuneyard.pages import SweepPage, TrialPage
from tuneyard.queue import Queue
from tuneyard.store import Entry, Event
from tuneyard.sweeps import Listed, View
from tuneyard_pipelines import plan as planning
from tuneyard_pipelines.catalog import hub_name, is_pattern
from tuneyard_pipelines.errors import TuneyardError
from tuneyard_pipelines.journal import SweepFolder
from tuneyard_pipelines.plan import Plan
from tuneyard_pipelines.spec import SpecError, SweepSpec, data_files, parse

router = APIRouter(prefix="/api/v1", route_class=Door, tags=["sweeps"], responses=responses(401, 403, 422, 503))
LOOK_S = 0.5
REMEMBERED_CHARACTERS = 1 << 16  # of a spec that is not looked at again when it is submitted again
SPEC_CHARACTERS = 1 << 20  # of which a spec's reader takes no more bytes either

Read = Callable[[int], bytes]
Id = Annotated[str, Field(description="A sweep's id, or enough of its beginning.", min_length=1, max_length=64)]
SPEC_EXAMPLE = """\
version: 1
name: dates
task: translation
data: {source: builtin/dates}
model: {architecture: transformer, num_heads: [2, 4]}
training: {max_tokens: 100000, learning_rate: 0.003}
search: {trials: 2}
"""


class SpecText(BaseModel):
    """A spec as it stands in a file, and what is to stand there instead."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"spec": SPEC_EXAMPLE}]})

    spec: str = Field(max_length=SPEC_CHARACTERS, description="YAML, at most 1 MiB.")
    overrides: list[Annotated[str, Field(max_length=10_000)]] = Field(
        [], max_length=100, description="KEY=VALUE, as in model.d_model=128."
    )

    def read(self, service: Service) -> SweepSpec:
        """Raises SpecError, and NotAllowedError or OutsideError for data that this service does not read."""
        spec = parse(self.spec, file="spec.yaml", overrides=self.overrides)
        _allowed(spec, service)
        return spec

    def planned(self, service: Service) -> Plan:
        """Raises as `read`."""
        return planning.plan(self.read(service))


class Submission(SpecText):
    """A spec, and how urgent its sweep is."""

    priority: int = Field(50, ge=0, le=100, description="The higher, the sooner; then the older first.")

    def accepted(self, service: Service, person: Person, key: str | None) -> SweepSpec:
        """Raises as `read`, and SpecError for a spec of which no trial could run.

        One that this person has queued under this key is accepted again, though its data may be gone by now.
        """
        characters = sum(map(len, (self.spec, *self.overrides)))
        accept = _accepted if characters <= REMEMBERED_CHARACTERS else _accepted.__wrapped__
        spec = accept(self.spec, tuple(self.overrides))
        try:
            _allowed(spec, service)
        except TuneyardError:
            before = None if key is None else service.store.submitted_as(person.name, key)
            if before is None or before.spec_text != spec.text():
                raise
        return spec


class More(BaseModel):
    """How many more trials."""

    model_config = ConfigDict(extra="forbid")
    trials: int = Field(ge=1, le=100_000)


class Points(BaseModel):
    """Points of the sweep's space."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"points": ["num_heads=4"]}]})
    points: list[Annotated[str, Field(max_length=10_000)]] = Field(
        min_length=1, max_length=1000, description="KEY=VALUE,..: a value for every varied key, and variant=NAME."
    )


class Changes(BaseModel):
    """What is to be another."""

    model_config = ConfigDict(extra="forbid")
    priority: int = Field(ge=0, le=100)


@router.post("/plans")
async def plan(asked: SpecText, service: Parts, person: Viewer) -> dict[str, Any]:
    """What would run: points, models, memory, tokens; nothing is made."""
    planned: Plan = await to_thread.run_sync(asked.planned, service, limiter=service.checks)
    return planned.to_dict()


@router.post("/sweeps", status_code=201, responses=responses(409))
async def submit(
    asked: Submission,
    service: Parts,
    person: Submitter,
    response: Response,
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=200, description="Sent again under the same key, a submit is the same sweep."),
    ] = None,
) -> Listed:
    """Put a sweep into the queue."""
    spec = await to_thread.run_sync(asked.accepted, service, person, idempotency_key, limiter=service.checks)

    def queue() -> Listed:
        entry = service.queue(person).submit(spec, priority=asked.priority, key=idempotency_key)
        return _listed(service, entry)

    listed: Listed = await to_thread.run_sync(queue)
    response.headers["Location"] = f"{service.base_url}/api/v1/sweeps/{listed.sweep_id}"
    return listed


@router.get("/sweeps")
def list_(
    service: Parts,
    person: Viewer,
    state: Annotated[list[State] | None, Query(description="Only in one of these states.")] = None,
    owner: Annotated[str | None, Query(max_length=64)] = None,
    name: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    after: Annotated[str | None, Query(max_length=200, description="Of the page before.")] = None,
) -> SweepPage:
    """Sweeps of the queue, newest first."""
    page = service.store.entries(states=state, owner=owner, name=name, limit=limit, after=after)
    return SweepPage(tuple(sweeps.listed(service.store, page.entries)), page.after)


@router.get("/sweeps/{sweep_id}", responses=responses(404))
def show(
    sweep_id: Id,
    service: Parts,
    person: Viewer,
    trials: Annotated[int, Query(ge=0, le=100_000, description="How many of the best trials come along.")] = 1,
) -> View:
    """One sweep: its state and why, its best trials, its test scores, its model, what happened to it last."""
    return sweeps.queued_view(service.store, service.store.find(sweep_id), service.home, leaderboard=trials)


@router.get("/sweeps/{sweep_id}/trials", responses=responses(404))
def trials(
    sweep_id: Id,
    service: Parts,
    person: Viewer,
    order: Literal["best", "number"] = "best",
    state: Annotated[str | None, Query(max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=5000)] = 100,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> TrialPage:
    """A page of a sweep's trials."""
    entry = service.store.find(sweep_id)
    mode = sweeps.terms(entry.spec_text).mode
    found = service.store.trials(entry.job.sweep_id, order=order, mode=mode, limit=limit, offset=offset, state=state)
    return TrialPage(tuple(found), service.store.count_trials(entry.job.sweep_id, state))


@router.get("/sweeps/{sweep_id}/events", responses=responses(404))
def events(
    sweep_id: Id,
    service: Parts,
    person: Viewer,
    after: Annotated[int, Query(ge=0, le=2**62, description="The id of the last event that is known.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[Event]:
    """Who did what to it, oldest first."""
    return service.store.events(service.store.find(sweep_id).job.sweep_id, after=after, limit=limit)


@router.get(
    "/sweeps/{sweep_id}/logs",
    response_class=PlainTextResponse,
    responses={
        **responses(404),
        200: {"content": {"text/plain": {}, "text/event-stream": {}}, "description": "What its driver said."},
    },
)
def logs(
    sweep_id: Id,
    service: Parts,
    person: Viewer,
    follow: Annotated[
        bool, Query(description="As server-sent events, what is added until it has ended; the last one is named end.")
    ] = False,
    offset: Annotated[int, Query(ge=0, le=2**62, description="How many bytes are known.")] = 0,
    trial: Annotated[
        str | None, Query(pattern=f"^{said.TRIAL}$", description="What this trial said, t007 or 7, and not the driver.")
    ] = None,
) -> Response:
    """What the sweep's driver said, or one of its trials over all attempts."""
    entry = service.store.find(sweep_id)
    folder = service.queue(person).folder(entry.job.sweep_id)
    read = partial(_read, folder, trial)
    read(0)  # so that a trial that is not there is told before the answer begins
    if follow:
        told = _stream(service, person, entry.job.sweep_id, read, offset)
        return StreamingResponse(told, media_type="text/event-stream")
    return StreamingResponse(_parts(read, offset), media_type="text/plain; charset=utf-8")


@router.get(
    "/sweeps/{sweep_id}/spec",
    response_class=PlainTextResponse,
    responses={
        **responses(404),
        200: {"content": {"application/yaml": {}}, "description": "YAML, as it was accepted."},
    },
)
def spec(sweep_id: Id, service: Parts, person: Viewer) -> Response:
    """What it was asked to do."""
    return Response(service.store.find(sweep_id).spec_text, media_type="application/yaml")


@router.post("/sweeps/{sweep_id}/cancel", responses=responses(404, 409))
def cancel(sweep_id: Id, service: Parts, person: Submitter) -> Listed:
    """Give it up, whatever it is doing; what it has so far stays in its folder."""
    return _change(service, person, sweep_id, Queue.cancel)


@router.post("/sweeps/{sweep_id}/stop", responses=responses(404, 409))
def stop(sweep_id: Id, service: Parts, person: Submitter) -> Listed:
    """Finish now: the best so far is scored and registered."""
    return _change(service, person, sweep_id, Queue.stop)


@router.post("/sweeps/{sweep_id}/resume", responses=responses(404, 409))
def resume(sweep_id: Id, service: Parts, person: Submitter) -> Listed:
    """Go on with what is unfinished."""
    return _change(service, person, sweep_id, Queue.resume)


@router.post("/sweeps/{sweep_id}/retry", responses=responses(404, 409))
def retry(sweep_id: Id, service: Parts, person: Submitter) -> Listed:
    """Run its failed trials again."""
    return _change(service, person, sweep_id, Queue.retry)


@router.post("/sweeps/{sweep_id}/extend", responses=responses(404, 409))
def extend(sweep_id: Id, more: More, service: Parts, person: Submitter) -> Listed:
    """Try so many more points."""
    return _change(service, person, sweep_id, lambda queue, id_: queue.extend(id_, more.trials))


@router.post("/sweeps/{sweep_id}/add", responses=responses(404, 409))
def add(sweep_id: Id, added: Points, service: Parts, person: Submitter) -> Listed:
    """Try these points, too."""
    return _change(service, person, sweep_id, lambda queue, id_: queue.add(id_, added.points))


@router.patch("/sweeps/{sweep_id}", responses=responses(404, 409))
def change(sweep_id: Id, changes: Changes, service: Parts, person: Submitter) -> Listed:
    """Move it up or down in the queue."""
    return _change(service, person, sweep_id, lambda queue, id_: queue.prioritise(id_, changes.priority))


@lru_cache(maxsize=256)
def _accepted(text: str, overrides: tuple[str, ...]) -> SweepSpec:
    """A spec that can run, which hangs on its text alone; that its data is there and allowed is asked each time."""
    spec = parse(text, file="spec.yaml", overrides=overrides)
    planning.check(spec)
    return spec


def _change(service: Service, person: Person, sweep_id: str, how: Callable[[Queue, str], Entry]) -> Listed:
    entry = own(person, service.store.find(sweep_id))
    return _listed(service, how(service.queue(person), entry.job.sweep_id))


def _listed(service: Service, entry: Entry) -> Listed:
    return sweeps.listed(service.store, [entry])[0]


def _allowed(spec: SweepSpec, service: Service) -> None:
    """Raises NotAllowedError for data of the hub where that is closed, OutsideError for files outside the roots."""
    if hub_name(spec.data.source) and not service.hub:
        raise NotAllowedError(
            f"data.source: {spec.data.source} is on the hub, which this service does not read from; whoever runs it "
            "opens it with TUNEYARD_HUB=1"
        )
    service.roots.check(spec.data)
    for key, named in data_files(spec.data).items():
        if not Path(named).exists() and not is_pattern(named):
            raise SpecError.of("spec.yaml", f"{'.'.join(key)}: there is no file {named} where the service runs")


async def _parts(read: Read, offset: int) -> AsyncIterator[bytes]:
    while added := await asyncio.to_thread(read, offset):
        offset += len(added)
        yield added


async def _stream(service: Service, person: Person, sweep_id: str, read: Read, offset: int) -> AsyncIterator[bytes]:
    """Each event has the text that was added, as a JSON string, and the bytes known after it as its id.

    It breaks off once the person's token lets nobody in any more: who comes back is told.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while await asyncio.to_thread(service.accounts.still_good, person, int(time.time() * 1000)):
        entry = await asyncio.to_thread(service.store.get, sweep_id)  # before the log, so that its last words are read
        async for added in _parts(read, offset):
            offset += len(added)
            text = decoder.decode(added)
            yield _event("log", text, offset - len(decoder.getstate()[0]))
        if entry.job.state in ENDED:
            if rest := decoder.decode(b"", final=True):
                yield _event("log", rest, offset)
            yield _event("end", entry.job.state, offset)
            return
        yield b": alive\n\n"  # so that who is gone is noticed
        await asyncio.sleep(LOOK_S)


def _event(name: str, data: str, known_bytes: int) -> bytes:
    return f"id: {known_bytes}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode()


def _read(folder: SweepFolder, trial: str | None, offset: int) -> bytes:
    """What comes next; the attempts of a trial grow in number meanwhile."""
    return said.read(said.files(folder, trial), offset)
