"""Telemetry: a sample of an engine, as JSON in an internal durable topic.

A row is a sample of a topic on a node, of one of its queues, or of a subscription on a queue, over
``interval_ms``; `tidecast.telemetry.samples` documents the figures. Counts are increases since the
sample before; gauges are present values. Unknown fields are ignored, missing fields are null.
"""

from __future__ import annotations

TELEMETRY_TOPIC = "tidecast.telemetry"

DIMENSIONS = {"node": str, "topic": str, "queue": int, "subscription": str}
COUNTS = {
    "interval_ms": "time the sample covers",
    "messages_in": "messages published or appended",
    "bytes_in": "their bytes",
    "messages_out": "messages delivered and acked",
    "bytes_out": "their bytes",
    "messages_due": "messages appended to the queue of a subscription",
    "packets": "packets sent",
    "resent": "packets sent again",
    "spilled": "blocks of a queue's cache given up while a slow reader rested in them",
}
GAUGES = {
    "lag": "messages not yet acked",
    "lag_ms": "age of the oldest of them",
    "cache_bytes": "bytes in the queue cache, or not read yet in the publishers' rings",
    "cache_max": "bytes it has room for",
}
TIME = "time_us"
"""When the sample was taken, us since 1970."""

SAMPLE_FIELDS = (TIME, *DIMENSIONS, *COUNTS, *GAUGES)
