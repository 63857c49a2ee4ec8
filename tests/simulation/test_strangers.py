"""Two platforms on one group and port: no message crosses, and each reports the other."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from tests.support import packets

from tidecast.events import Event, ForeignPlatform, ImageAvailable
from tidecast.layout import packet as wire
from tidecast.layout.counters import NodeCounter
from tidecast.node.live.setup import decode_setup
from tidecast.testing import Network

MINE, THEIRS = "0123456789abcdef", "fedcba9876543210"


def _crossing(one: str, other: str) -> tuple[list[bytes], list[Event], int]:
    """Messages and events of a subscriber of ``other``; how many SETUPs of ``one`` it refused."""
    with Network(seed=1) as net:
        a = net.node("a", topics=["t"], transport={"platform": one})
        b = net.node("b", topics=["t"], transport={"platform": other})
        client = b.connect()
        subscription = client.subscribe("t", start="earliest").open()
        publisher = a.connect().publisher("t")
        found: list[bytes] = []
        for _ in range(5):
            publisher.publish(b"x", flush=True)
            net.run(1_000_000)
            found += [message.data for message in subscription.poll()]
        engine: Any = b.engine
        refused = engine.counters.values[engine.context.node_row, NodeCounter.FOREIGN_PLATFORM]
        return found, list(client.events()), int(refused)


def test_no_message_crosses_between_platforms() -> None:
    found, events, refused = _crossing(MINE, THEIRS)
    assert found == []
    [told] = [each for each in events if isinstance(each, ForeignPlatform)]
    assert (told.transport, told.node, told.platform) == ("memory", "a", MINE)
    assert not [each for each in events if isinstance(each, ImageAvailable)]
    assert refused > 1, "all are counted, one is reported"


@pytest.mark.parametrize(("one", "other"), [(MINE, MINE), ("", MINE), (MINE, ""), ("", "")])
def test_a_node_that_names_no_platform_is_none_of_another_one(one: str, other: str) -> None:
    """Nodes of older versions, and those with a topology written by hand."""
    found, events, refused = _crossing(one, other)
    assert found == [b"x"] * 5
    assert not [each for each in events if isinstance(each, ForeignPlatform)]
    assert refused == 0


def _tagged(raw: bytes, tag: bytes) -> bytes:
    whole = bytearray(raw + tag)
    whole[wire.SETUP_PLATFORM_LEN_AT] = wire.PLATFORM_BYTES
    struct.pack_into("<H", whole, wire.LENGTH_AT, len(whole))
    return bytes(whole)


def test_a_setup_ends_with_its_platform() -> None:
    tag = bytes.fromhex(MINE)
    plain = decode_setup(_tagged(packets.setup("node", "topic"), tag), (0, 0))
    assert (plain.node, plain.topic, plain.platform) == ("node", "topic", MINE)
    block = packets.block(producer=7, older_ns=70)
    flags = wire.FLAG_PRODUCER
    durable = decode_setup(_tagged(packets.durable_setup(block, flags=flags), tag), (0, 0))
    assert durable.producer is not None
    assert (durable.producer.id, durable.producer.older_ns, durable.platform) == (7, 70, MINE)
    older = decode_setup(packets.durable_setup(block, flags=flags), (0, 0))
    assert (older.producer, older.platform) == (durable.producer, "")


@pytest.mark.parametrize("length", [1, 7, 9, 255])
def test_a_platform_of_another_length_is_none(length: int) -> None:
    older = packets.block(producer=7)[: wire.PRODUCER_BYTES_MIN]
    other = packets.durable_setup(older + b"\xff" * length, platform_len=length)
    durable = decode_setup(other, (0, 0))
    assert durable.producer is not None
    assert (durable.producer.id, durable.producer.line, durable.platform) == (7, 0, "")
    raw = bytearray(packets.setup("node", "topic") + bytes(length))
    raw[wire.SETUP_PLATFORM_LEN_AT] = length
    assert decode_setup(bytes(raw), (0, 0)).platform == ""
    short = bytearray(packets.setup("n", "t"))
    short[wire.SETUP_PLATFORM_LEN_AT] = wire.PLATFORM_BYTES
    assert decode_setup(bytes(short), (0, 0)).topic == "t", "names are no platform"
