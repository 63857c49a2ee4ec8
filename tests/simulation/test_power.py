"""Durable topics on a disk that loses its power or fails: what was acked is stored, once, in order.

`tests.support.power` is the disk. What is acked is looked at between any two cycles, so that an ack
that is ahead of its sync is found.
"""

from __future__ import annotations

import errno
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.durable import Platform, platform, powered, rows_of
from tests.support.kafka import batch_of

from tidecast.agents.archiver import state as ast
from tidecast.errors import BackPressure, StorageError, Timeout
from tidecast.events import DiskBack, DiskRefused, TornTail
from tidecast.kafka.records import Decoder
from tidecast.layout import ring as lay
from tidecast.log.files import segment_name
from tidecast.native.packing import pack_into, unpack_from
from tidecast.native.system.files import F_ERRNO, F_ROOM_BYTES
from tidecast.node.durable import archiver_tables
from tidecast.node.durable.placed import Outcome, PlacedAppends, Run, Verdict


def payloads(one: Platform) -> list[bytes]:
    return [row[3] for row in sorted(rows_of(one.topic), key=lambda row: row[4])]


def fill(one: Platform, value: int, room: int = 0) -> None:
    """Let the disk be full (errno), or have room again (0)."""
    for log in one.topic.logs:
        log.state.disk[F_ERRNO], log.state.disk[F_ROOM_BYTES] = value, room


@contextmanager
def open_sync(one: Platform, of: Callable[[Path], bool] | None = None) -> Iterator[None]:
    """The sync that the archiver asked for has begun, and ends behind this.

    ``of``: the files of which syncs wait; others succeed or fail meanwhile.
    """
    runtime = one.durable.registry.runtime
    assert runtime.sync_asked
    one.disk.hold_syncs(of)
    syncer = threading.Thread(target=runtime.sync_all)
    syncer.start()
    try:
        assert one.disk.entered.wait(30.0)
        yield
    finally:
        one.disk.release_syncs()
        syncer.join(30.0)


def run_to_sync(one: Platform) -> None:
    one.durable.registry.runtime.syncs_inline = False
    for _ in range(50):
        if one.durable.registry.runtime.sync_asked:
            return
        one.run(1)
    raise AssertionError("no sync is asked for")


# --- group commit -------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["interval", "batch"])
def test_what_is_appended_while_a_sync_runs_is_acked_by_the_next(policy: str) -> None:
    with powered(fsync=policy) as one:
        publisher = one.publisher(producer="p")
        publisher.publish(b"1")
        run_to_sync(one)
        with open_sync(one):
            publisher.publish(b"2")
            one.run(10)
            assert len(rows_of(one.topic)) == (2 if policy == "interval" else 0)
            assert publisher.durable_position == 0
        one.run(1)
        assert publisher.durable_position == 1, "the second was not part of that sync"
        acked = publisher.durable_position
        one.lose_power(0.0)
        one.start()
        assert payloads(one)[:acked] == [b"1"]


def test_a_queue_that_is_appended_to_while_it_is_synced_is_synced_again() -> None:
    with powered(fsync="batch") as one:
        publisher = one.publisher(producer="p")
        publisher.publish(b"1")
        run_to_sync(one)
        with open_sync(one):
            publisher.publish(b"2")
            one.run(5)
        one.durable.registry.runtime.syncs_inline = True
        one.run(20)
        assert publisher.durable_position == 2
        one.lose_power(0.0)
        one.start()
        assert payloads(one) == [b"1", b"2"]


# --- at random ----------------------------------------------------------------------------------


class Application:
    """It publishes what it has to, and after a restart begins again from its first message."""

    def __init__(self, one: Platform, rng: random.Random) -> None:
        self.one, self.rng = one, rng
        self.sent: list[tuple[bytes, bytes]] = []
        self.acked = 0
        self.begin()

    def begin(self) -> None:
        self.publisher = self.one.publisher(producer="app", first_seq=1, on_full="error")
        for key, payload in self.sent:
            self._publish(key, payload)

    def _publish(self, key: bytes, payload: bytes) -> None:
        for _ in range(100):
            try:
                self.publisher.publish(payload, key=key, timeout=0.0)
                return
            except (BackPressure, StorageError, Timeout):  # the ring is full
                fill(self.one, 0)
                self.one.disk.failing = None
                self.one.run(60)
                self.look()
        raise AssertionError("the ring stays full")

    def step(self) -> None:
        for _ in range(self.rng.randrange(12)):
            filler = b"0" * self.rng.choice([0, 10, 200, 3000])
            self.sent.append((b"k%d" % self.rng.randrange(9), filler + b"%d" % len(self.sent)))
            self._publish(*self.sent[-1])
        if self.rng.random() < 0.6:
            self.one.run(self.rng.randrange(1, 9))
        self.look()

    def look(self) -> None:
        self.acked = max(self.acked, self.publisher.durable_position)

    def check(self) -> None:
        """All that was acked is there, nothing is there twice, and each key is in order."""
        rows = rows_of(self.one.topic)
        seqs = [seq for *_, seq in rows]
        assert len(set(seqs)) == len(seqs)
        assert set(range(1, self.acked + 1)) <= set(seqs)
        for _, _, key, payload, seq in rows:
            assert (key, payload) == self.sent[seq - 1]
        for key in {key for key, _ in self.sent}:
            mine = sorted((queue, token, seq) for queue, token, k, _, seq in rows if k == key)
            assert len({queue for queue, *_ in mine}) <= 1
            assert [seq for *_, seq in mine] == sorted(seq for *_, seq in mine)


def trouble(one: Platform, rng: random.Random) -> None:
    """The disk is full, or its syncs fail, or the kernel's own writing, or all is well again."""
    what = rng.random()
    one.disk.errno = rng.choice([errno.EIO, errno.ENOSPC])
    one.disk.drops = rng.choice([0.0, 0.0, 0.1, 1.0])
    if what < 0.1:
        fill(one, errno.ENOSPC, room=rng.randrange(500))
    elif what < 0.2:
        share = rng.choice([0.3, 1.0])
        one.disk.failing = lambda path: rng.random() < share
    elif what < 0.25:
        for log in one.topic.logs:
            one.disk.write_back_fails(log.directory / segment_name(log.segments[-1].base_token))
    elif what < 0.5:
        fill(one, 0)
        one.disk.failing = None


def power_at_random(seed: int, losses: int) -> None:
    rng = random.Random(seed)
    policy, queues = rng.choice(["interval", "batch"]), rng.choice([1, 3])
    with powered(
        seed, queues=queues, fsync=policy, segment_bytes=1 << 16, history_bytes=1 << 17
    ) as one:
        application = Application(one, rng)
        for _ in range(losses):
            for _ in range(rng.randrange(5, 50)):
                application.step()
                trouble(one, rng)
            one.disk.failing = None
            if rng.random() < 0.3:  # the engine alone: what failed is in the kernel's hands still
                one.crash()
                one.forget_clients()
            else:
                one.lose_power()
            one.start()
            application.check()
            application.begin()
        one.run(300)
        application.look()
        assert application.acked == len(application.sent)
        application.check()
        assert len(rows_of(one.topic)) == len(application.sent)


@pytest.mark.parametrize("seed", range(10))
def test_a_loss_of_power_at_a_random_point_loses_nothing_that_was_acked(seed: int) -> None:
    power_at_random(seed, losses=3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_losses_of_power(seed: int) -> None:
    power_at_random(seed, losses=5)


# --- what a crash can leave half done -----------------------------------------------------------


def test_a_device_that_fails_leaves_no_hole_in_what_is_acked() -> None:
    """Syncs fail for a while, and pages with them: then all goes on, and the power goes."""
    with powered(queues=2, fsync_interval_ms=5, history_bytes=1 << 19) as one:
        publisher = one.publisher(producer="p", on_full="error")
        sent = [b"%06d" % i + bytes(500) for i in range(900)]
        publisher.publish_batch(sent[:300], ack="durable", timeout=5.0).check()
        one.disk.failing = lambda path: True
        for payload in sent[300:500]:
            publisher.publish(payload)
            one.run(1)
        assert publisher.durable_position == 300
        with pytest.raises(StorageError, match="disk takes no more"):
            publisher.wait_durable(timeout=0)
        events = one.connections[0]
        events.pump()
        assert DiskRefused in [type(each) for each in events._events]
        one.disk.failing = None
        one.run(200)
        events.pump()
        assert DiskBack in [type(each) for each in events._events]
        for payload in sent[500:]:
            publisher.publish(payload)
            one.run(1)
        one.run(100)
        assert publisher.durable_position == 900
        one.lose_power(0.0)
        one.start()
        assert payloads(one) == sent


def test_a_seal_that_fails_leaves_no_hole_in_what_is_placed_next() -> None:
    """Another queue is synced meanwhile, with success: it says nothing of this one."""
    with powered(queues=2, segment_bytes=1 << 16, history_bytes=1 << 20) as one:
        appends = PlacedAppends(one.durable.registry, inline=True)
        appends.start()
        verdicts: list[Verdict] = []

        def place(n_bytes: int, queue: int = 1) -> None:
            taken = Decoder().take(memoryview(batch_of(bytes(n_bytes))), 1)
            deadline_s = time.monotonic() + 600
            appends.submit(
                Run(
                    "orders",
                    queue,
                    taken.buffer,
                    taken.n_bytes,
                    1,
                    verdicts.append,
                    deadline_s=deadline_s,
                )
            )
            appends.work()

        for _ in range(2):
            place(30_000)
        one.run(20)
        place(10, queue=0)
        run_to_sync(one)
        with open_sync(one, of=lambda path: "00000" in path.parts):
            one.disk.failing = lambda path: "00001" in path.parts
            place(30_000)  # it does not fit
            one.disk.failing = None
            assert one.topic.logs[1].suspect
        run_to_sync(one)  # the segment is stored again; nothing is added meanwhile
        with open_sync(one, of=lambda path: path.name.endswith(".log-new")):
            place(1000)
        one.durable.registry.runtime.syncs_inline = True
        for _ in range(20):
            one.run(20)
            appends.work()
        assert [verdict.outcome for verdict in verdicts] == [Outcome.APPENDED] * 5
        assert sorted(verdict.token for verdict in verdicts) == [0, 0, 1, 2, 3]
        appends.stop()
        one.lose_power(0.0)
        one.start()
        assert [len(row[3]) for row in rows_of(one.topic)] == [10, 30_000, 30_000, 30_000, 1000]


def taken(consumer: Any) -> list[Any]:
    """All that there is to be had, acked."""
    found: list[Any] = []
    while batch := list(consumer.fetch(100, 0.05)):
        for message in batch:
            message.ack()
        found += batch
    return found


@pytest.mark.parametrize("policy", ["interval", "batch"])
def test_bytes_that_the_kernel_dropped_come_back_from_the_rings(policy: str) -> None:
    """It had accepted them, found no room, and forgot their pages; no engine is started anew."""
    with powered(fsync=policy, queues=2, history_bytes=1 << 19) as one:
        consumer: Any = one.connect().consumer("orders", "work")
        publisher = one.publisher(producer="p", on_full="error")
        sent = [b"%06d" % n + bytes(500) for n in range(400)]
        publisher.publish_batch(sent[:200], ack="durable", timeout=5.0).check()
        one.disk.errno, one.disk.drops = errno.ENOSPC, 1.0
        one.disk.failing = lambda path: ".log" in path.name
        publisher.publish_batch(sent[200:300]).check()
        one.run(200)
        assert publisher.durable_position == 200
        seen = [bytes(message.data) for message in taken(consumer)]
        assert len(seen) == (300 if policy == "interval" else 200)
        one.disk.failing = None
        one.run(4000)
        assert publisher.durable_position == 300
        publisher.publish_batch(sent[300:], ack="durable", timeout=5.0).check()
        seen += [bytes(message.data) for message in taken(consumer)]
        assert set(seen) == set(sent), "none is passed over; with `interval` some come twice"
        events = one.connections[1]
        events.pump()
        kinds = [type(each) for each in events._events]
        assert kinds.index(DiskRefused) < kinds.index(TornTail)
        assert kinds[-1] is DiskBack
        one.lose_power(0.0)
        one.start()
        assert payloads(one) == sent


def test_a_device_that_fails_for_long_is_asked_less_and_less_often() -> None:
    with powered(fsync_interval_ms=5) as one:
        publisher = one.publisher(producer="p")
        publisher.publish(b"1")
        asked: list[int] = []

        def fails(path: Path) -> bool:
            asked.append(one.now_ns)
            return True

        one.disk.failing = fails
        one.run(10_000)
        assert 9 <= len(asked) <= 12, "in ten seconds"
        assert max(b - a for a, b in itertools.pairwise(asked)) < 1_700_000_000
        one.disk.failing = None
        one.run(1_700)
        assert publisher.durable_position == 1


def test_nothing_is_appended_between_a_sync_that_failed_and_the_next_that_succeeds() -> None:
    with powered(fsync="batch") as one:
        publisher = one.publisher()
        one.disk.failing = lambda path: True
        publisher.publish(b"1")
        one.run(20)
        token = one.topic.logs[0].next_token
        publisher.publish(b"2")
        one.run(200)
        assert one.topic.logs[0].next_token == token == 1
        one.disk.failing = None
        one.run(200)
        assert publisher.durable_position == 2


def test_a_snapshot_of_producers_is_never_ahead_of_its_log() -> None:
    """A new segment was begun for what the full disk then did not take."""
    with platform(fsync="batch", segment_bytes=1 << 16, history_bytes=1 << 19) as one:
        publisher = one.publisher(producer="p")
        sent = [b"%06d" % i + bytes(1000) for i in range(90)]
        for payload in sent[:60]:
            publisher.publish(payload)
        one.run(50)
        segments = len(one.topic.logs[0].segments)
        fill(one, errno.ENOSPC)
        for payload in sent[60:]:
            publisher.publish(payload)
        one.run(50)
        assert len(one.topic.logs[0].segments) == segments + 1
        one.crash()
        one.restart()
        one.run(50)
        assert publisher.durable_position == 90
        assert payloads(one) == sent


@pytest.mark.parametrize("torn", range(1, 8))
def test_an_ack_record_that_a_crash_tears_is_not_read(torn: int) -> None:
    """The engine dies amid telling a ring what is durable; ``torn``: the words that it had put."""
    with platform(fsync="batch") as one:
        publisher = one.publisher(producer="p")
        publisher.publish(b"1", ack="durable", timeout=5.0)
        (source,) = one.durable.sources.values()
        ring = source.mapped.array
        words = [lay.ACK_RECORDS_AT + 8 * i for i in range(2 * lay.ACK_RECORD_BYTES // 8)]
        about = archiver_tables.describe(ring)
        for i in range(2, 5):
            before = {at: unpack_from("<q", ring, at)[0] for at in words}
            record = archiver_tables.ack_record(ring, about)
            version = unpack_from("<q", ring, lay.ACK_VERSION_AT)[0]
            publisher.publish(b"%d" % i, ack="durable", timeout=5.0)
            after = {at: unpack_from("<q", ring, at)[0] for at in words}
            put = [at for at in words if before[at] != after[at]]
            fresh = unpack_from("<q", ring, lay.ACK_VERSION_AT)[0]
            assert fresh > version
            for at in words:  # as it was, but for some words of the next record
                keep = at in put and torn >> (put.index(at) % 3) & 1
                pack_into("<q", ring, at, after[at] if keep else before[at])
            pack_into("<q", ring, lay.ACK_VERSION_AT, version)
            assert archiver_tables.ack_record(ring, about) == record
            for at in words:
                pack_into("<q", ring, at, after[at])
            pack_into("<q", ring, lay.ACK_VERSION_AT, fresh)
        one.crash()
        one.restart()
        one.run()
        assert payloads(one) == [b"1", b"2", b"3", b"4"]


def test_all_of_a_platform_that_was_acked_is_there_after_a_loss_of_power() -> None:
    """From the first message of a new topic on; a subscription begins where it did."""
    with powered(fsync="batch") as one:
        consumer: Any = one.connect().consumer("orders", "work")
        publisher = one.publisher(producer="p")
        publisher.publish(b"1", ack="durable", timeout=5.0)
        one.lose_power(0.0)
        one.start()
        assert payloads(one) == [b"1"]
        assert ("orders", "work") in one.node.consumers.subscriptions
        del consumer


def test_a_topic_that_is_deleted_while_it_waits_for_a_segment_is_no_fault() -> None:
    """The archiver asked for it; the command that removes the topic runs first."""
    with platform() as one:
        numbers = one.durable.registry.tables.queue_numbers(one.topic)
        one.node.delete_topic("orders")
        one.durable._from_agent([[ast.E_ROLL, numbers[0], 0, 0, 0, 0]])
        one.publisher("live").publish(b"all goes on")
