"""Layouts: nothing overlaps, sizes are what the code reckons with, enumerations are documented."""

from __future__ import annotations

import pytest

from tidecast.layout import counters, packet, recorder, ring, sealed, segment
from tidecast.layout.fields import Field, Layout

LAYOUTS = [
    value
    for module in (counters, packet, recorder, ring, sealed, segment)
    for value in vars(module).values()
    if isinstance(value, Layout)
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_fields_lie_apart_and_words_are_aligned(layout: Layout) -> None:
    covered: set[int] = set()
    for field in layout.fields:
        span = set(range(field.at, field.at + field.width))
        assert not covered & span
        covered |= span
        assert field.width > 8 or field.at % field.width == 0 or layout.name == "message header"
    assert max(covered) < layout.size
    assert layout.name in layout.diagram()
    assert layout.table().count("\n") == len(layout.fields) + 1


def test_overlap_and_overrun_are_refused() -> None:
    with pytest.raises(ValueError, match=r"x\.b overlaps"):
        Layout("x", 8, (Field("a", 0, 4, ""), Field("b", 2, 4, "")))
    with pytest.raises(ValueError, match="longer than 8"):
        Layout("x", 8, (Field("a", 0, 16, ""),))


def test_control_packets_fit_the_smallest_packet() -> None:
    assert packet.CONTROL_BYTES_MAX <= packet.PACKET_BYTES_MIN - 16
    last_range = packet.NAK_RANGES_AT + packet.NAK_RANGES_MAX * packet.NAK_RANGE_BYTES
    assert last_range <= packet.CONTROL_BYTES_MAX
    assert packet.SETUP_NAMES_AT + 64 + packet.NAME_BYTES_MAX <= packet.CONTROL_BYTES_MAX
    assert packet.STATUS_BYTES <= packet.CONTROL_BYTES_MAX
    assert packet.PACKET_BYTES_MAX + sealed.SEAL_BYTES <= 65_507, "UDP"


def test_words_with_different_writers_lie_on_different_cache_lines() -> None:
    writer = {ring.HEAD_AT, ring.FIRST_AT}
    sender = {ring.NETWORK_LIMIT_AT, ring.SENT_AT, ring.NEAR_LIMIT_AT}
    receiver = {ring.HIGHEST_AT, ring.CONTIGUOUS_AT, ring.BASE_AT}
    lines = [{at // 64 for at in group} for group in (writer, sender, receiver)]
    assert all(len(each) == 1 for each in lines)
    assert len(set.union(*lines)) == 3
    assert ring.CONSUMER_BYTES % 64 == ring.CONSUMERS_AT % 64 == 0


def test_ring_geometry() -> None:
    assert ring.CONSUMERS_AT + ring.HEADER_CONSUMERS * ring.CONSUMER_BYTES <= ring.HEADER_BYTES
    assert ring.SENDER_ARMED_BIT > ring.TAIL_ARMED_BIT > ring.HEADER_CONSUMERS
    assert ring.TAIL_BYTES % ring.PAGE_BYTES == 0
    for slots in (16, 512, 513 * 0 + 1024, 1 << 20):
        assert ring.slots_at(slots) % ring.PAGE_BYTES == 0
        assert ring.slots_at(slots) >= ring.HEADER_BYTES + slots * 8
        size = ring.ring_bytes(slots, 1400, tail=False)
        assert size >= ring.slots_at(slots) + slots * 1400
        assert ring.ring_bytes(slots, 1400, tail=True) == size + ring.TAIL_BYTES
    assert ring.slots_for(1, 1400) == 16
    assert ring.slots_for(4 << 20, 1400) == 2048
    assert ring.slots_for(1 << 60, 1400) == ring.SLOTS_MAX
    assert packet.PACKET_BYTES_MAX <= ring.CONTROL_LENGTH_MASK


def test_every_counter_and_code_is_documented() -> None:
    source = (counters.__file__, recorder.__file__)
    assert all(source)
    assert max(counters.Counter) < counters.COLUMNS
    assert max(counters.QueueCounter) < counters.COLUMNS
    assert set(recorder.MEANING) == set(recorder.Code)
    for section, words, names in recorder.MEANING.values():
        assert section in (recorder.ALERT, recorder.LOW, recorder.HIGH)
        assert words
        assert len(names) <= 4
