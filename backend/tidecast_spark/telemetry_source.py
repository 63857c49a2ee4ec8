"""Telemetry as a source: samples already parsed, by Arrow in the workers.

Spark's ``from_json`` reads some 70,000 samples a second and core; this several times as many.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tidecast_spark.source import COLUMN_TYPES, StreamReader, TidecastDataSource
from tidecast_spark.telemetry import DIMENSIONS, SAMPLE_FIELDS, TIME

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


class Parser:
    """Makes columns of samples as JSON. What is malformed becomes a row of nulls."""

    def __init__(self) -> None:
        import pyarrow.json as pj

        self.schema = _arrow_schema()
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
        """The samples of a column of binary values."""
        import pyarrow as pa
        import pyarrow.json as pj

        lines = values.to_pylist()
        text = b"\n".join(lines)
        try:
            table = pj.read_json(
                io.BytesIO(text), parse_options=self._options,
                read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
            )  # fmt: skip
            sound = table.num_rows == len(lines)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            sound = False
        if not sound:  # one by one, to find those that are malformed
            table = pa.Table.from_pylist([self._row(line) for line in lines], schema=self.schema)
        yield from table.select(self.schema.names).cast(self.schema).to_batches()

    def _row(self, line: bytes) -> dict[str, Any]:
        try:
            return msgspec.structs.asdict(self._one.decode(line))
        except msgspec.MsgspecError:
            return {TIME: None}


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
