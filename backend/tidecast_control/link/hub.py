"""The engines that are connected, seen from the routes."""

from __future__ import annotations

from typing import Any

from tidecast_control.kit.problems import ProblemError
from tidecast_control.queues.schemas import Queue


class Hub:
    """Engines by name."""

    def connected(self) -> list[str]:
        """Names of the engines that are connected."""
        return []

    def queue(self, topic: str, number: int) -> Queue | None:
        """What telemetry says of a queue."""
        del topic, number
        return None

    async def ask(self, node: str, command: str, args: dict[str, Any]) -> dict[str, Any]:
        """Send a command to an engine. Raises `no_node`, `node_failed`, `node_timeout`."""
        del node, command, args
        raise ProblemError("not_implemented", "the engine link comes next")
