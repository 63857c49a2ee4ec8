"""Adapters whose system is away when the engine starts, and adapters that grow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from tests.support.feeds import RECIPE
from tests.support.kafka import Served
from tests.support.kafka_brokers import brokers, missing
from tests.support.patience import next_event, wait_until
from tests.support.ports import free_port
from tests.unit.test_consumer import publish, take, topology

import tidecast.sync
from tidecast.api.start import Latest
from tidecast.config.sources.adapters import AdapterConfig
from tidecast.config.sources.kafka import kafka_source
from tidecast.config.store import TopologyStore
from tidecast.embedded import EmbeddedLink
from tidecast.engine import adapters
from tidecast.engine.adapters import Adapters
from tidecast.errors import ConfigError, Conflict, ConnectionLost, NotFound, StorageError
from tidecast.events import AdapterOpened, AdapterWaits, Event, QueueUnreadable
from tidecast.kafka.brokers.adapter import KafkaAdapter
from tidecast.layout.counters import AdapterCounter
from tidecast.node.consumers import adapters as attached
from tidecast.queues.adapter import Counts
from tidecast.queues.generator import GeneratorAdapter
from tidecast.sync import Connection
from tidecast.telemetry import views as telemetry

E = TypeVar("E", bound=Event)
TOPIC = [{"name": "orders", "mode": "durable", "queues": 2, "fsync": "none"}]


@contextmanager
def connected(data_dir: Path) -> Iterator[Connection]:
    with tidecast.sync.connect(link=EmbeddedLink.open(topology(), data_dir=data_dir)) as client:
        yield client


def attached_of(client: Connection) -> attached.Attached:
    found: attached.Attached = client.link.node.consumers.attached  # type: ignore[attr-defined]
    return found


def kafka_adapters(client: Connection, port: int) -> Adapters:
    """Topic ``feed``: ``orders`` of the broker at a port."""
    source = kafka_source({"servers": f"127.0.0.1:{port}", "topic": "orders"})
    node = client.link.node  # type: ignore[attr-defined]
    wanted = node.topology.__class__(
        transports=node.topology.transports, adapters=[AdapterConfig(topic="feed", kafka=source)]
    )
    return Adapters((), node, TopologyStore(wanted, None))


def made_of(client: Connection, make: Callable[[], Any], monkeypatch: Any) -> Adapters:
    """Topic ``feed``: the adapter that a function makes."""
    monkeypatch.setattr(adapters, "made_by", lambda _: ("feed", "their:make", make))
    node = client.link.node  # type: ignore[attr-defined]
    return Adapters(("feed=their:make",), node, TopologyStore(node.topology, None))


def row_of(client: Connection) -> dict[str, int]:
    """Counters of the adapter, by name."""
    counters = client.link.node.counters  # type: ignore[attr-defined]
    (row,) = (each for each in counters.rows() if each.kind == "adapter")
    assert row.name == "feed"
    return {column.name: int(row.values[column]) for column in AdapterCounter}


def states(client: Connection) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.link.administer("adapters", {})
    return found


def test_an_engine_starts_while_the_cluster_is_away_and_reads_when_it_is_back(
    tmp_path: Path,
) -> None:
    port = free_port()
    with connected(tmp_path / "reader") as client:
        beside = kafka_adapters(client, port)
        beside.start()
        waits = next_event(client, AdapterWaits)
        assert (waits.topic, waits.adapter) == ("feed", "kafka")
        assert f"127.0.0.1:{port}" in waits.detail
        (state,) = states(client)
        assert (state["topic"], state["state"], state["queues"]) == ("feed", "waiting", 0)
        assert f"127.0.0.1:{port}" in state["detail"]
        assert row_of(client)["WAITING"] == 1
        sample = telemetry.sample(client.link.node, time.time_ns())  # type: ignore[attr-defined]
        assert sample["adapters"] == [state]
        link: Any = EmbeddedLink(client.link.node, "later", owns_node=False)  # type: ignore[attr-defined]
        with tidecast.sync.connect(link=link) as later:
            assert next_event(later, AdapterWaits).topic == "feed", "it stands"
        with pytest.raises(ConnectionLost, match=r"feed: adapter kafka waits for its system"):
            client.consumer("feed", "newest", start=Latest())
        with pytest.raises(Conflict, match=r"feed: its queues are those of adapter kafka"):
            client.topics.create("feed", mode="durable")
        consumer = client.consumer("feed", "reader")
        with pytest.raises(ConnectionLost, match=r"feed: adapter kafka waits"):
            consumer.seek(Latest())
        for queue in (None, 0):
            with pytest.raises(ConnectionLost, match=r"feed: adapter kafka waits"):
                client.topics.pause("feed", queue=queue)
        assert not consumer.fetch(1, max_wait=0.0)

        served = Served(tmp_path / "broker", TOPIC, listen=f"127.0.0.1:{port}")
        try:
            with tidecast.sync.connect(link=served.link) as source:
                publish(source, *(b"%d" % i for i in range(60)))
                opened = next_event(client, AdapterOpened)
                assert (opened.topic, opened.queues, opened.added) == ("feed", 2, 2)
                assert len(set(take(consumer, 60))) == 60
                assert states(client)[0]["state"] == "open"
                node = client.link.node  # type: ignore[attr-defined]
                attached_of(client).counters.update(node.counters, now=True)
                row = row_of(client)
                assert (row["QUEUES"], row["WAITING"], row["RECORDS"]) == (2, 0, 60)
                assert row["FETCHES"] >= 2
                assert row["BYTES"] > 60
                assert (row["ERRORS"], row["RECONNECTS"], row["LAG"]) == (0, 0, 0)
                assert not node.consumers.durable.standing
                beside.stop()
        finally:
            served.close()


def test_a_saved_subscription_goes_on_where_it_was_when_the_cluster_is_back(
    tmp_path: Path,
) -> None:
    port = free_port()
    served = Served(tmp_path / "broker", TOPIC, listen=f"127.0.0.1:{port}")
    with tidecast.sync.connect(link=served.link) as source:
        publish(source, *(b"%d" % i for i in range(40)))
        with connected(tmp_path / "reader") as client:
            beside = kafka_adapters(client, port)
            beside.start()
            consumer = client.consumer("feed", "reader")
            first = take(consumer, 40)
            wait_until(lambda: consumer.info()["lag"] == 0, 5.0, "all acks")
            beside.stop()
        served.endpoint.stop()
        with connected(tmp_path / "reader") as client:
            beside = kafka_adapters(client, port)
            beside.start()
            assert states(client)[0]["state"] == "waiting"
            consumer = client.consumer("feed", "reader")
            publish(source, *(b"%d" % i for i in range(40, 50)))
            again = Served.endpoint_of(served.link, f"127.0.0.1:{port}")
            try:
                assert next_event(client, AdapterOpened).topic == "feed"
                assert len({*first, *take(consumer, 10)}) == 50
            finally:
                beside.stop()
                again.stop()


@pytest.mark.long
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_broker_that_is_dead_at_the_start_and_dies_again(tmp_path: Path) -> None:
    with brokers() as kafka, connected(tmp_path) as client:
        kafka.create("orders", 2)
        for partition in range(2):
            kafka.fill("orders", [b"%d" % i for i in range(partition, 50, 2)], partition=partition)
        kafka.kill(0)
        beside = kafka_adapters(client, kafka.port(0))
        beside.start()
        assert next_event(client, AdapterWaits).topic == "feed"
        consumer = client.consumer("feed", "reader")
        kafka.start(0)
        kafka.wait_up(0)
        found = take(consumer, 50)
        for turn in range(50, 70, 10):
            kafka.kill(0)
            kafka.start(0)
            kafka.wait_up(0)
            kafka.fill("orders", [b"%d" % i for i in range(turn, turn + 10)])
            found += take(consumer, 10)
        assert sorted(int(each) for each in found) == list(range(70))
        wait_until(lambda: consumer.info()["lag"] == 0, 10.0, "all acks")
        node = client.link.node  # type: ignore[attr-defined]
        attached_of(client).counters.update(node.counters, now=True)
        row = row_of(client)
        assert (row["RECORDS"], row["LAG"], row["WAITING"]) == (70, 0, 0)
        assert row["RECONNECTS"] >= 2
        assert row["ERRORS"] >= 2
        beside.stop()


def test_what_no_attempt_can_cure_ends_the_start(tmp_path: Path) -> None:
    served = Served(tmp_path / "broker", [{"name": "others", "mode": "durable"}])
    try:
        with connected(tmp_path / "reader") as client:
            beside = kafka_adapters(client, served.endpoint.port)
            with pytest.raises(ConfigError, match=r"topic orders of .*: create it first"):
                beside.start()
            beside.stop()
            assert not states(client)
    finally:
        served.close()


def test_what_their_function_raises_ends_the_start_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(tmp_path) as client:
        beside = made_of(client, lambda: 1 // 0, monkeypatch)
        with pytest.raises(ConfigError, match=r"adapter feed=their:make: ZeroDivisionError"):
            beside.start()


def test_a_function_that_returns_no_adapter_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(tmp_path) as client:
        beside = made_of(client, lambda: None, monkeypatch)
        with pytest.raises(ConfigError, match=r"adapter feed=their:make: AttributeError"):
            beside.start()
        assert not states(client)


def test_an_adapter_that_is_detached_while_it_opens_is_not_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(tmp_path) as client:
        here = attached_of(client)
        monkeypatch.setattr(here, "_note_open", lambda topic, _: here.detach(topic))
        here.attach("feed", Grower(1, 10))
        assert not here._watches


def test_later_failures_of_any_kind_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[Exception] = [ConnectionLost("away"), ConfigError("no right"), OSError("theirs")]

    def make() -> GeneratorAdapter:
        if problems:
            raise problems.pop(0)
        return GeneratorAdapter(2, 50, RECIPE)

    with connected(tmp_path) as client:
        beside = made_of(client, make, monkeypatch)
        beside.start()
        assert next_event(client, AdapterWaits).detail == "away"
        assert next_event(client, AdapterOpened).adapter == "generator"
        assert not problems
        assert len(take(client.consumer("feed", "reader"), 100)) == 100
        beside.stop()


def test_a_stop_ends_the_wait_and_nothing_is_attached_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts, again, leave = list[int](), threading.Event(), threading.Event()
    closed: list[GeneratorAdapter] = []

    class Noted(GeneratorAdapter):
        def close(self) -> None:
            super().close()
            closed.append(self)

    def make() -> GeneratorAdapter:
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionLost("away")
        again.set()
        assert leave.wait(20.0)
        return Noted(1, 1, RECIPE)

    monkeypatch.setattr(adapters, "JOIN_S", 0.0)  # its thread hangs: a stop does not wait for it
    with connected(tmp_path) as client:
        beside = made_of(client, make, monkeypatch)
        beside.start()
        assert again.wait(20.0)
        beside.stop()
        (thread,) = (t for t in threading.enumerate() if t.name == "tidecast-adapter-of-feed")
        leave.set()
        thread.join(20.0)
        assert not thread.is_alive()
        assert (len(closed), len(attempts)) == (1, 2)
        assert [one["state"] for one in states(client)] == ["waiting"]
        attached_of(client).end()
        attached_of(client).note_waiting("feed", "kafka", "too late")
        assert not states(client)


def test_a_slow_system_delays_a_start_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave = threading.Event()

    def make() -> GeneratorAdapter:
        assert leave.wait(20.0)
        return GeneratorAdapter(2, 50, RECIPE)

    monkeypatch.setattr(adapters, "FIRST_S", 0.0)
    with connected(tmp_path) as client:
        beside = made_of(client, make, monkeypatch)
        beside.start()
        assert states(client)[0]["state"] == "waiting"
        leave.set()
        assert next_event(client, AdapterOpened).queues == 2
        beside.stop()


def test_queues_that_could_not_be_opened_leave_no_receiver(tmp_path: Path) -> None:
    feed = GeneratorAdapter(3, 10, RECIPE)
    make, opened = feed.receiver, list[Any]()

    def receiver(queue: int) -> Any:
        one: Any = make(queue)
        opened.append(one)
        if queue == 2:
            one.latest = lambda: 1 // 0
        return one

    feed.receiver = receiver  # type: ignore[method-assign]
    with connected(tmp_path) as client:
        with pytest.raises(StorageError, match=r"topic feed: adapter generator: .*ZeroDivision"):
            attached_of(client).attach("feed", feed)
        assert [one._closed for one in opened] == [True, True, True]
        assert not states(client)
        with pytest.raises(NotFound):
            attached_of(client).detach("feed")
        attached_of(client).attach("feed", GeneratorAdapter(1, 10, RECIPE))
        assert len(take(client.consumer("feed", "reader"), 10)) == 10


def test_receivers_that_are_closed_are_counted_and_not_kept(tmp_path: Path) -> None:
    served = Served(tmp_path / "broker", TOPIC)
    try:
        with tidecast.sync.connect(link=served.link) as source:
            publish(source, *(b"%d" % i for i in range(40)))
            port = served.endpoint.port
            feed = KafkaAdapter.of(f"kafka://127.0.0.1:{port}/orders")
            for turn in (1, 2, 3):
                one = feed.receiver(0)
                assert one.receive(0, np.zeros(1 << 16, np.uint8), 10.0).next_token > 0
                one.close()
                assert feed.counted().fetches == turn
            feed.receiver(0)
            assert len(feed._receivers) == 1
            assert feed.counted().fetches == 3
            feed.close()
    finally:
        served.close()


class Grower(GeneratorAdapter):
    """It has ``wanted`` queues from the next refresh on."""

    refresh_s = 0.01

    def __init__(self, queues: int, count: int) -> None:
        super().__init__(queues, count, RECIPE)
        self.wanted, self.each, self.refusals = queues, count, 0
        self.asked = 0

    def refresh(self) -> None:
        self.asked += 1
        if self.asked % 2:
            raise (
                ConnectionLost("away for a moment") if self.asked % 4 == 1 else OSError("theirs")
            )
        self.counts += [self.each] * (self.wanted - len(self.counts))
        self.queues = self.wanted

    def receiver(self, queue: int) -> Any:
        if self.refusals and queue == self.wanted - 1:
            self.refusals -= 1
            raise ConnectionLost("no leader yet")
        return super().receiver(queue)

    def counted(self) -> Counts:
        return Counts(fetches=self.asked)


def test_queues_that_an_adapter_adds_are_read_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "RETRY_S", 0.01)
    feed = Grower(2, 50)
    with connected(tmp_path) as client:
        attached_of(client).attach("feed", feed)
        consumer, other = client.consumer("feed", "reader"), client.consumer("*", "by pattern")
        assert len(take(consumer, 70)) == 70
        before = {cursor["queue"]: cursor["position"] for cursor in consumer.info()["cursors"]}
        feed.refusals, feed.wanted = 3, 4
        unread = next_event(client, QueueUnreadable)
        assert (unread.topic, unread.queue, unread.detail) == ("feed", 2, "no leader yet")
        opened = next_event(client, AdapterOpened)
        assert (opened.queues, opened.added) == (4, 2)
        assert not [e for e in client.events(0.0) if isinstance(e, QueueUnreadable)], "once"
        after = {cursor["queue"]: cursor["position"] for cursor in consumer.info()["cursors"]}
        assert {q: after[q] >= before[q] for q in before} == {0: True, 1: True}
        assert len(take(consumer, 130)) == 130
        assert len(take(other, 200)) == 200
        assert {cursor["queue"] for cursor in consumer.info()["cursors"]} == {0, 1, 2, 3}
        wait_until(lambda: consumer.info()["settled"] == 200, 5.0, "each record once")
        feed.grow(3, 5)
        assert len(take(consumer, 5)) == 5, "new queues are watched"
        attached_of(client).detach("feed")
        watchers = [t for t in threading.enumerate() if t.name == "tidecast-queues-of-feed"]
        for thread in watchers:
            thread.join(5.0)
        assert not [t for t in watchers if t.is_alive()]


def test_an_adapter_whose_count_fails_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Grower, "counted", lambda _: 1 // 0)
    with connected(tmp_path) as client:
        attached_of(client).attach("feed", Grower(2, 10))
        row = row_of(client)
        assert (row["QUEUES"], row["FETCHES"]) == (2, 0)
        assert len(take(client.consumer("feed", "reader"), 20)) == 20


def test_more_queues_than_an_engine_reads_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "QUEUES_MAX", 3)
    feed = Grower(2, 10)
    with connected(tmp_path) as client:
        attached_of(client).attach("feed", feed)
        feed.wanted = 5
        told = next_event(client, QueueUnreadable)
        assert (told.queue, told.detail) == (3, "the adapter has 5 queues: the first 3 are read")
        assert len(take(client.consumer("feed", "reader"), 30)) == 30
