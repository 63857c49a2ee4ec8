"""Durable publishing with asyncio, against an engine with threads of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.durable import rows_of

import tidecast
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import Timeout
from tidecast.native.system.files import F_ERRNO


def test_acks_and_receipts_are_awaited(tmp_path: Path) -> None:
    async def main() -> None:
        topology = topology_from(
            {
                "transports": [{"name": "ipc", "kind": "ipc"}],
                "topics": [{"name": "orders", "mode": "durable", "fsync_interval_ms": 2}],
            }
        )
        link = EmbeddedLink.open(topology, data_dir=tmp_path)
        client = await tidecast.connect(link=link)
        publisher = client.publisher("orders", producer="p")
        await publisher.publish(b"0", ack="durable", timeout=30.0)
        assert publisher.durable_position == 1
        receipts = []
        for i in range(1, 200):
            await publisher.publish(b"%d" % i, key=b"k")
            receipts.append(publisher.receipt())
        assert await asyncio.wait_for(receipts[-1], 30.0) >= 200
        assert all(receipt.done for receipt in receipts)
        result = await publisher.publish_batch([b"x"] * 1000, ack="durable", timeout=30.0)
        assert result.ok
        result = await publisher.publish_batch(
            [b"c"] * 100, keys=["k"] * 99 + [bytes(70_000)], ack="durable", timeout=30.0
        )
        assert (result.appended, result.error) == (99, None)
        assert [each.index for each in result.refused] == [99]
        topic = link.node.durable.topics["orders"]
        assert [seq for *_, seq in rows_of(topic)] == list(range(1, 1300))
        topic.logs[0].state.disk[F_ERRNO] = 28
        with pytest.raises(Timeout, match="message 1300 is not durable"):
            await publisher.publish(b"full", ack="durable", timeout=0.05)
        result = await publisher.publish_batch([b"y"], ack="durable", timeout=0.05)
        assert isinstance(result.error, Timeout)
        topic.logs[0].state.disk[F_ERRNO] = 0
        assert await publisher.wait_durable(timeout=30.0) == 1301
        await client.close()

    asyncio.run(main())
