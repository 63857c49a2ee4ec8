"""When a producer's next session may begin: once what its older ones left is settled.

A session begins behind the last sequence in the log and fences the older ones. What an older ring
holds and the log has not is then out for good. It was not acked; but if a crash had left a part of
it in the log, a hole would stay below what is stored. Where that is so is known exactly
(`DurableTopic.find_torn`), and so no session begins before a ring has brought what is missing, or
all of them were silent for `image_timeout_s`: then `ProducerHole` tells of it.

Called with the node's lock held.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidecast import events as ev
from tidecast.layout import recorder as rec
from tidecast.layout.counters import QueueCounter as C
from tidecast.node import durable_sources as ds
from tidecast.protocol.dedup import Producer

if TYPE_CHECKING:
    from tidecast.node.durable import Durable
    from tidecast.node.durable_remote import _Asked
    from tidecast.node.durable_topic import DurableTopic

RIVAL_S = 1.0
"""How long a new session waits for an older one that somebody still uses."""
MEET_S = 2.0
"""How long it waits for rings of other nodes, which announce themselves once a second, when the
topic's owner has just begun."""


def comes_later(asked: _Asked, waiting: Iterable[_Asked]) -> bool:
    """Does another session of its producer wait, too, which says where it begins?

    Such a one goes on with what a crash of its engine left, and is the older one: if it began
    last, it would fence the one whose client came after it.
    """
    return not asked.block.first_seq and any(
        other.block.first_seq
        and other.block.id == asked.block.id
        and other.topic == asked.topic
        and other.setup.session != asked.setup.session
        for other in waiting
    )


class Grants:
    """See module."""

    def __init__(self, durable: Durable) -> None:
        self.durable = durable

    def ready(self, topic: DurableTopic, producer: int, waited_s: float, session: int = 0) -> bool:
        """May ``session`` (of a ring) begin, which has waited so long?"""
        found = topic.producers.known.get(producer)
        if found is None:
            return True
        rivals = [s for s in self._sources(found) if s.session != session]
        if rivals and self._disk_refuses(topic):
            return False  # what was read waits for it, and could not be had again
        if self.torn(topic, found):
            return False
        late = waited_s >= RIVAL_S
        if self._now_s - self.durable.remote.granted_s(found, session) < RIVAL_S:
            return late  # it may begin any moment
        if not found.met and topic.config.owner:
            return self._now_s - topic.opened_s >= MEET_S
        return late or all(not each.image or self._drained(each) for each in rivals)

    def torn(self, topic: DurableTopic, producer: Producer) -> bool:
        """Does something below its last sequence still have to come?"""
        if not producer.torn_seq:
            return False
        sources = self._sources(producer)
        heard_s = topic.opened_s
        for source in sources:
            record = self.durable.runtime.state.sources[source.slot]
            if record["first_seq"] + record["a_count"] > producer.torn_seq:
                producer.torn_seq = 0
                return False
            heard_s = max(heard_s, self._heard_s(source))
        patience_s = self.durable.node.topology.node.image_timeout_s
        if not topic.config.owner and not sources:
            patience_s = 0.0  # rings of other nodes are not for us, and ours were there at once
        if self._now_s - heard_s < patience_s:
            return True
        self._tell_hole(topic, producer)
        producer.torn_seq = 0
        return False

    def _tell_hole(self, topic: DurableTopic, producer: Producer) -> None:
        node, name = self.durable.node, topic.config.name
        first, end = producer.acked_seq + 1, producer.torn_seq
        node.counters.values[self.durable.row_of(name, 0), C.PRODUCER_HOLES] += 1
        node.note(rec.ALERT, rec.Code.PRODUCER_HOLE, topic.config.wire_id, producer.id, first, end)
        self.durable.tell(
            ev.ProducerHole(topic=name, producer=f"{producer.id:x}", first=first, end=end)
        )

    def whole(self, topic: DurableTopic) -> bool:
        """Nothing that was half appended is missing: keys may be mapped to other queues."""
        return not any(self.torn(topic, each) for each in topic.producers.known.values())

    @property
    def _now_s(self) -> float:
        return self.durable.node.clock_ns() / 1e9

    def _sources(self, producer: Producer) -> list[ds.Source]:
        return [s for s in self.durable.sources.values() if s.producer is producer]

    def _disk_refuses(self, topic: DurableTopic) -> bool:
        return bool(self.durable.runtime.state.topics[topic.slot]["errno"])

    def _drained(self, source: ds.Source) -> bool:
        return bool(self.durable.runtime.state.sources[source.slot]["told_drained"])

    def _heard_s(self, source: ds.Source) -> float:
        """When a source was heard of; one of this node is there."""
        image = self.durable.node.images_by_id.get(source.image)
        if image is None:
            return self._now_s
        if image.slot < 0:
            return image.gone_s
        return int(image.runtime.rx_state.images[image.slot]["heard_ns"]) / 1e9
