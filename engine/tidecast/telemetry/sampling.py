"""The telemetry of an engine: samples of its counters in a durable topic of its own.

A thread takes a sample every ``interval_s``. `tidecast pipeline rollup` makes history of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tidecast import events
from tidecast.agents.warmup import DURABLE, is_warm
from tidecast.config.telemetry import TelemetryConfig
from tidecast.config.topology import MIB, TopicConfig, derive_topic_id
from tidecast.errors import Closed, Conflict, TidecastError
from tidecast.layout import recorder as rec
from tidecast.telemetry.samples import Collector, Sampler
from tidecast.telemetry.views import connect_inside

if TYPE_CHECKING:
    from tidecast.client.blocking import Connection, Publisher
    from tidecast.node.node import Node

TOPIC = "tidecast.telemetry"
SEGMENTS = 16
"""Retention deletes whole segments: so many hold the kept samples."""
ROWS_KEPT_MAX = 100_000
"""While the disk refuses, samples wait here; then the oldest are dropped, counted and reported."""
PUBLISH_S = 5.0


def topic_config(node: Node, config: TelemetryConfig) -> TopicConfig:
    """The topic: on a transport that sends nothing to the network, if there is one."""
    transports = node.topology.transports
    local = next((t for t in transports if t.kind == "ipc"), transports[0])
    return TopicConfig(
        name=TOPIC,
        transport=local.name,
        mode="durable",
        history_bytes=MIB,
        receive_bytes=MIB,
        fsync_interval_ms=1000.0,
        retention_bytes=config.retention_bytes,
        retention_s=config.retention_s,
        retention_past_unacked=True,
        segment_bytes=max(MIB, config.retention_bytes // SEGMENTS),
        cache_bytes=MIB,
        description="Counters of the engine, for history. Made by the engine itself.",
    )


class Telemetry:
    """See module. `start` and `stop`; between them a thread of its own does everything."""

    def __init__(
        self,
        node: Node,
        config: TelemetryConfig,
        interval_s: float,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        mono_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``interval_s``: where ``config`` leaves it open; 0: no telemetry."""
        self.node, self.config = node, config
        self.interval_s = interval_s if config.interval_s is None else config.interval_s
        self.problem = ""
        self.dropped = 0
        self._clock_ns, self._mono_ns = clock_ns, mono_ns
        self._waiting: list[bytes] = []
        self._opened = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidecast-telemetry", daemon=True)

    def start(self) -> None:
        """Begin, if enabled; a failure is in ``problem``, and does not stop the engine."""
        if not self.interval_s:
            return
        if is_warm(DURABLE) and not self._opens():
            return
        self._thread.start()  # it waits for a compiler, the engine does not

    def open(self) -> None:
        """Make the topic and begin to count. Raises TidecastError."""
        self._make_topic()
        self._connection: Connection = connect_inside(self.node, "telemetry")
        self._publisher: Publisher = self._connection.publisher(TOPIC)
        self._collector = Collector(self.node, TOPIC)
        self._sampler = Sampler(self.node.name, self._mono_ns())
        self._opened = True

    def _opens(self) -> bool:
        try:
            self.open()
        except TidecastError as problem:
            self._fail(problem)
        return self._opened

    def stop(self) -> None:
        """A last sample, then end. Idempotent."""
        if self._stopping.is_set() or not self._thread.is_alive():
            return
        self._stopping.set()
        self._thread.join(PUBLISH_S + 5.0)
        if not self._opened:
            return
        self._collector.close()
        self._connection.close()

    def _make_topic(self) -> None:
        found = self.node.topic_by_name.get(TOPIC)
        if found is None:
            self.node.create_topic(topic_config(self.node, self.config))
        elif found.mode != "durable":
            raise Conflict(f"topic {TOPIC}: is {found.mode}: telemetry needs it durable")

    def _fail(self, problem: TidecastError) -> None:
        self.problem = str(problem)
        self.node.note(rec.ALERT, rec.Code.TOPIC_CONFLICT, derive_topic_id(TOPIC), self.node.id)
        detail = f"no telemetry: {problem}"
        self.node.notify_all(events.TopicConflict(topic=TOPIC, node=self.node.name, detail=detail))

    def _run(self) -> None:
        if not self._opened and not self._opens():
            return
        due_s = time.monotonic() + self.interval_s
        while not self._stopping.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s + self.interval_s, time.monotonic())
            if not self._step():
                return
        self._step()

    def _step(self) -> bool:
        try:
            self.sample()
        except Closed:
            return False
        except TidecastError as problem:  # tried again with the next sample
            self.problem = str(problem)
        except Exception as problem:  # noqa: BLE001  (reported; and tried again)
            self.problem = f"{type(problem).__name__}: {problem}"
            self.node.conductor.agent_failed("telemetry", problem, 1)
        return True

    def sample(self) -> int:
        """Take a sample and publish it; how many rows. Raises TidecastError; then they wait."""
        readings = self._collector.read()
        rows = self._sampler.rows(readings, self._clock_ns() // 1000, self._mono_ns())
        self._waiting += map(msgspec.json.encode, rows)
        self._drop_oldest()
        result = self._publisher.publish_batch(self._waiting, flush=True, timeout=PUBLISH_S)
        del self._waiting[: result.taken]
        result.check()
        self.problem = ""
        return len(rows)

    def _drop_oldest(self) -> None:
        many = len(self._waiting) - ROWS_KEPT_MAX
        if many > 0:
            del self._waiting[:many]
            self.dropped += many
            session = self._publisher.session
            self.node.notify_all(
                events.MessagesDropped(topic=TOPIC, session=session, messages=many)
            )


def telemetry(interval_s: float) -> Callable[[Any, Any], Telemetry]:
    """Make an engine's telemetry. ``interval_s``: where the topology leaves it open."""

    def make(node: Any, store: Any) -> Telemetry:
        return Telemetry(node, store.topology.telemetry, interval_s)

    return make
