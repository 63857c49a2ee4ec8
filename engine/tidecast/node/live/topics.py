"""Topics of a running node: creating, editing and deleting them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from tidecast import events
from tidecast.agents.warmup import DURABLE, warm_up
from tidecast.config.internal import PREFIXES, internal_topics, is_internal, served_topic
from tidecast.config.suggestions import near
from tidecast.config.topology import TopicConfig, check_topic_name
from tidecast.errors import Closed, ConfigError, Conflict, NotFound, TidecastError
from tidecast.layout import recorder as rec
from tidecast.layout.packet import NAME_BYTES_MAX
from tidecast.node.context import NodeContext
from tidecast.node.live import agent_tables
from tidecast.node.live.publications import Publications
from tidecast.node.live.receiver_tables import WantedTopics
from tidecast.node.live.subscriptions import Subscriptions
from tidecast.node.state import Publication

AT_ONCE_MAX = 256
"""So many topics are made or removed before others may take the node's lock."""


class DurableTopics(Protocol):
    """Logs of durable topics."""

    def open_topic(self, config: TopicConfig, owner: int = 0) -> None:
        """Open a topic's logs. Raises CorruptLog, StorageError, SharedMemoryError."""

    def take_left(self, name: str) -> None:
        """Take the rings that dead engines left for a topic, which is there now."""

    def edit_topic(self, config: TopicConfig) -> None:
        """A topic's settings have changed. Raises StorageError."""

    def close_topic(self, name: str, *, keep_data: bool) -> None:
        """Close a topic's logs; delete them unless ``keep_data``."""

    def note_deleted(self, name: str) -> None:
        """A topic is gone, with its records."""


class AttachedTopics(Protocol):
    """Topics whose queues an adapter keeps."""

    def check_writable(self, topic: str) -> None:
        """Raise Conflict for a topic that an adapter keeps."""


class Topics:
    """See module."""

    def __init__(
        self,
        ctx: NodeContext,
        publications: Publications,
        wanted: WantedTopics,
        subscriptions: Subscriptions,
        durable: DurableTopics,
        attached: AttachedTopics,
    ) -> None:
        self._ctx, self._publications, self._wanted = ctx, publications, wanted
        self._subscriptions = subscriptions
        self._durable, self._attached = durable, attached
        self._internal: set[str] = set()
        """Names of the internal topics that are there."""

    def get(self, name: str) -> TopicConfig:
        """A topic by name; made on first use where the topology allows that."""
        found = self._ctx.topic_by_name.get(name)
        if found is not None:
            return found
        if is_internal(name):
            return self._get_internal(name)
        check_topic_name(name)
        if not self._ctx.topology.auto_create_topics:
            raise NotFound(f"no topic {name}: create it (tidecast topic create {name})")
        self.create(TopicConfig(name=name, transport=self._ctx.topology.transports[0].name))
        return self._ctx.topic_by_name[name]

    def _get_internal(self, name: str) -> TopicConfig:
        """Make an internal topic beside the live topic that it serves."""
        served = self.get(served_topic(name))
        if served.mode != "live":
            raise ConfigError(
                f"topic {served.name}: it is durable, and requests need a live topic: take another"
            )
        if len(name.encode()) > NAME_BYTES_MAX:
            most = NAME_BYTES_MAX - len(PREFIXES[0])
            raise ConfigError(
                f"topic {served.name}: the name of a topic with requests has at most {most} bytes"
            )
        topic = TopicConfig(
            name=name,
            transport=served.transport,
            history_bytes=served.history_bytes,
            receive_bytes=served.receive_bytes,
            linger_us=served.linger_us,
            nak_delay_us=served.nak_delay_us,
            nak_retry_us=served.nak_retry_us,
            receiver_timeout_s=served.receiver_timeout_s,
        )
        with self._ctx.lock:
            self._ctx.topic_by_name[name] = topic
            self._internal.add(name)
            self._wanted.changed([name])
        return topic

    def forget_internal(self) -> None:
        """Remove internal topics without publishers and readers."""
        ctx = self._ctx
        for name in sorted(self._internal):
            used = (
                ctx.pubs.of("topic", name)
                or ctx.subs.of("pattern", name)
                or ctx.images_by_id.of("topic", name)
            )
            if not used:
                self._internal.discard(name)
                ctx.topic_by_name.pop(name, None)
                self._wanted.changed([name])

    def create(self, topic: TopicConfig) -> None:
        """Add a topic."""
        for problem in self.create_many([topic]).values():
            raise problem

    def create_many(self, wanted: Sequence[TopicConfig]) -> dict[str, TidecastError]:
        """Add topics; the errors of topics that were not added, by name."""
        if any(topic.mode == "durable" for topic in wanted):
            warm_up(names=DURABLE)  # with no lock held: it may wait for a compiler
        failed: dict[str, TidecastError] = {}
        for first in range(0, len(wanted), AT_ONCE_MAX):
            with self._ctx.lock:
                some = wanted[first : first + AT_ONCE_MAX]
                taken = self._given_ids() if any(topic.id is not None for topic in some) else {}
                for topic in some:
                    try:
                        self._add(topic, taken)
                    except TidecastError as problem:
                        failed[topic.name] = problem
        if wanted:
            with self._ctx.lock:
                self._wanted.changed([topic.name for topic in wanted])
        return failed

    def _given_ids(self) -> dict[tuple[str, int], str]:
        topics = self._ctx.topic_by_name.values()
        return {(t.transport, t.id): t.name for t in topics if t.id is not None}

    def _add(self, topic: TopicConfig, taken: dict[tuple[str, int], str]) -> None:
        if is_internal(topic.name):
            check_topic_name(topic.name)
        if topic.name in self._ctx.topic_by_name:
            raise Conflict(f"topic {topic.name} exists already")
        self._attached.check_writable(topic.name)
        transport = self._ctx.topology.transport(topic.transport).name
        topic = msgspec.structs.replace(topic, transport=transport)
        other = taken.get((transport, topic.id)) if topic.id is not None else None
        if other is not None:
            raise Conflict(
                f"topics.id: {topic.id}: used by topic {other} on transport "
                f"{transport}: give {topic.name} another id"
            )
        if topic.mode == "durable":
            self._durable.open_topic(topic)
        self._ctx.topic_by_name[topic.name] = topic
        if topic.mode == "durable":
            self._durable.take_left(topic.name)
        if topic.id is not None:
            taken[transport, topic.id] = topic.name

    def edit(self, name: str, changes: dict[str, Any]) -> None:
        """Change a topic; rates and linger hold at once, also for publications that run."""
        with self._ctx.lock:
            if name not in self._ctx.topic_by_name:
                raise self._unknown(name)
            topic = msgspec.structs.replace(self._ctx.topic_by_name[name], **changes)
            if topic.mode == "durable":
                self._durable.edit_topic(topic)
            self._ctx.topic_by_name[name] = topic
            for publication in self._ctx.pubs.of("topic", name):
                publication.configure(topic)
                agent_tables.set_live(
                    publication.mapped.array,
                    topic.rate_packets_per_s,
                    topic.rate_bytes_per_s,
                    topic.linger_us,
                )
            self._ctx.note(
                rec.LOW,
                rec.Code.RATE_CHANGED,
                topic.wire_id,
                topic.rate_packets_per_s,
                topic.rate_bytes_per_s,
            )

    def _unknown(self, name: str) -> NotFound:
        return NotFound(f"no topic {name}{near(name, self._ctx.topic_by_name)}")

    def delete(self, name: str, *, keep_data: bool) -> None:
        """Remove a topic; its publications and subscriptions by that exact name end.

        A durable topic's files go, too, unless ``keep_data``: it is created again then, and
        its subscriptions continue.
        """
        found = self.delete_many([name], keep_data=keep_data, keep_readers=keep_data)
        for problem in found.values():
            raise problem

    def delete_many(
        self, names: Sequence[str], *, keep_data: bool, keep_readers: bool = False
    ) -> dict[str, TidecastError]:
        """The same for many; the errors of topics that were not removed, by name.

        ``keep_readers``: the topics are created again at once, and their subscriptions continue.
        """
        failed: dict[str, TidecastError] = {}
        for first in range(0, len(names), AT_ONCE_MAX):
            with self._ctx.lock:
                for name in names[first : first + AT_ONCE_MAX]:
                    try:
                        self._remove(name, keep_data=keep_data, keep_readers=keep_readers)
                    except TidecastError as problem:
                        failed[name] = problem
        if names:
            with self._ctx.lock:
                self._wanted.changed(names)
        return failed

    def _remove(self, name: str, *, keep_data: bool, keep_readers: bool) -> None:
        if name not in self._ctx.topic_by_name:
            raise self._unknown(name)
        for internal in internal_topics(name):
            if internal in self._ctx.topic_by_name:
                self._remove(internal, keep_data=False, keep_readers=False)
                self._internal.discard(internal)
                self._wanted.changed([internal])
        for publication in self._ctx.pubs.of("topic", name):
            self._publications.end_with_topic(publication, _ended(publication))
        for subscription in () if keep_readers else self._ctx.subs.of("pattern", name):
            self._subscriptions.end_with_topic(subscription)
        durable = self._ctx.topic_by_name[name].mode == "durable"
        if durable:
            self._durable.close_topic(name, keep_data=keep_data)
        del self._ctx.topic_by_name[name]
        if durable and not keep_data:
            self._durable.note_deleted(name)


def _ended(publication: Publication) -> events.PublicationEnded:
    """The messages of its writer so far are sent, see `live.publications`."""
    name = publication.topic.name
    return events.PublicationEnded(
        topic=name,
        session=publication.session,
        code=Closed.code,
        reason=f"topic {name}: it was deleted or recreated: open another publisher",
    )
