"""Schemas: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch and InitProducerId."""

from __future__ import annotations

from tidecast.kafka.schemas.api import Api, api

APIS: tuple[Api, ...] = (
    api(0, "Produce", (3, 7), 9, """
        transactional_id: nstring
        acks: int16
        timeout_ms: int32
        topics: [
          name: string
          partitions: [
            index: int32
            records: records
          ]
        ]
    """, """
        responses: [
          name: string
          partition_responses: [
            index: int32
            error_code: int16
            base_offset: int64
            log_append_time_ms: int64
            log_start_offset: int64 5+
          ]
        ]
        throttle_time_ms: int32
    """),
    api(1, "Fetch", (4, 11), 12, """
        replica_id: int32
        max_wait_ms: int32
        min_bytes: int32
        max_bytes: int32
        isolation_level: int8
        session_id: int32 7+
        session_epoch: int32 7+
        topics: [
          topic: string
          partitions: [
            partition: int32
            current_leader_epoch: int32 9+
            fetch_offset: int64
            log_start_offset: int64 5+
            partition_max_bytes: int32
          ]
        ]
        forgotten_topics_data: [ 7+
          topic: string
          partitions: []int32
        ]
        rack_id: string 11+
    """, """
        throttle_time_ms: int32
        error_code: int16 7+
        session_id: int32 7+
        responses: [
          topic: string
          partitions: [
            partition_index: int32
            error_code: int16
            high_watermark: int64
            last_stable_offset: int64
            log_start_offset: int64 5+
            aborted_transactions: n[
              producer_id: int64
              first_offset: int64
            ]
            preferred_read_replica: int32 11+
            records: records
          ]
        ]
    """),
    api(2, "ListOffsets", (1, 3), 6, """
        replica_id: int32
        isolation_level: int8 2+
        topics: [
          name: string
          partitions: [
            partition_index: int32
            timestamp: int64
          ]
        ]
    """, """
        throttle_time_ms: int32 2+
        topics: [
          name: string
          partitions: [
            partition_index: int32
            error_code: int16
            timestamp: int64
            offset: int64
          ]
        ]
    """),
    api(22, "InitProducerId", (0, 1), 2, """
        transactional_id: nstring
        transaction_timeout_ms: int32
    """, """
        throttle_time_ms: int32
        error_code: int16
        producer_id: int64
        producer_epoch: int16
    """),
    api(23, "OffsetForLeaderEpoch", (2, 4), 4, """
        replica_id: int32 3+
        topics: [
          topic: string
          partitions: [
            partition: int32
            current_leader_epoch: int32
            leader_epoch: int32
          ]
        ]
    """, """
        throttle_time_ms: int32
        topics: [
          topic: string
          partitions: [
            error_code: int16
            partition: int32
            leader_epoch: int32
            end_offset: int64
          ]
        ]
    """),
)  # fmt: skip
