"""ACK packets and producers' blocks: the parser takes what is sound, and no more."""

from __future__ import annotations

import struct

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from tests.support import packets

from tidecast.config.topology import TopicConfig
from tidecast.layout import packet as wire
from tidecast.layout.counters import Counter
from tidecast.native.jit import kernel
from tidecast.node.live.setup import decode_setup
from tidecast.protocol.check import check_packet
from tidecast.testing import Network

SEQ_MAX, EPOCH_MAX = wire.MESSAGE_SEQ_MAX, wire.EPOCH_MAX


@kernel
def checked(buffer, n):  # type: ignore[no-untyped-def]
    return check_packet(buffer, 0, n)


def verdict(raw: bytes) -> int:
    return int(checked(np.frombuffer(bytearray(raw), dtype=np.uint8), len(raw)))


def near(*edges: int) -> st.SearchStrategy[int]:
    return st.one_of(
        st.sampled_from([e + d for e in edges for d in (-1, 0, 1)]),
        st.integers(-(1 << 63), (1 << 63) - 1),
    )


OFFSETS = st.sampled_from([0, 31, 32, 33, 1400, 65_000, 65_001, 0xFFFFFFFF])


@hypothesis.given(
    near(0),
    near(0, EPOCH_MAX),
    near(0, SEQ_MAX),
    near(0, SEQ_MAX),
    OFFSETS,
    st.integers(-4, 200),
    near(0, EPOCH_MAX),
)
def test_an_ack_is_taken_when_every_field_is_in_range(
    producer: int, epoch: int, first_seq: int, count: int, offset: int, state: int, owner: int
) -> None:
    raw = packets.ack(
        producer=producer,
        epoch=epoch,
        first_seq=first_seq,
        count=count,
        offset=offset,
        state=state,
        owner=owner,
    )
    sound = (
        producer > 0
        and 0 < epoch <= EPOCH_MAX
        and 0 < first_seq <= SEQ_MAX
        and 0 <= count <= SEQ_MAX
        and 32 <= offset <= 65_000
        and 0 <= owner <= EPOCH_MAX
    )
    assert verdict(raw) == (0 if sound else Counter.INVALID_FIELD)


@hypothesis.given(
    near(0),
    near(0, EPOCH_MAX),
    near(0, SEQ_MAX),
    near(0, 1 << 60),
    near(31, 65_001),
    near(0, SEQ_MAX),
)
def test_a_producers_block_is_taken_when_every_field_is_in_range(
    producer: int, epoch: int, first_seq: int, packet: int, offset: int, count: int
) -> None:
    raw = packets.durable_setup(packets.block(producer, epoch, first_seq, packet, offset, count))
    sound = (
        producer > 0
        and 0 <= epoch <= EPOCH_MAX
        and 0 <= first_seq <= SEQ_MAX
        and 0 <= packet <= 1 << 60
        and 32 <= offset <= 65_000
        and 0 <= count <= SEQ_MAX
    )
    assert verdict(raw) == (0 if sound else Counter.INVALID_FIELD)


OLDER_BLOCK = packets.durable_setup(packets.block()[: wire.PRODUCER_BYTES_MIN])


@pytest.mark.parametrize("raw", [packets.ack(), OLDER_BLOCK], ids=["ack", "setup"])
def test_a_shorter_one_is_refused(raw: bytes) -> None:
    for n in range(wire.PACKET_HEADER_BYTES, len(raw)):
        short = bytearray(raw[:n])
        assert verdict(bytes(short)) == Counter.INVALID_SHORT
        struct.pack_into("<H", short, wire.LENGTH_AT, n)
        assert verdict(bytes(short)) == Counter.INVALID_SHORT


def test_a_block_says_what_its_publisher_goes_on_with_and_that_of_older_nodes_nothing() -> None:
    whole = packets.block(line=5, after=3, older_ns=70)
    flags = wire.FLAG_PRODUCER | wire.FLAG_LEFT
    setup = decode_setup(packets.durable_setup(whole, flags=flags), (0, 0))
    assert setup.left
    assert setup.producer is not None
    assert (setup.producer.line, setup.producer.after, setup.producer.older_ns) == (5, 3, 70)
    assert verdict(OLDER_BLOCK) == 0
    older = decode_setup(OLDER_BLOCK, (0, 0))
    assert not older.left
    assert older.producer is not None
    assert (older.producer.line, older.producer.after, older.producer.older_ns) == (0, 0, 0)


def test_an_ack_that_cannot_be_moves_nothing() -> None:
    topic = TopicConfig(name="orders", mode="durable", owner="a")
    with Network(seed=3) as net:
        net.node("a", topics=[topic])
        b = net.node("b", topics=[topic])
        publisher = b.connect().publisher("orders")
        publisher.publish(b"one", ack="durable")
        net.partition("a", "b")
        publisher.publish(b"two", flush=True)
        net.run(1000)
        session = publisher.producer_session
        assert session is not None
        mine = {"session": publisher.session, "topic": topic.wire_id, "source": 1, "seq": 2}
        own = {"producer": session.producer_id, "epoch": session.epoch, "count": 2}
        cannot = [
            own | {"producer": 5},
            own | {"epoch": 7},
            own | {"count": 0},
            own | {"count": 5000},
            own | {"offset": 5000},
        ]
        for fields in cannot:
            net.switch.inject(b.id, packets.ack(**fields, **mine), control=True, source=1)
        net.switch.inject(b.id, packets.ack(**own, **mine | {"seq": 900}), control=True, source=1)
        net.switch.inject(
            b.id, packets.ack(**own | {"count": 0}, **mine | {"seq": 0}), control=True, source=1
        )
        taken = b.count(Counter.ACKS)
        net.run(1000)
        assert publisher.durable_position == 1
        assert b.count(Counter.INVALID_FIELD) == 5
        assert b.count(Counter.STALE_SESSION) == 1
        assert b.count(Counter.ACKS) == taken + 1, "the older one says nothing new"
        net.switch.inject(b.id, packets.ack(**own, owner=9, **mine), control=True, source=1)
        net.run(1000)
        assert publisher.durable_position == 2
        net.heal()
        net.run(1e6)
        assert b.count(Counter.STALE_SESSION) > 1, "of an owner with a lower epoch"
