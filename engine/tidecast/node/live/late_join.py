"""A new subscription and the sessions that its node receives already.

It reads an image that is there if that holds what it asks for: the live edge, or all of the
publisher's history. Else it gets one of its own, which needs a fresh SETUP: the receiver asks for
it, and `sessions` makes the image for all who have none by then.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tidecast.config.topology import is_pattern, matches
from tidecast.node.live.image_creation import keep_place
from tidecast.node.live.sessions import connect
from tidecast.node.state import Image, Subscription

if TYPE_CHECKING:
    from tidecast.node.node import Node


def join_existing_images(node: Node, subscription: Subscription) -> None:
    """Connect a new subscription to what this node receives already."""
    sessions: dict[tuple[str, int], list[Image]] = {}
    pattern = subscription.pattern
    wild = is_pattern(pattern)
    images = node.images_by_id.values() if wild else node.images_by_id.of("topic", pattern)
    for image in images:
        if not image.gone and matches(pattern, image.topic.name):
            sessions.setdefault((image.runtime.config.name, image.session), []).append(image)
    for found in sessions.values():
        found[0].runtime.on_receiver(partial(_join, node, found, subscription))


def _join(node: Node, images: list[Image], subscription: Subscription) -> None:
    """In the receiver's thread: it does not move meanwhile."""
    mode, session = subscription.options.start, images[0].session
    images.sort(key=lambda i: (i.mode == "durable", i.mode != mode))
    kept = node.resume.get((session, subscription.id))
    if kept is None and images[0].began_ns > subscription.created_ns:
        kept = 0
        keep_place(node, session, subscription.id, kept)
    for image in images:
        if kept is not None:
            start = kept if _oldest(image) <= kept <= _edge(image) else -1
        else:
            start = _earliest(image) if mode == "earliest" else _latest(image)
        if start >= 0:
            node.resume.pop((session, subscription.id), None)
            connect(node, image, subscription, start)
            # The receiver looks at its readers only when it gets there.
            record = image.runtime.rx_state.images[image.slot]
            record["window_end"] = min(int(record["window_end"]), start + image.about().slots)
            return
    if mode == "latest" and kept is None:  # what is published from now on is its own
        keep_place(node, session, subscription.id, max(_edge(i) for i in images))
    image = images[0]
    record = image.runtime.rx_state.images[image.slot]
    record["want_setup_ns"] = max(node.clock_ns(), 1)


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

    Who starts at the very end is overtaken, or holds up the others, before it has read a message.
    The same eighth of the publisher's history may be gone before it could be asked for.
    """
    about, edge, start = image.about(), _edge(image), _oldest(image)
    if image.mode == "durable" or start <= max(0, edge - image.history_slots * 7 // 8):
        return min(start, about.contiguous)
    return -1
