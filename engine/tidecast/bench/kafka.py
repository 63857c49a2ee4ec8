"""`bench kafka`: the endpoint for Kafka's clients, asked by a client that does as little as it can.

Record batches are produced as they are, and answers are only read from the socket: so the rates are
those of the endpoint. The floor is the same bytes over a loopback connection without any protocol.
With ``--servers`` a broker is asked in the same way, in turns: ``peers.kafka``.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tidecast.bench.durable import Note
from tidecast.bench.measure import Result, machine
from tidecast.config.sources.kafka import KafkaSource
from tidecast.errors import TidecastError
from tidecast.kafka.brokers.cluster import Cluster
from tidecast.kafka.brokers.connection import Link
from tidecast.kafka.schemas import tables
from tidecast.kafka.storing.batches import Encoder, Identity
from tidecast.kafka.storing.fencing import whole_batches
from tidecast.queues.adapter import Record, pack

TURNS, ROUNDS = 5, 200
RECORD_BYTES, BATCH_RECORDS, BATCH_BYTES = 100, 1000, 1 << 20
FETCH_BYTES = 1 << 20
TIMEOUT_S = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Turn(NamedTuple):
    """The figures of one turn."""

    produced_per_s: float
    fetched_per_s: float
    fetched_bytes: int
    fetch_cpu_s: float
    rtt_us: list[float]


@contextlib.contextmanager
def _engine(topics: list[str], queues: int, fsync: str) -> Iterator[tuple[str, int]]:
    """An engine in a process of its own: (address of its endpoint, pid)."""
    with tempfile.TemporaryDirectory(prefix="tc-bench-") as directory:
        settings = {"mode": "durable", "queues": queues, "fsync": fsync}
        raw = {
            "transports": [{"name": "ipc", "kind": "ipc"}],
            "topics": [{"name": name, **settings} for name in topics],
        }
        (Path(directory) / "topology.yaml").write_text(yaml.safe_dump(raw))
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{found.getsockname()[1]}"
        words = ["-m", "tidecast.cli", "engine", "--kafka", address, "--data-dir", directory]
        process = subprocess.Popen(
            [sys.executable, *words, "--gateway", "off"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "ready" not in line:
                raise TidecastError(f"bench kafka: the engine does not start: {line}")
            yield address, process.pid
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process so far; 0: it is unknown."""
    if not pid:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _fetch_body(topic: str, offsets: dict[int, int], wait_ms: int) -> dict[str, Any]:
    rows = [
        {
            "partition": queue,
            "fetch_offset": offset,
            "partition_max_bytes": FETCH_BYTES,
            "current_leader_epoch": -1,
            "log_start_offset": -1,
        }
        for queue, offset in offsets.items()
    ]
    return {
        "replica_id": -1,
        "max_wait_ms": wait_ms,
        "min_bytes": 1,
        "max_bytes": len(rows) * FETCH_BYTES,
        "isolation_level": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": rows}],
    }


class _Client:
    """Two connections to the leader of all partitions of a topic."""

    def __init__(self, servers: str, topic: str, queues: int) -> None:
        self.topic, self.queues = topic, queues
        self._cluster = Cluster(KafkaSource(servers=servers, topic=topic), create=queues)
        self._link: Link = self._cluster.connect(self._cluster.leader(0).address)
        self._other: Link = self._cluster.connect(self._cluster.leader(0).address)

    def close(self) -> None:
        self._cluster.close()

    def produce(self, data: bytes | memoryview, queues: range) -> None:
        """The same batch to some queues, acked."""
        rows = [{"index": queue, "records": data} for queue in queues]
        body = {
            "acks": -1,
            "timeout_ms": int(TIMEOUT_S * 1000),
            "topics": [{"name": self.topic, "partitions": rows}],
        }
        answer = self._link.ask(tables.PRODUCE, body, TIMEOUT_S)
        for row in answer["responses"][0]["partition_responses"]:
            if row["error_code"]:
                raise TidecastError(f"bench kafka: Produce: error {row['error_code']}")

    def fetch_all(self, end: int) -> tuple[float, int]:
        """Fetch all queues up to an offset: (seconds, bytes)."""
        offsets, size, begun = dict.fromkeys(range(self.queues), 0), 0, time.perf_counter()
        while any(offset < end for offset in offsets.values()):
            answer = self._link.ask(tables.FETCH, _fetch_body(self.topic, offsets, 500), TIMEOUT_S)
            for row in answer["responses"][0]["partitions"]:
                batches = whole_batches(row["records"])
                size += len(row["records"] or b"")
                if batches:
                    head, _ = batches[-1]
                    offsets[row["partition_index"]] = head.base_offset + head.last_offset_delta + 1
        return time.perf_counter() - begun, size

    def round_trips(self, data: bytes | memoryview, end: int, rounds: int) -> list[float]:
        """Microseconds from Produce of a batch to its arrival at a Fetch that waits for it."""
        times: list[float] = []
        for i in range(rounds):
            body = _fetch_body(self.topic, {0: end + i}, int(TIMEOUT_S * 1000))
            self._other.send(tables.FETCH, body, i)
            begun = time.perf_counter()
            self.produce(data, range(1))
            if self._other.answer(TIMEOUT_S) is None:
                raise TidecastError("bench kafka: a record did not come")
            times.append((time.perf_counter() - begun) * 1e6)
        return times


def _batch(records: int) -> bytes:
    run = pack([Record(bytes(RECORD_BYTES))] * records)
    made = Encoder(BATCH_BYTES).encode(run, 0, Identity(-1, -1, -1))
    assert made is not None
    return bytes(made.data)


def _turn(servers: str, pid: int, topic: str, queues: int, records: int) -> Turn:
    client = _Client(servers, topic, queues)
    try:
        batch, sends = _batch(BATCH_RECORDS), -(-records // (BATCH_RECORDS * queues))
        begun = time.perf_counter()
        for _ in range(sends):
            client.produce(batch, range(queues))
        end = sends * BATCH_RECORDS
        produced_s = time.perf_counter() - begun
        cpu_s = _cpu_s(pid)
        fetched_s, size = client.fetch_all(end)
        cpu_s = _cpu_s(pid) - cpu_s
        rtt_us = client.round_trips(_batch(1), end, ROUNDS)
    finally:
        client.close()
    n = end * queues
    return Turn(n / produced_s, n / fetched_s, size, cpu_s, rtt_us)


def _plain(size: int) -> float:
    """Seconds for so many bytes over a loopback connection, in pieces as a Fetch has them."""
    piece, left = bytes(FETCH_BYTES), size
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()

        def send() -> None:
            for _ in range(-(-size // FETCH_BYTES)):
                sender.sendall(piece)
            sender.close()

        thread, into = threading.Thread(target=send), memoryview(bytearray(FETCH_BYTES))
        begun = time.perf_counter()
        thread.start()
        while left > 0 and (n := receiver.recv_into(into)):
            left -= n
        elapsed_s = time.perf_counter() - begun
        thread.join()
        receiver.close()
    return elapsed_s


def _figures(turns: list[Turn], records: int) -> dict[str, float]:
    def median(of: Callable[[Turn], float]) -> float:
        return statistics.median(of(each) for each in turns)

    cuts = statistics.quantiles([us for each in turns for us in each.rtt_us], n=100)
    return {
        "produced_records_per_s": round(median(lambda turn: turn.produced_per_s)),
        "fetched_records_per_s": round(median(lambda turn: turn.fetched_per_s)),
        "fetch_cpu_ns_per_record": round(median(lambda turn: turn.fetch_cpu_s) / records * 1e9, 1),
        "rtt_p50_us": round(cuts[49], 1),
        "rtt_p99_us": round(cuts[98], 1),
    }


def kafka(
    note: Note,
    *,
    records: int = 1_000_000,
    queues: int = 4,
    fsync: str = "none",
    servers: str = "",
) -> Result:
    """See module."""
    config = {"records": records, "record_bytes": RECORD_BYTES, "queues": queues, "fsync": fsync}
    result = Result("kafka", {**config, **machine()})
    name = f"bench-{uuid.uuid4().hex[:8]}"
    topics = [f"{name}-{turn}" for turn in range(TURNS)]
    ours, theirs, floors = list[Turn](), list[Turn](), list[float]()
    with _engine(topics, queues, fsync) as (address, pid):
        for turn, topic in enumerate(topics):
            note(f"turn {turn + 1} of {TURNS}")
            ours.append(_turn(address, pid, topic, queues, records))
            floors.append(_plain(ours[-1].fetched_bytes))
            if servers:
                theirs.append(_turn(servers, 0, topic, queues, records))
    result.metrics = _figures(ours, records)
    result.floor["fetched_records_per_s"] = round(records / statistics.median(floors))
    result.compare("fetched_records_per_s")
    if theirs:
        figures = _figures(theirs, records)
        del figures["fetch_cpu_ns_per_record"]
        ratios = {k: round(result.metrics[k] / v, 2) for k, v in figures.items()}
        result.peers["kafka"] = [{"config": {"servers": servers}, "metrics": figures}]
        result.peers["ratio"] = ratios
    return result
