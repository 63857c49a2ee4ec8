"""History from a real engine: its telemetry, rolled up into Parquet and Postgres, recomputed."""

from __future__ import annotations

import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.conftest import Eventually
from tests.support.lab import Lab, Platform, open_lab, topology
from tests.support.postgres import postgres_server

import tidecast.sync
from tidecast_control.db import Database
from tidecast_spark.jobs.rollup import rollup
from tidecast_spark.jobs.rollup_store import COLUMNS, TABLES
from tidecast_spark.source import TidecastDataSource
from tidecast_spark.telemetry import SAMPLE_FIELDS, TELEMETRY_TOPIC

SECONDS = {"rollup_minute": 60, "rollup_hour": 3600}


@pytest.fixture
def lab() -> Iterator[Lab]:
    with open_lab() as made:
        yield made


@pytest.fixture
def url() -> Iterator[str]:
    directory = Path(tempfile.mkdtemp(prefix="tc-pg-"))
    with postgres_server(directory, {"fsync": "off"}) as server:
        database = Database(server.url_of("postgres"))
        database.migrate()
        database.close()
        yield server.url_of("postgres")


def samples(platform: Platform) -> list[dict[str, Any]]:
    """The samples that the engine has written so far."""
    told = {"dataDir": str(platform.directory), "topic": TELEMETRY_TOPIC}
    one = TidecastDataSource(told)
    reader: Any = one.reader(one.schema())
    return [
        json.loads(value.as_py())
        for part in reader.partitions()
        for table in reader.read(part)
        for value in table.column("value")
    ]


def work(platform: Platform) -> None:
    """Publish and consume, with some lag left."""
    with tidecast.sync.connect(platform.url) as client:
        consumer = client.consumer("orders", "billing")
        with client.publisher("orders") as publisher, client.publisher("prices") as live:
            for i in range(500):
                publisher.publish(b"x" * 50, key=b"k%d" % (i % 7))
                live.publish(b"y")
            publisher.wait_durable(timeout=20)
        consumer.fetch(200, max_wait=5.0).ack()
        consumer.close()


def recomputed(rows: list[dict[str, Any]], seconds: int) -> dict[Any, dict[str, Any]]:
    """The rollup in plain Python, with the columns of the tables."""
    groups = defaultdict(list)
    for row in rows:
        at = row["time_us"] // 1_000_000 // seconds * seconds
        key = (row["node"], row["topic"], row.get("queue", -1), row.get("subscription", ""))
        groups[(datetime.fromtimestamp(at, UTC), *key)].append(row)
    return {key: _group(some) for key, some in groups.items()}


def _group(some: list[dict[str, Any]]) -> dict[str, Any]:
    def total(name: str) -> int:
        return sum(row.get(name) or 0 for row in some)

    def most(name: str) -> Any:
        return max((row[name] for row in some if name in row), default=None)

    lags = sorted(row["lag"] for row in some if "lag" in row)
    newest = max((row for row in some if "lag" in row), key=lambda r: r["time_us"], default={})
    last = newest.get("lag")
    out, into, ms = total("messages_out"), total("messages_in"), total("interval_ms")
    drain = None
    due = total("messages_due") if "subscription" in some[0] else into
    if last == 0:
        drain = 0.0
    elif last is not None and out > due:
        drain = last * (ms / 1000) / (out - due)
    fills = [r["cache_bytes"] / r["cache_max"] for r in some if r.get("cache_max")]
    return {
        "samples": len(some),
        **{n: total(n) for n in ("messages_in", "bytes_in", "messages_out", "bytes_out")},
        "packets": total("packets"),
        "resent": total("resent"),
        **{
            f"lag_p{q}": lags[math.ceil(q / 100 * len(lags)) - 1] if lags else None
            for q in (50, 95, 99)
        },
        "lag_max": most("lag"),
        "lag_ms_max": most("lag_ms"),
        "retransmit_ratio": total("resent") / total("packets") if total("packets") else None,
        "cache_fill": total("cache_bytes") / total("cache_max") if total("cache_max") else None,
        "cache_fill_max": max(fills, default=None),
        "in_per_s": into * 1000 / ms,
        "out_per_s": out * 1000 / ms,
        "drain_s": drain,
    }


def stored(url: str, table: str) -> dict[Any, dict[str, Any]]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        rows = connection.execute(f"select * from {table}").fetchall()
    key = ("at", "node", "topic", "queue", "subscription")
    return {
        (r["at"].astimezone(UTC), *(r[n] for n in key[1:])): {
            n: r[n] for n in COLUMNS if n not in key
        }
        for r in rows
    }


def check(url: str, rows: list[dict[str, Any]]) -> None:
    """Both tables hold what plain Python makes of the samples."""
    for table in TABLES:
        found, expected = stored(url, table), recomputed(rows, SECONDS[table])
        assert found.keys() == expected.keys()
        for key, one in expected.items():
            assert found[key] == {n: pytest.approx(v) for n, v in one.items()}, (table, key)


@pytest.mark.long
@pytest.mark.timeout(290)
def test_an_engines_history_in_postgres_equals_a_recomputation(
    spark: Any, lab: Lab, url: str, tmp_path: Path, eventually: Eventually
) -> None:
    settings = topology(
        {"name": "ipc", "kind": "ipc"},
        topics=[{"name": "orders", "mode": "durable", "queues": 2}, {"name": "prices"}],
    )
    platform = lab.platform(settings | {"telemetry": {"interval_s": 0.2}})
    work(platform)

    def enough() -> bool:
        return len({row["time_us"] for row in samples(platform)}) >= 10

    eventually(enough, "ten samples", timeout_s=30.0)
    out = tmp_path / "rollups"
    first = rollup(spark, platform.directory, out, postgres=url)
    assert first.rows >= 50
    assert first.errors == 0
    work(platform)
    platform.stop()
    second = rollup(spark, platform.directory, out, postgres=url)
    rows = samples(platform)
    assert {field for row in rows for field in row} <= set(SAMPLE_FIELDS)
    assert first.rows + second.rows == len(rows)
    assert sum(row.get("messages_in", 0) for row in rows if row["topic"] == "orders") == 1000
    assert sum(row.get("messages_out", 0) for row in rows) == 400
    check(url, rows)

    # Killed behind Postgres, before Spark noted the batch: it comes again and changes nothing.
    commits = sorted(int(p.name) for p in (out / "_checkpoint" / "commits").glob("[0-9]*"))
    with_rows, closing = commits[-2:]  # the last one only moves the watermark
    for gone in (f"commits/{with_rows}", f"commits/{closing}", f"offsets/{closing}"):
        (out / "_checkpoint" / gone).unlink()
    assert rollup(spark, platform.directory, out, postgres=url).rows == second.rows
    check(url, rows)
    assert rollup(spark, platform.directory, out, postgres=url, again=True).rows == len(rows)
    check(url, rows)
