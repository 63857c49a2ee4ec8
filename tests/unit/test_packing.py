"""Words in shared memory are whole for those who read beside the writer."""

from __future__ import annotations

import mmap
import multiprocessing
import struct
from typing import Any

import numpy as np
import pytest

from tidecast.native.packing import pack_into, unpack_from

WHOLE = 1 << 40
"""From here on, a number of which any byte is missing is a smaller one."""


def _count(memory: Any) -> None:
    number = WHOLE
    while True:
        number += 1
        pack_into("<qq", memory, 8, number, number)


def test_a_reader_beside_the_writer_sees_whole_words() -> None:
    memory = np.frombuffer(mmap.mmap(-1, 64), dtype=np.uint8)
    words = memory.view(np.int64)
    pack_into("<qq", memory, 8, WHOLE, WHOLE)
    counting = multiprocessing.get_context("fork").Process(target=_count, args=(memory,))
    counting.start()
    try:
        seen = [int(words[1]) for _ in range(50_000)]
        while seen[-1] < WHOLE + 1_000:
            seen.append(int(words[2]))
    finally:
        counting.kill()
        counting.join()
    assert min(seen) >= WHOLE
    assert words[0] == words[3] == 0
    assert unpack_from("<q", memory, 8)[0] >= seen[-1] - 1


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    memory = np.zeros(16, dtype=np.uint8)
    with pytest.raises(ValueError, match="different structures"):
        pack_into("<q", memory, 9, 1)
    with pytest.raises(struct.error):
        pack_into("<H", memory, 0, 1 << 16)
    assert not memory.any()
