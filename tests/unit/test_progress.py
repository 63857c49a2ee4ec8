"""The file by which a process that may be killed tells its progress."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

from tests.support.progress import noted, noting, progress_file

COUNTED = 1 << 40
"""From here on, a number of which any part is missing is a smaller one."""


def _count(path: Path) -> None:
    note, number = noting(path), COUNTED
    while True:
        number += 1
        note(number)


def test_a_number_is_whole_at_any_time_and_after_a_kill(tmp_path: Path) -> None:
    path = progress_file(tmp_path / "progress")
    assert noted(path) == 0
    noting(path)(COUNTED)
    counting = multiprocessing.get_context("fork").Process(target=_count, args=(path,))
    counting.start()
    try:
        seen = [noted(path) for _ in range(2_000)]
        while seen[-1] == COUNTED:  # it has not begun
            seen.append(noted(path))
    finally:
        counting.kill()
        counting.join()
    seen.append(noted(path))
    assert seen == sorted(seen)
    assert seen[0] >= COUNTED
    assert seen[-1] < sys.maxsize
