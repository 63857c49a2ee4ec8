"""Durable topics of this node whose publishers are on other nodes.

A SETUP opens the session (the answer is an ACK with epoch and first sequence); nothing is appended
before the next SETUP of the publisher's node confirms both, else a session whose answer was lost
could begin twice. From then on an image is read as any ring is. A publisher that returns after a
crash, a partition or a time-out joins at the acked place in its SETUP; messages that are in the log
already are dropped as duplicates. Called with the node's lock held.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

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
from tidecast.node.context import NodeContext
from tidecast.node.durable import archiver_tables
from tidecast.node.durable.session_order import (
    ASKED_S,
    Claim,
    Grants,
    Opened,
    PendingSessions,
    claim_of_setup,
)
from tidecast.node.durable.sources import SourceRegistry
from tidecast.node.durable.topic import DurableTopic
from tidecast.node.live.agent_tables import has_tails
from tidecast.node.live.images import Images
from tidecast.node.live.setup import ProducerBlock, Setup
from tidecast.node.live.transports import TransportRuntime
from tidecast.node.state import Image
from tidecast.protocol.dedup import Session
from tidecast.protocol.state_table import StateTable

NO_ROOM = errno.ENOMEM
"""State in the ACK of a session that waits for memory."""
WAITING_MAX = 4096
SILENT_S = 1.0
"""A publication that has ended, is durable and silent for so long is gone."""
GONE_S = 2.0
OPENED_S, OPENED_MAX = 60.0, 4096
"""A granted session that has not begun is forgotten after this time."""


def _claim(ctx: NodeContext, setup: Setup, block: ProducerBlock, topic: str) -> Claim:
    return claim_of_setup(setup, block, topic, stamp_ns=ctx.stamp_ns(), clock_ns=ctx.clock_ns())


class SessionState(Enum):
    """State of a session of a publisher on another node, at the owner of its topic."""

    UNKNOWN, WAITING, GRANTED, READ = range(4)


class SessionEvent(Enum):
    """An event that changes a session's state; the docs show the text."""

    ASKED = "a SETUP without an epoch comes"
    OVERTAKEN = "a newer session of its producer has begun"
    GAP = "its first sequence is not the next one"
    GRANTED = "no older session has to end first: its epoch is on disk"
    SILENT = "no SETUP came for 3 s, or the topic is gone"
    UNUSED = "it was not begun for 60 s, or the queues left"
    OLDER = "a SETUP with an epoch comes, and a newer one is known"
    NO_ROOM = "a SETUP with its epoch comes, and there is no memory for its ring"
    CONFIRMED = "a SETUP with its epoch comes"
    RESUMED = "a SETUP comes after a time-out, or after a restart of its node"
    DRAINED = "its publisher is gone, and all that came is durable"
    EVICTED = "the archiver was left behind by its ring"


@dataclass(slots=True)
class RequestedSession:
    """A SETUP of a session that waits to begin."""

    runtime: TransportRuntime
    setup: Setup
    block: ProducerBlock
    claim: Claim
    since_s: float
    heard_s: float


@dataclass(slots=True)
class Step:
    """A session, and the object of an event: a SETUP, a grant, the image that is read."""

    topic: str
    session: int
    setup: Setup | None = None
    runtime: TransportRuntime | None = None
    granted: Session | None = None
    due_seq: int = 1
    newest: int = 0
    slots: int = 0
    source: archiver_tables.Source | None = None

    @property
    def asked(self) -> tuple[TransportRuntime, Setup, ProducerBlock]:
        """The SETUP: its transport, the packet, the producer's block."""
        assert self.runtime is not None
        assert self.setup is not None
        assert self.setup.producer is not None
        return self.runtime, self.setup, self.setup.producer


class Openings:
    """Sessions that publishers on other nodes ask for: SETUPs with epoch 0, and the answers.

    A session is granted when it may begin (see `session_order`).
    """

    def __init__(self, registry: SourceRegistry, pending: PendingSessions, grants: Grants) -> None:
        self._registry, self._pending, self._grants = registry, pending, grants
        self._ctx = registry.ctx
        self.asked: dict[int, RequestedSession] = {}
        self._overtaken: dict[int, None] = {}

    def wait(
        self, runtime: TransportRuntime, setup: Setup, block: ProducerBlock, topic: str
    ) -> None:
        """A session waits until it may begin; its publisher's node repeats the SETUP."""
        now_s = self._ctx.now_s()
        asked = self.asked.get(setup.session)
        if asked is None:
            claim = _claim(self._ctx, setup, block, topic)
            asked = self.asked[setup.session] = RequestedSession(
                runtime, setup, block, claim, now_s, now_s
            )
        if setup.left and not asked.claim.left:
            asked.claim = replace(asked.claim, left=True)  # since
        self._pending.ask(asked.claim)
        asked.heard_s = now_s

    def give_up(self, session: int) -> RequestedSession | None:
        """A session no longer waits."""
        asked = self.asked.pop(session, None)
        if asked is not None:
            self._pending.give_up(asked.claim)
        return asked

    def outcome(
        self, asked: RequestedSession, topic: DurableTopic
    ) -> tuple[SessionEvent, Step] | None:
        """Grant epoch and first sequence to a session that waits, or refuse it; None: not yet."""
        block, claim = asked.block, asked.claim
        step = Step(topic.config.name, claim.session, asked.setup, asked.runtime)
        if self._grants.overtaken(topic, claim):
            return SessionEvent.OVERTAKEN, step
        if not self._grants.heard_since(claim, asked.heard_s):
            return None
        if not self._grants.ready(topic, claim, self._ctx.now_s() - asked.since_s):
            return None
        try:
            self._grants.fence(topic, block.id, "")
            step.granted = topic.grant(
                block.id, block.first_seq or None, self._ctx.wall_ns(), claim.of_line, claim.born_ns
            )
            self._grants.note_left(claim, step.granted.epoch)
        except (Fenced, StorageError):
            return None  # the archiver finds out and reports it; the publisher asks again
        except SequenceGap as gap:
            step.due_seq = gap.expected
            return SessionEvent.GAP, step
        except Conflict as problem:
            self._registry.notify(
                events.TopicConflict(
                    topic=topic.config.name, node=asked.setup.node, detail=str(problem)
                )
            )
            return None
        return SessionEvent.GRANTED, step

    def report_overtaken(self, topic: DurableTopic, claim: Claim) -> None:
        """Report once that a session was overtaken, though its SETUPs may continue to come."""
        if claim.session in self._overtaken:
            return
        while len(self._overtaken) >= OPENED_MAX:
            del self._overtaken[next(iter(self._overtaken))]
        self._overtaken[claim.session] = None
        self._grants.report_fenced(topic, claim.producer, claim.session, 0)

    def answer(
        self,
        runtime: TransportRuntime,
        setup: Setup,
        block: ProducerBlock,
        topic: DurableTopic,
        epoch: int,
        first_seq: int,
        state: int,
    ) -> None:
        """Answer a SETUP that gets no image."""
        answer = np.array(
            [
                setup.channel,
                setup.session,
                setup.topic_id,
                block.id,
                epoch,
                first_seq,
                block.packet,
                block.offset,
                block.count,
                state,
                topic.owner,
                setup.source,
            ],
            dtype=np.int64,
        )
        a, b = setup.address_words
        words = runtime.inline_arguments[1]
        runtime.on_receiver(lambda: answer_setup(words, answer, a, b))

    def begin(self, topic: DurableTopic, setup: Setup, block: ProducerBlock) -> Session:
        """Begin the session that a publisher's node resumes."""
        opened = self._pending.opened.pop(setup.session, None)
        if opened is not None and opened.session.epoch == block.epoch:
            return replace(opened.session, first_seq=block.first_seq)
        now_ns = self._ctx.wall_ns()
        claim = _claim(self._ctx, setup, block, topic.config.name)
        return topic.producers.resume(
            block.id, block.epoch, block.first_seq, now_ns, claim.of_line, claim.born_ns
        )

    def newest(self, topic: DurableTopic, producer: int, session: int, epoch: int) -> int:
        """The newest epoch of a producer, for a session that has ``epoch``.

        An equal epoch of another live session is newer: it was granted twice by accident.
        """
        known = topic.producers.known.get(producer)
        if known is None:
            return 0
        sources = self._registry.sources.values()
        others = [s.epoch for s in sources if s.producer is known and s.session != session]
        others += [one.session.epoch for one in self._pending.granted(known, session)]
        newer = max(others, default=0)
        return max(known.epoch, newer + (newer == epoch))

    def forget(self, session: int) -> None:
        """A granted session never begins."""
        opened = self._pending.opened.pop(session)
        topic = self._registry.topics.get(opened.topic)
        if topic is not None:
            topic.producers.close(opened.session.producer, self._ctx.wall_ns())


class PublisherRings:
    """Limits the shared memory for publishers on other nodes.

    A ring as large as the publisher's own history never holds it back. The publisher chooses that
    size, so each ring is capped, and all rings together. A publisher without room keeps its
    messages, is notified, and gets its ring once there is room.
    """

    def __init__(self, registry: SourceRegistry) -> None:
        self._registry, self._ctx = registry, registry.ctx
        self._waiting: dict[int, None] = {}

    def slots_for(self, setup: Setup, config: TopicConfig) -> int:
        """Slots of a session's ring; 0: there is no room for any."""
        settings, packet = self._ctx.topology.node, setup.packet_bytes
        large = setup.channel == CHANNEL_LARGE
        own = max(config.receive_bytes, config.large_history_bytes if large else 0)
        least = lay.slots_for(min(own, settings.publisher_ring_bytes_max), packet)
        most = max(least, lay.slots_for(settings.publisher_ring_bytes_max, packet))
        free = settings.publisher_rings_bytes_max - self.bytes
        tail = has_tails(self._ctx)
        for slots in (min(max(setup.slots, least), most), least):
            if lay.ring_bytes(slots, packet, tail=tail) <= free:
                self._waiting.pop(setup.session, None)
                return slots
        self._refuse(setup, config, lay.ring_bytes(least, packet, tail=tail))
        return 0

    @property
    def bytes(self) -> int:
        """Bytes of all these rings now."""
        images = self._ctx.images_by_id.values()
        return sum(image.mapped.array.size for image in images if image.mode == "durable")

    def _refuse(self, setup: Setup, config: TopicConfig, needed: int) -> None:
        """Once a session, though its SETUPs continue to come."""
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
                topic=config.name,
                node=setup.node,
                session=setup.session,
                bytes=needed,
                detail=f"rings of publishers on other nodes have {self.bytes} bytes of "
                f"{most} here: raise node.publisher_rings_bytes_max, or lower receive_bytes of "
                "the topic; the publisher waits until there is room",
            )
        )


class OwnerSide:
    """See module."""

    def __init__(
        self, registry: SourceRegistry, pending: PendingSessions, grants: Grants, images: Images
    ) -> None:
        self._registry, self._images, self._ctx = registry, images, registry.ctx
        self._openings, self._pending = Openings(registry, pending, grants), pending
        self._rings = PublisherRings(registry)
        registry.on_closed.append(self._forget_granted)

    # --- events -----------------------------------------------------------------------------------

    def keeps(self, config: TopicConfig) -> bool:
        """Are the topic's queues kept by this node?"""
        return self._registry.keeps(config)

    def on_setup(self, runtime: TransportRuntime, setup: Setup, config: TopicConfig) -> bool:
        """A SETUP of a producer's session. True: the session has an image now."""
        topic, name = self._registry.topics.get(config.name), config.name
        block = setup.producer
        if topic is None or block is None or not self._sound(setup, block):
            return False
        step = Step(name, setup.session, setup, runtime)
        for source in self._sources(name, setup.session):
            image = self._ctx.images_by_id[source.image]
            joined = not image.gone and image.incarnation == setup.incarnation
            if block.epoch and not joined:
                self._on(SessionEvent.RESUMED, Step(name, setup.session, source=source))
        event = None
        if block.epoch == 0:
            event = SessionEvent.ASKED
        elif self.state_of(name, setup.session) is not SessionState.READ:
            event = self._event_of(step, topic, block.epoch)
        if event is not None:
            self._on(event, step)
        state = self.state_of(name, setup.session)
        waits = state in (SessionState.WAITING, SessionState.GRANTED)
        held = max(0, setup.published - block.count) if setup.published >= 0 else None
        waits |= event is SessionEvent.NO_ROOM
        self._registry.note_announced(setup.session, name, held if waits else None)
        return state is SessionState.READ

    def _event_of(self, step: Step, topic: DurableTopic, epoch: int) -> SessionEvent:
        """The event of a SETUP with an epoch."""
        _, setup, block = step.asked
        step.newest = self._openings.newest(topic, block.id, setup.session, epoch)
        if step.newest > epoch:
            return SessionEvent.OLDER
        step.slots = self._rings.slots_for(setup, topic.config)
        return SessionEvent.CONFIRMED if step.slots else SessionEvent.NO_ROOM

    def look(self, now_s: float) -> None:
        """Grant the sessions that need not wait any longer."""
        for session, asked in list(self._openings.asked.items()):
            name = asked.claim.topic
            if name not in self._registry.topics or now_s - asked.heard_s > ASKED_S:
                self._on(SessionEvent.SILENT, Step(name, session))
            elif session in self._openings.asked:
                self._advance(asked)

    def _advance(self, asked: RequestedSession) -> None:
        found = self._openings.outcome(asked, self._registry.topics[asked.claim.topic])
        if found is not None:
            self._on(*found)

    def tick(self, now_s: float) -> None:
        """Remove images that have ended, and sessions that were granted and never begun."""
        for session, opened in list(self._pending.opened.items()):
            if now_s - opened.at_s > OPENED_S:
                self._on(SessionEvent.UNUSED, Step(opened.topic, session))
        for source in [s for s in self._registry.sources.values() if s.image]:
            if self._over(source, self._ctx.images_by_id[source.image], now_s):
                self._on(SessionEvent.DRAINED, Step(source.topic, source.session, source=source))

    def _forget_granted(self, name: str) -> None:
        """The topic is closed: when it is here again, its producers are others, with newer marks.

        A session that was granted and has not begun continues by its epoch then, as at any owner.
        """
        for session, opened in list(self._pending.opened.items()):
            if opened.topic == name:
                self._on(SessionEvent.UNUSED, Step(name, session))

    def evicted(self, session: int) -> None:
        """An image overtook the archiver: the next packet that it needs never comes there."""
        for source in [s for s in self._registry.sources.values() if s.image]:
            if source.session == session:
                self.rejoin(source)

    def rejoin(self, source: archiver_tables.Source) -> None:
        """Release an image; its publisher's next SETUP has the acked place."""
        self._on(SessionEvent.EVICTED, Step(source.topic, source.session, source=source))

    # --- states -----------------------------------------------------------------------------------

    def state_of(self, topic: str, session: int) -> SessionState:
        """The state of a session: each has a table of its own."""
        if self._sources(topic, session):
            return SessionState.READ
        if session in self._pending.opened:
            return SessionState.GRANTED
        return SessionState.WAITING if session in self._openings.asked else SessionState.UNKNOWN

    def _on(self, event: SessionEvent, step: Step) -> None:
        """Run the actions of `TRANSITIONS` for an event in the session's state."""
        after = TRANSITIONS.after(self.state_of(step.topic, step.session), event)
        if after is not None:
            _, action = after
            action(self, step)

    def keep(self, step: Step) -> None:
        """Ignore a SETUP that was sent before the session was joined, and comes late."""

    def wait(self, step: Step) -> None:
        """Let the session wait, or grant it at once if it may begin."""
        runtime, setup, block = step.asked
        asked = self._openings.asked
        while len(asked) >= OPENED_MAX and step.session not in asked:
            oldest = next(iter(asked))
            self._on(SessionEvent.SILENT, Step(asked[oldest].claim.topic, oldest))
        self._openings.wait(runtime, setup, block, step.topic)
        self._advance(asked[step.session])

    def grant(self, step: Step) -> None:
        """Grant the session: its publisher may begin once it knows epoch and first sequence."""
        opened = self._pending.opened
        while len(opened) >= OPENED_MAX:
            oldest = next(iter(opened))
            self._on(SessionEvent.UNUSED, Step(opened[oldest].topic, oldest))
        asked = self._openings.give_up(step.session)
        assert asked is not None
        assert step.granted is not None
        opened[step.session] = Opened(step.topic, step.granted, self._ctx.now_s(), asked.claim.left)
        self.repeat(step)

    def repeat(self, step: Step) -> None:
        """Send the grant again; the earlier answer may be lost."""
        granted = self._pending.opened[step.session].session
        self._answer(step, granted.epoch, granted.first_seq, lay.ACK_OK)

    def refuse(self, step: Step) -> None:
        """Refuse the session: its first sequence leaves a gap."""
        self._end_wait(step, step.due_seq, lay.ACK_REFUSED)

    def fence(self, step: Step) -> None:
        """The session may never begin."""
        asked = self._openings.asked[step.session]
        self._end_wait(step, 1, lay.ACK_FENCED)
        self._openings.report_overtaken(self._registry.topics[step.topic], asked.claim)

    def _end_wait(self, step: Step, first_seq: int, state: int) -> None:
        self._openings.give_up(step.session)
        known = self._registry.topics[step.topic].producers.known[step.asked[2].id]
        self._answer(step, max(known.epoch, 1), first_seq, state)

    def give_up(self, step: Step) -> None:
        """The publisher no longer asks for the session."""
        self._openings.give_up(step.session)

    def forget(self, step: Step) -> None:
        """The session was granted, and never begins."""
        self._openings.forget(step.session)

    def answer_older(self, step: Step) -> None:
        """Answer that a newer session has fenced it."""
        self._answer(step, step.newest, 1, lay.ACK_FENCED)

    def answer_no_room(self, step: Step) -> None:
        """Answer that there is no room; its SETUP is sent again until there is room."""
        block = step.asked[2]
        self._answer(step, block.epoch, block.first_seq, NO_ROOM)

    def _answer(self, step: Step, epoch: int, first_seq: int, state: int) -> None:
        topic = self._registry.topics[step.topic]
        self._openings.answer(*step.asked, topic, epoch, first_seq, state)

    def join(self, step: Step) -> None:
        """Receive it from where it is acked, and let the archiver read it."""
        runtime, setup, block = step.asked
        topic = self._registry.topics[step.topic]
        self._openings.give_up(step.session)
        session = self._openings.begin(topic, setup, block)
        self._join(runtime, setup, block, topic, session, step.slots)

    def finish(self, step: Step) -> None:
        """Read the rest of the image, then release it; unacked messages come again."""
        source = step.source
        assert source is not None
        topic = self._registry.topics[source.topic]
        self._registry.drain(topic, [source])
        self._registry.remove(source.slot, topic, lay.ACK_ENDED)
        self._images.discard(self._ctx.images_by_id[source.image])

    def drop(self, step: Step) -> None:
        """Release the image without reading it."""
        source = step.source
        assert source is not None
        topic = self._registry.topics[source.topic]
        self._registry.remove(source.slot, topic, lay.ACK_ENDED)
        self._registry.drop(source, lay.ACK_ENDED)

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
                    topic=setup.topic,
                    node=setup.node,
                    detail=f"its history begins at packet {setup.oldest}, it is acked up to "
                    f"{block.packet}: the packets between are not durable",
                )
            )
        return sound

    def _join(
        self,
        runtime: TransportRuntime,
        setup: Setup,
        block: ProducerBlock,
        topic: DurableTopic,
        session: Session,
        slots: int,
    ) -> None:
        """Receive a session from where it is acked, and let the archiver read it."""

        def prepare(mapped: MappedFile) -> dict[str, int]:
            archiver_tables.begin_ring(
                mapped.array,
                producer=block.id,
                epoch=block.epoch,
                first_seq=block.first_seq,
                doorbell=0,
                record=(block.packet, block.offset, block.count),
            )
            return {
                "durable": 1,
                "producer": block.id,
                "epoch": block.epoch,
                "acked": -1,
                "first_seq": block.first_seq,
                "owner": topic.owner,
            }

        config = topic.config
        image = self._images.place(runtime, setup, config, "durable", block.packet, slots, prepare)
        try:
            mapped, of_engine = image.mapped, setup.of_engine
            slot = self._registry.add(topic, mapped, session, 0, of_engine=of_engine)
        except SharedMemoryError:
            self._images.discard(image)
            topic.producers.close(session.producer, self._ctx.wall_ns())
            raise
        self._registry.sources[slot].receive(image.id, left=setup.left)

    def _sources(self, topic: str, session: int) -> list[archiver_tables.Source]:
        return [
            s
            for s in self._registry.sources.values()
            if s.image and s.session == session and s.topic == topic
        ]

    def _over(self, source: archiver_tables.Source, image: Image, now_s: float) -> bool:
        record = self._registry.runtime.state.sources[source.slot]
        if record["d_seq"] != record["seq"] or record["d_at"] != record["at"]:
            return False
        if image.slot >= 0:
            heard_ns = int(image.runtime.rx_state.images[image.slot]["heard_ns"])
            return bool(record["drained_reported"]) and now_s - heard_ns / 1e9 > SILENT_S
        unread = self._registry.unread(source)
        return bool(record["drained_reported"]) or not unread or now_s - image.gone_s > GONE_S


Action = Callable[[OwnerSide, Step], None]
TRANSITIONS: StateTable[SessionState, SessionEvent, Action] = StateTable(
    {
        (SessionState.UNKNOWN, SessionEvent.ASKED): (SessionState.WAITING, OwnerSide.wait),
        (SessionState.WAITING, SessionEvent.ASKED): (SessionState.WAITING, OwnerSide.wait),
        (SessionState.WAITING, SessionEvent.GRANTED): (SessionState.GRANTED, OwnerSide.grant),
        (SessionState.WAITING, SessionEvent.OVERTAKEN): (SessionState.UNKNOWN, OwnerSide.fence),
        (SessionState.WAITING, SessionEvent.GAP): (SessionState.UNKNOWN, OwnerSide.refuse),
        (SessionState.WAITING, SessionEvent.SILENT): (SessionState.UNKNOWN, OwnerSide.give_up),
        (SessionState.WAITING, SessionEvent.CONFIRMED): (SessionState.READ, OwnerSide.join),
        (SessionState.WAITING, SessionEvent.NO_ROOM): (
            SessionState.WAITING,
            OwnerSide.answer_no_room,
        ),
        (SessionState.WAITING, SessionEvent.OLDER): (SessionState.WAITING, OwnerSide.answer_older),
        (SessionState.GRANTED, SessionEvent.ASKED): (SessionState.GRANTED, OwnerSide.repeat),
        (SessionState.GRANTED, SessionEvent.UNUSED): (SessionState.UNKNOWN, OwnerSide.forget),
        (SessionState.GRANTED, SessionEvent.CONFIRMED): (SessionState.READ, OwnerSide.join),
        (SessionState.GRANTED, SessionEvent.NO_ROOM): (
            SessionState.GRANTED,
            OwnerSide.answer_no_room,
        ),
        (SessionState.GRANTED, SessionEvent.OLDER): (SessionState.GRANTED, OwnerSide.answer_older),
        (SessionState.UNKNOWN, SessionEvent.CONFIRMED): (SessionState.READ, OwnerSide.join),
        (SessionState.UNKNOWN, SessionEvent.NO_ROOM): (
            SessionState.UNKNOWN,
            OwnerSide.answer_no_room,
        ),
        (SessionState.UNKNOWN, SessionEvent.OLDER): (SessionState.UNKNOWN, OwnerSide.answer_older),
        (SessionState.READ, SessionEvent.ASKED): (SessionState.READ, OwnerSide.keep),
        (SessionState.READ, SessionEvent.RESUMED): (SessionState.UNKNOWN, OwnerSide.finish),
        (SessionState.READ, SessionEvent.DRAINED): (SessionState.UNKNOWN, OwnerSide.finish),
        (SessionState.READ, SessionEvent.EVICTED): (SessionState.UNKNOWN, OwnerSide.drop),
    }
)
"""A session that the owner reads or has granted also ends when a newer one fences it (see
`Grants.fence`), and when another node gets the topic. The diagram in docs/DURABLE.md is made of it.
"""
