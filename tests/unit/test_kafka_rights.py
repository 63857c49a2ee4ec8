"""Which rights each API of the Kafka endpoint asks for, and what clients without them get."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.kafka import Bare, Served, batch_of, fetch_body, produce_body

from tidecast.access import RIGHTS, Access, Scope, new_key
from tidecast.kafka.codes import Code
from tidecast.kafka.schemas import tables

TOPICS = [{"name": "mine", "mode": "durable", "fsync_interval_ms": 2}]
SECRET, KEY = new_key("every", [Scope(pattern=">", rights=["publish", "subscribe", "manage"])])
POOR_SECRET, POOR_KEY = new_key("poor", [Scope(pattern="none", rights=["publish"])])
PLACE = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1}
OFFSETS = {"name": "mine", "partitions": [PLACE]}
RESOURCE = {"resource_type": 2, "resource_name": "mine"}
DENIALS = {
    Code.TOPIC_AUTHORIZATION_FAILED,
    Code.GROUP_AUTHORIZATION_FAILED,
    Code.CLUSTER_AUTHORIZATION_FAILED,
}
SUBSCRIBE, PUBLISH, MANAGE = ("subscribe", "mine"), ("publish", "mine"), ("manage", "mine")
ALL, ANY = ("manage", ">"), ("any", "mine")

Pairs = set[tuple[str, str]]
ASKED: dict[int, tuple[dict[str, Any], Pairs]] = {
    tables.PRODUCE: (produce_body("mine", 0, batch_of(b"v")), {PUBLISH}),
    tables.FETCH: (fetch_body("mine", 0, 0), {SUBSCRIBE}),
    tables.LIST_OFFSETS: (
        {"topics": [{"name": "mine", "partitions": [{"partition_index": 0, "timestamp": -1}]}]},
        {SUBSCRIBE},
    ),
    tables.OFFSET_FOR_LEADER_EPOCH: (
        {
            "topics": [
                {
                    "topic": "mine",
                    "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
                }
            ]
        },
        {SUBSCRIBE},
    ),
    tables.METADATA: ({"topics": [{"name": "mine"}]}, {ANY}),
    tables.DESCRIBE_CLUSTER: ({}, set()),
    tables.FIND_COORDINATOR: ({"key": "g"}, set()),
    tables.INIT_PRODUCER_ID: ({"transactional_id": None}, set()),
    tables.API_VERSIONS: ({}, set()),
    tables.SASL_HANDSHAKE: ({"mechanism": "PLAIN"}, set()),
    tables.SASL_AUTHENTICATE: ({"auth_bytes": f"\0every\0{SECRET}".encode()}, set()),
    tables.JOIN_GROUP: (
        {"group_id": "g", "session_timeout_ms": 6000, "protocol_type": "consumer", "member_id": ""},
        set(),
    ),
    tables.SYNC_GROUP: ({"group_id": "g", "member_id": "m"}, set()),
    tables.HEARTBEAT: ({"group_id": "g", "member_id": "m"}, set()),
    tables.LEAVE_GROUP: ({"group_id": "g"}, set()),
    tables.OFFSET_COMMIT: (
        {"group_id": "g", "generation_id": -1, "member_id": "", "topics": [OFFSETS]},
        {SUBSCRIBE},
    ),
    tables.OFFSET_FETCH: (
        {"group_id": "g", "topics": [{"name": "mine", "partition_indexes": [0]}]},
        {SUBSCRIBE},
    ),
    tables.LIST_GROUPS: ({}, {ALL}),
    tables.DESCRIBE_GROUPS: ({"groups": ["g"]}, {ALL}),
    tables.DELETE_GROUPS: ({"groups_names": ["g"]}, {MANAGE}),
    tables.OFFSET_DELETE: (
        {"group_id": "g", "topics": [{"name": "mine", "partitions": [{"partition_index": 0}]}]},
        {MANAGE},
    ),
    tables.CREATE_TOPICS: (
        {
            "topics": [{"name": "mine", "num_partitions": 1, "replication_factor": 1}],
            "timeout_ms": 1000,
        },
        {MANAGE},
    ),
    tables.CREATE_PARTITIONS: (
        {"topics": [{"name": "mine", "count": 1}], "timeout_ms": 1000},
        {MANAGE},
    ),
    tables.DESCRIBE_CONFIGS: ({"resources": [RESOURCE]}, {ANY}),
    tables.ALTER_CONFIGS: ({"resources": [RESOURCE]}, {MANAGE}),
    tables.INCREMENTAL_ALTER_CONFIGS: ({"resources": [RESOURCE]}, {MANAGE}),
    tables.DESCRIBE_LOG_DIRS: ({"topics": None}, {ALL}),
    tables.DELETE_TOPICS: ({"topic_names": ["mine"], "timeout_ms": 1000}, {MANAGE}),
}
"""By API: a request, and the pairs of right and topic that it asks for; the last deletes."""


@pytest.fixture
def served(tmp_path: Any) -> Iterator[Served]:
    made = Served(tmp_path, TOPICS, keys=[KEY, POOR_KEY])
    yield made
    made.close()


def client(served: Served, name: str, secret: str) -> Bare:
    bare = served.bare()
    assert bare.log_in(name, secret) == 0
    return bare


@contextlib.contextmanager
def asked_rights() -> Iterator[Pairs]:
    """The pairs that are asked for, all of them granted."""
    found: Pairs = set()
    with pytest.MonkeyPatch.context() as patch:
        may = Access.may

        def noted(self: Access, right: str, pattern: str) -> bool:
            found.add((right, pattern))
            return may(self, right, pattern)

        def heard(self: Access, topic: str) -> bool:
            found.add(("any", topic))
            return any(may(self, right, topic) for right in RIGHTS)

        patch.setattr(Access, "may", noted)
        patch.setattr(Access, "may_hear_of", heard)
        yield found


def codes(answer: Any) -> set[int]:
    """All error codes of an answer."""
    if isinstance(answer, list):
        return set().union(*map(codes, answer)) if answer else set()
    if not isinstance(answer, dict):
        return set()
    found = set().union(*(codes(value) for value in answer.values()))
    return found | ({answer["error_code"]} if answer.get("error_code") else set())


def test_the_matrix_has_every_api() -> None:
    assert ASKED.keys() == tables.APIS.keys()


def test_each_api_asks_for_the_rights_of_the_matrix(served: Served) -> None:
    bare, found = client(served, "every", SECRET), {}
    for key, (body, _) in ASKED.items():
        if key == tables.OFFSET_DELETE:  # the group is deleted
            bare.ask(tables.OFFSET_COMMIT, 7, ASKED[tables.OFFSET_COMMIT][0])
        with asked_rights() as pairs:
            bare.ask(key, tables.APIS[key].last, body)
        found[key] = pairs
    bare.close()
    assert found == {key: pairs for key, (_, pairs) in ASKED.items()}


def test_each_api_refuses_a_client_without_them_and_changes_nothing(served: Served) -> None:
    rich = client(served, "every", SECRET)
    rich.ask(tables.OFFSET_COMMIT, 7, ASKED[tables.OFFSET_COMMIT][0])
    bare, accepted = client(served, "poor", POOR_SECRET), []
    for key, (body, pairs) in ASKED.items():
        if pairs:
            answer = bare.ask(key, tables.APIS[key].last, body)
            if not codes(answer) or not codes(answer) <= DENIALS:
                accepted.append((tables.APIS[key].name, answer))
    assert accepted == []
    assert [each.next_token for each in served.link.node.durable.topics["mine"].logs] == [0]
    kept = rich.ask(tables.OFFSET_FETCH, 5, ASKED[tables.OFFSET_FETCH][0])
    assert kept["topics"][0]["partitions"][0]["committed_offset"] == 0
    bare.close()
    rich.close()
