"""The switch of a network in memory: takes packets of nodes, injects faults, and delivers them.

A node sends into one inbox of the switch, once for all, as on a multicast network; NAK and STATUS
go to another inbox, of the node that they are for. `Switch.move` takes all packets out, asks the
seeded generator and each onlooker, and puts each packet into its receivers' inboxes when it is due.
"""

from __future__ import annotations

import heapq
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tidecast.layout import packet as wire
from tidecast.native.memory import address
from tidecast.node.live.transports import Memory, TransportRuntime
from tidecast.transport import wire_io

REORDER_NS_MIN, REORDER_NS_MAX = 10_000, 40_000
DUPLICATE_NS_MAX = 50_000
NEVER_NS = 1 << 62
_HEADER = struct.Struct("<BBBBIHHHHqq")


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet on its way to one receiver. ``target``, ``source``: node ids."""

    now_ns: int
    source: int
    target: int
    data: bytes

    @property
    def type(self) -> int:
        """DATA, HEARTBEAT, NAK, STATUS, SETUP or LOST of `tidecast.layout.packet`."""
        return self.data[wire.TYPE_AT]

    @property
    def flags(self) -> int:
        """The header's flags."""
        return self.data[wire.FLAGS_AT]

    @property
    def channel(self) -> int:
        """The header's channel."""
        return self.data[wire.CHANNEL_AT]

    @property
    def session(self) -> int:
        """The header's session id."""
        return int(_HEADER.unpack_from(self.data)[4])

    @property
    def seq(self) -> int:
        """The header's sequence."""
        return int(_HEADER.unpack_from(self.data)[9])

    @property
    def is_resent(self) -> bool:
        """A DATA packet that was sent again."""
        return self.type == wire.DATA and bool(self.flags & wire.FLAG_RETRANSMIT)


class Inbox:
    """One inbox of `wire_io`, from Python."""

    def __init__(self, slots: int, packet_bytes: int) -> None:
        self.array = wire_io.make_inbox(slots, packet_bytes)
        self.address = address(self.array)
        self._bytes = self.array.data
        self._words = self.array.data[: wire_io.INBOX_HEADER_BYTES].cast("q")
        self._slots, self._stride = slots, self._words[wire_io.INBOX_STRIDE_AT // 8]

    def put(self, source: tuple[int, int], data: bytes) -> bool:
        """Add a packet from (address, host). False: full, or too large; it is dropped."""
        write, n = self._words[0], len(data)
        if (
            write - self._words[1] >= self._slots
            or n > self._stride - wire_io.INBOX_SLOT_HEADER_BYTES
        ):
            self._words[wire_io.INBOX_DROPPED_AT // 8] += 1
            return False
        at = wire_io.INBOX_HEADER_BYTES + (write % self._slots) * self._stride
        struct.pack_into("<qqq", self._bytes, at, n, *source)
        at += wire_io.INBOX_SLOT_HEADER_BYTES
        self._bytes[at : at + n] = data
        self._words[0] = write + 1
        return True

    def take(self) -> Iterator[tuple[int, bytes]]:
        """Take all packets out: (address of the sender, bytes)."""
        write, read = self._words[0], self._words[1]
        while read < write:
            at = wire_io.INBOX_HEADER_BYTES + (read % self._slots) * self._stride
            n, source = struct.unpack_from("<qq", self._bytes, at)
            at += wire_io.INBOX_SLOT_HEADER_BYTES
            yield source, bytes(self._bytes[at : at + n])
            read += 1
        self._words[1] = read

    @property
    def waiting(self) -> int:
        """Packets in it."""
        return self._words[0] - self._words[1]

    @property
    def dropped(self) -> int:
        """Packets that found it full."""
        return self._words[wire_io.INBOX_DROPPED_AT // 8]


class Port:
    """A lane of a node at the switch: its sent and received packets, and its two inboxes."""

    def __init__(self, place: tuple[int, int], slots: int, packet_bytes: int) -> None:
        """``place``: node id and lane. The sum of both decides which lane of others hears it."""
        self.node_id, self.lane = place
        self.number = sum(place)
        self.outgoing, self.toward = Inbox(slots, packet_bytes), Inbox(slots, packet_bytes)
        self.data, self.control = Inbox(slots, packet_bytes), Inbox(slots, packet_bytes)
        self.origin = self.toward.address, self.node_id
        """Where its packets come from: address, and host."""


class Switch(Memory):
    """The `Memory` that `tidecast.testing.Network` gives its nodes. See the module."""

    def __init__(
        self,
        packet_bytes: int,
        inbox_packets: int,
        *,
        seed: int,
        drop: float,
        duplicate: float,
        reorder: float,
        delay_ns: int,
        trace: bool,
    ) -> None:
        super().__init__(packet_bytes, inbox_packets)
        self.drop, self.duplicate, self.reorder = drop, duplicate, reorder
        self.delay_ns = delay_ns
        self.cut: set[frozenset[int]] = set()
        self.looks: list[Callable[[Packet], bool | None]] = []
        self.counts: Counter[str] = Counter()
        """``packets``, ``bytes`` by receiver; ``dropped``, ``dropped_data_bytes``, ``duplicated``,
        ``reordered``, ``overflowed``."""
        self.trace: list[tuple[int, int, int, bytes]] | None = [] if trace else None
        """(time, source, target, bytes) of every packet delivered, in order."""
        self._random = random.Random(seed)
        self._ports: dict[tuple[int, int], Port] = {}
        self._kept: list[Port] = []  # other nodes may still send to a node that is gone
        self._flying: list[tuple[int, int, Port, bool, tuple[int, int], bytes]] = []
        self._serial = 0

    # --- as `Memory` ------------------------------------------------------------------------------

    def join(self, runtime: TransportRuntime) -> None:
        """Give a lane of a node a port."""
        place = runtime.place
        port = self._ports[place] = Port(place, self.inbox_packets, self.packet_bytes)
        self._kept.append(port)
        self.data[place], self.control[place] = port.data.array, port.control.array
        self.members.append(runtime)

    def targets(self, place: tuple[int, int]) -> list[list[bytes]]:
        """Every lane sends to the switch alone."""
        port = self._ports.get(place)
        if port is None:  # its node is gone
            return []
        return [[struct.pack("<qq", port.outgoing.address, 0)] * wire.CHANNELS]

    def forget(self, node_id: int) -> None:
        """A node is gone: drop packets to it, and its last packets."""
        for place in [place for place in self._ports if place[0] == node_id]:
            del self._ports[place]

    def close(self) -> None:
        """Give all inboxes back: no node runs any more."""
        self._ports.clear()
        self._kept.clear()
        self._flying.clear()
        self.data.clear()
        self.control.clear()
        self.looks.clear()

    def port(self, node_id: int, lane: int = 0) -> Port:
        """The port of a lane of a node."""
        return self._ports[node_id, lane]

    # --- moving -----------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Packets that were sent and not yet taken by their receivers."""
        waiting = sum(
            p.data.waiting + p.control.waiting + p.outgoing.waiting + p.toward.waiting
            for p in self._ports.values()
        )
        return waiting + len(self._flying)

    def waits_for(self, node_id: int) -> bool:
        """Something has arrived that a node did not take yet."""
        mine = [port for (node, _), port in self._ports.items() if node == node_id]
        return any(port.data.waiting + port.control.waiting for port in mine)

    def next_due_ns(self) -> int:
        """When the next delayed packet is due."""
        return self._flying[0][0] if self._flying else NEVER_NS

    def move(self, now_ns: int) -> int:
        """Take sent packets, deliver due packets. Returns how many were taken or delivered."""
        moved = 0
        ports = list(self._ports.values())
        by_control = {p.control.address: p for p in ports}
        nodes: dict[int, list[Port]] = {}
        for port in ports:
            nodes.setdefault(port.node_id, []).append(port)
        for port in ports:
            for _, data in port.outgoing.take():
                moved += 1
                for node_id, lanes in nodes.items():
                    if node_id != port.node_id:
                        other = lanes[port.number % len(lanes)]
                        self._send(now_ns, port.node_id, port.origin, other, data, False)
        for port in ports:
            for source, data in port.toward.take():
                moved += 1
                sender = by_control.get(source)
                if sender is not None:
                    self._send(now_ns, sender.node_id, sender.origin, port, data, True)
        while self._flying and self._flying[0][0] <= now_ns:
            _, _, to, control, origin, data = heapq.heappop(self._flying)
            moved += 1
            inbox = to.control if control else to.data
            if not inbox.put(origin, data):
                self.counts["overflowed"] += 1
        return moved

    def inject(
        self, target: int, data: bytes, *, control: bool = False, source: int = 0, lane: int = 0
    ) -> bool:
        """Put any bytes into the inbox of a lane of a node.

        ``source``: the node from whose address they come; else a number of no node, which is the
        address of a stranger's host.
        """
        origin, port = self._ports.get((source, 0)), self._ports[target, lane]
        inbox = port.control if control else port.data
        return inbox.put((0, source) if origin is None else origin.origin, data)

    def _send(
        self,
        now_ns: int,
        source: int,
        origin: tuple[int, int],
        to: Port,
        data: bytes,
        control: bool,
    ) -> None:
        self.counts["packets"] += 1
        self.counts["bytes"] += len(data)
        if not self._passes(now_ns, source, to.node_id, data):
            self.counts["dropped"] += 1
            if data[wire.TYPE_AT] in (wire.DATA, wire.COMPACT):
                self.counts["dropped_data"] += 1
                self.counts["dropped_data_bytes"] += len(data)
            return
        if self.trace is not None:
            self.trace.append((now_ns, source, to.node_id, data))
        due_ns = now_ns + self.delay_ns
        if self.reorder and self._random.random() < self.reorder:
            self.counts["reordered"] += 1
            due_ns += self._random.randint(REORDER_NS_MIN, REORDER_NS_MAX)
        self._fly(due_ns, to, control, origin, data)
        if self.duplicate and self._random.random() < self.duplicate:
            self.counts["duplicated"] += 1
            later_ns = due_ns + self._random.randint(0, DUPLICATE_NS_MAX)
            self._fly(later_ns, to, control, origin, data)

    def _fly(
        self, due_ns: int, to: Port, control: bool, origin: tuple[int, int], data: bytes
    ) -> None:
        self._serial += 1
        heapq.heappush(self._flying, (due_ns, self._serial, to, control, origin, data))

    def _passes(self, now_ns: int, source: int, target: int, data: bytes) -> bool:
        if self.cut and frozenset((source, target)) in self.cut:
            return False
        if self.looks:
            packet = Packet(now_ns, source, target, data)
            verdicts = [look(packet) for look in self.looks]
            if any(verdict is False for verdict in verdicts):
                return False
        return not (self.drop and self._random.random() < self.drop)
