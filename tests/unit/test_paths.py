"""Packets beyond the MTU of a path, and sends that the kernel refuses."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_unicast_peers import Hosts, counter, events_of, hosts, know, taken

from tidecast.errors import ConfigError
from tidecast.events import Event, PathNarrow, SendsRefused
from tidecast.layout.packet import CHANNELS
from tidecast.node.live.targets import PATHS_LOOK_S, REFUSED_S
from tidecast.node.node import Node
from tidecast.node.sealing.wire_keys import FILE_NAME, WireKeys, save_wire_keys
from tidecast.transport import sockets, wire_io
from tidecast.transport.sockets import host_and_port, sockaddr

FIXTURES = (hosts,)
KEYS = WireKeys().with_new("lan", 1)
SIZES = (576, 1400, 9000, 64_992)


def add(hosts: Hosts, node_id: int, **transport: Any) -> Node:
    """A node; of a sealed transport with the keys of all."""
    directory = hosts.directory / f"{node_id}-{len(hosts.nodes)}"
    directory.mkdir()
    if transport.get("secure", "off") != "off":
        save_wire_keys(KEYS, directory / FILE_NAME)
    return hosts.add(node_id, transport=transport)


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("secure", ["off", "required"])
def test_peers_with_other_packet_sizes_hear_each_other(
    hosts: Hosts, secure: str, lanes: int
) -> None:
    """Each publisher names the size of its packets; a receiver makes its ring by that."""
    nodes = [
        add(hosts, k + 1, packet_bytes=n, secure=secure, lanes=1 + k % lanes)
        for k, n in enumerate(SIZES)
    ]
    know(nodes)
    clients = [hosts.client(node) for node in nodes]
    readers = [client.subscribe("t").open() for client in clients]
    publishers = [client.publisher("t") for client in clients]
    hosts.run(lambda: all(counter(n, "publication", "receivers") == len(SIZES) - 1 for n in nodes))
    found: list[list[bytes]] = [[] for _ in nodes]
    for size in (10, 570, 1_360, 1_400, 8_000, 9_100, 15_000):
        for k, publisher in enumerate(publishers):
            publisher.publish(b"%d" % k * size)
            publisher.flush()
        hosts.pass_s(0.1)
        for k, reader in enumerate(readers):
            found[k] += taken(reader)
    hosts.run(lambda: _all_taken(readers, found))
    for got in found:
        for k in range(len(nodes)):
            sizes = [len(each) for each in got if each[:1] == b"%d" % k]
            assert sizes == [10, 570, 1_360, 1_400, 8_000, 9_100, 15_000]
    for node in nodes:
        assert counter(node, "transport", "sends_too_long") == 0
        assert counter(node, "transport", "sends_refused") == 0
        assert counter(node, "receiver", "tag_failed") == 0


def _all_taken(readers: list[Any], found: list[list[bytes]]) -> bool:
    for k, reader in enumerate(readers):
        found[k] += taken(reader)
    return all(len(got) >= 7 * len(readers) for got in found)


def of(found: list[Event], kind: type[Event]) -> list[Any]:
    return [each for each in found if isinstance(each, kind)]


@pytest.mark.parametrize(("secure", "extra"), [("off", 0), ("required", 40)])
def test_a_discovered_peer_behind_a_narrow_path_is_reported_once(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, secure: str, extra: int
) -> None:
    """Its packets become fragments, so it gets them all the same."""
    mtus: dict[int, int] = {}

    def mtu_of(_: socket.socket, address: bytes) -> int:
        return mtus.get(host_and_port(address)[1], 65_536)

    monkeypatch.setattr("tidecast.node.live.transports.path_mtu", mtu_of)
    a, b, c = (add(hosts, n, secure=secure) for n in (1, 2, 3))
    here = hosts.client(a)
    know([a, b, c])
    hosts.pass_s(PATHS_LOOK_S + 1)
    assert of(events_of(here), PathNarrow) == []
    assert counter(a, "transport", "path_mtu") == 65_536
    assert counter(a, "transport", "packet_bytes") == 1_428 + extra
    port = b.runtimes["lan"].bound_address()[1]
    for mtu in (1_300, 1_200):
        mtus[port] = mtu
        hosts.pass_s(3 * PATHS_LOOK_S)
        [event] = of(events_of(here), PathNarrow)
        assert (event.transport, event.address) == ("lan", f"127.0.0.1:{port}")
        assert (event.wire_bytes, event.mtu) == (1_428 + extra, mtu)
        assert event.packet_bytes_max == (mtu - 28 - extra) // 8 * 8
        assert counter(a, "transport", "path_mtu") == mtu
        assert counter(a, "transport", "targets_cut") == 1
    mtus.clear()
    hosts.pass_s(PATHS_LOOK_S + 1)
    assert counter(a, "transport", "targets_cut") == 0
    assert counter(a, "transport", "path_mtu") == 65_536


def test_a_path_that_was_narrow_between_two_looks_gets_segments_again(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`test_wire_io` has the kernel refuse. A device that always refuses is asked ever less."""
    mtus = {"lan": 65_536}
    monkeypatch.setattr("tidecast.node.live.transports.path_mtu", lambda *_: mtus["lan"])
    a, b = add(hosts, 1, lanes=2), add(hosts, 2)
    know([a, b])
    sending = [runtime.tx_state.tx for runtime in a.runtimes.of("lan")]
    whole = int(sending[0].io[wire_io.IO_SEGMENTS_MAX])

    def refuse() -> None:
        for tx in sending:
            tx.segments[0] = 1

    def attempts(looks: int) -> int:
        """How often segments go to a target to which the kernel always refuses them."""
        found = 0
        for _ in range(looks):
            refuse()
            hosts.pass_s(PATHS_LOOK_S)
            found += sending[0].segments[0] == whole
        return found

    hosts.pass_s(0.1)
    refuse()
    hosts.pass_s(PATHS_LOOK_S + 1)
    assert [int(tx.segments[0]) for tx in sending] == [whole, whole]
    hosts.pass_s(PATHS_LOOK_S)
    assert attempts(8) == 4, "after 0, 5, 15 and 35 s"
    hosts.pass_s(PATHS_LOOK_S)
    mtus["lan"] = 1_200
    assert attempts(2) == 0, "the path is known to be narrow"
    mtus["lan"] = 65_536
    assert attempts(1) == 1
    for runtime in a.runtimes.of("lan"):
        assert runtime.without_segments() == []


def test_a_sealed_transport_checks_the_path_to_each_peer_of_its_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts(tmp_path)
    monkeypatch.setattr(
        sockets, "path_mtu", lambda _, address: 1_300 if host_and_port(address)[1] == 7_402 else 0
    )
    said = "packet_bytes: 1400: allowed at most 1232: .* MTU of the path to 127.0.0.1:7402 is 1300"
    with pytest.raises(ConfigError, match=said):
        add(hosts, 1, secure="required", peers=["127.0.0.1:7400", "127.0.0.1:7402"])
    hosts.close()


def put_targets(node: Node, addresses: list[bytes]) -> None:
    for runtime in node.runtimes.of("lan"):
        runtime.set_targets([[each] * CHANNELS for each in addresses])


@pytest.mark.parametrize("lanes", [1, 2])
def test_sends_that_the_kernel_refuses_are_counted_and_reported(hosts: Hosts, lanes: int) -> None:
    """The socket may not send to a broadcast address; the other target gets everything."""
    a, b = add(hosts, 1, lanes=lanes), add(hosts, 2)
    here, reader = hosts.client(a), hosts.client(b).subscribe("t").open()
    know([a, b])
    publishers = [here.publisher("t") for _ in range(lanes)]
    hosts.run(lambda: counter(a, "publication", "receivers") == lanes)
    port = b.runtimes["lan"].bound_address()[1]
    good = a.runtimes["lan"].target_addresses()[0]
    got: list[bytes] = []
    put_targets(a, [good, sockaddr("255.255.255.255", port)])
    for k in range(50):
        publishers[k % lanes].publish(b"%d" % k)
        publishers[k % lanes].flush()
        hosts.pass_s(0.02)
        got += taken(reader)
    hosts.pass_s(PATHS_LOOK_S + 1)
    assert sorted([*got, *taken(reader)], key=int) == [b"%d" % k for k in range(50)]
    first, *more = of(events_of(here), SendsRefused)
    assert not more
    assert first.address == f"255.255.255.255:{port}"
    assert (first.transport, first.error, first.wire_bytes) == ("lan", "Permission denied", 1_428)
    refused = counter(a, "transport", "sends_refused")
    assert refused >= first.sends > 0
    hosts.pass_s(2 * REFUSED_S)  # heartbeats are refused, too
    later = of(events_of(here), SendsRefused)
    assert 1 <= len(later) <= 3
    assert first.sends + sum(each.sends for each in later) <= counter(
        a, "transport", "sends_refused"
    )


def test_a_path_that_refuses_long_packets_is_named_with_its_mtu(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EMSGSIZE: the words of the sender are set by hand; `test_wire_io` has the kernel refuse."""
    monkeypatch.setattr("tidecast.node.live.transports.path_mtu", lambda *_: 1_200)
    a, b = add(hosts, 1, packet_bytes=65_000), add(hosts, 2)
    here = hosts.client(a)
    know([a, b])
    io = a.runtimes["lan"].tx_state.tx.io
    io[wire_io.IO_ERRORS], io[wire_io.IO_TOO_LONG] = 4, 3
    io[wire_io.IO_ERRNO], io[wire_io.IO_REFUSING] = 90, 0
    hosts.pass_s(PATHS_LOOK_S + 1)
    [event] = of(events_of(here), SendsRefused)
    where = "127.0.0.1:{}".format(b.runtimes["lan"].bound_address()[1])
    assert (event.transport, event.address) == ("lan", where)
    assert (event.error, event.sends) == ("Message too long", 4)
    assert (event.wire_bytes, event.mtu) == (65_028, 1_200)
    assert counter(a, "transport", "sends_too_long") == 3
    assert counter(a, "transport", "sends_refused") == 1
