"""The APIs that the endpoint serves: keys, versions, and the fields of requests and answers.

One row an API. ``flexible`` is the first version with compact lengths and tagged fields: to serve
newer versions is to raise ``last`` and to add the fields that they have.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tidecast.kafka.wire import Field, Read, Reader, Write, parse, reader_of, writer_of

NEVER = 1 << 15


@dataclass(frozen=True)
class Api:
    """One API: its key, the versions served, the first flexible one, and its fields."""

    key: int
    name: str
    first: int
    last: int
    flexible: int
    request: tuple[Field, ...]
    answer: tuple[Field, ...]

    def serves(self, version: int) -> bool:
        """The version is one of those that are advertised."""
        return self.first <= version <= self.last

    def is_flexible(self, version: int) -> bool:
        """The version has compact lengths and tagged fields."""
        return version >= self.flexible


def _api(
    key: int, name: str, versions: tuple[int, int], flexible: int, request: str, answer: str
) -> Api:
    return Api(key, name, *versions, flexible, parse(request), parse(answer))


PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT = 8, 9, 10, 11, 12
LEAVE_GROUP, SYNC_GROUP, DESCRIBE_GROUPS, LIST_GROUPS = 13, 14, 15, 16
SASL_HANDSHAKE, API_VERSIONS, INIT_PRODUCER_ID, SASL_AUTHENTICATE = 17, 18, 22, 36

BEFORE_LOGIN = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)

APIS: dict[int, Api] = {
    api.key: api
    for api in (
        _api(PRODUCE, "Produce", (3, 7), 9, """
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
        _api(FETCH, "Fetch", (4, 11), 12, """
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
        _api(LIST_OFFSETS, "ListOffsets", (1, 3), 6, """
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
        _api(METADATA, "Metadata", (1, 8), 9, """
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
        _api(OFFSET_COMMIT, "OffsetCommit", (2, 7), 8, """
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
        _api(OFFSET_FETCH, "OffsetFetch", (1, 5), 6, """
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
        _api(FIND_COORDINATOR, "FindCoordinator", (0, 2), 3, """
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
        _api(JOIN_GROUP, "JoinGroup", (0, 5), 6, """
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
        _api(HEARTBEAT, "Heartbeat", (0, 3), 4, """
            group_id: string
            generation_id: int32
            member_id: string
            group_instance_id: nstring 3+
        """, """
            throttle_time_ms: int32 1+
            error_code: int16
        """),
        _api(LEAVE_GROUP, "LeaveGroup", (0, 3), 4, """
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
        _api(SYNC_GROUP, "SyncGroup", (0, 3), 4, """
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
        _api(DESCRIBE_GROUPS, "DescribeGroups", (0, 4), 5, """
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
        _api(LIST_GROUPS, "ListGroups", (0, 2), 3, "", """
            throttle_time_ms: int32 1+
            error_code: int16
            groups: [
              group_id: string
              protocol_type: string
            ]
        """),
        _api(SASL_HANDSHAKE, "SaslHandshake", (1, 1), 9, """
            mechanism: string
        """, """
            error_code: int16
            mechanisms: []string
        """),
        _api(API_VERSIONS, "ApiVersions", (0, 3), 3, """
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
        _api(INIT_PRODUCER_ID, "InitProducerId", (0, 1), 2, """
            transactional_id: nstring
            transaction_timeout_ms: int32
        """, """
            throttle_time_ms: int32
            error_code: int16
            producer_id: int64
            producer_epoch: int16
        """),
        _api(SASL_AUTHENTICATE, "SaslAuthenticate", (0, 1), 2, """
            auth_bytes: bytes
        """, """
            error_code: int16
            error_message: nstring
            auth_bytes: bytes
            session_lifetime_ms: int64 1+
        """),
    )
}  # fmt: skip
"""By key."""

_HEADER = parse("""
    api_key: int16
    api_version: int16
    correlation_id: int32
""")
_CLIENT_ID = parse("client_id: nstring")
read_header: Read = reader_of(_HEADER, 0, flexible=False)
"""The part of a request's header that is the same in all versions."""
_read_client_id: Read = reader_of(_CLIENT_ID, 0, flexible=False)


def read_client_id(reader: Reader, *, flexible: bool) -> str:
    """The rest of a request's header: the client's name for itself."""
    found: str | None = _read_client_id(reader)["client_id"]
    if flexible:
        reader.skip_tags()
    return found or ""


@functools.cache
def request_reader(key: int, version: int) -> Read:
    """Reads requests of an API and version that are served."""
    api = APIS[key]
    return reader_of(api.request, version, flexible=api.is_flexible(version))


@functools.cache
def answer_writer(key: int, version: int) -> Write:
    """Writes answers of an API and version that are served."""
    api = APIS[key]
    return writer_of(api.answer, version, flexible=api.is_flexible(version))


@functools.cache
def answer_reader(key: int, version: int) -> Read:
    """Reads such answers; for tests."""
    api = APIS[key]
    return reader_of(api.answer, version, flexible=api.is_flexible(version))


@functools.cache
def request_writer(key: int, version: int) -> Write:
    """Writes such requests; for tests."""
    api = APIS[key]
    return writer_of(api.request, version, flexible=api.is_flexible(version))
