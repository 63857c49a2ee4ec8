"""Notes of the last writer of a topic's streams."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tidecast.node.storing.notes import NotesFile


class Mark(NamedTuple):
    """All before ``token`` is stored; the stream's last sequence was then ``sequence``."""

    token: int
    sequence: int


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """The last writer of a topic's streams.

    ``name``: of the streams, before the numbers; ``log``: id of the log; ``writer``: of the run;
    ``created``: when each stream was made.
    """

    name: str
    log: int
    writer: int
    created: list[str]
    queues: list[Mark]


NOTES = NotesFile("jetstream.json", Notes, "the streams have")
