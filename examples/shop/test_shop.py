"""The tests of docs/TUTORIAL.md: a node in memory, so no engine has to run."""

import asyncio

import msgspec

import tidecast
from shop import Invoice, Order, Price, app, price_order, remember
from tidecast.testing import SimulatedNode


async def handled(url: str, order: Order, calls: int) -> list[tidecast.app.DurableMessage]:
    """The messages of `invoices` and `orders.failed` after ``calls`` calls with the order."""
    async with tidecast.connect(url) as client, app.running(client) as running:
        await client.publish("prices", msgspec.json.encode(Price("tea", 3.0)))
        await running.wait(remember)
        await client.publish("orders", msgspec.json.encode(order), key=order.customer)
        await running.wait(price_order, calls)
        found = []
        for topic in ("invoices", "orders.failed"):
            async with client.consumer(topic, "test") as consumer:
                batch = await consumer.fetch(max_wait=0.5)
                found += [message.copy() for message in batch]
        return found


def test_an_order_becomes_an_invoice(tidecast_node: SimulatedNode) -> None:
    (message,) = asyncio.run(handled(tidecast_node.url, Order(1, "ada", "tea", 2), calls=1))
    assert msgspec.json.decode(message.data, type=Invoice) == Invoice(1, "ada", 6.0)
    assert message.key == b"ada"


def test_an_item_without_a_price_is_tried_three_times(tidecast_node: SimulatedNode) -> None:
    (message,) = asyncio.run(handled(tidecast_node.url, Order(2, "ada", "snow", 2), calls=3))
    assert message.headers["dead-reason"] == "KeyError: 'snow'"
    assert message.headers["dead-attempts"] == 3


def test_an_order_without_a_quantity_is_given_up_at_once(tidecast_node: SimulatedNode) -> None:
    (message,) = asyncio.run(handled(tidecast_node.url, Order(3, "ada", "tea", 0), calls=1))
    assert message.headers["dead-reason"] == "the quantity is below 1"
