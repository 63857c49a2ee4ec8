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
    """The shell's reports; a node overrides those that it needs."""

    def dead(self, dead: Dead) -> None:
        """Store it in the dead-letter topic, then call `settle_dead`."""

    def hostile(self, member: int) -> None:
        """A member wrote what it may not."""

    def gap(self, cursor: int, first: int, end: int) -> None:
        """Records [first, end) were gone before the cursor came to them, or came again."""

    def damaged(self, q: int, token: int, problem: str) -> None:
        """A queue cannot be read at ``token``. Called once, until the problem is another one."""

    def readable(self, q: int, token: int) -> None:
        """A queue can be read at a ``token`` that was damaged."""
