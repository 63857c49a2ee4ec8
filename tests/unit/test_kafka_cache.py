"""Record batches in memory: which are kept, how they are cut, and what answers are sent from."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any

import numpy as np
import pytest
from tests.support.kafka import Served, batch_of

from tidecast.kafka import record_kernels
from tidecast.kafka.answers import cache as module
from tidecast.kafka.answers import sending
from tidecast.kafka.answers.cache import OVER_BYTES, READ_BYTES, TAIL_BYTES, Block, BlockCache
from tidecast.kafka.answers.sending import Sending
from tidecast.kafka.storing.fencing import whole_batches

LOG: Any = "a log"
NO_LIMIT = 1 << 62


class Clock:
    """A time that the test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def kept(cache: BlockCache, n: int, *, first: int = 0, log: Any = LOG, size: int = 1000) -> bytes:
    """Keep ``n`` batches of a record each, as a queue has them from token ``first`` on."""
    found = b""
    for token in range(first, first + n):
        raw = batch_of(bytes(size))
        cache.append(memoryview(raw), log, 3, token, 1)
        found += token.to_bytes(8, "big") + raw[8:12] + (3).to_bytes(4, "big") + raw[16:]
    return found


def taken(cache: BlockCache, token: int, bytes_max: int = 1 << 20, **given: Any) -> bytes | None:
    asked = {"log": LOG, "epoch": 3, "limit": NO_LIMIT, "first": True} | given
    piece = cache.take(token=token, bytes_max=bytes_max, **asked)
    if piece is None:
        return None
    cache.release_all([piece])
    return bytes(piece.data)


def test_a_tail_has_the_batches_as_they_came_with_offset_and_epoch() -> None:
    cache = BlockCache(1 << 22)
    whole = kept(cache, 5)
    n = len(whole) // 5
    assert taken(cache, 0) == whole
    assert taken(cache, 3) == whole[3 * n :]
    assert taken(cache, 1, limit=4) == whole[n : 4 * n]
    assert taken(cache, 1, 1) == whole[n : 2 * n]  # the first is whole
    assert taken(cache, 1, n + 1) == whole[n : 3 * n]  # one begins within the bytes
    assert taken(cache, 5) is None
    assert taken(cache, 0, epoch=4) is None
    assert taken(cache, 0, log="another") is None
    assert taken(cache, 0, limit=0) == b""


def test_a_batch_behind_the_first_ends_not_far_behind_the_bytes() -> None:
    cache = BlockCache(1 << 24)
    whole = kept(cache, 1, size=OVER_BYTES + 100)
    assert taken(cache, 0, 10) == whole
    assert taken(cache, 0, 10, first=False) == b""


def test_another_publishers_records_are_a_hole_of_the_tails() -> None:
    cache = BlockCache(1 << 22)
    kept(cache, 2)
    later = kept(cache, 2, first=10)
    assert taken(cache, 2) is None
    assert taken(cache, 10) == later


def test_blocks_used_the_longest_ago_make_room() -> None:
    cache = BlockCache(8 * TAIL_BYTES)  # six of them for tails
    per_block = TAIL_BYTES // 1100
    for i in range(8):
        kept(cache, per_block, log=f"log {i}", size=1000)
        assert taken(cache, 0, 1, log="log 0")
    assert cache.bytes == 6 * TAIL_BYTES
    held = [taken(cache, 0, 1, log=f"log {i}") is not None for i in range(8)]
    assert held == [True, False, False, True, True, True, True, True]


def test_memory_of_an_answer_is_not_used_again_while_it_is_sent() -> None:
    cache = BlockCache(2 * TAIL_BYTES)  # one of them for tails
    kept(cache, TAIL_BYTES // 1100)
    piece = cache.take(LOG, 3, 0, NO_LIMIT, 1 << 20, first=True)
    assert piece is not None
    assert piece.block is not None
    before = bytes(piece.data)
    kept(cache, TAIL_BYTES // 1100, first=1000)
    assert bytes(piece.data) == before
    assert taken(cache, 0) is None
    small = cache.take(LOG, 3, 1000, NO_LIMIT, 1, first=True)
    assert small is not None
    assert small.block is None  # it would hold a large block


def test_a_full_tail_of_tiny_batches_is_dropped() -> None:
    cache = BlockCache(1 << 22)
    kept(cache, TAIL_BYTES // 400, size=400)
    assert taken(cache, 0, 1) is None


def test_what_nobody_uses_is_freed() -> None:
    clock = Clock()
    cache = BlockCache(1 << 22, clock)
    kept(cache, 3)
    clock.now_s += module.IDLE_S - 1
    cache.trim()
    assert taken(cache, 0)
    clock.now_s += module.IDLE_S - 1
    cache.trim()
    assert cache.bytes == TAIL_BYTES
    clock.now_s += 1
    cache.trim()
    assert cache.bytes == 0
    assert taken(cache, 0) is None
    assert taken(cache, 3) is None
    later = kept(cache, 1, first=3)
    assert taken(cache, 3) == later


def test_nothing_is_kept_without_bytes() -> None:
    cache = BlockCache(0)
    kept(cache, 3)
    cache.add(Block(LOG, 3, 0, cache.room(READ_BYTES)))
    assert cache.bytes == 0


def test_a_read_that_begins_where_another_does_takes_its_place() -> None:
    cache = BlockCache(1 << 24)
    for end in (1, 2):
        block = Block(LOG, 3, 0, cache.room(READ_BYTES))
        raw = batch_of(*[b"v"] * end)
        block.data[: len(raw)] = np.frombuffer(raw, dtype=np.uint8)
        block.used, block.end = len(raw), end
        cache.add(block)
    assert cache.bytes == READ_BYTES
    assert taken(cache, 1) == raw


@pytest.mark.parametrize("seed", range(20))
def test_spans_of_any_bytes_lie_within_them(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        sound = b"".join(
            batch_of(*[b"v" * 9] * rng.randint(1, 4)) for _ in range(rng.randint(0, 4))
        )
        data = np.frombuffer(sound + bytes(61), dtype=np.uint8).copy()
        for _ in range(rng.randint(0, 3)):
            data[rng.randrange(data.size)] = rng.randrange(256)
        used = rng.randint(0, data.size)
        start, end, _ = record_kernels.span_of_batches(
            data, used, rng.randint(0, 5), rng.randint(0, 1 << 40), rng.randint(1, 500), 100
        )
        assert 0 <= start <= end <= used


# --- over a socket --------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Any) -> Any:
    made = Served(tmp_path, [{"name": "t", "mode": "durable", "fsync_interval_ms": 2}])
    yield made
    made.close()


def test_what_a_producer_sent_is_fetched_without_a_read_or_else_from_the_log_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, counters = served.bare(), served.endpoint.counters
    for _ in range(40):
        bare.produce("t", 0, batch_of(bytes(3000)))

    def fetched() -> bytes:
        found, offset = b"", 0
        while offset < 40:
            piece = bytes(bare.fetch("t", 0, offset, bytes_max=10_000)["records"])
            assert piece
            found, offset = found + piece, offset + piece.count(bytes(3000))
        return found

    tail = fetched()
    assert (counters.of("blocks_read"), counters.of("bytes_cached")) == (0, len(tail))
    monkeypatch.setattr(module, "IDLE_S", 0.0)
    served.endpoint.cache.trim()
    monkeypatch.undo()
    assert len(fetched()) < len(tail)  # short batches of the log share a record batch
    assert counters.of("blocks_read") == 1
    bare.close()


@pytest.mark.parametrize("value_n", [5, 90, 3000])
def test_answers_of_a_client_that_reads_on_are_whole_blocks(
    served: Served, monkeypatch: pytest.MonkeyPatch, value_n: int
) -> None:
    """Blocks that ended elsewhere were cut in two, and most of an answer was copied."""
    bare, counters = served.bare(), served.endpoint.counters
    n = 60_000 // (value_n + 7)
    raw = batch_of(*[bytes(value_n)] * n)
    count = n * (3_500_000 // len(raw))
    for _ in range(count // n):
        bare.produce("t", 0, raw)
    monkeypatch.setattr(module, "IDLE_S", 0.0)
    served.endpoint.cache.trim()
    monkeypatch.undo()
    offset, sizes = 0, []
    while offset < count:
        batches = whole_batches(bare.fetch("t", 0, offset, bytes_max=1 << 20)["records"])
        head, _ = batches[-1]
        offset = head.base_offset + head.last_offset_delta + 1
        sizes.append(sum(each.batch_length + 12 for each, _ in batches))
    assert counters.of("blocks_read") == len(sizes)
    assert min(sizes[:-1]) >= (1 << 20) * 7 // 8
    bare.close()


def test_a_compressed_batch_is_no_tail(served: Served) -> None:
    import gzip

    from tests.support.kafka import batch, record

    bare = served.bare()
    packed = gzip.compress(record(0, b"k", b"value"))
    assert bare.produce("t", 0, batch(packed, 1, attributes=1))["error_code"] == 0
    assert b"value" in bytes(bare.fetch("t", 0, 0)["records"])
    assert served.endpoint.counters.of("bytes_cached") == 0
    bare.close()


# --- sending --------------------------------------------------------------------------------------


def pair() -> tuple[Sending, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    return Sending(ours), theirs


async def read(sock: socket.socket, n: int) -> bytes:
    found = bytearray()
    while len(found) < n:
        found += await asyncio.get_running_loop().sock_recv(sock, 70_001)
    return bytes(found)


@pytest.mark.parametrize("sizes", [[], [0, 1, 0], [5_000_000], [3, 900_000] * 7, [10] * 2000])
def test_all_pieces_arrive_in_order(sizes: list[int]) -> None:
    pieces = [bytes([i % 251]) * n for i, n in enumerate(sizes)]

    async def run() -> bytes:
        ours, theirs = pair()
        sent = asyncio.create_task(ours.send(pieces))
        found = await read(theirs, sum(sizes))
        await sent
        ours.close()
        theirs.close()
        return found

    assert asyncio.run(run()) == b"".join(pieces)


def test_closing_ends_a_send_that_waits() -> None:
    async def run() -> None:
        ours, theirs = pair()
        sent = asyncio.create_task(ours.send([bytes(sending.BYTES_MAX * 9)]))
        assert await asyncio.wait([sent], timeout=0.05) == (set(), {sent})
        ours.close()
        ours.close()
        with pytest.raises(ConnectionAbortedError):
            await sent
        with pytest.raises(ConnectionAbortedError):
            await ours.send([b"more"])
        theirs.close()

    asyncio.run(run())


def test_a_reader_that_went_is_a_connection_error() -> None:
    async def run() -> None:
        ours, theirs = pair()
        theirs.close()
        with pytest.raises(ConnectionError):
            await ours.send([bytes(sending.BYTES_MAX * 9)])
        ours.close()

    asyncio.run(run())
