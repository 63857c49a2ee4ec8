"""Durable topics: publishing with acks beside a plain sequential write, and recovery."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tidecast.bench.measure import Result, Worker, machine, run_together, wait_until, workers
from tidecast.config.leases import SHARED
from tidecast.config.topology import topology_from

MESSAGE_BYTES = 100
BLOCK_BYTES = 512 * 1024
HISTORY_BYTES = 16 << 20
BATCH = 10_000
TURNS = 5
"""How often `durable` measures each way, and a plain write: disks change their speed, too."""
SERVE_S_MAX = 2.0
"""The most time that recovery may take until a queue serves."""
Note = Callable[[str], None]


def durable_topology(*names: str, **topic: Any) -> Any:
    """Durable topics, ``orders`` unless named, in shared memory."""
    settings = {"mode": "durable", "history_bytes": HISTORY_BYTES} | topic
    topics = [{"name": name, **settings} for name in names or ("orders",)]
    return topology_from({"transports": [{"name": "ipc", "kind": "ipc"}], "topics": topics})


def plain_write(directory: Path, n: int) -> float:
    """Seconds to write ``n`` bytes sequentially and sync once: the limit of the disk."""
    block = np.random.default_rng(1).integers(0, 256, BLOCK_BYTES).astype(np.uint8).tobytes()
    began = time.perf_counter()
    fd = os.open(directory / "plain", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        while n > 0:
            n -= os.write(fd, block[: min(n, BLOCK_BYTES)])
        os.fdatasync(fd)
    finally:
        os.close(fd)
        (directory / "plain").unlink()
    return time.perf_counter() - began


def write_one(buf: Any, i: int, _state: Any) -> int:
    """A message of 100 bytes, for the compiled publisher."""
    for k in range(8):
        buf[k] = (i >> (8 * k)) & 0xFF
    return MESSAGE_BYTES


def durable_publish(data_dir: str, messages: int, queues: int, fsync: str) -> dict[str, Any]:
    """Worker: publish to a durable topic in three ways; each ends when all of it is durable.

    ``[seconds, bytes, messages]`` of each turn by way, and ``plain``: a plain write of the bytes
    that the compiled way had written.
    """
    import tidecast.sync
    from tidecast.bench.measure import ready
    from tidecast.embedded import EmbeddedLink

    link: Any = EmbeddedLink.open(
        durable_topology(queues=queues, fsync=fsync), data_dir=Path(data_dir)
    )
    batch = np.random.default_rng(2).integers(0, 256, (BATCH, MESSAGE_BYTES)).astype(np.uint8)
    with tidecast.sync.connect(link=link) as client, client.publisher("orders") as publisher:
        logs = link.node.durable.topics["orders"].logs
        publisher.publish_batch(batch, ack="durable")
        publisher.run_compiled(write_one, None, BATCH, message_bytes_max=MESSAGE_BYTES)
        publisher.wait_durable()
        ready()

        def batched(n: int) -> None:
            for _ in range(n // BATCH):
                publisher.publish_batch(batch)

        def single(n: int) -> None:
            for _ in range(n):
                publisher.publish(b"x" * MESSAGE_BYTES)

        def compiled(n: int) -> None:
            publisher.run_compiled(write_one, None, n, message_bytes_max=MESSAGE_BYTES)

        def measured(publish: Callable[[int], None], n: int) -> tuple[float, int, int]:
            before, began = sum(log.bytes for log in logs), time.perf_counter()
            publish(n)
            publisher.wait_durable(timeout=120.0)
            seconds = time.perf_counter() - began
            return seconds, sum(log.bytes for log in logs) - before, n

        turns: dict[str, list[tuple[float, int, int]]] = {
            "batched": [],
            "single": [],
            "compiled": [],
            "plain": [],
        }
        for _ in range(TURNS):
            turns["batched"].append(measured(batched, messages))
            turns["single"].append(measured(single, messages // 10))
            turns["compiled"].append(measured(compiled, messages))
            size = turns["compiled"][-1][1]
            turns["plain"].append((plain_write(Path(data_dir), size), size, 0))
        samples = []
        for _ in range(50):
            began = time.perf_counter()
            publisher.publish(b"x" * MESSAGE_BYTES, ack="durable")
            samples.append(time.perf_counter() - began)
    return {"turns": turns, "ack_p50_us": round(float(np.percentile(samples, 50)) * 1e6, 1)}


def durable(
    note: Note, *, messages: int = 2_000_000, queues: int = 1, fsync: str = "interval"
) -> Result:
    """Publishing to a durable topic, all of it acked as durable; 100-byte messages.

    It and a plain sequential write of the same bytes in turns; the median of each.
    """
    messages = max(BATCH, messages // BATCH * BATCH)
    config: dict[str, Any] = {
        "messages": messages,
        "queues": queues,
        "fsync": fsync,
        "message_bytes": MESSAGE_BYTES,
        **machine(),
    }
    result = Result("durable", config)
    with tempfile.TemporaryDirectory(prefix="tidecast-bench-") as folder:
        note(f"publishing, and plain sequential writes, {TURNS} turns")
        (found,) = run_together(
            Worker(
                "durable_publish",
                None,
                data_dir=f"{folder}/data",
                messages=messages,
                queues=queues,
                fsync=fsync,
            )
        )
    turns = found["turns"]
    for name in ("batched", "single", "compiled"):
        rates = [messages / seconds for seconds, _, messages in turns[name]]
        result.metrics[f"publish_{name}_msgs_per_s"] = round(statistics.median(rates))
        config[f"{name}_msgs_per_s_by_turn"] = [round(rate) for rate in rates]
    plain, ours = ([n / seconds for seconds, n, _ in turns[k]] for k in ("plain", "compiled"))
    config["bytes_per_s_by_turn"] = [
        [round(rate) for rate in each] for each in zip(plain, ours, strict=True)
    ]
    result.metrics["append_bytes_per_s"] = round(statistics.median(ours))
    result.metrics["ack_p50_us"] = found["ack_p50_us"]
    result.floor["append_bytes_per_s"] = round(statistics.median(plain))
    result.compare("append_bytes_per_s")
    return result


def fill(directory: Path, n: int, note: Note) -> int:
    """A queue's log of about ``n`` bytes, written directly; its last token."""
    from tidecast.log.building import BatchBuilder
    from tidecast.log.files import checksum
    from tidecast.log.queue_log import QueueLog
    from tidecast.protocol.dedup import ProducerTable

    builder, payload = BatchBuilder(2 << 20), os.urandom(MESSAGE_BYTES)
    with QueueLog.open(directory, topic="orders", fsync="none") as log:
        builder.begin()
        for _ in range(8000):
            builder.add(payload)
        done, producers = 0, ProducerTable(1).snapshot(0, checksum)
        while done < n:
            builder.seal(log.next_token)
            if log.segments[-1].bytes + builder.used > log.segment_bytes:
                log.roll(0, producers)  # as an engine does, which knows its producers
            log.append(builder.buffer, builder.used)
            done += builder.used
            builder.reopen()
            if done % (64 << 20) < builder.used:
                note(f"writing the queue: {done >> 20} MiB")
        end = log.next_token
    note("syncing the queue")
    for path in directory.glob("*.log"):  # an engine would have, long ago: not part of recovery
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)
    return end


def recovery(note: Note, *, gigabytes: float = 1.0) -> Result:
    """An engine is killed (-9) during appends to a large queue: how soon does the next one serve?

    ``serve_s``: from the start of an engine until a consumer has the oldest record, kernels loaded
    from their cache. ``recover_s``: the queue's part of it, once more. ``takeover_s``: of an engine
    that takes the queue by a lease, and copies its newest segment, until it could append.
    """
    from tidecast.log.files import queue_directory
    from tidecast.log.repair.verify import queue_bytes
    from tidecast.node.durable.topic import DurableTopic

    result = Result("recovery", {"gigabytes": gigabytes, **machine()})
    with tempfile.TemporaryDirectory(prefix="tidecast-bench-") as folder:
        directory = queue_directory(Path(folder), "orders", 0)
        fill(directory, int(gigabytes * 1e9), note)
        note("an engine appends, and is killed")
        with workers(Worker("durable_engine", None, data_dir=folder)) as (engine,):
            engine.go()
            size = queue_bytes(directory)
            wait_until(lambda: queue_bytes(directory) > size + (1 << 20), 30.0, "appends")
            engine.process.kill()
            engine.process.wait()
        note("the next engine")
        (served,) = run_together(Worker("durable_serve", None, data_dir=folder))
        result.metrics.update(served)
        config = durable_topology().topics[0]
        began = time.perf_counter()
        topic = DurableTopic.open(config, Path(folder), time.time_ns())
        result.metrics["recover_s"] = round(time.perf_counter() - began, 4)
        result.metrics["queue_bytes"] = topic.logs[0].bytes
        newest = topic.logs[0].segments[-1].bytes
        topic.close()
        note("another engine takes the queue over, as from an engine that died")
        shared = msgspec.structs.replace(config, owner=SHARED)
        began = time.perf_counter()
        taken = DurableTopic.open(shared, Path(folder), time.time_ns(), 1, "next")
        result.metrics["takeover_s"] = round(time.perf_counter() - began, 4)
        result.metrics["takeover_copied_bytes"] = newest
        taken.close()
    result.floor["serve_s"] = SERVE_S_MAX
    result.compare("serve_s")
    return result


def durable_serve(data_dir: str) -> dict[str, Any]:
    """Worker: start an engine on another's files, until it serves the oldest and takes records."""
    import tidecast.sync
    from tidecast.bench.measure import ready
    from tidecast.embedded import EmbeddedLink

    ready()
    began = time.perf_counter()
    link: Any = EmbeddedLink.open(durable_topology(), data_dir=Path(data_dir))
    with tidecast.sync.connect(link=link) as client, client.consumer("orders", "first") as consumer:
        assert consumer.fetch(1, max_wait=60.0)
        serve_s = time.perf_counter() - began
        client.publisher("orders").publish(b"x" * MESSAGE_BYTES, ack="durable", timeout=60.0)
        topic = link.node.durable.topics["orders"]
        return {
            "scanned_bytes": topic.logs[0].recovered.scanned_bytes,
            "torn_bytes": sum(torn.bytes for _, torn in topic.torn),
            "serve_s": round(serve_s, 4),
            "publish_acked_s": round(time.perf_counter() - began, 4),
        }


def durable_engine(data_dir: str) -> dict[str, Any]:
    """Worker: an engine in this process whose topic is published to without end."""
    import tidecast.sync
    from tidecast.bench.measure import ready
    from tidecast.embedded import EmbeddedLink

    link: Any = EmbeddedLink.open(durable_topology(), data_dir=Path(data_dir))
    publisher = tidecast.sync.connect(link=link).publisher("orders")
    batch = np.zeros((BATCH, MESSAGE_BYTES), dtype=np.uint8)
    ready()
    while True:
        publisher.publish_batch(batch)


ROLES: dict[str, Callable[..., dict[str, Any]]] = {
    "durable_publish": durable_publish,
    "durable_engine": durable_engine,
    "durable_serve": durable_serve,
}
