"""Records with a delivery time: no subscription gets such a record before its time."""

from __future__ import annotations

import numpy as np

from tidecast.buffers.header_names import delivery_time
from tidecast.layout import segment as lay
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import load_u16, load_u32


@inlined
def deliver_at(data, p):
    """When the record at ``p`` is due, ns since 1970; 0: at once."""
    if load_u32(data, p + lay.REC_LENGTH_AT) & lay.REC_HEADERS == 0:
        return 0
    at = p + lay.RECORD_HEADER_BYTES + load_u16(data, p + lay.REC_KEY_LENGTH_AT)
    return delivery_time(data, at, load_u16(data, p + lay.REC_HEADERS_LENGTH_AT))


@kernel
def deliver_at_of(data):
    """`deliver_at` of the record at the start of ``data``."""
    return deliver_at(data, 0)


def due_ns_of(record: bytes) -> int:
    """`deliver_at` of a record by itself."""
    return int(deliver_at_of(np.frombuffer(bytearray(record), dtype=np.uint8)))
