"""Keeps retention behind an archive: a durable subscription at the end of the archive.

Retention deletes no record that a subscription has not completed. This subscription has no members:
the archive moves it after each commit, so its lag is the number of records that are not archived.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidecast_spark.options import Positions


class Hold:
    """The subscriptions of one name, one a topic."""

    def __init__(self, connection: Any, name: str) -> None:
        self._ask, self._name = connection.link.administer, name

    def move(self, positions: Positions) -> None:
        """Let retention delete records before a position. Raises TidecastError.

        Creates the subscription if it is not there.
        """
        there = {one["pattern"] for one in self._ask("list", {}) if one["name"] == self._name}
        for topic, queues in positions.items():
            tokens = {int(queue): token for queue, token in queues.items()}
            arguments = {"pattern": topic, "name": self._name, "start": "tokens"}
            action = "seek" if topic in there else "create"
            self._ask(action, arguments | {"start_tokens": tokens})


@contextmanager
def holding(data_dir: Path, name: str, token: str) -> Iterator[Hold | None]:
    """A hold on the engine of a data directory; None without a name.

    Raises EngineNotRunning, AuthError.
    """
    if not name:
        yield None
        return
    import tidecast.sync

    given: dict[str, Any] = {"token": token} if token else {}
    with tidecast.sync.connect(f"tidecast://{data_dir}", name="archive", **given) as connection:
        yield Hold(connection, name)
