"""How many live feeds a user, or a key, may have."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from tidecast_control.kit.actor import Actor
from tidecast_control.kit.problems import ProblemError

SOCKETS_PER_ACTOR_MAX, CHANNELS_PER_ACTOR_MAX, TAILS_PER_ACTOR_MAX = 256, 128, 8
"""Of all sockets together; a tail takes one of the few that an engine has."""
TAIL = "messages:"


class Sockets:
    """Counts them. In the event loop."""

    def __init__(self) -> None:
        self._sockets: Counter[str] = Counter()
        self._channels: Counter[tuple[str, str]] = Counter()

    @contextlib.contextmanager
    def opened(self, actor: Actor) -> Iterator[None]:
        """A socket, until the end of the block. Raises `throttled`."""
        owner = owner_of(actor)
        if self._sockets[owner] >= SOCKETS_PER_ACTOR_MAX:
            limit = f"at most {SOCKETS_PER_ACTOR_MAX} live feeds of one user or key"
            raise ProblemError("throttled", limit, retry_after_s=10.0)
        self._sockets[owner] += 1
        try:
            yield
        finally:
            self._sockets[owner] -= 1
            if not self._sockets[owner]:
                del self._sockets[owner]

    def open_channel(self, actor: Actor, name: str) -> None:
        """One more watcher of a channel. Raises `throttled` when it would be one channel more."""
        owner = owner_of(actor)
        if (owner, name) not in self._channels:
            mine = [each for user, each in self._channels if user == owner]
            for allowed, count, words in (
                (CHANNELS_PER_ACTOR_MAX, len(mine), "channels"),
                (TAILS_PER_ACTOR_MAX, sum(n.startswith(TAIL) for n in mine), "tails of topics"),
            ):
                if count >= allowed and (words == "channels" or name.startswith(TAIL)):
                    raise ProblemError("throttled", f"at most {allowed} {words} of one user or key")
        self._channels[owner, name] += 1

    def close_channel(self, actor: Actor, name: str) -> None:
        """One watcher less."""
        key = owner_of(actor), name
        self._channels[key] -= 1
        if self._channels[key] <= 0:
            del self._channels[key]


def owner_of(actor: Actor) -> str:
    """The owner whose limits count."""
    return f"{actor.kind} {actor.name}"
