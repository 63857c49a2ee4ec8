"""The cache of a queue: a bounded set of blocks, fetched on demand, and the choice of a victim.

Nothing here reads a log. A cursor that finds no block for its token sets ``want``; the agent
fetches a block and calls `adopt`. Memory is bounded: a queue holds at most ``blocks_max`` blocks,
and the number of all blocks is fixed.
"""

from __future__ import annotations

import numpy as np

from tidecast.native.jit import inlined
from tidecast.queues.cache.blocks import QUEUE_BLOCKS_MAX, holds_token

UNKNOWN = (1 << 62) - 1
"""``end`` of a queue that may have grown since it was read."""

QUEUE = np.dtype(
    [
        ("active", np.int64),
        ("end", np.int64),  # token behind the newest known record; UNKNOWN: ask the log
        ("grew", np.int64),  # 1: it may have grown since the last fetch was requested
        ("want", np.int64),  # token that a cursor waits for; -1: none
        ("fetching", np.int64),  # 1: a fetch is on its way
        ("blocks", np.int64),  # number of blocks that it holds
        ("blocks_max", np.int64),
        ("fetches", np.int64),
        ("fetched_bytes", np.int64),
        ("fetched_records", np.int64),
        ("consumed_bytes", np.int64),  # bytes of records sent to members, with redeliveries
        ("evicted", np.int64),  # blocks given up
        ("spilled", np.int64),  # of these, blocks in which a slow or paused cursor rested
        ("bad", np.int64),  # fetches whose batches were damaged
        ("followers", np.int64),  # cursors of one stream that wait for its next record
        ("scanned", np.int64),  # token behind the last record that was matched with their streams
        ("reader_address", np.int64),  # words of the READER of its log; 0: the shell fetches
    ]
)


@inlined
def give_block(S, b):
    """Add block ``b`` to the spare blocks."""
    S.spare[S.spare_n[0]] = b
    S.spare_n[0] += 1


@inlined
def take_block(S):
    """Take a spare block of the usual size; -1: there is none."""
    n = S.spare_n[0]
    if n == 0 or S.blocks[S.spare[n - 1]].own != 0:
        return -1
    S.spare_n[0] = n - 1
    return S.spare[n - 1]


@inlined
def find_block(S, q, token):
    """The block of queue ``q`` that holds ``token``, or a hole with it; -1: none."""
    for j in range(S.queues[q].blocks):
        b = S.held[q, j]
        if holds_token(S.blocks[b], q, token):
            return b
    return -1


@inlined
def touch(S, b, cycle):
    """Note a use."""
    S.blocks[b].touched = cycle


@inlined
def _forget(S, q, j):
    """Take block number ``j`` out of a queue's list and free it."""
    Q = S.queues[q]
    b = S.held[q, j]
    Q.blocks -= 1
    S.held[q, j] = S.held[q, Q.blocks]
    B = S.blocks[b]
    B.state, B.queue = 0, -1
    B.generation += 1
    B.used, B.lead, B.first, B.end = 0, 0, 0, 0
    B.holes, B.holes_max = 0, 0
    B.heads_count, B.parked, B.hot = 0, 0, 0
    return b


@inlined
def victim(S, q, cycle):
    """The block of a queue to evict: blocks without resting cursors first, oldest first; -1: none.

    A block with a ready cursor in it is never evicted: it would be fetched again at once.
    """
    best = -1
    best_rank = np.int64(0)
    for j in range(S.queues[q].blocks):
        B = S.blocks[S.held[q, j]]
        if B.hot >= cycle:
            continue
        rank = B.touched + (UNKNOWN >> 1 if B.parked > 0 else 0)
        if best < 0 or rank < best_rank:
            best, best_rank = j, rank
    return best


@inlined
def evict(S, q, cycle):
    """Give up one block of queue ``q``; the block, or -1 when all are in use."""
    j = victim(S, q, cycle)
    if j < 0:
        return -1
    if S.blocks[S.held[q, j]].parked > 0:
        S.queues[q].spilled += 1
    S.queues[q].evicted += 1
    return _forget(S, q, j)


@inlined
def drop_blocks(S, q):
    """Give up all blocks of a queue."""
    n = 0
    while S.queues[q].blocks > 0:
        give_block(S, _forget(S, q, 0))
        n += 1
    return n


@inlined
def drop_block_of(S, q, b):
    """Give up a given block (policy discard, damaged batches)."""
    for j in range(S.queues[q].blocks):
        if S.held[q, j] == b:
            give_block(S, _forget(S, q, j))
            return


@inlined
def adopt(S, q, b):
    """Block ``b`` is loaded for queue ``q``: count it as held."""
    Q = S.queues[q]
    if Q.blocks < QUEUE_BLOCKS_MAX:
        S.held[q, Q.blocks] = b
        Q.blocks += 1
        S.blocks[b].state, S.blocks[b].queue = 1, q
