"""Kafka's settings of topics, and the settings of durable topics that they stand for.

A setting either maps onto a field of `TopicConfig`, or has one value that cannot change: that value
may be given, so that a tool which names each setting works, and any other is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tidecast.config.check import shown
from tidecast.config.topology import TopicConfig
from tidecast.kafka.codes import Code, Refused
from tidecast.kafka.records import BATCH_BYTES_MAX
from tidecast.kafka.wire import Struct

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
UNLIMITED = -1
"""Kafka's word for no limit; ours is 0."""
NEVER_MS = (1 << 63) - 1


class Kind(IntEnum):
    """Types of settings, by Kafka's numbers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    LIST = 7


class Source(IntEnum):
    """Where a value comes from, by Kafka's numbers."""

    TOPIC = 1
    BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True)
class Setting:
    """One setting. ``field``: of `TopicConfig`; "": it is ``value`` always.

    ``per_unit``: how many of Kafka's units make one of the field's. ``low``, ``high``: in Kafka's
    units. ``unlimited``: -1 is allowed, and 0 in the field.
    """

    name: str
    kind: Kind
    text: str
    field: str = ""
    per_unit: int = 1
    low: int = 1
    high: int = NEVER_MS
    unlimited: bool = False
    value: str = ""

    @property
    def default(self) -> str:
        """The value of a topic that is given none, as Kafka writes it."""
        return self.shown_of(_DEFAULT)

    def shown_of(self, topic: TopicConfig) -> str:
        """The value that a topic has, as Kafka writes it."""
        if not self.field:
            return self.value
        found = getattr(topic, self.field)
        if self.unlimited and not found:
            return str(UNLIMITED)
        if self.name == FLUSH_MS and topic.fsync != "interval":
            return str(NEVER_MS if topic.fsync == "none" else 0)
        return str(round(found * self.per_unit))

    def parsed(self, text: str | None) -> Any:
        """The field's value for a client's value. Raises Refused."""
        if not self.field:
            if text == self.value:
                return None
            raise _invalid(self.name, text, f"it is always {self.value}")
        allowed = f"allowed are {self.low} to {self.high}"
        if self.unlimited:
            allowed += f", and {UNLIMITED} for no limit"
        try:
            number = int(text or "")
        except ValueError:
            raise _invalid(self.name, text, allowed) from None
        if self.unlimited and number == UNLIMITED:
            return 0
        if not self.low <= number <= self.high:
            raise _invalid(self.name, text, allowed)
        return number if self.per_unit == 1 else number / self.per_unit


FLUSH_MS = "flush.ms"
_GIVEN = (
    Setting(
        "retention.ms",
        Kind.LONG,
        "Age at which whole segments are deleted.",
        "retention_s",
        1000,
        high=10**13,
        unlimited=True,
    ),
    Setting(
        "retention.bytes",
        Kind.LONG,
        "Size of a partition beyond which the oldest segments are deleted.",
        "retention_bytes",
        high=1 << 53,
        unlimited=True,
    ),
    Setting(
        "segment.bytes",
        Kind.INT,
        "Size of one file of a partition.",
        "segment_bytes",
        low=64 << 10,
        high=1 << 40,
    ),
    Setting(
        FLUSH_MS,
        Kind.LONG,
        "Time between two syncs of a partition's file to the disk; acks=all waits for one.",
        "fsync_interval_ms",
        high=60_000,
    ),
)
_FIXED = (
    Setting("cleanup.policy", Kind.LIST, "Nothing is compacted.", value="delete"),
    Setting(
        "compression.type", Kind.STRING, "Batches are stored decompressed.", value="uncompressed"
    ),
    Setting("max.message.bytes", Kind.INT, "Longest record batch.", value=str(BATCH_BYTES_MAX)),
    Setting(
        "message.timestamp.type",
        Kind.STRING,
        "The time that the producer gives.",
        value="CreateTime",
    ),
    Setting("min.insync.replicas", Kind.INT, "A partition is kept once.", value="1"),
    Setting(
        "unclean.leader.election.enable", Kind.BOOLEAN, "A partition is kept once.", value="false"
    ),
)
SETTINGS = {each.name: each for each in (*_GIVEN, *_FIXED)}
_DEFAULT = TopicConfig(name="default", mode="durable")


def _invalid(name: str, value: str | None, allowed: str) -> Refused:
    return Refused(Code.INVALID_CONFIG, f"{name}: {shown(value)}: {allowed}")


def setting_of(name: str) -> Setting:
    """A setting by its name. Raises Refused."""
    found = SETTINGS.get(name)
    if found is None:
        known = ", ".join(each.name for each in _GIVEN)
        raise Refused(
            Code.INVALID_CONFIG,
            f"{shown(name)}: topics here have no such setting: allowed are {known}",
        )
    return found


def changes_of(given: Iterable[tuple[str, str | None]]) -> dict[str, Any]:
    """Fields of `TopicConfig` for settings that a client gives. Raises Refused."""
    changes: dict[str, Any] = {}
    seen: set[str] = set()
    for name, value in given:
        found = setting_of(name)
        if name in seen:
            raise Refused(Code.INVALID_REQUEST, f"{name}: it is given twice")
        seen.add(name)
        parsed = found.parsed(value)
        if found.field:
            changes[found.field] = parsed
    return changes


def all_changes_of(given: Iterable[tuple[str, str | None]]) -> dict[str, Any]:
    """The same when each setting that is not given returns to its default. Raises Refused."""
    return {each.field: each.parsed(each.default) for each in _GIVEN} | changes_of(given)


def needed(topic: TopicConfig, changes: dict[str, Any]) -> dict[str, Any]:
    """The changes that differ from the topic's settings. Raises Refused."""
    found = {name: value for name, value in changes.items() if getattr(topic, name) != value}
    if "fsync_interval_ms" in found and topic.fsync != "interval":
        value = str(round(found["fsync_interval_ms"]))
        raise _invalid(FLUSH_MS, value, f"fsync of the topic is {topic.fsync}, not interval")
    return found


def row_of(setting: Setting, topic: TopicConfig) -> Struct:
    """A setting of a topic, as CreateTopics answers it."""
    value = setting.shown_of(topic)
    return {
        "name": setting.name,
        "value": value,
        "read_only": not setting.field,
        "config_source": Source.DEFAULT if value == setting.default else Source.TOPIC,
        "is_sensitive": False,
    }


def described(setting: Setting, topic: TopicConfig, *, synonyms: bool, text: bool) -> Struct:
    """A setting of a topic, as DescribeConfigs answers it."""
    row = row_of(setting, topic)
    known = [{"name": setting.name, "value": setting.default, "source": Source.DEFAULT}]
    if row["config_source"] is Source.TOPIC:
        known.insert(0, {"name": setting.name, "value": row["value"], "source": Source.TOPIC})
    return row | {
        "config_type": setting.kind,
        "synonyms": known if synonyms else [],
        "documentation": setting.text if text else None,
    }


def broker_row(name: str, value: str, kind: Kind) -> Struct:
    """A setting of the endpoint, which clients cannot change."""
    return {
        "name": name,
        "value": value,
        "read_only": True,
        "config_source": Source.BROKER,
        "is_sensitive": False,
        "config_type": kind,
        "synonyms": [],
        "documentation": None,
    }
