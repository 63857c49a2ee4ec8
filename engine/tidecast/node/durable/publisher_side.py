"""Producers of this node whose topic another node keeps, or whose session may not begin yet.

The ring of such a publication holds what is not acked, by a consumer entry that ACK packets move,
and its SETUP carries the producer's session. So the ring is the repeat buffer, and this node needs
to know nothing about the queues. Called with the node's lock held.
"""

from __future__ import annotations

import errno

import numpy as np

from tidecast import events
from tidecast.api.link import PublicationOptions
from tidecast.buffers.ring_file import consumers, describe
from tidecast.buffers.writer import close_abandoned
from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError
from tidecast.layout import packet as wire
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.native.mapped import MappedFile
from tidecast.native.packing import pack_into, unpack_from
from tidecast.node.durable import archiver_tables
from tidecast.node.durable.recovery import Recovery
from tidecast.node.durable.session_order import Held, PendingSessions
from tidecast.node.durable.sources import SourceRegistry
from tidecast.node.durable.topic import DurableTopic
from tidecast.node.live import agent_tables
from tidecast.node.live.publications import Publications
from tidecast.node.live.transports import TransportRuntime
from tidecast.node.state import Publication
from tidecast.protocol.dedup import Producer, Session

UNREACHABLE = errno.EHOSTUNREACH
"""State of a ring that can be sent to nobody."""


class PublisherSide:
    """See module."""

    def __init__(
        self, registry: SourceRegistry, pending: PendingSessions, recovery: Recovery,
        publications: Publications,
    ) -> None:  # fmt: skip
        self._registry, self._pending, self._recovery = registry, pending, recovery
        self._ctx, self._publications = registry.ctx, publications
        self._waiting: dict[str, list[MappedFile]] = {}
        self._fenced: set[int] = set()

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
        entry = archiver_tables.begin_ring(
            ring, producer=session.producer.id, epoch=0, first_seq=session.first_seq,
            doorbell=doorbell, line=session.line, after=session.after,
        )  # fmt: skip
        pack_into("<q", ring, lay.ACK_STATE_AT, lay.ACK_OPENING)
        publication.await_acks(entry)
        publication.fix_constant()

    def announce(self, publication: Publication, channel: int) -> None:
        """Let a new publication be sent, once what its producer left on this node is acked.

        One whose topic is kept here waits until its session may begin.

        Its session fences older ones at the owner, and goes on behind the last sequence known
        there: what an older ring holds and the owner has not got would be left out for good. That
        goes also for a client that repeats it from its old ring: it may die amid that.
        """
        now_s = self._ctx.now_s()
        one = Held(publication, channel, now_s)
        if not self._begun(one, now_s):
            self._pending.held.append(one)

    def say_left(self, publication: Publication) -> None:
        """A publisher is gone: if its session has not begun it must not fence one that lives."""
        if publication.remote < 0 or publication.slot < 0:
            return
        if not archiver_tables.ring_session(publication.mapped.array)[1]:
            agent_tables.announce(self._ctx, publication)

    def begin_held(self, now_s: float) -> None:
        """Begin what need not wait any more, here and at those who asked."""
        for one in list(self._pending.held):
            if one.publication.id not in self._ctx.pubs or self._begun(one, now_s):
                self._pending.held.remove(one)

    def _begun(self, one: Held, now_s: float) -> bool:
        publication = one.publication
        topic = self._registry.topics.get(publication.topic.name)
        if publication.remote >= 0:
            if topic is None:
                wait = self._older(publication)
            else:
                wait = not self._take_ring(topic, publication, now_s - one.since_s)
            if wait:
                return False
        if publication.runtime is not None and publication.slot < 0:
            agent_tables.add_publication(self._ctx, publication, one.channel)
        return True

    def _older(self, publication: Publication) -> bool:
        """Closed rings of its producer are to be sent first; for one in use the owner waits."""
        producer = archiver_tables.ring_session(publication.mapped.array)[0]
        return any(
            each.remote >= 0
            and each.closing
            and each.id < publication.id
            and each.topic.name == publication.topic.name
            and archiver_tables.ring_session(each.mapped.array)[0] == producer
            and not self.has_arrived(each)
            for each in self._ctx.pubs.values()
        )

    def has_arrived(self, publication: Publication) -> bool:
        """The owner has all of it, or wants none of it."""
        if publication.remote < 0:
            return True
        return not archiver_tables.unacked(publication.mapped.array, publication.about().slots)

    def _report_fenced(self) -> None:
        """A client learns of it while it does not ask, too."""
        notified, self._fenced = self._fenced, set()
        for publication in self._ctx.pubs.values():
            ring = publication.mapped.array
            (state,) = unpack_from("<q", ring, lay.ACK_STATE_AT)
            if publication.remote < 0 or state != lay.ACK_FENCED:
                continue
            self._fenced.add(publication.id)
            if publication.id not in notified:
                producer, epoch, _ = archiver_tables.ring_session(ring)
                event = events.ProducerFenced(
                    topic=publication.topic.name, producer=f"{producer:x}",
                    session=publication.session, epoch=epoch,
                )  # fmt: skip
                self._ctx.notify(publication.client, event)

    def _report_unreachable(self) -> None:
        """A publisher whose transport reaches no other node learns that one has the queues.

        What it has sent waits in its ring, which is right while queues move; it may be for long.
        """
        for publication in self._ctx.pubs.values():
            if publication.remote < 0 or publication.runtime is not None:
                continue
            topic, ring = publication.topic, publication.mapped.array
            owner = self._registry.owners.get(topic.name, "")
            (state,) = unpack_from("<q", ring, lay.ACK_STATE_AT)
            if owner in ("", self._ctx.name) or state not in (lay.ACK_OPENING, lay.ACK_OK):
                continue
            self._registry.set_ack_state(ring, UNREACHABLE)
            event = events.PublisherWaits(
                topic=topic.name, session=publication.session, owner=owner,
                detail=f"node {owner} keeps the queues, and transport {topic.transport or 'ipc'} "
                "reaches no other node: messages wait in the publisher's ring until this engine "
                "has the lease; give the topic a transport of kind udp-..., or publish there",
            )  # fmt: skip
            self._registry.notified.append(event)
            self._ctx.notify(publication.client, event)

    def adopt(self, mapped: MappedFile, config: TopicConfig) -> None:
        """Send on what a dead engine's ring holds for the topic's owner."""
        ctx, ring, about = self._ctx, mapped.array, describe(mapped.array)
        runtime = ctx.runtimes.get(ctx.topology.transport(config.transport).name)
        seq, _, _ = archiver_tables.ack_record(ring, about)
        entry = next(
            (i for i, e in consumers(ring) if not e[lay.CONSUMER_SUBSCRIPTION_AT // 8]), -1
        )
        if entry < 0 or not archiver_tables.unacked(ring, about.slots):
            mapped.unlink()
            mapped.close()
            return
        if runtime is None:  # it can go nowhere: until the topic is kept here
            self._waiting.setdefault(config.name, []).append(mapped)
            return
        publication = self._orphan(mapped, config, runtime, entry)
        agent_tables.add_publication(ctx, publication, about.channel, seq)

    def _orphan(
        self, mapped: MappedFile, config: TopicConfig, runtime: TransportRuntime | None, entry: int
    ) -> Publication:
        ctx, about = self._ctx, describe(mapped.array)
        close_abandoned(mapped.array, ctx.bells, about.slots)
        publication = Publication(next(ctx.ids), 0, config, about.session, mapped, runtime)
        publication.await_acks(entry)
        publication.orphan(ctx.now_s())
        ctx.pubs[publication.id] = publication
        return publication

    def hold(self, mapped: MappedFile, config: TopicConfig) -> None:
        """A dead engine's ring for a topic that is kept here; its session may not begin yet."""
        publication = self._orphan(mapped, config, None, 0)
        self._pending.held.append(Held(publication, 0, publication.closed_s))

    def _reap_orphans(self) -> None:
        for publication in [p for p in self._ctx.pubs.values() if p.leftover]:
            if self._is_over(publication) and self._recovery.report_dropped(publication.mapped):
                self._publications.forget(publication)
            elif self.has_arrived(publication):
                (count,) = unpack_from("<q", publication.mapped.array, lay.DURABLE_AT)
                self._ctx.note(rec.LOW, rec.Code.RING_DRAINED, publication.session, count)
                self._registry.notify(
                    events.RingDrained(
                        topic=publication.topic.name, session=publication.session, messages=count
                    )
                )
                publication.adopt()
                self._publications.check(publication)

    # --- who keeps the topic changes --------------------------------------------------------------

    def take_back(self, source: archiver_tables.Source, topic: DurableTopic) -> None:
        """Another node keeps the topic now: send it what our archiver has read so far."""
        registry, ctx = self._registry, self._ctx
        if source.image:
            registry.remove(source.slot, topic, lay.ACK_ENDED)
            registry.drop(source, lay.ACK_ENDED)
            return
        record = registry.runtime.state.sources[source.slot]
        entry = int(record["consumer"])
        registry.remove(source.slot, topic, lay.ACK_OK, keep_entry=True)
        publication = ctx.pubs.get(source.publication)
        if publication is None:
            self.adopt(source.mapped, topic.config)
            return
        publication.await_acks(entry)
        if publication.runtime is not None:
            agent_tables.announce(ctx, publication, topic.owner)
        self._publications.check(publication)

    def take_own(self, topic: DurableTopic) -> None:
        """This node keeps the topic now: its archiver reads the rings that it sent to others."""
        for mapped in self._waiting.pop(topic.config.name, []):
            self.take_over(mapped)
        for publication in [
            p for p in self._ctx.pubs.values() if p.topic.name == topic.config.name
        ]:
            held = any(one.publication is publication for one in self._pending.held)
            if publication.remote < 0 or held or self._is_over(publication):
                continue
            if not self._take_ring(topic, publication, 0.0):
                now_s = self._ctx.now_s()
                self._pending.held.append(Held(publication, publication.about().channel, now_s))

    def _is_over(self, publication: Publication) -> bool:
        (state,) = unpack_from("<q", publication.mapped.array, lay.ACK_STATE_AT)
        return state in archiver_tables.OVER

    def _take_ring(self, topic: DurableTopic, publication: Publication, waited_s: float) -> bool:
        """Let our archiver read a publication's ring. False: its session may not begin yet."""
        ctx, ring = self._ctx, publication.mapped.array
        if not self._recovery.may_begin(topic, ring, waited_s, left=publication.closing):
            return False
        entry = publication.take_entry()
        if publication.leftover:
            ctx.pubs.pop(publication.id)
            if publication.slot >= 0:
                agent_tables.remove_publication(ctx, publication)
            self._recovery.read_on(topic, publication.mapped)
            return True
        if publication.slot >= 0:
            agent_tables.announce(ctx, publication)
        session = self._recovery.session_of(topic, ring)
        if session is not None:
            slot = self._registry.add(topic, publication.mapped, session, entry)
            publication.archive(slot)
            self._registry.sources[slot].belong_to(publication.id)
        return True

    def take_over(self, mapped: MappedFile) -> None:
        """Read a dead engine's ring on, or send it to the topic's owner.

        A ring that had no session yet begins it when it may.
        """
        about = describe(mapped.array)
        config = self._ctx.topic_by_name.get(about.topic_name)
        if config is not None and config.mode == "durable" and not self._registry.keeps(config):
            self.adopt(mapped, config)
            return
        topic = self._registry.topics.get(about.topic_name)
        if topic is None or config is None:
            return  # its file stays, for an engine that has the topic again
        if self._recovery.may_begin(topic, mapped.array, 0.0, left=True):
            self._recovery.read_on(topic, mapped)
        else:
            self.hold(mapped, config)

    def tick(self) -> None:
        """Reap orphaned rings, report fenced and unreachable publishers."""
        self._reap_orphans()
        self._report_unreachable()
        self._report_fenced()
