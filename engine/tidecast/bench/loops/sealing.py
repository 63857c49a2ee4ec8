"""The cipher of sealed packets alone, and as a sender uses it."""

from __future__ import annotations

import os

import numpy as np

from tidecast.bench.loops.floor import copy_packets
from tidecast.errors import TidecastError
from tidecast.layout import packet as wire
from tidecast.layout.sealed import SEAL_BYTES
from tidecast.native.crypto.aes_gcm import DONE, NONCE_BYTES, TAG_BYTES, open_sealed, seal
from tidecast.native.crypto.libcrypto import KEY_BYTES, Libcrypto
from tidecast.native.jit import kernel
from tidecast.native.memory import Span, store_i64
from tidecast.native.system import syscalls as sys
from tidecast.protocol.sealing.keys import PacketKey
from tidecast.protocol.sealing.sender import SEALER, SenderKeys, seal_run, sealer_state

_sealer = SEALER.of


@kernel
def seal_packets(evp, context, nonce, header_bytes, packet, target, packets, scratch):
    """Seal one packet again and again, each with a nonce of its own. Returns ns; 0: it failed."""
    began = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
    for i in range(packets):
        store_i64(nonce, 4, i)
        header = Span(packet, 0, header_bytes)
        text = Span(packet, header_bytes, packet.size - header_bytes)
        outcome = seal(evp, context, nonce, header, text, target, 0, scratch)
        if outcome != DONE:
            return 0
    return sys.clock_ns(sys.CLOCK_MONOTONIC, scratch) - began


@kernel
def open_packets(evp, context, nonce, header_bytes, packet, sealed, target, packets, scratch):
    """Open the packet that was sealed last, again and again. Returns ns; 0: it failed."""
    n = packet.size - header_bytes
    if sealed.size < n + TAG_BYTES:
        return 0
    began = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
    for _ in range(packets):
        header, text = Span(packet, 0, header_bytes), Span(sealed, 0, n)
        outcome = open_sealed(evp, context, nonce, header, text, target, 0, scratch)
        if outcome != DONE:
            return 0
    return sys.clock_ns(sys.CLOCK_MONOTONIC, scratch) - began


@kernel
def seal_runs(words, memory, stride, packets, out, runs, scratch):
    """Seal a run of packets again and again, as a sender does. Returns ns; 0: one was refused."""
    state = _sealer(words)
    began = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
    for _ in range(runs):
        if seal_run(state, memory, 0, stride, packets, out, stride + SEAL_BYTES) < packets:
            return 0
    return sys.clock_ns(sys.CLOCK_MONOTONIC, scratch) - began


SEAL_TURNS, SEAL_PACKETS = 200, 1_000
"""Short turns, of which the best counts: a turn of a millisecond often has the core to itself."""
_AUTHENTICATED_BYTES = 56
"""Headers of a sealed packet: authenticated, in clear."""


RUN_PACKETS = 40
"""Packets of one run."""


class _Runs:
    """A sender's state, and a run of packets that it seals."""

    def __init__(self, library: Libcrypto, suite: int, packet_bytes: int) -> None:
        self._state = sealer_state(library, source=1, boot=1, lane=0, suite=suite)
        secret, self._packet_bytes = os.urandom(KEY_BYTES[suite]), packet_bytes
        self._keys = SenderKeys(
            self._state, library, lambda _: PacketKey(secret, bytes(NONCE_BYTES))
        )
        self._packets = np.zeros((RUN_PACKETS, packet_bytes), dtype=np.uint8)
        self._packets[:, wire.LENGTH_AT : wire.LENGTH_AT + 2].view("<u2")[:] = packet_bytes
        self._out = np.zeros(RUN_PACKETS * (packet_bytes + SEAL_BYTES), dtype=np.uint8)
        self._scratch = np.zeros(32, dtype=np.uint8)

    def turn(self) -> int:
        """Seal SEAL_PACKETS packets. Returns ns; 0: one was refused."""
        self._keys.activate(1)
        runs = SEAL_PACKETS // RUN_PACKETS
        return int(
            seal_runs(
                self._state.words, self._packets.reshape(-1), self._packet_bytes, RUN_PACKETS,
                self._out, runs, self._scratch,
            )
        )  # fmt: skip

    def close(self) -> None:
        """Wipe the keys."""
        self._keys.close()


def seal_turns(library: Libcrypto, suite: int, packet_bytes: int) -> dict[str, float]:
    """The best ns to seal, to open and to copy a packet, and to seal one of a run."""
    secret, packet = os.urandom(KEY_BYTES[suite]), np.zeros(packet_bytes, dtype=np.uint8)
    sealed, opened, nonce, scratch = (
        np.zeros(n, dtype=np.uint8) for n in (packet_bytes + TAG_BYTES, packet_bytes, 16, 32)
    )
    sealing, opening = (library.key(suite, secret, opens=opens) for opens in (False, True))
    runs = _Runs(library, suite, packet_bytes)
    best = dict.fromkeys(("seal", "run", "open", "copy"), float("inf"))
    for _ in range(SEAL_TURNS):
        turn = {
            "seal": seal_packets(
                library.functions, sealing.context, nonce, _AUTHENTICATED_BYTES, packet, sealed,
                SEAL_PACKETS, scratch,
            ),
            "run": runs.turn(),
            "open": open_packets(
                library.functions, opening.context, nonce, _AUTHENTICATED_BYTES, packet, sealed,
                opened, SEAL_PACKETS, scratch,
            ),
            "copy": copy_packets(packet, opened, SEAL_PACKETS, scratch),
        }  # fmt: skip
        if not all(turn.values()):
            raise TidecastError(f"bench seal: {library.version} refused a packet")
        best = {step: min(ns, turn[step] / SEAL_PACKETS) for step, ns in best.items()}
    for each in (sealing, opening, runs):
        each.close()
    return best
