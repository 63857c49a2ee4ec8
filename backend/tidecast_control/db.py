"""The database: engine, sessions, migrations. Nothing is made at import."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, text
from sqlmodel import Session

from tidecast.errors import ConfigError
from tidecast_control.statements import Statements
from tidecast_control.vault import Vault

MIGRATIONS = Path(__file__).parent / "migrations"
ENCODING, CONNECT_S = "UTF8", 5
STATEMENT_TIMEOUT_MS, LOCK_TIMEOUT_MS = 10_000, 5_000
MIGRATION_LOCK = 7_305_812_001
"""Key of the advisory lock under which one service at a time migrates."""


def psycopg_url(url: str) -> str:
    """The URL with psycopg 3 as its driver."""
    scheme, _, rest = url.partition("://")
    del scheme
    return f"postgresql+psycopg://{rest}"


class Database:
    """Sessions on one Postgres."""

    def __init__(self, url: str, pool_size: int = 16, vault: Vault | None = None) -> None:
        """``vault``: None: for programs that neither read nor write secrets."""
        self.url = psycopg_url(url)
        self.vault = vault
        self.world: Callable[[], Any] = lambda: None
        """The newest telemetry, for statuses: see `live.seen`."""
        self.reported: Callable[[str], Any] = lambda _node: None
        """The report of a connected engine on its topology: see `kit.applied`."""
        self.learned: dict[str, tuple[Any, Any]] = {}
        """Facts that statuses of a kind need, and when they were read: see `kit.reads`."""
        options = f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout={LOCK_TIMEOUT_MS}"
        self.statements = Statements(self.listen_url, options)
        self.engine: Engine = create_engine(
            self.url,
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_timeout=5.0,
            pool_pre_ping=True,
            pool_use_lifo=True,
            connect_args={
                "connect_timeout": CONNECT_S,
                "application_name": "tidecast-control",
                "options": options,
            },
        )

    @contextmanager
    def begin(self) -> Iterator[Session]:
        """One transaction: committed at the end, rolled back on an exception."""
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            session.info["world"] = self.world
            session.info["reported"] = self.reported
            session.info["vault"] = self.vault
            yield session
        self.statements.recent.clear()  # it may have changed users, sessions or keys

    @contextmanager
    def snapshot(self) -> Iterator[Session]:
        """A transaction that only reads: all of its statements see the database at one moment."""
        with self.begin() as session:
            session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            yield session

    @property
    def listen_url(self) -> str:
        """For psycopg itself (LISTEN)."""
        return self.url.replace("postgresql+psycopg://", "postgresql://", 1)

    def check(self) -> None:
        """Raises ConfigError: the database cannot be reached, or does not keep text as UTF-8."""
        try:
            with psycopg.connect(self.listen_url, connect_timeout=CONNECT_S) as connection:
                encoding = connection.info.parameter_status("server_encoding")
                name = connection.info.dbname
        except psycopg.Error as problem:
            raise ConfigError(
                f"TIDECAST_DATABASE_URL: {str(problem).strip()}; it needs a Postgres that runs, "
                "and a database in it that its user may change"
            ) from None
        if encoding != ENCODING:
            raise ConfigError(
                f"TIDECAST_DATABASE_URL: database {name!r} has the encoding {encoding}; allowed is "
                f"{ENCODING}. Make another one: CREATE DATABASE tidecast ENCODING '{ENCODING}' "
                "TEMPLATE template0"
            )

    def ping(self) -> str:
        """The server's version. Raises OperationalError."""
        with self.engine.connect() as connection:
            return str(connection.execute(text("SHOW server_version")).scalar_one())

    def migrate(self) -> None:
        """Bring the schema to the newest revision; one service at a time."""
        config = alembic_config(self.url)
        newest = ScriptDirectory.from_config(config).get_current_head()
        with self.engine.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": MIGRATION_LOCK})
            connection.commit()
            try:
                if MigrationContext.configure(connection).get_current_revision() != newest:
                    connection.commit()
                    command.upgrade(config, "head")
                connection.commit()
            finally:
                connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": MIGRATION_LOCK})
                connection.commit()

    def analyze(self, table: str) -> None:
        """Let Postgres collect statistics of a table, so that it plans well."""
        with self.engine.begin() as connection:
            connection.execute(text(f"ANALYZE {table}"))

    def close(self) -> None:
        """Close all connections but those of `statements`."""
        self.engine.dispose()


def alembic_config(url: str) -> Config:
    """Alembic's configuration for a database; the same that alembic.ini describes."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("sqlalchemy.url", psycopg_url(url).replace("%", "%%"))
    return config
