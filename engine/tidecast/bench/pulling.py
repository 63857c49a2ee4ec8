"""`bench pausing` and `bench slow-consumer`: flow control of durable consumers, on real logs.

BM1 is KAFKA-7548's: 10 prefilled queues, one record a poll, 9 of 10 paused at random before each
poll; the round trip of a fetch is injected under the source. BM2 is the blog's: many queues, one
consumer that holds back. BM3: one stuck consumer beside 30 healthy ones.
"""

from __future__ import annotations

import contextlib
import resource
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tidecast.agents.puller.runtime import Puller
from tidecast.agents.puller.state import P_DISCARD
from tidecast.bench.durable import MESSAGE_BYTES, Note
from tidecast.bench.loops import pulling as pulling_kernels
from tidecast.bench.measure import Result, machine
from tidecast.buffers import member_ring
from tidecast.errors import TidecastError
from tidecast.layout import member as lay
from tidecast.layout import ring as ring_layout
from tidecast.log.building import BatchBuilder
from tidecast.log.queue_log import QueueLog
from tidecast.native.mapped import Bytes
from tidecast.queues.cache.cursors import SHARES
from tidecast.queues.sources import Fetched, LogSource, Rows
from tidecast.scratch import drop_scratch, scratch_directory

PUBLISHED_DISCARD, PUBLISHED_RETAIN = 2087 / 60, 4_884_693 / 60
"""Records/s of KAFKA-7548's report, before and after."""
BM2_QUEUES, BM2_BYTES = 100, 5000
ROUND_TRIPS_MS = (0.0, 1.0, 10.0, 30.0)
TURNS = 11
"""How often `slow-consumer` measures the healthy ones alone and beside a stuck one."""
_BATCH, _BATCH_BYTES = 500, 128 << 10


class DelayedSource(LogSource):
    """A log behind a round trip."""

    def __init__(self, log: QueueLog, delay_ns: int) -> None:
        super().__init__(log)
        self._delay_ns = delay_ns
        self._late: tuple[int, Fetched] | None = None

    def here(self) -> Rows | None:
        """See `Source`: only without a delay."""
        return None if self._delay_ns else super().here()

    def read(self, token: int, buffer: Bytes) -> Fetched | None:  # type: ignore[override]
        """See `Source`."""
        got = super().read(token, buffer)
        if self._delay_ns == 0:
            return got
        self._late = (time.monotonic_ns() + self._delay_ns, got)
        return None

    def poll(self, now_ns: int) -> Fetched | None:  # type: ignore[override]
        """See `Source`."""
        del now_ns
        if self._late is None or time.monotonic_ns() < self._late[0]:
            return None
        got, self._late = self._late[1], None
        return got


SCRATCH = "tidecast-pulling-"


class Stand:
    """Prefilled queues and a puller over them, in a directory of their own."""

    def __init__(self, queues: int, records: int, size: int) -> None:
        self.directory, self._lock = scratch_directory(SCRATCH)
        self.shm, self._shm_lock = scratch_directory(SCRATCH, Path("/dev/shm"))
        self.logs = [self._fill(q, records, size) for q in range(queues)]
        self.members = 0

    def _fill(self, q: int, records: int, size: int) -> QueueLog:
        log = QueueLog.open(self.directory / f"q{q}", topic="bench", queue=q, fsync="none")
        batch = max(1, min(_BATCH, _BATCH_BYTES // (size + 24), records))
        builder = BatchBuilder(2 * _BATCH_BYTES).begin()
        for _ in range(batch):
            builder.add(bytes(size), key=b"key", key_hash=1)
        for first in range(0, records - batch + 1, batch):
            if first:
                builder.reopen()
            builder.seal(log.next_token)
            log.append(builder.buffer, builder.used)
        return log

    @property
    def records(self) -> int:
        """Records of all queues."""
        return sum(log.next_token for log in self.logs)

    def puller(self, delay_ns: int = 0, blocks: int = 4) -> tuple[Puller, list[int]]:
        """A fresh puller; the numbers of its queues."""
        bells = np.zeros(ring_layout.DOORBELLS_MAX * ring_layout.DOORBELL_BYTES, dtype=np.uint8)
        made = Puller(wakes=np.zeros(lay.WAKES_BYTES, dtype=np.uint8), bells=bells)
        return made, [made.add_queue(DelayedSource(log, delay_ns), blocks) for log in self.logs]

    def member(self, puller: Puller, sub: int, **options: Any) -> tuple[int, np.ndarray]:
        """A member; its number and the client's state."""
        made: list[member_ring.MemberFile] = []
        self.members += 1

        def make(number: int) -> member_ring.MemberFile:
            path = self.shm / f"m{self.members}"
            made.append(
                member_ring.MemberFile.create(path, 1 << 20, 1 << 16, member=number, bell=0)
            )
            return made[0]

        number = puller.add_member(make, sub, **options)
        return number, made[0].client_state()

    def close(self) -> None:
        """Remove everything."""
        for log in self.logs:
            log.close()
        drop_scratch(self.directory, self._lock)
        drop_scratch(self.shm, self._shm_lock)


def amplification(puller: Puller, cursors: list[int]) -> float:
    """Bytes of records fetched and not waiting in the cache, by bytes delivered."""
    tables = puller.state
    fetched = int(tables.queues["fetched_records"].sum())
    waiting = 0
    for cursor in cursors:
        q = int(tables.cursors[cursor]["queue"])
        for b in tables.held[q, : int(tables.queues[q]["blocks"])].tolist():
            first, end = int(tables.blocks[b]["first"]), int(tables.blocks[b]["end"])
            waiting += max(0, end - max(first, int(tables.cursors[cursor]["next"])))
    delivered = int(tables.cursors["delivered"].sum())
    return (fetched - waiting) / max(1, delivered)


def pausing_case(stand: Stand, policy: str, round_trip_ms: float, seconds: float) -> dict[str, Any]:
    """One case of BM1."""
    from tidecast.agents.puller.entries import seek_cursor

    puller, queues = stand.puller(int(round_trip_ms * 1e6))
    puller.state.misc[P_DISCARD] = int(policy == "discard")
    member, k = stand.member(puller, 0, in_flight_max=1)
    cursors = [puller.add_cursor(0, q, 0) for q in queues]
    for cursor in cursors:
        puller.share(cursor, [member] * SHARES)
    numbers = np.array(cursors, dtype=np.int64)
    rows, runs = (
        np.zeros((64, member_ring.ROW_FIELDS), np.int64),
        np.zeros((64, member_ring.RUN_FIELDS), np.int64),
    )
    seed, scratch = np.array([7, 0], dtype=np.int64), np.zeros(512, dtype=np.uint8)
    found = np.zeros(2, dtype=np.int64)
    arguments = (puller.words, numbers, k, member, rows, runs, seed, scratch)
    pulling_kernels.poll_one_by_one(*arguments, 0, found)
    began = time.monotonic_ns()
    until = began + int(seconds * 1e9)
    end = stand.logs[0].next_token
    while pulling_kernels.poll_one_by_one(*arguments, until, found):
        puller.work()
        for cursor in cursors:  # a queue that is through starts again
            if puller.state.cursors[cursor]["next"] >= end:
                seek_cursor(puller.words, cursor, 0)
    taken_s = (time.monotonic_ns() - began) / 1e9
    return {
        "records": int(found[0]),
        "seconds": taken_s,
        "amplification": round(amplification(puller, cursors), 4),
    }


@contextlib.contextmanager
def stand_of(queues: int, records: int, size: int) -> Iterator[Stand]:
    """A stand, gone afterwards."""
    stand = Stand(queues, records, size)
    try:
        yield stand
    finally:
        stand.close()


def pausing(
    note: Note, *, seconds: float = 2.0, records: int = 20_000, bm2_records: int = 50_000
) -> Result:
    """BM1 with both policies and all round trips; BM2: 5,000-byte records over 100 queues.

    `--seconds 60` and `--bm2-records 1000000` are the published sizes; figures of 60 s are scaled.
    """
    result = Result(
        "pausing",
        {
            "seconds": seconds,
            "queues": 10,
            "records_a_queue": records,
            "bm2_queues": BM2_QUEUES,
            "bm2_records": bm2_records,
            "bm2_record_bytes": BM2_BYTES,
            **machine(),
        },
    )
    found = result.metrics
    note("BM1: filling 10 queues")
    with stand_of(10, records, MESSAGE_BYTES) as stand:
        for policy in ("retain", "discard"):
            for round_trip in ROUND_TRIPS_MS:
                note(f"BM1: {policy}, round trip {round_trip:g} ms")
                case = pausing_case(stand, policy, round_trip, seconds)
                name = f"{policy}_{round_trip:g}ms"
                found[f"{name}_records_per_s"] = round(case["records"] / case["seconds"])
                found[f"{name}_amplification"] = case["amplification"]
                if policy == "retain":
                    found[f"{name}_records_in_60_s"] = round(case["records"] / case["seconds"] * 60)
    note("BM2: filling 100 queues")
    found.update({f"bm2_{name}": value for name, value in many_queues(bm2_records).items()})
    result.floor = {
        "retain_0ms_records_per_s": round(PUBLISHED_RETAIN),
        "discard_30ms_records_per_s": round(PUBLISHED_DISCARD, 1),
    }
    for name in result.floor:
        result.compare(name)
    return result


def many_queues(records: int) -> dict[str, Any]:
    """BM2: 5,000-byte records over 100 queues, one consumer."""
    with stand_of(BM2_QUEUES, max(1, records // BM2_QUEUES), BM2_BYTES) as stand:
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        puller, queues = stand.puller(blocks=2)
        member, k = stand.member(puller, 0, in_flight_max=500)
        cursors = [puller.add_cursor(0, q, 0) for q in queues]
        for cursor in cursors:
            puller.share(cursor, [member] * SHARES)
        taken, seconds = drain(puller, [member], [k], stand.records)
        tables = puller.state
        fetched = int(tables.queues["fetched_records"].sum())
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
        return {
            "records": int(taken[0]),
            "records_per_s": round(int(taken[0]) / seconds),
            "bytes_per_s": round(int(tables.queues["consumed_bytes"].sum()) / seconds),
            "amplification": round(fetched / max(1, int(tables.cursors["delivered"].sum())), 4),
            "cache_bytes_max": 2 * len(queues) * puller.block_bytes,
            "peak_rss_growth_bytes": peak_kib * 1024,
        }


def drain(
    puller: Puller, members: list[int], states: list[np.ndarray], wanted: int
) -> tuple[np.ndarray, float]:
    """Let members take and ack until ``wanted`` records went out: (records by member, seconds)."""
    rows, runs = (
        np.zeros((4096, member_ring.ROW_FIELDS), np.int64),
        np.zeros((1024, member_ring.RUN_FIELDS), np.int64),
    )
    scratch = np.zeros(512, dtype=np.uint8)
    found = np.zeros(len(members), dtype=np.int64)
    numbers, k = np.array(members, dtype=np.int64), np.array(states, dtype=np.int64)
    pulling_kernels.drain_members(puller.words, numbers, k, rows, runs, scratch, 0, found)
    began = time.perf_counter()
    total, idle = 0, 0
    while total < wanted and idle < 1000:
        n = int(
            pulling_kernels.drain_members(puller.words, numbers, k, rows, runs, scratch, 64, found)
        )
        total += n
        idle = idle + 1 if n == 0 else 0
        puller.work()
    for state, one in zip(states, k, strict=True):
        state[:] = one
    return found, time.perf_counter() - began


def slow_consumer(note: Note, *, records: int = 400_000, healthy: int = 30) -> Result:
    """BM3: rate of healthy members without and with a stuck member; its records later.

    Both in turns, as a virtual machine changes its speed within seconds: the median of each, and
    the ratio is the median of the turns' ratios.
    """
    config = {"records": records, "healthy": healthy, "message_bytes": MESSAGE_BYTES, **machine()}
    result = Result("slow-consumer", config)
    note("filling the queue")
    with stand_of(1, records, MESSAGE_BYTES) as stand:
        run = _healthy(stand, healthy, with_stuck=True)  # kernels, and pages of the log
        turns: list[tuple[float, float]] = []
        for turn in range(TURNS):
            note(f"{healthy} healthy consumers, turn {turn + 1} of {TURNS}")
            first = turn % 2 == 1
            runs = [_healthy(stand, healthy, with_stuck) for with_stuck in (first, not first)]
            run, alone = runs if first else reversed(runs)
            turns.append((alone[2], run[2]))
        note("the stuck subscription continues")
        puller, stuck, _ = run
        assert stuck is not None
        late, _ = drain(puller, [stuck[0]], [stuck[1]], stand.records)
        tables = puller.state
        result.metrics = {
            "stuck_received": int(late[0]),
            "lost": stand.records - int(late[0]),
            "blocks": int(tables.queues["blocks"].sum()),
            "cache_bytes": int(tables.queues["blocks"].sum()) * puller.block_bytes,
            "spilled": int(tables.queues["spilled"].sum()),
            "amplification": round(
                int(tables.queues["fetched_records"].sum()) / (2 * stand.records), 4
            ),
        }
    config["msgs_per_s_by_turn"] = [[round(rate) for rate in each] for each in turns]
    for name, rates in zip(("alone", "beside"), zip(*turns, strict=True), strict=True):
        result.metrics[f"{name}_msgs_per_s"] = round(statistics.median(rates))
    result.floor["beside_msgs_per_s"] = result.metrics["alone_msgs_per_s"]
    ratio = statistics.median(beside / alone for alone, beside in turns)
    result.ratio["beside_msgs_per_s"] = round(ratio, 4)
    return result


def _healthy(
    stand: Stand, healthy: int, with_stuck: bool
) -> tuple[Puller, tuple[int, np.ndarray] | None, float]:
    """One run: the puller, the stuck member if there is one, records/s of the healthy together."""
    puller, (q,) = stand.puller()
    stuck = stand.member(puller, healthy) if with_stuck else None
    if stuck is not None:
        puller.share(puller.add_cursor(healthy, q, 0), [stuck[0]] * SHARES)
    members, states = [], []
    for sub in range(healthy):
        number, k = stand.member(puller, sub, in_flight_max=2000)
        puller.share(puller.add_cursor(sub, q, 0), [number] * SHARES)
        members.append(number)
        states.append(k)
    found, seconds = drain(puller, members, states, stand.records * healthy)
    if found.tolist() != [stand.records] * healthy:
        raise TidecastError(f"bench slow-consumer: {found.tolist()} of {stand.records} each")
    return puller, stuck, stand.records * healthy / seconds
