"""`bench pausing` and `bench slow-consumer`: flow control of durable consumers, on real logs.

BM1 is KAFKA-7548's: 10 prefilled queues, one record a poll, 9 of 10 paused at random before each
poll; the round trip of a fetch is injected under the source. BM2 is the blog's: many queues, one
consumer that holds back. BM3: one stuck consumer beside 30 healthy ones.
"""

from __future__ import annotations

import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tidecast.agents.puller_shell import Puller
from tidecast.agents.puller_state import P_DISCARD
from tidecast.bench import pulling_kernels as bk
from tidecast.buffers import member_ring as mr
from tidecast.layout import member as lay
from tidecast.layout import ring as rl
from tidecast.log.building import BatchBuilder
from tidecast.log.queue_log import QueueLog
from tidecast.native.mapped import Bytes
from tidecast.queues.cursor import SHARES
from tidecast.queues.sources import Fetched, LogSource

PUBLISHED_DISCARD, PUBLISHED_RETAIN = 2087 / 60, 4_884_693 / 60
"""Records/s of KAFKA-7548's report, before and after."""
ROUND_TRIPS_MS = (0.0, 1.0, 10.0, 30.0)
_BATCH = 500


class DelayedSource(LogSource):
    """A log behind a round trip."""

    def __init__(self, log: QueueLog, delay_ns: int) -> None:
        super().__init__(log)
        self._delay_ns = delay_ns
        self._late: tuple[int, Fetched] | None = None

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


class Stand:
    """Prefilled queues and a puller over them, in a directory of their own."""

    def __init__(self, queues: int, records: int, size: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="tidecast-bench-"))
        self.shm = Path(tempfile.mkdtemp(prefix="tidecast-bench-", dir="/dev/shm"))
        self.logs = [self._fill(q, records, size) for q in range(queues)]
        self.members = 0

    def _fill(self, q: int, records: int, size: int) -> QueueLog:
        log = QueueLog.open(self.directory / f"q{q}", topic="bench", queue=q, fsync="none")
        payload = bytes(size)
        batch = max(1, min(_BATCH, (128 << 10) // (size + 24)))
        for first in range(0, records, batch):
            builder = BatchBuilder().begin()
            for _ in range(min(batch, records - first)):
                builder.add(payload, key=b"key", key_hash=1)
            builder.seal(log.next_token)
            log.append(builder.buffer, builder.used)
        return log

    def puller(self, delay_ns: int = 0, blocks: int = 4) -> tuple[Puller, list[int]]:
        """A fresh puller; the numbers of its queues."""
        bells = np.zeros(rl.DOORBELLS_MAX * rl.DOORBELL_BYTES, dtype=np.uint8)
        made = Puller(wakes=np.zeros(lay.WAKES_BYTES, dtype=np.uint8), bells=bells)
        return made, [made.add_queue(DelayedSource(log, delay_ns), blocks) for log in self.logs]

    def member(self, puller: Puller, sub: int, **options: Any) -> tuple[int, np.ndarray]:
        """A member; its number and the client's state."""
        made: list[mr.MemberFile] = []
        self.members += 1

        def make(number: int) -> mr.MemberFile:
            path = self.shm / f"m{self.members}"
            made.append(mr.MemberFile.create(path, 1 << 20, 1 << 16, member=number, bell=0))
            return made[0]

        number = puller.add_member(make, sub, **options)
        return number, made[0].client_state()

    def close(self) -> None:
        """Remove everything."""
        for log in self.logs:
            log.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(self.shm, ignore_errors=True)


def amplification(puller: Puller, lanes: list[int]) -> float:
    """Bytes of records fetched and not waiting in the cache, by bytes delivered."""
    tables = puller.state
    fetched = int(tables.queues["fetched_records"].sum())
    waiting = 0
    for lane in lanes:
        q = int(tables.lanes[lane]["queue"])
        for b in tables.held[q, : int(tables.queues[q]["blocks"])].tolist():
            first, end = int(tables.blocks[b]["first"]), int(tables.blocks[b]["end"])
            waiting += max(0, end - max(first, int(tables.lanes[lane]["next"])))
    delivered = int(tables.lanes["delivered"].sum())
    return (fetched - waiting) / max(1, delivered)


def pausing_case(stand: Stand, policy: str, round_trip_ms: float, seconds: float) -> dict[str, Any]:
    """One case of BM1."""
    from tidecast.agents.puller_entries import seek_lane

    puller, queues = stand.puller(int(round_trip_ms * 1e6))
    puller.state.misc[P_DISCARD] = int(policy == "discard")
    member, k = stand.member(puller, 0, in_flight_max=1)
    lanes = [puller.add_lane(0, q, 0) for q in queues]
    for lane in lanes:
        puller.share(lane, [member] * SHARES)
    numbers = np.array(lanes, dtype=np.int64)
    rows, runs = np.zeros((64, 4), dtype=np.int64), np.zeros((64, 6), dtype=np.int64)
    seed, scratch = np.array([7, 0], dtype=np.int64), np.zeros(512, dtype=np.uint8)
    found = np.zeros(2, dtype=np.int64)
    arguments = (puller.words, numbers, k, member, rows, runs, seed, scratch)
    bk.poll_one_by_one(*arguments, 0, found)
    began = time.monotonic_ns()
    until = began + int(seconds * 1e9)
    end = stand.logs[0].next_token
    while bk.poll_one_by_one(*arguments, until, found):
        puller.work()
        for lane in lanes:  # a queue that is through starts again
            if puller.state.lanes[lane]["next"] >= end:
                seek_lane(puller.words, lane, 0)
    taken_s = (time.monotonic_ns() - began) / 1e9
    return {
        "policy": policy, "round_trip_ms": round_trip_ms, "records": int(found[0]),
        "records_per_s": round(int(found[0]) / taken_s),
        "amplification": round(amplification(puller, lanes), 4),
    }  # fmt: skip


def pausing(
    note: Callable[[str], None], *, seconds: float = 1.0, records: int = 20_000,
    bm2_records: int = 20_000,
) -> dict[str, Any]:  # fmt: skip
    """BM1 with both policies and all round trips, and BM2."""
    note("BM1: filling 10 queues")
    stand = Stand(10, records, 100)
    cases = []
    try:
        for policy in ("retain", "discard"):
            for round_trip in ROUND_TRIPS_MS:
                note(f"BM1: {policy}, round trip {round_trip:g} ms")
                cases.append(pausing_case(stand, policy, round_trip, seconds))
    finally:
        stand.close()
    best = next(c for c in cases if c["policy"] == "retain" and c["round_trip_ms"] == 0.0)
    note("BM2: filling 100 queues")
    second = many_queues(bm2_records)
    return {
        "bench": "pausing", "bm1": cases, "bm2": second,
        "records_in_60_s": best["records_per_s"] * 60, "published_in_60_s": 4_884_693,
        "ratio": round(best["records_per_s"] / PUBLISHED_RETAIN, 2),
    }  # fmt: skip


def many_queues(records: int) -> dict[str, Any]:
    """BM2: 5,000-byte records over 100 queues, one consumer."""
    stand = Stand(100, max(1, records // 100), 5000)
    try:
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        puller, queues = stand.puller(blocks=2)
        member, k = stand.member(puller, 0, in_flight_max=500)
        lanes = [puller.add_lane(0, q, 0) for q in queues]
        for lane in lanes:
            puller.share(lane, [member] * SHARES)
        taken, seconds = drain(puller, [member], [k], sum(log.next_token for log in stand.logs))
        tables = puller.state
        fetched = int(tables.queues["fetched_bytes"].sum())
        consumed = int(tables.queues["consumed_bytes"].sum())
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
        return {
            "records": int(taken[0]), "records_per_s": round(int(taken[0]) / seconds),
            "mib_per_s": round(consumed / seconds / (1 << 20)),
            "amplification": round(fetched / consumed, 4),
            "cache_bytes_max": 2 * len(queues) * puller.block_bytes,
            "peak_rss_growth_mib": round(peak_kib / 1024, 1),
        }  # fmt: skip
    finally:
        stand.close()


def drain(
    puller: Puller, members: list[int], states: list[np.ndarray], wanted: int
) -> tuple[np.ndarray, float]:
    """Let members take and ack until ``wanted`` records went out: (records by member, seconds)."""
    rows, runs = np.zeros((4096, 4), dtype=np.int64), np.zeros((1024, 6), dtype=np.int64)
    scratch = np.zeros(512, dtype=np.uint8)
    found = np.zeros(len(members), dtype=np.int64)
    numbers, k = np.array(members, dtype=np.int64), np.array(states, dtype=np.int64)
    bk.drain_members(puller.words, numbers, k, rows, runs, scratch, 0, found)
    began = time.perf_counter()
    total, idle = 0, 0
    while total < wanted and idle < 1000:
        n = int(bk.drain_members(puller.words, numbers, k, rows, runs, scratch, 64, found))
        total += n
        idle = idle + 1 if n == 0 else 0
        puller.work()
    for state, one in zip(states, k, strict=True):
        state[:] = one
    return found, time.perf_counter() - began


def slow_consumer(
    note: Callable[[str], None], *, records: int = 50_000, healthy: int = 30
) -> dict[str, Any]:
    """BM3: the healthy ones' rate without and with a stuck one; what the stuck one gets later."""
    note("filling the queue")
    stand = Stand(1, records, 100)
    try:
        rates: dict[str, float] = {}
        for case in ("alone", "beside"):
            note(f"{healthy} healthy consumers, {case}")
            puller, (q,) = stand.puller()
            stuck = stand.member(puller, healthy) if case == "beside" else None
            if stuck is not None:
                lane = puller.add_lane(healthy, q, 0)
                puller.share(lane, [stuck[0]] * SHARES)
            members, states = [], []
            for sub in range(healthy):
                number, k = stand.member(puller, sub, in_flight_max=2000)
                puller.share(puller.add_lane(sub, q, 0), [number] * SHARES)
                members.append(number)
                states.append(k)
            found, seconds = drain(puller, members, states, records * healthy)
            assert found.tolist() == [records] * healthy
            rates[case] = records * healthy / seconds
        assert stuck is not None
        note("the stuck one goes on")
        late, _ = drain(puller, [stuck[0]], [stuck[1]], records)
        tables = puller.state
        return {
            "bench": "slow-consumer", "healthy": healthy, "records": records,
            "alone_per_s": round(rates["alone"]), "beside_per_s": round(rates["beside"]),
            "kept": round(rates["beside"] / rates["alone"], 3), "stuck_received": int(late[0]),
            "blocks": int(tables.queues["blocks"].sum()),
            "spilled": int(tables.queues["spilled"].sum()),
            "amplification": round(
                int(tables.queues["fetched_bytes"].sum()) / (records * 127 * (healthy + 1)), 4
            ),
        }  # fmt: skip
    finally:
        stand.close()
