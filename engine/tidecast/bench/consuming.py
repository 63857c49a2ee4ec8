"""`bench consume`: what a consumer of a durable topic gets: compiled, in batches, one by one.

The floor is a plain sequential read of the same log's bytes, with nothing done about them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tidecast.bench.durable import MESSAGE_BYTES, Note, durable_topology
from tidecast.bench.measure import Result, machine
from tidecast.errors import TidecastError
from tidecast.log.building import BatchBuilder
from tidecast.log.files import queue_directory
from tidecast.log.queue_log import QueueLog
from tidecast.queues.mapper import hash_of

TOPIC = "bench"
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


def compiled(client: Any, records: int) -> int:
    """A compiled handler; what is handled is acked."""
    with client.consumer(TOPIC, "compiled", **OPTIONS) as consumer:
        state = np.zeros(2, dtype=np.int64)
        return int(consumer.run_compiled(_count, state, max_messages=records, duration_s=60.0))


def batches(client: Any, records: int) -> int:
    """`fetch`, every payload as bytes, `ack`, in a Python loop."""
    done = 0
    with client.consumer(TOPIC, "batches", **OPTIONS) as consumer:
        while done < records and (batch := consumer.fetch(FETCH, WAIT_S)):
            done += len(batch.payloads())
            batch.ack()
    return done


def one_by_one(client: Any, records: int) -> int:
    """Iterating messages, each acked by itself."""
    done = 0
    with client.consumer(TOPIC, "one by one", **OPTIONS) as consumer:
        for message in consumer:
            message.ack()
            done += 1
            if done == records:
                break
    return done


WAYS: dict[str, tuple[Callable[[Any, int], int], int]] = {
    "compiled": (compiled, 1), "batches": (batches, 1), "single": (one_by_one, 20)
}  # fmt: skip
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


def consume(note: Note, *, records: int = 1_000_000, streams: int = 10_000) -> Result:
    """Rates of consuming and acking 100-byte records: one key, and many in turn."""
    import tidecast.sync
    from tidecast.node.embedded import EmbeddedLink

    records = max(records // BATCH, 1) * BATCH
    result = Result(
        "consume",
        {"records": records, "streams": streams, "message_bytes": MESSAGE_BYTES, "fetch": FETCH,
         "queues": 1, **machine()},
    )  # fmt: skip
    for case, keys in (("", 1), ("streams_", streams)):
        with tempfile.TemporaryDirectory(prefix="tidecast-bench-") as folder:
            note(f"filling a queue, {keys} keys")
            directory = queue_directory(Path(folder), TOPIC, 0)
            with QueueLog.open(directory, topic=TOPIC, fsync="none") as log:
                fill(log, records, keys)
            link: Any = EmbeddedLink.open(
                durable_topology(TOPIC, queues=1, fsync="none"), data_dir=Path(folder)
            )
            with tidecast.sync.connect(link=link) as client:
                with client.consumer(TOPIC, "warm up", **OPTIONS) as consumer:
                    state = np.zeros(2, dtype=np.int64)
                    consumer.run_compiled(_count, state, max_messages=BATCH, duration_s=WAIT_S)
                for way, (run, part) in WAYS.items():
                    note(f"{keys} keys, {way}")
                    wanted, began = records // part, time.perf_counter()
                    done = run(client, wanted)
                    seconds = time.perf_counter() - began
                    if done < wanted:
                        raise TidecastError(f"bench consume: {way}: {done} of {wanted} records")
                    result.metrics[f"{case}{way}_msgs_per_s"] = round(done / seconds)
            if not case:
                note("a plain read of the same bytes")
                n, seconds = plain_read(directory)
                for way in ("compiled", "batches"):
                    result.floor[f"{way}_msgs_per_s"] = round(records / seconds)
                result.metrics["record_bytes"] = round(n / records, 1)
    for way in ("compiled", "batches"):
        result.compare(f"{way}_msgs_per_s")
        ours = result.metrics
        result.ratio[f"streams_{way}"] = round(
            ours[f"streams_{way}_msgs_per_s"] / ours[f"{way}_msgs_per_s"], 4
        )
    return result
