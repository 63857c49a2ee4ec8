"""Calling webhooks: from an outbox, again with back-off until one answers, and only where allowed.

Each call is signed as https://www.standardwebhooks.com describes, when its rule has a secret. The
name of the host is resolved here, the address is checked, and that address is connected to: a name
that resolves to another address a moment later changes nothing. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import ipaddress
import random
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlsplit, urlunsplit

import httpx2 as httpx
from fastapi.concurrency import run_in_threadpool

import tidecast
from tidecast_control.addresses import AddressPolicy
from tidecast_control.alerts import repository, secrets
from tidecast_control.alerts.models import AlertRow, DeliveryRow
from tidecast_control.alerts.webhook_address import key_of
from tidecast_control.db import Database
from tidecast_control.kit.models import utc_now
from tidecast_control.supervisor import Turn

CALL_TIMEOUT_S, RESOLVE_TIMEOUT_S = 10.0, 5.0
AT_ONCE_MAX, ATTEMPTS_MAX = 8, 16
RETRY_S_MIN, RETRY_S_MAX = 5.0, 3600.0
"""Sixteen attempts are some eight hours."""
CLAIM_S = 60.0
POLL_S = 1.0
NOT_PUBLIC = "refused: no public address; TIDECAST_CONTROL_WEBHOOK_NETWORKS names others"

Resolve = Callable[[str, int], Awaitable[list[str]]]


async def resolved(host: str, port: int) -> list[str]:
    """The addresses of a host. Raises OSError, UnicodeError, TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(RESOLVE_TIMEOUT_S):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def signed(secret: str, call: str, at: datetime, body: str) -> dict[str, str]:
    """The headers of a call: its id (the same for each attempt), time, and signature."""
    seconds = str(int(at.timestamp()))
    headers = {"webhook-id": call, "webhook-timestamp": seconds}
    if secret:
        text = f"{call}.{seconds}.{body}".encode()
        digest = hmac.new(key_of(secret), text, hashlib.sha256).digest()
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return headers


@dataclass(frozen=True)
class Answer:
    """The result of one call, in words that do not reveal the host behind an address."""

    ok: bool
    words: str


class Caller:
    """Calls URLs that a policy allows."""

    def __init__(self, policy: AddressPolicy, resolve: Resolve = resolved) -> None:
        self._policy, self._resolve = policy, resolve
        self._tls: ssl.SSLContext | None = None

    async def post(self, url: str, headers: dict[str, str], body: str) -> Answer:
        """POST JSON. Whatever goes wrong is an answer, not an exception."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await self._post(url, headers, body)
        except TimeoutError:
            return Answer(False, "failed: no answer in time")
        except (socket.gaierror, UnicodeError):
            return Answer(False, "failed: no such host")
        except httpx.ConnectError:
            return Answer(False, "failed: no connection")
        except httpx.HTTPError:
            return Answer(False, "failed: no answer in HTTP")
        except (httpx.InvalidURL, OSError, ValueError):
            return Answer(False, "failed: the URL cannot be called")

    async def _post(self, url: str, headers: dict[str, str], body: str) -> Answer:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        address = self._allowed(await self._resolve(host, port))
        if address is None:
            return Answer(False, NOT_PUBLIC)
        if self._tls is None:
            self._tls = await run_in_threadpool(ssl.create_default_context)
        shown = f"[{address}]" if ":" in address else address
        target = urlunsplit((parts.scheme, f"{shown}:{port}", parts.path or "/", parts.query, ""))
        fixed = {
            "Host": parts.netloc,
            "Content-Type": "application/json",
            "User-Agent": f"tidecast/{tidecast.__version__}",
        }
        async with (
            httpx.AsyncClient(
                verify=self._tls, timeout=CALL_TIMEOUT_S, trust_env=False, follow_redirects=False
            ) as client,
            client.stream(
                "POST",
                target,
                headers=headers | fixed,
                content=body.encode(),
                extensions={"sni_hostname": host},
            ) as answer,
        ):
            return Answer(answer.is_success, f"HTTP {answer.status_code}")

    def _allowed(self, addresses: list[str]) -> str | None:
        for each in addresses:
            with contextlib.suppress(ValueError):
                if self._policy.allows(ipaddress.ip_address(each.partition("%")[0])):
                    return each
        return None


class WebhookSender:
    """The task that empties the outbox. Calls of one URL are made in order, one at a time."""

    def __init__(
        self,
        db: Database,
        policy: AddressPolicy,
        resolve: Resolve = resolved,
        now: Callable[[], datetime] = utc_now,
        seed: int | None = None,
    ) -> None:
        self._db, self._now = db, now
        self._caller = Caller(policy, resolve)
        self._wake = asyncio.Event()
        self._random = random.Random(seed)

    def wake(self) -> None:
        """Look for work now. In the event loop."""
        self._wake.set()

    async def run(self, turn: Turn) -> None:
        """Until it is cancelled."""
        calls: set[asyncio.Task[None]] = set()
        try:
            while True:
                self._wake.clear()
                rows = await run_in_threadpool(self._claim, AT_ONCE_MAX - len(calls))
                calls |= {asyncio.create_task(self._deliver(row)) for row in rows}
                waking = asyncio.create_task(self._wake.wait())
                done, _ = await asyncio.wait(
                    {waking, *calls}, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED
                )
                waking.cancel()
                for task in done & calls:
                    problem = task.exception()
                    if isinstance(problem, Exception):
                        turn.failed(problem)
                calls -= done
                turn.done()
        finally:
            for task in calls:  # they are in the outbox, and are made again
                task.cancel()

    async def step(self) -> int:
        """Make the calls that are due, and wait for them: for tests. How many there were."""
        rows = await run_in_threadpool(self._claim, AT_ONCE_MAX)
        await asyncio.gather(*(self._deliver(row) for row in rows))
        return len(rows)

    def _claim(self, limit: int) -> list[DeliveryRow]:
        if limit <= 0:
            return []
        now = self._now()
        with self._db.begin() as session:
            return repository.claim(session, now, now + timedelta(seconds=CLAIM_S), limit)

    async def _deliver(self, row: DeliveryRow) -> None:
        vault = self._db.vault
        assert vault is not None, "the service has one"
        headers = signed(
            vault.open(row.secret, secrets.call_place(row.id, "secret")),
            row.id,
            self._now(),
            row.body,
        )
        url = vault.open(row.url, secrets.call_place(row.id, "url"))
        answer = await self._caller.post(url, headers, row.body)
        await run_in_threadpool(self._note, row, answer)

    def _note(self, row: DeliveryRow, answer: Answer) -> None:
        """Done, given up, or tried again later."""
        with self._db.begin() as session:
            kept = session.get(DeliveryRow, row.id)
            words = answer.words
            if kept is not None and (answer.ok or row.attempts >= ATTEMPTS_MAX):
                session.delete(kept)
                words += "" if answer.ok else f"; given up after {row.attempts} attempts"
            elif kept is not None:
                kept.next_at = self._now() + timedelta(seconds=self._pause_s(row.attempts))
                words += f"; attempt {row.attempts}, again at {kept.next_at:%H:%M:%S} UTC"
                session.add(kept)
            alert = session.get(AlertRow, row.alert)
            if alert is not None:
                alert.delivery = words
                session.add(alert)

    def _pause_s(self, attempts: int) -> float:
        pause_s = min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** (attempts - 1))
        return pause_s * self._random.uniform(0.8, 1.0)
