"""Gateways that serve logs alone: no engine stands behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidecast.access import Access, Scope, digest_of
from tidecast.gateway.server import Gateway

TOKEN = "a-token-of-tests"


def open_log_gateway(data_dir: Path, keys: dict[str, Access] | None = None, port: int = 0) -> Any:
    """One that listens. ``keys``: what each secret allows; it may be changed."""

    def no_link(_: str) -> Any:
        raise AssertionError("readers of logs need no link")

    known = keys if keys is not None else {}
    made = Gateway(
        no_link,
        TOKEN,
        port=port,
        data_dir=data_dir,
        find_key=lambda digest: next((a for s, a in known.items() if digest_of(s) == digest), None),
    )
    made.start()
    return made


def key(*scopes: tuple[str, str]) -> Access:
    """A key with (pattern, right) pairs."""
    return Access(
        "k",
        "job",
        tuple(Scope(pattern=p, rights=[r]) for p, r in scopes),  # type: ignore[list-item]
    )


@contextmanager
def gateways() -> Iterator[Callable[[Path], str]]:
    """A function from a data directory to the address of a gateway there."""
    made: dict[Path, Gateway] = {}

    def served(data_dir: Path) -> str:
        if data_dir not in made:
            made[data_dir] = open_log_gateway(data_dir)
        return made[data_dir].url

    try:
        yield served
    finally:
        for one in made.values():
            one.stop()
