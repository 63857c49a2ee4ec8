"""Publishers on one node, queues on another: loss, duplication, reordering, partition, crashes.

What is acked is in the owner's log, once, in key order. All of it in virtual time, by seeds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PosixPath
from typing import Any

import pytest
from tests.support.durable import rows_of

from tidecast.agents.events import E_EVICTED
from tidecast.buffers.ring_file import consumers, describe
from tidecast.buffers.slots import control_at, control_word
from tidecast.config.topology import TopicConfig, shm_dir
from tidecast.errors import Fenced, NotFound, SequenceGap, StorageError, Timeout
from tidecast.events import ProducerFenced, PublisherRefused, RingDrained
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.layout.counters import QueueCounter
from tidecast.native.packing import pack_into
from tidecast.node.durable import archiver_tables
from tidecast.node.durable.archiver_tables import ring_session
from tidecast.node.shm_directory import dead_nodes
from tidecast.testing import Network, SimulatedNode
from tidecast.testing.switch import Packet

SUBSCRIPTION = lay.CONSUMER_SUBSCRIPTION_AT // 8

SETTINGS: dict[str, Any] = {"mode": "durable", "owner": "a", "fsync": "batch", "queues": 3}


class Pair:
    """Node ``a`` keeps topic ``orders``, ``b`` publishes."""

    def __init__(self, net: Network, **settings: Any) -> None:
        self.net = net
        topic = TopicConfig(name="orders", **SETTINGS | settings)
        self.a, self.b = net.node("a", topics=[topic]), net.node("b", topics=[topic])

    def publisher(self, **options: Any) -> Any:
        return self.b.connect().publisher("orders", **options)

    def rows(self) -> list[tuple[bytes | None, bytes, int]]:
        """(key, payload, sequence) in the order of queues and tokens."""
        topic = self.a.engine.durable.topics["orders"]
        return [row[2:] for row in rows_of(topic)]

    def payloads(self) -> list[bytes]:
        return [row[1] for row in sorted(self.rows(), key=lambda row: row[2])]

    def until_durable(self, publisher: Any, limit_us: float = 60e6) -> None:
        assert self.net.run(
            limit_us, until=lambda: publisher.durable_position >= publisher.position
        ), (publisher.durable_position, publisher.position)

    def crash(self, node: SimulatedNode) -> SimulatedNode:
        """kill -9 of an engine, and its next start."""
        again = self.net.restart(node)
        if node is self.a:
            self.a = again
        else:
            self.b = again
        return again


@contextmanager
def pair(seed: int = 1, faults: dict[str, float] | None = None, **topic: Any) -> Iterator[Pair]:
    with Network(seed=seed, **(faults or {})) as net:  # type: ignore[arg-type]
        yield Pair(net, **topic)


def check_keys(rows: list[tuple[bytes | None, bytes, int]]) -> None:
    """Each key's records stand in the order of their sequences."""
    last: dict[bytes | None, int] = {}
    for key, _, seq in rows:
        if key is not None:
            assert seq > last.get(key, 0)
            last[key] = seq


def test_what_another_node_publishes_is_kept_and_acked() -> None:
    with pair() as two:
        publisher = two.publisher()
        for i in range(300):
            publisher.publish(b"%d" % i, key=b"k%d" % (i % 7), headers={"n": i})
        publisher.publish(b"x" * 100_000, key=b"long")
        assert publisher.wait_durable(timeout=60.0) == 301
        assert [int(p) for p in two.payloads()[:300]] == list(range(300))
        assert two.payloads()[300] == b"x" * 100_000
        check_keys(two.rows())
        assert not two.b.engine.durable.topics, "b keeps nothing"
        publisher.close()
        assert two.net.run(30e6, until=lambda: not two.b.engine.pubs)
        assert two.net.run(60e6, until=lambda: not two.a.engine.images_by_id)
        assert not two.a.engine.durable.sources


@pytest.mark.parametrize("gave_up", [True, False])
def test_an_image_whose_archiver_cannot_go_on_joins_anew(gave_up: bool) -> None:
    """It counts sequences from where its publisher has them acked.

    ``gave_up``: a packet, as when an image before it had it acked; else it left its archiver
    behind, and evicted it.
    """
    with pair() as two:
        publisher = two.publisher()
        publisher.publish(b"0", flush=True)
        publisher.wait_durable(timeout=60.0)
        (image,) = two.a.engine.images_by_id.values()
        ring, about = image.mapped.array, describe(image.mapped.array)
        record = image.runtime.rx_state.images[image.slot]
        due = int(record["contiguous"])
        lost = {due}
        two.net.intercept(lambda packet: packet.type != wire.DATA or packet.seq not in lost)
        for i in range(1, 200):
            publisher.publish(b"%d" % i, flush=True)
        assert two.net.run(1e6, until=lambda: record["highest"] > due + 1)
        if gave_up:
            word = control_word(due, lay.GONE, 0)
            pack_into("<q", ring, control_at(due, about.slots - 1), word)
        else:
            (entry,) = [at for at, e in consumers(ring) if not e[SUBSCRIPTION]]
            at = lay.CONSUMERS_AT + entry * lay.CONSUMER_BYTES + lay.CONSUMER_STATE_AT
            pack_into("<q", ring, at, lay.CONSUMER_EVICTED)
            with two.a.engine.lock:
                row = [E_EVICTED, image.session, 0, 100, 0, 0]
                two.a.engine.sessions.handle(image.runtime, [row], [])
        two.net.run(1e4)
        lost.clear()
        assert publisher.wait_durable(timeout=60.0) == 200
        assert [
            (int(payload), seq) for _, payload, seq in sorted(two.rows(), key=lambda r: r[2])
        ] == [(i, i + 1) for i in range(200)]
        assert image.id not in two.a.engine.images_by_id


def test_live_subscribers_see_it_too_wherever_they_are() -> None:
    with pair() as two:
        there = two.a.connect().subscribe("orders")
        here = two.b.connect().subscribe("orders")
        publisher = two.publisher()
        publisher.publish(b"one")
        publisher.wait_durable(timeout=60.0)
        assert bytes(there.next(timeout=1.0).data) == b"one"
        assert bytes(here.next(timeout=1.0).data) == b"one"
        late = two.a.connect().subscribe("orders")
        publisher.publish(b"two")
        assert bytes(late.next(timeout=1.0).data) == b"two"


def test_a_named_producer_goes_on_behind_its_last_sequence() -> None:
    with pair() as two:
        first = two.publisher(producer="billing")
        first.publish_batch([b"a", b"b", b"c"], ack="durable").check()
        first.close()
        second = two.publisher(producer="billing")
        assert second.producer_session.first_seq == 4
        second.publish(b"d", ack="durable")
        assert second.position == second.durable_position == 4
        again = two.publisher(producer="billing", first_seq=3)
        two.net.run(3e6)  # until it may begin
        again.publish_batch([b"c", b"d", b"e"], ack="durable").check()
        assert two.payloads() == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("closed", [True, False])
def test_a_new_session_waits_for_what_an_older_ring_of_its_node_still_holds(
    closed: bool,
) -> None:
    """It would fence the older ring, and go on behind a hole where that ring's messages were."""
    with pair() as two:
        first = two.publisher(producer="billing")
        first.publish(b"a", ack="durable")
        lost_until_ns = two.net.clock() + 5_000_000
        two.net.intercept(lambda p: p.type != wire.DATA or two.net.clock() > lost_until_ns)
        first.publish_batch([b"b", b"c"])
        if closed:
            first.close()
        second = two.publisher(producer="billing")
        second.publish(b"d", ack="durable", timeout=60.0)
        assert second.position == 4
        assert two.payloads() == [b"a", b"b", b"c", b"d"]


def test_a_newer_session_fences_the_older_one_wherever_it_is() -> None:
    with pair() as two:
        old = two.publisher(producer="billing")
        old.publish(b"a", ack="durable")
        new: Any = two.a.connect().publisher("orders", producer="billing")
        assert new.producer_session.epoch > old.producer_session.epoch
        new.publish(b"b", ack="durable")
        with pytest.raises(Fenced, match="newer session"):
            old.publish(b"lost", ack="durable", timeout=60.0)
        assert two.payloads() == [b"a", b"b"]
        told = two.a.engine.durable.registry.notified
        assert [type(e) for e in told] == [ProducerFenced]
        newest = two.publisher(producer="billing")
        with pytest.raises(Fenced):
            new.publish(b"lost", ack="durable", timeout=60.0)
        newest.publish(b"c", ack="durable")
        assert two.payloads() == [b"a", b"b", b"c"]


def test_a_gap_in_the_sequences_is_refused_by_the_owner() -> None:
    with pair() as two:
        two.publisher(producer="billing").publish(b"a", ack="durable")
        publisher = two.publisher(producer="billing", first_seq=5)
        two.net.run(3e6)
        with pytest.raises(SequenceGap, match="2 is due") as found:
            publisher.publish(b"b", ack="durable", timeout=60.0)
        assert found.value.expected == 2


def test_an_owner_that_is_away_is_named_and_nothing_is_lost() -> None:
    with pair() as two:
        publisher = two.publisher()
        publisher.publish(b"a", ack="durable")
        two.net.kill(two.a)
        publisher.publish(b"b")
        with pytest.raises(Timeout, match="message 2 is not durable"):
            publisher.wait_durable(timeout=0.05)
        two.a = two.net.restart(two.a)
        two.until_durable(publisher)
        assert two.payloads() == [b"a", b"b"]


def test_consumers_are_told_where_the_queues_are() -> None:
    with pair() as two, pytest.raises(NotFound, match="kept by node a, and this is b"):
        two.b.connect().consumer("orders", name="c")


@pytest.mark.parametrize("seed", range(6))
def test_faults_of_all_kinds(seed: int) -> None:
    faulty(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 220))
def test_faults_of_all_kinds_long(seed: int) -> None:
    faulty(seed)


def faulty(seed: int) -> None:
    """Loss, duplicates, reordering; partitions, and crashes of the owner, as the seed has it."""
    chance = random.Random(seed)
    faults = {"drop": 0.05, "duplicate": 0.05, "reorder": 0.1, "delay_us": 50.0}
    with pair(seed, faults) as two:
        publishers = [two.publisher() for _ in range(2)]
        sent: list[list[bytes]] = [[], []]
        for _ in range(12):
            for k, publisher in enumerate(publishers):
                for _ in range(chance.randrange(40)):
                    i = len(sent[k])
                    payload = b"%d:%d:" % (k, i) + bytes(chance.choice([0, 10, 3000]))
                    publisher.publish(payload, key=b"%d-%d" % (k, i % 5))
                    sent[k].append(payload)
            two.net.run(chance.randrange(1, 3000))
            what = chance.randrange(6)
            if what == 0:
                two.net.partition(two.a, two.b)
                two.net.run(chance.choice([1e5, 15e6]))
                two.net.heal()
            elif what == 1:
                two.crash(two.a)
        for publisher in publishers:
            two.until_durable(publisher)
        rows = two.rows()
        check_keys([(k, p, s) for k, p, s in rows])
        for k in range(2):
            mine = [p for _, p, _ in rows if p.startswith(b"%d:" % k)]
            assert sorted(mine, key=lambda p: int(p.split(b":")[1])) == sent[k]


@pytest.mark.parametrize("how", ["once", "twice", "while others start"])
def test_a_killed_engine_of_publishers_is_drained_by_the_next_one(how: str) -> None:
    """Also if that one is killed before it could, or another data directory's starts before."""
    with pair() as two:
        publisher = two.publisher(producer="billing")
        publisher.publish(b"a", ack="durable")
        two.net.partition(two.a, two.b)
        publisher.publish_batch([b"b", b"c"])
        two.net.run(1e5)
        directory = two.b.engine.directory
        if how == "while others start":
            two.net.kill(two.b)
            two.net.node("c")
        two.crash(two.b)
        assert not directory.exists()
        if how == "twice":
            two.net.run(1e5)
            two.crash(two.b)
        two.net.heal()
        assert two.net.run(60e6, until=lambda: len(two.payloads()) == 3)
        assert two.payloads() == [b"a", b"b", b"c"]
        assert two.net.run(60e6, until=lambda: not two.b.engine.pubs)
        assert RingDrained in [type(e) for e in two.b.engine.durable.registry.notified]
        two.net.kill(two.b)
        assert not shm_dir(two.b.data_dir).exists(), "nothing stays of what is acked"


def test_a_ring_that_another_engine_removes_does_not_keep_one_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that starts clears what dead ones left that is settled, of all data directories."""
    with pair() as two:
        publisher = two.publisher(producer="billing")
        publisher.publish(b"a", ack="durable")
        left, gone = two.b.engine.directory, []

        def looked_at(ring: Any) -> tuple[int, int, int]:
            for path in left.glob("pub-*"):
                path.unlink()
                gone.append(path)
            return ring_session(ring)

        monkeypatch.setattr(archiver_tables, "ring_session", looked_at)
        two.crash(two.b)
        assert gone
        two.publisher(producer="billing").publish(b"b", ack="durable")
        assert two.payloads() == [b"a", b"b"]


class Vanishes(PosixPath):
    """A directory that is removed after it was seen."""

    def is_dir(self) -> bool:
        return True


def test_a_directory_that_another_engine_removes_does_not_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the look at who is dead and the look into what they left."""
    with pair() as two:
        two.publisher(producer="billing").publish(b"a", ack="durable")
        gone = Vanishes(two.b.engine.directory.with_name("gone"))
        monkeypatch.setattr("tidecast.node.node.dead_nodes", lambda base: [gone, *dead_nodes(base)])
        two.crash(two.b)
        two.publisher(producer="billing").publish(b"b", ack="durable")
        assert two.payloads() == [b"a", b"b"]


class Proxy:
    """Stands between producer and engine: `Network.intercept` shows it every packet."""

    def __init__(self, two: Pair) -> None:
        self.two, self.dropped = two, 0
        self.drops: tuple[int, ...] = ()
        two.net.intercept(self._look)

    def _look(self, packet: Packet) -> bool:
        if packet.type in self.drops:
            self.dropped += 1
            return False
        return True


@pytest.mark.parametrize(
    "how",
    ["stopped", "to the engine", "to the producer", "cut before the ack", "doubled", "mixed up"],
)
def test_a_proxy_between_producer_and_engine(how: str) -> None:
    """The faults of a network: stop and start, one direction, cut, duplicate, reorder."""
    with pair(seed=5) as two:
        proxy, publisher = Proxy(two), two.publisher(producer="p")
        publisher.publish(b"0", ack="durable")
        if how == "stopped":
            two.net.partition(two.a, two.b)
        elif how == "to the engine":
            proxy.drops = (wire.DATA, wire.HEARTBEAT, wire.SETUP)
        elif how in ("to the producer", "cut before the ack"):
            proxy.drops = (
                (wire.ACK,) if how.startswith("cut") else (wire.ACK, wire.STATUS, wire.NAK)
            )
        elif how == "doubled":
            two.net.switch.duplicate = 1.0
        else:
            two.net.switch.reorder = 0.9
        for i in range(1, 100):
            publisher.publish(b"%d" % i, key=b"k")
            two.net.run(300)
        if how not in ("doubled", "mixed up"):
            assert publisher.durable_position == 1
        if how == "cut before the ack":
            assert len(two.rows()) == 100, "all of it is in the log, and nobody was told"
            two.crash(two.a)
        two.net.heal()
        proxy.drops = ()
        two.until_durable(publisher)
        assert two.payloads() == [b"%d" % i for i in range(100)]
        check_keys(two.rows())


def test_acks_are_cumulative_and_few() -> None:
    with pair(fsync="interval", fsync_interval_ms=50) as two:
        acks: list[int] = []
        two.net.intercept(lambda p: acks.append(p.seq) if p.type == wire.ACK else None)
        publisher = two.publisher()
        for i in range(5000):
            publisher.publish(b"%d" % i)
        two.until_durable(publisher)
        assert len(two.payloads()) == 5000
        assert len(acks) < 200
        assert acks == sorted(acks)


def test_what_one_direction_loses_is_repaired() -> None:
    for kind in (wire.DATA, wire.ACK):
        with pair() as two:
            publisher = two.publisher()
            publisher.publish(b"first", ack="durable")
            seen: list[int] = []

            def drop(packet: Packet, kind: int = kind, seen: list[int] = seen) -> bool:
                if packet.type == kind and len(seen) < 20:
                    seen.append(packet.seq)
                    return False
                return True

            two.net.intercept(drop)
            for i in range(50):
                publisher.publish(b"%d" % i)
                two.net.run(200)
            two.until_durable(publisher)
            assert len(seen) == 20
            assert len(two.payloads()) == 51


# --- memory for rings -----------------------------------------------------------------------------


def limited(net: Network, history_bytes: int, one: int, all_: int) -> Pair:
    """An owner that gives little memory to publishers on other nodes."""
    settings: dict[str, Any] = {"history_bytes": history_bytes, "receive_bytes": 1 << 16}
    topic = TopicConfig(name="orders", **SETTINGS | settings)
    made = Pair.__new__(Pair)
    limits = {"publisher_ring_bytes_max": one, "publisher_rings_bytes_max": all_}
    made.net = net
    made.a, made.b = net.node("a", topics=[topic], node=limits), net.node("b", topics=[topic])
    return made


@pytest.mark.parametrize("drop", [0.0, 0.05])
def test_a_ring_smaller_than_the_history_of_its_publisher_loses_nothing(drop: float) -> None:
    with Network(seed=3, drop=drop) as net:
        one = limited(net, 1 << 18, 1 << 16, 1 << 20)
        publisher = one.publisher()
        bodies = [b"%06d" % i + bytes(900) for i in range(150)]
        publisher.publish_batch(bodies[:10])
        one.until_durable(publisher)
        [image] = one.a.engine.images_by_id.values()
        [mine] = one.b.engine.pubs.values()
        assert image.mapped.array.size < mine.mapped.array.size // 2
        publisher.publish_batch(bodies[10:])  # more than the owner has room for
        one.until_durable(publisher)
        assert one.payloads() == bodies


def test_a_publisher_without_room_is_told_waits_and_gets_it() -> None:
    with Network() as net:
        one = limited(net, 1 << 16, 1 << 16, 100_000)  # for one, not for two
        first = one.publisher()
        first.publish(b"1")
        one.until_durable(first)
        second = one.publisher()
        second.publish(b"2")
        net.run(5e6)
        assert second.durable_position == 0
        told = [
            e for e in one.a.engine.durable.registry.notified if isinstance(e, PublisherRefused)
        ]
        assert [(e.topic, e.node) for e in told] == [("orders", "b")], "once"
        assert "node.publisher_rings_bytes_max" in told[0].detail
        rows = [r for (t, _), r in one.a.engine.durable.rows.items() if t == "orders"]
        assert one.a.engine.counters.values[rows][:, QueueCounter.RINGS_REFUSED].tolist() == [1] * 3
        with pytest.raises(Timeout) as late:
            second.wait_durable(timeout=0.01)
        assert isinstance(late.value.__cause__, StorageError)
        assert "no memory for a ring of this publisher" in str(late.value.__cause__)
        first.close()
        one.until_durable(second)
        assert one.payloads() == [b"1", b"2"]
