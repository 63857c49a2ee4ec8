"""Typed topics: values go in and come out, and payloads of another type have a fate."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pydantic
import pytest
from tests.unit.test_consumer import connected, topology

import tidecast
from tidecast.client.flows.connection import ConnectionFlows
from tidecast.embedded import EmbeddedLink
from tidecast.errors import CodecError, ConfigError
from tidecast.events import PayloadInvalid
from tidecast.sync import Connection


class Struct(msgspec.Struct):
    id: int
    name: str = ""


@dataclasses.dataclass
class Data:
    id: int
    name: str = ""


class Model(pydantic.BaseModel):
    id: int
    name: str = ""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Connection]:
    with connected(tmp_path) as made:
        yield made


def reported(client: Connection) -> list[tuple[str, str, str]]:
    found = [each for each in client.events(timeout=0.0) if isinstance(each, PayloadInvalid)]
    return [(each.topic, each.subscription, each.fate) for each in found]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize("kind", [Struct, Data, Model])
def test_values_of_each_kind_go_in_and_come_out(client: Connection, kind: Any, codec: str) -> None:
    orders = client.topic("orders", kind, codec=codec)
    values = [kind(id=i, name="ü") for i in range(5)]
    orders.publish(values[0], key="k", headers={"n": 1})
    orders.publish_batch(values[1:], keys="k", ack="durable").check()
    with orders.consumer("billing") as consumer:
        first = consumer.next(5.0)
        assert (first.value, first.key, first.headers) == (values[0], b"k", {"n": 1})
        found = [first]
        while len(found) < 5:
            found += consumer.fetch(10, 5.0)
        assert [each.value for each in found] == values
        for each in found:
            each.ack()
    live = client.topic("live", kind, codec=codec)
    with live.subscribe() as messages:
        live.publish(values[3])
        assert messages.next(5.0).value == values[3]


def test_text_bytes_and_builtin_types(client: Connection) -> None:
    kinds: list[tuple[Any, Any, bytes]] = [
        (str, "ü", "ü".encode()),
        (bytes, b"\xff", b"\xff"),
        (list[int], [1, 2], b"[1,2]"),
        (dict[str, float], {"a": 1.5}, b'{"a":1.5}'),
    ]
    for n, (kind, value, raw) in enumerate(kinds):
        topic: Any = client.topic(f"live.{n}", kind)
        with topic.subscribe() as messages:
            topic.publish(value)
            message = messages.next(5.0)
            assert (message.value, message.data) == (value, raw)


def test_wrong_types_and_words_are_refused(client: Connection) -> None:
    with pytest.raises(ConfigError, match=r"topic t: payload type .*socket.*json cannot decode"):
        client.topic("t", __import__("socket").socket)
    with pytest.raises(ConfigError, match="codec: 'jsn': allowed are json"):
        client.topic("t", Struct, codec="jsn")
    orders: Any = client.topic("orders", Struct)
    with pytest.raises(CodecError, match=r"cannot encode Data: it is not Struct"):
        orders.publish(Data(1))
    with pytest.raises(ConfigError, match="invalid: 'skip': allowed are term, nak, raise"):
        orders.consumer("s", invalid="skip")
    with pytest.raises(ConfigError, match="invalid: 'term': allowed are raise, skip"):
        orders.subscribe(invalid="term")
    with pytest.raises(ConfigError, match="codec: 5: allowed is an object"):
        client.topic("t", Struct, codec=5)  # type: ignore[arg-type]


def spoil(client: Connection) -> None:
    """A good record, one of another type, and a good one, of one key."""
    for payload in (b'{"id":1}', b'{"id":"one"}', b'{"id":2}'):
        client.publish("orders", payload, key=b"k", ack="durable")


def dead_reasons(client: Connection) -> list[str]:
    with client.consumer("dead", "look") as letters:
        return [str(letters.next(5.0).headers["dead-reason"])]


@pytest.mark.parametrize("taking", ["iterate", "next", "fetch", "run", "threads"])
def test_an_invalid_record_is_a_dead_letter_and_stops_nothing(
    client: Connection, taking: str
) -> None:
    spoil(client)
    found: list[int] = []
    orders = client.topic("orders", Struct)
    with orders.consumer("billing", dead_letter="dead") as consumer:
        if taking == "iterate":
            for record in consumer:
                found.append(record.value.id)
                record.ack()
                if len(found) == 2:
                    break
        elif taking == "next":
            for _ in range(2):
                record = consumer.next(5.0)
                found.append(record.value.id)
                record.ack()
        elif taking == "fetch":
            while len(found) < 2:
                for record in consumer.fetch(10, 5.0):
                    found.append(record.value.id)
                    record.ack()
        else:
            n = consumer.run(
                lambda record: found.append(record.value.id),
                4 if taking == "threads" else 1,
                max_messages=3,
            )
            assert n == 3
        assert consumer.invalid == 1
    assert found == [1, 2]
    [reason] = dead_reasons(client)
    assert reason.startswith("InvalidValue: topic orders: Json cannot decode 12 bytes as Struct")
    assert reported(client) == [("orders", "billing", "term")]


def test_an_invalid_record_comes_again_until_its_deliveries_are_used(client: Connection) -> None:
    spoil(client)
    orders = client.topic("orders", Struct)
    options: Any = {"max_deliver": 3, "dead_letter": "dead"}
    with orders.consumer("billing", invalid="nak", **options) as consumer:
        found = []
        for record in consumer:
            found.append(record.value.id)
            record.ack()
            if len(found) == 2:
                break
        assert (found, consumer.invalid) == ([1, 2], 3)
        assert dead_reasons(client)


def test_an_invalid_record_raises_if_the_program_wants_that(client: Connection) -> None:
    spoil(client)
    orders = client.topic("orders", Struct)
    with orders.consumer("billing", invalid="raise") as consumer:
        assert consumer.next(5.0).value == Struct(1)
        with pytest.raises(
            CodecError, match=r"topic orders: Json cannot decode 12 bytes as Struct"
        ):
            consumer.next(5.0)
    with (
        orders.consumer("other", invalid="raise") as consumer,
        pytest.raises(CodecError, match="cannot decode 12 bytes"),
    ):
        consumer.run(lambda record: None, max_messages=3)


@pytest.mark.parametrize("invalid", ["term", "nak"])
def test_a_fetch_ends_in_time_while_all_payloads_are_invalid(tmp_path: Path, invalid: Any) -> None:
    """Each of 300 batches of one invalid record takes 10 ms of the clock: 50 fit into 0.5 s."""
    now_s = 0.0
    with connected(tmp_path) as client:
        orders = client.topic("orders", int)
        client.publish_batch("orders", [b"none"] * 300, ack="durable").check()
        with orders.consumer("billing", invalid=invalid, max_deliver=0) as consumer:
            plain_fetch = consumer.plain.fetch
            waits = []

            def slow_fetch(max_messages: int, max_wait: float) -> Any:
                nonlocal now_s
                waits.append(max_wait)
                batch = plain_fetch(max_messages, 5.0)
                now_s += 0.01
                return batch

            consumer.plain.fetch = slow_fetch  # type: ignore[assignment, method-assign]
            client.link.now_s = lambda: now_s  # type: ignore[method-assign]
            assert consumer.fetch(1, max_wait=0.5) == []
            assert 50 <= len(waits) <= 52
            assert consumer.invalid == len(waits)
            assert waits == sorted(waits, reverse=True)  # what is left of max_wait
            assert (waits[0], waits[-1] < 0.02) == (0.5, True)


def test_an_exception_of_the_handler_keeps_its_own_fate(client: Connection) -> None:
    spoil(client)

    def fail(record: tidecast.TypedRecord[Struct]) -> None:
        raise ValueError(record.value.id)

    with client.topic("orders", Struct).consumer("billing", dead_letter="dead") as consumer:
        assert consumer.run(fail, on_error="term", max_messages=3) == 3
    with client.consumer("dead", "look") as letters:
        reasons = [str(letters.next(5.0).headers["dead-reason"]) for _ in range(3)]
    kinds = sorted(reason.split(":")[0] for reason in reasons)
    assert kinds == ["InvalidValue", "ValueError", "ValueError"]


def test_an_invalid_live_message_raises_or_is_left_out(client: Connection) -> None:
    numbers = client.topic("live", int)
    with numbers.subscribe() as strict, numbers.subscribe(invalid="skip") as lenient:
        for payload in (b"1", b"one", b"2"):
            client.publish("live", payload)
        assert strict.next(5.0).value == 1
        with pytest.raises(CodecError, match=r"topic live: Json cannot decode 3 bytes as int"):
            strict.next(5.0)
        assert strict.next(5.0).value == 2
        assert [lenient.next(5.0).value for _ in range(2)] == [1, 2]
        assert (strict.invalid, lenient.invalid) == (1, 1)
    assert sorted(each[2] for each in reported(client)) == ["raise", "skip"]


def test_asyncio_the_same_names(tmp_path: Path) -> None:
    async def main() -> None:
        link: Any = EmbeddedLink.open(topology(), data_dir=tmp_path)
        async with tidecast.connect(link=link) as client:
            orders = client.topic("orders", Struct)
            await orders.publish(Struct(1), key="k")
            await client.publish("orders", b"bad", key="k")
            (await orders.publish_batch([Struct(2), Struct(3)], keys="k", ack="durable")).check()
            assert not (await orders.publisher()).closed
            async with orders.consumer("iterating", dead_letter="dead") as consumer:
                found = []
                async for record in consumer:
                    found.append(record.value.id)
                    await record.ack()
                    if len(found) == 3:
                        break
                assert (found, consumer.invalid) == ([1, 2, 3], 1)
            consumer = await orders.consumer("running", dead_letter="dead")
            handled = []

            async def handle(record: tidecast.TypedRecord[Struct]) -> None:
                handled.append(record.value.id)

            assert await consumer.run(handle, concurrency=4, max_messages=4) == 4
            assert (handled, consumer.invalid) == ([1, 2, 3], 1)
            await consumer.close()
            async with orders.consumer("fetching", invalid="raise") as consumer:
                assert (await consumer.next(5.0)).value == Struct(1)
                with pytest.raises(CodecError):
                    await consumer.fetch(1, 5.0)
            live = client.topic("live", float)
            async with live.subscribe(invalid="skip") as messages:
                await client.publish("live", b"x")
                await live.publish(1.5)
                assert (await messages.next(5.0)).value == 1.5
                await live.publish(2.5)
                async for message in messages:
                    assert message.value == 2.5
                    break

    asyncio.run(main())


@pytest.mark.parametrize(
    ("call", "options"),
    [("subscribe", tidecast.SubscribeOptions), ("consumer", tidecast.ConsumeOptions)],
)
def test_options_are_those_of_the_call_without_types(call: str, options: Any) -> None:
    function = getattr(ConnectionFlows, call)
    names = {
        name
        for name, each in inspect.signature(function).parameters.items()
        if each.kind is each.KEYWORD_ONLY
    }
    assert set(options.__annotations__) == names - {"codec"}
    hints, own = get_type_hints(function), get_type_hints(options)
    assert {name: hints[name] for name in own} == own
