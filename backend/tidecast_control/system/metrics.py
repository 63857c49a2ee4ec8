"""Prometheus metrics: the counters of every engine, read when asked, summed by topic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import IntEnum

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidecast.layout.counters import (
    ADAPTER_GAUGES,
    COLUMNS_OF,
    GATEWAY_GAUGES,
    KAFKA_GAUGES,
    TRANSPORT_GAUGES,
    Counter,
)
from tidecast_control.live.channels import Facts
from tidecast_control.live.rates import Json
from tidecast_control.live.world import Source, World, build_sound
from tidecast_control.supervisor import Task

GAUGES = frozenset(
    (
        "receivers",
        "head",
        "sent",
        "slowest_consumed",
        "slots",
        "highest",
        "contiguous",
        "consumed",
        "duty_cycle_ns_max",
        "rtt_ns",
    )
)
"""Counters of the engine that are no counters: positions, maxima."""
NAMES = tuple(c.name.lower() for c in Counter if c.name.lower() not in GAUGES)
FROM_THE_BEGINNING = {
    "publication": (
        "packets_sent",
        "bytes_sent",
        "packets_resent",
        "naks_received",
        "rate_limited",
        "flow_limited",
    ),
    "image": ("packets_received", "losses", "lost_for_good", "naks_sent"),
    "sender": ("naks_received",),
    "receiver": ("naks_sent",),
}
"""Sent also as 0: engines leave out counters that are 0, and the first rise would be missed."""
SERVERS: dict[str, frozenset[IntEnum]] = {
    "gateway": frozenset(GATEWAY_GAUGES),
    "kafka": frozenset(KAFKA_GAUGES),
    "kafka_api": frozenset(),
    "adapter": frozenset(ADAPTER_GAUGES),
    "key": frozenset(),
    "transport": frozenset(TRANSPORT_GAUGES),
    "node": frozenset(),
}
"""Kinds of rows with columns of their own, and the gauges among these."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Fixed(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        """The metrics that were given."""
        yield from self._metrics


def text(
    samples: dict[str, Json], facts: Facts, watchers: int, tasks: Iterable[Task] = ()
) -> bytes:
    """Everything in the text format."""
    registry = CollectorRegistry()
    engines = [*_engines(samples), *_servers(samples), *_rings(samples), *_hosts(samples)]
    own = [*_service(facts, watchers), *_mirrors(facts), *_tasks(tasks)]
    registry.register(_Fixed([*own, *engines]))
    return generate_latest(registry)


def _gauge(name: str, words: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tidecast_{name}", words, labels=labels)


def _service(facts: Facts, watchers: int) -> Iterator[Metric]:
    up = _gauge("node_up", "1 = the engine is connected.", ["node"])
    drift = _gauge("node_drift", "1 = the engine has not applied the newest topology.", ["node"])
    for name, node in facts.nodes.items():
        up.add_metric([name], float(node["state"] == "up"))
        drift.add_metric([name], float(bool(node["drift"])))
    yield up
    yield drift
    for name, words, value in (
        ("topics", "Topics that are wanted.", facts.topics_total),
        ("alerts_firing", "Alerts that fire and are not silenced.", facts.firing),
        ("live_watchers", "Channels watched by live viewers.", watchers),
    ):
        gauge = _gauge(name, words, [])
        gauge.add_metric([], float(value))
        yield gauge


MIRROR_GAUGES = {
    "rate": ("records_per_second", "Records that a mirror copies a second, lately."),
    "lag": ("lag_records", "Offsets that a mirror has to copy."),
}
MIRROR_COUNTS = {
    "records": "Records that a mirror has copied.",
    "bytes": "Bytes of these.",
    "gone": "Offsets that were deleted before a mirror copied them.",
    "left_out": "Records that a mirror cannot copy, such as too large ones.",
    "failures": "Unexpected ends of a mirror's process.",
}


def _mirrors(facts: Facts) -> Iterator[Metric]:
    up = _gauge("mirror_up", "1 = a mirror copies, without an error.", ["mirror"])
    for name, row in facts.mirrors.items():
        up.add_metric([name], float(row["state"] == "running" and not row["error"]))
    yield up
    for field, (metric, words) in MIRROR_GAUGES.items():
        gauge = _gauge(f"mirror_{metric}", words, ["mirror"])
        for name, row in facts.mirrors.items():
            gauge.add_metric([name], float(row[field]))
        yield gauge
    for field, words in MIRROR_COUNTS.items():
        count = CounterMetricFamily(f"tidecast_mirror_{field}", words, labels=["mirror"])
        for name, row in facts.mirrors.items():
            count.add_metric([name], float(row[field]))
        yield count


def _tasks(tasks: Iterable[Task]) -> Iterator[Metric]:
    """The service's background tasks."""
    up = _gauge("task_up", "1 = the newest turn of a background task succeeded.", ["task"])
    failures = CounterMetricFamily(
        "tidecast_task_failures", "Failures of a background task.", labels=["task"]
    )
    for task in tasks:
        up.add_metric([task.name], float(task.check == "ok"))
        failures.add_metric([task.name], float(task.failures))
    yield up
    yield failures


def _engines(samples: dict[str, Json]) -> Iterator[Metric]:
    sums: dict[str, dict[tuple[str, str, str], float]] = defaultdict(lambda: defaultdict(float))
    for node, sample in samples.items():
        for kind, rows in sample["counters"].items():
            begun = FROM_THE_BEGINNING.get(kind, ())
            for row in rows if kind not in SERVERS else ():
                for name in NAMES:
                    if name in row or name in begun:
                        sums[name][(node, kind, row["name"])] += row.get(name, 0)
    for name in NAMES:
        words = (Counter[name.upper()].__doc__ or "").strip() if name in sums else ""
        family = CounterMetricFamily(
            f"tidecast_{name}",
            words or name.replace("_", " "),
            labels=["node", "kind", "name"],
        )
        for labels, value in sums.get(name, {}).items():
            family.add_metric(labels, value)
        yield family


def _servers(samples: dict[str, Json]) -> Iterator[Metric]:
    """Traffic of gateways, Kafka endpoints and adapters; refusals by key; a node's own counters."""
    for server, gauges in SERVERS.items():
        for counter in COLUMNS_OF[server]:
            kind = GaugeMetricFamily if counter in gauges else CounterMetricFamily
            name, words = counter.name.lower(), (counter.__doc__ or "").strip()
            family = kind(f"tidecast_{server}_{name}", words, labels=["node", "name"])
            for node, sample in samples.items():
                for row in sample["counters"].get(server, ()):
                    family.add_metric([node, row["name"]], float(row.get(name, 0)))
            yield family


HOST_GAUGES = {
    "disk_free_bytes": "Free bytes of the disk that holds the engine's data directory.",
    "disk_bytes": "Size of that disk.",
    "shm_free_bytes": "Free bytes of the file system of rings, `/dev/shm`.",
    "shm_bytes": "Size of that file system.",
}
DISK_REFUSALS = {
    "append_failures": "Appends to a queue that the disk refused; they are tried again.",
    "sync_failures": "Syncs of a queue that the disk refused; they are tried again.",
}


def _hosts(samples: dict[str, Json]) -> Iterator[Metric]:
    """Since when each engine runs, its space, and the failures of its disk."""
    started = _gauge("node_start_time_seconds", "When the engine started, since 1970.", ["node"])
    for node, sample in samples.items():
        if "started_ns" in sample.get("host", {}):
            started.add_metric([node], sample["host"]["started_ns"] / 1e9)
    yield started
    for name, words in HOST_GAUGES.items():
        gauge = _gauge(f"node_{name}", words, ["node"])
        for node, sample in samples.items():
            if name in sample.get("host", {}):
                gauge.add_metric([node], float(sample["host"][name]))
        yield gauge
    for name, words in DISK_REFUSALS.items():
        count = CounterMetricFamily(f"tidecast_queue_{name}", words, labels=["queue", "node"])
        for node, sample in samples.items():
            for row in sample.get("queues", ()):
                count.add_metric([row["name"], node], float(row.get(name, 0)))
        yield count


def _rings(samples: dict[str, Json]) -> Iterator[Metric]:
    world, _ = build_sound(Source(node, None, sample) for node, sample in samples.items())
    fill = _gauge("ring_fill_ratio", "Fullest publication of a topic.", ["topic"])
    lag = _gauge("lag_packets", "Packets the slowest reader of a topic is behind.", ["topic"])
    readers = _gauge("subscribers", "Local readers of a topic.", ["topic"])
    for name, row in world.topics.items():
        fill.add_metric([name], row["ring_fill"])
        lag.add_metric([name], float(row["lag_packets"]))
        readers.add_metric([name], row["subscribers"])
    yield from (fill, lag, readers)
    cycle = _gauge("duty_cycle_max_seconds", "Longest duty cycle of an agent.", ["node", "agent"])
    for agent in world.agents.values():
        cycle.add_metric([agent["node"], agent["name"]], agent["duty_cycle_ms_max"] / 1e3)
    yield cycle
    messages = _gauge("subscription_lag_messages", "Messages a subscription is behind.", ["name"])
    for name, row in world.subscriptions.items():
        if row.get("lag_messages") is not None:
            messages.add_metric([name], float(row["lag_messages"]))
    yield messages
    yield from _durable(world)


def _kafka_groups(world: World) -> Iterator[Metric]:
    """The groups of each engine that lag the most."""
    for name, words, field in (
        ("kafka_group_lag_messages", "Records that a Kafka group has not committed.", "lag"),
        ("kafka_group_lag_seconds", "Age of the oldest of these.", "lag_s"),
        ("kafka_group_members", "Members of a Kafka group.", "members"),
    ):
        gauge = _gauge(name, words, ["node", "group"])
        for row in world.kafka_groups.values():
            if row.get(field) is not None:
                gauge.add_metric([row["node"], row["name"]], float(row[field]))
        yield gauge


def _durable(world: World) -> Iterator[Metric]:
    ages = _gauge("subscription_lag_seconds", "Age of a subscription's oldest message.", ["name"])
    for name, row in world.subscriptions.items():
        if row.get("lag_s") is not None:
            ages.add_metric([name], float(row["lag_s"]))
    yield ages
    yield from _kafka_groups(world)
    letters = _gauge(
        "subscription_dead_letters", "Dead letters that are stored and not sent again.", ["name"]
    )
    given_up = CounterMetricFamily(
        "tidecast_subscription_given_up",
        "Messages that became dead letters, or are gone.",
        labels=["name"],
    )
    for name, row in world.subscriptions.items():
        letters.add_metric([name], float(row["dead_letters"]))
        given_up.add_metric([name], float(row["given_up"]))
    yield letters
    yield given_up
    for name, words, field in (
        ("queue_cache_fill_ratio", "Blocks that the cache of a queue holds.", "cache_fill"),
        ("queue_lag_messages", "Messages the slowest subscription is behind.", "lag_messages"),
        ("queue_size_bytes", "Bytes of all segments of a queue.", "bytes"),
    ):
        gauge = _gauge(name, words, ["queue", "node"])
        for queue, row in world.queues.items():
            gauge.add_metric([queue, row["node"]], float(row[field]))
        yield gauge
