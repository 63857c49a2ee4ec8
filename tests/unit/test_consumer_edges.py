"""Consumers in odd hands: loops that are left, places there are not, letters that come back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.clients import nothing_comes
from tests.support.patience import wait_until
from tests.unit.test_consumer import BODIES, connected, publish, take, topology

import tidecast
from tidecast.api.start import Earliest, Latest, Start, Time, Tokens
from tidecast.embedded import EmbeddedLink
from tidecast.errors import ConfigError, NotFound, Timeout
from tidecast.sync import Connection


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Connection]:
    with connected(tmp_path) as one:
        yield one


def test_what_a_loop_leaves_is_what_comes_next(client: Connection) -> None:
    publish(client, *BODIES, keys=1)
    with client.consumer("orders", "billing") as consumer:
        got = [consumer.next(5.0).data]  # takes more than it hands out
        batch = consumer.fetch(3, 5.0)
        assert [message.key for message in batch] == [b"k0"] * 3
        got += batch.payloads()
        for message in consumer:
            got.append(message.data)
            if len(got) == 8:
                break
        left = consumer.messages()
        got.append(next(left).data)
        got += consumer.fetch(4, 5.0).payloads()
        got.append(next(left).data)
        consumer.run(lambda message: got.append(message.data), max_messages=6)
        got.append(consumer.next(5.0).data)
        while len(got) < 30:
            got += consumer.fetch(100, 5.0).payloads()
        assert got == BODIES
        assert consumer.info()["redelivered"] == 0


def test_a_compiled_handler_gets_what_a_loop_left(client: Connection) -> None:
    publish(client, *BODIES, keys=1)
    with client.consumer("orders", "billing") as consumer:
        consumer.next(5.0).ack()

        def count(data: Any, state: Any) -> None:
            state[0] += 1

        state = np.zeros(1, dtype=np.int64)
        assert consumer.run_compiled(count, state, max_messages=29, duration_s=30.0) == 29
        wait_until(lambda: consumer.info()["lag"] == 0, 5.0, "all is settled")
        assert state[0] == 29
        assert consumer.info()["redelivered"] == 0, "what was never handed out was no attempt"


def test_a_seek_forgets_what_a_loop_left(client: Connection) -> None:
    publish(client, *BODIES)
    with client.consumer("orders", "billing") as consumer:
        consumer.next(5.0)
        consumer.seek(Latest())
        assert nothing_comes(consumer)
        publish(client, b"new")
        assert take(consumer, 1) == [b"new"]


def test_what_an_async_loop_leaves_is_what_comes_next(tmp_path: Path) -> None:
    async def main() -> list[bytes]:
        link: Any = EmbeddedLink.open(topology(), data_dir=tmp_path)
        async with tidecast.connect(link=link) as client:
            for body in BODIES:
                await client.publish("orders", body, key=b"k")
            async with client.consumer("orders", "billing") as consumer:
                got: list[bytes] = []
                async for message in consumer:
                    got.append(message.data)
                    if len(got) == 3:
                        break
                for concurrency in (1, 4):
                    await consumer.run(
                        lambda message: got.append(message.data), concurrency, max_messages=5
                    )
                got += (await consumer.fetch(4, 5.0)).payloads()
                got.append((await consumer.next(5.0)).data)
                while len(got) < 30:
                    got += (await consumer.fetch(100, 5.0)).payloads()
                return got

    assert asyncio.run(main()) == BODIES


@pytest.mark.parametrize("start", [Tokens({0: 99_999}), Tokens({1: 16, 0: 0}), Tokens({2: 0})])
def test_a_place_that_is_not_there_is_said(client: Connection, start: Start) -> None:
    publish(client, *BODIES, keys=30)
    with client.consumer("orders", "billing") as consumer:
        assert len(take(consumer, 30)) == 30
        ends = {row["queue"]: row["end"] for row in consumer.info()["cursors"]}
        queue, token = next(iter(start.tokens.items()))  # type: ignore[attr-defined]
        if queue in ends:
            token = max(token, ends[queue] + 1)
            said = f"queue {queue}: {token}: allowed 0 to {ends[queue]}"
        else:
            said = "queue 2: orders has 0 to 1"
        wrong = Tokens({queue: token})
        with pytest.raises(ConfigError, match=said):
            consumer.seek(wrong)
        with pytest.raises(ConfigError, match=said):
            client.consumer("orders", "new", start=wrong)
        assert consumer.info()["lag"] == 0, "it has not moved"
        moved = consumer.seek(Tokens(ends), dry_run=True)  # where the next records will be
        assert [row["records"] for row in moved] == [0, 0]
    assert [one["name"] for one in client.link.administer("list", {})] == ["billing"]


def test_a_queue_or_topic_that_is_not_there_is_said(client: Connection) -> None:
    client.consumer("orders", "billing").close()
    where = {"pattern": "orders", "name": "billing"}
    for which, said in (({"queue": 7}, "no queue 7 of orders"), ({"topic": "x"}, "no queues of x")):
        with pytest.raises(NotFound, match=said):
            client.link.administer("seek", where | which)


NO_PLACE: Any = 5


@pytest.mark.parametrize(
    "start", [Tokens(NO_PLACE), Tokens({0: True}), Tokens({0: 1 << 70}), Time(1 << 70), Time(True)]
)
def test_a_start_that_is_no_place_is_refused_by_the_client(
    client: Connection, start: Start
) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        client.consumer("orders", "billing", start=start)


def test_delays_are_checked_where_they_are_given(client: Connection) -> None:
    publish(client, b"one")
    with client.consumer("orders", "billing") as consumer:
        (message,) = consumer.fetch(1, 5.0)
        for wrong in (-1, 1e9, float("nan"), float("inf"), "soon", None):
            with pytest.raises(ConfigError, match=r"delay: .*allowed are 0 to 604800 seconds"):
                message.nak(wrong)  # type: ignore[arg-type]
        for wrong in (-0.1, 1e9, float("nan"), "soon"):
            with pytest.raises(ConfigError, match=r"seconds: .*allowed are 0 to 604800 seconds"):
                message.extend(wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="nak_delay: -1: allowed are 0 to 604800 seconds"):
            consumer.run(print, nak_delay=-1)
        message.nak(0)
        (message,) = consumer.fetch(1, 5.0)
        assert message.attempts == 2
        message.term(ValueError("what was raised"))  # type: ignore[arg-type]
        wait_until(lambda: consumer.info()["dead"] == 1, 5.0, "it is refused")


@pytest.mark.parametrize(("pattern", "letters"), [("orders", "orders"), ("orders.*", "orders.eu")])
def test_dead_letters_do_not_come_back_to_who_refused_them(
    client: Connection, pattern: str, letters: str
) -> None:
    with pytest.raises(ConfigError, match=f"dead_letter: '{letters}': {pattern.replace('*', '.')}"):
        client.consumer(pattern, "billing", dead_letter=letters)
    assert client.link.administer("list", {}) == []


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_subscription_without_a_dead_letter_topic_has_nothing_to_redrive(
    client: Connection, dry_run: bool
) -> None:
    with (
        client.consumer("orders", "plain") as consumer,
        pytest.raises(ConfigError, match=r"plain of orders has no dead-letter topic.*dead_letter"),
    ):
        consumer.redrive(dry_run=dry_run)


def test_a_redrive_says_what_is_wrong_also_in_a_dry_run(client: Connection) -> None:
    publish(client, *BODIES[:6])
    with client.consumer("orders", "billing", dead_letter="dead") as consumer:
        for _ in range(6):
            consumer.next(5.0).term("no")
        wait_until(lambda: consumer.info()["dead_open"] == 6, 5.0, "all are refused")
        for dry_run in (True, False):
            with pytest.raises(NotFound, match="no topic nowhere"):
                consumer.redrive(to="nowhere", dry_run=dry_run)
            with pytest.raises(ConfigError, match="topic live is live"):
                consumer.redrive(to="live", dry_run=dry_run)
            for after in ([[0]], [["a", "b"]], 5):
                with pytest.raises(ConfigError, match=r"after: .*the `next` of a page"):
                    consumer.redrive(after=after, dry_run=dry_run)  # type: ignore[arg-type]
        assert consumer.redrive(key=b"k1", dry_run=True)["records"] == 2
        assert consumer.redrive(key="k1", dry_run=True)["records"] == 2
        assert consumer.redrive(where="  ", dry_run=True)["records"] == 6
        assert consumer.redrive()["records"] == 6


def test_peek_leaves_out_what_is_settled(client: Connection) -> None:
    publish(client, *BODIES[:10], keys=1)
    with client.consumer("orders", "billing", start=Earliest()) as consumer:
        batch = consumer.fetch(10, 5.0)
        while len(batch) < 10:
            consumer.seek(Earliest())
            batch = consumer.fetch(10, 5.0)
        for row in (1, 2, 5):
            batch.messages[row].ack()
        wait_until(lambda: consumer.info()["settled"] >= 3, 5.0, "they are settled")

        def seen(limit: int) -> list[bytes]:
            where = {"pattern": "orders", "name": "billing", "limit": limit}
            return [row["payload"] for row in client.link.administer("peek", where)]

        assert seen(100) == [BODIES[i] for i in (0, 3, 4, 6, 7, 8, 9)]
        assert seen(2) == [BODIES[0], BODIES[3]]


def test_peek_shows_what_filters_let_pass(client: Connection) -> None:
    publish(client, *BODIES, keys=3)
    chosen: dict[str, dict[str, Any]] = {
        "key": {"key": "k1"},
        "prefix": {"key": "k*"},
        "text": {"where": 'headers["n"] >= 25'},
    }
    found = {}
    for name, options in chosen.items():
        client.consumer("orders", name, start=Latest(), **options).close()
        where: dict[str, Any] = {"pattern": "orders", "name": name}
        client.link.administer("seek", where | {"start": "earliest"})
        rows = client.link.administer("peek", where | {"limit": 100})
        found[name] = sorted(row["payload"] for row in rows)
    assert found == {"key": BODIES[1::3], "prefix": BODIES, "text": BODIES[25:]}
    with client.consumer("orders", "text") as consumer:
        taken = [consumer.next(5.0) for _ in range(5)]
        where = {"pattern": "orders", "name": "text", "limit": 100}
        assert len(client.link.administer("peek", where)) == 5
        for message in taken[:2]:
            message.ack()
        wait_until(lambda: consumer.info()["outstanding"] == 3, 5.0, "two are settled")
        assert len(client.link.administer("peek", where)) == 3


def test_next_waits_no_longer_than_it_is_told(client: Connection) -> None:
    """Batches of which nothing is left do not restart the time."""
    publish(client, *BODIES[:3], keys=1)
    with client.consumer("orders", "billing") as consumer:
        wait, seen = consumer.batch_flow, []

        def note(limit: int, deadline: Any, *, mark: bool) -> Any:
            seen.append(deadline)
            batch = (yield from wait(limit, deadline, mark=mark)) if len(seen) == 1 else None
            if batch is not None:
                consumer.seek(Latest())  # takes it back
            return batch

        consumer.batch_flow = note  # type: ignore[method-assign]
        with pytest.raises(Timeout, match=r"within 5\.0 s"):
            consumer.next(5.0)
        assert len(seen) == 2
        assert seen[0] is seen[1]


def test_a_refusal_within_a_loop_holds_back_the_messages_that_the_loop_has_taken(
    client: Connection,
) -> None:
    publish(client, *BODIES, keys=1)
    acked: list[bytes] = []
    refused = 0
    with client.consumer("orders", "billing") as consumer:
        for message in consumer.messages(prefetch=30):
            if len(acked) == 3 and refused < 2:
                message.nak()
                refused += 1
                continue
            acked.append(message.data)
            message.ack()
            if len(acked) == len(BODIES):
                break
        assert acked == BODIES
        assert consumer.info()["lag"] == 0
