"""A live publication whose engine ended continues at the next one: same session, same packets.

Its publisher still maps the ring that the old engine made. It gets a new ring of the same geometry,
copies the old one into it packet by packet, and begins. So subscriptions, here and at other nodes,
resume where they were; unsent packets are sent; and packets that a receiver misses are repaired
from the history. Subscriptions of this node that have yet to come back hold the writer back for a
while.

An engine that stops in order leaves such publications open, so that receivers do not end them, and
sends the rest of their rings as long as its time allows.
"""

from __future__ import annotations

from tidecast.api.link import AGE_S_MAX, Continued, PublicationOptions
from tidecast.buffers.ring_file import RingInfo, add_consumer, messages_between, remove_consumer
from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError
from tidecast.layout import ring as lay
from tidecast.native.packing import pack_into
from tidecast.node.context import NodeContext
from tidecast.node.state import Client, Held, Publication

REJOIN_S = 3.0
"""A client that lost its engine looks for the next one each second at least."""
REJOINING = -1
"""Subscription id of the entry that holds a continued publication's writer back."""
_SEQ_MAX = 1 << 60
REPAIR_NS = 20_000_000
"""After its last packet a ring is looked after for so long, for receivers that miss some of it."""


def accepted(
    ctx: NodeContext, client: Client, config: TopicConfig, options: PublicationOptions, slots: int
) -> Continued | None:
    """The session that a new publication may continue; None: it gets a new session.

    Raises ConfigError for numbers that no ring has.
    """
    given = options.continues
    if given is None or not client.outlives or config.mode == "durable":
        return None
    _check(given)
    transport = ctx.topology.transport(config.transport)
    same = (given.topic, given.slots, given.slot_bytes) == (
        config.wire_id,
        slots,
        transport.packet_bytes,
    )
    taken = any(p.session == given.session for p in ctx.pubs.values())
    # This engine has closed the ring itself, and notified receivers.
    return given if same and not taken and given.incarnation != ctx.incarnation else None


def _check(given: Continued) -> None:
    """Raise ConfigError for numbers that no ring has."""
    low = max(given.first, given.head - given.slots)
    ranges = {
        "session": (1, (1 << 31) - 1),
        "slots": (lay.SLOTS_MIN, lay.SLOTS_MAX),
        "readers": (0, lay.CONSUMERS_MAX),
        "first": (0, _SEQ_MAX),
        "head": (given.first, _SEQ_MAX),
        "sent": (low, given.head),
        "age_s": (0.0, AGE_S_MAX),
    }
    for field, (least, most) in ranges.items():
        value = getattr(given, field)
        if not least <= value <= most:
            raise ConfigError(f"continues.{field}: {value}: allowed {least}..{most}")


def prepare(publication: Publication, given: Continued) -> None:
    """Make a new ring continue ``given``: its client writes the packets."""
    ring = publication.mapped.array
    pack_into("<qq", ring, lay.HEAD_AT, given.head, given.first)
    pack_into("<qq", ring, lay.NETWORK_LIMIT_AT, given.sent + given.slots // 2, given.sent)
    publication.continue_session(given)


def hold(ctx: NodeContext, publication: Publication) -> None:
    """Let subscriptions of this node come back before the writer can overrun them."""
    if publication.continues is None or publication.continues.readers == 0:
        return
    entry = add_consumer(
        publication.mapped.array,
        position=publication.about().head,
        client=0,
        doorbell=-1,
        subscription=REJOINING,
        tethered=True,
    )
    until_s = ctx.now_s() + REJOIN_S
    publication.hold(Held(entry, until_s, publication.continues.readers))


def rejoined(publication: Publication) -> None:
    """A subscription is back."""
    if publication.held is not None:
        publication.held.rejoin()
        release(publication, 0.0)


def release(publication: Publication, now_s: float) -> None:
    """Hold the writer back no more once all are back, or had their time."""
    held = publication.held
    if held is not None and (held.missing <= 0 or now_s >= held.until_s):
        remove_consumer(publication.mapped.array, held.entry)
        publication.hold(None)


def resumed(about: RingInfo, kept: int) -> int:
    """Where a subscription continues that wants packet ``kept``: there, or at the oldest held."""
    return min(max(kept, about.first, about.head - about.slots), about.head)


# --- the engine stops -----------------------------------------------------------------------------


def leave_open(ctx: NodeContext) -> None:
    """From now on publications of clients that outlive this engine are theirs alone."""
    for publication in ctx.pubs.values():
        client = ctx.clients.get(publication.client)
        if client is None or not client.outlives or publication.closing:
            continue
        if publication.topic.mode != "durable":
            publication.leave_open()
            pack_into("<q", publication.mapped.array, lay.LINGER_AT, 0)  # send the open packet


def is_sent(ctx: NodeContext, publication: Publication) -> bool:
    """All that a ring holds is sent, and repairs had some time."""
    runtime, p = publication.runtime, publication.slot
    if runtime is None or p < 0:
        return True
    record = runtime.tx_state.pubs[p]
    head = publication.about().head
    if messages_between(publication.mapped.array, publication.about(), int(record["sent"]), head)[
        1
    ]:
        return False
    return bool(record["resends"] == 0 and ctx.clock_ns() - record["data_ns"] > REPAIR_NS)
