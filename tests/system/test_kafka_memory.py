"""Memory of an engine whose Kafka clients send all that they can and read nothing.

The engine is a process of its own; the system says how much memory it had at the most. Beside the
strangers a sound client is served.
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from tests.support.kafka import Bare, batch_of, fetch_body, produce_body
from tests.support.lab import Lab, open_lab, topology
from tests.support.ports import free_port

from tidecast.access import Scope, new_key
from tidecast.kafka.schemas import tables
from tidecast.kafka.wire import ITEMS_MAX, Struct, Writer

CHANCE = random.Random(1)
MIB = 1 << 20
SECRET, KEY = new_key("root", [Scope(pattern=">", rights=["publish", "subscribe", "manage"])])
STRANGERS = 24
"""Connections of a case."""
ROUNDS = 20
GROWTH_MB = 320.0
"""Items and answers of all connections have 128 and 64 MiB; their requests, and what is freed and
not given back, take the rest. Without limits each case takes more than 1 GB."""
LONG_BYTES = 8 * MIB
PATIENCE_S = 100.0
"""The requests of strangers take seconds of a busy processor."""


class Engine(NamedTuple):
    """An engine whose clients log in."""

    pid: int
    port: int

    def bare(self, *, login: bool = True) -> Bare:
        """A client."""
        made = Bare(self.port)
        made.socket.settimeout(PATIENCE_S)
        if login:
            assert made.log_in(KEY.name, SECRET) == 0
            made.ask(tables.API_VERSIONS, 3, {})
        return made

    def forget_peak(self) -> float:
        """Begin to look for the peak; the memory now, in MB."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.memory_mb("VmRSS")

    def memory_mb(self, row: str = "VmHWM") -> float:
        """The peak of its resident memory, in MB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"{row}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024 / 1e6


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with open_lab() as lab:
        yield from started(lab)


def started(lab: Lab) -> Iterator[Engine]:
    """An engine of a lab."""
    topics = [
        {"name": name, "mode": "durable", "queues": queues, "fsync": "none"}
        for name, queues in (("sound", 1), ("prey", 2), ("wide", 256))
    ]
    settings = topology({"name": "ipc", "kind": "ipc"}, topics=topics)
    settings["keys"] = [msgspec.to_builtins(KEY)]
    platform, port = lab.platform(settings, start=False), free_port()
    process = lab.spawn("engine", "--kafka", f"127.0.0.1:{port}", platform=platform)
    platform.engine = process
    assert f", kafka 127.0.0.1:{port}" in process.line()
    made = Engine(process.pid, port)
    fill(made)
    yield made
    platform.stop()


def fill(engine: Engine) -> None:
    """Long batches for slow readers, and a warm sound client."""
    bare = engine.bare()
    for i in range(4):
        assert bare.produce("prey", 0, batch_of(bytes([i]) * LONG_BYTES))["error_code"] == 0
    served(bare)
    bare.close()


def served(bare: Bare) -> None:
    """A sound client produces and fetches."""
    row = bare.produce("sound", 0, batch_of(b"sound"))
    assert row["error_code"] == 0
    found = bare.fetch("sound", 0, row["base_offset"], max_wait_ms=5000)
    assert (found["error_code"], b"sound" in bytes(found["records"])) == (0, True)


def framed(key: int, version: int, body: Struct) -> bytes:
    """A request as it is sent."""
    writer = Writer()
    writer.tail.extend(struct.pack(">hhih", key, version, 1, -1))
    if tables.APIS[key].is_flexible(version):
        writer.tail.append(0)
    tables.request_writer(key, version)(writer, body)
    raw = b"".join(bytes(piece) for piece in writer.done())
    return struct.pack(">i", len(raw)) + raw


def push(sock: socket.socket, raw: bytes) -> None:
    """Send what the endpoint takes now; it may close, or stop to read."""
    sock.settimeout(0.2)
    with contextlib.suppress(OSError):
        sock.sendall(raw)


# --- the requests of strangers --------------------------------------------------------------------


def half_frames() -> bytes:
    """A length of any size, and some of the bytes."""
    n = CHANCE.choice((8, 4096, 65_536, MIB, 17 * MIB, 1 << 30, -1))
    return struct.pack(">i", n) + bytes(CHANCE.choice((0, 7, 1000, 200_000)))


@functools.cache
def fetches() -> bytes:
    """Fetches of very many partitions that wait for a minute, one behind the other."""
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}
    body = fetch_body("none", 0, 0, max_wait_ms=60_000, min_bytes=1 << 30)
    body["topics"] = [{"topic": "wide", "partitions": [asked] * (ITEMS_MAX - 10)}]
    return 4 * framed(tables.FETCH, 4, body)


@functools.cache
def short_fetches() -> bytes:
    """The same in requests that are short enough to take no share of bytes."""
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}
    body = fetch_body("none", 0, 0, max_wait_ms=60_000, min_bytes=1 << 30)
    body["topics"] = [{"topic": "wide", "partitions": [asked] * 4000}]
    return 100 * framed(tables.FETCH, 4, body)


@functools.cache
def produces() -> bytes:
    """Produce of very many partitions without records."""
    body = produce_body("prey", 0, None)
    body["topics"] = [{"name": "prey", "partitions": [{"index": 0, "records": None}] * 60_000}]
    return 8 * framed(tables.PRODUCE, 7, body)


@functools.cache
def descriptions() -> bytes:
    """The settings of one topic, again and again in one request."""
    asked = {"resource_type": 2, "resource_name": "prey", "configuration_keys": None}
    body = {"resources": [asked] * 60_000, "include_synonyms": True, "include_documentation": True}
    return 2 * framed(tables.DESCRIBE_CONFIGS, 3, body)


@functools.cache
def metadata() -> bytes:
    """Names of topics that do not exist."""
    names = [{"name": f"{i}"} for i in range(60_000)]
    return 4 * framed(tables.METADATA, 5, {"topics": names})


def joins() -> bytes:
    """Members of groups of their own that say as much of themselves as they may."""
    body = {
        "session_timeout_ms": 60_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": bytes(MIB - 100)}],
    }
    return b"".join(
        framed(tables.JOIN_GROUP, 2, {**body, "group_id": f"g{CHANCE.random()}"}) for _ in range(12)
    )


@functools.cache
def long_batches() -> bytes:
    """Fetches of one byte, which get a whole batch each; nobody reads the answers."""
    body = fetch_body("prey", 0, 0, bytes_max=1)
    return 100 * framed(tables.FETCH, 11, {**body, "max_bytes": 1})


CASES: dict[str, Callable[[], bytes]] = {
    each.__name__: each
    for each in (
        half_frames,
        fetches,
        short_fetches,
        produces,
        descriptions,
        metadata,
        joins,
        long_batches,
    )
}


def attacked(engine: Engine, made: Callable[[], bytes], *, login: bool) -> float:
    """MB that the engine's memory grows by while strangers send; a sound client is served."""
    sound = engine.bare()
    before_mb = engine.forget_peak()
    strangers = [engine.bare(login=login) for _ in range(STRANGERS)]
    try:
        for each in strangers:
            push(each.socket, made())
        for _ in range(ROUNDS):
            served(sound)
            sound.fetch("prey", 1, 0, max_wait_ms=100)  # strangers are served meanwhile
    finally:
        for each in strangers:
            each.close()
        sound.close()
    return engine.memory_mb() - before_mb


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_memory_is_bounded_whatever_clients_send(engine: Engine, case: str) -> None:
    grown_mb = attacked(engine, CASES[case], login=True)
    assert grown_mb < GROWTH_MB, f"{case}: {grown_mb:.0f} MB more"
    sound = engine.bare()
    served(sound)  # also when they are gone
    sound.close()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
def test_before_the_login_clients_take_next_to_nothing(engine: Engine, case: str) -> None:
    grown_mb = attacked(engine, CASES[case], login=False)
    assert grown_mb < STRANGERS * 0.5 + 30, f"{case}: {grown_mb:.0f} MB more"
