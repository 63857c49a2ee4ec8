"""Workers of the live benches: publishers and subscribers as a user would write them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tidecast import sync
from tidecast.bench.measure import ready
from tidecast.config.topology import FaultSettings, topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.native.memory import load_i64, store_i64
from tidecast.node.sealing.wire_keys import FILE_NAME, WireKeys, save_wire_keys

TOPIC = "bench"
SETTLE_S = 20.0
_KEPT: list[Any] = []
"""Directories that last as long as their process."""


def topology(node: int, port: int, **config: Any) -> Any:
    """A node of a bench: one multicast transport on loopback, one topic."""
    transport = {
        "name": "bench",
        "kind": config.get("kind", "udp-multicast"),
        "group": "239.255.84.98",
        "port": port,
        "packet_bytes": config.get("packet_bytes", 1400),
        "allow_faults": True,
        "socket_buffer_bytes": config.get("socket_buffer_bytes", 4 << 20),
        "idle": config.get("idle", "backoff"),
        "gso": config.get("gso", True),
        "interface": config.get("interface", "127.0.0.1"),
        "secure": "required" if config.get("secure") else "off",
        "lanes": config.get("lanes", 1),
    }
    if config.get("peers"):
        transport |= {"peers": config["peers"], "bind": "127.0.0.1"}
    topic = {
        "name": TOPIC,
        "history_bytes": config.get("history_bytes", 4 << 20),
        "receive_bytes": config.get("receive_bytes", 4 << 20),
        "flow": config.get("flow", "min"),
        "reliability": config.get("reliability", "reliable"),
        "linger_us": config.get("linger_us", 20),
        "compression": config.get("compression", "off"),
    }
    others = ("ping", "pong", "warm", *range(config.get("pairs", 0)))
    topics = [topic, *({**topic, "name": f"{TOPIC}.{each}"} for each in others)]
    return topology_from(
        {
            "node": {"id": node, "name": f"bench-{node}"},
            "transports": [transport],
            "topics": topics,
            "level": 2,
        }
    )


def connect(node: int, config: dict[str, Any]) -> Any:
    """A connection: to an embedded node, or to the engine process of a data directory."""
    if config.get("data_dir"):
        return sync.connect(f"tidecast://{config['data_dir']}", name=f"bench-{node}")
    mode, own = config.get("mode", "inline"), topology(node, **config)
    if not config.get("secure"):
        return sync.connect("embedded://", topology=own, mode=mode)
    folder = tempfile.TemporaryDirectory(prefix="tidecast-bench-")
    _KEPT.append(folder)
    write_keys(folder.name)
    link = EmbeddedLink.open(topology=own, mode=mode, data_dir=Path(folder.name))
    return sync.connect(link=link)


def write_keys(folder: str) -> None:
    """The secret of a bench's sealed transport, the same for all its nodes."""
    keys = WireKeys().with_new("bench", time.time_ns(), lambda n: b"b" * n)
    save_wire_keys(keys, Path(folder) / FILE_NAME)


def produce_numbered(buf: Any, i: int, state: Any) -> int:
    """A message of ``state[0]`` bytes whose first 8 bytes are its number."""
    store_i64(buf, 0, i)
    return int(state[0])


def check_order(data: Any, state: Any) -> None:
    """state: {messages, expected next, out of order, lost, duplicated, bytes, first_ns}."""
    number = load_i64(data, 0)
    if number == state[1]:
        state[1] = number + 1
    elif number > state[1]:
        state[3] += number - state[1]
        state[1] = number + 1
    else:
        state[4] += 1
    state[0] += 1
    state[5] += data.size


def compile_loops(c: Any, message_bytes: int) -> None:
    """One message here and back: no subscriber waits for a compiler afterwards."""
    with c.subscribe(f"{TOPIC}.warm") as sub, c.publisher(f"{TOPIC}.warm") as pub:
        size = np.full(1, message_bytes, dtype=np.int64)
        pub.run_compiled(produce_numbered, size, 1, message_bytes_max=message_bytes)
        sub.run_compiled(check_order, np.zeros(8, np.int64), max_messages=1, duration_s=SETTLE_S)


def publish_compiled(
    node: int, count: int, message_bytes: int, **config: Any
) -> Iterator[dict[str, Any]]:
    """Publish ``count`` numbered messages a turn from a compiled producer."""
    topic = config.get("topic", TOPIC)
    with connect(node, config) as c:
        compile_loops(c, message_bytes)
        state = np.full(1, message_bytes, dtype=np.int64)
        while True:
            pub = c.publisher(topic)
            ready()
            wait_for_receivers(c, config.get("receivers", 1), topic)
            began = time.perf_counter()
            done = pub.run_compiled(
                produce_numbered, state, count, message_bytes_max=message_bytes, timeout=60
            )
            elapsed = time.perf_counter() - began
            pub.close()
            yield {"published": done, "elapsed_s": elapsed, **work_until_read(c, topic)}


def publications(c: Any, topic: str = TOPIC) -> list[dict[str, Any]]:
    """Counters of the bench's publications, of one topic of several, without the warm-up."""
    rows = c.link.stats().get("publication", [])
    if topic != TOPIC:
        return [each for each in rows if each["name"] == topic]
    return [each for each in rows if each["name"] != f"{TOPIC}.warm"]


def wait_for_receivers(c: Any, wanted: int, topic: str = TOPIC) -> None:
    """Until the publication knows its receivers, as its counters say."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        c.link.work()
        rows = publications(c, topic)
        if (rows and rows[0].get("receivers", 0) >= wanted) or not rows:
            return
        time.sleep(0.001)


def work_until_read(c: Any, topic: str = TOPIC) -> dict[str, Any]:
    """Serve repairs until every receiver has left and the publication is gone."""
    deadline = time.monotonic() + SETTLE_S
    last: dict[str, Any] = {}
    while time.monotonic() < deadline:
        for _ in range(200):
            c.link.work()
        rows = publications(c, topic)
        if not rows:
            break
        last = rows[0]
        if not c.link.inline:
            time.sleep(0.01)
    return {"sender": last}


def subscribe_compiled(node: int, count: int, **config: Any) -> Iterator[dict[str, Any]]:
    """Receive ``count`` numbered messages a turn in a compiled handler that checks their order."""
    with connect(node, config) as c:
        compile_loops(c, 8)
        if config.get("faults"):
            c.link.node.set_faults("bench", FaultSettings(**config["faults"]))
        while True:
            with c.subscribe(config.get("topic", TOPIC), on_gap="event") as sub:
                ready()
                found = _receive(sub, count, config.get("timeout_s", 60))
                stats = c.link.stats()
            yield {
                **found,
                "image": (stats.get("image") or [{}])[0],
                "receiver": (stats.get("receiver") or [{}])[0],
            }


def _receive(sub: Any, count: int, timeout_s: float) -> dict[str, Any]:
    state = np.zeros(8, dtype=np.int64)
    # The first tenth is not timed: compilers and caches warm up on it.
    sub.run_compiled(check_order, state, max_messages=max(1, count // 10), duration_s=timeout_s)
    began, first = time.perf_counter(), int(state[0])
    sub.run_compiled(check_order, state, max_messages=count - first, duration_s=timeout_s)
    return {
        "received": int(state[0]),
        "elapsed_s": time.perf_counter() - began,
        "first": first,
        "lost": int(state[3]) + max(0, count - int(state[1])),
        "duplicated": int(state[4]),
        "bytes": int(state[5]),
    }


def engine(data_dir: str, node: int, **config: Any) -> dict[str, Any]:
    """An engine process for the benches, until the parent closes its standard input."""
    import sys

    from tidecast.engine.process import Engine

    one = Engine(Path(data_dir), topology(node, **config))
    one.start()
    try:
        ready()
        sys.stdin.readline()
    finally:
        one.stop()
    return {}


ROLES: dict[str, Callable[..., dict[str, Any] | Iterator[dict[str, Any]]]] = {
    "publish_compiled": publish_compiled,
    "subscribe_compiled": subscribe_compiled,
    "engine": engine,
}
