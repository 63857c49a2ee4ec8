"""Which transitions of a state table a run has made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tidecast.protocol.state_table import StateTable


@contextmanager
def transitions_of(table: StateTable[Any, Any, Any]) -> Iterator[set[tuple[str, str]]]:
    """Fills with (state, event) of each transition of ``table``, by name."""
    reached: set[tuple[str, str]] = set()
    after = StateTable.after

    def note(self: StateTable[Any, Any, Any], state: Any, event: Any) -> Any:
        found = after(self, state, event)
        if self is table and found is not None:
            reached.add((state.name, event.name))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StateTable, "after", note)
        yield reached


def names_of(table: StateTable[Any, Any, Any]) -> set[tuple[str, str]]:
    """(state, event) of each row, by name."""
    return {(state.name, event.name) for state, event in table.rows}
