"""A placed append: batches that a caller has built for one queue, written between two cycles.

The archiver reads rings, and the mapper chooses the queue of each message. A protocol whose clients
choose the queue themselves, and have no ring, passes whole batches instead. Batches get their
tokens, the owner's epoch and their checksums here; the next sync covers them like all others.
"""

from __future__ import annotations

from tidecast.agents.archiver.state import ARCHIVER, HELD_NOT, SYNC_BATCH, SYNC_NONE
from tidecast.buffers.member_ring import wake
from tidecast.buffers.slots import ring_bell
from tidecast.layout import ring as lay
from tidecast.layout import segment as seg
from tidecast.layout.counters import QueueCounter as C
from tidecast.layout.member import WAKE_QUEUES_AT
from tidecast.log.append import ROLL, SUSPECT, append_run
from tidecast.log.batch import seal_batch
from tidecast.log.state import LOG
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import bytes_at, load_u32, store_i64, store_u32

HELD, NEEDS_ROLL = -100_001, -100_002
"""Results of `append_placed` below zero besides ``-errno``: the topic waits for its disk or for a
sync; the segment is full: make the next one and call again. Nothing was written."""

_archiver_of, _log_of = ARCHIVER.of, LOG.of


@inlined
def _stamp(buffer, n, token, owner, producer, epoch, base_seq, wall_ns):
    """Write tokens, sequences and checksums into all batches of ``buffer[:n]``; the next token.

    ``base_seq`` below 0: batches keep the sequences that they have.
    """
    at, first = 0, token
    while at < n:
        length = load_u32(buffer, at + seg.BATCH_LENGTH_AT)
        store_u32(buffer, at + seg.BATCH_OWNER_AT, owner)
        store_i64(buffer, at + seg.BATCH_PRODUCER_AT, producer)
        store_u32(buffer, at + seg.BATCH_EPOCH_AT, epoch)
        if base_seq >= 0:
            store_i64(buffer, at + seg.BATCH_BASE_SEQ_AT, base_seq + token - first)
        token = seal_batch(buffer, at, at + length, token, wall_ns)
        at += length
    return token


@kernel
def append_placed(words, number, buffer, n, producer, epoch, base_seq, now_ns, wall_ns):
    """Append the whole batches ``buffer[:n]`` to a queue: token of their first record, or see HELD.

    ``number``: the queue's row. ``producer``: its id, 0: none, with its epoch and its sequence of
    the first record, or below 0: the batches have sequences.
    """
    A = _archiver_of(words)
    queue = A.queues[number]
    topic = A.topics[queue.topic]
    if topic.suspect != 0 or topic.held != HELD_NOT or queue.used != 0:
        return HELD
    first = queue.next_token
    behind = _stamp(buffer, n, first, topic.owner, producer, epoch, base_seq, wall_ns)
    status = append_run(_log_of(bytes_at(queue.log_address, 8)), buffer, 0, n)
    if status == ROLL:
        return NEEDS_ROLL
    if status == SUSPECT:
        return HELD
    counters = A.counters[queue.row]
    if status < 0:
        counters[C.APPEND_FAILURES] += 1
        return status
    at = 0
    while at < n:
        counters[C.BATCHES] += 1
        at += load_u32(buffer, at + seg.BATCH_LENGTH_AT)
    counters[C.RECORDS] += behind - first
    counters[C.BYTES] += n
    counters[C.WRITES] += 1
    counters[C.NEXT_TOKEN] = behind
    queue.next_token = behind
    queue.dirty = 1
    if topic.policy != SYNC_NONE and topic.dirty_ns == 0:
        topic.dirty_ns = now_ns
        ring_bell(A.bells, lay.DOORBELL_ARCHIVER)
    if queue.puller > 0 and topic.policy != SYNC_BATCH:  # else readers see it once it is synced
        wake(A.wakes, A.bells, WAKE_QUEUES_AT, queue.puller - 1)
    return first
