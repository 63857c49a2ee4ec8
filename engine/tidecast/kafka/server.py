"""The Kafka endpoint: it listens, answers some requests, and passes others to their modules.

One thread with an event loop, like the gateway. A few threads read logs, and appends go through the
thread of `PlacedAppends`; nothing here waits for a disk.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from tidecast.access import digest_of, printable
from tidecast.config.certificate import Certificate
from tidecast.config.kafka import KafkaConfig, address_of, is_beyond_loopback
from tidecast.config.topology import topic_name_problem
from tidecast.errors import ConfigError
from tidecast.events import AccessDenied, KafkaClientRefused, KafkaThrottled
from tidecast.kafka import wire
from tidecast.kafka.administration.settings import Kind
from tidecast.kafka.administration.topics import TopicAdministration
from tidecast.kafka.answers.cache import BlockCache
from tidecast.kafka.codes import Code
from tidecast.kafka.connection import Connection
from tidecast.kafka.counters import Counters
from tidecast.kafka.fetch import Fetching
from tidecast.kafka.groups.administration import GroupAdministration
from tidecast.kafka.groups.service import GroupService
from tidecast.kafka.produce import Producing
from tidecast.kafka.records import BATCH_BYTES_MAX
from tidecast.kafka.schemas import tables
from tidecast.kafka.schemas.api import Api
from tidecast.kafka.serving import Budget, Client, Request
from tidecast.kafka.wire import BadRequest, Struct
from tidecast.layout.counters import KafkaCounter, KeyCounter
from tidecast.node.access.rights import Denials
from tidecast.node.administration import Administration
from tidecast.node.durable.placed import PlacedAppends, new_placed_producer
from tidecast.node.server_thread import ServerThread

if TYPE_CHECKING:
    from tidecast.node.durable.topic import DurableTopic
    from tidecast.node.node import Node

ANSWER_BYTES_MAX = 64 << 20
"""Bytes of all answers with records that are being built or sent."""
ITEMS_MAX = 2 * wire.ITEMS_MAX
"""Elements of arrays of all long requests under way: each is an object of some 1 KiB."""
DECODED_BYTES_MAX = 256 << 20
"""Bytes of all batches that wait for the archiver; above it no request is read."""
READ_AHEAD_BYTES = 1 << 16
"""A connection buffers twice as much, and the bytes of one read (256 KiB), before it is asked."""
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
BACKLOG = 128
BROKERS = 1
"""The type of endpoints that clients connect to."""
NO_OPERATIONS = -(1 << 31)
"""Kafka's value for authorized operations that the client did not request."""
WARN_S = 1.0
THROTTLED_S = 60.0
HANDSHAKE_S = 10.0
KEYS_CHECKED_S = 0.5
MECHANISMS = ["PLAIN"]
"""Not SCRAM: see docs/adr/0039."""
NO_TRANSACTIONS = (
    "transactional.id is set, and transactions are not served: enable.idempotence alone stores "
    "each batch once"
)
_SOFTWARE = ("name", "version")
_log = logging.getLogger("tidecast.kafka")


Administer = Callable[[Client, Struct], Struct]


class KafkaEndpoint:
    """Serves Kafka clients. `start` listens, `stop` ends all connections; both are idempotent."""

    def __init__(
        self, node: Node, administration: Administration, config: KafkaConfig, *,
        tls: Certificate | None = None, login: bool = False,
    ) -> None:  # fmt: skip
        """``login``: clients must show a key, even when there is none yet."""
        self.node, self.config = node, config
        self._tls, self._login = tls, login
        self._denials = Denials(node.notify_all, time.monotonic_ns)
        self.host, self.port = config.address
        self._advertised = address_of(config.advertised) if config.advertised else None
        self._connections: set[Connection] = set()
        self.counters = Counters(node, config.listen)
        self.count, self._report = self.counters.count, self.counters.report
        self._appends = PlacedAppends(node.durable.registry)
        self.cache = BlockCache(config.cache_bytes)
        self._server = ServerThread(self._main, "tidecast-kafka")
        room = self.room_to_decode
        self.producing = Producing(
            node, self._appends, self.cache, self._wake, self._server.call, self.count, room
        )
        self.fetching = Fetching(self)
        self.groups = GroupService(self, self.fetching, node.data_dir / "kafka" / "groups", config)
        self.answers = Budget(ANSWER_BYTES_MAX, lambda: self.throttled("answers"))
        self.requests = Budget(config.all_requests_bytes_max, lambda: self.throttled("requests"))
        self.items = Budget(ITEMS_MAX, lambda: self.throttled("items"))
        self._watching: dict[str, set[asyncio.Future[None]]] = {}
        self._lock = threading.Lock()
        self._woken: set[str] = set()
        self._warned_s = self._told_s = 0.0
        self.administration = GroupAdministration(
            node, self.groups, lambda: list(self._connections), lambda: self._server.loop
        )
        topics = TopicAdministration(node, administration, self._settings)
        self._administering = ThreadPoolExecutor(1, thread_name_prefix="kafka-admin")
        self._forgetting: set[asyncio.Task[None]] = set()
        self._handlers: dict[int, Callable[[Request], Awaitable[Struct]]] = {
            tables.API_VERSIONS: self._api_versions,
            tables.METADATA: self._metadata,
            tables.DESCRIBE_CLUSTER: self._describe_cluster,
            tables.CREATE_TOPICS: self._administer(topics.create),
            tables.DELETE_TOPICS: self._administer(topics.delete),
            tables.CREATE_PARTITIONS: self._administer(topics.add_partitions),
            tables.DESCRIBE_CONFIGS: self._administer(topics.describe),
            tables.ALTER_CONFIGS: self._administer(topics.alter),
            tables.INCREMENTAL_ALTER_CONFIGS: self._administer(topics.alter_incrementally),
            tables.DESCRIBE_LOG_DIRS: self._administer(topics.describe_log_dirs),
            tables.FIND_COORDINATOR: self._find_coordinator,
            tables.INIT_PRODUCER_ID: self._init_producer_id,
            tables.SASL_HANDSHAKE: self._sasl_handshake,
            tables.SASL_AUTHENTICATE: self._sasl_authenticate,
            tables.JOIN_GROUP: self.groups.join,
            tables.SYNC_GROUP: self.groups.sync,
            tables.HEARTBEAT: self.groups.heartbeat,
            tables.LEAVE_GROUP: self.groups.leave,
            tables.OFFSET_COMMIT: self.groups.commit,
            tables.OFFSET_FETCH: self.groups.fetch_offsets,
            tables.DELETE_GROUPS: self.groups.delete,
            tables.OFFSET_DELETE: self.groups.delete_offsets,
            tables.LIST_GROUPS: self.groups.list_groups,
            tables.DESCRIBE_GROUPS: self.groups.describe,
            tables.FETCH: lambda asked: self.fetching.fetch(asked.connection, asked.body),
            tables.LIST_OFFSETS: lambda asked: self.fetching.list_offsets(
                asked.connection, asked.body
            ),
            tables.OFFSET_FOR_LEADER_EPOCH: lambda asked: self.fetching.epoch_ends(
                asked.connection, asked.body
            ),
        }

    @property
    def address(self) -> str:
        """The address that a client calls its bootstrap server."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the kernels and listen. Raises ConfigError when the address is taken or not ours."""
        warm_up()
        self.groups.offsets.load()
        self._appends.start()
        self.node.durable.registry.on_synced.append(self._synced)
        self.node.durable.registry.on_written.append(self._synced)
        self.node.durable.registry.on_deleted.append(self._deleted)
        mend = "choose another with kafka.listen in the topology, or --kafka HOST:PORT"
        try:
            self._server.start(f"kafka: {self.address}", mend, timeout_s=START_TIMEOUT_S)
        except Exception:
            self._server.stop(timeout_s=STOP_TIMEOUT_S)
            self._release()
            raise
        self.node.kafka.serve(self.administration)

    def stop(self) -> None:
        """End all connections. Idempotent."""
        self.node.kafka.end(self.administration)
        self._server.stop(timeout_s=STOP_TIMEOUT_S)
        self._release()

    def _release(self) -> None:
        if self._synced in self.node.durable.registry.on_synced:
            self.node.durable.registry.on_synced.remove(self._synced)
            self.node.durable.registry.on_written.remove(self._synced)
            self.node.durable.registry.on_deleted.remove(self._deleted)
        self._administering.shutdown(wait=True, cancel_futures=True)
        self._appends.stop()
        self.fetching.stop()
        self.producing.stop()
        self.groups.offsets.stop()

    async def _main(self) -> None:
        server = await asyncio.start_server(
            self._accepted,
            self.host,
            self.port,
            backlog=BACKLOG,
            limit=READ_AHEAD_BYTES,
            ssl=None if self._tls is None else self._tls.context,
            ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_S,
        )
        self.port = int(server.sockets[0].getsockname()[1])
        helpers = [
            asyncio.create_task(self.groups.tick_for_ever()),
            asyncio.create_task(self._end_revoked()),
        ]
        try:
            await self._server.serve()
        finally:
            server.close()
            for helper in helpers:
                helper.cancel()
            for connection in list(self._connections):
                connection.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S / 2) if tasks else None

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count("connections")
        peer = (writer.get_extra_info("peername") or ("",))[0]
        problem = self._too_many(str(peer))
        if problem is not None:
            self.count("connections_refused")
            self._refused(str(peer), "connections", problem)
            writer.transport.abort()
            return
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(self, reader, writer)
        self._connections.add(connection)
        self.counters.gauge(KafkaCounter.OPEN, len(self._connections))
        try:
            await connection.run()
        except BadRequest as problem:
            self.count("bad_requests")
            self._refused(connection.name, "protocol", str(problem))
        except TimeoutError:
            self.count("connections_silent")
            self._refused(connection.name, "silent", "it sent no whole request, or read no answer")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Exception:  # noqa: BLE001 - one connection must not end the others
            self.count("faults")
            _log.error("kafka: the connection of %s failed", connection.name, exc_info=True)
        finally:
            self._connections.discard(connection)
            self.counters.gauge(KafkaCounter.OPEN, len(self._connections))

    def _too_many(self, peer: str) -> str | None:
        """Why a host gets no further connection, or None."""
        config = self.config
        if len(self._connections) >= config.connections_max:
            return f"there are {config.connections_max} (kafka.connections_max)"
        if sum(each.peer == peer for each in self._connections) >= config.connections_per_host_max:
            most = config.connections_per_host_max
            return f"the host has {most} (kafka.connections_per_host_max)"
        return None

    @property
    def needs_login(self) -> bool:
        """Whether clients must show a key: always beyond loopback, and once a key exists."""
        return self._login or bool(self.node.keys)

    async def _end_revoked(self) -> None:
        """End connections whose key is revoked, was changed or has expired, or is needed now.

        A certificate whose files have changed is loaded for connections from then on.
        """
        while True:
            await asyncio.sleep(KEYS_CHECKED_S)
            self.cache.trim()
            self.counters.gauge(KafkaCounter.CACHE_BYTES, self.cache.bytes)
            self._end_stuck()
            try:
                self._reload_certificate()
                ended = [each for each in self._connections if not each.is_valid]
            except Exception:  # noqa: BLE001 - revocation must not end with one defect
                self.count("faults")
                _log.exception("kafka: keys could not be checked")
                continue
            for connection in ended:
                self.count("keys_ended")
                connection.close()

    def _end_stuck(self) -> None:
        """End connections that read nothing of their answers while others wait for room."""
        if self.answers.contested:
            now_s = time.monotonic()
            for connection in [each for each in self._connections if each.is_stuck(now_s)]:
                self.count("connections_silent")
                text = "it reads no answer while others wait for room"
                self._refused(connection.name, "silent", text)
                connection.close()

    def _reload_certificate(self) -> None:
        try:
            if self._tls is not None and self._tls.reload():
                _log.info("kafka: the certificate was loaded again")
        except ConfigError as problem:
            self._warn("%s; the one before stays in use", problem)

    def denied(self, connection: Client, right: str, topic: str) -> None:
        """A key lacks a right: counted, and reported at most once a second."""
        self.count("denied")
        self.node.key_counts.count(connection.access.name, KeyCounter.DENIED)
        now_s = time.monotonic()
        if now_s - self._told_s >= WARN_S:
            self._told_s = now_s
            self.node.notify_all(
                AccessDenied(
                    key=connection.access.name,
                    client=connection.name,
                    right=right,
                    topic=printable(topic),
                )
            )

    def _refused(self, client: str, reason: str, detail: str) -> None:
        """Report a connection that was refused or ended, at most once a second."""
        event = KafkaClientRefused(client=printable(client), reason=reason, detail=detail)
        if self._report(event, WARN_S):
            _log.warning("kafka: %s was refused: %s", event.client, detail)

    def _warn(self, text: str, *arguments: object) -> None:
        """Log, once a second at most: strangers can cause errors as often as they like."""
        now_s = time.monotonic()
        if now_s - self._warned_s >= WARN_S:
            self._warned_s = now_s
            _log.warning("kafka: " + text, *arguments)

    def throttled(self, reason: str) -> None:
        """A request waits for room."""
        self.count("throttled")
        self._report(KafkaThrottled(reason=reason), THROTTLED_S)

    async def room_to_decode(self) -> None:
        """Wait until the archiver has taken most of the decoded batches."""
        if self.producing.waiting_bytes > DECODED_BYTES_MAX:
            self.throttled("archiver")
        while self.producing.waiting_bytes > DECODED_BYTES_MAX:
            waiter = self.watch({""})
            try:
                await asyncio.wait((waiter,), timeout=WARN_S)
            finally:
                self.unwatch({""}, waiter)

    # --- waiting for records ----------------------------------------------------------------------

    def watch(self, topics: set[str]) -> asyncio.Future[None]:
        """A future that completes once a topic has more to read. End it with `unwatch`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for topic in topics:
            self._watching.setdefault(topic, set()).add(waiter)
            self._await_write(topic)
        return waiter

    def _await_write(self, topic: str) -> None:
        """Report the next write of a topic that is never synced. Call it before reading its end."""
        registry = self.node.durable.registry
        found = registry.topics.get(topic)
        if found is not None and found.config.fsync == "none":
            registry.tables.await_write(found)

    def unwatch(self, topics: set[str], waiter: asyncio.Future[None]) -> None:
        """End the watch of these topics."""
        waiter.cancel()
        for topic in topics:
            waiting = self._watching.get(topic)
            if waiting is not None:
                waiting.discard(waiter)
                if not waiting:
                    del self._watching[topic]

    def _synced(self, topic: DurableTopic) -> None:
        """A topic has synced records. Called by the thread that syncs, or by the archiver."""
        self._wake(topic.config.name)

    def _wake(self, topic: str) -> None:
        """A topic has more to read. From any thread."""
        with self._lock:
            first = not self._woken
            self._woken.add(topic)
        if first:
            self._server.call(self._wake_all)

    def _wake_all(self) -> None:
        with self._lock:
            woken, self._woken = self._woken, set()
        for topic in (*woken, ""):
            for waiter in self._watching.get(topic, ()):
                if not waiter.done():
                    waiter.set_result(None)

    # --- questions about the endpoint itself ------------------------------------------------------

    async def perform(self, connection: Client, api: Api, version: int, body: Struct) -> Struct:
        """The answer to a request of any API but Produce."""
        return await self._handlers[api.key](Request(connection, version, body))

    def versions(self) -> Struct:
        """The APIs and versions that are served."""
        rows = [
            {"api_key": each.key, "min_version": each.first, "max_version": each.last}
            for each in tables.APIS.values()
        ]
        return {"api_keys": rows}

    def refused_version(self, connection: Client, api: Api, version: int) -> None:
        """Count and report a request in a version that is not served."""
        self.count("versions_refused")
        if api.key != tables.API_VERSIONS:
            self._warn(
                "%s (%s) asks %s in version %d",
                connection.name,
                connection.software,
                api.name,
                version,
            )

    def _administer(self, step: Administer) -> Callable[[Request], Awaitable[Struct]]:
        """A handler that runs in the thread for changes of files and of the topology."""

        async def handle(asked: Request) -> Struct:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._administering, step, asked.connection, asked.body
            )

        return handle

    def _settings(self) -> list[tuple[str, str, Kind]]:
        """Settings of the endpoint, in the form of a broker's settings in DescribeConfigs."""
        retention_min = round(self.config.offsets_retention_s / 60)
        return [
            ("auto.create.topics.enable", "false", Kind.BOOLEAN),
            ("connections.max.idle.ms", str(round(self.config.idle_s * 1000)), Kind.LONG),
            ("default.replication.factor", "1", Kind.INT),
            ("max.connections", str(self.config.connections_max), Kind.INT),
            ("message.max.bytes", str(BATCH_BYTES_MAX), Kind.INT),
            ("num.partitions", "1", Kind.INT),
            ("offsets.retention.minutes", str(retention_min), Kind.INT),
            ("socket.request.max.bytes", str(self.config.request_bytes_max), Kind.INT),
        ]

    def _deleted(self, topic: str) -> None:
        """In any thread: the topic and its records are gone."""
        self._server.call(self._forget, topic)

    def _forget(self, topic: str) -> None:
        task = asyncio.create_task(self.groups.forget_topic(topic))
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    async def _describe_cluster(self, asked: Request) -> Struct:
        if asked.body.get("endpoint_type", BROKERS) != BROKERS:
            text = "controllers are not served apart: ask for brokers"
            return {"error_code": Code.MISMATCHED_ENDPOINT_TYPE, "error_message": text}
        host, port = self._address(asked.connection)
        return {
            "error_code": Code.NONE,
            "endpoint_type": BROKERS,
            "cluster_id": self._cluster_id,
            "controller_id": self.node.id,
            "brokers": [{"broker_id": self.node.id, "host": host, "port": port}],
            "cluster_authorized_operations": NO_OPERATIONS,
        }

    @property
    def _cluster_id(self) -> str:
        return f"tidecast-{self.node.name}"

    async def _api_versions(self, asked: Request) -> Struct:
        name, version = (asked.body.get(f"client_software_{each}", "") for each in _SOFTWARE)
        asked.connection.introduce(printable(f"{name} {version}".strip()))
        return self.versions()

    def _address(self, connection: Client) -> tuple[str, int]:
        return self._advertised or connection.local

    async def _metadata(self, asked: Request) -> Struct:
        connection, names = asked.connection, asked.body["topics"]
        host, port = self._address(connection)
        durable = [
            name
            for name, config in dict(self.node.topic_by_name).items()
            if config.mode == "durable"
        ]
        if names is None:
            wanted = [each for each in durable if connection.access.may_hear_of(each)]
        else:
            wanted = list(dict.fromkeys(each["name"] for each in names))
        return {
            "brokers": [{"node_id": self.node.id, "host": host, "port": port}],
            "cluster_id": self._cluster_id,
            "controller_id": self.node.id,
            "topics": [self._topic(connection, each) for each in wanted],
            "cluster_authorized_operations": NO_OPERATIONS,
        }

    def _topic(self, connection: Client, name: str) -> Struct:
        config = self.node.topic_by_name.get(name)
        found = self.node.durable.topics.get(name)
        code = Code.NONE
        partitions: list[Struct] = []
        if topic_name_problem(name) is not None:
            code = Code.INVALID_TOPIC_EXCEPTION
        elif not connection.access.may_hear_of(name):
            code = Code.TOPIC_AUTHORIZATION_FAILED
        elif config is None or config.mode != "durable":
            code = Code.UNKNOWN_TOPIC_OR_PARTITION
        elif found is None:  # another engine keeps its queues
            partitions = [
                {"error_code": Code.LEADER_NOT_AVAILABLE, "partition_index": each, "leader_id": -1}
                for each in range(config.queues)
            ]
        else:
            me = [self.node.id]
            partitions = [
                {
                    "partition_index": each,
                    "leader_id": self.node.id,
                    "leader_epoch": found.owner,
                    "replica_nodes": me,
                    "isr_nodes": me,
                }
                for each in range(len(found.logs))
            ]
        return {
            "error_code": code,
            "name": name,
            "partitions": partitions,
            "topic_authorized_operations": NO_OPERATIONS,
        }

    async def _find_coordinator(self, asked: Request) -> Struct:
        if asked.body.get("key_type", 0) != 0:
            code = self._no_transactions(asked.connection)
            return {"error_code": code, "error_message": NO_TRANSACTIONS, "node_id": -1, "port": -1}
        host, port = self._address(asked.connection)
        return {"node_id": self.node.id, "host": host, "port": port}

    def _no_transactions(self, client: Client) -> Code:
        """A code that no client retries: librdkafka retries code 42 until its time is over."""
        self._refused(client.name, "transactions", NO_TRANSACTIONS)
        return Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    async def _sasl_handshake(self, asked: Request) -> Struct:
        wanted = asked.body["mechanism"]
        if asked.version == 0:  # librdkafka wants it listed, and asks in version 1
            return {"error_code": Code.UNSUPPORTED_VERSION, "mechanisms": MECHANISMS}
        if wanted in MECHANISMS:
            return {"error_code": Code.NONE, "mechanisms": MECHANISMS}
        self.count("logins_refused")
        self._refused(
            asked.connection.name,
            "mechanism",
            f"sasl.mechanism {printable(wanted)}: allowed is PLAIN, with the name of a key as the "
            "user and its secret as the password; keys are kept as hashes, which SCRAM cannot use",
        )
        return {"error_code": Code.UNSUPPORTED_SASL_MECHANISM, "mechanisms": MECHANISMS}

    async def _sasl_authenticate(self, asked: Request) -> Struct:
        """PLAIN: the name, or id, of a key and its secret."""
        _, user, secret = [*bytes(asked.body["auth_bytes"]).split(b"\0"), b"", b"", b""][:3]
        digest = digest_of(secret.decode("utf-8", "replace"))
        access = self.node.keys.find(digest)
        if access is None or user.decode("utf-8", "replace") not in (access.name, access.id):
            self.count("logins_refused")
            told = self._denials.refused(asked.connection.name)
            if told is not None:
                _log.warning(
                    "kafka: %s showed no valid key (and %d others since)",
                    told.client,
                    told.unreported,
                )
            return {
                "error_code": Code.SASL_AUTHENTICATION_FAILED,
                "error_message": "user: the name of a key of this engine; password: its secret",
            }
        asked.connection.log_in(access, digest)
        return {"error_code": Code.NONE}

    async def _init_producer_id(self, asked: Request) -> Struct:
        if asked.body["transactional_id"] is not None:
            code = self._no_transactions(asked.connection)
            return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
        producer = new_placed_producer(time.time(), self.node.context.random_id(28))
        return {"producer_id": producer, "producer_epoch": 0}


def warm_up() -> None:
    """Compile or load the kernels of the endpoint; engines without one do not need them."""
    from tidecast.kafka import records
    from tidecast.node.durable import placed

    records.warm_up()
    placed.warm_up()


def make_kafka(
    node: Node, administration: Administration, config: KafkaConfig, *, keys_come: bool = False
) -> KafkaEndpoint:
    """An endpoint of a node of this process; `start` it. Raises ConfigError.

    ``keys_come``: a control service supplies keys.
    """
    tls, beyond = None, is_beyond_loopback(config)
    if config.certificate:
        tls = Certificate("kafka", Path(config.certificate), Path(config.key))
    if beyond and not (tls is not None or config.insecure):
        raise ConfigError(
            f"kafka: {config.listen}: it would be reached from other hosts in clear text, keys "
            "and all: give it a certificate (kafka.certificate and kafka.key in the topology, or "
            "--kafka-cert FILE --kafka-key FILE); or say that the network is trusted, or has a TLS "
            "proxy, with kafka.insecure or --insecure-kafka; or listen on 127.0.0.1"
        )
    if beyond and not (node.keys or keys_come):
        raise ConfigError(
            f"kafka: {config.listen}: it would be reached from other hosts, and there are no keys "
            "to check their clients with: make one (tidecast key new NAME --allow "
            "'publish:orders.*') and put it into the topology file under keys, or connect the "
            "engine to a control service; or listen on 127.0.0.1"
        )
    login = beyond or node.topology.node.local_keys
    return KafkaEndpoint(node, administration, config, tls=tls, login=login)
