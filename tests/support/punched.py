"""Queues whose tokens have holes, in memory: a source of a puller, and an adapter of an engine."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from tidecast.errors import Closed, ConfigError, NotFound
from tidecast.queues.adapter import Direction, LeftOut, Received, Record, fit, pack, unpack
from tidecast.queues.sources import Fetched

KEYS = 3


def record_for(token: int) -> Record:
    """Its payload says which token it has."""
    return Record(b"%d" % token, b"k%d" % (token % KEYS), None, 1_000 + token)


class Punched:
    """Batches, each with its first token; ``end``: the token that the next record gets at least."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, Any]] = []
        self.end = self.earliest = 0
        self.left_out: list[LeftOut] = []
        self.grown = threading.Condition()

    def add(self, hole: int, records: int) -> None:
        """A hole, then a batch; a batch of 0 leaves the hole at the end."""
        with self.grown:
            first = self.end + hole
            self.end = first + records
            if records:
                run = pack((record_for(first + i) for i in range(records)), first)
                self.batches.append((first, self.end, run))
            self.grown.notify_all()

    def leave_out(self, records: int = 1) -> None:
        """Add records that cannot be received."""
        with self.grown:
            about = LeftOut(self.end, self.end + records, records, 70_000, "headers too large")
            self.left_out.append(about)
            self.end = about.end
            self.grown.notify_all()

    def tokens(self) -> list[int]:
        """Of all records."""
        return [token for first, behind, _ in self.batches for token in range(first, behind)]

    def compact(self, gone: set[int]) -> None:
        """Delete records; what is left of a batch is several."""
        kept, self.batches = self.tokens(), []
        kept = [token for token in kept if token not in gone]
        for token in kept:
            run = pack([record_for(token)], token)
            self.batches.append((token, token + 1, run))

    def retain(self, earliest: int) -> None:
        """Delete what lies before a token."""
        self.earliest = earliest
        self.batches = [one for one in self.batches if one[1] > earliest]

    def received(self, token: int, buffer: Any) -> Received:
        """The answer of a receiver."""
        if token < self.earliest:
            raise NotFound(f"token {token}: the oldest is {self.earliest}")
        large = next((one for one in self.left_out if one.end > token), None)
        bound = self.end if large is None else large.first
        left = [one for one in self.batches if one[1] > token and one[0] < bound]
        if not left and large is not None:
            return Received(0, large.end, left_out=large)
        if not left:
            return Received(0, max(token, self.end))
        many = left[:4]
        return fit(np.concatenate([run for _, _, run in many]), token, buffer)


class PunchedSource:
    """See `tidecast.queues.sources.Source`."""

    holes = True

    def __init__(self, queue: Punched) -> None:
        self.queue = queue
        self.reads = self.bytes = 0

    def here(self) -> None:
        """Nobody else may read."""

    def read(self, token: int, buffer: Any) -> Fetched:
        """Whole batches, at once."""
        oldest = self.queue.earliest if token < self.queue.earliest else 0
        got = self.queue.received(max(token, oldest), buffer)
        self.reads += 1
        self.bytes += got.bytes
        end = max(got.next_token, self.queue.end)
        return Fetched(got.bytes, end, got.need, oldest, 0 if got.need else got.next_token)

    read_now = read

    def damage(self) -> None:
        """See `Source`."""

    def poll(self, now_ns: int) -> None:
        """It answers at once."""

    def close(self) -> None:
        """Nothing to free."""


class PunchedAdapter:
    """See `tidecast.queues.adapter.Adapter`."""

    name, direction, rewindable = "punched", Direction.READ, True

    def __init__(self, *queues: Punched) -> None:
        self.of, self.queues = queues, len(queues)
        self._parts: list[PunchedReceiver] = []

    def receiver(self, queue: int) -> PunchedReceiver:
        """A receiver of a queue."""
        if not 0 <= queue < self.queues:
            raise NotFound(f"queue: {queue}: there are {self.queues}")
        self._parts.append(PunchedReceiver(self.of[queue]))
        return self._parts[-1]

    def sender(self, queue: int, owner: int) -> Any:
        """Nothing can be written."""
        raise ConfigError(f"queue {queue}: read-only for owner {owner}")

    def close(self) -> None:
        """Close all receivers."""
        for part in self._parts:
            part.close()


class PunchedReceiver:
    """Reads one queue."""

    def __init__(self, queue: Punched) -> None:
        self.queue, self.closed = queue, False

    def receive(self, token: int, buffer: Any, timeout_s: float) -> Received:
        """See `Receiver.receive`."""
        with self.queue.grown:
            self.queue.grown.wait_for(lambda: self.closed or token < self.queue.end, timeout_s)
            if self.closed:
                raise Closed("receive after close")
            return self.queue.received(token, buffer)

    def ack(self, token: int) -> None:
        """Nothing is deleted."""

    def earliest(self) -> int:
        """The oldest token that is kept."""
        return self.queue.earliest

    def latest(self) -> int:
        """The token that the next record gets at least."""
        return self.queue.end

    def at_time(self, time_ns: int) -> int:
        """See `Receiver.at_time`."""
        for first, _, run in self.queue.batches:
            if any(record.time_ns >= time_ns for _, record in unpack(run)):
                return first
        return self.queue.end

    def close(self) -> None:
        """End a receive that waits."""
        with self.queue.grown:
            self.closed = True
            self.queue.grown.notify_all()
