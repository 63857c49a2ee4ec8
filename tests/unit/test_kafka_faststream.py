"""An app of FastStream, unmodified, on durable topics: its Kafka broker speaks to the endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from faststream import FastStream
from faststream.kafka import KafkaBroker
from pydantic import BaseModel
from tests.support.kafka import TIMEOUT_S, Served

import tidecast.sync
from tidecast.embedded import EmbeddedLink

TOPICS = [
    {"name": name, "mode": "durable", "queues": 2, "fsync_interval_ms": 2}
    for name in ("orders", "bills")
]
N = 50


class Order(BaseModel):
    """The message that the app handles."""

    number: int
    amount: float


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("node"), TOPICS)
    yield made
    assert made.endpoint.counters.of("faults") == 0
    assert made.endpoint.counters.of("bad_requests") == 0
    made.close()


def test_an_app_of_faststream(served: Served) -> None:
    handled: dict[int, float] = {}

    async def main() -> None:
        broker = KafkaBroker(served.endpoint.address, logger=None)
        all_came = asyncio.Event()

        @broker.subscriber("orders", group_id="billing", auto_offset_reset="earliest")
        @broker.publisher("bills")
        async def bill(order: Order) -> dict[str, Any]:
            handled[order.number] = order.amount
            if len(handled) == N:
                all_came.set()
            return {"bill": order.number}

        app = FastStream(broker)
        await app.start()
        async with asyncio.timeout(TIMEOUT_S):
            for n in range(N):
                await broker.publish({"number": n, "amount": n / 4}, "orders", key=b"k%d" % (n % 5))
            await all_came.wait()
        await app.stop()

    asyncio.run(main())
    assert handled == {n: n / 4 for n in range(N)}
    link: Any = EmbeddedLink(served.link.node, "reader", owns_node=False)
    with tidecast.sync.connect(link=link) as client:
        reader = client.consumer("bills", "check", codec="json")
        bills = [reader.next(timeout=TIMEOUT_S).value["bill"] for _ in range(N)]
    assert sorted(bills) == list(range(N))
