"""Durable topics of a node: their logs and producers, the rings the archiver reads, leftovers.

Called with the node's lock held, except what is marked: the archiver's thread calls `_from_agent`
and `_sync`, which take no lock of the node.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidecast import events as ev
from tidecast.agents.archiver import state as ast
from tidecast.agents.archiver.cycle import RETRY_NS, tell_ring, topic_unread
from tidecast.api.link import PublicationOptions
from tidecast.buffers.ring_file import describe
from tidecast.config.leases import SHARED
from tidecast.config.topology import TopicConfig
from tidecast.errors import NotFound, StorageError, TidecastError, Timeout, fenced
from tidecast.layout import counters as cl
from tidecast.layout import packet as wire
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.layout.counters import QueueCounter as C
from tidecast.native.mapped import Bytes, MappedFile
from tidecast.native.packing import unpack_from
from tidecast.node.durable import archiver_tables as ds
from tidecast.node.durable import maintenance as upkeep
from tidecast.node.durable.archiver import ArchiverRuntime, Rows
from tidecast.node.durable.leases import Leases
from tidecast.node.durable.remote import Remote
from tidecast.node.durable.session_order import Grants, claim_of_options
from tidecast.node.durable.topic import DurableTopic, Position
from tidecast.node.live import sessions
from tidecast.node.state import Publication
from tidecast.protocol.dedup import Session, producer_id

if TYPE_CHECKING:
    from tidecast.node.node import Node

TICK_S = 0.5
FENCE_CYCLES_MAX = 10_000
DRAIN_S = 10.0


class Durable:
    """See module."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.topics: dict[str, DurableTopic] = {}
        self.sources: dict[int, ds.Source] = {}
        self.positions: list[Position] = []
        """Whoever reads queues adds a function that says what it still needs; see `Position`."""
        self.on_queues: list[Callable[[DurableTopic], None]] = []
        """Called when a durable topic was opened or has more queues."""
        self.on_synced: list[Callable[[DurableTopic], None]] = []
        """Called in the thread that syncs, when a queue of a topic is durable to a later token."""
        self.on_closed: list[Callable[[str], None]] = []
        """Called with a durable topic's name before its logs are closed."""
        self.standing: dict[tuple[str, str], ev.Event] = {}
        """What is damaged or paused, by topic and mark: clients that connect later get it, too."""
        self.told: list[ev.Event] = []
        """What recovery found, for those who ask later."""
        self.broken: dict[str, TidecastError] = {}
        """Topics that could not be opened when the engine started, and why."""
        self.grants = Grants(self)
        self.remote = Remote(self)
        self.leases = Leases(self, node.lease_store)
        """Publishers on other nodes, and topics that other nodes keep."""
        self._runtime: ArchiverRuntime | None = None
        self._tables: ds.ArchiverTables | None = None
        self.rows: dict[tuple[str, int], int] = {}
        """Counters of each queue."""
        self._by_number: dict[int, tuple[DurableTopic, int]] = {}
        self._refused: dict[tuple[str, int], str] = {}
        """Why the last sync of a queue failed, until one succeeds."""
        self.leftovers: list[MappedFile] = []
        """Rings of dead engines, until it is known whose they are."""
        self.unread_topics: set[str] = set()
        """See `look_for_unread`."""
        self._next_tick = 0.0

    @property
    def active(self) -> bool:
        """There are durable topics."""
        return self._runtime is not None

    @property
    def runtime(self) -> ArchiverRuntime:
        """The archiver; made with the first durable topic."""
        if self._runtime is None:
            node = self.node
            self._runtime = ArchiverRuntime(
                counters=node.counters.values, bells=node.bells, inline=node.inline,
                on_events=self._from_agent, sync=self._sync, on_fault=node.conductor.agent_failed,
            )  # fmt: skip
            self._tables = ds.ArchiverTables(self._runtime)
        return self._runtime

    @property
    def tables(self) -> ds.ArchiverTables:
        """The archiver's records."""
        assert self._tables is not None
        return self._tables

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the logs of all durable topics, drain leftovers, start the archiver."""
        for config in list(self.node.topic_by_name.values()):
            if config.mode == "durable" and config.owner == SHARED:
                self.leases.add(config)
            elif self.keeps(config):
                self._open_or_say(config)
        if self.topics:
            sessions.update_wanted(self.node, list(self.topics))
        upkeep.drain_leftovers(self)
        if self._runtime is not None:
            self._runtime.start()

    def _open_or_say(self, config: TopicConfig) -> None:
        """One topic that cannot be opened must not keep the engine from starting."""
        try:
            self.open_topic(config)
        except TidecastError as problem:
            upkeep.tell_broken(self, config, problem)

    def keeps(self, config: TopicConfig) -> bool:
        """Are the topic's queues kept by this node?"""
        if config.owner == SHARED:
            return config.name in self.topics
        return config.mode == "durable" and config.owner in ("", self.node.name)

    def topic(self, name: str) -> DurableTopic:
        """A topic by name. Raises what kept it from being opened, NotFound."""
        found = self.topics.get(name)
        if found is not None:
            return found
        if name in self.broken:
            raise self.broken[name]
        config = self.node.topic_by_name.get(name)
        if config is not None and config.mode == "durable" and not self.keeps(config):
            owner = config.owner
            if owner == SHARED:
                owner = self.leases.owners.get(name, "that has the lease (nobody yet)")
            raise NotFound(
                f"topic {name}: its queues are kept by node {owner}, and this is {self.node.name}: "
                "connect to the engine there to consume or inspect"
            )
        raise NotFound(
            f"topic {name} is not durable here: nothing of it is kept (tidecast topic create "
            f"{name} --mode durable)"
        )

    def wall_ns(self) -> int:
        """The time of day, ns since 1970."""
        return time.time_ns()

    def stop(self) -> None:
        """Let the archiver finish what is written, then close all logs."""
        self.leases.stop()
        if self._runtime is not None:
            self._runtime.stop()
            deadline = time.monotonic() + DRAIN_S
            while self.busy() and time.monotonic() < deadline:
                self.flush()
        held = {name: topic.owner for name, topic in self.topics.items() if topic.owner}
        for topic in self.topics.values():
            topic.close()
        self.topics.clear()
        self.leases.give_back(held)

    def busy(self) -> bool:
        """Some ring holds what is not durable, and no disk refuses it."""
        S = self.runtime.state
        for slot, source in self.sources.items():
            record, topic = S.sources[slot], S.topics[self.topics[source.topic].slot]
            if topic["errno"]:
                continue
            behind = record["d_seq"] != record["seq"] or record["d_at"] != record["at"]
            if behind or (self.unread(source) and not source.image):
                return True
        return False

    def unread(self, source: ds.Source) -> bool:
        """A ring holds messages that the archiver has not read."""
        record, ring = self.runtime.state.sources[source.slot], source.mapped.array
        seq, at, slots = int(record["seq"]), int(record["at"]), int(record["slots"])
        (word,) = unpack_from("<q", ring, lay.HEADER_BYTES + (seq & (slots - 1)) * 8)
        holds = word >> lay.SEQ_SHIFT == seq & lay.SEQ_MASK
        state, length = (word >> lay.STATE_SHIFT) & 0xFF, word & lay.CONTROL_LENGTH_MASK
        return holds and (state == lay.SEALED or (state == lay.OPEN and length > at))

    def work(self, now_ns: int | None = None) -> int:
        """One cycle of an inline archiver."""
        return 0 if self._runtime is None else self._runtime.work(now_ns)

    def hasten_syncs(self) -> None:
        """Sync what is appended in the next cycle, not after the interval. Between two cycles."""
        topics = self.runtime.state.topics
        topics["urgent"][topics["dirty_ns"] != 0] = 1

    def flush(self) -> None:
        """One cycle of the archiver in this thread that waits for no interval of syncs."""
        self.hasten_syncs()
        self.runtime.work(self.node.clock_ns())

    def row_of(self, topic: str, queue: int) -> int:
        """A queue's row of counters."""
        return self.rows[topic, queue]

    # --- topics -----------------------------------------------------------------------------------

    def open_topic(self, config: TopicConfig, owner: int = 0) -> None:
        """Open a topic's logs, if this node keeps them. ``owner``: epoch of a lease on them.

        Raises CorruptLog, StorageError, SharedMemoryError.
        """
        if config.owner == SHARED and not owner:
            self.leases.add(config)
            return
        if not owner and not self.keeps(config):
            return
        runtime = self.runtime
        directory = self.leases.directory if owner else self.node.data_dir
        topic = DurableTopic.open(config, directory, time.time_ns(), owner, self.node.name)
        try:
            rows = self._make_rows(topic, 0)
            runtime.on_archiver(lambda: self.tables.add_topic(topic, rows))
        except BaseException:
            topic.close()
            raise
        self.standing.pop((config.name, ""), None)
        topic.opened_s = self.node.clock_ns() / 1e9
        self.topics[config.name] = topic
        self._note_queues(topic)
        for queue, torn in topic.torn:
            self.node.note(
                rec.ALERT, rec.Code.TAIL_TORN, config.wire_id, queue, torn.position, torn.bytes
            )
            self.node.counters.values[self.rows[config.name, queue], C.TORN_BYTES] += torn.bytes
            event = ev.TornTail(
                topic=config.name, queue=queue, file=str(torn.segment), position=torn.position,
                bytes=torn.bytes, aside=str(torn.aside),
            )  # fmt: skip
            self.stand(config.name, str(torn.aside), event)
        for queue, file, detail in topic.damaged_files:
            self.node.note(rec.ALERT, rec.Code.FILE_DAMAGED, config.wire_id, queue)
            damaged = ev.FileDamaged(topic=config.name, queue=queue, file=str(file), detail=detail)
            self.stand(config.name, str(file), damaged)
        if self.node.started:
            runtime.start()

    def tell(self, event: ev.Event) -> None:
        """Tell all clients; the newest thousand are kept in `told`."""
        self.told.append(event)
        del self.told[:-1000]
        self.node.tell_all(event)

    def stand(self, topic: str, what: str, event: ev.Event) -> None:
        """Tell all clients, and those that connect later, of a state that lasts.

        ``what``: its mark among those of the topic, such as the file that is damaged.
        """
        self.standing[topic, what] = event
        self.tell(event)

    def _make_rows(self, topic: DurableTopic, first: int) -> list[int]:
        rows = []
        for log in topic.logs[first:]:
            key = (topic.config.name, log.queue)
            row = self.rows.get(key)  # of an earlier lease
            if row is None:
                row = self.node.counters.allocate(cl.ROW_QUEUE, key[0], f"queue {log.queue}")
                self.rows[key] = row
            rows.append(row)
        return rows

    def _note_queues(self, topic: DurableTopic) -> None:
        for queue, number in enumerate(self.tables.queue_numbers(topic)):
            self._by_number[number] = (topic, queue)
        upkeep.gauges(self, topic)
        for callback in self.on_queues:
            callback(topic)

    def edit_topic(self, config: TopicConfig) -> None:
        """A topic's settings changed; more queues are made. Raises StorageError."""
        if not self.keeps(config):
            return
        topic = self.topic(config.name)
        if config.queues > topic.map.queues and self.grants.whole(topic):
            self._grow(topic, config.queues)  # else later, see `tick`
        topic.config = config
        topic.producers.ttl_ns = int(config.producer_ttl_s * 1e9)

        def change() -> None:
            self.tables.set_policy(topic)
            for log in topic.logs:
                log.segment_bytes = config.segment_bytes

        self.runtime.on_archiver(change)

    def _grow(self, topic: DurableTopic, queues: int) -> None:
        before = topic.map.queues
        name = topic.config.name

        def grow() -> None:
            record = self.runtime.state.topics[topic.slot]
            if record["held"] or record["suspect"]:
                raise StorageError(f"topic {name}: the disk refuses what is there already")
            topic.grow(queues, time.time_ns())
            self.tables.set_queues(topic, self._make_rows(topic, before))
            for slot, source in self.sources.items():
                if source.topic == name:
                    self.tables.set_marks(slot, source.producer)

        self.runtime.on_archiver(grow)
        self._note_queues(topic)
        self.node.note(rec.LOW, rec.Code.QUEUES_GROWN, topic.config.wire_id, before, queues)

    def close_topic(self, name: str, *, keep_data: bool) -> None:
        """The topic is deleted, or made anew (then its data stays)."""
        for callback in self.on_closed:
            callback(name)
        if not keep_data:
            for place in [place for place in list(self.standing) if place[0] == name]:
                self.standing.pop(place, None)
        self.leases.remove(name)
        if name not in self.topics:
            self.standing.pop((name, ""), None)
            self.broken.pop(name, None)  # its files stay: nobody could look into them
            self._free_rows(name)
            return
        topic = self.topics.pop(name)
        for source in [s for s in self.sources.values() if s.topic == name]:
            self.remove_source(source.slot, topic, lay.ACK_ENDED)
            self.remote.drop(source, lay.ACK_ENDED)
        for number in self.tables.queue_numbers(topic):
            del self._by_number[number]
        self.runtime.on_archiver(lambda: self.tables.remove_topic(topic))
        self._free_rows(name)
        if keep_data:
            topic.close()
        else:
            topic.delete()

    def _free_rows(self, name: str) -> None:
        for key in [key for key in self.rows if key[0] == name]:
            self.node.counters.free(self.rows.pop(key))

    def release_topic(self, name: str, *, flush: bool) -> None:
        """Another engine keeps the topic from now on. ``flush``: what is read becomes durable."""
        for callback in self.on_closed:
            callback(name)
        topic = self.topics[name]
        mine = [s for s in self.sources.values() if s.topic == name]
        if flush:
            upkeep.settle(self, topic, mine)
            upkeep.seal(self, topic)
        for source in mine:
            self.remote.take_back(source, topic)
        del self.topics[name]
        for number in self.tables.queue_numbers(topic):
            del self._by_number[number]
        self.runtime.on_archiver(lambda: self.tables.remove_topic(topic))
        upkeep.clear_gauges(self, name)
        topic.close()
        sessions.update_wanted(self.node, [name])

    def take_rings(self, name: str) -> None:
        """The topic is kept here now: read its own publishers' rings, receive the others'."""
        self.remote.take_own(self.topics[name])
        sessions.update_wanted(self.node, [name])

    # --- sessions ---------------------------------------------------------------------------------

    def begin(self, config: TopicConfig, options: PublicationOptions, session: int) -> Session:
        """A producer opens a session; older ones of it are fenced.

        ``session``: of its ring. Raises SequenceGap, Conflict, Fenced.
        """
        producer = producer_id(options.producer) if options.producer else options.producer_id
        producer = producer or self.node.random_id(61)
        claim = claim_of_options(config.name, producer, session, options)
        if not self.keeps(config):
            return self.remote.begin(options, producer)
        topic = self.topic(config.name)
        if self.grants.overtaken(topic, claim):
            raise fenced(config.name, claim.after)
        if not self.grants.ready(topic, claim, 0.0):
            return self.remote.begin(options, producer)
        self.fence(topic, producer, options.producer)
        opened = topic.producers.open(producer, options.first_seq, self.wall_ns(), claim.of_line)
        if opened.producer.named:  # others may come back under that name
            topic.note_grant(opened)
        return opened

    def drain(self, topic: DurableTopic, sources: list[ds.Source]) -> None:
        """What some rings hold goes into the log, unless the disk refuses."""

        def drain() -> None:
            topics = self.runtime.state.topics
            for _ in range(FENCE_CYCLES_MAX):
                before = [int(self.runtime.state.sources[s.slot]["seq"]) for s in sources]
                if topics[topic.slot]["errno"] or not any(self.unread(s) for s in sources):
                    return
                self.runtime.work(self.node.clock_ns())
                after = [int(self.runtime.state.sources[s.slot]["seq"]) for s in sources]
                if before == after and not topics[topic.slot]["held"]:
                    return  # the rest of a long message has not come

        self.runtime.on_archiver(drain)

    def fence(self, topic: DurableTopic, producer: int, name: str) -> None:
        """What older sessions have committed goes into the log; then they may append no more."""
        older = [
            source for source in self.sources.values()
            if source.producer.id == producer and source.topic == topic.config.name
        ]  # fmt: skip
        if older:
            self.drain(topic, older)
        for source in older:
            if self.sources.get(source.slot) is not source:
                continue  # drained to its end: an inline archiver has reported it meanwhile
            self.remove_source(source.slot, topic, lay.ACK_FENCED)
            self.remote.drop(source, lay.ACK_FENCED)
            self.grants.tell_fenced(topic, producer, source.session, source.epoch, name)

    def look_for_unread(self) -> bool:
        """Note which topics have something in publishers' rings that is not in a log yet.

        Between two cycles of the archiver: all that was there at the last call is appended by then,
        unless it is too much for one cycle or a disk refuses.
        """
        runtime = self._runtime
        if runtime is None:
            return False

        def look() -> set[str]:
            return {
                name for name, topic in list(self.topics.items())
                if topic_unread(runtime.state.words, topic.slot)
            }  # fmt: skip

        try:
            self.unread_topics = runtime.on_archiver(look)
        except Timeout:
            self.unread_topics = set(self.topics)
            raise
        return bool(self.unread_topics)

    def abort(self, config: TopicConfig, session: Session) -> None:
        """The publication that was to be opened could not be made."""
        if session.epoch:
            self.topics[config.name].producers.close(session.producer, self.wall_ns())

    def attach(self, publication: Publication, session: Session, doorbell: int) -> None:
        """Let the archiver read a new publication. Before its client knows the ring."""
        if session.epoch == 0:
            self.remote.attach(publication, session, doorbell)
            return
        topic = self.topics[publication.topic.name]
        ring = publication.mapped.array
        consumer = ds.begin_ring(
            ring, producer=session.producer.id, epoch=session.epoch,
            first_seq=session.first_seq, doorbell=doorbell,
        )  # fmt: skip
        publication.constant = bytes(ring[: lay.HEAD_AT])
        client = self.node.clients.get(publication.client)
        publication.source = self.add_source(
            topic, publication.mapped, session, consumer,
            of_engine=client is not None and client.of_engine,
        )  # fmt: skip
        self.sources[publication.source].publication = publication.id

    def add_source(
        self, topic: DurableTopic, mapped: MappedFile, session: Session, consumer: int,
        *, of_engine: bool = False,
    ) -> int:  # fmt: skip
        """Let the archiver read a ring, from where it says that it is durable; its slot."""
        about = describe(mapped.array)
        slot = self.runtime.on_archiver(
            lambda: self.tables.add_source(
                topic, mapped, session.producer, session.epoch, session.first_seq, about, consumer,
                of_engine=of_engine,
            )
        )  # fmt: skip
        self.sources[slot] = ds.Source(
            slot, topic.config.name, session.producer, session.epoch, about.session, mapped, 0,
            int(self.runtime.state.sources[slot]["count"]),
        )  # fmt: skip
        return slot

    def remove_source(
        self, slot: int, topic: DurableTopic, state: int, *, keep_entry: bool = False
    ) -> None:
        """The archiver is through with a ring, or it is fenced."""
        source = self.sources.pop(slot)
        record = self.runtime.state.sources[slot]
        durable = int(record["first_seq"] + record["d_count"]) - 1
        source.producer.acked_seq = max(source.producer.acked_seq, durable)
        self.runtime.on_archiver(
            lambda: self.tables.remove_source(topic, slot, keep_entry=keep_entry)
        )
        self.say(source.mapped.array, state)
        topic.producers.close(source.producer, self.wall_ns())
        publication = self.node.pubs.get(source.publication)
        if publication is not None:
            publication.source = -1
            if not keep_entry:
                self.node.look_after(publication)

    def say(self, ring: Bytes, state: int) -> None:
        """Tell the writer of a ring its session's state (ACK_*)."""
        tell_ring(ring, self.node.bells, state)

    # --- from the archiver ------------------------------------------------------------------------

    def _from_agent(self, rows: Rows) -> None:
        """In the archiver's thread. What holds it back is done at once, the rest by the node."""
        later: Rows = []
        for row in rows:
            kind, number = row[0], row[1]
            if kind == ast.E_ROLL:
                self._roll(number)
            elif kind == ast.E_GROW:
                self.tables.grow_buffer(number, row[2])
            else:
                later.append(row)
        if later:
            self.node.post(lambda: self._handle(later))

    def _roll(self, number: int) -> None:
        queues, topics = self.runtime.state.queues, self.runtime.state.topics
        topic, queue = self._by_number.get(number, (None, 0))
        if topic is None:
            return  # it was deleted after the archiver had asked
        record = topics[topic.slot]
        queues[number]["roll_asked"] = 0
        record["held"] = ast.HELD_DISK
        record["retry_ns"] = 0
        self.tables.note_acked(topic)
        try:
            topic.roll(queue, time.time_ns(), self.tables.waiting_in(number))
        except StorageError as problem:
            record["retry_ns"] = self.node.clock_ns() + RETRY_NS
            if topic.logs[queue].suspect:  # the next sync stores the segment again
                queues[number]["dirty"] = record["suspect"] = 1
                record["dirty_ns"] = record["dirty_ns"] or self.node.clock_ns()
            if not record["errno"]:
                record["errno"] = problem.errno or 5
                rows = [[ast.E_DISK, topic.slot, number, int(record["errno"])]]
                self.node.post(lambda: self._handle(rows))
            return
        queues[number]["dirty"] = 1
        self.node.counters.values[self.rows[topic.config.name, queue], C.SEGMENTS_ROLLED] += 1

    def _sync(self, number: int) -> int:
        """In the thread that syncs: make a queue durable."""
        topic, queue = self._by_number.get(number, (None, 0))
        if topic is None or queue >= len(topic.logs):
            return -errno.ESTALE  # another engine keeps it now
        row = self.rows[topic.config.name, queue]
        try:
            topic.logs[queue].sync()
        except StorageError as problem:
            self.node.counters.values[row, C.SYNC_FAILURES] += 1
            self._say_refused(topic, queue, problem)
            return -(problem.errno or 5)
        self._refused.pop((topic.config.name, queue), None)
        if not topic.owned:  # whoever took over may not have seen this: it is not durable
            name, epoch = topic.config.name, topic.owner
            self.node.post(lambda: self.leases.lose(name, epoch, "the log has a newer owner"))
            return -errno.ESTALE
        self.node.counters.values[row, C.SYNCS] += 1
        for callback in self.on_synced:
            callback(topic)
        return 0

    def _say_refused(self, topic: DurableTopic, queue: int, problem: StorageError) -> None:
        """A sync failed for another reason than the one before: report it."""
        name, number = topic.config.name, problem.errno or errno.EIO
        before = self._refused.get((name, queue))
        self._refused[name, queue] = str(problem)
        if before is not None and before != str(problem):
            told = ev.DiskRefused(topic=name, queue=queue, errno=number, detail=str(problem))
            self.node.post(lambda: self.tell(told))

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
                if topic is not None and topic.refused:
                    topic.refused = False
                    self.node.note(rec.ALERT, rec.Code.DISK_BACK, topic.config.wire_id)
                    self.tell(ev.DiskBack(topic=topic.config.name))

    def _gap(self, slot: int, first: int, packets: int) -> None:
        """Packets of a ring that cannot be read.

        Of an image: its publisher had them acked already, by an image before. It joins anew, where
        the publisher's ring is acked now: sequences count from there. Of a ring of this node: a
        client has scribbled; they are left out.
        """
        source, record = self.sources.get(slot), self.runtime.state.sources[slot]
        if source is None or not record["told_gap"] or record["seq"] != first:
            return
        if source.image:
            self.remote.join_anew(source)
            return
        values = {"seq": first + packets, "at": wire.PACKET_HEADER_BYTES, "told_gap": 0}
        self.runtime.on_archiver(lambda: ds.fill(record, values))
        self.tell(
            ev.Gap(
                topic=source.topic, node=self.node.name, session=source.session, first=first,
                end=first + packets, reason="malformed",
            )
        )  # fmt: skip

    def _topic_at(self, slot: int) -> DurableTopic | None:
        return next((t for t in self.topics.values() if t.slot == slot), None)

    def _disk(self, slot: int, kind: int, b: int, c: int) -> None:
        topic = self._topic_at(slot)
        if topic is None or errno.ESTALE in (b, c):
            return
        topic.refused = True
        _, at = self._by_number.get(b, (None, -1))
        queue, number = (at, c) if kind == ast.E_DISK else (-1, b)
        what = "a write" if kind == ast.E_DISK else "a sync"
        self.node.note(rec.ALERT, rec.Code.DISK_REFUSED, topic.config.wire_id, queue, number)
        self.tell(
            ev.DiskRefused(
                topic=topic.config.name, queue=queue, errno=number,
                detail=f"{what} failed: {os.strerror(number)}",
            )
        )  # fmt: skip

    def _drained(self, slot: int) -> None:
        source = self.sources.get(slot)
        if source is None or source.image or not source.publication:
            return  # images are kept until their publishers have heard of it, leftovers are told of
        if self.runtime.state.sources[slot]["told_drained"]:
            self.remove_source(slot, self.topics[source.topic], lay.ACK_ENDED)

    # --- now and then -----------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Retention, producers that are silent for long, gauges; at most each TICK_S."""
        self.remote.begin_held(now_s)
        if now_s < self._next_tick:
            return
        self._next_tick = now_s + TICK_S
        self.remote.tick(now_s)
        self.leases.tick()
        if self._runtime is None:
            return
        now_ns = time.time_ns()
        for topic in self.topics.values():
            upkeep.retain(self, topic, now_ns)
            if topic.config.queues > topic.map.queues and self.grants.whole(topic):
                with contextlib.suppress(StorageError):  # the disk refuses: later
                    self._grow(topic, topic.config.queues)
            gone = topic.producers.expire(self.wall_ns())
            if gone:
                wire_id = topic.config.wire_id
                self.node.note(rec.LOW, rec.Code.PRODUCERS_EXPIRED, wire_id, len(gone))
                self.tell(ev.ProducersExpired(topic=topic.config.name, producers=len(gone)))
            upkeep.gauges(self, topic)
        upkeep.release_leftovers(self)
