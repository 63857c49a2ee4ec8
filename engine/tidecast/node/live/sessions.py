"""Sessions of other nodes: events of the agents, SETUP handshake, incarnations, time-outs.

Called by the conductor with the node's lock held.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Protocol

from tidecast import events
from tidecast.agents import events as agent_events
from tidecast.agents.live import images as image_table
from tidecast.config.topology import TopicConfig, derive_topic_id, matches
from tidecast.errors import Conflict, SharedMemoryError
from tidecast.layout import packet as wire
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.node.context import NodeContext
from tidecast.node.live import agent_tables
from tidecast.node.live.images import Images, report_evicted
from tidecast.node.live.peers import Peers
from tidecast.node.live.publications import Publications
from tidecast.node.live.setup import Setup, decode_setup
from tidecast.node.live.transports import TransportRuntime
from tidecast.node.state import ARCHIVER_SUBSCRIPTION, Image, Subscription


class QueueOwner(Protocol):
    """The owner's side of durable topics: the methods that the SETUP handshake needs."""

    def keeps(self, config: TopicConfig) -> bool:
        """Whether this node keeps the topic's queues."""

    def on_setup(self, runtime: TransportRuntime, setup: Setup, config: TopicConfig) -> bool:
        """A SETUP of a producer's session. True: the session has an image now."""

    def evicted(self, session: int) -> None:
        """The archiver was evicted from an image."""


def take_setups(runtime: TransportRuntime, rows: list[list[int]]) -> list[Setup]:
    """The SETUPs of which ``rows`` tell. In the agent's thread: then it has room for others.

    The conductor is behind by then: packets that it read later could be of another session.
    """
    setups = []
    for kind, _, b, c, d, e, *_ in rows:
        if kind == agent_events.E_SETUP:
            setup = decode_setup(bytes(runtime.rx_state.setups[b, :c]), (d, e))
            setups.append(replace(setup, received_ns=runtime.heard_ns(setup.source)))
    if setups:
        runtime.rx_state.misc[image_table.M_SETUPS] = 0
    return setups


def _want_setup(image: Image, now_ns: int) -> None:
    """Let the receiver ask for a SETUP for the conductor. In the receiver's thread."""
    image.runtime.rx_state.images[image.slot]["want_setup_ns"] = max(now_ns, 1)


RECEIVER_DROPPED = ("silent", "stuck", "removed")
"""Reasons of `ReceiverTimeout`, by the number that the sender gives."""


class Seals(Protocol):
    """Reports of packets at sealed transports."""

    def forgery(
        self, runtime: TransportRuntime, source: int, words: tuple[int, int], cause: int
    ) -> None:
        """An agent refused a packet that is not authentic."""

    def not_learned(
        self,
        runtime: TransportRuntime,
        source: int,
        words: tuple[int, int],
        epoch: int,
        outcome: int,
    ) -> None:
        """The sender of a packet was not accepted."""


class Sessions:
    """See module."""

    def __init__(
        self,
        ctx: NodeContext,
        publications: Publications,
        images: Images,
        peers: Peers,
        owner: QueueOwner,
        seals: Seals,
    ) -> None:
        self._ctx, self._publications, self._images, self._seals = ctx, publications, images, seals
        self._peers, self._owner, self._known = peers, owner, images.known

    def handle(self, runtime: TransportRuntime, rows: list[list[int]], setups: list[Setup]) -> None:
        """Handle the events of an agent."""
        for row in rows:
            self._ctx.conductor.attempt(self._handle_row, runtime, *row[:6])
        self._handle_setups(runtime, setups)

    def _handle_row(
        self, runtime: TransportRuntime, kind: int, a: int, b: int, c: int, d: int, e: int
    ) -> None:
        if kind == agent_events.E_SESSION_ENDED:
            self._end_images(runtime, a, "closed")
        elif kind == agent_events.E_PEER_TIMEOUT:
            self._peer_timeout(runtime, a)
        elif kind == agent_events.E_PUBLICATION_DRAINED:
            self._drained(a)
        elif kind in (agent_events.E_RECEIVER_JOINED, agent_events.E_RECEIVER_TIMEOUT):
            self._receiver(kind, a, b, c, d)
        elif kind == agent_events.E_EVICTED:
            self._evicted(a, b, c)
        elif kind == agent_events.E_FOREIGN:
            self._peers.foreign(runtime, a, b, (c, d))
        elif kind == agent_events.E_FORGERY:
            self._seals.forgery(runtime, a, (b, c), d)
        elif kind == agent_events.E_KEY:
            self._seals.not_learned(runtime, a, (b, c), d, e)
        elif kind == agent_events.E_RECEIVER_NAME:
            self._peers.name_seen(self._ctx.names.get(a, ""))

    def _handle_setups(self, runtime: TransportRuntime, setups: list[Setup]) -> None:
        known = self._known.of(runtime)
        for setup in setups:
            known.image_changed(setup.session)  # it waits in the receiver's table
            try:
                self._on_setup(runtime, setup)
            except Conflict as problem:
                self._ctx.note(
                    rec.ALERT, rec.Code.TOPIC_CONFLICT, setup.session, setup.topic_id, setup.source
                )
                self._peers.report(
                    events.TopicConflict(topic=setup.topic, node=setup.node, detail=str(problem))
                )
                known.drop(setup.session, image_table.SESSION_IGNORED, setup.topic)
            except SharedMemoryError as problem:
                self._images.refused.report(runtime, setup, 0, problem)
                self._images.refused.later(runtime, setup)
            except Exception as problem:  # noqa: BLE001  (reported)
                self._images.refused.later(runtime, setup)
                self._ctx.conductor.failed(problem)
            else:
                self._images.refused.has(runtime, setup.session)
        known.write()

    def try_refused(self, now_s: float) -> None:
        """Let sessions without room try again, at their next SETUP.

        A session that has an image and lacks another sends no SETUP: its last SETUP is used.
        """
        for runtime, setup in self._images.refused.take_due(now_s):
            images = self._ctx.living_images(runtime, setup.session)
            if any(image.runtime is runtime for image in images):
                self._handle_setups(runtime, [setup])
            elif self._known.of(runtime).has(setup.session):
                self._known.forget(runtime, setup.session)

    def _drained(self, session: int) -> None:
        for publication in self._ctx.pubs.of("session", session):
            publication.set_drained(True)
            self._publications.check(publication)

    def _receiver(self, kind: int, session: int, receiver: int, peer: int, last: int) -> None:
        for publication in self._ctx.pubs.of("session", session):
            topic, name = publication.topic.name, self._ctx.names.get(peer, "")
            if kind == agent_events.E_RECEIVER_JOINED:
                publication.set_drained(False)  # this receiver has yet to learn of the end
                event: events.Event = events.ReceiverJoined(
                    topic=topic, session=session, receiver=receiver, node_id=peer, node=name
                )
            else:
                event = events.ReceiverTimeout(
                    topic=topic,
                    session=session,
                    receiver=receiver,
                    node_id=peer,
                    node=name,
                    reason=RECEIVER_DROPPED[last],
                )
            self._ctx.notify(publication.client, event)

    def _evicted(self, session: int, subscription_id: int, behind: int) -> None:
        if subscription_id == ARCHIVER_SUBSCRIPTION:
            self._owner.evicted(session)
        else:
            report_evicted(self._ctx, session, subscription_id, behind)

    def _on_setup(self, runtime: TransportRuntime, setup: Setup) -> None:
        sessions, known = self._known.of(runtime), self._peers.by_id.get(setup.source)
        if not self._peers.accept(runtime, setup):
            if not self._ctx.living_images(runtime, setup.session):
                self._images.refused.later(runtime, setup, image_table.SESSION_ENDED)
            return
        if known is not None and known.incarnation != setup.incarnation:
            self._supersede_older(setup)
        if not self._take_over(runtime, setup):
            return
        topic = self._topic_of(runtime, setup)
        readers = self._ctx.subscriptions_to(topic.name) if topic is not None else []
        sessions.forget(setup.session)
        kept = topic is not None and self._owner.keeps(topic)
        mine = kept and setup.producer is not None
        if mine and topic is not None and not self._owner.on_setup(runtime, setup, topic):
            return  # it is not opened yet, or refused: its next SETUP is looked at again
        if topic is None or not readers:
            if not kept:  # else its node keeps the topic too, until it learns that it does not
                sessions.drop(setup.session, image_table.SESSION_IGNORED, setup.topic)
            return
        served: set[int] = set()
        for image in self._ctx.living_images(runtime, setup.session):
            served |= image.readers.keys()
        for mode in ("latest", "earliest"):
            group = [s for s in readers if s.options.start == mode and s.id not in served]
            late = [s for s in group if mode == "latest" and s.created_ns > setup.received_ns]
            if len(group) > len(late):
                group = [s for s in group if s not in late]
                self._make_image(runtime, setup, topic, mode, group)
            if late:
                self._ask_again(runtime, setup)

    def _ask_again(self, runtime: TransportRuntime, setup: Setup) -> None:
        """A SETUP came before a subscription: the next SETUP has the live edge of now.

        Without an image the receiver asks for it at the session's next packet.
        """
        for image in self._ctx.living_images(runtime, setup.session)[:1]:
            image.runtime.on_receiver(partial(_want_setup, image, self._ctx.clock_ns()))

    def _supersede_older(self, setup: Setup) -> None:
        """A node runs in another incarnation now: its sessions have ended, or continue there."""
        for image in self._ctx.images_by_id.of("node", setup.source):
            if image.incarnation == setup.incarnation:
                continue
            if image.mode == "durable":
                self._images.end(image, "restarted")
            elif not image.superseded_ns:  # its publisher may continue it
                image.supersede(self._ctx.clock_ns())

    def _take_over(self, runtime: TransportRuntime, setup: Setup) -> bool:
        """A session that has images: it continues at its node's next engine, on this lane or not.

        False: another lane receives it from another address, and this is a stranger's SETUP.
        """
        images = self._ctx.living_images(runtime, setup.session)
        for image in images:
            if image.runtime is not runtime and image.incarnation == setup.incarnation:
                agent_tables.count_foreign(self._ctx, image)
                self._peers.foreign(runtime, setup.session, setup.source, setup.address_words)
                self._images.refused.later(runtime, setup, image_table.SESSION_ENDED)
                return False
        for image in images:
            if image.incarnation == setup.incarnation:
                continue
            if image.runtime is not runtime:
                self._images.move(image, runtime)
            self._continue_at(image, setup)
        return True

    def _continue_at(self, image: Image, setup: Setup) -> None:
        """A session continues at its node's next engine: packets from that engine are valid now."""
        record = image.runtime.rx_state.images[image.slot]

        def put() -> None:
            record["incarnation"], record["heard_ns"] = setup.incarnation, self._ctx.clock_ns()
            record["address_a"], record["address_b"] = setup.address_words
            record["status_ns"] = 0  # it does not know of us yet

        image.runtime.on_receiver(put)
        image.continue_at(setup.incarnation)

    def _topic_of(self, runtime: TransportRuntime, setup: Setup) -> TopicConfig | None:
        """The local topic a session belongs to; None when no subscription here could read it.

        By its name: ids of 16 bits, made from names, collide.
        """
        mine = self._ctx.topic_by_name.get(setup.topic)
        if mine is not None:
            return mine if mine.transport == runtime.config.name else None
        if not any(matches(s.pattern, setup.topic) for s in self._ctx.subs.of("pattern", "")):
            return None
        topic = TopicConfig(
            name=setup.topic,
            id=None if derive_topic_id(setup.topic) == setup.topic_id else setup.topic_id,
            transport=runtime.config.name,
            reliability=lay.RELIABILITY_NAMES[setup.reliability],  # type: ignore[arg-type]
            flow=lay.FLOW_NAMES[setup.flow],  # type: ignore[arg-type]
        )
        self._ctx.topic_by_name[topic.name] = topic
        return topic

    def _join_seq(self, setup: Setup, subscription: Subscription) -> int:
        """Where a subscription starts in a new image, see docs/PROTOCOL.md "Joining"."""
        kept = self._ctx.resume_positions.pop(setup.session, subscription.id)
        if kept is not None:
            return min(max(kept, 0), setup.next_seq)
        if subscription.options.start == "earliest":
            return setup.oldest
        if setup.age_ns < setup.received_ns - subscription.created_ns:
            return 0  # it was here before the publication: all of it is its own
        return setup.next_seq

    def _make_image(
        self,
        runtime: TransportRuntime,
        setup: Setup,
        topic: TopicConfig,
        mode: str,
        readers: list[Subscription],
    ) -> None:
        """Create one image for all its subscriptions; each begins at its own position."""
        joins = {s.id: self._join_seq(setup, s) for s in readers}
        join = min(joins.values())
        wanted = max((s.options.receive_bytes or topic.receive_bytes) for s in readers)
        if setup.channel == wire.CHANNEL_LARGE:
            wanted = max(wanted, topic.large_history_bytes // 4)
        slots = lay.slots_for(wanted, setup.packet_bytes)
        try:
            image = self._images.place(
                runtime,
                setup,
                topic,
                mode,
                join,
                slots,
                lambda _: {"begins": join if join == setup.oldest and mode == "earliest" else -1},
            )
        except BaseException:
            for subscription_id, place in joins.items():
                self._ctx.resume_positions.keep(setup.session, subscription_id, place)
            raise
        for subscription in readers:
            self._images.connect(image, subscription, joins[subscription.id])

    def _end_images(self, runtime: TransportRuntime, session: int, reason: str) -> None:
        for image in self._ctx.living_images(runtime, session):
            self._images.end(image, reason)

    def _peer_timeout(self, runtime: TransportRuntime, session: int) -> None:
        """A peer was silent for too long: end its images; they resume if it comes back."""
        for image in self._ctx.living_images(runtime, session):
            heard_ns = int(runtime.rx_state.images[image.slot]["heard_ns"])
            clients = {self._ctx.subs[s].client for s in image.readers if s in self._ctx.subs}
            for client in clients if heard_ns != image.silent_ns else ():
                self._ctx.notify(
                    client,
                    events.PeerTimeout(
                        node=image.node_name, topic=image.topic.name, session=session
                    ),
                )
            if not image.silent_ns and _may_be_repaired(image):
                _wait_on(image)
            else:
                self._images.end(image, "timeout")
            image.report_silence(heard_ns)
        if not self._ctx.living_images(runtime, session):
            self._known.forget(runtime, session)


def _may_be_repaired(image: Image) -> bool:
    """Whether packets are missing that the publisher may still send: its end was not reported."""
    record = image.runtime.rx_state.images[image.slot]
    return bool(record["gaps"] and record["end_seq"] < 0 and image.mode != "durable")


def _wait_on(image: Image) -> None:
    """Wait for the same time again: otherwise packets behind the missing packets would be lost."""
    record = image.runtime.rx_state.images[image.slot]

    def put() -> None:
        record["timeout_ns"] *= 2
        record["silent"] = 0

    image.runtime.on_receiver(put)
