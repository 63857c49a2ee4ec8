"""From two samples of an engine to rates a second."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

RATE_COUNTERS = {
    "packets_out": "packets_sent",
    "bytes_out": "bytes_sent",
    "packets_in": "packets_received",
    "bytes_in": "bytes_received",
    "packets_resent": "packets_resent",
    "bytes_resent": "bytes_resent",
    "naks_received": "naks_received",
    "naks_sent": "naks_sent",
    "losses": "losses",
    "lost_for_good": "lost_for_good",
    "bytes_saved": "bytes_saved",
}
"""Rate -> the counter whose growth it is."""
MESSAGES = "messages_out"
"""Messages that publishers wrote: their rings count them, no counter of an agent does."""
HELD = {"rate_held": "rate_held_ns", "flow_held": "flow_held_ns"}
"""Share of the time -> the publication's total that it is made of. Of many, the greatest counts."""
HELD_REPORTED_MIN = 0.01

Key = tuple[str, str, str, int, int]


def key_of(kind: str, row: Json) -> Key:
    """The values that distinguish a counter row from all others of its node."""
    return kind, row["name"], row["detail"], row["session"], row["peer"]


def rows_of(sample: Json) -> dict[Key, Json]:
    """All counter rows of a sample."""
    return {key_of(kind, row): row for kind, rows in sample["counters"].items() for row in rows}


def seconds_between(before: Json | None, after: Json) -> float:
    """Time between two samples; 0 when there is only one."""
    if before is None:
        return 0.0
    return max(0.0, float(after["mono_ns"] - before["mono_ns"]) / 1e9)


def growth(before: Json | None, after: Json, counter: str, seconds: float) -> float:
    """Growth of one counter, a second. A row that is new has grown from nothing."""
    if seconds <= 0:
        return 0.0
    old = before.get(counter, 0) if before is not None else 0
    return max(0.0, float(after.get(counter, 0) - old) / seconds)


def rates(before: Json | None, after: Json, seconds: float) -> Json:
    """`Rates` of one counter row."""
    made = {
        name: round(growth(before, after, counter, seconds), 1)
        for name, counter in RATE_COUNTERS.items()
    }
    return made | dict.fromkeys((MESSAGES, *HELD), 0.0)


def messages(before: Json | None, publication: Json, seconds: float) -> float:
    """Messages a second that a publisher wrote."""
    return round(growth(before, publication, "messages", seconds), 1)


def held(before: Json | None, after: Json, seconds: float) -> Json:
    """For which share of the time limits held a publication's packets back."""
    if before is None:  # the time that it has waited belongs to earlier intervals
        return dict.fromkeys(HELD, 0.0)
    return {
        name: min(1.0, round(growth(before, after, total, seconds) / 1e9, 4))
        for name, total in HELD.items()
    }


def throttle(made: Json) -> str:
    """The reason that holds packets back long enough to show: ``flow``, ``rate`` or ``none``."""
    if made["flow_held"] >= HELD_REPORTED_MIN:
        return "flow"
    return "rate" if made["rate_held"] >= HELD_REPORTED_MIN else "none"


def no_rates() -> Json:
    """`Rates` of nothing."""
    return dict.fromkeys((*RATE_COUNTERS, MESSAGES, *HELD), 0.0)


def add(total: Json, more: Json) -> None:
    """Add rates to rates."""
    for name, value in more.items():
        total[name] = max(total[name], value) if name in HELD else round(total[name] + value, 1)


def ratio(part: float, whole: float) -> float:
    """``part / whole``; 0 when there is nothing."""
    return round(part / whole, 5) if whole > 0 else 0.0
