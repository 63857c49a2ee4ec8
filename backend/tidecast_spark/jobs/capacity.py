"""Capacity report: recommended rate limit, history and cache of each topic, with reasons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from typing import Any

from tidecast.errors import ConfigError
from tidecast_spark.jobs.rollup import derived
from tidecast_spark.jobs.rollup_store import RollupStore

HEADROOM = 1.3
HISTORY_S = 2.0
"""History should bridge this long at the peak: some repair rounds and a pause of a receiver."""
RING_BYTES_MIN = 4 << 20
RETRANSMIT_HIGH = 0.02
CACHE_GROWTH = 2.0
FILL_HIGH = 0.8
PEAK_QUANTILE = 0.99
POINTS_MAX = 1000


@dataclass(frozen=True)
class Minute:
    """One minute of a topic, over all its queues and nodes."""

    at: datetime
    in_per_s: float
    bytes_per_s: float
    retransmit_ratio: float
    history_fill: float
    """Share of the publishers' rings that was not read yet."""
    cache_fill: float
    cache_bytes: float
    spilled: int
    """Blocks of caches given up while a slow reader rested in them."""
    lag: int


@dataclass(frozen=True)
class Advice:
    """Settings recommended for a topic. ``spec`` may be applied as it is; ``reasons`` say why."""

    topic: str
    spec: dict[str, int]
    reasons: tuple[str, ...]
    peak_messages_per_s: float
    peak_bytes_per_s: float

    @property
    def change(self) -> dict[str, Any]:
        """The request to the control service that makes it so; with ``?dry_run=true`` a preview."""
        path = f"/api/v1/topics/{self.topic}"
        return {"method": "PATCH", "path": path, "body": {"spec": self.spec}}


@dataclass(frozen=True)
class CapacityReport:
    """The report's recommendations. ``rows``: minutes it was made from."""

    rows: int
    out: str
    advice: list[Advice]
    changes: list[dict[str, Any]]


def _rounded_up(n: float) -> int:
    """The next size of 1, 1.5, 2, 3, 4, 6 ... times a power of two."""
    power = 1 << max(0, math.ceil(math.log2(max(n, 1))) - 1)
    return next(int(size) for size in (power, 1.5 * power, 2 * power) if size >= n)


def _peak(values: Sequence[float]) -> float:
    """The 99th percentile: one odd minute in a hundred does not size a topic."""
    some = sorted(values)
    return some[max(0, math.ceil(PEAK_QUANTILE * len(some)) - 1)] if some else 0.0


def advise(topic: str, minutes: Sequence[Minute]) -> Advice:
    """Recommendations from a topic's minutes."""
    messages = _peak([m.in_per_s for m in minutes])
    size = _peak([m.bytes_per_s for m in minutes])
    rate = _rounded_up(size * HEADROOM)
    history_s = HISTORY_S
    reasons = []
    reasons.append(
        f"rate_bytes_per_s: 99 % of all minutes stayed below {size:,.0f} bytes/s "
        f"({messages:,.0f} messages/s); {HEADROOM:g} times that, rounded up"
    )
    resent = _peak([m.retransmit_ratio for m in minutes])
    if resent > RETRANSMIT_HIGH:
        history_s *= 2
        reasons.append(
            f"history_bytes: doubled, since {resent:.1%} of the packets were sent again: repairs "
            "need time"
        )
    filled = _peak([m.history_fill for m in minutes])
    if filled > FILL_HIGH:
        history_s *= 2
        reasons.append(
            f"history_bytes: doubled, since publishers' rings were {filled:.0%} full: they waited"
        )
    history = _rounded_up(max(RING_BYTES_MIN, size * history_s))
    reasons.append(f"history_bytes: {history_s:g} s at the peak, {RING_BYTES_MIN:,} at least")
    spec = {"rate_bytes_per_s": rate, "history_bytes": history}
    held = _peak([m.cache_bytes for m in minutes])
    spilled = sum(m.spilled for m in minutes)
    if spilled:
        spec["cache_bytes"] = _rounded_up(max(RING_BYTES_MIN, held * CACHE_GROWTH))
        reasons.append(
            f"cache_bytes: {spilled:,} blocks were given up while slow readers rested in them, and "
            f"read again; {CACHE_GROWTH:g} times the {held:,.0f} bytes held at the peak"
        )
    elif held:
        reasons.append("cache_bytes: as it is: no slow reader had to read the log again")
    return Advice(topic, spec, tuple(reasons), messages, size)


def topic_minutes(spark: Any, rollups: Path, hours: int, now: datetime) -> dict[str, list[Minute]]:
    """The minutes of every topic in the last ``hours``, queues and nodes added up."""
    since = now - timedelta(hours=hours)
    if not (rollups / "minute").is_dir():
        raise ConfigError(
            f"rollups: {rollups}: holds none yet: run `tidecast pipeline rollup --out {rollups}`"
        )
    found = derived(
        RollupStore(rollups, "").minutes(spark, f"minute >= timestamp '{since:%Y-%m-%d %H:%M:%S}'")
    )
    rows = found.groupBy("topic", "minute").agg(
        *(
            _expr(text)
            for text in (
                "sum(in_per_s) in_per_s",
                "sum(bytes_in * 1000D / interval_ms) bytes_per_s",
                "coalesce(try_divide(sum(resent), sum(packets)), 0D) retransmit_ratio",
                "coalesce(max(if(queue is null, cache_fill_max, null)), 0D) history_fill",
                "coalesce(max(if(queue is null, null, cache_fill_max)), 0D) cache_fill",
                "coalesce(sum(if(queue is null, 0, cache_bytes_sum / samples)), 0D) cache_bytes",
                "coalesce(sum(spilled), 0) spilled",
                "coalesce(sum(lag_max), 0) lag",
            )
        )
    )
    topics: dict[str, list[Minute]] = {}
    for row in rows.orderBy("topic", "minute").collect():
        at = row.minute.replace(tzinfo=UTC) if row.minute.tzinfo is None else row.minute
        topics.setdefault(row.topic, []).append(
            Minute(
                at,
                row.in_per_s or 0.0,
                row.bytes_per_s or 0.0,
                row.retransmit_ratio,
                row.history_fill,
                row.cache_fill,
                row.cache_bytes,
                row.spilled,
                row.lag,
            )
        )
    return topics


def _expr(text: str) -> Any:
    from pyspark.sql import functions as f

    body, _, name = text.rpartition(" ")
    return f.expr(body).alias(name)


# --- the page -------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _PAD, _LEFT, _FOOT = 720, 160, 10, 64, 22
_GAP = timedelta(minutes=10)
"""Without samples for so long the line is interrupted."""
_STYLE = (
    "body{font:15px system-ui,sans-serif;max-width:780px;margin:2em auto;color:#1c2733}"
    "svg{background:#f5f8fa;border-radius:6px}"
    "svg text{font-size:11px;fill:#51606f;paint-order:stroke;stroke:#f5f8fa;stroke-width:4px}"
    "figure{margin:1.2em 0}figcaption{margin-bottom:.3em}table{border-collapse:collapse}"
    "td,th{text-align:left;padding:.2em 1em .2em 0}h2{margin-top:2em}"
)


def _short(value: float) -> str:
    """A number for an axis: 1.5 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _runs(points: Sequence[tuple[datetime, float]]) -> list[list[tuple[datetime, float]]]:
    """Points without a gap between them; of many, the highest of some neighbours."""
    step = max(1, len(points) // POINTS_MAX)
    runs: list[list[tuple[datetime, float]]] = []
    for i in range(0, len(points), step):
        at, value = points[i][0], max(v for _, v in points[i : i + step])
        if not runs or at - runs[-1][-1][0] > _GAP * step:
            runs.append([])
        runs[-1].append((at, value))
    return runs


def _plot(
    title: str,
    minutes: Sequence[Minute],
    field: str,
    unit: str,
    limit: float | None = None,
    named: str = "recommended",
) -> str:
    """A line over time as SVG, with a limit as a dashed line."""
    seen = [(m.at, float(getattr(m, field))) for m in minutes]
    highest = max(value for _, value in seen)
    top = max(highest, limit or 0.0) or 1.0
    first, last = seen[0][0], seen[-1][0]
    width = max((last - first).total_seconds(), 1.0)

    def x(at: datetime) -> float:
        return _LEFT + (at - first).total_seconds() / width * (_WIDTH - _LEFT - _PAD)

    def y(value: float) -> float:
        return _HEIGHT - _FOOT - value / top * (_HEIGHT - _FOOT - _PAD)

    drawn = [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _PAD}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
        f'stroke="#d5dde4"/><text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">'
        f"{_short(value)}</text>"
        for value in (0.0, top)
    ]
    for run in _runs(seen):
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in run)
        if len(run) == 1:
            points += f" {x(run[0][0]) + 1:.1f},{y(run[0][1]):.1f}"  # a dot
        drawn.append(
            '<polyline fill="none" stroke="#0b7285" stroke-width="1.5" stroke-linecap="round" '
            f'points="{points}"/>'
        )
    if limit:
        under = 12 if limit > 0.85 * top else -4
        drawn.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _PAD}" y1="{y(limit):.1f}" y2="{y(limit):.1f}" '
            f'stroke="#c2410c" stroke-dasharray="6 4"/><text x="{_WIDTH - _PAD - 4}" '
            f'y="{y(limit) + under:.1f}" text-anchor="end">{named}: {_short(limit)}</text>'
        )
    for at, anchor in ((first, "start"), (last, "end")):
        drawn.append(
            f'<text x="{x(at) if anchor == "start" else _WIDTH - _PAD}" y="{_HEIGHT - 6}" '
            f'text-anchor="{anchor}">{at:%Y-%m-%d %H:%M}</text>'
        )
    return (
        f"<figure><figcaption>{escape(title)}: highest {_short(highest)} {unit}</figcaption>"
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(drawn)}</svg></figure>"
    )


def page(advice: Sequence[Advice], minutes: dict[str, list[Minute]], made: datetime) -> str:
    """The report as one HTML file that needs nothing else."""
    parts = []
    parts.append(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Capacity</title><style>{_STYLE}"
        f"</style><h1>Capacity report</h1><p>Made {made:%Y-%m-%d %H:%M} UTC from one-minute "
        "rollups. Times are UTC.</p>"
    )
    for one in advice:
        rows = "".join(f"<tr><th>{k}</th><td>{v:,}</td></tr>" for k, v in one.spec.items())
        why = "".join(f"<li>{escape(reason)}</li>" for reason in one.reasons)
        seen = minutes[one.topic]
        parts.append(
            f"<h2>{escape(one.topic)}</h2><table>{rows}</table><ul>{why}</ul>"
            + _plot("Bytes in", seen, "bytes_per_s", "bytes/s", one.spec["rate_bytes_per_s"])
            + _plot("Lag", seen, "lag", "messages")
            + _plot("Retransmit ratio", seen, "retransmit_ratio", "")
            + _plot("History fill", seen, "history_fill", "", FILL_HIGH, "full from")
            + _plot("Cache fill", seen, "cache_fill", "")
        )
    if not advice:
        parts.append("<p>No rollups in this time: run <code>tidecast pipeline rollup</code>.</p>")
    return "".join(parts) + "</html>\n"


def capacity_report(
    spark: Any, rollups: Path, out: Path, *, hours: int = 168, now: datetime | None = None
) -> CapacityReport:
    """Write the report to ``out`` (HTML). Returns the recommendations. Raises ConfigError."""
    made = now or datetime.now(UTC)
    minutes = topic_minutes(spark, rollups, hours, made)
    advice = [advise(topic, seen) for topic, seen in minutes.items()]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(advice, minutes, made))
    read = sum(len(seen) for seen in minutes.values())
    return CapacityReport(read, str(out), advice, [one.change for one in advice])
