"""Keys, headers and times of records, read together: the same as one by one, and in bounds."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.test_consumer import connected, topology

import tidecast
from tidecast.client.columns.records import LOADED_MAX, LoadedFields
from tidecast.client.waiting import LoopPace
from tidecast.embedded import EmbeddedLink
from tidecast.errors import Closed
from tidecast.layout import segment

RECORDS = 2 * LOADED_MAX + 37
Row = tuple[bytes, bytes | None, dict[str, Any], int]


def rows_of_chance(chance: random.Random) -> list[Row]:
    keys: list[bytes | None] = [None, b"", b"k", "schlüssel".encode(), bytes(300)]
    heads: list[dict[str, Any]] = [{}, {}, {"n": 1}, {"text": "ü" * 40, "raw": bytes(200)}]
    return [
        (b"%d" % i, chance.choice(keys), chance.choice(heads), chance.randrange(1 << 60))
        for i in range(RECORDS)
    ]


def seen(message: Any) -> Row:
    return bytes(message.data), message.key, message.headers, message.timestamp


@pytest.mark.parametrize("seed", range(3))
def test_fields_that_are_read_together_are_those_of_each_record(tmp_path: Path, seed: int) -> None:
    rows = rows_of_chance(random.Random(seed))
    with connected(tmp_path) as client:
        for data, key, headers, stamp in rows:
            client.publish("orders", data, key=key, headers=headers, timestamp=stamp)
        with client.consumer("orders", "billing", max_in_flight=RECORDS) as consumer:
            got: list[Row] = []
            while len(got) < RECORDS:
                batch = consumer.fetch(RECORDS, 5.0)
                assert batch, "all of them come"
                messages = batch.messages
                order = list(range(len(messages)))
                random.Random(seed).shuffle(order)  # from one end of a batch to the other
                found = {row: seen(messages[row]) for row in order}
                got += [found[row] for row in range(len(messages))]
                assert [seen(each.copy()) for each in messages] == got[-len(messages) :]
                assert [each.topic for each in messages] == ["orders"] * len(messages)
                with pytest.raises(IndexError):
                    batch.key(len(batch) + LOADED_MAX)
                batch.ack()
            got.sort(key=lambda row: int(row[0]))
            assert got == rows
            consumer.fetch(1, 0.0)
            client.publish("orders", b"later", ack="durable")
            assert consumer.fetch(1, 5.0).payloads() == [b"later"]
            with pytest.raises(Closed, match="this batch is over"):
                _ = messages[0].key
        kept = [seen(record) for record in client.read("orders") if record.data != b"later"]
        assert sorted(kept, key=lambda row: int(row[0])) == rows


def test_sizes_of_a_damaged_ring_lead_to_no_byte_outside_of_it() -> None:
    memory = np.zeros(1024, dtype=np.uint8)
    at = np.array([0, 900, 1024 - segment.RECORD_HEADER_BYTES], dtype=np.int64)
    for each in at.tolist():
        memory[each + segment.REC_LENGTH_AT + 3] = segment.REC_KEY >> 24
        memory[each + segment.REC_KEY_LENGTH_AT : each + segment.RECORD_HEADER_BYTES] = 0xFF
    fields = LoadedFields(memory, 0, at)
    assert [len(key or b"") for key in fields.keys] == [1000, 100, 0]
    assert [len(head) for head in fields.heads()] == [0, 0, 0]
    with pytest.raises(IndexError):
        LoadedFields(memory, 0, np.array([1020], dtype=np.int64))


@pytest.mark.parametrize("busy_s", [0.0, 1e-5, 1e-3, 0.02])
def test_other_tasks_run_in_time_beside_a_loop_that_never_waits(
    busy_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    async def main() -> float:
        longest, last = 0.0, now[0]
        ended = False

        async def other() -> None:
            nonlocal longest, last
            while not ended:
                longest, last = max(longest, now[0] - last), now[0]
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        await asyncio.sleep(0)
        pace, burst = LoopPace(), 1
        for _ in range(500):
            now[0] += busy_s
            burst -= 1
            if not burst:
                burst = await pace.turn()
        ended = True
        await task
        return longest

    assert asyncio.run(main()) <= max(0.003, 2 * busy_s)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_run_of_one_task_takes_each_message_when_its_turn_comes(
    tmp_path: Path, asynchronous: bool
) -> None:
    """So a seek takes back the others, and a refused message comes before its later ones."""

    async def main() -> list[tuple[bytes, bytes | None]]:
        link: Any = EmbeddedLink.open(topology(), data_dir=tmp_path)
        handled: list[tuple[bytes, bytes | None]] = []
        async with tidecast.connect(link=link) as client:
            for i in range(20):
                await client.publish("orders", b"%d" % i, key=b"k%d" % (i % 2))
            async with client.consumer("orders", "billing") as consumer:

                def handle(message: Any) -> None:
                    again = (message.data, message.key) in handled
                    handled.append((message.data, message.key))
                    if message.data == b"2" and not again:
                        raise ValueError("once")

                async def later(message: Any) -> None:
                    await asyncio.sleep(0)
                    handle(message)

                n = await consumer.run(
                    later if asynchronous else handle, nak_delay=0.0, max_messages=21
                )
                assert n == 21
                assert (await consumer.info())["naks"] == 1
        return handled

    handled = asyncio.run(main())
    assert {key for _, key in handled} == {b"k0", b"k1"}
    evens = [int(data) for data, key in handled if key == b"k0"]
    assert evens == [0, 2, 2, *range(4, 20, 2)]
    assert [int(data) for data, key in handled if key == b"k1"] == list(range(1, 20, 2))
