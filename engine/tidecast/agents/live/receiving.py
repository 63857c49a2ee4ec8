"""A packet at one image: place it, note gaps, answer heartbeats, give up lost packets."""

from __future__ import annotations

from tidecast.agents.events import E_EVICTED, E_SESSION_ENDED, emit
from tidecast.agents.live.images import M_NODE, M_UNREPORTED, NEVER
from tidecast.agents.live.remote_acks import image_unacked, send_ack
from tidecast.buffers.recorder import record
from tidecast.buffers.slots import control_at, control_word, entries_used, entry_at
from tidecast.layout import packet as wire
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.layout.counters import Counter as C
from tidecast.native.atomics import fence_release, load_acquire, store_relaxed, store_release
from tidecast.native.jit import inlined
from tidecast.native.memory import (
    bytes_at,
    copy,
    load_i64,
    load_u8,
    load_u16,
    store_i64,
)
from tidecast.protocol.area import field_of
from tidecast.protocol.flow_control import reports
from tidecast.protocol.loss import (
    BACKOFF_STEPS,
    drop_before,
    drop_from,
    fill_gap,
    find_gap,
    first_delay_ns,
    next_due,
    open_gap,
    take_due,
)
from tidecast.protocol.packets import Route, Status, put_nak, put_name, put_status
from tidecast.protocol.random import random_below
from tidecast.transport.wire_io import send_to_address

STATUS_INTERVAL_NS = 200_000_000
STATUS_INTERVAL_NS_FIRST = 2_000_000
UNREPORTED_NS = 500_000
NAK_RETRY_NS_UNKNOWN, NAK_RETRY_NS_LONGEST = 2_000_000, 50_000_000
PATIENCE_MAX, PATIENCE_NS = 4, 100_000_000
AHEAD_MAX = 1 << 28
"""How far beyond the highest packet a packet may name another: 27 million a second for ten seconds
of silence. Far below the 2^30 sequences that control words can distinguish."""
_HEADER = wire.PACKET_HEADER_BYTES


@inlined
def note(S, section, now_ns, code, entity, a=0, b=0, c=0, d=0):
    """Append a record of the receiver to the flight recorder."""
    record(S.recorder, rec.WRITER_RECEIVER, section, now_ns, code, entity, a, b, c, d)


@inlined
def ring_of(image):
    """The image's ring as bytes."""
    return bytes_at(image.ring_address, image.ring_bytes)


@inlined
def consumed_by_all(image, ring):
    """(slowest, fastest, slowest tethered) position of the active consumers.

    Without consumers, all three are the contiguous end. Without tethered consumers, the third is
    the contiguous end with flow `min`, because only tethered consumers hold the publisher back
    there; else it is the slowest position of all.
    """
    slowest = tethered = NEVER
    fastest = -1
    for i in range(entries_used(ring)):
        entry = entry_at(ring, i)
        if load_acquire(ring, entry + lay.CONSUMER_STATE_AT) == lay.CONSUMER_ACTIVE:
            position = load_acquire(ring, entry + lay.CONSUMER_POSITION_AT)
            slowest = min(slowest, position)
            fastest = max(fastest, position)
            if load_i64(ring, entry + lay.CONSUMER_TETHERED_AT) != 0:
                tethered = min(tethered, position)
    if fastest < 0:
        return image.contiguous, image.contiguous, image.contiguous
    # A reader of open memory could write anything here: keep it in range.
    slowest = max(min(slowest, image.contiguous), image.highest - image.slots)
    fastest = max(min(fastest, image.contiguous), slowest)
    if tethered == NEVER:
        return slowest, fastest, image.contiguous if image.flow == lay.FLOW_MIN else slowest
    return slowest, fastest, max(min(tethered, image.contiguous), slowest)


@inlined
def _evict(S, image, ring, from_seq, cut_off, base, now_ns):
    """Evict consumers whose position is before ``from_seq``; they start again at ``base``.

    ``cut_off``: the packets before are lost, so tethered consumers are evicted, too.
    """
    evicted = 0
    store_release(ring, lay.BASE_AT, base)
    for i in range(entries_used(ring)):
        entry = entry_at(ring, i)
        if load_acquire(ring, entry + lay.CONSUMER_STATE_AT) != lay.CONSUMER_ACTIVE:
            continue
        position = load_acquire(ring, entry + lay.CONSUMER_POSITION_AT)
        if position >= from_seq:
            continue
        if not cut_off and load_i64(ring, entry + lay.CONSUMER_TETHERED_AT) != 0:
            continue
        state = lay.CONSUMER_CUT_OFF if cut_off else lay.CONSUMER_EVICTED
        store_release(ring, entry + lay.CONSUMER_STATE_AT, state)
        evicted += 1
        subscription = load_i64(ring, entry + lay.CONSUMER_SUBSCRIPTION_AT)
        session, highest = image.session, image.highest
        emit(S.events, S.attention, E_EVICTED, session, subscription, highest - position)
        note(S, rec.ALERT, now_ns, rec.Code.EVICTED, session, subscription, position, highest)
    S.counters[image.row, C.EVICTIONS] += evicted
    image.dirty = 1
    return evicted


@inlined
def _window_open_for(S, image, ring, seq, now_ns):
    """Recompute the receive window; True when packet ``seq`` fits now."""
    slowest, fastest, tethered = consumed_by_all(image, ring)
    image.window_end = slowest + image.slots
    if seq < image.window_end:
        return True
    # A laggard that may be lapped holds up no tethered reader, and none that is far ahead of it.
    quarter = image.slots >> 2
    from_seq = fastest - (image.slots >> 1)
    if tethered > slowest:
        from_seq = min(tethered, seq + 1 - image.slots + quarter)
    if from_seq > slowest:
        base = max(image.contiguous - quarter, from_seq)
        if _evict(S, image, ring, from_seq, False, base, now_ns) > 0:
            slowest, _, _ = consumed_by_all(image, ring)
            image.window_end = slowest + image.slots
    return seq < image.window_end


@inlined
def advance(S, image, ring):
    """Recompute the contiguous end from the gaps."""
    contiguous = image.highest
    if image.gaps > 0:
        contiguous = S.gaps[image.index, 0].first
    if contiguous != image.contiguous:
        image.contiguous = contiguous
        store_release(ring, lay.CONTIGUOUS_AT, contiguous)
    store_release(ring, lay.HIGHEST_AT, image.highest)


@inlined
def _mark_gone(image, ring, first, end):
    """Mark packets [first, end) as lost for readers, as far as they are in the window."""
    end = min(end, image.window_end)
    for seq in range(first, end):
        at = control_at(seq, image.slots - 1)
        store_release(ring, at, control_word(seq, lay.GONE, 0))
    image.dirty = 1


@inlined
def open_gap_up_to(S, image, ring, seq, due_ns, now_ns):
    """Packets [highest, seq) are missing. False: the gap table is full, so none is noted."""
    if seq <= image.highest:
        return True
    missing = seq - image.highest
    if image.reliability == lay.UNRELIABLE:
        if not _window_open_for(S, image, ring, seq, now_ns):
            return False
        _mark_gone(image, ring, image.highest, seq)
        S.counters[image.row, C.LOST_FOR_GOOD] += missing
    else:
        n = open_gap(S.gaps[image.index], image.gaps, image.highest, seq, due_ns)
        if n < 0:
            S.counters[image.row, C.GAP_TABLE_FULL] += 1
            return False
        image.gaps = n
        image.nak_ns = min(image.nak_ns, due_ns)
    S.counters[image.row, C.LOSSES] += missing
    image.lost += missing
    image.highest = seq
    return True


@inlined
def nak_due_ns(S, image, now_ns):
    """When to ask for packets found missing now: after a reordering grace, random in a group."""
    draw = random_below(S.seed, BACKOFF_STEPS)
    return now_ns + first_delay_ns(image.nak_delay_ns, image.group, image.round_trip_ns, draw)


@inlined
def _note_round_trip(image, sample_ns):
    """Smooth the time from NAK to repair, and its deviation (RFC 6298)."""
    if image.rtt_ns == 0:
        image.rtt_ns, image.rtt_var_ns = sample_ns, sample_ns >> 1
        return
    off = abs(sample_ns - image.rtt_ns)
    image.rtt_var_ns = (image.rtt_var_ns * 3 + off) >> 2
    image.rtt_ns = (image.rtt_ns * 7 + sample_ns) >> 3


@inlined
def _nak_retry_ns(image, now_ns):
    """How long to wait for a repair. Packets that overtake a lost repair show its loss sooner."""
    retry_ns = NAK_RETRY_NS_UNKNOWN
    if image.rtt_ns > 0:
        retry_ns = max(image.nak_retry_ns, image.rtt_ns + 4 * image.rtt_var_ns)
    if image.patience > 0 and now_ns - image.patience_ns > PATIENCE_NS:
        image.patience -= 1
        image.patience_ns = now_ns
    return min(retry_ns << image.patience, NAK_RETRY_NS_LONGEST)


@inlined
def _repair_not_needed(S, image, now_ns):
    """A repair of a packet that is here: the NAK came too soon, so wait longer (as Karn would)."""
    S.counters[image.row, C.REPAIRS_UNNEEDED] += 1
    wait_ns = max(image.rtt_ns, NAK_RETRY_NS_UNKNOWN)
    if image.patience < PATIENCE_MAX and now_ns - image.patience_ns > wait_ns:
        image.patience += 1
        image.patience_ns = now_ns


@inlined
def _filled(S, image, i, seq, flags, now_ns):
    """A missing packet has come. False: the gap cannot be split now, drop the packet."""
    gap = S.gaps[image.index, i]
    if flags & wire.FLAG_RETRANSMIT and gap.tries == 1:
        _note_round_trip(image, now_ns - gap.asked_ns)
    if flags & wire.FLAG_RETRANSMIT and gap.asked_ns > image.repaired_ns:
        image.repaired_ns = gap.asked_ns
        image.nak_ns = min(image.nak_ns, now_ns + image.nak_delay_ns)
    n = fill_gap(S.gaps[image.index], image.gaps, i, seq)
    if n < 0:
        S.counters[image.row, C.GAP_TABLE_FULL] += 1
        return False
    image.gaps = n
    S.counters[image.row, C.RECOVERED] += 1
    return True


@inlined
def place_packet(S, image, buffer, at, length, now_ns):
    """Put a DATA packet into the image's ring. Returns 1 when it was new."""
    row = image.row
    ring = ring_of(image)
    seq = load_i64(buffer, at + wire.SEQ_AT)
    flags = load_u8(buffer, at + wire.FLAGS_AT)
    control = control_at(seq, image.slots - 1)
    image.heard_ns = now_ns
    if image.closed != 0:
        S.counters[row, C.STALE_SESSION] += 1
        return 0
    if seq < image.contiguous or length > image.slot_bytes:
        if length > image.slot_bytes:
            S.counters[row, C.INVALID_FIELD] += 1
        else:
            S.counters[row, C.DUPLICATES] += 1
            if flags & wire.FLAG_RETRANSMIT:
                _repair_not_needed(S, image, now_ns)
        return 0
    if image.end_seq >= 0 and seq >= image.end_seq:
        image.end_seq = -1  # a publisher that still sends has not ended: that END was not its own
        S.counters[row, C.ENDS_CORRECTED] += 1
    if seq >= image.window_end and not _window_open_for(S, image, ring, seq, now_ns):
        slowest, _, _ = consumed_by_all(image, ring)
        if image.reliability != lay.UNRELIABLE or slowest < image.highest:
            S.counters[row, C.OVERRUNS] += 1
            return 0
        # A ring and more was lost, all of it was read and none will be repaired: begin again here.
        on_lost(S, image, seq, now_ns)
    if seq < image.highest:
        i = find_gap(S.gaps[image.index], image.gaps, seq)
        if i < 0:
            if image.reliability == lay.UNRELIABLE:
                S.counters[row, C.LATE] += 1
            else:
                S.counters[row, C.DUPLICATES] += 1
                if flags & wire.FLAG_RETRANSMIT:
                    _repair_not_needed(S, image, now_ns)
            return 0
        if not _filled(S, image, i, seq, flags, now_ns):
            return 0
    else:
        if seq > image.highest:
            due = nak_due_ns(S, image, now_ns)
            if not open_gap_up_to(S, image, ring, seq, due, now_ns):
                return 0
        image.highest = seq + 1
    receiver = load_u16(buffer, at + wire.RECEIVER_AT)
    if receiver != wire.RECEIVER_ALL and receiver != S.misc[M_NODE]:
        length = _HEADER  # for another node: it only fills its place
    store_relaxed(ring, control, control_word(seq, lay.EMPTY, 0))
    fence_release()  # a lapped reader must see that the slot changes before it does
    copy(ring, image.slots_at + (seq & (image.slots - 1)) * image.slot_bytes, buffer, at, length)
    store_release(ring, control, control_word(seq, lay.SEALED, length))
    image.echo_ns = load_i64(buffer, at + wire.TIME_AT)
    image.echo_at_ns = now_ns
    image.dirty = 1
    S.counters[row, C.PACKETS_RECEIVED] += 1
    S.counters[row, C.BYTES_RECEIVED] += length
    advance(S, image, ring)
    return 1


@inlined
def miss_packet(S, image, seq, now_ns):
    """A packet came that cannot be read: it is missing, like a lost packet."""
    image.heard_ns = now_ns
    if image.closed != 0 or seq < image.highest:
        return
    ring = ring_of(image)
    if seq >= image.window_end and not _window_open_for(S, image, ring, seq, now_ns):
        S.counters[image.row, C.OVERRUNS] += 1
        return
    if open_gap_up_to(S, image, ring, seq + 1, nak_due_ns(S, image, now_ns), now_ns):
        advance(S, image, ring)


@inlined
def _note_end(S, image, ring, seq):
    """The session ends at ``seq``. An end below the known end, or the highest packet, wins."""
    if image.closed != 0 or (image.end_seq >= 0 and seq >= image.end_seq):
        return
    if seq < image.contiguous:
        S.counters[image.row, C.INVALID_FIELD] += 1  # readers may be past it
        return
    if image.end_seq >= 0 or seq < image.highest:
        S.counters[image.row, C.ENDS_CORRECTED] += 1
    image.end_seq = seq
    if seq >= image.highest:
        return
    for false in range(seq, min(image.highest, seq + image.slots)):
        store_release(ring, control_at(false, image.slots - 1), control_word(false, lay.EMPTY, 0))
    image.gaps = drop_from(S.gaps[image.index], image.gaps, seq)
    image.highest = seq
    advance(S, image, ring)


@inlined
def on_heartbeat(S, image, buffer, at, now_ns):
    """A heartbeat names the next sequence: packets missing before it are a tail loss."""
    seq = load_i64(buffer, at + wire.SEQ_AT)
    flags = load_u8(buffer, at + wire.FLAGS_AT)
    ring = ring_of(image)
    image.heard_ns = now_ns
    image.echo_ns = load_i64(buffer, at + wire.TIME_AT)
    image.echo_at_ns = now_ns
    S.counters[image.row, C.HEARTBEATS_RECEIVED] += 1
    known = seq
    if image.closed != 0:
        known = image.highest
    elif seq > image.window_end and not _window_open_for(S, image, ring, seq - 1, now_ns):
        known = image.window_end  # packets beyond have no room here: do not ask for them yet
    if known > image.highest:
        due = nak_due_ns(S, image, now_ns)
        if image.group <= 1:
            due = now_ns
        open_gap_up_to(S, image, ring, known, due, now_ns)
        advance(S, image, ring)
    if flags & wire.FLAG_END:
        _note_end(S, image, ring, seq)
        image.status_ns = min(image.status_ns, now_ns)
    if flags & wire.FLAG_REPORT:
        image.status_ns = min(image.status_ns, now_ns)
    elif image.rtt_ns == 0 and flags & wire.FLAG_PROBE:
        image.status_ns = min(image.status_ns, now_ns + UNREPORTED_NS)


@inlined
def _begin_later(S, image, ring, oldest, now_ns):
    """History reached back to where we joined a moment ago; nothing of it came: none is lost.

    Readers pass these packets as they pass those for another node.
    """
    _window_open_for(S, image, ring, oldest, now_ns)
    end = min(oldest, image.window_end)
    if image.gaps > 0:
        end = min(end, S.gaps[image.index, 0].end)
    for seq in range(image.begins, end):
        at = control_at(seq, image.slots - 1)
        store_release(ring, at, control_word(seq, lay.SEALED, _HEADER))
    image.gaps = drop_before(S.gaps[image.index], image.gaps, end)
    image.highest = max(image.highest, end)
    image.begins = end
    image.dirty = 1
    advance(S, image, ring)


@inlined
def on_lost(S, image, oldest, now_ns):
    """The publisher no longer holds packets before ``oldest``: give them up, and report it."""
    ring = ring_of(image)
    if oldest <= image.contiguous or image.closed != 0:
        return
    if image.begins == image.contiguous:
        _begin_later(S, image, ring, oldest, now_ns)
    first = image.contiguous
    lost = 0
    for i in range(image.gaps):
        gap = S.gaps[image.index, i]
        lost += max(min(gap.end, oldest) - gap.first, 0)
    lost += max(oldest - image.highest, 0)
    if lost == 0:
        return
    _window_open_for(S, image, ring, oldest, now_ns)
    if oldest <= image.window_end:
        for i in range(image.gaps):
            gap = S.gaps[image.index, i]
            _mark_gone(image, ring, gap.first, min(gap.end, oldest))
        if oldest > image.highest:
            _mark_gone(image, ring, image.highest, oldest)
    else:  # more than a ring: all readers start again at the oldest packet that is held
        _evict(S, image, ring, oldest, True, oldest, now_ns)
        image.window_end = oldest + image.slots
    image.gaps = drop_before(S.gaps[image.index], image.gaps, oldest)
    image.highest = max(image.highest, oldest)
    advance(S, image, ring)
    image.dirty = 1
    S.counters[image.row, C.LOST_FOR_GOOD] += lost
    note(S, rec.ALERT, now_ns, rec.Code.GAP, image.session, first, oldest, lost)


@inlined
def address_of_publisher(S, image):
    """Where NAK and STATUS of an image go."""
    store_i64(S.packet, 1024, image.address_a)
    store_i64(S.packet, 1032, image.address_b)
    return S.packet[1024:1040]


@inlined
def note_setup(image, buffer, at):
    """Take from a SETUP the number of receivers, the sample that reports, the published count."""
    image.sampling = load_u8(buffer, at + wire.SETUP_SAMPLING_AT)
    image.group = load_u16(buffer, at + wire.SETUP_RECEIVERS_AT) << image.sampling
    image.round_trip_ns = load_u16(buffer, at + wire.SETUP_ROUND_TRIP_AT) * wire.ROUND_TRIP_UNIT_NS
    published_at = field_of(buffer, at, wire.AREA_PUBLISHED)
    image.published = load_i64(buffer, published_at) if published_at >= 0 else -1


@inlined
def _is_asked_to_report(image):
    """Whether this receiver sends STATUS: all do with `min` flow, and owners always do."""
    return (
        reports(image.receiver, image.sampling) or image.flow == lay.FLOW_MIN or image.durable != 0
    )


@inlined
def route_of(S, image):
    """The route of packets that a receiver sends about an image."""
    return Route(image.channel, image.session, image.topic, S.misc[M_NODE])


@inlined
def send_status(S, image, ring, flags, now_ns):
    """Report positions to the publisher: readers that may be lapped do not hold it back."""
    _, _, slowest = consumed_by_all(image, ring)
    S.counters[image.row, C.CONSUMED] = slowest
    if not _is_asked_to_report(image):
        image.reported, image.contiguous_reported = slowest, image.contiguous
        image.status_ns = now_ns + STATUS_INTERVAL_NS
        return
    # Beyond the contiguous end: at most the packets that the socket holds while we do not run.
    window = min(image.slots, image.contiguous - slowest + image.buffer_slots)
    echo_delay_us = (now_ns - image.echo_at_ns) // 1000
    status = Status(
        image.receiver,
        slowest,
        image.contiguous,
        window,
        image.lost,
        image.echo_ns,
        echo_delay_us,
    )
    put_status(S.packet, flags | wire.FLAG_TABLES, route_of(S, image), status)
    n = put_name(S.packet, S.name)
    image.echo_ns = 0
    send_to_address(S.tx, address_of_publisher(S, image), S.packet, n, image.source)
    image.reported, image.contiguous_reported = slowest, image.contiguous
    # The first STATUS packets follow each other quickly: until one arrives the publisher does not
    # know this receiver, and `min` flow control does not wait for it.
    image.status_ns = now_ns + image.status_interval_ns
    image.status_interval_ns = min(image.status_interval_ns * 2, STATUS_INTERVAL_NS)
    S.counters[image.row, C.STATUS_SENT] += 1
    if image.durable != 0:
        send_ack(S, image, ring, address_of_publisher(S, image))


@inlined
def has_progress(image, ring):
    """Whether packets arrived, or were read, since the last STATUS."""
    _, _, slowest = consumed_by_all(image, ring)
    return image.contiguous != image.contiguous_reported or slowest != image.reported


@inlined
def report_durable(S, image, ring):
    """Ack the packets of a durable image that have become durable. 1: an ACK was sent."""
    if image.durable == 0:
        return 0
    if image_unacked(image, ring):
        send_ack(S, image, ring, address_of_publisher(S, image))
        return 1
    if load_i64(ring, lay.CONSUMERS_AT + lay.CONSUMER_POSITION_AT) < image.contiguous:
        S.misc[M_UNREPORTED] = 1  # the archiver is at it: look again soon
    return 0


@inlined
def send_naks(S, image, now_ns):
    """Ask for every gap that is due, in one packet. Returns 1 when a NAK was sent."""
    count = take_due(
        S.gaps[image.index],
        image.gaps,
        now_ns,
        _nak_retry_ns(image, now_ns),
        image.repaired_ns - image.nak_delay_ns,
        S.seed,
        S.ranges,
        wire.NAK_RANGES_MAX,
    )
    image.nak_ns = next_due(S.gaps[image.index], image.gaps, NEVER)
    if count == 0:
        return 0
    packets = 0
    for i in range(count):
        packets += S.ranges[i, 1]
    n = put_nak(
        S.packet,
        route_of(S, image),
        image.receiver,
        S.ranges,
        count,
        now_ns,
    )
    send_to_address(S.tx, address_of_publisher(S, image), S.packet, n, image.source)
    S.counters[image.row, C.NAKS_SENT] += 1
    S.counters[image.row, C.NAK_RANGES_SENT] += count
    note(S, rec.HIGH, now_ns, rec.Code.NAK_SENT, image.session, S.ranges[0, 0], count, packets)
    return 1


@inlined
def finish_if_complete(S, image, ring, now_ns):
    """All packets of an ended session are here: close the ring for its readers, leave."""
    if image.end_seq < 0 or image.contiguous < image.end_seq:
        return False
    if image.closed == 0:
        image.closed = 1
        store_i64(ring, lay.END_SEQ_AT, image.end_seq)
        store_release(ring, lay.CLOSED_AT, 1)
        image.dirty = 1
        emit(S.events, S.attention, E_SESSION_ENDED, image.session, image.end_seq)
        note(S, rec.LOW, now_ns, rec.Code.SESSION_ENDED, image.session, image.end_seq)
    return True
