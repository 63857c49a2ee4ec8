"""Schemas: topics, their settings, and groups as tools administer them."""

from __future__ import annotations

from tidecast.kafka.schemas.api import NEVER, Api, api

APIS: tuple[Api, ...] = (
    api(19, "CreateTopics", (2, 5), 5, """
        topics: [
          name: string
          num_partitions: int32
          replication_factor: int16
          assignments: [
            partition_index: int32
            broker_ids: []int32
          ]
          configs: [
            name: string
            value: nstring
          ]
        ]
        timeout_ms: int32
        validate_only: bool
    """, """
        throttle_time_ms: int32
        topics: [
          name: string
          error_code: int16
          error_message: nstring
          num_partitions: int32 5+
          replication_factor: int16 5+
          configs: n[ 5+
            name: string
            value: nstring
            read_only: bool
            config_source: int8
            is_sensitive: bool
          ]
        ]
    """),
    api(20, "DeleteTopics", (1, 5), 4, """
        topic_names: []string
        timeout_ms: int32
    """, """
        throttle_time_ms: int32
        responses: [
          name: string
          error_code: int16
          error_message: nstring 5+
        ]
    """),
    api(32, "DescribeConfigs", (1, 4), 4, """
        resources: [
          resource_type: int8
          resource_name: string
          configuration_keys: n[]string
        ]
        include_synonyms: bool
        include_documentation: bool 3+
    """, """
        throttle_time_ms: int32
        results: [
          error_code: int16
          error_message: nstring
          resource_type: int8
          resource_name: string
          configs: [
            name: string
            value: nstring
            read_only: bool
            config_source: int8
            is_sensitive: bool
            synonyms: [
              name: string
              value: nstring
              source: int8
            ]
            config_type: int8 3+
            documentation: nstring 3+
          ]
        ]
    """),
    api(33, "AlterConfigs", (0, 2), 2, """
        resources: [
          resource_type: int8
          resource_name: string
          configs: [
            name: string
            value: nstring
          ]
        ]
        validate_only: bool
    """, """
        throttle_time_ms: int32
        responses: [
          error_code: int16
          error_message: nstring
          resource_type: int8
          resource_name: string
        ]
    """),
    api(35, "DescribeLogDirs", (1, 4), 2, """
        topics: n[
          topic: string
          partitions: []int32
        ]
    """, """
        throttle_time_ms: int32
        error_code: int16 3+
        results: [
          error_code: int16
          log_dir: string
          topics: [
            name: string
            partitions: [
              partition_index: int32
              partition_size: int64
              offset_lag: int64
              is_future_key: bool
            ]
          ]
          total_bytes: int64 4+
          usable_bytes: int64 4+
        ]
    """),
    api(37, "CreatePartitions", (0, 3), 2, """
        topics: [
          name: string
          count: int32
          assignments: n[
            broker_ids: []int32
          ]
        ]
        timeout_ms: int32
        validate_only: bool
    """, """
        throttle_time_ms: int32
        results: [
          name: string
          error_code: int16
          error_message: nstring
        ]
    """),
    api(42, "DeleteGroups", (0, 2), 2, """
        groups_names: []string
    """, """
        throttle_time_ms: int32
        results: [
          group_id: string
          error_code: int16
        ]
    """),
    api(44, "IncrementalAlterConfigs", (0, 1), 1, """
        resources: [
          resource_type: int8
          resource_name: string
          configs: [
            name: string
            config_operation: int8
            value: nstring
          ]
        ]
        validate_only: bool
    """, """
        throttle_time_ms: int32
        responses: [
          error_code: int16
          error_message: nstring
          resource_type: int8
          resource_name: string
        ]
    """),
    api(47, "OffsetDelete", (0, 0), NEVER, """
        group_id: string
        topics: [
          name: string
          partitions: [
            partition_index: int32
          ]
        ]
    """, """
        error_code: int16
        throttle_time_ms: int32
        topics: [
          name: string
          partitions: [
            partition_index: int32
            error_code: int16
          ]
        ]
    """),
)  # fmt: skip
