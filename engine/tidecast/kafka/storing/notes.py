"""Notes of a Kafka topic's writer, so that the next one continues where it ended.

The writer before is known by its producer id and epoch; a mark of each queue says from which place
on its batches are counted.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tidecast.node.storing.notes import NotesFile


class Mark(NamedTuple):
    """The record at ``token`` of the log gets ``sequence``, and an offset from ``offset`` on."""

    token: int
    sequence: int
    offset: int


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """The last writer of a topic of the cluster, and a mark of each queue."""

    topic: str
    producer: int
    epoch: int
    queues: list[Mark]
    log: int = 0
    """Id of the log; 0: of versions that gave it none."""


NOTES = NotesFile("kafka.json", Notes, "the cluster has")
