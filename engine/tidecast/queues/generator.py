"""The `generator` adapter: records made by seed when they are asked for; for tests and benches.

Record i of a queue depends on (seed, queue, i) alone: its key is ``k<n>``, its payload starts with
i and the queue (two int64, little endian), and the rest is noise. Nothing is stored, so queues of
any length cost nothing. A round trip and faults can be put before each receive, and holes in the
tokens behind each batch.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from tidecast.errors import Closed, ConfigError, NotFound
from tidecast.layout import segment as lay
from tidecast.log import batch as log_batch
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import Span, store_i64, store_u8
from tidecast.queues.adapter import Direction, Received, Run
from tidecast.queues.mapper import key_hash

LEAD = struct.Struct("<qq")
"""The beginning of a payload: number of the record, number of the queue."""
PAYLOAD_BYTES_MAX = 1 << 20
KEYS_MAX = 1 << 20
_KEY_BYTES = 8  # "k" and seven digits
(
    G_SEED,
    G_QUEUE,
    G_PAYLOAD_MIN,
    G_PAYLOAD_MAX,
    G_KEYS,
    G_BATCH_RECORDS,
    G_HOLE,
    G_START_NS,
    G_PERIOD_NS,
) = range(9)
"""Words of a `Recipe` and a queue, as `generate_run` takes them."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The records that a generator makes. Payloads have ``payload_min`` to ``payload_max`` bytes.

    ``hole``: so many tokens behind each whole batch have no record.
    """

    seed: int = 1
    payload_min: int = 100
    payload_max: int = 100
    keys: int = 1000
    batch_records: int = 64
    start_ns: int = 1_700_000_000_000_000_000
    period_ns: int = 1_000_000
    hole: int = 0

    def __post_init__(self) -> None:
        lead = LEAD.size
        assert lead <= self.payload_min <= self.payload_max <= PAYLOAD_BYTES_MAX, "payload bytes"
        assert 1 <= self.keys <= KEYS_MAX, "keys"
        assert 1 <= self.batch_records <= lay.BATCH_RECORDS_MAX, "batch_records"
        assert self.period_ns > 0, "period_ns"
        assert 0 <= self.hole <= 1 << 32, "hole"

    def words(self, queue: int) -> np.ndarray:
        """The recipe of a queue for `generate_run`, see G_*."""
        fields = (self.seed, queue, self.payload_min, self.payload_max, self.keys)
        return np.array(
            (*fields, self.batch_records, self.hole, self.start_ns, self.period_ns), np.int64
        )

    def token_of(self, record: int) -> int:
        """The token of a record; for the number of records: the token of the next record."""
        return record + record // self.batch_records * self.hole

    def record_at(self, token: int) -> int:
        """The number of the record with this token, or of the next record behind it."""
        batch, within = divmod(token, self.batch_records + self.hole)
        return batch * self.batch_records + min(within, self.batch_records)


@inlined
def _mixed(x):
    """Splitmix64 (Steele, Lea, Flood 2014): number ``x`` of a sequence, in any order."""
    x = x * -7046029254386353131
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@inlined
def _payload_bytes(noise, smallest, largest):
    return smallest + ((noise >> 32) & 0x7FFFFFFF) % (largest - smallest + 1)


@kernel
def generate_run(out, record, count, recipe, found):
    """Fill ``out`` with whole batches, from the batch with ``record`` on, of ``count`` records.

    ``recipe``: int64[9], see G_*. ``found``: bytes, the token behind the last record, and bytes
    that the first batch needs.
    """
    seed, queue, batch = recipe[G_SEED], recipe[G_QUEUE], recipe[G_BATCH_RECORDS]
    smallest, largest = recipe[G_PAYLOAD_MIN], recipe[G_PAYLOAD_MAX]
    start, period = recipe[G_START_NS], recipe[G_PERIOD_NS]
    at, first = 0, record // batch * batch
    found[0], found[1], found[2] = 0, 0, 0
    key = np.zeros(_KEY_BYTES, dtype=np.uint8)
    payload = np.zeros(largest + 8, dtype=np.uint8)
    while first < count:
        behind = min(first + batch, count)
        size = lay.BATCH_HEADER_BYTES
        for i in range(first, behind):
            noise = _mixed(seed * 1_000_003 + (queue << 44) + i)
            size += log_batch.record_bytes(_KEY_BYTES, -1, _payload_bytes(noise, smallest, largest))
        if at == 0:
            found[2] = size
        if at + size > out.size:
            return
        end = log_batch.begin_batch(out, at, 0, 0, 0, first + 1, 0)
        for i in range(first, behind):
            noise = _mixed(seed * 1_000_003 + (queue << 44) + i)
            n = _payload_bytes(noise, smallest, largest)
            left = (noise & 0x7FFFFFFF) % recipe[G_KEYS]
            store_u8(key, 0, 107)
            for digit in range(1, _KEY_BYTES):
                store_u8(key, _KEY_BYTES - digit, 48 + left % 10)
                left //= 10
            hashed = key_hash(key, 0, _KEY_BYTES)
            _fill(payload, n, noise, i, queue)
            named, none, body = Span(key, 0, _KEY_BYTES), Span(key, 0, -1), Span(payload, 0, n)
            time_ns = start + i * period
            end = log_batch.add_record(out, at, end, i + 1, time_ns, hashed, named, none, body)
        token = first + first // batch * recipe[G_HOLE]
        log_batch.seal_batch(out, at, end, token, start + (behind - 1) * period)
        found[0], found[1] = end, token + behind - first
        at, first = end, behind


@inlined
def _fill(payload, n, noise, i, queue):
    """Eight bytes at a time: ``payload`` has room for eight more than ``n``."""
    store_i64(payload, 0, i)
    store_i64(payload, 8, queue)
    for k in range(16, n, 8):
        noise = _mixed(noise)
        store_i64(payload, k, noise)


Fault = Callable[[int], Exception | None]
"""Given the number of a receive, from 0: the error to raise instead, or None."""


def _no_fault(_: int) -> Exception | None:
    return None


class GeneratorAdapter:
    """Queues of ``count`` records each. Read only, rewindable.

    ``round_trip_s``: how long each receive takes; ``wait`` does the waiting.
    """

    name, direction, rewindable = "generator", Direction.READ, True

    def __init__(
        self,
        queues: int,
        count: int,
        recipe: Recipe | None = None,
        *,
        round_trip_s: float = 0.0,
        wait: Callable[[float], None] = time.sleep,
        fault: Fault = _no_fault,
    ) -> None:
        self.queues, self.recipe = queues, recipe or Recipe()
        self.round_trip_s, self.wait, self.fault = round_trip_s, wait, fault
        self.counts = [count] * queues
        self.grown = threading.Condition()
        self._parts: list[GeneratorReceiver] = []

    def grow(self, queue: int, records: int) -> None:
        """Let a queue have more records; wakes the receivers that wait for them."""
        with self.grown:
            self.counts[queue] += records
            self.grown.notify_all()

    def receiver(self, queue: int) -> GeneratorReceiver:
        """A receiver of a queue."""
        if not 0 <= queue < self.queues:
            raise NotFound(f"queue: {queue}: there are {self.queues}, from 0 on")
        part = GeneratorReceiver(self, queue)
        self._parts.append(part)
        return part

    def sender(self, queue: int, owner: int) -> NoReturn:
        """Nothing can be written: raises ConfigError."""
        del owner
        raise ConfigError(f"queue {queue}: the generator is read-only: use the embedded adapter")

    def close(self) -> None:
        """Close all receivers."""
        for part in self._parts:
            part.close()
        self._parts.clear()


class GeneratorReceiver:
    """Reads one generated queue. ``calls`` counts receives, ``bytes`` the bytes they returned."""

    def __init__(self, adapter: GeneratorAdapter, queue: int) -> None:
        self._adapter, self._queue = adapter, queue
        self._closed = False
        self.calls = self.bytes = self.acked = 0

    def receive(self, token: int, buffer: Run, timeout_s: float) -> Received:
        """See `Receiver.receive`."""
        adapter = self._adapter
        call, self.calls = self.calls, self.calls + 1
        if adapter.round_trip_s > 0:
            adapter.wait(adapter.round_trip_s)
        problem = adapter.fault(call)
        if problem is not None:
            raise problem
        with adapter.grown:
            adapter.grown.wait_for(lambda: self._closed or token < self.latest(), timeout_s)
            if self._closed:
                raise Closed("receive after close")
            count, end = adapter.counts[self._queue], self.latest()
        r, found = adapter.recipe, np.zeros(3, dtype=np.int64)
        record = r.record_at(token)
        if record >= count:
            return Received(0, max(token, end))
        generate_run(buffer, record, count, r.words(self._queue), found)
        n, behind, need = found.tolist()
        if not n:
            return Received(0, token, need)
        self.bytes += n
        return Received(n, behind)

    def ack(self, token: int) -> None:
        """See `Receiver.ack`."""
        self.acked = max(self.acked, token)

    def earliest(self) -> int:
        """Nothing is ever deleted."""
        return 0

    def latest(self) -> int:
        """Behind the newest record, and the hole that follows it."""
        return self._adapter.recipe.token_of(self._adapter.counts[self._queue])

    def at_time(self, time_ns: int) -> int:
        """See `Receiver.at_time`."""
        r = self._adapter.recipe
        record = -((r.start_ns - time_ns) // r.period_ns)
        if record >= self._adapter.counts[self._queue]:
            return self.latest()
        return r.token_of(max(record, 0) // r.batch_records * r.batch_records)

    def close(self) -> None:
        """See `Receiver.close`."""
        with self._adapter.grown:
            self._closed = True
            self._adapter.grown.notify_all()


def payload_of(recipe: Recipe, queue: int, record: int) -> bytes:
    """The payload that record ``record`` of a queue has, to compare with a received payload."""
    from tidecast.queues.adapter import unpack

    adapter = GeneratorAdapter(queue + 1, record + 1, recipe)
    one = adapter.receiver(queue)
    token = recipe.token_of(record)
    need = one.receive(token, np.zeros(1, dtype=np.uint8), 0.0).need
    buffer = np.zeros(need, dtype=np.uint8)
    n = one.receive(token, buffer, 0.0).bytes
    return dict(unpack(buffer[:n]))[token].payload
