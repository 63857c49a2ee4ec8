"""Records in memory, with a table of their places: payloads, fields, Arrow columns."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from tidecast.buffers import member_ring
from tidecast.client.columns.received import Fields
from tidecast.client.core.message import SLICED_MAX, split
from tidecast.client.core.metadata import HeaderValue, time_in, without_time
from tidecast.client.kernels import consumer as kernels
from tidecast.client.kernels.objects import payload_maker
from tidecast.layout import segment
from tidecast.native.memory import address
from tidecast.native.packing import unpack_from

_decode_headers = msgspec.msgpack.Decoder(dict[str, Any]).decode
LOADED_MAX = 256
"""Records whose fields are read together: 0.1 us each, where one by one takes 1 us."""
_FEW = 4


class LoadedFields:
    """Keys, headers and times of records [first, end) of a batch, copied out of its memory."""

    __slots__ = ("_cells", "_heads", "_memory", "end", "first", "keys", "times")

    def __init__(self, memory: np.ndarray[Any, Any], first: int, at: np.ndarray[Any, Any]) -> None:
        self.first, self.end, self._memory = first, first + len(at), memory
        # the 8 bytes at each address, though they are not aligned
        words = np.ndarray((memory.size - 7,), np.dtype("<i8"), memory.data, 0, (1,))
        sizes = words[at + segment.REC_KEY_HASH_AT]
        keys_at = at + segment.RECORD_HEADER_BYTES
        heads_at = keys_at + ((sizes >> 32) & 0xFFFF)
        ends = heads_at + ((sizes >> 48) & 0xFFFF)
        # the sizes are of shared memory: a kernel reads by them, so they stay within it
        self._cells = np.minimum(np.stack((keys_at, heads_at, ends)), memory.size)
        self.times: list[int] = words[at + segment.REC_TIME_AT].tolist()
        self.keys: list[bytes | None] = self._bytes(0)
        without = np.flatnonzero(words[at] & segment.REC_KEY == 0)
        for row in without.tolist():
            self.keys[row] = None
        self._heads: list[bytes] | None = None

    def heads(self) -> list[bytes]:
        """The headers as MessagePack; empty where there are none."""
        if self._heads is None:
            self._heads = self._bytes(1)
        return self._heads

    def _bytes(self, row: int) -> list[Any]:
        columns = self._cells[row : row + 2]
        return payload_maker()(address(self._memory), columns, self.end - self.first)


class StoredRecords:
    """Records in place. ``rows``: int64[n, 5], see `member_ring.ROW_*`."""

    __slots__ = ("_loaded", "_memory", "_n", "_rows", "_view")

    def __init__(self, memory: np.ndarray[Any, Any], rows: Any) -> None:
        self._memory, self._rows = memory, rows
        self._view = memory.data
        self._n = len(rows)
        self._loaded: LoadedFields | None = None

    def __len__(self) -> int:
        return self._n

    def __bool__(self) -> bool:
        return self._n > 0

    @property
    def nbytes(self) -> int:
        """Payload bytes in all."""
        return int(self._rows[:, member_ring.ROW_LENGTH].sum())

    def payloads(self) -> list[bytes]:
        """The payloads, copied."""
        if self._n <= SLICED_MAX:
            self._check()
            view = self._view
            return [bytes(view[at : at + n]) for at, n in self._rows[:, :2].tolist()]
        data, offsets = self._gathered()
        return split(data.tobytes(), offsets)

    def to_arrow(self) -> Any:
        """An Arrow array (LargeBinary) of the payloads, made by one copy."""
        import pyarrow as pa

        data, offsets = self._gathered()
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.large_binary(), self._n, buffers)

    def fields(self) -> Fields:
        """Where keys, headers and times lie. Raises Closed."""
        self._check()
        found = Fields(self._n)
        if self._n:
            found.of_records(self._memory, np.ascontiguousarray(self._rows))
        return found

    def key(self, row: int) -> bytes | None:
        """Key of record ``row``."""
        if self._n > _FEW:
            fields = self._fields_at(row)
            return fields.keys[row - fields.first]
        at, length, _, key_n, _ = self._record(row)
        if not length & segment.REC_KEY:
            return None
        at += segment.RECORD_HEADER_BYTES
        return bytes(self._view[at : at + key_n])

    def headers(self, row: int) -> dict[str, HeaderValue]:
        """Headers of record ``row``, without its delivery time."""
        return without_time(self._headers(row))

    def deliver_at(self, row: int) -> int | None:
        """Delivery time of record ``row``, ns since 1970; None: it has none."""
        return time_in(self._headers(row))

    def _headers(self, row: int) -> dict[str, HeaderValue]:
        if self._n > _FEW:
            fields = self._fields_at(row)
            raw = fields.heads()[row - fields.first]
            return _decode_headers(raw) if raw else {}
        at, _, _, key_n, headers_n = self._record(row)
        if not headers_n:
            return {}
        at += segment.RECORD_HEADER_BYTES + key_n
        return _decode_headers(self._view[at : at + headers_n])

    def timestamp(self, row: int) -> int:
        """Time-stamp of record ``row``."""
        if self._n > _FEW:
            fields = self._fields_at(row)
            return fields.times[row - fields.first]
        return self._record(row)[2]

    def _fields_at(self, row: int) -> LoadedFields:
        """Fields of a record and its neighbours. Raises Closed."""
        self._check()
        fields = self._loaded
        if fields is None or not fields.first <= row < fields.end:
            if not 0 <= row < self._n:
                raise IndexError(f"record {row} of {self._n}")
            first = row - row % LOADED_MAX
            at = self._rows[first : first + LOADED_MAX, member_ring.ROW_RECORD_AT]
            fields = self._loaded = LoadedFields(self._memory, first, at)
        return fields

    def _record(self, row: int) -> tuple[int, int, int, int, int]:
        self._check()
        at = self._record_at(row)
        length, _, stamp, _, key_n, headers_n = unpack_from("<IIqIHH", self._view, at)
        return at, length, stamp, key_n, headers_n

    def _record_at(self, row: int) -> int:
        return int(self._rows[row, member_ring.ROW_RECORD_AT])

    def _gathered(self) -> tuple[Any, Any]:
        self._check()
        offsets = np.zeros(self._n + 1, dtype=np.int64)
        np.cumsum(self._rows[:, member_ring.ROW_LENGTH], out=offsets[1:])
        data = np.empty(int(offsets[-1]), dtype=np.uint8)
        if self._n:
            kernels.gather(self._memory, self._rows, offsets, data)
        return data, offsets

    def _check(self) -> None:
        """Raise Closed when the memory may have been overwritten."""


B = TypeVar("B", bound=StoredRecords)


class StoredRecord(msgspec.Struct, Generic[B], frozen=True, gc=False, eq=False):
    """A record of a batch. ``data``: its payload, copied; the other fields are in the batch."""

    data: bytes
    _batch: B
    _row: int

    @property
    def size(self) -> int:
        """Payload bytes."""
        return len(self.data)

    @property
    def key(self) -> bytes | None:
        """The key, or None."""
        return self._batch.key(self._row)

    @property
    def headers(self) -> dict[str, HeaderValue]:
        """The headers; empty when there are none."""
        return self._batch.headers(self._row)

    @property
    def timestamp(self) -> int:
        """The publisher's time-stamp, else when it was appended; ns since 1970."""
        return self._batch.timestamp(self._row)

    @property
    def deliver_at(self) -> int | None:
        """Its delivery time, ns since 1970; None: it was published without."""
        return self._batch.deliver_at(self._row)
