"""Streams of NATS JetStream as an adapter. See docs/JETSTREAM.md."""

from __future__ import annotations

from typing import NoReturn

from tidecast.config.sources.jetstream import JetStreamSource, jetstream_source_of
from tidecast.errors import ConfigError, NotFound
from tidecast.jetstream.cursor import warm_up
from tidecast.jetstream.receiver import JetStreamReceiver
from tidecast.jetstream.streams import Streams
from tidecast.queues.adapter import Counts, Direction
from tidecast.queues.foreign.receivers import Receivers

__all__ = ["JetStreamAdapter"]


class JetStreamAdapter:
    """Reads streams, or subjects of a stream; each is a queue. ``name``: ``jetstream``."""

    name, direction, rewindable = "jetstream", Direction.READ, True

    def __init__(self, source: JetStreamSource) -> None:
        """Raises ConfigError, AuthError, ConnectionLost."""
        warm_up()
        self.streams = Streams(source)
        self._receivers = Receivers()

    @classmethod
    def of(cls, url: str) -> JetStreamAdapter:
        """An adapter for ``jetstream://HOST:PORT,HOST:PORT/STREAM,STREAM?setting=value``."""
        return cls(jetstream_source_of(url))

    @property
    def queues(self) -> int:
        """The streams, or the subjects, of the settings."""
        return len(self.streams.queues)

    def receiver(self, queue: int) -> JetStreamReceiver:
        """A receiver of a queue."""
        if not 0 <= queue < self.queues:
            raise NotFound(f"queue: {queue}: there are {self.queues}, from 0 on")
        return self._receivers.add(JetStreamReceiver(self.streams, queue))

    def sender(self, queue: int, owner: int) -> NoReturn:
        """Nothing can be written: raises ConfigError."""
        raise ConfigError(f"queue {queue}: the adapter reads only (owner {owner})")

    def counted(self) -> Counts:
        """Of all receivers together; the lag of a queue is that of its foremost reader."""
        return self._receivers.counted()

    def close(self) -> None:
        """Close all receivers, and hang up. Idempotent."""
        self._receivers.close()
        self.streams.close()
