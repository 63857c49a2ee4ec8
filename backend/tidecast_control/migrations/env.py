"""Alembic's environment: our tables, our URL."""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import engine_from_config, pool
from sqlmodel import SQLModel

from tidecast_control import tables
from tidecast_control.db import psycopg_url

config = context.config
url = os.environ.get("TIDECAST_DATABASE_URL")
if url and not config.get_main_option("sqlalchemy.url"):
    config.set_main_option("sqlalchemy.url", psycopg_url(url).replace("%", "%%"))
assert tables.TABLES
target_metadata = SQLModel.metadata


def run() -> None:
    """Migrate over a connection of our own."""
    engine = engine_from_config(
        config.get_section(config.config_ini_section, {}),
        prefix="sqlalchemy.",
        poolclass=pool.NullPool,
    )
    with engine.connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=target_metadata,
            compare_type=True,
            compare_server_default=True,
            transaction_per_migration=True,
        )
        with context.begin_transaction():
            context.run_migrations()


if context.is_offline_mode():
    raise SystemExit("offline migrations are not supported: name a database")
run()
