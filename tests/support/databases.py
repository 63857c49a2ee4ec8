"""Databases for tests: copies of a template, made ahead and dropped behind them.

Postgres takes 0.2 s for a copy, and 0.1 s to drop a database whose connections end just then. It
computes for a tenth of that and waits for the rest, so threads do both while tests run.
"""

from __future__ import annotations

import itertools
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg

from tidecast_control.postgres import EmbeddedPostgres

AHEAD = 2


class Databases:
    """Copies of ``template``, ``ahead`` of them before a test asks. For one thread."""

    _numbers = itertools.count(1)

    def __init__(self, server: EmbeddedPostgres, template: str, *, ahead: int = AHEAD) -> None:
        self._server, self._template = server, template
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="databases")
        self._made = [self._threads.submit(self._make) for _ in range(ahead)]
        self._dropped: list[Future[None]] = []

    def take(self) -> str:
        """The URL of a database that nothing else uses."""
        self._made.append(self._threads.submit(self._make))
        return self._server.url_of(self._made.pop(0).result())

    def give_back(self, url: str) -> None:
        """Drop a database once its connections have ended; those that are left are cut."""
        name = url.partition("?")[0].rpartition("/")[2]
        self._dropped.append(
            self._threads.submit(self._execute, f"DROP DATABASE {name} WITH (FORCE)")
        )

    def close(self) -> None:
        """Wait until nothing is made or dropped any more. Raises what a drop raised."""
        self._threads.shutdown()
        for each in self._dropped:
            each.result()

    def _make(self) -> str:
        name = f"test_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {self._template} STRATEGY FILE_COPY")
        return name

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._server.url_of("postgres"), autocommit=True) as connection:
            connection.execute(statement)
