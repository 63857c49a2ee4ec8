"""``format("tidecast")``: topics as a source of batches and of streams.

Offsets are ``{topic: {queue: next token}}``. Modules with Numba are imported where they are used:
Spark asks a fresh process for the schema alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidecast.errors import ConfigError
from tidecast_spark.filters import Pushed, push
from tidecast_spark.parts import QueueRange, ReadSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from tidecast_spark.options import Positions, SourceOptions

COLUMN_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "queue": IntegerType(),
    "token": LongType(),
    "timestamp": TimestampType(),
}
HEADER_TYPES: dict[str, DataType] = {
    "map": MapType(StringType(), BinaryType()),
    "raw": BinaryType(),
}


class Part(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, queue_range: QueueRange) -> None:
        super().__init__(queue_range)


def column_types(headers: str) -> dict[str, DataType]:
    """Column -> type; ``headers``: no, map, raw."""
    kinds = dict(COLUMN_TYPES)
    if headers != "no":
        kinds["headers"] = HEADER_TYPES[headers]
    return kinds


def read_settings(options: SourceOptions, schema: StructType) -> ReadSettings:
    """How workers read; ``schema`` may be a part of the columns. Raises ConfigError."""
    allowed = {n: kind.simpleString() for n, kind in column_types(options.headers).items()}
    for one in schema.fields:
        kind = one.dataType.simpleString()
        if allowed.get(one.name) != kind:
            shown = ", ".join(f"{name} {type_}" for name, type_ in allowed.items())
            raise ConfigError(
                f"schema: {one.name} {kind}: allowed are columns of: {shown}"
                + ("" if options.headers != "no" else " (headers: with option includeHeaders)")
            )
        if not one.nullable:
            raise ConfigError(f"schema: {one.name}: must be nullable")
    return ReadSettings(
        columns=tuple(schema.fieldNames()),
        headers=options.headers,
        skip_corrupt=options.skip_corrupt,
        bad_records_path=options.bad_records_path,
        fail_on_data_loss=options.fail_on_data_loss,
        rows=options.rows,
        servers=options.servers,
        token=options.token,
    )


class TidecastDataSource(DataSource):
    """Topics of Tidecast, to read and to write, as batches and as streams."""

    @classmethod
    def name(cls) -> str:
        """The name in ``format(...)``."""
        return "tidecast"

    def schema(self) -> StructType:
        """All columns; `headers` only with ``includeHeaders``. Raises ConfigError."""
        low = {k.lower(): v for k, v in self.options.items()}
        headers = {"true": "map", "raw": "raw"}.get(low.get("includeheaders", "").lower(), "no")
        return StructType([StructField(n, kind) for n, kind in column_types(headers).items()])

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read. Raises ConfigError, NotFound, AuthError."""
        from tidecast_spark.options import source_options

        options = source_options(self._given(), streaming=False)
        return (PushingReader if options.push_filters else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream. Raises ConfigError, NotFound, AuthError."""
        from tidecast_spark.options import source_options

        return StreamReader(source_options(self._given(), streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write. Raises ConfigError, NotFound, AuthError, EngineNotRunning."""
        from tidecast_spark import outlet
        from tidecast_spark.sink import BatchWriter, writer_options

        options = writer_options(self._given(), streaming=False, overwrite=overwrite)
        made = BatchWriter(options, schema)
        outlet.check_engine(options)
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A stream's writes; ``overwrite`` (mode complete) is refused. Raises ConfigError, ..."""
        from tidecast_spark import outlet
        from tidecast_spark.sink import StreamWriter, writer_options

        options = writer_options(self._given(), streaming=True, overwrite=overwrite)
        made = StreamWriter(options, schema)
        outlet.check_engine(options)
        return made

    def _given(self) -> Mapping[str, str]:
        return dict(self.options.items())


class BatchReader(DataSourceReader):
    """Reads a range of tokens of each queue, once."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._settings = read_settings(options, schema)
        self._pushed = Pushed(options.rows, options.queues)

    def partitions(self) -> Sequence[InputPartition]:
        """One part a task, cut along the index. Raises ConfigError, GapError."""
        from tidecast_spark.planning import Planner

        planner = Planner(self._options)
        start = planner.at("startingOffsets", self._options.starting)
        end = planner.at("endingOffsets", self._options.ending)
        rows = self._pushed.rows
        if rows.is_empty():
            return [Part(QueueRange("", 0, "", 0, 0))]
        end = _each(end, lambda _, token: min(token, rows.token_end))
        start = _each(start, lambda _, token: max(token, rows.token_min))
        end = {
            t: {q: n for q, n in queues.items() if self._pushed.wants_queue(int(q))}
            for t, queues in end.items()
        }
        parts = [Part(one) for one in planner.ranges(start, end)]
        return parts or [Part(QueueRange("", 0, "", 0, 0))]  # Spark refuses none at all

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of one part."""
        from tidecast_spark.reading import read_range

        yield from read_range(partition.value, self._settings)


class PushingReader(BatchReader):
    """A batch read that takes over Spark's filters, on request.

    Apart, since Spark refuses a reader that could while its own switch is off. Both are off by
    default: Spark 4.3 keeps pushed filters in the DataFrame's source, so that a later query of the
    same DataFrame without filters, or a union of two that filter, reads with the wrong ones.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take over filters on token, timestamp, queue and key; the others are Spark's."""
        asked = Pushed(self._options.rows, self._options.queues)
        self._pushed, left = push(filters, asked)
        self._settings = replace(self._settings, rows=self._pushed.rows)
        return left


def _each(positions: Positions, change: Any) -> Positions:
    return {t: {q: change(q, n) for q, n in queues.items()} for t, queues in positions.items()}


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads from offset to offset. New queues and new topics of a pattern begin at their start.

    Retention does not wait for streams: records that it deletes before they were read are a
    GapError, unless ``failOnDataLoss`` is false.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        from tidecast_spark.planning import Planner

        self._options = options
        self._settings = read_settings(options, schema)
        self._planner = Planner(options)
        self._target: Positions | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query without a checkpoint begins."""
        return self._planner.at("startingOffsets", self._options.starting)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``maxRecordsPerTrigger``, or all there is."""
        rows = self._options.records_per_trigger
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch. Raises GapError when a queue was cut or is gone."""
        from tidecast_spark.planning import check_forward

        end = self._planner.ends() if self._target is None else self._target
        if self._target is None and self._options.fail_on_data_loss:
            check_forward(start, end)
        if isinstance(limit, ReadMaxRows):
            return self._planner.limited(start, end, limit.max_rows)
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The ends of the queues, which the progress report shows as the latest offset."""
        return self._planner.ends() or None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the target: nothing appended later is read."""
        self._target = self._planner.ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One part a task, cut along the index. Raises GapError."""
        parts = [Part(one) for one in self._planner.ranges(start, end)]
        return parts or [Part(QueueRange("", 0, "", 0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of one part."""
        from tidecast_spark.reading import read_range

        yield from read_range(partition.value, self._settings)
