"""Creating, editing and deleting topics of a running node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tidecast.config import TopicConfig
from tidecast.errors import Conflict, NotFound
from tidecast.layout import recorder as rec
from tidecast.node import sessions, tables
from tidecast.protocol.dedup import Session

if TYPE_CHECKING:
    from tidecast.node.node import Node


def create_topic(node: Node, topic: TopicConfig) -> None:
    """Add a topic."""
    with node.lock:
        if topic.name in node.topic_by_name:
            raise Conflict(f"topic {topic.name} exists already")
        transport = node.topology.transport(topic.transport).name
        topic = msgspec.structs.replace(topic, transport=transport)
        for other in node.topic_by_name.values():
            if other.transport == transport and other.wire_id == topic.wire_id:
                raise Conflict(
                    f"topics.id: {topic.wire_id}: used by topic {other.name} on transport "
                    f"{transport}: give {topic.name} another id"
                )
        if topic.mode == "durable":
            node.durable.open_topic(topic)
        node.topic_by_name[topic.name] = topic
        sessions.update_wanted(node)


def edit_topic(node: Node, name: str, changes: dict[str, Any]) -> None:
    """Change a topic; rates and linger hold at once, also for publications that run."""
    with node.lock:
        if name not in node.topic_by_name:
            raise NotFound(f"no topic {name}")
        topic = msgspec.structs.replace(node.topic_by_name[name], **changes)
        if topic.mode == "durable":
            node.durable.edit_topic(topic)
        node.topic_by_name[name] = topic
        for publication in node.pubs.values():
            if publication.topic.name == name:
                publication.topic = topic
                tables.set_live(
                    publication.mapped.array,
                    topic.rate_packets_per_s,
                    topic.rate_bytes_per_s,
                    topic.linger_us,
                )
        node.note(
            rec.LOW,
            rec.Code.RATE_CHANGED,
            topic.wire_id,
            topic.rate_packets_per_s,
            topic.rate_bytes_per_s,
        )


def delete_topic(node: Node, name: str, *, keep_data: bool) -> None:
    """Remove a topic; its publications and subscriptions by that exact name end.

    What a durable topic has on disk goes with it, unless ``keep_data``.
    """
    with node.lock:
        if name not in node.topic_by_name:
            raise NotFound(f"no topic {name}")
        for publication in list(node.pubs.values()):
            if publication.topic.name == name:
                node.close_publication(publication.client, publication.id)
        for subscription in list(node.subs.values()):
            if subscription.pattern == name:
                node.close_subscription(subscription.client, subscription.id)
        if node.topic_by_name[name].mode == "durable":
            node.durable.close_topic(name, keep_data=keep_data)
        del node.topic_by_name[name]
        sessions.update_wanted(node)


def session_of(session: Session | None, owner: str) -> dict[str, Any]:
    """What a grant says of a producer's session."""
    if session is None:
        return {}
    return {
        "durable": True, "producer_id": session.producer.id, "epoch": session.epoch,
        "first_seq": session.first_seq, "acked_seq": session.acked_seq,
        "last_seq": session.last_seq, "owner": "" if session.epoch else owner,
    }  # fmt: skip
