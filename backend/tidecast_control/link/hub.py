"""The engines that are connected: their applied state, their telemetry, commands to them.

Runs in the service's event loop; code that uses Postgres runs in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from tidecast.queues.leases.store import BATCH_MAX
from tidecast_control.addresses import network_of
from tidecast_control.api.applied import Reported
from tidecast_control.audit.denials import Denial
from tidecast_control.db import Database
from tidecast_control.kit.models import utc_now
from tidecast_control.kit.problems import CATALOGUE, ProblemError
from tidecast_control.leases import service as leases
from tidecast_control.link import topology
from tidecast_control.live.rates import seconds_between
from tidecast_control.nodes import identity, levels
from tidecast_control.nodes import service as nodes
from tidecast_control.nodes.hello import VERSION_MAX, Hello, number, read_hello
from tidecast_control.wire_keys import service as wire_keys

log = logging.getLogger("tidecast.control")

HELLO_TIMEOUT_S, COMMAND_TIMEOUT_S, SEND_TIMEOUT_S = 10.0, 8.0, 2.0
COMMANDS_UNDER_WAY_MAX = 256
MESSAGE_BYTES_MAX = 64 << 20
"""Of an engine that was admitted; before, a socket may send no more than any other."""
MESSAGE_BYTES_KEY = "tidecast.message_bytes_max"
"""In a websocket's ASGI extensions: the function that sets its limit."""
RETRY_S = 1.0
DISMISSED = 4403
HEARD_S, HEARD_INTERVALS = 3.0, 2.5
"""A sample counts for this long, or for so many intervals: then the engine is not heard."""
RATES_OVER_S, SAMPLES_KEPT_MAX = 1.0, 32
"""Over less, a rate jumps with each batch of a publisher and each pause of a busy machine."""
Json = dict[str, Any]
OnItems = Callable[[Json], None]


class Engine:
    """One connected engine."""

    def __init__(
        self,
        name: str,
        websocket: WebSocket,
        version: int,
        digest: str = "",
        since: datetime | None = None,
    ) -> None:
        """``digest``: of the credential that it was let in with; ``since``: see `Admitted`."""
        self.name, self.websocket, self.since = name, websocket, since
        self.version, self.digest = version, digest
        self.dirty = asyncio.Event()
        self.sample: Json | None = None
        self.before: Json | None = None
        """The sample that rates are measured against: some `RATES_OVER_S` older."""
        self._earlier: deque[Json] = deque(maxlen=SAMPLES_KEPT_MAX)
        self._resting = False
        self.sampled_s = float("-inf")
        self.reported: Reported | None = None
        """The topology that it runs with; None: not reported, or its version cannot report it."""
        self.applied_version = 0
        """The newest topology that it reported as applied on this connection, once noted."""
        self.refused_samples = 0
        self.interval_ms = 0
        """How often it sends telemetry, as it was last asked."""
        self.asking: asyncio.Task[None] | None = None
        """Under way: the message about telemetry."""
        self.rotating = False
        """It gets a new credential now."""
        self.answers: dict[str, asyncio.Future[Json]] = {}
        self.streams: dict[str, OnItems] = {}
        self._sending = asyncio.Lock()

    def keep(self, sample: Json) -> None:
        """A sample came."""
        if self.sample is not None and not self._resting:
            self._earlier.append(self.sample)
        self.sample, self._resting = sample, False
        self.sampled_s = time.monotonic()
        earlier = self._earlier
        while len(earlier) > 1 and seconds_between(earlier[1], sample) >= RATES_OVER_S:
            earlier.popleft()
        self.before = earlier[0] if earlier else None

    def heard(self, interval_ms: int) -> bool:
        """Its newest sample is of now, for engines that send one each ``interval_ms``."""
        age_s = time.monotonic() - self.sampled_s
        return age_s <= max(HEARD_S, HEARD_INTERVALS * interval_ms / 1000)

    def rest(self) -> None:
        """No client watches: the next sample is not compared with earlier samples."""
        self._earlier.clear()
        self.before, self._resting = None, True

    async def send(self, message: Json) -> None:
        """Send one message."""
        text = msgspec.json.encode(message).decode()
        async with self._sending:
            await self.websocket.send_text(text)


class Hub:
    """See module."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._engines: dict[str, Engine] = {}
        self.interval_ms = 0
        self.on_telemetry: Callable[[Engine], None] = lambda _engine: None
        self.on_change: Callable[[], None] = lambda: None
        self.on_refused: Callable[[Denial], None] = lambda _denial: None
        self._progress = asyncio.Event()
        """Set, and replaced, when an engine has applied a topology or is gone."""

    def connected(self) -> list[str]:
        """Names of the engines that are connected, sorted."""
        return sorted(self._engines)

    @property
    def engines(self) -> list[Engine]:
        """The engines that are connected."""
        return list(self._engines.values())

    # --- connection -------------------------------------------------------------------------------

    async def serve(self, websocket: WebSocket) -> None:
        """One engine's connection, from its hello to its end."""
        scheme, _, secret = websocket.headers.get("authorization", "").partition(" ")
        secret = secret.strip() if scheme.lower() == "bearer" else ""
        address = websocket.client.host if websocket.client else ""
        try:
            if not secret or not await run_in_threadpool(self._is_known, secret):
                problem = ProblemError("unauthenticated", "unknown credential or token")
                self.on_refused(_denial("", problem, address))
                await _deny(websocket, 401, problem.problem, problem.detail)
                return
        except SQLAlchemyError:
            await _deny(websocket, 503, "database_unavailable", "the database does not answer")
            return
        await websocket.accept()
        let_in = await self._let_in(websocket, secret, address)
        if let_in is None:
            return
        hello, admitted = let_in
        allow_messages(websocket, MESSAGE_BYTES_MAX)
        engine = Engine(
            admitted.name, websocket, hello.applied_version, admitted.digest, admitted.since
        )
        if hello.fetch:
            await self._answer_fetch(engine, admitted.issued)
        else:
            await self._run(engine, admitted.issued)

    async def _answer_fetch(self, engine: Engine, credential: str | None) -> None:
        """An engine that starts asks for the transports before it opens any."""

        def read() -> Json:
            with self._db.snapshot() as session:
                return _dismissed(session, engine) or {
                    "type": "transports",
                    "transports": topology.transports_of(session),
                    "wire_keys": wire_keys.for_engines(session),
                }

        with contextlib.suppress(WebSocketDisconnect, RuntimeError, SQLAlchemyError):
            await engine.send({"type": "welcome", "credential": credential})
            await engine.send(await run_in_threadpool(read))
        with contextlib.suppress(RuntimeError):
            await engine.websocket.close()

    def _is_known(self, secret: str) -> bool:
        """A socket is opened for those alone that hold a credential, or a token that is good."""
        with self._db.begin() as session:
            return nodes.holds_secret(session, secret)

    async def _let_in(
        self, websocket: WebSocket, secret: str, address: str
    ) -> tuple[Hello, identity.Admitted] | None:
        """Read a hello, and let the engine in; None: it was refused, and its socket is closed."""
        name = ""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                text = await websocket.receive_text()
            hello = read_hello(text)
            name = hello.node
            return hello, await run_in_threadpool(self._admit, secret, hello, address)
        except ProblemError as problem:
            if not (isinstance(problem, levels.Unreadable) and problem.noted):
                self.on_refused(_denial(name, problem, address))
            detail = problem.detail or problem.problem
            refusal = {"type": "refused", "code": problem.problem, "detail": detail}
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                await websocket.send_text(msgspec.json.encode(refusal).decode())
                await websocket.close(4401)
        except (TimeoutError, KeyError):  # silence, or bytes in place of a text
            await websocket.close(4400)
        except WebSocketDisconnect:
            pass
        except SQLAlchemyError:
            await websocket.close(1013)
        return None

    def _admit(self, secret: str, hello: Hello, address: str) -> identity.Admitted:
        try:
            with self._db.begin() as session:
                return identity.admit(session, secret, hello, address)
        except levels.Unreadable as refused:
            with self._db.begin() as session:
                refused.noted = levels.note_refusal(session, refused, address)
            raise

    async def _run(self, engine: Engine, credential: str | None) -> None:
        old = self._engines.get(engine.name)
        self._engines[engine.name] = engine
        if old is not None:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await old.websocket.close(4409)
        pump = asyncio.create_task(self._pump(engine))
        receiving: asyncio.Task[None] | None = None
        try:
            welcome = {
                "credential": credential,
                "lease_batch_max": BATCH_MAX,
                "lease_reasons": True,
            }
            await engine.send({"type": "welcome", **welcome})
            await self.watch(self.interval_ms)
            self.refresh()
            self.on_change()
            receiving = asyncio.create_task(self._receive_all(engine))
            done, _ = await asyncio.wait({pump, receiving}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except (WebSocketDisconnect, RuntimeError) as end:
            log.info("engine %s: %r", engine.name, end)
        except ProblemError as problem:
            log.warning("engine %s: its link is closed: %s", engine.name, problem.detail)
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                await engine.websocket.close(4400, problem.detail[:100])
        except Exception as problem:
            log.exception("engine %s: its link is closed, it connects again", engine.name)
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                await engine.websocket.close(1011, type(problem).__name__)
        finally:
            await _end_all(pump, receiving)
            await self._end(engine)

    async def _receive_all(self, engine: Engine) -> None:
        while True:
            await self._receive(engine, await engine.websocket.receive_text())

    async def _end(self, engine: Engine) -> None:
        for answer in engine.answers.values():
            if not answer.done():
                answer.set_exception(ProblemError("no_node", f"{engine.name} went away"))
        if self._engines.get(engine.name) is not engine:
            return
        del self._engines[engine.name]
        self.refresh()
        try:
            await run_in_threadpool(self._gone, engine)
        except SQLAlchemyError as problem:
            log.warning("engine %s is gone, Postgres too: %s", engine.name, problem)
        self._progressed()

    def _gone(self, engine: Engine) -> None:
        with self._db.begin() as session:
            nodes.gone(session, engine.name, engine.since)

    async def _receive(self, engine: Engine, text: str) -> None:
        message = msgspec.json.decode(text)
        match message.get("type"):
            case "telemetry":
                self._keep(engine, message)
            case "applied":
                engine.version = number(message, "version", 0, VERSION_MAX)
                await self._note_applied(engine, message)
            case "result":
                answer = engine.answers.pop(str(message.get("id")), None)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case "clock":
                time_ns = int(utc_now().timestamp() * 1e9)
                answer_time = {"asked_ns": message.get("asked_ns"), "time_ns": time_ns}
                await self._try_send(engine, {"type": "clock", **answer_time})
            case "lease":
                await self._lease(engine, message)
            case "stream":
                on_items = engine.streams.get(str(message.get("id")))
                if on_items is not None:
                    on_items(message)

    def _keep(self, engine: Engine, sample: Json) -> None:
        """Keep a sample. One without its time is dropped: the link stays open."""
        if not isinstance(sample.get("mono_ns"), int):
            engine.refused_samples += 1
            if engine.refused_samples == 1:
                log.warning("engine %s: a sample without mono_ns is dropped", engine.name)
            return
        engine.keep(sample)
        self.on_telemetry(engine)

    async def _lease(self, engine: Engine, message: Json) -> None:
        """An engine asks for a queue; without an answer it asks again."""

        def handle() -> Json:
            with self._db.begin() as session:
                return leases.handle(session, engine.name, message.get("request"))

        answer: Json = {"type": "leased", "id": message.get("id")}
        try:
            answer["reply"] = await run_in_threadpool(handle)
        except ProblemError as problem:
            answer |= {"code": problem.problem, "detail": problem.detail}
        except SQLAlchemyError as problem:
            answer |= {"code": "database_unavailable", "detail": str(problem).splitlines()[0]}
        await self._try_send(engine, answer)

    def reported(self, node: str) -> Reported | None:
        """The topology that a connected engine reports."""
        engine = self._engines.get(node)
        return engine.reported if engine is not None else None

    async def _note_applied(self, engine: Engine, message: Json) -> None:
        if "observed" in message:
            before = engine.reported.observed if engine.reported is not None else {}
            observed = {**before, **{str(k): int(v) for k, v in message["observed"].items()}}
            differs = {str(k): str(v)[:1000] for k, v in message["differs"].items()}
            engine.reported = Reported(observed, differs)

        def note() -> None:
            with self._db.begin() as session:
                nodes.report(session, engine.name, engine.since, message)

        try:
            await run_in_threadpool(note)
        except SQLAlchemyError as problem:
            log.warning(
                "engine %s applied %s, not noted: %s", engine.name, message["version"], problem
            )
            asyncio.get_running_loop().call_later(RETRY_S, engine.dirty.set)  # it reports again
        engine.applied_version = engine.version
        self._progressed()

    def _progressed(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()
        self.on_change()

    async def applied(self, version: int, timeout_s: float) -> list[str]:
        """Wait until all connected engines have applied a topology. Returns late engines."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._late(version):
                    await self._progress.wait()
        return self._late(version)

    def _late(self, version: int) -> list[str]:
        return sorted(e.name for e in self.engines if e.applied_version < version)

    # --- topology ---------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Something changed: every engine is looked after. Call it in the event loop."""
        for engine in self._engines.values():
            engine.dirty.set()

    async def _pump(self, engine: Engine) -> None:
        """Send changes to an engine as they come; try again while Postgres is away."""
        sent, first = engine.version, True
        while True:
            await engine.dirty.wait()
            engine.dirty.clear()
            names = self.connected()

            def build(since: int = sent, names: list[str] = names, first: bool = first) -> Json:
                with self._db.snapshot() as session:
                    return _dismissed(session, engine) or topology.message(
                        session, since, engine.name, names, first=first
                    )

            try:
                message = await run_in_threadpool(build)
            except SQLAlchemyError as problem:
                log.warning("topology for %s: %s", engine.name, problem)
                await asyncio.sleep(RETRY_S)
                engine.dirty.set()
                continue
            if message["type"] == "dismissed":
                await self._dismiss(engine, message)
                return
            await engine.send(message)
            sent, first = int(message["version"]), False

    async def _dismiss(self, engine: Engine, message: Json) -> None:
        log.warning("engine %s is dismissed: %s", engine.name, message["detail"])
        await self._try_send(engine, message)
        with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await engine.websocket.close(DISMISSED)

    # --- telemetry, commands ----------------------------------------------------------------------

    async def watch(self, interval_ms: int) -> None:
        """Have every engine send telemetry each ``interval_ms``; 0 = none."""
        self.interval_ms = interval_ms
        for engine in self.engines:
            if engine.interval_ms != interval_ms and (
                engine.asking is None or engine.asking.done()
            ):
                engine.asking = asyncio.create_task(self._ask_telemetry(engine, interval_ms))

    async def _ask_telemetry(self, engine: Engine, interval_ms: int) -> None:
        """The next call of `watch` asks again if the engine does not take the message in time."""
        if not interval_ms:
            engine.rest()
        if await self._try_send(engine, {"type": "watch", "interval_ms": interval_ms}):
            engine.interval_ms = interval_ms

    async def _try_send(self, engine: Engine, message: Json) -> bool:
        """Send; False: the engine is going away, or reads nothing. It holds up no other."""
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await engine.send(message)
        except (WebSocketDisconnect, RuntimeError, TimeoutError):
            log.info("engine %s is going away", engine.name)
            return False
        return True

    def engine(self, node: str) -> Engine:
        """An engine by name; "" = the first. Raises `no_node`."""
        if not node and self._engines:
            return self._engines[min(self._engines)]
        found = self._engines.get(node)
        if found is None:
            known = ", ".join(self.connected()) or "none"
            raise ProblemError("no_node", f"node {node or '(any)'}: connected are {known}")
        return found

    async def named(self, node: str) -> Engine:
        """The engine that a request names; "" = the first.

        Raises `not_found` when no engine of that name ever registered, else `no_node`.
        """
        if node and node not in self._engines:
            await run_in_threadpool(nodes.must_exist, self._db, node)
        return self.engine(node)

    async def ask(
        self, node: str, command: str, args: Json, timeout_s: float = COMMAND_TIMEOUT_S
    ) -> Json:
        """Send a command; its value. Raises `no_node`, `node_failed`, `node_timeout`."""
        return await self._ask(self.engine(node), uuid.uuid4().hex, command, args, timeout_s)

    async def _ask(
        self, engine: Engine, command_id: str, command: str, args: Json, timeout_s: float
    ) -> Json:
        if len(engine.answers) >= COMMANDS_UNDER_WAY_MAX:
            raise ProblemError("throttled", f"too many commands for {engine.name}", None, 1.0)
        answer = asyncio.get_running_loop().create_future()
        engine.answers[command_id] = answer
        message = {"type": "command", "id": command_id, "name": command, "args": args}
        try:
            await self._try_send(engine, message)
            async with asyncio.timeout(timeout_s):
                result = await answer
        except TimeoutError:
            raise ProblemError("node_timeout", f"{engine.name}: no answer to {command}") from None
        finally:
            engine.answers.pop(command_id, None)
        return _value(engine.name, result)

    async def stream(self, node: str, command: str, args: Json, on_items: OnItems) -> str:
        """Begin a stream; ``on_items`` gets its items. Returns the id, for `end_stream`."""
        engine = self.engine(node)
        stream_id = uuid.uuid4().hex
        engine.streams[stream_id] = on_items
        try:
            await self._ask(engine, stream_id, command, args, COMMAND_TIMEOUT_S)
        except BaseException as problem:
            if not isinstance(problem, ProblemError) or problem.problem == "node_timeout":
                await self.end_stream(node, stream_id)  # it may begin late
            engine.streams.pop(stream_id, None)
            raise
        return stream_id

    async def end_stream(self, node: str, stream_id: str) -> None:
        """End a stream; nothing when its engine is gone."""
        engine = self._engines.get(node)
        if engine is not None and engine.streams.pop(stream_id, None) is not None:
            await self._try_send(engine, {"type": "cancel", "id": stream_id})

    async def samples(self, timeout_s: float = 2.0) -> dict[str, Json]:
        """A sample of every engine, taken now; engines that do not answer are left out."""
        names = self.connected()
        tasks = [self.ask(name, "sample", {}, timeout_s) for name in names]
        found = await asyncio.gather(*tasks, return_exceptions=True)
        return {
            name: each for name, each in zip(names, found, strict=True) if isinstance(each, dict)
        }


def _dismissed(session: Session, engine: Engine) -> Json | None:
    """The message to an engine that may stay no longer, so that it gets no secret; else None."""
    why = identity.dismissal(session, engine.name, lambda: engine.digest)
    return None if why is None else {"type": "dismissed", "detail": why}


async def _end_all(*tasks: asyncio.Task[None] | None) -> None:
    for task in tasks:
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


def allow_messages(websocket: WebSocket, bytes_max: int) -> None:
    """Let a socket's messages be larger, from now on; see `server.SocketProtocol`."""
    allow = (websocket.scope.get("extensions") or {}).get(MESSAGE_BYTES_KEY)
    if allow is not None:
        allow(bytes_max)


async def _deny(websocket: WebSocket, status: int, code: str, detail: str) -> None:
    """Refuse a handshake, with the reason as its body."""
    body = msgspec.json.encode({"status": status, "code": code, "detail": detail})
    if "websocket.http.response" in (websocket.scope.get("extensions") or {}):
        await websocket.send_denial_response(
            Response(body, status, media_type="application/problem+json")
        )
    else:
        await websocket.close(4000 + status, code)


def _denial(node: str, refused: ProblemError, address: str) -> Denial:
    """Of a socket that was not opened, or of a hello: ``node`` is the name that it gave."""
    route = "WS /api/v1/engine"
    return Denial(
        actor=node,
        actor_kind="engine" if node else "anonymous",
        route=route,
        action=route,
        status=CATALOGUE[refused.problem].status,
        code=refused.problem,
        detail=refused.detail,
        request_id="",
        address=address,
        network=network_of(address),
    )


def _value(node: str, result: Json) -> Json:
    if result.get("ok"):
        value = result.get("value")
        return value if isinstance(value, dict) else {"value": value}
    detail = f"{node}: {result.get('detail', '')}"
    code = {
        "not_found": "not_found",
        "not_implemented": "not_implemented",
        "conflict": "conflict",
        "config": "invalid_request",
    }.get(str(result.get("code")), "node_failed")
    raise ProblemError(code, detail)
