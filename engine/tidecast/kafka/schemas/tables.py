"""The APIs that the endpoint serves, and the readers and writers of their messages.

The fields of each are in `tidecast.kafka.schemas`. ``flexible`` is the first version with compact
lengths and tagged fields: to serve newer versions is to raise ``last`` and to add the fields that
they have.
"""

from __future__ import annotations

import functools

from tidecast.kafka.schemas import administration, cluster, groups, records, transactions
from tidecast.kafka.schemas.api import Api
from tidecast.kafka.wire import Read, Reader, Write, parse, reader_of, writer_of

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH = 0, 1, 2, 3, 23
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT = 8, 9, 10, 11, 12
LEAVE_GROUP, SYNC_GROUP, DESCRIBE_GROUPS, LIST_GROUPS = 13, 14, 15, 16
SASL_HANDSHAKE, API_VERSIONS, INIT_PRODUCER_ID, SASL_AUTHENTICATE = 17, 18, 22, 36
CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 19, 20, 37
DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 32, 33, 44
DELETE_GROUPS, OFFSET_DELETE, DESCRIBE_CLUSTER = 42, 47, 60
DESCRIBE_LOG_DIRS = 35
ADD_PARTITIONS_TO_TXN, END_TXN = 24, 26

BEFORE_LOGIN = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)

APIS: dict[int, Api] = {
    each.key: each
    for each in sorted(
        (*records.APIS, *cluster.APIS, *groups.APIS, *administration.APIS), key=lambda api: api.key
    )
}
"""By key."""
KNOWN: dict[int, Api] = APIS | {each.key: each for each in transactions.APIS}
"""The same, and APIs that the endpoint does not serve: this client asks brokers for them."""

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
    """Reads requests of an API and version that are known."""
    api = KNOWN[key]
    return reader_of(api.request, version, flexible=api.is_flexible(version))


@functools.cache
def answer_writer(key: int, version: int) -> Write:
    """Writes answers of an API and version that are known."""
    api = KNOWN[key]
    return writer_of(api.answer, version, flexible=api.is_flexible(version))


@functools.cache
def answer_reader(key: int, version: int) -> Read:
    """Reads such answers."""
    api = KNOWN[key]
    return reader_of(api.answer, version, flexible=api.is_flexible(version))


@functools.cache
def request_writer(key: int, version: int) -> Write:
    """Writes such requests."""
    api = KNOWN[key]
    return writer_of(api.request, version, flexible=api.is_flexible(version))
