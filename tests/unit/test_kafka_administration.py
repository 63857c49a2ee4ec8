"""Topics, settings and groups administered over Kafka's protocol: answers, rights, refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.support.kafka import Bare, Served, batch_of
from tests.support.ports import free_port

from tidecast.access import Scope, new_key
from tidecast.kafka.codes import Code
from tidecast.kafka.schemas import tables
from tidecast.kafka.wire import BadRequest, Struct

TOPICS: list[dict[str, Any]] = [
    {"name": "kept", "mode": "durable", "queues": 2, "retention_s": 60},
    {"name": "unsynced", "mode": "durable", "fsync": "none"},
    {"name": "elsewhere", "mode": "durable", "owner": "another", "transport": "wire", "queues": 3},
    {"name": "live"},
]
SECRET, KEY = new_key(
    "shop",
    [
        Scope(pattern="shop.*", rights=["manage", "publish", "subscribe"]),
        Scope(pattern="kept", rights=["subscribe"]),
    ],
)
ROOT_SECRET, ROOT = new_key("root", [Scope(pattern=">", rights=["manage"])])
TOPIC, BROKER = 2, 4


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    wire = {"name": "wire", "kind": "udp-unicast", "port": free_port()}
    made = Served(tmp_path_factory.mktemp("node"), TOPICS, transports=[wire])
    yield made
    assert made.endpoint.counters.of("faults") == 0
    made.close()


@pytest.fixture
def bare(served: Served) -> Iterator[Bare]:
    made = served.bare()
    yield made
    made.close()


def create(bare: Bare, name: str, *, check: bool = False, **asked: Any) -> Struct:
    """The row of one topic in an answer to CreateTopics."""
    given = {"name": name, "num_partitions": 1, "replication_factor": 1} | asked
    given["configs"] = [{"name": n, "value": v} for n, v in asked.get("configs", {}).items()]
    body = {"topics": [given], "timeout_ms": 1000, "validate_only": check}
    row: Struct = bare.ask(tables.CREATE_TOPICS, 5, body)["topics"][0]
    return row


def delete(bare: Bare, *names: str) -> list[Code]:
    answer = bare.ask(tables.DELETE_TOPICS, 5, {"topic_names": names, "timeout_ms": 1000})
    return [Code(row["error_code"]) for row in answer["responses"]]


def grow(bare: Bare, name: str, count: int, *, check: bool = False, **asked: Any) -> Struct:
    body = {"topics": [{"name": name, "count": count} | asked], "validate_only": check}
    row: Struct = bare.ask(tables.CREATE_PARTITIONS, 3, body)["results"][0]
    return row


def described(bare: Bare, name: str, kind: int = TOPIC, **asked: Any) -> Struct:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None} | asked
    body = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
    row: Struct = bare.ask(tables.DESCRIBE_CONFIGS, 4, body)["results"][0]
    return row


def values(bare: Bare, name: str) -> dict[str, str]:
    return {each["name"]: each["value"] for each in described(bare, name)["configs"]}


def alter(
    bare: Bare,
    name: str,
    *changes: tuple[int, str, str | None],
    kind: int = TOPIC,
    check: bool = False,
) -> Struct:
    """The row of one resource in an answer to IncrementalAlterConfigs."""
    configs = [{"config_operation": o, "name": n, "value": v} for o, n, v in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    body = {"resources": [resource], "validate_only": check}
    row: Struct = bare.ask(tables.INCREMENTAL_ALTER_CONFIGS, 1, body)["responses"][0]
    return row


def test_every_api_of_the_table_is_served(bare: Bare) -> None:
    """A request with nothing in it gets an answer: the connection is not ended as by a defect."""
    for key, api in tables.APIS.items():
        if key not in (tables.PRODUCE, tables.FETCH, tables.JOIN_GROUP, tables.SYNC_GROUP):
            asked = {each.name for each in api.request} & {"topics", "resources"}
            bare.ask(key, api.last, {name: [] for name in asked})


def test_a_topic_is_created_used_and_deleted(served: Served, bare: Bare) -> None:
    row = create(bare, "made", num_partitions=3, configs={"retention.ms": "90000"})
    assert (row["error_code"], row["num_partitions"], row["replication_factor"]) == (0, 3, 1)
    assert {"name": "retention.ms", "value": "90000"}.items() <= row["configs"][0].items()
    config = served.link.node.topic_by_name["made"]
    assert (config.mode, config.queues, config.retention_s) == ("durable", 3, 90.0)
    assert bare.produce("made", 2, batch_of(b"a"))["base_offset"] == 0
    assert create(bare, "made")["error_code"] == Code.TOPIC_ALREADY_EXISTS
    assert delete(bare, "made", "made", "missing") == [
        Code.NONE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert "made" not in served.link.node.topic_by_name
    missing = bare.produce("made", 2, batch_of(b"a"))["error_code"]
    assert missing == Code.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("name", "asked", "code", "text"),
    [
        ("a b", {}, Code.INVALID_TOPIC_EXCEPTION, "a b"),
        ("live", {}, Code.TOPIC_ALREADY_EXISTS, "is live"),
        ("x", {"num_partitions": 0}, Code.INVALID_PARTITIONS, "0: allowed are 1 to 1024"),
        ("x", {"num_partitions": 1025}, Code.INVALID_PARTITIONS, "1025"),
        ("x", {"replication_factor": 3}, Code.INVALID_REPLICATION_FACTOR, "factor 3: allowed is 1"),
        ("x", {"configs": {"segment.ms": "5"}}, Code.INVALID_CONFIG, r"segment\.ms.*retention\.ms"),
        ("x", {"configs": {"retention.ms": "0"}}, Code.INVALID_CONFIG, r"retention\.ms: '0': .*1"),
        ("x", {"configs": {"retention.ms": "soon"}}, Code.INVALID_CONFIG, r"retention\.ms: soon"),
        ("x", {"configs": {"retention.ms": None}}, Code.INVALID_CONFIG, r"retention\.ms: None"),
        ("x", {"configs": {"segment.bytes": "9"}}, Code.INVALID_CONFIG, r"segment\.bytes.*65536"),
        ("x", {"configs": {"cleanup.policy": "compact"}}, Code.INVALID_CONFIG, "always delete"),
        (
            "x",
            {"assignments": [{"partition_index": 1, "broker_ids": [7]}]},
            Code.INVALID_REPLICA_ASSIGNMENT,
            "from 0 on",
        ),
        (
            "x",
            {"assignments": [{"partition_index": 0, "broker_ids": [0, 7]}]},
            Code.INVALID_REPLICA_ASSIGNMENT,
            "this engine",
        ),
    ],
)
def test_a_topic_that_cannot_be(
    served: Served, bare: Bare, name: str, asked: dict[str, Any], code: Code, text: str
) -> None:
    before = dict(served.link.node.topic_by_name)
    row = create(bare, name, **asked)
    assert (row["error_code"], row["num_partitions"]) == (code, -1)
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(row["error_message"])
    assert served.link.node.topic_by_name == before


def test_creating_may_be_checked_alone(served: Served, bare: Bare) -> None:
    assert create(bare, "only.checked", num_partitions=4, check=True)["num_partitions"] == 4
    assert "only.checked" not in served.link.node.topic_by_name
    assert create(bare, "kept", check=True)["error_code"] == Code.TOPIC_ALREADY_EXISTS


def test_defaults_and_settings_that_never_change_may_be_given(served: Served, bare: Bare) -> None:
    fixed = {"cleanup.policy": "delete", "min.insync.replicas": "1"}
    unlimited = {"retention.ms": "-1", "retention.bytes": "-1"}
    row = create(bare, "plain", num_partitions=-1, replication_factor=-1, configs=fixed | unlimited)
    assert (row["error_code"], row["num_partitions"]) == (0, 1)
    config = served.link.node.topic_by_name["plain"]
    assert (config.retention_s, config.retention_bytes) == (0, 0)
    me = served.link.node.id
    places = [{"partition_index": i, "broker_ids": [me]} for i in (1, 0)]
    row = create(bare, "placed", num_partitions=-1, replication_factor=-1, assignments=places)
    assert (row["error_code"], row["num_partitions"]) == (0, 2)
    topics = [{"name": "twice", "num_partitions": 1, "replication_factor": 1}] * 2
    answer = bare.ask(tables.CREATE_TOPICS, 4, {"topics": topics})["topics"]
    assert [each["error_code"] for each in answer] == [Code.INVALID_REQUEST] * 2


def test_partitions_are_added(served: Served, bare: Bare) -> None:
    assert create(bare, "grows", num_partitions=2)["error_code"] == 0
    assert grow(bare, "grows", 5, check=True)["error_code"] == 0
    assert served.link.node.topic_by_name["grows"].queues == 2
    assert grow(bare, "grows", 5)["error_code"] == 0
    assert bare.produce("grows", 4, batch_of(b"a"))["base_offset"] == 0
    for count in (5, 4, 1025):
        row = grow(bare, "grows", count)
        assert row["error_code"] == Code.INVALID_PARTITIONS
        assert "allowed are 6 to 1024" in row["error_message"]
    me = [{"broker_ids": [served.link.node.id]}]
    refused = grow(bare, "grows", 7, assignments=me)["error_code"]
    assert refused == Code.INVALID_REPLICA_ASSIGNMENT
    assert grow(bare, "grows", 6, assignments=me)["error_code"] == 0
    assert grow(bare, "live", 6)["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
    row = grow(bare, "elsewhere", 6)
    assert row["error_code"] == Code.POLICY_VIOLATION
    assert "another engine" in row["error_message"]
    assert delete(bare, "elsewhere", "live") == [
        Code.POLICY_VIOLATION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_settings_are_described(served: Served, bare: Bare) -> None:
    rows = {each["name"]: each for each in described(bare, "kept")["configs"]}
    assert rows["retention.ms"]["value"] == "60000"
    assert rows["retention.ms"]["documentation"]
    assert [each["value"] for each in rows["retention.ms"]["synonyms"]] == ["60000", "-1"]
    sources = {name: each["config_source"] for name, each in rows.items()}
    assert sources.pop("retention.ms") == 1
    assert set(sources.values()) == {5}
    assert rows["cleanup.policy"]["read_only"]
    assert not rows["segment.bytes"]["read_only"]
    assert values(bare, "unsynced")["flush.ms"] == str((1 << 63) - 1)
    some = described(bare, "kept", configuration_keys=["segment.bytes", "nothing"])["configs"]
    assert [each["name"] for each in some] == ["segment.bytes"]
    for name in ("missing", "live"):
        assert described(bare, name)["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
    me = described(bare, str(served.link.node.id), BROKER)
    assert {each["name"] for each in me["configs"]} >= {"message.max.bytes", "max.connections"}
    assert described(bare, "0", BROKER)["error_code"] == Code.INVALID_REQUEST
    assert described(bare, "", 8)["error_code"] == Code.INVALID_REQUEST


def test_settings_are_altered_one_by_one(served: Served, bare: Bare) -> None:
    assert create(bare, "tuned", configs={"segment.bytes": "70000"})["error_code"] == 0
    changes = [(0, "retention.bytes", "1000000"), (0, "flush.ms", "5")]
    assert alter(bare, "tuned", *changes, check=True)["error_code"] == 0
    assert values(bare, "tuned")["flush.ms"] == "50"
    assert alter(bare, "tuned", *changes)["error_code"] == 0
    found = served.link.node.durable.topics["tuned"].config
    assert (found.retention_bytes, found.fsync_interval_ms, found.segment_bytes) == (
        1_000_000,
        5.0,
        70_000,
    )
    assert alter(bare, "tuned", (1, "retention.bytes", None))["error_code"] == 0
    assert values(bare, "tuned")["retention.bytes"] == "-1"
    assert values(bare, "tuned")["flush.ms"] == "5"


@pytest.mark.parametrize(
    ("name", "change", "code", "text"),
    [
        ("kept", (2, "cleanup.policy", "compact"), Code.INVALID_CONFIG, "SET"),
        ("kept", (0, "segment.ms", "5"), Code.INVALID_CONFIG, "segment.ms"),
        ("kept", (0, "max.message.bytes", "5"), Code.INVALID_CONFIG, "always 16777216"),
        ("unsynced", (0, "flush.ms", "5"), Code.INVALID_CONFIG, "is none"),
        ("missing", (0, "flush.ms", "5"), Code.UNKNOWN_TOPIC_OR_PARTITION, "missing"),
        ("elsewhere", (0, "flush.ms", "5"), Code.POLICY_VIOLATION, "another engine"),
    ],
)
def test_settings_that_cannot_be(
    served: Served, bare: Bare, name: str, change: tuple[int, str, str], code: Code, text: str
) -> None:
    before = dict(served.link.node.topic_by_name)
    row = alter(bare, name, (0, "retention.bytes", "5"), change)
    assert row["error_code"] == code
    assert text in row["error_message"]
    assert served.link.node.topic_by_name == before  # the sound setting beside it neither


def test_settings_are_altered_all_together(bare: Bare) -> None:
    given = {"segment.bytes": "70000", "retention.ms": "5000"}
    assert create(bare, "whole", configs=given)["error_code"] == 0
    configs = [{"name": "retention.bytes", "value": "77"}]
    resource = {"resource_type": TOPIC, "resource_name": "whole", "configs": configs}
    for body in ({"resources": [resource], "validate_only": True}, {"resources": [resource]}):
        before = values(bare, "whole")
        assert before["retention.ms"] == "5000"
        assert bare.ask(tables.ALTER_CONFIGS, 2, body)["responses"][0]["error_code"] == 0
    after = values(bare, "whole")
    assert (after["retention.ms"], after["retention.bytes"]) == ("-1", "77")
    assert after["segment.bytes"] == str(128 << 20)
    twice = bare.ask(tables.ALTER_CONFIGS, 1, {"resources": [resource] * 2})["responses"]
    assert [each["error_code"] for each in twice] == [Code.INVALID_REQUEST] * 2
    broker = {"resource_type": BROKER, "resource_name": "", "configs": configs}
    row = bare.ask(tables.ALTER_CONFIGS, 2, {"resources": [broker]})["responses"][0]
    assert row["error_code"] == Code.INVALID_REQUEST
    assert "topology file" in row["error_message"]


def test_the_cluster_is_described(served: Served, bare: Bare) -> None:
    found = bare.ask(tables.DESCRIBE_CLUSTER, 1, {"endpoint_type": 1})
    me = served.link.node.id
    assert [(b["broker_id"], b["port"]) for b in found["brokers"]] == [(me, served.endpoint.port)]
    assert found["controller_id"] == me
    assert found["cluster_id"] == bare.ask(tables.METADATA, 8, {"topics": []})["cluster_id"]
    answer = bare.ask(tables.DESCRIBE_CLUSTER, 1, {"endpoint_type": 2})
    assert answer["error_code"] == Code.MISMATCHED_ENDPOINT_TYPE


# --- groups ---------------------------------------------------------------------------------------


def commit(bare: Bare, group: str, topic: str, *offsets: int) -> None:
    rows = [{"partition_index": i, "committed_offset": n} for i, n in enumerate(offsets)]
    body = {"group_id": group, "generation_id": -1, "topics": [{"name": topic, "partitions": rows}]}
    answer = bare.ask(tables.OFFSET_COMMIT, 7, body)["topics"][0]["partitions"]
    assert not any(row["error_code"] for row in answer)


def committed(bare: Bare, group: str, topic: str, n: int = 2) -> list[int]:
    topics = [{"name": topic, "partition_indexes": list(range(n))}]
    answer = bare.ask(tables.OFFSET_FETCH, 5, {"group_id": group, "topics": topics})
    return [row["committed_offset"] for row in answer["topics"][0]["partitions"]]


def listed(bare: Bare, **body: Any) -> dict[str, str]:
    rows = bare.ask(tables.LIST_GROUPS, 5, body)["groups"]
    return {row["group_id"]: row["group_state"] for row in rows}


def delete_groups(bare: Bare, *names: str) -> list[Code]:
    rows = bare.ask(tables.DELETE_GROUPS, 2, {"groups_names": names})["results"]
    return [Code(row["error_code"]) for row in rows]


def join(bare: Bare, group: str, *topics: str) -> str:
    """A member that subscribes to topics; its id."""
    said = b"\0\0" + len(topics).to_bytes(4, "big")
    said += b"".join(len(t).to_bytes(2, "big") + t.encode() for t in topics)
    body = {
        "group_id": group,
        "session_timeout_ms": 60_000,
        "rebalance_timeout_ms": 100,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": said}],
    }
    answer = bare.ask(tables.JOIN_GROUP, 3, body)
    assert answer["error_code"] == 0
    return str(answer["member_id"])


def test_groups_and_offsets_are_deleted(served: Served, bare: Bare) -> None:
    commit(bare, "billing", "kept", 0, 0)
    member = join(bare, "joined", "kept")
    assert listed(bare) == {"billing": "Empty", "joined": "CompletingRebalance"}
    assert listed(bare, states_filter=["empty"]) == {"billing": "Empty"}
    assert listed(bare, types_filter=["consumer"]) == {}
    rows = bare.ask(tables.DESCRIBE_GROUPS, 5, {"groups": ["joined"]})["groups"]
    assert [each["member_id"] for each in rows[0]["members"]] == [member]
    assert delete_groups(bare, "joined", "missing", "billing") == [
        Code.NON_EMPTY_GROUP,
        Code.GROUP_ID_NOT_FOUND,
        Code.NONE,
    ]
    assert committed(bare, "billing", "kept") == [-1, -1]
    assert listed(bare).keys() == {"joined"}
    assert not list((served.link.node.data_dir / "kafka" / "groups").glob("*.json"))
    left = bare.ask(tables.LEAVE_GROUP, 2, {"group_id": "joined", "member_id": member})
    assert left["error_code"] == 0


def test_offsets_of_a_topic_are_deleted(bare: Bare) -> None:
    for topic in ("kept", "unsynced"):
        commit(bare, "some", topic, 0)
    member = join(bare, "some", "unsynced")

    def forget(topic: str, group: str = "some") -> Struct:
        topics = [{"name": topic, "partitions": [{"partition_index": 0}]}]
        return bare.ask(tables.OFFSET_DELETE, 0, {"group_id": group, "topics": topics})

    used = forget("unsynced")["topics"][0]["partitions"][0]["error_code"]
    assert used == Code.GROUP_SUBSCRIBED_TO_TOPIC
    assert forget("kept")["topics"][0]["partitions"][0]["error_code"] == 0
    assert committed(bare, "some", "kept", 1) == [-1]
    assert committed(bare, "some", "unsynced", 1) == [0]
    assert forget("kept", "missing")["error_code"] == Code.GROUP_ID_NOT_FOUND
    bare.ask(tables.LEAVE_GROUP, 2, {"group_id": "some", "member_id": member})
    assert delete_groups(bare, "some") == [Code.NONE]


def test_a_topic_takes_the_offsets_of_groups_along(
    served: Served, bare: Bare, eventually: Eventually
) -> None:
    for _ in range(2):  # by Kafka's tools, and by ours
        create(bare, "again")
        bare.produce("again", 0, batch_of(b"a", b"b"))
        commit(bare, "reader", "again", 2)
        commit(bare, "reader", "kept", 0)
        assert committed(bare, "reader", "again", 1) == [2]
        if _ == 0:
            assert delete(bare, "again") == [Code.NONE]
        else:
            served.link.node.delete_topic("again")
        eventually(lambda: committed(bare, "reader", "again", 1) == [-1], "the offset is gone")
        assert committed(bare, "reader", "kept", 1) == [0]
    assert delete_groups(bare, "reader") == [Code.NONE]


def test_topics_go_while_clients_use_them(served: Served, bare: Bare) -> None:
    """Answers say that the topic is gone or moved; nothing is read of what was deleted."""
    turns, ended = 15, threading.Event()
    allowed = {
        Code.NONE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.OFFSET_OUT_OF_RANGE,
        Code.KAFKA_STORAGE_ERROR,
        Code.REQUEST_TIMED_OUT,
    }
    codes: set[Code] = set()

    failures: list[Exception] = []

    def use(step: Callable[[Bare], Struct]) -> None:
        client = served.bare()
        try:
            while not ended.is_set():
                codes.add(Code(step(client)["error_code"]))
        except (OSError, BadRequest, ValueError) as problem:
            failures.append(problem)
        client.close()

    def produce(client: Bare) -> Struct:
        return client.produce("comes", 0, batch_of(*[bytes(1000)] * 50), timeout_ms=2000)

    def fetch(client: Bare) -> Struct:
        return client.fetch("comes", 0, 0, max_wait_ms=5)

    threads = [threading.Thread(target=use, args=(step,)) for step in (produce, fetch, fetch)]
    for thread in threads:
        thread.start()
    for _ in range(turns):
        assert create(bare, "comes")["error_code"] == 0
        while bare.fetch("comes", 0, 0, max_wait_ms=50)["high_watermark"] < 50:
            assert failures == []
        assert delete(bare, "comes") == [Code.NONE]
    ended.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert codes <= allowed, codes
    assert {Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION} <= codes


def test_sizes_of_partitions(served: Served, bare: Bare) -> None:
    def sizes(version: int = 4, topics: Any = None) -> dict[tuple[str, int], int]:
        (row,) = bare.ask(tables.DESCRIBE_LOG_DIRS, version, {"topics": topics})["results"]
        assert (row["error_code"], row["log_dir"]) == (0, str(served.link.node.data_dir))
        if version == 4:
            assert 0 <= row["usable_bytes"] < row["total_bytes"]
        return {
            (topic["name"], each["partition_index"]): each["partition_size"]
            for topic in row["topics"]
            for each in topic["partitions"]
            if (each["offset_lag"], each["is_future_key"]) == (0, False)
        }

    before = sizes()
    assert {("kept", 0), ("kept", 1), ("unsynced", 0)} <= before.keys()
    assert not {"elsewhere", "live"} & {name for name, _ in before}, "not kept here"
    assert bare.produce("kept", 1, batch_of(bytes(5000)))["error_code"] == 0
    after = sizes()
    logs = served.link.node.durable.topics["kept"].logs
    assert after["kept", 1] == logs[1].bytes > before["kept", 1] + 5000
    assert after["kept", 0] == before["kept", 0] == logs[0].bytes
    asked = [{"topic": "kept", "partitions": [1, 9]}, {"topic": "missing", "partitions": [0]}]
    for version in range(1, 5):
        assert sizes(version, asked) == {("kept", 1): after["kept", 1]}
    again = [*asked, {"topic": "kept", "partitions": [0, 0]}]
    assert sizes(4, again) == {("kept", n): after["kept", n] for n in (0, 1)}


# --- rights ---------------------------------------------------------------------------------------


def test_rights(short_dir: Path) -> None:
    served = Served(short_dir, TOPICS[:2], keys=[KEY, ROOT])
    bare, root = served.bare(), served.bare()
    assert bare.log_in("shop", SECRET) == root.log_in("root", ROOT_SECRET) == 0
    denied = Code.TOPIC_AUTHORIZATION_FAILED
    assert create(bare, "shop.new")["error_code"] == 0
    row = create(bare, "other")
    assert row["error_code"] == denied
    assert "manage on other" in row["error_message"]
    assert create(bare, "kept")["error_code"] == denied
    assert delete(bare, "kept", "missing") == [denied] * 2  # a key learns of no other topic
    assert grow(bare, "kept", 5)["error_code"] == denied
    assert alter(bare, "kept", (0, "retention.ms", "5"))["error_code"] == denied
    assert described(bare, "kept")["error_code"] == 0
    assert described(bare, "unsynced")["error_code"] == denied
    assert described(bare, "", BROKER)["error_code"] == Code.CLUSTER_AUTHORIZATION_FAILED
    dirs = bare.ask(tables.DESCRIBE_LOG_DIRS, 3, {"topics": None})
    assert (dirs["error_code"], dirs["results"]) == (Code.CLUSTER_AUTHORIZATION_FAILED, [])
    assert len(root.ask(tables.DESCRIBE_LOG_DIRS, 3, {"topics": None})["results"]) == 1
    commit(bare, "mixed", "kept", 0)
    commit(bare, "mixed", "shop.new", 0)
    commit(bare, "own", "shop.new", 0)
    refused = Code.GROUP_AUTHORIZATION_FAILED
    assert delete_groups(bare, "mixed", "missing", "own") == [refused, refused, Code.NONE]
    assert bare.ask(tables.LIST_GROUPS, 5, {})["error_code"] == refused
    assert listed(root) == {"mixed": "Empty"}
    topics = [{"name": n, "partitions": [{"partition_index": 0}]} for n in ("kept", "shop.new")]
    answer = bare.ask(tables.OFFSET_DELETE, 0, {"group_id": "mixed", "topics": topics})
    codes = [each["partitions"][0]["error_code"] for each in answer["topics"]]
    assert codes == [denied, Code.NONE]
    assert delete_groups(root, "mixed", "missing") == [Code.NONE, Code.GROUP_ID_NOT_FOUND]
    assert grow(bare, "shop.new", 3)["error_code"] == 0
    assert delete(bare, "shop.new") == [Code.NONE]
    assert served.endpoint.counters.of("denied") >= 9
    bare.close()
    root.close()
    served.close()
