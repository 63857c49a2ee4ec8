"""Opens sealed packets: known senders only, each packet number once, never a byte that was forged.

A *sender* here is a node's start, a lane and a kind of key: each counts its packets separately. It
enters the table by a packet whose tag is correct, and replaces the node's sender that was silent
longest: a sender without the key replaces no other, and costs one tag check a packet.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tidecast.layout import packet as wire
from tidecast.layout import sealed as lay
from tidecast.native.crypto.aes_gcm import DONE, FORGED, open_sealed
from tidecast.native.crypto.libcrypto import KEY_BYTES, Key, Libcrypto
from tidecast.native.handles import Kind, State
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import Span, copy, load_i64, load_u8, load_u16, load_u32, store_u8
from tidecast.protocol.sealing.keys import (
    ALL,
    GENERATION_MAX,
    PacketKey,
    Purpose,
    generation_of,
)
from tidecast.protocol.sealing.sender import mask_words, put_nonce
from tidecast.protocol.sealing.window import (
    WINDOW_WORDS,
    is_new,
    note_number,
    refuse_before,
)

SENDERS_MAX = 1024
SENDERS_A_NODE_MAX = 2 * lay.LANES_MAX
"""Senders of a node that has started again: both starts, with all lanes."""
EPOCHS_MAX = 2
OPEN_KEYS_MAX = 3 * EPOCHS_MAX
"""Keys of a sender: last generation (its packets may be on their way), present and next."""
MALFORMED, UNKNOWN_KEY, REPLAYED, TAG_FAILED, CIPHER_FAILED = -1, -2, -3, -4, -5
"""Why `open_packet` refuses a packet."""
LEARNED, NOT_A_MEMBER, FORGED_PACKET, NO_ROOM = 1, 2, 3, 4
"""Results of `ReceiverKeys.learn` for a packet."""
RECENT_NS = 1_000_000_000
"""A sender heard within this time is not replaced: replayed packets of old starts replace none."""
O_MODE, O_KEPT, O_READY, O_WANT_NS, O_REPORT_NS = range(5)
"""Words of `Opener.control`: MODE_*; bytes of the packet kept for `learn`; bytes of the packet that
was learned and waits to be opened (0: none); when the next packet may be kept, and when the next
forgery is reported."""
CONTROL_FIELDS = 8
UNKNOWN_NAME_AT = wire.PACKET_BYTES_MAX + lay.SEAL_BYTES
"""Where the kept packet came from: 16 bytes behind it."""
_HEADER = wire.PACKET_HEADER_BYTES
_UNSIGNED = (1 << 64) - 1

OPENED_SENDER = np.dtype(
    [
        ("source", np.int64),  # node id; 0: the entry is free
        ("boot", np.int64),
        ("lane", np.int64),
        ("pair", np.int64),
        ("heard_ns", np.int64),
        ("epoch", np.int64),  # of the newest packet that was authentic; 0: none yet
    ]
)
OPEN_KEY = np.dtype(
    [
        ("context", np.int64),  # of a `Key` for opening; 0: the entry is free
        ("epoch", np.int64),
        ("suite", np.int64),
        ("generation", np.int64),
        ("mask_head", np.int64),
        ("mask_tail", np.int64),
    ]
)
OPENER = Kind(
    "Opener",
    [
        ("senders", OPENED_SENDER, ()),
        # By sender and channel: channels have their own sockets, which are read in turn.
        ("windows", np.int64, (wire.CHANNELS, WINDOW_WORDS)),
        ("highest", np.int64, (wire.CHANNELS,)),  # packet number that was authentic
        ("keys", OPEN_KEY, (OPEN_KEYS_MAX,)),  # of each sender
        ("places", np.int32, (SENDERS_A_NODE_MAX,)),  # a node's senders, by node id; -1: none
        ("evp", np.int64, ()),
        ("nonce", np.uint8, ()),
        ("scratch", np.uint8, ()),
        ("control", np.int64, ()),  # O_*
        ("plain", np.uint8, ()),  # the packet that was opened last
        ("unknown", np.uint8, ()),  # a packet of an unknown sender, kept for `learn`; its source
    ],
)


def opener_state(library: Libcrypto, mode: int = lay.MODE_REQUIRED) -> State:
    """State of an agent that opens packets. It knows no sender yet. ``mode``: MODE_*."""
    control = np.zeros(CONTROL_FIELDS, dtype=np.int64)
    control[O_MODE] = mode
    return OPENER.make(
        senders=np.zeros(SENDERS_MAX, dtype=OPENED_SENDER),
        windows=np.zeros((SENDERS_MAX, wire.CHANNELS, WINDOW_WORDS), dtype=np.int64),
        highest=np.zeros((SENDERS_MAX, wire.CHANNELS), dtype=np.int64),
        keys=np.zeros((SENDERS_MAX, OPEN_KEYS_MAX), dtype=OPEN_KEY),
        places=np.full((1 << 16, SENDERS_A_NODE_MAX), -1, dtype=np.int32),
        evp=library.functions,
        nonce=np.zeros(16, dtype=np.uint8),
        scratch=np.zeros(16, dtype=np.uint8),
        control=control,
        plain=np.zeros(wire.PACKET_BYTES_MAX, dtype=np.uint8),
        unknown=np.zeros(UNKNOWN_NAME_AT + 16, dtype=np.uint8),
    )


def no_opener() -> State:
    """State of an agent whose transport is not sealed: nothing in it is looked at but the mode."""
    return OPENER.make(
        senders=np.zeros(1, dtype=OPENED_SENDER),
        windows=np.zeros((1, wire.CHANNELS, WINDOW_WORDS), dtype=np.int64),
        highest=np.zeros((1, wire.CHANNELS), dtype=np.int64),
        keys=np.zeros((1, OPEN_KEYS_MAX), dtype=OPEN_KEY),
        places=np.full((1, SENDERS_A_NODE_MAX), -1, dtype=np.int32),
        evp=np.zeros(1, dtype=np.int64),
        nonce=np.zeros(16, dtype=np.uint8),
        scratch=np.zeros(16, dtype=np.uint8),
        control=np.zeros(CONTROL_FIELDS, dtype=np.int64),
        plain=np.zeros(8, dtype=np.uint8),
        unknown=np.zeros(8, dtype=np.uint8),
    )


@inlined
def _is_pair(kind):
    return kind == wire.NAK or kind == wire.STATUS or kind == wire.ACK


@inlined
def check_sealed(buffer, at, n):
    """Is this a sealed packet by its lengths and header? 0, or MALFORMED."""
    if n < lay.BODY_AT + lay.TAG_BYTES or load_u8(buffer, at) != lay.SEALED_VERSION:
        return MALFORMED
    length = load_u16(buffer, at + wire.LENGTH_AT)
    if length < _HEADER or length + lay.SEAL_BYTES > n:
        return MALFORMED
    number = load_i64(buffer, at + lay.NUMBER_AT)
    if number < 1 or number > lay.NUMBER_MAX or load_u16(buffer, at + wire.SOURCE_AT) == 0:
        return MALFORMED
    if load_u8(buffer, at + wire.CHANNEL_AT) >= wire.CHANNELS:
        return MALFORMED
    flags = lay.FLAG_PAIR if _is_pair(load_u8(buffer, at + wire.TYPE_AT)) else 0
    if load_u16(buffer, at + lay.SEAL_FLAGS_AT) != flags:
        return MALFORMED
    return 0


@inlined
def _sender_of(state, buffer, at):
    boot, lane = load_i64(buffer, at + lay.BOOT_AT), load_u8(buffer, at + lay.LANE_AT)
    pair = load_u16(buffer, at + lay.SEAL_FLAGS_AT) & lay.FLAG_PAIR
    source = load_u16(buffer, at + wire.SOURCE_AT)
    for k in range(SENDERS_A_NODE_MAX):
        i = state.places[source, k]
        if i >= 0:
            sender = state.senders[i]
            if sender.boot == boot and sender.lane == lane and sender.pair == pair:
                return i
    return -1


@inlined
def _key_of(state, i, buffer, at, generation):
    epoch, suite = load_u32(buffer, at + lay.EPOCH_AT), load_u8(buffer, at + lay.SUITE_AT)
    for k in range(OPEN_KEYS_MAX):
        key = state.keys[i, k]
        if key.context != 0 and key.generation == generation and key.epoch == epoch:
            if key.suite == suite:
                return k
    return -1


@inlined
def open_packet(state, buffer, at, n, out, out_at, now_ns):
    """Open the datagram of ``n`` bytes. Returns the packet's length (version 1), or a code below 0.

    ``out`` has room for `PACKET_BYTES_MAX` bytes at ``out_at`` and must not overlap the buffer.
    MALFORMED: lengths or fields are wrong. UNKNOWN_KEY: see `ReceiverKeys.learn`. REPLAYED: it came
    before, or is older than the window. TAG_FAILED: forged or damaged. Only a packet that opens
    changes the sender's window.
    """
    if check_sealed(buffer, at, n) != 0:
        return MALFORMED
    length = load_u16(buffer, at + wire.LENGTH_AT)
    if length > wire.PACKET_BYTES_MAX:
        return MALFORMED
    i = _sender_of(state, buffer, at)
    if i < 0:
        return UNKNOWN_KEY
    sender = state.senders[i]
    number, channel = load_i64(buffer, at + lay.NUMBER_AT), load_u8(buffer, at + wire.CHANNEL_AT)
    if not is_new(state.windows[i, channel], state.highest[i, channel], number):
        return REPLAYED
    k = _key_of(state, i, buffer, at, number >> lay.GENERATION_BITS)
    if k < 0:
        return UNKNOWN_KEY
    key = state.keys[i, k]
    put_nonce(state.nonce, key.mask_head, key.mask_tail, number)
    header = Span(buffer, at, lay.BODY_AT)
    text = Span(buffer, at + lay.BODY_AT, length - _HEADER)
    outcome = open_sealed(
        state.evp, key.context, state.nonce, header, text, out, out_at + _HEADER, state.scratch
    )
    if outcome == FORGED:
        return TAG_FAILED
    if outcome != DONE:
        return CIPHER_FAILED
    state.highest[i, channel] = note_number(
        state.windows[i, channel], state.highest[i, channel], number
    )
    sender.heard_ns = now_ns
    sender.epoch = key.epoch
    copy(out, out_at, buffer, at, _HEADER)
    store_u8(out, out_at + wire.VERSION_AT, wire.VERSION)
    return length


@kernel
def _try_key(evp, context, nonce, mask_head, mask_tail, packet, length, out, scratch):
    put_nonce(nonce, mask_head, mask_tail, load_i64(packet, lay.NUMBER_AT))
    header, text = Span(packet, 0, lay.BODY_AT), Span(packet, lay.BODY_AT, length - _HEADER)
    return open_sealed(evp, context, nonce, header, text, out, 0, scratch)


@kernel
def _check(packet, n):
    return check_sealed(packet, 0, n)


@dataclass(slots=True)
class _Known:
    """A sender: its suite, the newest generation that it showed, and its keys with their places."""

    suite: int
    generation: int
    keys: dict[tuple[int, int], tuple[int, Key]] = field(default_factory=dict)
    """(epoch, generation) -> (place, key)."""


class ReceiverKeys:
    """Learns senders and keeps their keys ready, off the hot path, in the opener's own thread.

    ``derive``: the key for a purpose, or None when its node may not send. ``node``: this node's id,
    the target of pair keys.
    """

    def __init__(
        self,
        state: State,
        library: Libcrypto,
        node: int,
        derive: Callable[[Purpose], PacketKey | None],
    ) -> None:
        self._state, self._library, self._node, self._derive = state, library, node, derive
        self._epochs: tuple[int, ...] = ()
        self._known: dict[int, _Known] = {}

    def update(self, epochs: tuple[int, ...]) -> None:
        """Take packets of these epochs alone, two at most, and make each sender's next keys.

        Keys of other epochs and of generations that are over are wiped. Call it at least once in
        2^23 packets. Raises ValueError for more than two epochs.
        """
        if len(epochs) > EPOCHS_MAX:
            raise ValueError(f"epochs: {len(epochs)}: allowed are {EPOCHS_MAX} at most")
        self._epochs = epochs
        for i in self._known:
            self._refresh(i)

    def learn(self, packet: bytes, now_ns: int) -> int:
        """Take in the sender, or the key, of a packet that was UNKNOWN_KEY.

        LEARNED, or why nothing changes: FORGED_PACKET; NOT_A_MEMBER: it is of another epoch, or of
        a node that may not send; NO_ROOM: its node's other senders were heard a moment ago. The
        packet itself can be opened now, once; none with a lower number can.
        """
        raw = np.frombuffer(packet, dtype=np.uint8)
        if _check(raw, len(raw)) != 0:
            return FORGED_PACKET
        (number,) = struct.unpack_from("<q", packet, lay.NUMBER_AT)
        boot, lane, pair, source, suite, epoch = _header_of(packet)
        purpose = self._purpose(boot, lane, pair, source, suite, epoch, generation_of(number))
        if epoch not in self._epochs or suite not in KEY_BYTES or lane >= lay.LANES_MAX:
            return NOT_A_MEMBER
        made = self._derive(purpose)
        if made is None:
            return NOT_A_MEMBER
        if not self._opens(raw, suite, made):
            return FORGED_PACKET
        i = self._place_of(source, boot, lane, pair, now_ns)
        if i < 0:
            return NO_ROOM
        if i not in self._known:  # packets recorded earlier must not open
            refuse_before(self._state.windows[i], self._state.highest[i], number)
        known = self._known.setdefault(i, _Known(suite, 0))
        known.generation = max(known.generation, generation_of(number))
        self._refresh(i)
        return LEARNED

    def expect(self, like: bytes, pair: int, now_ns: int) -> None:
        """Learn the sender of the other kind of key of a packet that another agent LEARNED.

        A node's start sends both kinds. ``pair``: FLAG_PAIR for packets of a pair of nodes, else 0.
        """
        boot, lane, _, source, suite, epoch = _header_of(like)
        if epoch not in self._epochs or suite not in KEY_BYTES:
            return
        i = self._place_of(source, boot, lane, pair, now_ns)
        if i >= 0 and i not in self._known:
            self._known[i] = _Known(suite, 0)
            self._refresh(i)

    def sources(self) -> tuple[int, ...]:
        """Node ids of the senders, ascending."""
        return tuple(sorted({int(self._state.senders[i]["source"]) for i in self._known}))

    def forget(self, source: int) -> None:
        """Wipe the keys of a node that was removed: its packets are UNKNOWN_KEY from now on."""
        for i in [i for i in self._known if self._state.senders[i]["source"] == source]:
            self._drop(i)

    def close(self) -> None:
        """Wipe all keys: nothing opens any more."""
        for i in list(self._known):
            self._drop(i)

    def _purpose(
        self, boot: int, lane: int, pair: int, source: int, suite: int, epoch: int, generation: int
    ) -> Purpose:
        return Purpose(
            epoch=epoch,
            suite=suite,
            source=source,
            boot=boot & _UNSIGNED,
            lane=lane,
            target=self._node if pair else ALL,
            generation=generation,
        )

    def _opens(self, raw: np.ndarray, suite: int, made: PacketKey) -> bool:
        key = self._library.key(suite, made.secret, opens=True)
        length = int(raw[wire.LENGTH_AT]) | int(raw[wire.LENGTH_AT + 1]) << 8
        outcome = _try_key(
            self._state.evp,
            key.context,
            np.zeros(16, dtype=np.uint8),
            *mask_words(made.mask),
            raw,
            length,
            np.zeros(length, dtype=np.uint8),
            np.zeros(16, dtype=np.uint8),
        )
        key.close()
        return bool(outcome == DONE)

    def _place_of(self, source: int, boot: int, lane: int, pair: int, now_ns: int) -> int:
        """The sender's entry, or an entry for it: if need be, that of the longest silent sender.

        -1: all others were heard a moment ago.
        """
        state = self._state
        mine = [i for i in state.places[source].tolist() if i >= 0]
        for i in mine:
            each = state.senders[i]
            if (each["boot"], each["lane"], each["pair"]) == (boot, lane, pair):
                return i
        if len(mine) == SENDERS_A_NODE_MAX or len(self._known) == SENDERS_MAX:
            among = mine if len(mine) == SENDERS_A_NODE_MAX else list(self._known)
            silent = min(among, key=lambda i: int(state.senders[i]["heard_ns"]))
            if now_ns - int(state.senders[silent]["heard_ns"]) < RECENT_NS:
                return -1
            self._drop(silent)
        i = int(np.flatnonzero(state.senders["source"] == 0)[0])
        place = int(np.flatnonzero(state.places[source] < 0)[0])
        state.windows[i], state.highest[i] = 0, 0
        state.senders[i] = (source, boot, lane, pair, now_ns, 0)
        state.places[source, place] = i
        return i

    def _refresh(self, i: int) -> None:
        """Make the keys that a sender needs now, and wipe its others."""
        sender, known = self._state.senders[i], self._known[i]
        newest = max(known.generation, generation_of(int(self._state.highest[i].max())))
        generations = range(max(newest - 1, 0), min(newest + 1, GENERATION_MAX) + 1)
        wanted = {(epoch, generation) for epoch in self._epochs for generation in generations}
        for over in known.keys.keys() - wanted:
            k, key = known.keys.pop(over)
            self._state.keys[i, k] = 0
            key.close()
        for epoch, generation in sorted(wanted - known.keys.keys()):
            made = self._derive(
                self._purpose(
                    int(sender["boot"]),
                    int(sender["lane"]),
                    int(sender["pair"]),
                    int(sender["source"]),
                    known.suite,
                    epoch,
                    generation,
                )
            )
            if made is None:
                continue
            k = int(np.flatnonzero(self._state.keys[i]["context"] == 0)[0])
            key = self._library.key(known.suite, made.secret, opens=True)
            words = mask_words(made.mask)
            self._state.keys[i, k] = (key.context, epoch, known.suite, generation, *words)
            known.keys[epoch, generation] = (k, key)

    def _drop(self, i: int) -> None:
        state = self._state
        source = int(state.senders[i]["source"])
        state.places[source][state.places[source] == i] = -1
        state.keys[i] = 0
        state.senders[i] = 0
        for _, key in self._known.pop(i).keys.values():
            key.close()


def _header_of(packet: bytes) -> tuple[int, int, int, int, int, int]:
    """boot, lane, pair, source, suite and epoch of a sealed packet."""
    epoch, lane, suite, flags, boot = struct.unpack_from("<IBBHq", packet, lay.EPOCH_AT)
    (source,) = struct.unpack_from("<H", packet, wire.SOURCE_AT)
    return boot, lane, flags & lay.FLAG_PAIR, source, suite, epoch
