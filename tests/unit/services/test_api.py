"""The service over HTTP: who may do what, what goes wrong and how that is said, and the same through the client."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from driven_sweep import SPEC
from fastapi.routing import APIRoute
from service import Served, serving
from waiting import PATIENCE_S

from tuneyard import jobs
from tuneyard.accounts import ROLES, Role
from tuneyard.api import ROUTERS, create_app
from tuneyard.api.problems import CODES, MEDIA_TYPE
from tuneyard.api.service import LARGEST_BODY_BYTES, Service, Slowdown
from tuneyard.client import Client, UnknownError
from tuneyard.jobs import DriverEnd
from tuneyard.store import Entry, Limits, TrialRow
from tuneyard_pipelines.errors import InputError, RefusedError, UnreachableError
from tuneyard_pipelines.spec import parse

DOCS = (Path(__file__).resolve().parents[3] / "docs" / "service.md").read_text(encoding="utf-8")
OPEN = {("GET", "/healthz")}
NEEDS: dict[tuple[str, str], Role] = {
    ("GET", "/readyz"): "viewer",
    ("GET", "/metrics"): "viewer",
    ("GET", "/openapi.json"): "viewer",
    ("POST", "/api/v1/plans"): "viewer",
    ("GET", "/api/v1/sweeps"): "viewer",
    ("GET", "/api/v1/sweeps/{sweep_id}"): "viewer",
    ("GET", "/api/v1/sweeps/{sweep_id}/trials"): "viewer",
    ("GET", "/api/v1/sweeps/{sweep_id}/events"): "viewer",
    ("GET", "/api/v1/sweeps/{sweep_id}/logs"): "viewer",
    ("GET", "/api/v1/sweeps/{sweep_id}/spec"): "viewer",
    ("POST", "/api/v1/sweeps"): "submitter",
    ("PATCH", "/api/v1/sweeps/{sweep_id}"): "submitter",
    ("POST", "/api/v1/sweeps/{sweep_id}/cancel"): "submitter",
    ("POST", "/api/v1/sweeps/{sweep_id}/stop"): "submitter",
    ("POST", "/api/v1/sweeps/{sweep_id}/resume"): "submitter",
    ("POST", "/api/v1/sweeps/{sweep_id}/retry"): "submitter",
    ("POST", "/api/v1/sweeps/{sweep_id}/extend"): "submitter",
    ("POST", "/api/v1/sweeps/{sweep_id}/add"): "submitter",
    ("GET", "/api/v1/uploads"): "viewer",
    ("GET", "/api/v1/uploads/{digest}"): "submitter",
    ("PUT", "/api/v1/uploads/{digest}"): "submitter",
    ("GET", "/api/v1/queue"): "viewer",
    ("POST", "/api/v1/queue/pause"): "admin",
    ("POST", "/api/v1/queue/resume"): "admin",
    ("GET", "/api/v1/limits"): "viewer",
    ("PUT", "/api/v1/limits/{owner}"): "admin",
    ("DELETE", "/api/v1/limits/{owner}"): "admin",
    ("GET", "/api/v1/usage"): "viewer",
    ("GET", "/api/v1/models"): "viewer",
    ("GET", "/api/v1/models/{name}"): "viewer",
    ("GET", "/api/v1/whoami"): "viewer",
    ("GET", "/api/v1/webhooks"): "admin",
    ("POST", "/api/v1/webhooks"): "admin",
    ("DELETE", "/api/v1/webhooks/{hook_id}"): "admin",
    ("POST", "/api/v1/webhooks/{hook_id}/test"): "admin",
    ("GET", "/api/v1/webhooks/{hook_id}/deliveries"): "admin",
    ("GET", "/api/v1/tokens"): "admin",
    ("POST", "/api/v1/tokens"): "admin",
    ("DELETE", "/api/v1/tokens/{token_id}"): "admin",
}
CHANGES = [(method, path) for method, path in NEEDS if "/sweeps/{" in path and method != "GET"]
BODIES: dict[str, dict[str, Any]] = {
    "extend": {"trials": 2},
    "add": {"points": ["num_heads=2"]},
    "{sweep_id}": {"priority": 9},
}
NO_KEY = {"Idempotency-Key": ""}
NOBODY = "ty_00000000_" + "x" * 43


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("service") / ".tuneyard"
    with serving(home, TUNEYARD_RAY="http://127.0.0.1:9") as found:
        yield found


@pytest.fixture(scope="module")
def ann(served: Served) -> Client:
    return served.client("ann")


def asked(served: Served, method: str, path: str, token: str = "", **more: Any) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    own = headers | more.pop("headers", {})
    return httpx2.request(method, served.url + path, headers=own, timeout=PATIENCE_S, **more)


def problem(answer: httpx2.Response) -> dict[str, Any]:
    """What an error says, in the one form that all have."""
    assert answer.headers["content-type"] == MEDIA_TYPE
    found: dict[str, Any] = answer.json()
    assert set(found) == {"type", "title", "status", "code", "detail", "errors"}
    assert found["status"] == answer.status_code
    return found


def change(served: Served, sweep_id: str, job: jobs.Job) -> Entry:
    entry = served.service.store.get(sweep_id)
    return served.service.store.change(entry, job, actor="d", now_ms=1, what="moved")


def test_every_route_is_in_the_table_of_roles(served: Served) -> None:
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    assert {(method, route.path) for route in routes for method in route.methods} == {*OPEN, *NEEDS}
    assert len(create_app(served.service).routes) == len(ROUTERS), "and nothing beside them"


def test_every_route_and_every_code_has_its_row_in_the_docs() -> None:
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in DOCS.splitlines() if line.startswith("| ")]
    routes = {
        tuple(row[0].split()): row[1] for row in rows if row[0].startswith(("GET", "POST", "PUT", "PATCH", "DEL"))
    }
    assert routes == {**dict.fromkeys(OPEN, "nobody's"), **NEEDS}
    told = {(int(row[0]), row[1]) for row in rows if row[0].isdecimal()}
    assert told == {(status, code) for status, codes in CODES.items() for code in codes}


@pytest.mark.parametrize("role", [None, *ROLES])
def test_a_route_takes_its_role_and_no_lower_one(served: Served, role: Role | None) -> None:
    token = served.token(f"one-{role}", role) if role else ""
    for (method, path), needed in NEEDS.items():
        answer = asked(
            served,
            method,
            path.replace("{sweep_id}", "zz")
            .replace("{owner}", "o")
            .replace("{token_id}", "t")
            .replace("{hook_id}", "h")
            .replace("{digest}", "0" * 64),
            token,
        )
        if role is None:
            assert (answer.status_code, problem(answer)["code"]) == (401, "not_logged_in"), path
            assert answer.headers["www-authenticate"] == "Bearer"
        elif ROLES.index(role) < ROLES.index(needed):
            assert (answer.status_code, problem(answer)["code"]) == (403, "not_allowed"), path
            assert needed in problem(answer)["detail"]
        else:
            assert answer.status_code not in (401, 403), path
            assert answer.status_code < 500 or path == "/readyz", path
    assert asked(served, "GET", "/healthz", token).json() == {"status": "ok"}


def test_a_stranger_is_sent_away_before_anything_is_read_of_what_they_send(served: Served) -> None:
    json_of = {"Content-Type": "application/json"}
    large = ("POST", "/api/v1/plans", b" " * (LARGEST_BODY_BYTES + 1))
    for method, path, body in [*((*of, b"{") for of in NEEDS), large]:
        answer = asked(served, method, path, content=body, headers=json_of)
        assert (answer.status_code, problem(answer)["code"]) == (401, "not_logged_in"), path


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_a_sweep_is_changed_by_its_owner_and_by_admins(served: Served, ann: Client, method: str, path: str) -> None:
    sweep_id = ann.submit(SPEC).sweep_id
    place, body = path.replace("{sweep_id}", sweep_id), BODIES.get(path.rpartition("/")[2])
    for role in ("submitter", "promoter"):
        answer = asked(served, method, place, served.token("bob", role), json=body)
        assert answer.status_code == 403
        assert problem(answer)["detail"] == f"sweep {sweep_id} is ann's; only they and admins change it, bob does not"
    assert ann.sweep(sweep_id).state == "queued"
    for token in (served.token("ann", "submitter"), served.token("root", "admin")):
        assert asked(served, method, place, token, json=body).status_code in (200, 409, 422)


def test_a_wrong_token_is_answered_slower_each_time_and_logged(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    for scheme in ("Bearer", "bearer"):
        answer = asked(served, "GET", "/api/v1/whoami", headers={"Authorization": f"{scheme} {NOBODY}"})
        assert answer.status_code == 401
    assert asked(served, "GET", "/api/v1/whoami", headers={"Authorization": f"Basic {NOBODY}"}).status_code == 401
    assert "a token that lets nobody in, from 127.0.0.1" in caplog.text
    assert NOBODY not in caplog.text
    slow = Slowdown()
    assert [slow.wrong_s("a") for _ in range(12)][:4] == [0.1, 0.2, 0.4, 0.8]
    assert (slow.wrong_s("a"), slow.wrong_s("b")) == (5.0, 0.1)


def test_only_wrong_tokens_wait(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []

    def wrong_s(slow: Slowdown, address: str) -> float:
        waited.append(address)
        return 0.0

    monkeypatch.setattr(Slowdown, "wrong_s", wrong_s)
    asked(served, "GET", "/api/v1/whoami", NOBODY)
    assert waited == ["127.0.0.1"]
    asked(served, "GET", "/api/v1/whoami", served.token("ann"))
    assert waited == ["127.0.0.1"]


def test_a_revoked_token_lets_nobody_in_any_more(served: Served) -> None:
    admin = served.client("root", "admin")
    made = admin.create_token("eve", "viewer")
    eve = Client(served.url, made.secret)
    assert eve.whoami().name == "eve"
    assert admin.revoke_token(made.token.token_id).revoked_ms
    with pytest.raises(RefusedError, match="unknown, expired or revoked"):
        eve.whoami()
    assert made.secret.rpartition("_")[2] not in json.dumps([vars(token) for token in admin.tokens()])


@pytest.mark.parametrize(
    ("address", "header", "expected"),
    [
        ("127.0.0.0/8", "carl", 200),
        ("10.0.0.0/8", "carl", 401),
        ("127.0.0.1", "no name", 401),
        ("127.0.0.1", None, 401),
    ],
)
def test_a_trusted_header_counts_from_its_proxies_only(
    tmp_path: Path, address: str, header: str | None, expected: int
) -> None:
    settings = {"TUNEYARD_TRUSTED_HEADER": "X-Remote-User", "TUNEYARD_TRUSTED_PROXIES": address}
    with serving(tmp_path / ".tuneyard", **settings) as behind:
        answer = asked(behind, "GET", "/api/v1/whoami", headers={"X-Remote-User": header} if header else {})
        assert answer.status_code == expected
        if expected == 200:
            assert answer.json() == {"name": "carl", "role": "submitter", "token_id": ""}
        forwarded = {"X-Forwarded-For": "10.0.0.1", "X-Remote-User": "carl"}
        assert asked(behind, "GET", "/api/v1/whoami", headers=forwarded).status_code == (
            200 if "127" in address else 401
        )


def test_q2_the_same_submit_sent_twice_is_one_sweep(served: Served, ann: Client) -> None:
    first, again = ann.submit(SPEC, key="once"), ann.submit(SPEC, key="once")
    assert again.sweep_id == first.sweep_id
    with pytest.raises(RefusedError, match="with another spec; submit this one under a new key"):
        ann.submit(SPEC.replace("name: dates", "name: other"), key="once")
    folders = {path.name for path in (served.service.home / "sweeps").iterdir()}
    assert folders == {sweep.sweep_id for sweep in ann.sweeps()}, "what was not queued left no folder"


def test_q2_a_submit_whose_answer_is_lost_is_sent_again(
    served: Served, ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, lost = ann._http.request, iter([True, True, False])

    def flaky(*words: Any, **more: Any) -> httpx2.Response:
        answer = request(*words, **more)
        if next(lost):
            raise httpx2.ReadError("cut off")
        return answer

    before = len(list(ann.sweeps()))
    monkeypatch.setattr(ann._http, "request", flaky)
    ann.submit(SPEC)
    monkeypatch.undo()
    assert len(list(ann.sweeps())) == before + 1


def test_q2_a_submit_waits_for_a_service_that_is_being_started_again(
    ann: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    request, away = ann._http.request, [httpx2.ConnectError("refused"), httpx2.ReadError("cut off")] * 2
    keys: list[str] = []

    def restarting(*words: Any, **more: Any) -> httpx2.Response:
        keys.append(more["headers"]["Idempotency-Key"])
        if away:
            raise away.pop()
        return request(*words, **more)

    before = len(list(ann.sweeps()))
    monkeypatch.setattr("tuneyard.client.RETRY_S", 0.0)
    monkeypatch.setattr(ann._http, "request", restarting)
    sweep_id = ann.submit(SPEC).sweep_id
    assert len(keys) == 5
    assert len(set(keys)) == 1
    [told] = [one.getMessage() for one in caplog.records if one.name == "tuneyard.client"]
    assert "does not answer (" in told
    assert told.endswith("; trying again for 30 s"), "said once, not at each try"
    away.append(httpx2.ConnectError("refused"))
    monkeypatch.setattr("tuneyard.client.RESTART_S", 0.0)
    with pytest.raises(UnreachableError, match="refused"):
        ann.submit(SPEC)
    monkeypatch.undo()
    after = [sweep.sweep_id for sweep in ann.sweeps()]
    assert (after[0], len(after)) == (sweep_id, before + 1)


def test_q6_times_are_the_servers_in_milliseconds_and_order_does_not_hang_on_a_clients_clock(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = served.client("zone")
    before_ms = int(time.time() * 1000)
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    made = [zone.submit(SPEC).sweep_id for _ in range(3)]
    found = list(zone.sweeps(owner="zone"))
    monkeypatch.undo()
    time.tzset()
    assert [sweep.sweep_id for sweep in found] == made[::-1]
    assert all(before_ms <= sweep.created_ms <= int(time.time() * 1000) for sweep in found)


def test_a_sweep_is_listed_shown_and_told_of(served: Served) -> None:
    dora = served.client("dora")
    sweep = dora.submit(SPEC, priority=70)
    job = served.service.store.get(sweep.sweep_id).job
    running = change(served, sweep.sweep_id, jobs.started(jobs.claimed(job, 2), 3))
    rows = [
        TrialRow("t001", 1, "t01", "completed", 1, score=0.5, rung=1, metrics={"val/loss": float("nan")}),
        TrialRow("t002", 2, "t02", "running", 2, score=0.75, rung=1),
        TrialRow("t003", 3, "t03", "diverged", 3, message="loss is nan"),
    ]
    served.service.store.put_trials(sweep.sweep_id, rows)
    [listed] = dora.page(owner="dora").sweeps
    assert (listed.state, listed.priority, listed.best_text) == ("running", 70, "t002 val/exact_match 0.75")
    assert listed.trial_states == {"completed": 1, "running": 1, "diverged": 1}
    assert dora.sweep(sweep.sweep_id[:6]).best_text == "t002 val/exact_match 0.75"
    page = dora.trials(sweep.sweep_id, limit=2)
    assert ([row.trial for row in page.trials], page.total) == (["t002", "t001"], 3)
    assert [row.trial for row in dora.trials(sweep.sweep_id, state="diverged").trials] == ["t003"]
    assert [event.after for event in dora.events(sweep.sweep_id)] == ["queued", "running"]
    assert dora.page(owner="dora", states=["queued"]).sweeps == ()
    log = served.service.queue(dora.whoami()).folder(sweep.sweep_id).path / "driver.log"
    log.write_text("première ligne\n")
    assert "".join(dora.logs(sweep.sweep_id)) == "première ligne\n"
    assert f"{running.job.sweep_id}" in {one.sweep_id for one in dora.queue().active}
    numbers = asked(served, "GET", "/metrics", served.token("p", "viewer")).text
    assert 'tuneyard_sweeps{state="running"} 1.0' in numbers
    assert "tuneyard_trials_running 1.0" in numbers


def test_logs_are_followed_until_the_sweep_has_ended(served: Served) -> None:
    finn = served.client("finn")
    sweep_id = finn.submit(SPEC).sweep_id
    change(served, sweep_id, jobs.started(jobs.claimed(served.service.store.get(sweep_id).job, 2), 3))
    log = served.service.queue(finn.whoami()).folder(sweep_id).path / "driver.log"
    whole = "zwölf Boxkämpfer\n".encode()
    log.write_bytes(whole[:3])  # in the midst of a letter
    pieces = finn.logs(sweep_id, follow=True)
    seen = next(pieces)
    with log.open("ab") as more:
        more.write(whole[3:])
    seen += next(pieces)
    end = DriverEnd("succeeded")
    change(served, sweep_id, jobs.driver_ended(served.service.store.get(sweep_id).job, end, 4, most_losses=1))
    assert seen + "".join(pieces) == whole.decode()


def test_a_trials_log_is_that_of_all_its_attempts_and_grows_into_the_next(served: Served) -> None:
    tess = served.client("tess")
    sweep_id = tess.submit(SPEC).sweep_id
    folder = served.service.queue(tess.whoami()).folder(sweep_id)
    for attempt in (1, 2, 10):
        folder.attempt("t001", attempt).mkdir(parents=True)
    for attempt, text in ((1, "épreuve 1\n"), (10, "10\n")):  # the second attempt never said a word
        (folder.attempt("t001", attempt) / "trial.log").write_text(text)
    for trial in ("t001", "1", "001"):
        assert "".join(tess.logs(sweep_id, trial=trial)) == "épreuve 1\n10\n"
    pieces = tess.logs(sweep_id, trial="1", follow=True)
    seen = next(pieces) + next(pieces)
    folder.attempt("t001", 11).mkdir()
    (folder.attempt("t001", 11) / "trial.log").write_text("11\n")
    assert seen + next(pieces) == "épreuve 1\n10\n11\n"
    with pytest.raises(UnknownError, match="has trained none of that name"):
        "".join(tess.logs(sweep_id, trial="t002"))
    with pytest.raises(InputError, match="trial"):
        "".join(tess.logs(sweep_id, trial="../t001"))


def test_q2_a_submit_that_is_sent_again_is_the_same_one_though_its_data_has_gone(tmp_path: Path) -> None:
    data = tmp_path / "data" / "pairs.tsv"
    data.parent.mkdir()
    data.write_text("a\tb\n" * 9)
    spec = SPEC.replace("{source: builtin/dates, examples: 200}", f"{{source: {data}}}")
    with serving(tmp_path / ".tuneyard", TUNEYARD_DATA_ROOTS=str(data.parent)) as served:
        tess = served.client("tess")
        first = tess.submit(spec, key="k")
        data.unlink()
        assert tess.submit(spec, key="k").sweep_id == first.sweep_id
        with pytest.raises(InputError, match="there is no file"):
            tess.submit(spec, key="another")
        with pytest.raises(InputError, match="there is no file"):
            tess.submit(spec.replace("seed: 3", "seed: 4"), key="k")


def test_behind_a_proxy_answers_name_its_address(tmp_path: Path) -> None:
    with serving(tmp_path / ".tuneyard", TUNEYARD_BASE_URL="https://gpu.example.org/tuneyard/") as behind:
        token = behind.token("tess")
        answer = asked(behind, "POST", "/api/v1/sweeps", token, json={"spec": SPEC})
        place = f"https://gpu.example.org/tuneyard/api/v1/sweeps/{answer.json()['sweep_id']}"
        assert answer.headers["Location"] == place
        document = asked(behind, "GET", "/openapi.json", token).json()
        assert document["servers"] == [{"url": "https://gpu.example.org/tuneyard"}]


@pytest.mark.parametrize(
    "odd", ["gpu.example.org", "ftp://h", "https://", "https://u:s3cr3t@h", "http://h?a=1", "http://["]
)
def test_a_base_url_that_is_no_address_is_refused(tmp_path: Path, odd: str) -> None:
    with pytest.raises(InputError, match=r"TUNEYARD_BASE_URL: found .*; allowed: https://HOST") as refused:
        Service.configured({"TUNEYARD_HOME": str(tmp_path / ".tuneyard"), "TUNEYARD_BASE_URL": odd})
    assert "s3cr3t" not in str(refused.value)


def test_a_spec_is_told_as_it_was_accepted(served: Served) -> None:
    tess = served.client("tess")
    sweep = tess.submit(SPEC, overrides=["search.trials=2"])
    assert parse(tess.spec(sweep.sweep_id), file="told") == parse(SPEC, file="sent", overrides=("search.trials=2",))


def test_who_follows_a_log_is_sent_away_once_their_token_is_revoked(served: Served) -> None:
    gone = served.client("gone")
    sweep_id = gone.submit(SPEC).sweep_id
    (served.service.queue(gone.whoami()).folder(sweep_id).path / "driver.log").write_text("one\n")
    pieces = gone.logs(sweep_id, follow=True)
    assert next(pieces) == "one\n"
    served.service.accounts.revoke(gone.whoami().token_id, revoked_by="root", now_ms=2)
    with pytest.raises(RefusedError, match="revoked"):
        next(pieces)


@pytest.mark.parametrize("odd", ["\udcff", "ü"])
def test_text_that_cannot_be_sent_is_the_callers_fault(ann: Client, odd: str) -> None:
    with pytest.raises(InputError):
        ann.sweep(odd)
    with pytest.raises(InputError):
        ann.submit(SPEC, key=odd)


def test_the_queue_is_paused_and_limits_are_set_by_admins(served: Served) -> None:
    admin = served.client("root", "admin")
    admin.pause("new disks")
    paused = admin.queue().paused
    assert paused is not None
    assert (paused.reason, paused.by) == ("new disks", "root")
    admin.go_on()
    assert admin.queue().paused is None
    admin.set_limits("b ob", Limits(gpus=2))
    assert admin.limits()["b ob"] == Limits(gpus=2)
    admin.set_limits("b ob", None)
    assert "b ob" not in admin.limits()


def test_a_plan_makes_nothing(served: Served, ann: Client) -> None:
    before = len(list(ann.sweeps()))
    assert ann.plan(SPEC, overrides=["search.trials=3"])["trials"] == 3
    assert len(list(ann.sweeps())) == before


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ("a: [1", ""),
        ("- 1", ""),
        ("x: &a 1\ny: *a", ""),
        (SPEC.replace("version: 1", "version: 1\nnope: 1"), "nope"),
        (SPEC + "\nsearch: {trials: -1}", "search"),
        (SPEC.replace("d_model: 16", "d_model: 0"), "model.d_model"),
        ("\0", ""),
        ("é" * 1000, ""),
    ],
)
def test_a_spec_that_is_wrong_is_refused_with_where_and_what(served: Served, ann: Client, spec: str, path: str) -> None:
    answer = asked(served, "POST", "/api/v1/sweeps", served.token("ann"), json={"spec": spec})
    found = problem(answer)
    assert (answer.status_code, found["code"]) == (422, "invalid_spec")
    assert found["detail"].startswith("spec.yaml")
    assert path in [one["path"] for one in found["errors"]]
    with pytest.raises(InputError, match=r"spec\.yaml"):
        ann.submit(spec)


@pytest.mark.parametrize(
    ("method", "path", "more", "field"),
    [
        ("POST", "/api/v1/sweeps", {"json": {"spec": SPEC, "priority": 101}}, "body.priority"),
        ("POST", "/api/v1/sweeps", {"json": {"spec": SPEC, "colour": 1}}, "body.colour"),
        ("POST", "/api/v1/sweeps", {"json": {"spec": "x" * ((1 << 20) + 1)}}, "body.spec"),
        ("POST", "/api/v1/sweeps", {"content": b"{"}, "body"),
        ("POST", "/api/v1/sweeps", {}, "body"),
        (
            "POST",
            "/api/v1/sweeps",
            {"json": {"spec": SPEC}, "headers": {"Idempotency-Key": ""}},
            "header.idempotency-key",
        ),
        ("GET", "/api/v1/sweeps?limit=0", {}, "query.limit"),
        ("GET", "/api/v1/sweeps?state=nope", {}, "query.state.0"),
        ("GET", "/api/v1/sweeps/zz/events?after=-1", {}, "query.after"),
        ("GET", "/api/v1/sweeps/zz/trials?order=worst", {}, "query.order"),
    ],
)
def test_bad_requests_name_their_field(
    served: Served, method: str, path: str, more: dict[str, Any], field: str
) -> None:
    answer = asked(served, method, path, served.token("ann"), **more)
    assert answer.status_code == 422
    assert field in [one["path"] for one in problem(answer)["errors"]]


def test_what_is_not_there_is_a_404(served: Served, ann: Client) -> None:
    for method, path in (("GET", "/api/v1/sweeps/zz"), ("GET", "/api/v1/models/zz"), ("GET", "/nope")):
        answer = asked(served, method, path, served.token("ann"))
        assert (answer.status_code, problem(answer)["code"]) == (404, "not_found")
    with pytest.raises(UnknownError, match="sweep 'zz': not in the queue"):
        ann.sweep("zz")
    gone = asked(served, "DELETE", "/api/v1/tokens/nope", served.token("root", "admin"))
    assert (gone.status_code, problem(gone)["code"]) == (404, "not_found")
    assert problem(asked(served, "PUT", "/api/v1/sweeps", served.token("ann")))["code"] == "method_not_allowed"


def test_what_cannot_be_done_now_is_a_409(served: Served, ann: Client) -> None:
    sweep_id = ann.submit(SPEC).sweep_id
    job = served.service.store.get(sweep_id).job
    end = DriverEnd("succeeded")
    change(served, sweep_id, jobs.driver_ended(jobs.started(jobs.claimed(job, 2), 3), end, 4, most_losses=1))
    answer = asked(served, "POST", f"/api/v1/sweeps/{sweep_id}/cancel", served.token("ann"))
    assert (answer.status_code, problem(answer)["code"]) == (409, "refused")


def test_files_are_read_from_the_named_folders_only(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "good.csv").write_text("text,target\na,b\n")
    (tmp_path / "secret.csv").write_text("text,target\na,b\n")
    (tmp_path / "data" / "link.csv").symlink_to(tmp_path / "secret.csv")
    (tmp_path / "data" / "up").symlink_to(tmp_path)
    with serving(tmp_path / ".tuneyard", TUNEYARD_DATA_ROOTS=str(tmp_path / "data")) as served:
        ann = served.client("ann")
        read = "columns: {source: text, target: target}, header: true"

        def plan(source: str) -> None:
            ann.plan(SPEC.replace("source: builtin/dates, examples: 200", f"source: '{source}', {read}"))

        plan(f"{tmp_path}/data/good.csv")
        kept = ann.upload(tmp_path / "secret.csv").path
        assert kept is not None
        plan(kept)
        plan(f"{tmp_path}/data/g*.csv")
        for outside in (
            tmp_path / "secret.csv",
            tmp_path / "data" / "link.csv",
            tmp_path / "data" / ".." / "secret.csv",
            tmp_path / "data" / "up" / "*.csv",
            tmp_path / "data" / "*.csv",
            tmp_path / ".tuneyard" / "x.csv",
            "/etc/*.txt",
        ):
            with pytest.raises(RefusedError, match=r"data\.source: .* is outside what this service reads"):
                plan(str(outside))
        for wrong, why in (
            ("none.csv", "there is no file"),
            ("[x]/../../secret.csv", r"the pattern .* has \.\. in it"),
            ("**/**/*.csv", r"or \*\* twice"),
            ("x" * 300 + ".csv", "File name too long"),
        ):
            with pytest.raises(InputError, match=why):
                plan(f"{tmp_path}/data/{wrong}")
        with pytest.raises(RefusedError, match="TUNEYARD_HUB=1"):
            ann.plan(
                SPEC.replace(
                    "source: builtin/dates, examples: 200", "source: hub/owner/name, columns: {source: a, target: b}"
                )
            )


def test_what_the_service_stands_on_is_told_apart(served: Served) -> None:
    answer = asked(served, "GET", "/readyz", served.token("ann", "viewer"))
    assert answer.status_code == 503
    found = answer.json()
    assert (found["ready"], found["database"]["ok"], found["ray"]["ok"]) == (False, True, False)
    assert "Ray at http://127.0.0.1:9 does not answer" in found["ray"]["message"]


def test_a_fault_of_ours_says_where_to_look_and_nothing_else(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = replace(served.service, store=None)  # type: ignore[arg-type]
    from starlette.testclient import TestClient

    client = TestClient(create_app(broken), raise_server_exceptions=False)
    answer = client.get("/api/v1/sweeps", headers={"Authorization": f"Bearer {served.token('ann')}"})
    assert answer.status_code == 500
    mark = answer.json()["detail"].rpartition(" ")[2]
    assert mark in caplog.text
    assert "NoneType" not in answer.text


def test_the_openapi_document_tells_what_errors_look_like(served: Served) -> None:
    document = asked(served, "GET", "/openapi.json", served.token("ann", "viewer")).json()
    assert "Problem" in document["components"]["schemas"]
    codes = {code for codes in CODES.values() for code in codes}
    assert {"invalid_spec", "refused", "not_allowed", "not_logged_in", "not_found", "unreachable"} <= codes
    assert document["paths"]["/api/v1/sweeps"]["post"]["responses"].keys() >= {"201", "401", "403", "409", "422", "503"}


def test_a_client_says_what_is_wrong_with_an_address(served: Served) -> None:
    with pytest.raises(InputError, match="no address"):
        Client("ftp://x", "t")
    with pytest.raises(UnreachableError, match=r"the service at http://127\.0\.0\.1:9 does not answer"):
        Client("http://127.0.0.1:9", "t").whoami()


def test_the_application_loads_no_torch_and_no_ray() -> None:
    heavy = ("torch", "ray", "pytorch_lightning", "datasets", "tuneyard_modules")
    script = f"import sys, tuneyard.api.__main__; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


def test_q10_a_file_is_sent_once_by_its_content_and_goes_on_where_it_broke_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuneyard.client.PIECE_BYTES", 1000)
    (tmp_path / "a").mkdir()
    file = tmp_path / "a" / "pairs é.csv"
    file.write_bytes(bytes(range(256)) * 10)
    with serving(tmp_path / "home") as served:
        ann, put = served.client("ann"), httpx2.Client.put
        sent: list[int] = []

        def flaky(client: httpx2.Client, url: str, **more: Any) -> httpx2.Response:
            sent.append(more["params"]["offset"])
            if len(sent) in (2, 3):
                if len(sent) == 3:
                    put(client, url, **more)  # it came, but its answer is lost
                raise httpx2.ReadError("cut off")
            return put(client, url, **more)

        monkeypatch.setattr(httpx2.Client, "put", flaky)
        kept = ann.upload(file)
        assert sent == [0, 1000, 1000, 2000]
        assert kept.path is not None
        assert Path(kept.path).read_bytes() == file.read_bytes()
        assert Path(kept.path).name == file.name
        assert served.client("bob").upload(file) == kept
        assert len(sent) == 4, "what is there is not sent again"
        assert ann.uploads() == [kept]
        empty = tmp_path / "a" / "empty.txt"
        empty.touch()
        assert ann.upload(empty).received_bytes == 0


@pytest.mark.parametrize(
    ("digest", "query", "code"),
    [
        ("ab", {}, "invalid_input"),
        ("0" * 64, {"name": "../../x"}, "invalid_input"),
        ("0" * 64, {"name": ".hidden"}, "invalid_input"),
        ("0" * 64, {"name": "a/b"}, "invalid_input"),
        ("0" * 64, {}, "invalid_input"),  # the bytes have another digest
        ("1" * 64, {"offset": 5}, "refused"),
        ("1" * 64, {"total_bytes": 1}, "refused"),
        ("1" * 64, {"total_bytes": 2 << 30 | 1}, "too_large"),
    ],
)
def test_what_is_no_piece_of_a_file_is_refused(served: Served, digest: str, query: dict[str, Any], code: str) -> None:
    query = {"name": "a.csv", "offset": 0, "total_bytes": 3} | query
    answer = asked(served, "PUT", f"/api/v1/uploads/{digest}", served.token("ann"), params=query, content=b"abc")
    assert problem(answer)["code"] == code
    assert served.client("ann").uploads() == []


def test_a_request_that_is_too_large_is_refused_before_it_is_read_whole(served: Served) -> None:
    for method, path in (("POST", "/api/v1/sweeps"), ("PUT", f"/api/v1/uploads/{'0' * 64}")):
        for content in (b"x" * (LARGEST_BODY_BYTES + 1), iter([b"x" * (1 << 20)] * 17)):
            query = {"name": "a", "offset": 0, "total_bytes": 1}
            answer = asked(served, method, path, served.token("ann"), params=query, content=content)
            assert (answer.status_code, problem(answer)["code"]) == (413, "too_large")


def test_a_length_that_is_said_beside_pieces_does_not_hide_how_much_they_are(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    head = f"POST /api/v1/sweeps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.token('ann')}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    piece = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode())
        with contextlib.suppress(OSError):  # it may hang up before it has all
            for _ in range(17):
                connection.sendall(piece)
            connection.sendall(b"0\r\n\r\n")
        answer = connection.makefile("rb").readline()
    assert answer.split()[1] in (b"400", b"413")


def test_a_spec_that_cannot_run_is_refused_however_often_it_comes(served: Served, ann: Client) -> None:
    before = len(list(ann.sweeps()))
    dead = SPEC.replace("num_heads: [1, 2, 4, 8]", "num_heads: [3, 5]")
    for _ in range(2):
        answer = asked(served, "POST", "/api/v1/sweeps", served.token("ann"), json={"spec": dead})
        assert (answer.status_code, problem(answer)["code"]) == (422, "invalid_spec")
        assert "no point is feasible" in problem(answer)["detail"]
    assert len(list(ann.sweeps())) == before


def test_that_a_file_may_be_read_is_asked_at_each_submit(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "a.csv"
    file.write_text("text,target\na,b\n")
    read = "columns: {source: text, target: target}, header: true"
    spec = SPEC.replace("source: builtin/dates, examples: 200", f"source: '{file}', {read}")
    with serving(tmp_path / ".tuneyard", TUNEYARD_DATA_ROOTS=str(tmp_path / "data")) as served:
        ann = served.client("ann")
        ann.submit(spec)
        file.unlink()
        with pytest.raises(InputError, match="there is no file"):
            ann.submit(spec)
        file.symlink_to("/etc/passwd")
        with pytest.raises(RefusedError, match="outside what this service reads"):
            ann.submit(spec)


def test_a_stored_spec_that_later_rules_refuse_is_listed_and_shown(served: Served) -> None:
    old = served.client("old")
    sweep_id = old.submit(SPEC).sweep_id
    entry = served.service.store.get(sweep_id)
    refused = entry.spec_text.replace("num_layers", "layers_then")
    stored = replace(entry, spec_text=refused + "metric_then: 1\n")
    served.service.store.change(stored, jobs.claimed(entry.job, 2), actor="d", now_ms=1, what="moved")
    row = TrialRow("t001", 1, "t01", "running", 1, score=0.5, rung=1)
    served.service.store.put_trials(sweep_id, [row])
    [listed] = old.page(owner="old").sweeps
    assert listed.best_text == "t001 val/exact_match 0.5"
    assert old.sweep(sweep_id).asked == 4
    assert old.trials(sweep_id).total == 1


def test_what_is_no_number_keeps_no_sweep_from_being_read(served: Served) -> None:
    odd = served.client("odd")
    sweep_id = odd.submit(SPEC).sweep_id
    change(served, sweep_id, jobs.claimed(served.service.store.get(sweep_id).job, 2))
    nan, inf = float("nan"), float("inf")
    row = TrialRow("t001", 1, "t01", "running", 1, score=nan, rung=1, share=nan, point={"a": inf}, metrics={"b": nan})
    served.service.store.put_trials(sweep_id, [row])
    [best] = odd.sweep(sweep_id).leaderboard
    assert (best.score, best.share, best.point) == (None, 0.0, {"a": "inf"})
    assert odd.trials(sweep_id).trials[0].metrics == {"b": None}
    assert odd.page(owner="odd").sweeps[0].best is None
