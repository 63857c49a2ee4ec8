"""The queue log on a disk that loses its power, and on one whose syncs fail."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.support.logs import opened, put, read_all
from tests.support.power import Disk, installed

from tidecast.disk import make_directory, write_atomically
from tidecast.errors import StorageError
from tidecast.layout import segment as lay
from tidecast.log.files import segment_name, unsynced_name
from tidecast.log.grants import GrantLog
from tidecast.log.inspect import list_batches
from tidecast.log.queue_log import QueueLog
from tidecast.log.takeover import Owners


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with installed(Disk(tmp_path)) as disk:
        yield disk


def power_off(log: QueueLog, disk: Disk, share: float | None = 0.0) -> None:
    """The process is gone, and then the power."""
    log.abandon()
    disk.lose_power(share)


def payload(n: int) -> bytes:
    return b"%06d" % n + bytes(500)


@pytest.mark.parametrize("share", [0.0, 1.0, None])
def test_what_was_synced_outlives_the_power(disk: Disk, share: float | None) -> None:
    directory = disk.root / "queues" / "orders" / "00000"
    log = opened(directory, fsync="batch")
    for n in range(300):  # some segments
        put(log, payload(n), time_ns=n)
        if n % 7 == 0:
            log.sync()
    synced = log.durable_token
    power_off(log, disk, share)
    log = opened(directory, fsync="batch")
    assert synced <= log.next_token <= 300
    assert read_all(log) == [(n, payload(n)) for n in range(log.next_token)]
    if share == 0.0:
        assert log.next_token == synced
    log.close()


def test_a_sync_covers_what_was_there_when_it_began(disk: Disk) -> None:
    log = opened(disk.root, fsync="batch")
    put(log, b"first")
    disk.hold_syncs()
    with ThreadPoolExecutor(1) as pool:
        syncing = pool.submit(log.sync)
        assert disk.entered.wait(60)
        put(log, b"second")
        disk.release_syncs()
        assert syncing.result() == 1
    assert (log.durable_token, log.next_token) == (1, 2)
    assert log.sync() == 2
    log.close()


@pytest.mark.parametrize("seed", range(4))
def test_retention_leaves_no_hole_between_segments(tmp_path: Path, seed: int) -> None:
    with installed(Disk(tmp_path, seed)) as disk:
        log = opened(disk.root, fsync="batch")
        for n in range(900):
            put(log, payload(n))
        log.sync()
        assert len(log.retain(bytes_max=1)) > 4
        power_off(log, disk, None)
        log = opened(disk.root, fsync="batch")
        first = log.earliest_token
        assert read_all(log, first) == [(n, payload(n)) for n in range(first, 900)]
        log.close()


def test_a_new_log_outlives_the_power_from_its_first_sync_on(disk: Disk) -> None:
    directory = disk.root / "queues" / "orders" / "00000"
    log = opened(directory)
    put(log, b"first")
    log.sync()
    power_off(log, disk)
    assert read_all(opened(directory)) == [(0, b"first")]


def test_a_tail_is_cut_off_and_what_lay_in_it_never_comes_back(disk: Disk) -> None:
    """A batch appended in its place may have its length: the batch behind would be sound again."""
    log = opened(disk.root)
    for n in range(6):
        put(log, payload(n), producer=7, epoch=1, base_seq=n + 1, acked_seq=1)
    log.sync()
    log.close()
    path = disk.root / segment_name(0)
    positions = [row["position"] for row in list_batches(disk.root, 6, 0)]
    raw = bytearray(path.read_bytes())
    raw[positions[3] + lay.BATCH_HEADER_BYTES + 20] ^= 1
    path.write_bytes(raw)

    log = opened(disk.root)
    assert log.next_token == 3
    assert path.stat().st_size == positions[3]
    put(log, payload(3), producer=7, epoch=1, base_seq=4, acked_seq=1)
    log.close()
    log = opened(disk.root)
    assert read_all(log) == [(n, payload(n)) for n in range(4)]
    log.close()


# --- syncs that fail ------------------------------------------------------------------------------


def once() -> object:
    left = [True]
    return lambda path: path.suffix == ".log" and bool(left and left.pop())


@pytest.mark.parametrize("policy", ["interval", "batch"])
def test_after_a_sync_that_failed_all_is_stored_again(disk: Disk, policy: str) -> None:
    """The kernel takes the pages for clean, and the blocks may never be stored."""
    log = opened(disk.root, fsync=policy, segment_bytes=1 << 20)
    for n in range(40):
        put(log, payload(n))
    log.sync()
    reader = log.reader()
    buffer = np.zeros(1 << 16, dtype=np.uint8)
    reader.read_block(0, buffer)
    for n in range(40, 120):
        put(log, payload(n))
    disk.failing = once()  # type: ignore[assignment]
    with pytest.raises(StorageError, match="Input/output error"):
        log.sync()
    assert (log.suspect, log.durable_token) == (True, 40)
    assert log.sync() == 120
    assert not log.suspect
    for n in range(120, 150):
        put(log, payload(n))
    log.sync()
    token = reader.next_token
    while reader.read_block(token, buffer):  # one that had the file open goes on in the other
        token = reader.next_token
    assert token == 150
    reader.close()
    power_off(log, disk)
    log = opened(disk.root, fsync=policy)
    assert read_all(log) == [(n, payload(n)) for n in range(150)]
    log.close()


def test_a_roll_whose_sync_fails_seals_nothing_that_is_not_stored(disk: Disk) -> None:
    log = opened(disk.root, fsync="batch")
    for n in range(50):
        put(log, payload(n))
    disk.failing = once()  # type: ignore[assignment]
    for _ in range(2):
        with pytest.raises(StorageError):
            log.roll(0)
    assert log.durable_token == 0
    log.sync()
    log.roll(0)
    assert log.durable_token == 50
    power_off(log, disk)
    log = opened(disk.root)
    assert read_all(log) == [(n, payload(n)) for n in range(50)]
    log.close()


def test_the_next_engine_stores_what_the_one_before_could_not(disk: Disk) -> None:
    """It reads the bytes from the kernel, which says that a sync of them succeeds."""
    log = opened(disk.root, fsync="batch")
    for n in range(50):
        put(log, payload(n))
    disk.failing = once()  # type: ignore[assignment]
    with pytest.raises(StorageError):
        log.sync()
    assert (disk.root / unsynced_name(0)).exists()
    log.abandon()
    log = opened(disk.root, fsync="batch")
    assert log.durable_token == 50
    assert not (disk.root / unsynced_name(0)).exists()
    power_off(log, disk)
    assert read_all(opened(disk.root)) == [(n, payload(n)) for n in range(50)]


def test_a_start_whose_sync_fails_stores_all_again(disk: Disk) -> None:
    """Write-back failed after the engine before had ended: the next one gets the error."""
    log = opened(disk.root, fsync="batch")
    for n in range(50):
        put(log, payload(n))
    log.abandon()
    disk.failing = once()  # type: ignore[assignment]
    log = opened(disk.root, fsync="batch")
    assert (log.durable_token, log.suspect) == (50, False)
    power_off(log, disk)
    assert read_all(opened(disk.root)) == [(n, payload(n)) for n in range(50)]


class WatchedLock:
    """A lock that says when somebody wants it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.wanted = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            self.wanted += 1
            self._changed.notify_all()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait_for(self, wanted: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.wanted >= wanted, 60)


def test_a_segment_whose_sync_fails_is_not_sealed_meanwhile(disk: Disk) -> None:
    """A roll that waits for the sync would sync again, with success."""
    log = opened(disk.root, fsync="batch")
    for n in range(50):
        put(log, payload(n))
    lock = WatchedLock()
    log._lock = lock  # type: ignore[assignment]
    disk.failing = once()  # type: ignore[assignment]
    disk.hold_syncs()
    with ThreadPoolExecutor(2) as pool:
        syncing = pool.submit(log.sync)
        assert disk.entered.wait(60)
        rolling = pool.submit(log.roll, 0)
        lock.wait_for(2)
        disk.release_syncs()
        with pytest.raises(StorageError, match="Input/output error"):
            syncing.result()
        with pytest.raises(StorageError, match="stored again first"):
            rolling.result()
    assert log.durable_token == 0
    assert log.sync() == 50
    log.roll(0)
    put(log, payload(50))
    log.sync()
    power_off(log, disk)
    assert read_all(opened(disk.root)) == [(n, payload(n)) for n in range(51)]


@pytest.mark.parametrize("of", ["sync", "roll"])
def test_nothing_is_appended_to_a_segment_until_it_is_stored_again(disk: Disk, of: str) -> None:
    log = opened(disk.root, fsync="batch")
    for n in range(50):
        put(log, payload(n))
    disk.failing = once()  # type: ignore[assignment]
    with pytest.raises(StorageError):
        log.sync() if of == "sync" else log.roll(0)
    with pytest.raises(StorageError, match="stored again first"):
        put(log, payload(50))
    assert log.next_token == 50
    assert log.sync() == 50
    put(log, payload(50))
    assert log.sync() == 51
    power_off(log, disk)
    assert read_all(opened(disk.root)) == [(n, payload(n)) for n in range(51)]


def test_a_sync_that_fails_while_the_engine_ends_is_known_to_the_next_one(disk: Disk) -> None:
    log = opened(disk.root, fsync="batch")
    for n in range(50):
        put(log, payload(n))
    disk.failing = once()  # type: ignore[assignment]
    log.close()
    log = opened(disk.root, fsync="batch")
    assert log.durable_token == 50
    power_off(log, disk)
    assert read_all(opened(disk.root)) == [(n, payload(n)) for n in range(50)]


@pytest.mark.parametrize("failures", [1, 2])
def test_a_start_that_cuts_a_tail_off_takes_no_second_sync_for_a_success(
    disk: Disk, failures: int
) -> None:
    """The sync of the shorter file fails; so does the first try to store it again."""
    log = opened(disk.root, fsync="batch")
    for n in range(50):
        put(log, payload(n))
    log.abandon()
    path = disk.root / segment_name(0)
    with path.open("ab") as file:
        file.write(b"torn")
    left = [True] * failures
    disk.failing = lambda one: (
        ".log" in one.name and ".torn" not in one.name and bool(left and left.pop())
    )
    for _ in range(failures - 1):
        with pytest.raises(StorageError):
            opened(disk.root, fsync="batch")
    log = opened(disk.root, fsync="batch")
    assert log.durable_token == 50
    power_off(log, disk)
    assert read_all(opened(disk.root)) == [(n, payload(n)) for n in range(50)]


def test_an_error_of_the_kernels_own_writing_is_seen_once_and_is_enough(disk: Disk) -> None:
    """No room for bytes that it had accepted: it forgets their pages, too."""
    log = opened(disk.root, fsync="interval", segment_bytes=1 << 20)
    for n in range(200):
        put(log, payload(n))
    log.sync()
    for n in range(200, 400):
        put(log, payload(n))
    disk.errno, disk.drops = errno.ENOSPC, 1.0
    disk.write_back_fails(disk.root / segment_name(0))
    for problem in ("No space left", "cannot be read back", "cannot be read back"):
        with pytest.raises(StorageError, match=problem):
            log.sync()
    assert (log.durable_token, log.suspect) == (200, True)
    power_off(log, disk)
    log = opened(disk.root)
    assert 200 <= log.next_token < 400
    assert read_all(log) == [(n, payload(n)) for n in range(log.next_token)]
    log.close()


def test_no_descriptors_left_for_a_new_segment_is_no_end_of_the_log(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(disk.root, fsync="batch")
    for n in range(50):
        put(log, payload(n))
    real, left = os.open, [1]

    def scarce(path: object, flags: int, *more: object, **names: object) -> int:
        if str(path).endswith(".index") and left and left.pop():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, flags, *more, **names)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", scarce)
        with pytest.raises(StorageError, match="Too many open files"):
            log.roll(0)
    put(log, payload(50))
    log.roll(0)
    put(log, payload(51))
    log.sync()
    power_off(log, disk)
    assert read_all(opened(disk.root)) == [(n, payload(n)) for n in range(52)]


def test_a_device_that_still_fails_is_asked_with_what_was_not_synced_alone(disk: Disk) -> None:
    """The rest of the segment is copied once."""
    log = opened(disk.root, fsync="batch", segment_bytes=1 << 22)
    for n in range(2000):
        put(log, payload(n))
    log.sync()
    put(log, payload(2000))
    asked: list[int] = []

    def fails(path: Path) -> bool:
        if path.name.endswith("-new"):
            asked.append(path.stat().st_blocks * 512)
        return len(asked) <= 4

    disk.failing = fails
    for _ in range(5):
        with pytest.raises(StorageError):
            log.sync()
    assert not list(disk.root.glob("*-new")), "it takes no room meanwhile"
    assert log.sync() == 2001
    assert max(asked[:5]) <= 2 * 4096 < asked[5]
    assert len(asked) == 6
    power_off(log, disk)
    assert read_all(opened(disk.root)) == [(n, payload(n)) for n in range(2001)]


def drop_page(path: Path) -> None:
    """The kernel drops a clean page, and reads zeros from the device."""
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(bytes(4096))


def test_pages_that_the_kernel_drops_after_the_failure_are_stored_all_the_same(disk: Disk) -> None:
    log = opened(disk.root, fsync="batch")
    for n in range(50):
        put(log, payload(n))
    disk.failing = lambda path: True
    for _ in range(2):
        with pytest.raises(StorageError):
            log.sync()
        drop_page(disk.root / segment_name(0))
    disk.failing = None
    assert log.sync() == 50
    power_off(log, disk)
    assert read_all(opened(disk.root)) == [(n, payload(n)) for n in range(50)]


def test_what_cannot_be_read_back_is_refused_and_never_acked(disk: Disk) -> None:
    log = opened(disk.root, fsync="batch")
    for n in range(50):
        put(log, payload(n))

    def fail_once(path: Path) -> bool:
        disk.failing = None
        drop_page(path)  # before anybody can read it
        return True

    disk.failing = fail_once
    for problem in ("Input/output error", "cannot be read back", "cannot be read back"):
        with pytest.raises(StorageError, match=problem):
            log.sync()
    assert (log.durable_token, log.suspect) == (0, True)
    power_off(log, disk)
    log = opened(disk.root)
    assert log.next_token < 50
    log.close()


@pytest.mark.parametrize("fails", [False, True])
def test_a_grant_outlives_the_power(disk: Disk, fails: bool) -> None:
    grants = GrantLog(disk.root)
    each = [bytes([n]) * lay.PRODUCER_BYTES for n in range(4)]
    for n, grant in enumerate(each):
        if fails and n == 2:
            disk.failing = lambda path: True
            for _ in range(2):
                with pytest.raises(OSError, match="Input/output"):
                    grants.append(grant)
            disk.failing = None
        grants.append(grant)
    disk.lose_power(0.0)
    assert GrantLog(disk.root).load() == b"".join(each)


def test_a_file_that_is_replaced_and_a_directory_outlive_the_power(disk: Disk) -> None:
    make_directory(disk.root / "a" / "b")
    path = disk.root / "a" / "b" / "map.json"
    for content in (b"old", b"new"):
        write_atomically(path, content)
    disk.lose_power(0.0)
    assert path.read_bytes() == b"new"


def test_what_the_next_owner_takes_over_outlives_the_power(disk: Disk) -> None:
    owners = Owners(disk.root / "queues", "orders")
    log = opened(owners.claim(1, "a", 0) / "00000")
    put(log, b"first")
    log.sync()
    taken = owners.claim(2, "b", 0) / "00000"
    power_off(log, disk)
    log = opened(taken)
    assert read_all(log) == [(0, b"first")]
    log.close()
