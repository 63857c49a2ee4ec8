"""What all unit tests share: none leaves a change of its process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support import process_state as state


@pytest.fixture(autouse=True)
def process_state() -> Iterator[None]:
    """Fail a test that leaves a change which later tests of its worker would see."""
    before = state.snapshot()
    yield
    left = state.changes(before, state.snapshot())
    if left:
        pytest.fail("the test left changes of the process:\n" + "\n".join(left), pytrace=False)
