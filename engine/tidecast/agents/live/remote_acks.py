"""Acks of durable topics over the network: the sender takes them, the receiver sends them.

A publication whose topic another node stores keeps its unacked packets in its ring, by a consumer
entry that only ACK packets move. Its SETUP carries the producer's session and the acked position,
so an owner that restarts, or a new owner, knows where to resume.
"""

from __future__ import annotations

from tidecast.agents.live.images import M_NODE, RECEIVER
from tidecast.agents.live.sending import counted
from tidecast.buffers.slots import control_at, ring_bell
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.layout.counters import Counter as C
from tidecast.native.atomics import (
    exchange,
    fence_acquire,
    fence_seq_cst,
    load_acquire,
    load_relaxed,
    store_release,
)
from tidecast.native.jit import held_kernel, inlined
from tidecast.native.memory import bytes_at, load_i64, load_u32, store_i64
from tidecast.protocol.packets import Ack, Route, put_ack
from tidecast.transport.wire_io import send_to_address

_receiver_of = RECEIVER.of
_HEADER = wire.PACKET_HEADER_BYTES


# --- publisher's side -----------------------------------------------------------------------------


@inlined
def _record_at(ring):
    version = load_acquire(ring, lay.ACK_VERSION_AT)
    return lay.ACK_RECORDS_AT + (version & 1) * lay.ACK_RECORD_BYTES


@inlined
def acked_up_to(ring):
    """The first packet that is not wholly durable."""
    return load_i64(ring, _record_at(ring))


@inlined
def put_producer(pub, ring, out):
    """Fill in the producer's block of a SETUP, if the SETUP has one."""
    if pub.remote == 0:
        return
    at, record = pub.block_at, _record_at(ring)
    store_i64(out, at + wire.SETUP_PRODUCER_AT, load_i64(ring, lay.PRODUCER_AT))
    store_i64(out, at + wire.SETUP_EPOCH_AT, load_i64(ring, lay.EPOCH_AT))
    store_i64(out, at + wire.SETUP_FIRST_SEQ_AT, load_i64(ring, lay.FIRST_SEQ_AT))
    for i in range(0, lay.ACK_RECORD_BYTES, 8):
        store_i64(out, at + wire.SETUP_ACKED_PACKET_AT + i, load_i64(ring, record + i))


@inlined
def _ended_in(pub, ring, seq):
    """Messages that end in a packet of a ring, whatever its writer made of it."""
    word = load_acquire(ring, control_at(seq, pub.slots - 1))
    if (word >> lay.SEQ_SHIFT) & lay.SEQ_MASK != seq & lay.SEQ_MASK:
        return 0
    at = pub.slots_at + (seq & (pub.slots - 1)) * pub.slot_bytes
    end = at + min(word & lay.CONTROL_LENGTH_MASK, pub.slot_bytes)
    at += _HEADER
    n = 0
    while at + wire.MESSAGE_HEADER_BYTES <= end:
        head = load_u32(ring, at)
        at += wire.MESSAGE_HEADER_BYTES + (head & wire.MESSAGE_LENGTH_MAX)
        if at <= end and (head >> 24) & wire.END:
            n += 1
    return n


@inlined
def published(pub, ring):
    """Messages that a ring has held in all."""
    head = load_acquire(ring, lay.HEAD_AT)
    count = load_i64(ring, lay.MESSAGES_AT)
    newest = _ended_in(pub, ring, head - 1) if head > 0 else 0
    fence_acquire()
    if load_relaxed(ring, lay.HEAD_AT) != head:  # its writer continues: the packets before
        newest, count = 0, load_i64(ring, lay.MESSAGES_AT)
    return min(max(count + newest, 0), wire.MESSAGE_SEQ_MAX)


@inlined
def _wake_publisher(S, ring):
    fence_seq_cst()
    if load_relaxed(ring, lay.ACK_ARMED_AT) != 0:
        exchange(ring, lay.ACK_ARMED_AT, 0)
        ring_bell(S.bells, load_i64(ring, lay.ACK_BELL_AT))


@inlined
def _set_state(S, ring, state):
    if load_acquire(ring, lay.ACK_STATE_AT) != state:
        store_release(ring, lay.ACK_STATE_AT, state)
        _wake_publisher(S, ring)


@inlined
def _move_to(S, pub, ring, packet, offset, count):
    """Advance the durable position. False: the ACK is impossible. An older ACK is no error."""
    record = _record_at(ring)
    seq, at = load_i64(ring, record), load_i64(ring, record + 8)
    reported = load_i64(ring, record + 16)
    if packet < seq or (packet == seq and offset <= at):
        return True
    room = (packet - seq + 1) * pub.slot_bytes // wire.MESSAGE_HEADER_BYTES
    if packet > pub.sent or offset > pub.slot_bytes or count < reported or count - reported > room:
        return False
    version = load_i64(ring, lay.ACK_VERSION_AT) + 1
    record = lay.ACK_RECORDS_AT + (version & 1) * lay.ACK_RECORD_BYTES
    store_i64(ring, record, packet)
    store_i64(ring, record + 8, offset)
    store_i64(ring, record + 16, count)
    store_release(ring, lay.ACK_VERSION_AT, version)
    entry = lay.CONSUMERS_AT + pub.consumer * lay.CONSUMER_BYTES
    store_release(ring, entry + lay.CONSUMER_POSITION_AT, packet)
    store_release(ring, lay.APPENDED_AT, count)
    store_release(ring, lay.DURABLE_AT, count)
    if count != reported:
        _wake_publisher(S, ring)
    return True


@inlined
def on_ack(S, pub, now_ns, buffer, at):
    """Apply an ACK of the owner of a durable topic. Returns whether it was valid."""
    ring = bytes_at(pub.ring_address, pub.ring_bytes)
    mine, epoch = load_i64(ring, lay.EPOCH_AT), load_i64(buffer, at + wire.ACK_EPOCH_AT)
    owner = load_i64(buffer, at + wire.ACK_OWNER_AT)
    state = load_u32(buffer, at + wire.ACK_STATE_AT)
    if state >= 1 << 31:
        state -= 1 << 32
    if pub.remote == 0 or load_i64(buffer, at + wire.ACK_PRODUCER_AT) != load_i64(
        ring, lay.PRODUCER_AT
    ):
        counted(S, pub, C.INVALID_FIELD, 1)
        return False
    reported = load_acquire(ring, lay.ACK_STATE_AT)
    if owner < pub.owner or reported == lay.ACK_FENCED or reported == lay.ACK_REFUSED:
        counted(S, pub, C.STALE_SESSION, 1)
        return False
    first_seq = load_i64(buffer, at + wire.ACK_FIRST_SEQ_AT)
    if state == lay.ACK_REFUSED and mine == 0:
        store_i64(ring, lay.FIRST_SEQ_AT, first_seq)
        _set_state(S, ring, state)
    elif state == lay.ACK_FENCED and epoch > mine:
        _set_state(S, ring, state)
    elif state >= 0 and mine == 0:  # the session is opened: the owner gets a SETUP at once
        store_i64(ring, lay.FIRST_SEQ_AT, first_seq)
        store_release(ring, lay.EPOCH_AT, epoch)
        _set_state(S, ring, state)
        pub.setup_ns = now_ns
    elif state >= 0 and epoch == mine:
        packet = load_i64(buffer, at + wire.SEQ_AT)
        offset = load_u32(buffer, at + wire.ACK_OFFSET_AT)
        if not _move_to(S, pub, ring, packet, offset, load_i64(buffer, at + wire.ACK_COUNT_AT)):
            counted(S, pub, C.INVALID_FIELD, 1)
            return False
        _set_state(S, ring, state)
    else:
        counted(S, pub, C.STALE_SESSION, 1)
        return False
    pub.owner = owner
    counted(S, pub, C.ACKS, 1)
    return True


# --- owner's side ---------------------------------------------------------------------------------


@inlined
def image_unacked(image, ring):
    """Whether the publisher of a durable image lacks the newest acked position or state."""
    return (
        load_acquire(ring, lay.ACK_VERSION_AT) != image.acked
        or load_acquire(ring, lay.ACK_STATE_AT) != image.ack_state
    )


@inlined
def send_ack(S, image, ring, name):
    """Send an ACK to the publisher of a durable image."""
    version = load_acquire(ring, lay.ACK_VERSION_AT)
    state = load_acquire(ring, lay.ACK_STATE_AT)
    record = lay.ACK_RECORDS_AT + (version & 1) * lay.ACK_RECORD_BYTES
    packet, offset = load_i64(ring, record), load_i64(ring, record + 8)
    count = load_i64(ring, record + 16)
    if load_acquire(ring, lay.ACK_VERSION_AT) != version:
        return  # the record is being written over: next time
    route = Route(image.channel, image.session, image.topic, S.misc[M_NODE])
    first = image.first_seq
    ack = Ack(image.producer, image.epoch, first, packet, offset, count, max(state, 0), image.owner)
    n = put_ack(S.packet, route, ack)
    send_to_address(S.tx, name, S.packet, n, image.source)
    image.acked, image.ack_state = version, state
    S.counters[image.row, C.ACKS] += 1


@held_kernel
def answer_setup(words, answer, a, b):
    """Answer a producer's SETUP without an image: opened, refused or fenced.

    ``answer``: channel, session, topic, producer, epoch, first_seq, packet, offset, count, state,
    owner, publisher's node; ``a``, ``b``: the address's 16 bytes.
    """
    S = _receiver_of(words)
    route = Route(answer[0], answer[1], answer[2], S.misc[M_NODE])
    packet, offset, count, state, owner = answer[6], answer[7], answer[8], answer[9], answer[10]
    ack = Ack(answer[3], answer[4], answer[5], packet, offset, count, state, owner)
    n = put_ack(S.packet, route, ack)
    store_i64(S.packet, 1024, a)
    store_i64(S.packet, 1032, b)
    send_to_address(S.tx, S.packet[1024:1040], S.packet, n, answer[11])
