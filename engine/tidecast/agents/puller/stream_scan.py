"""Cursors of one stream (one key) each: a queue's new records are scanned once for all of them.

A cursor that waits for a record of its stream is in a chain of its queue and its key's hash. The
scan walks over a queue's records in order, and delivers each record to the cursors of its chain
whose stream it belongs to. The cursors stay in the chain, instead of being woken, finding their
record and waiting again. `tidecast bench streams` measures the cost of a record with 1, 100 and
10,000 streams.
"""

from __future__ import annotations

import numpy as np

from tidecast.agents.puller.delivery import STUCK, deliver_run
from tidecast.agents.puller.state import P_CYCLE
from tidecast.layout import segment as seg
from tidecast.native.jit import inlined
from tidecast.native.lines import prefetch
from tidecast.native.memory import load_u32
from tidecast.queues.cache import cursors, window
from tidecast.queues.cache.blocks import HOLE, data_of, record_at
from tidecast.queues.cache.cache import find_block, touch

_AHEAD = 2
"""Distance in records between two steps of the prefetch."""


@inlined
def _deliver(S, C, cursor, b, now, limit):
    """Deliver up to ``limit`` records to a waiting cursor, which continues to wait.

    A cursor that is held back leaves the chain, and becomes ready or waits for credit.
    """
    unowned = C.owner < 0 and (C.owners == 0 or C.moving > 0)
    if C.paused != 0 or unowned or C.again_n > C.scheduled or window.window_room(C) == 0:
        cursors.unlink(S, cursor, cursors.FOR_QUEUE)
        cursors.make_ready(S, cursor)
        return
    C.block, C.block_generation = b, S.blocks[b].generation
    if deliver_run(S, C, cursor, b, now, limit) == STUCK:
        cursors.unlink(S, cursor, cursors.FOR_QUEUE)  # it waits for credit now


@inlined
def _deliver_to_waiting(S, q, b, key_hash, token, now, limit):
    """Deliver a stream's next ``limit`` records, which are adjacent, to its waiting cursors."""
    cursor = S.chains[cursors.stream_chain(q, key_hash)]
    while cursor >= 0:
        behind = S.links[cursor, cursors.FOR_QUEUE, cursors.NEXT]
        C = S.cursors[cursor]
        if C.queue == q and C.stream_hash == key_hash and C.next <= token:
            C.next = token
            _deliver(S, C, cursor, b, now, limit)
        cursor = behind


@inlined
def _hash_at(B, data, token):
    """Hash of a record's key; -1: the token has no record."""
    p = record_at(B, token - B.first)
    return np.int64(-1) if p == HOLE else np.int64(load_u32(data, p + seg.REC_KEY_HASH_AT))


@inlined
def _look_ahead(S, q, B, data, token, end):
    """Prefetch for records behind ``token``: chains, then cursors, then windows."""
    if token + 3 * _AHEAD >= end:
        return
    cursors.ask_for_chain(S, q, _hash_at(B, data, token + 3 * _AHEAD))
    cursors.ask_for_stream(S, q, _hash_at(B, data, token + 2 * _AHEAD))
    cursor = S.chains[cursors.stream_chain(q, _hash_at(B, data, token + _AHEAD))]
    if cursor >= 0:
        C = S.cursors[cursor]
        window.ask_for_window(C, C.w_next)
        prefetch(C.filter_address)


@inlined
def scan_streams(S, q, now, most):
    """Scan up to ``most`` new records of a queue for waiting cursors. Returns records scanned."""
    Q = S.queues[q]
    if Q.followers == 0 or Q.scanned >= Q.end:
        S.scanning[q >> 6] &= ~(1 << (q & 63))
        return 0
    b = find_block(S, q, Q.scanned)
    if b < 0:
        if Q.want < 0:
            Q.want = Q.scanned
        if Q.fetching == 0:
            S.wanting[q >> 6] |= 1 << (q & 63)
        return 0
    touch(S, b, S.misc[P_CYCLE])
    B = S.blocks[b]
    data = data_of(B)
    Q.scanned = max(Q.scanned, B.first)
    token = Q.scanned
    end = min(B.end, token + most)
    run_end = token
    while token < end and Q.followers > 0:
        _look_ahead(S, q, B, data, token, end)
        key_hash = _hash_at(B, data, token)
        run_end = max(run_end, token + 1)
        if key_hash < 0:
            token += 1
            continue
        while run_end < end and _hash_at(B, data, run_end) == key_hash:
            run_end += 1
        _deliver_to_waiting(S, q, b, key_hash, token, now, run_end - token)
        token += 1
    done = token - Q.scanned
    Q.scanned = token
    return done
