"""Sealed packets: version 2 of a packet, encrypted and authenticated. Little endian.

The first 56 bytes are authenticated and in clear, so that socket filters and GRO work as with
version 1. ``length`` in the packet header is that of the packet before it was sealed.
"""

from __future__ import annotations

from tidecast.layout.fields import Field, Layout
from tidecast.layout.packet import PACKET_HEADER_BYTES

SEALED_VERSION = 2
EPOCH_AT, LANE_AT, SUITE_AT, SEAL_FLAGS_AT, BOOT_AT, NUMBER_AT = 32, 36, 37, 38, 40, 48
BODY_AT = 56
"""Where the ciphertext begins; all before it is authenticated and in clear."""
SEAL_HEADER_BYTES = BODY_AT - PACKET_HEADER_BYTES
TAG_BYTES = 16
SEAL_BYTES = SEAL_HEADER_BYTES + TAG_BYTES
"""Bytes by which a sealed packet is longer."""

FLAG_PAIR = 1
"""The key belongs to a pair of nodes (NAK, STATUS, ACK); else it is the sender's key for all."""
MODE_OFF, MODE_OPTIONAL, MODE_REQUIRED = 0, 1, 2
"""The packets that a transport accepts: plain, both, sealed only."""
LANES_MAX = 8
GENERATION_BITS = 24
"""A sender takes a new key after 2^24 packets, the next generation: AES-GCM's limits are far."""
NUMBER_MAX = (1 << 56) - 1
"""Last packet number of a sender: 2,000 years at a million packets a second."""

SEALED_HEADER = Layout(
    "sealed packet",
    BODY_AT,
    (
        Field("header", 0, PACKET_HEADER_BYTES, f"packet header with version {SEALED_VERSION}"),
        Field("epoch", EPOCH_AT, 4, "number of the transport's secret, from 1"),
        Field("lane", LANE_AT, 1, "counter of packet numbers within the sender, from 0"),
        Field("suite", SUITE_AT, 1, "AES-128-GCM 1, AES-256-GCM 2"),
        Field("seal_flags", SEAL_FLAGS_AT, 2, "PAIR 1: the key is that of two nodes"),
        Field("boot", BOOT_AT, 8, "random number of the engine's start"),
        Field("number", NUMBER_AT, 8, "packet number of sender, boot and lane, from 1, used once"),
    ),
)
"""Ciphertext follows, ``length`` - 32 bytes, then the tag."""
