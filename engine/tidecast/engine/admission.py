"""Admission: the unix socket through which clients open and close publications and so on.

One asyncio loop in a thread of its own. Node calls may create shared memory, so they run in a
small pool; the requests of one client run one after another. A client that is gone (socket closed,
process dead even if a forked child still holds the socket) is reported by `NodeApi.client_gone`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tidecast.access import EVERYTHING, printable
from tidecast.agents import warmup
from tidecast.api import levels
from tidecast.api.frames import common
from tidecast.api.frames import socket as frames
from tidecast.api.link import ConsumerGrant
from tidecast.api.node import NodeApi
from tidecast.api.operations import Operation, Operations, nothing, reply_to
from tidecast.api.progress import with_news
from tidecast.client.links.socket_session import short_path, socket_path
from tidecast.config.store import TopologyStore
from tidecast.errors import AuthError, ConfigError, Conflict, NotFound, TidecastError
from tidecast.events import Event
from tidecast.node.access import rights
from tidecast.node.access.rights import Guard
from tidecast.node.administration import Administration
from tidecast.version import VERSION

CONNECTIONS_MAX = 2048
PUSHES_AHEAD_MAX = 16
HELLO_TIMEOUT_S = 10.0
POOL_THREADS = 4
BACKLOG = 256
STOP_TIMEOUT_S = 10.0
_PEERCRED = struct.Struct("3i")


class AdmissionServer:
    """Serves one node on the socket of one data directory. `start` and `stop` from any thread."""

    def __init__(
        self,
        node: NodeApi,
        data_dir: Path,
        store: TopologyStore,
        token: str | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.node = node
        self.store = store
        self.path = socket_path(data_dir)
        self.token, self.guard = token, guard
        self.pool = ThreadPoolExecutor(POOL_THREADS, "tidecast-admission")
        self.greeter = ThreadPoolExecutor(1, "tidecast-greeter")
        self.connections: set[_Connection] = set()
        self.by_client: dict[int, _Connection] = {}
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._server: asyncio.Server | None = None

    def start(self) -> None:
        """Listen. The caller holds the data directory's lock, so an old socket is stale.

        Raises ConfigError when the socket cannot be made.
        """
        try:
            sock = _listen(self.path)
        except OSError as problem:
            raise ConfigError(f"cannot listen on {self.path}: {problem.strerror}") from None
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tidecast-conductor", daemon=True
        )
        self._thread.start()
        self._call(self._serve(sock))
        self.node.set_events_hook(self._on_events)

    async def _serve(self, sock: socket.socket) -> None:
        self._server = await asyncio.start_unix_server(self._accepted, sock=sock)

    def stop(self, reason: str = "the engine stopped") -> None:
        """Notify all clients, and close the socket. Idempotent."""
        if self._thread is None:
            return
        self.node.set_events_hook(None)
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        self._call(self._shut(reason))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        self._thread = None
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.greeter.shutdown(wait=True, cancel_futures=True)
        self._loop.close()

    async def _shut(self, reason: str) -> None:
        assert self._server is not None
        self._server.close()
        tasks = [c.task for c in self.connections]
        for connection in list(self.connections):
            connection.say_goodbye(reason)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S / 2)
            for task in late:
                task.cancel()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(STOP_TIMEOUT_S)

    def _on_events(self, client_id: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop closed a moment ago
            self._loop.call_soon_threadsafe(self._wake, client_id)

    def _wake(self, client_id: int) -> None:
        connection = self.by_client.get(client_id)
        if connection is not None:
            connection.has_events.set()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self, reader, writer)
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)


def _listen(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.parent.chmod(0o700)
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with short_path(path) as name:
            sock.bind(name)
        path.chmod(0o600)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


class _Connection:
    """One client. `run` reads requests until it is gone; `_push_events` runs beside it."""

    def __init__(
        self, server: AdmissionServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.server, self.node = server, server.node
        self._administration = Administration(server.node, server.store)
        self.reader, self.writer = reader, writer
        self.client_id = 0
        self.name, self.access = "", EVERYTHING
        self.has_events = asyncio.Event()
        self.may_push = asyncio.Event()
        self.may_push.set()
        self._pushes_ahead = 0
        """Pushes since the client took events last, beyond the push that it allows."""
        self._to_push: deque[Event] = deque()
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task
        self._peer_pid = 0
        self._hears_news = False
        self._watch = -1

    async def run(self) -> None:
        """Serve the client until it is gone, then clean up after it."""
        pusher: asyncio.Task[None] | None = None
        try:
            self._check_peer()
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                await self._greet()
            self._watch = self._watch_process()
            pusher = asyncio.create_task(self._push_events())
            while (request := await self._next()) is not None:
                await self._answer(request)
        except TidecastError as problem:
            self._send(common.Goodbye(reason=str(problem)))
        except (TimeoutError, OSError, EOFError, msgspec.DecodeError):
            pass
        finally:
            if pusher is not None:
                pusher.cancel()
            if self._watch >= 0:
                asyncio.get_running_loop().remove_reader(self._watch)
                os.close(self._watch)
            self.writer.close()
            await self._cleaned_up()

    async def _cleaned_up(self) -> None:
        if self.client_id:
            self.server.by_client.pop(self.client_id, None)
            with contextlib.suppress(TidecastError):
                await asyncio.shield(self._in_pool(self.node.client_gone, self.client_id))

    def _check_peer(self) -> None:
        sock = self.writer.get_extra_info("socket")
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
        self._peer_pid, uid, _ = _PEERCRED.unpack(raw)
        if uid not in (0, os.getuid()):
            raise AuthError(f"user {uid} may not use the engine of user {os.getuid()}")
        if len(self.server.connections) > CONNECTIONS_MAX:
            raise Conflict(f"the engine serves at most {CONNECTIONS_MAX} connections")

    def _watch_process(self) -> int:
        """End the session when the client's process ends, even if another inherited its socket."""
        try:
            descriptor = os.pidfd_open(self._peer_pid)
        except (OSError, AttributeError):
            return -1
        asyncio.get_running_loop().add_reader(descriptor, self._process_ended)
        return descriptor

    def _process_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._watch)
        self.writer.transport.abort()

    async def _greet(self) -> None:
        request = await self._next()
        if request is None:
            raise EOFError
        hello = request.body
        try:
            if not isinstance(hello, frames.Hello):
                raise ConfigError("the first request must be Hello")
            welcome = await self._admit(hello)
        except TidecastError as problem:
            self._send(common.Reply(id=request.id, failure=common.failure_of(problem)))
            raise
        self._send(common.Reply(id=request.id, result=common.encode_result(welcome)))
        self.has_events.set()

    async def _admit(self, hello: frames.Hello) -> frames.Welcome:
        wanted, given, guard = self.server.token, hello.token or "", self.server.guard
        matches = wanted is not None and hmac.compare_digest(wanted.encode(), given.encode())
        if guard is not None and not matches:
            self.name, self.access = printable(hello.name), guard.admit(given, hello.name)
        elif wanted is not None and not matches:
            raise AuthError("the engine needs its token, and got another one: give token=...")
        reads = levels.range_of("socket", hello.protocol, hello.levels)
        level = levels.agreed("client", printable(hello.version), reads, "engine")
        self._hears_news = hello.working
        node, doorbell = self.node, 0
        if hello.attach:
            levels.check_rings(printable(hello.version), reads, node.level)
            attach = partial(node.attach, hello.name, outlives=True)
            # in a thread of its own: requests may wait for the compiler for minutes
            loop = asyncio.get_running_loop()
            self.client_id = await loop.run_in_executor(self.server.greeter, attach)
            self.server.by_client[self.client_id] = self
            doorbell = node.doorbell(self.client_id)
        return frames.Welcome(
            client_id=self.client_id,
            doorbell=doorbell,
            bells_path=str(node.bells_path),
            node_id=node.id,
            node_name=node.name,
            incarnation=node.incarnation,
            engine_pid=os.getpid(),
            counters_path=str(node.counters_path),
            recorder_path=str(node.recorder_path),
            version=VERSION,
            level=level,
        )

    async def _next(self) -> frames.Request | None:
        try:
            head = await self.reader.readexactly(common.HEAD.size)
            (length,) = common.HEAD.unpack(head)
            if length > frames.FRAME_BYTES_MAX:
                raise ConfigError(f"a frame of {length} bytes: allowed {frames.FRAME_BYTES_MAX}")
            return frames.decode_request(await self.reader.readexactly(length))
        except asyncio.IncompleteReadError:
            return None
        except msgspec.DecodeError as problem:
            raise ConfigError(f"not a request: {problem}") from None

    async def _answer(self, request: frames.Request) -> None:
        operation = OPERATIONS.of(request.body)
        if not operation.answered:
            operation.handler(self, request.body)
            return
        work = self._in_pool(self._perform, operation, request.body)
        heard = with_news(work, warmup.news, partial(self._say_working, request.id))
        reply = await reply_to(request.id, heard, "engine")
        if request.id:
            if isinstance(request.body, frames.Sync):
                self._push_before_reply()
            self._send(reply)
            await self.writer.drain()

    def _say_working(self, question: int, reason: str) -> None:
        if question and self._hears_news:
            self._send(common.Working(id=question, reason=reason))

    async def _in_pool(self, call: Callable[..., Any], *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.server.pool, call, *arguments)

    async def _push_events(self) -> None:
        with contextlib.suppress(OSError, TidecastError):
            while True:
                await self.has_events.wait()
                await self.may_push.wait()
                self._take_events()
                while self._to_push:
                    await self.may_push.wait()
                    if self._to_push:  # a reply may have pushed them meanwhile
                        self._push()
                    await self.writer.drain()

    def _take_events(self) -> None:
        self.has_events.clear()
        events = self.node.take_events(self.client_id) if self.client_id else []
        self._to_push.extend(each for each in events if rights.may_hear(self.access, each))

    def _push(self) -> None:
        self.may_push.clear()
        n = min(len(self._to_push), frames.EVENTS_PUSHED_MAX)
        some = [self._to_push.popleft() for _ in range(n)]
        self._send(frames.Events(events=some))  # type: ignore[arg-type]

    def _push_before_reply(self) -> None:
        """Push events, whether or not the client has taken the events before.

        A client that takes no events gets at most `PUSHES_AHEAD_MAX` pushes this way.
        """
        self._take_events()
        while self._to_push and self._pushes_ahead < PUSHES_AHEAD_MAX:
            if not self.may_push.is_set():
                self._pushes_ahead += 1
            self._push()
        if self._to_push:
            self.has_events.set()

    def events_taken(self, _: frames.EventsTaken) -> None:
        """The client took the events of a push: it allows the next."""
        self._pushes_ahead = 0
        self.may_push.set()

    def say_goodbye(self, reason: str) -> None:
        """Tell the client that the engine ends; `run` ends then."""
        self._send(common.Goodbye(reason=reason))
        self.writer.close()

    def _send(self, message: frames.FromEngine) -> None:
        if not self.writer.is_closing():
            self.writer.write(frames.frame(message))

    def _perform(self, operation: Operation, body: frames.Body) -> Any:
        """One request, in a thread of the pool."""
        operation.allow(self, body, self._need)
        try:
            return operation.handler(self, body)
        except AuthError:  # a consumer may join, not create
            self._denied("manage", body.pattern if isinstance(body, frames.OpenConsumer) else "")
            raise

    def _need(self, right: str, pattern: str) -> None:
        if not self.access.may(right, pattern):
            self._denied(right, pattern)
            self.access.need(right, pattern)

    def _denied(self, right: str, pattern: str) -> None:
        if self.server.guard is not None:
            self.server.guard.denied(self.access, self.name, right, pattern)

    # --- operations -------------------------------------------------------------------------------

    def begun(self, _: frames.Hello) -> None:
        """A session begins once. Raises ConfigError."""
        raise ConfigError("this session has begun already")

    def check_attached(self, body: frames.Body) -> None:
        """Raise ConfigError for a session without a client."""
        if self.client_id == 0:
            raise ConfigError(f"{type(body).__name__} needs a session that attached")

    def open_consumer(self, body: frames.OpenConsumer) -> ConsumerGrant:
        """A consumer; a client without `manage` joins a subscription that is there."""
        options = rights.as_allowed(self.access, body.pattern, body.options)
        open_consumer = self.node.consumers.open_consumer
        return open_consumer(self.client_id, body.pattern, body.name, options)

    def perform(self, body: frames.Administer) -> Any:
        """An action on topics or durable subscriptions: the rows that the client may see."""
        found = self._administration.perform(body.action, body.arguments)
        return rights.shown(self.access, body.action, found)

    def overview(self, _: frames.Overview) -> frames.OverviewResult:
        """The publications, images, receivers and discovered peers of the node."""
        node = self.node
        return frames.OverviewResult(
            publications=node.publications(),
            images=node.images(),
            receivers=node.receivers(),
            peers=node.discovered(),
        )

    def unknown(self, body: frames.Body) -> None:
        """A request that no operation serves. Raises NotFound."""
        raise NotFound(f"unknown request {type(body).__name__}")


_attached = _Connection.check_attached
OPERATIONS = Operations(
    {
        frames.Hello: Operation(_Connection.begun, nothing),
        frames.EventsTaken: Operation(_Connection.events_taken, nothing, answered=False),
        frames.Sync: Operation(lambda *_: None, nothing, _attached),
        frames.OpenPublication: Operation(
            lambda c, b: c.node.open_publication(c.client_id, b.topic, b.options),
            lambda b: rights.to_publish(b.topic),
            _attached,
        ),
        frames.BeginPublication: Operation(
            lambda c, b: c.node.begin_publication(c.client_id, b.publication_id), nothing, _attached
        ),
        frames.ClosePublication: Operation(
            lambda c, b: c.node.close_publication(c.client_id, b.publication_id), nothing, _attached
        ),
        frames.OpenSubscription: Operation(
            lambda c, b: c.node.open_subscription(c.client_id, b.pattern, b.options),
            lambda b: rights.to_subscribe(b.pattern),
            _attached,
        ),
        frames.CloseSubscription: Operation(
            lambda c, b: c.node.close_subscription(c.client_id, b.subscription_id),
            nothing,
            _attached,
        ),
        frames.ReleaseImage: Operation(
            lambda c, b: c.node.release_image(c.client_id, b.subscription_id, b.image_id),
            nothing,
            _attached,
        ),
        frames.OpenConsumer: Operation(
            _Connection.open_consumer, lambda b: rights.to_consume(b.pattern, b.options), _attached
        ),
        frames.CloseConsumer: Operation(
            lambda c, b: c.node.consumers.close_consumer(c.client_id, b.consumer_id),
            nothing,
            _attached,
        ),
        frames.Administer: Operation(
            _Connection.perform, lambda b: rights.to_administer(b.action, b.arguments)
        ),
        frames.NodeIdOf: Operation(lambda c, b: c.node.node_id_of(b.name), nothing),
        frames.Stats: Operation(lambda c, _: c.node.stats()),
        frames.Overview: Operation(_Connection.overview),
        frames.SetFaults: Operation(lambda c, b: c.node.set_faults(b.transport, b.faults)),
        frames.GetFaults: Operation(lambda c, _: c.node.get_faults()),
    },
    _Connection.unknown,
)
