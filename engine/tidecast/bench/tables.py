"""`bench tables`: keys and headers in full, and by tables (`compression: tables` of a topic).

Two workloads: ``feed``, market data of 500 instruments whose key is their name, and ``headers``,
records with ten headers of which three differ in each message. Bytes are counted where the sender
gives them to the network, with padding of segments and definitions of tables.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import msgspec
import numpy as np

from tidecast.bench.durable import Note
from tidecast.bench.loops.tables import compact_all, expand_all
from tidecast.bench.measure import Result, machine
from tidecast.bench.workers import live
from tidecast.errors import TidecastError
from tidecast.layout import packet as wire
from tidecast.protocol.tables.reading import table_reader
from tidecast.protocol.tables.writing import table_writer

WORKLOADS = ("feed", "headers")
_NAMES = ("off", "tables")
TURNS = 9
BATCH = 1000
_PAYLOAD_BYTES = {"feed": 24, "headers": 64}
_INSTRUMENTS = 500
_PACKETS = 1000
_PORT = 29_400
_SETTLE_S = 0.5


def columns(workload: str, first: int, n: int) -> dict[str, Any]:
    """Keys, and headers as MessagePack, of messages from number ``first`` on."""
    numbers = range(first, first + n)
    if workload == "feed":
        return {"keys": [f"XETR.{i * 7919 % _INSTRUMENTS:06d}" for i in numbers]}
    return {"headers": [_headers(i) for i in numbers]}


def _headers(i: int) -> dict[str, str | int]:
    return {
        "content-type": "application/json",
        "service": "order-gateway",
        "region": "eu-central-1",
        "schema": "orders.v3.OrderAccepted",
        "tenant": f"tenant-{i % 20:02d}",
        "environment": "production",
        "producer-version": "2026.11.3",
        "trace-id": f"{i * 0x9E3779B97F4A7C15 & (1 << 64) - 1:016x}",
        "sequence": i,
        "sent-at": 1_764_000_000_000 + i,
    }


def _prepared(given: dict[str, Any]) -> dict[str, Any]:
    """As Arrow columns, so that publishing packs nothing in Python."""
    import pyarrow as pa

    if "headers" in given:
        return {"headers": pa.array([msgspec.msgpack.encode(each) for each in given["headers"]])}
    return {"keys": pa.array(given["keys"])}


class _Pair:
    """Two nodes on loopback multicast, driven by one thread: it publishes, sends and reads."""

    def __init__(self, workload: str, compression: str, port: int) -> None:
        about = {"port": port, "compression": compression}
        self.a, self.b = live.connect(1, about), live.connect(2, about)
        self.reading = self.b.subscribe(live.TOPIC).open()
        self.publisher = self.a.publisher(live.TOPIC)
        row = np.dtype([("number", np.int64), ("rest", np.uint8, _PAYLOAD_BYTES[workload] - 8)])
        self.rows = np.zeros(BATCH, dtype=row)
        self.rows["number"] = np.arange(BATCH)
        self.batches = [_prepared(columns(workload, k * BATCH, BATCH)) for k in range(20)]
        self.published = self.received = 0

    def round(self, batches: int) -> float:
        """Publish and read: messages a second of CPU time."""
        before, began = self.received, time.process_time()
        last = self.published + batches * BATCH
        deadline = time.monotonic() + live.SETTLE_S
        while self.received < last:
            if self.published < last:
                number = self.published // BATCH
                self.publisher.publish_batch(self.rows, **self.batches[number % 20])
                self.rows["number"] += BATCH
                self.published += BATCH
            self._work()
            if time.monotonic() > deadline:
                raise TidecastError(f"bench tables: {last - self.received} messages did not come")
        return (self.received - before) / (time.process_time() - began)

    def _work(self) -> None:
        self.a.link.work()
        self.b.link.work()
        while (batch := self.reading.step(4096)) is not None:
            n = len(batch)
            numbers = batch.to_numpy()[:, :8].copy().view(np.int64)[:, 0]
            if (numbers != np.arange(self.received, self.received + n)).any():
                raise TidecastError(f"bench tables: {numbers[:9]} came for {self.received}")
            self.received += n

    def settle(self) -> None:
        """Until the sender knows the receiver, and has counted repeated headers."""
        end = time.monotonic() + _SETTLE_S
        while time.monotonic() < end:
            self._work()
        self.round(10)

    def row(self) -> dict[str, Any]:
        """The publication as the node shows it."""
        return dict(self.a.link.node.publications()[0])

    def close(self) -> None:
        """Close both nodes."""
        self.a.close()
        self.b.close()


def _kernels_ns(workload: str) -> dict[str, float]:
    """Cost of compacting and of expanding a packet of 1,400 bytes: the best of 20 turns."""
    packets = np.zeros((_PACKETS, 1408), dtype=np.uint8)
    lengths = np.full(_PACKETS, wire.PACKET_HEADER_BYTES, dtype=np.int64)
    payload, i, number = bytes(_PAYLOAD_BYTES[workload]), 0, 0
    while i < _PACKETS:
        given = columns(workload, number, 1)
        key = b"".join(len(k).to_bytes(2, "little") + k.encode() for k in given.get("keys", ()))
        maps = b"".join(
            len(m).to_bytes(2, "little") + m
            for m in map(msgspec.msgpack.encode, given.get("headers", ()))
        )
        body = key + maps + payload
        flags = wire.WHOLE | (wire.KEY if key else 0) | (wire.HEADERS if maps else 0)
        raw = (len(body) | flags << 24).to_bytes(4, "little") + body
        if lengths[i] + len(raw) > 1400:
            i += 1
            continue
        packets[i, lengths[i] : lengths[i] + len(raw)] = np.frombuffer(raw, dtype=np.uint8)
        lengths[i] += len(raw)
        number += 1
    packets[:, wire.LENGTH_AT : wire.LENGTH_AT + 2] = (
        lengths.astype("<u2").view(np.uint8).reshape(-1, 2)
    )
    block, reader = table_writer(1), table_reader()
    out, made = np.zeros_like(packets), np.zeros(_PACKETS, dtype=np.int64)
    scratch = np.zeros(65_000, dtype=np.uint8)
    costs: dict[str, list[float]] = {"compact": [], "expand": []}
    for _ in range(21):
        began = time.perf_counter_ns()
        compact_all(block, packets, lengths, out, made)
        costs["compact"].append((time.perf_counter_ns() - began) / _PACKETS)
        began = time.perf_counter_ns()
        n = int(expand_all(reader, block, out, made, scratch))
        costs["expand"].append((time.perf_counter_ns() - began) / _PACKETS)
        assert n == int(lengths[made > 0].sum())
    return {
        f"{workload}_{what}_ns_per_packet": round(min(each[1:]), 1) for what, each in costs.items()
    }


def tables(note: Note, *, messages: int = 1_000_000) -> Result:
    """Messages a second and bytes a message of both workloads, without tables and with."""
    result = Result("tables", {"messages": messages, "instruments": _INSTRUMENTS, **machine()})
    batches = max(messages // TURNS // BATCH, 1)
    for at, workload in enumerate(WORKLOADS):
        note(f"{workload}: kernels")
        result.metrics |= _kernels_ns(workload)
        cases = [_Pair(workload, name, _PORT + 30 * at + 10 * i) for i, name in enumerate(_NAMES)]
        for case in cases:
            case.settle()
        before = [case.row()["wire_bytes"] for case in cases]
        turns: list[list[float]] = []
        for turn in range(TURNS):
            note(f"{workload}, turn {turn + 1} of {TURNS}")
            turns.append([case.round(batches) for case in cases])
        n = batches * BATCH * TURNS
        sizes = [
            round((case.row()["wire_bytes"] - first) / n, 1)
            for case, first in zip(cases, before, strict=True)
        ]
        found = live.publications(cases[1].a)[0]
        for case in cases:
            case.close()
        name = f"{workload}_msgs_per_s"
        result.config[f"{name}_by_turn"] = [[round(rate) for rate in each] for each in turns]
        result.floor[name] = round(statistics.median(off for off, _ in turns))
        result.metrics[name] = round(statistics.median(on for _, on in turns))
        result.ratio[name] = round(statistics.median(on / off for off, on in turns), 4)
        name = f"{workload}_wire_bytes"
        result.floor[name], result.metrics[name] = sizes
        result.compare(name)
        result.metrics[f"{workload}_compact_packets"] = int(found.get("compacted", 0))
    return result
