"""Are all of a producer's sequences in the log? What recovery must look at to know.

All queues of a topic are written before anything of a cycle is acked, so only what lies behind a
producer's acked sequence can be there in part: the last few batches of each queue.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidecast.layout import segment as seg
from tidecast.log import scan as sc
from tidecast.native.packing import unpack_from
from tidecast.protocol.dedup import SEQ_MAX, Producer, ProducerTable, is_placed

Sequences = Callable[[int, np.ndarray], np.ndarray]
"""(queue, row of a scan) -> the sequences of that batch's records."""


class Tails:
    """Batches whose records were not all known to be acked when recovery saw them."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], np.ndarray] = {}
        """By queue and first token: a segment may be looked at twice."""

    def see(self, queue: int, rows: np.ndarray, producers: ProducerTable) -> None:
        """Keep what may matter of a queue's batches, which ``producers`` has learnt."""
        ids, at = np.unique(rows[:, sc.C_PRODUCER], return_inverse=True)
        acked = [
            producers.known[each].acked_seq if each and not is_placed(each) else SEQ_MAX
            for each in ids.tolist()
        ]
        kept = rows[rows[:, sc.C_LAST_SEQ] > np.array(acked, dtype=np.int64)[at]]
        if kept.shape[0]:
            self._seen[queue, int(rows[0, sc.C_BASE_TOKEN])] = kept.copy()

    def torn(self, producers: ProducerTable, sequences: Sequences) -> list[Producer]:
        """Producers of whom some sequence below the last one was not seen."""
        return [
            each for each in producers.known.values()
            if not each.placed  # their sequences are contiguous in each queue, never across
            and each.acked_seq < each.last_seq
            and self._count(each, sequences) < each.last_seq - each.acked_seq
        ]  # fmt: skip

    def _count(self, producer: Producer, sequences: Sequences) -> int:
        """Records of a producer that were seen behind what is acked."""
        found = 0
        for (queue, _), rows in self._seen.items():
            mine = rows[
                (rows[:, sc.C_PRODUCER] == producer.id)
                & (rows[:, sc.C_LAST_SEQ] > producer.acked_seq)
            ]
            behind = mine[:, sc.C_BASE_SEQ] > producer.acked_seq
            found += int(mine[behind, sc.C_COUNT].sum())
            for row in mine[~behind]:
                found += int((sequences(queue, row) > producer.acked_seq).sum())
        return found

    def unseen(self, producers: ProducerTable, torn: list[Producer]) -> list[int]:
        """Queues in whose segments before the last one some of it may lie."""
        return [
            queue for queue in range(producers.queues)
            if any(producers.before.get((queue, p.id), 0) > p.acked_seq for p in torn)
        ]  # fmt: skip


def seqs_of(batch: np.ndarray) -> np.ndarray:
    """Sequences of the records of a sound batch."""
    (count,) = unpack_from("<I", batch, seg.BATCH_COUNT_AT)
    (base,) = unpack_from("<q", batch, seg.BATCH_BASE_SEQ_AT)
    found, at = [], seg.BATCH_HEADER_BYTES
    for _ in range(count):
        length, delta = unpack_from("<II", batch, at)
        found.append(base + delta)
        at += length & seg.REC_LENGTH_MASK
    return np.array(found, dtype=np.int64)
