"""Schemas: consumer groups and their offsets."""

from __future__ import annotations

from tidecast.kafka.schemas.api import Api, api

APIS: tuple[Api, ...] = (
    api(8, "OffsetCommit", (2, 7), 8, """
        group_id: string
        generation_id: int32
        member_id: string
        group_instance_id: nstring 7+
        retention_time_ms: int64 2-4
        topics: [
          name: string
          partitions: [
            partition_index: int32
            committed_offset: int64
            committed_leader_epoch: int32 6+
            committed_metadata: nstring
          ]
        ]
    """, """
        throttle_time_ms: int32 3+
        topics: [
          name: string
          partitions: [
            partition_index: int32
            error_code: int16
          ]
        ]
    """),
    api(9, "OffsetFetch", (1, 5), 6, """
        group_id: string
        topics: n[
          name: string
          partition_indexes: []int32
        ]
    """, """
        throttle_time_ms: int32 3+
        topics: [
          name: string
          partitions: [
            partition_index: int32
            committed_offset: int64
            committed_leader_epoch: int32 5+
            metadata: nstring
            error_code: int16
          ]
        ]
        error_code: int16 2+
    """),
    api(11, "JoinGroup", (0, 5), 6, """
        group_id: string
        session_timeout_ms: int32
        rebalance_timeout_ms: int32 1+
        member_id: string
        group_instance_id: nstring 5+
        protocol_type: string
        protocols: [
          name: string
          metadata: bytes
        ]
    """, """
        throttle_time_ms: int32 2+
        error_code: int16
        generation_id: int32
        protocol_name: string
        leader: string
        member_id: string
        members: [
          member_id: string
          group_instance_id: nstring 5+
          metadata: bytes
        ]
    """),
    api(12, "Heartbeat", (0, 3), 4, """
        group_id: string
        generation_id: int32
        member_id: string
        group_instance_id: nstring 3+
    """, """
        throttle_time_ms: int32 1+
        error_code: int16
    """),
    api(13, "LeaveGroup", (0, 3), 4, """
        group_id: string
        member_id: string 0-2
        members: [ 3+
          member_id: string
          group_instance_id: nstring
        ]
    """, """
        throttle_time_ms: int32 1+
        error_code: int16
        members: [ 3+
          member_id: string
          group_instance_id: nstring
          error_code: int16
        ]
    """),
    api(14, "SyncGroup", (0, 3), 4, """
        group_id: string
        generation_id: int32
        member_id: string
        group_instance_id: nstring 3+
        assignments: [
          member_id: string
          assignment: bytes
        ]
    """, """
        throttle_time_ms: int32 1+
        error_code: int16
        assignment: bytes
    """),
    api(15, "DescribeGroups", (0, 5), 5, """
        groups: []string
        include_authorized_operations: bool 3+
    """, """
        throttle_time_ms: int32 1+
        groups: [
          error_code: int16
          group_id: string
          group_state: string
          protocol_type: string
          protocol_data: string
          members: [
            member_id: string
            group_instance_id: nstring 4+
            client_id: string
            client_host: string
            member_metadata: bytes
            member_assignment: bytes
          ]
          authorized_operations: int32 3+
        ]
    """),
    api(16, "ListGroups", (0, 5), 3, """
        states_filter: []string 4+
        types_filter: []string 5+
    """, """
        throttle_time_ms: int32 1+
        error_code: int16
        groups: [
          group_id: string
          protocol_type: string
          group_state: string 4+
          group_type: string 5+
        ]
    """),
)  # fmt: skip
