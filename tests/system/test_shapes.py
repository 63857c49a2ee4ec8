"""Every shape of node with every other, over every transport."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import psutil
import pytest
from tests.conftest import Eventually
from tests.support.lab import Lab, Platform, multicast, topology
from tests.support.patience import Patience
from tests.support.ports import free_port

from tidecast.config.topology import topology_from
from tidecast.errors import PayloadTooLarge, Timeout
from tidecast.events import PublisherUnheard
from tidecast.sync import Connection


def _embedded(lab: Lab, wire: dict[str, Any], mode: str) -> Connection:
    chosen = topology_from(topology(wire, name=f"embedded-{mode}"))
    return lab.connect("embedded://", topology=chosen, mode=mode)


def _take(subscription: Any, n: int) -> list[bytes]:
    return [bytes(subscription.next(timeout=20.0).data) for _ in range(n)]


def _collect(subscription: Any, got: list[bytes]) -> None:
    got.extend(_take(subscription, len(MESSAGES)))


MESSAGES = [b"%d" % n * (n % 9) for n in range(5_000)]


@pytest.mark.parametrize("mode", ["threads", "inline"])
def test_embedded_and_engine_process(lab: Lab, eventually: Eventually, mode: str) -> None:
    wire = multicast()
    engine = lab.platform(topology(wire, name="process")).connect()
    embedded = _embedded(lab, wire, mode)
    for source, target in ((engine, embedded), (embedded, engine)):
        topic = f"to-{target.link.node_name.split('-')[0]}"
        with target.subscribe(topic) as subscription, source.publisher(topic) as publisher:
            got: list[bytes] = []
            reader = threading.Thread(target=_collect, args=(subscription, got))
            reader.start()
            for at in range(0, len(MESSAGES), 100):
                publisher.publish_batch(MESSAGES[at : at + 100]).check()
            publisher.flush(timeout=20.0)
            while mode == "inline" and source is embedded and reader.is_alive():
                embedded.work()
            reader.join(30.0)
            assert got == MESSAGES


@pytest.mark.parametrize("mode", ["threads", "inline"])
def test_a_network_that_refuses_is_asked_now_and_then_and_named(lab: Lab, mode: str) -> None:
    wire = {"name": "out", "kind": "udp-unicast", "port": free_port(), "peers": ["192.0.2.1:7400"]}
    embedded = _embedded(lab, wire, mode)  # from loopback no packet gets to that peer
    embedded.publish("t", b"x", flush=True)
    with pytest.raises(Timeout, match=r"network refused them \d+ times: `tidecast doctor`") as met:
        embedded.drain(0.5)
    times = int(str(met.value).partition("refused them ")[2].partition(" ")[0])
    assert 1 <= times <= 600  # it was 500,000 a second


def test_three_subscribers_of_a_node_share_one_image(lab: Lab, eventually: Eventually) -> None:
    left, right = lab.pair()
    subscriptions = [right.connect().subscribe("shared") for _ in range(3)]
    publisher = left.connect().publisher("shared")
    publisher.publish_batch(MESSAGES, flush=True).check()
    for each in subscriptions:
        assert _take(each, len(MESSAGES)) == MESSAGES
    (image,) = right.overview().images
    assert len(image["readers"]) == 3
    (receiver,) = left.overview().receivers
    assert receiver["node"] == "right" or receiver["node_id"] == right.connect().link.node_id


def test_publisher_and_subscriber_of_one_client(lab: Lab) -> None:
    client = lab.platform().connect()
    with client.subscribe("own") as subscription, client.publisher("own") as publisher:
        publisher.publish_batch(MESSAGES, flush=True).check()
        assert _take(subscription, len(MESSAGES)) == MESSAGES


def test_unicast_with_two_peers(lab: Lab, eventually: Eventually) -> None:
    """Three engines, each with the two others as peers; each hears both."""
    names = ("one", "two", "three")
    ports: dict[str, int] = {}
    while len(set(ports.values())) < 3:
        ports = {name: free_port() for name in names}
    clients = {}
    for name in names:
        peers = [f"127.0.0.1:{ports[other]}" for other in names if other != name]
        wire = {"name": "wire", "kind": "udp-unicast", "port": ports[name], "peers": peers}
        clients[name] = lab.platform(topology(wire, name=name)).connect()
    subscriptions = {name: client.subscribe("all") for name, client in clients.items()}
    for name, client in clients.items():
        client.publisher("all").publish_batch([name.encode()] * 1000, flush=True).check()
    for each in subscriptions.values():
        got = _take(each, 3000)
        assert {name: got.count(name.encode()) for name in names} == dict.fromkeys(names, 1000)


def test_pub_to_one_node(lab: Lab) -> None:
    left, right = lab.pair()
    here, there = left.connect().subscribe("one"), right.connect().subscribe("one")
    left.run("pub", "one", "--to", "right", "--message", "for you")
    left.run("pub", "one", "--message", "for all")
    assert _take(there, 2) == [b"for you", b"for all"]
    assert _take(here, 1) == [b"for all"]


def test_a_transport_without_peers_says_so(lab: Lab) -> None:
    wire = {"name": "wire", "kind": "udp-unicast", "port": free_port()}
    platform = lab.platform(topology(wire))
    client = platform.connect()
    client.publisher("t")
    [told] = [e for e in client.events(timeout=1.0) if isinstance(e, PublisherUnheard)]
    assert told.mend.startswith("transport wire has no peers: only this engine gets what is")


def test_ipc_transport(lab: Lab) -> None:
    topics = [{"name": "near", "transport": "ipc"}]
    platform = lab.platform(topology(multicast(), {"name": "ipc", "kind": "ipc"}, topics=topics))
    subscription = platform.connect().subscribe("near")
    publisher = platform.connect().publisher("near")
    publisher.publish_batch(MESSAGES, flush=True).check()
    assert _take(subscription, len(MESSAGES)) == MESSAGES
    assert platform.overview().publications[0]["transport"] == "ipc"
    assert platform.counters("publication") == {}


def test_large_messages_do_not_delay_small_ones(lab: Lab) -> None:
    """8 MB at 8 MB/s take a second: small messages published after it come long before."""
    left, right = lab.pair()
    subscription, client = right.connect().subscribe("mixed"), left.connect()
    small = client.publisher("mixed")
    control = client.publisher("mixed", channel="control")
    large = client.publisher("mixed", channel="large", rate_bytes_per_s=8_000_000)
    for publisher in (small, control):
        publisher.publish(b"first", flush=True)
    assert _take(subscription, 2) == [b"first"] * 2
    payload = bytes(range(256)) * (8 << 12)
    for _ in range(2):
        large.publish(payload, flush=True)
        small.publish(b"small", flush=True)
        control.publish(b"control", flush=True)
        assert sorted(_take(subscription, 2)) == [b"control", b"small"]
        assert _take(subscription, 1) == [payload]


@pytest.mark.long
def test_a_message_of_256_mib(lab: Lab) -> None:
    topics = [{"name": "huge", "large_history_bytes": "1GiB", "receive_bytes": "32MiB"}]
    wire = multicast()
    left, right = (lab.platform(topology(wire, topics=topics, name=n)) for n in ("left", "right"))
    with right.connect().subscribe("huge") as subscription:
        publisher = left.connect().publisher("huge", channel="large")
        payload = random.Random(1).randbytes(1 << 20) * 256
        publisher.publish(payload, flush=True)
        assert subscription.next(timeout=120.0).data == payload
        with pytest.raises(
            PayloadTooLarge, match=f"the limit is {len(payload)}: no history takes more"
        ):
            publisher.publish(payload + b"x")


def test_without_segmentation_offload(lab: Lab) -> None:
    wire = multicast(gso=False)
    left, right = (lab.platform(topology(wire, name=name)) for name in ("left", "right"))
    subscription, publisher = right.connect().subscribe("a"), left.connect().publisher("a")
    publisher.publish_batch(MESSAGES * 10, flush=True).check()
    assert _take(subscription, len(MESSAGES) * 10) == MESSAGES * 10


def test_a_chain_of_processes(lab: Lab) -> None:
    """Publisher here, a process that repeats, a process that checks: over two engines."""
    left, right = lab.pair()
    checker = lab.role("collect", left.url, "back", "3000")
    lab.role("echo", right.url, "out", "back", "3000")
    publisher = left.connect().publisher("out")
    for number in range(3000):
        publisher.publish(number.to_bytes(8, "little"))
    publisher.flush()
    assert checker.line() == "wrong 0"


def _packets(platform: Platform) -> int:
    seen = platform.counters("publication")
    return seen.get("packets_sent", 0) + seen.get("packets_resent", 0)


def test_rate_limit_changes_at_run_time(lab: Lab, eventually: Eventually) -> None:
    left, right = lab.pair()
    left.run("topic", "create", "paced")
    right.connect().subscribe("paced", on_gap="skip", tethered=False)
    stop = threading.Event()
    publisher = left.connect().publisher("paced")

    def publish() -> None:
        while not stop.is_set():
            publisher.publish_batch([bytes(1300)] * 50, timeout=20.0)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        eventually(lambda: _packets(left) > 10_000, "packets without a limit")
        left.run("topic", "edit", "paced", "--rate-packets-per-s", "2000")
        began_s, before, progress = time.monotonic(), _packets(left), Patience(10.0)
        eventually(lambda: not progress.over() and _packets(left) >= before + 3000, "3,000 packets")
        packets, took_s = _packets(left) - before, time.monotonic() - began_s
        assert packets / took_s < 2300, "by the clock, at any load"
        assert packets / (10.0 - progress.left_s) > 1500, "by the share of a busy machine"
        left.run("topic", "edit", "paced", "--rate-packets-per-s", "0")
        limited, quick = _packets(left), Patience(5.0)
        eventually(lambda: _packets(left) >= limited + 20_000, "no limit again")
        assert not quick.over()
    finally:
        stop.set()
        thread.join(20.0)


def test_idle_engine_is_small(cold_lab: Lab) -> None:
    """Less than 2 % of a core and 250 MB, with topics and a client attached."""
    platform = cold_lab.platform()
    client = platform.connect()
    subscription, publisher = client.subscribe("idle"), client.publisher("idle")
    publisher.publish(b"x", flush=True)
    subscription.next(timeout=10.0)
    assert platform.engine is not None
    process = psutil.Process(platform.engine.pid)
    process.cpu_percent(interval=1.0)  # agents spin a while before they park
    # Other work here makes a wake-up dearer (cold caches), never cheaper: the least counts.
    windows = (process.cpu_percent(interval=3.0) for _ in range(10))
    assert any(percent < 2.0 for percent in windows)
    assert process.memory_info().rss < 250e6


def test_a_ring_larger_than_the_socket_buffer_loses_nothing_while_the_receiver_sleeps(
    lab: Lab,
) -> None:
    """Two inline nodes: nobody receives while the publisher fills what it may."""
    wire = multicast(socket_buffer_bytes=256 << 10)
    rings = {"history_bytes": 16 << 20, "receive_bytes": 16 << 20, "flow": "min"}

    def node(name: str) -> Connection:
        topics = [{"name": "wide", "on_full": "error", **rings}]
        chosen = topology_from(topology(wire, topics=topics, name=name))
        return lab.connect("embedded://", topology=chosen, mode="inline")

    left, right = node("left"), node("right")
    publisher = left.publisher("wide", linger_us=0)
    subscription = right.subscribe("wide")
    payload = bytes(1000)
    patience = Patience(20.0)
    while not left.link.stats()["publication"][0].get("receivers") and not patience.over():
        left.work()
        right.work()
    published, received = 0, 0
    while received < 8_000:
        while published < 8_000 and publisher.try_publish(payload):
            published += 1
        for _ in range(50):
            left.work()  # as much as the window lets it: `right` does not run meanwhile
        received += len(subscription.poll(4096))
    (image,) = right.link.stats()["image"]
    assert published == received == 8_000
    assert image.get("losses", 0) == 0
