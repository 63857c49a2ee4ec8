"""Shared by simulations: readers that collect, a stream of numbered messages, costs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tidecast.client.blocking import Connection
from tidecast.errors import GapError
from tidecast.events import Event
from tidecast.layout import packet as wire
from tidecast.testing import Network, SimulatedNode
from tidecast.testing.switch import Packet

HEADER = wire.PACKET_HEADER_BYTES + wire.MESSAGE_HEADER_BYTES


class Reader:
    """A subscription that keeps all payloads, gaps and events."""

    def __init__(self, node: SimulatedNode, pattern: str = "t", **options: Any) -> None:
        self.node = node
        self.client = node.connect()
        self.subscription = self.client.subscribe(pattern, **options)
        self.found: list[bytes] = []
        self.gaps: list[tuple[int, int]] = []
        self.seen: list[Event] = []
        self.paused = False
        self.session = 0
        """Keep messages of this one alone; 0: of all."""
        self.batch_messages = 4096

    def take(self) -> int:
        """Read what is there; how many messages."""
        if self.paused:
            return 0
        before = len(self.found)
        while True:
            try:
                batch = self.subscription.step(self.batch_messages)
            except GapError as gap:
                self.gaps.append(gap.lost_range)
                continue
            if batch is None:
                return len(self.found) - before
            if self.session in (0, batch.image.session if batch.image is not None else 0):
                self.found += batch.payloads()

    def events(self, kind: type[Event] = Event) -> list[Any]:
        while (event := self.client.take_event()) is not None:
            self.seen.append(event)
        return [event for event in self.seen if isinstance(event, kind)]


class Stream:
    """Numbered messages of one publisher, and how far they are published."""

    def __init__(
        self,
        node: SimulatedNode,
        topic: str = "t",
        *,
        count: int = 0,
        size: int = 1000,
        name: str = "",
        **options: Any,
    ) -> None:
        self.node, self.name = node, name or node.name
        self.client = node.connect()
        self.publisher = self.client.publisher(topic, **options)
        self.count, self.size, self.done = count, size, 0

    def message(self, i: int) -> bytes:
        head = f"{self.name}:{i}:".encode()
        return head + b"." * max(0, self.size - len(head))

    @property
    def messages(self) -> list[bytes]:
        return [self.message(i) for i in range(self.count)]

    def push(self, at_most: int = 1 << 30) -> bool:
        """Publish what finds room; is all published?"""
        while self.done < self.count and at_most > 0:
            if not self.publisher.try_publish(self.message(self.done)):
                break
            self.done += 1
            at_most -= 1
        return self.done == self.count

    def events(self, kind: type[Event] = Event) -> list[Any]:
        found = []
        while (event := self.client.take_event()) is not None:
            found.append(event)
        return [event for event in found if isinstance(event, kind)]


def transfer(
    net: Network,
    streams: Sequence[Stream],
    readers: Sequence[Reader],
    *,
    until: Callable[[], Any] | None = None,
    limit_us: float = 20_000_000.0,
    burst: int = 1 << 30,
) -> bool:
    """Publish all of the streams while all readers read, until each has as many as there are."""
    total = sum(stream.count for stream in streams)

    def done() -> bool:
        published = [stream.push(burst) for stream in streams]
        for reader in readers:
            reader.take()
        if until is not None:
            return bool(until())
        return all(published) and all(len(reader.found) >= total for reader in readers)

    return net.run(limit_us, until=done)


def network_of(net: Network, names: Iterable[str], **settings: Any) -> list[SimulatedNode]:
    """Nodes that all know topic ``t``."""
    return [net.node(name, topics=["t"], **settings) for name in names]


class DropOnce:
    """Drops the first transmission of chosen DATA packets, for every receiver."""

    def __init__(self, *seqs: int) -> None:
        self.seqs = set(seqs)
        self.dropped: list[int] = []

    def __call__(self, packet: Packet) -> bool:
        if packet.type == wire.DATA and not packet.is_resent and packet.seq in self.seqs:
            self.dropped.append(packet.seq)
            return False
        return True


class Census:
    """Counts packets by type, and keeps when."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []

    def __call__(self, packet: Packet) -> None:
        self.packets.append(packet)

    def of(self, kind: int) -> list[Packet]:
        return [packet for packet in self.packets if packet.type == kind]

    @property
    def resent(self) -> list[Packet]:
        return [packet for packet in self.packets if packet.is_resent]


def settle_and_read(net: Network, reader: Reader, limit_us: float = 20_000_000.0) -> list[bytes]:
    """Settle, then everything that the reader has."""
    assert net.settle(limit_us)
    reader.take()
    return reader.found


def lose_engine(*clients: Connection) -> None:
    """These clients notice that their engine is gone, as their keepers would."""
    for client in clients:
        client._keeper = threading.current_thread()
        client._engine_lost("gone")


def find_engine(node: SimulatedNode, *clients: Connection) -> None:
    """These clients find the next engine, in this order."""
    for client in clients:
        link: Any = client.link
        link.simulated, link.node = node, node.engine
        link.incarnation = node.engine.incarnation
        link.client_id = node.engine.attach("again", outlives=True)
        link.doorbell, link.bells = node.engine.doorbell(link.client_id), node.engine.bells
        client._reopen()


def outliving(client: Connection) -> Connection:
    """Make a client one of a process of its own, which outlives its engine."""
    link: Any = client.link
    link.node.clients[link.client_id].outlives = True
    return client
