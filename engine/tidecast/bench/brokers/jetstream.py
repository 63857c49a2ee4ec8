"""`bench jetstream`: streams of NATS beside nats-py, in turns, on one server.

Both consume the same stream, filled before: ours by an adapter's consumer that acks each message,
theirs by `fetch` of a pull consumer without acks. Then both publish to as many streams until all is
acked, and consume it with acks: ours by a topic that is stored on JetStream, theirs by
`publish_async`, and by `fetch` of durable consumers that ack each batch once. The last parts count
bytes: queues that are paused at random, and a slow subscription beside nine fast ones. Streams of
the run are deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from tidecast.bench.brokers import feeds, stored
from tidecast.bench.durable import Note
from tidecast.bench.measure import Result, machine
from tidecast.config.sources.jetstream import jetstream_source
from tidecast.errors import ConfigError
from tidecast.jetstream.adapter import JetStreamAdapter

TURNS = 5
MESSAGE_BYTES, NATS_FETCH, PENDING_MAX = 100, 1000, 1000
CALL_S = 60.0
KEYS = ("read_msgs_per_s", "stored_msgs_per_s", "stored_read_msgs_per_s")


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


def _publish(servers: str, streams: list[str], messages: int, size: int) -> float:
    """Make streams and publish messages to them in turn; messages a second, until all are acked."""

    async def publish(_: Any, js: Any) -> float:
        for stream in streams:
            await js.add_stream(name=stream, subjects=[stream])
        payload, begun = bytes(size), time.perf_counter()
        for begin in range(0, messages, PENDING_MAX):
            end = min(begin + PENDING_MAX, messages)
            chosen = [streams[i % len(streams)] for i in range(begin, end)]
            await asyncio.gather(*[await js.publish_async(each, payload) for each in chosen])
        return messages / (time.perf_counter() - begun)

    return float(_do(servers, publish))


def _delete(servers: str, streams: list[str]) -> None:
    async def delete(nats: Any, js: Any) -> None:
        for stream in streams:
            with contextlib.suppress(nats.js.errors.NotFoundError):
                await js.delete_stream(stream)

    _do(servers, delete)


def _nats_read(servers: str, streams: list[str], messages: int, *, ack: bool) -> float:
    """Messages a second of nats-py, stream by stream. ``ack``: by one ack of each batch."""

    async def read(nats: Any, js: Any) -> float:
        begun, done = time.perf_counter(), 0
        policy = nats.js.api.AckPolicy.ALL if ack else nats.js.api.AckPolicy.NONE
        config = nats.js.api.ConsumerConfig(ack_policy=policy, max_ack_pending=4 * NATS_FETCH)
        durable = {"durable": "bench"} if ack else {}
        for i, stream in enumerate(streams):
            consumer = await js.pull_subscribe(stream, stream=stream, config=config, **durable)
            wanted = done + (messages + len(streams) - 1 - i) // len(streams)
            while done < wanted:
                batch = await consumer.fetch(min(NATS_FETCH, wanted - done))
                done += len([each.data for each in batch])
                if ack:
                    await batch[-1].ack()
        return messages / (time.perf_counter() - begun)

    return float(_do(servers, read))


def _feed(servers: str, streams: list[str]) -> feeds.Make:
    source = jetstream_source({"servers": servers, "streams": ",".join(streams)})
    return lambda: JetStreamAdapter(source)


def _stored(
    servers: str, name: str, queues: int, messages: int, made: list[str]
) -> tuple[float, float]:
    """Published until acked, and read, of a topic that is stored on JetStream."""
    made += [f"{name}_{queue}" for queue in range(queues)]
    with stored.topic(f"jetstream://{servers}/{name}", queues) as client:
        published = stored.publish(client, messages, MESSAGE_BYTES)
        return published, stored.read(client, messages)


def _bare(
    servers: str, name: str, queues: int, messages: int, made: list[str]
) -> tuple[float, float]:
    """The same of nats-py, to as many streams."""
    streams = [f"{name}-{queue}" for queue in range(queues)]
    made += streams
    published = _publish(servers, streams, messages, MESSAGE_BYTES)
    return published, _nats_read(servers, streams, messages, ack=True)


def jetstream(note: Note, *, messages: int = 100_000, queues: int = 4, servers: str = "") -> Result:
    """See module. Raises ConfigError."""
    if not servers:
        raise ConfigError("bench jetstream: --servers HOST:PORT of a NATS server is needed")
    messages = stored.rounded(messages)
    config = {"messages": messages, "message_bytes": MESSAGE_BYTES, "queues": queues}
    result = Result("jetstream", {**config, "servers": servers, **machine()})
    name = f"bench-{uuid.uuid4().hex[:8]}"
    made = [name]
    try:
        note("filling a stream")
        _publish(servers, [name], messages, MESSAGE_BYTES)
        turns = []
        for turn in range(TURNS):
            note(f"turn {turn + 1} of {TURNS}")
            parts: list[str] = []
            try:
                turns.append(
                    (
                        feeds.read(_feed(servers, [name]), messages),
                        *_stored(servers, f"{name}-stored-{turn}", queues, messages, parts),
                        _nats_read(servers, [name], messages, ack=False),
                        *_bare(servers, f"{name}-bare-{turn}", queues, messages, parts),
                    )
                )
            finally:
                _delete(servers, parts)
        figures = list(zip(*turns, strict=True))
        peer: dict[str, float] = {}
        ratios: dict[str, float] = {}
        for key, ours, theirs in zip(KEYS, figures[:3], figures[3:], strict=True):
            result.metrics[key] = round(statistics.median(ours))
            peer[key] = round(statistics.median(theirs))
            ratios[key] = round(feeds.median_ratio(ours, theirs), 2)
        result.peers["nats-py"] = [{"config": {"servers": servers}, "metrics": peer}]
        result.peers["ratio"] = ratios
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
        _publish(servers, [stream], feeds.PAUSED_RECORDS, feeds.PAUSED_BYTES)
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
