"""Errors of a publisher without room, and what would make room."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidecast.api.link import PublicationOptions
from tidecast.buffers.ring_file import describe
from tidecast.client.kernels import ports
from tidecast.errors import BackPressure, PayloadTooLarge, RateLimited
from tidecast.layout import packet as wire
from tidecast.layout import ring as ring_layout

Ring = np.ndarray[Any, np.dtype[np.uint8]]


def too_large(
    topic: str, n: int, limit: int, ring: Ring, options: PublicationOptions
) -> PayloadTooLarge:
    """For a message of ``n`` bytes, metadata included, where ``limit`` is the most."""
    said = f"topic {topic}: a message of {n} bytes, the limit is {limit}"
    if not ring.size:
        return PayloadTooLarge(said)
    about = describe(ring)
    room = about.slot_bytes - wire.PACKET_HEADER_BYTES - wire.MESSAGE_HEADER_BYTES
    packets = -(-(n + 8) // room)
    wanted = (1 << (2 * packets - 1).bit_length()) * about.slot_bytes
    field = "history_bytes" if options.channel != "large" else "large_history_bytes"
    other = "" if options.channel == "large" else ', or channel "large"'
    return PayloadTooLarge(
        f"{said}: half the history of {about.slots} packets; it takes history_bytes={wanted} of "
        f"the publisher, or {field} of the topic{other}"
    )


def beyond_link(topic: str, n: int, limit: int) -> PayloadTooLarge:
    """For a message of ``n`` bytes, metadata included, that no history makes room for."""
    by = "no history takes more" if limit == wire.MESSAGE_BYTES_MAX else "a gateway takes no more"
    return PayloadTooLarge(
        f"topic {topic}: a message of {n} bytes, the limit is {limit}: {by}: split it"
    )


def rate_limited(topic: str, ring: Ring, least_s: float) -> RateLimited:
    """When the publisher's own limits let the next packet go; a transport's are not known here."""
    packets = int(ports.word_of(ring, ring_layout.RATE_PACKETS_AT))
    size = int(ports.word_of(ring, ring_layout.RATE_BYTES_AT))
    wait_s = max(
        least_s,
        1 / packets if packets > 0 else 0.0,
        describe(ring).slot_bytes / size if size > 0 else 0.0,
    )
    return RateLimited(f"topic {topic}: the rate limit is used up", wait_s)


def ring_full(topic: str, slots: int) -> BackPressure:
    """For a ring that nothing but receivers and the network keep from emptying."""
    return BackPressure(
        f"topic {topic}: the ring of {slots} packets is full: receivers or the network lag behind"
    )


def too_much_meta(topic: str, n: int, limit: int) -> PayloadTooLarge:
    """For ``n`` bytes of key and headers."""
    return PayloadTooLarge(f"topic {topic}: key and headers have {n} bytes, a packet takes {limit}")
