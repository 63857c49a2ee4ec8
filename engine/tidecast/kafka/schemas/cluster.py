"""Schemas: requests about the endpoint itself, and the login."""

from __future__ import annotations

from tidecast.kafka.schemas.api import Api, api

APIS: tuple[Api, ...] = (
    api(3, "Metadata", (1, 8), 9, """
        topics: n[
          name: string
        ]
        allow_auto_topic_creation: bool 4+
        include_cluster_authorized_operations: bool 8+
        include_topic_authorized_operations: bool 8+
    """, """
        throttle_time_ms: int32 3+
        brokers: [
          node_id: int32
          host: string
          port: int32
          rack: nstring
        ]
        cluster_id: nstring 2+
        controller_id: int32
        topics: [
          error_code: int16
          name: string
          is_internal: bool
          partitions: [
            error_code: int16
            partition_index: int32
            leader_id: int32
            leader_epoch: int32 7+
            replica_nodes: []int32
            isr_nodes: []int32
            offline_replicas: []int32 5+
          ]
          topic_authorized_operations: int32 8+
        ]
        cluster_authorized_operations: int32 8+
    """),
    api(10, "FindCoordinator", (0, 2), 3, """
        key: string
        key_type: int8 1+
    """, """
        throttle_time_ms: int32 1+
        error_code: int16
        error_message: nstring 1+
        node_id: int32
        host: string
        port: int32
    """),
    api(17, "SaslHandshake", (0, 1), 9, """
        mechanism: string
    """, """
        error_code: int16
        mechanisms: []string
    """),
    api(18, "ApiVersions", (0, 3), 3, """
        client_software_name: string 3+
        client_software_version: string 3+
    """, """
        error_code: int16
        api_keys: [
          api_key: int16
          min_version: int16
          max_version: int16
        ]
        throttle_time_ms: int32 1+
    """),
    api(36, "SaslAuthenticate", (0, 1), 2, """
        auth_bytes: bytes
    """, """
        error_code: int16
        error_message: nstring
        auth_bytes: bytes
        session_lifetime_ms: int64 1+
    """),
    api(60, "DescribeCluster", (0, 1), 0, """
        include_cluster_authorized_operations: bool
        endpoint_type: int8 1+
    """, """
        throttle_time_ms: int32
        error_code: int16
        error_message: nstring
        endpoint_type: int8 1+
        cluster_id: string
        controller_id: int32
        brokers: [
          broker_id: int32
          host: string
          port: int32
          rack: nstring
        ]
        cluster_authorized_operations: int32
    """),
)  # fmt: skip
