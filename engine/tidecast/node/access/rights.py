"""Which rights a request needs, of clients at a gateway and (``node.local_keys``) on this host.

Each request touches topics by its effect: a re-drive publishes where its letters go. The functions
here yield all (right, topic pattern) pairs. A request that is not listed needs `manage` on every
topic. `tidecast_control.kit.rights` does the same for the control service.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tidecast.access import Access, digest_of, printable
from tidecast.api.link import ConsumerOptions, JoinOptions
from tidecast.api.operations import EVERY_TOPIC, Needed
from tidecast.api.renamed import OLD_CURSORS
from tidecast.config.internal import is_internal, served_topic
from tidecast.errors import AuthError
from tidecast.events import AccessDenied, Event, field_of
from tidecast.layout.counters import ROW_GATEWAY, GatewayCounter, KeyCounter

LOOKS = frozenset(
    {"adapters", "attached", "list", "show", "cursors", OLD_CURSORS, "peek", "batches"}
)
"""Actions on durable subscriptions that change nothing."""
OF_WHAT_IS_COVERED = frozenset({"list", "topics", "queues"})
"""The answer holds only rows that the key covers, see `shown`."""
TOPIC_ACTIONS = frozenset({"create_topic", "edit_topic", "delete_topic"})
"""See `tidecast.node.administration`."""
READS = frozenset({"read_log", "scheduled"})
MIRRORS = frozenset({"mirror_marks", "append_run"})
"""A mirror chooses queues and keeps headers of the engine: that takes `manage`."""
QUEUE_CHANGES = frozenset({"pause_queue", "pause_topic", "cancel_scheduled"})
OF_A_TOPIC = frozenset({"batches"}) | QUEUE_CHANGES | READS | MIRRORS | TOPIC_ACTIONS
CHANGES = frozenset({"create", "delete", "pause", "resume", "seek", "redrive"})


def to_publish(topic: str) -> Needed:
    """(right, pattern) of a publication. Announcing and replying: both rights on the topic served.

    So a key that may only subscribe answers no requests.
    """
    if is_internal(topic):
        yield "subscribe", served_topic(topic)
    yield "publish", served_topic(topic)


def to_subscribe(pattern: str) -> Needed:
    """(right, pattern) of a subscription. A client that may send requests gets replies."""
    yield "publish" if is_internal(pattern) else "subscribe", served_topic(pattern)


def to_administer(action: str, arguments: dict[str, Any]) -> Needed:
    """(right, pattern) of an action on topics and subscriptions: looking is subscribing."""
    pattern, topic = arguments.get("pattern"), arguments.get("topic")
    right = "manage"
    if action in LOOKS | READS:
        right = "subscribe" if action in LOOKS else "read_payloads"
    if action in OF_A_TOPIC and isinstance(topic, str):
        yield right, topic
    elif action not in OF_WHAT_IS_COVERED:
        known = action in LOOKS | CHANGES and isinstance(pattern, str)
        yield right, str(pattern) if known else EVERY_TOPIC
    for name in ("dead_letter", "to"):  # engines publish there on its behalf
        if arguments.get(name):
            yield "publish", str(arguments[name])


def to_consume(pattern: str, options: ConsumerOptions) -> Needed:
    """(right, pattern) of joining a durable subscription; see `as_allowed` for creating one."""
    yield "subscribe", pattern
    if options.dead_letter:
        yield "publish", options.dead_letter


def as_allowed(access: Access, pattern: str, options: ConsumerOptions) -> ConsumerOptions:
    """Options of a consumer: without `manage` it joins a subscription that is there.

    A new one holds back retention until everything is acked, on the owner's disk.
    """
    if access.may("manage", pattern):
        return options
    return JoinOptions(**{name: getattr(options, name) for name in options.__struct_fields__})


def shown(access: Access, action: str, result: Any) -> Any:
    """The answer to an action, without rows that the key does not cover."""
    if action in ("topics", "queues"):
        field = "name" if action == "topics" else "topic"
        rows = [row for row in result["rows"] if access.may_hear_of(row[field])]
        return result | {"rows": rows}
    if action != "list":
        return result
    return [each for each in result if access.may("subscribe", each["pattern"])]


def may_hear(access: Access, event: Event) -> bool:
    """Is an event of a topic that the key covers, or of none? Denials concern all topics."""
    if isinstance(event, AccessDenied):
        return access.may("manage", EVERY_TOPIC)
    topic = field_of(event, "topic")
    return not topic or access.may_hear_of(served_topic(topic))


class Denials:
    """Reports clients that were refused: each is counted, and reported at most once a second.

    Strangers can be refused as often as they like, so a message a refusal would be a flood.
    """

    QUIET_NS = 1_000_000_000

    def __init__(self, notify: Callable[[Event], None], now_ns: Callable[[], int]) -> None:
        self._notify, self._now_ns = notify, now_ns
        self._lock = threading.Lock()
        self._last_ns: int | None = None
        self._silent = 0

    def refused(self, client: str) -> AccessDenied | None:
        """A client that showed no valid token; the event that was reported, if any was."""
        with self._lock:
            now_ns = self._now_ns()
            if self._last_ns is not None and now_ns - self._last_ns < self.QUIET_NS:
                self._silent += 1
                return None
            self._last_ns, silent, self._silent = now_ns, self._silent, 0
        event = AccessDenied(
            key="", client=printable(client), right="connect", topic="", unreported=silent
        )
        self._notify(event)
        return event


class Guard:
    """Checks local clients, where the topology sets ``node.local_keys``."""

    def __init__(self, node: Any, now_ns: Callable[[], int]) -> None:
        self._find, self._notify = node.keys.find, node.notify_all
        self._denials = Denials(node.notify_all, now_ns)
        self._key_counts = node.key_counts
        self._row = node.counters.values[
            node.counters.allocate(ROW_GATEWAY, "socket", "local clients")
        ]

    def admit(self, token: str, client: str) -> Access:
        """The rights of the token. Raises AuthError."""
        access: Access | None = self._find(digest_of(token))
        if access is None:
            self._row[GatewayCounter.REFUSED] += 1
            self._denials.refused(client)
            raise AuthError("the engine needs a key of its topology, and got none: token=...")
        self._row[GatewayCounter.CONNECTIONS] += 1
        return access

    def denied(self, access: Access, client: str, right: str, pattern: str) -> None:
        """Count and tell that a right was missing."""
        self._row[GatewayCounter.DENIED] += 1
        self._key_counts.count(access.name, KeyCounter.DENIED)
        self._notify(
            AccessDenied(key=access.name, client=printable(client), right=right, topic=pattern)
        )
