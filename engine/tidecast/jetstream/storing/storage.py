"""JetStream as the storage of a durable topic: synced records of its logs are written to streams.

Each queue has a stream. A run makes streams that are missing, fences the writer before, and looks
how far that one had come. See docs/adr/0060, and `tidecast.node.storing.running`.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from tidecast.config.sources.storage import StreamStorage, storage_source
from tidecast.errors import ConfigError, Fenced, StorageError
from tidecast.jetstream.storing.fencing import (
    Fence,
    ensure_stream,
    fence,
    streams_of,
)
from tidecast.jetstream.storing.messages import warm_up
from tidecast.jetstream.storing.notes import NOTES, Mark, Notes
from tidecast.jetstream.storing.reading import LogReader
from tidecast.jetstream.storing.state import Head, StateWriter, read_head, read_state
from tidecast.jetstream.storing.writer import StreamWriter
from tidecast.jetstream.streams import NoStream, Streams
from tidecast.node.storing.running import Run, SpoolStorage
from tidecast.node.storing.spool import Spool

LOG_BITS = 40


class _StreamRun(Run):
    """Writers behind one fence. ``notes``: where they begin."""

    def __init__(self, streams: Streams, notes: Notes, state: StateWriter | None) -> None:
        self._notes = notes
        self._streams = [
            StreamWriter(streams, queue, notes.log, mark) for queue, mark in enumerate(notes.queues)
        ]
        self._saved: list[Mark] | None = None
        super().__init__([mark.token for mark in notes.queues], [*self._streams], state)

    def save(self, directory: Path) -> None:
        """See `Run`."""
        marks = [writer.mark for writer in self._streams]
        if marks != self._saved:
            notes = self._notes
            NOTES.save(
                directory,
                Notes(
                    name=notes.name,
                    log=notes.log,
                    writer=notes.writer,
                    created=notes.created,
                    queues=marks,
                ),
            )
            self._saved = marks


class JetStreamStorage(SpoolStorage):
    """See module."""

    def __init__(self, spool: Spool) -> None:
        """Raises ConfigError."""
        super().__init__(spool)
        found = storage_source(spool.storage)
        assert isinstance(found, StreamStorage)
        self._storage = found
        self._mine: set[int] = set()
        """Ids of the runs that this engine has had."""
        self._opened: list[Streams] = []
        """Of the run, or of its begin."""

    def _warm_up(self) -> None:
        warm_up()

    def _hang_up(self) -> None:
        with self._lock:
            opened = list(self._opened)
        for each in opened:
            each.close()

    def _add(self, streams: Streams) -> None:
        with self._lock:
            self._check_open()
            self._opened.append(streams)

    def _begin(self) -> _StreamRun:
        spool = self._spool
        before = NOTES.load(spool.directory)
        self._check_notes(before)
        with self._lock:
            self._opened = []
        try:
            return self._begin_with(before)
        except BaseException:
            self._hang_up()
            raise

    def _begin_with(self, before: Notes | None) -> _StreamRun:
        spool, queues = self._spool, self._spool.queues
        streams = Streams(streams_of(self._storage, queues), check=False, begun=self._add)
        created = [self._ensure(streams, queue, before) for queue in range(queues)]
        writer = secrets.randbits(62) + 1
        state: StateWriter | None = None
        if spool.owner:
            settings = self._storage.settings
            ensure_stream(streams, queues, settings, is_state=True, make=True)
            self._check_mine(read_head(streams, queues), before)  # before it fences another writer
        fences = [fence(streams, queue, spool.node) for queue in range(queues)]
        if spool.owner:
            state = StateWriter(streams, queues, writer)
            kept = read_state(streams, queues)
            self._check_mine(kept.head, before)
            state.begin(kept)
        self._mine.add(writer)
        log = before.log if before is not None else secrets.randbits(LOG_BITS) + 1
        marks = [
            Mark(self._find_token(streams, queue, before, fences[queue]), fences[queue].last)
            for queue in range(queues)
        ]
        notes = Notes(
            name=self._storage.name, log=log, writer=writer, created=created, queues=marks
        )
        run = _StreamRun(streams, notes, state)
        self._check_open()
        run.save(spool.directory)
        if state is not None:
            state.write_head(Head(log=log, writer=writer, queues=queues, node=spool.node))
            state.copy_files(spool.directory)
        return run

    def _ensure(self, streams: Streams, queue: int, before: Notes | None) -> str:
        """The stream of a queue, and when it was made. Raises ConfigError, StorageError."""
        stream = streams.queues[queue][0]
        settings = self._storage.settings
        try:
            made = ensure_stream(streams, queue, settings, is_state=False, make=before is None)
        except NoStream:
            raise ConfigError(
                f"stream {stream}: it is not there, and has records of topic {self._spool.topic}: "
                f"restore it. {NOTES.remedy}"
            ) from None
        if before is not None and made != before.created[queue]:
            raise StorageError(
                f"stream {stream}: it was deleted, and made again at {made}: its records of topic "
                f"{self._spool.topic} are lost there. {NOTES.remedy}"
            )
        return made

    def _check_mine(self, head: Head | None, before: Notes | None) -> None:
        """Of a leased topic the last writer has to be of this log.

        Else another engine has kept the topic since: its records are not in this log.
        """
        if before is not None:
            self._mine.add(before.writer)
        if self._spool.leased and head is not None and head.writer not in self._mine:
            raise Fenced(
                f"streams {self._storage.name}: node {head.node} has kept topic "
                f"{self._spool.topic} since"
            )

    def _check_notes(self, before: Notes | None) -> None:
        if before is None:
            return
        spool = self._spool
        known = len(before.queues) == len(before.created) == spool.queues
        if before.name != self._storage.name or not known:
            raise ConfigError(
                f"storage: {self._storage.name}: the log of topic {spool.topic} was written to "
                f"{before.name} with {len(before.queues)} queues so far: allowed is that name. "
                f"{NOTES.remedy}"
            )

    def _find_token(self, streams: Streams, queue: int, before: Notes | None, end: Fence) -> int:
        """Where this writer begins."""
        spool, stream = self._spool, streams.queues[queue][0]
        if before is None:
            return spool.earliest(queue)
        noted, sequence = before.queues[queue]
        reader = LogReader(
            streams.source, stream, before.log, begun=self._add, check_open=self._check_open
        )
        try:
            for _ in reader.read(sequence + 1, noted, end):
                pass
        finally:
            reader.close()
        token = max(noted, reader.token)  # nothing there: it came to nothing, or its age deleted it
        if token > spool.synced(queue):
            raise StorageError(
                f"stream {stream}: has the records of the log below {token}, and the log has "
                f"those below {spool.synced(queue)}: the log lost records. Restore it, or delete "
                "the topic"
            )
        if token < spool.earliest(queue):
            raise StorageError(
                f"stream {stream}: has the records of the log below {token}, and the log begins "
                f"at {spool.earliest(queue)}: the servers lost records that they had acknowledged."
                f" {NOTES.remedy}"
            )
        return token


open_storage = JetStreamStorage
"""See `Storages.open`."""

__all__ = ["JetStreamStorage", "open_storage"]
