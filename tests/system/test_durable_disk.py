"""A disk that is really full: a small file system of its own. Needs the right to mount."""

from __future__ import annotations

import errno
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.durable import Platform, rows_of

from tidecast.errors import BackPressure, StorageError, Timeout
from tidecast.events import DiskBack, DiskRefused

SIZE_KIB = 4096


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of SIZE_KIB."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_KIB}k", "tidecast-test", str(tmp_path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        yield tmp_path
    finally:  # lazily: rings stay mapped until their clients are collected
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_full_disk_is_survived_and_publishing_goes_on(small_disk: Path) -> None:
    platform = Platform(small_disk, history_bytes=1 << 19, segment_bytes=1 << 16)
    publisher = platform.publisher()
    ballast = small_disk / "ballast"
    free = SIZE_KIB * 1024 - sum(p.stat().st_blocks * 512 for p in small_disk.rglob("*"))
    ballast.write_bytes(bytes(max(0, free - (150 << 10))))
    for i in range(100):
        publisher.publish(b"%06d" % i + bytes(994))
    platform.run(200)
    assert publisher.durable_position == 100
    for i in range(100, 190):
        publisher.publish(b"%06d" % i + bytes(994))
    platform.run(200)
    acked = publisher.durable_position
    assert 100 <= acked < 190
    connection = platform.connections[0]
    connection.pump()
    assert DiskRefused in [type(each) for each in connection._events]
    ballast.unlink()
    platform.run(200)
    assert publisher.durable_position == 190
    connection.pump()
    assert DiskBack in [type(each) for each in connection._events]
    assert [int(row[3][:6]) for row in rows_of(platform.topic)] == list(range(190))
    platform.stop()


def test_a_spool_without_room_is_refused_and_says_where(small_disk: Path) -> None:
    platform = Platform(small_disk, history_bytes=1 << 19, segment_bytes=1 << 16, spool=True)
    free = SIZE_KIB * 1024 - sum(p.stat().st_blocks * 512 for p in small_disk.rglob("*"))
    (small_disk / "ballast").write_bytes(bytes(max(0, free - (200 << 10))))
    with pytest.raises(StorageError, match=f"spool of .* bytes in {small_disk}") as raised:
        platform.publisher()
    assert raised.value.errno == errno.ENOSPC
    (small_disk / "ballast").unlink()
    platform.publisher().publish(b"room")
    platform.run(200)
    assert [row[3] for row in rows_of(platform.topic)] == [b"room"]
    platform.stop()


# --- a device that fails for a while --------------------------------------------------------------

IMAGE_BYTES, ROOM_BYTES = 64 << 20, 200 << 10


class FailingDevice:
    """ext4 without a journal on a loop device whose backing store can be full.

    The driver reports a write as done of which the store took a part (ADR 0015). So each is
    one page long here, which the store takes or refuses.
    """

    def __init__(self, directory: Path, undo: ExitStack) -> None:
        self.store, self.root = directory / "store", directory / "root"
        for each in (self.store, self.root):
            each.mkdir()
        self._run(undo, "mount", "-t", "tmpfs", "-o", "size=48m", "tidecast-test", self.store)
        undo.callback(self._run, None, "umount", "--lazy", self.store)
        image = self.store / "image"
        image.touch()
        os.truncate(image, IMAGE_BYTES)
        loop = self._run(undo, "losetup", "-f", "--show", image)
        undo.callback(self._run, None, "losetup", "-d", loop)
        limit = Path("/sys/block", Path(loop).name, "queue", "max_sectors_kb")
        before = limit.read_text()
        limit.write_text("4")
        undo.callback(limit.write_text, before)
        self._run(undo, "mkfs.ext4", "-q", "-F", "-O", "^has_journal", loop)
        self._run(undo, "mount", "-o", "errors=continue", loop, self.root)
        undo.callback(self._run, None, "umount", "--lazy", self.root)

    def _run(self, undo: ExitStack | None, *command: object) -> str:
        done = subprocess.run(
            [str(each) for each in command], capture_output=True, text=True, check=False
        )
        if done.returncode and undo is not None:
            undo.close()
            pytest.skip(f"not permitted here: {done.stderr.strip()}")
        return done.stdout.strip()

    def fail(self) -> None:
        """Nothing that needs room in the store is stored from now on.

        The ballast grows in steps: meanwhile the kernel writes back what takes room, too.
        """
        taken = 0
        with (self.store / "ballast").open("wb") as file:
            while (left := self._room() - ROOM_BYTES) > 0:
                step = min(left, ROOM_BYTES)
                os.posix_fallocate(file.fileno(), taken, step)
                taken += step

    def _room(self) -> int:
        about = os.statvfs(self.store)
        return about.f_bavail * about.f_frsize

    def work(self) -> None:
        """It stores again."""
        (self.store / "ballast").unlink()

    def forget(self) -> None:
        """Have the kernel drop the pages that it takes for stored."""
        for path in self.root.rglob("*.log"):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_a_device_that_fails_for_a_while_loses_nothing_that_was_acked(
    short_dir: Path, seed: int
) -> None:
    rng = random.Random(seed)
    with ExitStack() as undo:
        device = FailingDevice(short_dir, undo)
        settings = {"queues": rng.choice([1, 3]), "fsync": rng.choice(["interval", "batch"])}
        one = Platform(device.root, history_bytes=1 << 20, segment_bytes=1 << 16, **settings)
        publisher = one.publisher(producer="p", on_full="error")
        sent: list[bytes] = []

        def publish(count: int) -> None:
            for _ in range(count):
                payload = b"%06d" % len(sent) + bytes(rng.choice([50, 500, 900]))
                try:
                    publisher.publish(payload, key=b"k%d" % rng.randrange(9), timeout=0.0)
                except (BackPressure, StorageError, Timeout):
                    return
                sent.append(payload)
                one.run(rng.random() < 0.2)

        publish(300)
        one.run(60)
        assert publisher.durable_position == 300
        device.fail()
        for _ in range(8):
            publish(100)
            one.run(60)
            if rng.random() < 0.5:  # the kernel's own writing
                subprocess.run(["sync", "--file-system", device.root], check=False)
        refused = publisher.durable_position
        device.work()
        one.run(5000)
        publish(200)
        one.run(4000)
        acked = publisher.durable_position
        assert refused < acked == len(sent), "it failed, and works again"
        one.connections[0].pump()
        kinds = [type(each) for each in one.connections[0]._events]
        assert kinds.index(DiskRefused) < len(kinds) - 1 - kinds[::-1].index(DiskBack)
        one.crash()
        one.forget_clients()
        device.forget()
        one.start()
        rows = rows_of(one.topic)
        assert sorted(row[4] for row in rows) == list(range(1, acked + 1))
        assert all(sent[row[4] - 1] == row[3] for row in rows)
        one.stop()
