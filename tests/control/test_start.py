"""A service that cannot start says why, and what to do, without a traceback."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.support.control import SERVER_LOGGERS
from tests.support.process_state import kept_loggers
from tidecast.errors import ConfigError
from tidecast_control.__main__ import run
from tidecast_control.postgres import EmbeddedPostgres
from tidecast_control.settings import load_settings


@pytest.fixture(scope="module")
def ascii_url(postgres: EmbeddedPostgres) -> str:
    with psycopg.connect(postgres.url_of("postgres"), autocommit=True) as connection:
        connection.execute(
            "CREATE DATABASE plain ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
        )
    return postgres.url_of("plain")


def _refused(url: str, data_dir: Path, capfd: pytest.CaptureFixture[str]) -> str:
    with kept_loggers(*SERVER_LOGGERS), pytest.raises(ConfigError) as refusal:
        run(load_settings(database_url=url, data_dir=data_dir, port=0), local_token=False)
    assert "Traceback" not in capfd.readouterr().err
    return str(refusal.value)


def test_a_database_of_another_encoding_is_refused(
    ascii_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = _refused(ascii_url, tmp_path, capfd)
    assert "'plain' has the encoding SQL_ASCII; allowed is UTF8" in said
    assert "CREATE DATABASE" in said


def test_a_database_that_is_not_there_is_named(
    postgres: EmbeddedPostgres, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = _refused(postgres.url_of("nowhere"), tmp_path, capfd)
    assert "TIDECAST_DATABASE_URL: " in said
    assert '"nowhere" does not exist' in said
