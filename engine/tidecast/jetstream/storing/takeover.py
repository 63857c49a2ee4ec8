"""Taking a topic over: its log, made from streams of JetStream."""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from tidecast.config.sources.jetstream import JetStreamSource
from tidecast.config.sources.storage import StreamStorage, storage_source
from tidecast.config.topology import TopicConfig
from tidecast.jetstream.storing.fencing import (
    Fence,
    ensure_stream,
    fence,
    streams_of,
)
from tidecast.jetstream.storing.messages import warm_up
from tidecast.jetstream.storing.notes import NOTES, Mark, Notes
from tidecast.jetstream.storing.reading import LogReader
from tidecast.jetstream.storing.state import StateWriter, read_state
from tidecast.jetstream.streams import Streams
from tidecast.log.files import queue_name
from tidecast.log.rebuilding import LogBuilder
from tidecast.node.storing.takeover import TopicTakeover
from tidecast.protocol.dedup import ProducerTable


class JetStreamTakeover(TopicTakeover[Streams]):
    """See `TopicTakeover`."""

    def __init__(
        self, config: TopicConfig, node: str, queues: Path, owner: int, now_ns: int
    ) -> None:
        """Raises ConfigError."""
        super().__init__(config, node, queues, owner, now_ns)
        found = storage_source(config.storage)
        assert isinstance(found, StreamStorage)
        self._storage = found

    def _warm_up(self) -> None:
        warm_up()

    def _take(self, work: Path) -> None:
        count, settings = self._config.queues, self._storage.settings
        source = streams_of(self._storage, count)
        streams = Streams(source, check=False, begun=self._keep)
        created = [
            ensure_stream(streams, queue, settings, is_state=False, make=True)
            for queue in range(count)
        ]
        ensure_stream(streams, count, settings, is_state=True, make=True)
        fences = [fence(streams, queue, self._node) for queue in range(count)]
        writer = secrets.randbits(62) + 1
        state = StateWriter(streams, count, writer)
        try:
            kept = read_state(streams, count)
            before = NOTES.load(self._replacing.before)
            head = kept.head
            if head is None or (before is not None and head.writer == before.writer):
                return  # no other engine has kept it since
            self._check_queues(head.queues, f"in streams {self._storage.name}")
            self._replacing.begin(work)
            ends = self._rebuild(source, work, head.log, fences)
            self._replacing.write_files(work, kept.files, ends)
            marks = [Mark(token, each.last) for token, each in zip(ends, fences, strict=True)]
            notes = Notes(
                name=self._storage.name,
                log=head.log,
                writer=writer,
                created=created,
                queues=marks,
            )
            NOTES.save(work, notes)
            state.write_head(msgspec.structs.replace(head, writer=writer, node=self._node))
        finally:
            state.close()
        self._replacing.install(work)

    def _rebuild(
        self, source: JetStreamSource, work: Path, log: int, fences: list[Fence]
    ) -> list[int]:
        config = self._config
        about = self._about(log)
        producers, ends = ProducerTable(config.queues), list[int]()
        for queue in range(config.queues):
            stream = source.queues[queue][0]
            reader = LogReader(
                source,
                stream,
                log,
                owner=self._owner,
                begun=self._keep,
                check_open=self._replacing.check_open,
            )
            made = LogBuilder(work / queue_name(queue), queue, about, producers)
            try:
                for run, token in reader.read(1, -1, fences[queue]):
                    made.append(run, token)
                ends.append(made.finish())
            finally:
                made.close()
                reader.close()
        return ends


open_takeover = JetStreamTakeover
"""See `Storages.take_over`."""

__all__ = ["JetStreamTakeover", "open_takeover"]
