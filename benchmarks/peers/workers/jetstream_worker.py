"""NATS JetStream over nats-py: publishes into a file stream, or fetches and acks what is there.

Started as `python jetstream_worker.py CONFIG_JSON`. Publishing keeps `pipelined` acks outstanding
(`publish_async`); consuming pulls batches of `batch` and acks each with one message (`ack_policy`
all) or message by message (explicit).
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import nats
import uvloop
from nats.js import api

import report

SUBJECT, STREAM = "bench.durable", "BENCH"


async def publish(js: Any, given: dict[str, Any], count: int, seconds: float) -> tuple[int, int]:
    """Messages published and acked, and nanoseconds."""
    message, step = bytes(given["message_bytes"]), given["pipelined"]
    began, done = time.perf_counter_ns(), 0
    while done < count and time.perf_counter_ns() - began < seconds * 1e9:
        for _ in range(step):
            await js.publish_async(SUBJECT, message)
        await js.publish_async_completed()
        done += step
    return done, time.perf_counter_ns() - began


async def consume(js: Any, given: dict[str, Any], count: int) -> tuple[int, int]:
    """Messages fetched and acked, and nanoseconds."""
    every = given["ack_policy"] == "explicit"
    config = api.ConsumerConfig(
        ack_policy=api.AckPolicy.EXPLICIT if every else api.AckPolicy.ALL,
        max_ack_pending=4 * given["batch"],
    )
    pull = await js.pull_subscribe(SUBJECT, durable="bench", stream=STREAM, config=config)
    began, done = time.perf_counter_ns(), 0
    while done < count and time.perf_counter_ns() - began < given["seconds"] * 1e9:
        messages = await pull.fetch(given["batch"], timeout=5)
        for message in messages if every else messages[-1:]:
            await message.ack()
        done += len(messages)
    return done, time.perf_counter_ns() - began


async def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    client = await nats.connect(given["channel"], pending_size=64 * 1024 * 1024)
    js = client.jetstream(timeout=30, publish_async_max_pending=2 * given["pipelined"])
    await js.add_stream(name=STREAM, subjects=[SUBJECT], storage=api.StorageType.FILE)
    await publish(js, given, given["pipelined"], given["warmup_s"])
    report.ready()
    if given["role"] == "publish":
        done, elapsed_ns = await publish(js, given, 1 << 62, given["seconds"])
    else:
        filled, _ = await publish(js, given, given["messages"], given["timeout_s"] / 2)
        done, elapsed_ns = await consume(js, given, filled)
    stream = await js.stream_info(STREAM)
    lost = max(0, done - stream.state.messages)
    report.result(received=done, elapsed_ns=elapsed_ns, lost=lost, duplicated=0)
    await asyncio.to_thread(os.read, sys.stdin.fileno(), 1)
    await client.close()


if __name__ == "__main__":
    uvloop.run(main())
