"""A client that writes to its ring while the archiver reads it harms its own messages alone."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tidecast.agents.archiver.reading import _copy_chain, _parse
from tidecast.agents.archiver.state import SOURCE
from tidecast.layout import packet as wire
from tidecast.native.atomics import load_acquire, store_relaxed
from tidecast.native.jit import kernel
from tidecast.native.packing import pack_into

SLOT, SLOTS, HEAD = 256, 4, wire.PACKET_HEADER_BYTES


@kernel
def copy_chain(sources, ring, packets, lead, buffer, total):
    return _copy_chain(sources[0], ring, 0, packets, lead, buffer, 0, total)


@kernel
def parse_often(ring, end, times, out):
    """How many of ``times`` parses ended behind ``end``."""
    bad = 0
    for _ in range(times):
        n = _parse(ring, 0, end, wire.KEY | wire.HEADERS, 0, out)
        if n >= 0 and (out[1] + out[2] > end or out[3] + out[4] > end or out[2] > end):
            bad += 1
    return bad


@kernel
def parse(ring, end, flags, out):
    return _parse(ring, 0, end, flags, 0, out)


@kernel
def scribble(ring, said):
    """The client: the length of the key is 3, and 60,000, and 3 ... ``said``: stop, and how often.

    Atomic stores: of two plain ones behind each other the compiler leaves the second.
    """
    n = 0
    while load_acquire(said, 0) == 0:
        store_relaxed(ring, 0, 3)
        store_relaxed(ring, 0, 60_000)
        n += 1
        store_relaxed(said, 8, n)


def test_a_length_that_changes_after_it_was_checked_copies_nothing_of_a_neighbour() -> None:
    source = np.zeros(1, dtype=SOURCE)
    source["slots"], source["slot_bytes"] = SLOTS, SLOT
    ring = np.zeros(SLOT * SLOTS, dtype=np.uint8)
    ring[SLOT:] = 7  # of other messages, or of no ring at all
    buffer = np.zeros(1 << 12, dtype=np.uint8)
    room = SLOT - HEAD - 4
    pack_into("<I", ring, HEAD, room)
    assert copy_chain(source, ring, 1, 0, buffer, room)
    for size in (room + 1, 600):  # as it is when it is read again
        pack_into("<I", ring, HEAD, size)
        assert not copy_chain(source, ring, 1, 0, buffer, size)
        assert not (buffer == 7).any()


@pytest.mark.parametrize("flags", [wire.KEY, wire.HEADERS, wire.KEY | wire.HEADERS])
def test_a_field_that_ends_behind_its_message_is_malformed(flags: int) -> None:
    ring, out = np.zeros(256, dtype=np.uint8), np.zeros(8, dtype=np.int64)
    last = 2 if flags == wire.KEY | wire.HEADERS else 0  # a key of no bytes goes before
    fits = 64 - last - 2
    pack_into("<H", ring, last, fits)
    assert parse(ring, 64, flags, out) == 64
    for n in (fits + 1, 60_000):
        pack_into("<H", ring, last, n)
        assert parse(ring, 64, flags, out) == -1


def test_a_length_that_changes_while_it_is_parsed_never_leads_behind_the_message() -> None:
    ring = np.zeros(1 << 17, dtype=np.uint8)
    said, out = np.zeros(16, dtype=np.uint8), np.zeros(8, dtype=np.int64)
    times = said.view(np.int64)
    parse_often(ring, 64, 1, out)
    client = threading.Thread(target=scribble, args=(ring, said))
    client.start()
    try:
        parsed = 0
        while times[1] < 1_000_000 or parsed < 5_000_000:
            assert parse_often(ring, 64, 500_000, out) == 0
            parsed += 500_000
    finally:
        times[0] = 1
        client.join()
