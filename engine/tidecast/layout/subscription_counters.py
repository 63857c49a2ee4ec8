"""Columns of a durable subscription's row in the counters file.

Apart from `counters`, which kernels import, so that a new column compiles no kernel again.
"""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class SubscriptionCounter(IntEnum):
    """Sums over the subscription's queues, written once a second. All but the gauges only grow."""

    DELIVERED = 0
    """Records delivered, redelivered ones too."""
    DELIVERED_BYTES = 1
    """Bytes of delivered records."""
    SETTLED = 2
    """Records completed: acked, stored or dropped as dead letters, or cancelled."""
    REDELIVERED = 3
    """Records delivered again."""
    NAKS = 4
    """Records that members refused for the time being."""
    TIMEOUTS = 5
    """Records not completed within `ack_wait`."""
    DEAD = 6
    """Records given up: dead letters, or dropped with an event."""
    FILTERED = 7
    """Records that the filter skipped."""
    FILTER_ERRORS = 8
    """Records for which a compiled filter raised; they were delivered."""
    LAG = 9
    """Gauge: records that are not acked, outstanding and arriving ones too."""
    OUTSTANDING = 10
    """Gauge: records at members."""
    WAITING = 11
    """Gauge: records to be delivered (again) that wait."""
    MEMBERS = 12
    """Gauge: members."""
    QUEUES = 13
    """Gauge: queues."""
    PAUSED = 14
    """Gauge: queues in which it is paused."""
    SCHEDULED = 15
    """Gauge: records that wait for their delivery time; WAITING counts them, too."""
    ARRIVING = 16
    """Gauge: messages that publishers on other nodes hold and no log has; LAG counts them, too."""
    CANCELLED = 17
    """Records that were cancelled before their delivery time; SETTLED counts them, too."""
