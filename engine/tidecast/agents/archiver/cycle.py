"""The archiver: reads rings of durable topics, appends to their queues, reports durable messages.

In one duty cycle it reads all rings of a topic into buffers, and writes the buffer of each queue.
When all writes succeed, the topic's positions advance. When a write fails, the archiver reads no
more from the topic's rings until the write succeeds: the rings keep the messages that are not in
the log, and fill up. Group commit: cycles continue while a sync runs; the next sync covers the
messages that they append. A sync runs in its own thread (from `SYNC_ASKED` to `SYNC_DONE`), or
between cycles when the agents are inline. Where a topic has a storage beside its logs (`STORING`),
synced messages are durable once that storage has them, too. After a failed sync the archiver
appends nothing to the topic until a sync succeeds: that sync stores the segment in another file,
and the archiver must not write to the old file meanwhile.
"""

from __future__ import annotations

from tidecast.agents.archiver.reading import read_source, ring_of_source
from tidecast.agents.archiver.state import (
    ARCHIVER,
    AWAITED,
    AWAKE,
    BORROWED,
    E_DISK,
    E_DISK_OK,
    E_DRAINED,
    E_ROLL,
    E_SYNC_FAILED,
    E_WROTE,
    HELD_DISK,
    HELD_NOT,
    HELD_ROLL,
    M_CYCLES,
    M_PARKED,
    M_SYNC,
    M_SYNCS,
    M_TOPICS,
    PARKED,
    STORING,
    SYNC_ASKED,
    SYNC_BATCH,
    SYNC_DONE,
    SYNC_IDLE,
    SYNC_NONE,
    SYNCING,
)
from tidecast.agents.events import emit
from tidecast.agents.idle import (
    CONTINUE,
    ONCE,
    PARK_NS_MAX,
    bell_of,
    park_at_bell,
    quiet_cycles,
    returns,
    time_to_park,
)
from tidecast.buffers.member_ring import wake
from tidecast.buffers.slots import control_at, holds, ring_bell
from tidecast.layout import ring as lay
from tidecast.layout.counters import QueueCounter as C
from tidecast.layout.member import WAKE_QUEUES_AT
from tidecast.log.append import ROLL, SUSPECT, append_run, words_of
from tidecast.log.state import L_BATCHES, L_DURABLE_TOKEN, L_NEXT_TOKEN, L_STORED_TOKEN, LOG
from tidecast.native.atomics import (
    compare_and_swap,
    exchange,
    fence_seq_cst,
    fetch_or,
    load_acquire,
    load_relaxed,
    store_release,
)
from tidecast.native.jit import held_kernel, inlined, kernel
from tidecast.native.memory import address_of, bytes_at, load_i64, store_i64
from tidecast.native.system import syscalls as sys

RETRY_NS = 50_000_000
"""A failed write is tried again after this time."""
SYNC_DOUBLINGS_MAX = 5
"""How often the delay of the next sync doubles while syncs fail: each failed sync stores the
messages that are not synced in a new file."""

archiver_of, _log_of = ARCHIVER.of, LOG.of
_MISC_WORD = 8


@inlined
def _misc(A):
    return bytes_at(address_of(A.misc), A.misc.size * _MISC_WORD)


# --- positions of rings ---------------------------------------------------------------------------


@inlined
def _wake_publisher(A, ring):
    fence_seq_cst()
    if load_relaxed(ring, lay.ACK_ARMED_AT) != 0:
        exchange(ring, lay.ACK_ARMED_AT, 0)
        ring_bell(A.bells, load_i64(ring, lay.ACK_BELL_AT))


@inlined
def _report_durable(A, source, seq, at, count):
    """All before (seq, at) is durable: note it where a crash cannot tear it, then give it back."""
    ring = ring_of_source(source)
    version = load_i64(ring, lay.ACK_VERSION_AT) + 1
    record = lay.ACK_RECORDS_AT + (version & 1) * lay.ACK_RECORD_BYTES
    store_i64(ring, record, seq)
    store_i64(ring, record + 8, at)
    store_i64(ring, record + 16, count)
    store_release(ring, lay.ACK_VERSION_AT, version)
    entry = lay.CONSUMERS_AT + source.consumer * lay.CONSUMER_BYTES
    store_release(ring, entry + lay.CONSUMER_POSITION_AT, seq)
    store_release(ring, lay.DURABLE_AT, count)
    reported = source.d_count
    source.d_seq, source.d_at, source.d_count = seq, at, count
    if count != reported:
        _wake_publisher(A, ring)


@inlined
def _report_state(A, topic, state):
    """Tell the topic's publishers that the disk refuses (errno), or takes again (0)."""
    s = topic.first_source
    while s >= 0:
        ring = ring_of_source(A.sources[s])
        if load_relaxed(ring, lay.ACK_STATE_AT) >= 0:
            store_release(ring, lay.ACK_STATE_AT, state)
            _wake_publisher(A, ring)
        s = A.sources[s].next


@inlined
def _see_drained(A, source):
    """Report once that a closed ring is durable to its end."""
    ring = ring_of_source(source)
    if source.drained_reported != 0 or load_acquire(ring, lay.CLOSED_AT) == 0:
        return
    if source.d_seq >= load_i64(ring, lay.END_SEQ_AT):
        source.drained_reported = emit(A.events, A.attention, E_DRAINED, source.index)


# --- one cycle of a topic -------------------------------------------------------------------------


@inlined
def _write_queue(A, topic, queue):
    """Append the buffer of a queue. Returns HELD_NOT, or why the buffer waits (HELD_*)."""
    L = _log_of(bytes_at(queue.log_address, 8))
    buffer = bytes_at(queue.buffer_address, queue.buffer_bytes)
    batches = L.w[L_BATCHES]
    status = append_run(L, buffer, 0, queue.used)
    counters = A.counters[queue.row]
    if status == ROLL:
        if queue.roll_asked == 0:
            queue.roll_asked = emit(A.events, A.attention, E_ROLL, queue.index)
        return HELD_ROLL
    if status == SUSPECT:
        return HELD_DISK
    if status < 0:
        counters[C.APPEND_FAILURES] += 1
        counters[C.ERRNO] = -status
        if topic.errno != -status:
            emit(A.events, A.attention, E_DISK, topic.index, queue.index, -status)
            topic.errno = -status
        return HELD_DISK
    counters[C.ERRNO] = 0
    counters[C.BYTES] += queue.used
    counters[C.BATCHES] += L.w[L_BATCHES] - batches
    counters[C.WRITES] += 1
    counters[C.NEXT_TOKEN] = L.w[L_NEXT_TOKEN]
    queue.used = 0
    queue.dirty = 1
    if queue.puller > 0 and topic.policy != SYNC_BATCH:  # else readers see it once it is synced
        wake(A.wakes, A.bells, WAKE_QUEUES_AT, queue.puller - 1)
    return HELD_NOT


@inlined
def _write_queues(A, topic, now_ns):
    """Write the buffers of the topic's queues; when all are written, its positions advance."""
    held, wrote = HELD_NOT, 0
    for number in range(topic.queues):
        row = load_i64(bytes_at(topic.map_address, topic.queues * 8), number * 8)
        queue = A.queues[row]
        if queue.used == 0:
            continue
        wrote += 1
        held = max(held, _write_queue(A, topic, queue))
    topic.held = held
    if held == HELD_DISK:
        topic.retry_ns = now_ns + RETRY_NS
        _report_state(A, topic, topic.errno)
        return
    if held == HELD_ROLL:
        return
    if topic.errno != 0:
        topic.errno = 0
        emit(A.events, A.attention, E_DISK_OK, topic.index)
        _report_state(A, topic, 0)
    if wrote > 0 and topic.dirty_ns == 0 and topic.policy != SYNC_NONE:
        topic.dirty_ns = now_ns
    if wrote > 0 and topic.awaited != 0 and topic.policy == SYNC_NONE:
        topic.awaited = 1 - emit(A.events, A.attention, E_WROTE, topic.index)
    _move_on(A, topic)


@inlined
def _move_on(A, topic):
    """The records read are in the log. With nothing left to sync they are durable too."""
    clean = topic.dirty_ns == 0 and topic.syncing == 0
    s = topic.first_source
    while s >= 0:
        source = A.sources[s]
        if source.seq != source.a_seq or source.at != source.a_at:
            source.a_seq, source.a_at, source.a_count = source.seq, source.at, source.count
            store_release(ring_of_source(source), lay.APPENDED_AT, source.count)
            if source.seq - source.d_seq > (source.slots >> 2):
                topic.urgent = 1
        if clean and (source.a_seq != source.d_seq or source.a_at != source.d_at):
            _report_durable(A, source, source.a_seq, source.a_at, source.a_count)
        if clean:
            _see_drained(A, source)
        s = source.next


@inlined
def _topic_cycle(A, topic, fields, now_ns, wall_ns):
    if topic.suspect != 0 or topic.held == HELD_ROLL:
        return 0
    if topic.held == HELD_DISK and now_ns < topic.retry_ns:
        return 0
    moved = 0
    if topic.held == HELD_NOT:
        s = topic.first_source
        while s >= 0:
            source = A.sources[s]
            if read_source(A, topic, source, wall_ns, fields):
                moved += 1
            elif source.d_seq == source.seq and source.d_at == source.at:
                _see_drained(A, source)
            s = source.next
        if moved == 0:
            return 0
    _write_queues(A, topic, now_ns)
    return moved + 1


# --- group commit ---------------------------------------------------------------------------------


@inlined
def _sync_due(topic, now_ns):
    if topic.dirty_ns == 0 or topic.syncing != 0 or now_ns < topic.sync_retry_ns:
        return False
    if topic.policy == SYNC_BATCH or topic.urgent != 0:
        return True
    return now_ns - topic.dirty_ns >= topic.interval_ns


@inlined
def _begin_sync(A, topic):
    topic.syncing, topic.sync_status, topic.dirty_ns, topic.urgent = SYNCING, 0, 0, 0
    s = topic.first_source
    while s >= 0:
        source = A.sources[s]
        source.p_seq, source.p_at, source.p_count = source.a_seq, source.a_at, source.a_count
        s = source.next


@inlined
def _end_sync(A, topic, now_ns):
    topic.syncing = 0
    topic.suspect = 0
    if topic.sync_status < 0:
        topic.suspect = 1
        topic.dirty_ns = now_ns
        topic.sync_retry_ns = now_ns + (RETRY_NS << min(topic.sync_failures, SYNC_DOUBLINGS_MAX))
        topic.sync_failures += 1
        if topic.errno == 0:
            topic.errno = -topic.sync_status
            emit(A.events, A.attention, E_SYNC_FAILED, topic.index, -topic.sync_status)
            _report_state(A, topic, topic.errno)
        return
    topic.sync_retry_ns = topic.sync_failures = 0
    if topic.errno != 0 and topic.held == HELD_NOT:
        topic.errno = 0
        emit(A.events, A.attention, E_DISK_OK, topic.index)
        _report_state(A, topic, 0)
    if topic.stored != 0:
        topic.syncing = STORING
        return
    _report_synced(A, topic)


@inlined
def _report_synced(A, topic):
    """The records that the sync covered are durable."""
    s = topic.first_source
    while s >= 0:
        source = A.sources[s]
        if topic.dirty_ns == 0:  # packets that only ended since then hold nothing to sync
            source.p_seq, source.p_at, source.p_count = source.a_seq, source.a_at, source.a_count
        if source.p_seq != source.d_seq or source.p_at != source.d_at:
            _report_durable(A, source, source.p_seq, source.p_at, source.p_count)
        _see_drained(A, source)
        s = source.next


@inlined
def _is_stored(A, topic):
    """Whether the storage beside a topic's logs has all synced messages."""
    rows = bytes_at(topic.map_address, topic.queues * 8)
    for number in range(topic.queues):
        L = _log_of(bytes_at(A.queues[load_i64(rows, number * 8)].log_address, 8))
        if load_acquire(words_of(L), L_STORED_TOKEN * 8) < L.w[L_DURABLE_TOKEN]:
            return False
    return True


@inlined
def _store_step(A):
    """Report topics whose storage has all synced messages now. Returns how many topics."""
    work = 0
    for k in range(A.misc[M_TOPICS]):
        topic = A.topics[A.index[k]]
        if topic.syncing == STORING and _is_stored(A, topic):
            topic.syncing = 0
            _report_synced(A, topic)
            work += 1
    return work


@inlined
def _sync_step(A, now_ns):
    """Take the result of a sync, begin the next one. 1: something happened."""
    state = load_acquire(_misc(A), M_SYNC * _MISC_WORD)
    if state == SYNC_ASKED:
        return 0
    work = 0
    if state == SYNC_DONE:
        for k in range(A.misc[M_TOPICS]):
            topic = A.topics[A.index[k]]
            if topic.syncing == SYNCING:
                _end_sync(A, topic, now_ns)
        store_release(_misc(A), M_SYNC * _MISC_WORD, SYNC_IDLE)
        work = 1
    due = 0
    for k in range(A.misc[M_TOPICS]):
        topic = A.topics[A.index[k]]
        if _sync_due(topic, now_ns):
            _begin_sync(A, topic)
            due += 1
    if due > 0:
        A.misc[M_SYNCS] += 1
        store_release(_misc(A), M_SYNC * _MISC_WORD, SYNC_ASKED)
        ring_bell(A.bells, lay.DOORBELL_ARCHIVER + 1)
        work = 1
    return work


@inlined
def archive_cycle(A, fields, now_ns, wall_ns):
    """One duty cycle. Returns the amount of work done. ``fields``: int64[8] scratch."""
    work = 0
    for k in range(A.misc[M_TOPICS]):
        work += _topic_cycle(A, A.topics[A.index[k]], fields, now_ns, wall_ns)
    A.misc[M_CYCLES] += 1
    work += _sync_step(A, now_ns)
    return work + _store_step(A)


@held_kernel
def notify_ring(ring, bells, state):
    """Write to a ring that its session is over (ACK_*), and wake its publisher."""
    store_release(ring, lay.ACK_STATE_AT, state)
    ring_bell(bells, load_i64(ring, lay.ACK_BELL_AT))


# --- its thread -----------------------------------------------------------------------------------


@inlined
def _has_more(source, ring):
    word = load_acquire(ring, control_at(source.seq, source.slots - 1))
    if not holds(word, source.seq) or source.gap_reported != 0:
        return False
    state = (word >> lay.STATE_SHIFT) & 0xFF
    if state == lay.OPEN:
        return word & lay.CONTROL_LENGTH_MASK > source.at
    return state != lay.EMPTY


@held_kernel
def topic_unread(words, index):
    """Has a topic's source more than the topic's logs? Between two cycles."""
    A = archiver_of(words)
    s = A.topics[index].first_source
    while s >= 0:
        source = A.sources[s]
        if source.seq != source.a_seq or source.at != source.a_at:
            return True
        if _has_more(source, ring_of_source(source)):
            return True
        s = source.next
    return False


@inlined
def _wait_ns(A, now_ns):
    """Arm all rings; how long to sleep then (0: there is work)."""
    wait = PARK_NS_MAX
    idle = load_acquire(_misc(A), M_SYNC * _MISC_WORD) == SYNC_IDLE
    for k in range(A.misc[M_TOPICS]):
        topic = A.topics[A.index[k]]
        if topic.held == HELD_DISK and topic.suspect == 0:
            wait = min(wait, topic.retry_ns - now_ns)
        if topic.dirty_ns != 0 and idle and topic.syncing == 0:
            due = topic.dirty_ns + topic.interval_ns
            if topic.policy == SYNC_BATCH or topic.urgent != 0:
                due = now_ns
            wait = min(wait, max(due, topic.sync_retry_ns) - now_ns)
        s = topic.first_source
        while s >= 0:
            source = A.sources[s]
            fetch_or(ring_of_source(source), lay.ARMED_AT, 1 << source.consumer)
            s = source.next
    fence_seq_cst()
    for k in range(A.misc[M_TOPICS]):
        topic = A.topics[A.index[k]]
        if topic.syncing == STORING and _is_stored(A, topic):
            return 0
        s = topic.first_source
        while s >= 0 and topic.held == HELD_NOT and topic.suspect == 0:
            source = A.sources[s]
            if _has_more(source, ring_of_source(source)):
                return 0
            s = source.next
    if load_acquire(_misc(A), M_SYNC * _MISC_WORD) == SYNC_DONE:
        return 0
    return max(wait, 0)


@inlined
def _park(A, seen, wait_ns, scratch):
    """Sleep. Meanwhile a thread can borrow the state: then wait until it has given it back."""
    at, bell = M_PARKED * _MISC_WORD, lay.DOORBELL_ARCHIVER
    store_release(_misc(A), at, PARKED)
    park_at_bell(A.bells, bell, seen, wait_ns, A.attention, scratch)
    while not compare_and_swap(_misc(A), at, PARKED, AWAKE):
        seen = bell_of(A.bells, bell)
        if load_acquire(_misc(A), at) == AWAKE:
            break
        compare_and_swap(_misc(A), at, BORROWED, AWAITED)
        if load_acquire(_misc(A), at) == AWAITED:
            word = address_of(A.bells) + bell * lay.DOORBELL_BYTES
            sys.futex_wait(word, seen, PARK_NS_MAX, scratch)


@held_kernel
def borrow_archiver(words):
    """Have the state of an archiver that is parked, until `give_back`. False: it is awake."""
    A = archiver_of(words)
    return compare_and_swap(_misc(A), M_PARKED * _MISC_WORD, PARKED, BORROWED)


@held_kernel
def give_back(words):
    """The archiver has its state again.

    An archiver that waits gets it before the next thread that would borrow it.
    """
    A = archiver_of(words)
    if not compare_and_swap(_misc(A), M_PARKED * _MISC_WORD, BORROWED, PARKED):
        store_release(_misc(A), M_PARKED * _MISC_WORD, AWAKE)
        ring_bell(A.bells, lay.DOORBELL_ARCHIVER)


@kernel
def run_archiver(words, idle, fields, scratch, now_ns, wall_ns):
    """Run until asked to stop (0) or there are events (1).

    With ``idle`` ONCE: one duty cycle at the times given. Returns the amount of work done.
    """
    A = archiver_of(words)
    quiet = 0
    while True:
        now, wall = now_ns, wall_ns
        if idle != ONCE:
            now = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
            wall = sys.clock_ns(sys.CLOCK_REALTIME, scratch)
        work = archive_cycle(A, fields, now, wall)
        if idle == ONCE:
            return work
        if returns(A.attention) != CONTINUE:
            return returns(A.attention)
        quiet = quiet_cycles(quiet, work)
        if time_to_park(idle, quiet):
            seen = bell_of(A.bells, lay.DOORBELL_ARCHIVER)
            wait = _wait_ns(A, now)
            if wait > 0:
                _park(A, seen, wait, scratch)


@kernel
def wait_for_sync(words, timeout_ns, scratch):
    """Sleep until a sync is requested or the time is over. True: a sync is requested."""
    A = archiver_of(words)
    line = lay.DOORBELL_ARCHIVER + 1
    seen = bell_of(A.bells, line)
    if load_acquire(_misc(A), M_SYNC * _MISC_WORD) == SYNC_ASKED:
        return True
    sys.futex_wait(address_of(A.bells) + line * lay.DOORBELL_BYTES, seen, timeout_ns, scratch)
    return load_acquire(_misc(A), M_SYNC * _MISC_WORD) == SYNC_ASKED


@held_kernel
def sync_done(words):
    """The requested sync is over; `sync_status` of each topic has its result."""
    A = archiver_of(words)
    store_release(_misc(A), M_SYNC * _MISC_WORD, SYNC_DONE)
    ring_bell(A.bells, lay.DOORBELL_ARCHIVER)
