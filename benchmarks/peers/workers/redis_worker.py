"""Redis Streams over redis-py with hiredis: XADD in pipelines, or XREADGROUP and XACK in batches.

Started as `python redis_worker.py CONFIG_JSON`.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import redis

import report

STREAM, GROUP = "bench", "bench"


def publish(client: Any, given: dict[str, Any], count: int, seconds: float) -> tuple[int, int]:
    """Messages added and answered for, and nanoseconds."""
    fields, step = {b"v": bytes(given["message_bytes"])}, given["pipelined"]
    began, done = time.perf_counter_ns(), 0
    while done < count and time.perf_counter_ns() - began < seconds * 1e9:
        pipeline = client.pipeline(transaction=False)
        for _ in range(step):
            pipeline.xadd(STREAM, fields)
        done += len(pipeline.execute())
    return done, time.perf_counter_ns() - began


def consume(client: Any, given: dict[str, Any], count: int) -> tuple[int, int]:
    """Messages read and acked, and nanoseconds."""
    client.xgroup_create(STREAM, GROUP, id="0")
    began, done = time.perf_counter_ns(), 0
    while done < count and time.perf_counter_ns() - began < given["seconds"] * 1e9:
        (_, entries), *_ = client.xreadgroup(GROUP, "one", {STREAM: ">"}, count=given["batch"])
        client.xack(STREAM, GROUP, *[identifier for identifier, _ in entries])
        done += len(entries)
    return done, time.perf_counter_ns() - began


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    client: Any = redis.Redis(unix_socket_path=given["channel"], protocol=2)
    publish(client, given, given["pipelined"], given["warmup_s"])
    report.ready()
    if given["role"] == "publish":
        done, elapsed_ns = publish(client, given, 1 << 62, given["seconds"])
    else:
        filled, _ = publish(client, given, given["messages"], given["timeout_s"] / 2)
        done, elapsed_ns = consume(client, given, filled)
    lost = max(0, done - client.xlen(STREAM))
    report.result(received=done, elapsed_ns=elapsed_ns, lost=lost, duplicated=0)
    os.read(sys.stdin.fileno(), 1)


if __name__ == "__main__":
    main()
