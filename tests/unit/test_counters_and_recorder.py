"""Counters and flight recorder: written by one process, read by another, also after a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidecast.buffers.counters import CountersFile
from tidecast.buffers.recorder import create_recorder, read_records, record_from_python
from tidecast.errors import NotFound, SharedMemoryError
from tidecast.layout import counters as counters_layout
from tidecast.layout import recorder as rec
from tidecast.native.mapped import MappedFile


def test_rows_are_named_counted_freed_and_zeroed(tmp_path: Path) -> None:
    file = CountersFile.create(tmp_path / "counters")
    first = file.allocate(
        counters_layout.ROW_PUBLICATION, "md.eu", "alpha", session=5, peer=3, channel=2
    )
    second = file.allocate(counters_layout.ROW_IMAGE, "ü" * 150, "x" * 200)
    file.values[first, counters_layout.Counter.PACKETS_SENT] = 77
    again = CountersFile.open(tmp_path / "counters")
    [one, two] = again.rows()
    assert (one.kind, one.name, one.detail) == ("publication", "md.eu", "alpha")
    assert (one.session, one.peer, one.channel) == (5, 3, 2)
    assert one.values[counters_layout.Counter.PACKETS_SENT] == 77
    assert two.name.startswith("ü" * 99)
    assert len(two.detail) == 88
    file.free(first)
    assert [row.index for row in again.rows()] == [second]
    assert file.allocate(counters_layout.ROW_NODE, "n") == first
    assert again.rows()[0].values.sum() == 0


def test_rows_run_out_with_a_word(tmp_path: Path) -> None:
    file = CountersFile.create(tmp_path / "counters")
    for i in range(counters_layout.ROWS_MAX):
        assert file.allocate(counters_layout.ROW_IMAGE, "x") == i
    with pytest.raises(SharedMemoryError, match="all 8192"):
        file.allocate(counters_layout.ROW_IMAGE, "x")


def test_threads_take_rows_of_their_own(tmp_path: Path) -> None:
    counters = CountersFile.create(tmp_path / "counters")
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            taken = list(pool.map(lambda n: counters.allocate(1, f"row {n}"), range(400)))
    finally:
        sys.setswitchinterval(before)
    assert len(set(taken)) == 400
    assert sorted(row.name for row in counters.rows()) == sorted(f"row {n}" for n in range(400))


def test_other_files_are_no_counters(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"junk" * 5000)
    with pytest.raises(SharedMemoryError, match="not a counters file"):
        CountersFile.open(tmp_path / "junk")
    with pytest.raises(NotFound):
        CountersFile.open(tmp_path / "nothing")


def test_scribbled_rows_are_read_without_harm(tmp_path: Path) -> None:
    file = CountersFile.create(tmp_path / "counters")
    file.allocate(counters_layout.ROW_NODE, "n")
    file.mapped.array[
        counters_layout.INFO_AT : counters_layout.INFO_AT + 64 * counters_layout.ROW_INFO_BYTES
    ] = 0xFF
    assert file.rows() == []
    file.mapped.array[counters_layout.INFO_AT : counters_layout.INFO_AT + 4] = (1, 0, 0, 0)
    assert len(file.rows()[0].name) <= 200


def test_records_are_merged_by_time_and_the_oldest_give_way(tmp_path: Path) -> None:
    file = create_recorder(tmp_path / "recorder").array
    for i in range(rec.RECORDS_MAX + 10):
        record_from_python(file, rec.WRITER_SENDER, rec.HIGH, 2 * i, rec.Code.RESENT, 5, i, 1, 9, 0)
    record_from_python(file, rec.WRITER_CONDUCTOR, rec.ALERT, 101, rec.Code.GAP, 6, 1, 2, 1, 0)
    found = read_records(file)
    assert len(found) == rec.RECORDS_MAX + 1
    assert [r.at_ns for r in found] == sorted(r.at_ns for r in found)
    assert found[0].arguments[0] == 10
    [gap] = [r for r in found if r.section == "alert"]
    assert gap.writer == "conductor"
    assert gap.text == "packets lost for good first=1 end=2 packets=1"


def test_a_record_half_written_is_not_shown(tmp_path: Path) -> None:
    file = create_recorder(tmp_path / "recorder").array
    for i in range(3):
        record_from_python(file, 0, rec.LOW, i, rec.Code.STARTED, 1, i, 0, 0, 0)
    at = rec.ring_at(0, rec.LOW) + 64 + 2 * rec.RECORD_BYTES
    file[at : at + 8] = 0  # as it is between the first store and the last
    assert [r.arguments[0] for r in read_records(file)] == [0, 2]
    file[at : at + 8] = 0xFF
    assert len(read_records(file)) == 2
    file[rec.HEADER_BYTES :] = 0xA5
    assert all(r.text for r in read_records(file))


CRASH = """
import os, sys
from pathlib import Path
from tidecast.buffers.counters import CountersFile
from tidecast.buffers.recorder import create_recorder, record_from_python
from tidecast.layout import counters as cl, recorder as rec
folder = Path(sys.argv[1])
file = create_recorder(folder / "recorder").array
counters = CountersFile.create(folder / "counters")
row = counters.allocate(cl.ROW_NODE, "victim")
for i in range(100):
    record_from_python(file, 1, rec.ALERT, i, rec.Code.PEER_TIMEOUT, 7, i, 0, 0, 0)
    counters.values[row, cl.Counter.NAKS_SENT] += 1
os.kill(os.getpid(), 9)
"""


def test_both_are_read_after_a_crash(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path)], check=False, timeout=100)
    assert run.returncode == -signal.SIGKILL
    file = MappedFile.open(tmp_path / "recorder").array
    found = read_records(file)
    assert [r.arguments[0] for r in found] == list(range(100))
    pid = int.from_bytes(file[rec.PID_AT : rec.PID_AT + 8].tobytes(), "little")
    assert pid != os.getpid()
    [row] = CountersFile.open(tmp_path / "counters").rows()
    assert (row.name, row.values[counters_layout.Counter.NAKS_SENT]) == ("victim", 100)
    create_recorder(tmp_path / "recorder")
    kept = MappedFile.open(tmp_path / "recorder.previous").array
    assert len(read_records(kept)) == 100, "the next start keeps it once"


def test_other_files_are_no_recorder(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(bytes(rec.FILE_BYTES))
    with pytest.raises(SharedMemoryError, match="not a flight recorder"):
        read_records(MappedFile.open(tmp_path / "junk").array)
