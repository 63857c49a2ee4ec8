"""Taking a topic over from an engine whose directory is not here: the frame for all storages.

The owner before is fenced first, so the storage then has all records that were ever acked. An
engine that was the last writer itself has them all in its own directory, and more: that is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError
from tidecast.log.rebuilding import Rebuilding
from tidecast.node.storing.replacing import Replacing


class Closing(Protocol):
    """A connection to the storage; `close` ends a call that waits for it, from any thread."""

    def close(self) -> None:
        """Idempotent."""


C = TypeVar("C", bound=Closing)


class TopicTakeover(ABC, Generic[C]):
    """See module. `run` once, in a thread of its own; `close` from another.

    ``node``: this one; ``queues``: the directory of its topics; ``owner``: epoch of its lease.
    """

    def __init__(
        self, config: TopicConfig, node: str, queues: Path, owner: int, now_ns: int
    ) -> None:
        """Raises ConfigError."""
        self._config, self._node, self._owner, self._now_ns = config, node, owner, now_ns
        self._replacing = Replacing(config.name, queues, owner)
        self._connections: list[C] = []

    @abstractmethod
    def _warm_up(self) -> None:
        """Compile or load the kernels."""

    @abstractmethod
    def _take(self, work: Path) -> None:
        """Make the log in ``work``, and install it, unless this engine has it already."""

    def close(self) -> None:
        """End it: nothing is asked, nor put in its place, when this returns. Idempotent."""
        self._replacing.close()
        for each in list(self._connections):
            each.close()

    def run(self) -> None:
        """Have the topic's log and state in the directory. Raises TidecastError; Closed."""
        self._warm_up()
        try:
            self._replacing.run(self._take)
        finally:
            for each in self._connections:
                each.close()

    def _keep(self, connection: C) -> None:
        self._connections.append(connection)  # first: `close` sets the flag that is read here
        self._replacing.check_open()

    def _check_queues(self, found: int, where: str) -> None:
        """Does the log that is stored have the topic's queues? Raises ConfigError."""
        config = self._config
        if found != config.queues:
            raise ConfigError(
                f"queues: {config.queues}: the log of topic {config.name} has {found} {where}: "
                f"allowed {found}"
            )

    def _about(self, log: int) -> Rebuilding:
        """The log to make, of the records that are stored under this id."""
        config, stopped = self._config, self._replacing.stopped
        return Rebuilding(
            config.name, log, config.segment_bytes, self._owner, self._now_ns, stopped
        )
