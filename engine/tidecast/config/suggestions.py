"""Suggestions for mistyped names: the nearest known name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(name: str, known: Iterable[str]) -> str:
    """`` (did you mean NAME?)`` of the nearest known name, or nothing. Case does not count."""
    by_low = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_low, n=1, cutoff=0.7)
    return f" (did you mean {by_low[found[0]]}?)" if found else ""
