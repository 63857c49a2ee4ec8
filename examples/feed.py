"""A live price feed: one publisher, three subscribers, and a ledger of what arrived.

python feed.py [COUNT]

The third subscriber is slow, and does not hold the publisher back (``tethered=False``). The ledger
shows for each subscriber the number of messages, and the packets that were lost: none, as long as
the slow one stays within the history of the publisher.
"""

import asyncio
import json
import sys

import tidecast

SHARES = "TIDE", "REEF", "SURF", "KELP", "DUNE"


def price_of(number: int) -> float:
    return 100.0 + number % 37 / 4


async def read(messages: tidecast.Subscription, pause_s: float) -> dict[str, float]:
    """Read up to the message that is marked as the last one."""
    count, total, in_order, last = 0, 0.0, True, -1
    async for message in messages:
        value = message.value
        assert message.key == SHARES[value["n"] % len(SHARES)].encode()
        in_order &= value["n"] > last
        last = value["n"]
        count, total = count + 1, total + value["price"]
        if message.headers["last"]:
            break
        if pause_s and count % 500 == 0:
            await asyncio.sleep(pause_s)
    return {"messages": count, "sum": total, "in_order": in_order}


async def main(count: int) -> bool:
    async with (
        tidecast.connect(name="feed") as client,
        client.subscribe("md.*", codec="json") as first,
        client.subscribe("md.>", codec="json") as second,
        client.subscribe("md.shares", codec="json", tethered=False, on_gap="event") as slow,
        client.publisher("md.shares", codec="json") as publisher,
    ):
        readers = [
            asyncio.create_task(read(each, pause_s))
            for each, pause_s in ((first, 0.0), (second, 0.0), (slow, 0.001))
        ]
        for n in range(count):
            key, last = SHARES[n % len(SHARES)], int(n == count - 1)
            await publisher.publish(
                {"n": n, "price": price_of(n)}, key=key, headers={"last": last}, timestamp=True
            )
        await publisher.flush()
        arrived = await asyncio.gather(*readers)
        gaps = client.health().gaps
    sent = {"messages": count, "sum": sum(map(price_of, range(count))), "in_order": True}
    print(json.dumps({"sent": sent, "arrived": arrived, "gaps": gaps}))
    return all(each == sent for each in arrived)


if __name__ == "__main__":
    sys.exit(not asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000)))
