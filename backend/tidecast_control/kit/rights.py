"""Which rights on topics a request needs: the one place that says so.

A request touches topics by its effect, not by its kind: a subscription with a dead-letter topic
publishes there, a rate limit reaches every topic of its pattern. Each function here yields all
(right, topic pattern) pairs, as `tidecast.node.rights` does for engines and gateways; a kind that
is not listed needs `manage` on every topic. `kit.actor` compares them with the scopes of a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tidecast.access import covers

EVERY_TOPIC = ">"


class Need(NamedTuple):
    """A right on a topic, or on every topic of a pattern."""

    right: str
    pattern: str


Needs = Iterator[Need]
PLATFORM = Need("manage", EVERY_TOPIC)
"""Rights on all of the platform: transports, nodes, users, the audit."""

NODE_METRICS = (
    "node_down",
    "drift",
    "forged_packets_per_s",
    "silent_peers",
    "mirror_failed",
    "mirror_lag",
)
"""Of nodes, and of mirrors: their names are not those of topics."""
BY_TOPIC = frozenset((
    "topics:read", "topics:write", "subscriptions:read", "subscriptions:write", "queues:read",
    "queues:write", "traffic:read", "traffic:write", "rate_limits:read", "rate_limits:write",
    "alert_rules:read", "alert_rules:write", "silences:read", "silences:write", "alerts:read",
    "operations:read", "operations:write", "pipelines:read", "pipelines:write", "history:read",
    "mirrors:read", "mirrors:write", "live:read", "messages:publish", "messages:read",
    "apply:write",
))  # fmt: skip
"""Rights of the service that reach single topics: each request says which, and lists leave out the
others. A key with scopes has every other right only with `manage` on every topic."""
BY_SCOPE_ALONE = {"messages:publish": "publish", "messages:read": "read_payloads"}
"""Rights that the scopes of a key give whatever its role."""
OF_EVERY_KEY = frozenset(("system:read",))


# --- resources ------------------------------------------------------------------------------------


def of_resource(kind: str, name: str, spec: Mapping[str, Any]) -> Needs:
    """The rights that a resource needs by its effect, once it is as ``spec`` says."""
    match kind:
        case "topic":
            yield Need("manage", name)
        case "subscription":
            yield Need("manage", spec["topic"])
            if spec.get("dead_letter"):  # engines publish there on its behalf
                yield Need("publish", spec["dead_letter"])
        case "traffic":
            topic = spec.get("topic") or name
            yield Need("manage", topic)
            yield Need("publish", topic)
        case "rate_limit":
            yield Need("manage", spec["pattern"])
        case "silence":
            yield Need("manage", spec["target"])
        case "alert_rule":
            about_nodes = spec["metric"] in NODE_METRICS
            yield PLATFORM if about_nodes else Need("manage", spec["target"])
        case "pipeline":
            yield from _of_pipeline(spec)
        case "mirror":
            yield Need("manage", spec["topic"])
            if not spec.get("paused"):  # a mirror that is paused copies nothing
                right = "read_payloads" if spec["direction"] == "to_kafka" else "publish"
                yield Need(right, spec["topic"])
        case _:
            yield PLATFORM


def _of_pipeline(spec: Mapping[str, Any]) -> Needs:
    """An archive holds payloads; a replay shows those of its source to readers of its topic."""
    match spec["job"]:
        case "archive":
            yield Need("manage", spec["topic"])
            yield Need("read_payloads", spec["topic"])
        case "replay":
            yield Need("manage", spec["topic"])
            yield Need("publish", spec["topic"])
            yield Need("read_payloads", spec["source"])
        case _:  # rollups and reports are of all topics
            yield PLATFORM


def to_replace(kind: str, name: str, spec: Mapping[str, Any]) -> Needs:
    """The rights to change, stop or delete a resource: `manage` on all that it reaches."""
    for need in of_resource(kind, name, spec):
        if need.right == "manage":
            yield need


SHOWN_BY = {
    "topic": "name",
    "subscription": "spec->>'topic'",
    "traffic": "coalesce(nullif(spec->>'topic', ''), name)",
    "rate_limit": "spec->>'pattern'",
    "silence": "spec->>'target'",
    "alert_rule": f"CASE WHEN spec->>'metric' IN {NODE_METRICS!r} THEN '>' "
    "ELSE spec->>'target' END",
    "mirror": "spec->>'topic'",
    "pipeline": "CASE WHEN spec->>'job' IN ('archive', 'replay') THEN spec->>'topic' ELSE '>' END",
}
"""The topic or pattern of a row, in SQL: a key sees the row with any right that covers it."""


# --- requests that are no resources ---------------------------------------------------------------


def of_operation(action: str, kind: str, topic: str, request: Mapping[str, Any]) -> Needs:
    """The rights to pause, seek, purge or re-drive. ``topic``: of the queue, subscription."""
    del action, kind
    yield Need("manage", topic)
    if request.get("to"):
        yield Need("publish", request["to"])


def to_publish(topic: str) -> Needs:
    """Publishing a message."""
    yield Need("publish", topic)


# --- patterns -------------------------------------------------------------------------------------


def expression(pattern: str) -> str:
    """A regular expression, in Postgres and here, of the topics and patterns that one covers."""
    words = {"*": r"[^.>]+", ">": ".+"}
    return "^" + r"\.".join(words.get(t) or re.escape(t) for t in pattern.split(".")) + "$"


def covered(pattern: str, patterns: Iterable[str]) -> bool:
    """Is it covered by any of the patterns?"""
    return any(covers(each, pattern) for each in patterns)
