"""Topics of a node whose queues an adapter keeps: they are consumed here, and not written."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tidecast import events
from tidecast.agents.warmup import DURABLE, warm_up
from tidecast.config.topology import TopicConfig, check_topic_name
from tidecast.errors import Closed, ConfigError, Conflict, NotFound, StorageError, TidecastError
from tidecast.log.queue_log import QueueLog
from tidecast.node.consumers.metrics import AdapterRows
from tidecast.node.consumers.state import ConsumersState, Waiting
from tidecast.queues.adapter import Adapter, Direction, Growing, LeftOut
from tidecast.queues.attached import AttachedQueue
from tidecast.queues.mapper import QueueMap

_log = logging.getLogger("tidecast.node")
QUEUES_MAX = 1024
RETRY_S = 1.0
"""How soon queues that could not be added are tried again."""
REPORT_NS = 60 * 1_000_000_000
"""An adapter that waits is reported again so often."""
_MARK = "adapter"
"""Of the report that stands while an adapter waits, see `SourceRegistry.stand`."""


class QueueHost(Protocol):
    """Delivery of queues to consumers."""

    def topic_opened(
        self, config: TopicConfig, logs: Sequence[QueueLog | AttachedQueue], queue_map: QueueMap
    ) -> None:
        """A topic's queues are there."""

    def topic_closed(self, name: str) -> None:
        """A topic is gone."""

    def appended(self, topic: str, queue_index: int) -> None:
        """A queue has new records."""

    def position(self, topic: str, queue_index: int) -> int | None:
        """The oldest token that some subscription has not acked; None: there is none."""


class Attached:
    """The adapters of a node, by the topics they are."""

    def __init__(self, state: ConsumersState, host: QueueHost) -> None:
        self._state, self._host = state, host
        self.adapters = state.adapters
        self.counters = AdapterRows(state)
        self._watches: dict[str, threading.Event] = {}
        self._reported_ns: dict[str, int] = {}
        self._ended = False

    def attach(self, topic: str, adapter: Adapter) -> None:
        """Let an adapter be a topic's queues.

        Raises ConfigError, Conflict, NotFound, Closed, and errors of the adapter; then none of
        its receivers is open, and the adapter is the caller's to close.
        """
        check_topic_name(topic)
        warm_up(names=DURABLE)
        state = self._state
        if adapter.direction is Direction.WRITE:
            raise ConfigError(f"topic {topic}: adapter {adapter.name} can only write")
        if not 1 <= adapter.queues <= QUEUES_MAX:
            raise ConfigError(f"topic {topic}: {adapter.queues} queues: 1 to {QUEUES_MAX}")
        with state.lock:
            taken = topic in state.topics or topic in state.ctx.topic_by_name
            if taken or topic in self.adapters:
                raise Conflict(
                    f"topic {topic}: this engine has a topic of this name: give another name"
                )
            self.adapters[topic] = adapter
        try:
            self._add_queues(topic, adapter)
        except BaseException as problem:
            with state.lock:
                self.adapters.pop(topic, None)
            if isinstance(problem, TidecastError):
                problem.args = (f"topic {topic}: adapter {adapter.name}: {problem}",)
            raise
        self._note_open(topic, adapter)
        if isinstance(adapter, Growing) and not state.ctx.inline:
            self._begin_watch(topic, adapter)

    def _add_queues(self, topic: str, adapter: Adapter) -> int:
        """Open the queues of an adapter that are not open yet; how many. Raises TidecastError."""
        state = self._state
        count = min(adapter.queues, QUEUES_MAX)
        with state.lock:
            here = state.topics.get(topic)
            known = [one.log for one in here.queues] if here is not None else []
        with contextlib.ExitStack() as undo:
            fresh: list[AttachedQueue] = []
            for number in range(len(known), count):
                one = AttachedQueue(
                    adapter,
                    number,
                    partial(self._host.appended, topic, number),
                    partial(self._report_left_out, topic, number),
                )
                undo.callback(one.close)
                fresh.append(one)
            with state.lock:
                if self._ended or self.adapters.get(topic) is not adapter:
                    raise Closed(f"topic {topic}: adapter {adapter.name}: it was detached")
                if fresh:
                    config = TopicConfig(name=topic, mode="durable", queues=count)
                    self._host.topic_opened(config, [*known, *fresh], QueueMap(count))
            undo.pop_all()
        return len(fresh)

    def _report_left_out(self, topic: str, queue: int, about: LeftOut) -> None:
        self._state.durable.notify(
            events.RecordsLeftOut(
                topic=topic,
                queue=queue,
                first=about.first,
                end=about.end,
                records=about.records,
                bytes=about.bytes,
                reason=about.reason,
            )
        )

    # --- growth -----------------------------------------------------------------------------------

    def _begin_watch(self, topic: str, adapter: Adapter) -> None:
        with self._state.lock:
            if self._ended or self.adapters.get(topic) is not adapter:
                return  # it was detached meanwhile
            ended = self._watches[topic] = threading.Event()
        threading.Thread(
            target=self._watch,
            args=(topic, adapter, ended),
            daemon=True,
            name=f"tidecast-queues-of-{topic}",
        ).start()

    def _watch(self, topic: str, adapter: Adapter, ended: threading.Event) -> None:
        """Open the queues that the adapter's system adds; in a thread of its own."""
        assert isinstance(adapter, Growing)
        wait_s, is_reported = adapter.refresh_s, False
        while not ended.wait(wait_s):
            wait_s = adapter.refresh_s
            with contextlib.suppress(Exception):  # its receivers report that the system is away
                adapter.refresh()
            try:
                added = self._add_queues(topic, adapter)
                if adapter.queues > QUEUES_MAX:
                    raise StorageError(
                        f"the adapter has {adapter.queues} queues: the first {QUEUES_MAX} are read"
                    )
                is_reported = False
            except Closed:
                return
            except TidecastError as problem:
                wait_s, added = min(wait_s, RETRY_S), 0
                if not is_reported:
                    is_reported = True
                    here = self._state.topics.get(topic)
                    number = len(here.queues) if here is not None else 0
                    self._state.ctx.notify_all(
                        events.QueueUnreadable(
                            topic=topic, queue=number, token=0, detail=str(problem)
                        )
                    )
            if added:
                self._state.durable.notify(
                    events.AdapterOpened(
                        topic=topic, adapter=adapter.name, queues=adapter.queues, added=added
                    )
                )

    # --- systems that are away --------------------------------------------------------------------

    def note_waiting(self, topic: str, adapter: str, detail: str) -> None:
        """The system of an adapter cannot be reached yet: report it, and keep the topic for it."""
        state, now_ns = self._state, self._state.ctx.clock_ns()
        with state.lock:
            if self._ended or topic in state.topics:
                return
            before = state.waiting.get(topic)
            since_ns = before.since_ns if before is not None else state.ctx.wall_ns()
            state.waiting[topic] = Waiting(adapter, detail, since_ns)
            self.counters.update(state.ctx.counters, now=True)
            if before is not None and now_ns < self._reported_ns[topic] + REPORT_NS:
                return
            self._reported_ns[topic] = now_ns
            event = events.AdapterWaits(topic=topic, adapter=adapter, detail=detail)
            state.durable.stand(topic, _MARK, event)
        _log.warning("topic %s: adapter %s waits for its system: %s", topic, adapter, detail)

    def _note_open(self, topic: str, adapter: Adapter) -> None:
        state = self._state
        with state.lock:
            waited = state.waiting.pop(topic, None)
            self.counters.update(state.ctx.counters, now=True)
            if waited is None:
                return
            state.durable.standing.pop((topic, _MARK), None)
            state.durable.notify(
                events.AdapterOpened(
                    topic=topic, adapter=adapter.name, queues=adapter.queues, added=adapter.queues
                )
            )
        _log.warning("topic %s: adapter %s is open", topic, adapter.name)

    def states(self) -> list[dict[str, Any]]:
        """The adapters: topic, adapter, state, queues; with detail and since_ns if they wait."""
        with self._state.lock:
            return list(self._states())

    def _states(self) -> Iterator[dict[str, Any]]:
        topics, waiting = self._state.topics, self._state.waiting
        for topic, adapter in sorted(self.adapters.items()):
            if topic in topics:
                queues = len(topics[topic].queues)
                yield {
                    "topic": topic,
                    "adapter": adapter.name,
                    "state": "open",
                    "queues": queues,
                    "detail": "",
                    "since_ns": 0,
                }
        for topic, one in sorted(waiting.items()):
            yield {
                "topic": topic,
                "adapter": one.adapter,
                "state": "waiting",
                "queues": 0,
                "detail": one.detail,
                "since_ns": one.since_ns,
            }

    # --- the rest ---------------------------------------------------------------------------------

    def directory(self, topic: str) -> Path | None:
        """Where the engine keeps its state of an adapter's topic; None: it is none."""
        if topic not in self.adapters:
            return None
        path = self._state.ctx.data_dir / "attached" / topic
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path

    def rows(self) -> list[dict[str, Any]]:
        """The queues that adapters keep: topic, queue, adapter, earliest and next token."""
        with self._state.lock:
            here = [
                (topic, adapter, one)
                for topic, adapter in sorted(self.adapters.items())
                if topic in self._state.topics
                for one in self._state.topics[topic].queues
            ]
        return [
            {
                "topic": topic,
                "queue": one.queue,
                "adapter": adapter.name,
                "earliest_token": one.log.earliest_token,
                "next_token": one.log.next_token,
            }
            for topic, adapter, one in here
        ]

    def detach(self, topic: str) -> None:
        """Take it away; subscriptions and their positions stay. Raises NotFound."""
        with self._state.lock:
            adapter = self.adapters.pop(topic, None)
            watch = self._watches.pop(topic, None)
        if adapter is None:
            raise NotFound(f"topic {topic}: no adapter is attached")
        if watch is not None:
            watch.set()
        self._host.topic_closed(topic)
        adapter.close()

    def check_writable(self, topic: str) -> None:
        """Raise Conflict for a topic that an adapter is."""
        self._state.check_writable(topic)

    def look_after(self) -> None:
        """Tell the adapters how far all subscriptions are."""
        with self._state.lock:
            topics = list(self.adapters)
        for topic in topics:
            here = self._state.topics.get(topic)
            for one in here.queues if here is not None else ():
                position = self._host.position(topic, one.queue)
                if position is not None and isinstance(one.log, AttachedQueue):
                    one.log.acked(position)

    def end(self) -> None:
        """Attach nothing more. Idempotent."""
        with self._state.lock:
            self._ended = True
            for watch in self._watches.values():
                watch.set()
            self._watches.clear()
            self._state.waiting.clear()

    def close(self) -> None:
        """Close all. Idempotent."""
        self.end()
        with self._state.lock:
            adapters = list(self.adapters.values())
            self.adapters.clear()
        for adapter in adapters:
            adapter.close()
