"""The duties of each adapter, as checks to run in a test: see docs/ADAPTERS.md.

    @pytest.mark.parametrize("check", conformance.CHECKS)
    def test_my_adapter(check, tmp_path):
        conformance.run(check, MySubject(tmp_path))

A check that does not apply to an adapter (it cannot write, say) does nothing. A check that fails
raises AssertionError in words. Nothing here needs pytest.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from tidecast.errors import Closed, Fenced, NotFound, TidecastError
from tidecast.layout import segment as lay
from tidecast.queues.adapter import (
    Adapter,
    Direction,
    Receiver,
    Record,
    Run,
    pack,
    unpack,
)

__all__ = ["CHECKS", "Subject", "run"]

TIMEOUT_S, LATE_S = 10.0, 2.0
ROOM = 1 << 16
ROUNDS_MAX = 10_000


class Subject(Protocol):
    """The adapter to check, and how to get records into it."""

    def open(self) -> Adapter:
        """Open the adapter, with at least 2 queues. Again after `close`: with all it had."""

    def fill(self, adapter: Adapter, queue: int, count: int) -> None:
        """Put ``count`` more records into a queue, in batches of less than 1 MiB, by any means.

        Their time-stamps ascend. For an adapter that can write: `fill_by_sender` does it.
        """


def fill_by_sender(adapter: Adapter, queue: int, count: int) -> None:
    """`Subject.fill` for adapters that can write."""
    receiver = adapter.receiver(queue)
    first = receiver.latest()
    receiver.close()
    sender = adapter.sender(queue, 1)
    for begin in range(first, first + count, 50):
        sender.append(pack(sample(i) for i in range(begin, min(begin + 50, first + count))))
    sender.sync()
    sender.close()


def sample(i: int) -> Record:
    """A record to write: with every shape of key, headers and payload."""
    key = (None, b"", b"k%d" % (i % 7))[i % 3]
    headers = None if i % 2 else {"n": i, "text": "ä" * (i % 5)}
    return Record(b"%d" % i + bytes(i % 97), key, headers, 1_000_000 + i)


def run(check: str, subject: Subject) -> None:
    """Run one of `CHECKS`. Raises AssertionError when the adapter fails it."""
    adapter = subject.open()
    try:
        CHECKS[check](subject, adapter)
    finally:
        adapter.close()


def _reads(adapter: Adapter) -> bool:
    return adapter.direction is not Direction.WRITE


def _writes(adapter: Adapter) -> bool:
    return adapter.direction is not Direction.READ


def _receive(receiver: Receiver, token: int, room: int = ROOM) -> tuple[Run, int]:
    """A run, and the token to continue with; reads again when it needs a larger buffer."""
    buffer = np.zeros(room, dtype=np.uint8)
    got = receiver.receive(token, buffer, TIMEOUT_S)
    if got.bytes == 0 and got.need:
        assert got.need > room, f"need is {got.need}, and the buffer had {room}"
        buffer = np.zeros(got.need, dtype=np.uint8)
        got = receiver.receive(token, buffer, TIMEOUT_S)
        assert got.bytes == buffer.size, "the batch should fill a buffer of just the bytes needed"
    assert got.next_token > token or not got.bytes, "next_token must increase"
    assert got.next_token >= token, "next_token goes back"
    return buffer[: got.bytes], got.next_token


def _all(receiver: Receiver, token: int, end: int, room: int = ROOM) -> list[tuple[int, Record]]:
    found: list[tuple[int, Record]] = []
    for _ in range(ROUNDS_MAX):
        if token >= end:
            return found
        some, behind = _receive(receiver, token, room)
        if not some.size:
            assert behind > token, f"nothing came at token {token}, and {end} is the end"
            token = behind
            continue
        listed = unpack(some)
        assert behind == listed[-1][0] + 1, "next_token must follow the last record"
        found += [one for one in listed if one[0] >= token]
        token = behind
    raise AssertionError("a queue of a few hundred records does not end")


def _ascend(found: list[tuple[int, Record]], first: int, end: int, count: int) -> None:
    tokens = [token for token, _ in found]
    assert tokens == sorted(set(tokens)), "tokens must ascend"
    assert len(tokens) == count, f"{count} records were put in, {len(tokens)} came"
    assert first <= tokens[0], "earliest is behind the first record"
    assert tokens[-1] < end, "latest is not behind the last record"


def empty_queue(_: Subject, adapter: Adapter) -> None:
    """An empty receive is not an error and comes back in time."""
    if not _reads(adapter):
        return
    receiver = adapter.receiver(0)
    token, began = receiver.latest(), time.monotonic()
    got = receiver.receive(token, np.zeros(ROOM, dtype=np.uint8), 0.01)
    assert time.monotonic() - began < LATE_S, "it waited for longer than its time-out"
    assert (got.bytes, got.next_token, got.need) == (0, token, 0)
    assert receiver.earliest() == receiver.latest() == receiver.at_time(0)


def in_order(subject: Subject, adapter: Adapter) -> None:
    """Tokens ascend; all receivers, whatever their buffer, see the same."""
    if not _reads(adapter):
        return
    subject.fill(adapter, 0, 300)
    receiver = adapter.receiver(0)
    first, end = receiver.earliest(), receiver.latest()
    found = _all(receiver, first, end)
    _ascend(found, first, end, 300)
    assert _all(adapter.receiver(0), first, end, room=1 << 12) == found
    times = [record.time_ns for _, record in found]
    assert times == sorted(times)


def any_token(subject: Subject, adapter: Adapter) -> None:
    """A receive may start at any token, in any order, and repeat."""
    if not _reads(adapter):
        return
    subject.fill(adapter, 0, 300)
    receiver = adapter.receiver(0)
    first, end = receiver.earliest(), receiver.latest()
    found = _all(receiver, first, end)
    for offset in (299, 0, 150, 151, 150, 7, 298):
        assert _all(receiver, found[offset][0], end) == found[offset:]


def holes(subject: Subject, adapter: Adapter) -> None:
    """A receive in a hole returns the next record; behind the last record it returns none."""
    if not _reads(adapter):
        return
    subject.fill(adapter, 0, 200)
    receiver = adapter.receiver(0)
    first, end = receiver.earliest(), receiver.latest()
    found = _all(receiver, first, end)
    places = [first - 1, *(token for token, _ in found)]
    for i in range(200):
        for token in {places[i] + 1, places[i + 1] - 1}:
            if places[i] < token < places[i + 1]:
                assert _all(receiver, token, end) == found[i:], f"at {token}, in a hole"
    assert not _all(receiver, places[-1] + 1, end)


def queues_are_apart(subject: Subject, adapter: Adapter) -> None:
    """Records of one queue are not in another; a queue that is not there is NotFound."""
    if _reads(adapter):
        subject.fill(adapter, 1, 20)
        one = adapter.receiver(1)
        assert len(_all(one, one.earliest(), one.latest())) == 20
        assert adapter.receiver(0).latest() == adapter.receiver(0).earliest()
        for queue in (-1, adapter.queues):
            _raises(NotFound, functools.partial(adapter.receiver, queue))


def by_time(subject: Subject, adapter: Adapter) -> None:
    """`at_time` finds the batch of the first record that is not older."""
    if not _reads(adapter):
        return
    subject.fill(adapter, 0, 200)
    receiver = adapter.receiver(0)
    first, end = receiver.earliest(), receiver.latest()
    found = _all(receiver, first, end)
    assert receiver.at_time(0) == first
    assert receiver.at_time(found[-1][1].time_ns + 1) == end
    for offset in (0, 1, 77, 199):
        wanted = found[offset][1].time_ns
        at = receiver.at_time(wanted)
        listed = unpack(_receive(receiver, at)[0])
        assert at <= found[offset][0], f"records from {wanted} on would be skipped"
        assert any(r.time_ns >= wanted for _, r in listed), "a whole run too early"


def wakes_up(subject: Subject, adapter: Adapter) -> None:
    """A receive that waits returns when a record comes, not when its time is up."""
    if not _reads(adapter):
        return
    receiver = adapter.receiver(0)
    token, started = receiver.latest(), threading.Event()
    got: list[tuple[Run, int]] = []

    def wait() -> None:
        started.set()
        got.append(_receive(receiver, token))

    waiting = threading.Thread(target=wait)
    waiting.start()
    started.wait()
    waiting.join(0.05)
    assert waiting.is_alive(), "a receive must wait for its time-out"
    subject.fill(adapter, 0, 1)
    waiting.join(TIMEOUT_S / 2)
    assert got and got[0][0].size, "it still waits, and a record is there"


def closes(subject: Subject, adapter: Adapter) -> None:
    """Close ends a receive that waits, is idempotent, and nothing is received behind it."""
    if not _reads(adapter):
        return
    receiver, started = adapter.receiver(0), threading.Event()
    ended: list[str] = []

    def wait() -> None:
        started.set()
        try:
            receiver.receive(receiver.latest(), np.zeros(ROOM, dtype=np.uint8), TIMEOUT_S)
        except Closed:
            ended.append("closed")
        else:
            ended.append("nothing")

    waiting = threading.Thread(target=wait)
    waiting.start()
    started.wait()
    receiver.close()
    receiver.close()
    waiting.join(TIMEOUT_S / 2)
    assert ended, "close did not end the receive"
    _raises(Closed, lambda: receiver.receive(0, np.zeros(ROOM, dtype=np.uint8), 0.0))
    other = adapter.receiver(0)
    subject.fill(adapter, 0, 1)
    assert _all(other, other.earliest(), other.latest())
    adapter.close()
    adapter.close()


def acks(subject: Subject, adapter: Adapter) -> None:
    """A lower ack changes nothing, records behind an ack stay, and `rewindable` holds."""
    if not _reads(adapter):
        return
    subject.fill(adapter, 0, 100)
    receiver = adapter.receiver(0)
    first, end = receiver.earliest(), receiver.latest()
    found = _all(receiver, first, end)
    receiver.ack(found[50][0])
    receiver.ack(found[20][0])
    assert _all(receiver, found[50][0], end) == found[50:]
    if adapter.rewindable:
        assert _all(receiver, first, end) == found
    receiver.ack(end)
    assert receiver.latest() == end


def survives_reopening(subject: Subject, adapter: Adapter) -> None:
    """Durable records are there when the adapter is opened again, with their tokens."""
    if not _reads(adapter):
        return
    subject.fill(adapter, 0, 60)
    receiver = adapter.receiver(0)
    first, end = receiver.earliest(), receiver.latest()
    found = _all(receiver, first, end)
    adapter.close()
    again = subject.open()
    try:
        receiver = again.receiver(0)
        assert (receiver.earliest(), receiver.latest()) == (first, end)
        assert _all(receiver, first, end) == found
    finally:
        again.close()


def appends(_: Subject, adapter: Adapter) -> None:
    """Appended records are read as they were: payload, key, headers, time; first token too."""
    if not _writes(adapter):
        _raises(TidecastError, lambda: adapter.sender(0, 1))
        return
    sender = adapter.sender(0, 1)
    given = [sample(i) for i in range(40)]
    first = sender.append(pack(given[:30]))
    assert sender.append(pack(given[30:], first_token=999)) == first + 30, (
        "the run's tokens are void"
    )
    assert sender.sync() >= first + 40
    if _reads(adapter):
        found = _all(adapter.receiver(0), first, first + 40)
        assert [record for _, record in found] == given


def keeps_producers(_: Subject, adapter: Adapter) -> None:
    """Producer, epoch and sequences of a batch survive: guaranteed delivery rests on them."""
    if adapter.direction is not Direction.BOTH:
        return
    sender = adapter.sender(0, 3)
    first = sender.append(pack([sample(0)] * 3, producer=77, epoch=5, base_seq=1001))
    sender.sync()
    head = _receive(adapter.receiver(0), first)[0]

    def word(at: int, n: int) -> int:
        return int.from_bytes(head[at : at + n].tobytes(), "little")

    assert word(lay.BATCH_PRODUCER_AT, 8) == 77
    assert word(lay.BATCH_EPOCH_AT, 4) == 5
    assert word(lay.BATCH_BASE_SEQ_AT, 8) == 1001
    assert word(lay.BATCH_OWNER_AT, 4) == 3, "owner epoch of the sender"


def fences(subject: Subject, adapter: Adapter) -> None:
    """A sender of a lower owner epoch is refused, also by an adapter opened again."""
    if not _writes(adapter):
        return
    old = adapter.sender(0, 4)
    first = old.append(pack([sample(0)]))
    new = adapter.sender(0, 5)
    _raises(Fenced, lambda: old.append(pack([sample(1)])))
    assert new.append(pack([sample(2)])) == first + 1, "nothing of the fenced one is in"
    new.sync()
    _raises(Fenced, lambda: adapter.sender(0, 4))
    adapter.close()
    again = subject.open()
    try:
        _raises(Fenced, lambda: again.sender(0, 4))
        again.sender(0, 5).close()
    finally:
        again.close()


def refuses_what_is_broken(_: Subject, adapter: Adapter) -> None:
    """A run with a wrong checksum is refused whole."""
    if not _writes(adapter):
        return
    sender = adapter.sender(0, 1)
    first = sender.append(pack([sample(0)]))
    broken = pack([sample(1)] * 2000)
    broken[-1] ^= 1
    _raises(TidecastError, lambda: sender.append(broken))
    assert sender.append(pack([sample(2)])) == first + 1


def large_and_small(_: Subject, adapter: Adapter) -> None:
    """Empty payloads, and a payload far larger than the first buffer."""
    if adapter.direction is not Direction.BOTH:
        return
    given = [Record(b""), Record(bytes(range(256)) * 12_000, b"big"), Record(b"", b"")]
    sender = adapter.sender(0, 1)
    first = sender.append(pack(given, now_ns=5))
    sender.sync()
    found = _all(adapter.receiver(0), first, first + 3, room=1 << 12)
    assert [(r.payload, r.key) for _, r in found] == [(r.payload, r.key) for r in given]


def _raises(kind: type[Exception], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was to be raised")


CHECKS: dict[str, Callable[[Subject, Adapter], None]] = {
    check.__name__: check
    for check in (
        empty_queue,
        in_order,
        any_token,
        holes,
        queues_are_apart,
        by_time,
        wakes_up,
        closes,
        acks,
        survives_reopening,
        appends,
        keeps_producers,
        fences,
        refuses_what_is_broken,
        large_and_small,
    )
}
"""All checks by name."""
