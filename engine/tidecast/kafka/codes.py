"""Kafka's error codes that the endpoint answers with."""

from __future__ import annotations

from enum import IntEnum

from tidecast.errors import (
    AuthError,
    Conflict,
    Fenced,
    NotFound,
    PayloadTooLarge,
    SequenceGap,
    StorageError,
    TidecastError,
    Timeout,
)


class Code(IntEnum):
    """The codes, by Kafka's names."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    PRODUCER_FENCED = 90
    MISMATCHED_ENDPOINT_TYPE = 114


class Refused(Exception):
    """Something that a client asks for and does not get: the code of the answer, and why."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


_OF_ERRORS: tuple[tuple[type[TidecastError], Code], ...] = (
    (NotFound, Code.NOT_LEADER_OR_FOLLOWER),
    (StorageError, Code.KAFKA_STORAGE_ERROR),
    (PayloadTooLarge, Code.MESSAGE_TOO_LARGE),
    (SequenceGap, Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (Fenced, Code.INVALID_PRODUCER_EPOCH),
    (AuthError, Code.TOPIC_AUTHORIZATION_FAILED),
    (Timeout, Code.REQUEST_TIMED_OUT),
    (Conflict, Code.REQUEST_TIMED_OUT),
)


def code_of(problem: TidecastError | None) -> Code:
    """The code for one of Tidecast's errors. A queue that is not here has moved elsewhere."""
    for kind, code in _OF_ERRORS:
        if isinstance(problem, kind):
            return code
    return Code.UNKNOWN_SERVER_ERROR
