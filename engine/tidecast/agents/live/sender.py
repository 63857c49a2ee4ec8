"""The sender: sends sealed packets, repairs, heartbeats and SETUPs of all publications in turn.

One duty cycle: control packets that came back (NAK, STATUS), then each publication: repairs first,
then new packets as rate limit and flow control allow, then timers. Publications that had work
lately are at the front of the index; a cycle looks at a few of the others, so that thousands of
idle publications cost almost nothing.
"""

from __future__ import annotations

from tidecast.agents.events import (
    E_FOREIGN,
    E_PUBLICATION_DRAINED,
    E_RECEIVER_JOINED,
    E_RECEIVER_LEFT,
    E_RECEIVER_NAME,
    E_RECEIVER_TIMEOUT,
    emit,
)
from tidecast.agents.live.compacting import define_again, use_tables
from tidecast.agents.live.publications import (
    M_BEACON_NS,
    M_BUSY,
    M_COUNT,
    M_CURSOR,
    M_FOREIGN_NS,
    M_INCARNATION,
    M_NAMES,
    M_NODE,
    M_POLL_SKIP,
    M_RAN_NS,
    M_ROW,
    NAMES_KEPT_MAX,
    REMOVED,
    RESENDS_MAX,
)
from tidecast.agents.live.remote_acks import acked_up_to, on_ack, published, put_producer
from tidecast.agents.live.sending import (
    PROBE_NS_MAX,
    counted,
    note,
    send_new_packets,
    send_repairs,
)
from tidecast.agents.live.unsealing import (
    AS_IT_CAME,
    REFUSED,
    name_of_learned,
    open_datagram,
    take_learned,
)
from tidecast.layout import packet as wire
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.layout.counters import Counter as C
from tidecast.layout.sealed import MODE_OFF
from tidecast.native.atomics import load_acquire
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import (
    bytes_at,
    copy,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    store_i64,
    store_u8,
    store_u16,
)
from tidecast.protocol.check import check_packet
from tidecast.protocol.flow_control import (
    FEW_REPORTERS,
    RECEIVERS_MAX,
    SAMPLING_NS,
    earn_credit,
    halve_sample,
    limits,
    may_join,
    note_pause,
    note_status,
    place_for,
    reports,
)
from tidecast.protocol.loss import FEW_RECEIVERS
from tidecast.protocol.packets import Route, put_packet_header
from tidecast.protocol.sealing.receiver import O_MODE
from tidecast.protocol.session_table import ABSENT, find_session
from tidecast.transport.wire_io import (
    IO_CALLS,
    IO_ERRNO,
    IO_GSO_REFUSED,
    IO_KEYLESS,
    IO_SEALED,
    IO_SHORT,
    RECEIVE_BUFFER_BYTES,
    bundle_bytes,
    receive,
    send_run_to_all,
)

SETUP_INTERVAL_NS = 1_000_000_000
SETUP_EAGER_NS = 2_000_000
SETUP_THROTTLE_NS = 500_000
BEACON_INTERVAL_NS = 1_000_000_000
JOIN_GRACE_NS = 5_000_000
CHECK_INTERVAL_NS = 100_000_000
CLOSE_LINGER_NS = 5_000_000_000
END_REPEATS_MIN = 8
IDLE_SCAN_MAX = 64
POLL_SKIP_MAX = 8
RESEND_LINGER_NS_MIN = 100_000
FOREIGN_INTERVAL_NS = 1_000_000_000
PAUSE_NS_MIN = 100_000_000
"""An agent did not run when its next cycle is so late: its process was stopped, or had no core."""
OWNER_SILENT_NS = 1_000_000_000
"""An owner acks with each STATUS: after so long without acks the topic may have another owner."""
CROSSING_NS = 200_000_000
"""After the first ACK of the next owner, ACKs of the previous owner may still be on their way."""
CLAIM_NS_MAX = 10 * OWNER_SILENT_NS
"""An older claim is forgotten: the next claim is judged by itself."""


@inlined
def _send_setup(S, p, pub, ring, now_ns):
    out = S.setups[p]
    store_i64(out, wire.SEQ_AT, pub.sent)
    store_i64(out, wire.TIME_AT, now_ns)
    store_i64(out, wire.SETUP_AGE_AT, now_ns - pub.created_ns)
    head = load_acquire(ring, lay.HEAD_AT)
    first = load_i64(ring, lay.FIRST_AT)
    store_i64(out, wire.SETUP_OLDEST_AT, min(max(first, head - pub.slots), pub.sent))
    store_u16(out, wire.SETUP_RECEIVERS_AT, pub.receivers)
    store_u16(out, wire.SETUP_ROUND_TRIP_AT, min(pub.rtt_ns // wire.ROUND_TRIP_UNIT_NS, 0xFFFF))
    store_u8(out, wire.SETUP_SAMPLING_AT, pub.sampling)
    put_producer(pub, ring, out)
    if pub.published_at != 0:
        store_i64(out, pub.published_at, published(pub, ring))
    send_run_to_all(S.tx, pub.channel, out, 0, out.size, 1, False)
    S.counters[pub.row, C.SETUPS_SENT] += 1
    waiting = now_ns < pub.hold_until_ns
    pub.setup_ns = now_ns + (SETUP_EAGER_NS if waiting else SETUP_INTERVAL_NS)


@inlined
def _route_of(S, pub):
    return Route(pub.channel, pub.session, pub.topic, S.misc[M_NODE])


@inlined
def _send_heartbeat(S, pub, flags, now_ns):
    n = put_packet_header(
        S.packet,
        wire.HEARTBEAT,
        flags,
        _route_of(S, pub),
        wire.PACKET_HEADER_BYTES,
        pub.sent,
        now_ns,
    )
    send_run_to_all(S.tx, pub.channel, S.packet, 0, n, 1, False)
    S.counters[pub.row, C.HEARTBEATS_SENT] += 1


@inlined
def _send_beacon(S, now_ns):
    """Show the discovered peers that they are reached: without it an idle node were silent."""
    session = S.misc[M_INCARNATION] & 0x7FFFFFFF | 1
    route = Route(wire.CHANNEL_ORDINARY, session, wire.TOPIC_NONE, S.misc[M_NODE])
    length = wire.PACKET_HEADER_BYTES
    n = put_packet_header(S.packet, wire.HEARTBEAT, 0, route, length, 0, now_ns)
    send_run_to_all(S.tx, route.channel, S.packet, 0, n, 1, False)
    S.counters[S.misc[M_ROW], C.BEACONS_SENT] += 1
    S.misc[M_BEACON_NS] = now_ns + BEACON_INTERVAL_NS


@inlined
def _heartbeat_due(S, pub, ring, now_ns):
    """Tail-loss probe, heartbeat or END; the interval doubles from probe to heartbeat."""
    closed = load_acquire(ring, lay.CLOSED_AT) != 0
    ended = closed and pub.sent >= load_i64(ring, lay.END_SEQ_AT)
    flags = wire.FLAG_PROBE
    if ended:
        flags |= wire.FLAG_END
        pub.ended += 1
    if pub.flow == lay.FLOW_MIN and pub.lowest < pub.sent:
        flags |= wire.FLAG_REPORT
    if pub.remote != 0 and acked_up_to(ring) < pub.sent:
        flags |= wire.FLAG_REPORT
    _send_heartbeat(S, pub, flags, now_ns)
    note(S, rec.HIGH, now_ns, rec.Code.PROBE_SENT, pub.session, pub.sent, pub.beat_interval_ns)
    ceiling = pub.heartbeat_ns
    if ended:
        ceiling = min(ceiling, 50_000_000)
    pub.beat_interval_ns = min(pub.beat_interval_ns * 2, ceiling)
    pub.beat_ns = now_ns + pub.beat_interval_ns
    if ended and pub.ended >= END_REPEATS_MIN:
        behind = 0
        for i in range(RECEIVERS_MAX):
            if S.receivers[pub.index, i].id != 0:
                behind += 1
        if (behind == 0 and pub.sampling == 0) or now_ns - pub.data_ns > pub.close_linger_ns:
            emit(S.events, S.attention, E_PUBLICATION_DRAINED, pub.session, behind)
            pub.beat_ns = now_ns + CLOSE_LINGER_NS


@inlined
def _check_receivers(S, p, pub, ring, now_ns):
    """Drop silent receivers; exclude receivers that hold us back and do not advance."""
    changed = False
    # The writer stops at the slowest receiver's ring, long before `limit`, and a large message
    # needs up to half the ring at once: half of it unread holds the publisher back.
    if pub.receivers > 0 and load_acquire(ring, lay.HEAD_AT) - pub.lowest > pub.slots >> 1:
        pub.held_ns = now_ns if pub.held_ns == 0 else pub.held_ns
    else:
        pub.held_ns = 0
    for i in range(RECEIVERS_MAX):
        r = S.receivers[p, i]
        if r.id == 0:
            continue
        silent = now_ns - r.heard_ns > pub.receiver_timeout_ns
        stuck = (
            r.excluded == 0
            and pub.flow == lay.FLOW_MIN
            and pub.held_ns != 0
            and r.consumed == pub.lowest
            and now_ns - max(r.progress_ns, pub.held_ns) > pub.receiver_timeout_ns
        )
        if not (silent or stuck):
            continue
        changed = True
        S.counters[pub.row, C.RECEIVER_TIMEOUTS] += 1
        session, why = pub.session, REMOVED if r.heard_ns < 0 else int(stuck)
        emit(S.events, S.attention, E_RECEIVER_TIMEOUT, session, r.id, r.node, why)
        note(
            S, rec.ALERT, now_ns, rec.Code.RECEIVER_TIMEOUT, session, r.id, r.node, r.consumed, why
        )
        if silent:
            r.id = 0
            pub.receivers -= 1
        else:
            r.excluded = 1
    if changed:
        pub.limit, pub.lowest = limits(S.receivers[p], pub.flow)
    use_tables(S, p, pub)
    few = pub.receivers < FEW_REPORTERS
    if pub.sampling > 0 and few and now_ns - pub.sampled_ns > SAMPLING_NS:
        pub.sampling, pub.sampled_ns, pub.setup_ns = pub.sampling - 1, now_ns, now_ns
    S.counters[pub.row, C.RECEIVERS] = pub.receivers << pub.sampling
    pub.check_ns = now_ns + CHECK_INTERVAL_NS


@inlined
def _timers(S, p, pub, ring, now_ns):
    if now_ns >= pub.setup_ns:
        _send_setup(S, p, pub, ring, now_ns)
    if now_ns >= pub.beat_ns:
        _heartbeat_due(S, pub, ring, now_ns)
    if now_ns >= pub.check_ns:
        _check_receivers(S, p, pub, ring, now_ns)
        S.counters[pub.row, C.HEAD] = load_acquire(ring, lay.HEAD_AT)
        S.counters[pub.row, C.SENT] = pub.sent
        S.counters[pub.row, C.RTT_NS] = pub.rtt_ns
        S.counters[pub.row, C.SLOTS] = pub.slots
        S.counters[pub.row, C.SLOWEST_CONSUMED] = min(pub.lowest, pub.sent)


@inlined
def _serve(S, p, now_ns):
    """Serve one publication. Returns packets sent."""
    pub = S.pubs[p]
    ring = bytes_at(pub.ring_address, pub.ring_bytes)
    work = 0
    if pub.resends > 0:
        work += send_repairs(S, p, pub, ring, now_ns)
    work += send_new_packets(S, pub, ring, now_ns)
    if work == 0 or now_ns >= pub.setup_ns:
        _timers(S, p, pub, ring, now_ns)
    return work


# --- control packets --------------------------------------------------------------------------


@inlined
def _note_name(S, r, node, buffer, at):
    """Keep the name of a receiver's node for the conductor, which finds nodes by name."""
    n = load_u8(buffer, at + wire.STATUS_NAME_LEN_AT)
    i = S.misc[M_NAMES]
    if n == 0 or i >= NAMES_KEPT_MAX:  # its next STATUS has the name again
        return
    copy(S.names[i], 0, buffer, at + wire.STATUS_NAME_AT, n)
    if emit(S.events, S.attention, E_RECEIVER_NAME, node, i, n, 0, 0):
        S.misc[M_NAMES] = i + 1
        r.named = 1


@inlined
def _foreign(S, pub, kind, node, name, now_ns):
    """Refuse a packet from another address than its receiver's, or the owner's; report some."""
    counted(S, pub, C.FOREIGN_ADDRESS, 1)
    if now_ns < S.misc[M_FOREIGN_NS]:
        return
    S.misc[M_FOREIGN_NS] = now_ns + FOREIGN_INTERVAL_NS
    a, b = load_i64(name, 0), load_i64(name, 8)
    emit(S.events, S.attention, E_FOREIGN, pub.session, node, a, b, kind)
    note(S, rec.ALERT, now_ns, rec.Code.FOREIGN_ADDRESS, pub.session, node, kind)


@inlined
def _is_at(r, name):
    """Does a packet from address ``name`` come from where this receiver is?"""
    return r.address_a == load_i64(name, 0) and r.address_b == load_i64(name, 8)


@inlined
def _is_former(S, name):
    """Does a packet come from where a peer was before it moved? It was sent before, or late."""
    address = load_i64(name, 0)
    for i in range(S.former.size):
        if S.former[i] == 0:
            return False
        if S.former[i] == address:
            return True
    return False


@inlined
def _join(S, p, pub, i, identity, node, name, now_ns):
    """A receiver that is not in the table wants to be. False: refused."""
    joins, pub.joins, pub.joins_ns = may_join(
        S.receivers[p], pub.joins, pub.joins_ns, load_i64(name, 0), load_i64(name, 8), now_ns
    )
    if not joins:
        return False
    r = S.receivers[p, i]
    r.id, r.node, r.consumed, r.contiguous = identity, node, 0, 0
    r.address_a, r.address_b = load_i64(name, 0), load_i64(name, 8)
    r.progress_ns, r.excluded, r.named = now_ns, 0, 0
    r.credit, r.credit_sent, r.credit_ns = 2 * pub.slots, pub.sent, now_ns
    pub.receivers += 1
    if pub.receivers == FEW_RECEIVERS + 1:  # all are to know that they are many now
        pub.setup_ns = min(pub.setup_ns, now_ns + SETUP_THROTTLE_NS)
    if pub.ended > 0:  # it comes late, and is to learn of the end as others did
        pub.ended, pub.beat_ns, pub.beat_interval_ns = 0, now_ns, PROBE_NS_MAX
    if now_ns < pub.hold_until_ns:  # STATUS of other receivers may be on its way
        pub.hold_until_ns = min(pub.hold_until_ns, now_ns + JOIN_GRACE_NS)
    return True


@inlined
def _place_of(S, p, pub, identity, now_ns):
    """A receiver's entry, or a free entry for it; -1: it need not report, or no entry is free.

    A full table halves the sample of receivers that report, and SETUP carries the new sample. Not
    with `min` flow, which covers the receivers that came first, nor with a remote owner, whose
    STATUS is needed.
    """
    i = place_for(S.receivers[p], identity)
    if i < 0 and pub.flow != lay.FLOW_MIN and pub.remote == 0:
        pub.sampling, dropped = halve_sample(S.receivers[p], pub.sampling)
        pub.sampled_ns = now_ns
        pub.receivers -= dropped
        pub.joins += dropped
        pub.setup_ns = min(pub.setup_ns, now_ns + SETUP_THROTTLE_NS)
        i = place_for(S.receivers[p], identity)
    return i if reports(identity, pub.sampling) else -1


@inlined
def _joins_tables(S, p, pub, i, reads, now_ns):
    """Note whether a receiver that has joined reads tables: older builds do not."""
    S.receivers[p, i].tables = reads
    if reads == 0:
        pub.compacts = 0
    elif pub.tables != 0:
        define_again(pub, now_ns)
        pub.check_ns = min(pub.check_ns, now_ns)


@inlined
def _on_status(S, p, pub, now_ns, buffer, at, name):
    flags = load_u8(buffer, at + wire.FLAGS_AT)
    counted(S, pub, C.STATUS_RECEIVED, 1)
    if flags & wire.FLAG_WANT_SETUP:
        pub.setup_ns = min(pub.setup_ns, now_ns + SETUP_THROTTLE_NS)
        return
    if flags & wire.FLAG_WANT_TABLE:
        define_again(pub, now_ns)
        return
    identity = load_i64(buffer, at + wire.STATUS_RECEIVER_AT)
    node = load_u16(buffer, at + wire.SOURCE_AT)
    i = _place_of(S, p, pub, identity, now_ns)
    if i < 0:
        counted(S, pub, C.RECEIVERS_REFUSED, 1)
        return
    r = S.receivers[p, i]
    if r.id != 0 and not _is_at(r, name):
        _foreign(S, pub, wire.STATUS, node, name, now_ns)
        return
    if r.id != 0 and r.heard_ns < 0:  # it is about to be dropped: this came from where it was
        counted(S, pub, C.QUARANTINED, 1)
        return
    if pub.owner_a == load_i64(name, 0) and pub.owner_b == load_i64(name, 8):
        pub.owner_left = flags & wire.FLAG_LEAVE
    if flags & wire.FLAG_LEAVE:
        if r.id != 0:
            r.id = 0
            pub.receivers -= 1
            emit(S.events, S.attention, E_RECEIVER_LEFT, pub.session, identity, node)
            note(S, rec.LOW, now_ns, rec.Code.RECEIVER_LEFT, pub.session, identity, node)
        pub.limit, pub.lowest = limits(S.receivers[p], pub.flow)
        return
    consumed = load_i64(buffer, at + wire.STATUS_CONSUMED_AT)
    contiguous = load_i64(buffer, at + wire.STATUS_CONTIGUOUS_AT)
    if contiguous > pub.sent:
        counted(S, pub, C.INVALID_FIELD, 1)
        return
    joins = r.id == 0
    if joins and _is_former(S, name):
        counted(S, pub, C.QUARANTINED, 1)
        return
    if joins and not _join(S, p, pub, i, identity, node, name, now_ns):
        counted(S, pub, C.RECEIVERS_REFUSED, 1)
        return
    if joins:
        _joins_tables(S, p, pub, i, flags & wire.FLAG_TABLES, now_ns)
    if joins:  # no receiver can get packets that history no longer holds: do not wait for them
        ring = bytes_at(pub.ring_address, pub.ring_bytes)
        oldest = max(load_acquire(ring, lay.HEAD_AT), pub.sent) - pub.slots
        consumed = min(max(consumed, oldest), pub.sent)
    if r.named == 0 and load_u16(buffer, at + wire.LENGTH_AT) > wire.STATUS_BYTES:
        _note_name(S, r, node, buffer, at)
    if joins:
        emit(S.events, S.attention, E_RECEIVER_JOINED, pub.session, identity, node, consumed)
        note(S, rec.LOW, now_ns, rec.Code.RECEIVER_JOINED, pub.session, identity, node, consumed)
    window = min(load_u32(buffer, at + wire.STATUS_WINDOW_AT), lay.SLOTS_MAX)
    lost = load_i64(buffer, at + wire.STATUS_LOST_AT)
    note_status(S.receivers[p], i, consumed, contiguous, window, lost, now_ns)
    pub.limit, pub.lowest = limits(S.receivers[p], pub.flow)
    echo = load_i64(buffer, at + wire.TIME_AT)
    delay_ns = load_u32(buffer, at + wire.STATUS_ECHO_DELAY_AT) * 1000
    sample = now_ns - echo - delay_ns
    if echo > 0 and 0 < sample < 10_000_000_000:
        pub.rtt_ns = sample if pub.rtt_ns == 0 else (pub.rtt_ns * 7 + sample) >> 3


@inlined
def _queue_resend(S, p, pub, first, end):
    """Note a range to resend; False when the table is full (it will be asked for again)."""
    n = pub.resends
    if n > 0 and S.resends[p, n - 1, 1] == first:
        S.resends[p, n - 1, 1] = end
        return True
    if n >= RESENDS_MAX:
        return False
    S.resends[p, n, 0], S.resends[p, n, 1] = first, end
    pub.resends = n + 1
    return True


@inlined
def _answer_lost(S, pub, too_late, oldest, head, now_ns):
    """Answer a NAK for packets that history no longer holds."""
    counted(S, pub, C.NAKS_TOO_LATE, too_late)
    n = put_packet_header(
        S.packet,
        wire.LOST,
        0,
        _route_of(S, pub),
        wire.PACKET_HEADER_BYTES,
        min(oldest, pub.sent),
        now_ns,
    )
    send_run_to_all(S.tx, pub.channel, S.packet, 0, n, 1, False)
    note(S, rec.ALERT, now_ns, rec.Code.LOST_ANSWERED, pub.session, too_late, oldest, head)


@inlined
def _on_nak(S, p, pub, now_ns, buffer, at, name):
    """Note the packets to resend that its receiver can have lost and may ask for."""
    identity = load_i64(buffer, at + wire.NAK_RECEIVER_AT)
    i = place_for(S.receivers[p], identity)
    if i >= 0 and S.receivers[p, i].id == identity:
        r = S.receivers[p, i]
        if not _is_at(r, name):
            _foreign(S, pub, wire.NAK, r.node, name, now_ns)
            return
        earn_credit(r, pub.slots, pub.sent, now_ns)
        r.credit -= _resend(S, p, pub, now_ns, buffer, at, r.contiguous, r.credit)
    else:  # its first STATUS was lost, or found no room
        earn_credit(pub, pub.slots, pub.sent, now_ns)
        pub.credit -= _resend(S, p, pub, now_ns, buffer, at, 0, pub.credit)


@inlined
def _resend(S, p, pub, now_ns, buffer, at, received, credit):
    """Queue packets that a NAK names, from ``received`` on, at most ``credit``. How many."""
    ring = bytes_at(pub.ring_address, pub.ring_bytes)
    count = load_u32(buffer, at + wire.NAK_COUNT_AT)
    head = load_acquire(ring, lay.HEAD_AT)
    # The client can write anything into its ring: a NAK walks one history at most all the same.
    oldest = max(load_i64(ring, lay.FIRST_AT), max(head, pub.sent) - pub.slots)
    resent = bytes_at(pub.resent_address, pub.slots * 8)
    # Several receivers miss the same packet, and their NAKs arrive one after another. A single
    # receiver that asks again has a reason, but a flood of NAKs must not be amplified. With many
    # receivers some ask until the repair has reached them: their NAKs arrive a round trip later.
    linger_ns = RESEND_LINGER_NS_MIN
    if pub.receivers << pub.sampling > FEW_RECEIVERS:
        linger_ns = max((pub.rtt_ns * 5) >> 2, RESEND_LINGER_NS_MIN)
    elif pub.receivers > 1:
        linger_ns = max((pub.rtt_ns * 3) >> 2, RESEND_LINGER_NS_MIN)
    asked, too_late, suppressed, queued, refused = 0, 0, 0, 0, 0
    for i in range(count):
        range_at = at + wire.NAK_RANGES_AT + i * wire.NAK_RANGE_BYTES
        named = load_i64(buffer, range_at)
        end = min(named + load_u32(buffer, range_at + 8), pub.sent)
        asked += max(end - named, 0)
        first = max(named, received)
        refused += max(min(first, end) - named, 0)
        if first < oldest:
            too_late += max(min(oldest, end) - first, 0)
            first = oldest
        for seq in range(first, end):
            slot = (seq & (pub.slots - 1)) * 8
            if now_ns - load_i64(resent, slot) < linger_ns:
                suppressed += 1
            elif queued >= credit:
                refused += end - seq
                break
            elif _queue_resend(S, p, pub, seq, seq + 1):
                store_i64(resent, slot, now_ns)
                queued += 1
            else:
                break
    counted(S, pub, C.NAKS_RECEIVED, 1)
    counted(S, pub, C.NAK_PACKETS_ASKED, asked)
    counted(S, pub, C.NAKS_SUPPRESSED, suppressed)
    counted(S, pub, C.NAKS_REFUSED, refused)
    receiver = load_i64(buffer, at + wire.NAK_RECEIVER_AT)
    note(S, rec.HIGH, now_ns, rec.Code.NAK_RECEIVED, pub.session, receiver, count, asked)
    if too_late > 0:
        _answer_lost(S, pub, too_late, oldest, head, now_ns)
    return queued


@inlined
def _on_owner_ack(S, pub, now_ns, buffer, at, name):
    """An ACK, from where the owner is: elsewhere only after it left, or was silent."""
    a, b = load_i64(name, 0), load_i64(name, 8)
    moved = pub.owner_a != a or pub.owner_b != b
    owner = load_i64(buffer, at + wire.ACK_OWNER_AT)
    follows = pub.owner_left != 0 and owner > pub.owner
    heard = pub.owner_ns != 0 and now_ns - pub.owner_ns < OWNER_SILENT_NS
    if moved and heard and not follows:
        if _is_change(pub, owner, a, b, now_ns):
            counted(S, pub, C.STALE_SESSION, 1)
        else:
            _foreign(S, pub, wire.ACK, load_u16(buffer, at + wire.SOURCE_AT), name, now_ns)
        return
    before = pub.owner
    if on_ack(S, pub, now_ns, buffer, at):
        if moved:
            pub.former_a, pub.former_b = pub.owner_a, pub.owner_b
        if moved or pub.owner != before:
            pub.claim_ns, pub.owner_left = 0, 0
        pub.owner_a, pub.owner_b, pub.owner_ns = a, b, now_ns


@inlined
def _is_change(pub, owner, a, b, now_ns):
    """Whether a refused ACK is from the previous owner, or from the next owner, too early.

    While the owner keeps acking, another address that claims to be the next owner is a stranger.
    """
    if owner < pub.owner and pub.former_a == a and pub.former_b == b:
        return True
    if owner <= pub.owner:
        return False
    if pub.claim_ns == 0 or now_ns - pub.claim_ns > CLAIM_NS_MAX:
        pub.claim_ns = now_ns
    return pub.owner_ns <= pub.claim_ns + CROSSING_NS


@inlined
def _on_control(S, now_ns, buffer, at, n, name):
    cause = check_packet(buffer, at, n)
    if cause != 0:
        S.counters[S.misc[M_ROW], cause] += 1
        return
    kind = load_u8(buffer, at + wire.TYPE_AT)
    if kind != wire.NAK and kind != wire.STATUS and kind != wire.ACK:
        S.counters[S.misc[M_ROW], C.INVALID_TYPE] += 1
        return
    source = load_u16(buffer, at + wire.SOURCE_AT)
    if (S.refused[source >> 6] >> (source & 63)) & 1 != 0:
        S.counters[S.misc[M_ROW], C.QUARANTINED] += 1
        return
    p = find_session(S.sessions, load_u32(buffer, at + wire.SESSION_AT))
    if p == ABSENT:
        S.counters[S.misc[M_ROW], C.STALE_SESSION] += 1
        return
    if p < 0 or S.pubs[p].active == 0:
        return
    pub = S.pubs[p]
    if kind == wire.STATUS:
        _on_status(S, p, pub, now_ns, buffer, at, name)
    elif kind == wire.ACK:
        _on_owner_ack(S, pub, now_ns, buffer, at, name)
    else:
        _on_nak(S, p, pub, now_ns, buffer, at, name)
    make_busy(S, p)


@inlined
def _on_datagram(S, mode, buffer, at, n, name, now_ns):
    """A control packet as it came: opened first, where the transport is sealed."""
    if mode != MODE_OFF:
        row = S.misc[M_ROW]
        opened = open_datagram(S, rec.WRITER_SENDER, row, mode, buffer, at, n, name, now_ns)
        if opened == REFUSED:
            return
        if opened != AS_IT_CAME:
            _on_control(S, now_ns, S.opener.plain, 0, opened, name)
            return
    _on_control(S, now_ns, buffer, at, n, name)


@inlined
def make_busy(S, p):
    """Move a publication to the busy front of the index."""
    place = S.pubs[p].place
    busy = S.misc[M_BUSY]
    if place < busy:
        return
    other = S.index[busy]
    S.index[busy], S.index[place] = p, other
    S.pubs[other].place, S.pubs[p].place = place, busy
    S.misc[M_BUSY] = busy + 1


@inlined
def _make_idle(S, p):
    place = S.pubs[p].place
    last = S.misc[M_BUSY] - 1
    other = S.index[last]
    S.index[last], S.index[place] = p, other
    S.pubs[other].place, S.pubs[p].place = place, last
    S.misc[M_BUSY] = last


@inlined
def _note_pause(S, now_ns):
    """Time in which this agent did not run is no silence of a receiver: listen to them first."""
    ran_ns, S.misc[M_RAN_NS] = S.misc[M_RAN_NS], now_ns
    pause_ns = now_ns - ran_ns
    if ran_ns == 0 or pause_ns < PAUSE_NS_MIN:
        return
    S.misc[M_POLL_SKIP] = 0
    for k in range(S.misc[M_COUNT]):
        p = S.index[k]
        note_pause(S.receivers[p], pause_ns)
        if S.pubs[p].held_ns != 0:
            S.pubs[p].held_ns += pause_ns


@kernel
def send_cycle(S, now_ns):
    """One duty cycle of the sender. Returns the amount of work done (0: none)."""
    work = 0
    _note_pause(S, now_ns)
    if S.misc[M_POLL_SKIP] > 0:
        S.misc[M_POLL_SKIP] -= 1
    else:
        bundles = receive(S.rx)
        mode = S.opener.control[O_MODE]
        n = take_learned(S)
        if n > 0:
            _on_datagram(S, mode, S.opener.unknown, 0, n, name_of_learned(S), now_ns)
        for i in range(bundles):
            at = i * RECEIVE_BUFFER_BYTES
            name = S.rx.names[i * 16 : i * 16 + 16]
            _on_datagram(S, mode, S.rx.buffers, at, bundle_bytes(S.rx, i), name, now_ns)
        work += max(bundles, 0)
        S.misc[M_POLL_SKIP] = 0 if bundles > 0 else POLL_SKIP_MAX
    k = 0
    while k < S.misc[M_BUSY]:
        p = S.index[k]
        sent = _serve(S, p, now_ns)
        work += sent
        if sent == 0 and S.pubs[p].resends == 0 and S.pubs[p].blocked_ns == 0:
            S.pubs[p].quiet += 1
            if S.pubs[p].quiet > 64:
                _make_idle(S, p)
                continue
        else:
            S.pubs[p].quiet = 0
        k += 1
    if S.misc[M_BEACON_NS] != 0 and now_ns >= S.misc[M_BEACON_NS]:
        _send_beacon(S, now_ns)
    idle = S.misc[M_COUNT] - S.misc[M_BUSY]
    for _ in range(min(idle, IDLE_SCAN_MAX)):
        busy = S.misc[M_BUSY]
        span = S.misc[M_COUNT] - busy
        if span <= 0:
            break
        S.misc[M_CURSOR] = (S.misc[M_CURSOR] + 1) % span
        p = S.index[busy + S.misc[M_CURSOR]]
        sent = _serve(S, p, now_ns)
        if sent > 0:
            work += sent
            S.pubs[p].quiet = 0
            make_busy(S, p)
    row = S.misc[M_ROW]
    S.counters[row, C.DUTY_CYCLES] += 1
    S.counters[row, C.SYSTEM_CALLS_SENT] = S.tx.io[IO_CALLS]
    S.counters[row, C.SHORT_SENDS] = S.tx.io[IO_SHORT]
    S.counters[row, C.SEALED] = S.tx.io[IO_SEALED]
    S.counters[row, C.KEYLESS] = S.tx.io[IO_KEYLESS]
    if S.tx.io[IO_GSO_REFUSED] != S.counters[row, C.GSO_REFUSED]:
        S.counters[row, C.GSO_REFUSED] = S.tx.io[IO_GSO_REFUSED]
        note(S, rec.ALERT, now_ns, rec.Code.GSO_OFF, 0, S.tx.io[IO_ERRNO])
    return work
