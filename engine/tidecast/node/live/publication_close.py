"""The end of a publication whose topic is deleted or made anew, and what no publication sent.

Its writer is told first (`PublicationEnded`): it closes the ring behind the last message that it
took, and the sender drains that. A writer that does not within `ENDING_PATIENCE_S` has its ring
closed, and kept until it has learnt of that: what it added is counted then. What any ring holds
unsent when it goes is counted and told, whatever the reason.

A subscription whose topic is deleted gets no publication more. It is told (`SubscriptionEnded`)
once those of this node that it reads are closed, so that it has all that was published before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidecast import events as ev
from tidecast.buffers.ring_file import messages_between
from tidecast.buffers.writer import close_abandoned
from tidecast.errors import Closed, ConnectionLost
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.layout.counters import NodeCounter
from tidecast.native.packing import unpack_from
from tidecast.node.live import agent_tables, sessions

if TYPE_CHECKING:
    from tidecast.node.node import Node
    from tidecast.node.state import Publication, Subscription

ENDING_PATIENCE_S = 2.0


def end_publication(node: Node, publication: Publication, reason: ev.PublicationEnded) -> None:
    """Let a publication end: its writer closes it, and what was published is sent."""
    if publication.topic.mode == "durable":
        close_publication(node, publication)
    elif publication.ending_s == 0.0:
        publication.ending_s = node.clock_ns() / 1e9 + ENDING_PATIENCE_S
    node.tell(publication.client, reason)


def close_publication(node: Node, publication: Publication) -> None:
    """Close the ring (if its writer did not) and let sender and readers drain it. Idempotent."""
    if publication.closing:
        return
    publication.closing, publication.closed_s = True, node.clock_ns() / 1e9
    close_abandoned(publication.mapped.array, node.bells, publication.about().slots)
    node.durable.remote.say_left(publication)
    topic, session = publication.topic.name, publication.session
    for subscription_id in publication.readers:
        node.tell_gone(subscription_id, publication.id, topic, node.name, session, "closed")
    for subscription in node.ending_subs.values():
        tell_ended(node, subscription)
    if publication.runtime is None or not publication.begun:
        publication.drained = True
    node.look_after(publication)


def end_subscription(node: Node, subscription: Subscription) -> None:
    """Let a subscription end: its client reads what is there, and closes it."""
    node.ending_subs[subscription.id] = node.subs.pop(subscription.id)
    node.wanted.unsubscribed(subscription)
    tell_ended(node, subscription)


def tell_ended(node: Node, subscription: Subscription) -> None:
    """Tell a client that a subscription has ended, when no publication here adds to its rings."""
    pubs = node.pubs.of("topic", subscription.pattern)  # patterns do not end with a topic
    reading = [p for p in pubs if subscription.id in p.readers and not p.closing]
    if reading or subscription.told:
        return
    subscription.told = True
    topic = subscription.pattern
    node.tell(
        subscription.client,
        ev.SubscriptionEnded(
            subscription_id=subscription.id, pattern=topic, code=Closed.code,
            reason=f"topic {topic}: it was deleted: subscribe again once it is there",
        ),
    )  # fmt: skip


def close_ending(node: Node, publication: Publication, now_s: float) -> None:
    """See whether the writer has closed its ring, or had its time."""
    if publication.closing or publication.ending_s == 0.0:
        return
    if publication.about().closed or now_s > publication.ending_s:
        close_publication(node, publication)


def tell_unsent(node: Node, publication: Publication, sent: int) -> int:
    """Count and tell what a live publication leaves unsent; how many messages.

    ``sent``: next packet; -1: no network. Without a network it is what was written behind its end,
    which no reader waits for.
    """
    if publication.topic.mode == "durable":
        return 0
    ring, head = publication.mapped.array, publication.about().head
    if sent < 0:
        closed, end = (
            unpack_from("<q", ring, lay.CLOSED_AT),
            unpack_from("<q", ring, lay.END_SEQ_AT),
        )
        sent = end[0] if closed[0] else head
    found = messages_between(ring, publication.about(), sent, head)
    if found.messages == 0:
        return 0
    row = node.counters.values[node.node_row]
    row[NodeCounter.PUBLICATIONS_CUT] += 1
    row[NodeCounter.PACKETS_CUT] += found.packets
    row[NodeCounter.MESSAGES_CUT] += found.messages
    row[NodeCounter.BYTES_CUT] += found.bytes
    node.note(rec.ALERT, rec.Code.PUBLICATION_CUT, publication.session, *found)
    node.tell_all(
        ev.MessagesUnsent(
            topic=publication.topic.name, session=publication.session, messages=found.messages,
            bytes=found.bytes,
        )
    )  # fmt: skip
    return found.messages


def remove_from_sender(node: Node, publication: Publication) -> int:
    """Take a publication off its sender; the packet that it would have sent next, or -1."""
    runtime, p = publication.runtime, publication.slot
    if runtime is None or p < 0:
        given = publication.continues
        return -1 if runtime is None or given is None else given.sent
    agent_tables.remove_publication(node, publication)
    return int(runtime.tx_state.pubs[p]["sent"])


def end_dependents(node: Node, agent: str, problem: Exception) -> None:
    """An agent fails again and again: its publishers and subscribers learn of it, and do not wait.

    Publishers raise ConnectionLost; to subscribers their publishers are gone.
    """
    for name, runtime in node.runtimes.items():
        if agent == f"sender-{name}":
            for publication in [p for p in node.pubs.values() if p.runtime is runtime]:
                reason = (
                    f"the engine's {agent} fails again and again ({type(problem).__name__}: "
                    f"{problem}): restart the engine, and report its log"
                )
                node.tell(
                    publication.client,
                    ev.PublicationEnded(
                        topic=publication.topic.name, session=publication.session,
                        code=ConnectionLost.code, reason=reason,
                    ),
                )  # fmt: skip
        elif agent == f"receiver-{name}":
            for image in [i for i in node.images_by_id.values() if i.runtime is runtime]:
                sessions.image_gone(node, image, "failed")
