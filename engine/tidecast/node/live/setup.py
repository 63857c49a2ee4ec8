"""SETUP packets: publications of this node encoded, of other nodes decoded."""

from __future__ import annotations

from dataclasses import dataclass

from tidecast.buffers.ring_file import describe
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.native.packing import pack_into, unpack_from
from tidecast.node.context import NodeContext
from tidecast.node.state import Publication, is_own


@dataclass(frozen=True, slots=True)
class ProducerBlock:
    """A producer's session on a durable topic that its own node does not keep; checked, too."""

    id: int
    epoch: int
    first_seq: int
    packet: int
    offset: int
    count: int
    line: int = 0
    after: int = 0
    older_ns: int = 0


@dataclass(frozen=True, slots=True)
class Setup:
    """A SETUP packet, decoded (the receiver has checked its lengths)."""

    session: int
    topic_id: int
    channel: int
    source: int
    next_seq: int
    incarnation: int
    age_ns: int
    oldest: int
    slots: int
    packet_bytes: int
    group: int
    """Receivers of the session."""
    flow: int
    reliability: int
    node: str
    topic: str
    address_words: tuple[int, int]
    producer: ProducerBlock | None = None
    left: bool = False
    """The publisher is gone: the messages of its ring are repeated."""
    round_trip_ns: int = 0
    sampling: int = 0
    """Low bits of a receiver's id that are zero if it reports."""
    platform: str = ""
    """Of the sender; "": it names none."""
    published: int = -1
    """Messages that the publisher's ring has held in all; -1: the sender writes level 1."""
    of_engine: bool = False
    """The sender's engine itself publishes."""
    critical: int = 0
    """Type of a further field that this build must know, and does not; 0: none."""
    received_ns: int = 0
    """When it came, by the node's clock: the conductor may handle it much later."""


LEVEL_OF_AREA = 2
"""The first level whose SETUPs have an area of further fields."""


def decode_setup(raw: bytes, address_words: tuple[int, int]) -> Setup:
    """Decode a checked SETUP packet."""
    _, _, flags, channel, session, topic, _, _, source, seq, _ = unpack_from("<BBBBIHHHHqq", raw)
    incarnation, age, oldest = unpack_from("<qqq", raw, wire.SETUP_INCARNATION_AT)
    slots, size, receivers, flow, reliability, node_n, topic_n, round_trip, sampling, tag_n = (
        unpack_from("<IHHBBBBHBB", raw, wire.SETUP_SLOTS_AT)
    )
    names = raw[wire.SETUP_NAMES_AT :]
    end = len(names) - tag_n
    names, tag = (names[:end], names[end:]) if end >= node_n + topic_n else (names, b"")
    behind = names[node_n + topic_n :]
    fields = _area(behind, flags)
    return Setup(
        session,
        topic,
        channel,
        source,
        seq,
        incarnation,
        age,
        oldest,
        slots,
        size,
        receivers << sampling,
        flow,
        reliability,
        names[:node_n].decode(errors="replace"),
        names[node_n : node_n + topic_n].decode(errors="replace"),
        address_words,
        _producer_block(behind) if flags & wire.FLAG_PRODUCER else None,
        bool(flags & wire.FLAG_LEFT),
        round_trip * wire.ROUND_TRIP_UNIT_NS,
        sampling,
        tag.hex() if tag_n == wire.PLATFORM_BYTES else "",
        int.from_bytes(fields[wire.AREA_PUBLISHED], "little")
        if wire.AREA_PUBLISHED in fields
        else -1,
        wire.AREA_ENGINE in fields,
        next((kind for kind in fields if kind >= wire.AREA_CRITICAL), 0),
    )


def _area(behind: bytes, flags: int) -> dict[int, bytes]:
    """Values of further fields by type; ``behind``: the bytes between names and platform."""
    found: dict[int, bytes] = {}
    at = wire.PRODUCER_BYTES if flags & wire.FLAG_PRODUCER else 0
    while flags & wire.FLAG_AREA and at < len(behind):
        kind, n = behind[at : at + wire.AREA_ENTRY_BYTES]
        at += wire.AREA_ENTRY_BYTES
        found[kind] = behind[at : at + n]
        at += n
    return found


def _producer_block(raw: bytes) -> ProducerBlock:
    """Older nodes send a shorter one."""
    return ProducerBlock(*unpack_from("<qqqqqqIIq", raw + bytes(wire.PRODUCER_BYTES), 0))


def encode_setup(ctx: NodeContext, publication: Publication, channel: int) -> bytes:
    """The SETUP that announces a publication; the sender fills in the fields that change."""
    ring, flags, block, area = publication.mapped.array, 0, b"", b""
    about = describe(ring)
    name, topic = ctx.name.encode()[:64], publication.topic.name.encode()
    body = bytearray(wire.SETUP_NAMES_AT)
    if publication.remote >= 0:
        flags = wire.FLAG_PRODUCER | (wire.FLAG_LEFT if publication.closing else 0)
        (created_ns,) = unpack_from("<q", ring, lay.CREATED_AT)
        older_ns = ctx.stamp_ns() - created_ns if publication.leftover else 0
        block = bytes(wire.SETUP_LINE_AT) + bytes(ring[lay.LINE_AT : lay.AFTER_AT + 4])
        block += older_ns.to_bytes(8, "little", signed=True)
        if ctx.topology.level >= LEVEL_OF_AREA:
            flags |= wire.FLAG_AREA
            area = bytes((wire.AREA_PUBLISHED, wire.AREA_PUBLISHED_BYTES))
            area += bytes(wire.AREA_PUBLISHED_BYTES)
            if is_own(publication.mapped):
                area += bytes((wire.AREA_ENGINE, wire.AREA_ENGINE_BYTES))
    tag = bytes.fromhex(publication.runtime.config.platform) if publication.runtime else b""
    length = wire.SETUP_NAMES_AT + len(name) + len(topic) + len(block) + len(area) + len(tag)
    pack_into(
        "<BBBBIHHHHqq",
        body,
        0,
        wire.VERSION,
        wire.SETUP,
        flags,
        channel,
        publication.session,
        about.topic,
        length,
        wire.RECEIVER_ALL,
        ctx.id,
        0,
        0,
    )
    pack_into("<q", body, wire.SETUP_INCARNATION_AT, ctx.incarnation)
    pack_into("<IHH", body, wire.SETUP_SLOTS_AT, about.slots, about.slot_bytes, 0)
    pack_into(
        "<BBBB", body, wire.SETUP_FLOW_AT, about.flow, about.reliability, len(name), len(topic)
    )
    pack_into("<B", body, wire.SETUP_PLATFORM_LEN_AT, len(tag))
    return bytes(body) + name + topic + block + area + tag


def published_at(setup: bytes) -> int:
    """Where the number of published messages lies in a SETUP of `encode_setup`; 0: nowhere."""
    if not setup[wire.FLAGS_AT] & wire.FLAG_AREA:
        return 0
    names = setup[wire.SETUP_NODE_LEN_AT] + setup[wire.SETUP_TOPIC_LEN_AT]
    return wire.SETUP_NAMES_AT + names + wire.PRODUCER_BYTES + wire.AREA_ENTRY_BYTES
