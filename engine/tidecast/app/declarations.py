"""Topics and subscriptions that an app declares: created, or checked, when it starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from tidecast.client.aio import Connection
from tidecast.errors import Conflict, NotFound

State = Literal["as declared", "missing", "other settings"]


class Declaration(msgspec.Struct, frozen=True):
    """A topic, or with ``subscription`` a durable subscription of a topic or pattern."""

    topic: str
    settings: dict[str, Any]
    subscription: str | None = None

    @property
    def kind(self) -> str:
        """``topic`` or ``subscription``."""
        return "topic" if self.subscription is None else "subscription"

    @property
    def name(self) -> str:
        """Its name, the topic of a subscription first."""
        return self.topic if self.subscription is None else f"{self.topic} {self.subscription}"

    async def ensure(self, client: Connection) -> None:
        """Create it, or check that it has these settings. Raises Conflict, ConfigError."""
        await self._ask(client.topics.ensure, client.subscriptions.ensure, self.settings)

    async def check(self, client: Connection) -> None:
        """Check that it is there with these settings. Raises NotFound, Conflict, ConfigError."""
        settings = {name: value for name, value in self.settings.items() if name != "start"}
        await self._ask(client.topics.check, client.subscriptions.check, settings)

    async def _ask(
        self,
        of_topic: Callable[..., Any],
        of_subscription: Callable[..., Any],
        settings: dict[str, Any],
    ) -> None:
        if self.subscription is None:
            await of_topic(self.topic, **settings)
        else:
            await of_subscription(self.topic, self.subscription, **settings)

    async def state(self, client: Connection) -> tuple[State, str]:
        """Its state at the engine, and an explanation. Raises ConfigError, AuthError."""
        try:
            await self.check(client)
        except NotFound as problem:
            return "missing", str(problem)
        except Conflict as problem:
            return "other settings", str(problem)
        return "as declared", ""
