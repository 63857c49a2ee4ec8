"""Fetching a block from a log that the puller reads itself, inside its duty cycle.

A cycle that returns to Python for a block waits there for the interpreter lock: up to 5 ms (the
switch interval) for some 2,000 records, whenever the user's code is busy. The shell handles only
the rare cases: batches larger than a block, records that retention deleted, damage, disk errors.
"""

from __future__ import annotations

from tidecast.agents.events import emit
from tidecast.agents.puller.state import E_FETCH, P_CYCLE
from tidecast.log.append import readable_token
from tidecast.log.reading.read import NEED_ROOM, NOTHING, read_block
from tidecast.log.state import READER
from tidecast.native.jit import inlined
from tidecast.native.memory import bytes_at
from tidecast.queues.cache import cursors
from tidecast.queues.cache.blocks import count_records, list_batches
from tidecast.queues.cache.cache import (
    UNKNOWN,
    adopt,
    evict,
    find_block,
    give_block,
    take_block,
    touch,
    victim,
)

EXTEND, FRESH, DEFER, NOTHING_WANTED = 0, 1, 2, 3
_reader_of = READER.of


@inlined
def extensible(S, q, token):
    """The block of queue ``q`` that ends at ``token`` and has room behind; -1: none."""
    for j in range(S.queues[q].blocks):
        b = S.held[q, j]
        B = S.blocks[b]
        if B.end == token and B.own == 0 and B.used * 4 < B.data_bytes * 3:
            return b
    return -1


@inlined
def finish_fetch(S, q, b, fetched_bytes, records, end, fresh):
    """A fetch of queue ``q`` ended: wake waiting cursors. ``end``: behind its newest record."""
    Q = S.queues[q]
    if fresh and records > 0:
        adopt(S, q, b)
    if records > 0:
        Q.fetches += 1
        Q.fetched_bytes += fetched_bytes
        Q.fetched_records += records
        S.blocks[b].touched = S.misc[P_CYCLE]
    Q.want, Q.fetching = -1, 0
    Q.end = UNKNOWN if Q.grew else end
    S.wanting[q >> 6] &= ~(1 << (q & 63))
    cursors.wake_chain(S, cursors.FOR_QUEUE, cursors.BLOCK_CHAINS + q)


@inlined
def _read_into(S, q, b, token):
    """Read behind the records of block ``b``. Returns records read, NOTHING, or an error below."""
    B = S.blocks[b]
    used = B.used
    data = bytes_at(B.data_address, B.data_bytes)
    R = _reader_of(bytes_at(S.queues[q].reader_address, 8))
    n = read_block(R, token, data, used, B.data_bytes - used)
    if n <= 0:
        return n
    promised = count_records(bytes_at(B.data_address + used, n), n)
    if promised < 0 or B.end - B.first + promised > B.index_max:
        return -1
    return list_batches(S.blocks, b, n)


@inlined
def _fresh_block(S, q):
    """A block that queue ``q`` may fill, of the usual size; -1: the shell knows; -2: later."""
    Q = S.queues[q]
    if Q.blocks < Q.blocks_max:
        return take_block(S)
    j = victim(S, q, S.misc[P_CYCLE] + 1)
    if j < 0:
        return -2
    if S.blocks[S.held[q, j]].own != 0:
        return -1
    return evict(S, q, S.misc[P_CYCLE] + 1)


@inlined
def fetch_here(S, q):
    """Fetch the block that queue ``q`` wants. 1: done; 0: in the next cycle; -1: the shell must."""
    Q = S.queues[q]
    token = Q.want
    log_end = readable_token(_reader_of(bytes_at(Q.reader_address, 8)).log)
    b = extensible(S, q, token)
    if b >= 0:
        used = S.blocks[b].used
        n = _read_into(S, q, b, token)
        if n == NOTHING:
            finish_fetch(S, q, b, 0, 0, token, False)
            return 1
        if n > 0:
            finish_fetch(S, q, b, S.blocks[b].used - used, n, max(log_end, S.blocks[b].end), False)
            return 1
        if n != NEED_ROOM:
            return -1
    b = _fresh_block(S, q)
    if b < 0:
        return 0 if b == -2 else -1
    S.blocks[b].holes, S.blocks[b].holes_max = 0, 0
    n = _read_into(S, q, b, token)
    if n <= 0 or S.blocks[b].first > token:
        S.blocks[b].used, S.blocks[b].lead = 0, 0
        S.blocks[b].first, S.blocks[b].end = 0, 0
        give_block(S, b)
        if n == NOTHING:
            finish_fetch(S, q, b, 0, 0, token, True)
            return 1
        return -1
    finish_fetch(S, q, b, S.blocks[b].used, n, max(log_end, S.blocks[b].end), True)
    return 1


@inlined
def read_ahead(S, C):
    """Request the next block once a flowing cursor is in the second half of its block.

    For sources behind a round trip: without this a cursor gets one block in each round trip. Evicts
    no block in which another cursor flows or rests.
    """
    q, B = C.queue, S.blocks[C.block]
    Q = S.queues[q]
    if Q.want >= 0 or B.end >= Q.end or Q.end == UNKNOWN or C.next * 2 < B.first + B.end:
        return
    cycle = S.misc[P_CYCLE]
    ahead = find_block(S, q, B.end)
    if ahead >= 0:
        touch(S, ahead, cycle)
        return
    if Q.blocks == Q.blocks_max:
        j = victim(S, q, cycle)
        if j < 0 or S.blocks[S.held[q, j]].parked > 0:
            return
    Q.want = B.end
    S.wanting[q >> 6] |= 1 << (q & 63)


@inlined
def ask_shell(S, q):
    """Let the shell fetch. False: there is no room for the event now."""
    if emit(S.events, S.attention, E_FETCH, q, S.queues[q].want) == 0:
        return False
    S.queues[q].fetching = 1
    return True
