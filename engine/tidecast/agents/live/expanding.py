"""COMPACT packets at an image: expanded before they are placed, so readers know no tables."""

from __future__ import annotations

from tidecast.agents.live.receiving import address_of_publisher, miss_packet, place_packet, route_of
from tidecast.layout import packet as wire
from tidecast.layout.counters import Counter as C
from tidecast.native.jit import inlined
from tidecast.native.memory import bytes_at, load_i64
from tidecast.protocol.packets import Status, put_status
from tidecast.protocol.tables.reading import (
    MISSING,
    READER_BYTES,
    expand,
    take_definitions,
)
from tidecast.transport.wire_io import send_to_address

ASK_AGAIN_NS = 20_000_000
"""A table that is missing is asked for at most so often."""


@inlined
def on_compact(S, image, buffer, at, length, now_ns):
    """Place the DATA packet that a COMPACT packet stands for, or ask for it and for the table."""
    block = bytes_at(image.table_address, READER_BYTES)
    n = expand(block, buffer, at, length, S.expanded)
    if n > 0:
        S.counters[image.row, C.COMPACTED] += 1
        S.counters[image.row, C.BYTES_SAVED] += n - length
        place_packet(S, image, S.expanded, 0, n, now_ns)
        return
    if n != MISSING:
        S.counters[image.row, C.INVALID_FIELD] += 1
        return
    S.counters[image.row, C.TABLE_MISSING] += 1
    if image.table_ns == 0:
        image.table_ns = max(now_ns, image.table_asked_ns + ASK_AGAIN_NS)
    miss_packet(S, image, load_i64(buffer, at + wire.SEQ_AT), now_ns)


@inlined
def on_table(S, image, buffer, at, now_ns):
    """Take the entries of a TABLE packet."""
    image.heard_ns = now_ns
    if take_definitions(bytes_at(image.table_address, READER_BYTES), buffer, at):
        image.table_ns = 0


@inlined
def ask_for_table(S, image, now_ns):
    """Ask the publisher to define all of its table again."""
    image.table_ns, image.table_asked_ns = 0, now_ns
    status = Status(image.receiver, 0, 0, 0, 0, 0, 0)
    n = put_status(S.packet, wire.FLAG_WANT_TABLE, route_of(S, image), status)
    send_to_address(S.tx, address_of_publisher(S, image), S.packet, n, image.source)
