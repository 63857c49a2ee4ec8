"""A puller over real logs, with members in this process and a clock that tests move."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tidecast.agents.puller.observer import Dead, Observer
from tidecast.agents.puller.runtime import Puller
from tidecast.buffers import member_ring
from tidecast.layout import member as lay
from tidecast.layout import ring as ring_layout
from tidecast.layout import segment as seg
from tidecast.log.building import BatchBuilder
from tidecast.log.queue_log import QueueLog
from tidecast.queues.cache.cursors import SHARES
from tidecast.queues.mapper import hash_of
from tidecast.queues.sources import Fetched, LogSource

S_NS = 1_000_000_000


@dataclass(frozen=True)
class Got:
    """A record as a member got it."""

    cursor: int
    token: int
    attempts: int
    key: bytes | None
    payload: bytes


class Seen(Observer):
    """Notes what the puller tells; settles the dead."""

    def __init__(self) -> None:
        self.puller: Puller | None = None
        self.deaths: list[Dead] = []
        self.hostiles: list[int] = []
        self.gaps: list[tuple[int, int, int]] = []
        self.damages: list[str] = []
        self.settles = True

    def dead(self, dead: Dead) -> None:
        from tidecast.agents.puller.entries import complete_dead

        self.deaths.append(dead)
        if self.settles and self.puller is not None:
            complete_dead(self.puller.words, dead.cursor, dead.generation, dead.token)

    def hostile(self, member: int) -> None:
        self.hostiles.append(member)

    def gap(self, cursor: int, first: int, end: int) -> None:
        self.gaps.append((cursor, first, end))

    def damaged(self, q: int, token: int, problem: str) -> None:
        self.damages.append(problem)


class CountingSource(LogSource):
    """Counts reads; may answer late, by the rig's clock."""

    def __init__(self, log: QueueLog, rig: Rig, delay_ns: int = 0) -> None:
        super().__init__(log)
        self.rig, self.delay_ns = rig, delay_ns
        self.reads = 0
        self.bytes = 0
        self._late: tuple[int, Fetched] | None = None

    def here(self) -> Any:
        return super().here() if self.rig.reads_here else None

    def read(self, token: int, buffer: Any) -> Fetched | None:  # type: ignore[override]
        self.reads += 1
        got = super().read(token, buffer)
        self.bytes += got.used
        if self.delay_ns == 0:
            return got
        self._late = (self.rig.now + self.delay_ns, got)
        return None

    def poll(self, now_ns: int) -> Fetched | None:  # type: ignore[override]
        if self._late is None or self._late[0] > now_ns:
            return None
        _, got = self._late
        self._late = None
        return got


class TestMember:
    """The client's side of a member, in Python over its kernels."""

    __test__ = False

    def __init__(self, rig: Rig, file: member_ring.MemberFile, number: int, sub: int) -> None:
        self.rig, self.file, self.number, self.sub = rig, file, number, sub
        self.k = file.client_state()
        self.rows = np.zeros((8192, member_ring.ROW_FIELDS), dtype=np.int64)
        self.runs = np.zeros((4096, member_ring.RUN_FIELDS), dtype=np.int64)
        self.assembly = np.zeros(64, dtype=np.uint8)
        self.words: dict[int, int] = {}

    def take(self, limit: int = 8192, mark: bool = True) -> list[Got]:
        """Take what is there; wakes the puller, as a client does."""
        n, r = member_ring.NEED_BUFFER, 0
        while n == member_ring.NEED_BUFFER:
            if self.k[member_ring.K_TOTAL] > self.assembly.size:
                self.assembly = np.zeros(int(self.k[member_ring.K_TOTAL]), dtype=np.uint8)
            n, r = member_ring.take(
                self.file.array, self.k, self.assembly, self.rows, self.runs, min(limit, 8192), mark
            )
        member_ring.wake_member(self.rig.wakes, self.rig.bells, self.number)
        assert n != member_ring.HOSTILE
        memory = self.assembly if n == member_ring.ASSEMBLED else self.file.array
        n = 1 if n == member_ring.ASSEMBLED else n
        got = []
        for run in self.runs[:r].tolist():
            word, token, count, attempts, _, first, _ = run
            cursor = word & 0xFFFFFFFF
            self.words[cursor] = word
            for i in range(count):
                at, size, p, *_ = self.rows[first + i].tolist()
                flags = int(memory[p : p + 4].view(np.uint32)[0])
                key_n = int(memory[p + 20 : p + 22].view(np.uint16)[0])
                key = bytes(memory[p + 24 : p + 24 + key_n]) if flags & seg.REC_KEY else None
                payload = bytes(memory[at : at + size])
                got.append(Got(cursor, token + i, attempts, key, payload))
        assert len(got) == n
        return got

    def _put(
        self, kind: int, cursor: int, first: int, end: int, time_ns: int = 0, reason: bytes = b""
    ) -> None:
        raw = np.frombuffer(reason + b"\0", dtype=np.uint8)
        status = member_ring.put_ack(
            self.file.array, self.k, kind, self.words[cursor], first, end, time_ns, raw, len(reason)
        )
        assert status == 0
        member_ring.wake_member(self.rig.wakes, self.rig.bells, self.number)

    def ack(self, *got: Got) -> None:
        for one in got:
            self._put(lay.ACK, one.cursor, one.token, one.token + 1)

    def ack_all(self, got: list[Got]) -> None:
        """Ack as ranges."""
        k = 0
        while k < len(got):
            j = k
            while (
                j + 1 < len(got)
                and got[j + 1].cursor == got[k].cursor
                and (got[j + 1].token == got[j].token + 1)
            ):
                j += 1
            self._put(lay.ACK, got[k].cursor, got[k].token, got[j].token + 1)
            k = j + 1

    def nak(self, one: Got, delay_ns: int = 0) -> None:
        self._put(lay.NAK, one.cursor, one.token, one.token + 1, delay_ns)

    def give_back(self, one: Got) -> None:
        self._put(lay.RETURN, one.cursor, one.token, one.token + 1)

    def extend(self, one: Got, time_ns: int = 0) -> None:
        self._put(lay.EXTEND, one.cursor, one.token, one.token + 1, time_ns)

    def term(self, one: Got, reason: str = "") -> None:
        self._put(lay.TERM, one.cursor, one.token, one.token + 1, 0, reason.encode())


CYCLES_MAX = 10_000


class Rig:
    """Queues, cursors, members; `run` works until nothing is left to do."""

    def __init__(self, directory: Path, *, reads_here: bool = False, **puller: Any) -> None:
        self.directory, self.reads_here = directory, reads_here
        self.now = S_NS
        self.wakes = np.zeros(lay.WAKES_BYTES, dtype=np.uint8)
        self.bells = np.zeros(
            ring_layout.DOORBELLS_MAX * ring_layout.DOORBELL_BYTES, dtype=np.uint8
        )
        self.seen = Seen()
        self.puller = Puller(
            wakes=self.wakes,
            bells=self.bells,
            observer=self.seen,
            clock_ns=lambda: self.now,
            **puller,
        )
        self.seen.puller = self.puller
        self.logs: list[QueueLog] = []
        self.sources: list[CountingSource] = []
        self.members: list[TestMember] = []
        self._builder = BatchBuilder()

    def queue(self, blocks_max: int = 4, delay_ns: int = 0, **options: Any) -> int:
        log = QueueLog.open(
            self.directory / f"q{len(self.logs)}",
            topic="t",
            queue=len(self.logs),
            fsync="none",
            **options,
        )
        self.logs.append(log)
        self.sources.append(CountingSource(log, self, delay_ns))
        return self.puller.add_queue(self.sources[-1], blocks_max)

    def put(self, q: int, *records: bytes | tuple[bytes | None, bytes], wake: bool = True) -> int:
        """Append one batch; its first token."""
        log = self.logs[q]
        builder = self._builder
        builder.clear()
        builder.begin()
        for one in records:
            key, payload = one if isinstance(one, tuple) else (None, one)
            builder.add(payload, key=key, key_hash=hash_of(key) if key is not None else 0)
        token = log.next_token
        builder.seal(token)
        log.append(builder.buffer, builder.used)
        if wake:
            member_ring.wake_queue(self.wakes, self.bells, q)
        return token

    def member(
        self,
        sub: int = 0,
        *,
        deliveries_bytes: int = 1 << 18,
        acks_bytes: int = 1 << 16,
        **options: Any,
    ) -> TestMember:
        made: list[member_ring.MemberFile] = []

        def make(number: int) -> member_ring.MemberFile:
            path = self.directory / f"member-{len(self.members)}"
            file = member_ring.MemberFile.create(
                path, deliveries_bytes, acks_bytes, member=number, bell=0
            )
            made.append(file)
            return file

        number = self.puller.add_member(make, sub, **options)
        self.members.append(TestMember(self, made[0], number, sub))
        return self.members[-1]

    def cursor(
        self, q: int, *members: TestMember, sub: int = 0, token: int = 0, **more: Any
    ) -> int:
        cursor = self.puller.add_cursor(sub, q, token, **more)
        self.share(cursor, *members)
        return cursor

    def share(self, cursor: int, *members: TestMember) -> None:
        if members:
            heirs = [members[k % len(members)].number for k in range(SHARES)]
            self.puller.share(cursor, heirs)

    def run(self, advance_ns: int = 0) -> int:
        self.now += advance_ns
        if advance_ns:
            from tidecast.agents.puller.entries import hurry_timers

            hurry_timers(self.puller.words)
            self.puller.work(self.now)  # a timer makes ready what the next cycle works at
        for n in range(CYCLES_MAX):
            if self.puller.work(self.now) == 0 and not self.puller._pending:
                return n
        raise AssertionError(f"the puller has work after {CYCLES_MAX} cycles")

    def position(self, cursor: int) -> tuple[int, int]:
        """(watermark, next token to deliver)."""
        from tidecast.agents.puller.entries import position_of

        mark, next_token = position_of(self.puller.words, cursor)
        return int(mark), int(next_token)

    def cursor_record(self, cursor: int) -> Any:
        return self.puller.state.cursors[cursor]

    def close(self) -> None:
        self.puller.stop()
        for source in self.sources:
            source.close()
        for log in self.logs:
            log.close()


@contextlib.contextmanager
def rig(**puller: Any) -> Iterator[Rig]:
    """A rig in shared memory, gone afterwards."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tc-") as directory:
        one = Rig(Path(directory), **puller)
        try:
            yield one
        finally:
            one.close()


def payloads(got: list[Got]) -> list[bytes]:
    """The payloads of the messages."""
    return [one.payload for one in got]


def fill(r: Rig, q: int, n: int, size: int = 100, keys: int = 0, batch: int = 50) -> list[bytes]:
    """n numbered records; (key k, i) when there are keys."""
    bodies = [b"%08d" % i + bytes(size - 8) for i in range(n)]
    for i in range(0, n, batch):
        part = bodies[i : i + batch]
        if keys:
            r.put(q, *((b"k%d" % ((i + k) % keys), body) for k, body in enumerate(part)))
        else:
            r.put(q, *part)
    return bodies


def drain(r: Rig, *members: TestMember, rounds: int = 3000, patience: int = 2) -> list[Got]:
    """Run, take and ack until nothing comes any more, ``patience`` times."""
    found: list[Got] = []
    empty = 0
    for _ in range(rounds):
        r.run()
        fresh: list[Got] = []
        for m in members:
            got = m.take()
            m.ack_all(got)
            fresh += got
        empty = 0 if fresh else empty + 1  # the first empty one still gives room back
        if empty == patience:
            return found
        found += fresh
    raise AssertionError("no end")
