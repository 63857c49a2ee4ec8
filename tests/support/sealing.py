"""Nodes that seal and open packets, for tests: the protocol steps behind three calls."""

from __future__ import annotations

import dataclasses

import numpy as np

from tidecast.layout import packet as wire
from tidecast.layout import sealed as lay
from tidecast.native.crypto.libcrypto import SUITE_AES_128_GCM, find_libcrypto
from tidecast.native.jit import kernel
from tidecast.protocol.sealing.keys import ALL, PacketKey, Purpose, packet_key, root_of
from tidecast.protocol.sealing.receiver import (
    OPENER,
    UNKNOWN_KEY,
    ReceiverKeys,
    open_packet,
    opener_state,
)
from tidecast.protocol.sealing.sender import (
    SEALER,
    SenderKeys,
    seal_packet,
    seal_run,
    sealer_state,
)

TRANSPORT = "lan"
SECRETS = {epoch: bytes([epoch]) * 32 for epoch in range(1, 9)}
ROOM = np.zeros(1 << 17, dtype=np.uint8)
_sealer, _opener = SEALER.of, OPENER.of


@kernel
def seal_one(words, target, packet, n, out):  # type: ignore[no-untyped-def]
    return seal_packet(_sealer(words), target, packet, 0, n, out, 0)


@kernel
def seal_several(words, memory, at, stride, packets, out):  # type: ignore[no-untyped-def]
    return seal_run(_sealer(words), memory, at, stride, packets, out, stride + lay.SEAL_BYTES)


@kernel
def open_one(words, packet, n, out, now_ns):  # type: ignore[no-untyped-def]
    return open_packet(_opener(words), packet, 0, n, out, 0, now_ns)


def array(raw: bytes) -> np.ndarray:
    """A byte array of its own."""
    return np.frombuffer(bytearray(raw + bytes(8)), dtype=np.uint8)


class Node:
    """A node of a sealed transport."""

    def __init__(
        self,
        node: int,
        boot: int = 77,
        *,
        lane: int = 0,
        suite: int = SUITE_AES_128_GCM,
        secrets: dict[int, bytes] = SECRETS,
        removed: frozenset[int] = frozenset(),
        targets: tuple[int, ...] = (ALL, 1, 2, 3),
    ) -> None:
        self.node, self.boot, self.lane = node, boot, lane
        self.targets, self.removed = targets, removed
        self.roots = {epoch: root_of(secret) for epoch, secret in secrets.items()}
        library = find_libcrypto()
        self.sealer = sealer_state(library, source=node, boot=boot, lane=lane, suite=suite)
        self.opener = opener_state(library)
        self.sends = SenderKeys(self.sealer, library, self.key)
        self.takes = ReceiverKeys(self.opener, library, node, self.key_of_member)
        self.derived: list[Purpose] = []
        self.use(1)

    def key(self, purpose: Purpose) -> PacketKey:
        """The key for a purpose."""
        self.derived.append(purpose)
        return packet_key(self.roots[purpose.epoch], TRANSPORT, purpose)

    def key_of_member(self, purpose: Purpose) -> PacketKey | None:
        """The key, unless its node was removed."""
        return None if purpose.source in self.removed else self.key(purpose)

    def use(self, epoch: int, *accepted: int) -> None:
        """Seal under an epoch, and take packets of it and of others."""
        self.sends.activate(epoch, self.targets)
        self.takes.update((epoch, *accepted))

    def seal(self, packet: bytes, target: int = ALL) -> bytes:
        """The sealed packet. Raises AssertionError with the code."""
        n = seal_one(self.sealer.words, target, array(packet), len(packet), ROOM)
        assert n > 0, n
        return ROOM[:n].tobytes()

    def seal_run(self, packets: list[bytes], stride: int) -> list[bytes]:
        """The sealed packets of a run; fewer when no key is ready for the rest."""
        memory = array(b"".join(each.ljust(stride, b"\xee") for each in packets))
        out_stride = stride + lay.SEAL_BYTES
        out = np.zeros(len(packets) * out_stride, dtype=np.uint8)
        done = int(seal_several(self.sealer.words, memory, 0, stride, len(packets), out))
        sealed = [out[i * out_stride :][:out_stride].tobytes() for i in range(done)]
        return [raw[: length_of(raw) + lay.SEAL_BYTES] for raw in sealed]

    def open(self, packet: bytes, now_ns: int = 0) -> int | bytes:
        """The packet, or a code below 0."""
        n = open_one(self.opener.words, array(packet), len(packet), ROOM, now_ns)
        return ROOM[:n].tobytes() if n >= 0 else n

    def take(self, packet: bytes, now_ns: int = 0) -> int | bytes:
        """As `open`; an unknown key is learned, and the packet opened again."""
        found = self.open(packet, now_ns)
        if found != UNKNOWN_KEY or not self.takes.learn(packet, now_ns):
            return found
        return self.open(packet, now_ns)

    def skip_to(self, number: int) -> None:
        """Continue with a packet number."""
        self.sealer.sealer[0]["next"] = number

    def purpose(self, **fields: int) -> Purpose:
        """Of a packet that this node sends to all."""
        sealer = self.sealer.sealer[0]
        made = Purpose(
            epoch=1, suite=int(sealer["suite"]), source=self.node, boot=int(sealer["boot"])
        )
        return dataclasses.replace(made, **fields)


def number_of(packet: bytes) -> int:
    """A sealed packet's number."""
    return int.from_bytes(packet[lay.NUMBER_AT : lay.NUMBER_AT + 8], "little")


def length_of(packet: bytes) -> int:
    """The length that a packet's header names."""
    return int.from_bytes(packet[wire.LENGTH_AT : wire.LENGTH_AT + 2], "little")
