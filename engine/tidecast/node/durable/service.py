"""Durable topics of a node: their logs and producers, the rings the archiver reads, orphaned rings.

Called with the node's lock held, except `_from_agent` and `_sync`: the archiver's thread calls
them, and they take no lock of the node.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable

from tidecast import events
from tidecast.agents.archiver import state as ast
from tidecast.agents.archiver.cycle import RETRY_NS
from tidecast.config.leases import SHARED
from tidecast.config.topology import TopicConfig
from tidecast.errors import StorageError, TidecastError
from tidecast.layout import counters as counters_layout
from tidecast.layout import packet as wire
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.layout.counters import QueueCounter as C
from tidecast.node.context import NodeContext
from tidecast.node.durable import archiver_tables
from tidecast.node.durable import maintenance as upkeep
from tidecast.node.durable.archiver import Rows
from tidecast.node.durable.leases import Leases
from tidecast.node.durable.owner_side import OwnerSide
from tidecast.node.durable.publisher_side import PublisherSide
from tidecast.node.durable.recovery import Recovery
from tidecast.node.durable.session_order import Grants, PendingSessions
from tidecast.node.durable.sources import SourceRegistry
from tidecast.node.durable.topic import DurableTopic
from tidecast.node.live.images import Images
from tidecast.node.live.publications import Publications
from tidecast.node.live.receiver_tables import WantedTopics
from tidecast.node.storing.service import Storages, Storing
from tidecast.queues.leases.store import LeaseStore

TICK_S = 0.5
REOPEN_S, REOPEN_S_MAX = 1.0, 30.0
"""A topic whose disk refuses when it is opened is tried again so soon, and at last so rarely."""
DRAIN_S = 10.0


class Durable:
    """See module."""

    def __init__(
        self,
        ctx: NodeContext,
        publications: Publications,
        images: Images,
        lease_store: LeaseStore | None,
        storages: Storages | None = None,
    ) -> None:
        self.ctx = ctx
        self.registry = SourceRegistry(ctx, publications, images, self._from_agent, self._sync)
        self.wanted = WantedTopics(ctx, images.known, self.registry.keeps)
        pending = PendingSessions()
        self.grants = Grants(self.registry, pending)
        self.recovery = Recovery(self.registry, self.grants)
        self.publisher_side = PublisherSide(
            self.registry, pending, self.grants, self.recovery, publications
        )
        self.owner_side = OwnerSide(self.registry, pending, self.grants, images)
        self.leases = Leases(self.registry, self, lease_store)
        self.storing = Storing(self.registry, storages, self.leases.lose)
        self.topics, self.sources, self.rows = (
            self.registry.topics,
            self.registry.sources,
            self.registry.rows,
        )
        self._by_number: dict[int, tuple[DurableTopic, int]] = {}
        self._refused: dict[tuple[str, int], str] = {}
        """Why the last sync of a queue failed, until one succeeds."""
        self._next_tick = 0.0
        self._unopened: dict[str, tuple[float, float]] = {}
        """Topics whose disk refused when they were opened: (next try, seconds between two)."""

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the logs of all durable topics, drain leftovers, start the archiver."""
        for config in list(self.ctx.topic_by_name.values()):
            if config.mode == "durable" and config.owner == SHARED:
                self.leases.add(config)
            elif self.registry.keeps(config):
                self._open_or_say(config)
        if self.topics:
            self.wanted.changed(list(self.topics))
        self._drain_orphans()
        if self.registry.active:
            self.registry.runtime.start()

    def _drain_orphans(self) -> None:
        """Read rings of dead engines, for a while; the rest follows later."""
        registry = self.registry
        self.publisher_side.take_over(self.recovery.take_orphans())
        deadline = time.monotonic() + DRAIN_S
        while registry.active and registry.busy() and time.monotonic() < deadline:
            registry.flush()
            self.ctx.conductor.catch_up()  # such as a gap of a ring, which holds the ring back
        self.recovery.reap()

    def _open_or_say(self, config: TopicConfig) -> None:
        """One topic that cannot be opened must not keep the engine from starting."""
        try:
            self.open_topic(config)
        except TidecastError as problem:
            upkeep.report_broken(self.registry, config, problem)
            if isinstance(problem, StorageError):
                now_s = self.ctx.now_s()
                self._unopened[config.name] = (now_s + REOPEN_S, REOPEN_S)

    def _open_again(self, now_s: float) -> None:
        """Open topics that failed because of their disk, and topics that lost unsynced bytes.

        Those bytes are cut off, as after a crash: none was acked, and publishers' rings have them.
        """
        for topic in [t for t in self.topics.values() if any(log.unreadable for log in t.logs)]:
            name = topic.config.name
            if topic.config.owner == SHARED:
                self.leases.lose(name, topic.owner, "what was not synced cannot be read back")
            else:
                self.release_topic(name, flush=False)
                self._unopened[name] = (now_s, REOPEN_S)
        for name, (due_s, wait_s) in list(self._unopened.items()):
            config = self.ctx.topic_by_name.get(name)
            if config is None or name in self.topics or not self.registry.keeps(config):
                del self._unopened[name]
            elif now_s >= due_s:
                self._try_open(config, now_s, wait_s)

    def _try_open(self, config: TopicConfig, now_s: float, wait_s: float) -> None:
        name, broken = config.name, self.registry.broken
        try:
            self.open_topic(config)
        except TidecastError as problem:
            if str(problem) != str(broken.get(name)):
                upkeep.report_broken(self.registry, config, problem)
            self._unopened[name] = (now_s + wait_s, min(2 * wait_s, REOPEN_S_MAX))
            return
        del self._unopened[name]
        broken.pop(name, None)
        self.ctx.note(rec.ALERT, rec.Code.DISK_BACK, config.wire_id)
        self.registry.notify(events.DiskBack(topic=name))
        self.take_rings(name)

    def stop(self) -> None:
        """Let the archiver finish, then close all logs."""
        self.leases.stop()
        self.storing.stop()
        self.publisher_side.stop()
        if self.registry.active:
            self.registry.runtime.stop()
            deadline = time.monotonic() + DRAIN_S
            while self.registry.busy() and time.monotonic() < deadline:
                self.registry.flush()
        held = {name: topic.owner for name, topic in self.topics.items() if topic.owner}
        for topic in self.topics.values():
            self.storing.settle(topic)
            self.storing.close(topic)
            topic.close()
        self.topics.clear()
        self.leases.give_back(held)

    def abandon(self) -> None:
        """Close all logs as they are: no thread works on them any more (simulations)."""
        for topic in self.topics.values():
            for log in topic.logs:
                log.abandon()

    def work(self, now_ns: int | None = None) -> int:
        """One cycle of an inline archiver."""
        return self.registry.runtime.work(now_ns) if self.registry.active else 0

    # --- topics -----------------------------------------------------------------------------------

    def open_topic(self, config: TopicConfig, owner: int = 0) -> None:
        """Open a topic's logs, if this node keeps them. ``owner``: epoch of a lease on them.

        Raises CorruptLog, StorageError, SharedMemoryError.
        """
        if config.owner == SHARED and not owner:
            self.leases.add(config)
            return
        if not owner and not self.registry.keeps(config):
            return
        runtime = self.registry.runtime
        directory = self.leases.directory if owner else self.ctx.data_dir
        topic = DurableTopic.open(config, directory, self.ctx.wall_ns(), owner, self.ctx.name)
        try:
            rows = self._make_rows(topic, 0)
            runtime.on_archiver(lambda: self.registry.tables.add_topic(topic, rows))
            self.storing.open(topic)
        except BaseException:
            if topic.slot >= 0:
                runtime.on_archiver(lambda: self.registry.tables.remove_topic(topic))
            topic.close()
            raise
        self.registry.standing.pop((config.name, ""), None)
        topic.note_opened(self.ctx.now_s())
        for producer in topic.producers.known.values():
            self.ctx.note_stamp(producer.born_ns)
        self.topics[config.name] = topic
        self._note_queues(topic)
        for queue, torn in topic.torn:
            self.ctx.note(
                rec.ALERT, rec.Code.TAIL_TORN, config.wire_id, queue, torn.position, torn.bytes
            )
            self.ctx.counters.values[self.rows[config.name, queue], C.TORN_BYTES] += torn.bytes
            event = events.TornTail(
                topic=config.name,
                queue=queue,
                file=str(torn.segment),
                position=torn.position,
                bytes=torn.bytes,
                aside=str(torn.aside),
            )
            self.registry.stand(config.name, str(torn.aside), event)
        for queue, file, detail in topic.damaged_files:
            self.ctx.note(rec.ALERT, rec.Code.FILE_DAMAGED, config.wire_id, queue)
            damaged = events.FileDamaged(
                topic=config.name, queue=queue, file=str(file), detail=detail
            )
            self.registry.stand(config.name, str(file), damaged)
        if self.ctx.started:
            runtime.start()

    def _make_rows(self, topic: DurableTopic, first: int) -> list[int]:
        rows = []
        for log in topic.logs[first:]:
            key = (topic.config.name, log.queue)
            row = self.rows.get(key)  # of an earlier lease
            if row is None:
                row = self.ctx.counters.allocate(
                    counters_layout.ROW_QUEUE, key[0], f"queue {log.queue}"
                )
                self.rows[key] = row
            rows.append(row)
        return rows

    def _note_queues(self, topic: DurableTopic) -> None:
        for queue, number in enumerate(self.registry.tables.queue_numbers(topic)):
            self._by_number[number] = (topic, queue)
        upkeep.gauges(self.registry, topic)
        for callback in self.registry.on_queues:
            callback(topic)

    def edit_topic(self, config: TopicConfig) -> None:
        """A topic's settings changed; more queues are made. Raises StorageError."""
        if not self.registry.keeps(config):
            return
        topic = self.registry.topic(config.name)
        if config.queues > topic.map.queues and self.grants.whole(topic):
            self._grow(topic, config.queues)  # else later, see `tick`
        topic.configure(config)

        def change() -> None:
            self.registry.tables.set_policy(topic)
            for log in topic.logs:
                log.roll_at(config.segment_bytes)

        self.registry.runtime.on_archiver(change)

    def _grow(self, topic: DurableTopic, queues: int) -> None:
        before = topic.map.queues
        name = topic.config.name

        def grow() -> None:
            record = self.registry.runtime.state.topics[topic.slot]
            if record["held"] or record["suspect"]:
                raise StorageError(f"topic {name}: the disk refuses the data that is there already")
            topic.grow(queues, self.ctx.wall_ns())
            self.registry.tables.set_queues(topic, self._make_rows(topic, before))
            for slot, source in self.sources.items():
                if source.topic == name:
                    self.registry.tables.set_marks(slot, source.producer)

        self.registry.runtime.on_archiver(grow)
        self._note_queues(topic)
        self.ctx.note(rec.LOW, rec.Code.QUEUES_GROWN, topic.config.wire_id, before, queues)

    def close_topic(self, name: str, *, keep_data: bool) -> None:
        """The topic is deleted, or recreated (then its data stays)."""
        for callback in self.registry.on_closed:
            callback(name)
        if not keep_data:
            for place in [place for place in list(self.registry.standing) if place[0] == name]:
                self.registry.standing.pop(place, None)
            self.publisher_side.drop_left(name)
        self.leases.remove(name)
        if name not in self.topics:
            self.registry.standing.pop((name, ""), None)
            self.registry.broken.pop(name, None)  # its files stay: they could not be read
            self._free_rows(name)
            return
        topic = self.topics.pop(name)
        self.storing.close(topic)
        for source in [s for s in self.sources.values() if s.topic == name]:
            left = not source.publication and not source.image
            if left and keep_data:
                self.publisher_side.leave_waiting(source, topic)
                continue
            self.registry.remove(source.slot, topic, lay.ACK_ENDED)
            self.registry.drop(source, lay.ACK_ENDED)
            if left:
                self.recovery.drop_deleted(source.mapped)
        for number in self.registry.tables.queue_numbers(topic):
            del self._by_number[number]
        self.registry.runtime.on_archiver(lambda: self.registry.tables.remove_topic(topic))
        self._free_rows(name)
        if keep_data:
            topic.close()
        else:
            topic.delete()

    def note_deleted(self, name: str) -> None:
        """The topic is gone, with its records: requests for it fail from now on."""
        for callback in self.registry.on_deleted:
            callback(name)

    def _free_rows(self, name: str) -> None:
        for key in [key for key in self.rows if key[0] == name]:
            self.ctx.counters.free(self.rows.pop(key))

    def release_topic(self, name: str, *, flush: bool) -> None:
        """Another engine keeps the topic from now on. ``flush``: sync read messages first."""
        for callback in self.registry.on_closed:
            callback(name)
        topic = self.topics[name]
        mine = [s for s in self.sources.values() if s.topic == name]
        if flush:
            upkeep.flush(self.registry, topic, mine)
            upkeep.seal(self.registry, topic)
            self.storing.settle(topic)
        self.storing.close(topic)
        for source in mine:
            self.publisher_side.take_back(source, topic)
        del self.topics[name]
        for number in self.registry.tables.queue_numbers(topic):
            del self._by_number[number]
        self.registry.runtime.on_archiver(lambda: self.registry.tables.remove_topic(topic))
        upkeep.clear_gauges(self.registry, name)
        topic.close()
        self.wanted.changed([name])

    def take_over(
        self, config: TopicConfig, owner: int, done: Callable[[TidecastError | None], None]
    ) -> None:
        """Make the log of a leased topic from its storage; see `Storing.take_over`."""
        self.storing.take_over(config, self.ctx.data_dir / "queues", owner, done)

    def cancel_takeover(self, name: str) -> None:
        """Take it over no more."""
        self.storing.cancel(name)

    def take_rings(self, name: str) -> None:
        """The topic is kept here now: read its own publishers' rings, receive the others'."""
        self.take_left(name)
        self.wanted.changed([name])

    def take_left(self, name: str) -> None:
        """The topic is there: take the rings that dead engines left for it."""
        self.publisher_side.take_own(name)

    def topic(self, name: str) -> DurableTopic:
        """A topic by name. Raises the error of its opening, NotFound."""
        return self.registry.topic(name)

    # --- from the archiver ------------------------------------------------------------------------

    def _from_agent(self, rows: Rows) -> None:
        """In the archiver's thread. Events that hold it back are handled here, others later."""
        later: Rows = []
        for row in rows:
            kind, number = row[0], row[1]
            if kind == ast.E_ROLL:
                self._roll(number)
            elif kind == ast.E_GROW:
                self.registry.tables.grow_buffer(number, row[2])
            elif kind == ast.E_WROTE:
                self._wrote(number)
            else:
                later.append(row)
        if later:
            self.ctx.conductor.post(lambda: self._handle(later))

    def _wrote(self, slot: int) -> None:
        topic = self._topic_at(slot)
        if topic is not None:
            self.registry.written(topic)

    def _roll(self, number: int) -> None:
        queues, topics = self.registry.runtime.state.queues, self.registry.runtime.state.topics
        topic, queue = self._by_number.get(number, (None, 0))
        if topic is None:
            return  # it was deleted after the archiver had asked
        record = topics[topic.slot]
        queues[number]["roll_asked"] = 0
        record["held"] = ast.HELD_DISK
        record["retry_ns"] = 0
        self.registry.tables.note_acked(topic)
        try:
            topic.roll(queue, self.ctx.wall_ns(), self.registry.tables.waiting_in(number))
        except StorageError as problem:
            record["retry_ns"] = self.ctx.clock_ns() + RETRY_NS
            if topic.logs[queue].suspect:
                self.registry.tables.note_suspect(topic, queue, self.ctx.clock_ns())
            if not record["errno"]:
                record["errno"] = problem.errno or 5
                rows = [[ast.E_DISK, topic.slot, number, int(record["errno"])]]
                self.ctx.conductor.post(lambda: self._handle(rows))
            return
        queues[number]["dirty"] = 1
        self.ctx.counters.values[self.rows[topic.config.name, queue], C.SEGMENTS_ROLLED] += 1

    def _sync(self, number: int) -> int:
        """In the thread that syncs: make a queue durable."""
        topic, queue = self._by_number.get(number, (None, 0))
        if topic is None or queue >= len(topic.logs):
            return -errno.ESTALE  # another engine keeps it now
        row = self.rows[topic.config.name, queue]
        try:
            topic.logs[queue].sync()
        except StorageError as problem:
            self.ctx.counters.values[row, C.SYNC_FAILURES] += 1
            self._say_refused(topic, queue, problem)
            return -(problem.errno or 5)
        self._refused.pop((topic.config.name, queue), None)
        if not topic.owned:  # the new owner may not have seen this: it is not durable
            name, epoch = topic.config.name, topic.owner
            self.ctx.conductor.post(
                lambda: self.leases.lose(name, epoch, "the log has a newer owner")
            )
            return -errno.ESTALE
        self.ctx.counters.values[row, C.SYNCS] += 1
        self.storing.synced(topic)
        for callback in self.registry.on_synced:
            callback(topic)
        return 0

    def _say_refused(self, topic: DurableTopic, queue: int, problem: StorageError) -> None:
        """A sync failed for another reason than the one before: report it."""
        name, number = topic.config.name, problem.errno or errno.EIO
        before = self._refused.get((name, queue))
        self._refused[name, queue] = str(problem)
        if before is not None and before != str(problem):
            event = events.DiskRefused(topic=name, queue=queue, errno=number, detail=str(problem))
            self.ctx.conductor.post(lambda: self.registry.notify(event))

    def _handle(self, rows: Rows) -> None:
        for kind, a, b, c, *_ in [[*row, 0, 0, 0] for row in rows]:
            if kind == ast.E_DRAINED:
                self._drained(a)
            elif kind in (ast.E_DISK, ast.E_SYNC_FAILED):
                self._disk(a, kind, b, c)
            elif kind == ast.E_GAP:
                self._gap(a, b, c)
            elif kind == ast.E_DISK_OK:
                topic = self._topic_at(a)
                if topic is not None and topic.set_refused(False):
                    self.ctx.note(rec.ALERT, rec.Code.DISK_BACK, topic.config.wire_id)
                    self.registry.notify(events.DiskBack(topic=topic.config.name))

    def _gap(self, slot: int, first: int, packets: int) -> None:
        """Packets of a ring that cannot be read.

        Of an image: its publisher had them acked already, by an image before. It joins again, where
        the publisher's ring is acked now: sequences count from there. Of a ring of this node: a
        client has scribbled; they are left out.
        """
        source, record = self.sources.get(slot), self.registry.runtime.state.sources[slot]
        if source is None or not record["gap_reported"] or record["seq"] != first:
            return
        if source.image:
            self.owner_side.rejoin(source)
            return
        values = {"seq": first + packets, "at": wire.PACKET_HEADER_BYTES, "gap_reported": 0}
        self.registry.runtime.on_archiver(lambda: archiver_tables.fill(record, values))
        self.registry.notify(
            events.Gap(
                topic=source.topic,
                node=self.ctx.name,
                session=source.session,
                first=first,
                end=first + packets,
                reason="malformed",
            )
        )

    def _topic_at(self, slot: int) -> DurableTopic | None:
        return next((t for t in self.topics.values() if t.slot == slot), None)

    def _disk(self, slot: int, kind: int, b: int, c: int) -> None:
        topic = self._topic_at(slot)
        if topic is None or errno.ESTALE in (b, c):
            return
        topic.set_refused(True)
        _, at = self._by_number.get(b, (None, -1))
        queue, number = (at, c) if kind == ast.E_DISK else (-1, b)
        what = "a write" if kind == ast.E_DISK else "a sync"
        self.ctx.note(rec.ALERT, rec.Code.DISK_REFUSED, topic.config.wire_id, queue, number)
        self.registry.notify(
            events.DiskRefused(
                topic=topic.config.name,
                queue=queue,
                errno=number,
                detail=f"{what} failed: {os.strerror(number)}",
            )
        )

    def _drained(self, slot: int) -> None:
        source = self.sources.get(slot)
        if source is None or source.image or not source.publication:
            return  # images are kept until their publishers know of it, leftovers are reported
        if self.registry.runtime.state.sources[slot]["drained_reported"]:
            self.registry.remove(slot, self.topics[source.topic], lay.ACK_ENDED)

    # --- now and then -----------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Retention, producers that are silent for long, gauges; at most each TICK_S."""
        self.publisher_side.begin_held(now_s)
        self.owner_side.look(now_s)
        if now_s < self._next_tick:
            return
        self._next_tick = now_s + TICK_S
        self.publisher_side.tick()
        self.owner_side.tick(now_s)
        self.leases.tick()
        self._open_again(now_s)
        if not self.registry.active:
            return
        now_ns = self.ctx.wall_ns()
        for topic in self.topics.values():
            upkeep.retain(self.registry, topic, now_ns)
            if topic.config.queues > topic.map.queues and self.grants.whole(topic):
                with contextlib.suppress(StorageError):  # the disk refuses: later
                    self._grow(topic, topic.config.queues)
            gone = topic.producers.expire(self.ctx.wall_ns())
            if gone:
                wire_id = topic.config.wire_id
                self.ctx.note(rec.LOW, rec.Code.PRODUCERS_EXPIRED, wire_id, len(gone))
                self.registry.notify(
                    events.ProducersExpired(topic=topic.config.name, producers=len(gone))
                )
            upkeep.gauges(self.registry, topic)
        self.recovery.reap()
