"""Received messages as an Arrow record batch: columns for `publish_batch`, and their places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from tidecast.client.core.outgoing import reject
from tidecast.client.kernels import fields as kernels
from tidecast.client.kernels.cells import NO_TIME, NULL, Cells
from tidecast.client.kernels.warm import compile_fields
from tidecast.errors import CodecError
from tidecast.native.memory import address

HeaderForm = Literal["map", "raw"]
_FORMS = ("map", "raw")
_OFFSETS_MAX = (1 << 31) - 1


class Fields:
    """Where keys, headers and times of ``n`` messages lie."""

    def __init__(self, n: int) -> None:
        compile_fields()
        self.n = n
        self.keys, self.headers = (np.full((2, n), NULL, dtype=np.int64) for _ in range(2))
        self.times, self.due = (np.full(n, NO_TIME, dtype=np.int64) for _ in range(2))
        self._cut = np.zeros(0, dtype=np.uint8)
        """Headers without their delivery times."""

    def of_poll(self, base: int, n_bytes: int, rows: Cells) -> None:
        """Of messages of a live batch."""
        kernels.locate_fields(base, n_bytes, rows, self.keys, self.headers, self.times)
        self._cut_times()

    def of_records(self, memory: Any, rows: Cells) -> None:
        """Of records of a durable batch."""
        kernels.locate_record_fields(
            address(memory), memory.size, rows, self.keys, self.headers, self.times
        )
        self._cut_times()

    def _cut_times(self) -> None:
        """Delivery times are a column of their own, and no headers."""
        if n_bytes := int(kernels.locate_times(self.headers, self.due)):
            self._cut = np.empty(n_bytes, dtype=np.uint8)
            kernels.cut_times(self.headers, self.due, self._cut, address(self._cut))

    def record_batch(
        self, payload: Any, headers: HeaderForm, others: Mapping[str, Any], topic: str
    ) -> Any:
        """A record batch of the payloads, these fields, and ``others``.

        Raises ConfigError, and CodecError for headers of 2 GiB.
        """
        import pyarrow as pa

        if headers not in _FORMS:
            raise reject("headers", headers, "are 'map' and 'raw'")
        columns = {
            "payload": payload,
            "key": _binary(pa, self.keys),
            "headers": (
                _binary(pa, self.headers) if headers == "raw" else _maps(pa, self.headers, topic)
            ),
            "timestamp": self._moments(pa, self.times),
            "deliver_at": self._moments(pa, self.due),
            **others,
        }
        return pa.record_batch(columns)

    def _moments(self, pa: Any, times: Cells) -> Any:
        bits = _no_bits(self.n)
        nulls = kernels.mark_times(times, bits)
        kind = pa.timestamp("ns", "UTC")
        return pa.Array.from_buffers(kind, self.n, _buffers(pa, bits, times), int(nulls))


def _no_bits(n: int) -> Any:
    return np.zeros((n + 7) // 8, dtype=np.uint8)


def _buffers(pa: Any, *arrays: Any) -> list[Any]:
    return [pa.py_buffer(each) for each in arrays]


def _binary(pa: Any, cells: Cells) -> Any:
    n = cells.shape[1]
    offsets, bits = np.empty(n + 1, dtype=np.int64), _no_bits(n)
    nulls = kernels.measure_cells(cells, offsets, bits)
    data = np.empty(int(offsets[n]), dtype=np.uint8)
    kernels.copy_cells(cells, offsets, data)
    buffers = _buffers(pa, bits, offsets, data)
    return pa.Array.from_buffers(pa.large_binary(), n, buffers, int(nulls))


def _maps(pa: Any, cells: Cells, topic: str) -> Any:
    """Arrow maps of text to bytes; whole numbers as decimal text."""
    n = cells.shape[1]
    ends, bits = np.empty(n + 1, dtype=np.int32), _no_bits(n)
    sums = np.zeros(3, dtype=np.int64)
    scratch = np.empty(kernels.DIGITS_MAX, dtype=np.uint8)
    nulls = kernels.measure_entries(cells, ends, bits, scratch, sums)
    if int(sums.max()) > _OFFSETS_MAX:
        raise CodecError(
            f"topic {topic}: the headers of {n} messages have over 2 GiB: take smaller batches, "
            "or headers='raw'"
        )
    entries, name_bytes, value_bytes = sums.tolist()
    name_ends, value_ends = (np.zeros(entries + 1, dtype=np.int32) for _ in range(2))
    names = np.empty(name_bytes, dtype=np.uint8)
    values = np.empty(value_bytes, dtype=np.uint8)
    kernels.fill_entries(cells, name_ends, names, value_ends, values)
    keys = pa.Array.from_buffers(pa.string(), entries, [None, *_buffers(pa, name_ends, names)], 0)
    items = pa.Array.from_buffers(
        pa.binary(), entries, [None, *_buffers(pa, value_ends, values)], 0
    )
    kind = pa.map_(pa.string(), pa.binary())
    pairs = pa.StructArray.from_arrays([keys, items], fields=list(kind_fields(kind)))
    return pa.Array.from_buffers(kind, n, _buffers(pa, bits, ends), int(nulls), children=[pairs])


def kind_fields(kind: Any) -> tuple[Any, Any]:
    """The fields of a map's entries."""
    return kind.key_field, kind.item_field
