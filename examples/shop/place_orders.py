"""Place orders, each stored exactly once: python place_orders.py RUN COUNT.

A second start with the same RUN stores nothing twice, also after a crash in the middle.
"""

import asyncio
import sys

import msgspec

import tidecast
from shop import Order

ITEMS = "tea", "coffee", "cocoa"


def order(number: int) -> Order:
    """Every 20th order is for an item without a price, every 25th has no quantity."""
    item = "snow" if number % 20 == 0 else ITEMS[number % 3]
    quantity = 0 if number % 25 == 0 else 1 + number % 4
    return Order(number, f"customer-{number % 7}", item, quantity)


async def place_orders(run: str, count: int) -> None:
    async with tidecast.connect(name="place orders") as client:
        await client.topics.ensure("orders", mode="durable", queues=4)
        producer = f"orders of {run}"
        async with client.publisher("orders", producer=producer, first_seq=1) as publisher:
            for number in range(1, count + 1):
                made = order(number)
                await publisher.publish(msgspec.json.encode(made), key=made.customer)
            await publisher.wait_durable(timeout=30.0)
            print(publisher.durable_position, "orders are on disk")


if __name__ == "__main__":
    asyncio.run(place_orders(sys.argv[1], int(sys.argv[2])))
