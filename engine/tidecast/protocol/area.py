"""The area of further fields of SETUP: entries of type, length and value, end to end.

A receiver skips a type that it does not know, unless the type is critical. `check_area` admits an
area; all other functions trust its lengths.
"""

from __future__ import annotations

from tidecast.layout import packet as wire
from tidecast.layout.counters import Counter
from tidecast.native.jit import inlined
from tidecast.native.memory import load_i64, load_u8, load_u16

_INVALID = int(Counter.INVALID_AREA)


@inlined
def check_area(buffer, at, end):
    """0 when entries fill ``at`` to ``end`` and known entries are sound, else the cause."""
    if end - at > wire.AREA_BYTES_MAX:
        return _INVALID
    published = False
    while at < end:
        if end - at < wire.AREA_ENTRY_BYTES:
            return _INVALID
        kind = load_u8(buffer, at + wire.AREA_TYPE_AT)
        n = load_u8(buffer, at + wire.AREA_LENGTH_AT)
        value_at = at + wire.AREA_ENTRY_BYTES
        if kind == 0 or value_at + n > end:
            return _INVALID
        if kind == wire.AREA_PUBLISHED:
            if published or n != wire.AREA_PUBLISHED_BYTES:
                return _INVALID
            if not 0 <= load_i64(buffer, value_at) <= wire.MESSAGE_SEQ_MAX:
                return _INVALID
            published = True
        if kind == wire.AREA_ENGINE and n != wire.AREA_ENGINE_BYTES:
            return _INVALID
        at = value_at + n
    return 0


@inlined
def area_begin(buffer, at):
    """Where the area of the SETUP at ``at`` begins, if it has an area."""
    names = load_u8(buffer, at + wire.SETUP_NODE_LEN_AT)
    names += load_u8(buffer, at + wire.SETUP_TOPIC_LEN_AT)
    begin = at + wire.SETUP_NAMES_AT + names
    if load_u8(buffer, at + wire.FLAGS_AT) & wire.FLAG_PRODUCER:
        begin += wire.PRODUCER_BYTES
    return begin


@inlined
def area_end(buffer, at):
    """Where the area of the SETUP at ``at`` ends."""
    length = load_u16(buffer, at + wire.LENGTH_AT)
    return at + length - load_u8(buffer, at + wire.SETUP_PLATFORM_LEN_AT)


@inlined
def field_of(buffer, at, kind):
    """Where the value of a field of the checked SETUP at ``at`` begins; -1: it has none."""
    if load_u8(buffer, at + wire.FLAGS_AT) & wire.FLAG_AREA == 0:
        return -1
    entry, end = area_begin(buffer, at), area_end(buffer, at)
    while entry < end:
        value_at = entry + wire.AREA_ENTRY_BYTES
        if load_u8(buffer, entry + wire.AREA_TYPE_AT) == kind:
            return value_at
        entry = value_at + load_u8(buffer, entry + wire.AREA_LENGTH_AT)
    return -1


@inlined
def critical_of(buffer, at):
    """The first type of a checked SETUP that must be understood, and is not; 0: none."""
    if load_u8(buffer, at + wire.FLAGS_AT) & wire.FLAG_AREA == 0:
        return 0
    entry, end = area_begin(buffer, at), area_end(buffer, at)
    while entry < end:
        kind = load_u8(buffer, entry + wire.AREA_TYPE_AT)
        if kind >= wire.AREA_CRITICAL:
            return kind
        entry += wire.AREA_ENTRY_BYTES + load_u8(buffer, entry + wire.AREA_LENGTH_AT)
    return 0
