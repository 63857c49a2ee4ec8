"""Creating, editing and deleting topics of a running node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tidecast import events as ev
from tidecast.config.topology import TopicConfig, TransportConfig
from tidecast.errors import Closed, Conflict, NotFound, TidecastError
from tidecast.layout import recorder as rec
from tidecast.node.live import agent_tables, sessions
from tidecast.node.live.publication_close import end_publication, end_subscription
from tidecast.protocol.dedup import Session

if TYPE_CHECKING:
    from tidecast.node.node import Node
    from tidecast.node.state import Publication


AT_ONCE_MAX = 256
"""So many topics are made or removed before others may take the node's lock."""


def create_topic(node: Node, topic: TopicConfig) -> None:
    """Add a topic."""
    for problem in create_topics(node, [topic]).values():
        raise problem


def create_topics(node: Node, wanted: Sequence[TopicConfig]) -> dict[str, TidecastError]:
    """Add topics; by name, what kept some of them from being added."""
    failed: dict[str, TidecastError] = {}
    for first in range(0, len(wanted), AT_ONCE_MAX):
        with node.lock:
            some = wanted[first : first + AT_ONCE_MAX]
            taken = _given_ids(node) if any(topic.id is not None for topic in some) else {}
            for topic in some:
                try:
                    _add(node, topic, taken)
                except TidecastError as problem:
                    failed[topic.name] = problem
    if wanted:
        with node.lock:
            sessions.update_wanted(node, [topic.name for topic in wanted])
    return failed


def _given_ids(node: Node) -> dict[tuple[str, int], str]:
    topics = node.topic_by_name.values()
    return {(t.transport, t.id): t.name for t in topics if t.id is not None}


def _add(node: Node, topic: TopicConfig, taken: dict[tuple[str, int], str]) -> None:
    if topic.name in node.topic_by_name:
        raise Conflict(f"topic {topic.name} exists already")
    node.consumers.attached.check_writable(topic.name)
    transport = node.topology.transport(topic.transport).name
    topic = msgspec.structs.replace(topic, transport=transport)
    other = taken.get((transport, topic.id)) if topic.id is not None else None
    if other is not None:
        raise Conflict(
            f"topics.id: {topic.id}: used by topic {other} on transport "
            f"{transport}: give {topic.name} another id"
        )
    if topic.mode == "durable":
        node.durable.open_topic(topic)
    node.topic_by_name[topic.name] = topic
    if topic.id is not None:
        taken[transport, topic.id] = topic.name


def edit_topic(node: Node, name: str, changes: dict[str, Any]) -> None:
    """Change a topic; rates and linger hold at once, also for publications that run."""
    with node.lock:
        if name not in node.topic_by_name:
            raise NotFound(f"no topic {name}")
        topic = msgspec.structs.replace(node.topic_by_name[name], **changes)
        if topic.mode == "durable":
            node.durable.edit_topic(topic)
        node.topic_by_name[name] = topic
        for publication in node.pubs.of("topic", name):
            publication.topic = topic
            agent_tables.set_live(
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

    What a durable topic has on disk goes with it, unless ``keep_data``: it is made anew then, and
    who reads it reads on.
    """
    found = delete_topics(node, [name], keep_data=keep_data, keep_readers=keep_data)
    for problem in found.values():
        raise problem


def delete_topics(
    node: Node, names: Sequence[str], *, keep_data: bool, keep_readers: bool = False
) -> dict[str, TidecastError]:
    """The same for many; by name, what kept some of them from being removed.

    ``keep_readers``: the topics are made anew at once, and who reads them reads on.
    """
    failed: dict[str, TidecastError] = {}
    for first in range(0, len(names), AT_ONCE_MAX):
        with node.lock:
            for name in names[first : first + AT_ONCE_MAX]:
                try:
                    _remove(node, name, keep_data=keep_data, keep_readers=keep_readers)
                except TidecastError as problem:
                    failed[name] = problem
    if names:
        with node.lock:
            sessions.update_wanted(node, names)
    return failed


def _remove(node: Node, name: str, *, keep_data: bool, keep_readers: bool) -> None:
    if name not in node.topic_by_name:
        raise NotFound(f"no topic {name}")
    for publication in node.pubs.of("topic", name):
        end_publication(node, publication, _ended(publication))
    for subscription in () if keep_readers else node.subs.of("pattern", name):
        end_subscription(node, subscription)
    if node.topic_by_name[name].mode == "durable":
        node.durable.close_topic(name, keep_data=keep_data)
    del node.topic_by_name[name]


def _ended(publication: Publication) -> ev.PublicationEnded:
    """What its writer published so far is sent, see `endings`."""
    name = publication.topic.name
    return ev.PublicationEnded(
        topic=name, session=publication.session, code=Closed.code,
        reason=f"topic {name}: it was deleted or made anew: open another publisher",
    )  # fmt: skip


def tell_unheard(node: Node, publication: Publication, transport: TransportConfig) -> None:
    """Tell a publisher whose transport has nobody to send to."""
    if transport.sends_to_nobody:
        event = ev.PublisherUnheard(
            topic=publication.topic.name, session=publication.session, transport=transport.name,
            mend=f"transport {transport.name} has no peers: only this engine gets what is "
            f"published; name the others in its peers: [other-host:{transport.port}]",
        )  # fmt: skip
        node.tell(publication.client, event)


def session_of(session: Session | None, owner: str) -> dict[str, Any]:
    """What a grant says of a producer's session."""
    if session is None:
        return {}
    return {
        "durable": True, "producer_id": session.producer.id, "epoch": session.epoch,
        "first_seq": session.first_seq, "acked_seq": session.acked_seq,
        "last_seq": session.last_seq, "owner": "" if session.epoch else owner,
    }  # fmt: skip
