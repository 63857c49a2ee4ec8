"""Dead letters: a record that is given up on lies in a topic of its own, and can be sent again.

A record is stored there, durably, before it is settled; what stops in between is stored again. Its
headers say where it came from and why; sent again, it is marked for the one subscription that
refused it (`queues.filters.FOR_HEADER`), so that no other one sees it twice.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import tidecast.sync
from tidecast import events as ev
from tidecast.agents.puller_observer import Dead
from tidecast.agents.puller_state import DEAD_ATTEMPTS, DEAD_TERM, DEAD_TIMEOUT
from tidecast.errors import TidecastError
from tidecast.node.subscriptions_durable_admin import decoded
from tidecast.node.subscriptions_durable_state import LaneHere, SubscriptionHere
from tidecast.queues.filters import FOR_HEADER

if TYPE_CHECKING:
    from tidecast.node.subscriptions_durable import DurableSubscriptions

STORE_TIMEOUT_S = 10.0
CAUSES = {DEAD_ATTEMPTS: "delivered too often", DEAD_TERM: "refused", DEAD_TIMEOUT: "not acked"}
MARK = "dead-"


class DeadLetters:
    """Stores what is dead. Works in the helper's thread; one connection, made when first needed."""

    def __init__(self, subs: DurableSubscriptions) -> None:
        self._subs = subs
        self._waiting: dict[tuple[int, int, int], tuple[SubscriptionHere, LaneHere, Dead]] = {}
        self._client: tidecast.sync.Connection | None = None
        self._busy = False

    def add(self, subscription: SubscriptionHere, lane: LaneHere, dead: Dead) -> None:
        """One more; `flush` stores it."""
        self._waiting[dead.lane, dead.generation, dead.token] = (subscription, lane, dead)

    def flush(self) -> None:
        """Store what waits, all with one sync; settle what is stored."""
        if not self._waiting or self._busy:
            return
        self._busy = True
        waiting, self._waiting = self._waiting, {}
        topics: set[str] = set()
        stored = []
        try:
            for subscription, lane, dead in waiting.values():
                if subscription.lanes.get((lane.here.topic, lane.here.queue)) is not lane:
                    continue  # its queue is another engine's now, and so is the record
                topic = subscription.saved.dead_letter
                if topic:
                    self._store(topic, subscription, lane, dead)
                    topics.add(topic)
                stored.append((subscription, lane, dead))
            for topic in topics:
                self._publisher(topic).wait_durable(timeout=STORE_TIMEOUT_S)
        except TidecastError:
            return  # the puller names them again in a second
        finally:
            self._busy = False
        for one in stored:
            self._settled(*one)

    def _settled(self, subscription: SubscriptionHere, lane: LaneHere, dead: Dead) -> None:
        self._subs.settle_dead(dead)
        about: dict[str, Any] = {
            "topic": lane.here.topic, "queue": lane.here.queue, "token": dead.token,
            "subscription": subscription.saved.name, "attempts": dead.attempts,
            "reason": dead.reason or CAUSES[dead.cause],
        }  # fmt: skip
        topic = subscription.saved.dead_letter
        with self._subs.lock:
            subscription.saved.dead_open += bool(topic)
        event = ev.MessageDead(dead_letter=topic, **about) if topic else ev.MessageDropped(**about)
        self._subs.node.tell_all(event)

    def _store(
        self, topic: str, subscription: SubscriptionHere, lane: LaneHere, dead: Dead
    ) -> None:
        puller = self._subs.puller
        assert puller is not None
        record = decoded(puller.call(puller.record, lane.here.row, dead.token), cut=False)
        kept = {name: value for name, value in record["headers"].items() if name != FOR_HEADER}
        headers = {
            f"{MARK}topic": lane.here.topic, f"{MARK}queue": lane.here.queue,
            f"{MARK}token": dead.token, f"{MARK}subscription": subscription.saved.name,
            f"{MARK}pattern": subscription.saved.pattern, f"{MARK}attempts": dead.attempts,
            f"{MARK}reason": dead.reason or CAUSES[dead.cause], f"{MARK}time": record["time_ns"],
            **kept,
        }  # fmt: skip
        self._publisher(topic).publish(
            record["payload"], key=record["key"], headers=headers, timeout=STORE_TIMEOUT_S
        )

    def _publisher(self, topic: str) -> tidecast.sync.Publisher:
        if self._client is None:
            from tidecast.node.embedded import EmbeddedLink

            link: Any = EmbeddedLink(self._subs.node, "dead letters", owns_node=False)
            self._client = tidecast.sync.connect(link=link)
        return self._client.kept_publisher(topic)

    def send(self, topic: str, record: dict[str, Any], name: str | None) -> None:
        """Send a dead letter to a topic again, for one subscription, or for all (None)."""
        kept = {key: value for key, value in record["headers"].items()
                if not key.startswith(MARK)}  # fmt: skip
        headers = kept if name is None else {FOR_HEADER: name, **kept}
        self._publisher(topic).publish(
            record["payload"], key=record["key"], headers=headers,
            timestamp=record["headers"].get(f"{MARK}time"), timeout=STORE_TIMEOUT_S,
        )  # fmt: skip

    def sent(self, topic: str) -> None:
        """Wait until what was sent to a topic is durable. Raises TidecastError."""
        self._publisher(topic).wait_durable(timeout=STORE_TIMEOUT_S)

    def close(self) -> None:
        """End the connection."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(TidecastError):
                client.close()
