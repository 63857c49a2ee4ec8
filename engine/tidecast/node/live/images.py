"""Images: rings for sessions of other nodes, from their making to their end.

Mostly an image cannot be made because there is no shared memory for its ring. The packets of such a
session are dropped, and requested again once there is room, from where the image would have begun:
packets that the publisher's history does not hold any more by then are reported as a gap. Called
with the node's lock held.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from tidecast import events
from tidecast.agents.live import images as image_table
from tidecast.buffers.ring_file import add_consumer, consumer_entry, create_ring
from tidecast.config.topology import TopicConfig
from tidecast.errors import SharedMemoryError
from tidecast.layout import counters as counters_layout
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.layout.counters import Counter
from tidecast.native.mapped import MappedFile
from tidecast.native.packing import pack_into, unpack_from
from tidecast.node.context import NodeContext
from tidecast.node.live import agent_tables
from tidecast.node.live.receiver_tables import SessionTables
from tidecast.node.live.setup import Setup
from tidecast.node.live.transports import TransportRuntime
from tidecast.node.state import Image, Publication, Subscription

RETRY_S = 1.0
REFUSED_MAX = 4096
GONE_PATIENCE_S = 30.0
RESTART_GRACE_NS = 5_000_000_000
"""A publisher continues at its node's next engine within this time, or its images end."""
GONE_REASONS = ("", "closed", "timeout", "restarted", "failed")
"""Why an image was removed, as the recorder counts: it has no reader, its publisher ..., or our
receiver failed."""
Key = tuple[str, int]


class RefusedImages:
    """See module. Called with the node's lock held."""

    def __init__(self, ctx: NodeContext, known: SessionTables) -> None:
        self._ctx, self._known = ctx, known
        self._due: dict[Key, tuple[float, TransportRuntime, Setup]] = {}
        self._reported: dict[Key, None] = {}
        self.live_bytes = 0
        """The bytes of live topics' images."""

    def add_bytes(self, more: int) -> None:
        """Count the bytes of a new live image; below 0: of a removed image."""
        self.live_bytes += more

    def check_room(self, needed: int) -> None:
        """Raise SharedMemoryError when live images use all the memory that they may."""
        most = self._ctx.topology.node.image_rings_bytes_max
        if self.live_bytes + needed > most:
            raise SharedMemoryError(
                f"rings of publishers on other nodes have {self.live_bytes} bytes of {most} here: "
                "raise node.image_rings_bytes_max, or lower receive_bytes of the topic"
            )

    def report(
        self, runtime: TransportRuntime, setup: Setup, needed: int, problem: Exception
    ) -> None:
        """Report once that a session has no memory for its ring, until it has a ring."""
        key = (runtime.config.name, setup.session)
        if key in self._reported:
            return
        while len(self._reported) >= REFUSED_MAX:
            del self._reported[next(iter(self._reported))]
        self._reported[key] = None
        ctx = self._ctx
        ctx.count(counters_layout.NodeCounter.IMAGES_REFUSED)
        used = self.live_bytes
        room = os.statvfs(ctx.directory)
        allowed = used + room.f_bavail * room.f_frsize
        ctx.note(
            rec.ALERT, rec.Code.RING_REFUSED, setup.session, setup.source, needed, used, allowed
        )
        ctx.notify_all(
            events.PublisherRefused(
                topic=setup.topic,
                node=setup.node,
                session=setup.session,
                bytes=needed,
                detail=f"{problem}; it is tried again each {RETRY_S:g} s",
            )
        )

    def later(
        self, runtime: TransportRuntime, setup: Setup, why: int = image_table.SESSION_IGNORED
    ) -> None:
        """Drop packets of the session for a while."""
        key = (runtime.config.name, setup.session)
        self._known.of(runtime).drop(setup.session, why, setup.topic)
        while len(self._due) >= REFUSED_MAX:
            del self._due[next(iter(self._due))]
        self._due[key] = (self._ctx.now_s() + RETRY_S, runtime, setup)

    def has(self, runtime: TransportRuntime, session: int) -> None:
        """The session has a ring now."""
        self._reported.pop((runtime.config.name, session), None)

    def take_due(self, now_s: float) -> list[tuple[TransportRuntime, Setup]]:
        """The sessions whose rings are to be tried again."""
        due = [key for key, (at_s, *_) in self._due.items() if now_s >= at_s]
        return [self._due.pop(key)[1:] for key in due]


class Images:
    """See module."""

    def __init__(self, ctx: NodeContext, known: SessionTables) -> None:
        self._ctx, self.known = ctx, known
        self.refused = RefusedImages(ctx, known)

    def place(
        self,
        runtime: TransportRuntime,
        setup: Setup,
        topic: TopicConfig,
        mode: str,
        join: int,
        slots: int,
        prepare: Callable[[MappedFile], dict[str, int]] | None = None,
    ) -> Image:
        """Create an image.

        ``prepare``: works on its ring first, and returns further fields of its record. Raises
        SharedMemoryError, after reporting it.
        """
        try:
            return self._place(runtime, setup, topic, mode, join, slots, prepare)
        except (SharedMemoryError, OSError) as problem:
            needed = self._ring_bytes(setup, slots)
            self.refused.report(runtime, setup, needed, problem)
            raise SharedMemoryError(str(problem)) from problem

    def _ring_bytes(self, setup: Setup, slots: int) -> int:
        tail = agent_tables.has_tails(self._ctx)
        return lay.ring_bytes(slots, setup.packet_bytes, tail=tail)

    def _place(
        self,
        runtime: TransportRuntime,
        setup: Setup,
        topic: TopicConfig,
        mode: str,
        join: int,
        slots: int,
        prepare: Callable[[MappedFile], dict[str, int]] | None,
    ) -> Image:
        ctx = self._ctx
        image_id = next(ctx.ids)
        if mode != "durable":  # those have a limit of their own
            self.refused.check_room(self._ring_bytes(setup, slots))
        with contextlib.ExitStack() as undo:
            mapped = _image_ring(ctx, image_id, setup, topic, slots, join)
            undo.callback(mapped.close)
            undo.callback(mapped.unlink)
            row = ctx.counters.allocate(
                counters_layout.ROW_IMAGE,
                topic.name,
                setup.node,
                session=setup.session,
                peer=setup.source,
                channel=setup.channel,
            )
            undo.callback(ctx.counters.free, row)
            image = Image(
                image_id,
                setup.session,
                mode,
                topic,
                setup.source,
                setup.node,
                setup.incarnation,
                mapped,
                runtime,
                -1,
                row,
                live_seq=setup.next_seq,
                history_slots=setup.slots,
                began_ns=setup.received_ns - setup.age_ns,
            )
            agent_tables.add_image(
                ctx,
                image,
                join=join,
                channel=setup.channel,
                reliability=setup.reliability,
                address_words=setup.address_words,
                further=_group_of(setup) | (prepare(mapped) if prepare is not None else {}),
            )
            undo.pop_all()
        ctx.images_by_id[image_id] = image
        self.known.of(runtime).image_changed(setup.session)
        if mode != "durable":
            self.refused.add_bytes(mapped.array.size)
        ctx.note(
            rec.LOW, rec.Code.IMAGE_ADDED, setup.session, setup.topic_id, join, slots, setup.source
        )
        return image

    def move(self, image: Image, runtime: TransportRuntime) -> None:
        """Move a session to another lane. Raises SharedMemoryError: no room there."""
        before = image.runtime
        agent_tables.move_image(image, runtime)
        for each in (before, runtime):
            known = self.known.of(each)
            known.image_changed(image.session)
            known.write()

    def connect(self, image: Image, subscription: Subscription, position: int) -> None:
        """Let a subscription read an image from packet ``position`` on, if the ring has a place."""
        if not agent_tables.has_place(self._ctx, image, subscription):
            return
        client = self._ctx.clients[subscription.client]
        entry = add_consumer(
            image.mapped.array,
            position=position,
            client=client.id,
            doorbell=client.doorbell,
            subscription=subscription.id,
            tethered=subscription.tethered(image.topic),
        )
        image.readers[subscription.id] = entry
        self._ctx.notify(
            client.id,
            events.ImageAvailable(
                subscription_id=subscription.id,
                image_id=image.id,
                ring_path=str(image.mapped.path),
                consumer=entry,
                topic=image.topic.name,
                node=image.node_name,
                session=image.session,
            ),
        )

    def end(self, image: Image, reason: str) -> None:
        """End an image: it gets no more packets; readers drain it and release it.

        They get all packets that came. Where the session continues without a loss (`failed`: our
        receiver starts again; durable: its publisher sends unacked messages again) they stop at the
        first missing packet.
        """
        if image.gone:
            return
        image.end(reason, self._ctx.now_s())
        self._close(image, whole=reason != "failed" and image.mode != "durable")
        if reason in ("timeout", "restarted", "failed"):
            self._keep_positions(image)
        for subscription_id in image.readers:
            self._ctx.notify_gone(
                subscription_id, image.id, image.topic.name, image.node_name, image.session, reason
            )
        if reason != "closed":
            agent_tables.remove_image(self._ctx, image)
            self.known.image_changed(image)

    def _close(self, image: Image, *, whole: bool) -> None:
        """Close an image's ring: with ``whole`` behind all that came, else at the first gap.

        In the receiver's thread, so nothing is added behind the end. Packets that are missing
        before the end are a gap for each reader (see `tidecast.buffers.reader`), and lost for good.
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
                self._ctx.note(rec.ALERT, rec.Code.GAP, image.session, first, end, lost)

        if not record["closed"]:
            runtime.on_receiver(close)

    def _keep_positions(self, image: Image) -> None:
        """Remember where its subscriptions stop: they resume there in the session's next image."""
        (end,) = unpack_from("<q", image.mapped.array, lay.END_SEQ_AT)
        for subscription_id in image.readers:
            self._ctx.resume_positions.keep(image.session, subscription_id, end)

    def check(self, image: Image, now_s: float) -> None:
        """Remove an image without readers, or gone for long; evict stuck readers."""
        if image.mode == "durable":
            return  # `durable.owner_side` does
        patience_ns = self._ctx.clock_ns() - RESTART_GRACE_NS
        if not image.gone and 0 < image.superseded_ns < patience_ns:
            self.end(image, "restarted")
        if image.readers and not (image.gone and now_s - image.gone_s > GONE_PATIENCE_S):
            if not image.gone and image.topic.flow == "min":
                evict_stuck(self._ctx, image, image.topic.receiver_timeout_s)
            return
        if image.gone == "closed" and now_s - image.gone_s < 1.0 and self._ctx.started:
            return  # its END is still being repeated: answer that we have left
        known = self.known.of(image.runtime)
        if image.gone == "closed":
            known.drop(image.session, image_table.SESSION_ENDED)
        elif image.gone in ("timeout", "restarted", "failed"):
            known.forget(image.session)
        else:
            known.drop(image.session, image_table.SESSION_IGNORED, image.topic.name)
        # Tell the publisher that we stop receiving, so that it does not wait for us.
        agent_tables.remove_image(self._ctx, image, leave=not image.gone)
        self._ctx.images_by_id.pop(image.id, None)
        (contiguous,) = unpack_from("<q", image.mapped.array, lay.CONTIGUOUS_AT)
        self._ctx.note(
            rec.LOW,
            rec.Code.IMAGE_REMOVED,
            image.session,
            contiguous,
            GONE_REASONS.index(image.gone),
        )
        self.known.image_changed(image)
        self.refused.add_bytes(-image.mapped.array.size)
        image.mapped.unlink()
        image.mapped.close()

    def discard(self, image: Image) -> None:
        """Remove an image of a durable topic: its publisher sends unacked messages again."""
        ctx = self._ctx
        for subscription_id in image.readers:
            ctx.notify_gone(
                subscription_id,
                image.id,
                image.topic.name,
                image.node_name,
                image.session,
                image.gone or "closed",
            )
        agent_tables.remove_image(ctx, image, leave=True)
        ctx.images_by_id.pop(image.id, None)
        self.known.forget(image.runtime, image.session)
        image.mapped.unlink()
        image.mapped.close()


def _group_of(setup: Setup) -> dict[str, int]:
    """Fields of an image's record that its SETUP names: the session's receivers, messages."""
    return {
        "group": setup.group,
        "sampling": setup.sampling,
        "round_trip_ns": setup.round_trip_ns,
        "published": setup.published,
    }


def _image_ring(
    ctx: NodeContext, image_id: int, setup: Setup, topic: TopicConfig, slots: int, join: int
) -> MappedFile:
    return create_ring(
        ctx.directory / f"image-{image_id}",
        kind=lay.KIND_IMAGE,
        slots=slots,
        slot_bytes=setup.packet_bytes,
        session=setup.session,
        topic=setup.topic_id,
        node=setup.source,
        channel=setup.channel,
        flow=setup.flow,
        reliability=setup.reliability,
        has_network=False,
        incarnation=setup.incarnation,
        created_ns=ctx.wall_ns(),
        first=join,
        node_name=setup.node,
        topic_name=topic.name,
        tail=agent_tables.has_tails(ctx),
    )


def evict_stuck(ctx: NodeContext, source: Image | Publication, timeout_s: float) -> None:
    """Evict readers that did not move for the time-out although there was something to read.

    Time in which this engine did not run does not count: they may not have run either.
    """
    now_s = ctx.ran_s
    ring, about = source.mapped.array, source.about()
    end = about.contiguous if isinstance(source, Image) else about.head
    for subscription_id, entry in source.readers.items():
        fields = consumer_entry(ring, entry)
        position = int(fields[lay.CONSUMER_POSITION_AT // 8])
        before, since = source.watch.get(subscription_id, (-1, now_s))
        full = end - position >= about.slots - max(about.slots // 8, 2)
        if position != before or not full:
            source.watch[subscription_id] = (position, now_s)
            continue
        if now_s - since > timeout_s and fields[0] == lay.CONSUMER_ACTIVE:
            pack_into("<q", ring, lay.BASE_AT, max(end - about.slots // 4, position))
            fields[0] = lay.CONSUMER_EVICTED
            ctx.note(rec.ALERT, rec.Code.EVICTED, source.session, subscription_id, position, end)
            report_evicted(ctx, source.session, subscription_id, end - position)


def report_evicted(ctx: NodeContext, session: int, subscription_id: int, behind: int) -> None:
    """Notify a subscription that it was evicted from a publication."""
    subscription = ctx.subs.get(subscription_id)
    if subscription is None:
        return
    reading = [i for i in ctx.images_by_id.values() if subscription_id in i.readers]
    topics = [image.topic.name for image in reading if image.session == session]
    ctx.notify(
        subscription.client,
        events.SubscriberEvicted(
            topic=topics[0] if topics else subscription.pattern,
            session=session,
            subscription_id=subscription_id,
            behind_packets=behind,
        ),
    )
