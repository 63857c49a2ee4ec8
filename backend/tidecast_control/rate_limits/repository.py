"""Queries on the topics of rate limits."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlmodel import Session, col

from tidecast_control.kit.models import ResourceRow


def rates_of_topics(session: Session, limit: int) -> list[tuple[str, dict[str, Any]]]:
    """(name, own rates) of topics; not whole rows, for there may be ten thousand."""
    spec = col(ResourceRow.spec)
    query = select(
        col(ResourceRow.name), spec["rate_packets_per_s"], spec["rate_bytes_per_s"]
    ).where(col(ResourceRow.kind) == "topic")
    return [
        (name, {"rate_packets_per_s": packets, "rate_bytes_per_s": octets})
        for name, packets, octets in session.execute(query.limit(limit))
    ]
