"""Transports of several lanes beside tables, durable topics of other hosts, and take-overs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.simulation.test_durable_leases import Cluster, cluster, drain
from tests.simulation.test_durable_remote import SETTINGS, check_keys
from tests.simulation.test_tables import TABLES, Feed, Taker, sent, watched
from tests.support.durable import rows_of
from tests.support.sealed_network import sealed_node

from tidecast.config.topology import TopicConfig
from tidecast.layout import packet as wire
from tidecast.testing import Network, SimulatedNode

WAYS: list[tuple[int, int]] = [(1, 3), (3, 1), (4, 3), (3, 8)]
"""Lanes of the publishers' node, and of the other."""


def with_lanes(node: SimulatedNode, n: int) -> None:
    """The lanes of a node from its next start on."""
    [carrier] = node.topology.transports
    carrier = msgspec.structs.replace(carrier, lanes=n)
    node.topology = msgspec.structs.replace(node.topology, transports=[carrier])


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(("here", "there"), WAYS)
def test_tables_of_sessions_in_different_lanes(here: int, there: int, secure: bool) -> None:
    with Network(seed=51, drop=0.05, duplicate=0.05, reorder=0.05, delay_us=30) as net:
        make: Any = sealed_node if secure else lambda net, name, **s: net.node(name, ["t"], **s)
        a = make(net, "a", transport={"lanes": here}, **TABLES)
        b = make(net, "b", transport={"lanes": there}, **TABLES)
        seen, taker = watched(net), Taker(b)
        feeds = [Feed(net, a) for _ in range(2 * here)]
        for turn in range(4):
            for feed in feeds:
                feed.publish(150, taker, keys=20 + 40 * turn)
        total = sum(len(feed.records) for feed in feeds)
        assert net.run(4e7, until=lambda: taker.take() >= total)
        for feed in feeds:
            assert all(each in taker.found for each in feed.records)
        assert len(taker.found) == total
        if not secure:
            assert sent(seen, wire.COMPACT) > 0
            assert {p.session % here for p in seen if p.type == wire.TABLE} == set(range(here))


@pytest.mark.parametrize("lanes_after", [1, 2, 5])
def test_tables_go_on_where_the_publishers_start_again_with_other_lanes(lanes_after: int) -> None:
    with Network(seed=52, drop=0.02, delay_us=30) as net:
        a = net.node("a", ["t"], transport={"lanes": 3}, **TABLES)
        b = net.node("b", ["t"], transport={"lanes": 2}, **TABLES)
        taker = Taker(b)
        feeds = [Feed(net, a) for _ in range(3)]
        for feed in feeds:
            feed.publish(300, taker, keys=30)
        total = sum(len(feed.records) for feed in feeds)
        assert net.run(2e7, until=lambda: taker.take() >= total)
        with_lanes(a, lanes_after)
        a = net.restart(a)
        feeds = [Feed(net, a) for _ in range(3)]
        for feed in feeds:
            feed.publish(300, taker, keys=30)
        total += sum(len(feed.records) for feed in feeds)
        assert net.run(2e7, until=lambda: taker.take() >= total)
        for feed in feeds:
            assert [each for each in taker.found[total - 900 :] if each in feed.records]
        assert len(taker.found) == total


class Remote:
    """Node ``a`` keeps topic ``orders``, ``b`` publishes by several sessions."""

    def __init__(self, net: Network, owner: int, publishers: int, **topic: Any) -> None:
        self.net, self.done = net, 0
        about = TopicConfig(name="orders", **SETTINGS | topic)
        self.a = net.node("a", [about], transport={"lanes": owner})
        self.b = net.node("b", [about], transport={"lanes": publishers})
        self.publishers = [
            self.b.connect().publisher("orders", producer=f"p{k}") for k in range(2 * publishers)
        ]

    def publish(self, n: int) -> None:
        """From all of them in turns."""
        for i in range(self.done, self.done + n):
            for k, publisher in enumerate(self.publishers):
                publisher.publish(b"%d:%d" % (k, i), key=b"%d:%d" % (k, i % 7))
        self.done += n
        for publisher in self.publishers:
            publisher.flush()

    def durable(self) -> bool:
        return all(p.durable_position >= self.done for p in self.publishers)

    def check(self) -> None:
        """Each once, and each key in its order."""
        rows = [row[2:] for row in rows_of(self.a.engine.durable.topics["orders"])]
        assert sorted(payload for _, payload, _ in rows) == sorted(
            b"%d:%d" % (k, i) for k in range(len(self.publishers)) for i in range(self.done)
        )
        check_keys(rows)


@pytest.mark.parametrize(("here", "there"), WAYS)
def test_a_durable_topic_of_a_node_with_other_lanes(here: int, there: int) -> None:
    with Network(seed=53, drop=0.05, duplicate=0.02, reorder=0.05, delay_us=30) as net:
        two = Remote(net, there, here)
        two.publish(200)
        assert net.run(6e7, until=two.durable)
        two.check()
        assert {row["lane"] for row in two.b.engine.publications()} == set(range(here))


@pytest.mark.parametrize(("here", "there"), WAYS)
@pytest.mark.parametrize("seed", [1, 2])
def test_an_owner_that_is_killed_keeps_all_and_may_come_back_with_other_lanes(
    here: int, there: int, seed: int
) -> None:
    chance = random.Random(seed)
    with Network(seed=54 + seed, drop=0.05, delay_us=30) as net:
        two = Remote(net, there, here)
        for lanes_next in (there, chance.randint(1, 8), chance.randint(1, 8)):
            two.publish(100)
            net.run(chance.randint(0, 30_000))
            with_lanes(two.a, lanes_next)
            two.a = net.restart(two.a)
            two.publish(50)
            assert net.run(9e7, until=two.durable)
        two.check()


def durably(one: Cluster, publishers: list[Any], count: int) -> bool:
    """Each of them has so many acked."""
    return one.net.run(9e7, until=lambda: all(p.durable_position >= count for p in publishers))


@pytest.mark.parametrize("how", ["killed", "drained"])
@pytest.mark.parametrize("lanes", [(3, 1, 1), (1, 3, 4), (1, 1, 3)])
def test_an_engine_with_other_lanes_takes_the_topic_over(
    tmp_path: Path, how: str, lanes: tuple[int, int, int]
) -> None:
    """Lanes of the engines that keep it in turns, and of the one that publishes."""
    with cluster(tmp_path, seed=61) as one:
        a = one.node("a", transport={"lanes": lanes[0]})
        one.until_kept(a)
        b = one.node("b", transport={"lanes": lanes[1]})
        source = one.node("source", drained=True, transport={"lanes": lanes[2]})
        publishers = [
            source.connect().publisher("orders", producer=f"p{k}") for k in range(2 * lanes[2])
        ]
        sent = 0

        def publish(n: int) -> None:
            nonlocal sent
            for i in range(sent, sent + n):
                for k, publisher in enumerate(publishers):
                    publisher.publish(b"%d:%d" % (k, i), key=b"%d:%d" % (k, i % 5))
            sent += n
            for publisher in publishers:
                publisher.flush()

        keeper, other = a, b
        for turn in range(4):
            publish(100)
            one.net.run(2_000 * turn)
            if how == "killed":
                one.net.kill(keeper)
            else:
                drain(keeper, True)
            publish(20)
            one.until_kept(other)
            assert durably(one, publishers, sent)
            if how == "killed":
                keeper = one.again(keeper)
            else:
                drain(keeper, False)
            keeper, other = other, keeper
        expected = [b"%d:%d" % (k, i) for k in range(len(publishers)) for i in range(sent)]
        assert sorted(one.payloads()) == sorted(expected)
        assert {row["lane"] for row in source.engine.publications()} == set(range(lanes[2]))
        assert source.count("foreign_address") == 0
