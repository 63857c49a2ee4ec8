"""Causes of failing messages on a machine, looked for in turn, each with its fix.

A check returns `Finding`s; it reads the kernel's files below ``root`` ("/" but in tests) and tries
real sockets. Nothing is changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import secrets
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tidecast.config.topology import (
    Topology,
    TransportConfig,
    default_topology,
    load_topology,
    shm_dir,
    topology_path,
)
from tidecast.errors import NotFound, TidecastError
from tidecast.layout import packet as wire
from tidecast.layout.packet import CHANNEL_PORT_OFFSET
from tidecast.layout.sealed import SEAL_BYTES
from tidecast.native.crypto.libcrypto import find_libcrypto
from tidecast.version import VERSION

if TYPE_CHECKING:
    from tidecast.node.durable.archiver_tables import UnackedRing

OK, WARN, FAIL = "ok", "warn", "fail"
SHM_FAIL_BYTES, SHM_WARN_BYTES = 64 << 20, 512 << 20
ROUND_TRIP_TIMEOUT_S = 1.0
LISTEN_S, STRANGERS_MAX = 1.2, 64
"""A publication introduces itself once a second."""
SIOCGIFADDR, SIOCGIFFLAGS, SIOCGIFMTU = 0x8915, 0x8913, 0x8921
IFF_UP, IFF_LOOPBACK, IFF_MULTICAST = 1, 8, 0x1000
SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
IP_UDP_HEADER_BYTES = 28


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The finding of one check. ``mend``: the remedy, often a command."""

    check: str
    status: str
    detail: str
    mend: str = ""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look."""

    data_dir: Path
    topology: Topology
    root: Path = Path("/")

    def read(self, path: str) -> str:
        """A kernel file's text; "" when it is not there."""
        try:
            return (self.root / path).read_text().strip()
        except OSError:
            return ""

    def read_int(self, path: str) -> int | None:
        """A kernel file's number; None when it is not there."""
        text = self.read(path)
        return int(text) if text.lstrip("-").isdigit() else None

    def networks(self) -> list[TransportConfig]:
        """The transports with sockets."""
        return [t.on(self.topology.node) for t in self.topology.transports if t.is_network]


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface with an IPv4 address."""

    name: str
    address: str
    flags: int
    mtu: int


def interfaces() -> list[Interface]:
    """Those with an IPv4 address."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            with contextlib.suppress(OSError):
                address = fcntl.ioctl(probe, SIOCGIFADDR, request)[20:24]
                flags = struct.unpack_from("<H", fcntl.ioctl(probe, SIOCGIFFLAGS, request), 16)[0]
                mtu = struct.unpack_from("<i", fcntl.ioctl(probe, SIOCGIFMTU, request), 16)[0]
                found.append(
                    Interface(name=name, address=socket.inet_ntoa(address), flags=flags, mtu=mtu)
                )
    return found


def interface_of(transport: TransportConfig) -> Interface | None:
    """The interface a transport uses. Any address of 127.0.0.0/8 is the loopback's."""
    for each in interfaces():
        if transport.interface in (each.name, each.address):
            return each
        if transport.interface.startswith("127.") and each.flags & IFF_LOOPBACK:
            return each
    return None


# --- the process, the data directory, shared memory ----------------------------------------------


def check_python(_: Place) -> Iterator[Finding]:
    """Versions, and a kernel cache that can be written."""
    import numba

    from tidecast.native.jit import cache_root

    versions = f"Python {platform.python_version()}, Numba {numba.__version__}, {sys.platform}"
    if sys.platform != "linux":
        yield Finding(check="python", status=FAIL, detail=versions, mend="Tidecast runs on Linux")
    else:
        yield Finding(check="python", status=OK, detail=versions)
    root = cache_root()
    if os.access(root, os.W_OK):
        yield Finding(check="kernel cache", status=OK, detail=str(root))
    else:
        yield Finding(
            check="kernel cache",
            status=WARN,
            detail=f"{root} cannot be written: every start compiles again",
            mend="set TIDECAST_CACHE_DIR to a directory of yours",
        )


def check_libcrypto(_: Place) -> Iterator[Finding]:
    """The cipher of sealed transports is libcrypto's; other transports do not need it."""
    try:
        found = find_libcrypto()
    except NotFound as problem:
        yield Finding(
            check="libcrypto",
            status=WARN,
            detail=f"{problem}; sealed transports need it",
            mend="install OpenSSL 3 (Debian, Ubuntu: apt install libssl3), or "
            "pip install 'psycopg[binary]'",
        )
    else:
        yield Finding(
            check="libcrypto", status=OK, detail=f"{found.version}, {found.path or 'linked in'}"
        )


def check_cores(place: Place) -> Iterator[Finding]:
    """Spinning agents need cores of their own."""
    cores = len(os.sched_getaffinity(0))
    busy = [t.name for t in place.topology.transports if t.idle == "busy"]
    for each in place.networks():
        if each.lanes > 1 and cores < 2 + 2 * each.lanes:
            yield Finding(
                check=f"lanes of {each.name}",
                status=WARN,
                detail=f"{each.lanes} lanes are {2 * each.lanes} agents, and {cores} cores are "
                f"usable: lanes help with {2 + 2 * each.lanes} cores or more",
                mend=f"set lanes: {max((cores - 2) // 2, 1)} in the topology",
            )
    if busy and cores < 3:
        yield Finding(
            check="cores",
            status=WARN,
            detail=f"{cores} cores, and transport {', '.join(busy)} "
            "spins: spinning agents starve each other",
            mend="set idle: backoff in the topology",
        )
    else:
        yield Finding(check="cores", status=OK, detail=f"{cores} usable")


def check_engine(place: Place) -> Iterator[Finding]:
    """An engine that runs must answer; none running is no fault."""
    from tidecast.client.links.socket_session import EngineControl
    from tidecast.engine.process import read_state, running_pid

    pid = running_pid(place.data_dir)
    if pid is None:
        if read_state(place.data_dir) is not None:
            yield Finding(
                check="engine",
                status=WARN,
                detail=f"none runs on {place.data_dir}; the last one did not stop cleanly",
                mend="tidecast recorder shows its last moments; tidecast up starts a new one",
            )
        else:
            yield Finding(check="engine", status=OK, detail=f"none runs on {place.data_dir}")
        return
    try:
        with EngineControl(place.data_dir, "doctor") as control:
            engine, mine = control.welcome.version, VERSION
    except TidecastError as problem:
        yield Finding(
            check="engine",
            status=FAIL,
            detail=f"pid {pid} does not answer: {problem}",
            mend="tidecast down, then tidecast up",
        )
        return
    if engine != mine:
        yield Finding(
            check="engine",
            status=WARN,
            detail=f"pid {pid} is version {engine}, this is {mine}",
            mend="restart it: tidecast down, then tidecast up",
        )
    else:
        yield Finding(check="engine", status=OK, detail=f"pid {pid} answers, version {engine}")


def check_data_dir(place: Place) -> Iterator[Finding]:
    """It must be a directory that we may write."""
    directory = place.data_dir
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    if directory.is_dir() and os.access(directory, os.W_OK | os.X_OK):
        yield Finding(check="data directory", status=OK, detail=str(place.data_dir))
    else:
        yield Finding(
            check="data directory",
            status=FAIL,
            detail=f"{directory} cannot be written",
            mend="choose another with --data-dir or TIDECAST_DATA_DIR",
        )


def check_shared_memory(place: Place) -> Iterator[Finding]:
    """Rings live there: a container has 64 MiB by default."""
    directory = shm_dir(place.data_dir)
    if directory.parent != Path("/dev/shm"):
        yield Finding(
            check="shared memory",
            status=WARN,
            detail=f"no /dev/shm: rings are in {directory}, on a disk perhaps",
            mend="mount -t tmpfs tmpfs /dev/shm",
        )
        return
    stats = os.statvfs(directory.parent)
    free_bytes = stats.f_bavail * stats.f_frsize
    detail = f"/dev/shm has {free_bytes >> 20} MiB free of {stats.f_blocks * stats.f_frsize >> 20}"
    status = FAIL if free_bytes < SHM_FAIL_BYTES else WARN if free_bytes < SHM_WARN_BYTES else OK
    yield Finding(
        check="shared memory",
        status=status,
        detail=detail,
        mend=""
        if status == OK
        else "mount -o remount,size=2G /dev/shm; containers: docker run --shm-size=2g",
    )


def stranded_rings(data_dir: Path, topology: Topology) -> list[UnackedRing]:
    """Rings with unacked messages whose topics the topology does not have as durable ones."""
    from tidecast.node.live.agent_tables import spool_directory
    from tidecast.node.shm_directory import unacked_rings

    durable = {topic.name for topic in topology.topics if topic.mode == "durable"}
    rings = unacked_rings(shm_dir(data_dir), spool_directory(data_dir))
    return [each for each in rings if each.topic not in durable]


def check_stranded_rings(place: Place) -> Iterator[Finding]:
    """Unacked messages of a deleted topic occupy memory until an operator decides."""
    found = stranded_rings(place.data_dir, place.topology)
    for each in found:
        yield Finding(
            check="stranded ring",
            status=WARN,
            detail=f"{each.file} holds {each.messages} unacked "
            f"messages ({each.bytes} bytes) of {each.topic}, which is no durable topic here",
            mend=f"tidecast topic create {each.topic} --mode durable, then start the engine again; "
            "or tidecast queue orphans --remove",
        )
    if not found:
        yield Finding(check="stranded rings", status=OK, detail="none")


def check_clock(place: Place) -> Iterator[Finding]:
    """A clock that must ask the hypervisor costs a microsecond a reading."""
    base = "sys/devices/system/clocksource/clocksource0/"
    source = place.read(base + "current_clocksource")
    if source in ("hpet", "acpi_pm", "jiffies", "refined-jiffies"):
        yield Finding(
            check="clock",
            status=WARN,
            detail=f"clock source {source} is slow",
            mend=f"echo tsc > /{base}current_clocksource (there are: "
            f"{place.read(base + 'available_clocksource')})",
        )
    else:
        yield Finding(check="clock", status=OK, detail=f"clock source {source or 'unknown'}")


# --- the network ----------------------------------------------------------------------------------


def check_socket_buffers(place: Place) -> Iterator[Finding]:
    """The kernel cuts socket buffers to its maxima without a word."""
    for kind in ("rmem_max", "wmem_max"):
        have = place.read_int(f"proc/sys/net/core/{kind}")
        want = max((t.socket_buffer_bytes for t in place.networks()), default=0)
        if have is None or have >= want:
            detail = "not to be seen here" if have is None else f"{have} bytes, {want} are wanted"
            yield Finding(check=kind, status=OK, detail=detail)
        else:
            yield Finding(
                check=kind,
                status=WARN,
                detail=f"{have} bytes, but the topology needs {want}: "
                "bursts beyond it are lost (and repaired), unless the engine is root",
                mend=f"sysctl -w net.core.{kind}={want}",
            )


def check_interfaces(place: Place) -> Iterator[Finding]:
    """Each transport's interface: there, up, able to multicast, packets that fit."""
    for transport in place.networks():
        check = f"interface of {transport.name}"
        found = interface_of(transport)
        if found is None:
            known = ", ".join(f"{i.name} ({i.address})" for i in interfaces()) or "none"
            yield Finding(
                check=check,
                status=FAIL,
                detail=f"{transport.interface}: no such interface with "
                f"an IPv4 address; there are {known}",
                mend="ip link set lo up"
                if transport.is_loopback
                else "set interface in the topology",
            )
            continue
        yield _interface_finding(check, transport, found)


def network_findings(place: Place) -> list[Finding]:
    """The defects of interfaces, peers and routes; cheap enough for each start of an engine."""
    found = [*check_interfaces(place), *check_peers(place), *check_routes(place)]
    return [each for each in found if each.status != OK]


def _interface_finding(check: str, transport: TransportConfig, found: Interface) -> Finding:
    detail = f"{found.name} ({found.address}), MTU {found.mtu}"
    if not found.flags & IFF_UP:
        return Finding(
            check=check,
            status=FAIL,
            detail=f"{detail}: is down",
            mend=f"ip link set {found.name} up",
        )
    can = found.flags & (IFF_MULTICAST | IFF_LOOPBACK)
    if transport.kind == "udp-multicast" and not can:
        return Finding(
            check=check,
            status=FAIL,
            detail=f"{detail}: has no MULTICAST flag",
            mend=f"ip link set {found.name} multicast on",
        )
    sealed = transport.secure != "off"
    most = (found.mtu - IP_UDP_HEADER_BYTES - (SEAL_BYTES if sealed else 0)) // 8 * 8
    if transport.packet_bytes > most:
        longer = f", {SEAL_BYTES} more when sealed," if sealed else ""
        return Finding(
            check=check,
            status=FAIL if sealed else WARN,
            detail=f"{detail}: packets of {transport.packet_bytes} bytes{longer} "
            "are sent in IP fragments: one lost fragment loses the packet",
            mend=f"set packet_bytes to {most} or less",
        )
    return Finding(check=check, status=OK, detail=detail)


def check_peers(place: Place) -> Iterator[Finding]:
    """A udp-unicast transport sends to its peers alone, and their names must be known."""
    for transport in place.networks():
        if transport.kind != "udp-unicast":
            continue
        check = f"peers of {transport.name}"
        if not transport.peers:
            yield _discovered_peers(place, transport.name, transport.port)
            continue
        unknown = []
        for host, port in transport.peer_addresses:
            try:
                socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_DGRAM)
            except OSError:
                unknown.append(host)
        if unknown:
            yield Finding(
                check=check,
                status=FAIL,
                detail=f"{', '.join(unknown)}: no such host is known",
                mend="fix peers in the topology, or DNS, or /etc/hosts",
            )
        else:
            yield Finding(check=check, status=OK, detail=", ".join(transport.peers))


def _discovered_peers(place: Place, name: str, port: int) -> Finding:
    """The peers that a control service named, and which of them a running engine hears."""
    from tidecast.control_link.link import load_state
    from tidecast.control_link.peers import load_peers

    check = f"peers of {name}"
    if not load_state(place.data_dir).credential:
        return Finding(
            check=check,
            status=WARN,
            detail="none: it only receives",
            mend="connect the engines to one control service, or set peers in the topology: "
            f"[other-host:{port}]",
        )
    try:
        known = load_peers(place.data_dir).get(name, [])
    except TidecastError as problem:
        return Finding(check=check, status=FAIL, detail=str(problem), mend="restart the engine")
    if not known:
        detail = "none yet: no other engine has announced an address to the control service"
        return Finding(check=check, status=OK, detail=detail)
    heard = _heard_peers(place, name)
    words = [f"{each.node} at {each.where}{heard.get(each.node_id, '')}" for each in known]
    silent = any("silent" in each for each in heard.values())
    return Finding(
        check=check,
        status=WARN if silent else OK,
        detail=f"of the control service: {', '.join(words)}",
        mend="a peer that runs is not heard: let UDP port to port + 2 pass on both hosts; delete "
        "nodes that do not come back"
        if silent
        else "",
    )


def _heard_peers(place: Place, name: str) -> dict[int, str]:
    """When a running engine heard each peer, by node id; empty when none runs."""
    from tidecast.client.links.socket_session import EngineControl
    from tidecast.engine.process import running_pid

    if running_pid(place.data_dir) is None:
        return {}
    try:
        with EngineControl(place.data_dir, "doctor") as control:
            rows = control.overview().peers
    except TidecastError:
        return {}  # `check_engine` reports it
    found = {}
    for row in rows:
        if row["transport"] == name:
            age_s = row["heard_age_s"]
            words = "never heard" if age_s is None else f"heard {age_s:.1f} s ago"
            found[row["node_id"]] = f" ({'silent, ' if row['silent'] else ''}{words})"
    return found


def check_routes(place: Place) -> Iterator[Finding]:
    """Packets are sent by interface; without any route some kernels and VPNs still refuse."""
    routes = _routes(place)
    for transport in place.networks():
        if transport.kind != "udp-multicast" or transport.is_loopback:
            continue
        group = struct.unpack("=I", socket.inet_aton(transport.group))[0]
        via = [name for name, to, mask in routes if group & mask == to]
        found = interface_of(transport)
        check = f"route of {transport.name}"
        if found is None or found.name in via:
            yield Finding(check=check, status=OK, detail=f"{transport.group} by {', '.join(via)}")
        else:
            yield Finding(
                check=check,
                status=WARN,
                detail=f"no route to {transport.group} by {found.name} (by {', '.join(via)})"
                if via
                else f"no route to {transport.group}",
                mend=f"ip route add 224.0.0.0/4 dev {found.name}",
            )


def _routes(place: Place) -> list[tuple[str, int, int]]:
    """(interface, destination, mask), as the kernel prints them: in network order."""
    rows = [line.split() for line in place.read("proc/net/route").splitlines()[1:]]
    return [(r[0], int(r[1], 16), int(r[7], 16)) for r in rows if len(r) > 7]


def check_rp_filter(place: Place) -> Iterator[Finding]:
    """Strict reverse-path filtering drops packets of sources that are routed another way."""
    conf = "proc/sys/net/ipv4/conf"
    for transport in place.networks():
        found = interface_of(transport)
        if found is None or found.flags & IFF_LOOPBACK:
            continue
        values = [place.read_int(f"{conf}/{name}/rp_filter") for name in ("all", found.name)]
        mode = max((v for v in values if v is not None), default=0)
        check = f"rp_filter of {transport.name}"
        many = sum(1 for i in interfaces() if not i.flags & IFF_LOOPBACK) > 1
        if mode == 1 and many:
            yield Finding(
                check=check,
                status=WARN,
                detail=f"strict on {found.name}, and there are several "
                "interfaces: packets from nodes that are routed another way vanish",
                mend=f"sysctl -w net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.{found.name}."
                "rp_filter=2",
            )
        else:
            words = {0: "off", 1: "strict, one interface", 2: "loose"}
            yield Finding(check=check, status=OK, detail=f"{words.get(mode, mode)}")


def check_firewall(place: Place) -> Iterator[Finding]:
    """Rules cannot be read without rights, but one sees whether a firewall is loaded."""
    outside = [t for t in place.networks() if not t.is_loopback]
    modules = {line.split()[0] for line in place.read("proc/modules").splitlines() if line.split()}
    loaded = sorted(modules & {"nf_tables", "ip_tables", "iptable_filter"})
    if not outside or not loaded:
        detail = "no packet filter is loaded" if not loaded else "loopback only: does not matter"
        yield Finding(check="firewall", status=OK, detail=detail)
        return
    ports = ", ".join(f"{t.port}-{t.port + 2}" for t in outside)
    yield Finding(
        check="firewall",
        status=WARN,
        detail=f"a packet filter is loaded ({', '.join(loaded)}); "
        f"it must let UDP ports {ports} and IGMP pass",
        mend=f"iptables -I INPUT -p udp --dport {outside[0].port}:{outside[0].port + 2} -j ACCEPT; "
        "iptables -I INPUT -p igmp -j ACCEPT",
    )


def check_round_trip(place: Place) -> Iterator[Finding]:
    """A real packet to each multicast group, on a port of its own."""
    for transport in place.networks():
        found = interface_of(transport)
        if transport.kind != "udp-multicast" or found is None:
            continue
        check = f"multicast on {transport.name}"
        try:
            came = _multicast_round_trip(transport, found)
        except OSError as problem:
            yield Finding(
                check=check,
                status=FAIL,
                detail=f"{transport.group} on {found.name}: {problem.strerror or problem}",
                mend=f"ip link set {found.name} multicast on; "
                f"ip route add 224.0.0.0/4 dev {found.name}",
            )
            continue
        if came:
            yield Finding(
                check=check, status=OK, detail=f"{transport.group} on {found.name}: sent and came"
            )
        else:
            yield Finding(
                check=check,
                status=FAIL,
                detail=f"{transport.group} on {found.name}: sent, but did not come back",
                mend="look at the firewall, rp_filter and route findings; in "
                "containers use --network host",
            )


def check_strangers(place: Place) -> Iterator[Finding]:
    """Nodes of another platform on a transport's group and port, by the SETUPs of a moment."""
    for transport in place.networks():
        found = interface_of(transport)
        if transport.kind != "udp-multicast" or found is None:
            continue
        check = f"strangers on {transport.name}"
        heard = listen(transport, found)
        foreign = sorted(
            f"{name} (platform {platform or 'not named'}, {address})"
            for name, platform, address in heard
            if transport.platform and platform != transport.platform
        )
        if foreign:
            yield Finding(
                check=check,
                status=WARN,
                detail=f"{transport.where} is used by another platform, too: {', '.join(foreign)}",
                mend="set another port or group of this transport in the topology; or the same "
                f"platform on those nodes: platform: {transport.platform}",
            )
        else:
            known = ", ".join(sorted({name for name, _, _ in heard})) or "nobody publishes"
            yield Finding(check=check, status=OK, detail=f"{transport.where}: {known}")


def listen(transport: TransportConfig, interface: Interface) -> set[tuple[str, str, str]]:
    """(node, platform, host) of the plain SETUPs that a group gets within LISTEN_S."""
    membership = socket.inet_aton(transport.group) + socket.inet_aton(interface.address)
    found: set[tuple[str, str, str]] = set()
    with contextlib.ExitStack() as opened:
        waiting = opened.enter_context(selectors.DefaultSelector())
        for offset in CHANNEL_PORT_OFFSET:
            each = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind((transport.group, transport.port + offset))
            each.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
            waiting.register(each, selectors.EVENT_READ)
        ends_s = time.monotonic() + LISTEN_S
        while len(found) < STRANGERS_MAX and (left_s := ends_s - time.monotonic()) > 0:
            for key, _ in waiting.select(left_s):
                assert isinstance(key.fileobj, socket.socket)
                raw, (host, *_) = key.fileobj.recvfrom(65_535)
                if (about := introduced(raw)) is not None:
                    found.add((*about, host))
    return found


def introduced(raw: bytes) -> tuple[str, str] | None:
    """Node and platform of a SETUP packet; None for any other."""
    if len(raw) < wire.SETUP_NAMES_AT or raw[:2] != bytes((wire.VERSION, wire.SETUP)):
        return None
    end = int.from_bytes(raw[wire.LENGTH_AT : wire.LENGTH_AT + 2], "little")
    node_n, topic_n = raw[wire.SETUP_NODE_LEN_AT], raw[wire.SETUP_TOPIC_LEN_AT]
    tag_n = raw[wire.SETUP_PLATFORM_LEN_AT]
    node = raw[wire.SETUP_NAMES_AT : wire.SETUP_NAMES_AT + node_n]
    if end > len(raw) or end < wire.SETUP_NAMES_AT + node_n + topic_n + tag_n:
        return None
    tag = raw[end - tag_n : end] if tag_n == wire.PLATFORM_BYTES else b""
    return node.decode(errors="replace"), tag.hex()


def _multicast_round_trip(transport: TransportConfig, interface: Interface) -> bool:
    local = socket.inet_aton(interface.address)
    token = secrets.token_bytes(16)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind((transport.group, 0))
        membership = socket.inet_aton(transport.group) + local
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        receiver.settimeout(ROUND_TRIP_TIMEOUT_S)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, local)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, transport.ttl_hops)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        sender.bind((interface.address, 0))
        sender.sendto(token, (transport.group, receiver.getsockname()[1]))
        try:
            return receiver.recv(64) == token
        except TimeoutError:
            return False


def check_offload(_: Place) -> Iterator[Finding]:
    """Many packets a system call: the kernel must split and join them."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(ROUND_TRIP_TIMEOUT_S)
        slow = "works, only slower: packets go one by one; Linux 5.0 or newer has it"
        try:
            sender.setsockopt(SOL_UDP, UDP_SEGMENT, 100)
            sender.sendto(bytes(200), receiver.getsockname())
            parts = [len(receiver.recv(1000)), len(receiver.recv(1000))]
        except OSError as problem:
            yield Finding(check="GSO", status=WARN, detail=f"refused ({problem})", mend=slow)
        else:
            status = OK if parts == [100, 100] else WARN
            yield Finding(check="GSO", status=status, detail=f"200 bytes came as {parts}")
        try:
            receiver.setsockopt(SOL_UDP, UDP_GRO, 1)
        except OSError as problem:
            yield Finding(check="GRO", status=WARN, detail=f"refused ({problem})", mend=slow)
        else:
            yield Finding(check="GRO", status=OK, detail="can be switched on")


CHECKS: tuple[Callable[[Place], Iterator[Finding]], ...] = (
    check_python, check_libcrypto, check_cores, check_clock, check_data_dir, check_shared_memory,
    check_stranded_rings, check_engine, check_socket_buffers, check_interfaces, check_peers,
    check_routes,
    check_rp_filter, check_firewall, check_round_trip, check_strangers, check_offload,
)  # fmt: skip


def examine(
    data_dir: Path, root: Path = Path("/"), topology_file: Path | None = None
) -> list[Finding]:
    """Run all checks; a broken topology file is itself a finding.

    ``topology_file``: instead of the one in the data directory.
    """
    findings: list[Finding] = []
    path = topology_file or topology_path(data_dir)
    try:
        topology = load_topology(path)
        findings.append(Finding(check="topology", status=OK, detail=str(path)))
    except NotFound as problem:
        if topology_file is not None:
            raise problem from None
        topology = default_topology()
        findings.append(Finding(check="topology", status=OK, detail="the default one"))
    except TidecastError as problem:
        topology = default_topology()
        findings.append(
            Finding(check="topology", status=FAIL, detail=str(problem), mend=f"edit {path}")
        )
    place = Place(data_dir=data_dir, topology=topology, root=root)
    for check in CHECKS:
        try:
            findings.extend(check(place))
        except (OSError, TidecastError) as problem:
            name = check.__name__.removeprefix("check_").replace("_", " ")
            findings.append(Finding(check=name, status=WARN, detail=f"cannot look: {problem}"))
    return findings
