"""Durable consumers of an embedded node: fetch, iterate, settle, share, seek, pause, restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.clients import nothing_comes
from tests.support.loop_link import LoopLink
from tests.support.patience import Patience, wait_until

import tidecast
import tidecast.sync
from tidecast.api.link import ConsumerOptions
from tidecast.api.start import Earliest, Latest, Time, Tokens
from tidecast.buffers import member_ring
from tidecast.client.consumer.core import filter_options
from tidecast.config.topology import TopicConfig, Topology, TransportConfig, topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import ConfigError, Conflict, Fenced, NotFound
from tidecast.events import SubscriptionDamaged
from tidecast.layout.subscription_counters import SubscriptionCounter
from tidecast.node.consumers import redrive as again
from tidecast.sync import Connection


def topology(**topic: object) -> Topology:
    topics = [
        TopicConfig(name=name, transport="ipc", mode="durable", fsync="none", queues=2, **topic)  # type: ignore[arg-type]
        for name in ("orders", "orders.eu", "dead")
    ]
    topics.append(TopicConfig(name="live", transport="ipc"))
    return topology_from(
        Topology(transports=[TransportConfig(name="ipc", kind="ipc")], topics=topics)
    )


def connected(data_dir: Path, **topic: object) -> Connection:
    link = EmbeddedLink.open(topology(**topic), data_dir=data_dir)
    return tidecast.sync.connect(link=link)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Connection]:
    with connected(tmp_path) as one:
        yield one


def publish(client: Connection, *bodies: bytes, topic: str = "orders", keys: int = 3) -> None:
    publisher = client.publisher(topic)
    for i, body in enumerate(bodies):
        publisher.publish(body, key=b"k%d" % (i % keys), headers={"n": i})
    publisher.close()


def take(consumer: tidecast.sync.Consumer, n: int, wait: float = 5.0) -> list[bytes]:
    """n payloads, acked."""
    got: list[bytes] = []
    patience = Patience(wait)
    while len(got) < n and not patience.over():
        batch = consumer.fetch(n - len(got), 0.5)
        got += batch.payloads()
        batch.ack()
    return got


BODIES = [b"m%02d" % i for i in range(30)]


def test_an_empty_fetch_is_an_empty_batch(client: Connection) -> None:
    with client.consumer("orders", "billing") as consumer:
        batch = consumer.fetch(10, 0.01)
        assert not batch
        assert batch.payloads() == []
        batch.ack()


def test_all_comes_once_with_key_headers_and_token(client: Connection) -> None:
    with client.consumer("orders", "billing") as consumer:
        publish(client, *BODIES)
        seen = {}
        for message in consumer:
            seen[bytes(message.data)] = (message.key, message.headers["n"], message.token.queue)
            assert message.attempts == 1
            assert abs(message.timestamp - time.time_ns()) < 60e9
            message.ack()
            if len(seen) == 30:
                break
        assert sorted(seen) == BODIES
        assert seen[b"m07"][:2] == (b"k1", 7)
        assert nothing_comes(consumer)


def test_a_position_survives_consumer_and_engine(tmp_path: Path) -> None:
    with connected(tmp_path) as client:
        consumer = client.consumer("orders", "billing")
        publish(client, *BODIES)
        got = take(consumer, 10)
        consumer.close()
        again = client.consumer("orders", "billing")
        got += take(again, 5)
    with connected(tmp_path) as client, client.consumer("orders", "billing") as consumer:
        got += take(consumer, 15)
        assert sorted(got) == BODIES
        assert nothing_comes(consumer)


def test_start_positions(client: Connection) -> None:
    with client.consumer("orders", "stored") as stored:
        publish(client, *BODIES[:10])
        assert len(take(stored, 10)) == 10
        middle = time.time_ns()
        publish(client, *BODIES[10:20])
        assert len(take(stored, 10)) == 10
    consumers = {
        "earliest": client.consumer("orders", "a", start=Earliest()),
        "latest": client.consumer("orders", "b", start="latest"),
        "time": client.consumer("orders", "c", start=Time(middle)),
        "tokens": client.consumer("orders", "d", start=Tokens({0: 5, 1: 0})),
    }
    publish(client, *BODIES[20:])
    counts = {"earliest": 30, "latest": 10, "time": 20, "tokens": 30 - 5}
    found = {name: sorted(take(one, counts[name])) for name, one in consumers.items()}
    assert found["earliest"] == BODIES
    assert found["latest"] == BODIES[20:]
    assert found["time"] == BODIES[10:]
    assert len(found["tokens"]) == 30 - 5
    for name, one in consumers.items():
        wait_until(lambda one=one: one.info()["lag"] == 0, 5.0, f"{name}: there is no more")


def test_nak_comes_again_and_the_key_waits(client: Connection) -> None:
    with client.consumer("orders", "billing") as consumer:
        publish(client, *BODIES[:6], keys=1)
        order = []
        for message in consumer:
            body = bytes(message.data)
            if body == b"m02" and message.attempts == 1:
                message.nak()
                continue
            order.append((body, message.attempts))
            message.ack()
            if body == b"m05":
                break
        assert order == [(body, 1 + (body == b"m02")) for body in BODIES[:6]]


def test_members_share_queues_and_a_leaving_one_hands_over(client: Connection) -> None:
    one = client.consumer("orders", "billing")
    other = client.consumer("orders", "billing")
    publish(client, *BODIES)
    first = one.fetch(100, 2.0)
    second = other.fetch(100, 2.0)
    assert first
    assert second
    a, b = set(first.payloads()), set(second.payloads())
    assert not a & b
    second.ack()
    one.close()  # without acking
    rest = take(other, 30 - len(b))
    assert sorted([*b, *rest]) == BODIES


def test_seek_to_a_time_and_to_tokens(client: Connection) -> None:
    with client.consumer("orders", "billing") as consumer:
        publish(client, *BODIES[:10])
        early: list[Any] = []
        while len(early) < 10:
            early += [message.copy() for message in consumer.fetch(10, 5.0)]
        middle = time.time_ns()
        publish(client, *BODIES[10:])
        assert len(take(consumer, 20)) == 20
        consumer.seek(Time(middle))
        assert sorted(take(consumer, 20)) == BODIES[10:]
        queue = early[0].token.queue
        there = [one.data for one in early if one.token.queue == queue]
        consumer.seek(Tokens({queue: early[0].token.sequence + 1}))
        again = take(consumer, 40, 0.6)
        assert again[: len(there) - 1] == there[1:]
        assert len(again) < 30, "another queue stays where it is"


def test_pause_resume_seek_and_info(client: Connection) -> None:
    with client.consumer("orders", "billing") as consumer:
        publish(client, *BODIES)
        assert len(take(consumer, 30)) == 30
        consumer.pause()
        moves = consumer.seek(Earliest(), dry_run=True)
        assert sum(row["records"] for row in moves) == -30
        assert nothing_comes(consumer)
        consumer.seek(Earliest())
        info = consumer.info()
        assert info["lag"] == 30
        assert info["lag_s"] > 0, "since the oldest was appended"
        assert [row["position"] for row in info["cursors"]] == [0, 0]
        assert info["paused"]
        assert {row["reason"] for row in info["cursors"]} == {"paused"}
        assert nothing_comes(consumer)
        consumer.resume()
        assert sorted(take(consumer, 30)) == BODIES
        wait_until(lambda: consumer.info()["lag"] == 0, 5.0, "settled")
        assert len(consumer.info()["members"]) == 1


def test_a8_a_restart_begins_at_the_earliest_that_is_not_settled(tmp_path: Path) -> None:
    with connected(tmp_path) as client, client.consumer("orders", "billing") as consumer:
        publish(client, *BODIES)
        got: list[Any] = []
        while len(got) < 30:
            got += [message.copy() for message in consumer.fetch(30, 5.0)]
        held = got[10]
        for message in got:
            if message is not held:
                message.ack()
        token = held.token
    with connected(tmp_path) as client, client.consumer("orders", "billing") as consumer:
        again = consumer.next(timeout=5.0)
        assert (again.data, again.token) == (held.data, token)


def test_run_handles_each_key_in_order_with_many_workers(client: Connection) -> None:
    with client.consumer("orders", "billing") as consumer:
        publish(client, *BODIES)
        seen: dict[bytes | None, list[bytes]] = {}
        failed: set[bytes] = set()

        def handle(message: tidecast.sync.DurableMessage) -> None:
            body = bytes(message.data)
            if body in (b"m04", b"m11") and body not in failed:
                failed.add(body)
                raise ValueError("once")
            seen.setdefault(message.key, []).append(body)
            if sum(len(each) for each in seen.values()) == 30:
                consumer._draining = True

        consumer.run(handle, concurrency=4, nak_delay=0.01)
        assert seen == {b"k%d" % k: BODIES[k::3] for k in range(3)}


def test_run_compiled_acks_what_it_handled(client: Connection) -> None:
    import numpy as np

    def handle(data, state):  # type: ignore[no-untyped-def]
        state[0] += 1
        state[1] += data.size

    with client.consumer("orders", "billing") as consumer:
        publish(client, *BODIES)
        state = np.zeros(2, dtype=np.int64)
        assert consumer.run_compiled(handle, state, max_messages=30, duration_s=20) == 30
        assert state.tolist() == [30, 90]
        patience = Patience(5.0)
        while consumer.info()["lag"] and not patience.over():
            consumer.fetch(1, 0.01)
        assert consumer.info()["lag"] == 0


def test_dead_letters_say_why_and_come_again_for_one_subscription_only(client: Connection) -> None:
    with (
        client.consumer("orders", "a", max_deliver=2, dead_letter="dead") as consumer,
        client.consumer("orders", "b") as other,
        client.consumer("dead", "watch") as graveyard,
    ):
        publish(client, *BODIES[:5], keys=1)
        good: list[bytes] = []
        refused = 0
        while len(good) < 3 or refused < 2:
            for message in consumer.fetch(10, 5.0):
                if bytes(message.data) == b"m01":
                    message.nak()
                    refused += 1
                elif bytes(message.data) == b"m03":
                    message.term("no customer")
                else:
                    good.append(bytes(message.data))
                    message.ack()
        letters: dict[bytes, dict] = {}
        while len(letters) < 2:
            for message in graveyard.fetch(10, 5.0):
                letters[bytes(message.data)] = message.headers
        assert letters[b"m03"]["dead-reason"] == "no customer"
        assert (letters[b"m01"]["dead-attempts"], letters[b"m01"]["dead-topic"]) == (2, "orders")
        assert letters[b"m01"]["n"] == 1
        assert sorted(take(other, 5)) == BODIES[:5]
        saved = client.link.node.consumers.get("orders", "a").saved  # type: ignore[attr-defined]
        wait_until(lambda: saved.dead_open == 2, 5.0, "both counted")
        assert consumer.redrive(dry_run=True)["records"] == 2
        some = 'value == "m03" and headers["n"] == 3 and headers["dead-attempts"] == 1'
        assert consumer.redrive(dry_run=True, where=some)["records"] == 1
        assert consumer.redrive(where='key == "nobody"')["records"] == 0
        assert saved.dead_open == 2
        with pytest.raises(ConfigError, match="'price' at character 1"):
            consumer.redrive(where="price > 3")
        assert consumer.redrive(reason="customer")["records"] == 1
        assert saved.dead_open == 1
        assert take(consumer, 1) == [b"m03"]
        assert consumer.redrive()["records"] == 1
        assert take(consumer, 1) == [b"m01"]
        assert consumer.redrive()["records"] == 0
        assert saved.dead_open == 0
        assert not other.fetch(10, 0.1)


def test_a_redrive_goes_page_by_page_and_does_not_read_again_what_is_done(
    client: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(again, "SCANNED_MAX", 4)
    publish(client, *BODIES[:6], keys=6)
    with client.consumer("orders", "work", dead_letter="dead") as consumer:
        refused = 0
        while refused < 6:
            for message in consumer.fetch(10, 5.0):
                message.term("bad" if bytes(message.data) in BODIES[:5] else "worse")
                refused += 1
        with client.consumer("dead", "graveyard") as graveyard:
            assert len(take(graveyard, 6)) == 6
        pages = [consumer.redrive(dry_run=True, reason="bad")]
        while pages[-1]["next"]:
            pages.append(consumer.redrive(dry_run=True, reason="bad", after=pages[-1]["next"]))
        assert [page["scanned"] for page in pages] == [4, 2]
        assert sum(page["records"] for page in pages) == 5
        node: Any = client.link.node  # type: ignore[attr-defined]
        which = {"pattern": "orders", "name": "work", "reason": "bad", "dry_run": True}
        counted = [again.redrive_pages(node.consumers, which, most)["records"] for most in (3, 9)]
        assert counted == [3, 5], "as REST asks for them"
        assert consumer.redrive(limit=1)["records"] == 1
        found, after = 1, None
        for _ in range(3):
            page = consumer.redrive(after=after)
            found, after = found + page["records"], page["next"]
            if after is None:
                break
        assert found == 6
        assert sorted(take(consumer, 6)) == sorted(BODIES[:6])
        assert consumer.redrive()["scanned"] == 0
        saved = client.link.node.consumers.get("orders", "work").saved  # type: ignore[attr-defined]
        assert saved.redriven == []


def test_single_acks_wake_nobody_and_are_settled_all_the_same(
    client: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursors = client.link.node.consumers.puller.state.cursors  # type: ignore[attr-defined]
    before = int(cursors["settled"].sum())
    publish(client, *BODIES[:3], keys=1)
    with client.consumer("orders", "quiet") as consumer:
        messages: list[Any] = []
        while len(messages) < 3:
            messages += [message.copy() for message in consumer.fetch(10, 5.0)]
        woken: list[int] = []
        monkeypatch.setattr(member_ring, "wake_member", lambda *rest: woken.append(rest[-1]))
        for message in messages:
            message.ack()
        wait_until(lambda: int(cursors["settled"].sum()) - before == 3, 5.0, "acks")
        assert woken == []
        messages[0].term("too late")
        assert len(woken) == 1


def test_the_counters_file_tells_lag_redeliveries_and_dead_letters(client: Connection) -> None:
    node: Any = client.link.node  # type: ignore[attr-defined]
    publish(client, *BODIES[:5], keys=5)
    with client.consumer("orders", "work") as consumer:
        while not (batch := consumer.fetch(10, 5.0)):
            pass
        first, *others = batch.messages
        first.nak()
        for message in others:
            message.ack()
        got = len(batch)
        while got < 6:
            for message in consumer.fetch(10, 5.0):
                got += 1
                if message.attempts == 2:
                    message.term("no")
                else:
                    message.ack()
        wait_until(lambda: consumer.info()["lag"] == 0, 5.0, "settled")
        node.consumers.counters.update(node.counters, now=True)
        (row,) = [row for row in node.counters.rows() if row.kind == "subscription"]
        values = {column.name: int(row.values[column]) for column in SubscriptionCounter}
        assert (row.name, row.detail) == ("orders", "work")
        assert (values["DELIVERED"], values["REDELIVERED"], values["NAKS"]) == (6, 1, 1)
        assert (values["DEAD"], values["LAG"], values["OUTSTANDING"]) == (1, 0, 0)
        assert (values["MEMBERS"], values["QUEUES"]) == (1, 2)
    client.link.administer("delete", {"pattern": "orders", "name": "work"})
    node.consumers.counters.update(node.counters, now=True)
    assert not [row for row in node.counters.rows() if row.kind == "subscription"]


def test_filters_on_key_and_headers(client: Connection) -> None:
    with (
        client.consumer("orders", "key", key="k1") as one,
        client.consumer("orders", "prefix", key="k*") as prefix,
    ):
        publish(client, *BODIES)
        assert sorted(take(one, 10)) == BODIES[1::3]
        assert sorted(take(prefix, 30)) == BODIES
        assert nothing_comes(one)
    publisher = client.publisher("orders")
    with client.consumer("orders", "eu", headers={"region": "eu"}) as eu:
        for i, body in enumerate(BODIES):
            region = "eu" if i % 2 else "us"
            publisher.publish(body, key=b"k", headers={"n": i, "region": region})
        publisher.flush()
        assert sorted(take(eu, 15)) == BODIES[1::2]


def test_a_pattern_takes_in_topics_as_they_appear(client: Connection) -> None:
    with client.consumer("orders.*", "all") as consumer:
        publish(client, b"eu", topic="orders.eu")
        assert take(consumer, 1) == [b"eu"]
        node = client.link.node  # type: ignore[attr-defined]
        node.create_topic(
            TopicConfig(name="orders.us", transport="ipc", mode="durable", fsync="none")
        )
        publish(client, b"us", topic="orders.us")
        (message,) = consumer.fetch(1, 5.0).messages
        assert (bytes(message.data), message.topic) == (b"us", "orders.us")


def nothing() -> None:
    """No handler."""


def test_what_is_wrong_is_refused(client: Connection) -> None:
    with pytest.raises(NotFound, match="create it"):
        client.consumer("nowhere", "billing")
    with pytest.raises(ConfigError, match="live"):
        client.consumer("live", "billing")
    with pytest.raises(ConfigError, match="max_in_flight"):
        client.consumer("orders", "billing", max_in_flight=0)
    client.consumer("orders", "billing", ack_wait=5)
    with pytest.raises(Conflict, match="ack_wait_s"):
        client.consumer("orders", "billing", ack_wait=6)
    consumer = client.consumer("orders", "billing")
    with pytest.raises(ConfigError, match="function of one message"):
        consumer.run(nothing)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="on_error"):
        consumer.run(print, on_error="hope")  # type: ignore[arg-type]


def test_a_deleted_subscription_ends_its_consumers(client: Connection) -> None:
    consumer = client.consumer("orders", "billing")
    client.link.administer("delete", {"pattern": "orders", "name": "billing"})
    with pytest.raises(Fenced, match="deleted"):
        take(consumer, 1)


def test_asyncio_the_same_names(tmp_path: Path) -> None:
    async def main() -> None:
        link: Any = EmbeddedLink.open(topology(), data_dir=tmp_path)
        async with tidecast.connect(link=link) as client:
            q = await client.consumer("orders", "billing")
            assert not await q.fetch(10, 0.01)
            for i, body in enumerate(BODIES):
                await client.publish("orders", body, key=b"k%d" % (i % 3))
            seen: dict[bytes | None, list[bytes]] = {}

            async def handle(message: Any) -> None:
                await asyncio.sleep(0)
                seen.setdefault(message.key, []).append(bytes(message.data))

            await q.run(handle, concurrency=4, max_messages=30)
            assert seen == {b"k%d" % k: BODIES[k::3] for k in range(3)}
            await q.seek(Earliest())
            batch = await q.fetch(1, 5.0)
            await batch.messages[0].ack()
            assert (await q.info())["lag"] >= 0

    asyncio.run(main())


def longer(key: Any, value: Any, timestamp: int) -> bool:
    """A compiled filter."""
    return len(value) > 1


def test_a_compiled_filter_belongs_to_its_subscription_also_after_a_restart(tmp_path: Path) -> None:
    with connected(tmp_path) as client:
        consumer = client.consumer("orders", "long ones", where=longer)
        publish(client, b"a", b"bb", b"c", b"dd")
        assert sorted(take(consumer, 2)) == [b"bb", b"dd"]
        with pytest.raises(Conflict, match="where"):
            client.consumer("orders", "long ones")
        with pytest.raises(Conflict, match="filter_digest"):
            client.consumer("orders", "long ones", where=lambda key, value, timestamp: True)
    with connected(tmp_path) as client:
        consumer = client.consumer("orders", "long ones", where=longer)
        publish(client, b"e", b"ff")
        assert take(consumer, 1) == [b"ff"]
        consumer.close()


def test_a_filter_as_text_is_kept_with_its_subscription(tmp_path: Path) -> None:
    text = 'key == "k1" and size > 2'
    with connected(tmp_path) as client:
        consumer = client.consumer("orders", "k1", where=text)
        publish(client, *BODIES[:6])
        assert take(consumer, 2) == [b"m01", b"m04"]
        with pytest.raises(Conflict, match="where"):
            client.consumer("orders", "k1", where="size > 3")
        with pytest.raises(ConfigError, match="'price' at character 1"):
            client.consumer("orders", "other", where="price > 3")
    with connected(tmp_path) as client:
        consumer = client.consumer("orders", "k1")
        publish(client, *BODIES[6:9])
        assert take(consumer, 1) == [b"m07"]
        assert consumer.info()["where"] == text


def test_another_engine_takes_no_compiled_filter(client: Connection, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="another one"):
        filter_options(LoopLink(tmp_path), longer)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="offered"):
        client.link.open_consumer("orders", "x", ConsumerOptions(filter_digest="0" * 16))


# --- acceptance tests by their ids, see tests/README.md ------------------------------------------
def test_a4_a_refused_member_leaves_the_subscription_as_it_was(client: Connection) -> None:
    with client.consumer("orders", "billing", max_deliver=3) as consumer:
        publish(client, *BODIES)
        seen = take(consumer, 10)
        with pytest.raises(Conflict):
            client.consumer("orders", "billing", max_deliver=4)
        assert len(consumer.info()["members"]) == 1
        assert sorted(seen + take(consumer, 20)) == BODIES


def test_d2_what_is_published_once_subscribing_returned_arrives(client: Connection) -> None:
    for i in range(5):
        with client.consumer("orders", f"late-{i}", start=Latest()) as consumer:
            publish(client, b"%d" % i)
            assert take(consumer, 1) == [b"%d" % i]
            assert nothing_comes(consumer)


def test_a_damaged_subscription_is_told_to_those_who_come_later(tmp_path: Path) -> None:
    with connected(tmp_path) as client, client.consumer("orders", "billing"):
        node = client.link.node  # type: ignore[attr-defined]
        path = node.consumers.state.store.path("orders", "billing")
    path.write_bytes(path.read_bytes()[:-1])
    with connected(tmp_path) as client:
        told = client.link.node.durable.registry.notified  # type: ignore[attr-defined]
        (event,) = [one for one in told if isinstance(one, SubscriptionDamaged)]
        assert event.file == str(path.with_suffix(".bad"))
