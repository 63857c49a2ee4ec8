"""Runs that were made of the records of another system, cut to the buffers of readers."""

from __future__ import annotations

import numpy as np

from tidecast.layout import segment as seg
from tidecast.native.jit import kernel
from tidecast.native.memory import load_i64, load_u32
from tidecast.queues.adapter import Run


@kernel
def cut_run(run, token, room, out):
    """Which whole batches of a run of ours from ``token`` on fit into ``room`` bytes.

    ``out``: int64[4]: where they begin (-1: the run ends before ``token``), where they end, the
    token behind the last, bytes of the first.
    """
    at, first, stop, behind = 0, -1, -1, token
    out[3] = 0
    while at < run.size:
        length = load_u32(run, at + seg.BATCH_LENGTH_AT)
        next_token = load_i64(run, at + seg.BATCH_BASE_TOKEN_AT)
        next_token += load_u32(run, at + seg.BATCH_COUNT_AT)
        if next_token > token:
            if first < 0:
                first = stop = at
                out[3] = length
            if at + length - first > room:
                break
            stop, behind = at + length, next_token
        at += length
    out[0], out[1], out[2] = first, stop, behind


class Cutter:
    """Cuts runs. Not for several threads at once."""

    def __init__(self) -> None:
        self._cut = np.zeros(4, dtype=np.int64)

    def cut(self, run: Run, token: int, room: int) -> tuple[int, int, int, int]:
        """(bytes, from, to, token behind) of whole batches from ``token`` on that have ``room``.

        No bytes: none fits; then ``from`` is -1 when there is none at all.
        """
        cut_run(run, token, room, self._cut)
        first, stop, behind, _ = self._cut.tolist()
        return max(stop - first, 0), first, stop, behind

    def need(self, run: Run, token: int) -> int:
        """Bytes of the batch that holds ``token``, or of the next."""
        cut_run(run, token, 0, self._cut)
        return int(self._cut[3])
