"""Re-drives of one subscription take turns, so that no two send the same letter.

An engine that sends letters of a subscription whose queues are elsewhere also keeps the list of
sent letters, until the engine of the subscription has noted them: a re-drive that began before the
note, or whose note failed, does not send them again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turn:
    """One re-drive after another of a subscription."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._topic: object = None
        self._sent: set[tuple[int, int]] = set()

    def sent_of(self, topic: object) -> set[tuple[int, int]]:
        """(queue, token) of letters that were sent again and may not be noted yet.

        The caller changes the set. ``topic``: the open topic of the letters. When it is another
        object than before, the topic was opened again, and the set is empty.
        """
        if topic is not self._topic:
            self._topic, self._sent = topic, set()
        return self._sent


class Turns:
    """See module. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[tuple[str, str], Turn] = {}

    @contextmanager
    def of(self, pattern: str, name: str) -> Iterator[Turn]:
        """Wait for the turn of this subscription, and have it until the end of the block."""
        with self._lock:
            turn = self._of.setdefault((pattern, name), Turn())
        with turn.lock:
            yield turn
