"""kill -9 of the engine: clients are notified, wait, and continue with the next one."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.support.lab import Lab, Platform, multicast, topology
from tests.support.patience import Patience

import tidecast
from tidecast.errors import ConnectionLost, EngineNotRunning, GapError, Timeout
from tidecast.events import EngineBack, EngineLost

QUICK_S = 2.0


def _kinds(events: Any) -> list[str]:
    return [type(each).__name__ for each in events]


def test_blocking_client_outlives_its_engine(lab: Lab, eventually: Eventually) -> None:
    platform = lab.platform()
    client, writer = platform.connect(), platform.connect()
    subscription, publisher = client.subscribe("a"), writer.publisher("a", on_full="error")
    publisher.publish(b"before", flush=True)
    assert bytes(subscription.next(timeout=10.0).data) == b"before"
    dead = platform.shared()
    platform.kill()
    quick = Patience(2 * QUICK_S)
    for each in (client, writer):  # until then what is published waits in the ring
        eventually(
            lambda each=each: "EngineLost" in _kinds(each.events()), "EngineLost", timeout_s=QUICK_S
        )
        assert each.health().status == "reconnecting"
    with pytest.raises(ConnectionLost):
        publisher.publish(b"lost")
    with pytest.raises(ConnectionLost):
        client.stats()
    with pytest.raises(ConnectionLost):
        client.subscribe("b")
    with pytest.raises(Timeout):
        subscription.next(timeout=0.05)
    with pytest.raises(EngineNotRunning):
        tidecast.sync.connect(platform.url)
    assert not quick.over()

    platform.start()
    assert not set(dead) & set(platform.shared())
    for each in (client, writer):
        eventually(lambda each=each: each.health().status == "connected", "EngineBack")
        assert "EngineBack" in _kinds(each.events())
    eventually(lambda: len(platform.overview().publications[0]["readers"]) == 1, "the reader")
    publisher.publish(b"after", flush=True)
    assert bytes(subscription.next(timeout=10.0).data) == b"after"
    assert publisher.stats().messages == 2
    assert subscription.stats()["messages"] == 2


def test_a_stopped_pub_does_not_wait_for_an_engine_that_is_gone(
    lab: Lab, eventually: Eventually
) -> None:
    platform = lab.platform()
    reader = platform.connect().subscribe("a")
    pub = lab.spawn("pub", "a", "-", platform=platform)
    pub.tell("before")
    assert reader.next(timeout=30.0).data == b"before"
    platform.kill()
    pub.tell("never sent")
    eventually(lambda: "engine lost: " in pub.log.read_text(), "pub to say so")
    quick = Patience(QUICK_S)
    pub.signal(signal.SIGINT)
    assert pub.code() == 130
    assert not quick.over()
    assert "with its unsent messages" in pub.log.read_text()


def test_blocked_publisher_goes_on_with_the_next_engine(lab: Lab, eventually: Eventually) -> None:
    """`on_full="block"` waits for the engine; a wait with a time-out ends."""
    platform = lab.platform()
    writer, reader = platform.connect(), platform.connect()
    publisher, subscription = writer.publisher("a"), reader.subscribe("a")
    platform.kill()
    eventually(lambda: "EngineLost" in _kinds(writer.events()), "EngineLost", timeout_s=QUICK_S)
    with pytest.raises(Timeout) as raised:
        publisher.publish(b"x", timeout=0.1)
    assert isinstance(raised.value.__cause__, ConnectionLost)
    platform.start()
    eventually(lambda: reader.health().status == "connected", "EngineBack")
    publisher.publish(b"y", flush=True)
    assert bytes(subscription.next(timeout=10.0).data) == b"y"


def test_what_was_left_in_the_ring_is_read_after_the_kill(lab: Lab, eventually: Eventually) -> None:
    platform = lab.platform()
    client, writer = platform.connect(), platform.connect()
    subscription, publisher = client.subscribe("a"), writer.publisher("a")
    publisher.publish_batch([b"%d" % n for n in range(1000)], flush=True).check()
    eventually(lambda: subscription.poll(1).image is not None, "the first message")
    platform.kill()
    eventually(lambda: client.health().status == "reconnecting", "EngineLost", timeout_s=QUICK_S)
    got = [bytes(subscription.next(timeout=1.0).data) for _ in range(999)]
    assert got == [b"%d" % n for n in range(1, 1000)]


def test_a_subscription_goes_on_where_it_was_when_its_engine_is_back(
    lab: Lab, eventually: Eventually
) -> None:
    """Messages in the history come, the rest is a gap; new publications are read from the start."""
    topics: list[Any] = [
        {"name": "reliable", "id": 1},
        {"name": "unordered", "id": 2, "reliability": "unordered"},
        {"name": "short", "id": 3, "history_bytes": 65536, "flow": "rate", "on_full": "block"},
        {"name": "new", "id": 4},
    ]
    wire = multicast()
    left, right = (
        lab.platform(topology(wire, name=name, topics=topics)) for name in ("left", "right")
    )
    writer, reader = left.connect(), right.connect()
    names = [topic["name"] for topic in topics]
    subscriptions = {name: reader.subscribe(name).open() for name in names}
    publishers = {name: writer.publisher(name) for name in names[:3]}
    for name, publisher in publishers.items():
        publisher.publish(b"first", flush=True)
        assert bytes(subscriptions[name].next(timeout=10.0).data) == b"first"
    right.kill()
    eventually(lambda: reader.health().status == "reconnecting", "EngineLost")
    payloads = [b"%d" % n + bytes(1000) for n in range(300)]
    publishers["new"] = writer.publisher("new")
    for publisher in publishers.values():
        publisher.publish_batch(payloads, flush=True).check()
    writer.flush()
    right.start()
    eventually(lambda: reader.health().status == "connected", "EngineBack")
    for publisher in publishers.values():
        publisher.publish(b"last", flush=True)

    def rest(name: str) -> list[bytes]:
        found: list[bytes] = []
        while not found or found[-1] != b"last":
            found.append(bytes(subscriptions[name].next(timeout=20.0).data))
        return found

    for name in ("reliable", "unordered", "new"):
        assert rest(name) == [*payloads, b"last"], name
    with pytest.raises(GapError) as raised:
        rest("short")
    first, end = raised.value.lost_range
    assert 0 < first < end
    assert 0 < len(rest("short")) < len(payloads)
    assert reader.health().gaps == 1


async def _async_life(platform: Platform) -> list[str]:
    kinds = []
    async with (
        await tidecast.connect(platform.url) as client,
        client.subscribe("a") as subscription,
        client.publisher("a") as publisher,
        asyncio.timeout(60.0),
    ):
        await publisher.publish(b"before", flush=True)
        assert bytes((await subscription.next(timeout=10.0)).data) == b"before"
        waiting = asyncio.create_task(subscription.next(timeout=60.0))
        await asyncio.to_thread(platform.kill)
        async for event in client.events(timeout=None):
            kinds.append(type(event).__name__)
            if isinstance(event, EngineLost):
                with pytest.raises(ConnectionLost):
                    client.stats()
                await asyncio.to_thread(platform.start)
            if isinstance(event, EngineBack):
                break
        await publisher.publish(b"after", flush=True)
        assert bytes((await waiting).data) == b"after"
    return kinds


def test_asyncio_client_outlives_its_engine(lab: Lab) -> None:
    kinds = asyncio.run(_async_life(lab.platform()))
    assert kinds.index("EngineLost") < kinds.index("EngineBack")


def test_shared_memory_of_dead_engines_goes_at_the_next_start(lab: Lab) -> None:
    """Also when their parent has not reaped them, and when their pid is in use again."""
    platform = lab.platform()
    engine = platform.engine
    assert engine is not None
    assert engine.stdout is not None
    engine.signal(signal.SIGKILL)
    engine.stdout.read()  # to its end: it is dead, and not reaped
    (zombie,) = platform.shared()
    assert Path(f"/proc/{engine.pid}").exists()
    platform.start()
    (living,) = platform.shared()
    assert living != zombie
    platform.stop()


def test_shared_memory_of_a_dead_embedded_node_goes_at_anybodys_next_start(lab: Lab) -> None:
    platform = lab.platform(start=False)
    embedded = lab.role("embed", str(platform.directory / "topology.yaml"))
    left = Path(embedded.line())
    embedded.kill()
    assert left.exists()
    platform.start()
    assert not left.exists()


def test_flight_recorder_outlives_the_engine(lab: Lab) -> None:
    wire = multicast()
    platform = lab.platform(topology(wire))
    client = platform.connect()
    client.publisher("a").publish(b"x", flush=True)
    platform.kill()
    records = platform.run("recorder", "--json").stdout.splitlines()
    assert '"STARTED"' in records[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:  # a start that fails
        taken.bind((wire["group"], wire["port"]))
        assert platform.run("engine", check=False).returncode == 1
    assert platform.run("recorder", "--json").stdout.splitlines() == records
    platform.start()
    assert '"STARTED"' in platform.run("recorder", "--previous", "--json").stdout
    assert "started" in platform.run("recorder", "--section", "low").stdout


def test_a_record_waits_for_its_time_although_its_engine_was_killed(lab: Lab) -> None:
    """kill -9 between the publication and the delivery."""
    topic = {"name": "orders", "mode": "durable"}
    platform = lab.platform(topology({"name": "ipc", "kind": "ipc"}, topics=[topic]))
    with platform.connect() as client, client.consumer("orders", "billing") as consumer:
        client.publish("orders", b"later", deliver_in=3600)
        due = time.time_ns() + 5_000_000_000
        client.publish("orders", b"soon", deliver_at=due)
        client.publish("orders", b"now", ack="durable")
        message = consumer.next(timeout=30.0)
        assert message.data == b"now"
        message.ack()
    platform.kill()
    platform.start()
    with platform.connect() as client, client.consumer("orders", "billing") as consumer:
        message = consumer.next(timeout=30.0)
        if message.data == b"now":  # the engine had not saved its ack
            message.ack()
            message = consumer.next(timeout=30.0)
        assert time.time_ns() >= due
        assert (message.data, message.deliver_at, message.attempts) == (b"soon", due, 1)
        message.ack()
        info = consumer.info()
        assert info["scheduled"] == 1


def test_a_cancelled_record_is_never_delivered_although_its_engine_was_killed(lab: Lab) -> None:
    """kill -9 right behind the answer: with a consumer, and for a subscription without any."""
    topic = {"name": "orders", "mode": "durable"}
    platform = lab.platform(topology({"name": "ipc", "kind": "ipc"}, topics=[topic]))
    with platform.connect() as client, client.consumer("orders", "billing"):
        client.subscriptions.create("orders", "away")
        due = time.time_ns() + 6_000_000_000
        client.publish("orders", b"cancelled", key="a", deliver_at=due)
        client.publish("orders", b"kept", key="b", deliver_at=due, ack="durable")
        done = client.topics.cancel_scheduled("orders", key="a")
        platform.kill()
        assert done.cancelled == 2
    platform.start()
    with platform.connect() as client:
        for name in ("billing", "away"):
            with client.consumer("orders", name) as consumer:
                message = consumer.next(timeout=30.0)
                assert (message.data, message.deliver_at, message.attempts) == (b"kept", due, 1)
                assert time.time_ns() >= due
                message.ack()
                assert not consumer.fetch(1, max_wait=0.5)
                assert consumer.info()["lag"] == 0
