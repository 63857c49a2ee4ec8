"""What durable topics need now and then: retention and gauges. With the node's lock held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidecast import events as ev
from tidecast.layout import recorder as rec
from tidecast.layout.counters import QueueCounter as C
from tidecast.node.durable_topic import DurableTopic

if TYPE_CHECKING:
    from tidecast.node.durable import Durable


def retain(durable: Durable, topic: DurableTopic, now_ns: int) -> None:
    """Delete what retention has no room for."""
    name = topic.config.name
    for queue, segments in topic.retain(
        lambda name, queue: _position(durable, name, queue), now_ns
    ):
        earliest = topic.logs[queue].earliest_token
        row = durable.rows[name, queue]
        durable.node.counters.values[row, C.SEGMENTS_DELETED] += segments
        durable.node.note(
            rec.LOW, rec.Code.SEGMENTS_DELETED, topic.config.wire_id, queue, segments, earliest
        )
        durable.tell(
            ev.SegmentsDeleted(topic=name, queue=queue, segments=segments, earliest_token=earliest)
        )


def _position(durable: Durable, topic: str, queue: int) -> int | None:
    held = [each(topic, queue) for each in durable.positions]
    tokens = [token for token in held if token is not None]
    return min(tokens) if tokens else None


def gauges(durable: Durable, topic: DurableTopic) -> None:
    """Bring a topic's gauges up to date."""
    for log in topic.logs:
        values = durable.node.counters.values[durable.rows[topic.config.name, log.queue]]
        values[C.NEXT_TOKEN], values[C.DURABLE_TOKEN] = log.next_token, log.durable_token
        values[C.EARLIEST_TOKEN], values[C.LOG_BYTES] = log.earliest_token, log.bytes
        values[C.SEGMENTS] = len(log.segments)
        values[C.PRODUCERS] = len(topic.producers.known)
        values[C.PRODUCERS_EXPIRED] = topic.producers.expired
