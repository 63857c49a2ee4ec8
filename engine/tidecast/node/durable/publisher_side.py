"""Producers of this node: their sessions, and the rings whose session is not open yet.

A session of a topic that this node keeps is open at once, unless older sessions end first. If
another node keeps the topic, the ring of the publication holds the messages that are not acked, by
a consumer entry that ACK packets move, and its SETUP carries the producer's session. So the ring is
the repeat buffer, and this node needs to know nothing about the queues.

`Publications.open` calls `open_session`, `bind_ring` and, if the session is not open yet,
`send_when_ready`. Called with the node's lock held.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from enum import Enum

import numpy as np

from tidecast import events
from tidecast.api.link import PublicationOptions
from tidecast.buffers.ring_file import consumers, describe
from tidecast.buffers.writer import close_abandoned
from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError, TidecastError, fenced
from tidecast.layout import packet as wire
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.native.mapped import MappedFile
from tidecast.native.packing import pack_into, unpack_from
from tidecast.node.durable import archiver_tables
from tidecast.node.durable.recovery import Recovery
from tidecast.node.durable.session_order import (
    Grants,
    Held,
    PendingSessions,
    claim_of_options,
)
from tidecast.node.durable.sources import SourceRegistry
from tidecast.node.durable.topic import DurableTopic
from tidecast.node.live import agent_tables
from tidecast.node.live.publications import Publications
from tidecast.node.live.transports import TransportRuntime
from tidecast.node.state import Publication
from tidecast.protocol.dedup import Producer, Session, producer_id
from tidecast.protocol.state_table import StateTable

UNREACHABLE = errno.EHOSTUNREACH
"""State of a ring that reaches no other node."""


class PublicationState(Enum):
    """Of a publication at its node, whose session the topic's owner opens."""

    NEW, HELD, SENT, READ, OVER = range(5)


class PublicationEvent(Enum):
    """Changes a publication's state; the text stands in the docs."""

    BLOCKED = "older rings of its producer have to end first"
    SENDABLE = "another node keeps the topic, and no older ring of its producer waits here"
    READABLE = "this node keeps the topic, and the session may begin"
    MOVED = "another node keeps the topic now"
    CLOSED = "it was closed, and nothing of it is left"
    ARRIVED = "the owner has all of an orphaned ring"
    DROPPED = "the session of an orphaned ring is fenced or refused, or its topic is deleted"


class PublisherSide:
    """See module."""

    def __init__(
        self,
        registry: SourceRegistry,
        pending: PendingSessions,
        grants: Grants,
        recovery: Recovery,
        publications: Publications,
    ) -> None:
        self._registry, self._pending, self._recovery = registry, pending, recovery
        self._grants = grants
        self._ctx, self._publications = registry.ctx, publications
        self._waiting: dict[str, list[MappedFile]] = {}
        """Rings of dead engines by topic: they can be read when the topic exists."""
        self._fenced: set[int] = set()

    # --- opening, in the order of `Publications.open` ---------------------------------------------

    def open_session(
        self, config: TopicConfig, options: PublicationOptions, session: int
    ) -> Session:
        """Open a producer's session, and fence older sessions. ``session``: of its ring.

        Its epoch is 0 while the topic's owner has yet to open it. Raises SequenceGap, Conflict,
        Fenced, ConfigError.
        """
        producer = producer_id(options.producer) if options.producer else options.producer_id
        producer = producer or self._ctx.random_id(61)
        claim = claim_of_options(config.name, producer, session, options)
        if not self._registry.keeps(config):
            return _requested(options, producer)
        topic = self._registry.topic(config.name)
        if self._grants.overtaken(topic, claim):
            raise fenced(config.name, claim.after)
        if not self._grants.ready(topic, claim, 0.0):
            return _requested(options, producer)
        self._grants.fence(topic, producer, options.producer)
        now_ns, born_ns = self._ctx.wall_ns(), self._ctx.stamp_ns()
        opened = topic.producers.open(producer, options.first_seq, now_ns, claim.of_line, born_ns)
        if opened.producer.named:  # others may come back under that name
            topic.note_grant(opened)
        return opened

    def drop_session(self, config: TopicConfig, session: Session) -> None:
        """The publication that was to be opened could not be made."""
        if session.epoch:
            topic = self._registry.topics[config.name]
            topic.producers.close(session.producer, self._ctx.wall_ns())

    def bind_ring(self, publication: Publication, session: Session, doorbell: int) -> None:
        """Write a session into its new ring, and let the archiver read it if the session is open.

        Else ACKs will move the ring's entry. Call it before the client knows the ring.
        """
        ring = publication.mapped.array
        entry = archiver_tables.begin_ring(
            ring,
            producer=session.producer.id,
            epoch=session.epoch,
            first_seq=session.first_seq,
            doorbell=doorbell,
            line=session.line,
            after=session.after,
        )
        if session.epoch == 0:
            pack_into("<q", ring, lay.ACK_STATE_AT, lay.ACK_OPENING)
            publication.await_acks(entry)
            publication.fix_constant()
            return
        publication.fix_constant()
        topic = self._registry.topics[publication.topic.name]
        source = self._registry.add(topic, publication.mapped, session, entry)
        publication.archive(source)
        self._registry.sources[source].belong_to(publication.id)

    def unbind_ring(self, publication: Publication) -> None:
        """The publication could not be opened after all: the archiver reads its ring no more."""
        topic = self._registry.topics[publication.topic.name]
        self._registry.remove(publication.source, topic, lay.ACK_ENDED)

    def send_when_ready(self, publication: Publication) -> None:
        """Send a publication whose session is not open, once older rings of its producer are acked.

        If this node keeps the topic, the publication waits until its session may begin.

        Its session fences older sessions at the owner, and resumes behind the last sequence known
        there: messages that only an older ring holds could never be stored. The same holds for a
        client that publishes them again from its old ring: it may die halfway.
        """
        now_s = self._ctx.now_s()
        one = Held(publication, publication.about().channel, now_s)
        self._on(self._event_of(one, now_s), one, PublicationState.NEW)

    # --- events -----------------------------------------------------------------------------------

    def begin_held(self, now_s: float) -> None:
        """Begin sessions that need not wait any more, here and at other nodes."""
        for one in list(self._pending.held):
            self._on(self._event_of(one, now_s), one)

    def _event_of(self, one: Held, now_s: float) -> PublicationEvent:
        """The event for a publication whose session has not begun here."""
        publication = one.publication
        if publication.id not in self._ctx.pubs:
            return PublicationEvent.CLOSED
        topic = self._registry.topics.get(publication.topic.name)
        if topic is None:
            return (
                PublicationEvent.BLOCKED if self._older(publication) else PublicationEvent.SENDABLE
            )
        ring, left = publication.mapped.array, publication.closing
        may_begin = self._recovery.may_begin(topic, ring, now_s - one.since_s, left=left)
        return PublicationEvent.READABLE if may_begin else PublicationEvent.BLOCKED

    # --- states -----------------------------------------------------------------------------------

    def state_of(self, publication: Publication) -> PublicationState:
        """The state of a publication that was announced."""
        if any(one.publication is publication for one in self._pending.held):
            return PublicationState.HELD
        if publication.source >= 0:
            return PublicationState.READ
        return PublicationState.OVER if publication.remote < 0 else PublicationState.SENT

    def _on(
        self, event: PublicationEvent, one: Held, state: PublicationState | None = None
    ) -> None:
        """Run the actions of `TRANSITIONS` for an event in the publication's state."""
        after = TRANSITIONS.after(state or self.state_of(one.publication), event)
        if after is not None:
            _, action = after
            action(self, one)

    def hold(self, one: Held) -> None:
        """Its session may not begin yet."""
        self._pending.held.append(one)

    def keep_held(self, one: Held) -> None:
        """It waits on."""

    def release(self, one: Held) -> None:
        """It waits no more."""
        self._release(one.publication)

    def send(self, one: Held) -> None:
        """Let the sender announce it; ACKs of the owner move its entry."""
        self._release(one.publication)
        self._add_to_sender(one)

    def read(self, one: Held) -> None:
        """Let our archiver read it, if its session is not fenced or refused."""
        publication = one.publication
        self._release(publication)
        ring, topic = publication.mapped.array, self._registry.topics[publication.topic.name]
        entry = publication.take_entry()
        if publication.leftover:
            self._ctx.pubs.pop(publication.id)
            if publication.slot >= 0:
                agent_tables.remove_publication(self._ctx, publication)
            self._recovery.read_on(topic, publication.mapped)
            return
        if publication.slot >= 0:
            agent_tables.update_setup(self._ctx, publication)
        session = self._recovery.session_of(topic, ring, left=publication.closing)
        if session is not None:
            slot = self._registry.add(topic, publication.mapped, session, entry)
            publication.archive(slot)
            self._registry.sources[slot].belong_to(publication.id)
        self._add_to_sender(one)

    def send_back(self, one: Held) -> None:
        """Send the rest, which our archiver has not read, to the node that keeps the topic now."""
        publication = one.publication
        source = self._registry.sources[publication.source]
        topic = self._registry.topics[source.topic]
        publication.await_acks(self._stop_reading(source, topic))
        if publication.runtime is not None:
            agent_tables.update_setup(self._ctx, publication, topic.owner)
        self._publications.check(publication)

    def end_orphan(self, one: Held) -> None:
        """From now on it ends as any publication does."""
        publication = one.publication
        (count,) = unpack_from("<q", publication.mapped.array, lay.DURABLE_AT)
        self._ctx.note(rec.LOW, rec.Code.RING_DRAINED, publication.session, count)
        self._registry.notify(
            events.RingDrained(
                topic=publication.topic.name, session=publication.session, messages=count
            )
        )
        publication.adopt()
        self._release(publication)
        self._publications.check(publication)

    def drop_orphan(self, one: Held) -> None:
        """The rest can never be stored; this was reported."""
        self._release(one.publication)
        self._publications.forget(one.publication)

    def _release(self, publication: Publication) -> None:
        for one in [each for each in self._pending.held if each.publication is publication]:
            self._pending.held.remove(one)

    def _add_to_sender(self, one: Held) -> None:
        publication = one.publication
        if publication.runtime is not None and publication.slot < 0:
            ring, seq = publication.mapped.array, None
            if publication.leftover:  # all that is not acked
                seq, _, _ = archiver_tables.ack_record(ring, describe(ring))
            agent_tables.add_publication(self._ctx, publication, one.channel, seq)

    def note_gone(self, publication: Publication) -> None:
        """A publisher is gone: if its session has not begun it must not fence a living one."""
        if publication.remote < 0 or publication.slot < 0:
            return
        if not archiver_tables.ring_session(publication.mapped.array)[1]:
            agent_tables.update_setup(self._ctx, publication)

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
                    topic=publication.topic.name,
                    producer=f"{producer:x}",
                    session=publication.session,
                    epoch=epoch,
                )
                self._ctx.notify(publication.client, event)

    def _report_unreachable(self) -> None:
        """Report publishers of queues at another node whose transport reaches no other node.

        Their messages wait in the ring, which is right while queues move, but may last long.
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
                topic=topic.name,
                session=publication.session,
                owner=owner,
                detail=f"node {owner} keeps the queues, and transport {topic.transport or 'ipc'} "
                "reaches no other node: messages wait in the publisher's ring until this engine "
                "has the lease; give the topic a transport of kind udp-..., or publish there",
            )
            self._registry.notified.append(event)
            self._ctx.notify(publication.client, event)

    def adopt(self, mapped: MappedFile, config: TopicConfig) -> None:
        """Send messages of a dead engine's ring to the topic's owner."""
        ctx, ring, about = self._ctx, mapped.array, describe(mapped.array)
        transport = ctx.topology.transport(config.transport)
        runtime = ctx.runtimes.of_session(transport.name, about.session)
        seq, _, _ = archiver_tables.ack_record(ring, about)
        entry = next(
            (i for i, e in consumers(ring) if not e[lay.CONSUMER_SUBSCRIPTION_AT // 8]), -1
        )
        if entry < 0 or not archiver_tables.unacked(ring, about.slots):
            mapped.unlink()
            mapped.close()
            return
        if runtime is None:  # it can go nowhere: until the topic is kept here
            self._wait(mapped)
            return
        publication = self._orphan(mapped, config, runtime, entry)
        if not archiver_tables.ring_session(ring)[1] and self._older(publication):
            self.hold(Held(publication, about.channel, publication.closed_s))
            return  # its sequences follow the older ring's
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

    def _hold_orphan(self, mapped: MappedFile, config: TopicConfig) -> None:
        """A dead engine's ring for a topic that is kept here; its session may not begin yet."""
        publication = self._orphan(mapped, config, None, 0)
        one = Held(publication, 0, publication.closed_s)
        self._on(PublicationEvent.BLOCKED, one, PublicationState.NEW)

    def _reap_orphans(self, now_s: float) -> None:
        for publication in [p for p in self._ctx.pubs.values() if p.leftover]:
            one = Held(publication, 0, now_s)
            if self._is_over(publication) and self._recovery.report_dropped(publication.mapped):
                self._on(PublicationEvent.DROPPED, one)
            elif self.has_arrived(publication):
                self._on(PublicationEvent.ARRIVED, one)

    # --- the owner of the topic changes -----------------------------------------------------------

    def take_back(self, source: archiver_tables.Source, topic: DurableTopic) -> None:
        """Another node keeps the topic now: send it the messages that our archiver has read."""
        if source.image:
            self._registry.remove(source.slot, topic, lay.ACK_ENDED)
            self._registry.drop(source, lay.ACK_ENDED)
            return
        publication = self._ctx.pubs.get(source.publication)
        if publication is None:
            self._stop_reading(source, topic)
            self.adopt(source.mapped, topic.config)
        else:
            self._on(PublicationEvent.MOVED, Held(publication, 0, self._ctx.now_s()))

    def _stop_reading(self, source: archiver_tables.Source, topic: DurableTopic) -> int:
        """Take a ring from our archiver; the entry that ACKs are to move."""
        entry = int(self._registry.runtime.state.sources[source.slot]["consumer"])
        self._registry.remove(source.slot, topic, lay.ACK_OK, keep_entry=True)
        return entry

    def take_own(self, name: str) -> None:
        """The topic is there, or kept here now: take the rings that waited or were sent to others.

        Of a topic that this node keeps its archiver reads them.
        """
        self.take_over(self._waiting.pop(name, []))
        if name not in self._registry.topics:
            return
        now_s = self._ctx.now_s()
        for publication in list(self._ctx.pubs.of("topic", name)):
            if self.state_of(publication) is PublicationState.SENT and not self._is_over(
                publication
            ):
                one = Held(publication, publication.about().channel, now_s)
                self._on(self._event_of(one, now_s), one)

    def _is_over(self, publication: Publication) -> bool:
        (state,) = unpack_from("<q", publication.mapped.array, lay.ACK_STATE_AT)
        return state in archiver_tables.OVER

    def leave_waiting(self, source: archiver_tables.Source, topic: DurableTopic) -> None:
        """The topic is recreated: the rest of a dead engine's ring is read after that."""
        self._stop_reading(source, topic)
        self._wait(source.mapped)

    def _wait(self, mapped: MappedFile) -> None:
        self._waiting.setdefault(describe(mapped.array).topic_name, []).append(mapped)

    def drop_left(self, name: str) -> None:
        """The topic is deleted: report and remove the rings that dead engines left for it."""
        for mapped in self._waiting.pop(name, []):
            self._recovery.drop_deleted(mapped)
        for publication in [p for p in self._ctx.pubs.of("topic", name) if p.leftover]:
            self._recovery.report_deleted(publication.mapped)
            self._on(PublicationEvent.DROPPED, Held(publication, 0, self._ctx.now_s()))

    def stop(self) -> None:
        """Unmap the rings that wait; their files stay for the next engine."""
        for mapped in [each for rings in self._waiting.values() for each in rings]:
            mapped.close()
        self._waiting.clear()

    def take_over(self, rings: Iterable[MappedFile]) -> None:
        """Read dead engines' rings on, or send them to the owners of their topics.

        A ring that had no session yet begins it when it may. A damaged ring is reported.
        """
        for mapped in rings:
            try:
                self._take_over(mapped)
            except TidecastError as problem:
                self._ctx.note(rec.ALERT, rec.Code.RING_DRAINED, 0, -1)
                self._registry.notify(
                    events.TopicConflict(topic="", node=self._ctx.name, detail=str(problem))
                )

    def _take_over(self, mapped: MappedFile) -> None:
        about = describe(mapped.array)
        config = self._ctx.topic_by_name.get(about.topic_name)
        if config is None or config.mode != "durable":
            if self._recovery.report_stranded(mapped):
                self._wait(mapped)
            return
        self._registry.standing.pop((about.topic_name, str(mapped.path)), None)
        if not self._registry.keeps(config):
            self.adopt(mapped, config)
            return
        topic = self._registry.topics.get(about.topic_name)
        if topic is None:  # it could not be opened, which was reported
            self._wait(mapped)
        elif self._recovery.may_begin(topic, mapped.array, 0.0, left=True):
            self._recovery.read_on(topic, mapped)
        else:
            self._hold_orphan(mapped, config)

    def tick(self) -> None:
        """Reap orphaned rings, report fenced and unreachable publishers."""
        self._reap_orphans(self._ctx.now_s())
        self._report_unreachable()
        self._report_fenced()


def _requested(options: PublicationOptions, producer: int) -> Session:
    """A session that the owner has yet to open. ``first_seq`` 0: the owner decides it."""
    if options.first_seq is not None and not 0 <= options.first_seq <= wire.MESSAGE_SEQ_MAX:
        raise ConfigError(f"first_seq: {options.first_seq}: allowed 1..{wire.MESSAGE_SEQ_MAX}")
    named = options.producer or options.producer_id
    first_seq = options.first_seq or (0 if named else 1)
    unknown = Producer(producer, np.zeros(1, dtype=np.int64))
    return Session(
        unknown,
        0,
        first_seq,
        max(first_seq - 1, 0),
        0,
        known=False,
        line=options.line,
        after=options.after,
    )


Action = Callable[[PublisherSide, Held], None]
TRANSITIONS: StateTable[PublicationState, PublicationEvent, Action] = StateTable(
    {
        (PublicationState.NEW, PublicationEvent.BLOCKED): (
            PublicationState.HELD,
            PublisherSide.hold,
        ),
        (PublicationState.NEW, PublicationEvent.SENDABLE): (
            PublicationState.SENT,
            PublisherSide.send,
        ),
        (PublicationState.NEW, PublicationEvent.READABLE): (
            PublicationState.READ,
            PublisherSide.read,
        ),
        (PublicationState.HELD, PublicationEvent.BLOCKED): (
            PublicationState.HELD,
            PublisherSide.keep_held,
        ),
        (PublicationState.HELD, PublicationEvent.SENDABLE): (
            PublicationState.SENT,
            PublisherSide.send,
        ),
        (PublicationState.HELD, PublicationEvent.READABLE): (
            PublicationState.READ,
            PublisherSide.read,
        ),
        (PublicationState.HELD, PublicationEvent.CLOSED): (
            PublicationState.OVER,
            PublisherSide.release,
        ),
        (PublicationState.HELD, PublicationEvent.ARRIVED): (
            PublicationState.OVER,
            PublisherSide.end_orphan,
        ),
        (PublicationState.HELD, PublicationEvent.DROPPED): (
            PublicationState.OVER,
            PublisherSide.drop_orphan,
        ),
        (PublicationState.SENT, PublicationEvent.BLOCKED): (
            PublicationState.HELD,
            PublisherSide.hold,
        ),
        (PublicationState.SENT, PublicationEvent.READABLE): (
            PublicationState.READ,
            PublisherSide.read,
        ),
        (PublicationState.SENT, PublicationEvent.ARRIVED): (
            PublicationState.OVER,
            PublisherSide.end_orphan,
        ),
        (PublicationState.SENT, PublicationEvent.DROPPED): (
            PublicationState.OVER,
            PublisherSide.drop_orphan,
        ),
        (PublicationState.READ, PublicationEvent.MOVED): (
            PublicationState.SENT,
            PublisherSide.send_back,
        ),
    }
)
"""A publication that was read or sent to its end is removed by `Publications.check`. The diagram in
docs/DURABLE.md is made of it."""
