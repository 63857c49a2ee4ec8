"""How much shared memory publishers on other nodes get here.

The owner of a durable topic receives each of them into a ring. One as large as the publisher's own
history never holds it back, and how large that is, is the publisher's word: so there is a most for
one, above which a ring is smaller than the history, and a most for all, above which a publisher has
to wait. It keeps what it has, is told why, and gets its ring when there is room.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from tidecast import events as ev
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.layout.counters import QueueCounter as C
from tidecast.layout.packet import CHANNEL_LARGE

if TYPE_CHECKING:
    from tidecast.config.topology import TopicConfig
    from tidecast.node.live.setup import Setup
    from tidecast.node.node import Node

NO_ROOM = errno.ENOMEM
"""What the ACK of a session that has to wait says."""
WAITING_MAX = 4096


class PublisherRings:
    """See module. Called with the node's lock held."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._waiting: dict[int, None] = {}

    def slots_for(self, setup: Setup, config: TopicConfig) -> int:
        """Slots of the ring that a session gets; 0: there is no room for any."""
        settings, packet = self._node.topology.node, setup.packet_bytes
        large = setup.channel == CHANNEL_LARGE
        own = max(config.receive_bytes, config.large_history_bytes if large else 0)
        least = lay.slots_for(min(own, settings.publisher_ring_bytes_max), packet)
        most = max(least, lay.slots_for(settings.publisher_ring_bytes_max, packet))
        free = settings.publisher_rings_bytes_max - self.bytes
        for slots in (min(max(setup.slots, least), most), least):
            if lay.ring_bytes(slots, packet) <= free:
                self._waiting.pop(setup.session, None)
                return slots
        self._refuse(setup, config, lay.ring_bytes(least, packet))
        return 0

    @property
    def bytes(self) -> int:
        """What they have now."""
        images = self._node.images_by_id.values()
        return sum(image.mapped.array.size for image in images if image.mode == "durable")

    def _refuse(self, setup: Setup, config: TopicConfig, needed: int) -> None:
        """Once a session, though its SETUPs go on to come."""
        if setup.session in self._waiting:
            return
        while len(self._waiting) >= WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[setup.session] = None
        node, most = self._node, self._node.topology.node.publisher_rings_bytes_max
        for (topic, _), row in node.durable.rows.items():
            if topic == config.name:
                node.counters.values[row, C.RINGS_REFUSED] += 1
        node.note(
            rec.ALERT, rec.Code.RING_REFUSED, setup.session, setup.source, needed, self.bytes, most
        )
        node.durable.tell(
            ev.PublisherRefused(
                topic=config.name, node=setup.node, session=setup.session, bytes=needed,
                detail=f"rings of publishers on other nodes have {self.bytes} bytes of "
                f"{most} here: raise node.publisher_rings_bytes_max, or lower receive_bytes of "
                "the topic; the publisher waits until there is room",
            )
        )  # fmt: skip
