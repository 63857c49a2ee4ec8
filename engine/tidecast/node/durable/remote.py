"""Durable topics across nodes: publishers on one node, queues on another.

*Publisher's node*: a publication of a topic that another node keeps. Its ring holds what is not
acked, by a consumer entry that ACK packets move, and its SETUP carries the producer's session. So
the ring is the repeat buffer, and this node needs to know nothing about the queues.

*Owner*: a SETUP opens the session (the answer is an ACK with epoch and first sequence); nothing is
appended before the publisher's node has said in its next SETUP that it knows both, else a session
whose answer was lost could begin twice. From then on an image is read as any ring is. Whoever comes
back after a crash, a partition or a time-out joins where the SETUP says that it is acked; what was
in the log already is dropped as duplicate.

Called with the node's lock held.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidecast import events as ev
from tidecast.agents.live.remote_acks import answer_setup
from tidecast.api.link import PublicationOptions
from tidecast.buffers.ring_file import consumers, describe
from tidecast.buffers.writer import close_abandoned
from tidecast.config.topology import TopicConfig
from tidecast.errors import (
    ConfigError,
    SequenceGap,
    SharedMemoryError,
)
from tidecast.layout import packet as wire
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.native.mapped import Bytes, MappedFile
from tidecast.native.packing import pack_into, unpack_from
from tidecast.node.durable import archiver_tables as ds
from tidecast.node.durable import maintenance as upkeep
from tidecast.node.durable.remote_opens import Openings
from tidecast.node.durable.ring_budget import NO_ROOM, PublisherRings
from tidecast.node.durable.session_order import Claim, claim_of_ring
from tidecast.node.live import agent_tables, sessions
from tidecast.node.live.image_creation import place_image
from tidecast.node.live.setup import ProducerBlock, Setup
from tidecast.node.live.transports import TransportRuntime
from tidecast.node.state import Image, Publication
from tidecast.protocol.dedup import Producer, Session

if TYPE_CHECKING:
    from tidecast.node.durable.service import Durable
    from tidecast.node.durable.topic import DurableTopic

SILENT_S = 1.0
"""A publication that has ended, is durable and silent for so long is gone."""
GONE_S = 2.0
UNREACHABLE = errno.EHOSTUNREACH
"""State of a ring that can be sent to nobody."""


@dataclass(slots=True, eq=False)
class _Held:
    publication: Publication
    channel: int
    since_s: float
    producer: int = 0

    def __post_init__(self) -> None:
        if self.publication.remote >= 0:
            self.producer = ds.ring_session(self.publication.mapped.array)[0]


class Remote:
    """Both sides; see the module."""

    def __init__(self, durable: Durable) -> None:
        self.durable, self.node = durable, durable.node
        self.openings = Openings(self.durable)
        self._waiting: dict[str, list[MappedFile]] = {}
        self._held: list[_Held] = []
        self._fenced: set[int] = set()
        self._rings = PublisherRings(self.node)

    # --- publisher's node -------------------------------------------------------------------------

    def begin(self, options: PublicationOptions, producer: int) -> Session:
        """A session that the owner has yet to open. ``first_seq`` 0: the owner says."""
        if options.first_seq is not None and not 0 <= options.first_seq <= wire.MESSAGE_SEQ_MAX:
            raise ConfigError(f"first_seq: {options.first_seq}: allowed 1..{wire.MESSAGE_SEQ_MAX}")
        named = options.producer or options.producer_id
        first_seq = options.first_seq or (0 if named else 1)
        unknown = Producer(producer, np.zeros(1, dtype=np.int64))
        return Session(
            unknown, 0, first_seq, max(first_seq - 1, 0), 0, known=False, line=options.line,
            after=options.after,
        )  # fmt: skip

    def attach(self, publication: Publication, session: Session, doorbell: int) -> None:
        """Make the ring of a new publication one that waits for acks."""
        ring = publication.mapped.array
        publication.remote = ds.begin_ring(
            ring, producer=session.producer.id, epoch=0, first_seq=session.first_seq,
            doorbell=doorbell, line=session.line, after=session.after,
        )  # fmt: skip
        pack_into("<q", ring, lay.ACK_STATE_AT, lay.ACK_OPENING)
        publication.constant = bytes(ring[: lay.HEAD_AT])

    def announce(self, publication: Publication, channel: int) -> None:
        """Let a new publication be sent, once what its producer left on this node is acked.

        One whose topic is kept here waits until its session may begin.

        Its session fences older ones at the owner, and goes on behind the last sequence known
        there: what an older ring holds and the owner has not got would be left out for good. That
        goes also for a client that repeats it from its old ring: it may die amid that.
        """
        now_s = self.node.clock_ns() / 1e9
        one = _Held(publication, channel, now_s)
        if not self._begun(one, now_s):
            self._held.append(one)

    def say_left(self, publication: Publication) -> None:
        """A publisher is gone: if its session has not begun it must not fence one that lives."""
        if publication.remote < 0 or publication.slot < 0:
            return
        if not ds.ring_session(publication.mapped.array)[1]:
            agent_tables.announce(self.node, publication)

    def begin_held(self, now_s: float) -> None:
        """Begin what need not wait any more, here and at those who asked."""
        for one in list(self._held):
            if one.publication.id not in self.node.pubs or self._begun(one, now_s):
                self._held.remove(one)
        self.openings.look(now_s)

    def waiting(self, producer: int) -> Iterator[Claim]:
        """Sessions of a producer that are asked for here and wait, of this node and of others."""
        yield from self.openings.waiting(producer)
        for one in self._held:
            ring, left = one.publication.mapped.array, one.publication.closing
            if one.producer == producer and not ds.ring_session(ring)[1]:
                yield claim_of_ring(ring, left=left)

    def _begun(self, one: _Held, now_s: float) -> bool:
        publication = one.publication
        topic = self.durable.topics.get(publication.topic.name)
        if publication.remote >= 0:
            if topic is None:
                wait = self._older(publication)
            else:
                wait = not self._take_ring(topic, publication, now_s - one.since_s)
            if wait:
                return False
        if publication.runtime is not None and publication.slot < 0:
            agent_tables.add_publication(self.node, publication, one.channel)
        return True

    def _older(self, publication: Publication) -> bool:
        """Closed rings of its producer are to be sent first; for one in use the owner waits."""
        producer = ds.ring_session(publication.mapped.array)[0]
        return any(
            each.remote >= 0
            and each.closing
            and each.id < publication.id
            and each.topic.name == publication.topic.name
            and ds.ring_session(each.mapped.array)[0] == producer
            and not self.settled(each)
            for each in self.node.pubs.values()
        )

    def settled(self, publication: Publication) -> bool:
        """The owner has all of it, or wants none of it."""
        if publication.remote < 0:
            return True
        return not ds.unacked(publication.mapped.array, publication.about().slots)

    def _say_fenced(self) -> None:
        """A client learns of it while it does not ask, too."""
        told, self._fenced = self._fenced, set()
        for publication in self.node.pubs.values():
            ring = publication.mapped.array
            (state,) = unpack_from("<q", ring, lay.ACK_STATE_AT)
            if publication.remote < 0 or state != lay.ACK_FENCED:
                continue
            self._fenced.add(publication.id)
            if publication.id not in told:
                producer, epoch, _ = ds.ring_session(ring)
                event = ev.ProducerFenced(
                    topic=publication.topic.name, producer=f"{producer:x}",
                    session=publication.session, epoch=epoch,
                )  # fmt: skip
                self.node.tell(publication.client, event)

    def _say_unreachable(self) -> None:
        """A publisher whose transport reaches no other node learns that one has the queues.

        What it has sent waits in its ring, which is right while queues move; it may be for long.
        """
        for publication in self.node.pubs.values():
            if publication.remote < 0 or publication.runtime is not None:
                continue
            topic, ring = publication.topic, publication.mapped.array
            owner = self.durable.leases.owners.get(topic.name, "")
            (state,) = unpack_from("<q", ring, lay.ACK_STATE_AT)
            if owner in ("", self.node.name) or state not in (lay.ACK_OPENING, lay.ACK_OK):
                continue
            self.durable.say(ring, UNREACHABLE)
            event = ev.PublisherWaits(
                topic=topic.name, session=publication.session, owner=owner,
                detail=f"node {owner} keeps the queues, and transport {topic.transport or 'ipc'} "
                "reaches no other node: messages wait in the publisher's ring until this engine "
                "has the lease; give the topic a transport of kind udp-..., or publish there",
            )  # fmt: skip
            self.durable.told.append(event)
            self.node.tell(publication.client, event)

    def adopt(self, mapped: MappedFile, config: TopicConfig) -> None:
        """Send on what a dead engine's ring holds for the topic's owner."""
        node, ring, about = self.node, mapped.array, describe(mapped.array)
        runtime = node.runtimes.get(node.topology.transport(config.transport).name)
        seq, _, _ = ds.ack_record(ring, about)
        entry = next(
            (i for i, e in consumers(ring) if not e[lay.CONSUMER_SUBSCRIPTION_AT // 8]), -1
        )
        if entry < 0 or not ds.unacked(ring, about.slots):
            mapped.unlink()
            mapped.close()
            return
        if runtime is None:  # it can go nowhere: until the topic is kept here
            self._waiting.setdefault(config.name, []).append(mapped)
            return
        publication = self._leftover(mapped, config, runtime, entry)
        agent_tables.add_publication(node, publication, about.channel, seq)

    def _leftover(
        self, mapped: MappedFile, config: TopicConfig, runtime: TransportRuntime | None, entry: int
    ) -> Publication:
        node, about = self.node, describe(mapped.array)
        close_abandoned(mapped.array, node.bells, about.slots)
        publication = Publication(next(node.ids), 0, config, about.session, mapped, runtime)
        publication.remote = entry
        publication.closing, publication.closed_s = True, node.clock_ns() / 1e9
        publication.leftover = True
        node.pubs[publication.id] = publication
        return publication

    def hold(self, mapped: MappedFile, config: TopicConfig) -> None:
        """A dead engine's ring for a topic that is kept here; its session may not begin yet."""
        publication = self._leftover(mapped, config, None, 0)
        self._held.append(_Held(publication, 0, publication.closed_s))

    def _release_leftovers(self) -> None:
        for publication in [p for p in self.node.pubs.values() if p.leftover]:
            if self._is_over(publication) and upkeep.tell_dropped(self.durable, publication.mapped):
                self.node.forget_publication(publication)
            elif self.settled(publication):
                (count,) = unpack_from("<q", publication.mapped.array, lay.DURABLE_AT)
                self.node.note(rec.LOW, rec.Code.RING_DRAINED, publication.session, count)
                self.durable.tell(
                    ev.RingDrained(
                        topic=publication.topic.name, session=publication.session, messages=count
                    )
                )
                publication.leftover = False  # from now on it ends as any
                self.node.look_after(publication)

    # --- who keeps the topic changes --------------------------------------------------------------

    def take_back(self, source: ds.Source, topic: DurableTopic) -> None:
        """Another node keeps the topic now: send it what our archiver has read so far."""
        durable, node = self.durable, self.node
        if source.image:
            durable.remove_source(source.slot, topic, lay.ACK_ENDED)
            self.drop(source, lay.ACK_ENDED)
            return
        record = durable.runtime.state.sources[source.slot]
        entry = int(record["consumer"])
        durable.remove_source(source.slot, topic, lay.ACK_OK, keep_entry=True)
        publication = node.pubs.get(source.publication)
        if publication is None:
            self.adopt(source.mapped, topic.config)
            return
        publication.remote = entry
        if publication.runtime is not None:
            agent_tables.announce(node, publication, topic.owner)
        node.look_after(publication)

    def take_own(self, topic: DurableTopic) -> None:
        """This node keeps the topic now: its archiver reads the rings that it sent to others."""
        for mapped in self._waiting.pop(topic.config.name, []):
            upkeep.take_over(self.durable, mapped)
        for publication in [
            p for p in self.node.pubs.values() if p.topic.name == topic.config.name
        ]:
            held = any(one.publication is publication for one in self._held)
            if publication.remote < 0 or held or self._is_over(publication):
                continue
            if not self._take_ring(topic, publication, 0.0):
                now_s = self.node.clock_ns() / 1e9
                self._held.append(_Held(publication, publication.about().channel, now_s))

    def _is_over(self, publication: Publication) -> bool:
        (state,) = unpack_from("<q", publication.mapped.array, lay.ACK_STATE_AT)
        return state in ds.OVER

    def _take_ring(self, topic: DurableTopic, publication: Publication, waited_s: float) -> bool:
        """Let our archiver read a publication's ring. False: its session may not begin yet."""
        node, ring = self.node, publication.mapped.array
        if not self.may_begin(topic, ring, waited_s, left=publication.closing):
            return False
        entry, publication.remote = publication.remote, -1
        if publication.leftover:
            node.pubs.pop(publication.id)
            if publication.slot >= 0:
                agent_tables.remove_publication(node, publication)
            upkeep.take_over(self.durable, publication.mapped, begins=True)
            return True
        if publication.slot >= 0:
            agent_tables.announce(node, publication)
        session = self.session_of(topic, ring)
        if session is not None:
            slot = self.durable.add_source(topic, publication.mapped, session, entry)
            publication.source = slot
            self.durable.sources[slot].publication = publication.id
        return True

    def may_begin(self, topic: DurableTopic, ring: Bytes, waited_s: float, *, left: bool) -> bool:
        """A ring has its session, or may have it now, or never: see `session_of`."""
        if ds.ring_session(ring)[1]:
            return True
        claim, grants = claim_of_ring(ring, left=left), self.durable.grants
        return grants.overtaken(topic, claim) or grants.ready(topic, claim, waited_s)

    def session_of(self, topic: DurableTopic, ring: Bytes, *, left: bool = False) -> Session | None:
        """The session in which our archiver reads a ring on; None: fenced or refused, and told."""
        producer, epoch, first_seq = ds.ring_session(ring)
        known = topic.producers.known.get(producer)
        claim = claim_of_ring(ring, left=left)
        if epoch == 0 and self.durable.grants.overtaken(topic, claim):
            self.durable.grants.tell_fenced(topic, producer, claim.session, 0)
            self.durable.say(ring, lay.ACK_FENCED)
            return None
        if epoch == 0:
            self.durable.fence(topic, producer, "")
            try:
                session = topic.producers.open(
                    producer, first_seq or None, self.durable.wall_ns(), claim.of_line
                )
            except SequenceGap as gap:
                pack_into("<q", ring, lay.FIRST_SEQ_AT, gap.expected)
                self.durable.say(ring, lay.ACK_REFUSED)
                return None
            pack_into("<q", ring, lay.FIRST_SEQ_AT, session.first_seq)
            pack_into("<q", ring, lay.EPOCH_AT, session.epoch)
            topic.note_grant(session)
        elif known is not None and known.epoch > epoch:
            self.durable.say(ring, lay.ACK_FENCED)
            return None
        else:
            session = topic.producers.resume(
                producer, epoch, first_seq, self.durable.wall_ns(), claim.of_line
            )
        self.durable.say(ring, lay.ACK_OK)
        return session

    # --- owner ------------------------------------------------------------------------------------

    def on_setup(self, runtime: TransportRuntime, setup: Setup, config: TopicConfig) -> bool:
        """A producer's session as its node announces it. True: an image of it is there now."""
        topic = self.durable.topics.get(config.name)
        block = setup.producer
        if topic is None or block is None or not self._sound(setup, block):
            return False
        for source in self._sources(topic, setup.session):
            image = self.node.images_by_id[source.image]
            joined = not image.gone and image.incarnation == setup.incarnation
            if joined or block.epoch == 0:
                return True  # sent before it was joined, and taken late
            self._finish(source)  # of before a time-out, or a restart
        openings = self.openings
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
            self.node.note(
                rec.ALERT, rec.Code.TOPIC_CONFLICT, setup.session, setup.topic_id, setup.source
            )
            self.durable.tell(
                ev.TopicConflict(
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
            ds.begin_ring(
                mapped.array, producer=block.id, epoch=block.epoch, first_seq=block.first_seq,
                doorbell=0, record=(block.packet, block.offset, block.count),
            )  # fmt: skip
            return {
                "durable": 1, "producer": block.id, "epoch": block.epoch, "acked": -1,
                "first_seq": block.first_seq, "owner": topic.owner,
            }  # fmt: skip

        config = topic.config
        image = place_image(
            self.node, runtime, setup, config, "durable", block.packet, slots, prepare
        )
        try:
            slot = self.durable.add_source(topic, image.mapped, session, 0)
        except SharedMemoryError:
            self._remove_image(image)
            topic.producers.close(session.producer, self.durable.wall_ns())
            raise
        self.durable.sources[slot].image = image.id
        self.durable.sources[slot].left = setup.left

    def _sources(self, topic: DurableTopic, session: int) -> list[ds.Source]:
        return [
            s for s in self.durable.sources.values()
            if s.image and s.session == session and s.topic == topic.config.name
        ]  # fmt: skip

    # --- ends -------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Let go of what has ended, and of sessions that were opened and never begun."""
        self._release_leftovers()
        self._say_unreachable()
        self._say_fenced()
        self.openings.tick(now_s)
        for source in [s for s in self.durable.sources.values() if s.image]:
            image = self.node.images_by_id[source.image]
            if self._over(source, image, now_s):
                self._finish(source)

    def _over(self, source: ds.Source, image: Image, now_s: float) -> bool:
        record = self.durable.runtime.state.sources[source.slot]
        if record["d_seq"] != record["seq"] or record["d_at"] != record["at"]:
            return False
        if image.slot >= 0:
            heard_ns = int(image.runtime.rx_state.images[image.slot]["heard_ns"])
            return bool(record["told_drained"]) and now_s - heard_ns / 1e9 > SILENT_S
        unread = self.durable.unread(source)
        return bool(record["told_drained"]) or not unread or now_s - image.gone_s > GONE_S

    def _finish(self, source: ds.Source) -> None:
        """Read what is there, then let go of an image; what was not acked comes again."""
        topic = self.durable.topics[source.topic]
        self.durable.drain(topic, [source])
        self.durable.remove_source(source.slot, topic, lay.ACK_ENDED)
        self._remove_image(self.node.images_by_id[source.image])

    def evicted(self, session: int) -> None:
        """The archiver was left behind by an image: what it waits for never comes there."""
        for source in [s for s in self.durable.sources.values() if s.image]:
            if source.session == session:
                self.join_anew(source)

    def join_anew(self, source: ds.Source) -> None:
        """Let go of an image; its publisher's next SETUP says from where it is acked."""
        topic = self.durable.topics[source.topic]
        self.durable.remove_source(source.slot, topic, lay.ACK_ENDED)
        self.drop(source, lay.ACK_ENDED)

    def drop(self, source: ds.Source, state: int) -> None:
        """A source is removed: its image goes, and if it is fenced its publisher is told."""
        image = self.node.images_by_id.get(source.image)
        if image is None:
            return
        if state == lay.ACK_FENCED and image.slot >= 0:
            self._tell_fenced(source, image)
        self._remove_image(image)

    def _tell_fenced(self, source: ds.Source, image: Image) -> None:
        record = image.runtime.rx_state.images[image.slot]
        topic = self.durable.topics[source.topic]
        answer = np.array(
            [record["channel"], image.session, record["topic"], source.producer.id,
             source.epoch + 1, 1, 0, wire.PACKET_HEADER_BYTES, 0, lay.ACK_FENCED, topic.owner],
            dtype=np.int64,
        )  # fmt: skip
        a, b = int(record["address_a"]), int(record["address_b"])
        words = image.runtime.inline_arguments[1]
        image.runtime.on_receiver(lambda: answer_setup(words, answer, a, b))

    def _remove_image(self, image: Image) -> None:
        node = self.node
        for subscription_id in image.readers:
            node.tell_gone(
                subscription_id, image.id, image.topic.name, image.node_name, image.session,
                image.gone or "closed",
            )  # fmt: skip
        agent_tables.remove_image(node, image, leave=True)
        node.images_by_id.pop(image.id, None)
        sessions.forget_session(node, image.runtime, image.session)
        image.mapped.unlink()
        image.mapped.close()
