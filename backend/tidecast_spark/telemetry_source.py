"""Telemetry as a source: samples already parsed, in the workers.

Spark's ``from_json`` reads some 70,000 samples a second and core, Arrow 280,000. Plain samples, as
engines write them, are read by kernels, ten times as quickly; others by Arrow, in chunks, and if
one of those is malformed, one by one.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tidecast_spark.source import COLUMN_TYPES, StreamReader, TidecastDataSource
from tidecast_spark.telemetry import DIMENSIONS, SAMPLE_FIELDS, TIME
from tidecast_spark.telemetry_decode import (
    INTEGER,
    TEXT,
    count_bits,
    gather_texts,
    read_samples,
    text_bytes,
)

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = StructType(
    [
        StructField(name, StringType() if DIMENSIONS.get(name) is str else LongType())
        for name in SAMPLE_FIELDS
    ]
)
VALUE = StructType([StructField("value", COLUMN_TYPES["value"])])


def _arrow_schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {StringType(): pa.string(), LongType(): pa.int64()}
    return pa.schema([(one.name, kinds[one.dataType]) for one in SCHEMA.fields])


ODD_ROWS = 1024
"""So many samples are left to Arrow when one is not plain."""


class Parser:
    """Makes columns of samples in JSON. A malformed sample becomes a row of nulls."""

    def __init__(self) -> None:
        import pyarrow.json as pj

        self.schema = _arrow_schema()
        names = [name.encode() for name in self.schema.names]
        self._names = np.frombuffer(bytearray(b"".join(names)), dtype=np.uint8)
        self._name_ends = np.cumsum([len(name) for name in names]).astype(np.int64)
        self._kinds = np.array(
            [TEXT if str(kind) == "string" else INTEGER for kind in self.schema.types]
        )
        self._options = pj.ParseOptions(
            explicit_schema=self.schema, unexpected_field_behavior="ignore"
        )
        self._one = msgspec.json.Decoder(
            msgspec.defstruct(
                "Sample",
                [
                    (one.name, (str if one.dataType == StringType() else int) | None, None)
                    for one in SCHEMA.fields
                ],
            )
        )

    def parse(self, values: Any) -> Iterator[pa.RecordBatch]:
        """The samples of a column of binary values, which has no nulls and begins its buffers."""
        n, at = len(values), 0
        _, ends_buffer, data_buffer = values.buffers()
        ends = _writable(np.frombuffer(ends_buffer, dtype=np.int32, count=n + 1))
        data = _writable(np.frombuffer(data_buffer or bytes(1), dtype=np.uint8))
        while at < n:
            found = self._plain(data, ends, at, n)
            if found is not None:
                yield found
                at += found.num_rows
            if at < n:
                yield from self._odd(values.slice(at, ODD_ROWS))
                at += ODD_ROWS

    def _plain(self, data: Any, ends: Any, first: int, last: int) -> pa.RecordBatch | None:
        """The plain samples from ``first`` on."""
        import pyarrow as pa

        fields, room = self._kinds.size, last - first
        numbers, lengths = (np.empty((fields, room), dtype=np.int64) for _ in range(2))
        bits = np.zeros((fields, (room + 7) // 8), dtype=np.uint8)
        rows = int(
            read_samples(
                data,
                ends,
                first,
                last,
                self._names,
                self._name_ends,
                self._kinds,
                numbers,
                lengths,
                bits,
            )
        )
        if not rows:
            return None
        columns = []
        for field, kind in enumerate(self.schema.types):
            nulls = rows - int(count_bits(bits, field, rows))
            buffers = [pa.py_buffer(bits[field]) if nulls else None]
            if self._kinds[field] == TEXT:
                at = np.empty(rows + 1, dtype=np.int32)
                text = np.empty(int(text_bytes(lengths, bits, field, rows)), dtype=np.uint8)
                gather_texts(data, numbers, lengths, bits, field, rows, at, text)
                buffers += [pa.py_buffer(at), pa.py_buffer(text)]
            else:
                buffers.append(pa.py_buffer(numbers[field]))
            columns.append(pa.Array.from_buffers(kind, rows, buffers, nulls))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _odd(self, values: Any) -> Iterator[pa.RecordBatch]:
        """Samples of any form."""
        import pyarrow as pa
        import pyarrow.json as pj

        lines = values.to_pylist()
        text = b"\n".join(lines)
        try:
            table = pj.read_json(
                io.BytesIO(text),
                parse_options=self._options,
                read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
            )
            sound = table.num_rows == len(lines)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            sound = False
        if not sound:  # one by one, to find the malformed samples
            table = pa.Table.from_pylist([self._row(line) for line in lines], schema=self.schema)
        yield from table.select(self.schema.names).cast(self.schema).to_batches()

    def _row(self, line: bytes) -> dict[str, Any]:
        try:
            return msgspec.structs.asdict(self._one.decode(line))
        except msgspec.MsgspecError:
            return {TIME: None}


def _writable(array: np.ndarray) -> np.ndarray:
    """Kernels have one signature."""
    return array if array.flags.writeable else array.copy()


class TelemetryReader(StreamReader):
    """A stream of samples."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of one part, parsed."""
        parser = Parser()
        for table in super().read(partition):
            yield from parser.parse(table.column(0))


class TelemetrySource(TidecastDataSource):
    """``format("tidecast_telemetry")``: the options of ``tidecast``, the columns of samples."""

    @classmethod
    def name(cls) -> str:
        """The name in ``format(...)``."""
        return "tidecast_telemetry"

    def schema(self) -> StructType:
        """The fields of a sample; all but ``time_us`` and ``topic`` may be null."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """A stream. Raises ConfigError, NotFound, AuthError."""
        from tidecast_spark.options import source_options

        return TelemetryReader(source_options(self._given(), streaming=True), VALUE)
