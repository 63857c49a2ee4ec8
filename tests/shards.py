"""Shards of the long tests: each runs in one of them, and a shard costs about the same.

Tests that share a platform, a service or a Spark session stay together, by file; the others are
dealt out one by one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")
TOGETHER = ("tests/control/", "tests/e2e/", "tests/spark/", "tests/test_")
_SHARD = re.compile(r"([1-9]\d*)/([1-9]\d*)")


def parsed(text: str) -> tuple[int, int]:
    """Number and count of ``2/8``. Raises pytest.UsageError."""
    match = _SHARD.fullmatch(text)
    if match is None or int(match[1]) > int(match[2]):
        raise pytest.UsageError(f"--shard: {text}: allowed is NUMBER/COUNT, from 1/1 on")
    return int(match[1]), int(match[2])


def unit_of(test: str) -> str:
    """The unit that no shard divides: a file, or one test."""
    return test.partition("::")[0] if test.startswith(TOGETHER) else test


def chosen(tests: Sequence[str], number: int, count: int) -> list[bool]:
    """Whether each test is in the shard."""
    units = {unit: i for i, unit in enumerate(dict.fromkeys(map(unit_of, tests)))}
    return [units[unit_of(test)] % count == number - 1 for test in tests]
