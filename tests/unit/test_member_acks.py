"""The cost of acks: frames in the member's ring, which the puller reads one by one."""

from __future__ import annotations

import numpy as np
import pytest

from tidecast.buffers import member_ring
from tidecast.buffers.member_ring import RUN_COUNT, RUN_CURSOR, RUN_FIELDS, RUN_TOKEN
from tidecast.layout import member as lay
from tidecast.native.packing import unpack_from

ACKS_BYTES = 4096
EMPTY = np.zeros(8, dtype=np.uint8)


class Acks:
    """A member's ring of acks, and the client's side of it."""

    def __init__(self) -> None:
        self.ring = np.zeros(member_ring._DELIVERIES_AT + ACKS_BYTES, dtype=np.uint8)
        self.state = np.zeros(member_ring.CLIENT_FIELDS, dtype=np.int64)
        self.state[member_ring.K_ACKS] = ACKS_BYTES

    def ack(self, *runs: tuple[int, int, int], first: int = 0) -> int:
        """Runs of cursor, token and count. How many found room."""
        table = np.zeros((len(runs), RUN_FIELDS), dtype=np.int64)
        for row, (cursor, token, count) in zip(table, runs, strict=True):
            row[RUN_CURSOR], row[RUN_TOKEN], row[RUN_COUNT] = cursor, token, count
        n = len(runs) - first
        return int(member_ring.ack_runs(self.ring, self.state, table, first, n, EMPTY))

    @property
    def frames(self) -> list[tuple[int, int, int]]:
        """Cursor, first token and end of what was written."""
        found, at = [], member_ring._DELIVERIES_AT
        end = at + int(self.state[member_ring.K_ACKED])
        while at < end:
            (length,) = unpack_from("<I", self.ring, at + lay.ACK_LENGTH_AT)
            (cursor,) = unpack_from("<q", self.ring, at + lay.ACK_CURSOR_AT)
            found.append((cursor, *unpack_from("<qq", self.ring, at + lay.ACK_FIRST_AT)))
            at += length
        return found


def test_runs_that_continue_each_other_take_one_frame() -> None:
    acks = Acks()
    assert acks.ack(*[(3, token, 1) for token in range(10, 1000)]) == 990
    assert acks.frames == [(3, 10, 1000)]


@pytest.mark.parametrize(
    ("runs", "frames"),
    [
        ([(1, 0, 5), (1, 6, 2)], [(1, 0, 5), (1, 6, 8)]),  # 5 is not acked
        ([(1, 0, 5), (2, 5, 2)], [(1, 0, 5), (2, 5, 7)]),  # of another queue
        ([(1, 5, 2), (1, 0, 5)], [(1, 5, 7), (1, 0, 5)]),
        ([(1, 0, 5), (1, 5, 1), (2, 6, 1), (2, 7, 3)], [(1, 0, 6), (2, 6, 10)]),
        ([(1, 4, 1)], [(1, 4, 5)]),
        ([], []),
    ],
)
def test_other_runs_take_frames_of_their_own(
    runs: list[tuple[int, int, int]], frames: list[tuple[int, int, int]]
) -> None:
    acks = Acks()
    assert acks.ack(*runs) == len(runs)
    assert acks.frames == frames


def test_a_full_ring_takes_the_runs_that_it_has_room_for() -> None:
    acks, apart = Acks(), [(1, 2 * i, 1) for i in range(1000)]
    done = acks.ack(*apart)
    assert done == len(acks.frames) < 1000
    assert acks.ack(*apart, first=done) == 0
    assert acks.frames == [(1, 2 * i, 2 * i + 1) for i in range(done)]
