"""The queue log: append, read from any token, roll, retain, recover; torn tails, full disks."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.support.logs import SEGMENT_BYTES, opened, put, read_all

from tidecast.errors import CorruptLog, NotFound, StorageError
from tidecast.layout import segment as lay
from tidecast.log.files import index_entry, index_name, read_index, segment_name
from tidecast.log.inspect import list_batches
from tidecast.log.queue_log import QueueLog
from tidecast.log.repair.damage import next_sound
from tidecast.log.repair.verify import queue_bytes
from tidecast.native.system.files import F_ERRNO, F_FAILED, F_ROOM_BYTES, F_SYNC_ERRNO


def filled(directory: Path, batches: int, size: int = 100, **options: object) -> QueueLog:
    log = opened(directory, **options)
    for i in range(batches):
        put(log, *(b"%06d-%d" % (i, k) + bytes(size) for k in range(3)), time_ns=1000 + i)
    return log


def expected(batches: int, size: int = 100) -> list[tuple[int, bytes]]:
    return [
        (3 * i + k, b"%06d-%d" % (i, k) + bytes(size)) for i in range(batches) for k in range(3)
    ]


def test_what_is_appended_is_read_in_order_over_segments(tmp_path: Path) -> None:
    log = filled(tmp_path, 600)
    assert len(log.segments) >= 4
    assert read_all(log) == expected(600)
    assert (log.next_token, log.earliest_token) == (1800, 0)
    assert log.bytes == sum(p.stat().st_size for p in tmp_path.glob("*.log"))


def test_any_token_is_found(tmp_path: Path) -> None:
    log = filled(tmp_path, 900)
    reader, buffer = log.reader(), np.zeros(1 << 13, dtype=np.uint8)
    for token in np.random.default_rng(3).integers(0, 2700, 200).tolist():
        assert reader.read_block(token, buffer) > 0
        base = int.from_bytes(buffer[lay.BATCH_BASE_TOKEN_AT :][:8].tobytes(), "little")
        assert base == token // 3 * 3
    searches = int(reader.state.w[11])
    assert reader.read_block(reader.next_token, buffer) > 0
    assert int(reader.state.w[11]) == searches, "in order, nothing is searched"
    assert reader.read_block(2700, buffer) == 0


def test_a_time_is_found(tmp_path: Path) -> None:
    log = filled(tmp_path, 900)
    for i in (0, 1, 77, 500, 899):
        assert log.token_at_time(1000 + i) == 3 * i
    assert log.token_at_time(0) == 0
    assert log.token_at_time(5000) == 2700


def test_a_batch_larger_than_the_room_says_what_it_needs(tmp_path: Path) -> None:
    log = opened(tmp_path)
    put(log, bytes(200_000))
    put(log, b"next")
    reader = log.reader()
    with pytest.raises(ValueError, match="does not fit"):
        reader.read_block(0, np.zeros(1 << 12, dtype=np.uint8))
    assert reader.read_block(0, np.zeros(reader.need, dtype=np.uint8)) == reader.need
    assert [n for n, _ in read_all(log, 0, 1 << 18)] == [0, 1]


def test_a_reader_keeps_what_retention_deletes_and_learns_that_it_is_gone(tmp_path: Path) -> None:
    log = filled(tmp_path, 900)
    reader, buffer = log.reader(), np.zeros(1 << 12, dtype=np.uint8)
    assert reader.read_block(0, buffer) > 0
    gone = log.retain(bytes_max=2 * SEGMENT_BYTES)
    assert gone[0].base_token == 0
    assert log.earliest_token == log.segments[0].base_token > 0
    assert log.bytes <= 2 * SEGMENT_BYTES + SEGMENT_BYTES
    token = reader.next_token
    while token < gone[1].base_token:  # it reads the segment that it has open to the end
        assert reader.read_block(token, buffer) > 0
        token = reader.next_token
    with pytest.raises(NotFound, match=f"token {token} was deleted by retention"):
        reader.read_block(token, buffer)
    with pytest.raises(NotFound, match="deleted by retention"):
        log.reader().read_block(0, buffer)


def test_retention_by_age_and_never_past_what_is_held(tmp_path: Path) -> None:
    log = filled(tmp_path, 900)
    ages = [one.created_ns for one in log.segments]
    first = log.segments[0].base_token
    assert not log.retain(bytes_max=1, hold_token=0)
    held = log.segments[2].base_token
    assert log.retain(bytes_max=1, hold_token=held)[0].base_token == first
    assert log.earliest_token == held
    log.retain(age_max_ns=1, now_ns=ages[-1] + 1)
    assert len(log.segments) == 2, "the segment before the active one is younger than its end"
    assert log.next_token == 2700


def test_reopened_it_goes_on_and_scans_only_the_last_segment(tmp_path: Path) -> None:
    filled(tmp_path, 900).close()
    log = opened(tmp_path)
    assert log.next_token == 2700 == log.durable_token
    assert not log.recovered.torn
    assert log.recovered.scanned_bytes <= SEGMENT_BYTES
    put(log, b"more")
    assert read_all(log) == [*expected(900), (2700, b"more")]


def test_a_torn_tail_is_set_aside_at_every_offset(tmp_path: Path) -> None:
    log = filled(tmp_path / "whole", 4, size=3)
    log.close()
    path = tmp_path / "whole" / segment_name(0)
    raw = path.read_bytes()
    batch = (len(raw) - lay.SEGMENT_HEADER_BYTES) // 4
    for cut in range(len(raw) - batch - 8, len(raw) + 1):
        copy = tmp_path / "cut"
        shutil.copytree(tmp_path / "whole", copy)
        (copy / segment_name(0)).write_bytes(raw[:cut])
        log = opened(copy)
        whole = (cut - lay.SEGMENT_HEADER_BYTES) // batch
        assert read_all(log) == expected(whole, 3)
        tail = cut - lay.SEGMENT_HEADER_BYTES - whole * batch
        assert [t.bytes for t in log.recovered.torn] == ([tail] if tail else [])
        if tail:
            assert log.recovered.torn[0].aside.read_bytes() == raw[cut - tail : cut]
        put(log, b"goes on")
        assert read_all(log)[-1] == (3 * whole, b"goes on")
        log.close()
        shutil.rmtree(copy)


def test_a_flipped_bit_anywhere_in_the_tail_is_found(tmp_path: Path) -> None:
    log = filled(tmp_path / "whole", 3, size=3)
    log.close()
    raw = bytearray((tmp_path / "whole" / segment_name(0)).read_bytes())
    batch = (len(raw) - lay.SEGMENT_HEADER_BYTES) // 3
    for at in range(len(raw) - batch, len(raw)):
        copy = tmp_path / "rotten"
        shutil.copytree(tmp_path / "whole", copy)
        rotten = bytearray(raw)
        rotten[at] ^= 1 << (at % 8)
        (copy / segment_name(0)).write_bytes(rotten)
        log = opened(copy)
        assert read_all(log) == expected(2, 3)
        assert log.recovered.torn[0].bytes == batch
        log.close()
        shutil.rmtree(copy)


def acked(directory: Path, batches: int, lag: int) -> QueueLog:
    """A log of one producer; each batch was appended when all but ``lag`` before it were acked."""
    log = opened(directory)
    for i in range(batches):
        known = {"producer": 7, "epoch": 1, "base_seq": 2 * i + 1, "acked_seq": 2 * max(0, i - lag)}
        put(log, b"%d" % i, b"-%d" % i, time_ns=1000 + i, **known)
    return log


@pytest.mark.parametrize(
    "at", [lay.BATCH_LENGTH_AT, lay.BATCH_BASE_TOKEN_AT, lay.BATCH_HEADER_BYTES]
)
def test_rot_amid_what_was_acked_cuts_nothing_off(at: int, tmp_path: Path) -> None:
    log = acked(tmp_path, 20, lag=2)
    log.close()
    path = tmp_path / segment_name(0)
    raw = bytearray(path.read_bytes())
    size = [row["position"] for row in list_batches(tmp_path, 20, 0)]
    raw[size[5] + at] ^= 4
    raw[size[9] + at] ^= 4
    path.write_bytes(raw)

    log = opened(tmp_path)
    assert (log.recovered.torn, log.recovered.damaged) == ([], 2)
    assert log.next_token == 40
    put(log, b"new")
    tokens = [token for token, _ in read_all(log, 20)]
    assert tokens == list(range(20, 41))
    with pytest.raises(CorruptLog, match="token 10"):
        read_all(log, 10)
    listed = [row["token"] for row in list_batches(tmp_path, 50, 0)]
    assert listed == [t for t in range(0, 41, 2) if t not in (10, 18)]
    assert [log.token_at_time(1000 + i) for i in (4, 5, 6, 9, 12)] == [8, 10, 10, 10, 10]
    log.close()


def test_a_segment_that_retention_removes_while_a_queue_is_listed_is_left_out(
    tmp_path: Path,
) -> None:
    filled(tmp_path, 4).close()
    size, listed = queue_bytes(tmp_path), list_batches(tmp_path, 9, 0)
    tmp_path.joinpath(segment_name(100)).symlink_to(tmp_path / "removed")  # a name without a file
    assert queue_bytes(tmp_path) == size
    assert list_batches(tmp_path, 9, 0) == listed
    assert len(listed) == 4


def test_what_follows_damage_is_found_however_long_it_is(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=1 << 30)
    for i in range(3):
        put(log, bytes([i]) * (9 << 20), producer=7, epoch=1, base_seq=i + 1, acked_seq=i)
    log.close()
    path = tmp_path / segment_name(0)
    with path.open("r+b") as file:
        file.seek(lay.SEGMENT_HEADER_BYTES + lay.BATCH_HEADER_BYTES + 100)
        file.write(b"x")
    log = opened(tmp_path, segment_bytes=1 << 30)
    assert (log.recovered.torn, log.recovered.damaged, log.next_token) == ([], 1, 3)
    log.close()


def test_what_is_appended_while_one_looks_follows_no_damage(tmp_path: Path) -> None:
    filled(tmp_path, 3).close()
    path = tmp_path / segment_name(0)
    second, third = (row["position"] for row in list_batches(tmp_path, 2, None))
    with path.open("rb") as file:
        assert next_sound(file.fileno(), second + 1, 3, third - 1) == -1
        assert next_sound(file.fileno(), second + 1, 3, path.stat().st_size) == third


def test_what_no_ack_covers_is_cut_off_from_the_first_damage_on(tmp_path: Path) -> None:
    log = acked(tmp_path, 20, lag=2)
    log.close()
    path = tmp_path / segment_name(0)
    raw = bytearray(path.read_bytes())
    (position,) = (r["position"] for r in list_batches(tmp_path, 20, 0) if r["token"] == 36)
    raw[position + lay.BATCH_HEADER_BYTES] ^= 4
    path.write_bytes(raw)
    log = opened(tmp_path)
    assert (log.next_token, log.recovered.damaged) == (36, 0)
    assert log.recovered.torn[0].bytes == len(raw) - position
    log.close()


def test_rot_in_a_sealed_segment_is_found_by_the_reader(tmp_path: Path) -> None:
    filled(tmp_path, 900).close()
    path = tmp_path / segment_name(0)
    raw = bytearray(path.read_bytes())
    raw[lay.SEGMENT_HEADER_BYTES + 200] ^= 4
    path.write_bytes(raw)
    log = opened(tmp_path)
    with pytest.raises(CorruptLog, match=r"orders/0: token 0: .*00000\.log at 64"):
        read_all(log)


@pytest.mark.parametrize("damage", ["missing", "torn", "rotten", "unsealed"])
def test_an_index_is_made_anew_from_its_log(tmp_path: Path, damage: str) -> None:
    log = filled(tmp_path, 900)
    log.close()
    path = tmp_path / index_name(0)
    whole = path.read_bytes()
    damaged = {
        "missing": b"",
        "torn": whole[:-5],
        "rotten": whole[:-20] + b"\x99" + whole[-19:],
        "unsealed": whole[: -lay.INDEX_ENTRY_BYTES],
    }
    path.write_bytes(damaged[damage])
    if damage == "missing":
        path.unlink()
    log = opened(tmp_path)
    assert log.recovered.indexes_rebuilt == [path]
    assert path.read_bytes() == whole
    assert log.token_at_time(1001) == 3
    assert read_all(log) == expected(900)


def test_entries_behind_a_damaged_one_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / index_name(0)
    entries = [(0, 64, 1), (40, 70_000, 2), (80, 140_000, 3)]
    raw = bytearray(bytes(lay.SEGMENT_HEADER_BYTES) + b"".join(index_entry(*e) for e in entries))
    path.write_bytes(raw)
    assert read_index(path).tolist() == [list(e) for e in entries]
    raw[lay.SEGMENT_HEADER_BYTES + lay.INDEX_ENTRY_BYTES + lay.IDX_POSITION_AT] ^= 1
    path.write_bytes(raw)
    assert read_index(path).tolist() == [list(entries[0])]


def test_a_segment_torn_at_its_birth_is_dropped(tmp_path: Path) -> None:
    filled(tmp_path, 600).close()
    log = opened(tmp_path)
    token = log.next_token
    log.roll(0)
    log.close()
    for n in (0, 10, lay.SEGMENT_HEADER_BYTES - 1):
        (tmp_path / segment_name(token)).write_bytes(bytes(n))
        log = opened(tmp_path)
        assert log.next_token == token
        assert read_all(log) == expected(600)
        log.roll(0)
        log.close()


def test_a_foreign_segment_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 3).close()
    with pytest.raises(CorruptLog, match="another topic"):
        opened(tmp_path, topic="payments")
    with pytest.raises(CorruptLog, match="queue 0 of another"):
        opened(tmp_path, queue=1)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_corrupts_nothing_and_appending_goes_on(tmp_path: Path, code: int) -> None:
    log = filled(tmp_path, 5)
    faults = log.state.disk
    for room in (0, 1, 71, 72, 102):
        faults[F_ERRNO], faults[F_ROOM_BYTES] = code, room
        with pytest.raises(StorageError) as refused:
            put(log, b"refused")
        assert (refused.value.errno, refused.value.retryable) == (code, True)
        assert log.next_token == 15
    assert faults[F_FAILED] == 5
    faults[F_ERRNO] = 0
    put(log, b"ok")
    assert read_all(log) == [*expected(5), (15, b"ok")]
    log.close()
    assert read_all(opened(tmp_path)) == [*expected(5), (15, b"ok")]


def test_what_a_refused_write_left_is_torn_off(tmp_path: Path) -> None:
    log = filled(tmp_path, 5)
    log.state.disk[F_ERRNO], log.state.disk[F_ROOM_BYTES] = errno.ENOSPC, 90
    with pytest.raises(StorageError):
        put(log, b"refused" * 10)
    log.close()
    log = opened(tmp_path)
    assert [t.bytes for t in log.recovered.torn] == [90]
    assert read_all(log) == expected(5)


def test_a_sync_that_fails_makes_nothing_durable(tmp_path: Path) -> None:
    log = filled(tmp_path, 5, fsync="batch")
    assert (log.next_token, log.durable_token) == (15, 0)
    assert read_all(log) == [], "with policy batch, readers see what is synced"
    log.state.disk[F_SYNC_ERRNO] = errno.EIO
    with pytest.raises(StorageError):
        log.sync()
    assert log.durable_token == 0
    log.state.disk[F_SYNC_ERRNO] = 0
    assert log.sync() == 15
    assert read_all(log) == expected(5)


def test_the_policy_none_counts_what_is_written_as_durable(tmp_path: Path) -> None:
    log = filled(tmp_path, 5, fsync="none")
    assert (log.durable_token, log.sync()) == (15, 15)
    assert int(log.state.w[17]) == 0, "nothing was synced"


def test_the_index_is_sparse_and_sealed(tmp_path: Path) -> None:
    log = filled(tmp_path, 5000, size=50, segment_bytes=1 << 18)
    first, second = log.segments[:2]
    entries = read_index(tmp_path / index_name(0))
    assert entries[-1].tolist() == [second.base_token, first.bytes, first.time_max]
    assert entries.shape[0] == -(-first.bytes // lay.INDEX_INTERVAL_BYTES) + 1
    steps = np.diff(entries[:-1, 1])
    assert (steps >= lay.INDEX_INTERVAL_BYTES).all()
