"""Counters of the endpoint and of each API, and events that are not repeated too often."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from tidecast.events import Event, KafkaClientRefused, field_of
from tidecast.kafka.codes import Code
from tidecast.kafka.schemas.api import Api
from tidecast.kafka.wire import Struct
from tidecast.layout.counters import ROW_KAFKA, ROW_KAFKA_API, KafkaApiCounter, KafkaCounter

if TYPE_CHECKING:
    from tidecast.node.node import Node

NAME = "kafka"
_COLUMNS = {each.name.lower(): each for each in KafkaCounter}
_NO_ERRORS = (Code.NONE, Code.MEMBER_ID_REQUIRED, Code.REBALANCE_IN_PROGRESS)
"""The last two tell members to join again: part of each rebalance."""


class Counters:
    """Rows in the node's counters. All methods may be called in any thread."""

    def __init__(self, node: Node, listens: str) -> None:
        self._node, self._listens = node, listens
        self._lock = threading.Lock()
        self._row = self._allocated(ROW_KAFKA, NAME)
        self._apis: dict[int, Any] = {}
        self._reported: dict[str, tuple[float, int]] = {}
        """By event and reason: when the last one was reported, and how many were not since."""

    def _allocated(self, kind: int, name: str) -> Any:
        row = self._node.counters.allocate(kind, name, self._listens)
        return self._node.counters.values[row]

    def count(self, name: str, n: int = 1) -> None:
        """Add to a column of `KafkaCounter`, by its name in small letters."""
        with self._lock:
            self._row[_COLUMNS[name]] += n

    def gauge(self, column: KafkaCounter, value: int) -> None:
        """Set a gauge."""
        self._row[column] = value

    def of(self, name: str) -> int:
        """A column of `KafkaCounter`."""
        return int(self._row[_COLUMNS[name]])

    def requested(self, api: Api, n_bytes: int) -> None:
        """A request came."""
        self.count("bytes_in", n_bytes)
        self._add(api, {KafkaApiCounter.REQUESTS: 1, KafkaApiCounter.BYTES_IN: n_bytes})

    def answered(self, api: Api, answer: Struct, n_bytes: int) -> None:
        """An answer is sent."""
        self.count("bytes_out", n_bytes)
        errors = errors_in(answer)
        self._add(api, {KafkaApiCounter.ERRORS: errors, KafkaApiCounter.BYTES_OUT: n_bytes})

    def _add(self, api: Api, counts: dict[KafkaApiCounter, int]) -> None:
        with self._lock:
            row = self._apis.get(api.key)
            if row is None:
                row = self._apis[api.key] = self._allocated(ROW_KAFKA_API, api.name)
            for column, n in counts.items():
                row[column] += n

    def report(self, event: Event, quiet_s: float) -> bool:
        """Notify of an event, unless one of its kind and reason was reported a moment ago."""
        kind, now_s = f"{type(event).__name__} {field_of(event, 'reason')}", time.monotonic()
        with self._lock:
            before_s, silent = self._reported.get(kind, (-quiet_s, 0))
            quiet = now_s - before_s < quiet_s
            self._reported[kind] = (before_s, silent + 1) if quiet else (now_s, 0)
        if quiet:
            return False
        if isinstance(event, KafkaClientRefused):
            event = msgspec.structs.replace(event, unreported=silent)
        self._node.notify_all(event)
        return True


def errors_in(answer: Struct) -> int:
    """How many error codes of an answer are errors."""
    n = 1 if answer.get("error_code", Code.NONE) not in _NO_ERRORS else 0
    for value in answer.values():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            n += sum(errors_in(each) for each in value)
    return n
