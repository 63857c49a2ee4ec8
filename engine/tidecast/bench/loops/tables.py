"""Kernels of `bench tables`: all packets made COMPACT, all expanded."""

from __future__ import annotations

from tidecast.native.jit import kernel
from tidecast.protocol.tables.reading import expand, take_definitions
from tidecast.protocol.tables.writing import compact, put_definitions


@kernel
def compact_all(block, packets, lengths, out, made):
    """Make COMPACT packets of DATA packets; ``made``: their lengths, 0 where there is none."""
    for i in range(packets.shape[0]):
        made[i] = compact(block, packets[i], 0, lengths[i], out[i], 0)


@kernel
def expand_all(reader, block, out, made, scratch):
    """Define the table at a reader and expand the packets: how many bytes that gives."""
    entry = 0
    while True:
        _, following = put_definitions(block, entry, scratch, scratch.size)
        if following == entry or not take_definitions(reader, scratch, 0):
            break
        entry = following
    n = 0
    for i in range(made.size):
        if made[i] > 0:
            n += expand(reader, out[i], 0, made[i], scratch)
    return n
