"""State machines as tables: the code runs by them, and diagrams of the docs are made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

StateT = TypeVar("StateT", bound=Enum)
EventT = TypeVar("EventT", bound=Enum)
ActionT = TypeVar("ActionT")


class StateTable(Generic[StateT, EventT, ActionT]):
    """(state, event) -> (next state, action).

    An event that a state does not list changes nothing: its caller gets None, and ``refused``
    counts it. The value of an event is the text that the docs show.
    """

    def __init__(self, rows: Mapping[tuple[StateT, EventT], tuple[StateT, ActionT]]) -> None:
        self.rows = dict(rows)
        self.refused: Counter[tuple[StateT, EventT]] = Counter()

    def after(self, state: StateT, event: EventT) -> tuple[StateT, ActionT] | None:
        """The next state and the action; None when the state does not list the event."""
        found = self.rows.get((state, event))
        if found is None:
            self.refused[state, event] += 1
        return found
