"""History: request and response shapes."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from tidecast_control.kit.schemas import Count, View

HistoryScope = Literal["topic", "queue", "subscription", "node"]
HistoryMetric = Literal[
    "in_per_s", "out_per_s", "bytes_in_per_s", "bytes_out_per_s", "messages_in", "messages_out",
    "bytes_in", "bytes_out", "packets", "resent", "retransmit_ratio", "lag_p50", "lag_p95",
    "lag_p99", "lag_max", "lag_s_max", "cache_fill", "cache_fill_max", "drain_s",
]  # fmt: skip


class HistorySeries(View):
    """One metric: a value for each of the answer's times, null where nothing was measured."""

    metric: HistoryMetric
    unit: str
    values: list[float | None]


class NoHistory(View):
    """Why a chart is empty, and how to fix that."""

    code: Literal["no_rollup", "nothing_measured"]
    detail: str
    mend: str


class History(View):
    """Series over time. Each value covers the ``step_s`` seconds from its time on."""

    scope: HistoryScope
    name: str
    step_s: Count
    source: Literal["minute", "hour"] = Field(description="The rollup that it was read from")
    at_s: list[Count] = Field(description="Seconds since 1970, evenly apart")
    series: list[HistorySeries]
    rolled_up_until: datetime | None = Field(None, description="The newest minute of any rollup")
    empty: NoHistory | None = Field(None, description="Null when any value is there")
