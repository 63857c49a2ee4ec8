"""Headers that move records are the engine's own: nobody else may write them, or is believed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from tests.support.clients import nothing_comes
from tests.support.patience import wait_until

import tidecast
import tidecast.sync
from tidecast.api.start import Latest
from tidecast.buffers.header_names import has_reserved
from tidecast.client.remote.frames import Block
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import ConfigError
from tidecast.gateway.requests import check_block
from tidecast.layout import packet as wire
from tidecast.layout.header_names import RESERVED, is_reserved
from tidecast.log.reading.select import (
    SELECT_WORDS,
    W_EXPECTED,
    W_KEYS,
    W_SKIPPED,
    W_TIME_END,
    W_TOKEN_END,
    select_records,
)
from tidecast.native.jit import kernel
from tidecast.sync import Connection

NAMES = ["dead-topic", "dead-", "tidecast-for", "tidecast-"]
TOPICS = ("orders", "letters", "others")
READER = {"pattern": "letters", "name": "reader"}


def topology() -> Any:
    return topology_from(
        {
            "transports": [{"name": "ipc", "kind": "ipc"}],
            "topics": [
                *({"name": name, "mode": "durable", "fsync": "none"} for name in TOPICS),
                {"name": "live"},
            ],
        }
    )


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Connection]:
    link: Any = EmbeddedLink.open(topology(), data_dir=tmp_path)
    with tidecast.sync.connect(link=link) as one:
        yield one


def forge(client: Connection, topic: str, body: bytes, **options: Any) -> None:
    """Publish as a program that checks no names: it writes shared memory by itself."""
    link: Any = client.link
    link.of_engine = True
    client.publish(topic, body, ack="durable", **options)
    link.of_engine = False


def taken(consumer: tidecast.sync.Consumer, n: int) -> list[Any]:
    found = [consumer.next(5.0).copy() for _ in range(n)]
    for one in found:
        one.ack()
    wait_until(lambda: consumer.info()["lag"] == 0, 5.0, "all is acked")
    return found


def given_up(client: Connection, consumer: tidecast.sync.Consumer, *bodies: bytes) -> None:
    for body in bodies:
        client.publish("orders", body, key="k", timestamp=1000)
    for _ in bodies:
        consumer.next(5.0).term("no use")
    wait_until(lambda: consumer.info()["lag"] == 0, 10.0, "all letters are stored")


# --- nobody may write them ------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["orders", "live"])
@pytest.mark.parametrize("name", NAMES)
def test_a_publisher_refuses_them(client: Connection, topic: str, name: str) -> None:
    for publish in (client.publish, lambda _, *a, **b: client.publisher(topic).publish(*a, **b)):
        with pytest.raises(ConfigError, match=f"headers: '{name}': names that begin with dead-"):
            publish(topic, b"one", headers={"kind": "a", name: "x"})
    client.publish(topic, b"one", headers={"deadline": "a", "dead": "b", "tidecast": "c"})


def test_an_async_publisher_refuses_them(tmp_path: Path) -> None:
    async def main() -> None:
        link: Any = EmbeddedLink.open(topology(), data_dir=tmp_path)
        async with tidecast.connect(link=link) as client:
            with pytest.raises(ConfigError, match="headers: 'tidecast-for'"):
                await client.publish("orders", b"one", headers={"tidecast-for": "me"})

    asyncio.run(main())


def block_of(*messages: tuple[bytes, dict[str, Any] | None]) -> Block:
    """A batch as a remote client sends it; every second one has a time-stamp and a key, too."""
    lengths, leads, flags, data = [], [], [], b""
    for i, (body, headers) in enumerate(messages):
        lead, flag = b"", 0
        if i % 2:
            lead, flag = bytes(8) + b"\3\0key", wire.TIMESTAMP | wire.KEY
        if headers is not None:
            raw = msgspec.msgpack.encode(headers)
            lead, flag = lead + len(raw).to_bytes(2, "little") + raw, flag | wire.HEADERS
        lengths.append(len(lead) + len(body))
        leads.append(len(lead))
        flags.append(flag)
        data += lead + body
    table = np.array([lengths, leads], dtype=np.uint32).tobytes() + bytes(flags)
    return Block.parse(len(messages), True, memoryview(table + data))


def check(block: Block) -> None:
    check_block("orders", 0, block, 1, ())


@pytest.mark.parametrize("name", NAMES)
def test_a_gateway_refuses_them(name: str) -> None:
    check(block_of((b"a", None), (b"dead-topic", {"n": 1}), (b"", {"kind": "dead-topic"})))
    for at in (1, 2):
        messages: list[Any] = [(b"a", None), (b"b", {"n": 1}), (b"c", {"n": 1})]
        messages[at] = (b"x", {"n": 1, name: b"x"})
        with pytest.raises(ConfigError, match=f"message {at} of a batch has a name that begins"):
            check(block_of(*messages))


@kernel
def _has(data: Any, at: int, end: int) -> bool:
    return bool(has_reserved(data, at, end))


_names = some.one_of(
    some.text(max_size=40), some.sampled_from([*NAMES, "d", "dead", "tidecas", "tidecast"])
)
_values = some.one_of(
    some.integers(-(1 << 63), (1 << 63) - 1), some.text(max_size=300), some.binary(max_size=300)
)


@given(some.dictionaries(_names, _values, max_size=20), some.binary(max_size=8))
def test_the_kernel_finds_what_python_finds(headers: dict[str, Any], around: bytes) -> None:
    raw = msgspec.msgpack.encode(headers)
    data = np.frombuffer(around + raw + around, dtype=np.uint8).copy()
    found = _has(data, len(around), len(around) + len(raw))
    assert found == any(map(is_reserved, headers))


@given(some.binary(max_size=64))
def test_it_reads_nothing_beyond_the_end(raw: bytes) -> None:
    data = np.frombuffer(raw + b"-for-dead-", dtype=np.uint8).copy()
    whole = _has(data, 0, len(raw))
    data[len(raw) :] = 0xFF
    assert _has(data, 0, len(raw)) == whole


# --- nobody else is believed ----------------------------------------------------------------------


def test_a_header_of_somebody_else_hides_no_record(client: Connection) -> None:
    forge(client, "orders", b"hidden?", headers={"tidecast-for": "nobody"})
    with client.consumer("orders", "any") as consumer:
        assert [one.data for one in taken(consumer, 1)] == [b"hidden?"]


def letter(**changes: Any) -> dict[str, Any]:
    headers = {
        "topic": "orders",
        "queue": 0,
        "token": 0,
        "subscription": "billing",
        "pattern": "orders",
        "attempts": 1,
        "reason": "mine",
        "time": 5,
    }
    return {f"dead-{name}": value for name, value in (headers | changes).items()}


@pytest.mark.parametrize(
    "headers", [letter(), letter(topic="others"), letter(queue=7), letter(token="x")]
)
def test_a_forged_letter_is_not_sent_anywhere(client: Connection, headers: dict[str, Any]) -> None:
    with client.consumer("orders", "billing", dead_letter="letters") as consumer:
        client.publish("orders", b"real", key="k", ack="durable")
        consumer.next(5.0).ack()
        forge(client, "letters", b"forged", key="k", headers=headers)
        found = consumer.redrive()
        assert (found["records"], found["unverified"]) == (0, 1)
        before = {
            topic: client.consumer(topic, "count").info()["cursors"][0]["end"]
            for topic in ("orders", "others")
        }
        assert before == {"orders": 1, "others": 0}


def test_a_letter_of_an_older_engine_is_believed_while_its_record_is_there(
    client: Connection,
) -> None:
    with client.consumer("orders", "billing", dead_letter="letters") as consumer:
        client.publish("orders", b"real", key="k", ack="durable")
        consumer.next(5.0).ack()
        forge(client, "letters", b"real", key="k", headers=letter())
        assert consumer.redrive()["records"] == 1
        [again] = taken(consumer, 1)
        assert again.data == b"real"


def test_what_was_sent_elsewhere_is_plain(client: Connection) -> None:
    """A name that a record brought along is not the engine's word after it was given up twice."""
    with (
        client.consumer("orders", "billing", dead_letter="letters") as consumer,
        client.consumer("others", "thief", dead_letter="letters") as thief,
    ):
        forge(
            client,
            "orders",
            b"loot",
            headers=letter(subscription="thief", pattern="others", topic="others"),
        )
        consumer.next(5.0).term("no use")
        wait_until(lambda: consumer.info()["lag"] == 0, 10.0, "the letter is stored")
        assert consumer.redrive(to="letters")["records"] == 1
        assert thief.redrive()["records"] == 0
        assert thief.info()["cursors"][0]["end"] == 0


# --- copies that are sent again -------------------------------------------------------------------


def test_a_copy_is_for_its_subscription_and_is_as_old_as_the_redrive(client: Connection) -> None:
    with client.consumer("orders", "billing", dead_letter="letters") as consumer:
        given_up(client, consumer, b"one", b"two")
        began_ns = time.time_ns()
        assert consumer.redrive()["records"] == 2
        wait_until(lambda: consumer.info()["outstanding"] == 2, 5.0, "both are on their way")
        assert 0 <= consumer.info()["lag_s"] <= (time.time_ns() - began_ns) / 1e9
        with client.consumer("orders", "another") as another:
            assert [one.data for one in taken(another, 2)] == [b"one", b"two"]
            assert another.info()["lag"] == 0
            assert nothing_comes(another)
        again = taken(consumer, 2)
        assert [one.headers["tidecast-for"] for one in again] == ["billing"] * 2
        assert [one.timestamp for one in again] == [1000, 1000]
        assert int(again[0].headers["tidecast-redriven"]) >= began_ns


def test_readers_of_the_log_pass_copies_over(client: Connection) -> None:
    with client.consumer("orders", "billing", dead_letter="letters") as consumer:
        given_up(client, consumer, b"one", b"two")
        forge(client, "orders", b"plain", headers={"tidecast-for": "billing"})
        consumer.redrive(reason="no use", limit=1)
        taken(consumer, 2)
        durable = client.link.node.durable  # type: ignore[attr-defined]
        reader, buffer = durable.topics["orders"].logs[0].reader(), np.empty(1 << 20, np.uint8)
        used, token, found = 1, 0, []
        while used:
            used = reader.read_block(token, buffer)
            token = reader.next_token
            words = np.zeros(SELECT_WORDS, dtype=np.int64)
            words[[W_TOKEN_END, W_TIME_END]] = (1 << 63) - 1
            words[[W_KEYS, W_EXPECTED]] = -1
            rows, none = np.zeros((1000, 2), np.int64), np.zeros(1, np.int64)
            n = select_records(buffer, used, words, np.zeros(1, np.uint8), none, none, rows)
            found += rows[:n, 1].tolist()
            assert words[W_SKIPPED] == (4 - n if used else 0)
        reader.close()
        assert found == [0, 1, 2], "token 3 is the copy"


def test_names_are_those_of_the_documentation() -> None:
    assert all(any(name.startswith(each) for each in RESERVED) for name in NAMES)
    text = Path("docs/CONSUMING.md").read_text()
    for each in RESERVED:
        assert f"`{each}`" in text


# --- the lag --------------------------------------------------------------------------------------


def test_what_was_published_before_the_call_counts(client: Connection) -> None:
    with client.consumer("orders", "billing", start=Latest()) as consumer:
        publisher = client.publisher("orders")
        for n in range(300):
            publisher.publish(b"%d" % n)
            if n % 2:
                publisher.flush()  # else this client has collected it, at the most
            assert consumer.info()["lag"] == 1
            batch = consumer.fetch(10, 5.0)
            assert batch.payloads() == [b"%d" % n]
            batch.ack()
            wait_until(lambda: consumer.info()["lag"] == 0, 5.0, "it is acked")


def test_what_was_published_before_is_passed_over_by_latest(client: Connection) -> None:
    publisher = client.publisher("orders")
    with client.consumer("orders", "moves") as consumer:
        for n in range(50):
            publisher.publish(b"%d" % n)
            publisher.flush()
            consumer.seek(Latest())
            assert consumer.info()["lag"] == 0
            with client.consumer("orders", f"new-{n}", start=Latest()) as fresh:
                assert fresh.info()["lag"] == 0


def test_the_lag_leaves_out_what_is_acked_beyond_the_watermark(client: Connection) -> None:
    with client.consumer("orders", "billing") as consumer:
        for n in range(10):
            client.publish("orders", b"%d" % n)
        got: list[Any] = []
        while len(got) < 6:
            got += [one.copy() for one in consumer.fetch(6 - len(got), 5.0)]
        for one in got[1:]:
            one.ack()
        wait_until(lambda: consumer.info()["settled"] == 5, 5.0, "five are acked")
        about = consumer.info()
        assert (about["cursors"][0]["position"], about["cursors"][0]["end"]) == (0, 10)
        assert (about["lag"], about["acked_ahead"]) == (5, 5)
