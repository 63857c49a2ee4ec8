"""Nodes of levels 1 and 2 on one network: their SETUPs, with loss and while a level is raised."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support import packets
from tests.support.simulation import Reader, network_of

from tidecast.config.topology import TopicConfig
from tidecast.events import ImageAvailable, SetupNotUnderstood
from tidecast.layout import packet as wire
from tidecast.layout.counters import NodeCounter
from tidecast.node.consumers import admin
from tidecast.node.live.setup import decode_setup
from tidecast.testing import Network
from tidecast.testing.switch import Packet

SETTINGS: dict[str, Any] = {"mode": "durable", "owner": "a", "fsync": "batch", "queues": 3}
TOPIC = TopicConfig(name="orders", **SETTINGS)
STRANGER = 999
"""A host that no node runs on."""


def arriving(node: Any) -> tuple[int, int]:
    """(arriving, lag) of the subscription, as a consumer sees them."""
    found = admin.show(node.engine.consumers, "orders", "s")
    return found["arriving"], found["lag"]


@pytest.mark.parametrize("levels", [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_nodes_of_two_levels_repair_loss_and_ack(levels: tuple[int, int]) -> None:
    seen: list[Packet] = []
    with Network(seed=3, drop=0.1, duplicate=0.02, reorder=0.05) as net:
        a = net.node("a", topics=[TOPIC], level=levels[0])
        b = net.node("b", topics=[TOPIC], level=levels[1])

        def see(packet: Packet) -> bool:
            seen.append(packet)
            return True

        net.intercept(see)
        consumer = a.connect().consumer("orders", "s", start="earliest")
        publisher = b.connect().publisher("orders")
        for i in range(500):
            publisher.publish(b"%d" % i, key=b"k%d" % (i % 7))
        assert publisher.wait_durable(timeout=60.0) == 500
        got = [m for _ in range(40) for m in consumer.fetch(100, max_wait=0.2)]
        assert sorted(int(m.data) for m in got) == list(range(500))
        net.run(2e6)
        assert arriving(a)[0] == 0, "all that b published is in the log"
    setups = [p.data for p in seen if p.type == wire.SETUP and p.data[2] & wire.FLAG_PRODUCER]
    assert setups
    assert {bool(raw[2] & wire.FLAG_AREA) for raw in setups} == {levels[1] == 2}
    assert max(decode_setup(raw, (0, 0)).published for raw in setups) == (
        500 if levels[1] == 2 else -1
    )


def test_the_lag_counts_messages_that_are_on_their_way() -> None:
    with Network(seed=1) as net:
        a, b = (net.node(name, topics=[TOPIC], level=2) for name in "ab")
        consumer = a.connect().consumer("orders", "s", start="earliest")
        publisher = b.connect().publisher("orders")
        publisher.publish(b"0", flush=True)
        assert publisher.wait_durable(timeout=60.0) == 1
        held = {wire.DATA}
        net.intercept(lambda packet: packet.type not in held)
        for i in range(1, 40):
            publisher.publish(b"%d" % i, flush=True)
        net.run(2e6)
        assert arriving(a) == (39, 40)
        held.clear()
        assert publisher.wait_durable(timeout=60.0) == 40
        net.run(2e6)
        assert arriving(a) == (0, 40)
        consumer.close()


def test_a_raised_level_reaches_the_setups_of_running_publishers() -> None:
    with Network(seed=1) as net:
        a, b = (net.node(name, topics=[TOPIC]) for name in "ab")
        a.connect().consumer("orders", "s", start="earliest")
        publisher = b.connect().publisher("orders")
        publisher.publish(b"0", flush=True)
        assert publisher.wait_durable(timeout=60.0) == 1
        net.intercept(lambda packet: packet.type != wire.DATA)
        publisher.publish(b"1", flush=True)
        net.run(2e6)
        assert arriving(a) == (0, 1), "level 1 names no number"
        b.engine.set_level(2)
        net.run(1e5)
        assert arriving(a) == (1, 2)


def test_a_session_with_a_field_that_must_be_known_is_refused() -> None:
    with Network(seed=1) as net:
        _, b = network_of(net, "ab")
        reader, topic = Reader(b), int(b.engine.topic_by_name["t"].wire_id)
        net.run(1000)
        for _ in range(3):
            of_later_build = packets.area_setup((9, b"y"), (200, b"x"), topic=topic)
            net.switch.inject(b.id, of_later_build, source=STRANGER)
            net.run(1_500_000)
        [told] = reader.events(SetupNotUnderstood)  # once a session
        assert (told.topic, told.node, told.session, told.field) == ("t", "x", 5, 200)
        engine: Any = b.engine
        refused = engine.counters.values[engine.context.node_row, NodeCounter.SETUPS_REFUSED]
        assert refused == 3
        assert not reader.events(ImageAvailable)
        skipped = packets.area_setup((127, b"x"), topic=topic, session=6)
        net.switch.inject(b.id, skipped, source=STRANGER)
        net.run(10_000)
        assert [image.session for image in reader.events(ImageAvailable)] == [6]
        assert b.count("invalid_area") == 0
        now_critical = packets.area_setup((128, b"x"), topic=topic, session=6)
        net.switch.inject(b.id, now_critical, source=STRANGER)
        net.run(10_000)
        assert b.count("invalid_area") == 1, "the session began without it"


def test_a_malformed_area_is_counted_and_makes_no_session() -> None:
    with Network(seed=1) as net:
        _, b = network_of(net, "ab")
        reader, topic = Reader(b), int(b.engine.topic_by_name["t"].wire_id)
        net.run(1000)
        for area in (b"\x09", b"\x09\x04abc", b"\x00\x00", b"\x01\x01x"):
            net.switch.inject(b.id, packets.area_setup(lead=area, topic=topic), source=STRANGER)
        net.run(10_000)
        assert b.count("invalid_area") == 4
        assert not reader.events(ImageAvailable)
        assert not reader.events(SetupNotUnderstood)
