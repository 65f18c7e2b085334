"""The courier: how a delivery is signed and sent, where it may not lead, and whom a silent receiver holds up."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hooked import LOOPBACK, NOW_MS, bringing, end, make, only_due
from receiver import Receiver, receiving
from waiting import until

from tuneyard import courier, settings
from tuneyard.courier import NETWORKS, public, send, signature
from tuneyard.database import Database
from tuneyard.store import Store
from tuneyard.webhooks import Answer, Due, Webhooks
from tuneyard_pipelines.errors import InputError, UnreachableError

DOCS = (Path(__file__).resolve().parents[3] / "docs" / "webhooks.md").read_text(encoding="utf-8")
TLS = ssl.create_default_context()


def due_to(url: str) -> Due:
    return Due("msg_1", '{"a": 1}', url, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")


def sent(url: str, networks: Any = LOOPBACK) -> Answer:
    return send(due_to(url), networks, now_ms=NOW_MS, tls=TLS)


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


def test_networks_are_named_by_a_variable() -> None:
    assert settings.networks(NETWORKS, {NETWORKS: " 10.0.0.7, 10.1.0.0/16 ,"}) == tuple(
        map(ipaddress.ip_network, ("10.0.0.7/32", "10.1.0.0/16"))
    )
    assert settings.networks(NETWORKS, {}) == ()
    with pytest.raises(InputError, match=rf"{NETWORKS}: '10\.1' .*; allowed: addresses or networks, as in 10\.0"):
        settings.networks(NETWORKS, {NETWORKS: "10.1"})
