"""`bench jetstream`: streams of NATS beside nats-py, in turns, on one server.

Both consume the same stream, filled before: ours by an adapter's consumer that acks each message,
theirs by `fetch` of a pull consumer without acks. The last parts count bytes: queues that are
paused at random, and a slow subscription beside nine fast ones. Streams of the run are deleted.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from tidecast.bench.brokers import feeds
from tidecast.bench.durable import Note
from tidecast.bench.measure import Result, machine
from tidecast.config.sources.jetstream import jetstream_source
from tidecast.errors import ConfigError
from tidecast.jetstream.adapter import JetStreamAdapter

TURNS = 5
MESSAGE_BYTES, NATS_FETCH, PENDING_MAX = 100, 1000, 1000
CALL_S = 60.0


def _do(servers: str, call: Callable[[Any, Any], Awaitable[Any]]) -> Any:
    """The result of a coroutine function of nats-py's module and its JetStream."""
    try:
        import nats
    except ImportError:
        raise ConfigError("bench jetstream compares with nats-py: pip install nats-py") from None

    async def run() -> Any:
        connection = await nats.connect([f"nats://{one}" for one in servers.split(",")])
        try:
            js = connection.jetstream(timeout=CALL_S, publish_async_max_pending=2 * PENDING_MAX)
            return await call(nats, js)
        finally:
            await connection.close()

    return asyncio.run(run())


def _fill(servers: str, stream: str, messages: int, size: int) -> None:
    async def fill(_: Any, js: Any) -> None:
        await js.add_stream(name=stream, subjects=[stream])
        for begin in range(0, messages, PENDING_MAX):
            count = min(PENDING_MAX, messages - begin)
            acks = [await js.publish_async(stream, bytes(size)) for _ in range(count)]
            await asyncio.gather(*acks)

    _do(servers, fill)


def _delete(servers: str, streams: list[str]) -> None:
    async def delete(_: Any, js: Any) -> None:
        for stream in streams:
            await js.delete_stream(stream)

    _do(servers, delete)


def _nats_read(servers: str, stream: str, messages: int) -> float:
    async def read(nats: Any, js: Any) -> float:
        begun, done = time.perf_counter(), 0
        config = nats.js.api.ConsumerConfig(ack_policy=nats.js.api.AckPolicy.NONE)
        consumer = await js.pull_subscribe(stream, stream=stream, config=config)
        while done < messages:
            done += len([each.data for each in await consumer.fetch(NATS_FETCH)])
        return messages / (time.perf_counter() - begun)

    return float(_do(servers, read))


def _feed(servers: str, streams: list[str]) -> feeds.Make:
    source = jetstream_source({"servers": servers, "streams": ",".join(streams)})
    return lambda: JetStreamAdapter(source)


def jetstream(note: Note, *, messages: int = 100_000, servers: str = "") -> Result:
    """See module. Raises ConfigError."""
    if not servers:
        raise ConfigError("bench jetstream: --servers HOST:PORT of a NATS server is needed")
    config = {"messages": messages, "message_bytes": MESSAGE_BYTES}
    result = Result("jetstream", {**config, "servers": servers, **machine()})
    name = f"bench-{uuid.uuid4().hex[:8]}"
    made = [name]
    note("filling a stream")
    _fill(servers, name, messages, MESSAGE_BYTES)
    try:
        turns = []
        for turn in range(TURNS):
            note(f"turn {turn + 1} of {TURNS}")
            ours = feeds.read(_feed(servers, [name]), messages)
            turns.append((ours, _nats_read(servers, name, messages)))
        read, theirs = zip(*turns, strict=True)
        result.metrics = {"read_msgs_per_s": round(statistics.median(read))}
        peer = {"read_msgs_per_s": round(statistics.median(theirs))}
        result.peers["nats-py"] = [{"config": {"servers": servers}, "metrics": peer}]
        result.peers["ratio"] = {"read_msgs_per_s": round(feeds.median_ratio(read, theirs), 2)}
        _bytes(note, servers, name, made, result)
    finally:
        _delete(servers, made)
    return result


def _bytes(note: Note, servers: str, name: str, made: list[str], result: Result) -> None:
    """The parts that count bytes."""
    note("queues that pause: filling the streams")
    streams = [f"{name}-{queue}" for queue in range(feeds.PAUSED_QUEUES)]
    for stream in streams:
        made.append(stream)
        _fill(servers, stream, feeds.PAUSED_RECORDS, feeds.PAUSED_BYTES)
    feed, n = _feed(servers, streams), feeds.PAUSED_QUEUES * feeds.PAUSED_RECORDS
    whole = feeds.once(feed, n)
    note("queues that pause")
    fetched, seconds = feeds.paused(feed, whole)
    result.metrics |= {
        "paused_fetched_ratio": round(fetched, 4),
        "paused_msgs_per_s": round(n / seconds),
    }
    note("one slow subscription beside nine fast ones")
    result.metrics["slow_fetched_ratio"] = round(feeds.slow_beside_fast(feed, n, whole), 4)
