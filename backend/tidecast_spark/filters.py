"""Filters that Spark pushes down: those on token, timestamp, queue and key are ours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql import datasource as sql

from tidecast_spark.parts import ALL_ROWS, KEYS_MAX, RowFilter

_COMPARISONS: dict[type, str] = {
    sql.EqualTo: "==",
    sql.GreaterThan: ">",
    sql.GreaterThanOrEqual: ">=",
    sql.LessThan: "<",
    sql.LessThanOrEqual: "<=",
}


@dataclass(frozen=True)
class Pushed:
    """The filters taken over from Spark: by rows, and the queues that may hold some (None: all)."""

    rows: RowFilter = ALL_ROWS
    queues: frozenset[int] | None = None

    def wants_queue(self, queue: int) -> bool:
        """Whether a queue may hold wanted records."""
        return self.queues is None or queue in self.queues


def push(filters: Iterable[sql.Filter], pushed: Pushed) -> tuple[Pushed, list[sql.Filter]]:
    """``pushed`` with the supported part of ``filters``, and the filters that are left to Spark."""
    left = []
    for one in filters:
        narrowed = _narrow(pushed, one)
        if narrowed is None:
            left.append(one)
        else:
            pushed = narrowed
    return pushed, left


def _narrow(pushed: Pushed, one: sql.Filter) -> Pushed | None:
    """``pushed`` with one filter more; None when it is not ours."""
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    name = attribute[0] if len(attribute) == 1 else ""
    if isinstance(one, sql.IsNotNull):
        return pushed if name in ("token", "timestamp", "queue", "topic", "value") else None
    if isinstance(one, sql.In):
        return _narrow_to(pushed, name, list(one.value))
    if isinstance(one, sql.EqualTo) and name in ("key", "queue"):
        return _narrow_to(pushed, name, [one.value])
    how = _COMPARISONS.get(type(one))
    if how is None:
        return None
    value: Any = getattr(one, "value", None)
    if name == "token" and isinstance(value, int):
        low, end = _bounds(how, value, 1)
        return replace(pushed, rows=_within(pushed.rows, "token_min", "token_end", low, end))
    if name == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        low, end = _bounds(how, time_us(value) * 1000, 1000)  # the column has whole us
        return replace(pushed, rows=_within(pushed.rows, "time_min_ns", "time_end_ns", low, end))
    return None


def time_us(value: datetime) -> int:
    """A time with zone as us since 1970, exactly."""
    whole = int(value.replace(microsecond=0).timestamp())
    return whole * 1_000_000 + value.microsecond


def _bounds(how: str, value: int, step: int) -> tuple[int | None, int | None]:
    """[min, end) of a comparison with a value; the column counts in steps."""
    low = {"==": value, ">": value + step, ">=": value}.get(how)
    end = {"==": value + step, "<": value, "<=": value + step}.get(how)
    return low, end


def _within(rows: RowFilter, low_name: str, end_name: str, low: int | None, end: int | None) -> Any:
    changes = {}
    if low is not None:
        changes[low_name] = max(low, getattr(rows, low_name))
    if end is not None:
        changes[end_name] = min(end, getattr(rows, end_name))
    return replace(rows, **changes)


def _narrow_to(pushed: Pushed, name: str, values: list[Any]) -> Pushed | None:
    if name == "queue" and all(isinstance(v, int) for v in values):
        wanted = frozenset(values)
        held = wanted if pushed.queues is None else pushed.queues & wanted
        return replace(pushed, queues=held)
    if name == "key" and len(values) <= KEYS_MAX:
        if not all(isinstance(v, bytes | bytearray) for v in values):
            return None
        keys = {bytes(v) for v in values}
        if pushed.rows.keys is not None:
            keys &= set(pushed.rows.keys)
        return replace(pushed, rows=replace(pushed.rows, keys=tuple(sorted(keys))))
    return None
