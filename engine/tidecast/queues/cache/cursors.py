"""Cursors: positions of subscriptions in queues, the reasons why they wait, and the ready set.

A cursor is ready (a bit in a map), or waits: for new records of its queue, for a block that is
being fetched, for credit of a member. Waiting cursors are in a chain for their reason; the code
that ends the wait walks that chain, so no cycle ever scans cursors that have nothing to do.
"""

from __future__ import annotations

import numpy as np

from tidecast.layout.member import QUEUES_MAX
from tidecast.native.jit import inlined
from tidecast.native.lines import LINE_BYTES, in_lines, prefetch
from tidecast.native.memory import address_of
from tidecast.queues.cache.cache import UNKNOWN, find_block, touch
from tidecast.queues.filters.filters import STREAM

CURSORS_MAX, SUBSCRIPTIONS_MAX = 16_384, 16_384
SHARES = 64
"""A cursor's keys are divided by hash into so many shares; each share has one owner, a member."""
NOBODY, MOVING = 0xFFFF, 0xFFFE
"""Owner of a share without one; of a share that moves once its outstanding records complete."""

FLOWING, CAUGHT_UP, PAUSED, NO_MEMBER, NO_CREDIT, NO_ROOM, WINDOW_FULL, FETCHING = range(8)
REASONS = (
    "flowing",
    "caught up",
    "paused",
    "no member",
    "no credit",
    "member's ring is full",
    "window is full",
    "fetching",
)

CURSOR = in_lines(
    [
        # a record's way to a waiting cursor and its ack touch the first four cache lines alone
        ("active", np.int64),
        ("generation", np.int64),  # with the cursor's number: the word in frames
        ("sub", np.int64),
        ("queue", np.int64),
        ("next", np.int64),  # token to deliver next
        ("stream_hash", np.int64),
        ("paused", np.int64),  # bits: 1 subscription, 2 queue, 4 topic
        ("reason", np.int64),  # why it does not flow
        # --- 64
        ("owner", np.int64),  # the member that owns all shares; -1: several members, or none
        ("again_n", np.int64),  # entries to be delivered (again)
        ("again_dirty", np.int64),  # 1: something about them changed
        ("restored_left", np.int64),  # rows of the saved position that are still ahead
        ("counting", np.int64),  # records to come that are counted by key; 0: see `window`
        ("filter", np.int64),  # 0: none, 1: one stream, 2: a program or a function chooses
        ("function_address", np.int64),  # compiled predicate; 0: none
        ("program_bytes", np.int64),
        # --- 128
        ("window_address", np.int64),
        ("window_mask", np.int64),
        ("w_first", np.int64),  # window: number of the first entry
        ("w_next", np.int64),  # behind the last
        ("out", np.int64),  # entries at members
        ("timer_ns", np.int64),  # no entry is due before; 0: none
        ("ack_wait_ns", np.int64),
        ("dirty", np.int64),  # 1: changed since its position was saved
        # --- 192
        ("filter_address", np.int64),  # key of the stream
        ("filter_bytes", np.int64),
        ("block", np.int64),  # where `next` was found last
        ("block_generation", np.int64),
        ("delivered", np.int64),
        ("delivered_bytes", np.int64),
        ("settled", np.int64),
        ("parked", np.int64),  # block it rests in; -1
        # --- 256
        ("parked_generation", np.int64),
        ("owners", np.int64),  # number of shares that a member owns
        ("moving", np.int64),  # shares that move once their outstanding records complete
        ("growing", np.int64),  # 1: the shell was asked for a larger window
        ("keys_address", np.int64),
        ("keys_mask", np.int64),
        ("keys_used", np.int64),
        ("deliveries_max", np.int64),  # 0: no limit
        ("filter_errors", np.int64),  # records for which it raised; they are delivered
        ("program_address", np.int64),  # see `where.program_of`
        ("name_address", np.int64),  # of the subscription
        ("name_bytes", np.int64),
        ("restored_address", np.int64),  # int64[n, 3]: first, end, attempts (-1: completed)
        ("restored_n", np.int64),
        ("recalled", np.int64),  # keys that wait until a member has returned their records
        ("fragment_at", np.int64),  # large record: bytes that went out
        ("redelivered", np.int64),
        ("naks", np.int64),
        ("timeouts", np.int64),
        ("dead", np.int64),
        ("dying", np.int64),  # entries on their way to the dead-letter topic
        ("filtered", np.int64),
        ("held", np.int64),
        ("scheduled", np.int64),  # entries that wait for their delivery time
        ("cancelled", np.int64),  # records that were cancelled before their delivery time
    ]
)
CURSOR_BYTES = CURSOR.itemsize

# --- chains -------------------------------------------------------------------------------------
DATA_CHAINS, BLOCK_CHAINS, CREDIT_CHAINS = 0, QUEUES_MAX, 2 * QUEUES_MAX
STREAM_CHAINS, STREAM_BUCKETS = 2 * QUEUES_MAX + SUBSCRIPTIONS_MAX, 32_768
CHAINS = STREAM_CHAINS + STREAM_BUCKETS
FOR_QUEUE, FOR_CREDIT = 0, 1
"""A cursor may be in two chains: for its queue (new records, or a block) and for credit. A cursor
of one stream waits for new records in the chain of its queue and its key's hash."""
PREVIOUS, NEXT, WHERE = 0, 1, 2
LINK_BYTES = 24


@inlined
def link(S, cursor, kind, chain):
    """Put a cursor into a chain, unless it is there."""
    if S.links[cursor, kind, WHERE] == chain:
        return
    unlink(S, cursor, kind)
    first = S.chains[chain]
    S.links[cursor, kind, WHERE] = chain
    S.links[cursor, kind, PREVIOUS] = -1
    S.links[cursor, kind, NEXT] = first
    if first >= 0:
        S.links[first, kind, PREVIOUS] = cursor
    S.chains[chain] = cursor


@inlined
def unlink(S, cursor, kind):
    """Take a cursor out of its chain, if it is in a chain."""
    chain = S.links[cursor, kind, WHERE]
    if chain < 0:
        return
    before, behind = S.links[cursor, kind, PREVIOUS], S.links[cursor, kind, NEXT]
    if before >= 0:
        S.links[before, kind, NEXT] = behind
    else:
        S.chains[chain] = behind
    if behind >= 0:
        S.links[behind, kind, PREVIOUS] = before
    S.links[cursor, kind, WHERE] = -1
    if chain >= STREAM_CHAINS:
        S.queues[S.cursors[cursor].queue].followers -= 1


@inlined
def make_ready(S, cursor):
    """The cursor may have something to do."""
    S.ready[cursor >> 6] |= 1 << (cursor & 63)


@inlined
def wake_chain(S, kind, chain):
    """Make all cursors of a chain ready. Returns how many."""
    n = 0
    cursor = S.chains[chain]
    while cursor >= 0:
        behind = S.links[cursor, kind, NEXT]
        S.links[cursor, kind, WHERE] = -1
        make_ready(S, cursor)
        cursor = behind
        n += 1
    S.chains[chain] = -1
    return n


# --- its block ---------------------------------------------------------------------------------


@inlined
def block_of(S, C, cycle):
    """The block that holds the cursor's next token; -1: it is not in memory.

    A cursor in the hole before a block's first record steps to that record.
    """
    b = C.block
    if b >= 0:
        B = S.blocks[b]
        if B.generation == C.block_generation and B.first <= C.next and C.next < B.end:
            touch(S, b, cycle)
            return b
    b = find_block(S, C.queue, C.next)
    if b >= 0:
        C.block, C.block_generation = b, S.blocks[b].generation
        touch(S, b, cycle)
        if C.next < S.blocks[b].first:
            C.next, C.dirty = S.blocks[b].first, 1
    return b


@inlined
def park(S, C):
    """The cursor rests: its block is kept as long as memory allows."""
    b = C.block
    if C.parked >= 0 or b < 0 or S.blocks[b].generation != C.block_generation:
        return
    B = S.blocks[b]
    if B.lead <= C.next and C.next < B.end:
        B.parked += 1
        C.parked, C.parked_generation = b, B.generation


@inlined
def unpark(S, C):
    """A cursor no longer rests in its block."""
    if C.parked >= 0:
        B = S.blocks[C.parked]
        if B.generation == C.parked_generation and B.parked > 0:
            B.parked -= 1
        C.parked = -1


@inlined
def want(S, C, cursor, token):
    """Wait for the block with ``token``, or for new records when there is none yet."""
    Q = S.queues[C.queue]
    if token >= Q.end and S.links[cursor, FOR_QUEUE, WHERE] == BLOCK_CHAINS + C.queue:
        return  # it waits for the block of a redelivery: that comes first
    if token >= Q.end:
        C.reason = CAUGHT_UP
        if C.filter == STREAM:
            follow(S, C, cursor)
            return
        link(S, cursor, FOR_QUEUE, DATA_CHAINS + C.queue)
        return
    C.reason = FETCHING
    link(S, cursor, FOR_QUEUE, BLOCK_CHAINS + C.queue)
    if Q.want < 0:
        Q.want = token
    if Q.fetching == 0:
        S.wanting[C.queue >> 6] |= 1 << (C.queue & 63)


@inlined
def queue_grew(S, q):
    """New records were appended: the next fetch finds the new end."""
    S.queues[q].end, S.queues[q].grew = UNKNOWN, 1
    if S.queues[q].followers > 0:
        S.scanning[q >> 6] |= 1 << (q & 63)
    return wake_chain(S, FOR_QUEUE, DATA_CHAINS + q)


# --- on the way to a cursor ----------------------------------------------------------------------
# With 10,000 cursors of one stream each, a cursor is not in the processor's cache when it is used:
# loading seven cache lines, one after the other, took 350 ns a record.
HOT_LINES = 4


@inlined
def ask_for_cursor(S, cursor):
    """Prefetch a cursor."""
    at = address_of(S.cursors) + cursor * CURSOR_BYTES
    for k in range(HOT_LINES):
        prefetch(at + k * LINE_BYTES)


@inlined
def ask_for_chain(S, q, key_hash):
    """The chain of a stream is about to be walked."""
    prefetch(address_of(S.chains) + stream_chain(q, key_hash) * 4)


@inlined
def ask_for_stream(S, q, key_hash):
    """Prefetch the first cursor in a stream's chain."""
    cursor = S.chains[stream_chain(q, key_hash)]
    if cursor >= 0:
        ask_for_cursor(S, cursor)
        prefetch(address_of(S.links) + cursor * LINK_BYTES)


# --- cursors of one stream ------------------------------------------------------------------------


@inlined
def stream_chain(q, key_hash):
    """The chain of cursors that wait for a stream's record (and for streams with its bucket)."""
    return STREAM_CHAINS + ((((key_hash + q * 40_503) * 0x9E3779B1) >> 12) & (STREAM_BUCKETS - 1))


@inlined
def may_follow(S, C):
    """Whether the scan of the queue's new records has yet to reach the cursor's position."""
    Q = S.queues[C.queue]
    return Q.followers == 0 or C.next >= Q.scanned


@inlined
def follow(S, C, cursor):
    """Wait until the scan of the queue's new records finds a record of this cursor's stream."""
    q = C.queue
    Q = S.queues[q]
    if S.links[cursor, FOR_QUEUE, WHERE] == BLOCK_CHAINS + q:
        return
    if Q.followers == 0 or C.next < Q.scanned:
        Q.scanned = C.next
    C.reason = CAUGHT_UP  # as far as its own stream is concerned
    chain = stream_chain(q, C.stream_hash)
    if S.links[cursor, FOR_QUEUE, WHERE] != chain:
        link(S, cursor, FOR_QUEUE, chain)
        Q.followers += 1
    if Q.scanned < Q.end:
        S.scanning[q >> 6] |= 1 << (q & 63)


@inlined
def catch_up(S, C, cursor):
    """Advance a waiting cursor to the position of the scan. Returns records passed."""
    if S.links[cursor, FOR_QUEUE, WHERE] < STREAM_CHAINS:
        return 0
    done = max(0, S.queues[C.queue].scanned - C.next)
    C.next += done
    return done
