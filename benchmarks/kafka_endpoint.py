"""The Kafka endpoint beside Kafka itself: the same clients and settings, in turns, in one run.

``python -m benchmarks.kafka_endpoint --kafka 127.0.0.1:9092 --jars DIR``. The broker runs already,
the engine is started here. Clients: Kafka's ProducerPerformance and ConsumerPerformance (with
``--jars``, the jars of Kafka's tools), confluent-kafka's producer and ``consume(5000)``, the latter
with its defaults and without its sleep when its queue is full (``awake``). The topics are made on
the broker and stay there. All producers ask for ``acks=all``; the engine's topics have ``--fsync``:
``none`` is what a single broker does.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml

from tidecast.bench.measure import machine

QUEUES, FETCHED, TIMEOUT_S = 4, 5000, 120.0
ROUNDS_PER_TURN, WARM_UP = 200, 20
PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER = "org.apache.kafka.tools.ConsumerPerformance"
Figures = dict[str, float]


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def engine(topics: list[str], fsync: str) -> Iterator[tuple[str, int]]:
    """An engine in a process of its own: (address of its endpoint, pid)."""
    with tempfile.TemporaryDirectory(prefix="tc-") as directory:
        settings = {"mode": "durable", "queues": QUEUES, "fsync": fsync}
        raw = {
            "transports": [{"name": "ipc", "kind": "ipc"}],
            "topics": [{"name": name, **settings} for name in topics],
        }
        (Path(directory) / "topology.yaml").write_text(yaml.safe_dump(raw))
        address = f"127.0.0.1:{free_port()}"
        words = ["-m", "tidecast.cli", "engine", "--kafka", address, "--data-dir", directory]
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "ready" not in line:
                raise click.ClickException(f"the engine does not start: {line}")
            yield address, process.pid
        finally:
            process.terminate()
            process.wait(30)


def resident_mb(pid: int) -> float:
    """Memory of a process in MB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def create(servers: str, topics: list[str]) -> None:
    """The topics, on a broker."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    made = admin.create_topics([NewTopic(name, num_partitions=QUEUES) for name in topics])
    for each in made.values():
        each.result(TIMEOUT_S)


# --- clients --------------------------------------------------------------------------------------


def java(jars: Path, main: str, *arguments: str) -> str:
    """The output of one of Kafka's tools."""
    command = ["java", "-Xmx320m", "-cp", f"{jars}/*", main, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if ran.returncode:
        raise click.ClickException(f"{main}: {(ran.stderr or ran.stdout)[-500:]}")
    return ran.stdout


def java_figures(jars: Path, servers: str, topic: str, records: int, size: int) -> Figures:
    """ProducerPerformance, then ConsumerPerformance while it fetches."""
    props = [f"bootstrap.servers={servers}", "acks=all", "linger.ms=5"]
    words = ["--topic", topic, "--num-records", str(records), "--record-size", str(size)]
    told = java(jars, PRODUCER, *words, "--throughput", "-1", "--producer-props", *props)
    sent = re.search(r"([\d.]+) records/sec.*\n?$", told.strip().splitlines()[-1])
    words = ["--bootstrap-server", servers, "--topic", topic, "--messages", str(records)]
    told = java(jars, CONSUMER, *words, "--timeout", "60000", "--hide-header")
    row = [each.strip() for each in told.strip().splitlines()[-1].split(",")]
    if sent is None or len(row) < 10:
        raise click.ClickException(f"Kafka's tools wrote something else: {told[-300:]}")
    return {"java_produced_per_s": float(sent[1]), "java_consumed_per_s": float(row[9])}


def confluent_figures(servers: str, topic: str, records: int, size: int) -> Figures:
    """Messages a second of confluent-kafka: produced and acked, then consumed."""
    import confluent_kafka

    payload = bytes(size)
    settings: dict[str, Any] = {"bootstrap.servers": servers, "acks": "all", "linger.ms": 5}
    producer = confluent_kafka.Producer(settings)
    producer.produce(topic, payload)
    producer.flush(TIMEOUT_S)
    begun = time.perf_counter()
    for i in range(records):
        while True:
            try:
                producer.produce(topic, payload)
                break
            except BufferError:
                producer.poll(0.01)
        if i % 1000 == 0:
            producer.poll(0)
    if producer.flush(TIMEOUT_S):
        raise click.ClickException(f"{servers}: records are not acked after {TIMEOUT_S:g} s")
    produced_s = time.perf_counter() - begun
    return {
        "confluent_produced_per_s": records / produced_s,
        "confluent_consumed_per_s": consumed_per_s(servers, topic, records),
        "confluent_awake_consumed_per_s": consumed_per_s(
            servers, topic, records, {"fetch.queue.backoff.ms": 0}
        ),
    }


def consumed_per_s(
    servers: str, topic: str, records: int, settings: dict[str, Any] | None = None
) -> float:
    """Messages a second of ``consume(5000)``, behind the first one.

    By default librdkafka sleeps for a second whenever 100,000 messages wait in it.
    """
    import confluent_kafka

    consumer = _assigned(servers, topic, confluent_kafka.OFFSET_BEGINNING, settings)
    n, begun = len(consumer.consume(1, TIMEOUT_S)), time.perf_counter()
    while n < records:
        got = consumer.consume(FETCHED, TIMEOUT_S)
        if not got:
            raise click.ClickException(f"{servers}: {n} of {records} records came")
        n += len(got)
    consumed_s = time.perf_counter() - begun
    consumer.close()
    return n / consumed_s


def _assigned(servers: str, topic: str, offset: int, settings: dict[str, Any] | None = None) -> Any:
    import confluent_kafka

    given = {"bootstrap.servers": servers, "group.id": "bench", **(settings or {})}
    consumer = confluent_kafka.Consumer(given)
    places = [confluent_kafka.TopicPartition(topic, each, offset) for each in range(QUEUES)]
    consumer.assign(places)
    return consumer


def latency_figures(servers: str, topic: str, size: int) -> Figures:
    """From produce to the arrival at a consumer that waits, one record at a time."""
    import confluent_kafka

    consumer = _assigned(servers, topic, confluent_kafka.OFFSET_END)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 0})
    consumer.poll(1.0)
    times: list[float] = []
    for i in range(ROUNDS_PER_TURN + WARM_UP):
        begun = time.perf_counter()
        producer.produce(topic, bytes(size), partition=i % QUEUES)
        producer.poll(0)
        if consumer.poll(TIMEOUT_S) is None:
            raise click.ClickException(f"{servers}: a record did not come")
        if i >= WARM_UP:
            times.append((time.perf_counter() - begun) * 1e6)
    producer.flush(TIMEOUT_S)
    consumer.close()
    cuts = statistics.quantiles(times, n=100)
    return {"first_byte_p50_us": cuts[49], "first_byte_p99_us": cuts[98]}


# --- the run --------------------------------------------------------------------------------------


@click.command()
@click.option("--kafka", required=True, help="HOST:PORT of a broker.")
@click.option(
    "--jars",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Jars of Kafka's tools; without them no Java client.",
)
@click.option("--records", type=click.IntRange(1000), default=500_000, show_default=True)
@click.option("--record-bytes", type=click.IntRange(1, 1 << 20), default=100, show_default=True)
@click.option("--turns", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option(
    "--fsync",
    type=click.Choice(["none", "interval", "batch"]),
    default="none",
    show_default=True,
    help="Of the engine's topics.",
)
def main(
    kafka: str, jars: Path | None, records: int, record_bytes: int, turns: int, fsync: str
) -> None:
    """Print one JSON object: medians of both, and the ratio of each turn."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    topics = [f"{name}-{kind}-{turn}" for turn in range(turns) for kind in ("j", "c", "l")]
    create(kafka, topics)
    found: dict[str, list[Figures]] = {"tidecast": [], "kafka": []}
    with engine(topics, fsync) as (address, pid):
        idle_mb = resident_mb(pid)
        for turn in range(turns):
            for who, servers in (("tidecast", address), ("kafka", kafka)):
                figures: Figures = {}
                if jars is not None:
                    figures |= java_figures(
                        jars, servers, f"{name}-j-{turn}", records, record_bytes
                    )
                figures |= confluent_figures(servers, f"{name}-c-{turn}", records, record_bytes)
                figures |= latency_figures(servers, f"{name}-l-{turn}", record_bytes)
                found[who].append(figures)
                click.echo(f"turn {turn}, {who}: {figures}", err=True)
        after_mb = resident_mb(pid)
    keys = list(found["kafka"][0])
    outcome = {
        "bench": "kafka-endpoint",
        "config": {
            "records": records,
            "record_bytes": record_bytes,
            "turns": turns,
            "fsync": fsync,
        },
        "metrics": {
            "idle_mb": round(idle_mb),
            "after_mb": round(after_mb),
            **{k: round(statistics.median(each[k] for each in found["tidecast"])) for k in keys},
        },
        "kafka": {k: round(statistics.median(each[k] for each in found["kafka"])) for k in keys},
        "ratios": {
            k: [round(a[k] / b[k], 2) for a, b in zip(*found.values(), strict=True)] for k in keys
        },
        "machine": machine(),
    }
    click.echo(json.dumps(outcome))


if __name__ == "__main__":
    main()
