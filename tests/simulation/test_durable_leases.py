"""Topics whose queues are taken with a lease: hand-over, take-over, and the fence, in virtual time.

Two nodes share a directory. What is acked is in the log once, whoever keeps it when.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.durable import rows_of

from tidecast.agents.archiver import state as ast
from tidecast.client.blocking import Connection
from tidecast.config.topology import TopicConfig
from tidecast.errors import (
    ConfigError,
    CorruptLog,
    Fenced,
    NoResponders,
    NotFound,
    StorageError,
    Timeout,
)
from tidecast.events import (
    ConsumerExpelled,
    DeliveryPaused,
    DiskBack,
    ForeignPackets,
    PublisherWaits,
    QueuesLost,
    QueuesReleased,
    QueuesTaken,
    QueueUnreadable,
)
from tidecast.layout import packet
from tidecast.layout.counters import QueueCounter as C
from tidecast.log.takeover import Owner
from tidecast.node.durable.topic import DurableTopic
from tidecast.node.live import agent_tables
from tidecast.queues.leases.file import NAME, LeaseFile
from tidecast.queues.leases.scope import ScopedLeases
from tidecast.queues.leases.store import (
    BATCH_MAX,
    Acquire,
    Granted,
    LeaseTable,
    Listing,
    ListLeases,
    Refused,
    Release,
    Renew,
    Reply,
    Request,
)
from tidecast.testing import Network, Packet, SimulatedNode

LEASE_S = 3.0
TOPIC = TopicConfig(
    name="orders", mode="durable", owner="*", fsync="batch", queues=2, segment_bytes=1 << 16
)


class Cluster:
    """Nodes that share a directory; time is virtual, also for the leases."""

    def __init__(self, net: Network, directory: Path, **leases: Any) -> None:
        self.net, self.directory = net, directory
        self.leases = {"directory": str(directory), "lease_s": LEASE_S} | leases

    def node(
        self,
        name: str,
        *topics: TopicConfig,
        drained: bool = False,
        transport: dict[str, Any] | None = None,
    ) -> SimulatedNode:
        about = {"leases": self.leases, "drained": drained}
        made = self.net.node(name, list(topics) or [TOPIC], node=about, transport=transport)
        return self._timed(made)

    def again(self, node: SimulatedNode) -> SimulatedNode:
        """A node that was killed, or that is killed now, starts again."""
        return self._timed(self.net.restart(node))

    def _timed(self, node: SimulatedNode) -> SimulatedNode:
        store: Any = node.engine.durable.leases._store
        store._clock_ns = self.net.clock
        return node

    def keeper(self, topic: str = "orders") -> SimulatedNode | None:
        held = [n for n in self.net.nodes if topic in n.engine.durable.topics]
        return held[0] if held else None

    def until_kept(self, by: SimulatedNode | None = None, limit_s: float = 20.0) -> SimulatedNode:
        assert self.net.run(
            limit_s * 1e6,
            until=lambda: self.keeper() is not None and by in (None, self.keeper()),
        )
        found = self.keeper()
        assert found is not None
        return found

    def payloads(self) -> list[bytes]:
        found = self.keeper()
        assert found is not None
        rows = rows_of(found.engine.durable.topics["orders"])
        return [row[3] for row in sorted(rows, key=lambda row: (row[4], row[3]))]


@contextmanager
def cluster(tmp_path: Path, seed: int = 1, **leases: Any) -> Iterator[Cluster]:
    with Network(seed=seed) as net:
        yield Cluster(net, tmp_path / "shared", **leases)


def told(node: SimulatedNode, kind: type) -> list[Any]:
    return [e for e in node.engine.durable.registry.notified if isinstance(e, kind)]


def durable(one: Cluster, publisher: Any) -> None:
    assert one.net.run(60e6, until=lambda: publisher.durable_position >= publisher.position)


def test_a_change_of_the_owner_is_no_alarm_at_publishers_of_other_nodes(tmp_path: Path) -> None:
    """The next owner acks from another address, soon after the last ACK of the one before."""
    with cluster(tmp_path) as one:
        a = one.node("a")
        one.until_kept(a)
        b, c = one.node("b"), one.node("c")
        client = c.connect()
        publisher = client.publisher("orders", producer="q")
        publisher.publish(b"0")
        durable(one, publisher)
        keepers = [a, b]
        for n in range(1, 5):
            publisher.publish(b"%d" % n)
            moved(one, *keepers)
            durable(one, publisher)
            keepers.reverse()
        events = []
        while (event := client.take_event()) is not None:
            events.append(event)
        assert [each for each in events if isinstance(each, ForeignPackets)] == []
        assert c.count("foreign_address") == 0
        assert sorted(one.payloads()) == [b"%d" % n for n in range(5)]


def test_the_next_owner_acks_as_soon_as_the_owner_before_has_left(tmp_path: Path) -> None:
    """Another address is believed after a second of silence, or once the owner says LEAVE."""
    with cluster(tmp_path) as one:
        a = one.node("a")
        one.until_kept(a)
        b, c = one.node("b"), one.node("c")
        publisher = c.connect().publisher("orders", producer="q")
        keepers, waits_ms = [a, b], []
        for n in range(4):
            publisher.publish(b"%d" % n)
            durable(one, publisher)
            before, after = keepers
            moved(one, before, after)
            publisher.publish(b"next %d" % n)
            began_ns = one.net.clock()
            durable(one, publisher)
            waits_ms.append((one.net.clock() - began_ns) / 1e6)
            keepers.reverse()
        assert max(waits_ms) < 100, waits_ms


def test_publishers_go_on_through_every_hand_over(tmp_path: Path) -> None:
    with cluster(tmp_path) as one:
        a = one.node("a")
        one.until_kept(a)
        publisher = a.connect().publisher("orders", producer="p")
        publisher.publish_batch([b"1", b"2"], ack="durable").check()
        b = one.node("b")
        away = b.connect().publisher("orders", producer="q")
        away.publish(b"9")
        durable(one, away)
        with pytest.raises(NotFound, match="kept by node a, and this is b"):
            b.engine.durable.topic("orders")
        moved(one, a, b)
        publisher.publish(b"3")
        away.publish(b"99")
        durable(one, publisher)
        durable(one, away)
        assert sorted(one.payloads()) == [b"1", b"2", b"3", b"9", b"99"]
        assert [type(e) for e in a.engine.durable.registry.notified] == [
            QueuesTaken,
            QueuesReleased,
        ]
        assert [e.epoch for e in told(b, QueuesTaken)] == [2]
        rows = [r for (t, _), r in a.engine.durable.rows.items() if t == "orders"]
        values = a.engine.counters.values[rows]
        assert values[:, C.TAKEN].tolist() == values[:, C.HANDED_OVER].tolist() == [1, 1]
        assert values[:, C.OWNER_EPOCH].tolist() == [0, 0]


def test_a_grant_from_before_a_hand_over_is_none_behind_it(tmp_path: Path) -> None:
    """An engine that has the queues again knows the producer by what is in the log now."""
    with cluster(tmp_path) as one:
        b = one.node("b")
        one.until_kept(b)
        a, granted, is_cut = one.node("a"), b.engine.durable.owner_side._pending.opened, [True]

        def look(sent: Packet) -> bool:
            """The grant arrives, and nothing comes of it at b, which has to let go first."""
            is_setup = sent.type == packet.SETUP and sent.target == b.id
            return not (is_setup and is_cut[0] and granted)

        one.net.intercept(look)
        publisher: Any = a.connect().publisher("orders", producer="p")
        assert one.net.run(20e6, until=lambda: publisher.producer_session.epoch > 0)
        assert granted
        moved(one, b, a)
        is_cut[0] = False
        publisher.publish_batch([b"%d" % i for i in range(50)])
        durable(one, publisher)
        moved(one, a, b)
        publisher.publish_batch([b"%d" % i for i in range(50, 100)])
        durable(one, publisher)
        [source] = b.engine.durable.sources.values()
        known = b.engine.durable.topics["orders"].producers.known
        assert source.producer is known[source.producer.id]
        assert source.producer.last_seq == 100
        publisher.close()
        again: Any = a.connect().publisher("orders", producer="p")
        again.publish(b"100")
        durable(one, again)
        assert again.producer_session.first_seq == 101
        assert sorted(one.payloads(), key=int) == [b"%d" % i for i in range(101)]


def drain(node: SimulatedNode, drained: bool) -> None:
    """As the control service has it."""
    about = msgspec.structs.replace(node.engine.topology.node, drained=drained)
    node.engine.set_node_settings(about)
    node.engine.durable.leases.look()


@pytest.mark.parametrize("seed", range(3))
def test_a_drain_under_load_with_kills_loses_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with cluster(tmp_path, seed) as one:
        nodes = {name: one.node(name) for name in ("a", "b")}
        one.until_kept()
        publisher, sent = nodes["a"].connect().publisher("orders", producer="p"), 0
        for turn in range(6):
            name = "ab"[turn % 2]
            drain(nodes[name], True)
            for _ in range(10):
                publisher.publish(b"%d" % sent)
                sent += 1
                one.net.run(chance.randrange(1, 200_000))
            if turn in (2, 4):  # b takes over, and is killed on the way
                nodes["b"] = one.again(nodes["b"])
            other_node = nodes["ba"[turn % 2]]
            one.until_kept(other_node)
            assert nodes[name].engine.durable.leases.holds() == {}
            drain(nodes[name], False)
        durable(one, publisher)
        assert sorted(one.payloads(), key=int) == [b"%d" % i for i in range(sent)]


def moved(one: Cluster, source: SimulatedNode, target: SimulatedNode) -> None:
    """The queues go from one node to another, as a balancer would have it."""
    first, second = source.engine.durable.leases._keeper, target.engine.durable.leases._keeper
    assert first is not None
    assert second is not None
    first.plan([], one.net.clock())
    second.plan(["orders"], one.net.clock())
    one.until_kept(target)


def test_pauses_are_reported_by_the_engine_that_has_the_queues(tmp_path: Path) -> None:
    def paused(node: SimulatedNode) -> list[tuple[int, str]]:
        late = node.connect()
        late.pump()
        found = [e for e in late.events() if isinstance(e, DeliveryPaused)]
        late.close()
        return [(e.queue, e.subscription) for e in found]

    with cluster(tmp_path) as one:
        a = one.node("a")
        one.until_kept(a)
        a.connect().consumer("orders", "billing").close()
        billing = {"pattern": "orders", "name": "billing"}
        a.engine.consumers.perform("pause", billing)
        a.engine.consumers.perform("pause_queue", {"topic": "orders", "queue": 1})
        b = one.node("b")
        moved(one, a, b)
        assert (paused(a), paused(b)) == ([], [(1, ""), (-1, "billing")])
        b.engine.consumers.perform("resume", billing)
        b.engine.consumers.perform("pause_queue", {"topic": "orders", "queue": 1, "paused": False})
        moved(one, b, a)
        assert paused(a) == paused(b) == []


def apart(one: Cluster) -> tuple[SimulatedNode, SimulatedNode]:
    """Node ``a`` keeps `orders.late`, node ``b`` keeps `orders.new`."""
    topics = [msgspec.structs.replace(TOPIC, name=f"orders.{each}") for each in ("late", "new")]
    a = one.node("a", *topics)
    one.net.run(10e6, until=lambda: len(a.engine.durable.topics) == 2)
    b = one.node("b", *topics)
    given(one, {"orders.late": a, "orders.new": b})
    return a, b


def given(one: Cluster, keepers: dict[str, SimulatedNode]) -> None:
    for node in one.net.nodes:
        keeper = node.engine.durable.leases._keeper
        if keeper is not None:
            keeper.plan([name for name, of in keepers.items() if of is node], one.net.clock())
    assert one.net.run(
        60e6, until=lambda: all(n in of.engine.durable.topics for n, of in keepers.items())
    )


def known(node: SimulatedNode) -> list[tuple[str, str]]:
    return [(s["pattern"], s["name"]) for s in node.engine.consumers.perform("list", {})]


def ended(client: Connection) -> list[str]:
    client.pump()
    return [e.reason for e in client.events() if isinstance(e, ConsumerExpelled)]


ALL = {"pattern": "orders.*", "name": "all"}


@pytest.mark.parametrize("joined", [False, True])
def test_a_subscription_to_a_pattern_is_deleted_at_all_engines(
    tmp_path: Path, joined: bool
) -> None:
    with cluster(tmp_path) as one:
        a, b = apart(one)
        consumer = None
        for node in (a, b):
            client = node.connect()
            consumer = client.consumer("orders.*", "all")
            if not (joined and node is b):
                consumer.close()
        one.net.run(1e6)
        assert known(a) == known(b) == [("orders.*", "all")]
        a.engine.consumers.perform("delete", ALL)
        assert known(a) == []
        one.net.run(1e6)
        assert known(b) == []
        assert ended(client) == (["the subscription was deleted"] if joined else [])
        given(one, {"orders.new": a, "orders.late": b})
        one.net.run(5e6)
        assert known(a) == known(b) == []
        assert not list(one.directory.rglob("*.sub"))


def test_a_subscription_does_not_come_back_with_queues_of_an_engine_that_was_down(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path) as one:
        a, b = apart(one)
        for node in (a, b):
            node.connect().consumer("orders.*", "all").close()
        one.net.run(1e6)
        one.net.kill(b)
        a.engine.consumers.perform("delete", ALL)
        a.engine.consumers.perform("create", ALL | {"start": "latest"})
        given(one, {"orders.late": a, "orders.new": a})
        one.net.run(1e6)
        assert known(a) == [("orders.*", "all")], "the newer one stays"
        [mine] = a.engine.consumers.subscriptions.values()
        assert mine.saved.generation == 1
        assert len(mine.cursors) == 4
        again = one.node("b", *a.topology.topics)
        one.net.run(5e6)
        assert known(again) == []
        a.engine.consumers.perform("delete", ALL)
        given(one, {"orders.late": a, "orders.new": again})
        one.net.run(1e6)
        assert known(a) == known(again) == []


def test_one_that_stands_by_ends_with_its_subscription(tmp_path: Path) -> None:
    with cluster(tmp_path) as one:
        a, b = one.node("a"), one.node("b")
        one.until_kept(a)
        a.connect().consumer("orders", "billing").close()
        client = b.connect()
        client.consumer("orders", "billing")
        a.engine.consumers.perform("delete", {"pattern": "orders", "name": "billing"})
        one.net.run(1e6)
        assert ended(client) == ["the subscription was deleted"]
        moved(one, a, b)
        one.net.run(1e6)
        assert known(b) == []


def begun(one: Cluster, at: str) -> tuple[SimulatedNode, SimulatedNode, Any]:
    """Node ``a`` keeps the queues and has 50 messages of a publisher at ``at``."""
    a = one.node("a")
    one.until_kept(a)
    b = one.node("b")
    publisher: Any = {"a": a, "b": b}[at].connect().publisher("orders")
    publisher.publish_batch([b"%d" % i for i in range(50)])
    durable(one, publisher)
    return a, b, publisher


def test_the_next_keeper_delivers_scheduled_records_at_their_time(tmp_path: Path) -> None:
    with cluster(tmp_path) as one:
        a = one.node("a")
        one.until_kept(a)
        client = a.connect()
        consumer = client.consumer("orders", "billing")
        due = one.net.wall_ns() + 120 * 10**9
        client.publish("orders", b"later", key="k", deliver_at=due)
        client.publish_batch("orders", [b"now"] * 20, keys="k", ack="durable").check()
        taken = 0
        while taken < 20:
            batch = consumer.fetch(20, max_wait=5.0)
            assert {bytes(message.data) for message in batch} == {b"now"}
            taken += len(batch)
            batch.ack()
        one.net.run(2e6)  # the position is saved
        b = one.node("b")
        one.net.kill(a)
        one.until_kept(b)
        consumer = b.connect().consumer("orders", "billing")
        assert len(consumer.fetch(100, max_wait=5.0)) == 0
        assert consumer.info()["scheduled"] == 1
        assert one.net.wall_ns() < due
        message = consumer.next(timeout=130.0)
        assert (bytes(message.data), message.deliver_at, message.attempts) == (b"later", due, 1)
        assert one.net.wall_ns() >= due


def test_the_next_keeper_knows_what_was_cancelled(tmp_path: Path) -> None:
    with cluster(tmp_path) as one:
        a = one.node("a")
        one.until_kept(a)
        client = a.connect()
        client.consumer("orders", "billing")
        client.subscriptions.create("orders", "away")
        due = one.net.wall_ns() + 120 * 10**9
        for key in ("k", "other"):
            client.publish("orders", key.encode(), key=key, deliver_at=due, ack="durable")
        assert client.topics.cancel_scheduled("orders", key="k").cancelled == 2
        b = one.node("b")
        one.net.kill(a)
        one.until_kept(b)
        for name in ("billing", "away"):
            consumer = b.connect().consumer("orders", name)
            message = consumer.next(timeout=130.0)
            assert (bytes(message.data), message.attempts) == (b"other", 1)
            message.ack()
            assert len(consumer.fetch(1, max_wait=5.0)) == 0


def test_a_killed_keeper_is_followed_within_a_lease_and_a_look(tmp_path: Path) -> None:
    with cluster(tmp_path) as one:
        a, b, publisher = begun(one, at="b")
        one.net.kill(a)
        publisher.publish_batch([b"%d" % i for i in range(50, 100)])
        one.until_kept(b)
        durable(one, publisher)
        assert sorted(one.payloads(), key=int) == [b"%d" % i for i in range(100)]


def test_one_that_sleeps_beyond_its_lease_is_fenced_and_doubles_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path) as one:
        a, b, publisher = begun(one, at="a")
        one.net.nodes.remove(a)  # SIGSTOP: it does nothing any more
        publisher.publish_batch([b"%d" % i for i in range(50, 100)])
        one.until_kept(b)
        mine = a.engine.durable.topics["orders"]
        before = publisher.durable_position
        for _ in range(20):  # it wakes within a cycle, before it has looked at anything
            a.engine.durable.registry.runtime.work(one.net.clock())
        assert publisher.durable_position == before, "appended, and not said to be durable"
        assert mine.logs == [], "fenced"
        assert [e.newest for e in told(a, QueuesLost)] == [2]
        rows = [r for (t, _), r in a.engine.durable.rows.items() if t == "orders"]
        assert a.engine.counters.values[rows][:, C.OWNER_FENCED].tolist() == [1, 1]
        one.net.nodes.append(a)
        durable(one, publisher)
        one.until_kept()
        assert sorted(one.payloads(), key=int) == [b"%d" % i for i in range(100)]


@pytest.mark.parametrize("seed", range(3))
def test_keepers_come_and_go(tmp_path: Path, seed: int) -> None:
    turns(tmp_path, seed, 8)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 140))
def test_keepers_come_and_go_for_long(tmp_path: Path, seed: int) -> None:
    turns(tmp_path, seed, 30)


def turns(tmp_path: Path, seed: int, rounds: int) -> None:
    """Sleeps, crashes and hand-overs of keepers while a third node publishes."""
    chance = random.Random(seed)
    with cluster(tmp_path, seed) as one:
        names = ["a", "b"]
        for name in names:
            one.node(name)
        source = one.net.node(
            "source", topics=[TOPIC], node={"leases": {"directory": str(tmp_path)}}
        )
        source.engine.durable.leases._keeper = None  # it only publishes
        publisher = source.connect().publisher("orders")
        sent = 0
        for _ in range(rounds):
            n = chance.randrange(60)
            publisher.publish_batch([b"%d" % i for i in range(sent, sent + n)])
            sent += n
            one.net.run(chance.randrange(1, 3_000_000))
            keeper, what = one.keeper(), chance.randrange(3)
            if keeper is None:
                continue
            if what == 0:
                again = one.net.restart(keeper)
                again.engine.durable.leases._store._clock_ns = one.net.clock  # type: ignore[attr-defined]
            elif what == 1:
                one.net.nodes.remove(keeper)
                one.net.run(chance.randrange(1, 8) * 1e6)
                keeper.engine.durable.registry.runtime.work(one.net.clock())
                one.net.nodes.append(keeper)
        durable(one, publisher)
        one.until_kept()
        assert sorted(one.payloads(), key=int) == [b"%d" % i for i in range(sent)]


class Away:
    """A store that can be away, for one node or for all."""

    def __init__(self) -> None:
        self.table, self.away, self.batch_max = LeaseTable(), False, BATCH_MAX

    def handle(self, request: Request, now_ns: int) -> Reply:
        if self.away:
            raise NoResponders("leases: away")
        return self.table.handle(request, now_ns)


def test_while_the_store_is_away_for_all_the_owner_goes_on(tmp_path: Path) -> None:
    with cluster(tmp_path) as one:
        a, b, store = one.node("a"), one.node("b"), Away()
        for node in (a, b):
            node.engine.durable.leases._store = store
        keeper = one.until_kept()
        publisher = a.connect().publisher("orders")
        publisher.publish(b"1")
        durable(one, publisher)
        store.away = True
        one.net.run(10 * LEASE_S * 1e6)
        publisher.publish(b"2")
        durable(one, publisher)
        assert one.keeper() is keeper
        assert not told(keeper, QueuesLost)
        store.away = False
        one.net.run(3 * LEASE_S * 1e6)
        one.until_kept()
        assert sorted(one.payloads()) == [b"1", b"2"]


@pytest.mark.parametrize("back", [True, False])
def test_an_owner_that_sleeps_while_the_store_is_away_goes_on(tmp_path: Path, back: bool) -> None:
    """Its lease ran out before it could ask, or say that there is no answer."""
    with cluster(tmp_path) as one:
        a, b, store = one.node("a"), one.node("b"), Away()
        for node in (a, b):
            node.engine.durable.leases._store = store
        one.until_kept(a)
        publisher = b.connect().publisher("orders")
        publisher.publish(b"1")
        durable(one, publisher)
        store.away = True
        one.net.run(LEASE_S * 1e6)
        one.net.nodes.remove(a)  # SIGSTOP: it does nothing any more
        one.net.run(3 * LEASE_S * 1e6)
        store.away = not back
        one.net.nodes.append(a)
        publisher.publish(b"2")
        durable(one, publisher)
        if not back:
            assert one.keeper() is a
            assert not told(a, QueuesLost)
        assert sorted(one.payloads()) == [b"1", b"2"]


def test_one_that_does_not_reach_the_store_acks_nothing_beside_the_next_owner(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path) as one:
        a, mine, others = one.node("a"), Away(), Away()
        mine.table = others.table
        a.engine.durable.leases._store = mine
        one.until_kept(a)
        publisher = a.connect().publisher("orders")
        mine.away = True
        b = one.node("b")
        b.engine.durable.leases._store = others
        assert one.net.run(20e6, until=lambda: "orders" in b.engine.durable.topics)
        publisher.publish(b"1")
        durable(one, publisher)
        one.until_kept(b)
        assert one.payloads() == [b"1"]
        assert [e.newest for e in told(a, QueuesLost)] == [2]


def test_the_next_owner_reads_a_publisher_whose_node_learns_late_that_it_lost_the_queues(
    tmp_path: Path,
) -> None:
    """Until then its SETUPs are those of a publisher that is read there."""
    with cluster(tmp_path) as one:
        a, mine, others = one.node("a"), Away(), Away()
        mine.table = others.table
        a.engine.durable.leases._store = mine
        one.until_kept(a)
        publisher = a.connect().publisher("orders")
        mine.away = True
        b = one.node("b")
        b.engine.durable.leases._store = others
        assert one.net.run(20e6, until=lambda: "orders" in b.engine.durable.topics)
        one.net.run(2e6)  # more SETUPs
        assert "orders" in a.engine.durable.topics
        publisher.publish(b"1")
        durable(one, publisher)
        one.until_kept(b)
        assert one.payloads() == [b"1"]


def test_a_store_of_many_directories_keeps_them_apart(tmp_path: Path) -> None:
    table = LeaseTable()
    at = [ScopedLeases(table, tmp_path / name) for name in ("one", "one", "two")]
    assert at[0].handle(Acquire(1, "q", "a", 10), 0) == Granted(1)
    assert at[1].handle(Acquire(2, "q", "b", 10), 0) == Refused("a", 1)
    assert at[2].handle(Acquire(3, "q", "c", 10), 0) == Granted(1)
    assert at[1].handle(ListLeases(4), 0) == Listing({"q": "a"})
    assert at[2].handle(ListLeases(5), 0) == Listing({"q": "c"})


def test_leases_of_a_service_need_one(tmp_path: Path) -> None:
    wrong = pytest.raises(ConfigError, match="start it with --control URL")
    with cluster(tmp_path, store="service") as one, wrong:
        one.node("a")


def test_a_publisher_that_can_reach_nobody_is_told_and_goes_on_with_the_lease(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path) as one:
        a = one.node("a")
        one.until_kept(a)
        b = one.node("b")
        publisher = b.connect().publisher("orders")
        [mine] = b.engine.pubs.values()
        agent_tables.remove_publication(b.engine.context, mine)
        mine.runtime = None  # as one on transport ipc
        publisher.publish(b"1")
        one.net.run(5e6)
        assert publisher.durable_position == 0
        assert [e.owner for e in told(b, PublisherWaits)] == ["a"], "once"
        with pytest.raises(Timeout) as late:
            publisher.wait_durable(timeout=0.01)
        assert isinstance(late.value.__cause__, StorageError)
        assert "its transport reaches no other node" in str(late.value.__cause__)
        one.net.kill(a)
        durable(one, publisher)
        publisher.publish(b"3")
        durable(one, publisher)
        assert one.payloads() == [b"1", b"3"]


def test_plans_share_topics_out(tmp_path: Path) -> None:
    topics = [TopicConfig(name=f"t{i}", mode="durable", owner="*", fsync="none") for i in range(4)]
    with cluster(tmp_path, balancer="best-fit", owners=["a", "b"]) as one:
        nodes = [one.node(name, *topics) for name in ("a", "b")]
        assert one.net.run(
            60e6,
            until=lambda: (
                [sorted(n.engine.durable.topics) for n in nodes] == [["t0", "t1"], ["t2", "t3"]]
            ),
        )
        one.net.kill(nodes[1])
        assert one.net.run(60e6, until=lambda: len(nodes[0].engine.durable.topics) == 4)


# --- on disk ------------------------------------------------------------------------------------


def test_only_a_higher_epoch_opens_the_queues(tmp_path: Path) -> None:
    first = DurableTopic.open(TOPIC, tmp_path, 1, owner=3, name="a")
    assert first.owned
    with pytest.raises(Fenced, match="node a owns these queues with epoch 3"):
        DurableTopic.open(TOPIC, tmp_path, 1, owner=3, name="b")
    second = DurableTopic.open(TOPIC, tmp_path, 1, owner=4, name="b")
    assert not first.owned
    assert second.owned
    assert second.owners.current() == Owner(4, "b", 1)
    with pytest.raises(Fenced, match="another engine owns it now"):
        first.grow(5, 1)
    for each in (first, second):
        each.close()


def test_leases_in_a_file_are_those_of_the_table_and_end_with_the_host(tmp_path: Path) -> None:
    now = [100]
    store = LeaseFile(tmp_path, lambda: now[0], "boot 1")
    other = LeaseFile(tmp_path, lambda: now[0], "boot 1")
    assert store.handle(Acquire(1, "q", "a", 10)) == Granted(1)
    assert other.handle(Acquire(2, "q", "b", 10)) == Refused("a", 1)
    assert other.handle(ListLeases(3)) == Listing({"q": "a"})
    now[0] = 105
    assert store.handle(Renew(4, "q", "a", 10, 1)) == Granted(1)
    now[0] = 112
    assert other.handle(Acquire(5, "q", "b", 10)) == Refused("a", 1)
    store.handle(Release(6, "q", "a", 1))
    assert other.handle(Acquire(7, "q", "b", 1000)) == Granted(2)
    booted = LeaseFile(tmp_path, lambda: 5, "boot 2")
    assert booted.handle(Acquire(8, "q", "a", 10)) == Granted(3)
    (tmp_path / NAME).write_bytes(b"{")
    with pytest.raises(CorruptLog, match="stop all engines that share it"):
        store.handle(ListLeases(9))


def test_one_that_lost_its_queues_calls_nothing_damaged_and_no_disk_well(tmp_path: Path) -> None:
    """Its files are the next owner's to remove: that is neither damage nor a disk that refused."""
    with cluster(tmp_path) as one:
        a, b, _ = begun(one, at="a")
        client = a.connect()
        client.pump()
        one.net.nodes.remove(a)  # SIGSTOP
        one.until_kept(b)
        mine = a.engine.durable.topics["orders"]
        a.engine.consumers.damaged(0, 7, "No such file or directory")
        a.engine.durable._handle([[ast.E_DISK_OK, mine.slot]])
        client.pump()
        kinds = [type(each) for each in client._events]
        assert QueueUnreadable not in kinds
        assert DiskBack not in kinds
        one.net.nodes.append(a)
