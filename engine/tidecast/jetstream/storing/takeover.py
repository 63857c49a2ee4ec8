"""Taking a topic over from an engine whose directory is not here: its log, made from streams.

The owner before is fenced first, so what is in the streams then is all that was ever acked. An
engine that was the last writer itself has it all in its own directory, and more: that one stays.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from tidecast.config.sources.jetstream import JetStreamSource
from tidecast.config.sources.storage import StreamStorage, storage_source
from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError
from tidecast.jetstream.storing.fencing import (
    Fence,
    ensure_stream,
    fence,
    streams_of,
)
from tidecast.jetstream.storing.messages import warm_up
from tidecast.jetstream.storing.notes import Mark, Notes, load_notes, save_notes
from tidecast.jetstream.storing.reading import LogReader
from tidecast.jetstream.storing.state import StateWriter, read_state
from tidecast.jetstream.streams import Streams
from tidecast.log.files import queue_name
from tidecast.log.rebuilding import LogBuilder, Rebuilding
from tidecast.node.storing.replacing import Replacing
from tidecast.protocol.dedup import ProducerTable


class JetStreamTakeover:
    """See module. `run` once, in a thread of its own; `close` from another.

    ``node``: this one; ``queues``: the directory of its topics; ``owner``: epoch of its lease.
    """

    def __init__(
        self, config: TopicConfig, node: str, queues: Path, owner: int, now_ns: int
    ) -> None:
        """Raises ConfigError."""
        self._config, self._node, self._owner, self._now_ns = config, node, owner, now_ns
        found = storage_source(config.storage)
        assert isinstance(found, StreamStorage)
        self._storage = found
        self._replacing = Replacing(config.name, queues, owner)
        self._made: list[Streams] = []

    def close(self) -> None:
        """End it: nothing is asked, nor put in its place, when this returns. Idempotent."""
        self._replacing.close()
        for each in list(self._made):
            each.close()

    def run(self) -> None:
        """Have the topic's log and state in the directory. Raises TidecastError; Closed."""
        warm_up()
        try:
            self._replacing.run(self._take)
        finally:
            for each in self._made:
                each.close()

    def _keep(self, streams: Streams) -> None:
        self._made.append(streams)  # first: `close` sets what is looked at here
        self._replacing.check_open()

    def _take(self, work: Path) -> None:
        config, count, settings = self._config, self._config.queues, self._storage.settings
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
            before = load_notes(self._replacing.before)
            head = kept.head
            if head is None or (before is not None and head.writer == before.writer):
                return  # nobody has kept it since this engine
            if head.queues != count:
                raise ConfigError(
                    f"queues: {count}: the log of topic {config.name} has {head.queues} in "
                    f"streams {self._storage.name}: allowed {head.queues}"
                )
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
            save_notes(work, notes)
            state.write_head(msgspec.structs.replace(head, writer=writer, node=self._node))
        finally:
            state.close()
        self._replacing.install(work)

    def _rebuild(
        self, source: JetStreamSource, work: Path, log: int, fences: list[Fence]
    ) -> list[int]:
        config = self._config
        about = Rebuilding(
            config.name,
            log,
            config.segment_bytes,
            self._owner,
            self._now_ns,
            self._replacing.stopped,
        )
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
