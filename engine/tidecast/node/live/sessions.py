"""Sessions of other nodes: SETUP handshake, incarnations, images, time-outs, the end.

Called by the conductor with the node's lock held.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from tidecast import events as ev
from tidecast.agents import events as ae
from tidecast.agents.live import images as im
from tidecast.buffers.ring_file import add_consumer
from tidecast.config.topology import TopicConfig, derive_topic_id, matches
from tidecast.errors import Conflict, SharedMemoryError
from tidecast.layout import packet as wire
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.layout.counters import Counter
from tidecast.native.packing import pack_into, unpack_from
from tidecast.node.durable.archiver_tables import ARCHIVER_SUBSCRIPTION
from tidecast.node.live import agent_tables
from tidecast.node.live.image_creation import keep_place, place_image
from tidecast.node.live.peers import accept_peer, foreign, report
from tidecast.node.live.setup import Setup, decode_setup
from tidecast.node.live.transports import TransportRuntime
from tidecast.node.state import Image, Publication, Subscription

if TYPE_CHECKING:
    from tidecast.node.node import Node

GONE_PATIENCE_S = 30.0
RESTART_GRACE_NS = 5_000_000_000
"""A publisher continues at its node's next engine within this time, or its images end."""
GONE_REASONS = ("", "closed", "timeout", "restarted", "failed")
"""Why an image was removed, as the recorder counts: nobody reads it, its publisher ..., or our
receiver failed."""


# --- agents' events -------------------------------------------------------------------------------


def take_setups(runtime: TransportRuntime, rows: list[list[int]]) -> list[Setup]:
    """The SETUPs of which ``rows`` tell. In the agent's thread: then it has room for others.

    The conductor is behind by then: what it read later could be another one's, that came since.
    """
    setups = []
    for kind, _, b, c, d, e, *_ in rows:
        if kind == ae.E_SETUP:
            setups.append(decode_setup(bytes(runtime.rx_state.setups[b, :c]), (d, e)))
    if setups:
        runtime.rx_state.misc[im.M_SETUPS] = 0
    return setups


def handle(
    node: Node, runtime: TransportRuntime, rows: list[list[int]], setups: list[Setup]
) -> None:
    """Take what an agent told."""
    for row in rows:
        node.conductor.attempt(_handle_row, node, runtime, *row[:5])
    _handle_setups(node, runtime, setups)


def _handle_row(
    node: Node, runtime: TransportRuntime, kind: int, a: int, b: int, c: int, d: int
) -> None:
    if kind == ae.E_SESSION_ENDED:
        _end_images(node, runtime, a, "closed")
    elif kind == ae.E_PEER_TIMEOUT:
        _peer_timeout(node, runtime, a)
    elif kind == ae.E_PUBLICATION_DRAINED:
        _drained(node, a)
    elif kind in (ae.E_RECEIVER_JOINED, ae.E_RECEIVER_TIMEOUT):
        _receiver(node, kind, a, b, c, d)
    elif kind == ae.E_EVICTED:
        _evicted(node, a, b, c)
    elif kind == ae.E_FOREIGN:
        foreign(node, runtime, a, b, (c, d))
    elif kind == ae.E_RECEIVER_NAME:
        node.name_seen(node.names.get(a, ""))


def _handle_setups(node: Node, runtime: TransportRuntime, setups: list[Setup]) -> None:
    known = node.known_sessions(runtime)
    for setup in setups:
        known.image_changed(setup.session)  # it waits in the receiver's table
        try:
            _on_setup(node, runtime, setup)
        except Conflict as problem:
            node.note(
                rec.ALERT, rec.Code.TOPIC_CONFLICT, setup.session, setup.topic_id, setup.source
            )
            report(node, ev.TopicConflict(topic=setup.topic, node=setup.node, detail=str(problem)))
            known.drop(setup.session, im.SESSION_IGNORED, setup.topic)
        except SharedMemoryError as problem:
            node.refused.tell(runtime, setup, 0, problem)
            node.refused.later(runtime, setup)
        except Exception as problem:  # noqa: BLE001  (told)
            node.refused.later(runtime, setup)
            node.conductor.failed(problem)
        else:
            node.refused.has(runtime, setup.session)
    known.write()


def try_refused(node: Node, now_s: float) -> None:
    """Give those that had no room another chance, at their next SETUP.

    Of a session that has one image and misses another no SETUP comes: the last one must do.
    """
    for runtime, setup in node.refused.take_due(now_s):
        if living_images(node, runtime, setup.session):
            _handle_setups(node, runtime, [setup])
        elif node.known_sessions(runtime).has(setup.session):
            forget_session(node, runtime, setup.session)


def _drained(node: Node, session: int) -> None:
    for publication in node.pubs.of("session", session):
        publication.drained = True
        look_after_publication(node, publication, node.clock_ns() / 1e9)


def _receiver(node: Node, kind: int, session: int, receiver: int, peer: int, last: int) -> None:
    for publication in node.pubs.of("session", session):
        topic, name = publication.topic.name, node.names.get(peer, "")
        if kind == ae.E_RECEIVER_JOINED:
            publication.drained = False  # this one is still to learn of the end
            event: ev.Event = ev.ReceiverJoined(
                topic=topic, session=session, receiver=receiver, node_id=peer, node=name
            )
        else:
            event = ev.ReceiverTimeout(
                topic=topic,
                session=session,
                receiver=receiver,
                node_id=peer,
                node=name,
                reason="stuck" if last else "silent",
            )
        node.tell(publication.client, event)


def _evicted(node: Node, session: int, subscription_id: int, behind: int) -> None:
    if subscription_id == ARCHIVER_SUBSCRIPTION:
        node.durable.remote.evicted(session)
        return
    subscription = node.subs.get(subscription_id)
    if subscription is None:
        return
    reading = [i for i in node.images_by_id.values() if subscription_id in i.readers]
    topics = [image.topic.name for image in reading if image.session == session]
    node.tell(
        subscription.client,
        ev.SubscriberEvicted(
            topic=topics[0] if topics else subscription.pattern,
            session=session,
            subscription_id=subscription_id,
            behind_packets=behind,
        ),
    )


# --- SETUP ----------------------------------------------------------------------------------------


def _on_setup(node: Node, runtime: TransportRuntime, setup: Setup) -> None:
    sessions, known = node.known_sessions(runtime), node.peers.get(setup.source)
    if not accept_peer(node, runtime, setup):
        if not living_images(node, runtime, setup.session):
            node.refused.later(runtime, setup, im.SESSION_ENDED)
        return
    if known is not None and known.incarnation != setup.incarnation:
        _supersede_older(node, setup)
    for image in living_images(node, runtime, setup.session):
        if image.incarnation != setup.incarnation:
            _continue_at(node, image, setup)
    topic = _topic_of(node, runtime, setup)
    readers = readers_of(node, topic.name) if topic is not None else []
    sessions.forget(setup.session)
    kept = topic is not None and setup.producer is not None and node.durable.keeps(topic)
    if kept and topic is not None and not node.durable.remote.on_setup(runtime, setup, topic):
        return  # it is not opened yet, or refused: its next SETUP is looked at again
    if topic is None or not readers:
        if not kept:
            sessions.drop(setup.session, im.SESSION_IGNORED, setup.topic)
        return
    served: set[int] = set()
    for image in living_images(node, runtime, setup.session):
        served |= image.readers.keys()
    for mode in ("latest", "earliest"):
        group = [s for s in readers if s.options.start == mode and s.id not in served]
        if group:
            _make_image(node, runtime, setup, topic, mode, group)


def _supersede_older(node: Node, setup: Setup) -> None:
    """A node runs in another incarnation now: its sessions are over, or continue there."""
    for image in node.images_by_id.of("node", setup.source):
        if image.incarnation == setup.incarnation:
            continue
        if image.mode == "durable":
            image_gone(node, image, "restarted")
        elif not image.superseded_ns:  # its publisher may continue it
            image.superseded_ns = node.clock_ns()


def _continue_at(node: Node, image: Image, setup: Setup) -> None:
    """A session continues at its node's next engine: from there it is believed now."""
    record = image.runtime.rx_state.images[image.slot]

    def put() -> None:
        record["incarnation"], record["heard_ns"] = setup.incarnation, node.clock_ns()
        record["address_a"], record["address_b"] = setup.address_words
        record["status_ns"] = 0  # it does not know of us yet

    image.runtime.on_receiver(put)
    image.incarnation, image.superseded_ns = setup.incarnation, 0


def _topic_of(node: Node, runtime: TransportRuntime, setup: Setup) -> TopicConfig | None:
    """The local topic a session belongs to; None when nobody here could want it.

    By its name: ids of 16 bits, made from names, collide.
    """
    mine = node.topic_by_name.get(setup.topic)
    if mine is not None:
        return mine if mine.transport == runtime.config.name else None
    if not any(matches(s.pattern, setup.topic) for s in node.subs.of("pattern", "")):
        return None
    topic = TopicConfig(
        name=setup.topic,
        id=None if derive_topic_id(setup.topic) == setup.topic_id else setup.topic_id,
        transport=runtime.config.name,
        reliability=lay.RELIABILITY_NAMES[setup.reliability],  # type: ignore[arg-type]
        flow=lay.FLOW_NAMES[setup.flow],  # type: ignore[arg-type]
    )
    node.topic_by_name[topic.name] = topic
    return topic


def _join_seq(node: Node, setup: Setup, subscription: Subscription) -> int:
    """Where a subscription starts in a new image, see docs/PROTOCOL.md "Joining"."""
    kept = node.resume.pop((setup.session, subscription.id), None)
    if kept is not None:
        return min(max(kept, 0), setup.next_seq)
    if subscription.options.start == "earliest":
        return setup.oldest
    if setup.age_ns < node.clock_ns() - subscription.created_ns:
        return 0  # it was here before the publication: all of it is its own
    return setup.next_seq


def _make_image(
    node: Node,
    runtime: TransportRuntime,
    setup: Setup,
    topic: TopicConfig,
    mode: str,
    readers: list[Subscription],
) -> None:
    """One image for all of them; each begins in it where it should."""
    joins = {s.id: _join_seq(node, setup, s) for s in readers}
    join = min(joins.values())
    wanted = max((s.options.receive_bytes or topic.receive_bytes) for s in readers)
    if setup.channel == wire.CHANNEL_LARGE:
        wanted = max(wanted, topic.large_history_bytes // 4)
    slots = lay.slots_for(wanted, setup.packet_bytes)
    try:
        image = place_image(
            node, runtime, setup, topic, mode, join, slots,
            lambda _: {"begins": join if join == setup.oldest and mode == "earliest" else -1},
        )  # fmt: skip
    except BaseException:
        for subscription_id, place in joins.items():
            keep_place(node, setup.session, subscription_id, place)
        raise
    for subscription in readers:
        connect(node, image, subscription, joins[subscription.id])


def living_images(node: Node, runtime: TransportRuntime, session: int) -> list[Image]:
    """Images of a session that still receive."""
    images = node.images_by_id.of("session", (runtime.config.name, session))
    return [image for image in images if not image.gone]


def connect(node: Node, image: Image, subscription: Subscription, position: int) -> None:
    """Let a subscription read an image from packet ``position`` on."""
    from tidecast.node.node import _tethered

    client = node.clients[subscription.client]
    entry = add_consumer(
        image.mapped.array,
        position=position,
        client=client.id,
        doorbell=client.doorbell,
        subscription=subscription.id,
        tethered=_tethered(subscription, image.topic),
    )
    image.readers[subscription.id] = entry
    node.tell(
        client.id,
        ev.ImageAvailable(
            subscription_id=subscription.id,
            image_id=image.id,
            ring_path=str(image.mapped.path),
            consumer=entry,
            topic=image.topic.name,
            node=image.node_name,
            session=image.session,
        ),
    )


def readers_of(node: Node, topic: str) -> list[Subscription]:
    """Subscriptions that cover a topic."""
    wild = [s for s in node.subs.of("pattern", "") if matches(s.pattern, topic)]
    return node.subs.of("pattern", topic) + wild


def update_wanted(node: Node, names: Iterable[str]) -> None:
    """These topics were made, removed, or are kept by another node now."""
    for name in names:
        node.wanted.changed(name)


def _bits(node_ids: list[int]) -> np.ndarray:
    bits = np.zeros(1024, dtype=np.uint64)
    for each in node_ids:
        bits[each >> 6] |= np.uint64(1 << (each & 63))
    return bits.view(np.int64)


def set_quarantine(runtime: TransportRuntime, node_ids: list[int]) -> None:
    """Refuse all packets of these nodes."""
    bits = _bits(node_ids)

    def put() -> None:
        runtime.rx_state.quarantine[:] = bits

    runtime.on_receiver(put)
    set_refused(runtime, node_ids)


def set_refused(runtime: TransportRuntime, node_ids: list[int]) -> None:
    """Refuse NAK and STATUS of these nodes: those in quarantine and those cut off by faults."""
    bits = _bits(node_ids)

    def put() -> None:
        runtime.tx_state.refused[:] = bits

    runtime.on_sender(put)


# --- ends -----------------------------------------------------------------------------------------


def _end_images(node: Node, runtime: TransportRuntime, session: int, reason: str) -> None:
    for image in living_images(node, runtime, session):
        image_gone(node, image, reason)


def _peer_timeout(node: Node, runtime: TransportRuntime, session: int) -> None:
    """Silent too long: its images go; if it comes back they resume where they were."""
    for image in living_images(node, runtime, session):
        heard_ns = int(runtime.rx_state.images[image.slot]["heard_ns"])
        clients = {node.subs[s].client for s in image.readers if s in node.subs}
        for client in clients if heard_ns != image.silent_ns else ():
            node.tell(
                client,
                ev.PeerTimeout(node=image.node_name, topic=image.topic.name, session=session),
            )
        if not image.silent_ns and _may_be_repaired(image):
            _wait_on(image)
        else:
            image_gone(node, image, "timeout")
        image.silent_ns = heard_ns
    if not living_images(node, runtime, session):
        forget_session(node, runtime, session)


def _may_be_repaired(image: Image) -> bool:
    """Packets are missing, and the publisher did not say that it has ended: it may come back."""
    record = image.runtime.rx_state.images[image.slot]
    return bool(record["gaps"] and record["end_seq"] < 0 and image.mode != "durable")


def _wait_on(image: Image) -> None:
    """Wait once more as long, since what lies behind the missing packets is given up with them."""
    record = image.runtime.rx_state.images[image.slot]

    def put() -> None:
        record["timeout_ns"] *= 2
        record["silent"] = 0

    image.runtime.on_receiver(put)


def keep_places(node: Node, image: Image) -> None:
    """Who reads an image goes on where it ends, if its session gets another one."""
    (end,) = unpack_from("<q", image.mapped.array, lay.END_SEQ_AT)
    for subscription_id in image.readers:
        keep_place(node, image.session, subscription_id, end)


def _close(node: Node, image: Image, *, whole: bool) -> None:
    """Close an image's ring: with ``whole`` behind all that came, else before what is missing.

    In the receiver's thread, so nothing is added behind the end. What is missing before the end is
    a gap for each reader (see `tidecast.buffers.reader`), and lost for good.
    """
    runtime, ring = image.runtime, image.mapped.array
    record = runtime.rx_state.images[image.slot]

    def close() -> None:
        first, highest = int(record["contiguous"]), int(record["highest"])
        end = max(highest, int(record["end_seq"])) if whole else first
        gaps = runtime.rx_state.gaps[image.slot][: int(record["gaps"])]
        lost = int((gaps["end"] - gaps["first"]).sum()) + end - highest if whole else 0
        pack_into("<q", ring, lay.END_SEQ_AT, end)
        pack_into("<q", ring, lay.CLOSED_AT, 1)
        record["closed"], record["end_seq"], record["gaps"] = 1, end, 0
        if lost > 0:
            runtime.rx_state.counters[image.row, Counter.LOST_FOR_GOOD] += lost
            node.note(rec.ALERT, rec.Code.GAP, image.session, first, end, lost)

    if not record["closed"]:
        runtime.on_receiver(close)


def image_gone(node: Node, image: Image, reason: str) -> None:
    """No more packets for an image: readers drain it and release it.

    They get all that came. Where the session goes on without a loss (`failed`: our receiver starts
    again; durable: its publisher sends again what is not acked) they stop at what is missing.
    """
    if image.gone:
        return
    image.gone, image.gone_s = reason, node.clock_ns() / 1e9
    _close(node, image, whole=reason != "failed" and image.mode != "durable")
    if reason in ("timeout", "restarted", "failed"):
        keep_places(node, image)
    for subscription_id in image.readers:
        node.tell_gone(
            subscription_id, image.id, image.topic.name, image.node_name, image.session, reason
        )
    if reason != "closed":
        agent_tables.remove_image(node, image)
        _image_changed(node, image)


def _look_after_superseded(node: Node, image: Image) -> None:
    """Its node has a new incarnation: unless its publisher continues the session there, it ends."""
    if node.clock_ns() - image.superseded_ns > RESTART_GRACE_NS:
        image_gone(node, image, "restarted")


def forget_session(node: Node, runtime: TransportRuntime, session: int) -> None:
    """A session, whose image was removed or was not made, is unknown from now on."""
    known = node.known_sessions(runtime)
    known.forget(session)
    known.write()


def _image_changed(node: Node, image: Image) -> None:
    known = node.known_sessions(image.runtime)
    known.image_changed(image.session)
    known.write()


def look_after_image(node: Node, image: Image, now_s: float) -> None:
    """Remove an image that nobody reads, or that was gone long ago; evict stuck readers."""
    if image.mode == "durable":
        return  # `durable_remote` does
    if image.superseded_ns and not image.gone:
        _look_after_superseded(node, image)
    if image.readers and not (image.gone and now_s - image.gone_s > GONE_PATIENCE_S):
        if not image.gone and image.topic.flow == "min":
            _evict_stuck(node, image, image.topic.receiver_timeout_s)
        return
    if image.gone == "closed" and now_s - image.gone_s < 1.0 and node.started:
        return  # its END is still being repeated: answer that we have left
    known = node.known_sessions(image.runtime)
    if image.gone == "closed":
        known.drop(image.session, im.SESSION_ENDED)
    elif image.gone in ("timeout", "restarted", "failed"):
        known.forget(image.session)
    else:
        known.drop(image.session, im.SESSION_IGNORED, image.topic.name)
    # Tell the publisher that we stop receiving, so that it does not wait for us.
    agent_tables.remove_image(node, image, leave=not image.gone)
    node.images_by_id.pop(image.id, None)
    (contiguous,) = unpack_from("<q", image.mapped.array, lay.CONTIGUOUS_AT)
    node.note(
        rec.LOW, rec.Code.IMAGE_REMOVED, image.session, contiguous, GONE_REASONS.index(image.gone)
    )
    _image_changed(node, image)
    node.refused.live_bytes -= image.mapped.array.size
    image.mapped.unlink()
    image.mapped.close()


def _evict_stuck(node: Node, source: Image | Publication, timeout_s: float) -> None:
    """Evict readers that did not move for the time-out although there was something to read.

    Time in which this engine did not run does not count: they may not have run either.
    """
    now_s = node.ran_s
    ring, about = source.mapped.array, source.about()
    end = about.contiguous if isinstance(source, Image) else about.head
    for subscription_id, entry in source.readers.items():
        at = lay.CONSUMERS_AT + entry * lay.CONSUMER_BYTES
        fields = ring[at : at + lay.CONSUMER_BYTES].view(np.int64)
        position = int(fields[lay.CONSUMER_POSITION_AT // 8])
        before, since = source.watch.get(subscription_id, (-1, now_s))
        full = end - position >= about.slots - max(about.slots // 8, 2)
        if position != before or not full:
            source.watch[subscription_id] = (position, now_s)
            continue
        if now_s - since > timeout_s and fields[0] == lay.CONSUMER_ACTIVE:
            pack_into("<q", ring, lay.BASE_AT, max(end - about.slots // 4, position))
            fields[0] = lay.CONSUMER_EVICTED
            node.note(rec.ALERT, rec.Code.EVICTED, source.session, subscription_id, position, end)
            _evicted(node, source.session, subscription_id, end - position)


def look_after_publication(node: Node, publication: Publication, now_s: float) -> None:
    """Remove a publication that is closed, announced and read; evict stuck local readers."""
    if not publication.closing:
        if publication.topic.flow == "min":
            _evict_stuck(node, publication, publication.topic.receiver_timeout_s)
        return
    if (
        publication.leftover  # of a dead engine: looked after by `Remote.tick` until it is acked
        or publication.source >= 0
        or not node.durable.remote.settled(publication)
    ):
        publication.closed_s = now_s  # its end is announced to those who read it now
        return  # the archiver, here or at the topic's owner, is not through with it
    late = now_s - publication.closed_s > GONE_PATIENCE_S
    if publication.ending_s and not publication.released and not late:
        return  # its writer may still add to the ring
    if (publication.drained or late) and (not publication.readers or late):
        node.forget_publication(publication)
