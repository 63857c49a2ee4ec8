"""The rings that the archiver reads, and the durable topics that they belong to.

A source is a ring of a publication of this node, an image of a publication of another node, or a
ring that a dead engine left. The other parts of the durable side share this registry. Called
with the node's lock held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tidecast import events
from tidecast.agents.archiver.cycle import notify_ring, topic_unread
from tidecast.agents.live.remote_acks import answer_setup
from tidecast.buffers.ring_file import describe
from tidecast.config.leases import SHARED
from tidecast.config.topology import TopicConfig
from tidecast.errors import NotFound, TidecastError, Timeout
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.native.mapped import Bytes, MappedFile
from tidecast.native.packing import unpack_from
from tidecast.node.context import NodeContext
from tidecast.node.durable import archiver_tables
from tidecast.node.durable.archiver import ArchiverRuntime, Rows
from tidecast.node.durable.topic import DurableTopic, Position
from tidecast.node.live.images import Images
from tidecast.node.live.publications import Publications
from tidecast.node.state import Image, is_own
from tidecast.protocol.dedup import Session

FENCE_CYCLES_MAX = 10_000
ANNOUNCED_S, ANNOUNCED_MAX = 3.0, 4096
"""A session that waits and was not announced for so long holds nothing that is known of."""
EVENTS_KEPT_MAX = 1000


class Announced(NamedTuple):
    """The messages of a publisher on another node that waits to begin or has no ring here."""

    topic: str
    messages: int
    heard_s: float


class SourceRegistry:
    """See module. ``on_events``, ``sync``: of `ArchiverRuntime`."""

    def __init__(
        self,
        ctx: NodeContext,
        publications: Publications,
        images: Images,
        on_events: Callable[[Rows], None],
        sync: Callable[[int], int],
    ) -> None:
        self.ctx, self._publications, self._images = ctx, publications, images
        self._on_events, self._sync = on_events, sync
        self.topics: dict[str, DurableTopic] = {}
        self.sources: dict[int, archiver_tables.Source] = {}
        self.owners: dict[str, str] = {}
        """Which node keeps which shared topic, by the last answer of the lease store."""
        self.positions: list[Position] = []
        """Functions of the readers of queues: the oldest records that they need."""
        self.on_queues: list[Callable[[DurableTopic], None]] = []
        """Called when a durable topic was opened or has more queues."""
        self.on_closed: list[Callable[[str], None]] = []
        """Called with a durable topic's name before its logs are closed."""
        self.on_deleted: list[Callable[[str], None]] = []
        """Called with a durable topic's name when it is gone, with its logs."""
        self.on_synced: list[Callable[[DurableTopic], None]] = []
        """Called in the thread that syncs, when a queue of a topic is durable to a later token."""
        self.on_written: list[Callable[[DurableTopic], None]] = []
        """Called between two duty cycles of the archiver when a topic that is never synced, and
        whose next write is awaited (`ArchiverTables.await_write`), was written to."""
        self.standing: dict[tuple[str, str], events.Event] = {}
        """Damages and pauses, by topic and mark: clients that connect later get them, too."""
        self.notified: list[events.Event] = []
        """The events that recovery found, for later requests."""
        self.broken: dict[str, TidecastError] = {}
        """Topics that could not be opened when the engine started, and why."""
        self.rows: dict[tuple[str, int], int] = {}
        """Counters of each queue."""
        self.unread_topics: set[str] = set()
        """See `look_for_unread`."""
        self._announced: dict[int, Announced] = {}
        """By session."""
        self._runtime: ArchiverRuntime | None = None
        self._tables: archiver_tables.ArchiverTables | None = None

    def written(self, topic: DurableTopic) -> None:
        """An awaited write was made. Between two duty cycles."""
        for callback in self.on_written:
            callback(topic)

    @property
    def active(self) -> bool:
        """There are durable topics."""
        return self._runtime is not None

    @property
    def runtime(self) -> ArchiverRuntime:
        """The archiver; made with the first durable topic."""
        if self._runtime is None:
            ctx = self.ctx
            self._runtime = ArchiverRuntime(
                counters=ctx.counters.values,
                bells=ctx.bells,
                inline=ctx.inline,
                on_events=self._on_events,
                sync=self._sync,
                on_fault=ctx.conductor.agent_failed,
                wall_ns=ctx.wall_ns,
            )
            self._tables = archiver_tables.ArchiverTables(self._runtime)
        return self._runtime

    @property
    def tables(self) -> archiver_tables.ArchiverTables:
        """The archiver's records."""
        assert self._tables is not None
        return self._tables

    # --- topics -----------------------------------------------------------------------------------

    def keeps(self, config: TopicConfig) -> bool:
        """Are the topic's queues kept by this node?"""
        if config.owner == SHARED:
            return config.name in self.topics
        return config.mode == "durable" and config.owner in ("", self.ctx.name)

    def topic(self, name: str) -> DurableTopic:
        """A topic by name. Raises the error of its opening, NotFound."""
        found = self.topics.get(name)
        if found is not None:
            return found
        if name in self.broken:
            raise self.broken[name]
        config = self.ctx.topic_by_name.get(name)
        if config is not None and config.mode == "durable" and not self.keeps(config):
            owner = config.owner
            if owner == SHARED:
                owner = self.owners.get(name, "that has the lease (none yet)")
            raise NotFound(
                f"topic {name}: its queues are kept by node {owner}, and this is {self.ctx.name}: "
                "connect to the engine there to consume or inspect"
            )
        raise NotFound(
            f"topic {name} is not durable here: nothing of it is kept (tidecast topic create "
            f"{name} --mode durable)"
        )

    def row_of(self, topic: str, queue: int) -> int:
        """A queue's row of counters."""
        return self.rows[topic, queue]

    def notify(self, event: events.Event) -> None:
        """Notify all clients; the newest EVENTS_KEPT_MAX events are kept in `notified`."""
        self.notified.append(event)
        del self.notified[:-EVENTS_KEPT_MAX]
        self.ctx.notify_all(event)

    def stand(self, topic: str, what: str, event: events.Event) -> None:
        """Notify all clients, also clients that connect later, of a state that lasts.

        ``what``: its key among the states of the topic, such as the file that is damaged.
        """
        self.standing[topic, what] = event
        self.notify(event)

    def set_owners(self, owners: dict[str, str]) -> None:
        """The lease store has answered which node keeps which shared topic."""
        self.owners = owners

    # --- sources ----------------------------------------------------------------------------------

    def busy(self) -> bool:
        """Some ring holds messages that can become durable: no disk or storage refuses them."""
        S = self.runtime.state
        for slot, source in self.sources.items():
            here = self.topics[source.topic]
            record, topic = S.sources[slot], S.topics[here.slot]
            if topic["errno"] or here.storage_waits:
                continue
            behind = record["d_seq"] != record["seq"] or record["d_at"] != record["at"]
            if behind or (self.unread(source) and not source.image):
                return True
        return False

    def unread(self, source: archiver_tables.Source) -> bool:
        """A ring holds messages that the archiver has not read."""
        record, ring = self.runtime.state.sources[source.slot], source.mapped.array
        seq, at, slots = int(record["seq"]), int(record["at"]), int(record["slots"])
        (word,) = unpack_from("<q", ring, lay.HEADER_BYTES + (seq & (slots - 1)) * 8)
        holds = word >> lay.SEQ_SHIFT == seq & lay.SEQ_MASK
        state, length = (word >> lay.STATE_SHIFT) & 0xFF, word & lay.CONTROL_LENGTH_MASK
        return holds and (state == lay.SEALED or (state == lay.OPEN and length > at))

    def hasten_syncs(self) -> None:
        """Sync appended records in the next cycle, not after the interval. Between two cycles."""
        topics = self.runtime.state.topics
        topics["urgent"][topics["dirty_ns"] != 0] = 1

    def flush(self) -> None:
        """One cycle of the archiver in this thread that waits for no interval of syncs."""
        self.hasten_syncs()
        self.runtime.work(self.ctx.clock_ns())

    def drain(self, topic: DurableTopic, sources: list[archiver_tables.Source]) -> None:
        """The messages in some rings go into the log, unless the disk refuses."""

        def drain() -> None:
            topics = self.runtime.state.topics
            for _ in range(FENCE_CYCLES_MAX):
                before = [int(self.runtime.state.sources[s.slot]["seq"]) for s in sources]
                if topics[topic.slot]["errno"] or not any(self.unread(s) for s in sources):
                    return
                self.runtime.work(self.ctx.clock_ns())
                after = [int(self.runtime.state.sources[s.slot]["seq"]) for s in sources]
                if before == after and not topics[topic.slot]["held"]:
                    return  # the rest of a long message has not come

        self.runtime.on_archiver(drain)

    def add(
        self,
        topic: DurableTopic,
        mapped: MappedFile,
        session: Session,
        consumer: int,
        *,
        of_engine: bool = False,
    ) -> int:
        """Let the archiver read a ring, behind its last durable message; its slot.

        ``of_engine``: an engine elsewhere publishes into it itself.
        """
        about, of_engine = describe(mapped.array), of_engine or is_own(mapped)
        slot = self.runtime.on_archiver(
            lambda: self.tables.add_source(
                topic,
                mapped,
                session.producer,
                session.epoch,
                session.first_seq,
                about,
                consumer,
                of_engine=of_engine,
            )
        )
        self.sources[slot] = archiver_tables.Source(
            slot,
            topic.config.name,
            session.producer,
            session.epoch,
            about.session,
            mapped,
            0,
            int(self.runtime.state.sources[slot]["count"]),
        )
        return slot

    def remove(
        self, slot: int, topic: DurableTopic, state: int, *, keep_entry: bool = False
    ) -> None:
        """The archiver is through with a ring, or it is fenced."""
        source = self.sources.pop(slot)
        record = self.runtime.state.sources[slot]
        durable = int(record["first_seq"] + record["d_count"]) - 1
        source.producer.ack(durable)
        self.runtime.on_archiver(
            lambda: self.tables.remove_source(topic, slot, keep_entry=keep_entry)
        )
        self.set_ack_state(source.mapped.array, state)
        topic.producers.close(source.producer, self.ctx.wall_ns())
        publication = self.ctx.pubs.get(source.publication)
        if publication is not None:
            publication.archive(-1)
            if not keep_entry:
                self._publications.check(publication)

    def set_ack_state(self, ring: Bytes, state: int) -> None:
        """Notify the writer of a ring of its session's state (ACK_*)."""
        notify_ring(ring, self.ctx.bells, state)

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
                name
                for name, topic in list(self.topics.items())
                if topic_unread(runtime.state.words, topic.slot)
            }

        try:
            self.unread_topics = runtime.on_archiver(look)
        except Timeout:
            self.unread_topics = set(self.topics)
            raise
        return bool(self.unread_topics)

    def note_announced(self, session: int, topic: str, messages: int | None) -> None:
        """Note the messages of a session that is not received; None: received, over, not named."""
        self._announced.pop(session, None)
        if messages is None:
            return
        while len(self._announced) >= ANNOUNCED_MAX:
            del self._announced[next(iter(self._announced))]
        self._announced[session] = Announced(topic, messages, self.ctx.now_s())

    def arriving(self, topic: str) -> int:
        """Messages that publishers on other nodes hold for a topic, and that no log has yet.

        By their newest SETUPs. Any thread: publishers that come or go meanwhile may be left out.
        """
        since_s = self.ctx.now_s() - ANNOUNCED_S
        total = sum(
            each.messages
            for each in list(self._announced.values())
            if each.topic == topic and each.heard_s >= since_s
        )
        for source in list(self.sources.values()):
            image = self.ctx.images_by_id.get(source.image) if source.topic == topic else None
            if image is None or image.slot < 0:
                continue
            record = image.runtime.rx_state.images[image.slot]
            appended = int(self.runtime.state.sources[source.slot]["a_count"])
            if int(record["session"]) == source.session:
                total += max(0, int(record["published"]) - appended)
        return total

    def drop(self, source: archiver_tables.Source, state: int) -> None:
        """A source is removed: its image goes, and if it is fenced its publisher is notified."""
        image = self.ctx.images_by_id.get(source.image)
        if image is None:
            return
        if state == lay.ACK_FENCED and image.slot >= 0:
            self._answer_fenced(source, image)
        self._images.discard(image)

    def _answer_fenced(self, source: archiver_tables.Source, image: Image) -> None:
        record = image.runtime.rx_state.images[image.slot]
        topic = self.topics[source.topic]
        answer = np.array(
            [
                record["channel"],
                image.session,
                record["topic"],
                source.producer.id,
                source.epoch + 1,
                1,
                0,
                wire.PACKET_HEADER_BYTES,
                0,
                lay.ACK_FENCED,
                topic.owner,
                image.node_id,
            ],
            dtype=np.int64,
        )
        a, b = int(record["address_a"]), int(record["address_b"])
        words = image.runtime.inline_arguments[1]
        image.runtime.on_receiver(lambda: answer_setup(words, answer, a, b))
