"""The schema: up, down, up; and what the models say is what the migrations make."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from alembic import command
from sqlalchemy import Connection, create_engine, inspect, text

from tests.project import ROOT
from tidecast_control.alerts.webhook_address import masked
from tidecast_control.db import Database, alembic_config, psycopg_url


def _tables(url: str) -> set[str]:
    engine = create_engine(psycopg_url(url))
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_up_down_up(empty_database_url: str) -> None:
    url = empty_database_url
    database = Database(url)
    database.migrate()
    full = _tables(url)
    assert {"resources", "users", "keys", "audit", "outbox", "topology_clock"} <= full
    config = alembic_config(url)
    command.check(config)
    command.downgrade(config, "base")
    assert _tables(url) == {"alembic_version"}
    database.migrate()
    database.migrate()
    assert _tables(url) == full
    database.close()


def test_alembic_from_the_shell(empty_database_url: str) -> None:
    environment = os.environ | {"TIDECAST_DATABASE_URL": empty_database_url}
    alembic = Path(sys.executable).parent / "alembic"
    for arguments in (("upgrade", "head"), ("check",)):
        run = subprocess.run(
            [alembic, *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
    assert "resources" in _tables(empty_database_url)


URL = "https://hooks.example:8443/services/SECRET?x=1"
FILLERS = {
    "boolean": False,
    "integer": 0,
    "bigint": 0,
    "smallint": 0,
    "jsonb": "{}",
    "uuid": "0" * 32,
    "double precision": 0.0,
    "timestamp with time zone": "2026-01-01T00:00:00Z",
}


def _insert(connection: Connection, table: str, **values: Any) -> None:
    """A row as an older version wrote it: columns that are not named get what their type takes."""
    rows = connection.execute(
        text(
            "select column_name, data_type from information_schema.columns where table_name = :t "
            "and is_nullable = 'NO' and column_default is null and is_identity = 'NO'"
        ),
        {"t": table},
    )
    given = {name: FILLERS.get(kind, "x") for name, kind in rows} | {
        name: json.dumps(each) if isinstance(each, dict) else each for name, each in values.items()
    }
    places = ", ".join(f":{name}" for name in given)
    connection.execute(text(f"insert into {table} ({', '.join(given)}) values ({places})"), given)


def test_rows_of_older_versions_are_carried_over_and_back(empty_database_url: str) -> None:
    config, engine = (
        alembic_config(empty_database_url),
        create_engine(psycopg_url(empty_database_url)),
    )
    rule = {"metric": "lag_s", "webhook": URL}
    plain = {"metric": "drift", "webhook": ""}
    consumer = {"topic": "orders", "deliver_max": 3, "in_flight_max": 9}

    def one(query: str) -> Any:
        with engine.connect() as connection:
            return connection.execute(text(query)).scalar_one()

    def spec(name: str) -> Any:
        return one(f"select spec from resources where name = '{name}'")

    command.upgrade(config, "0006")
    with engine.begin() as connection:
        _insert(connection, "resources", kind="alert_rule", name="lagging", uid="1", spec=rule)
        _insert(connection, "resources", kind="alert_rule", name="drifts", uid="2", spec=plain)
        _insert(connection, "resources", kind="subscription", name="s", uid="3", spec=consumer)
        after = {"spec": rule, "metadata": {}}
        _insert(connection, "audit", kind="alert_rule", name="lagging", before=None, after=after)
        _insert(connection, "audit", kind="topic", name="t", before=None, after={"spec": plain})
        _insert(connection, "alerts", id="a", rule="lagging", target="t")
        _insert(connection, "node_states", name="n1", credential="c" * 64)
        _insert(connection, "enrolments", id="e", name="token")
    command.upgrade(config, "head")
    shown = masked(URL)
    assert "SECRET" not in shown
    assert spec("lagging") == {**rule, "webhook": shown}
    assert spec("drifts") == plain
    assert spec("s") == {"topic": "orders", "max_deliver": 3, "max_in_flight": 9}
    assert one("select value from webhook_secrets where rule = 'lagging'") == URL
    assert one("select masked from webhook_secrets where rule = 'lagging'") == shown
    assert one("select after->'spec'->>'webhook' from audit where name = 'lagging'") == shown
    assert one("select count(*) from audit where after::text like '%SECRET%'") == 0
    assert one("select after from audit where name = 't'") == {"spec": plain}
    assert one("select nodes from alerts") == []
    assert one("select credential || credential_next from node_states") == "c" * 64
    assert one("select node || replace::text from enrolments") == "false"
    command.check(config)
    command.downgrade(config, "0006")
    assert (spec("lagging"), spec("drifts"), spec("s")) == (rule, plain, consumer)
    command.upgrade(config, "head")
    assert spec("lagging") == {**rule, "webhook": shown}
    engine.dispose()


def test_a_platform_with_engines_of_before_is_at_level_1(empty_database_url: str) -> None:
    config, engine = (
        alembic_config(empty_database_url),
        create_engine(psycopg_url(empty_database_url)),
    )
    command.upgrade(config, "0010")
    with engine.begin() as connection:
        _insert(connection, "node_states", name="n1", credential="c" * 64)
    command.upgrade(config, "head")
    with engine.connect() as connection:
        assert connection.execute(text("select id, level from cluster")).all() == [(1, 1)]
        reads = "select level, level_min, level_max, refused from node_states"
        assert connection.execute(text(reads)).all() == [(1, 1, 1, "")]
    command.downgrade(config, "0010")
    command.upgrade(config, "head")
    engine.dispose()


def test_a_new_platform_has_no_level_until_its_service_starts(empty_database_url: str) -> None:
    engine = create_engine(psycopg_url(empty_database_url))
    command.upgrade(alembic_config(empty_database_url), "head")
    with engine.connect() as connection:
        assert connection.execute(text("select count(*) from cluster")).scalar_one() == 0
    engine.dispose()
