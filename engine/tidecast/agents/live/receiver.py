"""The receiver: takes packets off the sockets, places them into images, asks for missing packets.

One duty cycle: for the socket of each channel (control first) receive bundles, check every packet,
pass it through fault injection when that is on, and place it into its image; then timers of some
images: NAKs, STATUS, silence. The SETUP of a session without an image goes to the conductor.
"""

from __future__ import annotations

from tidecast.agents.events import (
    E_FOREIGN,
    E_PEER_TIMEOUT,
    E_SETUP,
    emit,
)
from tidecast.agents.live.expanding import ask_for_table, on_compact, on_table
from tidecast.agents.live.images import (
    M_COUNT,
    M_CURSOR,
    M_FOREIGN_NS,
    M_LAST_IMAGE,
    M_LAST_SESSION,
    M_NODE,
    M_RAN_NS,
    M_READS,
    M_ROW,
    M_SETUPS,
    M_SKIP0,
    M_SKIP1,
    M_SKIP2,
    M_UNREPORTED,
    M_WANT_ALL,
    M_WANT_NS,
    SESSION_ENDED,
    SESSION_PENDING,
    SETUPS_KEPT_MAX,
)
from tidecast.agents.live.receiving import (
    AHEAD_MAX,
    UNREPORTED_NS,
    address_of_publisher,
    consumed_by_all,
    finish_if_complete,
    has_progress,
    note,
    note_setup,
    on_heartbeat,
    on_lost,
    place_packet,
    report_durable,
    ring_of,
    send_naks,
    send_status,
)
from tidecast.agents.live.unsealing import (
    AS_IT_CAME,
    REFUSED,
    is_sealed,
    name_of_learned,
    open_datagram,
    take_learned,
)
from tidecast.buffers.slots import wake_armed
from tidecast.layout import packet as wire
from tidecast.layout import recorder as rec
from tidecast.layout.counters import Counter as C
from tidecast.layout.sealed import MODE_OFF
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import copy, load_i64, load_u8, load_u16, load_u32, store_i64
from tidecast.protocol.area import critical_of
from tidecast.protocol.check import check_packet
from tidecast.protocol.packets import Route, Status, put_status
from tidecast.protocol.sealing.receiver import O_MODE
from tidecast.protocol.session_table import ABSENT, find_session, put_session
from tidecast.transport.faults import (
    DELIVER_TWICE,
    F_HELD,
    F_ON,
    SWALLOWED,
    due_held,
    fault_verdict,
    forget_held,
    packet_passed,
)
from tidecast.transport.wire_io import (
    IO_KEYLESS,
    IO_SEALED,
    RECEIVE_BUFFER_BYTES,
    bundle_bytes,
    bundle_segment_bytes,
    receive,
    send_to_address,
)

PAUSE_NS_MIN = 100_000_000
"""An agent whose next cycle comes so late did not run: its process was stopped, or had no core."""
WANT_INTERVAL_NS = 200_000
WANT_AGAIN_NS = 20_000_000
FOREIGN_INTERVAL_NS = 1_000_000_000
SETUP_RENEWED_NS = 200_000_000
TIMER_SCAN_MAX = 64
QUIET_SOCKET_SKIP = 16


@inlined
def _lookup(S, session):
    if S.misc[M_LAST_SESSION] == session:
        return S.misc[M_LAST_IMAGE]
    found = find_session(S.sessions, session)
    if found >= 0:
        S.misc[M_LAST_SESSION], S.misc[M_LAST_IMAGE] = session, found
    return found


@inlined
def _wanted(S, topic):
    return S.misc[M_WANT_ALL] != 0 or (S.wanted[topic >> 6] >> (topic & 63)) & 1 != 0


@inlined
def _ask_for_setup(S, buffer, at, name, now_ns):
    """A packet of an unknown session, on a topic that has a subscription here."""
    S.counters[S.misc[M_ROW], C.UNKNOWN_SESSION] += 1
    if now_ns < S.misc[M_WANT_NS]:
        return
    S.misc[M_WANT_NS] = now_ns + WANT_INTERVAL_NS
    _want_setup(
        S,
        load_u8(buffer, at + wire.CHANNEL_AT),
        load_u32(buffer, at + wire.SESSION_AT),
        load_u16(buffer, at + wire.TOPIC_AT),
        name,
        load_u16(buffer, at + wire.SOURCE_AT),
    )


@inlined
def _want_setup(S, channel, session, topic, name, node):
    route = Route(channel, session, topic, S.misc[M_NODE])
    n = put_status(S.packet, wire.FLAG_WANT_SETUP, route, Status(1, 0, 0, 0, 0, 0, 0))
    send_to_address(S.tx, name, S.packet, n, node)


@inlined
def _setup_for_conductor(S, buffer, at, length, name, now_ns):
    """Keep a SETUP for the conductor, which creates images. False: there is no room now."""
    i = S.misc[M_SETUPS]
    session = load_u32(buffer, at + wire.SESSION_AT)
    if i >= SETUPS_KEPT_MAX or length > wire.CONTROL_BYTES_MAX:
        return False
    copy(S.setups[i], 0, buffer, at, length)
    kept = emit(
        S.events, S.attention, E_SETUP, session, i, length, load_i64(name, 0), load_i64(name, 8)
    )
    source, topic = load_u16(buffer, at + wire.SOURCE_AT), load_u16(buffer, at + wire.TOPIC_AT)
    seq = load_i64(buffer, at + wire.SEQ_AT)
    note(S, rec.LOW, now_ns, rec.Code.SETUP_SEEN, session, source, topic, seq)
    return kept


@inlined
def _setup_of_unknown(S, buffer, at, length, name, now_ns):
    """The first SETUP of a session: until the conductor has decided the others are dropped."""
    session = load_u32(buffer, at + wire.SESSION_AT)
    if _setup_for_conductor(S, buffer, at, length, name, now_ns) and put_session(
        S.sessions, session, SESSION_PENDING
    ):
        S.misc[M_SETUPS] += 1


@inlined
def _foreign(S, image, kind, name, now_ns):
    """Refuse a packet that does not come from where its session's SETUP came from; report some."""
    S.counters[image.row, C.FOREIGN_ADDRESS] += 1
    if now_ns < S.misc[M_FOREIGN_NS]:
        return
    S.misc[M_FOREIGN_NS] = now_ns + FOREIGN_INTERVAL_NS
    session, source = image.session, image.source
    a, b = load_i64(name, 0), load_i64(name, 8)
    emit(S.events, S.attention, E_FOREIGN, session, source, a, b, kind)
    note(S, rec.ALERT, now_ns, rec.Code.FOREIGN_ADDRESS, session, source, kind)


@inlined
def _to_image(S, i, kind, buffer, at, length, name, now_ns):
    image = S.images[i]
    if load_u16(buffer, at + wire.SOURCE_AT) != image.source:
        S.counters[image.row, C.INVALID_FIELD] += 1
        return
    renewed = kind == wire.SETUP and (
        load_i64(buffer, at + wire.SETUP_INCARNATION_AT) > image.incarnation
    )
    if renewed:  # the conductor looks whether its node has really started again
        if now_ns >= image.renewed_ns:
            image.renewed_ns = now_ns + SETUP_RENEWED_NS
            if _setup_for_conductor(S, buffer, at, length, name, now_ns):
                S.misc[M_SETUPS] += 1
        return
    if load_i64(name, 0) != image.address_a or load_i64(name, 8) != image.address_b:
        _foreign(S, image, kind, name, now_ns)
        return
    seq = load_i64(buffer, at + wire.SEQ_AT)
    if seq > image.highest + AHEAD_MAX:
        S.counters[image.row, C.INVALID_FIELD] += 1
        return
    if kind == wire.DATA:
        image.named = max(image.named, seq + 1)
        place_packet(S, image, buffer, at, length, now_ns)
    elif kind == wire.COMPACT:
        image.named = max(image.named, seq + 1)
        on_compact(S, image, buffer, at, length, now_ns)
    elif kind == wire.TABLE:
        on_table(S, image, buffer, at, now_ns)
    elif kind == wire.HEARTBEAT:
        image.named = max(image.named, seq)
        on_heartbeat(S, image, buffer, at, now_ns)
    elif kind == wire.LOST:
        image.heard_ns = now_ns
        if seq > image.named:
            S.counters[image.row, C.INVALID_FIELD] += 1
        else:
            on_lost(S, image, seq, now_ns)
    else:
        if load_i64(buffer, at + wire.SETUP_INCARNATION_AT) != image.incarnation:
            S.counters[image.row, C.STALE_SESSION] += 1
            return
        if critical_of(buffer, at) != 0:
            S.counters[image.row, C.INVALID_AREA] += 1
            return
        image.named = max(image.named, seq)
        image.heard_ns = now_ns
        note_setup(image, buffer, at)
        if image.want_setup_ns != 0 and _setup_for_conductor(S, buffer, at, length, name, now_ns):
            image.want_setup_ns = 0
            S.misc[M_SETUPS] += 1
        S.counters[image.row, C.SETUPS_RECEIVED] += 1


@inlined
def on_packet(S, buffer, at, n, name, now_ns):
    """Check one packet and pass it to its image."""
    row = S.misc[M_ROW]
    cause = check_packet(buffer, at, n)
    if cause != 0:
        S.counters[row, cause] += 1
        return
    kind = load_u8(buffer, at + wire.TYPE_AT)
    source = load_u16(buffer, at + wire.SOURCE_AT)
    if kind == wire.NAK or kind == wire.STATUS or kind == wire.ACK:
        S.counters[row, C.INVALID_TYPE] += 1
        return
    if source == S.misc[M_NODE]:
        return  # our own, looped back
    if (S.quarantine[source >> 6] >> (source & 63)) & 1 != 0:
        S.counters[row, C.QUARANTINED] += 1
        return
    S.heard[source] = now_ns
    if kind == wire.HEARTBEAT and load_u16(buffer, at + wire.TOPIC_AT) == wire.TOPIC_NONE:
        S.counters[row, C.BEACONS_RECEIVED] += 1
        return
    session = load_u32(buffer, at + wire.SESSION_AT)
    length = load_u16(buffer, at + wire.LENGTH_AT)
    i = _lookup(S, session)
    if i >= 0:
        _to_image(S, i, kind, buffer, at, length, name, now_ns)
        other = S.images[i].next
        while other >= 0:
            _to_image(S, other, kind, buffer, at, length, name, now_ns)
            other = S.images[other].next
        return
    if i == SESSION_ENDED:
        S.counters[row, C.STALE_SESSION] += 1
    elif i == SESSION_PENDING:
        S.counters[row, C.UNKNOWN_SESSION] += 1
    elif i == ABSENT:
        if kind == wire.SETUP:
            _setup_of_unknown(S, buffer, at, length, name, now_ns)
        elif _wanted(S, load_u16(buffer, at + wire.TOPIC_AT)):
            _ask_for_setup(S, buffer, at, name, now_ns)
        else:
            S.counters[row, C.FILTERED] += 1
    else:
        S.counters[row, C.FILTERED] += 1


@inlined
def _on_datagram(S, mode, buffer, at, n, name, now_ns):
    """A packet as it came: opened first, where the transport is sealed."""
    if mode != MODE_OFF:
        if is_sealed(buffer, at, n) and load_u16(buffer, at + wire.SOURCE_AT) == S.misc[M_NODE]:
            return  # our own, looped back
        row = S.misc[M_ROW]
        opened = open_datagram(S, rec.WRITER_RECEIVER, row, mode, buffer, at, n, name, now_ns)
        if opened == REFUSED:
            return
        if opened != AS_IT_CAME:
            on_packet(S, S.opener.plain, 0, opened, name, now_ns)
            return
    on_packet(S, buffer, at, n, name, now_ns)


@inlined
def _through_faults(S, mode, buffer, at, n, name, now_ns):
    verdict = fault_verdict(S.faults, S.counters, S.misc[M_ROW], buffer, at, n, name, now_ns)
    if verdict == SWALLOWED:
        return
    _on_datagram(S, mode, buffer, at, n, name, now_ns)
    if verdict == DELIVER_TWICE:
        _on_datagram(S, mode, buffer, at, n, name, now_ns)
    packet_passed(S.faults)


@inlined
def _release_held(S, now_ns):
    while S.faults.settings[F_HELD] > 0:
        i = due_held(S.faults, now_ns)
        if i < 0:
            return
        n = S.faults.held[i, 2]
        store_i64(S.packet, 1040, S.faults.held[i, 4])
        store_i64(S.packet, 1048, S.faults.held[i, 5])
        mode = S.opener.control[O_MODE]
        _on_datagram(S, mode, S.faults.held_bytes[i], 0, n, S.packet[1040:1056], now_ns)
        forget_held(S.faults, i)


@inlined
def _drain_socket(S, rx, now_ns):
    """Receive one batch of bundles and handle every packet. Returns bundles."""
    bundles = receive(rx)
    faulty, mode = S.faults.settings[F_ON] != 0, S.opener.control[O_MODE]
    for i in range(bundles):
        total = bundle_bytes(rx, i)
        size = bundle_segment_bytes(rx, i)
        name = rx.names[i * 16 : i * 16 + 16]
        base = i * RECEIVE_BUFFER_BYTES
        at = 0
        while at < total:
            n = min(size, total - at)
            if faulty:
                _through_faults(S, mode, rx.buffers, base + at, n, name, now_ns)
            else:
                _on_datagram(S, mode, rx.buffers, base + at, n, name, now_ns)
            at += n
    S.counters[S.misc[M_ROW], C.DATAGRAMS_RECEIVED] += max(bundles, 0)
    return max(bundles, 0)


@inlined
def _image_timers(S, image, now_ns):
    """NAKs, STATUS, end, silence, waking of readers. Returns work done."""
    work = 0
    ring = ring_of(image)
    if image.dirty != 0:
        image.dirty = 0
        wake_armed(ring, S.bells)
        work += 1
    work += report_durable(S, image, ring)
    if image.want_setup_ns != 0 and now_ns >= image.want_setup_ns:
        image.want_setup_ns = now_ns + WANT_AGAIN_NS
        _want_setup(
            S,
            image.channel,
            image.session,
            image.topic,
            address_of_publisher(S, image),
            image.source,
        )
    if image.table_ns != 0 and now_ns >= image.table_ns:
        ask_for_table(S, image, now_ns)
        work += 1
    if image.gaps > 0 and now_ns >= image.nak_ns:
        work += send_naks(S, image, now_ns)
    if image.contiguous - image.contiguous_reported >= (image.buffer_slots >> 2):
        send_status(S, image, ring, 0, now_ns)
        work += 1
    elif image.contiguous - image.reported >= (image.slots >> 3):
        _, _, slowest = consumed_by_all(image, ring)
        if slowest - image.reported >= (image.slots >> 3):
            send_status(S, image, ring, 0, now_ns)
            work += 1
        else:
            S.misc[M_UNREPORTED] = 1
    elif image.contiguous != image.reported:
        S.misc[M_UNREPORTED] = 1  # readers do not wake this agent: look again soon
        if image.status_ns > now_ns + UNREPORTED_NS and has_progress(image, ring):
            image.status_ns = now_ns + UNREPORTED_NS
    if now_ns >= image.status_ns:
        leave = wire.FLAG_LEAVE if finish_if_complete(S, image, ring, now_ns) else 0
        send_status(S, image, ring, leave, now_ns)
        S.counters[image.row, C.HIGHEST] = image.highest
        S.counters[image.row, C.CONTIGUOUS] = image.contiguous
        S.counters[image.row, C.SLOTS] = image.slots
        S.counters[image.row, C.RTT_NS] = image.rtt_ns
        work += 1
        if image.silent == 0 and image.closed == 0 and now_ns - image.heard_ns > image.timeout_ns:
            image.silent = 1
            session, source, seq = image.session, image.source, image.contiguous
            emit(S.events, S.attention, E_PEER_TIMEOUT, session, source, seq)
            note(S, rec.ALERT, now_ns, rec.Code.PEER_TIMEOUT, session, source, seq)
    return work


@inlined
def _note_pause(S, now_ns):
    """Time in which this agent did not run is no silence of a publisher: listen to them first."""
    ran_ns, S.misc[M_RAN_NS] = S.misc[M_RAN_NS], now_ns
    pause_ns = now_ns - ran_ns
    if ran_ns == 0 or pause_ns < PAUSE_NS_MIN:
        return
    S.misc[M_SKIP0] = 0
    S.misc[M_SKIP1] = 0
    S.misc[M_SKIP2] = 0
    for k in range(S.misc[M_COUNT]):
        S.images[S.index[k]].heard_ns += pause_ns


@kernel
def receive_cycle(S, now_ns):
    """One duty cycle of the receiver. Returns the amount of work done (0: none)."""
    work = 0
    _note_pause(S, now_ns)
    if S.misc[M_SKIP0] > 0:
        S.misc[M_SKIP0] -= 1
    else:
        n = _drain_socket(S, S.rx0, now_ns)
        S.misc[M_SKIP0] = 0 if n > 0 else QUIET_SOCKET_SKIP
        work += n
    if (
        S.misc[M_READS] == 0 and S.misc[M_SKIP1] > 0
    ):  # a receiver without readers pays no call a cycle
        S.misc[M_SKIP1] -= 1
    else:
        n = _drain_socket(S, S.rx1, now_ns)
        S.misc[M_SKIP1] = 0 if n > 0 else QUIET_SOCKET_SKIP
        work += n
    if S.misc[M_SKIP2] > 0:
        S.misc[M_SKIP2] -= 1
    else:
        n = _drain_socket(S, S.rx2, now_ns)
        S.misc[M_SKIP2] = 0 if n > 0 else QUIET_SOCKET_SKIP
        work += n
    n = take_learned(S)
    if n > 0:
        _on_datagram(
            S, S.opener.control[O_MODE], S.opener.unknown, 0, n, name_of_learned(S), now_ns
        )
    if S.faults.settings[F_HELD] > 0:
        _release_held(S, now_ns)
    count = S.misc[M_COUNT]
    S.misc[M_UNREPORTED] = 0
    if count <= TIMER_SCAN_MAX:
        for k in range(count):
            work += _image_timers(S, S.images[S.index[k]], now_ns)
    else:
        for _ in range(TIMER_SCAN_MAX):
            S.misc[M_CURSOR] = (S.misc[M_CURSOR] + 1) % count
            work += _image_timers(S, S.images[S.index[S.misc[M_CURSOR]]], now_ns)
        S.misc[M_UNREPORTED] = 1
    S.counters[S.misc[M_ROW], C.DUTY_CYCLES] += 1
    S.counters[S.misc[M_ROW], C.SEALED] = S.tx.io[IO_SEALED]
    S.counters[S.misc[M_ROW], C.KEYLESS] = S.tx.io[IO_KEYLESS]
    return work
