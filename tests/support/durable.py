"""An engine with durable topics in this process, without threads, that can crash and come back.

`Platform.crash` leaves everything as kill -9 would: files and rings as they are, nothing said to
anybody. The clients then lose their engine and find the next one, as the keeper would have it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.logs import blocks
from tests.support.power import Disk, installed
from tidecast.client.blocking import Connection, Publisher
from tidecast.client.core import connection as connections
from tidecast.config.topology import Topology, topology_from, with_identity
from tidecast.embedded import EmbeddedLink, connect_to
from tidecast.log import batch
from tidecast.log.building import check, record_table, records
from tidecast.log.queue_log import QueueLog
from tidecast.node.durable.service import Durable
from tidecast.node.durable.topic import DurableTopic
from tidecast.node.node import Node

_OUT = record_table()


def attach_again(link: EmbeddedLink, node: Node) -> None:
    """Attach a link whose engine crashed to the engine that came after it."""
    link.node, link.incarnation = node, node.incarnation
    link.client_id = node.attach("again", outlives=True)
    link.doorbell, link.bells = node.doorbell(link.client_id), node.bells


class Link(EmbeddedLink):
    """An embedded link that finds the next engine; whoever waits moves the platform's clock."""

    platform: Platform

    def work(self) -> int:
        self.platform.run(1)
        return 1  # the clock went on: who waits need not sleep

    def attach_to(self, node: Node) -> None:
        """The engine that came after the one that crashed."""
        attach_again(self, node)


class Platform:
    """See module. ``now_ns`` moves by `run`: 1 ms a cycle."""

    disk: Disk
    """Under the data directory, in a `powered` one."""

    def __init__(self, directory: Path, **topic: Any) -> None:
        self.directory = directory
        settings = {"name": "orders", "mode": "durable", "fsync_interval_ms": 5} | topic
        self.topology: Topology = topology_from(
            {"transports": [{"name": "ipc", "kind": "ipc"}], "topics": [settings]}
        )
        self.now_ns = 10**9
        self.connections: list[Connection] = []
        self.start()

    def start(self) -> None:
        """An engine on the data directory."""
        topology = with_identity(self.topology, self.directory)
        self.node = Node(
            topology, self.directory, inline=True, clock_ns=lambda: self.now_ns, connect=connect_to
        )
        self.node.start()

    def connect(self) -> Connection:
        """A client."""
        link: Any = Link(self.node, "client", owns_node=False)
        self.node.clients[link.client_id].outlives = True
        link.platform = self
        connection = Connection(link)
        self.connections.append(connection)
        return connection

    def publisher(self, topic: str = "orders", **options: Any) -> Publisher:
        """A publisher with a connection of its own."""
        return self.connect().publisher(topic, **{"buffer": False} | options)

    def run(self, cycles: int = 20) -> None:
        """Let the engine work."""
        for _ in range(cycles):
            self.now_ns += 1_000_000
            self.node.work(self.now_ns)

    def crash(self, *, noticed: bool = True) -> None:
        """kill -9 of the engine; do its clients notice?"""
        os.close(self.node.context._alive)
        for topic in self.durable.topics.values():
            for log in topic.logs:  # what the kernel does for a process that is gone
                log.abandon()
        if noticed:
            self.lose_engine()

    def lose_engine(self, *connections: Connection) -> None:
        """These clients, or all, notice that the engine is gone."""
        for connection in connections or self.connections:
            connection._keeper = threading.current_thread()  # `restart` does what it would do
            connection._engine_lost("gone")

    def lose_power(self, share: float | None = None) -> None:
        """The machine is gone: all processes, shared memory, and what was not on the device.

        ``share``: see `Disk.lose_power`.
        """
        self.crash()
        self.forget_clients()
        shutil.rmtree(self.node.directory, ignore_errors=True)  # any engine clears what is dead
        self.disk.lose_power(share)

    def forget_clients(self) -> None:
        """They died, too."""
        for connection in self.connections:
            connections._open.discard(connection)
        self.connections.clear()

    def restart(self) -> None:
        """Start the next engine; clients find it."""
        self.start()
        self.find_engine()

    def find_engine(self, *connections: Connection) -> None:
        """These clients, or all, find the next engine, in this order."""
        for connection in connections or self.connections:
            link: Any = connection.link
            link.attach_to(self.node)
            connection._reopen()

    def kill(self, connection: Connection) -> None:
        """kill -9 of a client."""
        self.connections.remove(connection)
        self.node.client_gone(connection.link.client_id)

    @property
    def durable(self) -> Durable:
        """The node's durable topics."""
        return self.node.durable

    @property
    def topic(self) -> DurableTopic:
        """The topic `orders`."""
        return self.durable.topics["orders"]

    @property
    def faults(self) -> list[np.ndarray]:
        """Fault tables of the queues' logs."""
        return [log.state.disk for log in self.topic.logs]

    def counters(self) -> dict[str, int]:
        """The counters of all queues, added."""
        found: dict[str, int] = {}
        for row in self.node.stats()["queue"]:
            for name, value in row.items():
                if isinstance(value, int):
                    found[name] = found.get(name, 0) + value
        return found

    def stop(self) -> None:
        """The end of a test."""
        for connection in list(self.connections):
            connection.close()
        self.node.stop()


@contextmanager
def platform(**topic: Any) -> Iterator[Platform]:
    """A platform in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="tc-") as directory:
        one = Platform(Path(directory), **topic)
        try:
            yield one
        finally:
            one.stop()


@contextmanager
def powered(seed: int = 0, **topic: Any) -> Iterator[Platform]:
    """A platform on a disk that may lose its power."""
    with (
        tempfile.TemporaryDirectory(prefix="tc-") as directory,
        installed(Disk(Path(directory), seed)) as disk,
    ):
        one = Platform(Path(directory), **topic)
        one.disk = disk
        try:
            yield one
        finally:
            disk.release_syncs()
            disk.failing = None
            one.stop()


Row = tuple[int, int, bytes | None, bytes, int]


def rows_of(topic: DurableTopic) -> list[Row]:
    """(queue, token, key, payload, sequence) of every record in a topic's logs."""
    return [row for log in topic.logs for row in rows_in(log)]


def rows_in(log: QueueLog) -> list[Row]:
    """(queue, token, key, payload, sequence) of every record in a queue's log."""
    found: list[Row] = []
    reader = log.reader()
    for buffer, n in blocks(reader, log.earliest_token, 1 << 22):
        raw, at = buffer[:n].tobytes(), 0
        while at < n:
            length = check(buffer, at, n)
            count = records(buffer, at, n, _OUT, 0)
            assert count > 0
            for row in _OUT[:count].tolist():
                first, key_at = row[batch.O_PAYLOAD_AT], row[batch.O_KEY_AT]
                key = None if key_at < 0 else raw[key_at : key_at + row[batch.O_KEY_N]]
                payload = raw[first : first + row[batch.O_PAYLOAD_N]]
                found.append((log.queue, row[batch.O_TOKEN], key, payload, row[batch.O_SEQ]))
            at += length
    reader.close()
    return found
