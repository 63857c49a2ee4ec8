"""A host on the network that records, replays and forges packets of live topics, by raw sockets."""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import Eventually
from tests.support import packets
from tests.support.hosts.cluster import Cluster, Host, transport
from tests.support.hosts.network import Port
from tests.support.lab import topology
from tidecast.layout import packet as wire
from tidecast.layout import sealed
from tidecast.node.sealing.wire_keys import FILE_NAME
from tidecast.protocol.flow_control import RECEIVERS_MAX

EACH = 20_000
RECORDED = 100
FAR = 1 << 40
Address = tuple[str, int]


class Heard(NamedTuple):
    """A packet of the group, and where it came from."""

    payload: bytes
    source: Address


class Intruder:
    """A host that joined the group. It has no keys, and writes any source into its packets."""

    def __init__(self, port: Port, settings: dict[str, Any]) -> None:
        self.address, self.group, self.port = port.address, settings["group"], settings["port"]
        self._undo = contextlib.ExitStack()
        with port.namespace.entered():
            self._ear = self._undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
            self._raw = self._undo.enter_context(raw)
        me = socket.inet_aton(self.address)
        self._ear.bind((self.group, self.port))
        joined = socket.inet_aton(self.group) + me
        self._ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
        self._ear.settimeout(30.0)
        self._raw.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, me)

    def record(self, count: int) -> list[Heard]:
        """So many packets of the ordinary channel."""
        return [Heard(*self._ear.recvfrom(65_536)) for _ in range(count)]

    def send(self, payload: bytes, source: Address, to: Address | None = None) -> None:
        """One datagram from any source. ``to`` None: the group."""
        host, port = to or (self.group, self.port)
        udp = struct.pack(">HHHH", source[1], port, 8 + len(payload), 0) + payload
        ends = socket.inet_aton(source[0]) + socket.inet_aton(host)
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 1, socket.IPPROTO_UDP, 0) + ends
        self._raw.sendto(ip + udp, (host, 0))

    def close(self) -> None:
        self._undo.close()


def forged(session: int, source: int, topic: int) -> list[bytes]:
    """Each packet that changed the state of a receiver for good, in the forger's table."""
    about: dict[str, Any] = {"session": session, "source": source, "topic": topic}
    return [
        packets.setup("host1", "live.0", incarnation=1 << 62, **about),
        packets.heartbeat(flags=wire.FLAG_END, seq=1, **about),
        packets.heartbeat(flags=wire.FLAG_END, seq=FAR, **about),
        packets.heartbeat(seq=1 << 59, **about),
        packets.lost(seq=FAR, **about),
        packets.data(packets.message(b"forged"), seq=FAR, **about),
        packets.data(packets.message(b"forged"), seq=2, **about),
    ]


def back(session: int, source: int, topic: int) -> list[bytes]:
    """Packets for a publisher: a receiver that leaves, receivers that hold it back, NAKs."""
    about: dict[str, Any] = {"session": session, "source": source, "topic": topic}
    fakes = [packets.status(receiver_id=n, window=1, **about) for n in range(1, 200)]
    return [
        *fakes,
        packets.status(flags=wire.FLAG_LEAVE, **about),
        packets.nak([(0, 100_000)], **about),
        packets.ack(**about),
    ]


def two_hosts(cluster: Cluster, settings: dict[str, Any]) -> tuple[Host, Host]:
    """A publisher's host and a subscriber's; with one secret where packets are sealed."""
    topics = [{"name": f"live.{n}", "receiver_timeout_s": 1} for n in range(2)]
    pair = cluster.hosts[0], cluster.hosts[1]
    for host in pair:
        host.make(topology(settings, topics=topics) | {"node": {"name": host.name}})
    if settings["secure"] != "off":
        pair[0].node.run("wire", "keys", "new", "multicast")
        shutil.copy(pair[0].node.directory / FILE_NAME, Path(pair[1].node.directory, FILE_NAME))
    for host in pair:
        host.begin()
    return pair


class Stream:
    """Numbers from one host to another, each once and in order."""

    def __init__(self, there: Host, here: Host, topic: str, eventually: Eventually) -> None:
        self.tally = here.role("tally", here.node.url, topic, "1", str(EACH))
        self.source = there.role("stream", there.node.url, topic, "0", str(EACH))
        eventually(lambda: topic in topics_received(there), "the receiver", timeout_s=60.0)

    def begin(self) -> None:
        self.source.tell("go")

    def is_whole(self) -> bool:
        return self.tally.line() == f"wrong 0 of {EACH}"


def topics_received(host: Host) -> set[str]:
    return {row["topic"] for row in host.node.overview().receivers}


def counted(host: Host, *names: str) -> int:
    kinds = ("publication", "sender", "receiver", "image", "node")
    found = [host.node.counters(kind) for kind in kinds]
    return sum(each.get(name, 0) for each in found for name in names)


@pytest.mark.timeout(300)
def test_an_intruder_changes_nothing_where_packets_are_sealed(
    cluster: Callable[[int], Cluster], eventually: Eventually
) -> None:
    settings, hosts = transport(), cluster(3)
    there, here = two_hosts(hosts, settings)
    stream = Stream(there, here, "live.0", eventually)
    intruder = Intruder(hosts.hosts[2].port, settings)
    try:
        stream.begin()
        seen = [h for h in intruder.record(RECORDED) if h.payload[0] == sealed.SEALED_VERSION]
        assert seen
        assert {h.source[0] for h in seen} == {there.port.address}
        for payload, source in seen:
            intruder.send(payload, source)  # replayed
            intruder.send(payload[:-1] + bytes([payload[-1] ^ 1]), source)  # changed
            number = struct.pack("<q", FAR)
            at = sealed.NUMBER_AT
            intruder.send(payload[:at] + number + payload[at + 8 :], source)  # numbered anew
        for source in (seen[0].source, (intruder.address, 4000)):
            for packet in forged(5, 1, 7):
                intruder.send(packet, source)
        for source in ((here.port.address, settings["port"]), (intruder.address, 4000)):
            for packet in back(5, 2, 7):
                intruder.send(packet, source, seen[0].source)
        assert stream.is_whole()
        eventually(lambda: counted(here, "replayed") >= len(seen) // 2, "replays are counted")
        eventually(lambda: counted(here, "tag_failed", "unknown_key") > 0, "forgeries, too")
        for host in (there, here):
            eventually(lambda host=host: counted(host, "plain_refused") > 0, "plain ones, too")
        assert len(there.node.overview().receivers) == 1
        assert len(here.node.overview().images) == 1
        assert counted(here, "stale_session", "setups_refused", "lost_for_good") == 0
        later = Stream(there, here, "live.1", eventually)
        later.begin()
        assert later.is_whole()
    finally:
        intruder.close()


@pytest.mark.timeout(300)
def test_plain_packets_of_an_intruder_are_bounded_and_counted(
    cluster: Callable[[int], Cluster], eventually: Eventually
) -> None:
    settings, hosts = transport(secure="off"), cluster(3)
    there, here = two_hosts(hosts, settings)
    stream = Stream(there, here, "live.0", eventually)
    intruder = Intruder(hosts.hosts[2].port, settings)
    try:
        stream.begin()
        payload, publisher = intruder.record(1)[0]
        session, topic = struct.unpack_from("<IH", payload, wire.SESSION_AT)
        node = struct.unpack_from("<H", payload, wire.SOURCE_AT)[0]
        own = (intruder.address, 4000)
        for packet in forged(session, node, topic):
            intruder.send(packet, own)
        for packet in back(session, 9, topic):
            intruder.send(packet, own, publisher)
        assert stream.is_whole(), "packets from a foreign address change nothing for good"
        eventually(lambda: counted(here, "foreign_address") > 0, "they are counted")
        eventually(lambda: counted(here, "setups_refused") > 0, "a start in the future, too")
        eventually(lambda: counted(there, "receivers_refused") > 0, "receivers that crowd in, too")
        assert len(there.node.overview().receivers) <= RECEIVERS_MAX
        # From the publisher's own address nothing plain can be told apart. The engines outlive it.
        for packet in forged(session, node, topic):
            intruder.send(packet, publisher)
        later = Stream(there, here, "live.1", eventually)
        later.begin()
        assert later.is_whole()
    finally:
        intruder.close()
