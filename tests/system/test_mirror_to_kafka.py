"""`tidecast mirror` from a durable topic to Kafka itself, while mirror, engine and broker die."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.kafka_brokers import Brokers, brokers, missing
from tests.system.test_mirror import COMMAND, Engine, done, wait_progress

import tidecast.sync

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing() or "brokers"),
]
RECORDS = 12_000


@pytest.fixture(scope="module")
def kafka() -> Iterator[Brokers]:
    with brokers() as made:
        yield made


@pytest.fixture
def engine(short_dir: Path) -> Iterator[Engine]:
    made = Engine(short_dir)
    yield made
    made.kill()


def publish(engine: Engine, topic: str, first: int, count: int) -> None:
    with (
        tidecast.sync.connect(f"tidecast://{engine.directory}") as client,
        client.publisher(topic) as publisher,
    ):
        for i in range(first, first + count):
            publisher.publish(b"%d" % i, key=b"k%d" % (i % 50), headers={"n": b"%d" % i})
        publisher.wait_durable(timeout=60.0)


def mirror(
    engine: Engine, kafka: Brokers, topic: str, *more: str, once: bool = True
) -> subprocess.Popen[str]:
    target = f"kafka://{kafka.address}/{topic}"
    words = ["mirror", "--from", topic, "--to", target, "--data-dir", str(engine.directory)]
    words += ["--once" if once else "--follow", "--json", *more]
    return subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def on_kafka(kafka: Brokers, topic: str, partitions: int) -> dict[int, list[Any]]:
    """(key, value, headers) of each committed record of a topic, by partition."""
    import confluent_kafka

    settings = {
        "bootstrap.servers": kafka.address,
        "group.id": "check",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    consumer = confluent_kafka.Consumer(settings)
    places = [confluent_kafka.TopicPartition(topic, each, 0) for each in range(partitions)]
    consumer.assign(places)
    found: dict[int, list[Any]] = {each: [] for each in range(partitions)}
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(60.0)
        assert message is not None
        if message.error():
            ended.add(message.partition())
            continue
        row = (message.key(), message.value(), message.headers())
        found[message.partition()].append(row)
    consumer.close()
    return found


def values(found: dict[int, list[Any]]) -> dict[int, list[bytes]]:
    return {queue: [value for _, value, _ in rows] for queue, rows in found.items()}


def test_no_record_is_lost_or_copied_twice_whatever_is_killed(
    engine: Engine, kafka: Brokers
) -> None:
    engine.create("orders", 2)
    publish(engine, "orders", 0, RECORDS)
    for _ in range(4):
        process = mirror(engine, kafka, "orders", "--rate", "1000")
        wait_progress(process, 1)
        killed(process)
    publish(engine, "orders", RECORDS, RECORDS)  # on a busy machine the others copied all before
    process = mirror(engine, kafka, "orders", "--rate", "2000")
    wait_progress(process, 1)
    engine.kill()
    engine.start()
    kafka.kill(0)
    kafka.start(0)
    kafka.wait_up(0)
    done(process)
    found = on_kafka(kafka, "orders", 2)
    assert values(found) == engine.values("orders")
    assert sum(map(len, found.values())) == 2 * RECORDS
    key, value, headers = found[0][0]
    assert (key, headers) == (b"k%d" % (int(value) % 50), [("n", value)])
    assert done(mirror(engine, kafka, "orders"))["records"] == 0
    publish(engine, "orders", 2 * RECORDS, 100)
    assert done(mirror(engine, kafka, "orders"))["records"] == 100
    assert values(on_kafka(kafka, "orders", 2)) == engine.values("orders")


def test_it_follows_and_a_second_one_ends_the_first(engine: Engine, kafka: Brokers) -> None:
    engine.create("live", 1)
    process = mirror(engine, kafka, "live", once=False)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["event"] == "Placed"
    publish(engine, "live", 0, 1000)
    wait_progress(process, 1000)
    again = mirror(engine, kafka, "live")
    _, errors = again.communicate(timeout=60)
    assert again.returncode == 1
    assert "it runs already" in errors
    process.terminate()
    process.communicate(timeout=60)
    assert values(on_kafka(kafka, "live", 1)) == engine.values("live")


@pytest.mark.parametrize(
    ("config", "refused", "reason"),
    [
        ({"max_message_bytes": "4000"}, (b"k", bytes(9000)), "more than the topic takes (4000)"),
        ({"cleanup_policy": "compact"}, (None, b"no key"), "INVALID_RECORD (87)"),
    ],
    ids=["size", "key"],
)
def test_records_that_kafka_refuses_are_holes_that_are_reported(
    engine: Engine, kafka: Brokers, config: dict[str, str], refused: Any, reason: str
) -> None:
    """The producer is idempotent: a refusal in the middle must not break its sequences."""
    topic, n = "refused-" + next(iter(config)), 40
    bad = {0, 7, 8, 39}
    engine.create(topic, 1)
    kafka.create(topic, 1, **config)
    with (
        tidecast.sync.connect(f"tidecast://{engine.directory}") as client,
        client.publisher(topic) as publisher,
    ):
        for i in range(n):
            key, value = refused if i in bad else (b"k%d" % i, b"%d" % i)
            publisher.publish(value, key=key)
        publisher.wait_durable(timeout=60.0)
    process = mirror(engine, kafka, topic, "--on-gap", "stop", "--name", "strict")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "offset 0" in errors
    assert reason.partition(" (")[0] in errors.replace("\n", " ")
    process = mirror(engine, kafka, topic)
    lines, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    rows = [json.loads(line) for line in lines.splitlines()]
    found = [row for row in rows if row["event"] == "RecordsLeftOut"]
    assert [row["first"] for row in found] == sorted(bad)
    assert all(reason in row["reason"] for row in found)
    wanted = [b"%d" % i for i in range(n) if i not in bad]
    assert values(on_kafka(kafka, topic, 1))[0] == wanted
    publish(engine, topic, n, 5)
    process = mirror(engine, kafka, topic)
    process.communicate(timeout=60)
    assert values(on_kafka(kafka, topic, 1))[0] == [*wanted, *(b"%d" % i for i in range(n, n + 5))]


def test_errors_name_the_remedy(engine: Engine, kafka: Brokers) -> None:
    engine.create("small", 3)
    kafka.create("small", 2)
    for more, problem in (
        ((), "small has 2 partitions: allowed are 3"),
        (("--place", "key"), "--place: key"),
    ):
        process = mirror(engine, kafka, "small", *more)
        _, errors = process.communicate(timeout=60)
        assert process.returncode in (1, 2)
        assert problem in errors.replace("\n", " ")
    process = mirror(engine, kafka, "absent")
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (1, 2)
    assert "absent" in errors
