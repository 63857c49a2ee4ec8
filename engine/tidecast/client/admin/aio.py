"""`client.topics` and `client.subscriptions` of the asyncio client: each call is in a thread."""

from __future__ import annotations

import asyncio
from typing import Any, Unpack

from tidecast.api.start import Earliest, Start
from tidecast.client.admin import blocking
from tidecast.client.admin.types import (
    Moves,
    PeekedRecords,
    SubscriptionInfo,
    SubscriptionInfos,
    TopicConfigs,
    TopicSettings,
)
from tidecast.config.topology import TopicConfig


class Topics:
    """Topics of the engine. See `tidecast.client.admin.blocking.Topics`, without ``await``."""

    def __init__(self, connection: Any) -> None:
        self._blocking = blocking.Topics(connection)

    async def list(self, pattern: str = ">") -> TopicConfigs:
        """Topics that a pattern covers, by name; those made on first use included."""
        return await asyncio.to_thread(self._blocking.list, pattern)

    async def get(self, name: str) -> TopicConfig:
        """A topic's settings. Raises NotFound."""
        return await asyncio.to_thread(self._blocking.get, name)

    async def create(self, name: str, **settings: Unpack[TopicSettings]) -> TopicConfig:
        """Create a topic; its settings as the engine has them. Raises Conflict, ConfigError."""
        return await asyncio.to_thread(lambda: self._blocking.create(name, **settings))

    async def ensure(self, name: str, **settings: Unpack[TopicSettings]) -> TopicConfig:
        """The topic, created if it is not there. Of one that is there ``settings`` must hold.

        Safe to call from several programs at once. Raises Conflict, which names each setting that
        differs, and ConfigError.
        """
        return await asyncio.to_thread(lambda: self._blocking.ensure(name, **settings))

    async def edit(
        self, name: str, *, recreate: bool = False, **changes: Unpack[TopicSettings]
    ) -> TopicConfig:
        """Change settings of a topic; its settings afterwards.

        ``recreate``: also those that end its publications and subscriptions; records are kept.
        Raises NotFound, ConfigError.
        """
        return await asyncio.to_thread(
            lambda: self._blocking.edit(name, recreate=recreate, **changes)
        )

    async def delete(self, name: str) -> None:
        """Delete a topic, with its records and durable subscriptions. Raises NotFound."""
        await asyncio.to_thread(self._blocking.delete, name)

    async def pause(self, name: str, queue: int | None = None) -> None:
        """Deliver nothing of a durable topic, or of one queue, to any subscription.

        Publishers continue. Until `resume`: an engine that starts again remembers it. Raises
        NotFound.
        """
        await asyncio.to_thread(self._blocking.pause, name, queue)

    async def resume(self, name: str, queue: int | None = None) -> None:
        """Deliver again. Raises NotFound."""
        await asyncio.to_thread(self._blocking.resume, name, queue)


class Subscriptions:
    """Durable subscriptions of the engine. See `tidecast.client.admin.blocking.Subscriptions`."""

    def __init__(self, connection: Any) -> None:
        self._blocking = blocking.Subscriptions(connection)

    async def list(self, topic: str | None = None) -> SubscriptionInfos:
        """All subscriptions, or those of one topic or pattern, by name; without ``cursors``."""
        return await asyncio.to_thread(self._blocking.list, topic)

    async def get(self, topic: str, name: str) -> SubscriptionInfo:
        """A subscription, with its cursors. Raises NotFound."""
        return await asyncio.to_thread(self._blocking.get, topic, name)

    async def create(
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
        return await asyncio.to_thread(
            self._blocking.create, topic, name, start=start, ack_wait=ack_wait,
            max_deliver=max_deliver, dead_letter=dead_letter, key=key, headers=headers, where=where,
        )  # fmt: skip

    async def ensure(
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
        """The subscription, created if it is not there; ``start`` is for a new one.

        Of one that is there the settings that are given must hold. Raises Conflict, which names
        each that differs, NotFound, ConfigError.
        """
        return await asyncio.to_thread(
            self._blocking.ensure, topic, name, start=start, ack_wait=ack_wait,
            max_deliver=max_deliver, dead_letter=dead_letter, key=key, headers=headers, where=where,
        )  # fmt: skip

    async def delete(self, topic: str, name: str) -> None:
        """End a subscription for good: its position is forgotten. Raises NotFound."""
        await asyncio.to_thread(self._blocking.delete, topic, name)

    async def pause(self, topic: str, name: str) -> None:
        """Deliver nothing, to any member, until `resume`; what was fetched is kept."""
        await asyncio.to_thread(self._blocking.pause, topic, name)

    async def resume(self, topic: str, name: str) -> None:
        """Deliver again. Raises NotFound."""
        await asyncio.to_thread(self._blocking.resume, topic, name)

    async def seek(
        self, topic: str, name: str, start: Start | str, *, queue: int | None = None,
        dry_run: bool = False,
    ) -> Moves:  # fmt: skip
        """Move a subscription, or its cursors of one queue, for all members.

        ``dry_run``: only say what would move. Raises NotFound, ConfigError.
        """
        return await asyncio.to_thread(
            self._blocking.seek, topic, name, start, queue=queue, dry_run=dry_run
        )

    async def peek(self, topic: str, name: str, limit: int = 10) -> PeekedRecords:
        """The next records that are not acked, 1 to 1,000, without delivering them."""
        return await asyncio.to_thread(self._blocking.peek, topic, name, limit)
