"""Workers of the latency, ipc, Python, request, fan-out and idle benches."""

from __future__ import annotations

import asyncio
import collections
import itertools
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tidecast
from tidecast.bench.loops import live as live_kernels
from tidecast.bench.measure import ready, wait_until
from tidecast.bench.workers import live
from tidecast.config.topology import FaultSettings
from tidecast.errors import TidecastError

PING, PONG = "bench.ping", "bench.pong"
SETTLE_S = 20.0
WARM_UP_REQUESTS = 500
BATCH_MESSAGES = 1024
"""A batch that a Python subscriber asks for: its payloads and its part of the ring fit an L2."""


def _settle(c: Any, sub: Any, pub_topic: str) -> Any:
    """Until our publication has a receiver and our subscription an image; the image's port."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        c.link.work()
        image, _ = sub.next_image()  # no poll: the partner's first message may be there already
        rows = [r for r in c.link.stats().get("publication", []) if r["name"] == pub_topic]
        joined = not rows or rows[0].get("receivers", 0) > 0
        if image is not None and joined:
            return image.port
        if not c.link.inline:
            time.sleep(0.001)
    raise TimeoutError(f"no partner on {pub_topic} within {SETTLE_S:g} s")


def _ping_setup(node: int, out_topic: str, in_topic: str, config: dict[str, Any]) -> Any:
    c = live.connect(node, config).__enter__()
    if config.get("faults"):
        c.link.node.set_faults("bench", FaultSettings(**config["faults"]))
    sub = c.subscribe(in_topic, on_gap="event")
    pub = c.publisher(out_topic, linger_us=0)
    return c, sub, pub


def ping(node: int, rounds: int, message_bytes: int, save: str, **config: Any) -> dict[str, Any]:
    """Ping through Tidecast; saves the samples."""
    c, sub, pub = _ping_setup(node, PING, PONG, config)
    source = np.ones(message_bytes, dtype=np.uint8)
    out = np.zeros((8, 4), dtype=np.int64)
    samples, progress = np.zeros(rounds, dtype=np.int64), np.zeros(2, dtype=np.int64)
    scratch = np.zeros(64, dtype=np.uint8)
    port = pub.port_for_kernel()
    if c.link.inline:  # no rounds: compiled, or loaded, before the other side waits
        live_kernels.ping_inline(
            port, port, source, message_bytes, out, samples[:0], progress, c.link.agents[1], scratch
        )
    else:
        live_kernels.ping_ring(port, port, source, message_bytes, out, samples[:0], scratch)
    ready()
    in_port = _settle(c, sub, PING)
    out_port = pub.port_for_kernel()
    status = 1
    if c.link.inline:
        agents = c.link.agents[1]
        while status == 1:
            status = live_kernels.ping_inline(
                out_port, in_port, source, message_bytes, out, samples, progress, agents, scratch
            )
            c.link.node.runtimes["bench"].drain_events()
    else:
        status = live_kernels.ping_ring(
            out_port, in_port, source, message_bytes, out, samples, scratch
        )
    np.save(save, samples)
    c.close()
    return {"status": int(status)}


def pong(node: int, rounds: int, message_bytes: int, **config: Any) -> dict[str, Any]:
    """The other side of `ping`."""
    c, sub, pub = _ping_setup(node, PONG, PING, config)
    source = np.ones(message_bytes, dtype=np.uint8)
    out, progress = np.zeros((8, 4), dtype=np.int64), np.zeros(2, dtype=np.int64)
    scratch = np.zeros(64, dtype=np.uint8)
    port = pub.port_for_kernel()
    if c.link.inline:
        live_kernels.pong_inline(
            port, port, source, message_bytes, out, 0, progress, c.link.agents[1], scratch
        )
    else:
        live_kernels.pong_ring(port, port, source, message_bytes, out, 0, scratch)
    ready()
    in_port = _settle(c, sub, PONG)
    out_port = pub.port_for_kernel()
    status = 1
    if c.link.inline:
        agents = c.link.agents[1]
        while status == 1:
            status = live_kernels.pong_inline(
                out_port, in_port, source, message_bytes, out, rounds, progress, agents, scratch
            )
            c.link.node.runtimes["bench"].drain_events()
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            c.link.work()  # the last answer may have to be repaired
    else:
        status = live_kernels.pong_ring(
            out_port, in_port, source, message_bytes, out, rounds, scratch
        )
    c.close()
    return {"status": int(status)}


def python_publish(
    node: int, count: int, message_bytes: int, how: str, **config: Any
) -> dict[str, Any]:
    """Publish from Python: one by one, or 1,000 at a time from a ``list`` or else an array."""
    payload = b"x" * message_bytes
    with live.connect(node, config) as c:
        pub = c.publisher(live.TOPIC)
        batch = _batch(how, message_bytes, 1000)
        ready()
        live.wait_for_receivers(c, 1)
        publish = pub.publish
        began = time.perf_counter()
        if how in ("one", "nothing"):
            for _ in range(count):
                publish(payload)
        elif how == "list":
            for _ in range(count // 1000):
                pub.publish_batch(batch)
        else:
            numbers = batch["number"]
            for _ in range(count // 1000):
                pub.publish_batch(batch)
                numbers += 1000
        pub.flush()
        elapsed = time.perf_counter() - began
        pub.close()
        live.work_until_read(c)
    return {"published": count, "elapsed_s": elapsed}


def _batch(how: str, message_bytes: int, n: int) -> Any:
    """``n`` messages: distinct `bytes`, or an array whose rows begin with their number."""
    if how == "list":
        return [number.to_bytes(message_bytes, "little") for number in range(n)]
    row = np.dtype([("number", np.int64), ("rest", np.uint8, message_bytes - 8)])
    rows = np.zeros(n, dtype=row)
    rows["number"] = np.arange(n)
    return rows


def _take(batch: Any, how: str, expected: int) -> int:
    """A program's work on a batch; how many messages it has.

    ``list``: all payloads as `bytes`; ``array``: copied as a matrix, whose numbers are looked at;
    ``in_place``: left where it is, its bytes counted.
    """
    if how == "list":
        return len(batch.payloads())
    if how == "in_place":
        return len(batch) if batch.nbytes else 0
    numbers = batch.to_numpy()[:, :8].view(np.int64)[:, 0]
    if (numbers != np.arange(expected, expected + len(batch))).any():
        raise TidecastError(f"messages {expected} and the following came otherwise: {numbers[:9]}")
    return len(batch)


def python_subscribe(node: int, count: int, how: str, **config: Any) -> dict[str, Any]:
    """Receive in Python: batches (see `_take`), or ``one`` by one, each looked at, or ``nothing``.

    The clock stops one batch before the last: that one waits for more, as is asked for.
    """
    with live.connect(node, config) as c, c.subscribe(live.TOPIC, on_gap="event") as sub:
        ready()
        if how in ("one", "nothing"):
            return _iterate(sub, count, how)
        began = elapsed = 0.0
        received = measured = 0
        for batch in sub.batches(max_messages=BATCH_MESSAGES, max_wait=0.01):
            if received == 0:
                began = time.perf_counter()
            received += _take(batch, how, received)
            if not measured and received > count - BATCH_MESSAGES:
                measured, elapsed = received, time.perf_counter() - began
            if received >= count:
                break
    return {"received": measured, "elapsed_s": elapsed}


def _iterate(sub: Any, count: int, how: str) -> dict[str, Any]:
    sub.next()
    began = time.perf_counter()
    if how == "nothing":
        collections.deque(itertools.islice(sub, count - 1), maxlen=0)
    else:
        n_bytes = 0
        for message in itertools.islice(sub, count - 1):
            n_bytes += len(message.data)
    return {"received": count, "elapsed_s": time.perf_counter() - began}


def python_loop(count: int, message_bytes: int, how: str, **config: Any) -> dict[str, Any]:
    """One process, one thread: publish 500 over ipc, take 500, and again."""
    payload = b"x" * message_bytes
    chosen = {"mode": "inline", "kind": "ipc", **config}
    with live.connect(1, chosen) as c, c.subscribe(live.TOPIC) as sub:
        pub = c.publisher(live.TOPIC)
        publish, chunk = pub.publish, _batch(how, message_bytes, 500)
        ready()
        began, received = time.perf_counter(), 0
        while received < count:
            if how in ("one", "nothing"):
                for _ in range(500):
                    publish(payload)
            else:
                pub.publish_batch(chunk)
                if how != "list":
                    chunk["number"] += 500
            pub.flush()
            want = received + 500
            while received < want:
                batch = sub.poll(4096)
                if how == "one":
                    for message in batch:
                        received += 1 if message.data else 0
                elif how == "nothing":
                    collections.deque(batch, maxlen=0)
                    received += len(batch)
                elif len(batch):
                    received += _take(batch, how, received)
        elapsed = time.perf_counter() - began
    return {"received": received, "elapsed_s": elapsed}


def _wait_until_sent(publisher: Any) -> None:
    publisher.flush(live.SETTLE_S)
    wait_until(lambda: not publisher.stats().unsent_packets, live.SETTLE_S, "all packets sent")


def fan_publish(
    node: int, count: int, message_bytes: int, subscribers: int, **config: Any
) -> dict[str, Any]:
    """Publish at a bounded rate: CPU time of the sender, asleep between packets, packets sent."""
    with live.connect(node, {**config, "mode": "threads", "idle": "block"}) as c:
        live.compile_loops(c, message_bytes)
        pub = c.publisher(live.TOPIC, rate_packets_per_s=config.get("rate", 20_000))
        state = np.full(1, message_bytes, dtype=np.int64)
        ready()
        live.wait_for_receivers(c, subscribers)
        pub.run_compiled(live.produce_numbered, state, 1000, message_bytes_max=message_bytes)
        _wait_until_sent(pub)
        runtime = c.link.node.runtimes["bench"]
        clock = time.pthread_getcpuclockid(runtime.sender_thread)
        calls = int(runtime.tx_state.tx.io[7])
        before, cpu = time.perf_counter(), time.clock_gettime(clock)
        pub.run_compiled(live.produce_numbered, state, count, message_bytes_max=message_bytes)
        _wait_until_sent(pub)
        elapsed, spent = time.perf_counter() - before, time.clock_gettime(clock) - cpu
        calls = int(runtime.tx_state.tx.io[7]) - calls
        pub.close()
        sender = live.work_until_read(c)
    return {"elapsed_s": elapsed, "cpu_s": spent, "system_calls": calls, **sender}


def fan_subscribe(count: int, subscribers: int, **config: Any) -> dict[str, Any]:
    """So many nodes, each with one subscription, in one process, blocking while idle."""
    connections = [
        live.connect(10 + i, {**config, "mode": "threads", "idle": "block"}).__enter__()
        for i in range(subscribers)
    ]
    live.compile_loops(connections[0], 8)  # a subscriber that compiles holds the publisher up
    subs = [c.subscribe(live.TOPIC, on_gap="event") for c in connections]
    states = [np.zeros(8, dtype=np.int64) for _ in subs]
    ready()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(int(s[1]) < count for s in states):
        for sub, state in zip(subs, states, strict=True):
            sub.run_compiled(live.check_order, state, max_messages=1 << 20, duration_s=0.005)
    for c in connections:
        c.close()
    return {
        "received": [int(s[0]) for s in states],
        "lost": sum(int(s[3]) + max(0, count - int(s[1])) for s in states),
    }


def idle(data_dir: str, seconds: float, **config: Any) -> dict[str, Any]:
    """An engine with one publication and one subscription and no traffic: CPU and memory."""
    import psutil

    from tidecast.engine.process import Engine

    one = Engine(Path(data_dir), live.topology(1, **config))
    one.start()
    ready()
    time.sleep(0.5)
    process = psutil.Process(os.getpid())
    before, cpu = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    share = (time.process_time() - cpu) / (time.perf_counter() - before)
    resident = process.memory_info().rss
    one.stop()
    return {"cpu_percent": round(share * 100, 3), "resident_mb": round(resident / 1e6, 1)}


def reply(data_dir: str, how: str) -> dict[str, Any]:
    """Respond to requests with their own payload, until an empty one comes."""
    if how == "asyncio":
        return asyncio.run(_reply_on_a_loop(data_dir))
    replied = 0
    with live.connect(1, {"data_dir": data_dir}) as c, c.responder(live.TOPIC) as responder:
        ready()
        for replied, each in enumerate(responder, 1):  # noqa: B007 - the count
            each.respond(each.data)
            if not each.data:
                break
    return {"replied": replied}


async def _reply_on_a_loop(data_dir: str) -> dict[str, Any]:
    replied = 0
    async with tidecast.connect(f"tidecast://{data_dir}") as c, c.responder(live.TOPIC) as it:
        ready()
        async for each in it:
            replied += 1
            await each.respond(each.data)
            if not each.data:
                break
    return {"replied": replied}


def ask(data_dir: str, how: str, rounds: int, message_bytes: int, save: str) -> dict[str, Any]:
    """Requests one behind the other; the round trips are saved as an array of ns."""
    payload = b"x" * message_bytes
    if how == "asyncio":
        samples = asyncio.run(_ask_on_a_loop(data_dir, rounds, payload))
    else:
        with live.connect(2, {"data_dir": data_dir}) as c:
            ready()
            request, clock, samples = c.request, time.perf_counter_ns, []
            for _ in range(WARM_UP_REQUESTS + rounds):
                sent = clock()
                request(live.TOPIC, payload, timeout=SETTLE_S)
                samples.append(clock() - sent)
            request(live.TOPIC, b"", timeout=SETTLE_S)
    np.save(save, np.array(samples[WARM_UP_REQUESTS:], dtype=np.int64))
    return {"rounds": rounds}


async def _ask_on_a_loop(data_dir: str, rounds: int, payload: bytes) -> list[int]:
    samples, clock = [], time.perf_counter_ns
    async with tidecast.connect(f"tidecast://{data_dir}") as c:
        ready()
        for _ in range(WARM_UP_REQUESTS + rounds):
            sent = clock()
            await c.request(live.TOPIC, payload, timeout=SETTLE_S)
            samples.append(clock() - sent)
        await c.request(live.TOPIC, b"", timeout=SETTLE_S)
    return samples


def socket_reply(path: str) -> dict[str, Any]:
    """The floor of requests: echo over a Unix socket, from plain Python."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        ready()
        peer, _ = listening.accept()
        with peer:
            while data := peer.recv(4096):
                peer.sendall(data)
    return {}


def socket_ask(path: str, rounds: int, message_bytes: int, save: str) -> dict[str, Any]:
    """Round trips over a Unix socket."""
    payload, clock, samples = b"x" * message_bytes, time.perf_counter_ns, []
    with socket.socket(socket.AF_UNIX) as made:
        ready()
        made.connect(path)
        for _ in range(WARM_UP_REQUESTS + rounds):
            sent = clock()
            made.sendall(payload)
            made.recv(4096)
            samples.append(clock() - sent)
    np.save(save, np.array(samples[WARM_UP_REQUESTS:], dtype=np.int64))
    return {"rounds": rounds}


ROLES: dict[str, Callable[..., dict[str, Any]]] = {
    "ask": ask,
    "reply": reply,
    "socket_ask": socket_ask,
    "socket_reply": socket_reply,
    "live_ping": ping,
    "live_pong": pong,
    "python_publish": python_publish,
    "python_subscribe": python_subscribe,
    "python_loop": python_loop,
    "fan_publish": fan_publish,
    "fan_subscribe": fan_subscribe,
    "idle": idle,
}
