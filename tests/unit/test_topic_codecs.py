"""Codecs of a connection and of its topics: what is published, received, asked and read."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
import pytest

import tidecast
import tidecast.sync
import tidecast.testing
from tidecast import Json, MsgPack
from tidecast.app import App, Key
from tidecast.codecs import Raw, TopicCodecs
from tidecast.errors import CodecError, ConfigError


class Order(msgspec.Struct):
    id: int


ORDERS, JSON, PACKED = Json(Order), Json(), MsgPack()
BY_TOPIC: dict[str, tidecast.Codec | str] = {
    "md.>": PACKED,
    "orders": ORDERS,
    "md.raw": "raw",
    "*.text": JSON,
}


def test_a_name_comes_before_patterns_and_patterns_before_the_default() -> None:
    found = TopicCodecs(JSON, BY_TOPIC)
    assert found.of("orders") is ORDERS
    assert found.of("md.eu") is PACKED
    assert found.of("md.text") is PACKED  # the first pattern that covers it
    assert isinstance(found.of("md.raw"), Raw)
    assert found.of("a.text") is JSON is found.of("other")
    assert found.of("orders", PACKED) is PACKED
    assert isinstance(found.of("orders", "raw"), Raw)
    assert TopicCodecs().of("orders") is None
    assert found.of("_responders.orders") is None  # the client's own


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"codec": "xml"}, "codec: 'xml': allowed are json, msgpack, raw"),
        ({"topic_codecs": {"t": Json}}, "allowed is an object with encode and decode"),
        ({"topic_codecs": {"a..b": "json"}}, "a..b"),
        ({"topic_codecs": ["t"]}, "codecs: .* allowed is a map of topics to codecs"),
    ],
)
def test_what_is_no_codec_is_refused(arguments: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        tidecast.testing.connect(**arguments)


def test_messages_and_records() -> None:
    by_topic: dict[str, tidecast.Codec | str] = {"orders": ORDERS, "md.>": PACKED}
    with tidecast.testing.connect(
        durable=["orders"], codec="json", topic_codecs=by_topic
    ) as client:
        with client.subscribe(">") as everything, client.subscribe("md.eu") as one:
            client.publish("md.eu", {"bid": 1.5})
            client.publish("notes", ["any"])
            assert one.next(timeout=5.0).value == {"bid": 1.5}
            found = [everything.next(timeout=5.0) for _ in range(2)]
            assert {each.topic: each.value for each in found} == {
                "md.eu": {"bid": 1.5},
                "notes": ["any"],
            }
            assert {each.topic: bytes(each.data) for each in found}["notes"] == b'["any"]'
        client.publish("orders", Order(1), ack="durable")
        client.publish_batch("orders", [Order(2), Order(3)], ack="durable").check()
        with client.consumer("orders", "s") as consumer:
            batch = consumer.fetch(3, max_wait=5.0)
            assert [each.value for each in batch] == batch.values()
            ids = [each.id for each in batch.values()]
            while len(ids) < 3:
                ids += [each.id for each in consumer.fetch(3, max_wait=5.0).values()]
            assert ids == [1, 2, 3]
        assert [each.value.id for each in client.read("orders")] == [1, 2, 3]
        with client.consumer("*", "pattern") as consumer:
            assert [each.id for each in consumer.fetch(1, max_wait=5.0).values()] == [1]
        with client.subscribe("md.raw", codec="raw") as raw:
            client.publisher("md.raw", codec="raw").publish(b"\0", flush=True)
            assert raw.next(timeout=5.0).value == b"\0"
        with pytest.raises(CodecError, match="Json cannot encode"):
            client.publish("notes", object())


def test_a_value_of_the_wrong_type_is_found_where_it_is_read() -> None:
    with (
        tidecast.testing.connect(topic_codecs={"orders": ORDERS}) as client,
        client.subscribe("orders") as orders,
    ):
        client.publisher("orders", codec="raw").publish(b'{"id": "x"}', flush=True)
        message = orders.next(timeout=5.0)
        with pytest.raises(CodecError, match="Json cannot decode 11 bytes as Order"):
            _ = message.value


def test_requests() -> None:
    async def main() -> None:
        async with tidecast.testing.connect_async(codec="json") as client:
            async with client.responder("double") as responder:
                serving = asyncio.create_task(responder.serve(lambda request: request.value * 2))
                assert (await client.request("double", 4)).value == 8
                assert [r.value async for r in client.request_many("double", [1])] == [[1, 1]]
                text = await client.request("double", b"3", codec="raw")
                assert (text.data, text.value) == (b"6", b"6")
            await serving

    asyncio.run(main())


def test_an_app_encodes_by_its_own_codec() -> None:
    app = App("twice", codec="msgpack")

    @app.consumer("in", "s", publishes="out")
    async def twice(n: int, key: Annotated[str, Key()]) -> int:
        assert key == "k"
        return n * 2

    @app.responder("ask")
    async def ask(n: int) -> int:
        return n + 1

    async def main() -> None:
        async with (
            tidecast.testing.connect_async(durable=["in", "out"], codec="msgpack") as client,
            app.running(client) as running,
        ):
            await client.publish("in", 21, key="k", ack="durable")
            await running.wait(twice)
            assert [each.value async for each in client.read("out")] == [42]
            assert (await client.request("ask", 1)).value == 2

    asyncio.run(main())
