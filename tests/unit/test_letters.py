"""Dead letters that are hard to store: large ones, letters of letters, a topic that is gone."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import wait_until

import tidecast.sync
from tidecast.client.consumer.message import DurableMessage
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import StorageError
from tidecast.events import DeadLetterNotStored
from tidecast.log.repair.verify import queue_bytes
from tidecast.queues.records import decoded, records_from
from tidecast.sync import Connection
from tidecast.telemetry.queues import Times, samples

KIB = 1024
TOPICS = {"orders": 4096 * KIB, "letters": 256 * KIB, "last": 256 * KIB, "gone": 256 * KIB}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Connection]:
    settings = {
        "transports": [{"name": "ipc", "kind": "ipc"}],
        "topics": [
            {
                "name": name,
                "transport": "ipc",
                "mode": "durable",
                "fsync": "none",
                "history_bytes": size,
            }
            for name, size in TOPICS.items()
        ],
    }
    link: Any = EmbeddedLink.open(topology_from(settings), data_dir=tmp_path)
    with tidecast.sync.connect(link=link) as one:
        yield one


def given_up(client: Connection, consumer: tidecast.sync.Consumer, n: int) -> None:
    for _ in range(n):
        consumer.next(5.0).term("no use")
    wait_until(lambda: consumer.info()["lag"] == 0, 10.0, "all letters are stored")


def read(client: Connection, topic: str, n: int) -> list[DurableMessage]:
    with client.consumer(topic, "reader") as reader:
        found = [reader.next(5.0).copy() for _ in range(n)]
        for one in found:
            one.ack()
        return found


def test_letters_of_a_topic_that_is_made_anew_are_sent_again(client: Connection) -> None:
    """They have the places of letters that were sent again, and are deleted."""
    node: Any = client.link
    with client.consumer("orders", "billing", dead_letter="letters") as consumer:
        for _ in range(2):
            for i in range(3):
                client.publish("orders", b"%d" % i, key="k")
            given_up(client, consumer, 3)
            assert consumer.redrive()["records"] == 3
            for _ in range(3):
                consumer.next(5.0).ack()
            [topic] = [each for each in node.node.topics() if each.name == "letters"]
            node.node.delete_topic("letters")
            assert consumer.info()["dead_open"] == 0
            node.node.create_topic(topic)


def test_a_letter_that_is_given_up_says_why_and_by_whom(client: Connection) -> None:
    with (
        client.consumer("orders", "billing", dead_letter="letters") as first,
        client.consumer("letters", "repair", dead_letter="last") as second,
    ):
        client.publish("orders", b"one", key="k", headers={"kind": "a", "deadline": "user's"})
        given_up(client, first, 1)
        second.next(5.0).term("not even there")
        wait_until(lambda: second.info()["lag"] == 0, 5.0, "the letter's letter")
        (letter,) = read(client, "last", 1)
        of_us = {name: letter.headers[f"dead-{name}"] for name in ("subscription", "reason")}
        assert of_us == {"subscription": "repair", "reason": "not even there"}
        of_it = {name: letter.headers[f"dead-dead-{name}"] for name in ("subscription", "reason")}
        assert of_it == {"subscription": "billing", "reason": "no use"}

        assert second.redrive()["records"] == 1
        again = second.next(5.0)
        assert again.data == b"one"
        assert (again.headers["dead-subscription"], again.headers["dead-reason"]) == (
            "billing",
            "no use",
        )
        again.ack()
        assert first.redrive()["records"] == 1
        back = first.next(5.0)
        kept = {name: back.headers[name] for name in ("kind", "deadline")}
        assert kept == {"kind": "a", "deadline": "user's"}
        back.ack()


def test_letters_that_retention_removed_are_not_counted(client: Connection) -> None:
    node: Any = client.link.node  # type: ignore[attr-defined]
    node.edit_topic("letters", {"segment_bytes": 64 * KIB, "retention_bytes": 64 * KIB})
    (log,) = node.durable.topics["letters"].logs
    n = 200
    with client.consumer("orders", "billing", dead_letter="letters") as consumer:
        client.publisher("orders").publish_batch([bytes(2 * KIB)] * n, flush=True).check()
        given_up(client, consumer, n)
        wait_until(lambda: queue_bytes(log.directory) <= 128 * KIB, 10.0, "letters are removed")

        def kept_now() -> int:
            return log.next_token - log.earliest_token

        # Retention may delete another segment between two looks.
        wait_until(lambda: consumer.info()["dead_open"] == kept_now(), 10.0, "letters are counted")
        kept = kept_now()
        assert 0 < kept < n
        [row] = samples(node, Times())["durable_subscriptions"]
        assert row["dead_open"] == kept
        client.publish("orders", b"one more")
        given_up(client, consumer, 1)
        wait_until(
            lambda: consumer.info()["dead_open"] == kept_now(), 10.0, "the new letter counts"
        )
        assert consumer.redrive()["records"] == log.next_token - log.earliest_token
        assert consumer.info()["dead_open"] == 0


def test_letters_of_subscriptions_that_share_a_topic_are_counted_after_retention(
    client: Connection,
) -> None:
    """Each has its own number, also when some were sent again and some were deleted."""
    node: Any = client.link.node  # type: ignore[attr-defined]
    node.edit_topic("letters", {"segment_bytes": 64 * KIB, "retention_bytes": 128 * KIB})
    (log,) = node.durable.topics["letters"].logs
    with (
        client.consumer("orders", "billing", dead_letter="letters") as billing,
        client.consumer("orders", "audit", dead_letter="letters") as audit,
    ):
        publisher = client.publisher("orders")

        def give_up(n: int, by: list[tidecast.sync.Consumer]) -> None:
            publisher.publish_batch([bytes(2 * KIB)] * n, flush=True).check()
            for one in (billing, audit):
                for _ in range(n):
                    message = one.next(5.0)
                    message.term("no use") if one in by else message.ack()
            wait_until(lambda: billing.info()["lag"] + audit.info()["lag"] == 0, 10.0, "stored")

        give_up(10, [billing, audit])
        give_up(20, [audit])
        assert billing.redrive(limit=4)["records"] == 4
        for _ in range(4):
            billing.next(5.0).ack()
        give_up(50, [billing])
        wait_until(lambda: log.earliest_token > 0, 10.0, "letters are removed")

        def is_exact(name: str) -> bool:
            """Letters that retention has left, without those that were sent again."""
            saved = node.consumers.subscriptions["orders", name].saved
            done, start = {token for _, token in saved.redriven}, saved.redrive_start.get(0, 0)
            names = [
                decoded(raw)["headers"]["dead-subscription"]
                for token, raw in records_from(log, max(start, log.earliest_token))
                if token not in done
            ]
            return bool(saved.dead_open == names.count(name))

        for one, name in ((billing, "billing"), (audit, "audit"), (billing, "billing")):
            wait_until(lambda name=name: is_exact(name), 10.0, "letters are counted")
            give_up(10, [one])
            wait_until(lambda name=name: is_exact(name), 10.0, "one more segment is gone")
            assert one.redrive(limit=3)["records"] == 3
            for _ in range(3):
                one.next(5.0).ack()
        wait_until(lambda: sum(e.bytes for e in log.segments) <= 128 * KIB, 10.0, "nothing is due")
        wait_until(lambda: is_exact("billing"), 10.0, "letters are counted")
        again = billing.info()["dead_open"]
        assert billing.redrive()["records"] == again


def test_one_larger_than_the_ring_is_stored_and_comes_back(client: Connection) -> None:
    body = bytes(range(256)) * 4 * KIB  # 1 MiB; the letters' ring takes 128 KiB
    with client.consumer("orders", "billing", dead_letter="letters") as consumer:
        client.publish("orders", body, key="k", headers={"kind": "large"})
        client.publish("orders", b"small")
        given_up(client, consumer, 2)
        assert {one.data for one in read(client, "letters", 2)} == {body, b"small"}
        assert consumer.redrive()["records"] == 2
        assert {consumer.next(5.0).data, consumer.next(5.0).data} == {body, b"small"}


def test_headers_that_do_not_fit_beside_ours_are_left_out_and_counted(client: Connection) -> None:
    headers = {f"h{i}": "x" * 100 for i in range(12)}
    with client.consumer("orders", "billing", dead_letter="letters") as consumer:
        client.publish("orders", b"one", headers=headers)
        given_up(client, consumer, 1)
        (letter,) = read(client, "letters", 1)
        kept = [name for name in letter.headers if name.startswith("h")]
        assert kept == list(headers)[: len(kept)]
        assert 0 < len(kept) == len(headers) - int(letter.headers["dead-cut"])
        assert letter.headers["dead-reason"] == "no use"


def test_one_that_cannot_be_stored_holds_up_no_other_and_is_told(client: Connection) -> None:
    with (
        client.consumer("orders", "billing", dead_letter="letters") as consumer,
        client.consumer("orders", "other", dead_letter="gone") as other,
    ):
        client.publish("orders", b"long key", key="k" * 1300)
        client.publish("orders", b"good")
        for one in (consumer, other):
            for _ in range(2):
                one.next(5.0).term("no use")
        assert [one.data for one in read(client, "letters", 1)] == [b"good"]
        told: dict[str, DeadLetterNotStored] = {}

        def both() -> bool:
            for event in client.events(0.1):
                if isinstance(event, DeadLetterNotStored):
                    assert event.subscription not in told, "once, as long as the reason is the same"
                    told[event.subscription] = event
            return len(told) == 2

        wait_until(both, 10.0, "what cannot be stored is told")
        assert "key and headers" in told["billing"].detail
        assert (told["billing"].token, told["billing"].dead_letter) == (0, "letters")
        wait_until(lambda: consumer.info()["settled"] == 1, 5.0, "the good one is settled")
        assert consumer.info()["cursors"][0]["position"] == 0, "what is not stored is not acked"
        client.link.node.delete_topic("gone")  # type: ignore[attr-defined]
        client.publish("orders", b"more")
        other.next(5.0).term("no use")
        consumer.next(5.0).term("no use")
        wait_until(lambda: consumer.info()["settled"] == 2, 10.0, "a topic's end holds up none")


def test_what_is_told_again_while_it_is_stored_is_stored_once_with_its_own_reason(
    client: Connection,
) -> None:
    subs = client.link.node.consumers  # type: ignore[attr-defined]
    letters, told, store = subs.letters, [], subs.letters._store

    def slow(*letter: Any) -> None:
        told.append(letter[-1])
        letters.add(*letter[1:3], dataclasses.replace(letter[-1], reason="of another"))
        if len(told) == 1:
            raise StorageError("the disk is full")
        store(*letter)
        letters.add(*letter[1:3], dataclasses.replace(letter[-1], reason="of another"))

    letters._store = slow
    with client.consumer("orders", "billing", dead_letter="letters") as consumer:
        client.publish("orders", b"one")
        given_up(client, consumer, 1)
        letters.flush()
        assert [one.headers["dead-reason"] for one in read(client, "letters", 1)] == ["no use"]
        assert len(told) == 2, "once it failed, once it was stored"
        assert consumer.redrive(dry_run=True)["records"] == 1


def test_a_topic_that_takes_its_time_delays_no_positions(client: Connection) -> None:
    subs = client.link.node.consumers  # type: ignore[attr-defined]
    begun, go_on, store = threading.Event(), threading.Event(), subs.letters._store

    def slow(*letter: Any) -> None:
        begun.set()
        assert go_on.wait(30.0)
        store(*letter)

    subs.letters._store = slow
    with (
        client.consumer("orders", "billing", dead_letter="letters") as consumer,
        client.consumer("orders", "other") as other,
    ):
        client.publish("orders", b"one")
        consumer.next(5.0).term("no use")
        assert begun.wait(5.0)
        other.next(5.0).ack()
        saved = subs.get("orders", "other").saved
        wait_until(lambda: saved.cursors[0].position == 1, 5.0, "its position is saved meanwhile")
        assert consumer.info()["dead"] == 1
        go_on.set()
        wait_until(lambda: consumer.info()["lag"] == 0, 5.0, "the letter is stored")
        mine = subs.get("orders", "billing").saved
        wait_until(lambda: mine.cursors[0].position == 1, 5.0, "and that is saved")
