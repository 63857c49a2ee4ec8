"""Which rights a request needs, for remote clients and (``node.local_keys``) for local ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidecast.access import Access, digest_of
from tidecast.api.frames import socket as frames
from tidecast.api.link import ConsumerOptions
from tidecast.errors import AuthError
from tidecast.events import AccessDenied
from tidecast.layout.counters import ROW_GATEWAY, GatewayCounter

LOOKS = frozenset({"attached", "list", "show", "lanes", "peek"})
"""Actions on durable subscriptions that change nothing."""
OF_A_TOPIC = frozenset({"pause_queue", "pause_topic"})
EVERY_TOPIC = ">"
Needed = Iterator[tuple[str, str]]


def to_administer(action: str, arguments: dict[str, Any]) -> Needed:
    """(right, pattern) of an action on durable subscriptions: looking is subscribing."""
    right = "subscribe" if action in LOOKS else "manage"
    pattern = arguments.get("pattern")
    if isinstance(pattern, str):
        yield right, pattern
    elif action != "list" and not (action in OF_A_TOPIC and arguments.get("topic")):
        yield right, EVERY_TOPIC
    for name in ("dead_letter", "topic"):
        if arguments.get(name) and action not in LOOKS:
            yield right, str(arguments[name])


def to_consume(pattern: str, options: ConsumerOptions) -> Needed:
    """(right, pattern) of joining a durable subscription."""
    yield "subscribe", pattern
    if options.dead_letter:  # the engine publishes there on its behalf
        yield "publish", options.dead_letter


def of_request(body: frames.Body) -> Needed:
    """(right, pattern) of a request of a local client."""
    match body:
        case frames.OpenPublication():
            yield "publish", body.topic
        case frames.OpenSubscription():
            yield "subscribe", body.pattern
        case frames.OpenConsumer():
            yield from to_consume(body.pattern, body.options)
        case frames.DurableSubscription():
            yield from to_administer(body.action, body.arguments)
        case frames.CreateTopic():
            yield "manage", body.topic.name
        case frames.EditTopic() | frames.DeleteTopic():
            yield "manage", body.name
        case frames.SetFaults() | frames.Stats() | frames.Overview() | frames.Topics():
            yield "manage", EVERY_TOPIC


class Guard:
    """Checks local clients, where the topology says ``node.local_keys``."""

    def __init__(self, node: Any) -> None:
        self._find, self._tell = node.keys.find, node.tell_all
        self._row = node.counters.values[
            node.counters.allocate(ROW_GATEWAY, "socket", "local clients")
        ]

    def admit(self, token: str, client: str) -> Access:
        """What the token allows. Raises AuthError."""
        access: Access | None = self._find(digest_of(token))
        if access is None:
            self._row[GatewayCounter.REFUSED] += 1
            self._tell(AccessDenied(key="", client=client, right="connect", topic=""))
            raise AuthError("the engine wants a key of its topology, and this is none: token=...")
        self._row[GatewayCounter.CONNECTIONS] += 1
        return access

    def check(self, access: Access, client: str, body: frames.Body) -> None:
        """Raise AuthError when the request needs a right that is not there."""
        for right, pattern in of_request(body):
            if not access.may(right, pattern):
                self._row[GatewayCounter.DENIED] += 1
                told = AccessDenied(key=access.name, client=client, right=right, topic=pattern)
                self._tell(told)
                access.need(right, pattern)
