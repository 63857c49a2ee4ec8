"""Dead letters whose topic another engine keeps: each is stored once, whatever crashes when."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.simulation.test_durable_leases import TOPIC, given
from tests.simulation.test_durable_leases import cluster as sharing
from tests.support.durable import rows_of

from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError, Conflict, NotFound
from tidecast.events import MessageDropped
from tidecast.layout import packet as wire
from tidecast.node.consumers.dead_letters import DeadLetters
from tidecast.node.consumers.letters import remote_redrive
from tidecast.node.consumers.letters.numbered import NumberedLetters
from tidecast.node.consumers.service import DurableSubscriptions
from tidecast.queues.records import is_of_engine, records_from
from tidecast.queues.subscription_store import LetterNumbers, SavedCursor
from tidecast.testing import Network, SimulatedNode

N = 12
ORDERS = TopicConfig(name="orders", mode="durable", owner="b", fsync="batch", queues=2)
DEAD = TopicConfig(name="dead", mode="durable", owner="a", fsync="batch", queues=2)


def letters(node: SimulatedNode) -> list[bytes]:
    return sorted(row[3] for row in rows_of(node.engine.durable.topics["dead"]))


def marks(node: SimulatedNode) -> list[bool]:
    """Of each letter: an engine made it."""
    logs: list[Any] = node.engine.durable.topics["dead"].logs
    return [is_of_engine(raw) for log in logs for _, raw in records_from(log, log.earliest_token)]


def of_engine(node: SimulatedNode) -> Any:
    """The engine's own client; while it waits, all nodes run."""
    client: Any = node.connect()
    node.engine.context.clients[client.link.client_id].of_engine = client.link.of_engine = True
    return client


class Pair:
    """Node ``a`` keeps the dead letters of ``b``."""

    def __init__(self, net: Network, *topics: TopicConfig, level: int = 1) -> None:
        self.net, topics = net, topics or (ORDERS, DEAD)
        self.a, self.b = (net.node(name, topics=topics, level=level) for name in "ab")

    def join(self) -> Any:
        consumer = self.b.connect().consumer("orders", "billing", dead_letter="dead", max_deliver=0)
        self.net.run(1000)
        return consumer

    def publish(self, n: int = N) -> list[bytes]:
        sent = [b"%d" % i for i in range(n)]
        publisher = self.b.connect().publisher("orders")
        for one in sent:
            publisher.publish(one, key=one)
        publisher.wait_durable(timeout=60.0)
        return sorted(sent)

    def restart(self, name: str) -> None:
        again = self.net.restart(name)
        setattr(self, name, again)

    def open(self) -> Any:
        return self.b.engine.consumers.subscriptions["orders", "billing"].saved.letters_of

    def refuse_all(self, consumer: Any) -> None:
        """Until all are settled."""
        for _ in range(200):
            for message in consumer.fetch(100, 0.05).messages:
                message.term("no")
            self.net.run(20_000)
            if consumer.info()["lag"] == 0:
                return
        raise AssertionError(consumer.info())


def test_letters_are_stored_once_and_forgotten() -> None:
    with Network(seed=1) as net:
        two = Pair(net)
        sent, consumer = two.publish(), two.join()
        two.refuse_all(consumer)
        assert letters(two.a) == sent
        net.run(200_000)
        [numbers] = two.open().values()
        assert (numbers.durable_seq, numbers.sent, numbers.stored) == (N, [], [])
        two.publish(3)
        two.refuse_all(consumer)
        assert letters(two.a) == sorted([*sent, b"0", b"1", b"2"])


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_redrive_names_the_engine_that_keeps_the_letters(dry_run: bool) -> None:
    with Network(seed=1) as net:
        two = Pair(net)
        sent, consumer = two.publish(), two.join()
        two.refuse_all(consumer)
        text = "dead letters of subscription billing of orders: topic dead: .* kept by node a"
        with pytest.raises(NotFound, match=text):
            consumer.redrive(dry_run=dry_run)
        assert letters(two.a) == sent
        assert two.b.engine.consumers.subscriptions["orders", "billing"].saved.dead_open == N


@pytest.mark.parametrize("level", [1, 2])
def test_the_keeper_marks_the_letters_of_another_engine(level: int) -> None:
    """From level 2 on a publisher's SETUP says that its engine itself publishes."""
    with Network(seed=1) as net:
        two = Pair(net, level=level)
        sent, consumer = two.publish(), two.join()
        two.refuse_all(consumer)
        assert letters(two.a) == sent
        plain = two.b.connect().publisher("dead")
        plain.publish(b"of a client")
        plain.wait_durable(timeout=60.0)
        assert sorted(marks(two.a)) == [False] + [level == 2] * N


def test_a_letter_keeps_its_mark_when_its_engine_crashes_before_it_is_sent() -> None:
    with Network(seed=1) as net:
        two = Pair(net, level=2)
        sent, consumer = two.publish(), two.join()
        held, b = {wire.DATA}, two.b.id
        net.intercept(lambda packet: packet.type not in held or packet.source != b)
        for message in consumer.fetch(100, 1.0).messages:
            message.term("no")
        net.run(200_000)
        assert letters(two.a) == []
        net.kill(two.b)
        held.clear()
        two.b = net.restart(two.b)
        assert net.run(10e6, until=lambda: letters(two.a) == sent)
        assert marks(two.a) == [True] * N


def test_letters_are_sent_again_by_an_engine_that_did_not_make_them(tmp_path: Path) -> None:
    """The records are gone: only the mark proves the letters. Some are read by a new keeper."""
    dead = msgspec.structs.replace(TOPIC, name="dead")
    with sharing(tmp_path) as one:
        a, b = (one.node(name, TOPIC, dead) for name in "ab")
        for node in (a, b):
            node.engine.set_level(2)
        given(one, {"orders": a, "dead": b})
        two = Pair.__new__(Pair)
        two.net, two.a, two.b = one.net, b, a
        sent, consumer = two.publish(), two.join()
        got = [each.copy() for each in consumer.fetch(100, 1.0).messages]
        for message in got[: N // 2]:
            message.term("no")
        assert one.net.run(10e6, until=lambda: len(letters(b)) == N // 2)
        one.net.intercept(lambda packet: packet.type != wire.DATA)
        for message in got[N // 2 :]:
            message.term("no")
        one.net.run(200_000)
        one.net.intercept(lambda packet: True)
        given(one, {"orders": a, "dead": a})
        two.refuse_all(consumer)
        assert letters(a) == sent
        assert marks(a) == [True] * N
        logs = a.engine.durable.topics["orders"].logs
        ends = [log.next_token for log in logs]
        a.engine.edit_topic("orders", {"retention_bytes": 1 << 16})
        filler = a.connect().publisher("orders")
        for i in range(200):
            filler.publish(bytes(2048), key=b"%d" % i, timeout=60.0)
            for message in consumer.fetch(100, 0.01).messages:
                message.ack()

        def gone() -> bool:
            return all(log.earliest_token >= end for log, end in zip(logs, ends, strict=True))

        assert one.net.run(60e6, until=gone), [log.earliest_token for log in logs]
        result = consumer.redrive()
        assert (result["records"], result["unverified"]) == (N, 0)


@pytest.mark.parametrize("to", [None, "plain"])
def test_the_engine_of_the_letters_sends_them_again(to: str | None) -> None:
    plain = msgspec.structs.replace(ORDERS, name="plain")
    with Network(seed=1) as net:
        two = Pair(net, ORDERS, DEAD, plain, level=2)
        sent, consumer = two.publish(), two.join()
        two.refuse_all(consumer)
        keeper, own, name = two.a.engine.consumers, two.b.engine.consumers, ("orders", "billing")
        keeper.letters._clients.update({False: of_engine(two.a), True: two.a.connect()})
        audit = two.b.connect().consumer(to or "orders", "audit", start="latest")
        found: list[bytes] = []
        for limit, records in ((5, 5), (100, N - 5), (100, 0)):
            page: dict[str, Any] = {"marks": remote_redrive.marks_of(own, *name), "limit": limit}
            assert not page["marks"]["here"]
            plan = remote_redrive.send_page(keeper, *name, dry_run=True, to=to, **page)
            result = remote_redrive.send_page(keeper, *name, dry_run=False, to=to, **page)
            assert plan["records"] == result["records"] == records
            remote_redrive.note_page(own, *name, result["sent"])
            saved = own.subscriptions[name].saved
            assert saved.dead_open == N - min(N, len(found) + records)
            for message in (audit if to else consumer).fetch(100, 0.1).messages:
                found.append(bytes(message.data))
                message.ack()
        assert sorted(found) == sent
        assert to or len(audit.fetch(100, 0.1).messages) == 0


def test_redrives_that_meet_send_each_letter_once() -> None:
    """A second request has the marks of before the first one's note; then a note gets lost."""
    with Network(seed=1) as net:
        two = Pair(net, level=2)
        sent, consumer = two.publish(), two.join()
        two.refuse_all(consumer)
        keeper, own, name = two.a.engine.consumers, two.b.engine.consumers, ("orders", "billing")
        keeper.letters._clients.update({False: of_engine(two.a), True: two.a.connect()})
        marks = remote_redrive.marks_of(own, *name)

        def page(**options: Any) -> dict[str, Any]:
            return remote_redrive.send_page(keeper, *name, marks=marks, **options)

        first = page(limit=5, dry_run=False)
        assert page(limit=100, dry_run=True)["records"] == N - 5
        second = page(limit=4, dry_run=False)
        assert (first["records"], second["records"]) == (5, 4)
        remote_redrive.note_page(own, *name, second["sent"])  # those of the first page, too
        saved = own.subscriptions[name].saved
        assert saved.dead_open == N - 9
        remote_redrive.note_page(own, *name, first["sent"])  # it comes late
        assert saved.dead_open == N - 9
        marks = remote_redrive.marks_of(own, *name)
        third = page(limit=100, dry_run=False)
        assert third["records"] == N - 9
        assert len(third["sent"]["done"]) == N - 9, "the marks have the others, also the late ones"
        found = [bytes(message.data) for message in consumer.fetch(100, 0.1).messages]
        assert sorted(found) == sent


@pytest.mark.parametrize("both_know", [True, False])
def test_letters_of_a_topic_that_is_made_anew_are_sent(both_know: bool) -> None:
    """Marks of the deleted letters hid them for ever. The engine of the records may not know."""
    with Network(seed=1) as net:
        two = Pair(net, level=2)
        two.publish()
        consumer = two.join()
        two.refuse_all(consumer)
        keeper, own, name = two.a.engine.consumers, two.b.engine.consumers, ("orders", "billing")
        keeper.letters._clients.update({False: of_engine(two.a), True: two.a.connect()})

        def redrive() -> int:
            marks = remote_redrive.marks_of(own, *name)
            page = remote_redrive.send_page(keeper, *name, marks=marks, limit=100, dry_run=False)
            remote_redrive.note_page(own, *name, page["sent"])
            return int(page["records"])

        assert redrive() == N
        for message in consumer.fetch(100, 0.1).messages:
            message.ack()
        for node in (two.a, two.b) if both_know else (two.a,):
            node.engine.delete_topic("dead")
            node.engine.create_topic(DEAD)
        net.run(200_000)
        if both_know:
            assert own.subscriptions[name].saved.dead_open == 0
        again = N if both_know else 2
        two.publish(again)
        two.refuse_all(consumer)
        assert len(letters(two.a)) == again
        assert [redrive(), redrive()] == [again, 0]
        assert own.subscriptions[name].saved.dead_open == 0


def test_letters_are_sent_again_elsewhere_from_level_2_on_and_with_sound_marks() -> None:
    with Network(seed=1) as net:
        two = Pair(net, level=1)
        two.publish(1)
        two.refuse_all(two.join())
        keeper, name = two.a.engine.consumers, ("orders", "billing")
        marks = remote_redrive.marks_of(two.b.engine.consumers, *name)
        with pytest.raises(Conflict, match="level 1: from level 2 on"):
            remote_redrive.send_page(keeper, *name, marks=marks, limit=1, dry_run=True)
        for level in (two.a, two.b):
            level.engine.set_level(2)
        lost, bad = marks | {"dead_letter": "none"}, marks | {"redriven": [["x", 1]]}
        with pytest.raises(NotFound, match="topic none"):
            remote_redrive.send_page(keeper, *name, marks=lost, limit=1, dry_run=True)
        with pytest.raises(ConfigError, match=r"marks: .*redriven"):
            remote_redrive.send_page(keeper, *name, marks=bad, limit=1, dry_run=True)
        with pytest.raises(ConfigError, match="limit: 0: allowed 1 to"):
            remote_redrive.send_page(keeper, *name, marks=marks, limit=0, dry_run=True)


def test_a_crash_before_the_positions_are_saved_stores_no_letter_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Network(seed=1) as net:
        two = Pair(net)
        sent, consumer = two.publish(), two.join()
        with monkeypatch.context() as patched:
            patched.setattr(DurableSubscriptions, "save_all", lambda self: None)
            for message in consumer.fetch(100, 1.0).messages:
                message.term("no")
            assert net.run(10e6, until=lambda: len(letters(two.a)) == N)
            net.run(100_000)
            two.restart("b")
        two.refuse_all(two.join())
        assert letters(two.a) == sent


@pytest.mark.parametrize("seed", range(12))
def test_crashes_at_any_time_lose_and_double_no_letter(seed: int) -> None:
    chance = random.Random(seed)
    with Network(seed=seed, drop=chance.choice([0.0, 0.1])) as net:
        two = Pair(net)
        sent = two.publish()
        for _ in range(4):
            consumer = two.join()
            for message in consumer.fetch(chance.randrange(1, N), 0.05).messages:
                message.term("no")
            net.run(chance.choice([50, 500, 5_000, 120_000]))
            killed = chance.choice("abb")
            two.restart(killed)
            if killed == "a":
                consumer.close()
        two.refuse_all(two.join())
        assert letters(two.a) == sent


def test_a_record_that_is_given_up_after_a_seek_has_another_letter() -> None:
    with Network(seed=1) as net:
        two = Pair(net)
        sent, consumer = two.publish(), two.join()
        two.refuse_all(consumer)
        consumer.seek("earliest")
        two.refuse_all(consumer)
        assert letters(two.a) == sorted(sent * 2)


def test_a_keeper_that_is_away_delays_no_other_letters() -> None:
    near = TopicConfig(name="near", mode="durable", owner="b", fsync="batch")
    with Network(seed=1) as net:
        two = Pair(net, ORDERS, DEAD, near)
        two.publish()
        far = two.join()
        net.partition("a", "b")
        for message in far.fetch(100, 1.0).messages:
            message.term("no")
        client = two.b.connect()
        with client.consumer("orders", "other", dead_letter="near") as other:
            two.refuse_all(other)
        assert len(rows_of(two.b.engine.durable.topics["near"])) == N
        assert letters(two.a) == []
        net.heal()
        two.refuse_all(far)
        assert len(letters(two.a)) == N


def test_a_topic_that_is_made_anew_gets_letters() -> None:
    with Network(seed=1) as net:
        two = Pair(net)
        sent, consumer = two.publish(), two.join()
        two.refuse_all(consumer)
        two.a.engine.delete_topic("dead")
        two.a.engine.create_topic(DEAD)
        net.run(200_000)
        two.restart("b")
        consumer = two.join()
        consumer.seek("earliest")
        two.refuse_all(consumer)
        assert letters(two.a) == sent


def test_a_keeper_that_lost_the_last_letters_gets_those_of_another_producer() -> None:
    with Network(seed=1) as net:
        two = Pair(net)
        sent, consumer = two.publish(), two.join()
        two.refuse_all(consumer)
        net.run(200_000)
        numbers = two.open()["orders"]
        numbers.note_durable(N + 5)
        numbers.next_seq = N + 6
        producer = numbers.producer
        consumer.seek("earliest")  # this saves them
        two.restart("b")
        two.refuse_all(two.join())
        assert letters(two.a) == sorted(sent * 2)
        assert two.open()["orders"].producer != producer


def test_a_record_that_is_deleted_before_its_letter_is_known_to_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper is asked for the last number; the others are sent behind it."""
    topics = [TOPIC, msgspec.structs.replace(TOPIC, name="dead")]
    with sharing(tmp_path) as one:
        a = one.node("a", *topics)
        given(one, {"orders": a, "dead": a})
        two = Pair.__new__(Pair)
        two.net, two.a, two.b = one.net, a, a
        sent, consumer = two.publish(), two.join()
        got = [each.copy() for each in consumer.fetch(100, 1.0).messages]
        with monkeypatch.context() as patched:
            patched.setattr(NumberedLetters, "_send", lambda self, one: None)
            for message in got:
                message.term("no")
            one.net.run(200_000)
            one.net.kill(a)
        gone = (got[-1].token.queue, got[-1].token.sequence)
        read = DeadLetters._record

        def deleted(self: DeadLetters, cursor: Any, token: int) -> Any:
            if (cursor.here.queue, token) == gone:
                raise NotFound("deleted")
            return read(self, cursor, token)

        monkeypatch.setattr(DeadLetters, "_record", deleted)
        two.a = two.b = again = one.net.restart(a)
        again.engine.durable.leases._store._clock_ns = one.net.clock  # type: ignore[attr-defined]
        given(one, {"orders": again, "dead": again})
        client = again.connect()
        consumer = client.consumer("orders", "billing", dead_letter="dead", max_deliver=0)
        two.refuse_all(consumer)
        assert letters(again) == sorted(set(sent) - {got[-1].data})
        assert [e.token for e in client.events() if isinstance(e, MessageDropped)] == [gone[1]]


@pytest.mark.parametrize("us", [100, 3_000, 150_000])
def test_the_next_keeper_of_the_records_goes_on_with_the_numbers(tmp_path: Path, us: int) -> None:
    dead = TopicConfig(name="dead", mode="durable", owner="c", fsync="batch", queues=2)
    with sharing(tmp_path) as one:
        a, b = one.node("a", TOPIC, dead), one.node("b", TOPIC, dead)
        c = one.net.node("c", topics=[dead])
        given(one, {"orders": a})
        two = Pair.__new__(Pair)
        two.net, two.a, two.b = one.net, c, a
        sent, consumer = two.publish(), two.join()
        for message in consumer.fetch(100, 1.0).messages:
            message.term("no")
        one.net.run(us)
        one.net.kill(a)
        given(one, {"orders": b})
        two.b = b
        two.refuse_all(two.join())
        assert letters(c) == sent


def test_numbers_follow_what_is_known_of_letters() -> None:
    numbers = LetterNumbers(dead_letter="dead", producer="p")
    for token in range(6):
        numbers.add(0, token, 1, "no")
    numbers.give_back(6)
    assert ([each.seq for each in numbers.sent], numbers.next_seq) == ([1, 2, 3, 4, 5], 6)
    numbers.note_durable(2)
    assert (numbers.durable_seq, numbers.stored) == (2, [(0, 0), (0, 1)])
    numbers.drop_settled({0: SavedCursor("orders", 0, 1)})
    assert numbers.stored == [(0, 1)]
    numbers.drop_settled({0: SavedCursor("orders", 0, 0, acked=[(1, 2)])})
    assert numbers.stored == []
    numbers.resume_behind(4)
    assert numbers.stored == [(0, 2), (0, 3)]
    assert (numbers.durable_seq, numbers.sent, numbers.next_seq) == (4, [], 5)
    numbers.add(0, 9, 1, "no")
    numbers.renumber("q")
    assert ([each.seq for each in numbers.sent], numbers.next_seq) == ([1], 2)
    assert (numbers.durable_seq, numbers.producer) == (0, "q")
