"""The gateway beside a bare websocket: 100-byte messages, live and durable, batched.

Three processes take turns on the machine: an engine with a gateway, a bare echo server, and the
client of both. The floor is the bytes of the same messages through a bare websocket and back.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tidecast.bench.measure import Result, Worker, machine, run_together, workers

MESSAGE_BYTES, BATCH = 100, 10_000
FRAME_BYTES = 256 << 10
TOKEN = "a-token-of-a-bench"
TIMEOUT_S = 120.0
Note = Callable[[str], None]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


# --- servers: they run until they are ended -----------------------------------------------------
def gateway_engine(port: int) -> dict[str, Any]:
    """Worker: a node with a gateway, a live topic and a durable one."""
    from tidecast.bench.measure import ready
    from tidecast.config.topology import topology_from
    from tidecast.embedded import EmbeddedLink
    from tidecast.gateway.server import Gateway

    topics = [
        {"name": "live", "transport": "ipc", "history_bytes": 16 << 20},
        {"name": "kept", "transport": "ipc", "mode": "durable", "history_bytes": 16 << 20},
    ]
    settings = {"transports": [{"name": "ipc", "kind": "ipc"}], "topics": topics}
    link = EmbeddedLink.open(topology_from(settings))
    other: Any = lambda name: EmbeddedLink(link.node, name, owns_node=False)  # noqa: E731
    Gateway(other, TOKEN, port=port).start()
    ready()
    threading.Event().wait()
    return {}


def gateway_echo(port: int) -> dict[str, Any]:
    """Worker: a bare websocket that sends all frames back."""
    from websockets.asyncio.server import ServerConnection, serve

    from tidecast.bench.measure import ready

    async def echo(connection: ServerConnection) -> None:
        async for data in connection:
            await connection.send(data)

    async def run() -> None:
        async with serve(echo, "127.0.0.1", port, compression=None, max_size=1 << 20):
            await asyncio.to_thread(ready)
            await asyncio.Event().wait()

    asyncio.run(run())
    return {}


# --- clients ------------------------------------------------------------------------------------
def gateway_floor(port: int, messages: int) -> dict[str, Any]:
    """Worker: the same bytes through a bare websocket and back, in frames of 256 KiB."""
    from websockets.asyncio.client import connect

    from tidecast.bench.measure import ready

    frame = np.random.default_rng(1).integers(0, 256, FRAME_BYTES).astype(np.uint8).tobytes()
    frames = max(1, messages * MESSAGE_BYTES // FRAME_BYTES)

    async def run() -> float:
        url = f"ws://127.0.0.1:{port}"
        async with connect(url, compression=None, max_size=1 << 20, proxy=None) as connection:
            await connection.send(frame)
            await connection.recv()
            await asyncio.to_thread(ready)
            began = time.perf_counter()

            async def send() -> None:
                for _ in range(frames):
                    await connection.send(frame)

            sending = asyncio.create_task(send())
            for _ in range(frames):
                await connection.recv()
            await sending
            return time.perf_counter() - began

    return {"s": asyncio.run(run()), "bytes": frames * FRAME_BYTES}


def gateway_client(port: int, messages: int) -> dict[str, Any]:
    """Worker: publish and consume over the gateway, live and durable."""
    import tidecast.sync
    from tidecast.bench.measure import ready

    batch = np.random.default_rng(2).integers(0, 256, (BATCH, MESSAGE_BYTES)).astype(np.uint8)
    found: dict[str, Any] = {}
    with tidecast.sync.connect(f"tidecast://127.0.0.1:{port}", token=TOKEN) as client:
        client.publish_batch("kept", batch, ack="durable")
        ready()

        def publish(topic: str, n: int) -> None:
            with client.publisher(topic) as publisher:
                for _ in range(n // BATCH):
                    publisher.publish_batch(batch, timeout=TIMEOUT_S).check()

        def timed(name: str, work: Callable[[], None]) -> None:
            began = time.perf_counter()
            work()
            found[f"{name}_s"] = time.perf_counter() - began

        def there_and_back() -> None:
            with client.subscribe("live") as subscription:
                sender = threading.Thread(target=publish, args=("live", messages))
                sender.start()
                got = 0
                for each in subscription.batches(4096):
                    got += len(each)
                    if got >= messages:
                        break
                sender.join()

        def consume(n: int) -> None:
            with client.consumer(
                "kept", "bench", max_in_flight=65_536, ring_bytes=8 << 20
            ) as consumer:
                got = 0
                while got < n:
                    each = consumer.fetch(4096, TIMEOUT_S)
                    if not each:
                        raise RuntimeError(f"{got} of {n} came")
                    got += len(each.payloads())
                    each.ack()

        timed("live_publish", lambda: publish("live", messages))
        timed("live_there_and_back", there_and_back)
        timed("durable_publish", lambda: publish("kept", messages - BATCH))
        timed("durable_consume", lambda: consume(messages))
        samples = []
        with client.publisher("kept") as publisher:
            for _ in range(30):
                began = time.perf_counter()
                publisher.publish(bytes(MESSAGE_BYTES), ack="durable")
                samples.append(time.perf_counter() - began)
        found["ack_p50_us"] = round(float(np.percentile(samples, 50)) * 1e6, 1)
    return found


def gateway(note: Note, *, messages: int = 500_000) -> Result:
    """Publishing and consuming over a websocket, beside a bare websocket's echo."""
    messages = max(2 * BATCH, messages // BATCH * BATCH)
    result = Result("gateway", {"messages": messages, "message_bytes": MESSAGE_BYTES, **machine()})
    outcomes = {}
    for name, server, client in (
        ("floor", "gateway_echo", "gateway_floor"),
        ("ours", "gateway_engine", "gateway_client"),
    ):
        note(name)
        port = _free_port()
        with contextlib.ExitStack() as stack:
            stack.enter_context(workers(Worker(server, None, port=port)))
            (outcomes[name],) = run_together(Worker(client, None, port=port, messages=messages))
    floor = outcomes["floor"]["bytes"] / outcomes["floor"]["s"] / MESSAGE_BYTES
    for name in ("live_publish", "live_there_and_back", "durable_publish", "durable_consume"):
        figure = f"{name}_msgs_per_s"
        result.metrics[figure] = round(messages / outcomes["ours"][f"{name}_s"])
        result.floor[figure] = round(floor)
        result.compare(figure)
    result.metrics["ack_p50_us"] = outcomes["ours"]["ack_p50_us"]
    return result


ROLES: dict[str, Callable[..., dict[str, Any]]] = {
    "gateway_engine": gateway_engine,
    "gateway_echo": gateway_echo,
    "gateway_floor": gateway_floor,
    "gateway_client": gateway_client,
}
