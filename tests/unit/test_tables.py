"""Tables of keys and headers: references, definitions, and packets that lie."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from tests.support import packets
from tests.support.tables import Pair, message, renewed

from tidecast.layout import packet as wire
from tidecast.protocol.tables.entries import ENTRIES_MAX, TABLE_BYTES_MAX
from tidecast.protocol.tables.reading import MALFORMED, MISSING, READER_BYTES
from tidecast.protocol.tables.writing import REFUSED_MAX, SEEN_MIN, TABLE_NS_MIN

HEADERS = {"service": "orders", "region": "eu-central-1", "trace": "0123456789abcdef", "n": 5}


def quote(i: int) -> bytes:
    return packets.data(*(message(b"%024d" % (i + j), b"XETR.%06d" % (j % 20)) for j in range(33)))


def taught(rounds: int = SEEN_MIN + 1) -> Pair:
    """A pair whose tables have what the packets of `quote` repeat."""
    pair = Pair()
    for i in range(rounds):
        pair.compact(quote(i))
    for packet in pair.definitions():
        assert pair.take(packet) == 1
    return pair


def test_a_feed_shrinks_to_three_quarters_and_comes_back_whole() -> None:
    pair, packet = taught(), quote(99)
    short = pair.compact(packet)
    # 41 bytes a message; 30 with a byte for the key and one in front of the rest; one at the end
    assert len(short) == wire.COMPACT_OPERATIONS_AT + 33 * 30 + 1
    assert short[wire.TYPE_AT] == wire.COMPACT
    assert pair.expand(short) == packet


def test_ten_headers_shrink_to_half() -> None:
    pair = Pair()

    def record(i: int) -> bytes:
        fixed = {f"header-{j}": f"a value that repeats {j}" for j in range(7)}
        own: dict[str, Any] = {"trace": f"{i * 7919:032x}", "sequence": i, "at": 1_764_000_000 + i}
        return packets.data(message(b"x" * 64, None, fixed | own, timestamp=i, to=9))

    for i in range(SEEN_MIN):
        pair.compact(record(i))
    packet = record(77)
    short = pair.compact(packet)
    assert len(short) < len(packet) * 0.5
    for each in pair.definitions():
        pair.take(each)
    assert pair.expand(short) == packet


def test_what_is_seen_less_often_is_no_entry() -> None:
    pair = Pair()
    for _ in range(SEEN_MIN - 1):
        assert pair.compact(packets.data(message(b"x" * 50, b"a key of some bytes"))) == b""
    assert pair.entries == 0
    assert pair.compact(packets.data(message(b"x" * 50, b"a key of some bytes")))
    assert pair.entries == 1


KEEPS = {
    "no key": packets.data(message(b"x" * 60)),
    "empty": packets.data(),
    "a fragment": packets.data(packets.message(b"x" * 60, wire.BEGIN | wire.KEY, b"\4\0keys")),
    "a message beyond the packet": packets.data(b"\xff\xff\xff\x03" + b"x" * 60),
    "a key beyond the message": packets.data(
        packets.message(b"", wire.WHOLE | wire.KEY, b"\xff\xff" + b"k" * 60)
    ),
    "headers beyond the message": packets.data(
        packets.message(b"", wire.WHOLE | wire.HEADERS, b"\xff\xff" + b"k" * 60)
    ),
    "no room for a key": packets.data(
        packets.message(b"", wire.WHOLE | wire.KEY, b"\1") + b"x" * 9
    ),
    "an unknown flag": packets.data(packets.message(b"x" * 60, wire.WHOLE | 64)),
}


@pytest.mark.parametrize("name", KEEPS)
def test_packets_that_stay_as_they_are(name: str) -> None:
    pair = Pair()
    for _ in range(2 * SEEN_MIN):
        assert pair.compact(KEEPS[name]) == b""
    assert pair.entries == 0


@pytest.mark.parametrize(
    "raw",
    [
        b"\x8f" + b"\xa4name\xa5value",
        b"\xde\xff\xff" + b"\xa4name\xa5value" * 3,
        b"\x81\xdf\0\0\0\1",
        b"\x82\xa4name\xc5\xff\xff",
        b"\x81\xd9",
        b"\xc1",
        b"",
    ],
)
def test_headers_that_are_no_map_come_back_as_they_are(raw: bytes) -> None:
    pair, packet = Pair(), packets.data(message(b"payload", b"a key that repeats", raw))
    for _ in range(SEEN_MIN):
        short = pair.compact(packet)
    for each in pair.definitions():
        pair.take(each)
    assert pair.expand(short) == packet


def test_all_scalars_of_messagepack_are_headers() -> None:
    values = [1, -1, 300, -300, 1 << 20, -(1 << 20), 1 << 40, -(1 << 40), "s", "x" * 40, "y" * 300]
    values += [b"b", b"z" * 300, 1.5, None, True, False]  # type: ignore[list-item]
    pair, packet = (
        Pair(),
        packets.data(message(b"", None, {f"name-{i}": each for i, each in enumerate(values)})),
    )
    for _ in range(SEEN_MIN):
        short = pair.compact(packet)
    for each in pair.definitions():
        pair.take(each)
    assert pair.expand(short) == packet
    assert pair.entries >= len(values) - 2, "each header, or its name where the value is long"


# --- definitions ----------------------------------------------------------------------------------


def test_an_image_without_the_table_reads_nothing() -> None:
    pair = taught()
    short = pair.compact(quote(5))
    assert Pair().expand(short) == MISSING
    late = Pair()
    first, second, third = pair.definitions(0, 100)[:3]
    assert late.take(second) == 0, "those before are missing"
    assert late.take(first) == 1
    assert late.take(third) == 0, "the table is known, and those between are missing"
    assert late.expand(short) == MISSING
    for packet in pair.definitions(0, 100):
        assert late.take(packet) == 1
    assert late.expand(short) == quote(5)


def test_entries_never_change_within_a_table() -> None:
    pair = taught()
    short = pair.compact(quote(5))
    [forged] = pair.definitions(0)
    at = wire.TABLE_DEFINITIONS_AT + 1
    assert pair.take(forged[:at] + bytes(len(forged) - at - 1) + forged[-1:]) in (-1, 1)
    assert pair.expand(short) == quote(5)


def test_a_table_that_is_full_gives_way_to_another() -> None:
    pair = Pair()
    for i in range(ENTRIES_MAX + 2 * REFUSED_MAX):
        packet = packets.data(*[message(b"", b"key %06d" % i)] * SEEN_MIN)
        pair.compact(packet)
    assert pair.entries == ENTRIES_MAX
    old = pair.compact(packets.data(*[message(b"", b"key %06d" % 3)] * 5))
    assert not renewed(pair.writer, TABLE_NS_MIN - 1), "not so soon"
    for each in pair.definitions(0):
        assert pair.take(each) == 1
    assert renewed(pair.writer, TABLE_NS_MIN)
    assert pair.entries == 0
    packet = packets.data(*[message(b"", b"another key %06d" % 4)] * 5)
    short = pair.compact(packet)
    assert pair.expand(short) == MISSING, "of another table"
    for each in pair.definitions(0):
        assert pair.take(each) == 1
    assert pair.expand(short) == packet
    assert pair.expand(old) == MISSING


def test_a_table_keeps_within_its_bytes() -> None:
    pair = Pair()
    for i in range(100):
        pair.compact(packets.data(*[message(b"", b"%03d" % i * 80)] * SEEN_MIN))
    assert pair.entries == TABLE_BYTES_MAX // 242
    for each in pair.definitions(0):
        assert pair.take(each) == 1


# --- packets that lie -----------------------------------------------------------------------------


lying = packets.compact

LIES = {
    "a copy beyond the packet": lying(b"\x7f" + b"x" * 9),
    "a copy beyond the packet, of as much as it says": lying(b"\x7f" + b"x" * 9, length=160),
    "less than it says": lying(b"\x03abcd"),
    "more than it says": lying(b"\x80" * 9),
    "a copy of more than it says": lying(b"\x09" + b"x" * 10, length=52),
    "an entry that it does not need": lying(b"\x81\x80\x80"),
    "an entry that it does not need, and as much as it says": lying(b"\x81", length=45),
    "a far entry that it does not need": lying(b"\xf0\x00\x80\x80"),
    "a far entry without a number": lying(b"\x80\x80\xff"),
    "no longer than itself": lying(b"\x80\x80", length=42),
}


@pytest.mark.parametrize("name", LIES)
def test_packets_that_lie_are_refused(name: str) -> None:
    pair = taught()
    assert pair.expand(LIES[name]) == MALFORMED
    assert pair.expand(lying(b"\x80", length=45)) != MALFORMED, "13 bytes of the first entry"


def test_a_packet_that_is_longer_than_there_is_room_is_refused() -> None:
    pair = taught()
    assert pair.expand(pair.compact(quote(1)), room=1300) == MALFORMED


def test_entries_that_are_not_defined_are_missing() -> None:
    pair = taught()
    assert pair.expand(lying(b"\x80", entries=21)) == MISSING
    assert pair.expand(lying(b"\x80", table=8)) == MISSING
    assert Pair().expand(lying(b"\x80", table=0, entries=0)) == MISSING


@pytest.mark.parametrize(
    "packet",
    [
        packets.definitions(b"\4keys", table=0),
        packets.definitions(b"\4key"),
        packets.definitions(b"\4keys!"),
        packets.definitions(b"\0"),
        packets.definitions(b""),
        packets.definitions(b"\4keys", count=2),
        packets.definitions(b"\4keys", first=ENTRIES_MAX),
        packets.definitions(b"", first=0xFFFF, count=0xFFFF),
    ],
)
def test_definitions_that_lie_are_refused(packet: bytes) -> None:
    assert Pair().take(packet) == -1


def test_definitions_of_more_bytes_than_a_table_has_end_there() -> None:
    reader = Pair()
    around = np.zeros(READER_BYTES + ENTRIES_MAX * 256, dtype=np.uint8)
    reader.reader, behind = around[:READER_BYTES], around[READER_BYTES:]
    entry = b"\xff" + b"x" * 255
    for first in range(0, 1000, 5):
        reader.take(packets.definitions(entry * 5, first=first, count=5))
    assert not behind.any()
    full = TABLE_BYTES_MAX // 255
    assert reader.expand(lying(b"\x80", length=32 + 255, entries=full)) != MISSING
    assert reader.expand(lying(b"\x80", length=32 + 255, entries=full + 1)) == MISSING


keys = st.none() | st.binary(max_size=12) | st.sampled_from([b"AAPL.XNAS", b"SAP.XETR", b"k" * 300])
maps = st.none() | st.dictionaries(
    st.sampled_from(["service", "region", "n", "a longer name"]) | st.text(max_size=9),
    st.integers(-(1 << 63), (1 << 63) - 1)
    | st.sampled_from(["orders", "eu", b"bytes of it"])
    | st.binary(max_size=40),
    max_size=12,
)


@hypothesis.given(
    st.lists(
        st.lists(st.builds(message, st.binary(max_size=300), keys, maps), max_size=12), max_size=12
    ),
    st.data(),
)
def test_any_records_come_back_and_bits_that_flip_raise_nothing(
    drawn: list[list[bytes]], data: st.DataObject
) -> None:
    pair = Pair()
    for messages in [*drawn, *drawn, *drawn]:
        packet = packets.data(*messages)
        short = pair.compact(packet)
        for each in pair.definitions():
            assert pair.take(each) == 1
        if not short:
            continue
        assert pair.expand(short) == packet
        spoiled = bytearray(short)
        at = data.draw(st.integers(wire.PACKET_HEADER_BYTES, len(short) - 1))
        spoiled[at] ^= data.draw(st.integers(1, 255))
        found = pair.expand(bytes(spoiled))
        assert isinstance(found, int) or len(found) <= 65_000
        cut = data.draw(st.integers(wire.COMPACT_OPERATIONS_AT, len(short) - 1))
        assert pair.expand(short[:cut]) in (MALFORMED, MISSING) or cut == len(short)


@hypothesis.given(st.binary(max_size=400), st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing(body: bytes, entries: bytes) -> None:
    pair = taught()
    pair.compact(packets.data(body))
    pair.take(packets.definitions(entries, count=entries[0] if entries else 0))
    pair.expand(lying(body, length=min(1400, 41 + 2 * len(body)), entries=20))
