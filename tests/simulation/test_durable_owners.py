"""A topic's queues move from engine to engine with the positions of subscriptions, and the logs.

Each owner has a directory of its own: whatever one that was asleep does to its files when it wakes,
the next owner's are as they were.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.test_durable_leases import LEASE_S, TOPIC, Cluster, cluster, durable, told
from tests.support.durable import rows_of

from tidecast.api.start import Latest
from tidecast.config.topology import TopicConfig
from tidecast.errors import Fenced, NotFound, StorageError
from tidecast.events import ConsumerStandsBy, QueuesTaken
from tidecast.layout.segment import SEGMENT_HEADER_BYTES
from tidecast.log.files import segment_name
from tidecast.log.queue_files import QueueFiles, queues_of, topics_of
from tidecast.log.takeover import Owner, Owners
from tidecast.node.consumers.checks import restored
from tidecast.node.durable import maintenance
from tidecast.node.durable.topic import DurableTopic
from tidecast.queues.adapter import Record, pack, restamp
from tidecast.queues.subscription_store import SavedCursor
from tidecast.testing import SimulatedNode

OPTIONS: dict[str, Any] = {"max_deliver": 0, "ack_wait": 1.0}
BODIES = [b"%02d" % i for i in range(40)]


def hand_over(one: Cluster, to: SimulatedNode) -> None:
    """As a balancer with a plan would."""
    for node in one.net.nodes:
        keeper = node.engine.durable.leases._keeper
        assert keeper is not None
        keeper.plan(["orders"] if node is to else [], one.net.clock())
    one.until_kept(to)


def take(one: Cluster, consumer: Any, n: int, rounds: int = 50) -> list[bytes]:
    """n payloads, acked, and the acks settled and stored."""
    got: list[bytes] = []
    for _ in range(rounds):
        batch = consumer.fetch(n - len(got), 0.05)
        got += batch.payloads()
        batch.ack()
        if len(got) == n:
            break
    one.net.run(2e5)
    return got


def store(node: SimulatedNode) -> None:
    """Positions are saved by the clock of the host, ten times a second."""
    node.engine.consumers.save_all()


def test_a_subscription_goes_on_at_the_next_owner_where_it_was(tmp_path: Path) -> None:
    with cluster(tmp_path) as one:
        a = one.node("a")
        one.until_kept(a)
        client = a.connect()
        publisher = client.publisher("orders")
        for body in BODIES:
            publisher.publish(body, key=b"k")
        durable(one, publisher)
        first = client.consumer("orders", "billing", max_deliver=9)
        assert take(one, first, 10) == BODIES[:10]
        some = first.fetch(10, 1.0)
        messages = list(some)
        for message in messages[5:]:
            message.ack()  # five holes behind the watermark
        one.net.run(2e5)
        b = one.node("b")
        waiting = b.connect().consumer("orders", "billing")
        assert not waiting.fetch(1, 0.05)
        assert [e.owner for e in told(b, ConsumerStandsBy)] == ["a"]
        with pytest.raises(NotFound, match="kept by node a"):
            b.engine.consumers.get("orders", "billing")
        hand_over(one, b)
        again = list(waiting.fetch(25, 0.5))
        assert [bytes(m.data) for m in again[:5]] == BODIES[10:15], "not settled: once more"
        assert [m.attempts for m in again[:5]] == [2] * 5
        got = [bytes(m.data) for m in again]
        assert got == BODIES[10:15] + BODIES[20:], "what was acked does not come again"
        assert b.engine.consumers.get("orders", "billing").saved.max_deliver == 9
        assert not a.engine.consumers.subscriptions.get(("orders", "x"))


def test_one_that_slept_writes_no_position_over_that_of_the_next_owner(tmp_path: Path) -> None:
    with cluster(tmp_path) as one:
        a = one.node("a")
        one.until_kept(a)
        publisher = a.connect().publisher("orders")
        for body in BODIES:
            publisher.publish(body, key=b"k")
        durable(one, publisher)
        sleeper = a.connect().consumer("orders", "billing")
        assert take(one, sleeper, 10) == BODIES[:10]
        store(a)
        late = sleeper.fetch(20, 1.0)
        one.net.nodes.remove(a)
        b = one.node("b")
        one.until_kept(b)
        consumer = b.connect().consumer("orders", "billing")
        assert take(one, consumer, 5) == BODIES[10:15]
        store(b)
        late.ack()
        a.engine.consumers.work(one.net.clock())
        store(a)  # within a cycle, before it has looked at anything
        one.net.kill(b)
        one.net.nodes.append(a)
        assert one.net.run(20e6, until=lambda: [e.epoch for e in told(a, QueuesTaken)] == [1, 3])
        got = {body for _ in range(4) for body in take(one, sleeper, 10, rounds=3)}
        assert got == set(BODIES[15:]), "b's position, not what a wrote in its sleep"


def test_a_consumer_may_open_a_subscription_before_its_engine_has_the_queues(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path) as one:
        a = one.node("a")
        one.until_kept(a)
        publisher = a.connect().publisher("orders")
        publisher.publish(b"before")
        durable(one, publisher)
        b = one.node("b")
        consumer = b.connect().consumer("orders", "fresh", start=Latest())
        gone = b.connect().consumer("orders", "never used")
        gone.close()
        publisher.publish(b"after")
        durable(one, publisher)
        hand_over(one, b)
        assert take(one, consumer, 1) == [b"after"]
        assert [s["name"] for s in b.engine.consumers.perform("list", {})] == ["fresh"]


@pytest.fixture
def all_are_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner that hands over begins new segments, however small the old ones are."""
    monkeypatch.setattr(maintenance, "COPIED_BYTES_MAX", SEGMENT_HEADER_BYTES)


@pytest.mark.usefixtures("all_are_sealed")
def test_what_is_handed_over_is_linked_and_not_copied(tmp_path: Path) -> None:
    with cluster(tmp_path) as one:
        a = one.node("a")
        one.until_kept(a)
        publisher = a.connect().publisher("orders", producer="p")
        for body in BODIES:
            publisher.publish(body, key=b"k")
        durable(one, publisher)
        b = one.node("b")
        hand_over(one, b)
        log = next(one for one in b.engine.durable.topics["orders"].logs if one.next_token)
        old, fresh = (log.directory / segment_name(each.base_token) for each in log.segments)
        assert old.stat().st_nlink == 2, "in the directory of the owner before, too"
        assert fresh.stat().st_size == SEGMENT_HEADER_BYTES
        assert log.recovered.scanned_bytes == SEGMENT_HEADER_BYTES
        publisher.publish(b"more", key=b"k")
        durable(one, publisher)
        hand_over(one, a)
        again = b.connect().publisher("orders", producer="p", first_seq=1)
        for body in [*BODIES, b"more", b"last"]:
            again.publish(body, key=b"k")
        durable(one, again)
        assert one.payloads() == [*BODIES, b"more", b"last"], "what it repeats is known"


@pytest.mark.usefixtures("all_are_sealed")
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_skipped_over_many_owners(tmp_path: Path, seed: int) -> None:
    moves(tmp_path, seed, 6)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
def test_nothing_is_skipped_over_very_many_owners(tmp_path: Path, seed: int) -> None:
    moves(tmp_path, seed, 30)


def moves(tmp_path: Path, seed: int, rounds: int) -> None:
    """Owners sleep, die, and hand over, while each has a consumer that acks what it likes."""
    chance = random.Random(seed)
    with cluster(tmp_path, seed) as one:
        nodes = [one.node(name) for name in "ab"]
        source = one.net.node("source", topics=[TOPIC], node={"leases": {"directory": "/nowhere"}})
        source.engine.durable.leases._keeper = None  # it only publishes
        publisher = source.connect().publisher("orders")
        consumers = {n.name: n.connect().consumer("orders", "s", **OPTIONS) for n in nodes}
        acked: set[bytes] = set()
        sent = 0
        for _ in range(rounds):
            n = chance.randrange(1, 40)
            publisher.publish_batch([b"%d" % i for i in range(sent, sent + n)])
            sent += n
            keeper = one.until_kept()
            batch = consumers[keeper.name].fetch(chance.randrange(1, 60), 0.02)
            for message in batch:
                if chance.random() < 0.8:
                    acked.add(bytes(message.data))
                    message.ack()
            what = chance.randrange(3)
            if what == 0:
                again = one.net.restart(keeper)
                again.engine.durable.leases._store._clock_ns = one.net.clock  # type: ignore[attr-defined]
                consumers[again.name] = again.connect().consumer("orders", "s", **OPTIONS)
            elif what == 1:
                one.net.nodes.remove(keeper)
                one.net.run(3 * LEASE_S * 1e6)
                store(keeper)
                one.net.nodes.append(keeper)
            else:
                one.net.run(chance.randrange(1, 2_000_000))
        durable(one, publisher)
        for _ in range(40):
            one.net.run(1.1e6)  # what was taken and not acked comes again
            batch = consumers[one.until_kept().name].fetch(1000, 0.01)
            acked.update(batch.payloads())
            batch.ack()
            if len(acked) == sent:
                break
        assert acked == {b"%d" % i for i in range(sent)}


# --- on disk ------------------------------------------------------------------------------------


def append(topic: DurableTopic, n: int, queue: int = 0) -> None:
    log = topic.logs[queue]
    run = pack([Record(b"x" * 1000)] * n)
    restamp(run, log.next_token, topic.owner, 1)
    log.append(run, run.size, 1)
    log.sync()


def opened(directory: Path, owner: int, config: TopicConfig = TOPIC) -> DurableTopic:
    return DurableTopic.open(config, directory, 1, owner=owner, name=f"n{owner}")


def test_a_roll_of_one_that_slept_harms_nothing_of_the_next_owner(tmp_path: Path) -> None:
    first = opened(tmp_path, 1)
    append(first, 30)
    second = opened(tmp_path, 2)
    append(first, 5)  # it looked at the owner before it fell asleep: this is acked to nobody
    append(second, 10)
    for each in (second, first):  # both begin a segment, the second where the first did
        each.logs[0].roll(2, b"snapshot")
    append(second, 60)
    first.logs[0].retain(bytes_max=1, now_ns=3)
    assert (second.directory / "00000").is_dir()
    files = sorted(path.name for path in (second.directory / "00000").iterdir())
    assert not [name for name in files if "035" in name], "nothing of the first's new segment"
    second.close()
    third = opened(tmp_path, 3)
    assert [row[1] for row in rows_of(third)] == list(range(100))
    assert not third.torn
    assert third.logs[0].recovered.indexes_rebuilt == []
    with pytest.raises(StorageError, match="another engine owns it now"):
        first.roll(0, 3, {})
    for each in (first, third):
        each.close()


def test_whoever_claims_late_changes_nothing(tmp_path: Path) -> None:
    owners = Owners(tmp_path / "queues", "orders")
    second = opened(tmp_path, 5)
    append(second, 3)
    (owners.directory / "0000000004").mkdir()  # claimed before the second looked, and slept
    assert second.owned
    owners.show(4)  # and woke
    assert owners.current() == Owner(5, "n5", 1)
    owners.show(5)  # the owner sets it right
    assert QueueFiles(tmp_path, "orders", 0).end_token() == 3
    with pytest.raises(Fenced, match="node n5 owns these queues with epoch 5"):
        opened(tmp_path, 4)
    (owners.directory / "0000000006").mkdir()  # claimed, and died amid it
    assert not second.owned
    third = opened(tmp_path, 7)
    assert third.logs[0].next_token == 3
    owners.sweep(7)
    assert [path.name for path in owners.directory.iterdir()] == ["0000000007"]
    for each in (second, third):
        each.close()


def test_a_take_over_that_fails_leaves_all_as_it_was(tmp_path: Path) -> None:
    first = opened(tmp_path, 1)
    append(first, 3)
    first.close()
    (first.directory / "map.json").write_bytes(b"{")
    with pytest.raises(Exception, match=r"map\.json"):
        opened(tmp_path, 2)
    assert first.owned
    assert topics_of(tmp_path) == ["orders"]
    assert queues_of(tmp_path, "orders") == [0, 1]


def test_queues_become_shared_and_one_engines_again(tmp_path: Path) -> None:
    alone = opened(tmp_path, 0)
    append(alone, 3)
    shared = opened(tmp_path, 1)
    append(shared, 2)
    assert (tmp_path / "queues" / "orders").is_symlink()
    assert QueueFiles(tmp_path, "orders", 0).end_token() == 5
    again = opened(tmp_path, 0)
    assert not shared.owned
    append(again, 1)
    assert [row[1] for row in rows_of(again)] == list(range(6))
    shared.delete()
    assert topics_of(tmp_path) == ["orders"], "not its own any more"
    again.delete()
    assert topics_of(tmp_path) == []
    for each in (alone, shared):
        each.close()


def test_a_position_beyond_the_log_begins_at_its_end() -> None:
    saved = SavedCursor("orders", 0, 90, [(95, 97), (99, 120)], [(98, 2), (130, 3)])
    token, rows = restored(saved, 100)
    assert token == 90
    assert rows.tolist() == [[95, 97, -1], [98, 99, 2], [99, 100, -1]]
    token, rows = restored(saved, 80)
    assert (token, rows.tolist()) == (80, [])
