"""Redriven copies of dead letters in a log: each copy is for one subscription alone."""

from __future__ import annotations

from tidecast.layout import segment as lay
from tidecast.native.jit import inlined
from tidecast.native.memory import load_i64, load_u8, load_u16, load_u32

FOR_HEADER, REDRIVEN_HEADER = "tidecast-for", "tidecast-redriven"
"""Headers of such a copy: for which subscription (the first one), and since when (ns)."""
_FOR_8 = int.from_bytes(b"tidecast", "little")
_FOR_4 = int.from_bytes(b"-for", "little")


@inlined
def is_redriven(data, p):
    """Whether the record at ``p`` is a redriven copy of a dead letter, written by an engine."""
    word = load_u32(data, p + lay.REC_LENGTH_AT)
    if word & lay.REC_ENGINE == 0 or word & lay.REC_HEADERS == 0:
        return False
    at = p + lay.RECORD_HEADER_BYTES + load_u16(data, p + lay.REC_KEY_LENGTH_AT)
    if load_u16(data, p + lay.REC_HEADERS_LENGTH_AT) < 16 or load_u8(data, at + 1) != 0xAC:
        return False
    return load_i64(data, at + 2) == _FOR_8 and load_u32(data, at + 10) == _FOR_4
