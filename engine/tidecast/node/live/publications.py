"""Publications of this node: from the opening to the end.

*Opening*: `Publications.open` reads from top to bottom. A producer of a durable topic gets its
session first (`ProducerSetups`), for its sequences are written into the ring. The sender and local
subscribers get the ring at the end (`_connect`); that of a continued publication once its client
has copied the old ring into it (`begin_continued`).

*The topic is deleted*: the writer is notified (`PublicationEnded`), closes the ring behind the last
message that it accepted, and the sender drains that. A writer that does not within
`ENDING_PATIENCE_S` has its ring closed, and kept until it knows of the end: messages that it
added are counted then. Unsent messages of any ring that is removed are counted and reported.

Called with the node's lock held, except `begin_continued` and `close`, which take it.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from tidecast import events
from tidecast.api.link import PublicationGrant, PublicationOptions
from tidecast.api.node import LeftBehind
from tidecast.buffers.ring_file import add_consumer, messages_between
from tidecast.buffers.writer import close_abandoned
from tidecast.config.topology import TopicConfig, TransportConfig, check_ring_bytes
from tidecast.errors import Closed, ConfigError, Conflict, NotFound
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.layout.counters import NodeCounter
from tidecast.layout.packet import CHANNEL_LARGE, CHANNEL_NAMES
from tidecast.native.packing import unpack_from
from tidecast.node.context import NodeContext
from tidecast.node.live import agent_tables, continuation
from tidecast.node.live.images import GONE_PATIENCE_S, evict_stuck
from tidecast.node.state import Client, Publication, Subscription
from tidecast.protocol.dedup import Session

ENDING_PATIENCE_S = 2.0


class ProducerSetups(Protocol):
    """Sessions of durable producers: the methods that publications need."""

    def open_session(
        self, config: TopicConfig, options: PublicationOptions, session: int
    ) -> Session:
        """Open a producer's session for a ring. Raises SequenceGap, Conflict, Fenced."""

    def drop_session(self, config: TopicConfig, session: Session) -> None:
        """Undo `open_session`: the ring could not be created."""

    def bind_ring(self, publication: Publication, session: Session, doorbell: int) -> None:
        """Write a session into its new ring; let it be archived, or await acks of the owner."""

    def unbind_ring(self, publication: Publication) -> None:
        """Undo `bind_ring`: the publication could not be opened."""

    def send_when_ready(self, publication: Publication) -> None:
        """Let the sender have a publication as soon as its session may begin."""

    def note_gone(self, publication: Publication) -> None:
        """The publisher of a ring is gone."""

    def has_arrived(self, publication: Publication) -> bool:
        """Whether the topic's owner has all messages of a ring, or refuses the rest."""


class Publications:
    """See module."""

    _producers: ProducerSetups

    def __init__(self, ctx: NodeContext) -> None:
        self._ctx = ctx

    def serve(self, producers: ProducerSetups) -> None:
        """Set the durable side; before the first publication is opened."""
        self._producers = producers

    # --- opening ----------------------------------------------------------------------------------

    def open(
        self, client: Client, config: TopicConfig, options: PublicationOptions
    ) -> PublicationGrant:
        """Create a publication: its session, its ring, and a place at the sender."""
        ctx = self._ctx
        transport = ctx.topology.transport(config.transport)
        channel, slots = _geometry(config, transport, options)
        continued = continuation.accepted(ctx, client, config, options, slots)
        session = self._new_session(transport) if continued is None else continued.session
        producer = None
        if config.mode == "durable":
            producer = self._producers.open_session(config, options, session)
        publication_id = next(ctx.ids)
        first = 0 if continued is None else continued.head
        try:
            mapped = agent_tables.create_publication_ring(
                ctx, publication_id, config, session, slots, channel, first, own=client.of_engine
            )
        except BaseException:
            if producer is not None:
                self._producers.drop_session(config, producer)
            raise
        publication = Publication(
            publication_id,
            client.id,
            config,
            session,
            mapped,
            ctx.runtimes.of_session(transport.name, session),
            began_ns=ctx.clock_ns(),
        )
        if continued is not None:
            continuation.prepare(publication, continued)
        agent_tables.set_live(
            mapped.array,
            _or(options.rate_packets_per_s, config.rate_packets_per_s),
            _or(options.rate_bytes_per_s, config.rate_bytes_per_s),
            _or(options.linger_us, config.linger_us),
        )
        ctx.pubs[publication_id] = publication
        client.publications.add(publication_id)
        try:
            if producer is not None:
                self._producers.bind_ring(publication, producer, client.doorbell)
            if publication.begun:
                self._connect(publication)
        except BaseException:  # no subscription may read its ring, which is unmapped
            if producer is not None and publication.source >= 0:
                self._producers.unbind_ring(publication)
            elif producer is not None:
                self._producers.drop_session(config, producer)
            self.forget(publication)
            raise
        ctx.note(rec.LOW, rec.Code.PUBLICATION_ADDED, session, config.wire_id, slots)
        self._check_peers(publication, transport)
        grant = PublicationGrant(
            publication_id=publication_id,
            ring_path=str(mapped.path),
            topic=config.name,
            session=session,
            reliability=config.reliability,
            flow=config.flow,
            on_full=config.on_full,
            continued=continued is not None,
        )
        return grant if producer is None else _with_session(grant, producer, config, ctx.name)

    def _new_session(self, transport: TransportConfig) -> int:
        """An id that no publication has, of the lane that sends the fewest publications."""
        ctx, used = self._ctx, [0] * transport.lanes
        for publication in ctx.pubs.values() if transport.lanes > 1 else ():
            runtime = publication.runtime
            mine = runtime is not None and runtime.config.name == transport.name
            if runtime is not None and mine and not publication.closing:
                used[runtime.lane.number] += 1
        while True:
            session = ctx.runtimes.session_of_lane(transport.name, ctx.random_id(31), used)
            if not ctx.pubs.of("session", session):
                return session

    def _connect(self, publication: Publication) -> None:
        """Give a ring to its sender and to the subscriptions of this node."""
        if publication.remote >= 0:
            self._producers.send_when_ready(publication)
        elif publication.runtime is not None:
            agent_tables.add_publication(self._ctx, publication, publication.about().channel)
        for subscription in self._ctx.subscriptions_to(publication.topic.name):
            self.read(publication, subscription)

    def _check_peers(self, publication: Publication, transport: TransportConfig) -> None:
        """Notify a publisher whose transport has no peer."""
        runtime = publication.runtime
        if runtime is not None and runtime.sends_to_nobody:
            event = events.PublisherUnheard(
                topic=publication.topic.name,
                session=publication.session,
                transport=transport.name,
                mend=f"transport {transport.name} has no peers: only this engine gets what is "
                f"published; name the others in its peers: [other-host:{transport.port}], or "
                "connect all engines to one control service",
            )
            self._ctx.notify(publication.client, event)

    def begin_continued(self, client_id: int, publication_id: int) -> None:
        """Connect a continued publication, whose ring its client has filled.

        Raises NotFound, Conflict.
        """
        with self._ctx.lock:
            publication = self._own(client_id, publication_id)
            if publication.begun:
                raise Conflict(f"publication {publication_id} has begun already")
            publication.begin()
            continuation.hold(self._ctx, publication)
            self._connect(publication)

    def read(self, publication: Publication, subscription: Subscription) -> None:
        """Let a local subscription read a local publication's own ring, if it has a place."""
        if not agent_tables.has_place(self._ctx, publication, subscription):
            return
        about = publication.about()
        kept = self._ctx.resume_positions.pop(publication.session, subscription.id)
        if kept is not None:
            position, offset = continuation.resumed(about, kept), 0
        else:
            at_head = publication.began_ns <= subscription.created_ns
            position, offset = agent_tables.local_start(
                publication.mapped.array, about, subscription.options.start, at_head
            )
        entry = add_consumer(
            publication.mapped.array,
            position=position,
            offset=offset,
            client=subscription.client,
            doorbell=self._ctx.clients[subscription.client].doorbell,
            subscription=subscription.id,
            tethered=subscription.tethered(publication.topic),
        )
        publication.readers[subscription.id] = entry
        if kept is not None:
            continuation.rejoined(publication)
        self._ctx.notify(
            subscription.client,
            events.ImageAvailable(
                subscription_id=subscription.id,
                image_id=publication.id,
                ring_path=str(publication.mapped.path),
                consumer=entry,
                topic=publication.topic.name,
                node=self._ctx.name,
                session=publication.session,
            ),
        )

    def keep(self, client_id: int, publication_id: int) -> None:
        """The engine stops: a client of the gateway keeps the unsent messages. Raises NotFound."""
        with self._ctx.lock:
            self._own(client_id, publication_id).keep()

    def _own(self, client_id: int, publication_id: int) -> Publication:
        """The publication of a client. Raises NotFound."""
        publication = self._ctx.pubs.get(publication_id)
        if publication is None or publication.client != client_id:
            raise NotFound(f"client {client_id} has no publication {publication_id}")
        return publication

    # --- the end ----------------------------------------------------------------------------------

    def close(self, client_id: int, publication_id: int) -> None:
        """Close the ring (if its writer did not) and let sender and readers drain it."""
        with self._ctx.lock:
            client = self._ctx.clients.get(client_id)
            publication = self._own(client_id, publication_id)
            if client is not None:
                client.publications.discard(publication_id)
            publication.release()
            self.end(publication)

    def end_with_topic(self, publication: Publication, reason: events.PublicationEnded) -> None:
        """Let a publication end: its writer closes it, and all published messages are sent."""
        if publication.topic.mode == "durable":
            self.end(publication)
        elif publication.ending_s == 0.0:
            publication.await_close(self._ctx.now_s() + ENDING_PATIENCE_S)
        self._ctx.notify(publication.client, reason)

    def end(self, publication: Publication) -> None:
        """As `close`, without a client. Idempotent."""
        if publication.closing:
            return
        publication.close(self._ctx.now_s())
        close_abandoned(publication.mapped.array, self._ctx.bells, publication.about().slots)
        self._producers.note_gone(publication)
        topic, session = publication.topic.name, publication.session
        for subscription_id in publication.readers:
            self._ctx.notify_gone(
                subscription_id, publication.id, topic, self._ctx.name, session, "closed"
            )
        for subscription in self._ctx.ending_subs.values():
            notify_ended(self._ctx, subscription)
        if publication.runtime is None or not publication.begun:
            publication.set_drained(True)
        self.check(publication)

    def _check_ending(self, publication: Publication, now_s: float) -> None:
        """Check whether the writer has closed its ring, or its time is over."""
        if publication.closing or publication.ending_s == 0.0:
            return
        if publication.about().closed or now_s > publication.ending_s:
            self.end(publication)

    def check(self, publication: Publication, now_s: float | None = None) -> None:
        """Remove a publication that is closed, announced and read; evict stuck local readers."""
        now_s = self._ctx.now_s() if now_s is None else now_s
        if not publication.closing:
            if publication.topic.flow == "min":
                evict_stuck(self._ctx, publication, publication.topic.receiver_timeout_s)
            return
        if (
            publication.leftover  # of a dead engine: until it is acked
            or publication.source >= 0
            or not self._producers.has_arrived(publication)
        ):
            publication.postpone(now_s)  # its end is announced to its readers now
            return  # the archiver, here or at the topic's owner, is not through with it
        late = now_s - publication.closed_s > GONE_PATIENCE_S
        if publication.ending_s and not publication.released and not late:
            return  # its writer may still add to the ring
        if (publication.drained or late) and (not publication.readers or late):
            self.forget(publication)

    def forget(self, publication: Publication) -> None:
        """Remove a publication from its sender and unmap its ring."""
        ctx = self._ctx
        ctx.source_gone(publication)
        sent = self._remove_from_sender(publication)
        self._report_unsent(publication, sent)
        ctx.note(rec.LOW, rec.Code.PUBLICATION_REMOVED, publication.session, sent)
        ctx.pubs.pop(publication.id, None)
        client = ctx.clients.get(publication.client)
        if client is not None:
            client.publications.discard(publication.id)
        publication.mapped.unlink()
        publication.mapped.close()

    def tick(self, publication: Publication, now_s: float) -> None:
        """Reap stuck readers and drained rings, which cause no event."""
        continuation.release(publication, now_s)
        self._ctx.conductor.attempt(self._check_ending, publication, now_s)
        self._ctx.conductor.attempt(self.check, publication, now_s)

    def all_sent(self) -> bool:
        """Whether only publications that stay open are left, with all their messages sent."""
        pubs = self._ctx.pubs.values()
        return all(p.left and continuation.is_sent(self._ctx, p) for p in pubs)

    def _remove_from_sender(self, publication: Publication) -> int:
        """Remove a publication from its sender. Returns the next packet to send, or -1."""
        runtime, p = publication.runtime, publication.slot
        if runtime is None or p < 0:
            given = publication.continues
            return -1 if runtime is None or given is None else given.sent
        agent_tables.remove_publication(self._ctx, publication)
        return int(runtime.tx_state.pubs[p]["sent"])

    def _report_unsent(self, publication: Publication, sent: int) -> int:
        """Count and report the unsent messages of a live publication; their number.

        ``sent``: next packet; -1: no network. Without a network they are messages behind its end,
        for which no reader waits.
        """
        if publication.topic.mode == "durable":
            return 0
        ring, head = publication.mapped.array, publication.about().head
        if sent < 0:
            closed, end = (
                unpack_from("<q", ring, lay.CLOSED_AT),
                unpack_from("<q", ring, lay.END_SEQ_AT),
            )
            sent = end[0] if closed[0] else head
        found = messages_between(ring, publication.about(), sent, head)
        if found.messages == 0:
            return 0
        ctx = self._ctx
        row = ctx.counters.values[ctx.node_row]
        row[NodeCounter.PUBLICATIONS_CUT] += 1
        row[NodeCounter.PACKETS_CUT] += found.packets
        row[NodeCounter.MESSAGES_CUT] += found.messages
        row[NodeCounter.BYTES_CUT] += found.bytes
        self._ctx.note(rec.ALERT, rec.Code.PUBLICATION_CUT, publication.session, *found)
        self._ctx.notify_all(
            events.MessagesUnsent(
                topic=publication.topic.name,
                session=publication.session,
                messages=found.messages,
                bytes=found.bytes,
            )
        )
        return found.messages

    def left_behind(self) -> LeftBehind:
        """Unsent messages in rings that publishers keep; those of other rings are lost and counted.

        The senders leave all rings first: a message sent behind the count would count as waiting.
        """
        waiting, lost = [], 0
        for publication in list(self._ctx.pubs.values()):
            is_sent_here = publication.runtime is not None and publication.slot >= 0
            sent = self._remove_from_sender(publication)
            if not (publication.left or publication.kept):
                lost += self._report_unsent(publication, sent)
            elif is_sent_here:
                about = publication.about()
                held = messages_between(publication.mapped.array, about, sent, about.head)
                if held.messages:
                    waiting.append(held.messages)
        return LeftBehind(
            publications=len(waiting), waiting_messages=sum(waiting), lost_messages=lost
        )


def _geometry(
    config: TopicConfig, transport: TransportConfig, options: PublicationOptions
) -> tuple[int, int]:
    """(channel, slots) of a new publication's ring. Raises ConfigError."""
    if options.channel not in CHANNEL_NAMES:
        raise ConfigError(f"channel: {options.channel!r}: allowed {', '.join(CHANNEL_NAMES)}")
    channel = CHANNEL_NAMES.index(options.channel)
    large = channel == CHANNEL_LARGE
    wanted = options.history_bytes or (
        config.large_history_bytes if large else config.history_bytes
    )
    check_ring_bytes("history_bytes", wanted, transport)
    return channel, lay.slots_for(wanted, transport.packet_bytes)


def _with_session(
    grant: PublicationGrant, session: Session, config: TopicConfig, name: str
) -> PublicationGrant:
    """A grant with a producer's session; without an epoch the topic's owner has yet to open it."""
    return msgspec.structs.replace(
        grant,
        durable=True,
        producer_id=session.producer.id,
        epoch=session.epoch,
        first_seq=session.first_seq,
        acked_seq=session.acked_seq,
        last_seq=session.last_seq,
        owner="" if session.epoch else config.owner or name,
    )


def _or(chosen: int | None, default: int) -> int:
    return default if chosen is None else chosen


def notify_ended(ctx: NodeContext, subscription: Subscription) -> None:
    """Notify a client that a subscription has ended, when no publication here adds to its rings."""
    pubs = ctx.pubs.of("topic", subscription.pattern)  # patterns do not end with a topic
    reading = [p for p in pubs if subscription.id in p.readers and not p.closing]
    if reading or not subscription.is_first_notice():
        return
    topic = subscription.pattern
    ctx.notify(
        subscription.client,
        events.SubscriptionEnded(
            subscription_id=subscription.id,
            pattern=topic,
            code=Closed.code,
            reason=f"topic {topic}: it was deleted: subscribe again once it is there",
        ),
    )
