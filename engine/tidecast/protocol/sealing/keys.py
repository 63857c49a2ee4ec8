"""Keys of sealed packets, derived from a transport's secret by HKDF-SHA256 (RFC 5869).

Each sender has keys of its own, so no two senders share nonces: of each start of its engine
(``boot``), each lane and each generation of 2^24 packets. A receiver derives them from the packet's
header. Control packets (NAK, STATUS, ACK) go under keys of the pair of nodes.

As long as a transport's secret is all that a pair key comes from, each member of the transport can
derive it: outsiders are kept out, members are not protected from each other.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, field

from tidecast.layout.sealed import GENERATION_BITS, LANES_MAX, NUMBER_MAX
from tidecast.native.crypto.aes_gcm import NONCE_BYTES
from tidecast.native.crypto.libcrypto import KEY_BYTES, SUITE_NAMES

SECRET_BYTES = 32
EPOCH_MAX = (1 << 32) - 1
GENERATION_MAX = NUMBER_MAX >> GENERATION_BITS
TRANSPORT_BYTES_MAX = 255
ALL = 0
"""As ``target``: the key is for all receivers."""
_SALT = b"tidecast wire 2"
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class Purpose:
    """The packets that a key is for. ``target``: the receiving node, or ALL."""

    epoch: int
    suite: int
    source: int
    boot: int
    lane: int = 0
    target: int = ALL
    generation: int = 0


@dataclass(frozen=True, slots=True)
class PacketKey:
    """A key and the mask of its nonces. Never printed."""

    secret: bytes = field(repr=False)
    mask: bytes = field(repr=False)

    def nonce(self, number: int) -> bytes:
        """The nonce of a packet number: the mask, its last 8 bytes XOR the number, big endian."""
        low = int.from_bytes(self.mask[4:], "big") ^ number
        return self.mask[:4] + low.to_bytes(8, "big")


def generation_of(number: int) -> int:
    """The generation of keys that a packet number belongs to."""
    return number >> GENERATION_BITS


def root_of(secret: bytes) -> bytes:
    """The root that the keys of an epoch are derived from. Raises ValueError unless 32 bytes."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"secret: {len(secret)} bytes: allowed are exactly {SECRET_BYTES}")
    return hmac.digest(_SALT, secret, "sha256")


def packet_key(root: bytes, transport: str, purpose: Purpose) -> PacketKey:
    """The key for a purpose. Raises ValueError for a field out of range.

    ``root``: of `root_of`. ``transport``: its name, the same on all nodes.
    """
    name = transport.encode()
    _check(name, purpose)
    label = b"data" if purpose.target == ALL else b"pair"
    info = label + bytes([len(name)]) + name + struct.pack(
        "<IBHQBHI", purpose.epoch, purpose.suite, purpose.source, purpose.boot, purpose.lane,
        purpose.target, purpose.generation,
    )  # fmt: skip
    length = KEY_BYTES[purpose.suite]
    made = _expand(root, info, length + NONCE_BYTES)
    return PacketKey(made[:length], made[length:])


def _expand(root: bytes, info: bytes, length: int) -> bytes:
    """HKDF-Expand."""
    made = block = b""
    for k in range(1, -(-length // _DIGEST_BYTES) + 1):
        block = hmac.digest(root, block + info + bytes([k]), "sha256")
        made += block
    return made[:length]


def _check(name: bytes, purpose: Purpose) -> None:
    if not 0 < len(name) <= TRANSPORT_BYTES_MAX:
        raise ValueError(f"transport: {len(name)} bytes: allowed are 1 to {TRANSPORT_BYTES_MAX}")
    if purpose.suite not in SUITE_NAMES:
        raise ValueError(f"suite: {purpose.suite}: allowed are {', '.join(map(str, SUITE_NAMES))}")
    for given, low, high in (
        ("epoch", 1, EPOCH_MAX),
        ("source", 1, 0xFFFF),
        ("boot", 0, (1 << 64) - 1),
        ("lane", 0, LANES_MAX - 1),
        ("target", 0, 0xFFFF),
        ("generation", 0, GENERATION_MAX),
    ):
        value = getattr(purpose, given)
        if not low <= value <= high:
            raise ValueError(f"{given}: {value}: allowed are {low} to {high}")
