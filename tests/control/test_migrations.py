"""The schema: up, down, up; and what the models say is what the migrations make."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from alembic import command
from sqlalchemy import create_engine, inspect

from tests.project import ROOT
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
            [alembic, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout + run.stderr
    assert "resources" in _tables(empty_database_url)
