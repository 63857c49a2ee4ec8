"""Seals packets: each under a packet number that is never used again, also when sealing fails.

A repair is a new packet with a new number. Its header differs from the first packet's header, and a
client owns the slot of its bytes and may have changed it: two different packets under one nonce
would reveal the key of AES-GCM's tags. So no nonce depends on the sequence.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidecast.layout import packet as wire
from tidecast.layout import sealed as lay
from tidecast.native.crypto.aes_gcm import DONE, NONCE_BYTES, seal
from tidecast.native.crypto.libcrypto import Key, Libcrypto
from tidecast.native.handles import Kind, State
from tidecast.native.jit import hot, inlined
from tidecast.native.memory import (
    Span,
    copy,
    load_u16,
    store_i64,
    store_u8,
    store_u16,
    store_u32,
)
from tidecast.protocol.sealing.keys import (
    ALL,
    GENERATION_MAX,
    PacketKey,
    Purpose,
    generation_of,
)

TARGETS_MAX = 512
SEND_KEYS_MAX = 2 * TARGETS_MAX
"""The present generation and the next of each target."""
NO_KEY, CIPHER_FAILED, OUT_OF_RANGE = -1, -2, -3
_HEADER = wire.PACKET_HEADER_BYTES

SEALER_FIELDS = np.dtype(
    [
        ("source", np.int64),  # this node's id: a client's ring cannot name another node
        ("boot", np.int64),
        ("lane", np.int64),
        ("suite", np.int64),
        ("epoch", np.int64),  # of the present secret
        ("next", np.int64),  # packet number
        ("key", np.int64),  # the entry that was used last
        ("failed", np.int64),  # packets that libcrypto refused to seal
    ]
)
SEND_KEY = np.dtype(
    [
        ("context", np.int64),  # of a `Key` for sealing; 0: the entry is free
        ("epoch", np.int64),
        ("generation", np.int64),
        ("target", np.int64),
        ("mask_head", np.int64),
        ("mask_tail", np.int64),  # of the nonces: 4 bytes, and 8, big endian
    ]
)
SEALER = Kind(
    "Sealer",
    [
        ("sealer", SEALER_FIELDS, ()),
        ("keys", SEND_KEY, ()),  # of a target's place: even and odd generations
        ("places", np.int32, ()),  # of targets, by node id, from 1; 0: none
        ("evp", np.int64, ()),
        ("nonce", np.uint8, ()),
        ("scratch", np.uint8, ()),
    ],
)


def sealer_state(library: Libcrypto, *, source: int, boot: int, lane: int, suite: int) -> State:
    """State of an agent that seals packets. ``boot``: 64 random bits of the engine's start."""
    sealer = np.zeros(1, dtype=SEALER_FIELDS)
    signed = int.from_bytes(boot.to_bytes(8, "little"), "little", signed=True)
    sealer[0] = (source, signed, lane, suite, 0, 1, 0, 0)
    return SEALER.make(
        sealer=sealer,
        keys=np.zeros(SEND_KEYS_MAX, dtype=SEND_KEY),
        places=np.zeros(1 << 16, dtype=np.int32),
        evp=library.functions,
        nonce=np.zeros(16, dtype=np.uint8),
        scratch=np.zeros(16, dtype=np.uint8),
    )


def no_sealer() -> State:
    """State of an agent whose transport is not sealed."""
    return SEALER.make(
        sealer=np.zeros(1, dtype=SEALER_FIELDS),
        keys=np.zeros(2, dtype=SEND_KEY),
        places=np.zeros(1 << 16, dtype=np.int32),
        evp=np.zeros(1, dtype=np.int64),
        nonce=np.zeros(16, dtype=np.uint8),
        scratch=np.zeros(16, dtype=np.uint8),
    )


@inlined
def put_nonce(nonce, mask_head, mask_tail, number):
    """The nonce of a packet number: ``mask_tail`` XOR the number, big endian, behind the head."""
    store_u32(nonce, 0, mask_head)
    low = mask_tail ^ number
    for i in range(8):
        store_u8(nonce, NONCE_BYTES - 1 - i, low >> (8 * i))


@inlined
def _key_now(state, target):
    """The entry of the key that seals the next packet, or -1."""
    sealer = state.sealer[0]
    generation, place = sealer.next >> lay.GENERATION_BITS, state.places[target]
    if sealer.next > lay.NUMBER_MAX or place == 0:
        return -1
    i = 2 * (place - 1) + (generation & 1)
    key = state.keys[i]
    if key.context == 0 or key.epoch != sealer.epoch or key.generation != generation:
        return -1
    sealer.key = i
    return i


@inlined
def _word_of(sealer, flags):
    """The eight bytes of a seal header from its epoch on: the same in all packets of a key."""
    return sealer.epoch | sealer.lane << 32 | sealer.suite << 40 | flags << 48


@hot
def _seal_next(state, i, word, packet, out, out_at):
    """Seal ``packet``, a `Span`, under the key of entry ``i``, which fits the next number."""
    sealer, key = state.sealer[0], state.keys[i]
    number = sealer.next
    sealer.next = number + 1  # whatever happens below
    copy(out, out_at, packet.data, packet.at, _HEADER)
    store_u8(out, out_at + wire.VERSION_AT, lay.SEALED_VERSION)
    store_u16(out, out_at + wire.LENGTH_AT, packet.n)
    store_u16(out, out_at + wire.SOURCE_AT, sealer.source)
    store_i64(out, out_at + lay.EPOCH_AT, word)
    store_i64(out, out_at + lay.BOOT_AT, sealer.boot)
    store_i64(out, out_at + lay.NUMBER_AT, number)
    put_nonce(state.nonce, key.mask_head, key.mask_tail, number)
    header = Span(out, out_at, lay.BODY_AT)
    text = Span(packet.data, packet.at + _HEADER, packet.n - _HEADER)
    outcome = seal(
        state.evp, key.context, state.nonce, header, text, out, out_at + lay.BODY_AT, state.scratch
    )
    if outcome != DONE:
        sealer.failed += 1
        return CIPHER_FAILED
    return packet.n + lay.SEAL_BYTES


@inlined
def seal_packet(state, target, memory, at, length, out, out_at):
    """Seal the packet of ``length`` bytes at ``at``. Returns the sealed length, or a code below 0.

    ``target``: node id for a packet of a pair of nodes, else ALL. ``memory`` may change meanwhile:
    each byte is read once. ``out`` has room for ``length`` + 40 bytes at ``out_at``. NO_KEY: no key
    is ready, and no number is used. CIPHER_FAILED: libcrypto refused.
    """
    if length < _HEADER or length > wire.PACKET_BYTES_MAX:
        return OUT_OF_RANGE
    i = _key_now(state, target)
    if i < 0:
        return NO_KEY
    word = _word_of(state.sealer[0], 0 if target == ALL else lay.FLAG_PAIR)
    return _seal_next(state, i, word, Span(memory, at, length), out, out_at)


@inlined
def seal_run(state, memory, at, stride, packets, out, out_stride):
    """Seal packets for ALL, ``stride`` apart from ``at`` on, to the front of ``out``.

    Each packet's header holds its length, bounded here to 32 bytes .. ``stride``. ``out`` has room
    for ``packets`` times ``out_stride`` bytes. Returns packets sealed: fewer when no key is ready,
    or libcrypto refuses a packet. The key is looked up once, and again where the next generation of
    keys begins. `tidecast bench seal` compares it to the cipher alone.
    """
    sealer = state.sealer[0]
    done = 0
    while done < packets:
        i = _key_now(state, ALL)
        if i < 0:
            break
        word = _word_of(sealer, 0)
        left = (1 << lay.GENERATION_BITS) - (sealer.next & ((1 << lay.GENERATION_BITS) - 1))
        end = min(packets, done + left)  # packet numbers from there on have another key
        while done < end:
            packet = at + done * stride
            length = max(min(load_u16(memory, packet + wire.LENGTH_AT), stride), _HEADER)
            text = Span(memory, packet, length)
            if _seal_next(state, i, word, text, out, done * out_stride) < 0:
                return done
            done += 1
    return done


class SenderKeys:
    """Keeps the keys of a sealer ready, off the hot path. Call it in the sealer's own thread.

    ``derive``: the key for a purpose, of an epoch that is known.
    """

    def __init__(
        self, state: State, library: Libcrypto, derive: Callable[[Purpose], PacketKey]
    ) -> None:
        self._state, self._library, self._derive = state, library, derive
        self._keys: dict[tuple[int, int, int], tuple[int, Key]] = {}
        self._targets: dict[int, int] = {}
        """Target -> its place, from 0."""

    def activate(self, epoch: int, targets: tuple[int, ...] = (ALL,)) -> None:
        """Seal under this epoch from now on; keys that are over are wiped.

        Keys of this generation and the next are made for each target, so call it at least once in
        2^23 packets. Raises ValueError when there are too many targets.
        """
        sealer = self._state.sealer[0]
        now = min(generation_of(int(sealer["next"])), GENERATION_MAX)
        generations = {now, min(now + 1, GENERATION_MAX)}
        wanted = {(epoch, generation, t) for generation in generations for t in targets}
        if len(set(targets)) > TARGETS_MAX:
            raise ValueError(f"targets: {len(targets)}: allowed are 1 to {TARGETS_MAX}")
        sealer["epoch"] = epoch
        for over in self._keys.keys() - wanted:
            i, key = self._keys.pop(over)
            self._state.keys[i] = 0
            key.close()
        for gone in self._targets.keys() - set(targets):
            self._state.places[gone] = 0
            del self._targets[gone]
        taken = set(self._targets.values())
        free = (place for place in range(TARGETS_MAX) if place not in taken)
        for each in sorted(wanted - self._keys.keys()):
            if each[2] not in self._targets:
                place = self._targets[each[2]] = next(free)
                self._state.places[each[2]] = place + 1
            self._install(2 * self._targets[each[2]] + (each[1] & 1), *each)

    def close(self) -> None:
        """Wipe all keys: nothing can be sealed any more."""
        for i, key in self._keys.values():
            self._state.keys[i] = 0
            key.close()
        self._keys.clear()

    def _install(self, i: int, epoch: int, generation: int, target: int) -> None:
        sealer = self._state.sealer[0]
        suite = int(sealer["suite"])
        made = self._derive(
            Purpose(
                epoch=epoch,
                suite=suite,
                source=int(sealer["source"]),
                boot=int(sealer["boot"]) & ((1 << 64) - 1),
                lane=int(sealer["lane"]),
                target=target,
                generation=generation,
            )
        )
        key = self._library.key(suite, made.secret, opens=False)
        self._state.keys[i] = (key.context, epoch, generation, target, *mask_words(made.mask))
        self._keys[epoch, generation, target] = (i, key)


def mask_words(mask: bytes) -> tuple[int, int]:
    """A mask as `put_nonce` takes it."""
    return int.from_bytes(mask[:4], "little"), int.from_bytes(mask[4:], "big", signed=True)
