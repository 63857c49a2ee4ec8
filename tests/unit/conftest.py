"""Shared by all unit tests: none leaves a change of its process."""

from __future__ import annotations

import pytest
from tests.support.process_state import unchanged

process_state = pytest.fixture(autouse=True)(unchanged)
