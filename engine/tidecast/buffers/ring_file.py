"""A ring's file as Python sees it: create, open, describe, add and remove consumers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tidecast.errors import Conflict, SharedMemoryError
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.native.mapped import Bytes, MappedFile
from tidecast.native.packing import pack_into, unpack_from

_FOR_AGENTS = lay.HEADER_CONSUMERS - lay.AGENT_CONSUMERS
"""The first entry that a header with a tail keeps for agents."""


@dataclass(frozen=True, slots=True)
class RingInfo:
    """The header of a ring. Sequences are packet sequences."""

    kind: int
    slots: int
    slot_bytes: int
    session: int
    topic: int
    node: int
    channel: int
    flow: int
    reliability: int
    has_network: bool
    incarnation: int
    head: int
    first: int
    contiguous: int
    base: int
    closed: bool
    node_name: str
    topic_name: str
    tail: bool


def create_ring(
    path: Path,
    *,
    kind: int,
    slots: int,
    slot_bytes: int,
    session: int,
    topic: int,
    node: int,
    channel: int,
    flow: int,
    reliability: int,
    has_network: bool,
    incarnation: int,
    created_ns: int = 0,
    first: int = 0,
    node_name: str = "",
    topic_name: str = "",
    tail: bool = False,
) -> MappedFile:
    """Create a ring's file. ``slots``: a power of two; ``first``: first packet it will hold.

    ``created_ns``: time of day, 0: of the host. ``tail``: with entries for many consumers, which
    builds of level 1 cannot read.
    """
    assert slots & (slots - 1) == 0 and lay.SLOTS_MIN <= slots <= lay.SLOTS_MAX, slots
    assert wire.PACKET_HEADER_BYTES < slot_bytes <= wire.PACKET_BYTES_MAX, slot_bytes
    mapped = MappedFile.create(path, lay.ring_bytes(slots, slot_bytes, tail=tail))
    ring = mapped.array
    put = pack_into
    put("<III", ring, lay.KIND_AT, kind, slots, slot_bytes)
    put(
        "<IHHBBBB",
        ring,
        lay.SESSION_AT,
        session,
        topic,
        node,
        channel,
        flow,
        reliability,
        int(has_network),
    )
    put("<qq", ring, lay.INCARNATION_AT, incarnation, created_ns or time.time_ns())
    put("<qq", ring, lay.HEAD_AT, first, first)
    put("<qq", ring, lay.NETWORK_LIMIT_AT, first + slots // 2, first)
    put("<qqq", ring, lay.HIGHEST_AT, first, first, first)
    for at, name in ((lay.NODE_NAME_AT, node_name), (lay.TOPIC_NAME_AT, topic_name)):
        raw = name.encode()[: wire.NAME_BYTES_MAX]
        put(f"<B{len(raw)}s", ring, at, len(raw), raw)
    # An empty slot must not look like packet 0: control words start one lap behind.
    words = ring[lay.HEADER_BYTES : lay.HEADER_BYTES + slots * 8].view(np.int64)
    seqs = np.arange(first, first + slots, dtype=np.int64)
    words[seqs & (slots - 1)] = ((seqs - slots) & lay.SEQ_MASK) << lay.SEQ_SHIFT
    put("<Q", ring, lay.MAGIC_AT, lay.MAGIC_WITH_TAIL if tail else lay.MAGIC)
    return mapped


def describe(ring: Bytes) -> RingInfo:
    """Read and check a ring's header. Raises SharedMemoryError when it is not a sound ring."""
    if ring.size < lay.HEADER_BYTES:
        raise SharedMemoryError(f"not a ring: {ring.size} bytes")
    get = unpack_from
    (magic,) = get("<Q", ring, lay.MAGIC_AT)
    if magic not in (lay.MAGIC, lay.MAGIC_WITH_TAIL):
        raise SharedMemoryError("not a ring of this version: wrong magic number")
    kind, slots, slot_bytes = get("<III", ring, lay.KIND_AT)
    session, topic, node, channel, flow, reliability, network = get(
        "<IHHBBBB", ring, lay.SESSION_AT
    )
    sound = (
        lay.SLOTS_MIN <= slots <= lay.SLOTS_MAX
        and slots & (slots - 1) == 0
        and wire.PACKET_HEADER_BYTES < slot_bytes <= wire.PACKET_BYTES_MAX
        and ring.size >= lay.ring_bytes(slots, slot_bytes, tail=magic == lay.MAGIC_WITH_TAIL)
    )
    if not sound:
        raise SharedMemoryError(f"damaged ring: {slots} slots of {slot_bytes} in {ring.size} bytes")
    head, first = get("<qq", ring, lay.HEAD_AT)
    _, contiguous, base = get("<qqq", ring, lay.HIGHEST_AT)
    return RingInfo(
        kind=kind,
        slots=slots,
        slot_bytes=slot_bytes,
        session=session,
        topic=topic,
        node=node,
        channel=channel,
        flow=flow,
        reliability=reliability,
        has_network=bool(network),
        incarnation=get("<q", ring, lay.INCARNATION_AT)[0],
        head=head,
        first=first,
        contiguous=contiguous,
        base=base,
        closed=bool(get("<q", ring, lay.CLOSED_AT)[0]),
        node_name=_name(ring, lay.NODE_NAME_AT),
        topic_name=_name(ring, lay.TOPIC_NAME_AT),
        tail=magic == lay.MAGIC_WITH_TAIL,
    )


def _name(ring: Bytes, at: int) -> str:
    n = min(int(ring[at]), wire.NAME_BYTES_MAX)
    return bytes(ring[at + 1 : at + 1 + n]).decode(errors="replace")


def add_consumer(
    ring: Bytes,
    *,
    position: int,
    client: int,
    doorbell: int,
    subscription: int,
    tethered: bool,
    offset: int = 0,
) -> int:
    """Claim a consumer entry, in the conductor's thread. Returns its index.

    ``subscription``: its id; below 1 the entry is an agent's. Raises Conflict when all entries that
    it may have are taken.
    """
    allowed = _entries(ring)
    if allowed > lay.HEADER_CONSUMERS and subscription > 0:
        places = [*range(_FOR_AGENTS), *range(lay.HEADER_CONSUMERS, allowed)]
    else:
        places = [*range(lay.HEADER_CONSUMERS)]
    for i in places:
        entry = consumer_entry(ring, i)
        if entry[lay.CONSUMER_STATE_AT // 8] != lay.CONSUMER_FREE:
            continue
        entry[lay.CONSUMER_POSITION_AT // 8] = position
        entry[lay.CONSUMER_CLIENT_AT // 8] = client
        entry[lay.CONSUMER_DOORBELL_AT // 8] = doorbell
        entry[lay.CONSUMER_SUBSCRIPTION_AT // 8] = subscription
        entry[lay.CONSUMER_TETHERED_AT // 8] = int(tethered)
        entry[lay.CONSUMER_OFFSET_AT // 8] = offset
        entry[lay.CONSUMER_ARMED_AT // 8] = 0
        entry[lay.CONSUMER_STATE_AT // 8] = lay.CONSUMER_ACTIVE
        used = ring[lay.CONSUMERS_USED_AT : lay.CONSUMERS_USED_AT + 8].view(np.int64)
        used[0] = max(int(used[0]), i + 1)
        return i
    raise Conflict(f"a ring serves at most {len(places)} subscriptions on one node")


def _entries(ring: Bytes) -> int:
    """How many consumer entries a ring has."""
    tail = unpack_from("<Q", ring, lay.MAGIC_AT) == (lay.MAGIC_WITH_TAIL,)
    return lay.CONSUMERS_MAX if tail else lay.HEADER_CONSUMERS


def consumer_at(ring: Bytes, index: int) -> int:
    """Offset of a consumer entry. Raises SharedMemoryError: the file has no room for it."""
    if 0 <= index < lay.HEADER_CONSUMERS:
        return lay.CONSUMERS_AT + index * lay.CONSUMER_BYTES
    at = ring.size - (lay.CONSUMERS_MAX - index) * lay.CONSUMER_BYTES
    if not lay.HEADER_BYTES <= at <= ring.size - lay.CONSUMER_BYTES:
        raise SharedMemoryError(f"consumer {index}: a ring of {ring.size} bytes has no such entry")
    return at


def consumer_entry(ring: Bytes, index: int) -> np.ndarray:
    """A consumer entry as int64[8]. Raises SharedMemoryError: the file has no room for it."""
    at = consumer_at(ring, index)
    return ring[at : at + lay.CONSUMER_BYTES].view(np.int64)


def remove_consumer(ring: Bytes, index: int) -> None:
    """Free a consumer entry."""
    consumer_entry(ring, index)[lay.CONSUMER_STATE_AT // 8] = lay.CONSUMER_FREE


def consumers(ring: Bytes) -> list[tuple[int, np.ndarray]]:
    """(index, entry as int64[8]) of every entry that is not free."""
    (used,) = unpack_from("<q", ring, lay.CONSUMERS_USED_AT)
    entries = [(i, consumer_entry(ring, i)) for i in range(min(used, _entries(ring)))]
    return [(i, entry) for i, entry in entries if entry[0] != lay.CONSUMER_FREE]


def tethered_readers(ring: Bytes) -> int:
    """How many subscriptions hold a ring's writer back."""
    return sum(
        int(entry[lay.CONSUMER_STATE_AT // 8]) == lay.CONSUMER_ACTIVE
        and int(entry[lay.CONSUMER_TETHERED_AT // 8]) != 0
        and int(entry[lay.CONSUMER_SUBSCRIPTION_AT // 8]) > 0
        for _, entry in consumers(ring)
    )


class Held(NamedTuple):
    """The contents of a part of a ring."""

    packets: int
    messages: int
    bytes: int


def messages_between(
    ring: Bytes, about: RingInfo, first: int, end: int, offset: int = wire.PACKET_HEADER_BYTES
) -> Held:
    """Messages that end in packets [first, end) of a ring, whatever its writer made of it.

    ``offset``: those of packet ``first`` begin there.
    """
    begin, first = first, max(first, end - about.slots, 0)
    packets = messages = size = 0
    for seq in range(first, end):
        (word,) = unpack_from("<q", ring, lay.HEADER_BYTES + (seq & (about.slots - 1)) * 8)
        if (word >> lay.SEQ_SHIFT) & lay.SEQ_MASK != seq & lay.SEQ_MASK:
            continue
        at = lay.slots_at(about.slots) + (seq & (about.slots - 1)) * about.slot_bytes
        stop = at + min(word & lay.CONTROL_LENGTH_MASK, about.slot_bytes)
        at += offset if seq == begin else wire.PACKET_HEADER_BYTES
        packets += at < stop
        while at + wire.MESSAGE_HEADER_BYTES <= stop:
            (head,) = unpack_from("<I", ring, at)
            at += wire.MESSAGE_HEADER_BYTES + (head & wire.MESSAGE_LENGTH_MAX)
            messages += bool(head >> 24 & wire.END)
            size += head & wire.MESSAGE_LENGTH_MAX
    return Held(packets, messages, size)


def copy_packets(old: Bytes, new: Bytes) -> None:
    """Copy the packets of a ring to a ring of the same geometry, slot by slot. Both are checked."""
    about = describe(old)
    n = min(about.head, about.slots)
    for at, end in (
        (lay.slots_at(about.slots), lay.slots_at(about.slots) + n * about.slot_bytes),
        (lay.HEADER_BYTES, lay.HEADER_BYTES + n * 8),
    ):
        new[at:end] = old[at:end]
