"""A Kafka cluster as a client sees it: which broker leads a partition, and questions to brokers.

One for all receivers and senders of a topic; from any thread. Questions share a connection a broker
and are asked one after the other; a Fetch that waits has a connection of its own.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tidecast.api.connecting import Backoff
from tidecast.config.sources.kafka import KafkaSource
from tidecast.connections.registry import ConnectionRegistry
from tidecast.connections.retries import Attempts
from tidecast.connections.tcp import Address
from tidecast.connections.tls import client_context
from tidecast.errors import (
    AuthError,
    ConfigError,
    ConnectionLost,
    StorageError,
    TidecastError,
)
from tidecast.kafka.brokers.connection import Link, code_name
from tidecast.kafka.codes import Code
from tidecast.kafka.schemas import tables
from tidecast.kafka.wire import Struct

ASK_S, QUESTION_S = 10.0, 3.0
"""How long one answer may take; how long a question is asked again when its leader moves."""
REFRESH_S = 0.1
"""Metadata is not asked for again within it, however many partitions have lost their leader."""
CREATED_S = 1.0
"""So long a broker may not know of a topic that was created a moment ago."""
_TOPIC_RESOURCE = 2
MOVES = frozenset(
    {
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REPLICA_NOT_AVAILABLE,
        Code.REQUEST_TIMED_OUT,
        Code.NETWORK_EXCEPTION,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
    }
)
"""Errors that pass when another broker takes over: ask Metadata, and try again."""


class Leader(NamedTuple):
    """The leader of a partition."""

    address: Address
    epoch: int


def error_of(code: int, what: str) -> TidecastError:
    """The error for a code of an answer that no retry cures."""
    text = f"{what}: {code_name(code)}"
    if code in (
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        Code.SASL_AUTHENTICATION_FAILED,
    ):
        return AuthError(f"{text}: give the user the right to it (kafka-acls)")
    if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return ConfigError(f"{text}: the cluster has no such topic or partition: create it first")
    if code in (Code.INVALID_TOPIC_EXCEPTION, Code.UNSUPPORTED_VERSION):
        return ConfigError(text)
    return StorageError(text)


class Cluster:
    """See module. ``partitions``: of its topic."""

    def __init__(
        self,
        source: KafkaSource,
        *,
        create: int = 0,
        configs: Mapping[str, str] | None = None,
        begun: Callable[[Cluster], None] | None = None,
    ) -> None:
        """Asks for the leaders of the topic.

        ``create``: so many partitions if there is no such topic, with the settings ``configs``.

        ``begun``: called with this before the first question, so that `close` ends that, too.
        Raises ConfigError, AuthError, ConnectionLost, Closed.
        """
        self.source = source
        self.topic = source.topic
        self._tls = (
            client_context("kafka", source.ca, source.certificate, source.key)
            if source.tls
            else None
        )
        self._servers = [Address(*one) for one in source.addresses]
        self._brokers: dict[int, Address] = {}
        self._leaders: dict[int, Leader] = {}
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._links: dict[Address, tuple[threading.Lock, Link | None]] = {}
        self._connections = ConnectionRegistry(f"kafka {self.topic}")
        """All connections, also while they are being opened."""
        self._configs = dict(configs or {})
        self._refreshed_s = -REFRESH_S
        self._coordinator: Address | None = None
        self.partitions = 0
        try:
            if begun is not None:
                begun(self)
            self._find_topic(create)
        except BaseException:
            self.close()
            raise

    def _find_topic(self, create: int) -> None:
        begun, backoff = time.monotonic(), Backoff()
        while code := self.refresh():
            patience_s = CREATED_S if code == Code.UNKNOWN_TOPIC_OR_PARTITION else ASK_S
            if code not in MOVES or time.monotonic() - begun > patience_s:
                if not create or code != Code.UNKNOWN_TOPIC_OR_PARTITION:
                    raise error_of(code, f"topic {self.topic} of {self.source.servers}")
                self._create(create)
                begun, create = time.monotonic(), 0
            self.pause(max(REFRESH_S, backoff.next_s()))

    def _create(self, partitions: int) -> None:
        """Create the topic, with the cluster's replicas and settings. Raises as error_of."""
        wanted = {
            "name": self.topic,
            "num_partitions": partitions,
            "replication_factor": -1,
            "assignments": [],
            "configs": [{"name": n, "value": value} for n, value in self._configs.items()],
        }
        body = {"topics": [wanted], "timeout_ms": int(ASK_S * 1000), "validate_only": False}
        for row in self.ask_any(tables.CREATE_TOPICS, body)["topics"]:
            code = int(row["error_code"])
            if code not in (Code.NONE, Code.TOPIC_ALREADY_EXISTS):
                detail = row.get("error_message") or "create it"
                raise error_of(code, f"topic {self.topic} of {self.source.servers}: {detail}")

    # --- leaders ----------------------------------------------------------------------------------

    def refresh(self) -> int:
        """Ask any broker for the leaders of the topic; its error code. Raises ConnectionLost."""
        with self._asking:
            if time.monotonic() - self._refreshed_s < REFRESH_S:
                return 0
            answer = self.ask_any(tables.METADATA, {"topics": [{"name": self.topic}]})
            self._refreshed_s = time.monotonic()
            return self._note(answer)

    def _note(self, answer: Struct) -> int:
        brokers = {one["node_id"]: Address(one["host"], one["port"]) for one in answer["brokers"]}
        topic = next((one for one in answer["topics"] if one["name"] == self.topic), None)
        if topic is None:
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        if topic["error_code"]:
            return int(topic["error_code"])
        leaders = {
            one["partition_index"]: Leader(brokers[one["leader_id"]], one.get("leader_epoch", -1))
            for one in topic["partitions"]
            if one["leader_id"] in brokers
        }
        with self._lock:
            self._brokers, self._leaders = brokers, leaders
            self.partitions = max(self.partitions, len(topic["partitions"]))
        return 0

    def leader(self, partition: int) -> Leader:
        """The leader of a partition, as far as is known. Raises ConnectionLost."""
        with self._lock:
            found = self._leaders.get(partition)
        if found is None:
            raise ConnectionLost(f"{self.topic}/{partition}: no broker leads it now")
        return found

    def setting(self, name: str) -> str | None:
        """The value of a setting of the topic; None: no broker says it. Raises TidecastError."""
        wanted = {
            "resource_type": _TOPIC_RESOURCE,
            "resource_name": self.topic,
            "configuration_keys": [name],
        }
        body = {"resources": [wanted], "include_synonyms": False, "include_documentation": False}
        rows = self.ask_any(tables.DESCRIBE_CONFIGS, body)["results"]
        values = [
            one["value"] for row in rows for one in row["configs"] or () if one["name"] == name
        ]
        return values[0] if values else None

    def ask_any(self, key: int, body: Struct) -> Struct:
        """Ask the brokers one after the other. Raises the last one's error."""
        with self._lock:
            known = list(self._brokers.values())
        random.shuffle(known)
        problem: TidecastError = ConnectionLost(f"no broker of {self.source.servers}")
        for address in dict.fromkeys([*known, *self._servers]):
            try:
                return self.ask(address, key, body)
            except ConnectionLost as found:
                problem = found
        raise problem

    # --- questions --------------------------------------------------------------------------------

    def connect(self, address: Address) -> Link:
        """A connection of its own to a broker. Raises ConnectionLost, AuthError, ConfigError."""
        return Link(address, self.source, self._tls, self._connections.add)

    def ask(self, address: Address, key: int, body: Struct) -> Struct:
        """Ask one broker, over the connection that is kept to it."""
        with self._lock:
            lock, _ = self._links.setdefault(address, (threading.Lock(), None))
        with lock:
            link = self._links[address][1]
            for fresh in (link is None, True):
                if fresh:
                    link = self.connect(address)
                    self._links[address] = (lock, link)
                assert link is not None
                try:
                    return link.ask(key, body, ASK_S)
                except (ConnectionLost, StorageError):
                    link.close()
                    self._links[address] = (lock, None)
                    if fresh:
                        raise
        raise AssertionError

    def ask_leader(self, partition: int, key: int, body: Struct, code_at: list[str]) -> Struct:
        """Ask the leader of a partition, again when another one takes over.

        ``code_at``: the names on the way to the answer's row about the partition, in arrays of one.
        Raises ConnectionLost after QUESTION_S, and the error of a code.
        """
        attempts = Attempts(QUESTION_S, self.pause)
        while True:
            try:
                found: Struct = self.ask(self.leader(partition).address, key, body)
                for name in code_at:
                    found = found[name][0]
                code = int(found["error_code"])
                if not code:
                    return found
                problem = error_of(code, f"{self.topic}/{partition}")
                if code not in MOVES:
                    raise problem
            except ConnectionLost as lost:
                problem = lost
            except (IndexError, KeyError):
                raise StorageError(f"{self.topic}/{partition}: an answer lacks it") from None
            attempts.wait(problem if problem.retryable else ConnectionLost(str(problem)))
            with contextlib.suppress(ConnectionLost):
                self.refresh()

    def find_coordinator(self, name: str, *, of_transactions: bool = False) -> Address:
        """The coordinator of a group, or of a transactional id. Raises ConnectionLost."""
        body = {"key": name, "key_type": int(of_transactions)}
        found = self.ask_any(tables.FIND_COORDINATOR, body)
        code, what = int(found["error_code"]), "transactional id" if of_transactions else "group"
        if code in MOVES:
            raise ConnectionLost(f"{what} {name}: {code_name(code)}")
        if code:
            raise error_of(code, f"{what} {name}")
        return Address(found["host"], found["port"])

    def ask_coordinator(self, group: str, key: int, body: Struct) -> Struct:
        """Ask the coordinator of a group. Raises ConnectionLost when it is another one now."""
        if self._coordinator is None:
            self._coordinator = self.find_coordinator(group)
        try:
            return self.ask(self._coordinator, key, body)
        except ConnectionLost:
            self._coordinator = None
            raise

    def forget_coordinator(self) -> None:
        """It said that it is none."""
        self._coordinator = None

    def pause(self, seconds: float) -> None:
        """Wait before something is tried again. Raises Closed when it is closed meanwhile."""
        self._connections.pause(seconds)

    def close(self) -> None:
        """End all that waits, hang up: nothing is sent once it returns. Idempotent."""
        self._connections.close()
        with self._lock:
            kept = list(self._links.values())
        for lock, kept_link in kept:
            if kept_link is not None and lock.acquire(blocking=False):  # else its thread closes it
                kept_link.close()
                lock.release()
