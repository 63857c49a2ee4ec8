"""kill -9 of publishers, subscribers and engines: the others are unharmed and told."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.support.lab import Lab, Platform
from tests.support.patience import next_event
from tests.support.process import Child
from tests.support.progress import NUMBER, noted, progress_file

from tidecast.client.blocking import Subscription
from tidecast.events import Event, ImageGone, PeerJoined
from tidecast.sync import Connection

Client = Connection


def _counting(lab: Lab, platform: Platform, topic: str) -> tuple[Child, Path]:
    """A publisher of numbers in a burst, and the file that says how far it is."""
    progress = progress_file(lab.directory / f"progress-{topic}")
    made = lab.role("count", platform.url, topic, str(progress))
    return made, progress


def _begin(process: Child) -> None:
    process.tell("go")


def _number(message: Any) -> int:
    return int(NUMBER.unpack_from(message.data)[0])


class _Reader(threading.Thread):
    """Reads numbers until told; notes how many came and the first that was not due."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(daemon=True)
        self.subscription, self.count, self.wrong = subscription, 0, ""
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            for message in self.subscription.poll(512):
                if _number(message) != self.count and not self.wrong:
                    self.wrong = f"{_number(message)} instead of {self.count}"
                self.count += 1

    def end(self) -> None:
        self.stop.set()
        self.join(10.0)


@pytest.mark.parametrize("where", ["here", "there"])
def test_publisher_killed_in_a_burst(lab: Lab, eventually: Eventually, where: str) -> None:
    """Subscribers of this engine, or of another one, get the committed prefix, then ImageGone."""
    left, right = lab.pair()
    reading = (left if where == "here" else right).connect()
    subscription = reading.subscribe("burst")
    publisher, progress = _counting(lab, left, "burst")
    reader = _Reader(subscription)
    reader.start()
    _begin(publisher)
    eventually(lambda: reader.count > 20_000, "a burst")
    publisher.kill()
    committed = noted(progress)
    eventually(lambda: reader.count >= committed, f"all {committed} committed messages")
    gone = next_event(reading, ImageGone)
    assert gone.topic == "burst"
    eventually(lambda: not left.overview().publications, "the publication's end")
    eventually(lambda: not subscription.images(), "the image's end")
    reader.end()
    assert reader.wrong == ""
    assert reader.count in (committed, committed + 1)

    anew = left.connect().publisher("burst")
    anew.publish(NUMBER.pack(77), flush=True)
    assert _number(subscription.next(timeout=10.0)) == 77


@pytest.mark.parametrize("where", ["here", pytest.param("there", marks=pytest.mark.long)])
def test_subscriber_killed_that_held_the_publisher_back(
    lab: Lab, eventually: Eventually, where: str
) -> None:
    left, right = lab.pair()
    settings = (
        "--history-bytes",
        "256KiB",
        "--receive-bytes",
        "256KiB",
        "--receiver-timeout-s",
        "60",
    )
    for each in (left, right):
        each.run("topic", "create", "held", *settings)
    there = left if where == "here" else right
    other = left.connect().subscribe("held")
    holder = lab.role("hold", there.url, "held")
    publisher, progress = _counting(lab, left, "held")
    reader = _Reader(other)
    reader.start()
    _begin(publisher)
    assert holder.line() == "held"

    def held_back() -> bool:
        """Its ring is full, or is as far ahead as an engine lets a writer be that it holds back."""
        [row] = left.overview().publications
        read = min(each["position"] for each in row["readers"])
        unsent = row["head"] - row["sent"]
        return bool(row["head"] - read >= row["slots"] or unsent >= row["slots"] // 2)

    eventually(held_back, "the publisher to be held back")
    at = noted(progress)
    holder.kill()
    eventually(lambda: noted(progress) > at + 10_000, "the publisher to go on")
    if where == "there":
        eventually(lambda: not right.overview().images, "the image without readers to go")
    publisher.kill()
    eventually(lambda: reader.count >= noted(progress), "the rest")
    eventually(lambda: not left.overview().publications, "the publication's end")
    reader.end()
    assert reader.wrong == ""


def test_killed_subscribers_consumer_entries_are_free(lab: Lab, eventually: Eventually) -> None:
    platform = lab.platform()
    publisher = platform.connect().publisher("many")

    def readers() -> int:
        return len(platform.overview().publications[0]["readers"])

    for _ in range(2):
        holders = [lab.role("hold", platform.url, "many") for _ in range(2)]
        assert readers() == 2
        publisher.publish(b"one", flush=True)
        for each in holders:
            assert each.line() == "held"
            each.kill()
        eventually(lambda: readers() == 0, "the entries to be free")


def test_one_of_two_engines_killed_and_started_again(lab: Lab, eventually: Eventually) -> None:
    """The other one times out, and receives the new incarnation."""
    left, right = lab.pair(image_timeout_s=0.5)
    reading = right.connect()
    subscription = reading.subscribe("lasting")
    writing = left.connect("writer")
    publisher = writing.publisher("lasting")
    publisher.publish(NUMBER.pack(1), flush=True)
    assert _number(subscription.next(timeout=10.0)) == 1
    left.kill()

    seen: list[Event] = []

    def told(*names: str) -> bool:
        seen.extend(reading.events(timeout=0.0))
        return set(names) <= {type(each).__name__ for each in seen}

    eventually(lambda: told("PeerTimeout", "ImageGone"), "PeerTimeout and ImageGone")
    assert {e.reason for e in seen if isinstance(e, ImageGone)} == {"timeout"}
    incarnation = writing.link.incarnation
    left.start()
    _await_back(writing, eventually)
    assert writing.link.incarnation > incarnation
    publisher.publish(NUMBER.pack(2), flush=True)
    assert _number(subscription.next(timeout=10.0)) == 2

    def incarnations() -> int:
        told()
        return sum(isinstance(each, PeerJoined) for each in seen)

    eventually(lambda: incarnations() == 2, "the new incarnation to be told")


def _await_back(client: Client, eventually: Eventually) -> None:
    eventually(lambda: client.health().status == "connected", "the client to reconnect")


def test_receiving_engine_killed_does_not_stall_the_sender(
    lab: Lab, eventually: Eventually
) -> None:
    wire = {"history_bytes": 262_144, "receive_bytes": 262_144, "receiver_timeout_s": 1.0}
    left, right = lab.pair()
    for each in (left, right):
        arguments = [part for k, v in wire.items() for part in (f"--{k.replace('_', '-')}", str(v))]
        each.run("topic", "create", "flow", *arguments)
    right.connect().subscribe("flow")
    publisher, progress = _counting(lab, left, "flow")
    _begin(publisher)
    eventually(lambda: bool(left.overview().receivers), "the receiver")
    right.kill()
    eventually(lambda: not left.overview().receivers, "the dead receiver to be dropped")
    at = noted(progress)
    eventually(lambda: noted(progress) > at + 10_000, "the publisher to go on")
