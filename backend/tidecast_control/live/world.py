"""The reports of all engines, put together: topics, rings, receivers, agents. Plain JSON values.

Built once a tick for all channels and viewers. 64-bit numbers become strings here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tidecast_control.kafka import live as kafka
from tidecast_control.live import rates
from tidecast_control.live.rates import Json

AGENT_KINDS = ("sender", "receiver")
KAFKA_TOTALS = ("groups_total", "clients_total")
ADAPTER_COUNTS = ("records", "errors", "reconnects", "lag", "left_out")
STATES = ("idle", "active", "paused")
"""Of a subscription on several nodes the last of these is reported."""
NOBODY = 1 << 62
"""Positions beyond this mean `no limit`."""


@dataclass
class Source:
    """One engine's samples."""

    node: str
    before: Json | None
    sample: Json


@dataclass
class World:
    """Rows by id, of all nodes."""

    topics: dict[str, Json] = field(default_factory=dict)
    publications: dict[str, Json] = field(default_factory=dict)
    receivers: dict[str, Json] = field(default_factory=dict)
    images: dict[str, Json] = field(default_factory=dict)
    readers: dict[str, Json] = field(default_factory=dict)
    agents: dict[str, Json] = field(default_factory=dict)
    nodes: dict[str, Json] = field(default_factory=dict)
    subscriptions: dict[str, Json] = field(default_factory=dict)
    subscription_nodes: dict[str, set[str]] = field(default_factory=dict)
    """Which nodes a subscription's figures come from."""
    queues: dict[str, Json] = field(default_factory=dict)
    invalid: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    keys: dict[str, Json] = field(default_factory=dict)
    """Requests that engines refused, by the name of the key."""
    forged: dict[str, float] = field(default_factory=dict)
    """Packets a second that a node refused at sealed transports: not authentic, or not sealed."""
    unheard: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """By node: transport and name of each discovered peer that it does not hear."""
    kafka_groups: dict[str, Json] = field(default_factory=dict)
    kafka_clients: dict[str, Json] = field(default_factory=dict)
    kafka_totals: dict[str, int] = field(default_factory=dict)
    """Groups and clients that there are: engines report some of them."""
    totals: Json = field(default_factory=rates.no_rates)
    rtt_ms: float | None = None

    def topic(self, name: str) -> Json:
        """The row of a topic, made when it is missing."""
        row = self.topics.get(name)
        if row is None:
            row = self.topics[name] = {
                "name": name,
                "rates": rates.no_rates(),
                "retransmit_ratio": 0.0,
                "publishers": 0,
                "receivers": 0,
                "subscribers": 0,
                "ring_fill": 0.0,
                "lag_packets": 0,
                "throttle": "none",
                "nodes": [],
                "traffic": False,
            }
        return row


def build(sources: Iterable[Source]) -> World:
    """The world as the samples of all engines show it."""
    world = World()
    for source in sources:
        _add_node(world, source)
    for row in world.topics.values():
        sent = row["rates"]["packets_out"]
        row["retransmit_ratio"] = rates.ratio(row["rates"]["packets_resent"], sent)
        row["lag_packets"] = str(row["lag_packets"])
        if "lag_messages" in row:
            row["lag_messages"] = str(row["lag_messages"])
        row["nodes"] = sorted(set(row["nodes"]))
    return world


def build_sound(sources: Iterable[Source]) -> tuple[World, dict[str, Exception]]:
    """The world of all samples that can be read; node -> why the others cannot."""
    every = list(sources)
    try:
        return build(every), {}
    except Exception:  # noqa: BLE001 - found below
        sound: list[Source] = []
        bad: dict[str, Exception] = {}
    world = World()
    for each in every:
        try:
            world = build([*sound, each])
            sound.append(each)
        except Exception as problem:  # noqa: BLE001 - an engine may send anything; it is reported
            bad[each.node] = BadSample(f"{each.node}: {type(problem).__name__}: {problem}")
    return world if not bad else build(sound), bad


class BadSample(Exception):
    """Telemetry of an engine that cannot be read."""


def _add_node(world: World, source: Source) -> None:
    sample, node = source.sample, source.node
    seconds = rates.seconds_between(source.before, sample)
    old = rates.rows_of(source.before) if source.before is not None else {}
    now = rates.rows_of(sample)
    total = rates.no_rates()
    by_session: dict[tuple[str, int], tuple[Json, Json]] = {}
    before = {p["session"]: p for p in (source.before or {}).get("publications", ())}
    rings = {p["session"]: p for p in sample["publications"]}
    for key, row in now.items():
        kind, session = key[0], row["session"]
        if kind in ("publication", "image"):
            made = rates.rates(old.get(key), row, seconds)
            if kind == "image":
                made["bytes_saved"] = 0.0  # its publication counts them
            elif session in rings:
                made |= rates.held(before.get(session), rings[session], seconds)
            by_session[(kind, session)] = (row, made)
            rates.add(total, made)
        elif kind in AGENT_KINDS:
            _add_agent(world, node, kind, old.get(key), row, seconds)
        elif kind == "key":
            _add_key(world, old.get(key), row, seconds)
        _add_causes(world, row)
    total[rates.MESSAGES] = round(
        sum(rates.messages(before.get(session), ring, seconds) for session, ring in rings.items()),
        1,
    )
    rates.add(world.totals, total)
    for publication in sample["publications"]:
        _add_publication(world, source, publication, by_session, before, seconds)
    _add_receivers(world, node, sample)
    for image in sample["images"]:
        _add_image(world, source, image, by_session)
    for name, state in sample.get("traffic", {}).items():
        world.topic(name)["traffic"] = bool(state.get("running"))
    delivered = {s["name"]: s for s in (source.before or {}).get("durable_subscriptions", ())}
    for row in sample.get("durable_subscriptions", ()):
        _add_subscription(world, row, delivered.get(row["name"]), seconds)
        world.subscription_nodes.setdefault(row["name"], set()).add(node)
    queues = {q["name"]: q for q in (source.before or {}).get("queues", ())}
    for row in sample.get("queues", ()):
        _add_queue(world, node, row, queues.get(row["name"]), seconds)
    _add_adapters(world, node, sample)
    _add_storages(world, node, sample)
    world.kafka_groups |= kafka.live_groups(node, sample, source.before, seconds)
    world.kafka_clients |= kafka.live_clients(node, sample, source.before, seconds)
    for name in KAFKA_TOTALS:
        world.kafka_totals[name] = world.kafka_totals.get(name, 0) + kafka.total(sample, name)
    peers = sample.get("peers", ())
    silent = [(row["transport"], row["node"]) for row in peers if row["silent"]]
    world.unheard[node] = silent
    world.nodes[node] = {
        "name": node,
        "state": "up",
        "rates": total,
        "peers": len(peers),
        "peers_silent": sorted(f"{peer} on {transport}" for transport, peer in silent),
        "publications": len(sample["publications"]),
        "images": len(sample["images"]),
        "clients": sample["clients"],
        "duty_cycle_ms_max": max(
            [a["duty_cycle_ms_max"] for a in world.agents.values() if a["node"] == node],
            default=0.0,
        ),
    }


def _add_subscription(world: World, row: Json, old: Json | None, seconds: float) -> None:
    """Sums over nodes; the trend and the time to drain come from two samples."""
    seen = world.subscriptions.get(row["name"])
    lag = int(row["lag_messages"]) + int(seen["lag_messages"] if seen else 0)
    shown = {
        "name": row["name"],
        "topic": row["topic"],
        "state": row["state"],
        "members": row["members"] + (seen["members"] if seen else 0),
        "lag_messages": str(lag),
        "outstanding": str(int(row["outstanding"]) + int(seen["outstanding"] if seen else 0)),
        "scheduled": str(int(row.get("scheduled", 0)) + int(seen["scheduled"] if seen else 0)),
        "dead_letters": str(row.get("dead_open", 0) + int(seen["dead_letters"] if seen else 0)),
        "given_up": str(row["dead"] + int(seen["given_up"] if seen else 0)),
        "pressure": row.get("pressure", "") or (seen["pressure"] if seen else ""),
        "cursors": {name: _texts(each) for name, each in row.get("cursors", {}).items()}
        | (seen["cursors"] if seen else {}),
    }
    if seen and STATES.index(seen["state"]) > STATES.index(row["state"]):
        shown["state"] = seen["state"]
    trend, delivered = (seen or {}).get("lag_trend_per_s"), (seen or {}).get("delivered_per_s")
    ages = [s for s in (row["lag_s"], seen.get("lag_s") if seen else None) if s is not None]
    if ages:
        shown["lag_s"] = round(max(ages), 3)
    if old is not None and seconds > 0:
        grown = (int(row["lag_messages"]) - int(old["lag_messages"])) / seconds
        trend = round((trend or 0.0) + grown, 1)
        delivered = round((delivered or 0.0) + rates.growth(old, row, "delivered", seconds), 1)
    if trend is not None:
        shown |= {"lag_trend_per_s": trend, "delivered_per_s": delivered}
        if trend < 0:
            shown["drain_s"] = round(lag / -trend, 1)
    world.subscriptions[row["name"]] = shown


INT64 = frozenset(
    (
        "owner_epoch",
        "earliest",
        "latest",
        "durable",
        "bytes",
        "cache_bytes",
        "cache_max",
        "lag_messages",
        "cursor",
        "acked",
        "delivered",
        "outstanding",
        "scheduled",
    )
)


def _texts(row: Json) -> Json:
    """64-bit numbers as strings; unknown values are left out; ages to a millisecond."""
    return {
        k: str(v) if k in INT64 else round(v, 3) if isinstance(v, float) else v
        for k, v in row.items()
        if v is not None
    }


def _add_queue(world: World, node: str, row: Json, old: Json | None, seconds: float) -> None:
    """One queue. Where several engines have one of that name, the newest owner's is shown."""
    hidden = (
        "owner_since_ns",
        "appended",
        "appended_bytes",
        "settled",
        "evicted",
        "spilled",
        "fetched_bytes",
        "consumed_bytes",
        "append_failures",
        "sync_failures",
    )
    shown = _texts({k: v for k, v in row.items() if k not in hidden}) | {"node": node}
    spills = old is not None and row["spilled"] > old["spilled"]
    full = row["cache_fill"] >= 1.0
    if row.get("owner_since_ns"):
        shown["owner_since"] = datetime.fromtimestamp(row["owner_since_ns"] / 1e9, UTC).isoformat()
    shown["cache_pressure"] = "spilling" if spills else "full" if full else ""
    if old is not None and seconds > 0:
        shown["in_per_s"] = round(rates.growth(old, row, "appended", seconds), 1)
        shown["out_per_s"] = round(rates.growth(old, row, "settled", seconds), 1)
    rival = world.queues.get(row["name"])
    if rival is not None and _seniority(rival) > _seniority(shown):
        return
    world.queues[row["name"]] = shown
    topic = world.topic(row["topic"])
    topic["nodes"].append(node)
    topic["lag_messages"] = max(row["lag_messages"], topic.get("lag_messages", 0))
    if row["lag_s"] is not None:
        topic["lag_s"] = round(max(row["lag_s"], topic.get("lag_s", 0.0)), 3)
    topic["paused"] = row["state"] == "paused" and topic.get("paused", True)


def _add_adapters(world: World, node: str, sample: Json) -> None:
    """Adapters that keep topics' queues on a node, also adapters that wait for their system."""
    counted = {row["name"]: row for row in sample["counters"].get("adapter", ())}
    for each in sample.get("adapters", ()):
        counts = counted.get(each["topic"], {})
        shown = {
            "adapter": each["adapter"],
            "state": "waiting" if each["state"] == "waiting" else "open",
            "detail": each["detail"],
            "queues": each["queues"],
            **{name: str(counts.get(name, 0)) for name in ADAPTER_COUNTS},
        }
        if each["since_ns"]:
            shown["since"] = datetime.fromtimestamp(each["since_ns"] / 1e9, UTC).isoformat()
        topic = world.topic(each["topic"])
        topic["nodes"].append(node)
        topic.setdefault("adapters", {})[node] = shown


def _add_storages(world: World, node: str, sample: Json) -> None:
    """The storages of topics that a node keeps."""
    for each in sample.get("storages", ()):
        shown = {name: each[name] for name in ("storage", "state", "detail")}
        shown |= {name: str(each[name]) for name in ("waiting_records", "records", "failures")}
        if each["since_ns"]:
            shown["since"] = datetime.fromtimestamp(each["since_ns"] / 1e9, UTC).isoformat()
        world.topic(each["topic"]).setdefault("storages", {})[node] = shown


def _add_key(world: World, old: Json | None, row: Json, seconds: float) -> None:
    """Sums over nodes."""
    name = row["name"]
    seen = world.keys.get(name, {"denied": "0", "over_quota": "0", "refused_per_s": 0.0})
    grown = sum(rates.growth(old, row, one, seconds) for one in ("denied", "over_quota"))
    world.keys[name] = {
        "name": name,
        "denied": str(int(seen["denied"]) + row.get("denied", 0)),
        "over_quota": str(int(seen["over_quota"]) + row.get("over_quota", 0)),
        "refused_per_s": round(seen["refused_per_s"] + grown, 1),
    }


def _seniority(row: Json) -> tuple[int, int]:
    return int(row["owner_epoch"]), int(row["latest"])


def _add_agent(
    world: World, node: str, kind: str, old: Json | None, row: Json, seconds: float
) -> None:
    forged = sum(rates.growth(old, row, name, seconds) for name in ("tag_failed", "plain_refused"))
    world.forged[node] = round(world.forged.get(node, 0.0) + forged, 1)
    world.agents[f"{node}/{kind}/{row['name']}"] = {
        "id": f"{node}/{kind}/{row['name']}",
        "node": node,
        "name": f"{kind} {row['name']}",
        "duty_cycles_per_s": round(rates.growth(old, row, "duty_cycles", seconds), 1),
        "duty_cycle_ms_max": round(row.get("duty_cycle_ns_max", 0) / 1e6, 3),
        "parks_per_s": round(rates.growth(old, row, "parks", seconds), 1),
        "system_calls_per_s": round(rates.growth(old, row, "system_calls_sent", seconds), 1),
        "short_sends": str(row.get("short_sends", 0)),
        "send_errors": str(row.get("send_errors", 0)),
    }


REFUSED = frozenset(
    (
        "foreign_address",
        "tag_failed",
        "replayed",
        "unknown_key",
        "plain_refused",
    )
)
"""Counters of valid packets that agents refused."""


def _add_causes(world: World, row: Json) -> None:
    for name, value in row.items():
        if name.startswith("invalid_") or name in REFUSED:
            cause = name.removeprefix("invalid_")
            world.invalid[cause] = world.invalid.get(cause, 0) + value
        elif name.startswith("faults_"):
            cause = name.removeprefix("faults_")
            world.faults[cause] = world.faults.get(cause, 0) + value


def _add_publication(
    world: World,
    source: Source,
    publication: Json,
    by_session: dict[tuple[str, int], tuple[Json, Json]],
    before: dict[int, Json],
    seconds: float,
) -> None:
    node, session, head = source.node, publication["session"], publication["head"]
    row, made = by_session.get(("publication", session), ({}, rates.no_rates()))
    if not row and seconds > 0 and session in before:
        made["packets_out"] = round(max(0, head - before[session]["head"]) / seconds, 1)
    made[rates.MESSAGES] = rates.messages(before.get(session), publication, seconds)
    identity = f"{node}/{session:x}"
    positions = [p["position"] for p in publication["readers"]]
    slowest = publication.get("slowest_consumed")
    if slowest is not None and 0 <= slowest < NOBODY and publication.get("receivers"):
        positions.append(slowest)
    slots = publication["slots"]
    lag = max(0, head - min(positions)) if positions else 0
    fill = min(1.0, round(lag / slots, 4)) if slots else 0.0
    rtt_ns = publication.get("rtt_ns", 0)
    rtt_ms = round(rtt_ns / 1e6, 3) if rtt_ns else None
    if rtt_ms is not None:
        world.rtt_ms = max(world.rtt_ms or 0.0, rtt_ms)
    shown = {
        "id": identity,
        "topic": publication["topic"],
        "node": node,
        "session": str(session),
        "channel": publication["channel"],
        "client": publication.get("client", ""),
        "transport": publication["transport"],
        "slots": str(slots),
        "packet_bytes": publication["packet_bytes"],
        "head": str(head),
        "fill": fill,
        "receivers": publication.get("receivers", 0),
        "rates": made,
        "rtt_ms": rtt_ms,
        "sent": str(publication["sent"]) if "sent" in publication else None,
        "slowest_consumed": str(slowest) if slowest is not None and slowest < NOBODY else None,
        "history_s": round(slots / made["packets_out"], 2) if made["packets_out"] > 0 else None,
        "naks_too_late": str(row.get("naks_too_late", 0)),
        "receiver_timeouts": str(row.get("receiver_timeouts", 0)),
        "closing": publication["closing"],
    }
    world.publications[identity] = {k: v for k, v in shown.items() if v is not None}
    topic = world.topic(publication["topic"])
    rates.add(topic["rates"], made)
    topic["publishers"] += 1
    topic["receivers"] += publication.get("receivers", 0)
    topic["ring_fill"] = max(topic["ring_fill"], fill)
    topic["lag_packets"] = max(topic["lag_packets"], lag)
    topic["nodes"].append(node)
    throttle = rates.throttle(made)
    if throttle == "flow" or topic["throttle"] == "none":
        topic["throttle"] = throttle
    _add_readers(world, source, publication, publication["topic"], identity, head)


def _add_readers(
    world: World, source: Source, ring: Json, topic: str, ring_id: str, head: int
) -> None:
    subscriptions = source.sample["subscriptions"]
    for reader in ring["readers"]:
        number = reader["subscription_id"]
        about = subscriptions.get(str(number), {})
        identity = f"{source.node}/{number}/{ring['session']:x}"
        world.readers[identity] = {
            "id": identity,
            "topic": topic,
            "node": source.node,
            "client": about.get("client", ""),
            "source": ring_id,
            "position": str(reader["position"]),
            "lag_packets": str(max(0, head - reader["position"])),
            "tethered": bool(reader["tethered"]),
        }
        world.topic(topic)["subscribers"] += 1


def _add_receivers(world: World, node: str, sample: Json) -> None:
    heads = {p["session"]: p["head"] for p in sample["publications"]}
    slowest: dict[int, tuple[int, str]] = {}
    for each in sample["receivers"]:
        session = each["session"]
        identity = f"{node}/{session:x}/{each['receiver']:x}"
        lag = max(0, heads.get(session, each["consumed"]) - each["consumed"])
        world.receivers[identity] = {
            "id": identity,
            "topic": each["topic"],
            "session": str(session),
            "publisher": node,
            "node": each["node"],
            "consumed": str(each["consumed"]),
            "contiguous": str(each["contiguous"]),
            "window": str(each["window"]),
            "lag_packets": str(lag),
            "lost": str(each["lost"]),
            "excluded": each["excluded"],
            "slowest": False,
        }
        if lag > slowest.get(session, (-1, ""))[0]:
            slowest[session] = (lag, identity)
    for _, identity in slowest.values():
        world.receivers[identity]["slowest"] = True


def _add_image(
    world: World,
    source: Source,
    image: Json,
    by_session: dict[tuple[str, int], tuple[Json, Json]],
) -> None:
    session = image["session"]
    row, made = by_session.get(("image", session), ({}, rates.no_rates()))
    identity = f"{source.node}/{image['node']}/{session:x}"
    highest, consumed = image.get("highest", 0), image.get("consumed", 0)
    slots = image.get("slots", 0)
    world.images[identity] = {
        "id": identity,
        "topic": image["topic"],
        "node": source.node,
        "source": image["node"],
        "session": str(session),
        "slots": str(slots),
        "highest": str(highest),
        "contiguous": str(image.get("contiguous", 0)),
        "consumed": str(consumed),
        "gaps": image.get("gaps", 0),
        "lost": str(image.get("lost", 0)),
        "fill": min(1.0, round(max(0, highest - consumed) / slots, 4)) if slots else 0.0,
        "mode": str(image["mode"]),
        "rates": made,
        "duplicates": str(row.get("duplicates", 0)),
        "recovered": str(row.get("recovered", 0)),
        "overruns": str(row.get("overruns", 0)),
        "repairs_unneeded": str(row.get("repairs_unneeded", 0)),
    }
    topic = world.topic(image["topic"])
    rates.add(topic["rates"], made)
    topic["nodes"].append(source.node)
    _add_readers(world, source, image, image["topic"], identity, image.get("contiguous", 0))


def keys_as_text(value: Any) -> Any:
    """Counters by cause: numbers as strings."""
    return {key: str(each) for key, each in sorted(value.items()) if each}
