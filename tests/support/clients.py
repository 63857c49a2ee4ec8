"""Clients over a `LoopLink`, for tests."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tidecast.sync
from tests.support.loop_link import LoopLink

PARTS = {"slots": 64, "slot_bytes": 1400}


@contextlib.contextmanager
def loop_client(
    kind: type[LoopLink] = LoopLink, **options: Any
) -> Iterator[tuple[tidecast.sync.Connection, Any]]:
    """(client, link). The rings lie in /dev/shm and are gone afterwards."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tc-") as directory:
        link = kind(Path(directory), **options)
        with tidecast.sync.connect(link=link) as client:
            yield client, link


@contextlib.contextmanager
def loop_link(kind: type[LoopLink] = LoopLink, **options: Any) -> Iterator[Any]:
    """A link alone."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tc-") as directory:
        yield kind(Path(directory), **options)


def nothing_comes(consumer: tidecast.sync.Consumer, max_wait: float = 0.0) -> bool:
    """No record came, though the engine has had its turns to send some: no time decides.

    An engine answers `info` between two duty cycles of the agent that delivers. ``max_wait``: for
    the way from there through a gateway.
    """
    for _ in range(3):
        consumer.info()
    return not consumer.fetch(1, max_wait)
