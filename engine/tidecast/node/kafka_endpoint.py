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


class KafkaAdministration(Protocol):
    """Clients and groups of an endpoint. All methods may be called in any thread."""

    def perform(self, action: str, arguments: Json) -> Any:
        """One of `KAFKA_ACTIONS`. Raises ConfigError, Conflict, NotFound, StorageError."""

    def sample(self) -> Json:
        """Clients and groups for telemetry: bounded, and not newer than it is cheap."""


class KafkaRegistration:
    """The endpoint of a node, while it has one."""

    def __init__(self) -> None:
        self._administration: KafkaAdministration | None = None

    def serve(self, administration: KafkaAdministration) -> None:
        """An endpoint has started."""
        self._administration = administration

    def end(self, administration: KafkaAdministration) -> None:
        """It ends; an endpoint that was started since stays."""
        if self._administration is administration:
            self._administration = None

    def perform(self, action: str, arguments: Json) -> Any:
        """See `KafkaAdministration`. Raises NotFound without an endpoint."""
        if self._administration is None:
            raise NotFound(
                "this engine has no Kafka endpoint: start it with --kafka HOST:PORT, or set "
                "kafka.listen in its topology"
            )
        return self._administration.perform(action, arguments)

    def sample(self) -> Json | None:
        """See `KafkaAdministration`; None without an endpoint."""
        return None if self._administration is None else self._administration.sample()
