"""Durable topics of this node whose publishers are on other nodes.

A SETUP opens the session (the answer is an ACK with epoch and first sequence); nothing is appended
before the publisher's node has said in its next SETUP that it knows both, else a session whose
answer was lost could begin twice. From then on an image is read as any ring is. A publisher that
returns after a crash, a partition or a time-out joins where its SETUP says that it is acked; what
was in the log already is dropped as duplicate. Called with the node's lock held.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace

import numpy as np

from tidecast import events
from tidecast.agents.live.remote_acks import answer_setup
from tidecast.config.topology import TopicConfig
from tidecast.errors import Conflict, Fenced, SequenceGap, SharedMemoryError, StorageError
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.layout.counters import QueueCounter as C
from tidecast.layout.packet import CHANNEL_LARGE
from tidecast.native.mapped import MappedFile
from tidecast.node.durable import archiver_tables
from tidecast.node.durable.session_order import (
    Claim,
    Grants,
    Opened,
    PendingSessions,
    claim_of_setup,
)
from tidecast.node.durable.sources import SourceRegistry
from tidecast.node.durable.topic import DurableTopic
from tidecast.node.live.images import Images
from tidecast.node.live.setup import ProducerBlock, Setup
from tidecast.node.live.transports import TransportRuntime
from tidecast.node.state import Image
from tidecast.protocol.dedup import Session

NO_ROOM = errno.ENOMEM
"""What the ACK of a session that has to wait says."""
WAITING_MAX = 4096
SILENT_S = 1.0
"""A publication that has ended, is durable and silent for so long is gone."""
GONE_S = 2.0
OPENED_S, OPENED_MAX = 60.0, 4096
"""A session that was opened and is not begun is forgotten after this long."""
ASKED_S = 3.0
"""A session that waits to begin and was not announced for so long is given up."""


@dataclass(slots=True)
class _Asked:
    runtime: TransportRuntime
    setup: Setup
    block: ProducerBlock
    claim: Claim
    since_s: float
    heard_s: float


class Openings:
    """Sessions that publishers on other nodes ask for: SETUPs with epoch 0, and the answers.

    Granted is what may begin (see `session_order`); the same again when the answer was lost.
    """

    def __init__(self, registry: SourceRegistry, pending: PendingSessions, grants: Grants) -> None:
        self._registry, self._pending, self._grants = registry, pending, grants
        self._ctx = registry.ctx
        self._asked: dict[int, _Asked] = {}
        self._overtaken: dict[int, None] = {}

    def ask(
        self, runtime: TransportRuntime, setup: Setup, block: ProducerBlock, topic: DurableTopic
    ) -> None:
        """Somebody's session waits until it may begin."""
        now_s = self._ctx.now_s()
        asked = self._asked.get(setup.session)
        if asked is None:
            while len(self._asked) >= OPENED_MAX:
                self._give_up(next(iter(self._asked)))
            name, wall_ns = topic.config.name, self._ctx.wall_ns()
            claim = claim_of_setup(setup, block, name, wall_ns)
            asked = _Asked(runtime, setup, block, claim, now_s, now_s)
            self._asked[setup.session] = asked
        if setup.left and not asked.claim.left:
            asked.claim = replace(asked.claim, left=True)  # since
        self._pending.ask(asked.claim)
        asked.heard_s = now_s
        self._open(asked, topic)

    def _give_up(self, session: int) -> None:
        asked = self._asked.pop(session, None)
        if asked is not None:
            self._pending.give_up(asked.claim)

    def look(self, now_s: float) -> None:
        """Grant what need not wait any more."""
        for session, asked in list(self._asked.items()):
            topic = self._registry.topics.get(asked.claim.topic)
            if topic is None or now_s - asked.heard_s > ASKED_S:
                self._give_up(session)
            elif session in self._asked:
                self._open(asked, topic)

    def _open(self, asked: _Asked, topic: DurableTopic) -> None:
        """Grant epoch and first sequence; the same again when the answer was lost."""
        setup, block, claim = asked.setup, asked.block, asked.claim
        opened = self._pending.opened.get(setup.session)
        if opened is None:
            if self._grants.overtaken(topic, claim):
                self._refuse(asked, topic, lay.ACK_FENCED, 1)
                self._report_overtaken(topic, claim)
                return
            waited_s = self._ctx.now_s() - asked.since_s
            if not self._grants.ready(topic, claim, waited_s):
                return
            try:
                self._grants.fence(topic, block.id, "")
                session = topic.grant(
                    block.id, block.first_seq or None, self._ctx.wall_ns(), claim.of_line
                )
            except (Fenced, StorageError):
                return  # the archiver finds out and tells; the publisher asks again
            except SequenceGap as gap:
                self._refuse(asked, topic, lay.ACK_REFUSED, gap.expected)
                return
            except Conflict as problem:
                self._registry.notify(
                    events.TopicConflict(
                        topic=topic.config.name, node=setup.node, detail=str(problem)
                    )
                )
                return
            while len(self._pending.opened) >= OPENED_MAX:
                self._forget(next(iter(self._pending.opened)))
            now_s = self._ctx.now_s()
            opened = Opened(topic.config.name, session, now_s, claim.left)
            self._pending.opened[setup.session] = opened
        self._give_up(setup.session)
        found = opened.session
        self.answer(asked.runtime, setup, block, topic, found.epoch, found.first_seq, lay.ACK_OK)

    def _refuse(self, asked: _Asked, topic: DurableTopic, state: int, first_seq: int) -> None:
        self._give_up(asked.setup.session)
        newest = max(topic.producers.known[asked.block.id].epoch, 1)
        self.answer(asked.runtime, asked.setup, asked.block, topic, newest, first_seq, state)

    def _report_overtaken(self, topic: DurableTopic, claim: Claim) -> None:
        """Once a session, though its SETUPs may go on to come for a while."""
        if claim.session in self._overtaken:
            return
        while len(self._overtaken) >= OPENED_MAX:
            del self._overtaken[next(iter(self._overtaken))]
        self._overtaken[claim.session] = None
        self._grants.report_fenced(topic, claim.producer, claim.session, 0)

    def answer(
        self, runtime: TransportRuntime, setup: Setup, block: ProducerBlock, topic: DurableTopic,
        epoch: int, first_seq: int, state: int,
    ) -> None:  # fmt: skip
        """Answer a SETUP that gets no image."""
        answer = np.array(
            [setup.channel, setup.session, setup.topic_id, block.id, epoch, first_seq,
             block.packet, block.offset, block.count, state, topic.owner], dtype=np.int64,
        )  # fmt: skip
        a, b = setup.address_words
        words = runtime.inline_arguments[1]
        runtime.on_receiver(lambda: answer_setup(words, answer, a, b))

    def begin(self, topic: DurableTopic, setup: Setup, block: ProducerBlock) -> Session:
        """The session that a publisher's node goes on with."""
        opened = self._pending.opened.pop(setup.session, None)
        if opened is not None and opened.session.epoch == block.epoch:
            return replace(opened.session, first_seq=block.first_seq)
        return topic.producers.resume(
            block.id, block.epoch, block.first_seq, self._ctx.wall_ns(),
            block.line or setup.session,
        )  # fmt: skip

    def newest(self, topic: DurableTopic, producer: int, session: int, epoch: int) -> int:
        """The newest epoch of a producer, for one that says it has ``epoch``.

        An equal one of another session that is there is newer: it was granted twice by accident.
        """
        known = topic.producers.known.get(producer)
        if known is None:
            return 0
        sources = self._registry.sources.values()
        others = [s.epoch for s in sources if s.producer is known and s.session != session]
        others += [one.session.epoch for one in self._pending.granted(known, session)]
        newer = max(others, default=0)
        return max(known.epoch, newer + (newer == epoch))

    def tick(self, now_s: float) -> None:
        """Forget what was granted and never begun."""
        for session in [s for s, o in self._pending.opened.items() if now_s - o.at_s > OPENED_S]:
            self._forget(session)

    def _forget(self, session: int) -> None:
        opened = self._pending.opened.pop(session)
        topic = self._registry.topics.get(opened.topic)
        if topic is not None:
            topic.producers.close(opened.session.producer, self._ctx.wall_ns())


class PublisherRings:
    """How much shared memory publishers on other nodes get here.

    A ring as large as the publisher's own history never holds it back. The publisher chooses that
    size, so each ring is capped, and all rings together. A publisher without room keeps its
    messages, is notified, and gets its ring when there is room.
    """

    def __init__(self, registry: SourceRegistry) -> None:
        self._registry, self._ctx = registry, registry.ctx
        self._waiting: dict[int, None] = {}

    def slots_for(self, setup: Setup, config: TopicConfig) -> int:
        """Slots of the ring that a session gets; 0: there is no room for any."""
        settings, packet = self._ctx.topology.node, setup.packet_bytes
        large = setup.channel == CHANNEL_LARGE
        own = max(config.receive_bytes, config.large_history_bytes if large else 0)
        least = lay.slots_for(min(own, settings.publisher_ring_bytes_max), packet)
        most = max(least, lay.slots_for(settings.publisher_ring_bytes_max, packet))
        free = settings.publisher_rings_bytes_max - self.bytes
        for slots in (min(max(setup.slots, least), most), least):
            if lay.ring_bytes(slots, packet) <= free:
                self._waiting.pop(setup.session, None)
                return slots
        self._refuse(setup, config, lay.ring_bytes(least, packet))
        return 0

    @property
    def bytes(self) -> int:
        """What they have now."""
        images = self._ctx.images_by_id.values()
        return sum(image.mapped.array.size for image in images if image.mode == "durable")

    def _refuse(self, setup: Setup, config: TopicConfig, needed: int) -> None:
        """Once a session, though its SETUPs go on to come."""
        if setup.session in self._waiting:
            return
        while len(self._waiting) >= WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[setup.session] = None
        ctx, most = self._ctx, self._ctx.topology.node.publisher_rings_bytes_max
        for (topic, _), row in self._registry.rows.items():
            if topic == config.name:
                ctx.counters.values[row, C.RINGS_REFUSED] += 1
        ctx.note(
            rec.ALERT, rec.Code.RING_REFUSED, setup.session, setup.source, needed, self.bytes, most
        )
        self._registry.notify(
            events.PublisherRefused(
                topic=config.name, node=setup.node, session=setup.session, bytes=needed,
                detail=f"rings of publishers on other nodes have {self.bytes} bytes of "
                f"{most} here: raise node.publisher_rings_bytes_max, or lower receive_bytes of "
                "the topic; the publisher waits until there is room",
            )
        )  # fmt: skip


class OwnerSide:
    """See module."""

    def __init__(
        self, registry: SourceRegistry, pending: PendingSessions, grants: Grants, images: Images
    ) -> None:
        self._registry, self._images, self._ctx = registry, images, registry.ctx
        self._openings = Openings(registry, pending, grants)
        self._rings = PublisherRings(registry)

    def look(self, now_s: float) -> None:
        """Grant the sessions that need not wait any more."""
        self._openings.look(now_s)

    def on_setup(self, runtime: TransportRuntime, setup: Setup, config: TopicConfig) -> bool:
        """A producer's session as its node announces it. True: an image of it is there now."""
        topic = self._registry.topics.get(config.name)
        block = setup.producer
        if topic is None or block is None or not self._sound(setup, block):
            return False
        for source in self._sources(topic, setup.session):
            image = self._ctx.images_by_id[source.image]
            joined = not image.gone and image.incarnation == setup.incarnation
            if joined or block.epoch == 0:
                return True  # sent before it was joined, and taken late
            self._finish(source)  # of before a time-out, or a restart
        openings = self._openings
        if block.epoch == 0:
            openings.ask(runtime, setup, block, topic)
            return False
        newest = openings.newest(topic, block.id, setup.session, block.epoch)
        if newest > block.epoch:
            openings.answer(runtime, setup, block, topic, newest, 1, lay.ACK_FENCED)
            return False
        slots = self._rings.slots_for(setup, config)
        if not slots:
            openings.answer(runtime, setup, block, topic, block.epoch, block.first_seq, NO_ROOM)
            return False
        session = openings.begin(topic, setup, block)
        self._join(runtime, setup, block, topic, session, slots)
        return True

    def _sound(self, setup: Setup, block: ProducerBlock) -> bool:
        sound = setup.oldest <= block.packet <= setup.next_seq + setup.slots and (
            block.epoch == 0 or block.first_seq > 0
        )
        if not sound:
            self._ctx.note(
                rec.ALERT, rec.Code.TOPIC_CONFLICT, setup.session, setup.topic_id, setup.source
            )
            self._registry.notify(
                events.TopicConflict(
                    topic=setup.topic, node=setup.node,
                    detail=f"its history begins at packet {setup.oldest}, it is acked up to "
                    f"{block.packet}: what lies between is not durable",
                )
            )  # fmt: skip
        return sound

    def _join(
        self, runtime: TransportRuntime, setup: Setup, block: ProducerBlock, topic: DurableTopic,
        session: Session, slots: int,
    ) -> None:  # fmt: skip
        """Receive a session from where it is acked, and let the archiver read it."""

        def prepare(mapped: MappedFile) -> dict[str, int]:
            archiver_tables.begin_ring(
                mapped.array, producer=block.id, epoch=block.epoch, first_seq=block.first_seq,
                doorbell=0, record=(block.packet, block.offset, block.count),
            )  # fmt: skip
            return {
                "durable": 1, "producer": block.id, "epoch": block.epoch, "acked": -1,
                "first_seq": block.first_seq, "owner": topic.owner,
            }  # fmt: skip

        config = topic.config
        image = self._images.place(runtime, setup, config, "durable", block.packet, slots, prepare)
        try:
            slot = self._registry.add(topic, image.mapped, session, 0)
        except SharedMemoryError:
            self._images.discard(image)
            topic.producers.close(session.producer, self._ctx.wall_ns())
            raise
        self._registry.sources[slot].receive(image.id, left=setup.left)

    def _sources(self, topic: DurableTopic, session: int) -> list[archiver_tables.Source]:
        return [
            s for s in self._registry.sources.values()
            if s.image and s.session == session and s.topic == topic.config.name
        ]  # fmt: skip

    def tick(self, now_s: float) -> None:
        """Remove images that have ended, and sessions that were granted and never begun."""
        self._openings.tick(now_s)
        for source in [s for s in self._registry.sources.values() if s.image]:
            image = self._ctx.images_by_id[source.image]
            if self._over(source, image, now_s):
                self._finish(source)

    def _over(self, source: archiver_tables.Source, image: Image, now_s: float) -> bool:
        record = self._registry.runtime.state.sources[source.slot]
        if record["d_seq"] != record["seq"] or record["d_at"] != record["at"]:
            return False
        if image.slot >= 0:
            heard_ns = int(image.runtime.rx_state.images[image.slot]["heard_ns"])
            return bool(record["drained_reported"]) and now_s - heard_ns / 1e9 > SILENT_S
        unread = self._registry.unread(source)
        return bool(record["drained_reported"]) or not unread or now_s - image.gone_s > GONE_S

    def _finish(self, source: archiver_tables.Source) -> None:
        """Read what is there, then let go of an image; what was not acked comes again."""
        topic = self._registry.topics[source.topic]
        self._registry.drain(topic, [source])
        self._registry.remove(source.slot, topic, lay.ACK_ENDED)
        self._images.discard(self._ctx.images_by_id[source.image])

    def evicted(self, session: int) -> None:
        """The archiver was left behind by an image: what it waits for never comes there."""
        for source in [s for s in self._registry.sources.values() if s.image]:
            if source.session == session:
                self.rejoin(source)

    def rejoin(self, source: archiver_tables.Source) -> None:
        """Let go of an image; its publisher's next SETUP says from where it is acked."""
        topic = self._registry.topics[source.topic]
        self._registry.remove(source.slot, topic, lay.ACK_ENDED)
        self._registry.drop(source, lay.ACK_ENDED)
