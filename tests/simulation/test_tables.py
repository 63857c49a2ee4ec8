"""Tables of keys and headers between nodes: loss, late joins, older nodes, restarts."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support import packets
from tests.support.sealed_network import sealed_node
from tests.support.simulation import Stream, network_of

from tidecast.cli.top import snapshot, view
from tidecast.client.core.message import Message
from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError
from tidecast.layout import packet as wire
from tidecast.testing import Network, SimulatedNode
from tidecast.testing.switch import Packet

TABLES: dict[str, Any] = {"compression": "tables", "level": 2}
STRANGER = 999
JOINED_US = 300_000.0
Record = tuple[bytes | None, dict[str, Any], bytes, int | None]


def record(i: int, keys: int = 200) -> Record:
    """Every third has no headers, every fifth no key."""
    headers: dict[str, Any] = {"service": "order-gateway", "region": "eu-central-1", "n": i % 7}
    headers["trace"] = f"{i * 2654435761 % (1 << 32):08x}"
    key = b"XETR.%06d" % (i * 7919 % keys) if i % 5 else None
    return key, headers if i % 3 else {}, b"%d" % i + b"." * (i % 40), i if i % 2 else None


class Taker:
    """A subscription that keeps all fields of all messages."""

    def __init__(self, node: SimulatedNode, **options: Any) -> None:
        self.subscription = node.connect().subscribe("t", **options)
        self.found: list[Record] = []

    def take(self) -> int:
        while (batch := self.subscription.step(4096)) is not None:
            self.found += [fields(each) for each in batch]
        return len(self.found)


def fields(message: Message) -> Record:
    return message.key, dict(message.headers), message.data, message.timestamp


class Feed:
    """A publisher of numbered records, and the records that it published."""

    def __init__(self, net: Network, node: SimulatedNode) -> None:
        self.net, self.node, self.done = net, node, 0
        self.publisher = node.connect().publisher("t")
        self.records: list[Record] = []

    def publish(self, n: int, *takers: Taker, keys: int = 200, run_us: float = 1000.0) -> None:
        for i in range(self.done, self.done + n):
            key, headers, payload, stamp = record(i, keys)
            self.publisher.publish(payload, key=key, headers=headers or None, timestamp=stamp)
            self.records.append((key, headers, payload, stamp))
            if i % 100 == 99:
                self.net.run(run_us)
                for each in takers:
                    each.take()
        self.done += n
        self.publisher.flush()

    def arrive_at(self, *takers: Taker, limit_us: float = 2e7) -> bool:
        def done() -> bool:
            return min([each.take() for each in takers]) >= len(self.records)

        return bool(self.net.run(limit_us, until=done))


def sent(seen: list[Packet], kind: int) -> int:
    return sum(packet.type == kind for packet in seen)


def watched(net: Network) -> list[Packet]:
    seen: list[Packet] = []
    net.intercept(lambda packet: seen.append(packet))
    return seen


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("reliability", ["reliable", "unordered"])
def test_any_loss_duplication_and_reordering_keep_all_fields(seed: int, reliability: str) -> None:
    with Network(seed=seed, drop=0.08, duplicate=0.03, reorder=0.08) as net:
        a, b, c = network_of(net, "abc", reliability=reliability, **TABLES)
        takers = [Taker(b), Taker(c), Taker(a)]
        net.run(JOINED_US)
        seen = watched(net)
        feed = Feed(net, a)
        feed.publish(200, *takers)
        net.run(JOINED_US)
        feed.publish(3000, *takers)
        assert feed.arrive_at(*takers)
        for taker in takers:
            if reliability == "reliable":
                assert taker.found == feed.records
            else:
                assert sorted(taker.found, key=repr) == sorted(feed.records, key=repr)
        assert sent(seen, wire.COMPACT) > 50
        assert a.count("bytes_saved") > a.count("bytes_sent") // 8
        assert b.count("compacted") > 40
        assert b.count("invalid_field") == b.count("lost_for_good") == 0
        for node, kind in ((a, "publications"), (b, "images")):
            shown = view(snapshot(node.engine.counters.rows(), 0.0), [], "n")[kind]
            for name in ("compacted", "bytes_saved"):
                assert sum(row[name] for row in shown) == node.count(name) > 0, kind


def test_a_receiver_that_joins_late_gets_the_table() -> None:
    with Network(seed=1) as net:
        a, b, c = network_of(net, "abc", **TABLES)
        first = Taker(b)
        net.run(JOINED_US)
        feed = Feed(net, a)
        feed.publish(200, first)
        net.run(JOINED_US)
        feed.publish(2000, first)
        seen = watched(net)
        late = Taker(c)
        net.run(JOINED_US)
        before = len(feed.records)
        feed.publish(2000, first, late)
        assert feed.arrive_at(first)
        assert net.run(1e7, until=lambda: late.take() >= 2000)
        assert late.found[-2000:] == feed.records[before:]
        assert c.count("compacted") > 20
        assert c.count("table_missing") <= 2, "the definitions came in front of the packets"
        assert sent(seen, wire.TABLE) < 20


def test_definitions_that_never_arrive_lose_no_message() -> None:
    with Network(seed=2) as net:
        a, b = network_of(net, "ab", **TABLES)
        taker, feed = Taker(b), Feed(net, a)
        net.intercept(lambda packet: packet.type != wire.TABLE)
        feed.publish(100, taker)
        net.run(JOINED_US)
        feed.publish(2000, taker)
        assert feed.arrive_at(taker)
        assert taker.found == feed.records
        assert b.count("table_missing") > 0
        assert b.count("compacted") == 0
        assert b.count("lost_for_good") == 0


def test_a_lost_definition_is_asked_for_and_comes_again() -> None:
    with Network(seed=3) as net:
        a, b = network_of(net, "ab", **TABLES)
        taker, feed = Taker(b), Feed(net, a)
        feed.publish(100, taker)
        net.run(JOINED_US)
        left = [3]

        def lose_some(packet: Packet) -> bool:
            left[0] -= packet.type == wire.TABLE
            return packet.type != wire.TABLE or left[0] < 0

        net.intercept(lose_some)
        feed.publish(3000, taker, run_us=5000.0)
        assert feed.arrive_at(taker)
        assert taker.found == feed.records
        assert 0 < b.count("table_missing") < 60
        assert b.count("compacted") > b.count("table_missing")


def test_the_last_packet_is_asked_for_before_a_heartbeat_reveals_it() -> None:
    with Network(seed=3) as net:
        a, b = network_of(net, "ab", **TABLES)
        taker, feed = Taker(b), Feed(net, a)
        net.intercept(lambda packet: packet.type != wire.TABLE)
        feed.publish(100, taker)
        net.run(JOINED_US)
        unread = b.count("table_missing")
        net.intercept(lambda packet: packet.type not in (wire.TABLE, wire.HEARTBEAT))
        seen = watched(net)
        feed.publish(20, taker)
        assert feed.arrive_at(taker, limit_us=20_000.0)
        assert b.count("table_missing") == unread + sent(seen, wire.COMPACT) > unread
        assert sent(seen, wire.DATA) == sent(seen, wire.COMPACT), "each came again in full"


def test_an_older_receiver_gets_packets_in_full() -> None:
    with Network(seed=4) as net:
        a, b = network_of(net, "ab", **TABLES)
        taker, feed = Taker(b), Feed(net, a)
        feed.publish(200, taker)
        net.run(JOINED_US)
        feed.publish(500, taker)
        net.run(JOINED_US)
        seen = watched(net)
        old = packets.status(
            session=feed.publisher.session,
            receiver_id=4711,
            window=1 << 16,
            consumed=1,
            contiguous=1,
            topic=int(a.engine.topic_by_name["t"].wire_id),
        )
        assert old[wire.FLAGS_AT] == 0
        net.switch.inject(a.id, old, control=True, source=STRANGER)
        net.run(1000)
        feed.publish(500, taker)
        assert feed.arrive_at(taker)
        assert sent(seen, wire.COMPACT) == 0
        assert sent(seen, wire.DATA) > 5
        net.run(8e6)  # it is silent, and dropped
        feed.publish(500, taker)
        assert feed.arrive_at(taker)
        assert taker.found == feed.records
        assert sent(seen, wire.COMPACT) > 3


def test_level_1_sends_no_table_until_the_level_is_raised() -> None:
    with Network(seed=5) as net:
        a, b = network_of(net, "ab", compression="tables", level=1)
        taker, feed = Taker(b), Feed(net, a)
        seen = watched(net)
        feed.publish(1000, taker)
        net.run(JOINED_US)
        feed.publish(1000, taker)
        assert sent(seen, wire.COMPACT) == sent(seen, wire.TABLE) == 0
        a.engine.set_level(2)
        net.run(JOINED_US)
        feed.publish(1000, taker)
        assert feed.arrive_at(taker)
        assert taker.found == feed.records
        assert sent(seen, wire.COMPACT) > 10


def test_off_sends_everything_in_full() -> None:
    with Network(seed=6) as net:
        a, b = network_of(net, "ab", level=2)
        taker, feed = Taker(b), Feed(net, a)
        seen = watched(net)
        feed.publish(200, taker)
        net.run(JOINED_US)
        feed.publish(2000, taker)
        assert feed.arrive_at(taker)
        assert sent(seen, wire.COMPACT) == sent(seen, wire.TABLE) == 0
        assert a.count("bytes_saved") == 0


def test_a_publisher_that_starts_again_begins_another_table() -> None:
    with Network(seed=7) as net:
        a, b = network_of(net, "ab", **TABLES)
        taker = Taker(b)
        for _ in range(3):
            feed, taker.found = Feed(net, a), []
            feed.publish(100, taker)
            net.run(JOINED_US)
            feed.publish(1000, taker)
            assert feed.arrive_at(taker)
            assert taker.found == feed.records
            feed.publisher.close()
            net.run(JOINED_US)
        before = b.count("compacted")
        assert before > 20
        a = net.restart("a")
        feed, taker.found = Feed(net, a), []
        feed.publish(100, taker)
        net.run(JOINED_US)
        feed.publish(1000, taker)
        assert feed.arrive_at(taker)
        assert taker.found == feed.records
        assert a.count("compacted") > 5


def test_more_keys_than_a_table_holds() -> None:
    with Network(seed=8, drop=0.02) as net:
        a, b = network_of(net, "ab", **TABLES)
        taker, feed = Taker(b), Feed(net, a)
        feed.publish(100, taker)
        net.run(JOINED_US)
        seen = watched(net)
        feed.publish(12_000, taker, keys=1500, run_us=30_000.0)
        assert feed.arrive_at(taker)
        assert taker.found == feed.records
        at, end = wire.TABLE_NUMBER_AT, wire.TABLE_FIRST_AT
        numbers = {p.data[at:end] for p in seen if p.type == wire.TABLE}
        assert 1 < len(numbers) < 5, "a full table is replaced, and not often"


def test_a_durable_topic_that_another_node_keeps() -> None:
    topic = TopicConfig(name="t", mode="durable", owner="a", fsync="batch", compression="tables")
    with Network(seed=9, drop=0.05, reorder=0.05) as net:
        a, b = (net.node(name, topics=[topic], level=2) for name in "ab")
        consumer = a.connect().consumer("t", "s", start="earliest")
        publisher = b.connect().publisher("t")
        for i in range(1500):
            key, headers, payload, _ = record(i)
            publisher.publish(payload, key=key, headers=headers or None)
            if i % 100 == 0:
                net.run(50_000)
        assert publisher.wait_durable(timeout=60.0) == 1500
        got: list[Any] = []
        for _ in range(60):
            batch = consumer.fetch(100, max_wait=0.2)
            got += [(m.key, dict(m.headers), m.data) for m in batch]
            batch.ack()
        assert got == [record(i)[:3] for i in range(1500)]
        assert b.count("compacted") > 10


def test_sealed_packets_refer_to_tables_too() -> None:
    with Network(seed=10, drop=0.03) as net:
        a, b = (sealed_node(net, name, **TABLES) for name in "ab")
        taker, feed = Taker(b), Feed(net, a)
        feed.publish(100, taker)
        net.run(JOINED_US)
        feed.publish(1000, taker)
        assert feed.arrive_at(taker)
        assert taker.found == feed.records
        assert b.count("compacted") > 10


def test_tables_rest_where_they_save_little() -> None:
    with Network(seed=11) as net:
        a, b = network_of(net, "ab", **TABLES)
        stream = Stream(a, size=400)
        taker = Taker(b)
        net.run(JOINED_US)

        def push() -> int:
            for _ in range(30):
                stream.publisher.publish(b"x" * 400, key=b"a key of them all")
            net.run(1000)
            return taker.take()

        for _ in range(20):
            push()
        early = a.count("compacted")
        assert early > 50
        for _ in range(120):
            push()
        assert a.count("compacted") < early + 300, "packets went in full"
        assert net.run(1e6, until=lambda: taker.take() == 140 * 30)


def test_strangers_define_nothing() -> None:
    with Network(seed=12) as net:
        a, b = network_of(net, "ab", **TABLES)
        taker, feed = Taker(b), Feed(net, a)
        feed.publish(200, taker)
        net.run(JOINED_US)
        feed.publish(500, taker)
        before = b.count("foreign_address")
        about = {"session": feed.publisher.session, "source": a.id}
        about["topic"] = int(a.engine.topic_by_name["t"].wire_id)
        forged = packets.header(wire.TABLE, 45, **about) + b"\7\0\0\0\0\0\1\0\4lies"
        net.switch.inject(b.id, forged, source=STRANGER)
        net.run(1000)
        assert b.count("foreign_address") == before + 1
        feed.publish(500, taker)
        assert feed.arrive_at(taker)
        assert taker.found == feed.records


def test_an_unreliable_topic_has_no_tables() -> None:
    with Network() as net, pytest.raises(ConfigError, match=r"compression: tables: allowed off"):
        net.node("a", topics=["t"], reliability="unreliable", **TABLES)
