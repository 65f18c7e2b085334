"""The courier: brings to webhooks what is owed to them, signed, bounded in time, and to public addresses only.

It has threads of its own, one hook at a time in each, so that a receiver that hangs holds up neither the dispatcher nor
the other hooks. What it sends and does not see answered is sent again, under the same id.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import logging
import math
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import httpx2

import tuneyard
from tuneyard.webhooks import Answer, Due, Webhooks
from tuneyard_pipelines.errors import RefusedError, TuneyardError, first_line

log = logging.getLogger(__name__)
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PASS_S = 1.0
TRY_S, CONNECT_S = 10.0, 3.0  # for a whole try, and for one of the addresses that a name has
AT_ONCE = 8  # hooks
BROKEN_S = 60.0  # until a hook is taken up again after what came of a try could not be written down
ANSWER_BYTES = 500  # that are read of what a receiver says is wrong
NETWORKS = "TUNEYARD_WEBHOOK_NETWORKS"
# Public by what Python knows of their numbers, and yet a cloud's word to its own machines: Azure's, Oracle's.
_CLOUDS = (ipaddress.ip_network("168.63.129.16"), ipaddress.ip_network("192.0.0.0/24"))


class Courier:
    """`work` blocks; `leads` says whether this process is the one that brings."""

    def __init__(
        self,
        webhooks: Webhooks,
        networks: Sequence[Network],
        leads: Callable[[], bool],
        *,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`networks` are those that may be told besides public addresses."""
        self._webhooks, self._networks, self._leads = webhooks, networks, leads
        self._now_ms, self._chance = now_ms, chance
        self._tls = httpx2.create_ssl_context()
        self._busy: dict[str, Future[None]] = {}
        self._broken_s: dict[str, float] = {}  # when what came of a try could not be written down, by hook

    def work(self, over: threading.Event) -> None:
        """Bring what is owed until `over`; then what is under way is brought to its end, which is bounded in time."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="webhook") as pool:
            while not over.is_set():
                try:
                    if self._leads():
                        self._step(pool, over)
                except TuneyardError as error:
                    log.warning("webhooks: %s", error)
                except Exception:
                    log.exception("a pass over the webhooks failed")
                over.wait(PASS_S)
            pool.shutdown(cancel_futures=True)

    def _step(self, pool: ThreadPoolExecutor, over: threading.Event) -> None:
        self._webhooks.owe(self._now_ms())
        self._busy = {hook_id: bringing for hook_id, bringing in self._busy.items() if not bringing.done()}
        for hook_id in self._webhooks.due(self._now_ms()):
            broken_s = self._broken_s.get(hook_id, -math.inf)
            if hook_id not in self._busy and time.monotonic() - broken_s >= BROKEN_S:
                self._busy[hook_id] = pool.submit(self._bring, hook_id, over)

    def _bring(self, hook_id: str, over: threading.Event) -> None:
        """All that is due to one hook, one after the other, up to what is not taken: other hooks wait for the place."""
        try:
            while not over.is_set() and (due := self._webhooks.next_due(hook_id, self._now_ms())) is not None:
                answer = send(due, self._networks, now_ms=self._now_ms(), tls=self._tls)
                self._webhooks.tried(due.delivery_id, answer, now_ms=self._now_ms(), chance=self._chance())
                if answer.error:
                    said = "no answer" if answer.status is None else f"answers {answer.status}"
                    log.warning("webhook %s: %s: %s", hook_id, due.delivery_id, said)
                    return
        except TuneyardError as error:  # a later pass begins where this one broke off
            log.warning("webhook %s: %s", hook_id, error)
            self._broken_s[hook_id] = time.monotonic()
        except Exception:
            log.exception("webhook %s", hook_id)
            self._broken_s[hook_id] = time.monotonic()


def send(due: Due, networks: Sequence[Network], *, now_ms: int, tls: ssl.SSLContext) -> Answer:
    """One try. Whatever a receiver does, it is over in about `TRY_S`; a silent name server takes longer."""
    timestamp = str(now_ms // 1000)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"Tuneyard/{tuneyard.__version__}",
        "Accept-Encoding": "identity",
        "webhook-id": due.delivery_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": signature(due.secret, due.delivery_id, timestamp, due.body),
    }
    try:
        return asyncio.run(_post(httpx2.URL(due.url), due.body.encode(), headers, networks, tls))
    except TimeoutError:
        return Answer(None, f"no whole answer within {TRY_S:.0f} s")
    except (TuneyardError, httpx2.HTTPError, OSError, ValueError) as cause:
        return Answer(None, first_line(cause))


def signature(secret: str, delivery_id: str, timestamp: str, body: str) -> str:
    """As https://www.standardwebhooks.com has it: HMAC-SHA256 over id, time of sending and body."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = hmac.digest(key, f"{delivery_id}.{timestamp}.{body}".encode(), hashlib.sha256)
    return f"v1,{base64.b64encode(signed).decode()}"


def public(address: Address) -> bool:
    """Whether it is somewhere in the internet: no machine of one's own, no network's, no cloud's word to its own."""
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if isinstance(address, ipaddress.IPv6Address) and (address.is_site_local or address.sixtofour is not None):
        return False
    return not any(address in network for network in _CLOUDS)


async def _post(
    url: httpx2.URL, content: bytes, headers: dict[str, str], networks: Sequence[Network], tls: ssl.SSLContext
) -> Answer:
    """To one of the addresses that were looked at, whatever the name leads to a moment later."""
    host = url.raw_host.decode("ascii")
    named = {**headers, "Host": url.netloc.decode("ascii")}
    how = {"sni_hostname": host, "timeout": {"connect": CONNECT_S}}
    silent: httpx2.HTTPError | None = None
    # Not through a client, which would write the URL into the log.
    async with asyncio.timeout(TRY_S), httpx2.AsyncHTTPTransport(verify=tls, trust_env=False) as transport:
        for address in await _addresses(host, url.port or (443 if url.scheme == "https" else 80), networks):
            at = url.copy_with(host=str(address))
            request = httpx2.Request("POST", at, headers=named, content=content, extensions=how)
            try:
                answer = await transport.handle_async_request(request)
                return Answer(answer.status_code, await _wrong(answer))
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as cause:
                silent = cause
    raise silent or RefusedError(f"{host} has no address")


async def _addresses(host: str, port: int, networks: Sequence[Network]) -> list[Address]:
    """Raises RefusedError where one of them may not be told: a name that leads in and out is no receiver's."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as cause:
        raise RefusedError(f"{host}: {cause.strerror}") from cause
    addresses = list(dict.fromkeys(_plain(where[0]) for *_, where in found))
    for address in addresses:
        if not public(address) and not any(address in network for network in networks):
            where = host if host == str(address) else f"{host} leads to {address}, which"
            raise RefusedError(f"{where} is not public; whoever runs the service allows it with {NETWORKS}")
    return addresses


def _plain(text: str | int) -> Address:
    """An IPv4 address in the clothes of an IPv6 one is what it is."""
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


async def _wrong(answer: httpx2.Response) -> str:
    """Why it was not taken; empty where it was."""
    if answer.is_success:
        return ""
    if answer.is_redirect:
        return f"answers {answer.status_code}, which leads elsewhere; name that place itself"
    said = b""
    async for piece in answer.aiter_raw():
        said += piece
        if len(said) >= ANSWER_BYTES:
            break
    letters = said[:ANSWER_BYTES].decode(errors="replace")
    text = " ".join("".join(one if one.isprintable() else " " for one in letters).split())
    return f"answers {answer.status_code}{f': {text}' if text else ''}"
