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
from tidecast.agents.puller_shell import Dead
from tidecast.agents.puller_state import DEAD_ATTEMPTS, DEAD_TERM, DEAD_TIMEOUT
from tidecast.errors import ConfigError, TidecastError
from tidecast.node.subscriptions_durable_admin import decoded
from tidecast.node.subscriptions_durable_state import LaneHere, SubscriptionHere
from tidecast.queues.filters import FOR_HEADER

if TYPE_CHECKING:
    from tidecast.node.subscriptions_durable import DurableSubscriptions

STORE_TIMEOUT_S = 10.0
REDRIVE_MAX = 100_000
CAUSES = {DEAD_ATTEMPTS: "delivered too often", DEAD_TERM: "refused", DEAD_TIMEOUT: "not acked"}
_MARK = "dead-"


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
            f"{_MARK}topic": lane.here.topic, f"{_MARK}queue": lane.here.queue,
            f"{_MARK}token": dead.token, f"{_MARK}subscription": subscription.saved.name,
            f"{_MARK}pattern": subscription.saved.pattern, f"{_MARK}attempts": dead.attempts,
            f"{_MARK}reason": dead.reason or CAUSES[dead.cause], f"{_MARK}time": record["time_ns"],
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

    def send(self, topic: str, record: dict[str, Any], name: str) -> None:
        """Send a dead letter to its topic again, for one subscription."""
        kept = {key: value for key, value in record["headers"].items()
                if not key.startswith(_MARK)}  # fmt: skip
        self._publisher(topic).publish(
            record["payload"], key=record["key"], headers={FOR_HEADER: name, **kept},
            timestamp=record["headers"].get(f"{_MARK}time"), timeout=STORE_TIMEOUT_S,
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


def redrive(
    subs: DurableSubscriptions, pattern: str, name: str, *, dry_run: bool,
    reason: str | None = None, key: str | None = None, limit: int = REDRIVE_MAX,
) -> dict[str, Any]:  # fmt: skip
    """Deliver dead letters of one subscription again, each once; ``dry_run``: only say which.

    ``reason``: those whose reason holds this text; ``key``: of this key; at most ``limit``.
    """
    if not 1 <= limit <= REDRIVE_MAX:
        raise ConfigError(f"limit: {limit}: allowed 1 to {REDRIVE_MAX}")
    with subs.lock:
        subscription = subs.get(pattern, name)
        here = subs.topics.get(subscription.saved.dead_letter)
        done = {tuple(one) for one in subscription.saved.redriven}
        queues = [] if here is None else list(here.queues)
    found: list[tuple[int, int, dict[str, Any]]] = []
    for one in queues:
        for token in range(one.log.earliest_token, one.log.next_token):
            if len(found) >= limit:
                break
            if (one.queue, token) in done:
                continue
            assert subs.puller is not None
            record = decoded(subs.puller.call(subs.puller.record, one.row, token), cut=False)
            if _is_meant(record, pattern, name, reason, key):
                found.append((one.queue, token, record))
    if not dry_run:
        topics = {record["headers"][f"{_MARK}topic"] for _, _, record in found}
        for _, _, record in found:
            subs.letters.send(record["headers"][f"{_MARK}topic"], record, name)
        for topic in topics:
            subs.letters.sent(topic)
        with subs.lock:
            subscription.saved.redriven += [(queue, token) for queue, token, _ in found]
            subs.save_now(subscription)
    return {
        "records": len(found), "dry_run": dry_run,
        "tokens": [(record["headers"][f"{_MARK}queue"], record["headers"][f"{_MARK}token"])
                   for _, _, record in found[:1000]],
    }  # fmt: skip


def _is_meant(
    record: dict[str, Any], pattern: str, name: str, reason: str | None, key: str | None
) -> bool:
    headers = record["headers"]
    mine = headers.get(f"{_MARK}subscription") == name and headers.get(f"{_MARK}pattern") == pattern
    wanted = reason is None or reason in str(headers.get(f"{_MARK}reason", ""))
    return mine and wanted and (key is None or record["key"] == key.encode())
