"""SETUP packets, decoded: what a publication of another node says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from tidecast.layout import packet as wire
from tidecast.native.packing import unpack_from


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
    receivers: int
    flow: int
    reliability: int
    node: str
    topic: str
    address_words: tuple[int, int]
    producer: ProducerBlock | None = None
    left: bool = False
    """The publisher is gone: what its ring holds is repeated."""


def decode_setup(raw: bytes, address_words: tuple[int, int]) -> Setup:
    """Decode a checked SETUP packet."""
    _, _, flags, channel, session, topic, _, _, source, seq, _ = unpack_from("<BBBBIHHHHqq", raw)
    incarnation, age, oldest = unpack_from("<qqq", raw, wire.SETUP_INCARNATION_AT)
    slots, size, receivers, flow, reliability, node_n, topic_n = unpack_from(
        "<IHHBBBB", raw, wire.SETUP_SLOTS_AT
    )
    names = raw[wire.SETUP_NAMES_AT :]
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
        receivers,
        flow,
        reliability,
        names[:node_n].decode(errors="replace"),
        names[node_n : node_n + topic_n].decode(errors="replace"),
        address_words,
        _producer_block(names[node_n + topic_n :]) if flags & wire.FLAG_PRODUCER else None,
        bool(flags & wire.FLAG_LEFT),
    )


def _producer_block(raw: bytes) -> ProducerBlock:
    """Older nodes send a shorter one."""
    return ProducerBlock(*unpack_from("<qqqqqqIIq", raw + bytes(wire.PRODUCER_BYTES), 0))
