"""Rollups into a real Postgres: upsert, and a batch that Spark repeats."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.postgres import postgres_server

from tidecast.errors import ConfigError
from tidecast_control.db import Database
from tidecast_spark.jobs import rollup_store

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    directory = Path(tempfile.mkdtemp(prefix="tc-pg-"))
    with postgres_server(directory, {"fsync": "off"}) as server:
        database = Database(server.url_of("postgres"))
        database.migrate()
        database.close()
        yield server.url_of("postgres")


def row(messages_in: int, queue: int = -1) -> list[Any]:
    given = {"node": "n", "topic": "t", "queue": queue, "subscription": "", "lag_p95": None}
    given["messages_in"] = messages_in
    return [AT, *(given.get(name, 1) for name in rollup_store.COLUMNS)]


def test_a_batch_is_applied_once_and_later_ones_replace_rows(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollup_store, "_copy_rows", lambda rows: rows)
    store = rollup_store.RollupStore(tmp_path, url)
    store.prepare()
    store._upsert([row(5), row(7, 1)], [row(12)], 0, "q")
    store._upsert([row(99)], [row(99)], 0, "q")  # repeated: it was applied
    store._upsert([row(6)], [row(13)], 1, "q")
    with psycopg.connect(url) as connection:
        minutes = connection.execute(
            "select queue, messages_in, lag_p95, at from rollup_minute order by queue"
        ).fetchall()
        hours = connection.execute("select messages_in from rollup_hour").fetchall()
        applied = connection.execute("select query, batch from rollup_applied").fetchall()
    assert [r[:3] for r in minutes] == [(-1, 6, None), (1, 7, None)]
    assert minutes[0][3] == AT
    assert hours == [(13,)]
    assert applied == [("q", 0), ("q", 1)]
    monkeypatch.setattr(rollup_store, "upsert_sql", lambda *_: "select nothing")
    with pytest.raises(psycopg.Error):
        store._upsert([row(8)], [], 2, "q")
    with psycopg.connect(url) as connection:
        [count] = connection.execute("select count(*) from rollup_applied").fetchall()
    assert count == (2,), "all or nothing"


def test_tables_that_are_not_there_or_older_are_named(url: str, tmp_path: Path) -> None:
    """The migrations of the control service alone make and change them."""
    store = rollup_store.RollupStore(tmp_path, f"{url}&options=-csearch_path%3Dother")
    with psycopg.connect(url) as connection:
        connection.execute("create schema other")
    with pytest.raises(ConfigError, match="rollup_minute: no such table: the control service"):
        store.prepare()
    with psycopg.connect(url) as connection:
        connection.execute("create table other.rollup_minute (at timestamptz, node text)")
    with pytest.raises(ConfigError, match=r"rollup_minute: no columns bytes_in, .*topic"):
        store.prepare()


def test_a_postgres_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="postgres: cannot connect"):
        rollup_store.RollupStore(tmp_path, "postgresql://127.0.0.1:1/x").prepare()
