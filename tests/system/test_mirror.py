"""`tidecast mirror` from Kafka itself, while mirror, engine and broker are killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.kafka_brokers import Brokers, brokers, missing
from tests.support.patience import Patience

import tidecast.sync
from tidecast.client.links.socket_session import EngineControl
from tidecast.config.topology import TopicConfig
from tidecast.errors import EngineNotRunning

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing()), reason=missing() or "brokers"),
]
COMMAND = [sys.executable, "-m", "tidecast.cli"]
RECORDS = 12_000


class Engine:
    """An engine process on a data directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.start()

    def start(self) -> None:
        with (self.directory / "engine.out").open("ab") as out:
            self.process = subprocess.Popen(
                [*COMMAND, "engine", "--data-dir", str(self.directory)], stdout=out, stderr=out
            )
        patience = Patience(120.0)
        while True:
            try:
                EngineControl(self.directory).close()
                return
            except EngineNotRunning:
                assert not patience.over()
                assert self.process.poll() is None
                try:
                    self.process.wait(0.1)
                except subprocess.TimeoutExpired:
                    continue

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def create(self, topic: str, queues: int) -> None:
        with EngineControl(self.directory) as engine:
            engine.create_topic(TopicConfig(name=topic, mode="durable", queues=queues))

    def values(self, topic: str) -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {}
        with tidecast.sync.connect(f"tidecast://{self.directory}") as client:
            for batch in client.read(topic).batches():
                found.setdefault(batch.queue, []).extend(each.data for each in batch)
        return found


@pytest.fixture(scope="module")
def kafka() -> Iterator[Brokers]:
    with brokers() as made:
        yield made


@pytest.fixture
def engine(short_dir: Path) -> Iterator[Engine]:
    made = Engine(short_dir)
    yield made
    made.kill()


def mirror(engine: Engine, kafka: Brokers, topic: str, *more: str) -> subprocess.Popen[str]:
    source = f"kafka://{kafka.address}/{topic}?fetch_bytes=16384"
    return subprocess.Popen(
        [
            *COMMAND,
            "mirror",
            "--from",
            source,
            "--to",
            topic,
            "--data-dir",
            str(engine.directory),
            "--once",
            "--json",
            *more,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_progress(process: subprocess.Popen[str], records: int) -> None:
    """Wait until it has copied some more records."""
    assert process.stdout is not None
    for line in process.stdout:
        said = json.loads(line)
        if said["event"] == "progress" and said["records"] >= records:
            return
    raise AssertionError(process.communicate())


def done(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The report that the process prints when it ends."""
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, (out[-1000:], errors[-1000:])
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def fill(kafka: Brokers, topic: str) -> dict[int, list[bytes]]:
    """Two partitions, with markers of transactions, records that were aborted, and a null value."""
    kafka.create(topic, 2)
    wanted = {q: [b"%d-%d" % (q, i) for i in range(RECORDS)] for q in (0, 1)}
    for queue, values in wanted.items():
        kafka.fill(topic, values[: RECORDS // 2], partition=queue, key=b"k%d" % queue)
        producer = kafka.producer(transactional_id=f"{topic}-{queue}")
        producer.init_transactions()
        for ends in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.produce(topic, b"in a transaction", partition=queue)
            producer.flush()
            ends()
        kafka.fill(topic, values[RECORDS // 2 :], partition=queue, key=b"k%d" % queue)
        kafka.fill(topic, [None], partition=queue, key=b"k%d" % queue)
        values.insert(RECORDS // 2, b"in a transaction")
        values.append(b"")
    return wanted


def test_no_record_is_lost_or_copied_twice_whatever_is_killed(
    engine: Engine, kafka: Brokers
) -> None:
    wanted = fill(kafka, "orders")
    engine.create("orders", 2)
    for _ in range(3):
        process = mirror(engine, kafka, "orders", "--rate", "2000")
        wait_progress(process, 1)
        process.kill()
        process.communicate()
    process = mirror(engine, kafka, "orders", "--rate", "1000")
    wait_progress(process, 1)
    engine.kill()
    engine.start()
    kafka.kill(0)
    kafka.start(0)
    kafka.wait_up(0)
    done(process)
    assert engine.values("orders") == wanted
    assert done(mirror(engine, kafka, "orders"))["records"] == 0
    assert engine.values("orders") == wanted


def test_keys_decide_where_the_counts_differ(engine: Engine, kafka: Brokers) -> None:
    wanted = fill(kafka, "keyed")
    engine.create("keyed", 3)
    process = mirror(engine, kafka, "keyed", "--rate", "4000")
    wait_progress(process, 2000)
    process.kill()
    process.communicate()
    done(mirror(engine, kafka, "keyed"))
    found = [value for values in engine.values("keyed").values() for value in values]
    for queue, values in wanted.items():
        of_key = [value for value in values if value.startswith(b"%d-" % queue)]
        assert [value for value in found if value.startswith(b"%d-" % queue)] == of_key
    assert len(found) == sum(map(len, wanted.values()))


def test_errors_name_the_remedy(engine: Engine, kafka: Brokers) -> None:
    kafka.create("small", 2)
    engine.create("small", 3)
    process = mirror(engine, kafka, "small", "--place", "queue")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the source has 2 queues and the topic 3" in errors
    _, errors = mirror(engine, kafka, "absent").communicate(timeout=60)
    assert "absent" in errors
