"""Types of administration, with the names that YAML, REST and the shell use."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import msgspec

from tidecast.api.start import Start
from tidecast.config.topology import TopicConfig

Size = int | str
"""Bytes, or a text such as ``"64MiB"``."""


class TopicSettings(TypedDict, total=False):
    """Settings of a topic; an omitted setting has the default of `TopicConfig`."""

    id: int | None
    transport: str
    reliability: Literal["reliable", "unordered", "unreliable"]
    flow: Literal["min", "max", "rate"]
    history_bytes: Size
    receive_bytes: Size
    large_history_bytes: Size
    linger_us: int
    rate_packets_per_s: int
    rate_bytes_per_s: Size
    on_full: Literal["block", "error", "drop"]
    compression: Literal["off", "tables"]
    nak_delay_us: int
    nak_retry_us: int
    receiver_timeout_s: float
    close_linger_s: float
    mode: Literal["live", "durable"]
    owner: str
    queues: int
    fsync: Literal["none", "interval", "batch"]
    fsync_interval_ms: float
    retention_bytes: Size
    retention_s: float
    retention_past_unacked: bool
    segment_bytes: Size
    cache_bytes: Size
    spool: bool
    producer_ttl_s: float
    storage: str
    labels: dict[str, str]
    description: str


class SubscriptionSettings(TypedDict, total=False):
    """Settings of a durable subscription, as `Subscriptions.create` takes them."""

    start: Start | str
    ack_wait: float | None
    max_deliver: int | None
    dead_letter: str | None
    key: str | None
    headers: dict[str, str] | None
    where: str | None


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer of a subscription; counts since it joined."""

    consumer_id: int
    client: str
    """Name of its connection."""
    in_flight: int
    max_in_flight: int
    in_flight_bytes: int
    delivered: int
    acked: int


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far a subscription is in one queue. Counts: since the engine started."""

    topic: str
    queue: int
    position: int
    """All records before this offset are acked."""
    next: int
    """Offset of the next record to deliver."""
    end: int
    """Offset behind the last record."""
    lag: int
    """Records that are not acked."""
    lag_s: float
    """Age of the oldest of them, in seconds."""
    acked_ahead: int
    """Acked records behind ``position``."""
    outstanding: int
    waiting: int
    """Records that wait for their next delivery."""
    reason: str
    """Why it delivers nothing now."""
    paused_by: list[str]
    consumers: list[int]
    delivered: int
    settled: int
    redelivered: int
    naks: int
    timeouts: int
    dead: int
    filtered: int
    scheduled: int = 0
    """Records that wait for their delivery time; ``waiting`` counts them, too."""
    cancelled: int = 0
    """Records that were cancelled before their delivery time; ``settled`` counts them, too."""


class SubscriptionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A durable subscription: its settings, and the sums of its cursors."""

    pattern: str
    name: str
    ack_wait_s: float
    max_deliver: int
    dead_letter: str
    key_pattern: str
    headers: dict[str, str]
    where: str
    paused: bool
    created_ns: int
    queues: int
    members: list[Member]
    lag: int
    lag_s: float
    acked_ahead: int
    outstanding: int
    waiting: int
    delivered: int
    settled: int
    redelivered: int
    naks: int
    timeouts: int
    dead: int
    dead_open: int
    """Dead letters that were not delivered again."""
    arriving: int = 0
    """Messages that publishers on other hosts hold and no log has yet; ``lag`` counts them, too."""
    scheduled: int = 0
    """Records that wait for their delivery time; ``waiting`` counts them, too."""
    cancelled: int = 0
    """Records that were cancelled before their delivery time; ``settled`` counts them, too."""
    cursors: list[Cursor] = []
    """Only of `get`."""


class ConsumerInfo(TypedDict):
    """A durable subscription as `Consumer.info` gives it: `SubscriptionInfo` as a mapping.

    ``cursors`` and ``members`` are mappings, too, with the fields of `Cursor` and `Member`.
    """

    pattern: str
    name: str
    ack_wait_s: float
    max_deliver: int
    dead_letter: str
    key_pattern: str
    headers: dict[str, str]
    where: str
    paused: bool
    created_ns: int
    queues: int
    members: list[dict[str, Any]]
    lag: int
    lag_s: float
    acked_ahead: int
    outstanding: int
    waiting: int
    delivered: int
    settled: int
    redelivered: int
    naks: int
    timeouts: int
    dead: int
    dead_open: int
    arriving: int
    scheduled: int
    cancelled: int
    cursors: list[dict[str, Any]]


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a `seek` on one queue."""

    topic: str
    queue: int
    before: int
    after: int
    """Offsets."""
    records: int
    """So many are passed over; below 0, they come again."""
    forgotten: int
    """So many were outstanding."""


class Peeked(msgspec.Struct, frozen=True, kw_only=True):
    """A record that a subscription has yet to deliver."""

    topic: str
    queue: int
    offset: int = msgspec.field(name="token")
    time_ns: int
    """Its timestamp, since 1970."""
    key: bytes | None
    headers: dict[str, Any]
    size: int
    """Bytes of the payload."""
    payload: bytes


class Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """A record that waits for its delivery time."""

    topic: str
    queue: int
    offset: int = msgspec.field(name="token")
    deliver_at_ns: int
    """Its delivery time, since 1970."""
    subscriptions: list[tuple[str, str]]
    """Topic or pattern, and name, of each subscription that waits for it."""
    time_ns: int
    """Its timestamp, since 1970."""
    key: bytes | None
    headers: dict[str, Any]
    size: int
    """Bytes of the payload."""
    payload: bytes


class CancelledOf(msgspec.Struct, frozen=True, kw_only=True):
    """The records that one subscription cancelled, by number."""

    pattern: str
    name: str
    cancelled: int
    too_late: int
    """Their time had come, or they were delivered before."""
    acked: int
    """Acked or cancelled before."""


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `Topics.cancel_scheduled`."""

    dry_run: bool
    records: int
    """Records that were meant."""
    subscriptions: list[CancelledOf]

    @property
    def cancelled(self) -> int:
        """Cancelled deliveries: a record counts for each subscription that waited for it."""
        return sum(each.cancelled for each in self.subscriptions)

    @property
    def too_late(self) -> int:
        """Deliveries whose time had come."""
        return sum(each.too_late for each in self.subscriptions)


def sum_of(pages: list[Cancelled]) -> Cancelled:
    """Several answers as one."""
    rows: dict[tuple[str, str], CancelledOf] = {}
    for each in (row for page in pages for row in page.subscriptions):
        before = rows.get((each.pattern, each.name))
        rows[each.pattern, each.name] = CancelledOf(
            pattern=each.pattern,
            name=each.name,
            cancelled=each.cancelled + (before.cancelled if before else 0),
            too_late=each.too_late + (before.too_late if before else 0),
            acked=each.acked + (before.acked if before else 0),
        )
    return Cancelled(
        dry_run=pages[0].dry_run,
        records=sum(page.records for page in pages),
        subscriptions=[rows[key] for key in sorted(rows)],
    )


TopicConfigs = list[TopicConfig]
ScheduledRecords = list[Scheduled]
SubscriptionInfos = list[SubscriptionInfo]
Moves = list[Moved]
PeekedRecords = list[Peeked]
"""In a class with a method `list`, annotations cannot name the type of that name."""
