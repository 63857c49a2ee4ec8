"""What a transport's receiver does with each session: an image, or why it has none.

The receiver looks sessions up in a table of its own. Here is what that table should hold, and
which of its entries have changed since it was written: a change costs the same however many
sessions there are. Called with the node's lock held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidecast.agents.live import images as im
from tidecast.config.topology import is_pattern, matches
from tidecast.protocol.session_table import insert, remove

if TYPE_CHECKING:
    from tidecast.node.live.transports import TransportRuntime
    from tidecast.node.node import Node

WITHOUT_IMAGE_MAX = 4096


class KnownSessions:
    """See module. One for each transport."""

    def __init__(self, node: Node, runtime: TransportRuntime) -> None:
        self._node, self._runtime = node, runtime
        self._why: dict[int, int] = {}
        self._topics: dict[int, str] = {}
        self._ignored: dict[str, dict[int, None]] = {}
        self._changed: dict[int, None] = {}

    def drop(self, session: int, why: int, topic: str = "") -> None:
        """Drop what a session sends; ``topic``: until somebody subscribes to that."""
        self.forget(session)
        while len(self._why) >= WITHOUT_IMAGE_MAX:
            self.forget(next(iter(self._why)))
        self._why[session] = why
        if topic:
            self._topics[session] = topic
            self._ignored.setdefault(topic, {})[session] = None

    def forget(self, session: int) -> None:
        """A session is unknown, unless it has an image: its next SETUP is looked at."""
        self._changed[session] = None
        self._why.pop(session, None)
        topic = self._topics.pop(session, None)
        if topic is not None:
            same = self._ignored[topic]
            del same[session]
            if not same:
                del self._ignored[topic]

    def has(self, session: int) -> bool:
        """Its packets are dropped now."""
        return session in self._why

    def image_changed(self, session: int) -> None:
        """A session has one image more, or less."""
        self._changed[session] = None

    def wanted_again(self, pattern: str) -> None:
        """Somebody subscribed: sessions that were ignored get another chance."""
        if not is_pattern(pattern):
            topics = [pattern]
        else:
            topics = [topic for topic in self._ignored if matches(pattern, topic)]
        for topic in topics:
            for session in list(self._ignored.get(topic, ())):
                self.forget(session)

    def write(self) -> None:
        """Write what has changed into the receiver's table."""
        changed, self._changed = list(self._changed), {}

        def put() -> None:
            for session in changed:
                self._write(session)
            self._runtime.rx_state.misc[im.M_LAST_SESSION] = 0

        if changed:
            self._runtime.on_receiver(put)

    def _write(self, session: int) -> None:
        state, value, following = self._runtime.rx_state, self._why.get(session), -1
        for image in self._node.images_by_id.of("session", (self._runtime.config.name, session)):
            if image.slot >= 0:
                state.images[image.slot]["next"] = following
                value = following = image.slot
        if value is None:
            remove(state.sessions, session)
        else:
            insert(state.sessions, session, value)
