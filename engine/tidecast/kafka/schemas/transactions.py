"""Schemas: transactions. The endpoint does not serve them; this client uses their markers."""

from __future__ import annotations

from tidecast.kafka.schemas.api import Api, api

APIS: tuple[Api, ...] = (
    api(
        24,
        "AddPartitionsToTxn",
        (0, 2),
        3,
        """
        transactional_id: string
        producer_id: int64
        producer_epoch: int16
        topics: [
          name: string
          partitions: []int32
        ]
    """,
        """
        throttle_time_ms: int32
        results: [
          name: string
          results_by_partition: [
            partition_index: int32
            partition_error_code: int16
          ]
        ]
    """,
    ),
    api(
        26,
        "EndTxn",
        (0, 2),
        3,
        """
        transactional_id: string
        producer_id: int64
        producer_epoch: int16
        committed: bool
    """,
        """
        throttle_time_ms: int32
        error_code: int16
    """,
    ),
)
