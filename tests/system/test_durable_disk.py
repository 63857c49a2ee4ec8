"""A disk that is really full: a small file system of its own. Needs the right to mount."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.durable import Platform, rows_of

from tidecast.errors import StorageError
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
