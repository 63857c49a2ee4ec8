"""One client's connection: requests in, answers out, in the order in which they were asked.

Produce begins when it is read, so that batches under way share a sync; all other requests begin
when it is their turn. A client's requests under way are limited in number and in bytes; a client
that does not read its answers is not read from.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from tidecast.access import EVERYTHING, Access, printable
from tidecast.kafka.answers.cache import Block, BlockCache
from tidecast.kafka.answers.pacing import Recent
from tidecast.kafka.answers.sending import Sending
from tidecast.kafka.codes import Code
from tidecast.kafka.schemas import tables
from tidecast.kafka.schemas.api import Api
from tidecast.kafka.wire import ITEMS_MAX, BadRequest, Reader, Struct, Writer

if TYPE_CHECKING:
    from tidecast.config.kafka import KafkaConfig
    from tidecast.kafka.counters import Counters
    from tidecast.kafka.produce import Producing
    from tidecast.kafka.serving import Budget, Client
    from tidecast.node.node import Node

LOGIN_BYTES_MAX = 64 << 10
"""Of a request before the client has logged in; it has one under way."""
FREE_BYTES = 64 << 10
"""A connection's only request takes nothing of the shared room, if it is not longer."""
REQUESTS_MAX = 100
"""Requests of one connection that are under way."""
REQUESTS_BYTES_MAX = 34 << 20
"""Bytes of those requests."""
LOGIN_S = 10.0
"""A client that has yet to log in is silent for so long at most."""
SEND_S = 60.0
"""A client that does not read an answer for so long, too: it holds room that others wait for."""
CONTESTED_S = 5.0
"""The same when others do wait, and the client has taken not a byte."""
FREE_ITEMS = 512
"""Elements of arrays in a request that takes nothing of the room that all connections share."""
JOINED_BYTES_MAX = 16 << 10
"""Shorter pieces of an answer are joined; longer ones are sent from where they are."""
WRITE_BYTES = 1 << 20
"""Bytes passed to the transport at a time: it copies the bytes that the socket does not take."""
_LENGTH = struct.Struct(">i")
_HEAD = struct.Struct(">ii")
_NUMBERS = itertools.count(1)
Pieces = list[bytes | bytearray | memoryview]
Turn = Callable[[], Awaitable[Pieces | None]]
"""Gives a request's answer when it is its turn; None: it gets none."""
MADE_AGAIN = frozenset(
    {
        tables.METADATA,
        tables.DESCRIBE_CONFIGS,
        tables.DESCRIBE_LOG_DIRS,
        tables.LIST_GROUPS,
        tables.DESCRIBE_GROUPS,
        tables.OFFSET_FETCH,
        tables.LIST_OFFSETS,
    }
)
"""Requests that only look. A long answer without room is made again when there is room for it."""
WAITING = frozenset({tables.JOIN_GROUP, tables.SYNC_GROUP})
"""Requests that wait for other clients. They keep none of their items, and take no share."""


Work = Callable[[], Awaitable[Struct | None]]
"""Gives the answer itself, as a structure; it may be called again."""


@dataclass(slots=True)
class _Begun:
    """A request under way: its bytes, those of them that all connections share, its items."""

    n_bytes: int
    shared: int
    items: int
    turn: Turn | None

    async def answer(self) -> Pieces | None:
        """Its answer, once. While it is sent the request is no more than these numbers."""
        turn, self.turn = self.turn, None
        assert turn is not None
        return await turn()


class Acceptor(Protocol):
    """The endpoint that has accepted a connection."""

    node: Node
    config: KafkaConfig
    counters: Counters
    producing: Producing
    answers: Budget
    cache: BlockCache
    requests: Budget
    items: Budget

    @property
    def needs_login(self) -> bool:
        """Clients must show a key."""

    def denied(self, connection: Client, right: str, topic: str) -> None:
        """A key lacks a right."""

    def versions(self) -> Struct:
        """The APIs and versions that are served."""

    def refused_version(self, connection: Client, api: Api, version: int) -> None:
        """A client asked in a version that is not served."""

    async def room_to_decode(self) -> None:
        """Wait until the archiver has taken most of the decoded batches."""

    async def perform(self, connection: Client, api: Api, version: int, body: Struct) -> Struct:
        """The answer to a request of any API but Produce."""


class Connection:
    """See module. ``run`` serves it to its end."""

    def __init__(
        self, endpoint: Acceptor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.endpoint = endpoint
        self.digest = ""
        """Hash of the secret that the client has shown."""
        self._access = None if endpoint.needs_login else EVERYTHING
        self.client_id = self.software = ""
        self.recent = Recent()
        self._reader, self._writer = reader, writer
        self._sending: Sending | None = None
        """None with TLS: then the transport sends."""
        if writer.get_extra_info("sslcontext") is None:
            self._sending = Sending(writer.get_extra_info("socket").dup())
        self._turns: deque[_Begun] = deque()
        self._asked, self._answered = asyncio.Event(), asyncio.Event()
        self._bytes = self._held = self._shared = 0
        self._sending_since_s = 0.0
        """Since when an answer is sent; 0: none is."""
        self._items = self._items_held = 0
        """Elements of Produce requests under way; elements among them that take shared room."""
        self._lent: list[Block] = []
        writer.transport.set_write_buffer_limits(high=0)  # `drain`: all of it is in the socket
        host, port = (writer.get_extra_info("sockname") or ("", 0))[:2]
        self.local: tuple[str, int] = (str(host), int(port))
        """The address at which the client has reached us."""
        peer, port = (writer.get_extra_info("peername") or ("", 0))[:2]
        self.peer, self.peer_port = str(peer), int(port)
        self.number, self.since_ns = next(_NUMBERS), time.time_ns()
        self.bytes_in = self.bytes_out = self.requests = 0

    @property
    def shown_access(self) -> Access | None:
        """The key that the client has shown; None: it has yet to log in, or needs none."""
        return self._access if self.digest else None

    @property
    def access(self) -> Access:
        """The rights of the client. Raises BadRequest before it has logged in."""
        if self._access is None:
            raise BadRequest("it has not logged in")
        return self._access

    @property
    def is_valid(self) -> bool:
        """Its key is unchanged since the login, or it needs no key, or it has yet to log in."""
        endpoint = self.endpoint
        if self.digest:
            return self._access == endpoint.node.keys.find(self.digest)
        return self._access is None or not endpoint.needs_login

    def may(self, right: str, pattern: str) -> bool:
        """Has the client a right on a topic, or pattern? A missing one is counted and reported."""
        if self.access.may(right, pattern):
            return True
        self.endpoint.denied(self, right, pattern)
        return False

    def log_in(self, access: Access, digest: str) -> None:
        """The client has shown a key."""
        self._access, self.digest = access, digest

    def introduce(self, software: str) -> None:
        """The client has said which software it is."""
        self.software = software

    @property
    def name(self) -> str:
        """The client, for logs and events."""
        return printable(" ".join(filter(None, ("kafka", self.client_id, self.peer))))

    def is_stuck(self, now_s: float) -> bool:
        """It holds room for an answer of which its client takes nothing."""
        since_s = self._sending_since_s
        if since_s and self._sending is not None:
            since_s = self._sending.stuck_since_s
        return bool(self._held and since_s and now_s - since_s > CONTESTED_S)

    def close(self) -> None:
        """End it; `run` returns soon."""
        self._writer.transport.abort()
        if self._sending is not None:
            self._sending.close()

    async def run(self) -> None:
        """Serve until the client goes. Raises BadRequest for bytes that are no request."""
        answering = asyncio.create_task(self._answer_all())
        reading = asyncio.create_task(self._read_all())
        try:
            done, _ = await asyncio.wait((answering, reading), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (answering, reading):
                task.cancel()
            await asyncio.gather(answering, reading, return_exceptions=True)
            self._end_answer()
            self.endpoint.requests.give(self._shared)
            self._give_items()
            self.close()

    # --- requests ---------------------------------------------------------------------------------

    async def _read_all(self) -> None:
        while True:  # nothing of a request is kept here: the next one can be far away
            self._turns.append(await self._next())
            self._asked.set()

    async def _next(self) -> _Begun:
        """Read the next request, when there is room for it, and begin it."""
        n = await self._read_length()
        while self._turns and (
            self._access is None
            or len(self._turns) >= REQUESTS_MAX
            or self._bytes + n > REQUESTS_BYTES_MAX
        ):
            self._answered.clear()
            await self._answered.wait()
        self._check_length(n)
        shared = n if self._turns or n > FREE_BYTES else 0
        if shared:
            await self.endpoint.requests.take(shared)
            self._shared += shared
        async with asyncio.timeout(self._frame_s):
            frame = await self._reader.readexactly(n)
        await self.endpoint.room_to_decode()
        self._bytes += n
        items, turn = await self._begin(frame)
        return _Begun(n, shared, items, turn)

    @property
    def _frame_s(self) -> float:
        """How long a request may take to arrive once its first byte is there."""
        frame_s = self.endpoint.config.frame_s
        return frame_s if self._access is not None else min(frame_s, LOGIN_S)

    async def _read_length(self) -> int:
        """The length that the next request gives, when its first byte has come."""
        raw = await self._first_byte()
        async with asyncio.timeout(self._frame_s):
            raw += await self._reader.readexactly(_LENGTH.size - 1)
        return int(_LENGTH.unpack(raw)[0])

    async def _first_byte(self) -> bytes:
        """The first byte of the next request; the login may be answered while it waits."""
        idle_s = self.endpoint.config.idle_s
        if self._access is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOGIN_S):
                    return await self._reader.readexactly(1)
            if self._access is None:
                raise TimeoutError
        async with asyncio.timeout(idle_s):
            return await self._reader.readexactly(1)

    def _check_length(self, n: int) -> None:
        """Raise BadRequest for a length that is not allowed, now that the login is answered."""
        known = self._access is not None
        most = self.endpoint.config.request_bytes_max if known else LOGIN_BYTES_MAX
        if not 8 <= n <= most:
            raise BadRequest(f"a request of {n} bytes: allowed 8 to {most}")

    async def _begin(self, frame: bytes) -> tuple[int, Turn]:
        """Begin a request to Produce; the items that it has, and its turn.

        Each other request is taken apart at its turn: until then it is the bytes that came.
        """
        reader = Reader(frame)
        head = tables.read_header(reader)
        key, version, correlation = head["api_key"], head["api_version"], head["correlation_id"]
        api = tables.APIS.get(key)
        if api is None:
            raise BadRequest(f"API {key} is not served")
        self.endpoint.counters.requested(api, len(frame) + _LENGTH.size)
        self.bytes_in += len(frame) + _LENGTH.size
        self.requests += 1
        if not api.serves(version):
            self.endpoint.refused_version(self, api, version)
            if key != tables.API_VERSIONS:
                raise BadRequest(f"{api.name} {version}: {api.first} to {api.last} are served")
            return 0, partial(self._versions_refused, correlation)
        if self._access is None and key not in tables.BEFORE_LOGIN:
            raise BadRequest(f"{api.name}: it has not logged in")
        self.client_id = tables.read_client_id(reader, flexible=api.is_flexible(version))
        items = 0
        work: Work = partial(self._perform, api, version, reader.data, reader.at)
        if key == tables.PRODUCE:
            items, work = await self._produce(api, version, reader.data, reader.at)
        return items, partial(self._answer, api, version, correlation, work)

    async def _produce(
        self, api: Api, version: int, frame: bytes | bytearray, at: int
    ) -> tuple[int, Work]:
        """Begin to produce. A request with many items waits until it is the only one."""
        body, items = _body(api, version, frame, at)
        while self._turns and self._items + items > FREE_ITEMS:
            del body
            self._answered.clear()
            await self._answered.wait()
            body, items = _body(api, version, frame, at)
        if items > FREE_ITEMS and not self._take_items(items):
            del body
            await self.endpoint.items.take(items)
            self._items_held = items
            body, items = _body(api, version, frame, at)
        self._items += items
        return items, await self.endpoint.producing.begin(self, body)

    async def _perform(
        self, api: Api, version: int, frame: bytes | bytearray, at: int
    ) -> Struct | None:
        """The answer to a request of any API but Produce. One with many items waits for room."""
        body, items = _body(api, version, frame, at)
        if items <= FREE_ITEMS or api.key in WAITING:
            return await self.endpoint.perform(self, api, version, body)
        if not self._take_items(items):
            del body
            await self.endpoint.items.take(items)
            self._items_held = items
            body, _ = _body(api, version, frame, at)
        return await self.endpoint.perform(self, api, version, body)

    def _take_items(self, n: int) -> bool:
        if self._items_held:
            return True  # of the same request, whose answer is made again
        if not self.endpoint.items.take_now(n):
            return False
        self._items_held = n
        return True

    def _give_items(self) -> None:
        self.endpoint.items.give(self._items_held)
        self._items_held = 0

    async def _versions_refused(self, correlation: int) -> Pieces:
        """The client asks again with a version that it finds in this."""
        answer = self.endpoint.versions() | {"error_code": Code.UNSUPPORTED_VERSION}
        return _frame(tables.APIS[tables.API_VERSIONS], 0, correlation, answer)

    async def _answer(
        self,
        api: Api,
        version: int,
        correlation: int,
        work: Work,
    ) -> Pieces | None:
        while True:
            answer = await work()
            if answer is None:
                return None
            pieces = _frame(api, version, correlation, answer)
            n = sum(len(each) for each in pieces)
            if n - self._held <= FREE_BYTES or self.hold_more(n):
                break
            if api.key not in MADE_AGAIN:
                self.endpoint.answers.force(n - self._held)
                self._held = n
                break
            del answer, pieces
            await self.hold(n)
        self.endpoint.counters.answered(api, answer, n)
        self.bytes_out += n
        return pieces

    # --- answers ----------------------------------------------------------------------------------

    async def _answer_all(self) -> None:
        while True:
            while not self._turns:
                self._asked.clear()
                await self._asked.wait()
            begun = self._turns[0]
            pieces = await begun.answer()
            self._give_items()
            if pieces is not None:
                self._sending_since_s = time.monotonic()
                async with asyncio.timeout(SEND_S):
                    await self._send(pieces)
                self._sending_since_s = 0.0
                del pieces
            self._end_answer()
            self._turns.popleft()
            self._bytes -= begun.n_bytes
            self._items -= begun.items
            self._shared -= begun.shared
            self.endpoint.requests.give(begun.shared)
            self._answered.set()

    async def _send(self, pieces: Pieces) -> None:
        # `writelines` of Python 3.12 and 3.13 keeps the bytes of a lost connection and waits for
        # its socket for ever (gh-136234); it never pauses, either (gh-127655).
        if self._sending is not None:
            await self._sending.send(pieces)
            return
        writer, joined = self._writer, bytearray()
        for piece in pieces:
            if len(piece) <= JOINED_BYTES_MAX:
                joined += piece
                continue
            if joined:
                writer.write(joined)
                joined = bytearray()
            for at in range(0, len(piece), WRITE_BYTES):
                writer.write(piece[at : at + WRITE_BYTES])
                await writer.drain()
        if joined:
            writer.write(joined)
        await writer.drain()

    def _end_answer(self) -> None:
        """The answer is sent, or made again."""
        self.hold_less(0)
        while self._lent:
            self.endpoint.cache.release(self._lent.pop())

    def lend(self, blocks: Iterable[Block]) -> None:
        """The answer is sent from these blocks; they are released behind it."""
        self._lent += blocks

    async def hold(self, n: int) -> None:
        """Wait for ``n`` bytes for an answer, of the room that all connections share."""
        self._end_answer()
        await self.endpoint.answers.take(n)
        self._held = n

    def hold_more(self, n: int) -> bool:
        """The answer has ``n`` bytes. False: there is no room for so many now; `hold` waits."""
        if n > self._held:
            if not self.endpoint.answers.take_now(n - self._held):
                return False
            self._held = n
        return True

    def hold_less(self, n: int) -> None:
        """The answer has only ``n`` bytes; all of it is given back when it is sent."""
        if n < self._held:
            self.endpoint.answers.give(self._held - n)
            self._held = n


def _body(api: Api, version: int, frame: bytes | bytearray, at: int) -> tuple[Struct, int]:
    """The body of a request behind its header, and how many items it has. Raises BadRequest."""
    reader = Reader(frame, at)
    body = tables.request_reader(api.key, version)(reader)
    if reader.at != reader.end:
        raise BadRequest(f"{api.name} {version}: {reader.end - reader.at} bytes too many")
    return body, ITEMS_MAX - reader.left


def _frame(api: Api, version: int, correlation: int, answer: Struct) -> Pieces:
    """An answer with its length and header; that of ApiVersions has no tags in any version."""
    writer = Writer()
    if api.is_flexible(version) and api.key != tables.API_VERSIONS:
        writer.tail.append(0)
    tables.answer_writer(api.key, version)(writer, answer)
    pieces = writer.done()
    size = sum(len(piece) for piece in pieces)
    return [_HEAD.pack(size + 4, correlation), *pieces]
