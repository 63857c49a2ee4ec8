"""The storages of a node's topics: opened and closed with their logs, reported and counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tidecast import events
from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError, StorageError, TidecastError
from tidecast.layout.counters import QueueCounter as C
from tidecast.node.durable.sources import SourceRegistry
from tidecast.node.durable.topic import DurableTopic
from tidecast.node.storing.spool import Spool

_log = logging.getLogger("tidecast.node")
_MARK = "storage"
REPORT_NS, SETTLE_S = 60_000_000_000, 2.0
"""A storage that still waits is reported again after this long."""


class Storage(Protocol):
    """Takes the records of a topic from its spool, in threads of its own."""

    def start(self) -> None:
        """Begin; does not wait for other systems."""

    def close(self) -> None:
        """End: nothing of the spool is used when it returns. Idempotent."""

    def settle(self, timeout_s: float) -> None:
        """Have all that the next owner needs in the storage, if it answers in time."""


class Takeover(Protocol):
    """Makes the log of a topic from its storage, in this engine's directory."""

    def run(self) -> None:
        """Do it. Raises TidecastError; Closed."""

    def close(self) -> None:
        """End it: nothing is changed any more when this returns. Idempotent. From any thread."""


class Storages(Protocol):
    """The storages that topics may have beside their logs."""

    def open(self, spool: Spool) -> Storage:
        """The storage of a topic. Raises ConfigError."""

    def take_over(
        self, config: TopicConfig, node: str, queues: Path, owner: int, now_ns: int
    ) -> Takeover:
        """Of a topic that another engine had. ``owner``: epoch of the lease. Raises ConfigError."""


class _Open(NamedTuple):
    spool: Spool
    storage: Storage
    numbers: list[int]


class Storing:
    """See module. `open` and `close` with the node's lock held; the rest from any thread."""

    def __init__(
        self,
        registry: SourceRegistry,
        storages: Storages | None,
        on_lost: Callable[[str, int, str], None],
    ) -> None:
        """``on_lost``: gets a topic, the epoch of its lease, and why another engine has it."""
        self._registry, self._storages, self._on_lost = registry, storages, on_lost
        self._takeovers: dict[str, Takeover] = {}
        self._lock = threading.Lock()
        self._open: dict[DurableTopic, _Open] = {}
        self._waiting: dict[DurableTopic, int] = {}
        """Topics whose storage waits, and when that was reported last."""
        self._since_ns: dict[DurableTopic, int] = {}
        """Since when they wait, ns since 1970."""

    def open(self, topic: DurableTopic) -> None:
        """Open a topic's storage, if it has one. Raises ConfigError."""
        if not topic.is_stored:
            return
        spool = Spool(topic, self._registry.ctx.name, self)
        storage = self._known(topic.config).open(spool)
        numbers = self._registry.tables.queue_numbers(topic)
        with self._lock:
            self._open[topic] = _Open(spool, storage, numbers)
        storage.start()

    def _known(self, config: TopicConfig) -> Storages:
        if self._storages is None:
            raise ConfigError(f"storage: {config.storage}: this node writes to none")
        return self._storages

    def settle(self, topic: DurableTopic) -> None:
        """Bring a topic's storage up to date for the next owner, for SETTLE_S at most."""
        with self._lock:
            found = self._open.get(topic)
        if found is not None:
            found.storage.settle(SETTLE_S)

    def close(self, topic: DurableTopic) -> None:
        """End it: the topic's logs may be closed then. Idempotent."""
        with self._lock:
            found = self._open.pop(topic, None)
            self._waiting.pop(topic, None)
            self._since_ns.pop(topic, None)
        if found is None:
            return
        found.storage.close()
        found.spool.close()
        topic.set_storage_waits("it is closed")
        self._registry.standing.pop((topic.config.name, _MARK), None)

    def synced(self, topic: DurableTopic) -> None:
        """Queues of a topic have more that is synced."""
        found = self._open.get(topic)
        if found is not None:
            found.spool.wake()

    def states(self) -> list[dict[str, Any]]:
        """The storages: topic, storage, state, detail and since_ns of waiting storages; counts.

        ``waiting_records``: that are in the logs and not in the storage yet.
        """
        with self._lock:
            found = [(topic, self._since_ns.get(topic, 0)) for topic in self._open]
        return [self._state(topic, since_ns) for topic, since_ns in found]

    def _state(self, topic: DurableTopic, since_ns: int) -> dict[str, Any]:
        name, rows = topic.config.name, self._registry.rows
        known = [rows[name, q] for q in range(len(topic.logs)) if (name, q) in rows]
        counts = self._registry.ctx.counters.values[known]
        return {
            "topic": name,
            "storage": topic.config.storage,
            "state": "waiting" if topic.storage_waits else "open",
            "detail": topic.storage_waits,
            "since_ns": since_ns,
            "waiting_records": sum(log.next_token - log.stored_token for log in topic.logs),
            "records": int(counts[:, C.STORED_RECORDS].sum()),
            "failures": int(counts[:, C.STORE_FAILURES].sum()),
        }

    # --- taking over ------------------------------------------------------------------------------

    def take_over(
        self,
        config: TopicConfig,
        queues: Path,
        owner: int,
        done: Callable[[TidecastError | None], None],
    ) -> None:
        """Make a topic's log in ``queues`` from its storage, in a thread of its own.

        ``done``: called by the conductor with the error, unless `cancel` ends it before. Raises
        ConfigError.
        """
        ctx = self._registry.ctx
        self.cancel(config.name)
        made = self._known(config).take_over(config, ctx.name, queues, owner, ctx.wall_ns())
        with self._lock:
            self._takeovers[config.name] = made

        def run() -> None:
            problem: TidecastError | None = None
            try:
                made.run()
            except TidecastError as found:
                problem = found
            except Exception as defect:  # noqa: BLE001 - reported, and tried again
                _log.exception("topic %s: it cannot be taken over", config.name)
                problem = StorageError(f"internal error: {type(defect).__name__}: {defect}")
            ctx.conductor.post(lambda: end(problem))

        def end(problem: TidecastError | None) -> None:
            with self._lock:
                if self._takeovers.get(config.name) is not made:
                    return
                del self._takeovers[config.name]
            done(problem)

        threading.Thread(target=run, name=f"takeover-{config.name}", daemon=True).start()

    def cancel(self, name: str) -> None:
        """Take a topic over no more. Idempotent."""
        with self._lock:
            found = self._takeovers.pop(name, None)
        if found is not None:
            found.close()

    def stop(self) -> None:
        """Take nothing over any more."""
        for name in list(self._takeovers):
            self.cancel(name)

    # --- reports ----------------------------------------------------------------------------------

    def progressed(self, topic: DurableTopic, queue: int) -> None:
        """See `Reports`."""
        found = self._open.get(topic)
        if found is None:
            return
        self._registry.runtime.wake_readers(found.numbers[queue])
        for callback in self._registry.on_synced:
            callback(topic)

    def counted(self, topic: DurableTopic, queue: int, counts: tuple[int, int, int]) -> None:
        """See `Reports`."""
        row = self._registry.rows.get((topic.config.name, queue))
        if row is None:
            return
        values = self._registry.ctx.counters.values
        for column, n in zip(
            (C.STORED_RECORDS, C.STORED_BYTES, C.STORE_FAILURES), counts, strict=True
        ):
            values[row, column] += n

    def waits(self, topic: DurableTopic, detail: str, *, final: bool) -> None:
        """See `Reports`."""
        ctx = self._registry.ctx
        topic.set_storage_waits(detail)
        with self._lock:
            if topic not in self._open:
                return
            now_ns, before = ctx.clock_ns(), self._waiting.get(topic)
            if before is not None and not final and now_ns < before + REPORT_NS:
                return
            self._waiting[topic] = now_ns
            self._since_ns.setdefault(topic, ctx.wall_ns())
        name = topic.config.name
        _log.warning("topic %s: its storage takes nothing: %s", name, detail)
        event = events.StorageWaits(topic=name, detail=detail, final=final)
        ctx.conductor.post(lambda: self._stand(topic, event))

    def _stand(self, topic: DurableTopic, event: events.StorageWaits) -> None:
        with self._lock:
            if topic not in self._waiting:
                return
        self._show(topic, waits=1)
        self._registry.stand(event.topic, _MARK, event)

    def back(self, topic: DurableTopic) -> None:
        """See `Reports`."""
        topic.set_storage_waits("")
        with self._lock:
            self._since_ns.pop(topic, None)
            if self._waiting.pop(topic, None) is None:
                return
        self._registry.ctx.conductor.post(lambda: self._stand_down(topic))

    def lost(self, topic: DurableTopic, detail: str) -> None:
        """See `Reports`."""
        name, owner = topic.config.name, topic.owner
        self._registry.ctx.conductor.post(lambda: self._on_lost(name, owner, detail))

    def _stand_down(self, topic: DurableTopic) -> None:
        name = topic.config.name
        self._show(topic, waits=0)
        self._registry.standing.pop((name, _MARK), None)
        self._registry.notify(events.StorageBack(topic=name))

    def _show(self, topic: DurableTopic, *, waits: int) -> None:
        values = self._registry.ctx.counters.values
        for queue in range(len(topic.logs)):
            row = self._registry.rows.get((topic.config.name, queue))
            if row is not None:
                values[row, C.STORAGE_WAITS] = waits
