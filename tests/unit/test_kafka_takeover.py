"""Engines without a shared directory take a topic over: its log is made again from Kafka."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.support.fake_broker import FakeBroker
from tests.support.kafka_storage import (
    check_once_and_in_order,
    publish,
    stored,
    texts,
    url,
)
from tests.support.patience import wait_until

import tidecast.sync
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink, KnownStorages, connect_to
from tidecast.errors import ConfigError, ConnectionLost, Timeout
from tidecast.kafka.schemas import tables
from tidecast.node.node import Node
from tidecast.node.storing.replacing import clamped
from tidecast.queues.leases.store import LeaseTable, Reply, Request
from tidecast.queues.subscription_store import SavedCursor
from tidecast.sync import Connection

LEASE_S = 0.5


class Store:
    """Leases in memory, for several engines; ``cut`` are the names of those that are cut off."""

    def __init__(self) -> None:
        self.table, self.lock = LeaseTable(), threading.Lock()
        self.cut: set[str] = set()


class Asked:
    """The store as one engine sees it."""

    batch_max = 100

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name

    def handle(self, request: Request, now_ns: int) -> Reply:
        if self._name in self._store.cut:
            raise ConnectionLost("the store is away")
        with self._store.lock:
            return self._store.table.handle(request, now_ns)


def settings(name: str, storage: str, **topic: Any) -> dict[str, Any]:
    orders = {"name": "orders", "mode": "durable", "queues": 2, "owner": "*"}
    return {
        "node": {"name": name, "leases": {"lease_s": LEASE_S}},
        "transports": [{"name": "ipc", "kind": "ipc"}],
        "topics": [{**orders, "fsync_interval_ms": 2, "storage": storage, **topic}],
    }


@contextmanager
def engine(
    directory: Path, name: str, storage: str, store: Store, **topic: Any
) -> Iterator[Connection]:
    node = Node(
        topology_from(settings(name, storage, **topic)),
        directory / name,
        connect=connect_to,
        lease_store=Asked(store, name),
        storages=KnownStorages(),
    )
    node.start()
    link: Any = EmbeddedLink(node, "test", owns_node=True)
    with tidecast.sync.connect(link=link) as client:
        yield client


def keeps(client: Connection) -> bool:
    return "orders" in client.link.node.durable.topics  # type: ignore[attr-defined]


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    made = FakeBroker("stored", 2)
    yield made
    made.close()


def fetched(client: Connection, n: int, *, ack: bool = True) -> list[bytes]:
    found: list[bytes] = []
    with client.consumer("orders", "reader") as consumer:
        while len(found) < n:
            got = consumer.fetch(n - len(found), max_wait=30.0)
            assert got
            for message in got:
                found.append(bytes(message.data))
                if ack:
                    message.ack()
    return found


def test_an_engine_with_another_directory_goes_on_where_the_one_before_was(
    tmp_path: Path, fake: FakeBroker, eventually: Eventually
) -> None:
    """Records, sequences of producers, positions; and the first one again, which was gone past."""
    store, at, seen, sent = Store(), url(fake), list[bytes](), 0
    for turn, name in enumerate(("a", "b", "a", "a", "b")):
        with engine(tmp_path, name, at, store) as client:
            eventually(lambda c=client: keeps(c), f"{name} keeps it, {turn}", timeout_s=30.0)
            publish(client, texts(300, sent), producer="p", first_seq=sent + 1)
            sent += 300
            seen += fetched(client, 200)
    assert len(seen) == len(set(seen)) == 1000
    check_once_and_in_order(stored(fake), texts(sent))
    assert list(fake.ids) == ["tidecast/stored"]


def test_records_that_kafka_never_had_are_not_in_the_next_log(
    tmp_path: Path, fake: FakeBroker, eventually: Eventually
) -> None:
    """An owner that is cut off from the leases and from Kafka does not know that it is none."""
    store, at = Store(), url(fake)
    with ExitStack() as stack:
        old = stack.enter_context(engine(tmp_path, "a", at, store))
        eventually(lambda: keeps(old), "a keeps it", timeout_s=30.0)
        publish(old, texts(50), producer="p", first_seq=1)
        fetched(old, 10)
        store.cut.add("a")
        fake.cuts[tables.PRODUCE] = 1
        new = stack.enter_context(engine(tmp_path, "b", at, store))
        eventually(lambda: keeps(new), "b keeps it", timeout_s=30.0)
        assert keeps(old)
        publish(new, texts(50, 50), producer="q", first_seq=1)
        with old.publisher("orders") as publisher:
            publisher.publish(b"1000", key=b"k")
            eventually(lambda: not keeps(old), "a is fenced by Kafka", timeout_s=30.0)
            with pytest.raises(Timeout):
                publisher.wait_durable(timeout=0.1)
        assert sorted(fetched(new, 90), key=int)[-50:] == texts(50, 50)
    partitions = stored(fake)
    check_once_and_in_order(partitions, texts(100))
    with engine(tmp_path, "c", at, Store()) as third:
        eventually(lambda: keeps(third), "c keeps it", timeout_s=30.0)
        node = third.link.node  # type: ignore[attr-defined]
        logs = node.durable.topics["orders"].logs
        assert [log.next_token for log in logs] == [len(each) for each in partitions]


CUT_OFF = {
    tables.KNOWN[key].name: key
    for key in (
        tables.METADATA,
        tables.INIT_PRODUCER_ID,
        tables.ADD_PARTITIONS_TO_TXN,
        tables.END_TXN,
        tables.FETCH,
        tables.LIST_OFFSETS,
        tables.PRODUCE,
    )
}


def take_over_cut_off(directory: Path, key: int) -> None:
    """A takeover in which requests of a kind end with the connection; it is done in the end."""
    fake, store = FakeBroker("stored", 2), Store()
    with contextlib.closing(fake):
        with engine(directory, "a", url(fake), store) as client:
            wait_until(lambda: keeps(client), 30.0, "a keeps it")
            publish(client, texts(100), producer="p", first_seq=1)
            fetched(client, 30)
        fake.cuts[key] = 7
        with engine(directory, "b", url(fake), store) as client:
            wait_until(lambda: keeps(client), 60.0, "b keeps it")
            publish(client, texts(100, 100), producer="p", first_seq=101)
            assert len(fetched(client, 170)) == 170
        assert fake.cuts[key] == 0
        check_once_and_in_order(stored(fake), texts(200))
    assert not list((directory / "b" / "queues" / ".rebuilt").glob("*"))


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    """All of these takeovers, side by side: each waits 5 s for leases and computes for 0.3 s."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(len(CUT_OFF)) as threads:
        patch.setattr("tidecast.kafka.storing.fencing.PATIENCE_S", 0.1)
        patch.setattr("tidecast.kafka.brokers.cluster.QUESTION_S", 0.1)
        patch.setattr("tidecast.api.connecting.BACKOFF_S_MAX", 0.1)
        begun = {
            name: threads.submit(take_over_cut_off, tmp_path_factory.mktemp(name), key)
            for name, key in CUT_OFF.items()
        }
        wait(begun.values())
        yield begun


@pytest.mark.parametrize("name", CUT_OFF)
def test_a_takeover_that_is_cut_off_anywhere_is_done_by_the_next_try(
    cut_off: dict[str, Future[None]], name: str
) -> None:
    cut_off[name].result()


def test_an_engine_that_stops_copies_its_positions_at_once(
    tmp_path: Path, fake: FakeBroker, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for the next look at the small files, and for one more: half a second a stop."""
    monkeypatch.setattr("tidecast.node.storing.running.COPY_S", 3600.0)
    monkeypatch.setattr("tidecast.node.storing.service.SETTLE_S", 60.0)
    store, at, seen = Store(), url(fake), list[bytes]()
    for name in ("a", "b"):
        with engine(tmp_path, name, at, store) as client:
            eventually(lambda c=client: keeps(c), f"{name} keeps it", timeout_s=30.0)
            if name == "a":
                publish(client, texts(20), producer="p", first_seq=1)
            seen += fetched(client, 10)
    assert sorted(seen, key=int) == texts(20)


def test_an_engine_that_stops_amid_a_takeover_leaves_its_directory_as_it_was(
    tmp_path: Path, fake: FakeBroker, eventually: Eventually
) -> None:
    store, at = Store(), url(fake)
    with engine(tmp_path, "a", at, store) as client:
        eventually(lambda: keeps(client), "a keeps it", timeout_s=30.0)
        publish(client, texts(20), producer="p", first_seq=1)
    before = len(fake.asked)
    fake.silent.add(tables.FETCH)
    with engine(tmp_path, "b", at, store):
        eventually(lambda: tables.FETCH in fake.asked[before:], "it reads", timeout_s=30.0)
    assert not (tmp_path / "b" / "queues" / "orders").exists()
    fake.speak()
    with engine(tmp_path, "b", at, store) as client:
        eventually(lambda: keeps(client), "b keeps it", timeout_s=30.0)
        assert len(fetched(client, 20)) == 20


def test_leases_that_no_other_engine_sees_are_refused(tmp_path: Path, fake: FakeBroker) -> None:
    link = EmbeddedLink.open(topology_from(settings("a", url(fake))), data_dir=tmp_path)
    problem = r"orders: owner: \*: its storage is Kafka, .* with --control"
    with (
        tidecast.sync.connect(link=link) as client,
        pytest.raises(ConfigError, match=problem),
    ):
        client.consumer("orders", "reader")
    assert fake.asked == []


def test_topics_with_and_without_a_storage_are_not_leased_together() -> None:
    raw = settings("a", "kafka://h:1/t")
    raw["topics"].append({"name": "beside", "mode": "durable", "owner": "*"})
    with pytest.raises(ConfigError, match=r"topics\[1\].storage: local: with owner \* beside"):
        topology_from(raw)
    raw["node"]["leases"]["directory"] = "/shared"
    topology_from(raw)


@pytest.mark.parametrize(
    ("cursor", "wanted"),
    [
        (SavedCursor("t", 0, 5, [(7, 9)], [(6, 1)]), SavedCursor("t", 0, 5, [(7, 8)], [(6, 1)])),
        (SavedCursor("t", 0, 9, [(11, 12)], [(10, 2)]), SavedCursor("t", 0, 8)),
        (SavedCursor("u", 0, 9), SavedCursor("u", 0, 9)),
        (SavedCursor("t", 3, 9), SavedCursor("t", 3, 9)),
    ],
)
def test_a_position_behind_the_end_becomes_the_end(
    cursor: SavedCursor, wanted: SavedCursor
) -> None:
    assert clamped(cursor, "t", [8, 8]) == wanted


def test_a_session_begins_when_kafka_has_what_the_one_before_sent(
    tmp_path: Path, fake: FakeBroker, eventually: Eventually
) -> None:
    """Its publisher counts all before it as durable, and the next owner has nothing but Kafka."""

    def away(body: dict[str, Any]) -> str:
        fake.faults.append(away)
        return "lose"

    with engine(tmp_path, "a", url(fake), Store()) as client:
        eventually(lambda: keeps(client), "a keeps it", timeout_s=30.0)
        publish(client, texts(3), producer="p", first_seq=1)
        fake.faults.append(away)
        first = client.publisher("orders", producer="p")
        for value in texts(5, 3):
            first.publish(value, key=b"k%d" % (int(value) % 7))
        logs = client.link.node.durable.topics["orders"].logs  # type: ignore[attr-defined]
        eventually(lambda: sum(log.synced_token for log in logs) == 8, "in the log")
        second = client.publisher("orders", producer="p", first_seq=9)
        second.publish(b"8", key=b"k1")
        with pytest.raises(Timeout):
            second.wait_durable(timeout=1.5)
        topic = client.link.node.durable.topics["orders"]  # type: ignore[attr-defined]
        [known] = topic.producers.known.values()
        epoch = known.epoch
        with fake.lock:
            fake.faults.clear()
        second.wait_durable(timeout=60.0)
        assert second.durable_position == 9
        assert known.epoch == epoch + 1
    check_once_and_in_order(stored(fake), texts(9))
