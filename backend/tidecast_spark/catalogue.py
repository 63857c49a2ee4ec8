"""Where topics are read from: the files of a data directory, or a gateway. Both look the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from tidecast.client.remote.log import LogClient
from tidecast.errors import AuthError, ConnectionLost, EngineNotRunning
from tidecast.log.queue_files import QueueFiles, queues_of, topics_of


class Queue(Protocol):
    """One queue, as planning sees it. ``directory``: of its files, if they are here."""

    topic: str
    queue: int
    directory: Path

    def earliest_token(self) -> int:
        """The oldest token kept. Raises NotFound."""

    def end_token(self) -> int:
        """The token behind the last complete record. Raises NotFound."""

    def token_at_time(self, time_ns: int) -> int:
        """First token of the first batch with a record not older than ``time_ns``; else the end."""

    def cuts(self, start: int, end: int, parts: int, part_bytes_min: int) -> list[int]:
        """Tokens that cut ``[start, end)`` into at most ``parts`` of about equal bytes."""


class Catalogue(Protocol):
    """Topics that can be read, and their queues."""

    whose: str
    """Of which topics it speaks, for people."""

    def topics(self) -> list[str]:
        """Names of the topics with queues, sorted. Raises AuthError."""

    def queues(self, topic: str) -> list[Queue]:
        """The queues of a topic as they are now, in order; none: there is no such topic."""

    def queue(self, topic: str, queue: int) -> Queue:
        """One of them, as it was last seen."""


class FileCatalogue:
    """The files of a data directory on this host. Keeps how far it has looked."""

    def __init__(self, data_dir: Path) -> None:
        self.whose = f"in {data_dir}"
        self._data_dir = data_dir
        self._files: dict[tuple[str, int], QueueFiles] = {}

    def topics(self) -> list[str]:
        """See `Catalogue`."""
        try:
            return topics_of(self._data_dir)
        except PermissionError as problem:
            raise AuthError(
                f"option dataDir: {self._data_dir}: no right to read it as user {os.getuid()}: run "
                "the job as the engine's user, or let its group read the directory"
            ) from problem

    def queues(self, topic: str) -> list[Queue]:
        """See `Catalogue`."""
        return [self.queue(topic, one) for one in queues_of(self._data_dir, topic)]

    def queue(self, topic: str, queue: int) -> Queue:
        """See `Catalogue`."""
        key = (topic, queue)
        if key not in self._files:
            self._files[key] = QueueFiles(self._data_dir, topic, queue)
        return self._files[key]


class RemoteQueue:
    """A queue at a gateway: its bounds as they were when the topic was looked at last."""

    directory = Path()

    def __init__(self, catalogue: GatewayCatalogue, topic: str, queue: int) -> None:
        self.topic, self.queue = topic, queue
        self._catalogue = catalogue
        self.bounds: tuple[int, int] | None = None

    def _seen(self) -> tuple[int, int]:
        if self.bounds is None:
            self._catalogue.queues(self.topic)
        if self.bounds is None:  # it has no such queue any more
            return 0, 0
        return self.bounds

    def earliest_token(self) -> int:
        """See `Queue`."""
        return self._seen()[0]

    def end_token(self) -> int:
        """See `Queue`."""
        return self._seen()[1]

    def token_at_time(self, time_ns: int) -> int:
        """See `Queue`."""
        return self._catalogue.client.at_time(self.topic, self.queue, time_ns)

    def cuts(self, start: int, end: int, parts: int, part_bytes_min: int) -> list[int]:
        """See `Queue`."""
        if parts == 1:
            return [start, end]
        client = self._catalogue.client
        return client.cuts(self.topic, self.queue, start, end, parts, part_bytes_min)


class GatewayCatalogue:
    """Topics behind a gateway. One question a topic says where all of its queues end."""

    def __init__(self, servers: str, token: str) -> None:
        """Raises ConfigError."""
        self.whose = f"at {servers} that the key may read (right read_payloads)"
        self._given = servers, token
        self.client = LogClient(servers, token)
        self._known: dict[tuple[str, int], RemoteQueue] = {}

    def __getstate__(self) -> tuple[str, str]:
        return self._given  # a connection does not travel to tasks

    def __setstate__(self, given: tuple[str, str]) -> None:
        self.__init__(*given)  # type: ignore[misc]

    def topics(self) -> list[str]:
        """See `Catalogue`. Raises EngineNotRunning."""
        try:
            return sorted(self.client.topics())
        except AuthError as problem:
            raise AuthError(f"option token: {problem}") from problem
        except ConnectionLost as problem:
            raise EngineNotRunning(
                f"option servers: {self._given[0]}: no gateway answers there: {problem}"
            ) from problem

    def queues(self, topic: str) -> list[Queue]:
        """See `Catalogue`."""
        found: list[Queue] = []
        for queue, first, end in self.client.bounds(topic):
            one = self.queue(topic, queue)
            one.bounds = first, end
            found.append(one)
        return found

    def queue(self, topic: str, queue: int) -> RemoteQueue:
        """See `Catalogue`."""
        key = (topic, queue)
        if key not in self._known:
            self._known[key] = RemoteQueue(self, topic, queue)
        return self._known[key]


def catalogue_of(options: Any) -> Catalogue:
    """Where options say that topics are. Raises ConfigError."""
    if options.servers:
        return GatewayCatalogue(options.servers, options.token)
    return FileCatalogue(options.data_dir)
