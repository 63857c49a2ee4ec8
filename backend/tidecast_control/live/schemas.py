"""The live feed: frames, and the data of each channel.

Rows are keyed, so that a delta can be a JSON merge patch (RFC 7396). Rates are a second and are
plain numbers; positions and totals are strings.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from tidecast_control.kafka.schemas import KafkaClientLive, KafkaGroupLive
from tidecast_control.kit.schemas import Count, Int64, Model, View
from tidecast_control.leases.schemas import LeaseMove
from tidecast_control.messages.schemas import MessageView
from tidecast_control.nodes.schemas import RecorderRecord

CHANNELS_MAX = 32


class Watch(Model):
    """A client's frame; it replaces the channels watched before."""

    watch: Annotated[list[Annotated[str, Field(max_length=300)]], Field(max_length=CHANNELS_MAX)]
    after: dict[str, Annotated[str, Field(pattern=r"^\d{1,19}$")]] = Field(
        default_factory=dict,
        max_length=CHANNELS_MAX,
        description="By channel: the seq of the newest frame of it that the client has",
    )
    hz: float = Field(4.0, ge=1.0, le=4.0, description="Frames a second at most")


class Frame(View):
    """A frame of the server.

    snapshot: the channel's whole data. delta: a merge patch on it, or for the append channels
    (messages:, recorder:, audit, alerts) new entries. gap: entries or frames were missed, a
    snapshot follows. ping: nothing changed. error: the channel cannot be watched.
    """

    seq: Int64
    at: datetime
    kind: Literal["snapshot", "delta", "ping", "gap", "error"]
    channel: str
    data: dict[str, Any] | None = None


class Rates(View):
    """A second, over the last interval."""

    messages_out: float = Field(0, description="Messages that publishers wrote")
    packets_out: float = 0
    bytes_out: float = 0
    packets_in: float = 0
    bytes_in: float = 0
    packets_resent: float = 0
    bytes_resent: float = 0
    naks_received: float = 0
    naks_sent: float = 0
    losses: float = 0
    lost_for_good: float = 0
    bytes_saved: float = Field(0, description="Bytes that `compression` kept off the network")
    rate_held: float = Field(0, description="Share of the time a rate limit held packets back")
    flow_held: float = Field(0, description="The same of a receiver's window; of many the greatest")


class Heard(View):
    """Which engines the figures of a channel include."""

    measured: bool = Field(
        True, description="An engine is heard. If none is, no figure is known: a chart has a gap"
    )
    silent: list[str] = Field(
        [], description="Nodes that were here and are not heard now: no figure includes them"
    )


class Slow(View):
    """A slow part of the platform, and why."""

    kind: Literal["topic", "publication", "receiver", "subscription", "node", "agent"]
    name: str
    node: str
    reason: Literal[
        "rate_limit",
        "flow_control",
        "loss",
        "ring_full",
        "slow_reader",
        "long_duty_cycle",
        "node_down",
        "drift",
        "send_errors",
        "cache_pressure",
    ]
    detail: str
    value: float = 0
    since: datetime


class AdapterLive(View):
    """An adapter that keeps a topic's queues on one node. Totals are since its engine started."""

    adapter: str = Field(description="Its kind, such as `kafka`")
    state: Literal["open", "waiting"] = Field(description="`waiting`: its system cannot be reached")
    detail: str = Field("", description="Why it waits")
    since: datetime | None = Field(None, description="Since when it waits")
    queues: Count = 0
    records: Int64 = 0
    errors: Int64 = Field(0, description="Requests for records that failed")
    reconnects: Int64 = 0
    lag: Int64 = Field(0, description="Records of its system that were not read yet")
    left_out: Int64 = Field(
        0, description="Records that were passed: too large, or otherwise not to be held"
    )


class StorageLive(View):
    """The storage of a durable topic beside its log. Totals are since its engine started."""

    storage: str = Field(description="As in the topic's settings")
    state: Literal["open", "waiting"] = Field(
        description="`waiting`: it stores nothing, and publishers get no acks"
    )
    detail: str = Field("", description="Why it waits")
    since: datetime | None = Field(None, description="Since when it waits")
    waiting_records: Int64 = Field(0, description="Records in the log that it does not have yet")
    records: Int64 = Field(0, description="Records that it has stored")
    failures: Int64 = Field(0, description="Failures to store records; tried again")


class TopicLive(View):
    """A topic over all nodes."""

    name: str
    rates: Rates
    retransmit_ratio: float = 0
    publishers: Count = 0
    receivers: Count = 0
    subscribers: Count = 0
    ring_fill: float = Field(0, description="Fullest publication: sent and not yet consumed")
    lag_packets: Int64 = Field(0, description="The slowest receiver's")
    lag_messages: Int64 | None = None
    lag_s: float | None = None
    throttle: Literal["none", "rate", "flow"] = "none"
    nodes: list[str] = []
    traffic: bool = False
    paused: bool = False
    adapters: dict[str, AdapterLive] = Field(
        {}, description="By node: adapters that keep its queues. Such a topic is no resource"
    )
    storages: dict[str, StorageLive] = Field(
        {}, description="By node that keeps the topic: its storage, if it has one beside its log"
    )


class Overview(Heard):
    """Channel `overview`."""

    rates: Rates | None = Field(None, description="null: not `measured`")
    retransmit_ratio: float | None = None
    nodes_up: Count
    nodes_total: Count
    nodes_drifting: Count
    topics_total: Count
    topics_active: Count
    publishers: Count
    subscribers: Count
    lag_packets_max: Int64 | None = None
    lag_messages: Int64 | None = None
    lag_s: float | None = None
    ring_fill_max: float | None = None
    cache_fill_max: float | None = None
    alerts_firing: Count
    alerts_silenced: Count
    rtt_ms: float | None = None
    slow: dict[str, Slow]
    busiest: list[str] = Field(description="Names of the busiest topics, at most 10")


class TopicsLive(Heard):
    """Channel `topics`: active topics by name."""

    topics: dict[str, TopicLive]


class PublicationLive(View):
    """One publisher's ring: which stage is behind is the difference of the positions."""

    id: str
    topic: str
    node: str
    session: Int64
    channel: str
    client: str
    transport: str
    slots: Int64
    packet_bytes: Count
    head: Int64 = Field(description="Next packet the publisher opens")
    sent: Int64 | None = Field(None, description="Next packet to send; null without a network")
    slowest_consumed: Int64 | None = None
    fill: float = 0
    history_s: float | None = Field(None, description="Time until a packet sent now is evicted")
    receivers: Count = 0
    rtt_ms: float | None = None
    rates: Rates
    naks_too_late: Int64 = 0
    receiver_timeouts: Int64 = 0
    closing: bool = False


class ReceiverLive(View):
    """A receiver as a publisher sees it."""

    id: str
    topic: str
    session: Int64
    publisher: str
    node: str
    consumed: Int64
    contiguous: Int64
    window: Int64
    lag_packets: Int64
    lost: Int64
    excluded: bool
    slowest: bool = False


class ImageLive(View):
    """A remote publication as received."""

    id: str
    topic: str
    node: str
    source: str
    session: Int64
    slots: Int64
    highest: Int64
    contiguous: Int64
    consumed: Int64
    gaps: Count
    lost: Int64
    fill: float
    mode: str
    rates: Rates
    duplicates: Int64 = 0
    recovered: Int64 = 0
    overruns: Int64 = 0
    repairs_unneeded: Int64 = 0


class ReaderLive(View):
    """A subscriber that reads a ring of its own node."""

    id: str
    topic: str
    node: str
    client: str
    source: str
    position: Int64
    lag_packets: Int64
    tethered: bool


class AgentLive(View):
    """An agent of a node."""

    id: str
    node: str
    name: str
    duty_cycles_per_s: float
    duty_cycle_ms_max: float
    parks_per_s: float
    system_calls_per_s: float
    short_sends: Int64
    send_errors: Int64


class TopicDetail(Heard):
    """Channel `topic:NAME`."""

    topic: TopicLive | None = Field(None, description="null: not `measured`")
    publications: dict[str, PublicationLive]
    receivers: dict[str, ReceiverLive]
    images: dict[str, ImageLive]
    readers: dict[str, ReaderLive]
    queues: dict[str, QueueLive] = {}
    subscriptions: dict[str, SubscriptionLive] = {}


class Reliability(Heard):
    """Channel `reliability`."""

    rates: Rates | None = Field(None, description="null: not `measured`")
    retransmit_ratio: float | None = None
    publications: dict[str, PublicationLive]
    receivers: dict[str, ReceiverLive]
    images: dict[str, ImageLive]
    agents: dict[str, AgentLive]
    invalid: dict[str, Int64] = Field(description="Refused packets by cause")
    faults: dict[str, Int64] = Field(description="Packets by injected fault")
    slowest_receiver: str | None = None


class FlowNode(View):
    """A node of the graph."""

    id: str
    kind: Literal["publisher", "topic", "queue", "agent", "subscription", "subscriber"]
    label: str
    node: str = ""
    packets_per_s: float = 0
    bytes_per_s: float = 0
    fill: float | None = None
    state: Literal["active", "idle", "slow", "paused"] = "idle"


class FlowEdge(View):
    """An edge of the graph."""

    id: str
    source: str
    target: str
    packets_per_s: float = 0
    bytes_per_s: float = 0
    loss_per_s: float = 0
    resent_per_s: float = 0
    throttle: Literal["none", "rate", "flow"] = "none"
    pressure: float = Field(0, description="0 = free, 1 = full")
    lag_packets: Int64 = 0


class Flow(Heard):
    """Channel `flow`."""

    nodes: dict[str, FlowNode]
    edges: dict[str, FlowEdge]
    truncated: bool = False


class QueueLive(View):
    """A durable queue, its cache, and the slowest subscription that reads it."""

    name: str
    topic: str
    number: Count
    adapter: str = Field("", description="Of which adapter it is; empty: the engine's own log")
    node: str
    state: Literal["open", "paused", "full"]
    reason: str = Field("", description="Why its storage stores nothing: then it is full")
    owner_epoch: Int64
    owner_since: datetime | None = Field(None, description="Kept by a lease since then")
    earliest: Int64
    latest: Int64
    durable: Int64
    bytes: Int64
    segments: Count
    cache_bytes: Int64
    cache_max: Int64
    cache_fill: float
    cache_pressure: Literal["", "full", "spilling"] = ""
    subscriptions: Count = 0
    lag_messages: Int64 = 0
    lag_s: float | None = None
    cursor: Int64 | None = None
    pressure: str = Field("", description="Why the slowest subscription waits")
    in_per_s: float | None = None
    out_per_s: float | None = None


class QueuesLive(Heard):
    """Channel `queues`: by name, TOPIC:NUMBER; at most 4,000 of a node."""

    queues: dict[str, QueueLive]


SCHEDULED = "Messages that wait for their delivery time; the lag counts them, too"


class CursorLive(View):
    """A subscription's place in one queue."""

    earliest: Int64 = 0
    acked: Int64
    delivered: Int64
    latest: Int64
    lag_messages: Int64
    lag_s: float | None = None
    outstanding: Int64 = 0
    scheduled: Int64 = Field(0, description=SCHEDULED)
    pressure: str = ""


LETTERS = "Stored in their topic, and not sent again since"
GIVEN_UP = "Messages since its engines started; without a topic for them they are gone"


class SubscriptionLive(View):
    """A durable subscription, live."""

    name: str
    topic: str
    state: str
    members: Count = 0
    lag_messages: Int64 | None = None
    lag_s: float | None = None
    lag_trend_per_s: float | None = None
    drain_s: float | None = None
    outstanding: Int64 | None = None
    scheduled: Int64 | None = Field(None, description=SCHEDULED)
    delivered_per_s: float | None = None
    dead_letters: Int64 | None = Field(None, description=LETTERS)
    given_up: Int64 | None = Field(None, description=GIVEN_UP)
    pressure: str = Field("", description="Why it waits; empty = it does not")
    cursors: dict[str, CursorLive] = Field({}, description="By queue; the furthest behind")


class SubscriptionsLive(Heard):
    """Channel `subscriptions`: durable ones by name; live readers by id."""

    subscriptions: dict[str, SubscriptionLive]
    readers: dict[str, ReaderLive]


class NodeLive(View):
    """A node, live."""

    name: str
    state: Literal["up", "down", "never"]
    heard: bool = Field(True, description="It sends telemetry. If not, its figures are not known")
    rates: Rates | None = Field(None, description="null: not `heard`")
    publications: Count = 0
    images: Count = 0
    clients: Count = 0
    drift: bool = False
    topology_version: Int64 = 0
    telemetry_age_s: float | None = None
    duty_cycle_ms_max: float = 0
    version: str = ""
    level: Count = Field(0, description="The level that its engine writes")
    drained: bool = Field(False, description="It transfers its leased topics, and takes none")
    keeps: Count | None = Field(None, description="Leased topics that it has; null: not `heard`")
    peers: Count = Field(0, description="Discovered peers of its unicast transports")
    peers_silent: list[str] = Field(
        [], description="Those that it does not hear, as `NODE on TRANSPORT`"
    )


class NodesLive(Heard):
    """Channel `nodes`."""

    nodes: dict[str, NodeLive]
    agents: dict[str, AgentLive]


class KeyLive(View):
    """Requests of a key's clients that engines refused, since these started."""

    name: str = Field(description="`(others)`: those beyond the 256 keys that an engine counts")
    denied: Int64 = Field(0, description="The key lacks the right")
    over_quota: Int64 = Field(0, description="Its clients hold as much as it may")
    refused_per_s: float = Field(0, description="Both")


class KeysLive(Heard):
    """Channel `keys`: keys that were refused something, by name."""

    keys: dict[str, KeyLive]


class KafkaLive(Heard):
    """Channel `kafka`: of each engine the 256 groups that lag the most, and 256 connections."""

    groups: dict[str, KafkaGroupLive] = Field(description="By NODE/NAME")
    clients: dict[str, KafkaClientLive] = Field(description="By NODE/NUMBER")
    groups_total: Count
    clients_total: Count


class MessagesLive(View):
    """Channel `messages:TOPIC` (append): new messages; ``skipped`` were too many to show."""

    messages: list[MessageView]
    skipped: Int64 = 0
    withheld: bool = False


class RecorderLive(View):
    """Channel `recorder:NODE` (append)."""

    records: list[RecorderRecord]


class MovesLive(View):
    """Channel `moves` (append): moves of leased topics that are new, or have an owner now."""

    entries: list[LeaseMove]
