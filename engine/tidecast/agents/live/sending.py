"""How the sender serves one publication: repairs, then new packets, within limits."""

from __future__ import annotations

from tidecast.agents.live.compacting import stage_run, staged_bytes
from tidecast.agents.live.publications import (
    M_LANE,
    M_LANES,
    M_NODE,
    M_RATE_BYTES,
    M_RATE_PACKETS,
)
from tidecast.buffers.recorder import record
from tidecast.buffers.slots import control_at, control_word, holds
from tidecast.layout import packet as wire
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.layout.counters import Counter as C
from tidecast.native.atomics import (
    compare_and_swap,
    fence_acquire,
    load_acquire,
    load_relaxed,
    store_relaxed,
    store_release,
)
from tidecast.native.jit import inlined
from tidecast.native.memory import (
    address_of,
    bytes_at,
    copy,
    load_i64,
    load_u16,
    store_i64,
    store_u8,
    store_u16,
)
from tidecast.protocol.rate_limit import BURST_PACKETS_MIN, allowed_packets, refill
from tidecast.transport.wire_io import IO_GSO, IO_SEGMENTS_MAX, send_run_to_all

BURST_PACKETS_MAX = 64
REPAIR_BURST_MAX = 32
PROBE_NS_MIN, PROBE_NS_MAX, PROBE_NS_UNKNOWN = 60_000, 10_000_000, 200_000
NEAR_LIMIT_LINGER_NS = 1_000_000
SEND_RETRY_NS = 1_000_000
"""A network that refuses packets (interface down, no route) is asked so often: no spin."""
LANE_AT_WORK_NS = 10_000_000
"""A lane that wanted to send since then has its share of the transport's rate."""
PADDING_SHIFT = 3
"""COMPACT packets are as long as the longest of a run where that adds at most 1/8."""
_HEADER = wire.PACKET_HEADER_BYTES


@inlined
def note(S, section, now_ns, code, entity, a=0, b=0, c=0, d=0):
    """Append a record of the sender to the flight recorder."""
    record(S.recorder, rec.WRITER_SENDER, section, now_ns, code, entity, a, b, c, d)


@inlined
def counted(S, pub, counter, n):
    """Add to a counter of this publication."""
    S.counters[pub.row, counter] += n


@inlined
def _lanes_at_work(S, waits, now_ns):
    """How many lanes of the transport want to send: they share its rate evenly."""
    if waits:
        S.at_work[S.misc[M_LANE], 0] = now_ns
    n = 0
    for lane in range(S.misc[M_LANES]):
        n += int(now_ns - S.at_work[lane, 0] < LANE_AT_WORK_NS)
    return max(n, 1)


@inlined
def _allowance(S, pub, ring, waits, wanted, now_ns):
    """How many of ``wanted`` packets the rate limits let go now. ``waits``: there is a message."""
    rate_packets = load_relaxed(ring, lay.RATE_PACKETS_AT)
    rate_bytes = load_relaxed(ring, lay.RATE_BYTES_AT)
    allowed = wanted
    if rate_packets > 0 or rate_bytes > 0:
        elapsed = now_ns - pub.tokens_ns
        burst_bytes = BURST_PACKETS_MIN * pub.slot_bytes
        pub.tokens_packets = refill(pub.tokens_packets, rate_packets, elapsed, BURST_PACKETS_MIN)
        pub.tokens_bytes = refill(pub.tokens_bytes, rate_bytes, elapsed, burst_bytes)
        pub.tokens_ns = now_ns
        allowed = allowed_packets(
            pub.tokens_packets, pub.tokens_bytes, rate_packets, rate_bytes, pub.slot_bytes, allowed
        )
    if S.misc[M_RATE_PACKETS] > 0 or S.misc[M_RATE_BYTES] > 0:
        elapsed = now_ns - int(S.bucket[2])
        lanes = _lanes_at_work(S, waits, now_ns)
        rate_packets = S.misc[M_RATE_PACKETS] / lanes
        rate_bytes = S.misc[M_RATE_BYTES] / lanes
        burst_bytes = BURST_PACKETS_MIN * pub.slot_bytes
        S.bucket[0] = refill(S.bucket[0], rate_packets, elapsed, BURST_PACKETS_MIN)
        S.bucket[1] = refill(S.bucket[1], rate_bytes, elapsed, burst_bytes)
        S.bucket[2] = now_ns
        allowed = allowed_packets(
            S.bucket[0], S.bucket[1], rate_packets, rate_bytes, pub.slot_bytes, allowed
        )
    near = int(allowed < wanted)
    if near != pub.near_limit:
        pub.near_limit = near
        store_relaxed(ring, lay.NEAR_LIMIT_AT, near)
    return allowed


@inlined
def _spend(S, pub, packets, n):
    pub.tokens_packets -= packets
    pub.tokens_bytes -= n
    S.bucket[0] -= packets
    S.bucket[1] -= n


@inlined
def _open_writer_limit(pub, ring):
    """Set how far the writer may write: half a ring unsent, and over no packet that `min` keeps."""
    limit = pub.sent + (pub.slots >> 1)
    if pub.flow == lay.FLOW_MIN and pub.receivers > 0:
        limit = min(limit, pub.lowest + pub.slots)
    store_release(ring, lay.NETWORK_LIMIT_AT, limit)


@inlined
def _seal_if_old(pub, ring, seq, word, now_ns):
    """Seal the open packet when it holds messages and has lingered. Returns its control word."""
    if word & lay.CONTROL_LENGTH_MASK <= _HEADER:
        return word
    linger = load_relaxed(ring, lay.LINGER_AT)
    if pub.near_limit != 0:
        linger = max(linger, NEAR_LIMIT_LINGER_NS)
    if pub.open_seq != seq:
        pub.open_seq, pub.open_ns = seq, now_ns
    if now_ns - pub.open_ns < linger:
        return word
    sealed = control_word(seq, lay.SEALED, word & lay.CONTROL_LENGTH_MASK)
    if compare_and_swap(ring, control_at(seq, pub.slots - 1), word, sealed):
        return sealed
    return word


@inlined
def _sealed_run(pub, ring, wanted, now_ns):
    """(packets, bytes) of the run of sealed packets from `sent` on that lie side by side.

    Sets their headers' length and time. At most ``wanted`` packets.
    """
    mask = pub.slots - 1
    seq = pub.sent
    n = 0
    total = 0
    while n < wanted:
        if n > 0 and (seq & mask) == 0:
            break
        word = load_acquire(ring, control_at(seq, mask))
        if not holds(word, seq):
            break
        state = (word >> lay.STATE_SHIFT) & 0xFF
        if state == lay.OPEN and n == 0:
            word = _seal_if_old(pub, ring, seq, word, now_ns)
            state = (word >> lay.STATE_SHIFT) & 0xFF
        if state != lay.SEALED:
            break
        length = min(max(word & lay.CONTROL_LENGTH_MASK, _HEADER), pub.slot_bytes)
        slot = pub.slots_at + (seq & mask) * pub.slot_bytes
        store_u16(ring, slot + wire.LENGTH_AT, length)
        store_i64(ring, slot + wire.TIME_AT, now_ns)
        total += length
        n += 1
        seq += 1
    return n, total


@inlined
def _send_run(S, pub, ring, n, total, now_ns):
    """Send ``n`` sealed packets of ``total`` bytes, or COMPACT packets: (packets, bytes) sent."""
    memory, stride = ring, pub.slot_bytes
    at = pub.slots_at + (pub.sent & (pub.slots - 1)) * pub.slot_bytes
    padded = total * 2 >= n * stride
    staged = False
    if pub.compacts != 0:
        width, some = stage_run(S, pub, ring, n, S.misc[M_NODE], now_ns)
        if width < 0:
            return some, 0
        if width > 0:
            staged, total = True, some
            memory, at, stride = bytes_at(address_of(S.compact), S.compact.size), 0, width
            padded = (n * stride - some) << PADDING_SHIFT <= some
    sent = send_run_to_all(S.tx, pub.channel, memory, at, stride, n, padded)
    if sent <= 0:
        return sent, 0
    last = load_u16(memory, at + (sent - 1) * stride + wire.LENGTH_AT)
    pub.wire_bytes += (sent - 1) * stride + last if padded else total * sent // n
    if staged:
        return sent, staged_bytes(S, pub, stride, sent)
    return sent, total * sent // n


@inlined
def send_new_packets(S, pub, ring, now_ns):
    """Send sealed packets. Returns how many went out."""
    if pub.waits_ns != 0:
        _count_wait(pub, now_ns)
    if now_ns < pub.hold_until_ns:
        return 0
    wanted = BURST_PACKETS_MAX
    if S.tx.io[IO_GSO] != 0 and S.tx.io[IO_SEGMENTS_MAX] > 1:
        wanted = S.tx.io[IO_SEGMENTS_MAX]  # one full bundle: 46 packets cost 9 us, 46 + 2 cost 12.5
    if pub.limit - pub.sent < wanted:
        wanted = pub.limit - pub.sent
        if wanted <= 0:
            _flow_limited(S, pub, ring, now_ns)
            return 0
    if pub.blocked_ns != 0:
        pub.blocked_ns = 0
        _open_writer_limit(pub, ring)
    word = load_acquire(ring, control_at(pub.sent, pub.slots - 1))
    if not holds(word, pub.sent):
        if pub.opened != pub.lowest:
            pub.opened = pub.lowest
            _open_writer_limit(pub, ring)
        return 0
    if load_acquire(ring, lay.CLOSED_AT) != 0:  # packets that a writer still adds are not sent
        wanted = min(wanted, load_i64(ring, lay.END_SEQ_AT) - pub.sent)
        if wanted <= 0:
            return 0
    if pub.compacts != 0:
        wanted = min(wanted, S.bounce.size // pub.slot_bytes)
    waits = word & lay.CONTROL_LENGTH_MASK > _HEADER
    allowed = _allowance(S, pub, ring, waits, wanted, now_ns)
    if allowed <= 0:
        counted(S, pub, C.RATE_LIMITED, 1)
        if waits:
            pub.waits_ns, pub.waits_rate = now_ns, 1
        return 0
    n, total = _sealed_run(pub, ring, allowed, now_ns)
    if n == 0:
        return 0
    sent, total = _send_run(S, pub, ring, n, total, now_ns)
    if sent <= 0:
        if sent < 0:
            _send_failed(S, pub, sent, n, now_ns)
        return 0
    _spend(S, pub, sent, total)
    pub.sent += sent
    store_release(ring, lay.SENT_AT, pub.sent)
    _open_writer_limit(pub, ring)
    counted(S, pub, C.PACKETS_SENT, sent)
    counted(S, pub, C.BYTES_SENT, total)
    pub.data_ns = now_ns
    probe = PROBE_NS_UNKNOWN
    if pub.rtt_ns > 0:
        probe = min(max(pub.rtt_ns + (pub.rtt_ns >> 1), PROBE_NS_MIN), PROBE_NS_MAX)
    pub.beat_interval_ns = probe
    pub.beat_ns = now_ns + probe
    return sent


@inlined
def _count_wait(pub, now_ns):
    """A limit held packets back in the cycle before: the time since then is its."""
    if pub.waits_rate != 0:
        pub.rate_held_ns += now_ns - pub.waits_ns
    else:
        pub.flow_held_ns += now_ns - pub.waits_ns
    pub.waits_ns = 0


@inlined
def _flow_limited(S, pub, ring, now_ns):
    word = load_acquire(ring, control_at(pub.sent, pub.slots - 1))
    if pub.sent - pub.lowest >= pub.slots:  # its ring is full: the writer itself has to wait
        pub.waits_ns, pub.waits_rate = now_ns, 0
    if holds(word, pub.sent) and word & lay.CONTROL_LENGTH_MASK > _HEADER:
        pub.waits_ns, pub.waits_rate = now_ns, 0
        if pub.blocked_ns == 0:
            pub.blocked_ns = now_ns
            counted(S, pub, C.FLOW_LIMITED, 1)
    if pub.opened != pub.lowest:
        pub.opened = pub.lowest
        _open_writer_limit(pub, ring)


@inlined
def _send_failed(S, pub, result, packets, now_ns):
    counted(S, pub, C.SEND_ERRORS, 1)
    pub.hold_until_ns = now_ns + SEND_RETRY_NS
    if now_ns - pub.error_ns > 1_000_000_000:  # repeated errors are counted, not spammed
        pub.error_ns = now_ns
        note(S, rec.ALERT, now_ns, rec.Code.SEND_ERROR, pub.session, -result, packets)


@inlined
def _copy_for_repair(S, pub, ring, seq, to, now_ns):
    """Copy a packet to the bounce buffer; its length, or 0 when history no longer holds it."""
    at = control_at(seq, pub.slots - 1)
    word = load_acquire(ring, at)
    if not holds(word, seq) or (word >> lay.STATE_SHIFT) & 0xFF != lay.SEALED:
        return 0
    length = min(word & lay.CONTROL_LENGTH_MASK, pub.slot_bytes)
    if length < _HEADER:
        return 0
    slot = pub.slots_at + (seq & (pub.slots - 1)) * pub.slot_bytes
    copy(S.bounce, to, ring, slot, length)
    fence_acquire()
    if load_acquire(ring, at) != word:
        return 0  # the writer has just taken the slot for a newer packet
    store_u8(S.bounce, to + wire.FLAGS_AT, wire.FLAG_RETRANSMIT)
    store_u16(S.bounce, to + wire.LENGTH_AT, length)
    store_i64(S.bounce, to + wire.TIME_AT, now_ns)  # its echo measures this trip, not the first
    return length


@inlined
def send_repairs(S, p, pub, ring, now_ns):
    """Resend requested packets, gathered side by side, within the rate limits."""
    room = min(REPAIR_BURST_MAX, S.bounce.size // pub.slot_bytes)
    allowed = _allowance(S, pub, ring, True, room, now_ns)
    if allowed <= 0:
        counted(S, pub, C.RATE_LIMITED, 1)
        return 0
    n = 0
    total = 0
    first = S.resends[p, 0, 0]
    done = 0
    while done < pub.resends and n < allowed:
        seq = S.resends[p, done, 0]
        length = _copy_for_repair(S, pub, ring, seq, n * pub.slot_bytes, now_ns)
        if length > 0:
            n += 1
            total += length
        S.resends[p, done, 0] = seq + 1
        if seq + 1 >= S.resends[p, done, 1]:
            done += 1
    if done > 0:
        for i in range(done, pub.resends):
            S.resends[p, i - done, 0] = S.resends[p, i, 0]
            S.resends[p, i - done, 1] = S.resends[p, i, 1]
        pub.resends -= done
    if n == 0:
        return 0
    padded = total * 2 >= n * pub.slot_bytes
    sent = 0
    for _ in range(4):
        more = send_run_to_all(
            S.tx, pub.channel, S.bounce, sent * pub.slot_bytes, pub.slot_bytes, n - sent, padded
        )
        if more < 0:
            _send_failed(S, pub, more, n - sent, now_ns)
            break
        sent += more
        if sent >= n:
            break
    # Receivers ask again for the packets that a full socket refused.
    total = total * sent // n
    _spend(S, pub, sent, total)
    counted(S, pub, C.PACKETS_RESENT, sent)
    counted(S, pub, C.BYTES_RESENT, total)
    note(S, rec.HIGH, now_ns, rec.Code.RESENT, pub.session, first, sent, total)
    pub.beat_ns = max(pub.beat_ns, now_ns + PROBE_NS_MIN)
    return sent
