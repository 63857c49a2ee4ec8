"""The Kafka endpoint of a node, as telemetry and administration reach it.

The endpoint is an application above the node, which knows only this contract.
"""

from __future__ import annotations

from typing import Any, Protocol

from tidecast.errors import NotFound

KAFKA_ACTIONS = frozenset(
    {"kafka_groups", "kafka_group", "kafka_clients", "kafka_delete_group", "kafka_reset_offsets"}
)
"""Actions of administration on the endpoint."""
Json = dict[str, Any]


class KafkaGuests(Protocol):
    """Clients and groups of an endpoint. All methods may be called in any thread."""

    def perform(self, action: str, arguments: Json) -> Any:
        """One of `KAFKA_ACTIONS`. Raises ConfigError, Conflict, NotFound, StorageError."""

    def sample(self) -> Json:
        """Clients and groups for telemetry: bounded, and not newer than it is cheap."""


class KafkaHere:
    """The endpoint of a node, while it has one."""

    def __init__(self) -> None:
        self._guests: KafkaGuests | None = None

    def serve(self, guests: KafkaGuests) -> None:
        """An endpoint has started."""
        self._guests = guests

    def end(self, guests: KafkaGuests) -> None:
        """It ends; an endpoint that was started since stays."""
        if self._guests is guests:
            self._guests = None

    def perform(self, action: str, arguments: Json) -> Any:
        """See `KafkaGuests`. Raises NotFound without an endpoint."""
        if self._guests is None:
            raise NotFound(
                "this engine has no Kafka endpoint: start it with --kafka HOST:PORT, or set "
                "kafka.listen in its topology"
            )
        return self._guests.perform(action, arguments)

    def sample(self) -> Json | None:
        """See `KafkaGuests`; None without an endpoint."""
        return None if self._guests is None else self._guests.sample()
