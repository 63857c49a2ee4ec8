"""Kafka as the storage of a durable topic: an ack is Kafka's, each record is there once."""

from __future__ import annotations

import itertools
import random
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_broker import FakeBroker, drop, lose, refuse
from tests.support.kafka_brokers import Brokers
from tests.support.kafka_storage import (
    check_once_and_in_order,
    count_of,
    log_of,
    opened,
    publish,
    stored,
    texts,
    url,
)
from tests.support.patience import Patience, next_event

from tidecast.config.sources.kafka import KafkaSource
from tidecast.config.sources.storage import storage_source
from tidecast.config.topology import topology_from
from tidecast.errors import Closed, ConfigError, Timeout
from tidecast.events import StorageBack, StorageWaits
from tidecast.kafka.codes import Code
from tidecast.kafka.schemas import tables
from tidecast.kafka.storing.notes import NOTES
from tidecast.layout.counters import QueueCounter as C
from tidecast.node.durable.placed import Outcome, PlacedAppends, Run, Verdict
from tidecast.node.storing.running import JOIN_S
from tidecast.node.storing.spool import Spool
from tidecast.queues.adapter import Record, pack
from tidecast.telemetry.queues import Times, samples

_NAMES = itertools.count()
Body = dict[str, Any]


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    made = FakeBroker("stored", 2)
    yield made
    made.close()


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"storage": "s3://x"}, "storage: s3://x: allowed are local, kafka://HOST:PORT"),
        ({"storage": "kafka://host/t"}, r"storage: kafka.servers: host: allowed are HOST:PORT"),
        ({"storage": "kafka://h:1/t?group=g"}, "storage: kafka.group: g: is for reading: allowed"),
        ({"storage": "kafka://h:1/t?tlss=true"}, "storage: kafka.tlss: unknown setting"),
        ({"storage": "kafka://h:1/t", "fsync": "none"}, "fsync: none: with storage on Kafka"),
        ({"storage": "kafka://h:1/t", "mode": "live"}, "storage: kafka://h:1/t: allowed with mode"),
    ],
)
def test_a_setting_that_is_wrong_is_refused(settings: Body, problem: str) -> None:
    topic = {"name": "orders", "mode": "durable", **settings}
    with pytest.raises(ConfigError, match=r"topics\[0\]\." + problem):
        topology_from({"topics": [topic]})


def test_two_topics_do_not_write_one_topic_of_the_cluster() -> None:
    topics = [{"name": n, "mode": "durable", "storage": "kafka://h:1/t"} for n in ("a", "b")]
    with pytest.raises(ConfigError, match=r"topics\[1\].storage: .* topic a writes t"):
        topology_from({"topics": topics})
    source = storage_source("kafka://h:1,i:2/t?tls=true")
    assert isinstance(source, KafkaSource)
    assert source.tls


def test_queues_do_not_grow(tmp_path: Path, fake: FakeBroker) -> None:
    with opened(tmp_path, url(fake)) as client:
        with pytest.raises(ConfigError, match="queues: 3: the storage of topic orders is Kafka"):
            client.topics.edit("orders", queues=3)
        publish(client, texts(3))


# --- publishing -----------------------------------------------------------------------------------


def test_a_record_is_durable_when_kafka_has_it(tmp_path: Path, fake: FakeBroker) -> None:
    with opened(tmp_path, url(fake)) as client:
        publish(client, texts(3000))
        check_once_and_in_order(stored(fake), texts(3000))
        assert count_of(client, C.STORED_RECORDS) == 3000
        assert [log_of(client, q).stored_token for q in (0, 1)] == [
            log_of(client, q).next_token for q in (0, 1)
        ]
        with client.consumer("orders", "reader") as consumer:
            found = consumer.fetch(3000, max_wait=30.0)
            assert {bytes(m.data) for m in found} <= set(texts(3000))


def test_no_ack_and_no_delivery_before_kafka_answers(
    tmp_path: Path, fake: FakeBroker, eventually: Any
) -> None:
    def away(body: Body) -> str:
        fake.faults.append(away)
        return "lose"

    with opened(tmp_path, url(fake)) as client:
        publish(client, texts(1))
        fake.faults.append(away)
        with client.publisher("orders") as publisher, client.consumer("orders", "r") as consumer:
            for value in texts(10, 1):
                publisher.publish(value, key=b"k")
            with pytest.raises(Timeout):
                publisher.wait_durable(timeout=0.5)
            waits = next_event(client, StorageWaits)
            assert (waits.topic, waits.final) == ("orders", False)
            eventually(lambda: count_of(client, C.STORAGE_WAITS) == 2, "the gauge")
            node = client.link.node  # type: ignore[attr-defined]
            rows = samples(node, Times())["queues"]
            assert [row["state"] for row in rows] == ["full", "full"]
            assert "it closed the connection" in rows[0]["reason"]
            [state] = samples(node, Times())["storages"]
            assert (state["topic"], state["storage"]) == ("orders", url(fake))
            assert (state["state"], state["waiting_records"]) == ("waiting", 10)
            assert "it closed the connection" in state["detail"]
            assert abs(time.time_ns() - state["since_ns"]) < 60 * 10**9
            assert (state["records"], state["failures"] > 0) == (1, True)
            assert publisher.durable_position == 0
            assert sum(log_of(client, q).synced_token for q in (0, 1)) > 1
            assert sum(log_of(client, q).durable_token for q in (0, 1)) == 1
            assert len(consumer.fetch(100, max_wait=0.2)) == 1
            with fake.lock:
                fake.faults.clear()
            publisher.wait_durable(timeout=30.0)
            next_event(client, StorageBack)
            found: list[Any] = []
            patience = Patience(30.0)
            while len(found) < 10 and not patience.over():  # two queues, one after the other
                found += consumer.fetch(100, max_wait=1.0)
            assert len(found) == 10
            [state] = samples(node, Times())["storages"]
            assert (state["state"], state["detail"], state["since_ns"]) == ("open", "", 0)
            assert (state["waiting_records"], state["records"]) == (0, 11)
        eventually(lambda: count_of(client, C.STORAGE_WAITS) == 0, "the gauge")
        assert count_of(client, C.STORE_FAILURES) > 0
    check_once_and_in_order(stored(fake), texts(11))


def test_placed_appends_get_their_verdict_from_kafka(
    tmp_path: Path, fake: FakeBroker, eventually: Any
) -> None:
    """So do producers of the Kafka endpoint, and mirrors."""

    def away(body: Body) -> str:
        fake.faults.append(away)
        return "lose"

    with opened(tmp_path, url(fake)) as client:
        publish(client, texts(1))
        fake.faults.append(away)
        placed = PlacedAppends(client.link.node.durable.registry)  # type: ignore[attr-defined]
        placed.start()
        raw, verdicts, end = pack([Record(b"1", b"k")]), list[Verdict](), time.monotonic() + 60.0
        placed.submit(Run("orders", 1, raw, raw.size, 1, verdicts.append, deadline_s=end))
        next_event(client, StorageWaits)
        assert log_of(client, 1).synced_token > log_of(client, 1).durable_token
        assert verdicts == []
        with fake.lock:
            fake.faults.clear()
        eventually(lambda: verdicts, "the verdict", timeout_s=30.0)
        assert verdicts[0].outcome is Outcome.APPENDED
        placed.stop()
    assert sorted(value for each in stored(fake) for value in each) == texts(2)


def test_other_topics_go_on_while_the_storage_waits(tmp_path: Path) -> None:
    with opened(tmp_path, "kafka://127.0.0.1:9/stored") as client:
        client.topics.create("beside", mode="durable", fsync="batch")
        with client.publisher("orders") as waiting, client.publisher("beside") as publisher:
            waiting.publish(b"1")
            for value in texts(20):
                publisher.publish(value, ack="durable")
            assert waiting.durable_position == 0
        assert "127.0.0.1:9" in next_event(client, StorageWaits).detail


@pytest.mark.parametrize("seed", range(4))
def test_restarts_and_faults_lose_nothing_and_repeat_nothing(
    tmp_path: Path, fake: FakeBroker, seed: int
) -> None:
    """Each engine ends with records of which it is not known whether Kafka has them."""
    chance, sent = random.Random(seed), 0
    faults: list[Any] = [drop, lose, refuse(Code.NOT_ENOUGH_REPLICAS), drop]
    notes = [tmp_path / "queues" / "orders" / NOTES.name, tmp_path / "older"]
    for turn in range(4):
        with opened(tmp_path, url(fake)) as client:
            publish(client, texts(200, sent), producer="p", first_seq=sent + 1)
            with fake.lock:
                fake.faults.extend(chance.choices(faults, k=chance.randint(0, 3)))
            publish(client, texts(100, sent + 200), producer="p")
            sent += 300
            if turn == 1:  # as after a kill before newer marks were noted
                shutil.copy(*notes)
        if turn == 1:
            shutil.copy(*reversed(notes))
    check_once_and_in_order(stored(fake), texts(sent))


def test_a_newer_owner_fences_the_older_one(tmp_path: Path, fake: FakeBroker) -> None:
    with opened(tmp_path / "a", url(fake), node="alpha", owner="alpha") as old:
        publish(old, texts(50))
        with opened(tmp_path / "b", url(fake), node="beta", owner="beta") as new:
            publish(new, texts(50, 50))
            with old.publisher("orders") as publisher:
                publisher.publish(b"1000", key=b"k")
                waits = next_event(old, StorageWaits)
                assert waits.final
                assert "INVALID_PRODUCER_EPOCH" in waits.detail
                with pytest.raises(Timeout):
                    publisher.wait_durable(timeout=0.2)
            publish(new, texts(50, 100))
    check_once_and_in_order(stored(fake), texts(150))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"queues": 3}, "queues: 3: topic stored of .* has 2 partitions: allowed 2"),
        ({"policy": "compact"}, "cleanup.policy of topic stored .*: compact: allowed delete"),
    ],
)
def test_a_topic_of_the_cluster_that_does_not_fit_is_refused(
    tmp_path: Path, fake: FakeBroker, change: Body, problem: str
) -> None:
    fake.policy = change.pop("policy", fake.policy)
    with opened(tmp_path, url(fake), **change) as client:
        waits = next_event(client, StorageWaits)
        with pytest.raises(ConfigError, match=problem):
            raise ConfigError(waits.detail)
    assert stored(fake) == [[], []]


def test_a_log_is_not_written_to_a_second_topic(tmp_path: Path, fake: FakeBroker) -> None:
    with opened(tmp_path, url(fake)) as client:
        publish(client, texts(5))
    other = FakeBroker("other", 2)
    with opened(tmp_path, url(other)) as client:
        detail = next_event(client, StorageWaits).detail
        assert "was written to stored with 2 partitions so far" in detail
        assert "kafka.json" in detail
    assert stored(other) == [[], []]
    other.close()


def test_a_topic_that_becomes_stored_writes_its_log_first(tmp_path: Path, fake: FakeBroker) -> None:
    with opened(tmp_path, "local") as client:
        publish(client, texts(20))
        with pytest.raises(ConfigError, match="storage of topic orders cannot change while it"):
            client.topics.edit("orders", storage=url(fake))
        edited = client.topics.edit("orders", recreate=True, storage=url(fake))
        assert edited.storage == url(fake)
        publish(client, texts(20, 20))
    check_once_and_in_order(stored(fake), texts(40))
    assert list(fake.ids) == ["tidecast/stored/alpha"]


def test_what_the_log_has_and_kafka_has_not_is_not_acked_by_a_repetition(
    tmp_path: Path, fake: FakeBroker
) -> None:
    """A killed engine leaves records in the log; its publisher sends them again as duplicates."""
    with opened(tmp_path, "local") as client:
        publish(client, texts(5), producer="p", first_seq=1)
    with (
        opened(tmp_path, "kafka://127.0.0.1:9/stored") as client,
        client.publisher("orders", producer="p", first_seq=1) as publisher,
    ):
        for value in texts(5):
            publisher.publish(value, key=b"k%d" % int(value))
        with pytest.raises(Timeout):
            publisher.wait_durable(timeout=0.5)
        assert publisher.durable_position == 0
    with opened(tmp_path, url(fake)) as client:
        publish(client, texts(7), producer="p", first_seq=1)
    check_once_and_in_order(stored(fake), texts(7))


def test_retention_keeps_what_kafka_has_not(
    tmp_path: Path, fake: FakeBroker, eventually: Any
) -> None:
    settings: Body = {"segment_bytes": 1 << 16, "retention_bytes": 1 << 16, "queues": 2}
    big = [b"%d " % i + bytes(2000) for i in range(200)]
    with opened(tmp_path, "kafka://127.0.0.1:9/stored", **settings) as client:
        with client.publisher("orders") as publisher:
            for n, value in enumerate(big, 1):
                publisher.publish(value)
                if n % 20 == 0:  # several writes, so several segments
                    ends = [log_of(client, queue) for queue in (0, 1)]
                    eventually(lambda n=n, e=ends: sum(x.next_token for x in e) == n, "appended")
            with pytest.raises(Timeout):
                publisher.wait_durable(timeout=0.5)
        node = client.link.node  # type: ignore[attr-defined]
        topic = node.durable.topics["orders"]
        assert topic.retain(lambda *_: None, 0) == []
        assert sum(len(log.segments) for log in topic.logs) > 2
    with opened(tmp_path, url(fake), **settings) as client:
        node = client.link.node  # type: ignore[attr-defined]
        topic = node.durable.topics["orders"]
        with client.publisher("orders") as publisher:
            publisher.publish(b"last", ack="durable", timeout=30.0)
        assert sum(n for _, n in topic.retain(lambda *_: None, 0)) > 0
    values = [value for each in stored(fake) for value in each]
    assert sorted(values) == sorted([*big, b"last"])


def test_a_log_that_lost_records_is_not_written_on(tmp_path: Path, fake: FakeBroker) -> None:
    with opened(tmp_path, url(fake)) as client:
        publish(client, texts(50))
    notes = (tmp_path / "queues" / "orders" / NOTES.name).read_bytes()
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    with opened(tmp_path, url(fake)):
        pass
    (tmp_path / "queues" / "orders" / NOTES.name).write_bytes(notes)
    with opened(tmp_path, url(fake)) as client:
        detail = next_event(client, StorageWaits).detail
        assert "the log lost records" in detail
    assert sum(len(each) for each in stored(fake)) == 50


def test_a_topic_that_the_cluster_lacks_is_created(tmp_path: Path) -> None:
    empty = FakeBroker("none", 0)
    with opened(tmp_path, f"kafka://127.0.0.1:{empty.port}/fresh") as client:
        publish(client, texts(20))
    assert (empty.topic, len(empty.partitions)) == ("fresh", 2)
    check_once_and_in_order(stored(empty), texts(20))
    empty.close()


# --- closing --------------------------------------------------------------------------------------


def storage_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("storage-orders")]


@pytest.mark.parametrize(
    "silent",
    [
        tables.API_VERSIONS,
        tables.METADATA,
        tables.DESCRIBE_CONFIGS,
        tables.INIT_PRODUCER_ID,
        tables.ADD_PARTITIONS_TO_TXN,
        tables.END_TXN,
        tables.FETCH,
        tables.PRODUCE,
    ],
    ids=lambda key: tables.KNOWN[key].name,
)
def test_nothing_is_asked_once_a_storage_is_closed(
    tmp_path: Path, fake: FakeBroker, eventually: Any, silent: int
) -> None:
    """Wherever it waits for a broker: a late fence would end the writer of another node."""
    with opened(tmp_path, url(fake)) as client:
        publish(client, texts(3))
    before = len(fake.asked)
    fake.silent.add(silent)
    with opened(tmp_path, url(fake)) as client, client.publisher("orders") as publisher:
        publisher.publish(b"4", key=b"k")
        eventually(lambda: silent in fake.asked[before:], "the question without an answer")
        begun, asked = time.monotonic(), len(fake.asked)
        durable = client.link.node.durable  # type: ignore[attr-defined]
        durable.storing.close(durable.topics["orders"])
        assert time.monotonic() - begun < JOIN_S
        assert storage_threads() == []
    last = len(fake.asked)
    assert last - asked <= 2, "the other queue may have asked once more"
    fake.speak()
    with opened(tmp_path, url(fake)) as client:
        publish(client, [b"5"])
    since = fake.asked[last:]
    assert since[0] == tables.API_VERSIONS, "the next writer asks first"
    assert [since.count(one) for one in (tables.ADD_PARTITIONS_TO_TXN, tables.END_TXN)] == [1, 1]
    check_once_and_in_order(stored(fake), [*texts(3), b"4", b"5"])


def test_a_thread_that_is_still_there_uses_and_sends_nothing(
    tmp_path: Path, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in a connect, which nothing ends; the next engine has the logs meanwhile."""
    goes_on, connects, real = threading.Event(), threading.Event(), socket.create_connection

    def slow(*arguments: Any) -> socket.socket:
        connects.set()
        goes_on.wait()
        return real(*arguments)

    monkeypatch.setattr("tidecast.node.storing.running.JOIN_S", 0.0)
    monkeypatch.setattr("tidecast.connections.tcp.socket.create_connection", slow)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with opened(tmp_path, f"kafka://127.0.0.1:{silent.getsockname()[1]}/stored"):
            assert connects.wait(30.0)
        [thread] = storage_threads()
        goes_on.set()
        there, _ = silent.accept()
        with there:
            there.settimeout(30.0)
            assert there.recv(100) == b"", "it hangs up, and has sent nothing"
        eventually(lambda: not thread.is_alive(), "its end")
    assert not (tmp_path / "queues" / "orders" / NOTES.name).exists()


def test_a_spool_that_is_closed_gives_no_logs(tmp_path: Path) -> None:
    with opened(tmp_path, "local") as client:
        node = client.link.node  # type: ignore[attr-defined]
        storing = node.durable.storing
        spool = Spool(node.durable.topics["orders"], "alpha", storing)
        assert (spool.earliest(0), spool.synced(1)) == (0, 0)
        spool.close()
        for use in (spool.reader, spool.earliest, spool.synced, lambda _: spool.directory):
            with pytest.raises(Closed, match="topic orders: its logs are closed"):
                use(0)
        assert spool.wait(0, 7) == 7


# --- Kafka itself ---------------------------------------------------------------------------------


def test_kafka_has_what_was_acked_once_and_its_consumers_read_it(
    real_kafka: Brokers, tmp_path: Path
) -> None:
    import confluent_kafka

    topic = f"storage-{next(_NAMES)}"
    storage = f"kafka://{real_kafka.address}/{topic}"
    for turn in range(3):
        with opened(tmp_path, storage) as client:
            publish(client, texts(2000, 2000 * turn))
    reader = confluent_kafka.Consumer({"bootstrap.servers": real_kafka.address, "group.id": topic})
    found: list[list[bytes]] = [[], []]
    reader.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in (0, 1)])
    while sum(map(len, found)) < 6000:
        for message in reader.consume(1000, 10.0):
            assert message.error() is None
            found[message.partition()].append(message.value())
    reader.close()
    check_once_and_in_order(found, texts(6000))
