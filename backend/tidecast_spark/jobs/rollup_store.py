"""Where rollups are kept: Parquet by day, and tables of Postgres for the dashboard's history."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidecast.errors import ConfigError

COLUMNS: dict[str, str] = {
    "node": "text",
    "topic": "text",
    "queue": "integer",
    "subscription": "text",
    "samples": "bigint",
    "messages_in": "bigint",
    "bytes_in": "bigint",
    "messages_out": "bigint",
    "bytes_out": "bigint",
    "packets": "bigint",
    "resent": "bigint",
    "lag_p50": "bigint",
    "lag_p95": "bigint",
    "lag_p99": "bigint",
    "lag_max": "bigint",
    "lag_ms_max": "bigint",
    "retransmit_ratio": "double precision",
    "cache_fill": "double precision",
    "cache_fill_max": "double precision",
    "in_per_s": "double precision",
    "out_per_s": "double precision",
    "drain_s": "double precision",
}
"""Columns of both tables in Postgres, behind ``at``, the start of the minute or hour.

The migrations of the control service make the tables. No queue is -1, no subscription ''.
"""

TABLES = ("rollup_minute", "rollup_hour")
_KEY = ("at", "node", "topic", "queue", "subscription")


def upsert_sql(table: str, staged: str) -> str:
    """The statement that moves rows of a staging table into a table of rollups."""
    names = ["at", *COLUMNS]
    changes = ", ".join(f"{n} = excluded.{n}" for n in names if n not in _KEY)
    return (
        f"insert into {table} ({', '.join(names)}) select {', '.join(names)} from {staged} "
        f"on conflict ({', '.join(_KEY)}) do update set {changes}"
    )


@dataclass(frozen=True)
class RollupStore:
    """The outputs of a rollup. ``postgres`` empty: Parquet alone."""

    out: Path
    postgres: str

    def prepare(self) -> None:
        """Check that the tables are there. Raises ConfigError; also without a connection."""
        self.out.mkdir(parents=True, exist_ok=True)
        if not self.postgres:
            return
        with self._connect() as connection:
            for table, wanted in (
                *((table, {"at", *COLUMNS}) for table in TABLES),
                ("rollup_applied", {"query", "batch"}),
            ):
                rows = connection.execute(
                    "select attname from pg_attribute where attrelid = to_regclass(%s) "
                    "and attnum > 0 and not attisdropped",
                    (table,),
                ).fetchall()
                missing = sorted(wanted - {name for (name,) in rows})
                if missing:
                    what = f"no columns {', '.join(missing)}" if rows else "no such table"
                    raise ConfigError(
                        f"postgres: {table}: {what}: the control service makes and changes these "
                        "tables: start this version of it on that database once, or leave "
                        "--postgres out"
                    )

    def _connect(self) -> Any:
        try:
            import psycopg
        except ImportError as problem:
            raise ConfigError(
                "postgres: psycopg is not installed: pip install 'tidecast[control]'"
            ) from problem
        try:
            return psycopg.connect(self.postgres.replace("postgresql+psycopg:", "postgresql:"))
        except psycopg.Error as problem:
            raise ConfigError(f"postgres: cannot connect: {problem}") from problem

    def write(self, rows: Any, batch: int, query: str) -> None:
        """Store the minutes of a batch that changed, and the hours they lie in. Repeatable."""
        from tidecast_spark.jobs.rollup import derived, hours

        spark = rows.sparkSession
        folder = self.out / "minute" / f"batch={batch:012d}"
        shutil.rmtree(folder, ignore_errors=True)
        rows.coalesce(1).write.parquet(str(folder))
        fresh = spark.read.parquet(str(folder))
        bounds = fresh.selectExpr(
            "date_trunc('HOUR', min(minute)) low", "max(minute) high"
        ).collect()[0]
        if bounds.low is None:
            return
        touched = fresh.selectExpr("date_trunc('HOUR', minute) hour").distinct()
        known = self.minutes(spark, f"minute >= timestamp '{bounds.low}'")
        whole = known.alias("m").join(touched.alias("t"), on=_same_hour(), how="left_semi")
        by_hour = hours(whole)
        hour_folder = self.out / "hour" / f"batch={batch:012d}"
        shutil.rmtree(hour_folder, ignore_errors=True)
        by_hour.coalesce(1).write.parquet(str(hour_folder))
        if self.postgres:
            fresh_hours = spark.read.parquet(str(hour_folder))
            self._upsert(
                derived(fresh).withColumnRenamed("minute", "at"),
                derived(fresh_hours).withColumnRenamed("hour", "at"),
                batch,
                query,
            )

    def minutes(self, spark: Any, where: str = "true") -> Any:
        """Each minute as the newest batch has it."""
        return _newest(spark, self.out / "minute", "minute", where)

    def hours(self, spark: Any, where: str = "true") -> Any:
        """Each hour as the newest batch has it."""
        return _newest(spark, self.out / "hour", "hour", where)

    def _upsert(self, minute_rows: Any, hour_rows: Any, batch: int, query: str) -> None:
        """Both tables and the mark of the batch, in one transaction."""
        tables = {"rollup_minute": _copy_rows(minute_rows), "rollup_hour": _copy_rows(hour_rows)}
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(
                "insert into rollup_applied (query, batch) values (%s, %s) on conflict do nothing",
                (query, batch),
            )
            if cursor.rowcount == 0:
                return
            names = ", ".join(["at", *COLUMNS])
            for table, rows in tables.items():
                cursor.execute(f"create temp table staged (like {table}) on commit drop")
                with cursor.copy(f"copy staged ({names}) from stdin") as copy:
                    for row in rows:
                        copy.write_row(row)
                cursor.execute(upsert_sql(table, "staged"))
                cursor.execute("drop table staged")


def _same_hour() -> Any:
    from pyspark.sql import functions as f

    return f.expr("date_trunc('HOUR', m.minute) = t.hour")


def _newest(spark: Any, folder: Path, time: str, where: str) -> Any:
    from tidecast_spark.telemetry import DIMENSIONS

    rows = spark.read.parquet(str(folder)).where(where)
    keys = ", ".join(f"{name}" for name in (time, *DIMENSIONS))
    ranked = rows.selectExpr(
        "*", f"row_number() over (partition by {keys} order by batch desc) newest"
    )
    return ranked.where("newest = 1").drop("newest", "batch")


def _copy_rows(frame: Any) -> list[list[Any]]:
    """The rows of a batch for COPY. A batch holds some thousand rows, not the telemetry itself."""
    names = [name for name in ("at", *COLUMNS) if name not in ("queue", "subscription")]
    kept = frame.selectExpr(
        *names, "coalesce(queue, -1) queue", "coalesce(subscription, '') subscription"
    ).select("at", *COLUMNS)
    return [list(row.values()) for row in kept.toArrow().to_pylist()]
