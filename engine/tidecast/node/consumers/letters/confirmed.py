"""Whether a record of a dead-letter topic is the letter that its headers claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidecast.errors import TidecastError
from tidecast.node.consumers.state import ConsumersState, SubscriptionState
from tidecast.queues.records import decoded

MARK = "dead-"
"""Before the names of our headers; headers of the record that begin so, as those of a dead letter
that is given up in its turn, have it once more until it is sent again."""

Confirms = Callable[[dict[str, Any], bool], bool]


def confirms_of(state: ConsumersState, subscription: SubscriptionState) -> Confirms:
    """The check that a letter is of this subscription, as its headers claim.

    It must name a record of a queue that the subscription has here. An engine's own letters are
    then true. Others (of an older engine) are if that record is still there, and is the letter's.
    """
    puller, cursors = state.puller, dict(subscription.cursors)

    def confirms(record: dict[str, Any], of_engine: bool) -> bool:
        headers = record["headers"]
        where = (headers.get(f"{MARK}topic"), headers.get(f"{MARK}queue"))
        token, cursor = headers.get(f"{MARK}token"), cursors.get(where)
        if cursor is None or not isinstance(token, int) or puller is None:
            return False
        if of_engine:
            return True
        try:
            found = decoded(puller.call(puller.record, cursor.here.row, token), cut=False)
        except TidecastError:
            return False
        return bool(found["key"] == record["key"] and found["payload"] == record["payload"])

    return confirms
