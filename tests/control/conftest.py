"""A real Postgres for all of these tests, a database of its own for each, and a service on it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from argon2 import PasswordHasher
from starlette.testclient import TestClient

from tests.support.control import Login, Service, service_of
from tests.support.databases import Databases
from tests.support.postgres import postgres_server
from tests.support.process_state import unchanged
from tidecast.agents.warmup import warm_up
from tidecast_control.auth import service as auth
from tidecast_control.postgres import EmbeddedPostgres
from tidecast_control.settings import Settings, load_settings

FAST = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "64MB",
    "min_wal_size": "32MB",
}
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30
"""A database has 300 files: on a disk each took 0.4 s to make, all 20 s to remove at the end."""

process_state = pytest.fixture(autouse=True)(unchanged)


@dataclass(frozen=True)
class Template:
    """A Postgres, and in it a database in which the first run is over."""

    server: EmbeddedPostgres
    login: Login


@pytest.fixture(scope="session", autouse=True)
def cheap_hashes() -> Iterator[None]:
    """Argon2 at its price would be most of what these tests do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auth, "_hasher", PasswordHasher(time_cost=1, memory_cost=64, parallelism=1))
        yield


@pytest.fixture(scope="session", autouse=True)
def _warm() -> None:
    """Kernels are in the cache: else each engine of a test compiles all of them, side by side.

    Without `-n`, with an empty cache and beside other load, the test of drains took ten minutes.
    """
    warm_up()


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """One server for the session."""
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN
    directory = Path(tempfile.mkdtemp(prefix="tc-pg-", dir=MEMORY if roomy else None))
    with postgres_server(directory, FAST) as server:
        yield server


@pytest.fixture(scope="session")
def template(postgres: EmbeddedPostgres, cheap_hashes: None) -> Template:
    """Databases are copies of `template_tidecast`: migrated, admin logged in."""
    with psycopg.connect(postgres.url_of("postgres"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE template_tidecast")
    settings = load_settings(
        database_url=postgres.url_of("template_tidecast"), data_dir=postgres.directory.parent
    )
    with service_of(settings) as service:
        made = Template(postgres, Login.of(service.admin))
    with psycopg.connect(postgres.url_of("postgres"), autocommit=True) as connection:
        # Nobody may be connected to a database that is copied; the service's last may still end.
        connection.execute("ALTER DATABASE template_tidecast ALLOW_CONNECTIONS false")
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = 'template_tidecast'"
        )
    return made


@pytest.fixture(scope="session")
def empty_databases(postgres: EmbeddedPostgres) -> Iterator[Databases]:
    """Databases without any table."""
    made = Databases(postgres, "template1", ahead=0)
    yield made
    made.close()


@pytest.fixture(scope="session")
def databases(template: Template) -> Iterator[Databases]:
    """Databases that are migrated, first run over."""
    made = Databases(template.server, "template_tidecast")
    yield made
    made.close()


@pytest.fixture
def empty_database_url(empty_databases: Databases) -> Iterator[str]:
    """A fresh database without any table."""
    url = empty_databases.take()
    yield url
    empty_databases.give_back(url)


@pytest.fixture
def database_url(databases: Databases) -> Iterator[str]:
    """A fresh database: migrated, first run over."""
    url = databases.take()
    yield url
    databases.give_back(url)


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    """Settings of a service under test."""
    return load_settings(
        database_url=database_url,
        data_dir=tmp_path,
        allow_faults=True,
        alert_interval_s=300,
        port=0,
        webhook_networks="127.0.0.0/8",
    )


@pytest.fixture
def service(settings: Settings, template: Template) -> Iterator[Service]:
    """A service whose admin is logged in."""
    with service_of(settings) as made:
        template.login.put_on(made.admin)
        yield made


@pytest.fixture
def api(service: Service) -> TestClient:
    """The admin's client."""
    return service.admin
