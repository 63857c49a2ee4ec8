"""The jobs under a real SparkSession: archive, rollup, against plain Python on the same records."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.spark_logs import TIME_NS, Record, append, damage, records, segments

from tidecast.errors import StorageError
from tidecast_spark.jobs import archive
from tidecast_spark.jobs.archive_log import ArchiveLog
from tidecast_spark.jobs.archive_store import HadoopStore
from tidecast_spark.jobs.capacity import capacity_report
from tidecast_spark.jobs.rollup import derived, rollup
from tidecast_spark.jobs.rollup_store import RollupStore
from tidecast_spark.telemetry_source import Parser

DAY_NS = 86_400 * 10**9


def archived(spark: Any, out: Path) -> list[tuple[int, int, bytes]]:
    log = ArchiveLog(out)
    rows = log.read(spark, log.open()).select("queue", "token", "value").collect()
    return [(r.queue, r.token, bytes(r.value)) for r in rows]


def test_an_archive_grows_by_what_is_new_whatever_is_killed(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "archive"
    append(tmp_path, "orders", 0, records(500))
    append(tmp_path, "orders", 1, [r._replace(time_ns=r.time_ns + DAY_NS) for r in records(100)])
    first = archive.archive(spark, tmp_path, out, topic="orders", step_rows=400, compact=False)
    assert (first.steps, first.rows) == (2, 600)
    assert first.positions == {"orders": {"0": 500, "1": 100}}
    assert {p.parent.name for p in out.rglob("*.parquet")} == {"date=2023-11-14", "date=2023-11-15"}

    append(tmp_path, "orders", 0, records(50, 500))
    with monkeypatch.context() as patch:  # killed before its commit
        patch.setattr(ArchiveLog, "commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            archive.archive(spark, tmp_path, out, topic="orders")
    with monkeypatch.context() as patch:  # killed right behind it
        patch.setattr(ArchiveLog, "complete", lambda _, commit: 1 / (2 - commit.version))
        with pytest.raises(ZeroDivisionError):
            archive.archive(spark, tmp_path, out, topic="orders", compact=False)
    monkeypatch.setattr(archive, "SMALL_FILES_MIN", 2)
    last = archive.archive(spark, tmp_path, out, topic="orders")
    assert last.rows == 0
    assert last.compacted_files > 0
    found = archived(spark, out)
    assert sorted(found) == sorted(
        [(0, i, b"v%d" % i) for i in range(550)] + [(1, i, b"v%d" % i) for i in range(100)]
    )
    assert len(list(out.glob("topic=*/*/*.parquet"))) == last.files == 2
    plain = spark.read.parquet(str(out))  # and whoever knows nothing of the log sees the same
    assert plain.count() == 650
    queue_0 = [token for queue, token, _ in found if queue == 0]
    assert queue_0 == sorted(queue_0), "files keep each queue's order"


def test_a_corrupt_batch_stops_an_archive_or_is_counted(spark: Any, tmp_path: Path) -> None:
    append(tmp_path, "orders", 0, records(300))  # one segment: the newest, whose tail may be torn
    damage(segments(tmp_path, "orders")[0], 1000)
    out = tmp_path / "archive"
    with pytest.raises(Exception, match=r"orders/0: token 0: .*\.log at 64: its checksum is"):
        archive.archive(spark, tmp_path, out, topic="orders")
    assert ArchiveLog(out).open().rows == 0
    done = archive.archive(spark, tmp_path, out, topic="orders", skip_corrupt=True)
    assert (done.rows, done.corrupt_batches, done.errors) == (250, 1, 50)
    [told] = [json.loads(p.read_text()) for p in (out / "_tidecast" / "bad").glob("*.json")]
    assert (told["topic"], told["queue"], told["token"], told["position"]) == ("orders", 0, 0, 64)
    assert archive.archive(spark, tmp_path, out, topic="orders", skip_corrupt=True).errors == 0


AT = TIME_NS // 1000
ODD = [
    b"no JSON",
    b"{}",
    b"[1]",
    b"",
    b'{"time_us": %d, "topic": "orders"}' % AT,
    b'{"time_us": %d, "topic": 5, "node": "n"}' % AT,
    b'{"time_us": %d, "topic": "a\\u0000b", "node": "n"}' % AT,
    b'{"time_us": %d, "topic": "a", "node": "n", "queue": 5000000000}' % AT,
    b'{"time_us": %d, "topic": "a", "node": "n", "lag": -1}' % AT,
    b'{"time_us": %d, "topic": "a", "node": "n", "lag": 9000000000000000000}' % AT,
    b'{"time_us": %d, "topic": "a", "node": "n", "lag": 1e400}' % AT,
    b'{"time_us": %d, "topic": "a\nb", "node": "n"}' % AT,
]
"""Samples that somebody else may have written; none of them counts."""


def test_telemetry_is_parsed_by_the_block_or_one_by_one() -> None:
    good = json.dumps({"time_us": 5, "node": "n", "topic": "t", "lag": 7, "new": {"x": [1]}})
    blocks = (
        [good.encode()] * 3,
        [good.encode(), b"no JSON", good.encode()],
        [good.encode(), b'{"time_us":\n6}', b'{"lag": null}'],
    )
    expected = (
        [(5, "t", 7)] * 3,
        [(5, "t", 7), (None,) * 3, (5, "t", 7)],
        [(5, "t", 7), (6, None, None), (None, None, None)],
    )
    for lines, rows in zip(blocks, expected, strict=True):
        found = [
            (row["time_us"], row["topic"], row["lag"])
            for table in Parser().parse(pa.array(lines, pa.binary()))
            for row in table.to_pylist()
        ]
        assert found == rows


def _telemetry() -> list[dict[str, Any]]:
    some = random.Random(7)
    start_us = TIME_NS // 1000 // 3_600_000_000 * 3_600_000_000 + 3_000_000_000  # at :50
    return [
        {
            "time_us": start_us + second * 20_000_000,
            "node": "n1",
            "topic": topic,
            "queue": queue,
            "subscription": None,
            "interval_ms": 20_000,
            "messages_in": some.randrange(5000),
            "bytes_in": some.randrange(500_000),
            "messages_out": some.randrange(6000),
            "packets": some.randrange(100),
            "resent": some.randrange(10),
            "lag": some.randrange(10_000),
            "cache_bytes": some.randrange(1 << 20),
            "cache_max": 1 << 20,
        }
        for second in range(90)
        for topic, queue in (("orders", 0), ("orders", 1), ("rows", None))
    ]


def _plain(rows: list[dict[str, Any]], seconds: int) -> dict[Any, dict[str, Any]]:
    """The rollup, straightforwardly."""
    groups = defaultdict(list)
    for row in rows:
        at = row["time_us"] // 1_000_000 // seconds * seconds
        groups[at, row["topic"], row["queue"]].append(row)
    found = {}
    for key, some in groups.items():
        lags = sorted(r["lag"] for r in some)
        total = {name: sum(r[name] for r in some) for name in ("packets", "resent", "interval_ms")}
        out = sum(r["messages_out"] for r in some)
        found[key] = {
            "samples": len(some),
            "messages_in": sum(r["messages_in"] for r in some),
            "bytes_in": sum(r["bytes_in"] for r in some),
            "lag_max": lags[-1],
            **{f"lag_p{q}": lags[math.ceil(q / 100 * len(lags)) - 1] for q in (50, 95, 99)},
            "lag_last": max(some, key=lambda r: r["time_us"])["lag"],
            "retransmit_ratio": total["resent"] / total["packets"] if total["packets"] else None,
            "cache_fill": sum(r["cache_bytes"] for r in some) / (len(some) << 20),
            "out_per_s": out * 1000 / total["interval_ms"],
        }
    return found


def _stored(frame: Any, time: str) -> dict[Any, dict[str, Any]]:
    return {
        (int(row[time].replace(tzinfo=UTC).timestamp()), row["topic"], row["queue"]): row.asDict()
        for row in derived(frame).selectExpr("*").collect()
    }


def test_rollups_equal_a_plain_recomputation_and_feed_the_report(
    spark: Any, tmp_path: Path
) -> None:
    rows = _telemetry()
    lines = [Record(json.dumps(one).encode()) for one in rows]
    out = tmp_path / "rollups"
    append(tmp_path, "tidecast.telemetry", 0, [*lines[:150], *map(Record, ODD)])
    first = rollup(spark, tmp_path, out)
    assert (first.batches, first.rows, first.late) == (1, 150 + len(ODD), 0)
    assert first.malformed == first.errors == len(ODD)
    # The rest comes later, a little of it late, and some too late to be counted.
    too_late = json.dumps(rows[0] | {"time_us": rows[0]["time_us"] - 7_200_000_000}).encode()
    append(tmp_path, "tidecast.telemetry", 0, [*reversed(lines[150:]), Record(too_late)])
    second = rollup(spark, tmp_path, out)
    assert (second.rows, second.late) == (121, 1)
    store = RollupStore(out, "")
    for found, seconds in (
        (_stored(store.minutes(spark), "minute"), 60),
        (_stored(store.hours(spark), "hour"), 3600),
    ):
        expected = _plain(rows, seconds)
        assert found.keys() == expected.keys()
        for key, one in expected.items():
            for name, value in one.items():
                assert found[key][name] == pytest.approx(value), (key, name)
    assert len({key[0] for key in _plain(rows, 3600)}) == 2, "hours of both batches were merged"

    now = datetime.fromtimestamp(rows[-1]["time_us"] / 1e6, UTC)
    report = tmp_path / "report.html"
    made = capacity_report(spark, out, report, hours=2, now=now)
    advice = {one.topic: one for one in made.advice}
    assert advice.keys() == {"orders", "rows"}
    assert advice["orders"].peak_bytes_per_s > advice["rows"].peak_bytes_per_s
    assert made.rows == sum(len({k[0] for k in _plain(rows, 60) if k[1] == t}) for t in advice)
    assert report.read_text().count("<svg") == 10


def test_two_jobs_that_move_a_file_at_once_leave_it_in_its_place(
    spark: Any, tmp_path: Path
) -> None:
    """The file system of Hadoop: whichever job comes later finds it moved."""
    store, other = (HadoopStore(spark, f"file://{tmp_path}") for _ in range(2))

    class Beside:
        """The file system of `store`: the other job moves the file before its next call."""

        def __init__(self, real: Any, call: str) -> None:
            self._real, self._call = real, call

        def __getattr__(self, name: str) -> Any:
            if name == self._call:
                self._call = ""
                other.move("staged", "day/final")
            return getattr(self._real, name)

    real = store._fs
    for call in ("exists", "mkdirs", "rename", "delete"):
        shutil.rmtree(tmp_path / "day", ignore_errors=True)
        (tmp_path / "staged").write_text(call)
        store._fs = Beside(real, call)
        store.move("staged", "day/final")
        assert (tmp_path / "day" / "final").read_text() == call
        assert not store.has("staged")
    store._fs = real
    (tmp_path / "day" / "final").unlink()
    with pytest.raises(StorageError, match="day/final is in the log of the archive"):
        store.move("staged", "day/final")
    for job in ("running", "killed"):
        (tmp_path / "_staging" / job).mkdir(parents=True)
        (tmp_path / "_staging" / job / "x").touch()
    os.utime(tmp_path / "_staging" / "killed" / "x", (1000.0, 1000.0))
    assert store.untouched("_staging", 2000.0) == ["_staging/killed"]
    assert store.untouched("none", 2000.0) == []
