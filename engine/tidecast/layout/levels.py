"""Levels: the formats that builds of Tidecast share, and the levels that this build reads.

A level is one number for all formats below. A build reads every level from `LOWEST` to `NEWEST`:
the present level and the level before. It writes packets, logs and rings, which outlive a
connection, at the level of its cluster, which an operator raises once all engines read it. A
connection speaks the highest level that both of its ends read.

To change a format: add a level here with the format's next number, keep reading the level before,
and write the new format only where the cluster's level has it. Golden bytes of both levels stay.
"""

from __future__ import annotations

from typing import NamedTuple


class Level(NamedTuple):
    """The number of each format at a level, and the first release that reads the level."""

    since: str
    wire: int
    """Packets among engines; not the version byte of a packet, which says plain or sealed."""
    log: int
    """Segments and batches of queues on disk."""
    ring: int
    """Files in shared memory: packet rings, rings of members."""
    socket: int
    """Frames of clients over the engine's unix socket."""
    gateway: int
    """Frames of remote clients over the gateway's websocket."""
    control: int
    """Messages of engines to the control service."""


LEVELS = {
    1: Level(since="0.1.0", wire=1, log=1, ring=1, socket=1, gateway=2, control=1),
    2: Level(since="0.2.0", wire=2, log=1, ring=2, socket=1, gateway=2, control=1),
}
LOWEST, NEWEST = min(LEVELS), max(LEVELS)
LEVEL_MAX = 0xFFFF
"""Of any build: a level is 16 bits where it is counted in bytes."""
