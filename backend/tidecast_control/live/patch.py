"""Merge patches (RFC 7396) between snapshots, and the sum of two patches."""

from __future__ import annotations

from tidecast_control.live.rates import Json


def difference(old: Json, new: Json) -> Json:
    """The merge patch from ``old`` to ``new``; empty when they are equal. Neither has nulls."""
    patch: Json = {}
    for key, value in new.items():
        before = old.get(key)
        if before is value or before == value:
            continue
        if isinstance(value, dict) and isinstance(before, dict):
            patch[key] = difference(before, value)
        else:
            patch[key] = value
    for key in old.keys() - new.keys():
        patch[key] = None
    return patch


def combined(first: Json, second: Json) -> Json | None:
    """A patch with the effect of both, one after the other; None: there is no such patch.

    There is none for an object that replaces a removed member or a plain value: a merge patch with
    that object would keep members of an older object.
    """
    result = dict(first)
    for key, value in second.items():
        before = result.get(key)
        if isinstance(value, dict) and key in result:
            whole = combined(before, value) if isinstance(before, dict) else None
            if whole is None:
                return None
            result[key] = whole
        else:
            result[key] = value
    return result
