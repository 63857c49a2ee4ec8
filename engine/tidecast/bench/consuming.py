"""`bench consume`: what a consumer of a durable topic gets, compiled and in Python batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tidecast.sync
from tidecast.config import TopicConfig, Topology, TransportConfig, topology_from
from tidecast.log.building import BatchBuilder
from tidecast.queues.mapper import hash_of

_BATCH = 500


def _count(data: Any, state: Any) -> None:
    state[0] += 1
    state[1] += data.size


def _fill(node: Any, records: int, streams: int) -> None:
    """Append straight to the logs of the topic ``bench``."""
    topic = node.durable.topics["bench"]
    keys = [b"stream-%d" % i for i in range(streams)]
    hashes = [hash_of(key) for key in keys]
    payload = bytes(100)

    def fill() -> None:
        for log in topic.logs:
            for first in range(0, records // len(topic.logs), _BATCH):
                builder = BatchBuilder().begin()
                for i in range(first, first + _BATCH):
                    builder.add(payload, key=keys[i % streams], key_hash=hashes[i % streams],
                                time_ns=time.time_ns())  # fmt: skip
                builder.seal(log.next_token)
                log.append(builder.buffer, builder.used)

    node.durable.runtime.on_archiver(fill)
    for queue in range(len(topic.logs)):
        node.consumers.appended("bench", queue)


def consume(note: Callable[[str], None], *, records: int, streams: int) -> dict[str, Any]:
    """Rates of consuming and acking: one key and many, compiled and in batches."""
    found: dict[str, Any] = {"bench": "consume", "records": records, "bytes": 100}
    for case, keys in (("one_key", 1), ("streams", streams)):
        note(f"filling, {keys} keys")
        topology = topology_from(
            Topology(
                transports=[TransportConfig(name="ipc", kind="ipc")],
                topics=[TopicConfig(name="bench", transport="ipc", mode="durable", fsync="none")],
            )
        )
        from tidecast.node.embedded import EmbeddedLink

        link: Any = EmbeddedLink.open(topology)
        with tidecast.sync.connect(link=link) as client:
            _fill(link.node, records, keys)
            for way in ("compiled", "batches"):
                note(f"{case}, {way}")
                consumer = client.consumer(
                    "bench",
                    way,
                    max_in_flight=65_536,
                    ring_bytes=8 << 20,
                )
                consumer.pause()
                state = np.zeros(2, dtype=np.int64)
                consumer.run_compiled(_count, state, max_messages=1, duration_s=0.01)
                consumer.resume()
                began = time.perf_counter()
                if way == "compiled":
                    done = consumer.run_compiled(_count, state, max_messages=records, duration_s=60)
                else:
                    done = 0
                    while done < records and (batch := consumer.fetch(4096, 5.0)):
                        done += len(batch.payloads())
                        batch.ack()
                found[f"{case}_{way}_per_s"] = round(done / (time.perf_counter() - began))
                consumer.close()
    found["streams"] = streams
    return found
