"""The adapters that an engine process attaches when it starts: of its options, and its topology."""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tidecast.api.connecting import Backoff
from tidecast.config.sources import jetstream
from tidecast.config.sources.adapters import AdapterConfig
from tidecast.config.sources.kafka import SCHEME, KafkaSource, kafka_source_of
from tidecast.config.store import TopologyStore
from tidecast.errors import Closed, ConfigError, TidecastError
from tidecast.node.consumers.adapters import Attached
from tidecast.queues.adapter import Adapter

FIRST_S = 5.0
"""So long a start waits for the first attempts, all together; then they continue without it."""
JOIN_S = 2.0
Make = Callable[[], Adapter]


def _kafka(source: KafkaSource) -> Adapter:
    from tidecast.kafka.brokers.adapter import KafkaAdapter

    return KafkaAdapter(source)


def _jetstream(source: jetstream.JetStreamSource) -> Adapter:
    from tidecast.jetstream.adapter import JetStreamAdapter

    return JetStreamAdapter(source)


def _made_by_url(url: str) -> tuple[str, Make] | None:
    """(kind, function that makes an adapter) of a URL; None: it is none. Raises ConfigError."""
    if url.startswith(SCHEME):
        return "kafka", partial(_kafka, kafka_source_of(url))
    if url.startswith(jetstream.SCHEME):
        return "jetstream", partial(_jetstream, jetstream.jetstream_source_of(url))
    return None


def _declared(one: AdapterConfig) -> tuple[str, str, Make]:
    """The same of a section of the topology."""
    if one.kafka is not None:
        return one.topic, "kafka", partial(_kafka, one.kafka)
    assert one.jetstream is not None
    return one.topic, "jetstream", partial(_jetstream, one.jetstream)


def made_by(text: str) -> tuple[str, str, Make]:
    """(topic, description, function that makes an adapter) of an option's text.

    The text: ``TOPIC=MODULE:FUNCTION``, ``TOPIC=kafka://...`` or ``TOPIC=jetstream://...``.

    Raises ConfigError.
    """
    topic, _, where = text.partition("=")
    try:
        known = _made_by_url(where) if topic else None
    except ConfigError as problem:
        raise ConfigError(f"adapter: {topic}: {problem}", problem.problems) from None
    if known is not None:
        return topic, *known
    module, _, name = where.partition(":")
    if not (topic and module and name):
        raise ConfigError(
            f"adapter: {text!r}: allowed are TOPIC=MODULE:FUNCTION, TOPIC={SCHEME}HOST:PORT/NAME "
            f"and TOPIC={jetstream.SCHEME}HOST:PORT/STREAM"
        )
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as problem:
        raise ConfigError(f"adapter: {text!r}: {problem}") from None
    return topic, where, found


class Opening:
    """One adapter until it is attached; in a thread, as its system may be away for any time."""

    def __init__(self, topic: str, kind: str, make: Make, attached: Attached) -> None:
        self.topic, self._kind, self._make, self._attached = topic, kind, make, attached
        self._lock = threading.Lock()
        self._tried, self._stopping = threading.Event(), threading.Event()
        self._is_awaited = True
        self._fault: TidecastError | None = None
        self._adapter: Adapter | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"tidecast-adapter-of-{topic}", daemon=True
        )

    def start(self) -> None:
        """Try to open it, again until it is open."""
        self._thread.start()

    def await_first(self, timeout_s: float) -> None:
        """Wait for the first attempt. Raises an error that no later attempt can cure."""
        if not self._tried.wait(timeout_s):
            with self._lock:
                self._is_awaited = False
            if not self._tried.is_set():
                self._note(f"no answer within {timeout_s:.0f} s")
        if self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            problem = self._attempt()
            if problem is None or self._is_fatal(problem):
                break
            if not self._stopping.is_set():
                self._note(str(problem))
            self._tried.set()
            self._stopping.wait(backoff.next_s())
        self._tried.set()

    def _is_fatal(self, problem: TidecastError) -> bool:
        """The engine waits for the first attempt, and no other one would fare better."""
        with self._lock:
            awaited, self._is_awaited = self._is_awaited, False
            if awaited and not problem.retryable:
                self._fault = problem
        return self._fault is not None

    def _attempt(self) -> TidecastError | None:
        """Make and attach it; the error, if any."""
        try:
            self._open()
        except TidecastError as problem:
            return problem
        return None

    def _open(self) -> None:
        adapter: Adapter | None = None
        try:
            adapter = self._make()
            with self._lock:
                self._adapter = adapter
            if self._stopping.is_set():
                raise Closed(f"topic {self.topic}: the engine stops")
            self._attached.attach(self.topic, adapter)
        except Exception as problem:  # the code of others must not end this thread
            if adapter is not None:
                with contextlib.suppress(Exception):
                    adapter.close()
            if isinstance(problem, TidecastError):
                raise
            raise ConfigError(
                f"adapter {self.topic}={self._kind}: {type(problem).__name__}: {problem}"
            ) from problem

    def _note(self, detail: str) -> None:
        self._attached.note_waiting(self.topic, self._kind, detail)

    def stop(self) -> None:
        """Try no more. An attempt under way ends soon: its adapter is closed. Idempotent."""
        self._stopping.set()
        with self._lock:
            adapter = self._adapter
        if adapter is not None and self._thread.is_alive():
            adapter.close()

    def join(self) -> None:
        """Wait for its thread, unless that hangs in a connection to nowhere."""
        if self._thread.ident is not None:
            self._thread.join(JOIN_S)


class Adapters:
    """Beside an engine process: its adapters, attached as long as it runs."""

    def __init__(self, texts: tuple[str, ...], node: Any, store: TopologyStore) -> None:
        attached = node.consumers.attached
        self._openings = [Opening(*made_by(text), attached=attached) for text in texts] + [
            Opening(*_declared(each), attached) for each in store.topology.adapters
        ]

    def start(self) -> None:
        """Open them. Adapters whose system is away are opened when it is back.

        Raises an adapter's error that no later attempt can cure.
        """
        for one in self._openings:
            one.start()
        begun_s = time.monotonic()
        for one in self._openings:
            one.await_first(max(0.0, begun_s + FIRST_S - time.monotonic()))

    def stop(self) -> None:
        """Try no more to open waiting adapters; the node closes the others. Idempotent."""
        for one in self._openings:
            one.stop()
        for one in self._openings:
            one.join()
