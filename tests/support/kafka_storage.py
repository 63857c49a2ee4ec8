"""Engines whose topic ``orders`` is stored on a broker in memory, and what that broker then has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import tidecast.sync
from tests.support.fake_broker import FakeBroker
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.events import Event
from tidecast.kafka.records import Decoder
from tidecast.layout.counters import QueueCounter as C
from tidecast.log import batch
from tidecast.log.building import record_table, records
from tidecast.sync import Connection

E = TypeVar("E", bound=Event)


def url(fake: FakeBroker) -> str:
    """Where its topic is."""
    return f"kafka://127.0.0.1:{fake.port}/{fake.topic}"


@contextmanager
def opened(
    data_dir: Path, storage: str, *, node: str = "alpha", **settings: Any
) -> Iterator[Connection]:
    """An engine whose topic ``orders`` is stored there."""
    topic = {"name": "orders", "mode": "durable", "queues": 2, "fsync": "batch"}
    raw = {
        "node": {"name": node},
        "transports": [{"name": "ipc", "kind": "ipc"}],
        "topics": [{**topic, "storage": storage, **settings}],
    }
    link = EmbeddedLink.open(topology_from(raw), data_dir=data_dir)
    with tidecast.sync.connect(link=link) as client:
        yield client


def count_of(client: Connection, column: C) -> int:
    """Of all queues of the topic."""
    node = client.link.node  # type: ignore[attr-defined]
    rows = node.durable.registry.rows
    return sum(int(node.counters.values[row, column]) for row in rows.values())


def log_of(client: Connection, queue: int) -> Any:
    """The log of a queue of the topic."""
    return client.link.node.durable.topics["orders"].logs[queue]  # type: ignore[attr-defined]


def payloads(raw: bytes) -> list[bytes]:
    """Of the records of one record batch, as the endpoint's decoder reads it."""
    taken = Decoder().take(memoryview(raw), 0)
    table, found, at = record_table(), list[bytes](), 0
    while at < taken.n_bytes:
        rows = int(records(taken.buffer, at, taken.n_bytes, table, 0))
        for row in table[:rows].tolist():
            begin = row[batch.O_PAYLOAD_AT]
            found.append(taken.buffer[begin : begin + row[batch.O_PAYLOAD_N]].tobytes())
        at += int.from_bytes(taken.buffer[at : at + 4].tobytes(), "little")
    return found


def stored(fake: FakeBroker) -> list[list[bytes]]:
    """The records of each partition."""
    with fake.lock:
        each = [one.records() for one in fake.partitions]
    return [[value for raw in rows for value in payloads(raw)] for rows in each]


def texts(n: int, first: int = 0) -> list[bytes]:
    """So many numbers, as payloads."""
    return [b"%d" % i for i in range(first, first + n)]


def publish(client: Connection, values: Sequence[bytes], **options: Any) -> None:
    """Keys are the values modulo 7; all are durable when it returns."""
    with client.publisher("orders", **options) as publisher:
        for value in values:
            publisher.publish(value, key=b"k%d" % (int(value) % 7))
        publisher.wait_durable(timeout=60.0)


def check_once_and_in_order(partitions: list[list[bytes]], wanted: Sequence[bytes]) -> None:
    """All is there once, and each key of `publish` in order."""
    flat = [value for partition in partitions for value in partition]
    assert sorted(flat, key=int) == sorted(wanted, key=int)
    for partition in partitions:
        for key in range(7):
            mine = [int(value) for value in partition if int(value) % 7 == key]
            assert mine == sorted(mine)
