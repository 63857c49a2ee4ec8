"""Sealed packets that arrive: each is opened first, then handled as a plain packet.

An agent of a sealed transport calls this once for each packet. Refused packets are counted. A
packet of an unknown sender is kept: the agent's thread derives its keys outside of kernels, one
sender at a time.
"""

from __future__ import annotations

from tidecast.agents.events import E_FORGERY, E_KEY, emit
from tidecast.buffers.recorder import record
from tidecast.layout import packet as wire
from tidecast.layout import recorder as rec
from tidecast.layout import sealed as lay
from tidecast.layout.counters import Counter as C
from tidecast.layout.sealed import MODE_REQUIRED
from tidecast.native.jit import inlined
from tidecast.native.memory import copy, load_i64, load_u16, load_u32
from tidecast.protocol.sealing.receiver import (
    O_KEPT,
    O_READY,
    O_REPORT_NS,
    O_WANT_NS,
    REPLAYED,
    TAG_FAILED,
    UNKNOWN_KEY,
    UNKNOWN_NAME_AT,
    open_packet,
)

REPORT_INTERVAL_NS = 1_000_000_000
WANT_INTERVAL_NS = 200_000
FORGED_TAG, FORGED_PLAIN = 0, 1
"""Why a packet counts as forged: its tag is wrong; it is plain where packets must be sealed."""
REFUSED, AS_IT_CAME = 0, -1
"""Results of `open_datagram` beside the length of an opened packet."""


@inlined
def _report_forged(S, writer, row, buffer, at, name, cause, now_ns):
    """Report a packet that is not authentic: one report a second at most; all are counted."""
    control = S.opener.control
    if now_ns < control[O_REPORT_NS]:
        return
    control[O_REPORT_NS] = now_ns + REPORT_INTERVAL_NS
    source = load_u16(buffer, at + wire.SOURCE_AT)
    emit(S.events, S.attention, E_FORGERY, source, load_i64(name, 0), load_i64(name, 8), cause)
    record(S.recorder, writer, rec.ALERT, now_ns, rec.Code.WIRE_FORGERY, row, source, cause, 0, 0)


@inlined
def _keep_unknown(S, buffer, at, n, name, now_ns):
    """Keep the packet for `ReceiverKeys.learn`, unless another packet is kept."""
    opener = S.opener
    waits = opener.control[O_KEPT] != 0 or opener.control[O_READY] != 0
    if waits or now_ns < opener.control[O_WANT_NS]:
        return
    opener.control[O_WANT_NS] = now_ns + WANT_INTERVAL_NS
    n = min(n, load_u16(buffer, at + wire.LENGTH_AT) + lay.SEAL_BYTES)
    source, epoch = load_u16(buffer, at + wire.SOURCE_AT), load_u32(buffer, at + lay.EPOCH_AT)
    if emit(S.events, S.attention, E_KEY, source, load_i64(name, 0), load_i64(name, 8), epoch):
        copy(opener.unknown, 0, buffer, at, n)
        copy(opener.unknown, UNKNOWN_NAME_AT, name, 0, 16)
        opener.control[O_KEPT] = n


@inlined
def _open_sealed(S, writer, row, buffer, at, n, name, now_ns):
    """Open a sealed packet to ``S.opener.plain``. Returns its length; 0: refused, and counted."""
    opener = S.opener
    outcome = open_packet(opener, buffer, at, n, opener.plain, 0, now_ns)
    if outcome > 0:
        S.counters[row, C.OPENED] += 1
        return outcome
    if outcome == REPLAYED:
        S.counters[row, C.REPLAYED] += 1
    elif outcome == UNKNOWN_KEY:
        S.counters[row, C.UNKNOWN_KEY] += 1
        _keep_unknown(S, buffer, at, n, name, now_ns)
    elif outcome == TAG_FAILED:
        S.counters[row, C.TAG_FAILED] += 1
        _report_forged(S, writer, row, buffer, at, name, FORGED_TAG, now_ns)
    else:
        S.counters[row, C.INVALID_FIELD] += 1
    return 0


@inlined
def _is_plain(buffer, at, n):
    """Whether this is a packet that is not sealed, of any length."""
    return n >= wire.PACKET_HEADER_BYTES and buffer[at + wire.VERSION_AT] == wire.VERSION


@inlined
def is_sealed(buffer, at, n):
    """Whether this says that it is a sealed packet."""
    return n >= wire.PACKET_HEADER_BYTES and buffer[at + wire.VERSION_AT] == lay.SEALED_VERSION


@inlined
def open_datagram(S, writer, row, mode, buffer, at, n, name, now_ns):
    """Open a packet to ``S.opener.plain`` if it is sealed, on a transport that seals.

    Returns its length there; `AS_IT_CAME`: it is not sealed, and need not be; `REFUSED`: counted.
    """
    if is_sealed(buffer, at, n):
        return _open_sealed(S, writer, row, buffer, at, n, name, now_ns)
    if mode == MODE_REQUIRED and _is_plain(buffer, at, n):
        S.counters[row, C.PLAIN_REFUSED] += 1
        _report_forged(S, writer, row, buffer, at, name, FORGED_PLAIN, now_ns)
        return REFUSED
    return AS_IT_CAME


@inlined
def take_learned(S):
    """The length of a packet whose sender is known now, at the start of ``S.opener.unknown``; 0."""
    n = S.opener.control[O_READY]
    if n != 0:
        S.opener.control[O_READY] = 0
    return n


@inlined
def name_of_learned(S):
    """The 16-byte address that it came from."""
    return S.opener.unknown[UNKNOWN_NAME_AT : UNKNOWN_NAME_AT + 16]
