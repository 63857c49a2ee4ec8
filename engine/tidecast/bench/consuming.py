"""`bench consume`: rates of a consumer of a durable topic: compiled, in batches, one by one.

The floor is a plain sequential read of the same log's bytes, with nothing done about them. All of
it in turns, as a virtual machine changes its speed within seconds; the median of each.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tidecast.api.start import Earliest
from tidecast.bench.durable import MESSAGE_BYTES, Note, durable_topology
from tidecast.bench.measure import Result, machine
from tidecast.errors import TidecastError
from tidecast.log.building import BatchBuilder
from tidecast.log.files import queue_directory
from tidecast.log.queue_log import QueueLog
from tidecast.queues.mapper import hash_of

CASES = {"": "bench", "streams_": "streams"}
"""Topics of one key and of many, by the prefix of their figures."""
TURNS = 5
BATCH = 500
FETCH = 4096
READ_BYTES = 1 << 20
WAIT_S = 10.0
OPTIONS: dict[str, Any] = {"max_in_flight": 65_536, "ring_bytes": 8 << 20}


def _count(data: Any, state: Any) -> None:
    state[0] += 1
    state[1] += data.size


def _batches(keys: int) -> Iterator[BatchBuilder]:
    """Sealed once, sealed again with other tokens: batches whose records go through the keys."""
    names = [b"stream-%d" % i for i in range(keys)]
    hashes = [hash_of(name) for name in names]
    for first in range(0, max(keys, BATCH), BATCH):
        builder = BatchBuilder().begin()
        for i in range(first, first + BATCH):
            builder.add(bytes(MESSAGE_BYTES), key=names[i % keys], key_hash=hashes[i % keys])
        yield builder


def fill(log: QueueLog, records: int, keys: int) -> None:
    """Append records straight to a log."""
    builders = list(_batches(keys))
    for n in range(records // BATCH):
        builder = builders[n % len(builders)]
        if builder.used:
            builder.reopen()
        builder.seal(log.next_token)
        log.append(builder.buffer, builder.used)


def compiled(consumer: Any, records: int) -> int:
    """A compiled handler; handled records are acked."""
    state = np.zeros(2, dtype=np.int64)
    return int(consumer.run_compiled(_count, state, max_messages=records, duration_s=60.0))


def batches(consumer: Any, records: int) -> int:
    """`fetch`, every payload as bytes, `ack`, in a Python loop."""
    done = 0
    while done < records and (batch := consumer.fetch(FETCH, WAIT_S)):
        done += len(batch.payloads())
        batch.ack()
    return done


def one_by_one(consumer: Any, records: int) -> int:
    """Iterating messages, each acked by itself."""
    done = 0
    for message in consumer:
        message.ack()
        done += 1
        if done == records:
            break
    return done


async def _one_by_one_on_a_loop(consumer: Any, records: int) -> int:
    done = 0
    async for message in consumer:
        message.ack()
        done += 1
        if done == records:
            break
    return done


WAYS: dict[str, tuple[Callable[[Any, int], int], int]] = {
    "compiled": (compiled, 1),
    "batches": (batches, 1),
    "single": (one_by_one, 8),
}
"""By name: how, and which part of the records is enough for it."""


def plain_read(directory: Path) -> tuple[int, float]:
    """Bytes of all segments and the seconds it takes to read them, a MiB at a time."""
    buffer = bytearray(READ_BYTES)
    done, began = 0, time.perf_counter()
    for path in sorted(directory.glob("*.log")):
        with path.open("rb", buffering=0) as file:
            while n := file.readinto(buffer):
                done += n
    return done, time.perf_counter() - began


def _on_a_loop(node: Any, topic: str, records: int) -> float:
    """Rate of taking and acking messages one by one with asyncio."""
    import tidecast
    from tidecast.embedded import EmbeddedLink

    async def rate() -> float:
        link: Any = EmbeddedLink(node, "loop", owns_node=False)
        async with tidecast.connect(link=link) as client:
            began = time.perf_counter()
            async with client.consumer(topic, "asyncio", **OPTIONS) as consumer:
                done = await _one_by_one_on_a_loop(consumer, records)
                seconds = time.perf_counter() - began
                await consumer.seek(Earliest())
            return done / seconds

    return asyncio.run(rate())


def _turn(client: Any, node: Any, records: int) -> Iterator[tuple[str, float]]:
    """Rate of each way with each topic, by name; each from the start of its topic."""
    for case, topic in CASES.items():
        for way, (run, part) in WAYS.items():
            wanted, began = max(records // part, 1), time.perf_counter()
            with client.consumer(topic, way, **OPTIONS) as consumer:
                done = run(consumer, wanted)
                seconds = time.perf_counter() - began
                consumer.seek(Earliest())  # for the next turn
            if done < wanted:
                raise TidecastError(f"bench consume: {case}{way}: {done} of {wanted} records")
            yield f"{case}{way}_msgs_per_s", done / seconds
        yield f"{case}asyncio_msgs_per_s", _on_a_loop(node, topic, max(records // 8, 1))


def consume(note: Note, *, records: int = 2_000_000, streams: int = 10_000) -> Result:
    """Rates of consuming and acking 100-byte records: one key, and many in turn."""
    import tidecast.sync
    from tidecast.embedded import EmbeddedLink

    records = max(records // BATCH, 1) * BATCH
    config: dict[str, Any] = {
        "records": records,
        "streams": streams,
        "message_bytes": MESSAGE_BYTES,
        "fetch": FETCH,
        "queues": 1,
        **machine(),
    }
    result = Result("consume", config)
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="tidecast-bench-") as folder:
        directories = [queue_directory(Path(folder), topic, 0) for topic in CASES.values()]
        for directory, topic, keys in zip(directories, CASES.values(), (1, streams), strict=True):
            note(f"filling a queue, {keys} keys")
            with QueueLog.open(directory, topic=topic, fsync="none") as log:
                fill(log, records, keys)
        link: Any = EmbeddedLink.open(
            durable_topology(*CASES.values(), queues=1, fsync="none"), data_dir=Path(folder)
        )
        with tidecast.sync.connect(link=link) as client:
            list(_turn(client, link.node, records // 20))  # kernels and pages
            for turn in range(TURNS):
                note(f"turn {turn + 1} of {TURNS}")
                n, seconds = plain_read(directories[0])
                rates.setdefault("plain", []).append(records / seconds)
                for name, rate in _turn(client, link.node, records):
                    rates.setdefault(name, []).append(rate)
    _report(result, rates)
    result.metrics["record_bytes"] = round(n / records, 1)
    return result


def _report(result: Result, rates: dict[str, list[float]]) -> None:
    result.config["msgs_per_s_by_turn"] = {k: [round(v) for v in each] for k, each in rates.items()}
    plain = round(statistics.median(rates.pop("plain")))
    ours = result.metrics
    ours.update({name: round(statistics.median(each)) for name, each in rates.items()})
    for way in ("compiled", "batches"):
        name = f"{way}_msgs_per_s"
        result.floor[name] = plain
        result.compare(name)
        result.ratio[f"streams_{way}"] = round(ours[f"streams_{name}"] / ours[name], 4)
