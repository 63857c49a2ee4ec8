"""Lanes: the cursor of one subscription in one queue, what it waits for, and the set of ready ones.

A cursor is a token. A lane is ready (a bit in a map), or waits: for new records of its queue, for a
block that is being fetched, for credit of a member. Each kind of wait is a chain that whoever ends
it walks, so no cycle ever scans lanes that have nothing to do.
"""

from __future__ import annotations

import numpy as np

from tidecast.layout.member import QUEUES_MAX
from tidecast.native.jit import inlined
from tidecast.native.lines import LINE_BYTES, in_lines, prefetch
from tidecast.native.memory import address_of
from tidecast.queues.cache.cache import UNKNOWN, find_block, touch
from tidecast.queues.filters.filters import STREAM

LANES_MAX, SUBSCRIPTIONS_MAX = 16_384, 16_384
SHARES = 64
"""A lane's keys are shared out by hash in this many shares, each with one owner."""
NOBODY, MOVING = 0xFFFF, 0xFFFE
"""Owners: none; one that still has outstanding records of the share, which is to move."""

(
    FLOWING, CAUGHT_UP, PAUSED, NO_MEMBER, NO_CREDIT, NO_ROOM, WINDOW_FULL, FETCHING, SHARE_MOVES,
) = range(9)  # fmt: skip
REASONS = (
    "flowing", "caught up", "paused", "no member", "no credit", "member's ring is full",
    "window is full", "fetching", "a share of keys moves",
)  # fmt: skip

LANE = in_lines(
    [
        # a record's way to a waiting lane and its ack touch the first four cache lines alone
        ("active", np.int64),
        ("generation", np.int64),  # with the lane's number: the word in frames
        ("sub", np.int64),
        ("queue", np.int64),
        ("next", np.int64),  # the cursor: token to deliver next
        ("stream_hash", np.int64),
        ("paused", np.int64),  # bits: 1 subscription, 2 queue, 4 topic
        ("reason", np.int64),  # why it does not flow
        # --- 64
        ("owner", np.int64),  # the one member that owns all shares; -1: several, or none
        ("again_n", np.int64),  # entries to be delivered (again)
        ("again_dirty", np.int64),  # 1: something about them changed
        ("restored_left", np.int64),  # rows of the saved position that are still ahead
        ("counting", np.int64),  # records to come that are counted by key; 0: see `window`
        ("filter", np.int64),  # 0 none, 1 one stream, 2 what a program or a function keeps
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
        ("block", np.int64),  # where the cursor was found last
        ("block_generation", np.int64),
        ("delivered", np.int64),
        ("delivered_bytes", np.int64),
        ("settled", np.int64),
        ("parked", np.int64),  # block it rests in; -1
        # --- 256
        ("parked_generation", np.int64),
        ("owners", np.int64),  # how many members own shares
        ("moving", np.int64),  # shares that wait for settling before they move; then: no one owner
        ("growing", np.int64),  # 1: the shell was asked for a larger window
        ("keys_address", np.int64),
        ("keys_mask", np.int64),
        ("keys_used", np.int64),
        ("deliveries_max", np.int64),  # 0: no limit
        ("filter_errors", np.int64),  # records about which it raised; they are delivered
        ("program_address", np.int64),  # see `where.program_of`
        ("name_address", np.int64),  # of the subscription
        ("name_bytes", np.int64),
        ("restored_address", np.int64),  # int64[n, 3]: first, end, attempts (-1: settled)
        ("restored_n", np.int64),
        ("recalled", np.int64),  # keys of which nothing is sent until a member gave them back
        ("fragment_at", np.int64),  # large record: bytes that went out
        ("redelivered", np.int64),
        ("naks", np.int64),
        ("timeouts", np.int64),
        ("dead", np.int64),
        ("dying", np.int64),  # entries on their way to the dead-letter topic
        ("filtered", np.int64),
        ("held", np.int64),
    ]
)
LANE_BYTES = LANE.itemsize

# --- chains -------------------------------------------------------------------------------------
DATA_CHAINS, BLOCK_CHAINS, CREDIT_CHAINS = 0, QUEUES_MAX, 2 * QUEUES_MAX
STREAM_CHAINS, STREAM_BUCKETS = 2 * QUEUES_MAX + SUBSCRIPTIONS_MAX, 32_768
CHAINS = STREAM_CHAINS + STREAM_BUCKETS
FOR_QUEUE, FOR_CREDIT = 0, 1
"""A lane may be in two chains: one about its queue (new records, or a block), one about credit. A
lane that follows one stream waits for new records in a bucket of its queue and key's hash."""
PREVIOUS, NEXT, WHERE = 0, 1, 2
LINK_BYTES = 24


@inlined
def link(S, lane, kind, chain):
    """Put a lane into a chain, unless it is there."""
    if S.links[lane, kind, WHERE] == chain:
        return
    unlink(S, lane, kind)
    first = S.chains[chain]
    S.links[lane, kind, WHERE] = chain
    S.links[lane, kind, PREVIOUS] = -1
    S.links[lane, kind, NEXT] = first
    if first >= 0:
        S.links[first, kind, PREVIOUS] = lane
    S.chains[chain] = lane


@inlined
def unlink(S, lane, kind):
    """Take a lane out of its chain, if it is in one."""
    chain = S.links[lane, kind, WHERE]
    if chain < 0:
        return
    before, behind = S.links[lane, kind, PREVIOUS], S.links[lane, kind, NEXT]
    if before >= 0:
        S.links[before, kind, NEXT] = behind
    else:
        S.chains[chain] = behind
    if behind >= 0:
        S.links[behind, kind, PREVIOUS] = before
    S.links[lane, kind, WHERE] = -1
    if chain >= STREAM_CHAINS:
        S.queues[S.lanes[lane].queue].followers -= 1


@inlined
def make_ready(S, lane):
    """The lane may have something to do."""
    S.ready[lane >> 6] |= 1 << (lane & 63)


@inlined
def wake_chain(S, kind, chain):
    """Make all lanes of a chain ready. Returns how many."""
    n = 0
    lane = S.chains[chain]
    while lane >= 0:
        behind = S.links[lane, kind, NEXT]
        S.links[lane, kind, WHERE] = -1
        make_ready(S, lane)
        lane = behind
        n += 1
    S.chains[chain] = -1
    return n


# --- the cursor ---------------------------------------------------------------------------------


@inlined
def block_of(S, L, cycle):
    """The block that holds the cursor's token; -1: it is not in memory."""
    b = L.block
    if b >= 0:
        B = S.blocks[b]
        if B.generation == L.block_generation and B.first <= L.next and L.next < B.end:
            touch(S, b, cycle)
            return b
    b = find_block(S, L.queue, L.next)
    if b >= 0:
        L.block, L.block_generation = b, S.blocks[b].generation
        touch(S, b, cycle)
    return b


@inlined
def park(S, L):
    """The lane rests: its block is kept as long as memory allows."""
    b = L.block
    if L.parked >= 0 or b < 0 or S.blocks[b].generation != L.block_generation:
        return
    B = S.blocks[b]
    if B.first <= L.next and L.next < B.end:
        B.parked += 1
        L.parked, L.parked_generation = b, B.generation


@inlined
def unpark(S, L):
    """It goes on."""
    if L.parked >= 0:
        B = S.blocks[L.parked]
        if B.generation == L.parked_generation and B.parked > 0:
            B.parked -= 1
        L.parked = -1


@inlined
def want(S, L, lane, token):
    """Wait for the block with ``token``, or for new records when there is none yet."""
    Q = S.queues[L.queue]
    if token >= Q.end and S.links[lane, FOR_QUEUE, WHERE] == BLOCK_CHAINS + L.queue:
        return  # what is to be delivered again waits for its block: that comes first
    if token >= Q.end:
        L.reason = 1  # CAUGHT_UP
        if L.filter == STREAM:
            follow(S, L, lane)
            return
        link(S, lane, FOR_QUEUE, DATA_CHAINS + L.queue)
        return
    L.reason = 7  # FETCHING
    link(S, lane, FOR_QUEUE, BLOCK_CHAINS + L.queue)
    if Q.want < 0:
        Q.want = token
    if Q.fetching == 0:
        S.wanting[L.queue >> 6] |= 1 << (L.queue & 63)


@inlined
def queue_grew(S, q):
    """New records were appended: how many is found out by whoever fetches."""
    S.queues[q].end, S.queues[q].grew = UNKNOWN, 1
    if S.queues[q].followers > 0:
        S.scouting[q >> 6] |= 1 << (q & 63)
    return wake_chain(S, FOR_QUEUE, DATA_CHAINS + q)


# --- on the way to a lane ----------------------------------------------------------------------
# With 10,000 lanes of one stream each a lane is far from the processor when its turn comes: seven
# lines, one after the other, were 350 ns a record.
HOT_LINES = 4


@inlined
def ask_for_lane(S, lane):
    """A lane is about to be looked at."""
    at = address_of(S.lanes) + lane * LANE_BYTES
    for k in range(HOT_LINES):
        prefetch(at + k * LINE_BYTES)


@inlined
def ask_for_chain(S, q, key_hash):
    """The chain of a stream is about to be walked."""
    prefetch(address_of(S.chains) + stream_chain(q, key_hash) * 4)


@inlined
def ask_for_stream(S, q, key_hash):
    """The lanes of a stream's chain are about to be looked at: ask for the first."""
    lane = S.chains[stream_chain(q, key_hash)]
    if lane >= 0:
        ask_for_lane(S, lane)
        prefetch(address_of(S.links) + lane * LINK_BYTES)


# --- lanes of one stream ------------------------------------------------------------------------


@inlined
def stream_chain(q, key_hash):
    """The chain of the lanes that wait for a record of a stream (and of some others)."""
    return STREAM_CHAINS + ((((key_hash + q * 40_503) * 0x9E3779B1) >> 12) & (STREAM_BUCKETS - 1))


@inlined
def may_follow(S, L):
    """Is all that lies behind the cursor still to be looked at by the queue's scout?"""
    Q = S.queues[L.queue]
    return Q.followers == 0 or L.next >= Q.scout


@inlined
def follow(S, L, lane):
    """Wait until the scout of the queue finds a record of this lane's stream."""
    q = L.queue
    Q = S.queues[q]
    if S.links[lane, FOR_QUEUE, WHERE] == BLOCK_CHAINS + q:
        return
    if Q.followers == 0 or L.next < Q.scout:
        Q.scout = L.next
    L.reason = 1  # CAUGHT_UP, as far as its own stream is concerned
    chain = stream_chain(q, L.stream_hash)
    if S.links[lane, FOR_QUEUE, WHERE] != chain:
        link(S, lane, FOR_QUEUE, chain)
        Q.followers += 1
    if Q.scout < Q.end:
        S.scouting[q >> 6] |= 1 << (q & 63)


@inlined
def catch_up(S, L, lane):
    """A waiting lane has passed what the scout has: let its cursor say so. Records passed."""
    if S.links[lane, FOR_QUEUE, WHERE] < STREAM_CHAINS:
        return 0
    done = max(0, S.queues[L.queue].scout - L.next)
    L.next += done
    return done
