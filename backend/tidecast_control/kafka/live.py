"""Rows of Kafka groups and clients as engines report them. Plain JSON values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

Json = dict[str, Any]


def group_row(node: str, row: Json) -> Json:
    """A group of one engine, as REST and the live feed show it."""
    made = {
        "name": str(row["name"]),
        "node": node,
        "state": str(row["state"]),
        "kind": str(row["kind"]),
        "protocol": str(row["protocol"]),
        "generation": max(0, int(row["generation"])),
        "members": int(row["members"]),
        "topics": [str(each) for each in row["topics"]],
        "topics_total": int(row["topics_total"]),
        "queues": int(row["queues"]),
        "lag": _text(row["lag"]),
        "lag_s": _seconds(row["lag_s"]),
        "committed_at": None if row["committed_at"] is None else _time(float(row["committed_at"])),
    }
    return {name: value for name, value in made.items() if value is not None}


def client_row(node: str, row: Json) -> Json:
    """A connection at one engine."""
    return {
        "node": node,
        "since": _time(int(row["since_ns"]) / 1e9),
        **{name: str(row[name]) for name in CLIENT_TEXTS},
        **{name: str(int(row[name])) for name in CLIENT_NUMBERS},
    }


CLIENT_TEXTS = ("client_id", "software", "address", "key", "key_name")
CLIENT_NUMBERS = ("number", "requests", "bytes_in", "bytes_out")


def live_groups(node: str, sample: Json, before: Json | None, seconds: float) -> dict[str, Json]:
    """The groups of a sample by id, with the trend of their lag."""
    old = {each["name"]: each for each in _kafka(before).get("groups", ())}
    found: dict[str, Json] = {}
    for row in _kafka(sample).get("groups", ()):
        shown = group_row(node, row)
        was = old.get(row["name"])
        if was is not None and seconds > 0 and None not in (row["lag"], was["lag"]):
            trend = round((int(row["lag"]) - int(was["lag"])) / seconds, 1)
            shown["lag_trend_per_s"] = trend
            if trend < 0:
                shown["drain_s"] = round(int(row["lag"]) / -trend, 1)
        found[f"{node}/{shown['name']}"] = shown
    return found


def live_clients(node: str, sample: Json, before: Json | None, seconds: float) -> dict[str, Json]:
    """The connections of a sample by id, with their rates."""
    old = {each["number"]: each for each in _kafka(before).get("clients", ())}
    found: dict[str, Json] = {}
    for row in _kafka(sample).get("clients", ()):
        shown, was = client_row(node, row), old.get(row["number"])
        for name, rate in (("bytes_in", "in_per_s"), ("bytes_out", "out_per_s")):
            grown = 0 if was is None else max(0, int(row[name]) - int(was[name]))
            shown[rate] = round(grown / seconds, 1) if seconds > 0 else 0.0
        found[f"{node}/{shown['number']}"] = shown
    return found


def total(sample: Json, name: str) -> int:
    """``groups_total`` or ``clients_total`` of a sample."""
    return int(_kafka(sample).get(name, 0))


def _kafka(sample: Json | None) -> Json:
    found = {} if sample is None else sample.get("kafka")
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str | None:
    return None if value is None else str(int(value))


def _seconds(value: Any) -> float | None:
    return None if value is None else round(float(value), 3)


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat()
