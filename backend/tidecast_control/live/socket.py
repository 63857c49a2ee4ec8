"""The websocket of the live feed: the channels of one viewer, and the frames that it gets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from urllib.parse import urlsplit

import psycopg
from fastapi import WebSocket, WebSocketDisconnect
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from tidecast_control.api.http import DENIED, actor_of, checked, note_denial
from tidecast_control.context import Context
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.problems import CATALOGUE, ProblemError
from tidecast_control.kit.rights import Need
from tidecast_control.live.access import need_channel
from tidecast_control.live.feed import Channel, EncodedFrame, encode
from tidecast_control.live.patch import combined
from tidecast_control.live.rates import Json
from tidecast_control.live.schemas import Watch

log = logging.getLogger("tidecast.control")

Ending = tuple[int, str]
"""Code and reason that a socket is closed with."""
PING_S, AUTH_S, CLOSE_S = 1.0, 2.0, 2.0
ROUTE = "WS /api/v1/live"
TRY_AGAIN, RIGHTS_CHANGED = 1013, 4409
DATABASE_AWAY: Ending = (TRY_AGAIN, "database_unavailable")
DATABASE_ERRORS = (SQLAlchemyError, psycopg.Error)
MESSAGE_BYTES_MAX = 64 * 1024
APPENDING = ("messages:", "recorder:", "alerts", "audit", "moves")


async def serve(websocket: WebSocket) -> None:
    """One viewer, from its handshake to its end."""
    ctx = websocket.app.state.context
    assert isinstance(ctx, Context)
    origin = websocket.headers.get("origin")
    if origin is not None and not _own(origin, websocket.headers.get("host", ""), ctx):
        problem = ProblemError("denied", "Origin: not this service, nor an allowed origin")
        note_denial(websocket, problem, ROUTE)
        await websocket.close(4403, "another origin")
        return
    actor = None
    try:
        actor = checked(await actor_of(websocket, ctx))
        actor.need("live:read")
        opening = contextlib.ExitStack()
        opening.enter_context(ctx.sockets.opened(actor))
    except ProblemError as problem:
        if problem.problem != "unauthenticated":  # a page whose session ended connects again
            note_denial(websocket, problem, ROUTE, actor)
        await websocket.accept()  # only then can a browser read the code
        await websocket.close(4000 + CATALOGUE[problem.problem].status, problem.problem)
        return
    except DATABASE_ERRORS as problem:
        log.warning("live feed: a socket is closed: %s", str(problem).splitlines()[0])
        await websocket.accept()
        await websocket.close(*DATABASE_AWAY)
        return
    with opening:
        await websocket.accept()
        await _serve(Viewer(ctx, websocket, actor), websocket)


async def _serve(viewer: Viewer, websocket: WebSocket) -> None:
    tasks = {asyncio.create_task(viewer.send_frames()), asyncio.create_task(viewer.receive())}
    code, reason = 1000, ""
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            code, reason = task.result()
    except (WebSocketDisconnect, RuntimeError):
        pass  # it is closed
    except DATABASE_ERRORS as problem:
        log.warning("live feed: a socket is closed: %s", str(problem).splitlines()[0])
        code, reason = DATABASE_AWAY
    except Exception:
        log.exception("live feed: a socket is closed")
        code, reason = 1011, "internal"
    finally:
        try:
            await _end(websocket, tasks, code, reason)
        finally:
            viewer.close()


async def _end(
    websocket: WebSocket, tasks: set[asyncio.Task[Ending]], code: int, reason: str
) -> None:
    """End the tasks of a socket, and the socket itself: the client connects again."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)  # with `gather`, anyio would not see a cancellation of this task
    for task in tasks:
        if not task.cancelled():
            task.exception()  # seen: asyncio does not log it
    with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await websocket.close(code, reason)


def _own(origin: str, host: str, ctx: Context) -> bool:
    return urlsplit(origin).netloc == host or origin in ctx.settings.allowed_origins


class Viewer:
    """The channels that one connection watches, and its position in each."""

    def __init__(self, ctx: Context, websocket: WebSocket, actor: Actor) -> None:
        self._ctx, self._feed, self._websocket, self._actor = ctx, ctx.feed, websocket, actor
        self._channels: dict[str, Channel] = {}
        self._sent: dict[str, int | None] = {}
        """Channel -> seq of the newest frame that was sent; None = a snapshot comes first."""
        self._hz = 4.0
        self._tick = asyncio.Event()
        self._lock = asyncio.Lock()
        self._changes, self._checked_s = ctx.db.statements.recent.changes, time.monotonic()

    async def receive(self) -> Ending:
        """Handle the client's messages until it sends an invalid message."""
        while True:
            text = await self._websocket.receive_text()
            if len(text) > MESSAGE_BYTES_MAX:
                return 4413, "too large"
            await self.watch(text)

    async def watch(self, text: str) -> None:
        """Replace the watched channels by the channels of a client's message."""
        try:
            wanted = Watch.model_validate_json(text)
        except ValidationError as problem:
            await self._error("", "invalid_request", problem.errors()[0]["msg"])
            return
        self._hz = wanted.hz
        names = list(dict.fromkeys(wanted.watch))
        for name in [n for n in self._channels if n not in names]:
            self._close(name)
        for name in names:
            if name in self._channels:
                continue
            try:
                channel = await self._open(name)
            except ProblemError as problem:
                if CATALOGUE[problem.problem].status in DENIED:
                    note_denial(self._websocket, problem, ROUTE, self._actor)
                await self._error(name, problem.problem, problem.detail)
                continue
            self._channels[name] = channel
            after = wanted.after.get(name)
            await self._begin(name, channel, int(after) if after else None)
        self._tick.set()

    async def _open(self, name: str) -> Channel:
        internal = self._internal(name)
        self._ctx.sockets.open_channel(self._actor, name)
        try:
            return await self._feed.open(internal)
        except BaseException:
            self._ctx.sockets.close_channel(self._actor, name)
            raise

    def _close(self, name: str) -> None:
        self._ctx.sockets.close_channel(self._actor, name)
        self._feed.close(self._channels.pop(name))
        self._sent.pop(name, None)

    def _internal(self, name: str) -> str:
        """The channel's name in the feed: those without the right get one without payloads."""
        kind, _, rest = name.partition(":")
        if "#" in name:
            raise ProblemError("not_found", f"no channel {name!r}")
        need_channel(self._actor, name)
        if kind == "messages" and not self._actor.may("messages:read", Need("read_payloads", rest)):
            return f"{name}#withheld"
        return name

    async def _begin(self, name: str, channel: Channel, after: int | None) -> None:
        appending = name.startswith(APPENDING)
        if after is None:
            self._sent[name] = channel.seq if appending else None
            if appending:  # the source is open: entries from now on are sent
                await self._send(encode(channel.seq, "snapshot", name, {}))
            return
        if channel.after(after) is not None:
            self._sent[name] = after
            return
        self._sent[name] = channel.seq if appending else None
        await self._send(encode(channel.seq, "gap", name, None))

    async def _error(self, channel: str, code: str, detail: str) -> None:
        data: Json = {"code": code, "detail": detail}
        await self._send(encode(0, "error", channel, data))

    async def _send(self, text: str) -> None:
        async with self._lock:
            await self._websocket.send_text(text)

    def close(self) -> None:
        """Nothing is watched any more."""
        self._feed.viewers.discard(self._tick)
        for name in list(self._channels):
            self._close(name)

    async def send_frames(self) -> Ending:
        """Send new frames at each tick, at most ``hz`` times a second; ping without frames."""
        spoke_s = time.monotonic()
        self._feed.viewers.add(self._tick)
        while True:
            began_s = time.monotonic()
            self._tick.clear()
            end = await self._changed()
            if end is not None:
                return end
            if await self._send_new():
                spoke_s = time.monotonic()
            elif began_s - spoke_s >= PING_S:
                await self._send(encode(0, "ping", "", None))
                spoke_s = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PING_S):
                    await self._tick.wait()
            if self._hz < self._feed.hz:  # fewer frames than there are ticks
                await asyncio.sleep(max(0.0, began_s + 0.9 / self._hz - time.monotonic()))

    async def _changed(self) -> Ending | None:
        """Why the connection ends; None: the caller exists, with unchanged rights.

        Called before each round: a change through this service takes effect at once, a change
        through another service within `AUTH_S`. A caller that lost rights connects again, with its
        remaining rights.
        """
        recent, now_s = self._ctx.db.statements.recent, time.monotonic()
        if recent.changes == self._changes and now_s - self._checked_s < AUTH_S:
            return None
        changes, before = recent.changes, self._actor
        try:
            actor = checked(await actor_of(self._websocket, self._ctx))
        except ProblemError:
            return 4401, "unauthenticated"
        self._changes, self._checked_s, self._actor = changes, now_s, actor
        if (actor.role, actor.scopes) != (before.role, before.scopes) or not self._still_allowed():
            return RIGHTS_CHANGED, "rights changed"
        return None

    def _still_allowed(self) -> bool:
        """May each watched channel still be watched?"""
        try:
            self._actor.need("live:read")
            return all(self._internal(n) == c.name for n, c in self._channels.items())
        except ProblemError:
            return False

    async def _send_new(self) -> bool:
        """Whether anything was sent. Frames that piled up become one: no old ones are sent.

        A channel gets new frames while this sends: they are left for the next round.
        """
        spoke = False
        for name, channel in list(self._channels.items()):
            if self._channels.get(name) is not channel:
                continue  # it was closed while another channel's frames left
            sent = self._sent.get(name)
            frames = channel.after(sent) if sent is not None else None
            if frames == []:
                continue
            self._sent[name] = channel.seq
            for text in self._texts(name, channel, frames):
                await self._send(text)
            spoke = True
        return spoke

    def _texts(self, name: str, channel: Channel, frames: list[EncodedFrame] | None) -> list[str]:
        """The frames as they are sent; None: some of them are gone."""
        appending = channel.source is not None
        if frames is None:
            gap = encode(channel.seq, "gap", name, None)
            return [gap] if appending else self._feed.replay(channel)
        if len(frames) > 1 and not appending:
            patch: Json | None = {}
            for frame in frames:
                patch = combined(patch, frame.data or {}) if patch is not None else None
            if patch is not None:
                return [encode(channel.seq, "delta", name, patch)]
        return [frame.text for frame in frames]
