"""The live feed: what is watched, by whom."""

from __future__ import annotations

from typing import Any

from tidecast_control.kit.problems import ProblemError


class Feed:
    """Channels and their watchers."""

    watchers = 0

    async def once(self, channel: str) -> dict[str, Any]:
        """A channel's data, once."""
        raise ProblemError("not_implemented", f"channel {channel} comes next")
