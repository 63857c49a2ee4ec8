"""Publish a price of each item every 50 ms, until Ctrl-C: python price_feed.py."""

import asyncio
import contextlib

import msgspec

import tidecast
from shop import Price

PRICES = {"tea": 3.0, "coffee": 4.5, "cocoa": 2.5}


async def publish_prices() -> None:
    async with tidecast.connect(name="price feed") as client:
        while True:
            for item, price in PRICES.items():
                await client.publish("prices", msgspec.json.encode(Price(item, price)), key=item)
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(publish_prices())
