"""Making images: rings for sessions of other nodes. What could not be made is told, tried again.

Mostly there is no shared memory for the ring then. What such a session sends meanwhile is dropped,
and asked for again once there is room, from where the image would have begun: what its publisher's
history does not hold any more by then is told as a gap.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidecast import events as ev
from tidecast.agents.live import images as im
from tidecast.buffers.ring_file import create_ring
from tidecast.config.topology import TopicConfig
from tidecast.errors import SharedMemoryError
from tidecast.layout import counters as cl
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.native.mapped import MappedFile
from tidecast.node.live import agent_tables
from tidecast.node.state import Image

if TYPE_CHECKING:
    from tidecast.node.live.setup import Setup
    from tidecast.node.live.transports import TransportRuntime
    from tidecast.node.node import Node

RETRY_S = 1.0
REFUSED_MAX = 4096
RESUME_KEPT_MAX = 16_384
Key = tuple[str, int]


def keep_place(node: Node, session: int, subscription_id: int, seq: int) -> None:
    """When this session gets an image (again) a subscription begins here."""
    while len(node.resume) >= RESUME_KEPT_MAX:
        node.resume.pop(next(iter(node.resume)))
    node.resume[session, subscription_id] = seq


class RefusedImages:
    """See module. Called with the node's lock held."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._due: dict[Key, tuple[float, TransportRuntime, Setup]] = {}
        self._told: dict[Key, None] = {}
        self.live_bytes = 0
        """What rings of live topics' images have."""

    def check_room(self, needed: int) -> None:
        """Raise SharedMemoryError when live images have all that they may have."""
        most = self._node.topology.node.image_rings_bytes_max
        if self.live_bytes + needed > most:
            raise SharedMemoryError(
                f"rings of publishers on other nodes have {self.live_bytes} bytes of {most} here: "
                "raise node.image_rings_bytes_max, or lower receive_bytes of the topic"
            )

    def tell(
        self, runtime: TransportRuntime, setup: Setup, needed: int, problem: Exception
    ) -> None:
        """There is no memory for a session's ring. Told once, until it has one."""
        key = (runtime.config.name, setup.session)
        if key in self._told:
            return
        while len(self._told) >= REFUSED_MAX:
            del self._told[next(iter(self._told))]
        self._told[key] = None
        node = self._node
        node.counters.values[node.node_row, cl.NodeCounter.IMAGES_REFUSED] += 1
        used = self.live_bytes
        room = os.statvfs(node.directory)
        allowed = used + room.f_bavail * room.f_frsize
        node.note(
            rec.ALERT, rec.Code.RING_REFUSED, setup.session, setup.source, needed, used, allowed
        )
        node.tell_all(
            ev.PublisherRefused(
                topic=setup.topic, node=setup.node, session=setup.session, bytes=needed,
                detail=f"{problem}; it is tried again each {RETRY_S:g} s",
            )
        )  # fmt: skip

    def later(self, runtime: TransportRuntime, setup: Setup, why: int = im.SESSION_IGNORED) -> None:
        """Drop what the session sends for a while."""
        key = (runtime.config.name, setup.session)
        self._node.known_sessions(runtime).drop(setup.session, why, setup.topic)
        while len(self._due) >= REFUSED_MAX:
            del self._due[next(iter(self._due))]
        self._due[key] = (self._node.clock_ns() / 1e9 + RETRY_S, runtime, setup)

    def has(self, runtime: TransportRuntime, session: int) -> None:
        """A session has its ring."""
        self._told.pop((runtime.config.name, session), None)

    def take_due(self, now_s: float) -> list[tuple[TransportRuntime, Setup]]:
        """Those to try again."""
        due = [key for key, (at_s, *_) in self._due.items() if now_s >= at_s]
        return [self._due.pop(key)[1:] for key in due]


def _image_ring(
    node: Node, image_id: int, setup: Setup, topic: TopicConfig, slots: int, join: int
) -> MappedFile:
    return create_ring(
        node.directory / f"image-{image_id}",
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
        first=join,
        node_name=setup.node,
        topic_name=topic.name,
    )


def place_image(
    node: Node, runtime: TransportRuntime, setup: Setup, topic: TopicConfig, mode: str, join: int,
    slots: int, prepare: Callable[[MappedFile], dict[str, int]] | None = None,
) -> Image:  # fmt: skip
    """Make an image. ``prepare``: works on its ring first; further fields of its record.

    Raises SharedMemoryError, and has told of it then.
    """
    try:
        return _place(node, runtime, setup, topic, mode, join, slots, prepare)
    except (SharedMemoryError, OSError) as problem:
        needed = lay.ring_bytes(slots, setup.packet_bytes)
        node.refused.tell(runtime, setup, needed, problem)
        raise SharedMemoryError(str(problem)) from problem


def _place(
    node: Node, runtime: TransportRuntime, setup: Setup, topic: TopicConfig, mode: str, join: int,
    slots: int, prepare: Callable[[MappedFile], dict[str, int]] | None,
) -> Image:  # fmt: skip
    image_id = next(node.ids)
    if mode != "durable":  # those have a limit of their own
        node.refused.check_room(lay.ring_bytes(slots, setup.packet_bytes))
    with contextlib.ExitStack() as undo:
        mapped = _image_ring(node, image_id, setup, topic, slots, join)
        undo.callback(mapped.close)
        undo.callback(mapped.unlink)
        row = node.counters.allocate(
            cl.ROW_IMAGE, topic.name, setup.node, session=setup.session, peer=setup.source,
            channel=setup.channel,
        )  # fmt: skip
        undo.callback(node.counters.free, row)
        image = Image(
            image_id, setup.session, mode, topic, setup.source, setup.node, setup.incarnation,
            mapped, runtime, -1, row, live_seq=setup.next_seq, history_slots=setup.slots,
            began_ns=node.clock_ns() - setup.age_ns,
        )  # fmt: skip
        agent_tables.add_image(
            node, image, join=join, channel=setup.channel, reliability=setup.reliability,
            group=setup.receivers, address_words=setup.address_words,
            further=prepare(mapped) if prepare is not None else {},
        )  # fmt: skip
        undo.pop_all()
    node.images_by_id[image_id] = image
    node.known_sessions(runtime).image_changed(setup.session)
    if mode != "durable":
        node.refused.live_bytes += mapped.array.size
    node.note(
        rec.LOW, rec.Code.IMAGE_ADDED, setup.session, setup.topic_id, join, slots, setup.source
    )
    return image
