"""The topology that an engine receives: all of the topology, or the changes since a version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlmodel import Session

from tidecast.config.topology import matches
from tidecast_control.auth import accounts
from tidecast_control.auth import repository as auth_repository
from tidecast_control.auth.models import SEEDED
from tidecast_control.faults.service import is_over
from tidecast_control.kit import repository
from tidecast_control.kit.models import ResourceRow, utc_now
from tidecast_control.nodes import levels, peers
from tidecast_control.nodes import repository as nodes_repository
from tidecast_control.rate_limits import service as rate_limits
from tidecast_control.traffic import service as traffic
from tidecast_control.transports import repository as transports
from tidecast_control.wire_keys import service as wire_keys

CHANGES_MAX = 20_000
RATES = ("rate_packets_per_s", "rate_bytes_per_s")
FAULT_FIELDS = ("drop", "duplicate", "reorder", "corrupt", "delay_us", "partition", "seed")
TRAFFIC_FIELDS = ("messages_per_s", "message_bytes", "keys", "subscribers")


def transports_of(session: Session) -> dict[str, Any]:
    """All transports by name, the first one first."""
    return {row.name: row.spec for row in transports.in_order(session)}


def message(
    session: Session, since: int, node: str, nodes: Sequence[str], *, first: bool = False
) -> dict[str, Any]:
    """A ``topology`` message for a node that has applied version ``since``.

    ``first`` of a connection: with all generations and transports, so that the engine can report
    the configuration that it runs.
    """
    version, trimmed = repository.clock(session)
    full = since == 0 or since < trimmed or since > version
    changes = [] if full else repository.outbox_after(session, since, CHANGES_MAX + 1)
    if len(changes) > CHANGES_MAX:
        full = True
    message: dict[str, Any] = {
        "type": "topology",
        "version": version,
        "full": full,
        "faults": _faults(session, node),
        "traffic": _traffic(session, node, nodes),
        "subscriptions": _subscriptions(session),
        "quarantined": _quarantined(session),
        "level": levels.level_of(session),
        "drained": _drained(session, node),
        "peers": peers.of_node(session, node),
        "ended": [
            [change.old["topic"], change.name]
            for change in changes
            if change.kind == "subscription" and change.old
        ],
    }
    kinds = {change.kind for change in changes}
    if full or first or "transport" in kinds:
        message["transports"] = transports_of(session)
    message["generations"] = repository.generations(session, 0 if full or first else since)
    if full or first or "wire_key" in kinds:
        message["wire_keys"] = wire_keys.for_engines(session)
    if full or "key" in kinds:
        message["keys"] = _keys(session)
    if full:
        message["topics"] = _topics(session, node, None)
    else:
        names = {change.name for change in changes if change.kind == "topic"}
        names |= _matched(
            session,
            [c.old for c in changes if c.kind == "rate_limit"],
            {c.name for c in changes if c.kind == "rate_limit"},
        )
        found = _topics(session, node, names) if names else {}
        message["topics"] = {name: found.get(name) for name in sorted(names)}
    return message


def _matched(session: Session, before: Iterable[dict[str, Any] | None], now: set[str]) -> set[str]:
    """Topics that a changed policy matched before or matches now."""
    if not now:
        return set()
    patterns = {spec["pattern"] for spec in before if spec}
    patterns |= {p.pattern for p in rate_limits.policies(session) if p.name in now}
    names = repository.names(session, "topic")
    return {name for name in names if any(matches(pattern, name) for pattern in patterns)}


def _topics(session: Session, node: str, names: set[str] | None) -> dict[str, Any]:
    policies = rate_limits.policies(session)
    return {
        row.name: _topic(row, node, policies) for row in repository.all_of(session, "topic", names)
    }


def _topic(row: ResourceRow, node: str, policies: Sequence[rate_limits.Policy]) -> dict[str, Any]:
    config = {key: value for key, value in row.spec.items() if key not in RATES}
    config["id"] = config.pop("wire_id", None)
    rate = rate_limits.effective(policies, row.name, row.spec, node)
    config["rate_packets_per_s"] = rate.packets_per_s
    config["rate_bytes_per_s"] = rate.bytes_per_s
    return config | {"labels": row.labels, "description": row.description}


def _faults(session: Session, node: str) -> dict[str, Any]:
    return {
        row.name: {field: row.spec[field] for field in FAULT_FIELDS}
        for row in repository.all_of(session, "fault")
        if not is_over(row) and (not row.spec["nodes"] or node in row.spec["nodes"])
    }


def _keys(session: Session) -> list[dict[str, Any]]:
    """Keys of clients for engines to check tokens with: hashes and scopes, never a secret."""
    now, rows = utc_now(), auth_repository.keys(session)
    good = [
        {"id": row.id, "name": row.name, "sha256": row.digest, "scopes": scopes}
        | ({"expires": row.expires_at.isoformat()} if row.expires_at is not None else {})
        for row in rows
        if row.revoked_at is None
        and (row.expires_at is None or row.expires_at > now)
        and (scopes := accounts.scopes_at_engines(row.role, row.scopes))
    ]
    revoked = [  # the file that an engine still has such a key in does not bring it back
        {
            "id": row.id,
            "name": row.name,
            "sha256": row.digest,
            "expires": row.revoked_at.isoformat(),
        }
        for row in rows
        if row.prefix == SEEDED and row.revoked_at is not None
    ]
    return good + revoked


def _drained(session: Session, node: str) -> bool:
    row = repository.find(session, "node", node)
    return row is not None and bool(row.spec.get("drained"))


def _quarantined(session: Session) -> list[int]:
    states = nodes_repository.states(session)
    return [
        states[row.name].node_id
        for row in repository.all_of(session, "node")
        if row.spec["quarantined"] and row.name in states
    ]


def _subscriptions(session: Session) -> dict[str, Any]:
    return {
        row.name: {
            "pattern": row.spec["topic"],
            "paused": row.spec["paused"],
            "options": _options(row.spec),
        }
        for row in repository.all_of(session, "subscription")
    }


def _options(spec: dict[str, Any]) -> dict[str, Any]:
    start = spec["start"]
    options = {
        "start": "tokens" if start["at"] == "token" else start["at"],
        "ack_wait_s": spec["ack_wait_s"],
        "max_deliver": spec["max_deliver"],
        "max_in_flight": spec["max_in_flight"],
        "dead_letter": spec["dead_letter"] or None,
    }
    if spec["filter"]:
        options["where"] = spec["filter"]
    if start["at"] == "time":
        options["start_time_ns"] = int(start["time_ns"])
    if start["at"] == "token":
        options["start_tokens"] = {start["queue"] or 0: int(start["token"])}
    return options


def _traffic(session: Session, node: str, nodes: Sequence[str]) -> dict[str, Any]:
    found = {}
    for row in repository.all_of(session, "traffic"):
        if row.spec["running"] and traffic.runner(row.spec, nodes) == node:
            topic = traffic.topic_of(row.name, row.spec)
            found[row.name] = {f: row.spec[f] for f in TRAFFIC_FIELDS} | {"topic": topic}
    return found
