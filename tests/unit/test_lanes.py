"""Lanes on real sockets: what the kernel deals to them, and who may share a port."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.lab import free_group
from tests.support.ports import free_port

from tidecast import sync
from tidecast.config.topology import NodeConfig, Topology, TransportConfig, topology_from
from tidecast.embedded import EmbeddedLink, connect_to
from tidecast.errors import ConfigError, Conflict
from tidecast.layout import ring as lay
from tidecast.node.node import Node
from tidecast.transport import sockets as transport_sockets
from tidecast.transport.sockets import TransportSockets, open_unicast, share_ports

EACH = 200
PUBLISHERS = 8


def node_of(directory: Path, node_id: int, transport: dict[str, Any]) -> Node:
    """A node whose agents run inline, on real sockets."""
    carrier = TransportConfig(name="lan", socket_buffer_bytes=1 << 20, **transport)
    about = NodeConfig(id=node_id, name=f"n{node_id}")
    made = Node(
        topology_from(Topology(node=about, transports=[carrier])),
        directory / str(node_id),
        inline=True,
        connect=connect_to,
    )
    made.start()
    return made


def client_of(node: Node) -> sync.Connection:
    link: Any = EmbeddedLink(node, "test", owns_node=False)
    return sync.connect(link=link)


def transports(kind: str, counts: tuple[int, int]) -> list[dict[str, Any]]:
    """The same transport at two nodes, with so many lanes."""
    if kind == "udp-multicast":
        where = {"kind": kind, "group": free_group(), "port": free_port()}
        return [where | {"lanes": n} for n in counts]
    ports = [free_port(), free_port()]
    return [
        {"kind": kind, "port": ports[k], "peers": [f"127.0.0.1:{ports[1 - k]}"], "lanes": counts[k]}
        for k in range(2)
    ]


@contextlib.contextmanager
def pair(directory: Path, kind: str, counts: tuple[int, int]) -> Iterator[list[Node]]:
    nodes: list[Node] = []
    try:
        for k, transport in enumerate(transports(kind, counts)):
            nodes.append(node_of(directory, k + 1, transport))
        yield nodes
    finally:
        for node in nodes:
            node.kill()


@pytest.mark.parametrize("counts", [(1, 1), (4, 1), (1, 3), (4, 2), (3, 8)])
@pytest.mark.parametrize("kind", ["udp-multicast", "udp-unicast"])
def test_each_session_comes_to_one_lane_in_order(
    tmp_path: Path, kind: str, counts: tuple[int, int]
) -> None:
    with pair(tmp_path, kind, counts) as (a, b), client_of(a) as here, client_of(b) as there:
        reader = there.subscribe("t").open()
        publishers = [here.publisher("t") for _ in range(PUBLISHERS)]
        found: dict[int, list[int]] = {}

        def read() -> int:
            a.work()
            b.work()
            while (batch := reader.step(256)) is not None:
                assert batch.image is not None
                mine = found.setdefault(batch.image.session, [])
                mine += [int(bytes(each)) for each in batch.payloads()]
            return sum(len(each) for each in found.values())

        for i in range(EACH):
            for publisher in publishers:
                publisher.publish(b"%d" % i)
            read()
        for publisher in publishers:
            publisher.flush()
        for _ in range(200_000):
            if read() >= EACH * PUBLISHERS:
                break
        assert found == {p.session: list(range(EACH)) for p in publishers}
        used = [row["lane"] for row in a.publications()]
        assert sorted(used) == sorted(k % counts[0] for k in range(PUBLISHERS))
        heard = {row["session"]: row["lane"] for row in b.images()}
        by_sender = {(row["lane"], heard[row["session"]]) for row in a.publications()}
        assert len(by_sender) == counts[0], "all sessions of a sending lane come to one lane"
        assert len({lane for _, lane in by_sender}) == min(counts), "lanes are spread evenly"


def test_sending_sockets_of_lanes_have_ports_that_spread_them() -> None:
    with contextlib.ExitStack() as opened:
        first = open_lane(opened, free_port(), 0, 8, 0)
        beside = first.send.getsockname()[1]
        port = free_port()
        found = [open_lane(opened, port + 3 * k, 0, 1, beside, number=k) for k in range(1, 8)]
        assert [(s.send.getsockname()[1] - beside) % 840 for s in found] == list(range(1, 8))


def open_lane(
    opened: contextlib.ExitStack,
    port: int,
    lane: int,
    lanes: int,
    beside: int,
    *,
    number: int | None = None,
) -> TransportSockets:
    made = open_unicast(
        name="lan",
        bind="127.0.0.1",
        port=port,
        peers=[],
        buffer_bytes=65_536,
        gro=True,
        lane=lane if number is None else number,
        lanes=lanes,
        beside=beside,
    )
    opened.callback(made.close)
    return made


def test_another_program_does_not_share_the_ports_of_lanes() -> None:
    port = free_port()
    with contextlib.ExitStack() as opened:
        lanes = [open_lane(opened, port, 0, 2, 0)]
        lanes.append(open_lane(opened, port, 1, 2, lanes[0].send.getsockname()[1]))
        share_ports("lan", lanes)
        for n in (1, 2):
            with pytest.raises(Conflict, match="is in use by another program"):
                open_lane(opened, port, 0, n, 0)
    with contextlib.ExitStack() as opened:
        open_lane(opened, port, 0, 1, 0)
        with pytest.raises(Conflict, match="is in use by another program"):
            open_lane(opened, port, 0, 4, 0)


@pytest.mark.parametrize("kind", ["udp-multicast", "udp-unicast"])
def test_a_kernel_without_filters_runs_one_lane(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("tidecast.node.live.transports.filter_packets", refuse)
    monkeypatch.setattr(transport_sockets, "share_port", refuse)
    one, two = (transports(kind, (n, n))[0] for n in (1, 2))
    node_of(tmp_path, 1, one).kill()
    with pytest.raises(
        ConfigError, match="transport lan: lanes: 2: allowed 1 here: the kernel refuses socket filt"
    ):
        node_of(tmp_path, 2, two)


def test_each_further_lane_takes_the_doorbell_of_a_client(tmp_path: Path) -> None:
    with pair(tmp_path, "udp-multicast", (3, 1)) as (a, b):
        bells = [runtime.sender_bell for runtime in a.runtimes.values()]
        assert bells == [0, lay.DOORBELLS_MAX - 1, lay.DOORBELLS_MAX - 2]
        assert [runtime.sender_bell for runtime in b.runtimes.values()] == [0]
        a._client_lines = lay.DOORBELL_FIRST_CLIENT + 1
        with client_of(a), pytest.raises(Conflict, match="serves at most 1 clients"):
            client_of(a)


def test_agents_of_lanes_run_in_threads_of_their_own(tmp_path: Path) -> None:
    [wire, _] = transports("udp-multicast", (2, 2))
    topology = topology_from(
        Topology(
            node=NodeConfig(id=5, name="n5"),
            transports=[TransportConfig(name="lan", **wire)],
        )
    )
    with sync.connect("embedded://", topology=topology, mode="threads") as one:
        link: Any = one.link
        names = [r.sender_name for r in link.node.runtimes.values()]
        names += [r.receiver_name for r in link.node.runtimes.values()]
        assert sorted(names) == ["receiver-lan/0", "receiver-lan/1", "sender-lan/0", "sender-lan/1"]
        reader = one.subscribe("t")
        for k in range(4):
            with one.publisher("t") as publisher:
                publisher.publish(b"%d" % k)
        assert {bytes(next(iter(reader)).data) for _ in range(4)} == {b"0", b"1", b"2", b"3"}


def test_the_number_of_lanes_is_checked() -> None:
    for lanes, kind, text in (
        (0, "udp-multicast", r"transports\[0\]\.lanes: 0: allowed 1\.\.8"),
        (9, "udp-unicast", r"transports\[0\]\.lanes: 9: allowed 1\.\.8"),
        (2, "ipc", r"transports\[0\]\.lanes: 2: allowed 1: readers of an ipc transport"),
    ):
        with pytest.raises(ConfigError, match=text):
            topology_from({"transports": [{"name": "a", "kind": kind, "lanes": lanes}]})
