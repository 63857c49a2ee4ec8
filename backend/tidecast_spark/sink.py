"""``format("tidecast")`` as a sink, of batches and of streams, with exactly-once effect.

Tasks stage their rows, the driver's commit publishes them in one producer session a query: see
`tidecast_spark.staging`. A batch appears as a whole: nothing of one that failed is published. With
``commit=partitions`` each task publishes its rows: see `tidecast_spark.claims`.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tidecast.client.core.metadata import check_due_ns
from tidecast.errors import ConfigError
from tidecast.layout.header_names import DELIVER_AT, RESERVED, is_reserved
from tidecast_spark.claims import ONCE, BatchOver, Claims, check_cut, claimed, finish, recut, sweep
from tidecast_spark.options import SinkOptions, sink_options
from tidecast_spark.outlet import digest_of, first_reserved_row, next_seq, publish_batch
from tidecast_spark.staging import STAGED_SCHEMA, Staged, StagingArea

_MAPS = ("map<string,binary>", "map<string,string>")
SINK_TYPES: dict[str, tuple[str, ...]] = {
    "topic": ("string",),
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("binary", *_MAPS),
    "timestamp": ("timestamp",),
    "deliver_at": ("timestamp",),
}
"""Columns that may be written, with the types each may have. Only `value` is needed."""

IGNORED = ("queue", "token")
"""Columns of the source that say nothing here: the key chooses the queue, the log the token."""


class Message(WriterCommitMessage):
    """The report of a task to the driver: the file it staged."""

    def __init__(self, staged: Staged) -> None:
        self.staged = staged


def check_schema(schema: StructType, topic: str) -> None:
    """Raise ConfigError unless rows of this schema can be written."""
    kinds = {one.name: one.dataType.simpleString() for one in schema.fields}
    allowed = "; ".join(f"{name}: {' or '.join(types)}" for name, types in SINK_TYPES.items())
    for name, kind in kinds.items():
        if name not in IGNORED and kind not in SINK_TYPES.get(name, ()):
            raise ConfigError(
                f"column {name} {kind}: cannot be written: allowed are {allowed}. For a JSON "
                'payload: selectExpr("to_json(struct(*)) value")'
            )
    if "value" not in kinds:
        raise ConfigError(f"column value is missing: rows need one; allowed are {allowed}")
    if "topic" not in kinds and not topic:
        raise ConfigError("option topic: give a topic, or rows with a column `topic`")


def _encode_headers(column: Any) -> Any:
    """Maps of text to bytes or text as MessagePack maps."""
    encoded = [
        None if one is None else msgspec.msgpack.encode(dict(one)) for one in column.to_pylist()
    ]
    return pa.array(encoded, type=pa.binary())


def _without_reserved(column: Any) -> Any:
    """MessagePack maps without the names that the engine reserves; null where nothing is left."""

    def kept(raw: bytes | None) -> bytes | None:
        if raw is None:
            return None
        headers = msgspec.msgpack.decode(raw)
        left = {name: value for name, value in headers.items() if not is_reserved(name)}
        if len(left) == len(headers):
            return raw
        return msgspec.msgpack.encode(left) if left else None

    return pa.array([kept(raw) for raw in column.to_pylist()], type=pa.binary())


def _with_times(headers: Any, times: Any) -> Any:
    """MessagePack maps with the delivery times (us since 1970) in front. Raises ConfigError.

    In Python for each row that has a time: 1 us.
    """
    now_ns = time.time_ns()

    def joined(row: int, raw: bytes | None, due_us: int | None) -> bytes | None:
        if due_us is None:
            return raw
        if due_us < 0:
            raise ConfigError(f"column deliver_at: row {row}: it is before 1970")
        check_due_ns(f"column deliver_at: row {row}", due_us * 1000, now_ns)
        own = msgspec.msgpack.decode(raw) if raw else {}
        return msgspec.msgpack.encode({DELIVER_AT: due_us * 1000, **own})

    rows = enumerate(zip(headers.to_pylist(), times.to_pylist(), strict=True))
    return pa.array([joined(row, raw, due_us) for row, (raw, due_us) in rows], type=pa.binary())


def _delivery_times(table: Any) -> Any:
    """The column of delivery times as us since 1970; None: the rows have none."""
    at = table.schema.get_field_index("deliver_at")
    if at < 0 or table.column(at).null_count == table.num_rows:
        return None
    return pc.cast(pc.cast(table.column(at), pa.timestamp("us", tz="UTC")), pa.int64())


def normalised(table: Any, topic: str, *, drop_reserved: bool = False) -> Any:
    """A record batch in the columns and types of `STAGED_SCHEMA`. Raises ConfigError."""
    columns = []
    n = table.num_rows
    for field in STAGED_SCHEMA:
        at = table.schema.get_field_index(field.name)
        if at < 0:
            fill = topic if field.name == "topic" else None
            columns.append(
                pa.nulls(n, field.type) if fill is None else pa.repeat(pa.scalar(fill), n)
            )
            continue
        column = table.column(at)
        if pa.types.is_map(column.type):
            column = _encode_headers(column)
        elif column.type != field.type:
            column = pc.cast(column, field.type)
        if field.name == "headers" and first_reserved_row(column) >= 0:
            if not drop_reserved:
                raise ConfigError(
                    f"column headers: row {first_reserved_row(column)} has a name that begins "
                    f"with {' or '.join(RESERVED)}: these are the engine's own: leave them out, "
                    "or set reservedHeaders=drop"
                )
            column = _without_reserved(column)
        if field.name == "topic" and column.null_count and topic:
            column = pc.fill_null(column, topic)
        if field.name in ("value", "topic") and column.null_count:
            raise ConfigError(
                f"column {field.name}: null in {column.null_count} rows: give them a value, as "
                f"with coalesce({field.name}, ...)"
            )
        columns.append(column)
    due_us = _delivery_times(table)
    if due_us is not None:
        at = STAGED_SCHEMA.get_field_index("headers")
        columns[at] = _with_times(columns[at], due_us)
    return pa.RecordBatch.from_arrays(columns, schema=STAGED_SCHEMA)


class _Writer:
    """The common part of batch and stream writers."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(schema, options.topic)
        self._options = options

    def _area(self, query: str) -> StagingArea:
        return StagingArea(self._options.staging_dir, query)

    def _stage(self, query: str, batch: int, tables: Iterator[Any]) -> Message:
        task = TaskContext.get()
        partition, attempt = (0, 0) if task is None else (task.partitionId(), task.taskAttemptId())
        given, area = self._options, self._area(query)
        rows = (normalised(one, given.topic, drop_reserved=given.drop_reserved) for one in tables)
        if area.manifest(batch) is None and (given.by_partitions or claimed(area, batch)):
            return Message(self._publish(area, batch, partition, attempt, rows))
        return Message(area.stage(batch, partition, attempt, rows))

    def _publish(
        self, area: StagingArea, batch: int, partition: int, attempt: int, rows: Iterator[Any]
    ) -> Staged:
        """Stage a partition, and publish the rows of its first attempt. Raises TidecastError."""
        staged = area.stage(batch, partition, attempt, rows, digest_of)
        claims, given = Claims(area, partition), self._options

        def due(topic: str) -> int:
            # A query that is new has sent nothing; else the log knows, though the area was lost.
            return next_seq(given, area, partition, topic) if batch else 1

        try:
            claim = claims.take(batch, staged, due)
            if claim.name != staged.name:
                area.batch_dir(batch).joinpath(staged.name).unlink(missing_ok=True)
                same = (claim.digest, claim.rows) == (staged.digest, staged.rows)
                if not same and not given.keep_rows:
                    raise recut(
                        area,
                        batch,
                        f"partition {partition} had {sum(claim.rows.values())} rows in the attempt "
                        f"that counts, and has other rows now ({sum(staged.rows.values())})",
                    )
            if not claims.durable(batch):
                over = partial(claims.durable, batch)
                publish_batch(given, area, batch, claim.manifest(partition), over)
                claims.note_durable(batch)
        except BatchOver:
            area.forget(batch)
        except FileNotFoundError:  # the file that the claim names: removed when the batch was over
            if not claims.durable(batch):
                raise
        return replace(staged, published=True)

    def _commit(self, messages: list[Any], batch: int) -> None:
        staged = [one.staged for one in messages if one is not None]
        if not staged:
            return
        area = self._area(staged[0].query)
        if area.state().batch >= batch:  # committed before, and Spark did not come to note it
            area.forget(batch)
            return
        published = {one.partition for one in staged if one.published}
        if published:
            check_cut(area, batch, {one.partition for one in staged})
            if len(published) < len(staged):
                raise recut(area, batch, "some of its tasks were started without commit=partitions")
            finish(area, batch)
            return
        manifest = area.commit(batch, staged, partial(next_seq, self._options, area, None))
        publish_batch(self._options, area, batch, manifest)
        area.done(batch, manifest)

    def _abort(self, messages: list[Any]) -> None:
        staged = [one.staged for one in messages if one is not None and not one.staged.published]
        if staged:
            self._area(staged[0].query).drop(staged)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the batches of a query."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage one task's rows. Raises ConfigError."""
        task = TaskContext.get()
        assert task is not None
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        return self._stage(str(query), int(str(batch)), iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Publish a batch; one that was published before is left as it is."""
        self._commit(messages, batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: ARG002, N803
        """Remove staged files without a manifest."""
        self._abort(messages)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes rows once. With option ``writeId`` the same write may be repeated."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        name = f"{options.write_id}@{options.topic}" if options.write_id else ""
        self._write = name or f"{ONCE}{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage one task's rows. Raises ConfigError."""
        return self._stage(self._write, 0, iterator)

    def commit(self, messages: list[Any]) -> None:
        """Publish all rows; nothing if a write of this ``writeId`` was published before."""
        self._commit(messages, 0)
        if self._options.write_id:
            return
        if self._options.by_partitions:
            sweep(self._options.staging_dir, time.time())  # an attempt given up may still come
        else:
            self._area(self._write).remove()

    def abort(self, messages: list[Any]) -> None:
        """Remove staged files without a manifest."""
        self._abort(messages)


_WRITE_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


def _local_path(url: str) -> Path | None:
    parsed = urlparse(url)
    if parsed.scheme not in ("", "file"):
        return None
    return Path(unquote(parsed.path) if parsed.scheme else url)


def writer_options(given: Mapping[str, str], *, streaming: bool, overwrite: bool) -> SinkOptions:
    """The options of a write. Raises ConfigError."""
    if overwrite:
        raise ConfigError("mode overwrite: topics are appended to: use mode append")
    options = sink_options(given)
    if options.write_id and (streaming or not _WRITE_ID.fullmatch(options.write_id)):
        allowed = "is for batch writes" if streaming else "allowed: 1 to 100 of A-Z a-z 0-9 _ . -"
        raise ConfigError(f"option writeId: {options.write_id!r}: {allowed}")
    if not options.staging_dir.parts:
        low = {k.lower(): v for k, v in given.items()}
        checkpoint = _local_path(low.get("checkpointlocation", "s3:"))
        if not streaming:
            if options.servers:
                raise ConfigError(
                    "option stagingDir: needed with servers: give a directory that the driver and "
                    "all tasks share"
                )
            staging = options.data_dir / "spark"
        elif checkpoint is not None:
            staging = checkpoint / "tidecast-sink"
        else:
            raise ConfigError(
                "option stagingDir: needed, since option checkpointLocation names no directory: "
                "give a directory that the driver and all tasks share"
            )
        options = replace(options, staging_dir=staging)
    try:
        options.staging_dir.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ConfigError(
            f"option stagingDir: {options.staging_dir}: cannot be written: {problem.strerror}"
        ) from problem
    return options
