"""The source without a JVM: the same objects Spark would call, called by hand.

Each test reads the files, and once more over a gateway.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import datasource as sql
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType
from tests.support.log_gateways import TOKEN, gateways
from tests.support.spark_logs import (
    STEP_NS,
    TIME_NS,
    Record,
    append,
    damage,
    records,
    segments,
)

from tidecast.errors import AuthError, ConfigError, CorruptLog, GapError, NotFound
from tidecast.layout import segment as lay
from tidecast.log.queue_files import QueueFiles
from tidecast.log.queue_log import QueueLog
from tidecast_spark.parts import QueueRange, ReadSettings, RowFilter
from tidecast_spark.reading import Reporting, read_files
from tidecast_spark.source import TidecastDataSource

_served: list[Any] = []
"""How the address of a data directory's gateway is found; empty: files are read."""


@pytest.fixture(params=["files", "gateway"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with gateways() as served:
        if request.param == "gateway":
            _served.append(served)
        yield request.param
        _served.clear()


def given(data_dir: Path, **options: object) -> TidecastDataSource:
    place = {"dataDir": str(data_dir)}
    if _served and "dataDir" not in options:
        place = {"servers": _served[0](data_dir), "token": TOKEN}
    told = place | {"topic": "orders"} | options
    return TidecastDataSource({k: str(v) for k, v in told.items() if v is not None})


def batch(data_dir: Path, filters: Any = None, **options: Any) -> Any:
    if filters is not None:
        options["pushFilters"] = "true"
    source = given(data_dir, **options)
    reader = source.reader(source.schema())
    if filters is not None:
        assert reader.pushFilters(filters) == []
    return reader


def stream(data_dir: Path, **options: object) -> Any:
    source = given(data_dir, **options)
    return source.streamReader(source.schema())


def rows(reader: Any, parts: Any = None) -> list[dict[str, Any]]:
    found = []
    for part in reader.partitions() if parts is None else parts:
        for one in reader.read(part):
            one.validate(full=True)
            found += one.to_pylist()
    return found


def values(reader: Any, parts: Any = None) -> list[bytes]:
    return [row["value"] for row in rows(reader, parts)]


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """Topic `orders`: 2 queues of 1,000 records, several segments each."""
    for queue in range(2):
        append(tmp_path, "orders", queue, records(1000, queue * 1000))
    assert len(segments(tmp_path, "orders")) > 1
    return tmp_path


def test_every_record_comes_once_with_all_columns(orders: Path) -> None:
    found = rows(batch(orders))
    assert len(found) == 2000
    first = found[0]
    assert first == {
        "key": b"k0",
        "value": b"v0",
        "topic": "orders",
        "queue": 0,
        "token": 0,
        "timestamp": datetime.fromtimestamp(TIME_NS // 10**9, UTC),
    }
    by_queue = {q: [r["token"] for r in found if r["queue"] == q] for q in range(2)}
    assert by_queue == {0: list(range(1000)), 1: list(range(1000))}
    assert [r["value"] for r in found] == [b"v%d" % i for i in range(2000)]


def test_copies_of_dead_letters_are_left_out_and_offsets_go_on(tmp_path: Path) -> None:
    """The engine's alone: a header of that name in a record of anybody else says nothing."""
    mark: dict[str, object] = {"tidecast-for": "billing", "tidecast-redriven": 1}
    some = [
        Record(b"first", b"k", None, TIME_NS),
        Record(b"first", b"k", mark, TIME_NS, of_engine=True),
        Record(b"forged", b"k", mark, TIME_NS),
        Record(b"letter", b"k", {"dead-topic": "x"}, TIME_NS, of_engine=True),
        Record(b"first", b"k", mark, TIME_NS, of_engine=True),
    ]
    append(tmp_path, "orders", 0, some, per_batch=3)
    assert values(batch(tmp_path)) == [b"first", b"forged", b"letter"]
    reader = stream(tmp_path, startingOffsets="earliest")
    assert json.loads(json.dumps(reader.latestOffset(reader.initialOffset(), ReadAllAvailable())))


def test_no_key_an_empty_key_and_headers_are_told_apart(tmp_path: Path) -> None:
    append(
        tmp_path,
        "orders",
        0,
        [Record(b"a"), Record(b"b", b""), Record(b"", b"k", {"n": 1, "t": "x", "b": b"\0"})],
    )
    found = rows(batch(tmp_path, includeHeaders="true"))
    assert [(r["key"], r["value"]) for r in found] == [(None, b"a"), (b"", b"b"), (b"k", b"")]
    assert [r["headers"] for r in found] == [
        None,
        None,
        [("n", b"1"), ("t", b"x"), ("b", b"\0")],
    ]
    raw = rows(batch(tmp_path, includeHeaders="raw"))[2]["headers"]
    assert raw == bytes.fromhex("83a16e01a174a178a162c40100")


def test_a_part_of_the_columns_is_enough(orders: Path) -> None:
    schema = StructType([StructField("queue", IntegerType()), StructField("key", BinaryType())])
    reader = given(orders).reader(schema)
    [one, *_] = [b for p in reader.partitions() for b in reader.read(p)]
    assert one.schema == pa.schema([("queue", pa.int32()), ("key", pa.binary())])


def test_long_scans_are_cut_by_the_index_so_that_one_queue_uses_all_cores(tmp_path: Path) -> None:
    append(
        tmp_path,
        "orders",
        0,
        (Record(b"x" * 1000) for _ in range(16_000)),
        segment_bytes=4 << 20,
    )
    parts = [p.value for p in batch(tmp_path, minPartitions=4).partitions()]
    assert len(parts) == 3  # 16 MB in parts of 4 MB at least
    assert [p.start for p in parts[1:]] == [p.end for p in parts[:-1]]
    assert (parts[0].start, parts[-1].end) == (0, 16_000)
    sizes = [p.end - p.start for p in parts]
    assert max(sizes) < 1.1 * min(sizes)
    assert all(p.start % 50 == 0 for p in parts), "cuts stand at batches"
    assert len(rows(batch(tmp_path, minPartitions=4))) == 16_000


@pytest.mark.parametrize("room", [4096, 65_536, 8 << 20])
def test_blocks_smaller_than_a_batch_grow(tmp_path: Path, room: int) -> None:
    some = [Record(bytes([i % 256]) * (37 * i % 9000), b"k") for i in range(300)]
    log = append(tmp_path, "orders", 0, some, per_batch=7)
    part, told = QueueRange("orders", 0, str(log.directory), 3, 290), ReadSettings(("value",))
    found = [
        v
        for one in read_files(part, told, Reporting(told), block_bytes=room)
        for v in one.column(0).to_pylist()
    ]
    assert found == [one.value for one in some[3:290]]


def test_offsets_by_name_token_and_time(orders: Path) -> None:
    def tokens(**options: object) -> list[int]:
        return [r["token"] for r in rows(batch(orders, queues="0", **options))]

    assert tokens() == list(range(1000))
    assert tokens(startingOffsets='{"0": 990}') == list(range(990, 1000))
    assert tokens(endingOffsets='{"orders": {"0": 5}}') == list(range(5))
    assert tokens(startingOffsets='{"0": -2}', endingOffsets='{"0": -1}') == list(range(1000))
    when = datetime.fromtimestamp((TIME_NS + 500 * STEP_NS) / 1e9, UTC)
    # by batches of 50 records, so none that is as young is missed
    assert tokens(startingOffsets=when.isoformat()) == list(range(500, 1000))
    late = datetime.fromtimestamp((TIME_NS + 525 * STEP_NS) / 1e9, UTC).isoformat()
    assert tokens(startingOffsets=late) == list(range(500, 1000))
    assert tokens(startingOffsets="2040-01-01") == []
    assert tokens(timestampFrom=late, timestampUntil="2040-01-01") == list(range(525, 1000))


FILTERS: list[tuple[Any, Any]] = [
    (sql.EqualTo(("token",), 7), lambda r: r["token"] == 7),
    (sql.GreaterThan(("token",), 990), lambda r: r["token"] > 990),
    (sql.LessThanOrEqual(("token",), 3), lambda r: r["token"] <= 3),
    (sql.EqualTo(("queue",), 1), lambda r: r["queue"] == 1),
    (sql.In(("queue",), (1, 5)), lambda r: r["queue"] in (1, 5)),
    (sql.EqualTo(("key",), b"k3"), lambda r: r["key"] == b"k3"),
    (sql.In(("key",), (b"k3", b"k9", b"none")), lambda r: r["key"] in (b"k3", b"k9")),
    (
        sql.GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(TIME_NS // 10**9 + 1, UTC)),
        lambda r: r["timestamp"] >= datetime.fromtimestamp(TIME_NS // 10**9 + 1, UTC),
    ),
    (
        sql.LessThan(("timestamp",), datetime.fromtimestamp(TIME_NS // 10**9 + 1, UTC)),
        lambda r: r["timestamp"] < datetime.fromtimestamp(TIME_NS // 10**9 + 1, UTC),
    ),
]


@pytest.mark.parametrize(("one", "same"), FILTERS, ids=lambda x: type(x).__name__)
def test_pushed_filters_give_what_spark_would_keep(orders: Path, one: Any, same: Any) -> None:
    everything = rows(batch(orders))
    assert rows(batch(orders, [one])) == [r for r in everything if same(r)]


def test_filters_combine_and_what_is_not_ours_is_left(orders: Path) -> None:
    source = given(orders, pushFilters="true")
    reader: Any = source.reader(source.schema())
    ours = [sql.In(("key",), (b"k1", b"k2")), sql.EqualTo(("key",), b"k2")]
    ours.append(sql.GreaterThan(("token",), 500))  # type: ignore[arg-type]
    not_ours = [sql.StringContains(("topic",), "x"), sql.IsNull(("key",))]
    assert reader.pushFilters([*ours, *not_ours]) == not_ours
    assert {(r["key"], r["token"] > 500) for r in rows(reader)} == {(b"k2", True)}
    assert reader.pushFilters([]) == []
    assert len(rows(reader)) == 2000, "a reader forgets what an earlier plan pushed"


def test_a_stream_reads_on_and_takes_no_more_than_its_limit(orders: Path) -> None:
    reader = stream(orders, startingOffsets="earliest", maxRecordsPerTrigger=300)
    assert reader.getDefaultReadLimit() == ReadMaxRows(300)
    at, seen = reader.initialOffset(), []
    assert at == {"orders": {"0": 0, "1": 0}}
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        assert json.loads(json.dumps(end)) == end
        found = values(reader, reader.partitions(at, end))
        assert len(found) <= 300
        seen += found
        at = end
    assert sorted(seen) == sorted(b"v%d" % i for i in range(2000))
    append(orders, "orders", 0, records(10, 5000))
    end = reader.latestOffset(at, ReadAllAvailable())
    assert values(reader, reader.partitions(at, end)) == [b"v%d" % i for i in range(5000, 5010)]
    assert reader.reportLatestOffset() == end


def test_a_queue_with_much_waiting_does_not_starve_the_others(tmp_path: Path) -> None:
    append(tmp_path, "orders", 0, records(1000))
    append(tmp_path, "orders", 1, records(10))
    reader = stream(tmp_path, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(101))
    assert end["orders"]["1"] == 1
    assert end["orders"]["0"] == 100


def test_new_queues_and_new_topics_of_a_pattern_begin_at_their_start(tmp_path: Path) -> None:
    append(tmp_path, "orders.eu", 0, records(5))
    reader = stream(tmp_path, topic=None, topicPattern="orders.*", startingOffsets="latest")
    at = reader.initialOffset()
    assert at == {"orders.eu": {"0": 5}}
    append(tmp_path, "orders.eu", 1, records(3, 100))
    append(tmp_path, "orders.us", 0, records(2, 200))
    append(tmp_path, "other", 0, records(2, 300))
    end = reader.latestOffset(at, ReadAllAvailable())
    assert end == {"orders.eu": {"0": 5, "1": 3}, "orders.us": {"0": 2}}
    assert values(reader, reader.partitions(at, end)) == [
        b"v100",
        b"v101",
        b"v102",
        b"v200",
        b"v201",
    ]


def test_available_now_does_not_read_what_came_later(orders: Path) -> None:
    reader = stream(orders, startingOffsets="earliest", maxRecordsPerTrigger=1500)
    at = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    append(orders, "orders", 0, records(10, 5000))
    ends = []
    while (end := reader.latestOffset(at, ReadMaxRows(1500))) != at:
        ends.append(end)
        at = end
    assert len(ends) == 2
    assert ends[-1] == {"orders": {"0": 1000, "1": 1000}}


def _retain(data_dir: Path) -> int:
    log = QueueLog.open(data_dir / "queues/orders/00000", topic="orders")
    log.retain(bytes_max=1)
    earliest = log.earliest_token
    log.close()
    assert earliest > 0
    return earliest


def test_retention_that_overtakes_a_stream_is_an_error_unless_told(orders: Path) -> None:
    earliest = _retain(orders)
    start = {"orders": {"0": 10, "1": 1000}}
    end = {"orders": {"0": 1000, "1": 1000}}
    with pytest.raises(GapError, match=rf"orders/0: tokens 10 to {earliest - 1} .*failOnDataLoss"):
        stream(orders).partitions(start, end)
    reader = stream(orders, failOnDataLoss="false")
    found = values(reader, reader.partitions(start, end))
    assert found == [b"v%d" % i for i in range(earliest, 1000)]


def test_retention_during_a_read_is_an_error_too(orders: Path) -> None:
    reader = stream(orders)
    end = {"orders": {"0": 1000}}
    parts = reader.partitions({"orders": {"0": 10}}, end)
    _retain(orders)
    with pytest.raises(GapError, match="orders/0: tokens 10 to"):
        values(reader, parts)


def test_a_log_that_was_replaced_is_noticed(orders: Path) -> None:
    reader = stream(orders)
    with pytest.raises(GapError, match="orders/1 ends at 1000, the read stands at token 4000"):
        reader.latestOffset({"orders": {"0": 3, "1": 4000}}, ReadAllAvailable())
    with pytest.raises(GapError, match="orders/7 is gone"):
        reader.latestOffset({"orders": {"7": 3}}, ReadAllAvailable())


def _second_batch(path: Path) -> tuple[int, int]:
    raw = path.read_bytes()
    at = lay.SEGMENT_HEADER_BYTES
    n = int(np.frombuffer(raw, "<u4", 1, at)[0])
    return at + n, at + n + int(np.frombuffer(raw, "<u4", 1, at + n)[0])


@pytest.mark.parametrize("what", ["payload", "length", "token"])
def test_a_corrupt_batch_is_named_or_skipped_and_counted(orders: Path, what: str) -> None:
    path = segments(orders, "orders")[0]
    at, end = _second_batch(path)
    where = {"payload": end - 6, "length": at, "token": at + lay.BATCH_BASE_TOKEN_AT}[what]
    damage(path, where)
    with pytest.raises(CorruptLog) as failed:
        values(batch(orders))
    assert f"orders/0: token 50: {path} at {at}: " in str(failed.value)
    bad = orders / "bad"
    found = values(batch(orders, mode="skip", badRecordsPath=bad))
    assert found == [b"v%d" % i for i in range(2000) if not 50 <= i < 100]
    [note] = [json.loads(one.read_text()) for one in bad.iterdir()]
    assert (note["token"], note["tokens_lost"], note["position"]) == (50, 50, at)
    assert (note["topic"], note["queue"], note["file"]) == ("orders", 0, str(path))


def test_a_corrupt_end_of_a_segment_costs_that_segment_only(orders: Path) -> None:
    first, second = segments(orders, "orders")[:2]
    damage(first, first.stat().st_size - 4)
    lost_end = int(second.stem)
    found = values(batch(orders, mode="skip"))
    assert found == [b"v%d" % i for i in range(2000) if not lost_end - 50 <= i < lost_end]


def test_a_segment_that_is_missing_in_the_middle_is_not_passed_over(tmp_path: Path) -> None:
    append(tmp_path, "orders", 0, records(2000))
    second, third = segments(tmp_path, "orders")[1:3]
    second.unlink()
    lost = range(int(second.stem), int(third.stem))
    with pytest.raises(CorruptLog, match=f"orders/0: token {lost.start}: .*it ends before"):
        values(batch(tmp_path))
    found = values(batch(tmp_path, mode="skip"))
    assert found == [b"v%d" % i for i in range(2000) if i not in lost]


def test_the_end_is_found_by_the_index_and_moves_with_the_writer(orders: Path) -> None:
    files = QueueFiles(orders, "orders", 0)
    assert files.end_token() == 1000
    append(orders, "orders", 0, records(7, 2000))
    assert files.end_token() == 1007
    tail = segments(orders, "orders")[-1]
    tail.write_bytes(tail.read_bytes() + b"\x90\x01\0\0half a batch")
    assert files.end_token() == QueueFiles(orders, "orders", 0).end_token() == 1007


BAD: list[tuple[dict[str, object], type[Exception], str]] = [
    ({"topic": "nope"}, NotFound, "option topic: 'nope': no durable topic .*; known: orders"),
    ({"topic": "a b"}, ConfigError, "option topic: 'a b'"),
    ({"topicPattern": "x*"}, ConfigError, "exactly one of topic and topicPattern"),
    ({"topic": None, "topicPattern": "x*"}, NotFound, "option topicPattern: 'x\\*'"),
    ({"dataDir": "/nowhere"}, ConfigError, "option dataDir: '/nowhere': must be"),
    ({"startingOffsets": "soon"}, ConfigError, "option startingOffsets: 'soon': allowed: earliest"),
    ({"startingOffsets": "latest"}, ConfigError, "option startingOffsets: 'latest'"),
    ({"startingOffsets": '{"0": "x"}'}, ConfigError, "option startingOffsets"),
    ({"startingOffsets": '{"0": -3}'}, ConfigError, "option startingOffsets"),
    ({"startingOffsets": '{"other": {"0": 1}}'}, ConfigError, "other is not a topic of this read"),
    ({"endingOffsets": "earliest"}, ConfigError, "option endingOffsets: 'earliest'"),
    ({"maxRecordsPerTrigger": "0"}, ConfigError, "option maxRecordsPerTrigger: '0': allowed: 1 to"),
    ({"minPartitions": "many"}, ConfigError, "option minPartitions: 'many'"),
    ({"failOnDataLoss": "perhaps"}, ConfigError, "'perhaps': allowed: true, false"),
    ({"includeHeaders": "some"}, ConfigError, "allowed: false, true, raw"),
    ({"mode": "drop"}, ConfigError, "option mode: 'drop': allowed: failfast, skip"),
    ({"queues": "a"}, ConfigError, "option queues: 'a'"),
    ({"timestampFrom": "x"}, ConfigError, "option timestampFrom: 'x'"),
    ({"keys": ",".join(map(str, range(65)))}, ConfigError, "65 keys: at most 64"),
    (
        {"startOffset": "1"},
        ConfigError,
        "has no such option .did you mean startingOffsets.*: dataD",
    ),
    ({"topic": "oders"}, NotFound, "no durable topic .* .did you mean orders.*; known: orders"),
]


@pytest.mark.parametrize(("options", "kind", "text"), BAD, ids=lambda x: str(x)[:40])
def test_bad_options_are_named_with_what_is_allowed(
    orders: Path, options: dict[str, object], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        batch(orders, **options)


def test_more_bad_options(orders: Path) -> None:
    with pytest.raises(ConfigError, match="endingOffsets: only batch reads end"):
        stream(orders, endingOffsets="latest")
    with pytest.raises(ConfigError, match=r"orders/0: token 5000 .* allowed are 0 to 1000"):
        batch(orders, startingOffsets='{"0": 5000}').partitions()
    with pytest.raises(ConfigError, match=r"option startingOffsets: orders/9: no such queue: .* 0"):
        batch(orders, startingOffsets='{"orders": {"9": 1}}').partitions()
    with pytest.raises(ConfigError, match=r"option endingOffsets: orders/8: no such queue: .* 0"):
        batch(orders, endingOffsets='{"8": 1}').partitions()
    with pytest.raises(ConfigError, match="schema: value int: allowed are columns of: key binary"):
        given(orders).reader(StructType([StructField("value", IntegerType())]))


def test_no_right_to_read_is_said(orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Path) -> list[str]:
        raise PermissionError(13, "denied")

    monkeypatch.setattr("tidecast_spark.catalogue.topics_of", refused)
    with pytest.raises(AuthError, match=r"dataDir: .*no right to read it"):
        batch(orders, dataDir=orders)


def test_an_empty_filter_reads_nothing(orders: Path) -> None:
    reader = batch(orders, [sql.GreaterThan(("token",), 5), sql.LessThan(("token",), 5)])
    assert rows(reader) == []
    assert RowFilter(keys=()).is_empty()
