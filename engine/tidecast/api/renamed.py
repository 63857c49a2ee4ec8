"""Old names in frames and answers, next to the new ones for one version (ADR 0042).

The old name of cursors is "lanes". Engines and clients of this version write both names in frames
and answers, and read either. The next level of `tidecast.layout.levels` has no old name: this
module goes with it.
"""

from __future__ import annotations

from typing import Any

import msgspec

OLD_CURSORS = "lanes"
"""The old name of ``cursors``, as a field and as an action of `Link.administer`."""
CURSORS_ACTION = OLD_CURSORS
"""Clients of this version ask for the cursors by the old name: engines before know no other."""


def both_names(cursors: Any) -> dict[str, Any]:
    """The cursors of an answer, by the new and by the old name."""
    return {"cursors": cursors, OLD_CURSORS: cursors}


def with_new_name(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer of an engine that may know the old name alone."""
    if OLD_CURSORS in answer:
        answer.setdefault("cursors", answer[OLD_CURSORS])
    return answer


class Cursors(msgspec.Struct, frozen=True, kw_only=True):
    """Cursors that an answer grants, by both names: (word in frames, topic, queue) of each."""

    cursors: list[tuple[int, str, int]] = []
    lanes: list[tuple[int, str, int]] = []

    def __post_init__(self) -> None:
        if self.cursors != self.lanes:
            both = self.cursors or self.lanes
            msgspec.structs.force_setattr(self, "cursors", both)
            msgspec.structs.force_setattr(self, "lanes", both)
