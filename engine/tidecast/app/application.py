"""`App`: handlers, their shared state, and their life from the first message to the last."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, Unpack

from tidecast.api.start import Earliest, Latest, Start
from tidecast.api.words import PublishOptions, StartWord
from tidecast.app.declarations import Declaration
from tidecast.app.handlers import (
    ConsumerHandler,
    Handler,
    ResponderHandler,
    Retry,
    SubscriberHandler,
    local_names,
)
from tidecast.app.payloads import check_codec
from tidecast.client.admin.types import SubscriptionSettings, TopicSettings
from tidecast.client.aio import Connection, Publisher
from tidecast.client.connecting import connect
from tidecast.client.core.outgoing import reject
from tidecast.codecs import Codec
from tidecast.errors import Closed, ConfigError, NotFound, TidecastError, Timeout
from tidecast.events import Gap, MessageDead, RecordsGone

logger = logging.getLogger("tidecast.app")
Fn = TypeVar("Fn", bound=Callable[..., Any])
Lifespan = Callable[["App"], AbstractAsyncContextManager[Any]]
DRAIN_TIMEOUT_S = 30.0
Phase = Literal["stopped", "starting", "ready", "draining"]
_REPORTED = Gap, MessageDead, RecordsGone


class App:
    """An application of handlers: `consumer`, `subscriber` and `responder` register them.

    ``url``, ``token``: as for `tidecast.connect`. ``codec``: of payloads whose handlers name a
    type, ``json`` or ``msgpack``, or an object with ``encode`` and ``decode``. ``lifespan``: a
    function of the app that returns an async context manager, entered before the first message
    and left behind the last one. ``create``: topics and subscriptions that the app declares are
    created at start; False: they must be there. ``state`` is yours. `tidecast run MODULE:APP` runs
    it.
    """

    is_tidecast_app = True

    def __init__(
        self,
        name: str = "app",
        url: str = "tidecast://",
        *,
        token: str | None = None,
        codec: Codec | str = "json",
        lifespan: Lifespan | None = None,
        create: bool = True,
    ) -> None:
        self.name, self.url, self.token = name, url, token
        self.codec = check_codec(codec)
        self.state = SimpleNamespace()
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        """In tests: the functions that replace dependencies."""
        self.create = create
        self.declarations: list[Declaration] = []
        """Of `topic` and `subscription`, in their order."""
        self.handlers: list[Handler] = []
        self.phase: Phase = "stopped"
        self._lifespan = lifespan
        self._client: Connection | None = None
        self._publishers: dict[str, Publisher] = {}
        self._opening = asyncio.Lock()
        self.phase_changed = asyncio.Event()
        """Set, and replaced, when ``phase`` changes."""

    @property
    def client(self) -> Connection:
        """The connection, while the app runs. Raises Closed."""
        if self._client is None:
            raise Closed(f"app {self.name}: it does not run")
        return self._client

    # --- topics and subscriptions -----------------------------------------------------------------

    def topic(self, name: str, **settings: Unpack[TopicSettings]) -> str:
        """Declare a topic that the app needs; settings as of `Topics.ensure`. Returns its name.

        It is created before the app starts. Of a topic that is there the settings must hold, else
        the app does not start: Conflict. Raises ConfigError.
        """
        self._declare(Declaration(name, dict(settings)))
        return name

    def subscription(self, topic: str, name: str, **settings: Unpack[SubscriptionSettings]) -> None:
        """Declare a durable subscription, such as that of another program; see `topic`.

        The subscriptions of `consumer` need no declaration. Settings as of `Subscriptions.ensure`.
        Raises ConfigError.
        """
        self._declare(Declaration(topic, dict(settings), name))

    def _declare(self, declaration: Declaration) -> None:
        self._check_stopped("declare topics and subscriptions")
        if any(each.name == declaration.name for each in self.declarations):
            raise ConfigError(f"app {self.name}: {declaration.name} is declared twice")
        self.declarations.append(declaration)

    async def _ensure_declared(self) -> None:
        for each in self.declarations:
            await (each.ensure if self.create else each.check)(self.client)

    # --- handlers ---------------------------------------------------------------------------------

    def consumer(
        self,
        topic: str,
        subscription: str,
        *,
        concurrency: int = 1,
        retry: Retry = Retry(),  # noqa: B008 - immutable
        dead_letter: str | None = None,
        timeout: float | None = None,
        publishes: str | None = None,
        start: Start | StartWord = Earliest(),  # noqa: B008 - immutable
        ack_wait: float | None = None,
        max_in_flight: int = 500,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        where: str | None = None,
        codec: Codec | str | None = None,
    ) -> Callable[[Fn], Fn]:
        """Handle records of a durable topic, or pattern, as a member of ``subscription``.

        A record is acked when the function has returned, and its result, if the handler
        ``publishes`` a topic, is stored there. ``concurrency``: calls at a time; records of one key
        are handled one after another. ``timeout``: seconds a call may take (coroutine functions).
        A record is not delivered again while its call is under way. Others: see
        `Connection.consumer`. Raises ConfigError.
        """
        options = {
            "dead_letter": dead_letter,
            "start": start,
            "ack_wait": ack_wait,
            "max_in_flight": max_in_flight,
            "key": key,
            "headers": headers,
            "where": where,
        }
        return self._register(
            ConsumerHandler,
            topic,
            subscription=subscription,
            retry=retry,
            options=options,
            concurrency=concurrency,
            timeout=timeout,
            codec=codec,
            publishes=publishes,
        )

    def subscriber(
        self,
        topic: str,
        *,
        concurrency: int = 1,
        timeout: float | None = None,
        publishes: str | None = None,
        start: Start | StartWord = Latest(),  # noqa: B008 - immutable
        codec: Codec | str | None = None,
    ) -> Callable[[Fn], Fn]:
        """Handle messages of live topics. A message whose function raises is logged and counted.

        With ``concurrency`` above 1 messages are handled in any order. Raises ConfigError.
        """
        return self._register(
            SubscriberHandler,
            topic,
            start=start,
            concurrency=concurrency,
            timeout=timeout,
            codec=codec,
            publishes=publishes,
        )

    def responder(
        self,
        topic: str,
        *,
        group: str | None = None,
        concurrency: int = 1,
        timeout: float | None = None,
        codec: Codec | str | None = None,
    ) -> Callable[[Fn], Fn]:
        """Respond to requests with results of the function; see `Connection.responder`.

        Raises ConfigError.
        """
        return self._register(
            ResponderHandler,
            topic,
            group=group,
            concurrency=concurrency,
            timeout=timeout,
            codec=codec,
        )

    def _register(
        self, kind: Callable[..., Handler], topic: str, **options: Any
    ) -> Callable[[Fn], Fn]:
        self._check_stopped("register handlers")
        if options["codec"] is not None:
            check_codec(options["codec"])
        local = local_names(2)

        def register(fn: Fn) -> Fn:
            if not callable(fn):
                raise reject("handler", fn, "is a function")
            self.handlers.append(kind(self, fn, topic, local=local, **options))
            return fn

        return register

    def _check_stopped(self, what: str) -> None:
        if self._client is not None:
            raise ConfigError(f"app {self.name}: it runs; {what} before it starts")

    def handler_of(self, fn: Callable[..., Any] | str) -> Handler:
        """The handler of a function, or by the function's name. Raises NotFound."""
        for each in self.handlers:
            if fn in (each.fn, each.name):
                return each
        names = ", ".join(each.name for each in self.handlers) or "none"
        raise NotFound(f"app {self.name}: no handler {fn!r}: there are {names}")

    # --- publishing -------------------------------------------------------------------------------

    async def publish(self, topic: str, payload: bytes, **options: Unpack[PublishOptions]) -> None:
        """Publish, and return when a durable topic has stored it; a live topic has it in its ring.

        Raises errors as `Publisher.publish`.
        """
        publisher = await self.publisher_of(topic)
        if publisher.durable:
            options.setdefault("ack", "durable")
        await publisher.publish(payload, **options)

    async def publisher_of(self, topic: str) -> Publisher:
        """The publisher that `publish` keeps for a topic. Payloads are bytes."""
        publisher = self._publishers.get(topic)
        if publisher is None or publisher.closed:
            async with self._opening:
                publisher = self._publishers.get(topic)
                if publisher is None or publisher.closed:
                    publisher = await asyncio.to_thread(
                        partial(self.client.publisher, topic, codec="raw")  # it is encoded
                    )
                    self._publishers[topic] = publisher
        return publisher

    # --- running ----------------------------------------------------------------------------------

    async def run(
        self,
        *,
        stop: asyncio.Event | None = None,
        client: Connection | None = None,
        drain_timeout: float | None = DRAIN_TIMEOUT_S,
    ) -> None:
        """Handle messages until ``stop`` is set, or a handler cannot continue; then drain.

        ``client``: a connection to use, which stays open. Raises the error that ended a handler;
        Timeout when calls are under way after ``drain_timeout`` seconds.
        """
        if not self.handlers:
            raise ConfigError(f"app {self.name}: it has no handlers")
        async with self._connected(client):
            await self._ensure_declared()
            await self._handle(stop, drain_timeout)

    async def _handle(self, stop: asyncio.Event | None, drain_timeout: float | None) -> None:
        async with self._entered():
            tasks = await self._begin()
            waits = [asyncio.ensure_future((stop or asyncio.Event()).wait())]
            try:
                await asyncio.wait([*tasks, *waits], return_when=asyncio.FIRST_COMPLETED)
            finally:
                waits[0].cancel()
                await self._finish(tasks, drain_timeout)

    @asynccontextmanager
    async def running(
        self, client: Connection | None = None, drain_timeout: float | None = DRAIN_TIMEOUT_S
    ) -> AsyncIterator[Running]:
        """Handle messages in the background while the block runs; for tests, and other programs."""
        stop = asyncio.Event()
        task = asyncio.create_task(self.run(stop=stop, client=client, drain_timeout=drain_timeout))
        running = Running(self, task)
        try:
            await running.ready()
            yield running
        finally:
            stop.set()
            await task

    @asynccontextmanager
    async def _connected(self, client: Connection | None) -> AsyncIterator[None]:
        self._enter("starting")
        made = client or await connect(self.url, name=self.name, token=self.token)
        self._client = made
        try:
            yield
        finally:
            self._enter("stopped")
            self._client = None
            self._publishers.clear()
            if client is None:
                await made.close()

    @asynccontextmanager
    async def _entered(self) -> AsyncIterator[None]:
        if self._lifespan is None:
            yield
            return
        async with self._lifespan(self):
            yield

    async def _begin(self) -> list[asyncio.Task[None]]:
        for handler in self.handlers:
            handler.counts = type(handler.counts)()
            await handler.open(self.client)
        self._enter("ready")
        logger.info("%s: ready, %d handlers", self.name, len(self.handlers))
        return [
            *(asyncio.create_task(each.run(), name=each.name) for each in self.handlers),
            asyncio.create_task(self._log_events(), name="events"),
        ]

    async def _finish(self, tasks: list[asyncio.Task[None]], drain_timeout: float | None) -> None:
        """Drain all handlers at the same time. Raises the first error of any."""
        self._enter("draining")
        drained = await asyncio.gather(
            *(each.drain(drain_timeout) for each in self.handlers), return_exceptions=True
        )
        *runs, events = tasks
        late = any(isinstance(each, Timeout) for each in drained)
        for task in runs if late else ():
            task.cancel()
        events.cancel()
        ended = await asyncio.gather(*runs, return_exceptions=True)
        with contextlib.suppress(asyncio.CancelledError, TidecastError):
            await events
        with contextlib.suppress(TidecastError):
            await self.client.flush(timeout=drain_timeout)
        for handler in self.handlers:
            with contextlib.suppress(TidecastError):
                await handler.close()
        for problem in (*ended, *drained):
            if isinstance(problem, Exception):
                raise problem

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.phase_changed.set()
        self.phase_changed = asyncio.Event()

    async def _log_events(self) -> None:
        """Log losses, and records that were given up, at the time of their events."""
        async for event in self.client.events():
            if isinstance(event, _REPORTED):
                logger.warning("%s: %r", self.name, event)


class Running:
    """An app that handles messages; `App.running` makes it."""

    def __init__(self, app: App, task: asyncio.Task[None]) -> None:
        self.app, self._task = app, task

    @property
    def client(self) -> Connection:
        """The app's connection."""
        return self.app.client

    async def ready(self) -> None:
        """Wait until all handlers have opened. Raises the error that prevents it."""
        while self.app.phase != "ready":
            await self._or_ended(self.app.phase_changed)

    async def _or_ended(self, changed: asyncio.Event) -> None:
        """Wait for an event. Raises the error that ended the app before, or Closed."""
        if not self._task.done():
            waits = asyncio.ensure_future(changed.wait())
            try:
                await asyncio.wait([waits, self._task], return_when=asyncio.FIRST_COMPLETED)
            finally:
                waits.cancel()
        if self._task.done() and not changed.is_set():
            await self._task
            raise Closed(f"app {self.app.name}: it has ended")

    async def wait(
        self,
        handler: Callable[..., Any] | str,
        count: int = 1,
        timeout: float = 10.0,  # noqa: ASYNC109
    ) -> None:
        """Wait until ``count`` calls of a handler are over, since the app started.

        Raises Timeout, NotFound, and the error that ended the app.
        """
        found = self.app.handler_of(handler)
        try:
            async with asyncio.timeout(timeout):
                while found.counts.completed < count:
                    await self._or_ended(found.changed)
        except TimeoutError:
            raise Timeout(
                f"handler {found.name}: {found.counts.completed} of {count} calls are over "
                f"within {timeout:g} s"
            ) from None
