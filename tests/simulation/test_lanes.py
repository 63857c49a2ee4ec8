"""Transports of several lanes among whole nodes: order, loss, moves, strangers, rates, keys."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest
from tests.support.sealed_network import Recorder, sealed_node
from tests.support.simulation import (
    Reader,
    Stream,
    find_engine,
    lose_engine,
    outliving,
    transfer,
)

from tidecast.config.topology import FaultSettings
from tidecast.events import ForeignPackets, ImageGone
from tidecast.layout import packet as wire
from tidecast.layout import sealed as lay
from tidecast.layout.counters import Counter
from tidecast.testing import Network, SimulatedNode

STRANGER = 999
MANY: list[tuple[int, int]] = [(1, 1), (4, 1), (1, 4), (4, 3), (3, 8)]
"""Lanes of the publishers' node, and of the subscriber's."""


def lanes(net: Network, name: str, n: int, **settings: Any) -> SimulatedNode:
    """A node whose transport has ``n`` lanes."""
    return net.node(name, topics=["t"], transport={"lanes": n}, **settings)


def in_order(reader: Reader, streams: list[Stream]) -> bool:
    """All messages of each stream, each once, in their order."""
    return all(
        [m for m in reader.found if m.startswith(f"{s.name}:".encode())] == s.messages
        for s in streams
    )


@pytest.mark.parametrize(("here", "there"), MANY)
def test_each_session_keeps_its_order_whatever_lanes_the_nodes_have(here: int, there: int) -> None:
    with Network(seed=31, drop=0.05, reorder=0.05, delay_us=30) as net:
        a, b = lanes(net, "a", here), lanes(net, "b", there)
        readers = [Reader(b), Reader(a)]
        streams = [Stream(a, name=f"s{k}", count=200) for k in range(2 * here)]
        assert transfer(net, streams, readers)
        assert all(in_order(reader, streams) for reader in readers)
        assert not any(reader.gaps for reader in readers)
        assert b.count("NAKS_SENT") > 0
        sent = [row["lane"] for row in a.engine.publications()]
        assert sorted(sent) == sorted(2 * list(range(here))), "each lane has its share"
        assert all(row["lane"] == row["session"] % here for row in a.engine.publications())
        heard = {(lane + a.id) % there for lane in range(here)}
        assert {row["lane"] for row in b.engine.images()} == heard


def test_a_node_of_one_lane_and_nodes_of_several_hear_each_other() -> None:
    """A build without lanes behaves as one lane does."""
    with Network(seed=32, drop=0.05, delay_us=30) as net:
        nodes = [lanes(net, f"n{k}", k) for k in (1, 2, 5)]
        readers = [Reader(node) for node in nodes]
        streams = [
            Stream(node, name=f"{node.name}-{k}", count=100) for node in nodes for k in range(3)
        ]
        assert transfer(net, streams, readers)
        assert all(in_order(reader, streams) for reader in readers)


@pytest.mark.parametrize("lanes_after", [1, 3, 4])
def test_a_session_continues_where_its_node_has_other_lanes_after_a_restart(
    lanes_after: int,
) -> None:
    with Network(seed=33, drop=0.05, delay_us=30) as net:
        a, b = lanes(net, "a", 2), lanes(net, "b", 3)
        reader = Reader(b)
        streams = [Stream(a, name=f"s{k}", count=100) for k in range(6)]
        for stream in streams:
            outliving(stream.client)
        assert transfer(net, streams, [reader])
        before = {row["session"]: row["lane"] for row in b.engine.images()}
        for stream in streams:
            stream.count += 60
            stream.push()
        net.run(30)  # the first of these are sent, and some are missing
        net.kill(a)
        [carrier] = a.topology.transports
        carrier = msgspec.structs.replace(carrier, lanes=lanes_after)
        a.topology = msgspec.structs.replace(a.topology, transports=[carrier])
        lose_engine(*(stream.client for stream in streams))
        net.run(1_000)
        a = net.restart(a)
        find_engine(a, *(stream.client for stream in streams))
        for stream in streams:
            stream.count += 40
        assert transfer(net, streams, [reader])
        assert in_order(reader, streams)
        assert not reader.gaps
        assert reader.events(ImageGone) == []
        after = {row["session"]: row["lane"] for row in b.engine.images()}
        assert after == {s: (s % lanes_after + a.id) % 3 for s in before}
        assert after != before
        for number, runtime in enumerate(b.engine.runtimes.of("memory")):
            mine = [s for s, lane in after.items() if lane == number]
            active = runtime.rx_state.images["session"][runtime.rx_state.images["active"] == 1]
            assert sorted(active.tolist()) == sorted(mine)


def test_a_session_cannot_be_taken_over_through_another_lane() -> None:
    with Network(seed=34, delay_us=30) as net:
        a, b = lanes(net, "a", 1), lanes(net, "b", 2)
        recorder, reader = Recorder(net), Reader(b)
        stream = Stream(a, count=50)
        assert transfer(net, [stream], [reader])
        [image] = b.engine.images()
        other = 1 - image["lane"]
        setup = recorder.of(wire.SETUP, b.id)[0]
        for _ in range(3):
            net.switch.inject(b.id, setup.data, source=STRANGER, lane=other)
            net.run(1_200_000)
        assert [row["lane"] for row in b.engine.images()] == [image["lane"]]
        assert b.count(Counter.FOREIGN_ADDRESS) == 3
        assert [event.session for event in reader.events(ForeignPackets)] == [setup.session] * 3
        stream.count += 50
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages


def sent_in(net: Network, node: SimulatedNode, seconds: float, streams: list[Stream]) -> float:
    """Packets a second that a node sends while its streams have more than it may send."""
    for stream in streams:
        stream.count += 1_000_000
    before = node.count(Counter.PACKETS_SENT)
    end_ns = net.now_ns + int(seconds * 1e9)

    def passed() -> bool:
        for stream in streams:
            stream.push(50)
        return net.now_ns >= end_ns

    net.run(seconds * 2e6, until=passed, step_us=50)
    return (node.count(Counter.PACKETS_SENT) - before) / seconds


@pytest.mark.parametrize("n", [1, 4])
def test_lanes_share_the_rate_of_their_transport(n: int) -> None:
    rate = 5_000
    with Network(seed=35) as net:
        limits = {"lanes": n, "rate_packets_per_s": rate}
        a = net.node("a", topics=["t"], transport=limits, flow="max")
        streams = [Stream(a, name=f"s{k}", size=1300, on_full="error") for k in range(n)]
        idle = [Stream(a, name=f"idle{k}", on_full="error") for k in range(n)]
        sent_in(net, a, 0.1, streams)
        assert sent_in(net, a, 0.5, streams) == pytest.approx(rate, rel=0.05)
        sent_in(net, a, 0.1, streams[:1])
        one = sent_in(net, a, 0.5, streams[:1])
        assert one == pytest.approx(rate, rel=0.05), "lanes without messages take no share"
        assert len(idle) == n


def test_faults_and_quarantine_hold_for_all_lanes() -> None:
    with Network(seed=36, delay_us=30) as net:
        a, b = lanes(net, "a", 3), lanes(net, "b", 3)
        reader = Reader(b)
        b.engine.set_faults("memory", FaultSettings(drop=1.0, seed=5))
        streams = [Stream(a, name=f"s{k}", count=20) for k in range(3)]
        for stream in streams:
            stream.push()
        net.run(100_000)
        assert reader.take() == 0
        dropped = [
            int(b.engine.counters.values[r.receiver_row, Counter.FAULTS_DROPPED])
            for r in b.engine.runtimes.values()
        ]
        assert len(dropped) == 3
        assert all(dropped)
        b.engine.set_faults("memory", FaultSettings())
        assert transfer(net, streams, [reader])
        assert in_order(reader, streams)


@pytest.mark.parametrize(("here", "there"), [(1, 1), (4, 1), (1, 4), (4, 3)])
def test_sealed_lanes_use_no_number_twice_under_one_key(here: int, there: int) -> None:
    with Network(seed=37, drop=0.05, delay_us=30) as net:
        recorder = Recorder(net)
        a = sealed_node(net, "a", transport={"lanes": here})
        b = sealed_node(net, "b", transport={"lanes": there})
        readers = [Reader(b), Reader(a)]
        streams = [Stream(a, name=f"a{k}", count=100) for k in range(here)]
        streams += [Stream(b, name=f"b{k}", count=100) for k in range(there)]
        assert transfer(net, streams, readers)
        assert all(in_order(reader, streams) for reader in readers)
        used: dict[bytes, bytes] = {}
        for packet in recorder.packets:
            assert packet.data[0] == lay.SEALED_VERSION
            key = bytes([packet.source, packet.target if packet.data[38] & 1 else 0])
            key += packet.data[lay.EPOCH_AT : lay.BODY_AT]
            assert used.setdefault(key, packet.data) == packet.data
        seen = {(p.source, p.data[lay.LANE_AT]) for p in recorder.packets if p.type == wire.DATA}
        assert seen == {(a.id, k) for k in range(here)} | {(b.id, k) for k in range(there)}
        for node in (a, b):
            assert node.count("TAG_FAILED") == node.count("REPLAYED") == 0
            assert node.count("PLAIN_REFUSED") == 0


def all_read(streams: list[Stream], reader: Reader, total: int) -> bool:
    """All is published, and the reader has so many messages in all."""
    published = [stream.push() for stream in streams]
    return all(published) and len(reader.found) >= total


def test_a_sealed_node_is_believed_after_restarts_with_eight_lanes() -> None:
    """Both starts of a node, with all lanes, are known at once."""
    with Network(seed=38, delay_us=30) as net:
        settings: dict[str, Any] = {"transport": {"lanes": 8}}
        a, b = sealed_node(net, "a", **settings), sealed_node(net, "b")
        reader = Reader(b)
        total = 0
        for turn in range(3):
            streams = [Stream(a, name=f"r{turn}-{k}", count=20) for k in range(8)]
            total += 160
            done = partial(all_read, streams, reader, total)
            assert transfer(net, streams, [reader], until=done, limit_us=5_000_000)
            assert in_order(reader, streams)
            a = net.restart(a)


def test_counters_of_each_lane_have_its_name() -> None:
    with Network(seed=39) as net:
        a, b = lanes(net, "a", 2), lanes(net, "b", 1)
        stats = a.engine.stats()
        assert [row["name"] for row in stats["sender"]] == ["memory/0", "memory/1"]
        assert [row["name"] for row in stats["receiver"]] == ["memory/0", "memory/1"]
        assert [row["name"] for row in b.engine.stats()["sender"]] == ["memory"]
