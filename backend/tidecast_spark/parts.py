"""The parts of a read, as plain values. Light to import: the driver starts workers for it."""

from __future__ import annotations

from dataclasses import dataclass, field

TIME_MIN_NS, TIME_END_NS = -(1 << 62), (1 << 63) - 1
TOKEN_END = 1 << 62
KEYS_MAX = 64


@dataclass(frozen=True)
class RowFilter:
    """Which records are wanted. Bounds are [min, end). ``keys`` None: any."""

    token_min: int = 0
    token_end: int = TOKEN_END
    time_min_ns: int = TIME_MIN_NS
    time_end_ns: int = TIME_END_NS
    keys: tuple[bytes, ...] | None = None
    key_null: bool = False

    def is_empty(self) -> bool:
        """Nothing can pass."""
        return (
            self.token_min >= self.token_end
            or self.time_min_ns >= self.time_end_ns
            or (self.keys == () and not self.key_null)
        )


ALL_ROWS = RowFilter()


@dataclass(frozen=True)
class ReadSettings:
    """How a worker reads. ``headers``: "no", "map" or "raw" (the MessagePack bytes).

    ``servers``: a gateway; empty: from files.
    """

    columns: tuple[str, ...] = ("key", "value", "topic", "queue", "token", "timestamp")
    headers: str = "no"
    skip_corrupt: bool = False
    bad_records_path: str = ""
    fail_on_data_loss: bool = True
    rows: RowFilter = ALL_ROWS
    servers: str = ""
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class QueueRange:
    """Tokens [start, end) of one queue; ``directory`` holds its segments, if they are here."""

    topic: str
    queue: int
    directory: str
    start: int
    end: int
