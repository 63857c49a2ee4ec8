"""Records with a delivery time, for rigs of the puller and for engines in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.support.pulling import S_NS, Rig, rig
from tidecast.buffers import member_ring
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.layout.header_names import DELIVER_AT
from tidecast.queues.mapper import hash_of

EPOCH_NS = 1_900_000_000 * S_NS


@contextmanager
def timed(**options: Any) -> Iterator[Rig]:
    """A rig whose time of day is EPOCH_NS and its clock."""
    made: list[Rig] = []
    with rig(wall_ns=lambda: EPOCH_NS + made[0].now, **options) as r:
        made.append(r)
        yield r


@dataclass(frozen=True)
class Put:
    """A record to append: with a delivery time if ``in_s`` is given."""

    payload: bytes
    in_s: float | None = None
    key: bytes | None = None
    more: int = 0


def put(r: Rig, q: int, *records: Put) -> None:
    """Append them as a batch."""
    builder = r._builder
    builder.clear()
    builder.begin()
    for one in records:
        headers: dict[str, Any] = {}
        if one.in_s is not None:
            headers[DELIVER_AT] = EPOCH_NS + r.now + round(one.in_s * S_NS)
        headers |= {f"h{k}": k for k in range(one.more)}
        packed = msgspec.msgpack.encode(headers) if headers else None
        builder.add(
            one.payload,
            key=one.key,
            headers=packed,
            key_hash=0 if one.key is None else hash_of(one.key),
        )
    log = r.logs[q]
    builder.seal(log.next_token)
    log.append(builder.buffer, builder.used)
    member_ring.wake_queue(r.wakes, r.bells, q)


def opened(directory: Path) -> EmbeddedLink:
    """An engine with the durable topic ``orders``."""
    topics = [{"name": "orders", "transport": "ipc", "mode": "durable", "fsync_interval_ms": 2}]
    settings = {"transports": [{"name": "ipc", "kind": "ipc"}], "topics": topics}
    return EmbeddedLink.open(topology_from(settings), data_dir=directory, name="host")
