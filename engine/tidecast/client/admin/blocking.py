"""`client.topics` and `client.subscriptions` of the blocking client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from tidecast.api.renamed import with_new_name
from tidecast.api.start import Earliest, Start
from tidecast.client.admin import pages
from tidecast.client.admin.types import (
    Cancelled,
    Moves,
    PeekedRecords,
    ScheduledRecords,
    SubscriptionInfo,
    SubscriptionInfos,
    TopicConfigs,
    TopicSettings,
)
from tidecast.client.consumer.core import start_options
from tidecast.client.core.public import Public
from tidecast.config.check import build, raise_problems
from tidecast.config.suggestions import near
from tidecast.config.topology import TopicConfig
from tidecast.errors import Conflict, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidecast.client.core.connection import ConnectionCore

TOPIC_CALLS = "cancel_scheduled check create delete edit ensure get list pause resume scheduled"
SUBSCRIPTION_CALLS = "check create delete ensure get list pause peek resume seek"


class Topics(Public):
    """Topics of the engine: look at them, create, edit and delete them.

    A change is saved in the engine's topology file. It concerns this engine alone; where a control
    service manages the engines, `tidecast.Control` changes topics of all.
    """

    PUBLIC = TOPIC_CALLS

    def __init__(self, connection: ConnectionCore) -> None:
        self._connection = connection

    def list(self, pattern: str = ">") -> TopicConfigs:
        """Topics that a pattern covers, by name; those made on first use included."""
        rows: list[Any] = []
        after: str | None = None
        while True:
            page = self._ask("topics", pattern=pattern, after=after)
            rows += page["rows"]
            after = page["next"]
            if after is None:
                return msgspec.convert(rows, TopicConfigs)

    def get(self, name: str) -> TopicConfig:
        """A topic's settings. Raises NotFound."""
        found = self._find(name)
        if found is None:
            raise NotFound(f"no topic {name}{near(name, (each.name for each in self.list()))}")
        return found

    def create(self, name: str, **settings: Unpack[TopicSettings]) -> TopicConfig:
        """Create a topic; its settings as the engine has them. Raises Conflict, ConfigError."""
        made = self._ask("create_topic", topic=name, settings=settings)
        return msgspec.convert(made, TopicConfig)

    def ensure(self, name: str, **settings: Unpack[TopicSettings]) -> TopicConfig:
        """The topic, created if it does not exist. An existing topic must have the ``settings``.

        Safe to call from several programs at once. Raises Conflict, which names each setting that
        differs, and ConfigError.
        """
        try:
            return self.check(name, **settings)
        except NotFound:
            pass
        try:
            return self.create(name, **settings)
        except Conflict:
            if self._find(name) is None:
                raise  # it conflicts with another topic
        return self.check(name, **settings)

    def check(self, name: str, **settings: Unpack[TopicSettings]) -> TopicConfig:
        """The topic, if it is there and ``settings`` hold: `ensure` that creates nothing.

        Raises NotFound, Conflict, which names each setting that differs, and ConfigError.
        """
        found = self.get(name)
        differing = _differing(found, settings)
        if differing:
            raise Conflict(
                f"topic {name}: it has other settings: {differing}: leave them out, or change the "
                "topic with edit()"
            )
        return found

    def edit(
        self, name: str, *, recreate: bool = False, **changes: Unpack[TopicSettings]
    ) -> TopicConfig:
        """Change settings of a topic; its settings afterwards.

        ``recreate``: also settings whose change ends its publications and subscriptions; records
        are kept. Raises NotFound, ConfigError.
        """
        edited = self._ask("edit_topic", topic=name, settings=changes, recreate=recreate)
        return msgspec.convert(edited, TopicConfig)

    def delete(self, name: str) -> None:
        """Delete a topic, with its records and durable subscriptions. Raises NotFound."""
        self._ask("delete_topic", topic=name)

    def pause(self, name: str, queue: int | None = None) -> None:
        """Deliver nothing of a durable topic, or of one queue, to any subscription.

        Publishers continue. Until `resume`: an engine that starts again remembers it. Raises
        NotFound.
        """
        self._pause(name, queue, paused=True)

    def resume(self, name: str, queue: int | None = None) -> None:
        """Deliver again. Raises NotFound."""
        self._pause(name, queue, paused=False)

    def scheduled(
        self,
        name: str,
        *,
        subscription: str | None = None,
        key: str | bytes | None = None,
        where: str | None = None,
        limit: int = 1000,
    ) -> ScheduledRecords:
        """Records of a durable topic that wait for their delivery time, by queue and offset.

        ``subscription``: records that wait for this subscription; ``key``: records of this key;
        ``where``: records for which this filter holds. At most ``limit``. Through a gateway it
        needs the right ``read_payloads``. Raises NotFound, ConfigError.
        """
        self._connection.flush_to_rings()  # messages that this client published before count
        rows, _ = pages.read_scheduled(
            self._ask, topic=name, subscription=subscription, key=key, where=where, limit=limit
        )
        return msgspec.convert(rows, ScheduledRecords)

    def cancel_scheduled(
        self,
        name: str,
        *,
        records: Iterable[tuple[int, int]] | None = None,
        key: str | bytes | None = None,
        where: str | None = None,
        everything: bool = False,
        subscription: str | None = None,
        dry_run: bool = False,
    ) -> Cancelled:
        """Cancel records before their delivery time: no consumer gets them.

        ``records``: queue and offset of each, at most 10,000; or records of ``key``, or records for
        which the filter ``where`` holds; or ``everything``. ``subscription``: for this subscription
        alone; else for all subscriptions that the topic has now. A record whose time has come is
        not cancelled: see ``too_late``. The positions are saved when this returns. ``dry_run``:
        only count. Raises NotFound, ConfigError, Conflict, StorageError.
        """
        places = None if records is None else [list(each) for each in records]
        self._connection.flush_to_rings()  # messages that this client published before count
        return pages.cancel_scheduled(
            self._ask,
            topic=name,
            records=places,
            key=key,
            where=where,
            everything=everything,
            subscription=subscription,
            dry_run=dry_run,
        )

    def _pause(self, name: str, queue: int | None, *, paused: bool) -> None:
        if queue is None:
            self._ask("pause_topic", topic=name, paused=paused)
        else:
            self._ask("pause_queue", topic=name, queue=queue, paused=paused)

    def _find(self, name: str) -> TopicConfig | None:
        # A name that is no pattern covers itself alone.
        found = [each for each in self.list(name) if each.name == name]
        return found[0] if found else None

    def _ask(self, action: str, **arguments: Any) -> Any:
        self._connection.check()
        return self._connection.link.administer(action, arguments)


class Subscriptions(Public):
    """Durable subscriptions of the engine. Each is named by the topic, or pattern, and its name."""

    PUBLIC = SUBSCRIPTION_CALLS

    def __init__(self, connection: ConnectionCore) -> None:
        self._connection = connection

    def list(self, topic: str | None = None) -> SubscriptionInfos:
        """All subscriptions, or all of a topic or pattern, by name; without ``cursors``."""
        found = msgspec.convert(self._ask("list"), SubscriptionInfos)
        return [each for each in found if topic in (None, each.pattern)]

    def get(self, topic: str, name: str) -> SubscriptionInfo:
        """A subscription, with its cursors. Raises NotFound."""
        found = with_new_name(self._ask("show", pattern=topic, name=name))
        return msgspec.convert(found, SubscriptionInfo)

    def create(
        self,
        topic: str,
        name: str,
        *,
        start: Start | str = Earliest(),  # noqa: B008 - immutable
        ack_wait: float | None = None,
        max_deliver: int | None = None,
        dead_letter: str | None = None,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        where: str | None = None,
    ) -> SubscriptionInfo:
        """Create a subscription without members; its position is fixed then.

        Arguments and defaults as `Connection.consumer`. Raises Conflict, NotFound, ConfigError.
        """
        made = self._ask(
            "create",
            pattern=topic,
            name=name,
            **start_options(start),
            ack_wait_s=ack_wait,
            max_deliver=max_deliver,
            dead_letter=dead_letter,
            key_pattern=key,
            headers=headers,
            where=where,
        )
        return msgspec.convert(made, SubscriptionInfo)

    def ensure(
        self,
        topic: str,
        name: str,
        *,
        start: Start | str = Earliest(),  # noqa: B008 - immutable
        ack_wait: float | None = None,
        max_deliver: int | None = None,
        dead_letter: str | None = None,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        where: str | None = None,
    ) -> SubscriptionInfo:
        """The subscription, created if it does not exist; ``start`` is for a new subscription.

        An existing subscription must have the given settings. Raises Conflict, which names each
        setting that differs, NotFound, ConfigError.
        """
        try:
            return self.create(
                topic,
                name,
                start=start,
                ack_wait=ack_wait,
                max_deliver=max_deliver,
                dead_letter=dead_letter,
                key=key,
                headers=headers,
                where=where,
            )
        except Conflict:
            return self.check(
                topic,
                name,
                ack_wait=ack_wait,
                max_deliver=max_deliver,
                dead_letter=dead_letter,
                key=key,
                headers=headers,
                where=where,
            )

    def check(
        self,
        topic: str,
        name: str,
        *,
        ack_wait: float | None = None,
        max_deliver: int | None = None,
        dead_letter: str | None = None,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        where: str | None = None,
    ) -> SubscriptionInfo:
        """The subscription, if it is there and the settings hold: `ensure` that creates nothing.

        Raises NotFound, and Conflict, which names each setting that differs.
        """
        wanted: dict[str, Any] = {
            "ack_wait_s": ack_wait,
            "max_deliver": max_deliver,
            "dead_letter": dead_letter,
            "key_pattern": key,
            "headers": headers,
            "where": where,
        }
        found = self.get(topic, name)
        differing = [
            f"{field} is {getattr(found, field)!r}, not {value!r}"
            for field, value in wanted.items()
            if value is not None and getattr(found, field) != value
        ]
        if differing:
            raise Conflict(
                f"subscription {name} of {topic}: it has other settings: {', '.join(differing)}: "
                "leave them out, or delete the subscription first"
            )
        return found

    def delete(self, topic: str, name: str) -> None:
        """End a subscription for good: its position is forgotten. Raises NotFound."""
        self._ask("delete", pattern=topic, name=name)

    def pause(self, topic: str, name: str) -> None:
        """Deliver nothing, to any member, until `resume`; fetched records are kept."""
        self._ask("pause", pattern=topic, name=name)

    def resume(self, topic: str, name: str) -> None:
        """Deliver again. Raises NotFound."""
        self._ask("resume", pattern=topic, name=name)

    def seek(
        self,
        topic: str,
        name: str,
        start: Start | str,
        *,
        queue: int | None = None,
        dry_run: bool = False,
    ) -> Moves:
        """Move a subscription, or its cursors of one queue, for all members.

        ``dry_run``: only report the moves. Raises NotFound, ConfigError.
        """
        rows = self._ask(
            "seek", pattern=topic, name=name, queue=queue, dry_run=dry_run, **start_options(start)
        )
        return msgspec.convert(rows, Moves)

    def peek(self, topic: str, name: str, limit: int = 10) -> PeekedRecords:
        """The next records that are not acked, 1 to 1,000, without delivering them."""
        rows = self._ask("peek", pattern=topic, name=name, limit=limit)
        return msgspec.convert(rows, PeekedRecords)

    def _ask(self, action: str, **arguments: Any) -> Any:
        self._connection.check()
        self._connection.flush_to_rings()  # messages that this client published before count
        return self._connection.link.administer(action, arguments)


def _differing(found: TopicConfig, settings: TopicSettings) -> str:
    """Settings that were asked for and that the topic does not have; empty: it has all."""
    problems: list[str] = []
    wanted = build(TopicConfig, {**settings, "name": found.name}, "", problems)
    raise_problems(problems, f"topic {found.name}")
    return ", ".join(
        f"{field} is {getattr(found, field)!r}, not {getattr(wanted, field)!r}"
        for field in settings
        if getattr(found, field) != getattr(wanted, field)
    )
