"""Order of each key at the handlers of members that refuse, give back, come and go, and of engines.

A record may be handled when all earlier ones of its key are acked: a refusal holds back the rest.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.support.durable import Platform, platform

from tidecast.client.consumer.blocking import Consumer
from tidecast.client.consumer.core import REFUSED_MAX
from tidecast.errors import Timeout

KEYS, RECORDS = 7, 700


class Ledger:
    """The messages that were published and acked, by key."""

    def __init__(self) -> None:
        self.acked: set[int] = set()
        self.refusals = 0
        self.inboxes: dict[int, deque[Any]] = {}

    def handle(self, message: Any) -> None:
        """Raise AssertionError for a record that comes before an earlier one of its key."""
        n = int(message.data)
        missing = [i for i in range(n % KEYS, n, KEYS) if i not in self.acked]
        assert not missing, f"{n} (attempt {message.attempts}) came before {missing}"


def publish(p: Platform) -> None:
    with p.publisher() as publisher:
        for n in range(RECORDS):
            publisher.publish(b"%d" % n, key=b"k%d" % (n % KEYS))
        publisher.wait_durable(timeout=120.0)


def settle(ledger: Ledger, message: Any, chance: random.Random) -> None:
    """Ack, refuse or keep a message, as a handler might."""
    ledger.handle(message)
    what = chance.random()
    if what < 0.08:
        message.nak(chance.choice((0.0, 0.0, 0.005)))
        ledger.refusals += 1
    elif what < 0.12:
        message.give_back()
        ledger.refusals += 1
    else:
        message.ack()
        ledger.acked.add(int(message.data))


def by_fetch(consumer: Consumer, ledger: Ledger, chance: random.Random) -> None:
    for message in consumer.fetch(chance.choice((1, 5, 50)), 0.0):
        if message.held_back:
            message.give_back()
        else:
            settle(ledger, message, chance)


def by_next(consumer: Consumer, ledger: Ledger, chance: random.Random) -> None:
    with contextlib.suppress(Timeout):
        for _ in range(chance.randrange(20)):
            settle(ledger, consumer.next(0.0), chance)


def by_run(consumer: Consumer, ledger: Ledger, chance: random.Random) -> None:
    """As `run` with a worker: copies wait in an inbox, and are looked at when their turn comes."""
    inbox = ledger.inboxes.setdefault(id(consumer), deque())
    inbox += [message.copy() for message in consumer.fetch(30, 0.0)]
    for _ in range(min(len(inbox), chance.randrange(40))):
        consumer._handle(
            lambda one: settle(ledger, one, chance), "none", "raise", 0.0, inbox.popleft()
        )


@pytest.mark.parametrize("taking", [by_fetch, by_next, by_run])
@pytest.mark.parametrize("seed", range(3))
def test_each_key_is_handled_in_order(
    seed: int, taking: Callable[[Consumer, Ledger, random.Random], None]
) -> None:
    chance, ledger = random.Random(seed), Ledger()
    with platform(queues=2) as p:
        publish(p)
        options: dict[str, Any] = {"max_deliver": 0, "ring_bytes": 1 << 16}
        members = [p.connect().consumer("orders", "billing", **options)]
        for turn in range(6000):
            what = chance.random()
            if what < 0.01 and len(members) < 4:
                members.append(p.connect().consumer("orders", "billing", **options))
            elif what < 0.02 and len(members) > 1:
                members.pop(chance.randrange(len(members))).close()
            elif what < 0.023:
                p.crash()
                p.restart()
            elif what < 0.15:
                p.run(chance.randrange(1, 12))
            else:
                taking(chance.choice(members), ledger, chance)
            if turn % 50 == 0 and len(ledger.acked) == RECORDS:
                break
        assert len(ledger.acked) == RECORDS
        assert ledger.refusals > RECORDS // 20


def test_a_compiled_handler_leaves_out_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with platform() as p:
        publish(p)
        with p.connect().consumer("orders", "billing") as consumer:
            first = consumer.fetch(3, 5.0)
            assert first.payloads() == [b"0", b"1", b"2"]
            for message in list(first)[1:]:
                message.ack()
            first.messages[0].nak()

            def note(data: Any, state: Any) -> None:
                n = 0
                for digit in data:
                    n = 10 * n + digit - 48
                state[state[0] + 1] = n
                state[0] += 1

            seen = np.zeros(RECORDS + 1, dtype=np.int64)
            done = consumer.run_compiled(note, seen, max_messages=RECORDS - 2, duration_s=60.0)
            assert done == RECORDS - 2
            assert not consumer.refuses, "the plain way again"
        got = seen[1 : done + 1].tolist()
        assert sorted(got) == [0, *range(3, RECORDS)]
        for key in range(KEYS):
            mine = [n for n in got if n % KEYS == key]
            assert mine == sorted(mine)


def test_what_is_remembered_of_refusals_is_bounded() -> None:
    with platform() as p, p.connect().consumer("orders", "billing") as consumer:
        for key in range(REFUSED_MAX + 100):
            consumer._refuse(0, key, key)
        assert len(consumer._refused) == REFUSED_MAX
        assert not consumer.holds_back(0, 99, 0)
        assert consumer.holds_back(0, 100, 100)
        assert not consumer.holds_back(0, 100, 101)


def test_a_full_ring_of_acks_blocks_nobody_and_keeps_their_order() -> None:
    with platform() as p:
        publish(p)
        with p.connect().consumer("orders", "billing") as consumer:
            batch = consumer.fetch(10, 5.0)
            link: Any = consumer._connection.link
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(link, "inline", False)  # nobody reads acks meanwhile
                *others, last = batch
                for message in others:
                    for _ in range(1000):
                        message.extend(1.0)
                    message.ack()
                last.nak()
                assert consumer._unsent
                assert consumer.collector.buffering
                assert batch.held_back(9), "though its refusal is not sent yet"
            p.run()
            while consumer._unsent:
                consumer.collector.tick()
                p.run()
            assert int(consumer.info()["settled"]) == 9
            assert consumer.info()["naks"] == 1
            found: list[int] = []
            while last.data not in [b"%d" % n for n in found]:
                batch = consumer.fetch(RECORDS, 1.0)
                found += map(int, batch.payloads())
                batch.ack()
            of_key = [n for n in found if n % KEYS == int(last.data) % KEYS]
            assert of_key == sorted(of_key), "the refused one first"


def test_a_message_of_an_older_batch_may_be_refused() -> None:
    with platform() as p:
        publish(p)
        with p.connect().consumer("orders", "billing") as consumer:
            [first] = consumer.fetch(1, 5.0)
            consumer.fetch(1, 5.0).ack()
            first.nak()
            p.run()
            assert consumer.info()["naks"] == 1
            assert first.held_back


def test_what_an_engine_delivered_that_is_gone_is_not_handled() -> None:
    """It comes again, and one that was refused comes before it."""
    with platform() as p:
        publish(p)
        with p.connect().consumer("orders", "billing") as consumer:
            kept = [message.copy() for message in consumer.fetch(3 * KEYS, 5.0)]
            kept[0].nak()
            p.run(150)
            p.crash()
            p.restart()
            assert all(message.held_back for message in kept)
            consumer._handle(lambda one: pytest.fail(f"{one}"), "after", "raise", 0.0, kept[KEYS])
            assert consumer.fetch(1, 5.0).payloads() == [b"0"]


def test_a_kept_message_names_its_queue_after_its_engine_is_gone() -> None:
    with platform() as p:
        publish(p)
        with p.connect().consumer("orders", "billing") as consumer:
            kept = [message.copy() for message in consumer.fetch(KEYS, 5.0)]
            places = [message.token for message in kept]
            assert all(place.queue >= 0 for place in places)
            for _ in range(2):
                p.crash()
                p.restart()
                consumer.fetch(1, 5.0)
                assert [message.token for message in kept] == places
