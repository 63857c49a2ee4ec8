"""Queries on rollups. Metrics are an allow-list: their SQL comes from nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlmodel import Session

from tidecast_control.history.schemas import HistoryMetric, HistoryScope


@dataclass(frozen=True)
class MetricSql:
    """How a metric is made: over the parts of one minute, then over the minutes of a step."""

    unit: str
    parts: str
    steps: str


def _sum(name: str, unit: str) -> MetricSql:
    return MetricSql(unit, f"sum({name})", "sum({})")


def _rate(expression: str, unit: str) -> MetricSql:
    return MetricSql(unit, f"sum({expression})", "avg({})")


def _lag(name: str) -> MetricSql:
    return MetricSql("messages", f"sum({name})", "max({})")


METRICS: dict[HistoryMetric, MetricSql] = {
    "in_per_s": _rate("in_per_s", "messages/s"),
    "out_per_s": _rate("out_per_s", "messages/s"),
    "bytes_in_per_s": _rate("in_per_s * bytes_in / nullif(messages_in, 0)", "bytes/s"),
    "bytes_out_per_s": _rate("out_per_s * bytes_out / nullif(messages_out, 0)", "bytes/s"),
    "messages_in": _sum("messages_in", "messages"),
    "messages_out": _sum("messages_out", "messages"),
    "bytes_in": _sum("bytes_in", "bytes"),
    "bytes_out": _sum("bytes_out", "bytes"),
    "packets": _sum("packets", "packets"),
    "resent": _sum("resent", "packets"),
    "retransmit_ratio": MetricSql(
        "ratio", "sum(resent)::float8 / nullif(sum(packets), 0)", "avg({})"
    ),
    "lag_p50": _lag("lag_p50"),
    "lag_p95": _lag("lag_p95"),
    "lag_p99": _lag("lag_p99"),
    "lag_max": _lag("lag_max"),
    "lag_s_max": MetricSql("s", "max(lag_ms_max) / 1000.0", "max({})"),
    "cache_fill": MetricSql("ratio", "avg(cache_fill)", "avg({})"),
    "cache_fill_max": MetricSql("ratio", "max(cache_fill_max)", "max({})"),
    "drain_s": MetricSql("s", "max(drain_s)", "max({})"),
}
_OWN = "queue = -1 and subscription = ''"
_QUEUES = "queue >= 0 and subscription = ''"
WHERE: dict[HistoryScope, tuple[str, ...]] = {
    "topic": (f"topic = :name and {_OWN}", f"topic = :name and {_QUEUES}"),
    "queue": ("topic = :name and queue = :queue and subscription = ''",),
    "subscription": ("subscription = :name and subscription <> ''",),
    "node": (f"node = :name and {_OWN}", f"node = :name and {_QUEUES}"),
}
"""Rows of a scope. Of topics and nodes: their own rows, else all of their queues added up."""


def points(
    session: Session,
    table: str,
    where: str,
    metrics: Sequence[HistoryMetric],
    values: dict[str, Any],
) -> dict[int, list[float | None]]:
    """Step's beginning (seconds since 1970) -> values in the order of ``metrics``."""
    parts = ", ".join(f"({METRICS[m].parts})::float8 v{i}" for i, m in enumerate(metrics))
    steps = ", ".join(METRICS[m].steps.format(f"v{i}") for i, m in enumerate(metrics))
    found = session.execute(
        text(
            f"select floor(extract(epoch from at) / :step)::bigint * :step, {steps} "
            f"from (select at, {parts} from {table} where {where} and at >= :since and at < :until "
            "group by at) as parts group by 1"
        ),
        values,
    )
    return {int(at): [None if v is None else float(v) for v in rest] for at, *rest in found}


def rolled_up_until(session: Session) -> datetime | None:
    """The newest minute of any rollup; None when none has run."""
    found = session.execute(text("select max(at) from rollup_minute")).scalar_one()
    assert found is None or isinstance(found, datetime)
    return found
