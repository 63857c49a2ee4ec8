"""Peers that a control service names: who is sent to, who is heard, who holds nobody back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.ports import free_port

from tidecast import sync
from tidecast.api.node import PeerAddress
from tidecast.config.topology import (
    PEERS_MAX,
    NodeAddress,
    NodeConfig,
    TopicConfig,
    Topology,
    TransportConfig,
    topology_from,
)
from tidecast.control_link.peers import FILE_NAME, announced, checked, load_peers, save_peers
from tidecast.embedded import EmbeddedLink, connect_to
from tidecast.errors import BackPressure, ConfigError
from tidecast.events import Event, PeerHeard, PeerSilent, PublisherUnheard, ReceiverTimeout
from tidecast.layout.counters import NodeCounter
from tidecast.node.faults import set_quarantine
from tidecast.node.live.targets import SILENT_S
from tidecast.node.node import Node
from tidecast.transport.sockets import target_at

BEGAN_NS = 1_000_000_000_000
STEP_NS = 5_000_000
TIMEOUT_S = 3000.0
"""Of silent receivers: nothing here may wait for it."""


class Hosts:
    """Nodes on the loopback without a static list; their clock is moved by hand."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.now_ns = directory, BEGAN_NS
        self.nodes: list[Node] = []
        self.clients: list[sync.Connection] = []

    def add(
        self, node_id: int, *, transport: dict[str, Any] | None = None, **settings: Any
    ) -> Node:
        about = {"port": free_port(), "socket_buffer_bytes": 1 << 20, **(transport or {})}
        lan = TransportConfig(name="lan", kind="udp-unicast", **about)
        topic = TopicConfig(
            name="t", receiver_timeout_s=TIMEOUT_S, history_bytes=1 << 16, on_full="error"
        )
        mine = NodeConfig(
            id=node_id,
            name=f"n{node_id}",
            image_timeout_s=TIMEOUT_S,
            addresses=settings.pop("addresses", []),
        )
        topology = Topology(node=mine, transports=[lan], topics=[topic], **settings)
        made = Node(
            topology_from(topology),
            self.directory / f"{node_id}-{len(self.nodes)}",
            inline=True,
            connect=connect_to,
            clock_ns=lambda: self.now_ns,
            incarnation=BEGAN_NS + len(self.nodes),
        )
        made.start()
        self.nodes.append(made)
        return made

    def client(self, node: Node) -> sync.Connection:
        link: Any = EmbeddedLink(node, "test", owns_node=False)
        made = sync.connect(link=link)
        self.clients.append(made)
        return made

    def run(self, until: Callable[[], Any], most_s: float = 5.0) -> None:
        """Move the clock and let all nodes work until a condition holds."""
        end_ns = self.now_ns + int(most_s * 1e9)
        while not until():
            assert self.now_ns < end_ns, "it never came"
            self.pass_s(STEP_NS / 1e9)

    def pass_s(self, seconds: float) -> None:
        """Let so much time go by."""
        end_ns = self.now_ns + int(seconds * 1e9)
        while self.now_ns < end_ns:
            self.now_ns += STEP_NS
            for node in self.nodes:
                node.work()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for node in self.nodes:
            node.kill()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    made.close()


def address(node: Node) -> PeerAddress:
    host, port = node.runtimes["lan"].bound_address()
    return PeerAddress(node=node.name, node_id=node.id, host=host, port=port)


def know(nodes: list[Node]) -> None:
    """As a service names them: each gets all, itself included."""
    for node in nodes:
        assert node.set_peers({"lan": [address(each) for each in nodes]}) == {}


def taken(reader: Any) -> list[bytes]:
    """The payloads that are there now."""
    found: list[bytes] = []
    while (batch := reader.step(256)) is not None:
        found += [bytes(each) for each in batch.payloads()]
    return found


def publishes(publisher: sync.Publisher, payload: bytes) -> bool:
    """Publish, unless the ring is full."""
    try:
        publisher.publish(payload)
    except BackPressure:
        return False
    return True


def events_of(client: sync.Connection) -> list[Event]:
    found = []
    while (event := client.take_event()) is not None:
        found.append(event)
    return found


def counter(node: Node, kind: str, name: str) -> int:
    return sum(int(row.get(name, 0)) for row in node.stats().get(kind, []))


def test_nodes_without_a_list_reach_each_other_once_they_are_named(hosts: Hosts) -> None:
    nodes = [hosts.add(n) for n in (1, 2, 3)]
    source = hosts.client(nodes[0])
    readers = [hosts.client(node).subscribe("t") for node in nodes[1:]]
    unheard = source.publisher("t")
    assert any(isinstance(e, PublisherUnheard) for e in events_of(source))
    unheard.close()
    know(nodes)
    publisher = source.publisher("t")
    hosts.run(lambda: len(nodes[0].receivers()) == 2)
    assert not any(isinstance(e, PublisherUnheard) for e in events_of(source))
    for n in range(20):
        publisher.publish(b"%d" % n)
    got: list[list[bytes]] = [[], []]

    def all_came() -> bool:
        for reader, into in zip(readers, got, strict=True):
            into.extend(taken(reader))
        return all(len(into) == 20 for into in got)

    hosts.run(all_came)
    assert got == [[b"%d" % n for n in range(20)]] * 2
    shown = nodes[0].discovered()
    assert [(row["node"], row["address"]) for row in shown] == [
        (each.name, address(each).where) for each in nodes[1:]
    ]


def test_a_peer_that_leaves_holds_nobody_back_and_is_refused(hosts: Hosts) -> None:
    nodes = [hosts.add(n) for n in (1, 2, 3)]
    source, slow = hosts.client(nodes[0]), hosts.client(nodes[2])
    reader, stuck = hosts.client(nodes[1]).subscribe("t"), slow.subscribe("t")
    know(nodes)
    publisher = source.publisher("t")
    hosts.run(lambda: len(nodes[0].receivers()) == 2)
    sent = 0

    def fill() -> None:
        nonlocal sent
        while publishes(publisher, b"x" * 1000):
            sent += 1
        hosts.pass_s(0.05)
        taken(reader)

    for _ in range(50):
        fill()
    held = sent
    for _ in range(10):
        fill()
    assert sent == held, "the slowest receiver of `min` flow holds the publisher back"
    nodes[0].set_peers({"lan": [address(nodes[1])]})
    hosts.run(lambda: len(nodes[0].receivers()) == 1, most_s=1.0)
    for _ in range(100):
        fill()
    assert sent > held + 100
    [dropped] = [e for e in events_of(source) if isinstance(e, ReceiverTimeout)]
    assert (dropped.reason, dropped.node) == ("removed", "n3")
    stuck.close()  # its LEAVE, and STATUS before it, are refused
    hosts.run(lambda: counter(nodes[0], "sender", "quarantined") > 0)
    assert len(nodes[0].receivers()) == 1
    know(nodes)
    fresh = slow.subscribe("t")
    hosts.run(lambda: len(nodes[0].receivers()) == 2)
    fresh.close()


def test_a_quarantined_receiver_holds_nobody_back(hosts: Hosts) -> None:
    nodes = [hosts.add(n) for n in (1, 2)]
    source = hosts.client(nodes[0])
    stuck = hosts.client(nodes[1]).subscribe("t")
    know(nodes)
    publisher = source.publisher("t")
    hosts.run(lambda: len(nodes[0].receivers()) == 1)
    while publishes(publisher, b"x" * 1000):
        hosts.pass_s(0.01)
    set_quarantine(nodes[0].runtimes["lan"], [2])
    hosts.run(lambda: publishes(publisher, b"x" * 1000), most_s=1.0)
    assert [e.reason for e in events_of(source) if isinstance(e, ReceiverTimeout)] == ["removed"]
    stuck.close()


def test_a_peer_that_moves_is_followed_and_its_old_receiver_is_dropped(hosts: Hosts) -> None:
    nodes = [hosts.add(n) for n in (1, 2)]
    source = hosts.client(nodes[0])
    hosts.client(nodes[1]).subscribe("t")
    know(nodes)
    publisher = source.publisher("t")
    hosts.run(lambda: len(nodes[0].receivers()) == 1)
    before = nodes[0].receivers()[0]["receiver"]
    nodes[1].kill()
    hosts.nodes.remove(nodes[1])
    hosts.clients.pop()
    moved = hosts.add(2)
    assert address(moved).port != address(nodes[0]).port
    reader = hosts.client(moved).subscribe("t")
    know([nodes[0], moved])
    hosts.run(lambda: [r["receiver"] for r in nodes[0].receivers()] not in ([], [before]))
    hosts.run(lambda: len(nodes[0].receivers()) == 1, most_s=1.0)
    publisher.publish(b"found")
    hosts.run(lambda: taken(reader) == [b"found"])


def test_a_status_that_was_on_its_way_when_its_peer_moved_joins_nobody(hosts: Hosts) -> None:
    nodes = [hosts.add(n) for n in (1, 2)]
    source, reader = hosts.client(nodes[0]), hosts.client(nodes[1]).subscribe("t")
    know(nodes)
    publisher = source.publisher("t")
    hosts.run(lambda: len(nodes[0].receivers()) == 1)
    at = address(nodes[1])
    elsewhere = PeerAddress(node=at.node, node_id=at.node_id, host=at.host, port=free_port())
    nodes[0].set_peers({"lan": [address(nodes[0]), elsewhere]})
    refused = counter(nodes[0], "publication", "quarantined")
    hosts.run(lambda: nodes[0].receivers() == [], most_s=0.5)
    hosts.run(lambda: counter(nodes[0], "publication", "quarantined") > refused + 3)
    assert nodes[0].receivers() == [], "it goes on to send STATUS from where it was"
    nodes[0].set_peers({"lan": [address(nodes[0]), at]})
    hosts.run(lambda: len(nodes[0].receivers()) == 1)
    publisher.publish(b"back")
    hosts.run(lambda: taken(reader) == [b"back"])


def test_a_silent_peer_is_reported_and_an_idle_one_is_not(hosts: Hosts) -> None:
    nodes = [hosts.add(n) for n in (1, 2)]
    client = hosts.client(nodes[0])
    away = PeerAddress(node="away", node_id=9, host="127.0.0.1", port=free_port())
    nodes[0].set_peers({"lan": [address(nodes[1]), away]})
    nodes[1].set_peers({"lan": [address(nodes[0])]})
    hosts.pass_s(SILENT_S + 2)
    [silent] = [e for e in events_of(client) if isinstance(e, PeerSilent)]
    assert (silent.node, silent.transport, silent.address) == ("away", "lan", away.where)
    assert SILENT_S <= silent.silence_s < SILENT_S + 2
    rows = {row["node"]: row for row in nodes[0].discovered()}
    assert rows["away"]["heard_age_s"] is None
    assert rows["away"]["silent"]
    assert rows["n2"]["heard_age_s"] < 2.5
    assert not rows["n2"]["silent"]
    assert counter(nodes[0], "node", "peers_silent") == 1
    assert counter(nodes[0], "receiver", "beacons_received") >= 10
    assert counter(nodes[0], "sender", "beacons_sent") >= 10
    nodes[1].set_peers({"lan": []})  # it sends no beacon any more
    hosts.pass_s(SILENT_S + 2)
    assert [e.node for e in events_of(client) if isinstance(e, PeerSilent)] == ["n2"]
    nodes[1].set_peers({"lan": [address(nodes[0])]})
    hosts.pass_s(2)
    assert [e.node for e in events_of(client) if isinstance(e, PeerHeard)] == ["n2"]


def test_a_target_that_is_not_routable_holds_up_no_other(hosts: Hosts) -> None:
    nodes = [hosts.add(n) for n in (1, 2)]
    source, reader = hosts.client(nodes[0]), hosts.client(nodes[1]).subscribe("t")
    runtime, there = nodes[0].runtimes["lan"], address(nodes[1])
    broadcast = target_at("255.255.255.255", there.port)  # a plain socket is not allowed to
    runtime.set_targets([broadcast, target_at(there.host, there.port)])
    publisher = source.publisher("t")
    hosts.run(lambda: len(nodes[0].receivers()) == 1)
    publisher.publish(b"x")
    hosts.run(lambda: taken(reader) == [b"x"])


GOOD: dict[str, Any] = {"node": "b", "node_id": 2, "host": "10.0.0.5", "port": 7400}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"host": "0.0.0.0"}, "host: 0.0.0.0: allowed the IPv4 address of one host"),
        ({"host": "239.1.2.3"}, "not a group"),
        ({"host": "255.255.255.255"}, "reserved"),
        ({"host": "0.1.2.3"}, "allowed the IPv4 address of one host"),
        ({"host": "10.0.0.5.6"}, "allowed an IPv4 address"),
        ({"host": ""}, "allowed an IPv4 address"),
        ({"port": 0}, r"port: 0: allowed 1\.\.65533"),
        ({"port": 65_534}, r"port: 65534: allowed 1\.\.65533"),
        ({"node_id": 0}, r"node_id: 0: allowed 1\.\.65534"),
        ({"node_id": 65_535}, r"node_id: 65535: allowed 1\.\.65534"),
        ({"node_id": 3}, "node c has the same"),
        ({"host": "10.0.0.6"}, "node c has the same"),
    ],
)
def test_a_list_that_is_not_sound_changes_nothing(
    hosts: Hosts, change: dict[str, Any], problem: str
) -> None:
    node = hosts.add(1)
    other = PeerAddress(node="c", node_id=3, host="10.0.0.6", port=7400)
    assert node.set_peers({"lan": [other], "no-such": [other]}) == {}
    before, bytes_before = node.discovered(), bytes(node.runtimes["lan"].tx_state.tx.addresses)
    found = node.set_peers({"lan": [other, PeerAddress(**(GOOD | change))]})
    assert re.search(problem, found["lan"]), found
    assert node.discovered() == before
    assert bytes(node.runtimes["lan"].tx_state.tx.addresses) == bytes_before
    assert counter(node, "node", NodeCounter.PEERS_REFUSED.name.lower()) == 1


def test_too_many_peers_are_refused(hosts: Hosts) -> None:
    node = hosts.add(1)
    many = [
        PeerAddress(node=f"p{n}", node_id=n + 2, host="10.0.0.5", port=3 * n + 1)
        for n in range(PEERS_MAX + 1)
    ]
    assert node.set_peers({"lan": many[:-1]}) == {}
    assert "65 of them: allowed 0..64" in node.set_peers({"lan": many})["lan"]
    assert len(node.discovered()) == PEERS_MAX


def test_a_static_list_wins(tmp_path: Path) -> None:
    lan = {"name": "lan", "kind": "udp-unicast", "port": free_port(), "peers": ["127.0.0.1:9"]}
    topology = topology_from({"node": {"id": 1, "name": "n1"}, "transports": [lan]})
    node = Node(topology, tmp_path / "d", inline=True, connect=connect_to)
    node.start()
    try:
        assert node.set_peers({"lan": [PeerAddress(**GOOD)]}) == {}
        assert node.discovered() == []
        io, addresses = node.runtimes["lan"].tx_state.tx.io, node.runtimes["lan"].tx_state.tx
        assert bytes(addresses.addresses[:48]) == b"".join(target_at("127.0.0.1", 9))
        assert int(io[2]) == 1
    finally:
        node.kill()


def test_the_address_of_this_host_is_announced(hosts: Hosts) -> None:
    plain = hosts.add(1)
    port = plain.runtimes["lan"].config.port
    assert announced(plain, "127.0.0.1") == ({"lan": {"host": "127.0.0.1", "port": port}}, {})
    told, problems = announced(plain, "10.0.0.1")
    assert told == {"lan": {"host": "127.0.0.1", "port": port}}
    assert "engines on other hosts do not reach it" in problems["lan"]


@pytest.mark.parametrize(
    ("advertise", "link", "told", "problem"),
    [
        ("", "10.0.0.1", "10.0.0.1", ""),
        ("", "127.0.0.1", None, r"bound to every address \(0\.0\.0\.0\).*advertise"),
        ("", "fd00::1", None, r"bound to every address"),
        ("none", "10.0.0.1", None, ""),
        ("192.0.2.7", "127.0.0.1", "192.0.2.7", ""),
        ("192.0.2.7:7000", "127.0.0.1", "192.0.2.7:7000", ""),
        ("localhost:7000", "127.0.0.1", "127.0.0.1:7000", ""),
        ("no-such-host.invalid", "10.0.0.1", None, "no such host"),
    ],
)
def test_a_host_that_is_bound_to_every_address_announces_one_that_others_reach(
    hosts: Hosts, advertise: str, link: str, told: str | None, problem: str
) -> None:
    port = free_port()
    where = NodeAddress(transport="lan", bind="0.0.0.0", port=port, advertise=advertise)
    node = hosts.add(1, addresses=[where])
    assert node.runtimes["lan"].bound_address() == ("0.0.0.0", port)
    found, problems = announced(node, link)
    if told is None:
        assert found == {}
    else:
        host, _, there = told.partition(":")
        assert found == {"lan": {"host": host, "port": int(there or port)}}
    if problem:
        with pytest.raises(ConfigError, match=problem):
            raise ConfigError(problems["lan"])
    else:
        assert problems == {}


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("advertise", "0.0.0.0", "allowed the IPv4 address of one host"),
        ("advertise", "10.0.0.5:70000", "allowed 1..65533"),
        ("advertise", "a b", "allowed host, host:port, or none"),
        ("bind", "a b", "allowed a host name or an IPv4 address"),
        ("port", 0, "allowed 1..65533"),
    ],
)
def test_a_wrong_address_of_a_node_is_named(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        topology_from({"node": {"addresses": [{"transport": "lan", field: value}]}})
    [problem] = caught.value.problems
    assert problem.startswith(f"node.addresses[0].{field}")
    assert allowed in problem


def test_a_unicast_transport_binds_to_an_interface_by_name(tmp_path: Path) -> None:
    lan = {"name": "lan", "kind": "udp-unicast", "port": free_port(), "interface": "lo"}
    node = Node(
        topology_from({"transports": [lan], "node": {"id": 1, "name": "n"}}),
        tmp_path / "d",
        inline=True,
        connect=connect_to,
    )
    node.start()
    try:
        assert node.runtimes["lan"].bound_address()[0] == "127.0.0.1"
    finally:
        node.kill()


def test_peers_are_kept_for_the_next_start(tmp_path: Path) -> None:
    assert load_peers(tmp_path) == {}
    peers = checked({"lan": [GOOD]})
    save_peers(tmp_path, peers)
    assert load_peers(tmp_path) == peers
    (tmp_path / FILE_NAME).write_text('{"lan": [{"node": 3}]}')
    with pytest.raises(ConfigError, match=FILE_NAME):
        load_peers(tmp_path)
    with pytest.raises(ConfigError, match="peers of the control service"):
        checked({"lan": [{"node": "b"}]})
