"""Errors of a publisher without room, and of a ring that cannot be mapped, and their remedies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from tidecast.api.link import Link, PublicationOptions
from tidecast.buffers.ring_file import describe
from tidecast.client.kernels import ports
from tidecast.config.suggestions import near
from tidecast.errors import (
    BackPressure,
    NotFound,
    PayloadTooLarge,
    RateLimited,
    SharedMemoryError,
    TidecastError,
)
from tidecast.layout import packet as wire
from tidecast.layout import ring as ring_layout

LOOKED_AT_MAX = 10_000
"""Topics among which a near name is looked for."""
Ring = np.ndarray[Any, np.dtype[np.uint8]]


@contextlib.contextmanager
def mapping(name: str) -> Iterator[None]:
    """Raise SharedMemoryError where the system refuses to map a ring of topic ``name``."""
    try:
        yield
    except OSError as problem:
        raise SharedMemoryError(
            f"topic {name}: its ring cannot be mapped: {problem.strerror}: raise the limits of "
            "this process (ulimit -n, ulimit -v), or close objects that it does not need"
        ) from problem


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
    large = options.channel == "large"
    field, channel = (
        ("large_history_bytes", ', channel="large"') if large else ("history_bytes", "")
    )
    return PayloadTooLarge(
        f"{said}: half the history of {about.slots} packets: open the publisher with "
        f"history_bytes={wanted}{channel}, or give the topic {field}={wanted}"
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


def with_near(problem: NotFound, topic: str, link: Link) -> NotFound:
    """The error for a topic that is not there, with the near name of another one if there is one.

    The client asks for the names: a key gets no names of topics that it has no right on.
    """
    known: list[str] = []
    after = None
    with contextlib.suppress(TidecastError):  # a gateway of before, or it is gone
        while len(known) < LOOKED_AT_MAX:
            page = link.administer("topics", {"pattern": ">", "after": after})
            known += [row["name"] for row in page["rows"]]
            after = page["next"]
            if after is None:
                break
    return problem if topic in known else NotFound(f"{problem}{near(topic, known)}")
