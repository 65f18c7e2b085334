"""Webhooks: what is owed to whom, how it is brought and tried again, and where it may not lead."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import re
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from driven_sweep import SPEC, DrivenSweep
from receiver import Receiver, receiving
from service import serving
from waiting import until

from tuneyard import courier, jobs, logins, settings, webhooks
from tuneyard.courier import NETWORKS, Courier, public, send, signature
from tuneyard.database import Database
from tuneyard.jobs import DriverEnd, Job
from tuneyard.store import REGISTERED, Entry, Shape, Store, TrialRow
from tuneyard.trial_rows import TrialFeed
from tuneyard.webhooks import KINDS, MOST_TRIES, TEST, Answer, Due, Hook, Webhooks, wait_s
from tuneyard_pipelines.errors import InputError, RefusedError, UnreachableError
from tuneyard_pipelines.journal import WinnerRegistered

DOCS = (Path(__file__).resolve().parents[3] / "docs" / "webhooks.md").read_text(encoding="utf-8")
LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
NOW_MS = 1_800_000_000_000
TLS = ssl.create_default_context()
REGISTERED_AS = "dates/3: candidate is now version 3"


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database to copy."""
    path = tmp_path_factory.mktemp("migrated") / "queue.db"
    made = Database(f"sqlite:///{path}")
    made.migrate()
    made.close()
    return path


@pytest.fixture
def database(migrated: Path, tmp_path: Path) -> Iterator[Database]:
    shutil.copy(migrated, tmp_path)
    made = Database(f"sqlite:///{tmp_path / 'queue.db'}")
    yield made
    made.close()


@pytest.fixture
def hooks(database: Database) -> Webhooks:
    return Webhooks(database)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def make(hooks: Webhooks, *events: str, url: str = "https://hooks.test/x", form: webhooks.Format = "json") -> Hook:
    return hooks.create(url, events, form, created_by="root", now_ms=NOW_MS)[0]


def submit(store: Store, sweep_id: str) -> Entry:
    entry = Entry(Job(sweep_id), "dates", "ann", 50, 1, SPEC, Shape(1, 0, 1))
    return store.submit(entry, "ann", NOW_MS)


def end(store: Store, sweep_id: str, how: str = "succeeded", reason: str = "", message: str = "") -> None:
    """Submitted, run, and ended so."""
    entry = submit(store, sweep_id)
    moves: list[Callable[[Job], Job]] = [
        lambda job: jobs.claimed(job, 1),
        lambda job: jobs.started(job, 2),
        lambda job: jobs.driver_ended(job, DriverEnd(how, reason, message), 3, most_losses=1),  # type: ignore[arg-type]
    ]
    for move in moves:
        entry = store.change(entry, move(entry.job), actor="dispatcher", now_ms=NOW_MS + 5, what="moved")


def told(hooks: Webhooks, hook: Hook) -> list[Any]:
    """The bodies of what it is owed or was told, oldest first."""
    return [json.loads(one.body) for one in reversed(hooks.deliveries(hook.hook_id))]


def only_due(hooks: Webhooks, hook: Hook, now_ms: int = NOW_MS) -> Due:
    due = hooks.next_due(hook.hook_id, now_ms)
    assert due is not None
    return due


def due_to(url: str) -> Due:
    return Due("msg_1", '{"a": 1}', url, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")


def sent(url: str, networks: Any = LOOPBACK) -> Answer:
    return send(due_to(url), networks, now_ms=NOW_MS, tls=TLS)


def test_each_hook_is_owed_what_it_asked_for_and_what_came_after_it(database: Database, hooks: Webhooks) -> None:
    store = Store(database)
    end(store, "before")
    everything, failures = make(hooks), make(hooks, "sweep.failed")
    end(store, "good")
    store.put_trials("good", [TrialRow("t007", 7, "t07", "completed", 1, score=0.9375, rung=1)])
    store.note_once("good", "driver", REGISTERED, REGISTERED_AS, NOW_MS)
    end(store, "bad", "failed", "invalid_spec", "postgresql://me:s3cret@host/db: no such file")
    entry = submit(store, "gone")
    store.change(entry, jobs.stopped(entry.job, "user_cancel", 9), actor="ann", now_ms=9, what="cancelled")
    hooks.owe(NOW_MS)
    hooks.owe(NOW_MS)
    found = told(hooks, everything)
    assert [(one["type"], one["data"]["sweep_id"]) for one in found] == [
        ("sweep.succeeded", "good"),
        ("candidate.registered", "good"),
        ("sweep.failed", "bad"),
        ("sweep.cancelled", "gone"),
    ]
    assert told(hooks, failures) == [found[2]]
    assert found[2]["data"]["message"] == "postgresql://me:***@host/db: no such file"
    assert (found[2]["data"]["reason"], found[2]["data"]["score"]) == ("invalid_spec", None)
    assert found[0]["timestamp"] == "2027-01-15T08:00:00.005Z"
    assert {hook.hook_id: hook.waiting for hook in hooks.all()} == {everything.hook_id: 4, failures.hook_id: 1}


def test_the_payload_of_the_docs_is_what_is_sent(database: Database, hooks: Webhooks) -> None:
    store, hook, line = Store(database), make(hooks), make(hooks, form="slack")
    entry = submit(store, "322eb644")
    store.change(entry, jobs.claimed(entry.job, 1), actor="dispatcher", now_ms=NOW_MS, what="claimed")
    store.put_trials("322eb644", [TrialRow("t007", 7, "t07", "completed", 1, score=0.9375, rung=1)])
    store.note_once("322eb644", "driver", REGISTERED, REGISTERED_AS, NOW_MS)
    hooks.owe(NOW_MS)
    [body] = told(hooks, hook)
    example = json.loads(re.findall(r"```json\n(.*?)```", DOCS, re.DOTALL)[0])
    assert {**body, "timestamp": ""} == {**example, "timestamp": ""}
    said = "Model dates/3 of sweep dates (322eb644) of ann: candidate is now version 3; t007 val/exact_match 0.9375"
    assert told(hooks, line) == [{"text": said}]


def test_slack_is_told_in_a_line_that_calls_nobody(database: Database, hooks: Webhooks) -> None:
    hook = make(hooks, form="slack")
    end(Store(database), "322eb644", "failed", "internal", "<!channel> & all")
    hooks.owe(NOW_MS)
    said = "Sweep dates (322eb644) of ann failed: internal: &lt;!channel&gt; &amp; all"
    assert told(hooks, hook) == [{"text": said}]


def test_nothing_is_owed_twice_or_left_out_whoever_is_killed(
    database: Database, hooks: Webhooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, hook = Store(database), make(hooks)
    for number in range(5):
        end(store, f"s{number}")
    owe, calls = webhooks._owe, iter(range(100))

    def dies(*words: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return owe(*words)

    monkeypatch.setattr(webhooks, "_owe", dies)
    with pytest.raises(KeyboardInterrupt):
        hooks.owe(NOW_MS)
    assert told(hooks, hook) == []
    monkeypatch.undo()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda at: Webhooks(database).owe(NOW_MS), range(4)))
    assert [one["data"]["sweep_id"] for one in told(hooks, hook)] == [f"s{number}" for number in range(5)]


def test_more_events_than_are_read_at_once_are_all_owed(
    database: Database, hooks: Webhooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "_MOST_AT_ONCE", 2)
    store, hook = Store(database), make(hooks)
    for number in range(5):
        end(store, f"s{number}")
    for _ in range(3):
        hooks.owe(NOW_MS)
    assert [one["data"]["sweep_id"] for one in told(hooks, hook)] == [f"s{number}" for number in range(5)]


def test_a_model_in_the_registry_is_an_event_once_however_often_the_journal_is_read(
    database: Database, make_sweep: Callable[..., DrivenSweep]
) -> None:
    sweep, store = make_sweep(), Store(database)
    entry = submit(store, sweep.folder.sweep_id)
    sweep.create(1)
    for version in (1, 2):
        said = f"candidate is now version {version}"
        sweep.journal.append(WinnerRegistered("t001", "dates", version, said, NOW_MS))
        for feed in (TrialFeed(store), TrialFeed(store)):
            for _ in range(2):
                feed.read(sweep.folder, entry, None, NOW_MS)
    events = [event.message for event in store.events(sweep.folder.sweep_id) if event.what == REGISTERED]
    assert events == ["dates/1: candidate is now version 1", "dates/2: candidate is now version 2"]


def test_since_when_a_trial_trains_is_known_while_it_does(
    database: Database, make_sweep: Callable[..., DrivenSweep]
) -> None:
    sweep, store = make_sweep(), Store(database)
    entry, feed = submit(store, sweep.folder.sweep_id), TrialFeed(store)

    def since_ms() -> int | None:
        feed.read(sweep.folder, entry, None, NOW_MS)
        return store.trials(sweep.folder.sweep_id, order="number", mode="max")[0].since_ms

    trial = sweep.create(1)
    assert since_ms() is None
    sweep.start(trial)
    assert since_ms() == sweep.journal.state.trials[trial].started_ms > 0
    sweep.reach(trial, 0, 0.5)
    assert since_ms() is None
    sweep.start(trial, 1)
    sweep.close("lost", "gone")
    assert since_ms() is None


def test_a_failed_try_waits_for_the_next_as_the_docs_say(database: Database, hooks: Webhooks) -> None:
    hook = make(hooks)
    end(Store(database), "a")
    hooks.owe(NOW_MS)
    units = {"s": 1, "min": 60, "h": 3600}
    rows = re.findall(r"^\| (\d) \| (.*) \|$", DOCS, re.MULTILINE)
    waits = [sum(int(n) * units[unit] for n, unit in re.findall(r"(\d+) (\w+)", said)) for _, said in rows]
    assert len(rows) == MOST_TRIES
    now_ms = NOW_MS
    for number in range(1, MOST_TRIES + 1):
        now_ms += 1000 * waits[number - 1]
        assert hooks.next_due(hook.hook_id, now_ms - 1) is None or number == 1
        assert hooks.due(now_ms) == [hook.hook_id]
        hooks.tried(only_due(hooks, hook, now_ms).delivery_id, Answer(500, "answers 500"), now_ms=now_ms, chance=0.5)
    [delivery] = hooks.deliveries(hook.hook_id)
    assert delivery.state == "given up"
    assert [one.number for one in delivery.tries] == list(range(1, MOST_TRIES + 1))
    assert {(one.status, one.error) for one in delivery.tries} == {(500, "answers 500")}
    assert delivery.tries[-1].time_ms == now_ms
    assert timedelta(hours=22) < timedelta(milliseconds=now_ms - NOW_MS) < timedelta(hours=26)
    [ended] = hooks.all()
    why = f"nothing was taken in 8 tries; see them with: tuneyard webhook deliveries {hook.hook_id}"
    assert (ended.ended_ms, ended.ended_why) == (now_ms, why), "and not what the receiver said, which may be its URL"
    assert (wait_s(1, 0.0), wait_s(1, 1.0)) == (12.0, 18.0)


def test_what_one_event_cannot_bring_ends_no_hook_that_takes_others(database: Database, hooks: Webhooks) -> None:
    hook, store = make(hooks), Store(database)
    end(store, "poison")
    hooks.owe(NOW_MS)
    poison = only_due(hooks, hook).delivery_id
    for _ in range(MOST_TRIES - 1):
        hooks.tried(poison, Answer(400, "answers 400"), now_ms=NOW_MS + 1, chance=0.5)
    end(store, "good")
    hooks.owe(NOW_MS + 2)
    hooks.tried(only_due(hooks, hook, NOW_MS + 2).delivery_id, Answer(204), now_ms=NOW_MS + 3, chance=0.5)
    hooks.tried(poison, Answer(400, "answers 400"), now_ms=NOW_MS + 4, chance=0.5)
    assert [one.state for one in hooks.deliveries(hook.hook_id)] == ["delivered", "given up"]
    assert hooks.all()[0].ended_ms is None


def test_a_receiver_that_is_gone_is_told_nothing_any_more(database: Database, hooks: Webhooks) -> None:
    hook, store = make(hooks), Store(database)
    for sweep_id in "ab":
        end(store, sweep_id)
    hooks.owe(NOW_MS)
    hooks.tried(only_due(hooks, hook).delivery_id, Answer(410, "answers 410"), now_ms=NOW_MS, chance=0.5)
    end(store, "c")
    hooks.owe(NOW_MS)
    assert hooks.due(NOW_MS * 2) == []
    assert len(hooks.deliveries(hook.hook_id)) == 2
    assert hooks.all()[0].ended_why == "its receiver says that it is gone (410)"
    assert store.events(None)[-1].message == f"{hook.hook_id}: its receiver says that it is gone (410)"
    with pytest.raises(RefusedError, match="has ended: its receiver says that it is gone"):
        hooks.test(hook.hook_id, now_ms=NOW_MS)


def test_a_test_is_tried_once_and_ends_nothing(hooks: Webhooks) -> None:
    hook = make(hooks)
    hooks.test(hook.hook_id, now_ms=NOW_MS)
    due = only_due(hooks, hook)
    assert json.loads(due.body)["type"] == TEST
    hooks.tried(due.delivery_id, Answer(500, "answers 500"), now_ms=NOW_MS, chance=0.5)
    assert hooks.due(NOW_MS * 2) == []
    assert hooks.all()[0].ended_ms is None


def test_of_a_hook_that_was_deleted_nothing_is_left(database: Database, hooks: Webhooks) -> None:
    hook = make(hooks)
    hooks.test(hook.hook_id, now_ms=NOW_MS)
    under_way = only_due(hooks, hook).delivery_id
    hooks.tried(under_way, Answer(500, "answers 500"), now_ms=NOW_MS, chance=0.5)
    assert hooks.delete(hook.hook_id, deleted_by="root", now_ms=NOW_MS).hook_id == hook.hook_id
    hooks.tried(under_way, Answer(500, "answers 500"), now_ms=NOW_MS, chance=0.5)
    assert hooks.all() == []
    for call in (
        lambda: hooks.deliveries(hook.hook_id),
        lambda: hooks.test(hook.hook_id, now_ms=NOW_MS),
        lambda: hooks.delete(hook.hook_id, deleted_by="root", now_ms=NOW_MS),
    ):
        with pytest.raises(InputError, match=f"webhook '{hook.hook_id}': there is none of this id"):
            call()


@pytest.mark.parametrize(
    ("url", "events", "form", "message"),
    [
        ("ftp://h/s3cret", (), "json", "url: not an http or https address"),
        ("hooks.example.org/s3cret", (), "json", "url: "),
        ("http:///s3cret", (), "json", "url: not an http or https address"),
        ("https://me:s3cret@h/", (), "json", "url: holds a user"),
        ("https://me:s3/cret@h/", (), "json", "url: no address; give one such as"),
        ("http://h:0/s3cret", (), "json", "url: found port 0; allowed: 1 to 65535"),
        ("https://h:99999/s3cret", (), "json", "url: found port 99999"),
        ("https://h/" + "s3cret" * 400, (), "json", "at most 2000 characters"),
        ("https://h/", ("sweep.exploded",), "json", r"event: found 'sweep.exploded'; allowed: sweep.succeeded, "),
        ("https://h/", ("webhook.test",), "json", "event: found 'webhook.test'"),
        ("https://h/", (), "xml", "format: found 'xml'; allowed: json, slack"),
    ],
)
def test_what_no_hook_can_be_made_of_is_named_and_no_url_with_it(
    hooks: Webhooks, url: str, events: tuple[str, ...], form: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message) as refused:
        make(hooks, *events, url=url, form=form)
    assert "s3cret" not in str(refused.value)
    assert hooks.all() == []


def test_every_event_has_its_row_in_the_docs() -> None:
    assert dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", DOCS, re.MULTILINE)) == KINDS


def test_a_signature_is_that_of_the_specification() -> None:
    """The vector of Standard Webhooks' own libraries."""
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", '{"test": 2432232314}'
    found = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", body)
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_docs_know_a_delivery_from_a_forgery(hooks: Webhooks, receiver: Receiver) -> None:
    hook, secret = hooks.create(receiver.url + "?q=ü", (), "json", created_by="root", now_ms=NOW_MS)
    hooks.test(hook.hook_id, now_ms=NOW_MS)
    now_ms = int(time.time() * 1000)
    due = only_due(hooks, hook)
    assert send(due, LOOPBACK, now_ms=now_ms, tls=TLS) == Answer(204)
    [request] = receiver.requests
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)[0], names)
    check = names["is_from_tuneyard"]
    assert check(secret, request.headers, request.body.encode())
    assert not check(secret, request.headers, request.body.encode() + b" ")
    assert not check(hooks.create("https://h/", (), "json", created_by="r", now_ms=1)[1], request.headers, b"")
    assert not check(secret, {**request.headers, "webhook-timestamp": str(now_ms // 1000 - 301)}, request.body.encode())
    assert request.headers["webhook-id"] == due.delivery_id
    assert request.headers["content-type"] == "application/json"
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert request.path == "/hook?q=%C3%BC"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fec0::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:127.0.0.1",
        "64:ff9b::a01:203",
        "2002:7f00:1::1",
        "2001:0:7f00:1::1",
    ],
)
def test_no_such_address_is_public(address: str) -> None:
    assert not public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111"])
def test_such_an_address_is_public(address: str) -> None:
    assert public(ipaddress.ip_address(address))


def leading(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Names lead there from now on; the names that were asked for."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def found(host: Any, port: Any, *words: Any, **more: Any) -> Any:
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(host)
            return real(host, port, *words, **more)
        asked.append(host)
        return [one for address in addresses for one in real(address, port, *words, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    return asked


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "localhost", "0.0.0.0"]
)
def test_this_machine_is_told_nothing_unless_that_is_allowed(receiver: Receiver, host: str) -> None:
    answer = sent(f"http://{host}:{receiver.port}/", networks=())
    assert answer.status is None
    assert "is not public; whoever runs the service allows it with TUNEYARD_WEBHOOK_NETWORKS" in answer.error
    assert receiver.requests == []


def test_an_allowed_network_is_allowed_in_the_clothes_of_ipv6_too(receiver: Receiver) -> None:
    assert sent(f"http://[::ffff:127.0.0.1]:{receiver.port}/") == Answer(204)


def test_a_name_is_asked_for_once_and_its_address_is_what_is_connected_to(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = leading(monkeypatch, "127.0.0.1")
    assert sent(f"http://hooks.test:{receiver.port}/x") == Answer(204)
    assert asked == ["hooks.test"]
    assert receiver.requests[0].headers["host"] == f"hooks.test:{receiver.port}"


def test_a_name_that_leads_in_and_out_is_refused(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    leading(monkeypatch, "127.0.0.1", "10.0.0.7")
    assert sent(f"http://hooks.test:{receiver.port}/").error.startswith("hooks.test leads to 10.0.0.7, which is not")
    assert receiver.requests == []


def test_the_next_address_of_a_name_is_tried_where_the_first_does_not_answer(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    leading(monkeypatch, "127.0.0.2", "127.0.0.1")
    assert sent(f"http://hooks.test:{receiver.port}/") == Answer(204)


def certificate(folder: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """Of a receiver of this name, and what it serves with."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    today = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    form = serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return path, context


def test_over_tls_the_name_is_proved_though_an_address_is_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leading(monkeypatch, "127.0.0.1")
    path, serving_tls = certificate(tmp_path, "hooks.test")
    trusting = ssl.create_default_context(cafile=path)
    with receiving(serving_tls) as receiver:
        url = f"https://hooks.test:{receiver.port}/"
        assert send(due_to(url), LOOPBACK, now_ms=NOW_MS, tls=trusting) == Answer(204)
        other = url.replace("hooks.test", "other.test")
        assert "CERTIFICATE_VERIFY_FAILED" in send(due_to(other), LOOPBACK, now_ms=NOW_MS, tls=trusting).error
        assert len(receiver.requests) == 1


def test_what_a_receiver_answers_is_told_and_not_followed(receiver: Receiver) -> None:
    receiver.answers = [
        (302, {"Location": "http://127.0.0.1:9/"}, b""),
        (500, {"Content-Length": "1000000"}, b"no\n such   channel \xff" + b"x" * 1000),  # the rest never comes
        (503, {}, b""),
        (200, {}, b"x" * 10_000_000),
    ]
    answers = [sent(receiver.url) for _ in range(4)]
    assert answers[0] == Answer(302, "answers 302, which leads elsewhere; name that place itself")
    assert answers[1].error.startswith("answers 500: no such channel �xxx")
    assert len(answers[1].error) < 600
    assert answers[2:] == [Answer(503, "answers 503"), Answer(200)]
    assert sent("http://127.0.0.1:9/").error
    assert "nosuch.invalid" in sent("http://nosuch.invalid/").error


def test_a_try_is_over_in_time_whatever_the_receiver_does(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "TRY_S", 0.3)
    receiver.held.clear()
    assert sent(receiver.url) == Answer(None, "no whole answer within 0 s")
    with socket.create_server(("127.0.0.1", 0)) as dripping:
        over = threading.Event()

        def drip() -> None:
            there, _ = dripping.accept()
            with there, contextlib.suppress(OSError):
                there.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 400\r\n\r\n")
                while not over.wait(0.02):
                    there.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        assert sent(f"http://127.0.0.1:{dripping.getsockname()[1]}/") == Answer(None, "no whole answer within 0 s")
        over.set()
        thread.join()


@contextlib.contextmanager
def bringing(hooks: Webhooks, leads: Callable[[], bool] = lambda: True) -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=Courier(hooks, LOOPBACK, leads).work, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_receiver_that_hangs_holds_up_no_other(
    database: Database, hooks: Webhooks, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "PASS_S", 0.02)
    with receiving() as hanging:
        hanging.held.clear()
        make(hooks, url=hanging.url)
        make(hooks, url=receiver.url)
        for number in range(5):
            end(Store(database), f"s{number}")
        with bringing(hooks):
            until(lambda: hanging.requests and len(receiver.requests) == 5)
            assert len(hanging.requests) == 1
            hanging.held.set()
            until(lambda: len(hanging.requests) == 5)
    ids = [json.loads(body)["data"]["sweep_id"] for body in receiver.bodies()]
    assert ids == [f"s{number}" for number in range(5)]


def test_what_came_of_a_try_and_could_not_be_written_is_not_tried_again_at_once(
    database: Database,
    hooks: Webhooks,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    passes: list[float] = []

    def full(*words: Any, **more: Any) -> None:
        raise UnreachableError("the disk is full")

    def owe(now_ms: int) -> None:
        passes.append(now_ms)
        Webhooks(database).owe(now_ms)

    monkeypatch.setattr(courier, "PASS_S", 0.02)
    monkeypatch.setattr(hooks, "tried", full)
    monkeypatch.setattr(hooks, "owe", owe)
    make(hooks, url=receiver.url)
    end(Store(database), "a")
    with bringing(hooks):
        until(lambda: "the disk is full" in caplog.text)
        seen = len(passes)
        until(lambda: len(passes) > seen + 5)
    assert len(receiver.requests) == 1


def test_only_who_leads_brings_and_what_was_lost_is_brought_again_under_its_id(
    database: Database, hooks: Webhooks, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "PASS_S", 0.02)
    make(hooks, url=receiver.url)
    end(Store(database), "a")
    asked: list[bool] = []

    def leads() -> bool:
        asked.append(True)
        return False

    with bringing(hooks, leads):
        until(lambda: len(asked) > 2)
    assert receiver.requests == []
    tried = Webhooks.tried
    monkeypatch.setattr(Webhooks, "tried", lambda *words, **more: 1 / 0)  # as if killed before it is written down
    with bringing(hooks):
        until(lambda: receiver.requests)
    monkeypatch.setattr(Webhooks, "tried", tried)
    before = len(receiver.requests)
    with bringing(hooks):
        until(lambda: len(receiver.requests) > before)
        until(lambda: hooks.all()[0].waiting == 0)
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 1


def test_the_secret_is_told_once_and_stands_nowhere_else(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, cli: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(courier, "PASS_S", 0.02)
    caplog.set_level(logging.INFO)
    home = tmp_path / ".tuneyard"
    with serving(home) as served, bringing(served.service.webhooks):
        logins.keep(home, logins.Login(served.url, served.token("root", "admin")))
        made = cli("webhook", "create", receiver.url + "/s3cret", "--event", "sweep.failed")
        secret = made.out.strip()
        assert secret.startswith("whsec_")
        assert "of sweep.failed; its secret is not shown again" in made.err
        [hook] = json.loads(cli("webhook", "list", "--json").out)
        assert (hook["events"], hook["format"], hook["created_by"]) == (["sweep.failed"], "json", "root")
        hook_id = hook["hook_id"]
        assert cli("webhook", "test", hook_id).out == f"webhook {hook_id}: taken (204)\n"
        receiver.answers = [(500, {}, b"no")]
        failed = cli("webhook", "test", hook_id)
        assert (failed.code, failed.err) == (1, f"error: webhook {hook_id}: answers 500: no\n")
        rows = cli("webhook", "deliveries", hook_id).out.splitlines()
        assert [row.split()[1] for row in rows[1:]] == [TEST, TEST]
        assert [("given up" in row, "answers 500: no" in row) for row in rows[1:]] == [(True, True), (False, False)]
        assert cli("webhook", "list").out.splitlines()[1].split()[-1] == "good"
        told = [cli("webhook", *words, "--json").out for words in (("list",), ("deliveries", hook_id))]
        events = served.service.store.events(None)
        assert cli("webhook", "delete", hook_id).out == f"webhook {hook_id} is deleted\n"
        assert cli("webhook", "test", hook_id).code == 2
    assert not any(secret in text for text in (*told, caplog.text, *(event.message for event in events)))
    assert "s3cret" not in caplog.text + "".join(event.message for event in events)


def test_a_test_that_nobody_sends_says_what_to_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    monkeypatch.setattr("tuneyard.cli.webhook.PATIENCE_S", 0.0)
    home = tmp_path / ".tuneyard"
    with serving(home) as served:
        logins.keep(home, logins.Login(served.url, served.token("root", "admin")))
        hook = json.loads(cli("webhook", "create", "https://hooks.test/", "--json").out)
        done = cli("webhook", "test", hook["hook_id"])
    assert done.code == 3
    assert "see that a dispatcher runs" in done.err


def test_networks_are_named_by_a_variable() -> None:
    assert settings.networks(NETWORKS, {NETWORKS: " 10.0.0.7, 10.1.0.0/16 ,"}) == tuple(
        map(ipaddress.ip_network, ("10.0.0.7/32", "10.1.0.0/16"))
    )
    assert settings.networks(NETWORKS, {}) == ()
    with pytest.raises(InputError, match=rf"{NETWORKS}: '10\.1' .*; allowed: addresses or networks, as in 10\.0"):
        settings.networks(NETWORKS, {NETWORKS: "10.1"})
