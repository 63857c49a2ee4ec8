"""The minutes before a page is opened: figures of topics and subscriptions, from telemetry.

They are noted whenever engines measure, whatever is watched then. Without a viewer and without
alert rules that need telemetry, engines measure nothing, and there are no figures of that time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Rows = Mapping[str, Json]

RECENT_S, STEP_S = 300.0, 2.0
ROWS_MAX = 100
"""The topics that send most and the subscriptions that are furthest behind, at each moment."""
OF_TOPIC = ("rates", "retransmit_ratio", "ring_fill", "lag_packets", "lag_messages", "lag_s")
OF_SUBSCRIPTION = ("lag_messages", "lag_s", "delivered_per_s")
PRESENT = ("publications", "receivers", "images", "readers")
"""Rows that are drawn over time, too, and of which only the present is known."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The figures at one time; ``at`` in ISO 8601, ``mono_s`` on the monotonic clock."""

    mono_s: float
    at: str
    topics: dict[str, Json]
    subscriptions: dict[str, Json]


class Recent:
    """The moments of the last `RECENT_S`, `STEP_S` apart."""

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque(maxlen=int(RECENT_S / STEP_S))

    def note(self, topics: Rows, subscriptions: Rows, mono_s: float, at: str) -> None:
        """Keep the figures of now, unless the newest ones are younger than `STEP_S`."""
        if self._moments and mono_s - self._moments[-1].mono_s < STEP_S:
            return
        sending = heapq.nlargest(ROWS_MAX, topics, lambda n: topics[n]["rates"]["packets_out"])
        behind = heapq.nlargest(
            ROWS_MAX, subscriptions, lambda n: int(subscriptions[n].get("lag_messages") or 0)
        )
        self._moments.append(
            Moment(
                mono_s,
                at,
                {name: _only(topics[name], OF_TOPIC) for name in sending},
                {name: _only(subscriptions[name], OF_SUBSCRIPTION) for name in behind},
            )
        )

    def before(
        self, channel: str, data: Json, mono_s: float, until: str
    ) -> Iterator[tuple[str, Json]]:
        """(time, data as it would have been) of a channel, oldest first, up to the time ``until``.

        ``data`` is that of now: whatever is not drawn over time is taken from it.
        """
        kind, _, name = channel.partition(":")
        if kind not in ("topic", "subscriptions"):
            return
        now = {key: {} if key in PRESENT else value for key, value in data.items()}
        for moment in self._moments:
            if moment.at >= until or mono_s - moment.mono_s > RECENT_S:
                continue
            if kind == "subscriptions":
                yield moment.at, {**now, "subscriptions": _as_it_was(data, moment.subscriptions)}
            elif name in moment.topics and isinstance(data.get("topic"), dict):
                row = _without(data["topic"], OF_TOPIC)
                yield moment.at, {**now, "topic": row | moment.topics[name]}


def _as_it_was(data: Json, then: Rows) -> Json:
    return {
        name: _without(row, OF_SUBSCRIPTION) | then.get(name, {})
        for name, row in data.get("subscriptions", {}).items()
    }


def _only(row: Json, fields: tuple[str, ...]) -> Json:
    return {name: row[name] for name in fields if row.get(name) is not None}


def _without(row: Json, fields: tuple[str, ...]) -> Json:
    return {name: value for name, value in row.items() if name not in fields}
