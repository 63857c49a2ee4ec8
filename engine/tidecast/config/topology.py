"""The topology: which node this is, its transports and its topics. Loaded, checked, saved as YAML.

Sizes may be written ``4MiB`` in YAML. Every problem in a file is named at once, as
``transports[0].packet_bytes: 70000: allowed 576..65000``.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tidecast.access import ClientKey
from tidecast.config.check import (
    PORT_MAX,
    build,
    ipc_problems,
    owner_problems,
    raise_problems,
    shown,
    unicast_problem,
)
from tidecast.config.internal import PREFIXES, is_internal, served_topic
from tidecast.config.kafka import KafkaConfig, kafka_problems
from tidecast.config.leases import LeaseConfig
from tidecast.config.sources.adapters import AdapterConfig, adapter_problems
from tidecast.config.sources.storage import LOCAL, storage_name, storage_problems
from tidecast.config.suggestions import near
from tidecast.config.telemetry import TelemetryConfig
from tidecast.config.yaml import dump_yaml, parse_yaml
from tidecast.disk import write_atomically
from tidecast.errors import ConfigError, Conflict, NotFound, TidecastError
from tidecast.layout.levels import LEVEL_MAX, NEWEST
from tidecast.layout.packet import NAME_BYTES_MAX, PACKET_BYTES_MAX, PACKET_BYTES_MIN
from tidecast.layout.ring import SLOTS_MAX
from tidecast.layout.sealed import LANES_MAX

NODE_ID_MAX, TOPIC_ID_MAX = 65_534, 65_535
TOPICS_MAX = TOPIC_ID_MAX
QUEUES_MAX = 1024
"""Of one topic."""
TRANSPORTS_MAX, PEERS_MAX = 16, 64
TOPOLOGY_FILE_BYTES_MAX = 64 << 20
LOCK_NAME = "engine.lock"
"""In a data directory on which an engine has run."""
MIB = 1 << 20
RING_BYTES_MAX = 64 << 30

TOPIC_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
"""Not ``-`` first: a shell command would take the name for an option."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_INTERFACE = re.compile(r"[^\s/]{1,15}")
_PEER = re.compile(r"([^\s:]+):(\d{1,5})")
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}")
_ADVERTISE = re.compile(r"([A-Za-z0-9_.-]{1,253})(:(\d{1,5}))?")

LIVE_TOPIC_FIELDS = frozenset(
    ("rate_packets_per_s", "rate_bytes_per_s", "linger_us", "labels", "description", "queues",
     "fsync_interval_ms", "retention_bytes", "retention_s", "retention_past_unacked",
     "segment_bytes", "cache_bytes", "producer_ttl_s")
)  # fmt: skip
"""Settings of a topic that change while it runs; the others need it to be recreated."""

DURABLE_FIELDS = (
    "queues", "fsync", "fsync_interval_ms", "retention_bytes", "retention_s",
    "retention_past_unacked", "segment_bytes", "cache_bytes", "producer_ttl_s", "storage",
)  # fmt: skip
"""Settings that mean nothing for a live topic."""

UNREPAIRED = "an unreliable topic repairs no packet whose table was lost"
PLATFORM_GROUPS, PLATFORM_PORTS = 1 << 18, range(20_000, 29_000, 3)
"""The groups of 239.192.0.0/14 (RFC 2365: local to an organization), and ports below the ports
that Linux gives to clients."""
PlatformId = Annotated[str, Meta(pattern=r"^([0-9a-f]{16})?$")]

Count = Annotated[int, Meta(ge=0, le=1 << 53)]
PacketBytes = Annotated[int, Meta(ge=PACKET_BYTES_MIN, le=PACKET_BYTES_MAX, multiple_of=8)]
RingBytes = Annotated[int, Meta(ge=16 * 1024, le=RING_BYTES_MAX)]
LingerUs = Annotated[int, Meta(ge=0, le=1_000_000)]
Probability = Annotated[float, Meta(ge=0.0, le=1.0)]


class NodeAddress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where this node opens a udp-unicast transport, and where other nodes reach it.

    An omitted setting is that of the transport. ``advertise``: ``host`` or ``host:port`` that a
    control service names to others, where it differs from the bound address; ``none``: not at all.
    """

    transport: str
    bind: str = ""
    port: Annotated[int, Meta(ge=1, le=PORT_MAX)] | None = None
    advertise: Annotated[str, Meta(max_length=260)] = ""

    @property
    def advertised(self) -> tuple[str, int | None]:
        """Host and port of ``advertise``; a port of None: the bound one."""
        host, _, port = self.advertise.partition(":")
        return host, int(port) if port else None


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """This node. ``id`` 0 and ``name`` "" are derived from host name and data directory."""

    id: Annotated[int, Meta(ge=0, le=NODE_ID_MAX)] = 0
    name: Annotated[str, Meta(max_length=64)] = ""
    image_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 10.0
    heartbeat_ms: Annotated[float, Meta(ge=1, le=60_000)] = 100.0
    quarantined: list[Annotated[int, Meta(ge=1, le=NODE_ID_MAX)]] = []
    local_keys: bool = False  # local clients show a key, too
    publisher_ring_bytes_max: RingBytes = 256 * MIB
    """Of one publisher on another node, to durable topics kept here."""
    publisher_rings_bytes_max: RingBytes = 1024 * MIB
    image_rings_bytes_max: RingBytes = 4096 * MIB
    """Of all publishers on other nodes to live topics."""
    leases: LeaseConfig = LeaseConfig()
    drained: bool = False
    """It hands its leased topics over and takes none. The control service writes it."""
    addresses: Annotated[list[NodeAddress], Meta(max_length=TRANSPORTS_MAX)] = []
    """Of udp-unicast transports: where this node differs from the platform."""

    def address_of(self, transport: str) -> NodeAddress:
        """Where this node differs for a transport."""
        found = (each for each in self.addresses if each.transport == transport)
        return next(found, NodeAddress(transport=transport))


class TransportConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How packets move. Ports ``port``, +1 (control) and +2 (large) are used."""

    name: str
    kind: Literal["udp-multicast", "udp-unicast", "ipc", "memory"] = "udp-multicast"
    platform: PlatformId = ""
    """Nodes of another one are refused. Drawn when a platform first starts; "": hears all."""
    group: str = "239.255.84.67"
    port: Annotated[int, Meta(ge=1, le=PORT_MAX)] = 7400
    interface: str = "127.0.0.1"
    ttl: Annotated[int, Meta(ge=0, le=255)] | None = None
    peers: Annotated[list[str], Meta(max_length=PEERS_MAX)] = []
    bind: str = ""
    packet_bytes: PacketBytes = 1400
    socket_buffer_bytes: Annotated[int, Meta(ge=64 * 1024, le=1 << 30)] = 4 * MIB
    idle: Literal["busy", "backoff", "block"] = "backoff"
    rate_packets_per_s: Count = 0
    rate_bytes_per_s: Count = 0
    lanes: Annotated[int, Meta(ge=1, le=LANES_MAX)] = 1
    """Pairs of a sender and a receiver, each with sockets of its own."""
    gso: bool = True
    allow_faults: bool = False
    secure: Literal["off", "optional", "required"] = "off"
    """``optional``: takes sealed and plain packets, seals once it has an active epoch."""
    cipher: Literal["aes-128-gcm", "aes-256-gcm"] = "aes-128-gcm"

    @property
    def is_network(self) -> bool:
        """Packets leave this process through a socket."""
        return self.kind in ("udp-multicast", "udp-unicast")

    @property
    def where(self) -> str:
        """Address and first port that it listens on."""
        host = self.group if self.kind == "udp-multicast" else self.bind_host
        return f"{host}:{self.port}"

    @property
    def sends_to_nobody(self) -> bool:
        """It has no peers, which is right for an engine that only receives."""
        return self.kind == "udp-unicast" and not self.peers

    @property
    def is_loopback(self) -> bool:
        """The interface is this machine's own loopback."""
        return self.interface == "lo" or self.interface.startswith("127.")

    @property
    def ttl_hops(self) -> int:
        """The multicast TTL in effect: the setting, else 0 on loopback and 1 elsewhere."""
        return self.ttl if self.ttl is not None else 0 if self.is_loopback else 1

    @property
    def bind_host(self) -> str:
        """Where udp-unicast binds: the setting, else the interface (a name or an IPv4 address)."""
        return self.bind or self.interface

    def on(self, node: NodeConfig) -> TransportConfig:
        """As this node opens it."""
        if self.kind != "udp-unicast":
            return self
        where = node.address_of(self.name)
        return msgspec.structs.replace(
            self, bind=where.bind or self.bind, port=where.port or self.port
        )

    @property
    def peer_addresses(self) -> list[tuple[str, int]]:
        """(host, port) of each peer; not resolved."""
        return [(host, int(port)) for host, _, port in (p.rpartition(":") for p in self.peers)]


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A topic. ``id`` None = from the name; ``transport`` "" = the topology's first."""

    name: str
    id: Annotated[int, Meta(ge=1, le=TOPIC_ID_MAX)] | None = None
    transport: str = ""
    reliability: Literal["reliable", "unordered", "unreliable"] = "reliable"
    flow: Literal["min", "max", "rate"] = "min"
    history_bytes: RingBytes = 4 * MIB
    receive_bytes: RingBytes = 4 * MIB
    large_history_bytes: RingBytes = 64 * MIB
    linger_us: LingerUs = 20
    rate_packets_per_s: Count = 0
    rate_bytes_per_s: Count = 0
    on_full: Literal["block", "error", "drop"] = "block"
    compression: Literal["off", "tables"] = "off"  # keys and headers that repeat, on the network
    nak_delay_us: Annotated[int, Meta(ge=0, le=1_000_000)] = 50
    nak_retry_us: Annotated[int, Meta(ge=1, le=10_000_000)] = 200
    receiver_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 5.0
    close_linger_s: Annotated[float, Meta(ge=0, le=3600)] = 5.0  # answers NAKs so long, once closed
    mode: Literal["live", "durable"] = "live"
    """``durable``: also appended to queues on disk; the fields below are for that mode."""
    owner: Annotated[str, Meta(max_length=64)] = ""  # keeps the queues; "": each, "*": by lease
    queues: Annotated[int, Meta(ge=1, le=QUEUES_MAX)] = 1
    fsync: Literal["none", "interval", "batch"] = "interval"
    fsync_interval_ms: Annotated[float, Meta(ge=1, le=60_000)] = 50.0
    retention_bytes: Count = 0
    retention_s: Annotated[float, Meta(ge=0, le=1e10)] = 0.0
    retention_past_unacked: bool = False
    segment_bytes: Annotated[int, Meta(ge=64 * 1024, le=1 << 40)] = 128 * MIB
    cache_bytes: Annotated[int, Meta(ge=64 * 1024, le=1 << 40)] = 16 * MIB
    spool: bool = False
    producer_ttl_s: Annotated[float, Meta(ge=1, le=1e10)] = 604_800.0
    storage: Annotated[str, Meta(max_length=4096)] = LOCAL
    """``kafka://HOST:PORT/TOPIC`` or ``jetstream://HOST:PORT/STREAM``: a record is durable when
    it is there, too."""
    labels: dict[str, str] = {}
    description: Annotated[str, Meta(max_length=4096)] = ""

    @property
    def wire_id(self) -> int:
        """The id in packets: the setting, else derived from the name. Two topics may share it."""
        return self.id if self.id is not None else derive_topic_id(self.name)


class FaultSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Injected faults of one transport, probabilities a packet; ``delay_us`` holds every packet.

    ``partition``: names or ids of the nodes that this node neither hears nor reaches.
    """

    drop: Probability = 0.0
    duplicate: Probability = 0.0
    reorder: Probability = 0.0
    corrupt: Probability = 0.0
    delay_us: Annotated[float, Meta(ge=0, le=10_000_000)] = 0.0
    partition: tuple[str, ...] = ()
    seed: Annotated[int, Meta(ge=0, le=(1 << 62) - 1)] = 0

    @property
    def any(self) -> bool:
        """Some fault is switched on."""
        return bool(
            self.drop
            or self.duplicate
            or self.reorder
            or self.corrupt
            or self.delay_us
            or self.partition
        )

    def problems(self) -> list[str]:
        """The defects of the values, empty when there are none."""
        found: list[str] = []
        build(FaultSettings, self, "faults", found)
        return found


class Topology(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that a node needs to know. `load_topology` and `default_topology` make it."""

    node: NodeConfig = NodeConfig()
    transports: list[TransportConfig] = []
    topics: list[TopicConfig] = []
    auto_create_topics: bool = True
    telemetry: TelemetryConfig = TelemetryConfig()
    kafka: KafkaConfig = KafkaConfig()
    adapters: list[AdapterConfig] = []
    """Topics on clusters of Kafka and NATS; read when the engine starts."""
    keys: list[ClientKey] = []
    level: Annotated[int, Meta(ge=1, le=LEVEL_MAX)] = 1
    """That packets, logs and rings are written at; of the control service, where there is one."""

    def transport(self, name: str) -> TransportConfig:
        """By name; "" is the first. Raises NotFound."""
        for each in self.transports:
            if name in ("", each.name):
                return each
        known = ", ".join(t.name for t in self.transports) or "none"
        raise NotFound(f"no transport {shown(name)}: there are {known}")

    def topic(self, name: str) -> TopicConfig | None:
        """By name, None when it is not declared."""
        return next((t for t in self.topics if t.name == name), None)


# --- names, patterns, ids -------------------------------------------------------------------------


def derive_topic_id(name: str) -> int:
    """The id of a topic that was given none: the same on every node, 1..65535."""
    digest = hashlib.blake2b(name.encode(), digest_size=8, person=b"tidecast-topic").digest()
    return int.from_bytes(digest, "little") % TOPIC_ID_MAX + 1


def topic_name_problem(name: str) -> str | None:
    """The defect of a topic's name, or None."""
    if len(name.encode()) > NAME_BYTES_MAX:
        return f"{shown(name)}: allowed at most {NAME_BYTES_MAX} bytes"
    if TOPIC_NAME.fullmatch(name) is None:
        return (
            f"{shown(name)}: allowed tokens of A-Z a-z 0-9 _ - joined by dots (md.eu.bonds), "
            "and not - first"
        )
    if is_internal(name):
        return (
            f"{shown(name)}: names that begin with {' or '.join(PREFIXES)} are the engine's own: "
            "take another name"
        )
    return None


def check_topic_name(name: str) -> str:
    """The name itself. Raises ConfigError when it is no topic's name."""
    problem = topic_name_problem(name)
    if problem is not None:
        raise ConfigError(f"topic name {problem}")
    return name


def is_pattern(text: str) -> bool:
    """It has a wildcard token, so it may match several topics."""
    return any(token in ("*", ">") for token in text.split("."))


def check_pattern(pattern: str) -> str:
    """The pattern itself. Raises ConfigError: ``*`` = one token, ``>`` = one or more, only last."""
    tokens = served_topic(pattern).split(".")
    plain = ".".join("x" if t == "*" or (t == ">" and t is tokens[-1]) else t for t in tokens)
    if topic_name_problem(plain) is not None or ">" in tokens[:-1]:
        raise ConfigError(
            f"topic pattern {shown(pattern)}: allowed are a topic's name (md.eu), * for one token "
            "(md.*.bonds) and > for all that follow (md.>)"
        )
    return pattern


def matches(pattern: str, name: str) -> bool:
    """The pattern covers the topic's name. A wildcard covers no internal topic."""
    if pattern == name:
        return True
    if is_internal(name):
        return False
    wanted, tokens = pattern.split("."), name.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(
        w in ("*", t) for w, t in zip(wanted, tokens, strict=True)
    )


def with_identity(topology: Topology, data_dir: Path) -> Topology:
    """The same with node id and name filled in: stable for this host and data directory."""
    host = socket.gethostname() or "host"
    digest = hashlib.blake2b(f"{host}\0{data_dir.absolute()}".encode(), digest_size=8).digest()
    derived = int.from_bytes(digest, "little") % NODE_ID_MAX + 1
    node = topology.node
    node_id = node.id or derived
    short = re.sub(r"[^A-Za-z0-9_-]", "-", host.partition(".")[0])[:48]
    name = node.name or f"{short}-{node_id:04x}"
    return msgspec.structs.replace(
        topology, node=msgspec.structs.replace(node, id=node_id, name=name)
    )


# --- directories ----------------------------------------------------------------------------------


def default_data_dir() -> Path:
    """``TIDECAST_DATA_DIR``, else ``tidecast`` in the user's XDG data directory."""
    directory = os.environ.get("TIDECAST_DATA_DIR")
    if directory:
        return Path(directory).expanduser()
    xdg = os.environ.get("XDG_DATA_HOME", "")
    base = Path(xdg) if xdg.startswith("/") else Path("~/.local/share").expanduser()
    return base / "tidecast"


def shm_dir(data_dir: Path) -> Path:
    """Where the rings of a data directory lie: in /dev/shm, else (none there) below it."""
    base = Path("/dev/shm")
    if not (base.is_dir() and os.access(base, os.W_OK | os.X_OK)):
        return data_dir / "shm"
    digest = hashlib.blake2b(os.fsencode(data_dir.absolute()), digest_size=6).hexdigest()
    return base / f"tidecast-{os.getuid()}-{digest}"


def topology_path(data_dir: Path) -> Path:
    """The topology file of a data directory."""
    return data_dir / "topology.yaml"


# --- checks ---------------------------------------------------------------------------------------


def topology_from(raw: Any, source: str = "") -> Topology:
    """A checked topology: topics get the first transport. Raises ConfigError with ``.problems``."""
    problems: list[str] = []
    topology = build(Topology, raw, "", problems, anyhow=True)
    if topology is not None:
        if not topology.transports:
            topology = msgspec.structs.replace(topology, transports=_default_transports())
        _check_meaning(topology, problems)
    raise_problems(problems, source)
    assert topology is not None
    first = topology.transports[0].name
    topics = [
        t if t.transport else msgspec.structs.replace(t, transport=first) for t in topology.topics
    ]
    return msgspec.structs.replace(topology, topics=topics)


def _check_meaning(topology: Topology, problems: list[str]) -> None:
    """Check rules beyond types and ranges, except for fields whose type or range is wrong."""
    named = {problem.partition(":")[0] for problem in problems}
    found: list[str] = []
    _check_node(topology.node, found)
    _check_transports(topology.transports, found)
    _check_topics(topology, found)
    found += storage_problems(topology.topics, topology.node.leases.directory)
    found += kafka_problems(topology.kafka)
    found += adapter_problems(topology.adapters, {topic.name for topic in topology.topics}, named)
    wrong_port = any(path.endswith(".port") for path in named)
    for problem in found:
        path = problem.partition(":")[0]
        if path not in named and not (wrong_port and path.endswith(".port")):
            problems.append(problem)


def _check_node(node: NodeConfig, problems: list[str]) -> None:
    if node.name and _NAME.fullmatch(node.name) is None:
        problems.append(f"node.name: {shown(node.name)}: allowed 1..64 of A-Z a-z 0-9 _ . -")
    if node.id and node.id in node.quarantined:
        problems.append(f"node.quarantined: {node.id}: is this node itself")
    named = [each.transport for each in node.addresses]
    for i, where in enumerate(node.addresses):
        at = f"node.addresses[{i}]"
        if where.transport in named[:i]:
            problems.append(f"{at}.transport: {shown(where.transport)}: named twice")
        if where.bind and _HOST.fullmatch(where.bind) is None:
            problems.append(
                f"{at}.bind: {shown(where.bind)}: allowed a host name or an IPv4 address"
            )
        problem = _advertise_problem(where)
        if problem:
            problems.append(f"{at}.advertise: {shown(where.advertise)}: {problem}")


def _advertise_problem(where: NodeAddress) -> str:
    found = _ADVERTISE.fullmatch(where.advertise)
    if not where.advertise or where.advertise == "none":
        return ""
    if found is None:
        return "allowed host, host:port, or none"
    host, port = found.group(1), int(found.group(3) or 1)
    is_name = re.fullmatch(r"[\d.]+", host) is None
    return unicast_problem("10.0.0.1" if is_name else host, port)


def _check_transports(transports: list[TransportConfig], problems: list[str]) -> None:
    if len(transports) > TRANSPORTS_MAX:
        problems.append(f"transports: {len(transports)} of them: allowed 1..{TRANSPORTS_MAX}")
    names: set[str] = set()
    for i, each in enumerate(transports):
        at = f"transports[{i}]"
        if _NAME.fullmatch(each.name) is None:
            problems.append(f"{at}.name: {shown(each.name)}: allowed 1..64 of A-Z a-z 0-9 _ . -")
        if each.name in names:
            problems.append(f"{at}.name: {shown(each.name)}: used by another transport")
        names.add(each.name)
        if each.kind == "ipc":
            problems += ipc_problems(at, each.secure, each.lanes)
        if each.is_network:
            _check_addresses(each, at, problems)
            for j, other in enumerate(transports[:i]):
                if _collide(each, other):
                    problems.append(
                        f"{at}.port: {each.port}: transports[{j}] uses "
                        f"{other.port}..{other.port + 2} too: choose ports 3 apart, or other groups"
                    )


def _check_addresses(each: TransportConfig, at: str, problems: list[str]) -> None:
    interface = each.interface
    if re.fullmatch(r"[\d.]+", interface):
        ok = _ipv4(interface) is not None
    else:
        ok = _INTERFACE.fullmatch(interface) is not None
    if not ok:
        problems.append(
            f"{at}.interface: {shown(interface)}: allowed an interface's name (eth0) or its IPv4 "
            "address"
        )
    if each.bind and _HOST.fullmatch(each.bind) is None:
        problems.append(f"{at}.bind: {shown(each.bind)}: allowed a host name or an IPv4 address")
    if each.kind == "udp-multicast":
        group = _ipv4(each.group)
        if group is None or not group.is_multicast or group in ipaddress.ip_network("224.0.0.0/24"):
            problems.append(
                f"{at}.group: {shown(each.group)}: allowed a multicast address, 224.0.1.0 .. "
                "239.255.255.255 (239.x.x.x is for private use)"
            )
        if each.peers:
            problems.append(
                f"{at}.peers: a udp-multicast transport has none: kind udp-unicast does"
            )
    for i, peer in enumerate(each.peers):
        found = _PEER.fullmatch(peer)
        if found is None or not 1 <= int(found.group(2)) <= 65_533:
            problems.append(f"{at}.peers[{i}]: {shown(peer)}: allowed host:port, port 1..65533")


def _ipv4(text: str) -> ipaddress.IPv4Address | None:
    try:
        return ipaddress.IPv4Address(text)
    except ValueError:
        return None


def _collide(one: TransportConfig, other: TransportConfig) -> bool:
    if not other.is_network or one.kind != other.kind or abs(one.port - other.port) > 2:
        return False
    if one.kind == "udp-multicast":
        return one.group == other.group
    return one.bind_host == other.bind_host


def _check_topics(topology: Topology, problems: list[str]) -> None:
    if len(topology.topics) > TOPICS_MAX:
        problems.append(f"topics: {len(topology.topics)} of them: allowed 0..{TOPICS_MAX}")
        return
    transports = {t.name for t in topology.transports}
    first = topology.transports[0].name
    names: set[str] = set()
    ids: dict[tuple[str, int], str] = {}
    for i, topic in enumerate(topology.topics):
        at = f"topics[{i}]"
        problem = topic_name_problem(topic.name)
        if problem is not None:
            problems.append(f"{at}.name: {problem}")
        if topic.name in names:
            problems.append(f"{at}.name: {shown(topic.name)}: declared twice")
            continue
        names.add(topic.name)
        transport = topic.transport or first
        if transport not in transports:
            problems.append(
                f"{at}.transport: {shown(transport)}: allowed {', '.join(sorted(transports))}"
            )
        carrier = next((t for t in topology.transports if t.name == transport), None)
        if carrier is not None:
            for field in ("history_bytes", "receive_bytes", "large_history_bytes"):
                problem = _ring_problem(f"{at}.{field}", getattr(topic, field), carrier)
                problems += [problem] if problem is not None else []
        if topic.mode == "durable" and topic.reliability == "unreliable":
            problems.append(f"{at}.reliability: unreliable: a durable topic loses nothing")
        if topic.compression != "off" and topic.reliability == "unreliable":
            problems.append(f"{at}.compression: {topic.compression}: allowed off: {UNREPAIRED}")
        problems += owner_problems(
            at, topic, carrier is not None and carrier.kind == "ipc", topology.node.name
        )
        if topic.id is None:
            continue  # made from the name: two may have the same, the name decides
        owner = ids.setdefault((transport, topic.id), topic.name)
        if owner != topic.name:
            problems.append(_id_collision(at, topic, owner, transport, topology.topics))


def _ring_problem(field: str, size_bytes: int, transport: TransportConfig) -> str | None:
    most = SLOTS_MAX * transport.packet_bytes
    if size_bytes <= most:
        return None
    return (
        f"{field}: {size_bytes}: allowed at most {most}: {SLOTS_MAX} packets of transport "
        f"{transport.name} ({transport.packet_bytes} bytes each)"
    )


def check_ring_bytes(field: str, size_bytes: int, transport: TransportConfig) -> None:
    """Raise ConfigError when no ring can hold that many packets."""
    problem = _ring_problem(field, size_bytes, transport)
    if problem is not None:
        raise ConfigError(problem)


def _id_collision(
    at: str, topic: TopicConfig, owner: str, transport: str, topics: list[TopicConfig]
) -> str:
    taken = {t.wire_id for t in topics}
    free = topic.wire_id
    while free in taken:
        free = free % TOPIC_ID_MAX + 1
    return (
        f"{at}.id: {topic.id}: topic {owner} is given the same on transport {transport}: leave the "
        f"`id` of {topic.name} out, or take another, {free} is free"
    )


def unused_settings(mode: str, settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(field, problem) of settings of a live topic that only a durable topic has."""
    if mode == "durable":
        return []
    fixed = TopicConfig(name="x")
    return [
        (field, f"{shown(settings[field])}: the topic is live, only durable topics have queues")
        for field in DURABLE_FIELDS
        if field in settings and settings[field] != getattr(fixed, field)
    ]


def _check_used(topic: TopicConfig) -> None:
    settings = {field: getattr(topic, field) for field in DURABLE_FIELDS}
    problems = [f"{field}: {text}" for field, text in unused_settings(topic.mode, settings)]
    if problems:
        problems[-1] += ": allowed with mode durable"
        raise_problems(problems, f"topic {shown(topic.name)}")


# --- change ---------------------------------------------------------------------------------------


def add_topic(topology: Topology, topic: TopicConfig) -> Topology:
    """The topology with one more topic. Raises ConfigError, Conflict."""
    if topology.topic(topic.name) is not None:
        raise Conflict(f"topic {topic.name} exists already")
    _check_used(topic)
    topics = [*topology.topics, topic]
    whole = msgspec.structs.replace(topology, topics=topics)
    return _with_one(whole, len(topics) - 1, topic.name)


def change_topic(topology: Topology, name: str, changes: dict[str, Any]) -> Topology:
    """The topology with some settings of a topic changed. Raises ConfigError, NotFound."""
    topic = _topic_of(topology, name)
    if "name" in changes and changes["name"] != name:
        raise ConfigError("name: a topic cannot be renamed: delete it and create another")
    queues = changes.get("queues", topic.queues)
    if topic.mode == "durable" and isinstance(queues, int) and queues < topic.queues:
        raise ConfigError(f"queues: {queues}: there are {topic.queues}, and queues only grow")
    if topic.storage != LOCAL and queues != topic.queues:
        raise ConfigError(
            f"queues: {queues}: the storage of topic {name} is {storage_name(topic.storage)}: "
            f"allowed {topic.queues}"
        )
    raw = {field: getattr(topic, field) for field in topic.__struct_fields__} | changes
    topics: list[Any] = [raw if t.name == name else t for t in topology.topics]
    whole = {field: getattr(topology, field) for field in topology.__struct_fields__}
    changed = _with_one(whole | {"topics": topics}, topics.index(raw), name)
    after = changed.topic(name)
    assert after is not None
    _check_used(after)
    return changed


def _topic_of(topology: Topology, name: str) -> TopicConfig:
    topic = topology.topic(name)
    if topic is None:
        known = near(name, (each.name for each in topology.topics))
        raise NotFound(f"no topic {shown(name)}{known}")
    return topic


def _with_one(raw: Any, index: int, name: str) -> Topology:
    """`topology_from` for a change of one topic: errors name its fields, not where it stands."""
    try:
        return topology_from(raw)
    except ConfigError as problem:
        at = f"topics[{index}]."
        raise_problems([each.removeprefix(at) for each in problem.problems], f"topic {shown(name)}")
        raise


def remove_topic(topology: Topology, name: str) -> Topology:
    """The topology without a topic. Raises NotFound."""
    _topic_of(topology, name)
    return msgspec.structs.replace(topology, topics=[t for t in topology.topics if t.name != name])


# --- load, save -----------------------------------------------------------------------------------


def load_topology(path: Path) -> Topology:
    """Read and check a topology file. Raises NotFound, ConfigError (all problems at once)."""
    try:
        size_bytes = path.stat().st_size
        if size_bytes > TOPOLOGY_FILE_BYTES_MAX:
            raise ConfigError(f"{path}: {size_bytes} bytes: allowed {TOPOLOGY_FILE_BYTES_MAX}")
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise NotFound(f"no topology file {path}") from None
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{path}: not UTF-8 text: byte {problem.start}") from None
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be read: {problem.strerror}") from None
    return topology_from(parse_yaml(text, str(path)), str(path))


def dump_topology(topology: Topology) -> str:
    """As YAML; settings that have their default are left out."""
    plain = {key: value for key, value in msgspec.to_builtins(topology).items() if value != {}}
    return dump_yaml(plain)


_HEADER = """\
# Tidecast topology, checked when an engine starts.
# Topics are also changed by `tidecast topic create|edit|delete`, which rewrites this file.
"""


def save_topology(topology: Topology, path: Path) -> None:
    """Write atomically (temporary file, fsync, rename). Raises ConfigError."""
    text = _HEADER + dump_topology(topology)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, text.encode())
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be written: {problem.strerror}") from None


def _default_transports() -> list[TransportConfig]:
    return [
        TransportConfig(name="multicast", kind="udp-multicast", allow_faults=True),
        TransportConfig(name="ipc", kind="ipc"),
    ]


def platform_topology(platform: str) -> Topology:
    """`default_topology` on a group and ports of this platform's own: 16 hex digits."""
    draw, group = divmod(int(platform, 16), PLATFORM_GROUPS)
    address = ipaddress.IPv4Address("239.192.0.0") + group
    port = PLATFORM_PORTS[draw % len(PLATFORM_PORTS)]
    multicast, ipc = _default_transports()
    multicast = msgspec.structs.replace(multicast, platform=platform, group=str(address), port=port)
    return topology_from(Topology(transports=[multicast, ipc]))


def first_topology(data_dir: Path) -> Topology:
    """For a data directory without a file: a new platform's, at the newest level.

    Where an engine ran before, it is the default one, as that engine had.
    """
    if (data_dir / LOCK_NAME).exists():
        return default_topology()
    return msgspec.structs.replace(platform_topology(secrets.token_hex(8)), level=NEWEST)


def own_topology() -> Topology:
    """For a program with a node of its own: the transports of the user's default data directory.

    Where there are none, or they are sealed, the programs of a user on one machine hear each other.
    """
    with contextlib.suppress(TidecastError):
        found = load_topology(topology_path(default_data_dir())).transports
        if all(transport.secure == "off" for transport in found):
            return topology_from(Topology(transports=found))
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = socket.gethostname()
    own = hashlib.blake2b(f"{machine}\0{os.getuid()}".encode(), digest_size=8)
    return platform_topology(own.hexdigest())


def default_topology(data_dir: Path | None = None) -> Topology:
    """Loopback multicast and shared memory, topics made on first use; ids from ``data_dir``."""
    topology = topology_from(Topology(transports=_default_transports()))
    return topology if data_dir is None else with_identity(topology, data_dir)
