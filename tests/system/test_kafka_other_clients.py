"""Clients that are no Python packages against the endpoint: kcat, kafkajs, franz-go, Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from tests.support import kafka_clients
from tests.support.kafka import Served
from tests.support.kafka_clients import franz_go, kafkajs, kcat

N, QUEUES = 500, 4
TOPICS = [
    {"name": f"t{i}", "mode": "durable", "queues": QUEUES, "fsync_interval_ms": 2}
    for i in range(32)
]
_names = iter(range(32))
Run = Callable[..., Any]
needs_kcat = pytest.mark.skipif(
    bool(kafka_clients.missing_kcat()), reason=kafka_clients.missing_kcat()
)
needs_kafkajs = pytest.mark.skipif(
    bool(kafka_clients.missing_kafkajs()), reason=kafka_clients.missing_kafkajs()
)
needs_go = pytest.mark.skipif(bool(kafka_clients.missing_go()), reason=kafka_clients.missing_go())
BOTH = [
    pytest.param(kafkajs, marks=needs_kafkajs, id="kafkajs"),
    pytest.param(franz_go, marks=needs_go, id="franz-go"),
]
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("node"), TOPICS)
    yield made
    assert made.endpoint.counters.of("faults") == 0
    assert made.endpoint.counters.of("bad_requests") == 0
    made.close()


@pytest.fixture
def topic() -> str:
    return f"t{next(_names)}"


def checked(rows: list[list[Any]]) -> None:
    """N records of the programs, each once, without holes in any partition."""
    assert sorted(row[3] for row in rows) == sorted(f"v{i}" for i in range(N))
    for _, _, key, value, header in rows:
        assert (key, header) == (f"k{int(value[1:]) % 9}", value[1:])
    for partition in range(QUEUES):
        offsets = [row[1] for row in rows if row[0] == partition]
        assert offsets == list(range(len(offsets)))


def lag(served: Served, topic: str, group: str) -> int:
    """Records behind the committed offsets of a group."""
    offsets = served.endpoint.groups.offsets
    logs = served.link.node.durable.topics[topic].logs
    committed = [offsets.get(group, topic, q) for q in range(QUEUES)]
    ends = [log.durable_token for log in logs]
    return sum(end - (o.offset if o else 0) for end, o in zip(ends, committed, strict=True))


@needs_kcat
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kcat(served: Served, topic: str, codec: str) -> None:
    address = served.endpoint.address
    lines = "".join(f"k{i % 9}:v{i}\n" for i in range(N))
    kcat(address, "-P", "-t", topic, "-K:", "-z", codec, "-H", "n=7", stdin=lines)
    form = ("-f", "%p %o %k %s %h\n")
    told = kcat(address, "-C", "-t", topic, "-o", "beginning", "-e", "-q", *form)
    rows = [line.split() for line in told.splitlines()]
    assert {row[4] for row in rows} == {"n=7"}
    checked([[int(p), int(o), k, v, v[1:]] for p, o, k, v, _ in rows])
    told = kcat(
        address, "-G", f"g-{topic}", "-X", "auto.offset.reset=earliest", "-e", "-q", *form, topic
    )
    assert len(told.splitlines()) == N
    assert lag(served, topic, f"g-{topic}") == 0
    assert f'topic "{topic}" with {QUEUES} partitions' in kcat(address, "-L")
    assert f"{topic} [0] offset" in kcat(address, "-Q", "-t", f"{topic}:0:-1")


@pytest.mark.parametrize("client", BOTH)
def test_transactions_are_refused_clearly(served: Served, client: Run) -> None:
    told = client(served.endpoint.address, "transaction", "t0")["error"]
    expected = "Failed to find group coordinator" if client is kafkajs else "TRANSACTIONAL_ID_AUTH"
    assert expected in told, told


def test_librdkafka_is_refused_transactions(served: Served) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": served.endpoint.address, "transactional.id": "t"}
    )
    with pytest.raises(confluent_kafka.KafkaException, match="ransactional"):
        producer.init_transactions(30.0)


@pytest.mark.parametrize("client", BOTH)
def test_scram_is_refused_with_what_is_allowed(served: Served, client: Run) -> None:
    told = str(client(served.endpoint.address, "scram", "t0")["error"])
    assert "PLAIN" in told or "mechanism" in told.lower(), told


@needs_kcat
def test_kcat_is_refused_scram_with_what_is_allowed(served: Served) -> None:
    sasl = (
        "security.protocol=SASL_PLAINTEXT",
        "sasl.mechanism=SCRAM-SHA-256",
        "sasl.username=a",
        "sasl.password=b",
    )
    options = [part for each in sasl for part in ("-X", each)]
    told = kcat(served.endpoint.address, *options, "-L", "-m", "5", fails=True)
    assert "supported mechanisms" in told, told


@needs_kafkajs
@pytest.mark.parametrize(
    ("codec", "kind"), [("None", ""), ("GZIP", ""), ("None", "idempotent")], ids=str
)
def test_kafkajs(served: Served, topic: str, codec: str, kind: str) -> None:
    address = served.endpoint.address
    kafkajs(address, "produce", topic, str(N), codec, kind)
    checked(kafkajs(address, "consume", topic, f"g-{topic}", str(N)))
    assert lag(served, topic, f"g-{topic}") == 0


@needs_go
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_franz_go(served: Served, topic: str, codec: str) -> None:
    address = served.endpoint.address
    franz_go(address, "produce", topic, str(N), codec)
    checked(franz_go(address, "consume", topic, f"g-{topic}", str(N)))
    assert lag(served, topic, f"g-{topic}") == 0


@pytest.mark.parametrize(
    ("client", "balancer"),
    [
        pytest.param(kafkajs, (), marks=needs_kafkajs, id="kafkajs"),
        pytest.param(franz_go, ("range",), marks=needs_go, id="franz-go range"),
        pytest.param(franz_go, ("cooperative",), marks=needs_go, id="franz-go cooperative"),
    ],
)
def test_groups_rebalance(
    served: Served, topic: str, client: Run, balancer: tuple[str, ...]
) -> None:
    steps = client(
        served.endpoint.address, "rebalance", topic, f"g-{topic}", str(QUEUES), *balancer
    )
    assert steps == [[QUEUES], [QUEUES // 2] * 2, [QUEUES]]


@pytest.mark.skipif(
    bool(kafka_clients.missing_spark()), reason=kafka_clients.missing_spark() or "none"
)
@pytest.mark.timeout(290)
def test_spark_source_and_sink(served: Served, topic: str, tmp_path: Path) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": served.endpoint.address})
    for i in range(N):
        producer.produce(topic, f"v{i}", f"k{i % 9}", headers={"n": f"{i}"})
    assert producer.flush(20.0) == 0
    command = [
        sys.executable,
        "-m",
        "tests.support.kafka_spark",
        served.endpoint.address,
        topic,
        f"t{next(_names)}",
        str(tmp_path / "checkpoint"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["rows"] == [N, 0]
    for rows in found["found"].values():
        checked(sorted(rows))
