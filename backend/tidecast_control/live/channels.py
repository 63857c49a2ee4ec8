"""The contents of each channel, made from the world."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tidecast_control.live import rates
from tidecast_control.live.rates import Json
from tidecast_control.live.world import World, keys_as_text

BUSIEST, FLOW_NODES_MAX, SLOW_MAX = 10, 400, 50
RING_FULL, LAG_SLOW, LOSS_RATIO, LATE_S = 0.9, 0.5, 0.01, 1.0


@dataclass
class Facts:
    """Facts from Postgres and the hub besides telemetry."""

    nodes: dict[str, Json] = field(default_factory=dict)
    topics_total: int = 0
    firing: int = 0
    silenced: int = 0
    subscriptions: dict[str, Json] = field(default_factory=dict)
    mirrors: dict[str, Json] = field(default_factory=dict)
    """Figures by name, of each that ran."""
    since: dict[str, datetime] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    """Nodes that no figure includes: they were here, and are not heard."""


OWN_TOPICS = "tidecast."
"""Topics of the platform itself, such as telemetry: their traffic is not counted."""


def overview(world: World, facts: Facts, now: datetime) -> Json:
    """Channel `overview`."""
    topics = sorted(world.topics.values(), key=lambda t: -t["rates"]["packets_out"])
    active = [
        t
        for t in topics
        if (t["rates"]["packets_out"] or t["rates"]["packets_in"])
        and not t["name"].startswith(OWN_TOPICS)
    ]
    lags = [s for s in world.subscriptions.values() if s.get("lag_messages") is not None]
    return _known(
        {
            **_totals(world, facts),
            "nodes_up": sum(n["state"] == "up" for n in facts.nodes.values()),
            "nodes_total": len(facts.nodes),
            "nodes_drifting": sum(bool(n["drift"]) for n in facts.nodes.values()),
            "topics_total": facts.topics_total,
            "topics_active": len(active),
            "publishers": len(world.publications),
            "subscribers": len(world.readers),
            "lag_packets_max": max([t["lag_packets"] for t in topics], key=int, default="0")
            if world.nodes
            else None,
            "lag_messages": str(max(int(s["lag_messages"]) for s in lags)) if lags else None,
            "lag_s": max((s.get("lag_s") or 0.0) for s in lags) if lags else None,
            "ring_fill_max": max([t["ring_fill"] for t in topics], default=0.0)
            if world.nodes
            else None,
            "cache_fill_max": max((q.get("cache_fill") or 0.0) for q in world.queues.values())
            if world.queues
            else None,
            "alerts_firing": facts.firing,
            "alerts_silenced": facts.silenced,
            "rtt_ms": world.rtt_ms,
            "slow": slow(world, facts, now),
            "busiest": [t["name"] for t in active[:BUSIEST]],
        }
    )


def _totals(world: World, facts: Facts) -> Json:
    """Sums over the nodes that are heard. When none is, they are not known, which is not 0."""
    totals = world.totals
    return {
        "measured": bool(world.nodes),
        "silent": facts.silent,
        "rates": totals if world.nodes else None,
        "retransmit_ratio": rates.ratio(totals["packets_resent"], totals["packets_out"])
        if world.nodes
        else None,
    }


def slow(world: World, facts: Facts, now: datetime) -> dict[str, Json]:
    """The slow receivers and subscriptions, with the reason."""
    found: dict[str, Json] = {}

    def note(kind: str, name: str, node: str, reason: str, detail: str, value: float) -> None:
        key = f"{kind}/{name}/{node}/{reason}"
        if len(found) < SLOW_MAX:
            since = facts.since.setdefault(key, now)
            found[key] = {
                "kind": kind,
                "name": name,
                "node": node,
                "reason": reason,
                "detail": detail,
                "value": round(value, 4),
                "since": since.isoformat(),
            }

    for name, node in facts.nodes.items():
        if node["state"] == "down":
            note("node", name, name, "node_down", "its engine is not connected", 1)
        elif node["drift"]:
            note("node", name, name, "drift", node.get("why", ""), 1)
    for each in world.publications.values():
        topic, node, made = each["topic"], each["node"], each["rates"]
        throttle = rates.throttle(made)
        if throttle == "flow":
            detail = (
                f"a receiver's window holds the publisher back {made['flow_held']:.0%} of the time"
            )
            note("publication", topic, node, "flow_control", detail, made["flow_held"])
        elif throttle == "rate":
            detail = f"the rate limit holds packets back {made['rate_held']:.0%} of the time"
            note("publication", topic, node, "rate_limit", detail, made["rate_held"])
        if each["fill"] >= RING_FULL:
            note(
                "publication",
                topic,
                node,
                "ring_full",
                "what receivers have not confirmed fills the history",
                each["fill"],
            )
        lost = rates.ratio(made["packets_resent"], made["packets_out"])
        if lost > LOSS_RATIO:
            note("topic", topic, node, "loss", f"{lost:.1%} of the packets are sent again", lost)
    for reader in world.readers.values():
        ring = world.publications.get(reader["source"]) or world.images.get(reader["source"])
        slots, lag = int(ring["slots"]) if ring else 0, int(reader["lag_packets"])
        if slots and lag > LAG_SLOW * slots:
            note(
                "receiver",
                reader["topic"],
                reader["node"],
                "slow_reader",
                f"{reader['client'] or 'the archiver'} is {lag:,} packets behind",
                lag,
            )
    for name, row in world.subscriptions.items():
        late = (
            row.get("lag_s") or 0.0
        ) >= LATE_S  # a consumer that reads from disk for a moment is not slow
        if row["pressure"] and row["state"] == "active" and late:
            lag = int(row["lag_messages"])
            words = f"{lag:,} messages behind: {row['pressure']}"
            note("subscription", name, "", "slow_reader", words, lag)
    for gone in facts.since.keys() - found.keys():
        del facts.since[gone]
    return found


def topics(world: World, facts: Facts) -> Json:
    """Channel `topics`."""
    return {"topics": world.topics, **_heard(world, facts)}


def _heard(world: World, facts: Facts) -> Json:
    return {"measured": bool(world.nodes), "silent": facts.silent}


def topic(world: World, facts: Facts, name: str) -> Json:
    """Channel `topic:NAME`."""

    def mine(rows: dict[str, Json]) -> dict[str, Json]:
        return {key: row for key, row in rows.items() if row["topic"] == name}

    shown = world.topics.get(name)
    if shown is None and world.nodes:
        shown = {**World().topic(name), "lag_packets": "0"}
    return _known(
        {
            **_heard(world, facts),
            "topic": shown,
            "publications": mine(world.publications),
            "receivers": mine(world.receivers),
            "images": mine(world.images),
            "readers": mine(world.readers),
            "queues": mine(world.queues),
            "subscriptions": {
                key: row for key, row in world.subscriptions.items() if _reads(row, name)
            },
        }
    )


def _reads(subscription: Json, topic: str) -> bool:
    return any(queue.rpartition(":")[0] == topic for queue in subscription["cursors"])


def queues(world: World, facts: Facts) -> Json:
    """Channel `queues`."""
    return {"queues": world.queues, **_heard(world, facts)}


def reliability(world: World, facts: Facts) -> Json:
    """Channel `reliability`."""
    behind = [w for w in world.receivers.values() if not w["excluded"]]
    slowest = max(behind, key=lambda w: int(w["lag_packets"]), default=None)
    return _known(
        {
            **_totals(world, facts),
            "publications": world.publications,
            "receivers": world.receivers,
            "images": world.images,
            "agents": world.agents,
            "invalid": keys_as_text(world.invalid),
            "faults": keys_as_text(world.faults),
            "slowest_receiver": slowest["id"] if slowest else None,
        }
    )


def subscriptions(world: World, facts: Facts) -> Json:
    """Channel `subscriptions`."""
    found = {}
    known = {n: s["topic"] for n, s in world.subscriptions.items()}
    known |= {n: s["topic"] for n, s in facts.subscriptions.items()}
    for name, pattern in known.items():
        found[name] = {
            "name": name,
            "topic": pattern,
            "state": "unknown",
            "members": 0,
            "pressure": "",
            **_known(world.subscriptions.get(name, {})),
        }
    return {"subscriptions": found, "readers": world.readers, **_heard(world, facts)}


def nodes(world: World, facts: Facts) -> Json:
    """Channel `nodes`."""
    found = {}
    keeps: dict[str, set[str]] = defaultdict(set)
    for queue in world.queues.values():
        if queue["owner_epoch"] != "0":
            keeps[queue["node"]].add(queue["topic"])
    for name, fact in facts.nodes.items():
        live = world.nodes.get(name, {"name": name})
        heard = name in world.nodes
        leased = {"keeps": len(keeps[name])} if heard else {}
        found[name] = _known({**live, **fact, "heard": heard, **leased})
    return {"nodes": found, "agents": world.agents, **_heard(world, facts)}


def keys(world: World, facts: Facts) -> Json:
    """Channel `keys`."""
    return {"keys": world.keys, **_heard(world, facts)}


def kafka(world: World, facts: Facts) -> Json:
    """Channel `kafka`."""
    return {
        "groups": world.kafka_groups,
        "clients": world.kafka_clients,
        "groups_total": world.kafka_totals.get("groups_total", 0),
        "clients_total": world.kafka_totals.get("clients_total", 0),
        **_heard(world, facts),
    }


def flow(world: World, facts: Facts) -> Json:
    """Channel `flow`: publishers -> topics -> (queues -> agents -> subscriptions | subscribers)."""
    boxes: dict[str, Json] = {}
    edges: dict[str, Json] = {}

    def box(identity: str, kind: str, label: str, **more: Any) -> str:
        boxes.setdefault(identity, {"id": identity, "kind": kind, "label": label, **more})
        return identity

    for name, row in world.topics.items():
        made = row["rates"]
        moving = made["packets_out"] or made["packets_in"]
        box(
            f"topic/{name}",
            "topic",
            name,
            packets_per_s=made["packets_out"],
            bytes_per_s=made["bytes_out"],
            fill=row["ring_fill"],
            state="slow" if row["throttle"] == "flow" else "active" if moving else "idle",
        )
    for each in world.publications.values():
        made = each["rates"]
        source = box(
            f"publisher/{each['id']}",
            "publisher",
            each["client"] or each["node"],
            node=each["node"],
            packets_per_s=made["packets_out"],
            bytes_per_s=made["bytes_out"],
            fill=each["fill"],
            state="active" if made["packets_out"] else "idle",
        )
        throttle = rates.throttle(made)
        _edge(edges, source, f"topic/{each['topic']}", made, throttle, each["fill"], 0)
    archived = {(row["topic"], row["node"]) for row in world.queues.values()}
    for reader in world.readers.values():
        if not reader["client"] and (reader["topic"], reader["node"]) in archived:
            continue  # the archiver: the way continues through the queues
        ring = world.publications.get(reader["source"]) or world.images.get(reader["source"])
        made = ring["rates"] if ring else rates.no_rates()
        slots = int(ring["slots"]) if ring else 0
        lag = int(reader["lag_packets"])
        name = reader["client"] or reader["node"]
        target = box(
            f"subscriber/{reader['node']}/{name}",
            "subscriber",
            name,
            node=reader["node"],
            state="active",
        )
        read = boxes[target].get("packets_per_s", 0.0) + made["packets_out"] + made["packets_in"]
        boxes[target]["packets_per_s"] = round(read, 1)
        _edge(
            edges,
            f"topic/{reader['topic']}",
            target,
            made,
            "none",
            min(1.0, lag / slots) if slots else 0.0,
            lag,
        )
    _flow_queues(world, boxes, box, edges)
    truncated = len(boxes) > FLOW_NODES_MAX
    if truncated:
        kept = sorted(boxes, key=lambda b: -boxes[b].get("packets_per_s", 0.0))[:FLOW_NODES_MAX]
        boxes = {b: boxes[b] for b in kept}
    shown = {k: e for k, e in edges.items() if e["source"] in boxes and e["target"] in boxes}
    return {"nodes": {k: _known(b) for k, b in boxes.items()}, "edges": shown,
            "truncated": truncated, **_heard(world, facts)}  # fmt: skip


def _flow_queues(
    world: World, boxes: dict[str, Json], box: Callable[..., str], edges: dict[str, Json]
) -> None:
    for name, row in world.queues.items():
        target = box(
            f"queue/{name}",
            "queue",
            name,
            node=row["node"],
            fill=row.get("cache_fill"),
            packets_per_s=row.get("in_per_s", 0.0),
            state=_queue_state(row),
        )
        made = rates.no_rates() | {"packets_in": row.get("in_per_s", 0.0)}
        _edge(edges, f"topic/{row['topic']}", target, made, "none", row["cache_fill"], 0)
        agent = box(f"agent/{row['node']}", "agent", "puller", node=row["node"])
        out = row.get("out_per_s", 0.0)
        boxes[agent]["packets_per_s"] = round(boxes[agent].get("packets_per_s", 0.0) + out, 1)
        boxes[agent]["state"] = "active" if boxes[agent]["packets_per_s"] else "idle"
        made = rates.no_rates() | {"packets_out": out}
        _edge(edges, target, agent, made, "none", 0.0, 0)
    for name, row in world.subscriptions.items():
        _flow_subscription(world, name, row, box, edges)


def _flow_subscription(
    world: World, name: str, row: Json, box: Callable[..., str], edges: dict[str, Json]
) -> None:
    """Edges from the agents of the nodes that keep its queues, with lag and pressure."""
    rate = row.get("delivered_per_s") or 0.0
    target = box(
        f"subscription/{name}", "subscription", name, packets_per_s=rate, state=_reader_state(row)
    )
    lags: dict[str, int] = {}
    full: dict[str, float] = {}
    for queue, cursor in row["cursors"].items():
        kept = world.queues.get(queue)
        if kept is None:
            continue
        node, lag = kept["node"], int(cursor["lag_messages"])
        held = int(kept["latest"]) - int(kept["earliest"])
        lags[node] = lags.get(node, 0) + lag
        full[node] = max(full.get(node, 0.0), min(1.0, lag / held) if held else 0.0)
    throttle = "flow" if row["pressure"] else "none"
    for node, lag in lags.items():
        made = rates.no_rates() | {"packets_out": rate / len(lags)}
        _edge(edges, f"agent/{node}", target, made, throttle, full[node], lag)


def _queue_state(row: Json) -> str:
    if row["state"] == "paused":
        return "paused"
    return "slow" if row["state"] == "full" else "active" if row.get("in_per_s") else "idle"


def _reader_state(row: Json) -> str:
    return "slow" if row["pressure"] and row["state"] != "paused" else str(row["state"])


def _edge(
    edges: dict[str, Json],
    source: str,
    target: str,
    made: Json,
    throttle: str,
    pressure: float,
    lag: int,
) -> None:
    identity = f"{source}>{target}"
    row = edges.get(identity)
    if row is None:
        row = edges[identity] = {
            "id": identity,
            "source": source,
            "target": target,
            "packets_per_s": 0.0,
            "bytes_per_s": 0.0,
            "loss_per_s": 0.0,
            "resent_per_s": 0.0,
            "throttle": "none",
            "pressure": 0.0,
            "lag_packets": "0",
        }
    row["packets_per_s"] = round(row["packets_per_s"] + made["packets_out"] + made["packets_in"], 1)
    row["bytes_per_s"] = round(row["bytes_per_s"] + made["bytes_out"] + made["bytes_in"], 1)
    row["loss_per_s"] = round(row["loss_per_s"] + made["losses"], 1)
    row["resent_per_s"] = round(row["resent_per_s"] + made["packets_resent"], 1)
    row["pressure"] = max(row["pressure"], round(pressure, 4))
    row["lag_packets"] = str(max(int(row["lag_packets"]), lag))
    if throttle != "none":
        row["throttle"] = throttle


def _known(row: Json) -> Json:
    return {key: value for key, value in row.items() if value is not None}


PLAIN: dict[str, Callable[[World, Facts, datetime], Json]] = {
    "overview": overview,
    "topics": lambda world, facts, _now: topics(world, facts),
    "reliability": lambda world, facts, _now: reliability(world, facts),
    "queues": lambda world, facts, _now: queues(world, facts),
    "subscriptions": lambda world, facts, _now: subscriptions(world, facts),
    "nodes": lambda world, facts, _now: nodes(world, facts),
    "flow": lambda world, facts, _now: flow(world, facts),
    "keys": lambda world, facts, _now: keys(world, facts),
    "kafka": lambda world, facts, _now: kafka(world, facts),
}
"""Channels without an argument."""


def data_of(channel: str, world: World, facts: Facts, now: datetime) -> Json | None:
    """The data of a snapshot channel; None when there is no such channel."""
    plain = PLAIN.get(channel)
    if plain is not None:
        return plain(world, facts, now)
    kind, _, name = channel.partition(":")
    return topic(world, facts, name) if kind == "topic" and name else None
