"""Telemetry: what one sample of an engine says, as JSON in an internal durable topic.

A row is a sample of one queue or one subscription of a topic on a node (or of the topic itself,
with neither) over ``interval_ms``. Counts are what happened since the sample before; gauges are as
they are now. Unknown fields are left alone, missing ones are null.
"""

from __future__ import annotations

TELEMETRY_TOPIC = "tidecast.telemetry"

DIMENSIONS = {"node": "STRING", "topic": "STRING", "queue": "INT", "subscription": "STRING"}
COUNTS = {
    "interval_ms": "time the sample covers",
    "messages_in": "messages published or appended",
    "bytes_in": "their bytes",
    "messages_out": "messages delivered and acked",
    "bytes_out": "their bytes",
    "packets": "packets sent",
    "resent": "packets sent again",
}
GAUGES = {
    "lag": "messages not yet settled",
    "lag_ms": "age of the oldest of them",
    "cache_bytes": "bytes in the queue cache, or in the history ring",
    "cache_max": "bytes it has room for",
}
TIME = "time_us"
"""When the sample was taken, us since 1970."""

SAMPLE_SCHEMA = ", ".join(
    [f"{TIME} BIGINT", *(f"{name} {kind}" for name, kind in DIMENSIONS.items())]
    + [f"{name} BIGINT" for name in (*COUNTS, *GAUGES)]
)
"""The schema of a row, as Spark's ``from_json`` takes it."""
