"""Subscriptions of this node: opening, the images that they join, and the end.

A new subscription reads an existing image if that holds the packets that it needs: the live edge,
or all of the publisher's history. Else it gets an image of its own, which needs a fresh SETUP: the
receiver asks for it, and `sessions` makes the image for all subscriptions without one by then.

A subscription whose topic is deleted gets no more publications. Its client is notified
(`SubscriptionEnded`) once the publications of this node that it reads are closed, so that it has
all that was published before. It gets the same event if a ring of its pattern, made later, has no
place for it: the ring's publisher is served all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tidecast.api.link import SubscriptionGrant, SubscriptionOptions
from tidecast.buffers.ring_file import remove_consumer
from tidecast.config.topology import (
    TopicConfig,
    check_pattern,
    check_ring_bytes,
    is_pattern,
    matches,
)
from tidecast.errors import ConfigError, Conflict, NotFound
from tidecast.node.context import NodeContext
from tidecast.node.live.agent_tables import full, has_tails, places
from tidecast.node.live.images import Images
from tidecast.node.live.publications import Publications, notify_ended
from tidecast.node.live.receiver_tables import WantedTopics
from tidecast.node.state import Client, Image, Publication, Subscription


class Subscriptions:
    """See module. ``topic``: a topic by name, made on first use where that is allowed."""

    def __init__(
        self,
        ctx: NodeContext,
        publications: Publications,
        images: Images,
        wanted: WantedTopics,
        topic: Callable[[str], TopicConfig],
    ) -> None:
        self._ctx, self._publications, self._images = ctx, publications, images
        self._wanted, self._topic = wanted, topic

    def open(self, client: Client, pattern: str, options: SubscriptionOptions) -> SubscriptionGrant:
        """Subscribe. Existing publications are connected before this returns.

        Raises Conflict when the rings of the topic have no place for a further reader.
        """
        with self._ctx.lock:
            check_pattern(pattern)
            if options.start not in ("latest", "earliest"):
                raise ConfigError(f"start: {options.start!r}: allowed latest, earliest")
            if not is_pattern(pattern):
                covered = [self._ctx.topology.transport(self._topic(pattern).transport)]
            else:  # topics to come may be on any
                covered = list(self._ctx.topology.transports)
            for transport in covered if options.receive_bytes else ():
                check_ring_bytes("receive_bytes", options.receive_bytes or 0, transport)
            self._check_place(pattern)
            created_ns = self._ctx.clock_ns() - int(options.age_s * 1e9)
            subscription = Subscription(
                next(self._ctx.ids), client.id, pattern, options, created_ns
            )
            self._ctx.subs[subscription.id] = subscription
            self._wanted.subscribed(subscription)
            client.subscriptions.add(subscription.id)
            try:
                for session, seq in options.resume.items():
                    self._ctx.resume_positions.keep(session, subscription.id, seq)
                for publication in self._covered_pubs(pattern):
                    if publication.begun and not publication.closing:
                        self._publications.read(publication, subscription)
                self._join_existing(subscription)
            except BaseException:
                self.close(client.id, subscription.id)
                raise
            return SubscriptionGrant(
                subscription_id=subscription.id, subscriber_id=subscription.id, pattern=pattern
            )

    def _check_place(self, pattern: str) -> None:
        """Raise Conflict for a subscription that would find a full ring."""
        most = places(tail=has_tails(self._ctx))
        if not is_pattern(pattern) and len(self._ctx.subscriptions_to(pattern)) >= most:
            raise Conflict(full(self._ctx, pattern, most))
        covered: list[Publication | Image] = [*self._covered_pubs(pattern)]
        for source in [*covered, *self._covered_images(pattern)]:
            most = places(tail=source.about().tail)
            if len(source.readers) >= most:
                raise Conflict(full(self._ctx, source.topic.name, most))

    def close(self, client_id: int, subscription_id: int) -> None:
        """End a subscription."""
        with self._ctx.lock:
            subscription = self._ctx.subs.get(subscription_id) or self._ctx.ending_subs.get(
                subscription_id
            )
            if subscription is None or subscription.client != client_id:
                raise NotFound(f"client {client_id} has no subscription {subscription_id}")
            if self._ctx.subs.pop(subscription_id, None) is not None:
                self._wanted.unsubscribed(subscription)
            self._ctx.ending_subs.pop(subscription_id, None)
            self._ctx.resume_positions.forget(subscription_id)
            if client_id in self._ctx.clients:
                self._ctx.clients[client_id].subscriptions.discard(subscription_id)
            for publication in self._covered_pubs(subscription.pattern):
                if not publication.left:  # its readers keep their entries
                    self._stop_reading(publication, subscription_id)
            for image in self._covered_images(subscription.pattern):
                self._stop_reading(image, subscription_id)

    def end_with_topic(self, subscription: Subscription) -> None:
        """Let a subscription end: its client reads the rest, and closes it."""
        self._ctx.ending_subs[subscription.id] = self._ctx.subs.pop(subscription.id)
        self._wanted.unsubscribed(subscription)
        notify_ended(self._ctx, subscription)

    def _covered_pubs(self, pattern: str) -> list[Publication]:
        """Publications here of the topics that a pattern covers."""
        if not is_pattern(pattern):
            return self._ctx.pubs.of("topic", pattern)
        return [p for p in self._ctx.pubs.values() if matches(pattern, p.topic.name)]

    def _covered_images(self, pattern: str) -> list[Image]:
        """Images of the topics that a pattern covers."""
        if not is_pattern(pattern):
            return self._ctx.images_by_id.of("topic", pattern)
        return [i for i in self._ctx.images_by_id.values() if matches(pattern, i.topic.name)]

    def _stop_reading(self, source: Publication | Image, subscription_id: int) -> None:
        entry = source.readers.pop(subscription_id, None)
        if entry is None:
            return
        remove_consumer(source.mapped.array, entry)
        source.watch.pop(subscription_id, None)
        if isinstance(source, Image):
            self._images.check(source, self._ctx.now_s())
        else:
            self._publications.check(source)

    def release_image(self, client_id: int, subscription_id: int, image_id: int) -> None:
        """A client has drained and unmapped an image that was gone."""
        with self._ctx.lock:
            subscription = self._ctx.subs.get(subscription_id)
            if subscription is not None and subscription.client != client_id:
                raise NotFound(f"client {client_id} has no subscription {subscription_id}")
            source = self._ctx.images_by_id.get(image_id) or self._ctx.pubs.get(image_id)
            if source is not None:
                self._stop_reading(source, subscription_id)

    def _join_existing(self, subscription: Subscription) -> None:
        """Connect a new subscription to sessions that this node receives already."""
        sessions: dict[tuple[str, int], list[Image]] = {}
        pattern = subscription.pattern
        wild = is_pattern(pattern)
        images = (
            self._ctx.images_by_id.values() if wild else self._ctx.images_by_id.of("topic", pattern)
        )
        for image in images:
            if not image.gone and matches(pattern, image.topic.name):
                sessions.setdefault((image.runtime.config.name, image.session), []).append(image)
        for found in sessions.values():
            found[0].runtime.on_receiver(partial(self._join, found, subscription))

    def _join(self, images: list[Image], subscription: Subscription) -> None:
        """In the receiver's thread: it does not move meanwhile."""
        mode, session = subscription.options.start, images[0].session
        images.sort(key=lambda i: (i.mode == "durable", i.mode != mode))
        kept = self._ctx.resume_positions.get(session, subscription.id)
        if kept is None and images[0].began_ns > subscription.created_ns:
            kept = 0
            self._ctx.resume_positions.keep(session, subscription.id, kept)
        for image in images:
            if kept is not None:
                start = kept if _oldest(image) <= kept <= _edge(image) else -1
            else:
                start = _earliest(image) if mode == "earliest" else _latest(image)
            if start >= 0:
                self._ctx.resume_positions.pop(session, subscription.id)
                self._images.connect(image, subscription, start)
                # The receiver looks at its readers only when it gets there.
                record = image.runtime.rx_state.images[image.slot]
                record["window_end"] = min(int(record["window_end"]), start + image.about().slots)
                return
        if mode == "latest" and kept is None:  # messages from now on are its own
            self._ctx.resume_positions.keep(session, subscription.id, max(_edge(i) for i in images))
        image = images[0]
        record = image.runtime.rx_state.images[image.slot]
        record["want_setup_ns"] = max(self._ctx.clock_ns(), 1)


def _edge(image: Image) -> int:
    """The publisher's live edge as far as this image knows."""
    return max(int(image.runtime.rx_state.images[image.slot]["highest"]), image.live_seq)


def _latest(image: Image) -> int:
    """The live edge; -1 while the image has to catch up with it."""
    about = image.about()
    caught_up = about.contiguous >= max(image.live_seq, _edge(image) - about.slots // 8)
    return about.contiguous if image.mode == "durable" or caught_up else -1


def _oldest(image: Image) -> int:
    about = image.about()
    return max(about.first, _edge(image) - about.slots * 7 // 8)


def _earliest(image: Image) -> int:
    """The oldest packet it holds, an eighth of a ring off its end; -1: history reaches further.

    A reader that starts at the very end is overtaken, or delays the others, before it reads.
    The same eighth of the publisher's history may be gone before it could be asked for.
    """
    about, edge, start = image.about(), _edge(image), _oldest(image)
    if image.mode == "durable" or start <= max(0, edge - image.history_slots * 7 // 8):
        return min(start, about.contiguous)
    return -1
