"""The tables that the job `rollup` writes. Their columns are those of `tidecast_spark`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, Float, Index, Integer, Table, Text, func
from sqlmodel import SQLModel

KEY = ("at", "node", "topic", "queue", "subscription")
COUNTS = (
    "samples",
    "messages_in",
    "bytes_in",
    "messages_out",
    "bytes_out",
    "packets",
    "resent",
    "lag_p50",
    "lag_p95",
    "lag_p99",
    "lag_max",
    "lag_ms_max",
)
RATIOS = ("retransmit_ratio", "cache_fill", "cache_fill_max", "in_per_s", "out_per_s", "drain_s")


def _key_type(name: str) -> Any:
    if name == "at":
        return DateTime(timezone=True)
    return Integer() if name == "queue" else Text()


def _rollup(name: str) -> Table:
    """One table. No queue is -1, no subscription an empty text."""
    return Table(
        name,
        SQLModel.metadata,
        *(
            Column(key, _key_type(key), primary_key=True, autoincrement=False, nullable=False)
            for key in KEY
        ),
        *(Column(count, BigInteger) for count in COUNTS),
        *(Column(ratio, Float(53)) for ratio in RATIOS),
        Index(f"ix_{name}_topic_at", "topic", "at"),
        Index(f"ix_{name}_subscription_at", "subscription", "at"),
    )


ROLLUP_MINUTE, ROLLUP_HOUR = _rollup("rollup_minute"), _rollup("rollup_hour")
ROLLUP_APPLIED = Table(
    "rollup_applied",
    SQLModel.metadata,
    Column("query", Text, primary_key=True),
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    Column("applied", DateTime(timezone=True), nullable=False, server_default=func.now()),
)
