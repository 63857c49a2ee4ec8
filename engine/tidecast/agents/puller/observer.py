"""Reports of the puller to its node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dead:
    """A record that is to be dead-lettered."""

    cursor: int
    generation: int
    token: int
    attempts: int
    cause: int
    reason: str


class Observer:
    """Receives the reports of the puller's shell; a node overrides the methods that it needs."""

    def dead(self, dead: Dead) -> None:
        """Store the record in the dead-letter topic, then call `Puller.settle_dead`."""

    def hostile(self, member: int) -> None:
        """A member wrote invalid data into its ring."""

    def gap(self, cursor: int, first: int, end: int) -> None:
        """Records [first, end) were deleted before the cursor could deliver or redeliver them."""

    def damaged(self, q: int, token: int, problem: str) -> None:
        """A queue cannot be read at ``token``. Called again only when the problem changes."""

    def readable(self, q: int, token: int) -> None:
        """A queue can be read again at a ``token`` that was damaged."""
