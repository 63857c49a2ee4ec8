"""Control words of a packet ring and the bells that wake sleepers: shared by writers and readers.

A control word has the sequence of the packet in a slot, its state, and the number of its committed
bytes (see `tidecast.layout.ring`). It is the only word for which writer, sender and readers race.
"""

from __future__ import annotations

from tidecast.layout import ring as lay
from tidecast.native.atomics import (
    exchange,
    fence_seq_cst,
    fetch_add_i32,
    fetch_and,
    fetch_or,
    load_acquire,
    load_relaxed,
    store_release,
)
from tidecast.native.jit import hot, inlined
from tidecast.native.memory import address_of, load_i64
from tidecast.native.system.syscalls import futex_wake

_WAKE_ALL = 1 << 30
_HEADER_BYTES, _SEQ_MASK, _SEQ_SHIFT = lay.HEADER_BYTES, lay.SEQ_MASK, lay.SEQ_SHIFT
_STATE_SHIFT = lay.STATE_SHIFT
_WITH_TAIL_MIN = lay.ring_bytes(lay.SLOTS_MIN, 1, tail=True)


@hot
def control_word(seq, state, length):
    """Pack a control word."""
    return ((seq & _SEQ_MASK) << _SEQ_SHIFT) | (state << _STATE_SHIFT) | length


@hot
def control_at(seq, mask):
    """Offset of the control word of packet ``seq``."""
    return _HEADER_BYTES + (seq & mask) * 8


@hot
def holds(word, seq):
    """Does this control word speak of packet ``seq``?"""
    return (word >> _SEQ_SHIFT) == (seq & _SEQ_MASK)


@hot
def packets_ahead(word, seq):
    """How far the packet in this slot is ahead of ``seq``; 0 when it is not ahead."""
    ahead = ((word >> _SEQ_SHIFT) - seq) & _SEQ_MASK
    if ahead >= (1 << 30):
        return 0
    return ahead


@inlined
def ring_bell(bells, line):
    """Ring one line of the doorbell file."""
    if 0 <= line < lay.DOORBELLS_MAX and (line + 1) * lay.DOORBELL_BYTES <= bells.size:
        at = line * lay.DOORBELL_BYTES
        fetch_add_i32(bells, at, 1)
        futex_wake(address_of(bells) + at, _WAKE_ALL)


@inlined
def entries_used(ring):
    """How many consumer entries of a ring to look at: behind the last one that was ever used."""
    # Not below 0: the length of range(40, -2^63) overflows, and is no longer below 0.
    used = max(load_acquire(ring, lay.CONSUMERS_USED_AT), 0)
    # The header is open memory: whatever it says, the entries lie within the file.
    if load_i64(ring, lay.MAGIC_AT) != lay.MAGIC_WITH_TAIL or ring.size < _WITH_TAIL_MIN:
        return min(used, lay.HEADER_CONSUMERS)
    return min(used, lay.CONSUMERS_MAX)


@inlined
def entry_at(ring, i):
    """Offset of consumer entry ``i``, one of those of `entries_used`."""
    if i < lay.HEADER_CONSUMERS:
        return lay.CONSUMERS_AT + i * lay.CONSUMER_BYTES
    return ring.size - (lay.CONSUMERS_MAX - i) * lay.CONSUMER_BYTES


@inlined
def arm_entry(ring, i, entry):
    """Let the next commit ring the bell of consumer ``i``, whose entry is at ``entry``.

    A fence follows before the consumer looks at the ring once more, and sleeps.
    """
    if i < lay.HEADER_CONSUMERS:
        fetch_or(ring, lay.ARMED_AT, 1 << i)
    else:  # the entry first: a writer takes the bit, and looks at the entries then
        store_release(ring, entry + lay.CONSUMER_ARMED_AT, 1)
        fetch_or(ring, lay.ARMED_AT, 1 << lay.TAIL_ARMED_BIT)


@inlined
def disarm_entry(ring, i, entry):
    """Withdraw `arm_entry`."""
    if i < lay.HEADER_CONSUMERS:
        fetch_and(ring, lay.ARMED_AT, ~(1 << i))
    else:  # the bit may be that of others, too
        store_release(ring, entry + lay.CONSUMER_ARMED_AT, 0)


@inlined
def _wake(ring, bells):
    armed = exchange(ring, lay.ARMED_AT, 0)
    if (armed >> lay.SENDER_ARMED_BIT) & 1:
        ring_bell(bells, load_i64(ring, lay.SENDER_BELL_AT))
    for i in range(lay.HEADER_CONSUMERS):
        if (armed >> i) & 1:
            entry = lay.CONSUMERS_AT + i * lay.CONSUMER_BYTES
            ring_bell(bells, load_i64(ring, entry + lay.CONSUMER_DOORBELL_AT))
    if (armed >> lay.TAIL_ARMED_BIT) & 1:
        for i in range(lay.HEADER_CONSUMERS, entries_used(ring)):
            entry = entry_at(ring, i)
            if exchange(ring, entry + lay.CONSUMER_ARMED_AT, 0) != 0:
                ring_bell(bells, load_i64(ring, entry + lay.CONSUMER_DOORBELL_AT))


@hot
def wake_armed(ring, bells):
    """Wake all readers, and the sender, that armed this ring. Call after each commit.

    It costs a fence and a load.
    """
    fence_seq_cst()
    if load_relaxed(ring, lay.ARMED_AT) != 0:
        _wake(ring, bells)
