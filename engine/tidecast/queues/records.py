"""Single records out of blocks, and their parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from tidecast.errors import NotFound, TidecastError
from tidecast.layout import segment as seg
from tidecast.log.queue_log import QueueLog
from tidecast.native.packing import unpack_from
from tidecast.queues.cache.blocks import HOLE

PEEK_PAYLOAD_BYTES_MAX = 64 * 1024
_READ_BYTES = 1 << 20


def record_of(memory: list[np.ndarray], i: int) -> bytes:
    """Record number ``i`` of a block: its data and its index; b"": the token has none."""
    at = int(memory[1][i * 8 : i * 8 + 4].view(np.uint32)[0])
    if at == HOLE:
        return b""
    size = int(memory[0][at : at + 4].view(np.uint32)[0]) & seg.REC_LENGTH_MASK
    return bytes(memory[0][at : at + size])


def _u(raw: np.ndarray, at: int, width: int) -> int:
    return int.from_bytes(bytes(raw[at : at + width]), "little")


def head_of(raw: np.ndarray, at: int) -> tuple[int, int]:
    """(token of the first record, records) of the batch at ``raw[at]``."""
    return _u(raw, at + seg.BATCH_BASE_TOKEN_AT, 8), _u(raw, at + seg.BATCH_COUNT_AT, 4)


def record_in(raw: np.ndarray, used: int, token: int) -> tuple[int, bytes]:
    """The first record from ``token`` on, and its token, of batches that were read.

    Raises TidecastError when there is none.
    """
    at = 0
    while at + seg.BATCH_HEADER_BYTES <= used:
        length = _u(raw, at + seg.BATCH_LENGTH_AT, 4)
        base, count = head_of(raw, at)
        if length < seg.BATCH_HEADER_BYTES or at + length > used:
            break
        if token < base + count:
            p, token = at + seg.BATCH_HEADER_BYTES, max(token, base)
            for _ in range(token - base):
                p += max(_u(raw, p, 4) & seg.REC_LENGTH_MASK, seg.RECORD_HEADER_BYTES)
            size = _u(raw, p, 4) & seg.REC_LENGTH_MASK
            if p + size <= at + length:
                return token, bytes(raw[p : p + size])
            break
        at += length
    raise TidecastError(f"record {token} is not in what the log returned")


def is_of_engine(record: bytes) -> bool:
    """Whether an engine wrote the record: only then its reserved headers are true."""
    return bool(unpack_from("<I", record, 0)[0] & seg.REC_ENGINE)


def parts_at(raw: bytes, at: int) -> tuple[bytes | None, int, dict[str, Any], bytes]:
    """Key, time-stamp (ns since 1970), headers and payload of the record at ``raw[at]``."""
    length, _, stamp, _, key_n, headers_n = unpack_from("<IIqIHH", raw, at)
    key_at = at + seg.RECORD_HEADER_BYTES
    headers_at = key_at + key_n
    payload_at = headers_at + headers_n
    return (
        raw[key_at:headers_at] if length & seg.REC_KEY else None,
        stamp,
        msgspec.msgpack.decode(raw[headers_at:payload_at]) if headers_n else {},
        raw[payload_at : at + (length & seg.REC_LENGTH_MASK)],
    )


def decoded(record: bytes, *, cut: bool = True) -> dict[str, Any]:
    """A record's parts; ``cut``: with the beginning of a long payload only."""
    key, stamp, headers, payload = parts_at(record, 0)
    return {
        "key": key,
        "time_ns": stamp,
        "headers": headers,
        "size": len(payload),
        "payload": payload[:PEEK_PAYLOAD_BYTES_MAX] if cut else payload,
    }


def records_from(log: QueueLog, token: int) -> Iterator[tuple[int, bytes]]:
    """(token, record) from ``token`` on (from the oldest record kept, if that is later)."""
    reader, buffer = log.reader(), np.empty(_READ_BYTES, dtype=np.uint8)
    try:
        while token < log.next_token:
            try:
                used = reader.read_block(token, buffer)
            except NotFound:
                token = log.earliest_token
                continue
            except ValueError:
                buffer = np.empty(reader.need, dtype=np.uint8)
                continue
            if used == 0:
                return
            for one, record in _records_in(bytes(buffer[:used])):
                if one >= token:
                    yield one, record
            token = reader.next_token
    finally:
        reader.close()


def _records_in(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """The records of whole batches, which the reader has checked."""
    at = 0
    while at < len(raw):
        (length,) = unpack_from("<I", raw, at + seg.BATCH_LENGTH_AT)
        (token,) = unpack_from("<q", raw, at + seg.BATCH_BASE_TOKEN_AT)
        (count,) = unpack_from("<I", raw, at + seg.BATCH_COUNT_AT)
        p = at + seg.BATCH_HEADER_BYTES
        for i in range(count):
            size = unpack_from("<I", raw, p)[0] & seg.REC_LENGTH_MASK
            yield token + i, raw[p : p + size]
            p += size
        at += length
