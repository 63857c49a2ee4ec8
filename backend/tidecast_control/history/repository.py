"""Queries on rollups. Metrics are an allow-list: their SQL comes from nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlmodel import Session

from tidecast_control.history.schemas import HistoryMetric, HistoryScope

OWN, QUEUES, READERS = "own", "queues", "readers"
_ROWS = {
    OWN: "queue = -1 and subscription = ''",
    QUEUES: "queue >= 0 and subscription = ''",
    READERS: "subscription <> ''",
}
"""Kinds of rows: of a topic, of a queue, of a subscription on a queue. Their counts overlap, so a
metric is read from the first kind of its list that has it."""


@dataclass(frozen=True)
class MetricSql:
    """How a metric is made: of the rows of one minute, then of the minutes of a step."""

    unit: str
    rows: str
    steps: str
    kinds: tuple[str, ...]

    @property
    def parts(self) -> str:
        """The value of one minute (or hour)."""
        return "coalesce(" + ", ".join(self.rows.format(_ROWS[kind]) for kind in self.kinds) + ")"


_IN, _OUT, _WIRE, _LAG = (QUEUES, OWN), (READERS, QUEUES, OWN), (OWN,), (READERS, QUEUES, OWN)


def _sum(name: str, unit: str, kinds: tuple[str, ...]) -> MetricSql:
    return MetricSql(unit, f"sum({name}) filter (where {{}})", "sum({})", kinds)


def _rate(expression: str, unit: str, kinds: tuple[str, ...]) -> MetricSql:
    return MetricSql(unit, f"sum({expression}) filter (where {{}})", "avg({})", kinds)


def _most(expression: str, unit: str, kinds: tuple[str, ...]) -> MetricSql:
    return MetricSql(unit, f"{expression} filter (where {{}})", "max({})", kinds)


METRICS: dict[HistoryMetric, MetricSql] = {
    "in_per_s": _rate("in_per_s", "messages/s", _IN),
    "out_per_s": _rate("out_per_s", "messages/s", _OUT),
    "bytes_in_per_s": _rate("bytes_in / :span", "bytes/s", _IN),
    "bytes_out_per_s": _rate("bytes_out / :span", "bytes/s", _OUT),
    "messages_in": _sum("messages_in", "messages", _IN),
    "messages_out": _sum("messages_out", "messages", _OUT),
    "bytes_in": _sum("bytes_in", "bytes", _IN),
    "bytes_out": _sum("bytes_out", "bytes", _OUT),
    "packets": _sum("packets", "packets", _WIRE),
    "resent": _sum("resent", "packets", _WIRE),
    "retransmit_ratio": MetricSql(
        "ratio",
        "sum(resent) filter (where {0})::float8 / nullif(sum(packets) filter (where {0}), 0)",
        "avg({})",
        _WIRE,
    ),
    "lag_p50": _most("sum(lag_p50)", "messages", _LAG),
    "lag_p95": _most("sum(lag_p95)", "messages", _LAG),
    "lag_p99": _most("sum(lag_p99)", "messages", _LAG),
    "lag_max": _most("sum(lag_max)", "messages", _LAG),
    "lag_s_max": MetricSql("s", "max(lag_ms_max) filter (where {}) / 1000.0", "max({})", _LAG),
    "cache_fill": MetricSql("ratio", "avg(cache_fill) filter (where {})", "avg({})", _IN),
    "cache_fill_max": _most("max(cache_fill_max)", "ratio", _IN),
    "drain_s": _most("max(drain_s)", "s", _LAG),
}
WHERE: dict[HistoryScope, str] = {
    "topic": "topic = :name",
    "queue": "topic = :name and queue = :queue",
    "subscription": "subscription = :name and subscription <> ''",
    "node": "node = :name",
}


def points(
    session: Session,
    table: str,
    scope: HistoryScope,
    metrics: Sequence[HistoryMetric],
    values: dict[str, Any],
) -> dict[int, list[float | None]]:
    """Step's beginning (seconds since 1970) -> values in the order of ``metrics``."""
    parts = ", ".join(f"({METRICS[m].parts})::float8 v{i}" for i, m in enumerate(metrics))
    steps = ", ".join(METRICS[m].steps.format(f"v{i}") for i, m in enumerate(metrics))
    found = session.execute(
        text(
            f"select floor(extract(epoch from at) / :step)::bigint * :step, {steps} "
            f"from (select at, {parts} from {table} where {WHERE[scope]} "
            "and at >= :since and at < :until group by at) as parts group by 1"
        ),
        values,
    )
    return {int(at): [None if v is None else float(v) for v in rest] for at, *rest in found}


def rolled_up_until(session: Session) -> datetime | None:
    """The newest minute of any rollup; None when none has run."""
    found = session.execute(text("select max(at) from rollup_minute")).scalar_one()
    assert found is None or isinstance(found, datetime)
    return found
