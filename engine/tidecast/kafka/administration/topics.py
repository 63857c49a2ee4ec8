"""CreateTopics, DeleteTopics, CreatePartitions, settings, sizes: topics as Kafka's tools see them.

Each change is made by `tidecast.node.administration`, as one from the command line or the page is.
The methods are called in one thread, in which files may be made.
"""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from tidecast.access import Access
from tidecast.config.check import shown
from tidecast.config.topology import QUEUES_MAX, TopicConfig, topic_name_problem
from tidecast.errors import ConfigError, Conflict, NotFound, StorageError, TidecastError
from tidecast.kafka.administration import settings
from tidecast.kafka.administration.settings import (
    BROKER_RESOURCE,
    SETTINGS,
    TOPIC_RESOURCE,
    Kind,
)
from tidecast.kafka.codes import Code, Refused
from tidecast.kafka.wire import Struct
from tidecast.node.access.rights import to_administer
from tidecast.node.administration import Administration, topic_of

if TYPE_CHECKING:
    from tidecast.log.queue_log import QueueLog
    from tidecast.node.node import Node

REPLICAS = (1, -1)
"""A partition is kept once; -1 leaves the number to the endpoint."""
SET, DELETE = 0, 1
"""Operations of IncrementalAlterConfigs; the others are for lists, and none can be changed."""
_CODES: tuple[tuple[type[TidecastError], Code], ...] = (
    (Conflict, Code.TOPIC_ALREADY_EXISTS),
    (ConfigError, Code.INVALID_CONFIG),
    (NotFound, Code.UNKNOWN_TOPIC_OR_PARTITION),
    (StorageError, Code.KAFKA_STORAGE_ERROR),
)


class Caller(Protocol):
    """The client that asks."""

    @property
    def access(self) -> Access:
        """Its key."""

    def may(self, right: str, pattern: str) -> bool:
        """Has the key the right? A missing one is counted and reported."""


def _code_of(problem: TidecastError) -> Code:
    return next(
        (code for kind, code in _CODES if isinstance(problem, kind)), Code.UNKNOWN_SERVER_ERROR
    )


class TopicAdministration:
    """See module. ``of_broker()``: settings of the endpoint as (name, value, kind)."""

    def __init__(
        self,
        node: Node,
        administration: Administration,
        of_broker: Callable[[], list[tuple[str, str, Kind]]],
    ) -> None:
        self._node, self._administration, self._of_broker = node, administration, of_broker

    # --- topics -----------------------------------------------------------------------------------

    def create(self, caller: Caller, body: Struct) -> Struct:
        """CreateTopics: each topic by itself."""
        names = Counter(each["name"] for each in body["topics"])
        rows = []
        for asked in body["topics"]:
            row = {"name": asked["name"], "num_partitions": -1, "replication_factor": -1}
            if names[asked["name"]] > 1:
                row |= _answer(Code.INVALID_REQUEST, "the request names the topic twice")
            else:
                row |= self._tried(self._create, caller, asked, body["validate_only"])
            rows.append(row)
        return {"topics": rows}

    def _create(self, caller: Caller, asked: Struct, check: bool) -> Struct:
        name = asked["name"]
        problem = topic_name_problem(name)
        if problem is not None:
            raise Refused(Code.INVALID_TOPIC_EXCEPTION, problem)
        _need(caller, "create_topic", name)
        if name in self._node.topic_by_name:
            mode = self._node.topic_by_name[name].mode
            raise Refused(Code.TOPIC_ALREADY_EXISTS, f"topic {name} exists already, and is {mode}")
        changes = settings.changes_of((each["name"], each["value"]) for each in asked["configs"])
        wanted = {"mode": "durable", "queues": self._partitions(asked)} | changes
        made = self._administration.create(topic_of(name, wanted), check=check)
        rows = [settings.row_of(s, made) for s in SETTINGS.values()]
        return {"num_partitions": made.queues, "replication_factor": 1, "configs": rows}

    def _partitions(self, asked: Struct) -> int:
        """How many partitions a new topic gets. Raises Refused."""
        count = asked["num_partitions"]
        if asked["assignments"]:
            indexes = sorted(each["partition_index"] for each in asked["assignments"])
            if indexes != list(range(len(indexes))):
                text = "replica assignments: allowed is each partition from 0 on, once"
                raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, text)
            self._check_assigned(asked["assignments"])
            count = len(indexes)
        elif asked["replication_factor"] not in REPLICAS:
            raise Refused(
                Code.INVALID_REPLICATION_FACTOR,
                f"replication factor {asked['replication_factor']}: allowed is 1: this engine "
                "keeps a partition once",
            )
        count = 1 if count == -1 else count
        if not 1 <= count <= QUEUES_MAX:
            text = f"partitions: {count}: allowed are 1 to {QUEUES_MAX}"
            raise Refused(Code.INVALID_PARTITIONS, text)
        return count

    def _check_assigned(self, assignments: list[Struct]) -> None:
        if any(list(each["broker_ids"]) != [self._node.id] for each in assignments):
            raise Refused(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"replica assignments: allowed is [{self._node.id}], this engine, alone",
            )

    def delete(self, caller: Caller, body: Struct) -> Struct:
        """DeleteTopics: with all records, and the offsets that groups have committed."""
        rows = [
            {"name": name} | self._tried(self._delete, caller, name)
            for name in dict.fromkeys(body["topic_names"])
        ]
        return {"responses": rows}

    def _delete(self, caller: Caller, name: str) -> Struct:
        self._kept(caller, "delete_topic", name)
        self._administration.delete(name)
        return {}

    def add_partitions(self, caller: Caller, body: Struct) -> Struct:
        """CreatePartitions: each topic by itself."""
        names = Counter(each["name"] for each in body["topics"])
        rows = []
        for asked in body["topics"]:
            if names[asked["name"]] > 1:
                found = _answer(Code.INVALID_REQUEST, "the request names the topic twice")
            else:
                found = self._tried(self._grow, caller, asked, body["validate_only"])
            rows.append({"name": asked["name"]} | found)
        return {"results": rows}

    def _grow(self, caller: Caller, asked: Struct, check: bool) -> Struct:
        topic, count = self._kept(caller, "edit_topic", asked["name"]), asked["count"]
        if not topic.queues < count <= QUEUES_MAX:
            raise Refused(
                Code.INVALID_PARTITIONS,
                f"partitions: {count}: topic {topic.name} has {topic.queues}: allowed are "
                f"{topic.queues + 1} to {QUEUES_MAX}",
            )
        if asked["assignments"] is not None:
            if len(asked["assignments"]) != count - topic.queues:
                text = f"replica assignments: allowed are {count - topic.queues}, the new ones"
                raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, text)
            self._check_assigned(asked["assignments"])
        self._administration.edit(topic.name, {"queues": count}, check=check)
        return {}

    def _kept(self, caller: Caller, action: str, name: str) -> TopicConfig:
        """A topic whose queues are kept here and that the client may change. Raises Refused."""
        _need(caller, action, name)
        found = self._node.topic_by_name.get(name)
        if found is None or found.mode != "durable":
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"no durable topic {shown(name)}")
        if name not in self._node.durable.topics:
            text = f"topic {name}: another engine keeps its partitions: change it there"
            raise Refused(Code.POLICY_VIOLATION, text)
        return found

    # --- settings ---------------------------------------------------------------------------------

    def describe(self, caller: Caller, body: Struct) -> Struct:
        """DescribeConfigs: of topics, and of the endpoint."""
        named = _resources(body)
        rows = []
        for asked in body["resources"]:
            kind, name = asked["resource_type"], asked["resource_name"]
            row = {"resource_type": kind, "resource_name": name, "configs": []}
            if named[kind, name] > 1:
                row |= _answer(Code.INVALID_REQUEST, "the request names the resource twice")
            else:
                row |= self._tried(self._describe, caller, asked, body)
            rows.append(row)
        return {"results": rows}

    def _describe(self, caller: Caller, asked: Struct, body: Struct) -> Struct:
        keys, name = asked["configuration_keys"], asked["resource_name"]
        if asked["resource_type"] == BROKER_RESOURCE:
            self._check_broker(caller, name)
            rows = [settings.broker_row(*each) for each in self._of_broker()]
        elif asked["resource_type"] == TOPIC_RESOURCE:
            topic = self._node.topic_by_name.get(name)
            if not caller.access.may_hear_of(name):
                raise Refused(Code.TOPIC_AUTHORIZATION_FAILED, f"the key has no right on {name}")
            if topic is None or topic.mode != "durable":
                raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"no durable topic {shown(name)}")
            synonyms, text = body["include_synonyms"], body.get("include_documentation", False)
            rows = [
                settings.described(each, topic, synonyms=synonyms, text=text)
                for each in SETTINGS.values()
            ]
        else:
            raise _no_resource(asked["resource_type"])
        return {"configs": [row for row in rows if keys is None or row["name"] in keys]}

    def describe_log_dirs(self, caller: Caller, body: Struct) -> Struct:
        """DescribeLogDirs: the data directory, and the bytes of each partition in it."""
        try:
            self._check_broker(caller, "")
        except Refused as problem:
            return {"error_code": problem.code}
        asked = body["topics"]
        wanted: defaultdict[str, set[int]] = defaultdict(set)
        for row in asked or ():
            wanted[row["topic"]].update(row["partitions"])
        topics = []
        for name, topic in sorted(dict(self._node.durable.topics).items()):
            if asked is None or name in wanted:
                logs = [log for log in topic.logs if asked is None or log.queue in wanted[name]]
                topics.append({"name": name, "partitions": [_size_of(log) for log in logs]})
        row = {"error_code": Code.NONE, "log_dir": str(self._node.data_dir), "topics": topics}
        try:
            disk = shutil.disk_usage(self._node.data_dir)
            row |= {"total_bytes": disk.total, "usable_bytes": disk.free}
        except OSError:
            row |= {"error_code": Code.KAFKA_STORAGE_ERROR, "total_bytes": -1, "usable_bytes": -1}
        return {"results": [row]}

    def _check_broker(self, caller: Caller, name: str) -> None:
        for right, pattern in to_administer("describe_broker", {}):
            if not caller.may(right, pattern):
                text = f"the key lacks the right {right} on {pattern}"
                raise Refused(Code.CLUSTER_AUTHORIZATION_FAILED, text)
        if name not in ("", str(self._node.id)):
            raise Refused(Code.INVALID_REQUEST, f"broker {shown(name)}: this is {self._node.id}")

    def alter(self, caller: Caller, body: Struct) -> Struct:
        """AlterConfigs: settings that are not given return to their defaults."""
        return self._alter_all(caller, body, _all)

    def alter_incrementally(self, caller: Caller, body: Struct) -> Struct:
        """IncrementalAlterConfigs: settings that are not given stay."""
        return self._alter_all(caller, body, _increments)

    def _alter_all(
        self, caller: Caller, body: Struct, changes: Callable[[list[Struct]], dict[str, Any]]
    ) -> Struct:
        named = _resources(body)
        rows = []
        for asked in body["resources"]:
            kind, name = asked["resource_type"], asked["resource_name"]
            if named[kind, name] > 1:
                found = _answer(Code.INVALID_REQUEST, "the request names the resource twice")
            else:
                found = self._tried(self._alter, caller, asked, body["validate_only"], changes)
            rows.append({"resource_type": kind, "resource_name": name} | found)
        return {"responses": rows}

    def _alter(
        self,
        caller: Caller,
        asked: Struct,
        check: bool,
        changes: Callable[[list[Struct]], dict[str, Any]],
    ) -> Struct:
        if asked["resource_type"] == BROKER_RESOURCE:
            self._check_broker(caller, asked["resource_name"])
            text = "settings of the endpoint are in the topology file, and are read at the start"
            raise Refused(Code.INVALID_REQUEST, text)
        if asked["resource_type"] != TOPIC_RESOURCE:
            raise _no_resource(asked["resource_type"])
        topic = self._kept(caller, "edit_topic", asked["resource_name"])
        needed = settings.needed(topic, changes(asked["configs"]))
        if needed:
            self._administration.edit(topic.name, needed, check=check)
        return {}

    @staticmethod
    def _tried(step: Callable[..., Struct], *arguments: Any) -> Struct:
        """The answer of a step, or the reason why it is refused."""
        try:
            return _answer(Code.NONE, None) | step(*arguments)
        except Refused as problem:
            return _answer(problem.code, str(problem))
        except TidecastError as problem:
            return _answer(_code_of(problem), str(problem))


def _resources(body: Struct) -> Counter[tuple[int, str]]:
    """How often a request names each resource."""
    return Counter((each["resource_type"], each["resource_name"]) for each in body["resources"])


def _size_of(log: QueueLog) -> Struct:
    return {"partition_index": log.queue, "partition_size": log.bytes}


def _increments(configs: list[Struct]) -> dict[str, Any]:
    given = []
    for each in configs:
        setting, operation = settings.setting_of(each["name"]), each["config_operation"]
        if operation not in (SET, DELETE):
            text = f"{setting.name}: operation {operation}: allowed are SET (0) and DELETE (1)"
            raise Refused(Code.INVALID_CONFIG, text)
        given.append((setting.name, each["value"] if operation == SET else setting.default))
    return settings.changes_of(given)


def _all(configs: list[Struct]) -> dict[str, Any]:
    return settings.all_changes_of((each["name"], each["value"]) for each in configs)


def _need(caller: Caller, action: str, topic: str) -> None:
    """Raise Refused without the rights that the same action takes at every other door."""
    for right, pattern in to_administer(action, {"topic": topic}):
        if not caller.may(right, pattern):
            text = f"the key lacks the right {right} on {pattern}"
            raise Refused(Code.TOPIC_AUTHORIZATION_FAILED, text)


def _no_resource(kind: int) -> Refused:
    text = f"resource type {kind}: allowed are 2, a topic, and 4, a broker"
    return Refused(Code.INVALID_REQUEST, text)


def _answer(code: Code, text: str | None) -> Struct:
    return {"error_code": code, "error_message": text}
