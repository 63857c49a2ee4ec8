"""Compiled filters that clients of this process have brought along, by their digests."""

from __future__ import annotations

from tidecast.errors import ConfigError, Conflict
from tidecast.native.predicates import Predicate
from tidecast.node.consumers.state import ConsumersState, SubscriptionState

FILTERS_MAX = 1024


class Filters:
    """See module. Called under the lock of the subscriptions."""

    def __init__(self, state: ConsumersState) -> None:
        self._state = state
        self._known: dict[str, Predicate] = {}

    def offer(self, predicate: Predicate) -> None:
        """One more. Raises Conflict."""
        if len(self._known) >= FILTERS_MAX and predicate.digest not in self._known:
            raise Conflict(f"where: an engine keeps at most {FILTERS_MAX} compiled functions")
        self._known.setdefault(predicate.digest, predicate)

    def get(self, digest: str) -> Predicate | None:
        """The filter with this digest, if it is known."""
        return self._known.get(digest)

    def check(self, digest: str | None) -> None:
        """Raise ConfigError for a filter that is not known."""
        if digest and digest not in self._known:
            raise ConfigError("where: this engine was not offered such a function")

    def arm(self, subscription: SubscriptionState) -> None:
        """Cursors that were loaded from disk learn their compiled filter."""
        predicate, puller = self.get(subscription.saved.filter_digest), self._state.puller
        if predicate is None or puller is None:
            return
        for cursor in subscription.cursors.values():
            if not puller.state.cursors[cursor.number]["function_address"]:
                puller.call(puller.filter_by, cursor.number, predicate)
