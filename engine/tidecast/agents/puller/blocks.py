"""The memory of a puller's blocks: all have one size, except a block for a larger batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidecast.agents.puller import entries
from tidecast.native.memory import address
from tidecast.queues.cache import blocks


class BlockMemory:
    """Base of the puller's shell."""

    state: Any
    words: Any
    block_bytes: int
    blocks_max: int
    oversized: int
    """Blocks that have memory of their own now."""

    def _make_blocks(self) -> None:
        """Room for all blocks at once: memory that is not touched yet costs nothing."""
        n, size = self.blocks_max, self.block_bytes
        self._slabs = [
            np.empty((n, k), dtype=np.uint8) for k in (size, size // 8, blocks.HEADS * 8)
        ]
        self._memory = {b: [slab[b] for slab in self._slabs] for b in range(n)}
        S = self.state
        numbers = np.arange(n)
        for part, slab in zip(("data", "index", "heads"), self._slabs, strict=True):
            S.blocks[f"{part}_address"][:n] = address(slab) + numbers * slab.shape[1]
        S.blocks["data_bytes"][:n], S.blocks["index_max"][:n] = (
            size,
            size // 8 // blocks.INDEX_BYTES,
        )
        S.spare[:n], S.spare_n[0] = numbers[::-1], n

    def _new_block(self, q: int) -> int:
        n = int(self.state.spare_n[0])
        if n == 0:
            return int(entries.steal_block(self.words, q))
        self.state.spare_n[0] = n - 1
        return int(self.state.spare[n - 1])

    def _spare(self, b: int) -> None:
        entries.spare_block(self.words, b)

    def _plain(self, b: int) -> None:
        """Give a block that had memory of its own the usual size again."""
        memory = self._memory[b]
        if memory[0].size != self.block_bytes:
            memory[0] = self._slabs[0][b]
            self.oversized -= 1
        memory[1] = self._slabs[1][b]
        self._point(b)

    def _point(self, b: int) -> None:
        data, index, heads = self._memory[b]
        record = self.state.blocks[b]
        record["data_address"], record["data_bytes"] = address(data), data.size
        record["index_address"], record["index_max"] = (
            address(index),
            index.size // blocks.INDEX_BYTES,
        )
        record["heads_address"], record["own"] = address(heads), 0

    def _index_room(self, b: int, records: int) -> None:
        memory = self._memory[b]
        if records * blocks.INDEX_BYTES > memory[1].size:
            larger = np.empty(records * blocks.INDEX_BYTES, dtype=np.uint8)
            larger[: memory[1].size] = memory[1]
            memory[1] = larger
            record = self.state.blocks[b]
            record["index_address"], record["index_max"] = address(larger), records
