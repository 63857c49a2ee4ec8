"""Sockets of a transport, made in Python once: multicast membership, GRO, buffers, addresses."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tidecast.errors import ConfigError, Conflict
from tidecast.layout.packet import CHANNEL_ORDINARY, CHANNEL_PORT_OFFSET, CHANNELS
from tidecast.native.system.filters import share_port

_SO_RCVBUFFORCE, _SO_SNDBUFFORCE = 33, 32
_SOL_UDP, _UDP_GRO = 17, 104
_SIOCGIFADDR = 0x8915
_IP_MULTICAST_ALL = 49
_PORT_STEP, _PORT_TRIES = 840, 64
"""Ports of sending sockets of lanes: 840 is a multiple of each number of lanes."""


@dataclass(frozen=True, slots=True)
class TransportSockets:
    """A sending socket (control packets come back to it), and a receiving socket a channel."""

    send: socket.socket
    receive: tuple[socket.socket, ...]
    targets: tuple[tuple[bytes, ...], ...]
    """For each target the 16-byte address of each channel."""

    def close(self) -> None:
        """Close all."""
        for one in (self.send, *self.receive):
            one.close()


def sockaddr(host: str, port: int) -> bytes:
    """A ``sockaddr_in`` of 16 bytes."""
    packed = ipaddress.IPv4Address(host).packed
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + packed + bytes(8)


def interface_address(interface: str, who: str = "") -> str:
    """IPv4 address of an interface given by name or address. Raises ConfigError.

    ``who``: whose it is, in front of the error: ``transport lan: ``.
    """
    try:
        return str(ipaddress.IPv4Address(interface))
    except ValueError:
        pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", interface[:15].encode())
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError as problem:
            known = ", ".join(name for _, name in socket.if_nameindex())
            raise ConfigError(
                f"{who}interface: {interface!r}: no such interface, or it has no IPv4 address; "
                f"there are: {known}"
            ) from problem
    return socket.inet_ntoa(answer[20:24])


def _set_buffers(one: socket.socket, size_bytes: int) -> None:
    for force, plain in (
        (_SO_RCVBUFFORCE, socket.SO_RCVBUF),
        (_SO_SNDBUFFORCE, socket.SO_SNDBUF),
    ):
        try:
            one.setsockopt(socket.SOL_SOCKET, force, size_bytes)
        except OSError:
            one.setsockopt(socket.SOL_SOCKET, plain, size_bytes)


def _udp_socket(buffer_bytes: int, *, gro: bool) -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    one.setblocking(False)
    _set_buffers(one, buffer_bytes)
    if gro:
        with contextlib.suppress(OSError):  # an old kernel: packets come one by one
            one.setsockopt(_SOL_UDP, _UDP_GRO, 1)
    return one


def _bind(one: socket.socket, host: str, port: int, what: str) -> None:
    try:
        one.bind((host, port))
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            raise Conflict(
                f"{what}: UDP port {port} on {host} is in use by another program: choose another "
                "port in the topology, or end that program (ss -lunp shows it)"
            ) from problem
        if problem.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(f"{what}: {host}: this host has no such address") from problem
        raise


def _bind_sender(one: socket.socket, host: str, what: str, lane: int, beside: int) -> None:
    """Bind a sending socket. A further lane gets a port that differs from ``beside`` by ``lane``.

    Receivers take the lane of a packet from its source port: so different lanes here are different
    lanes there. When no such port is free, any port serves: two lanes may share a receiver's lane.
    """
    first = beside + lane
    for port in range(first, 65_536, _PORT_STEP)[:_PORT_TRIES] if lane else ():
        try:
            one.bind((host, port))
        except OSError as problem:
            if problem.errno not in (errno.EADDRINUSE, errno.EACCES):
                break
        else:
            return
    _bind(one, host, 0, what)


def open_multicast(
    *,
    name: str,
    group: str,
    port: int,
    interface: str,
    ttl: int,
    buffer_bytes: int,
    gro: bool,
    lane: int = 0,
    beside: int = 0,
) -> TransportSockets:
    """Sockets of a multicast transport. Raises ConfigError, Conflict, with the remedy.

    ``lane``, ``beside``: the number of a further lane, and the port of the first lane's ``send``.
    """
    local = interface_address(interface, f"transport {name}: ")
    opened: list[socket.socket] = []
    try:
        send = _udp_socket(buffer_bytes, gro=False)
        opened.append(send)
        _bind_sender(send, local, f"transport {name}: interface", lane, beside)
        send.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
        send.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        try:
            send.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(local))
        except OSError as problem:
            raise ConfigError(
                f"transport {name}: interface {interface}: {problem.strerror}: is it up? "
                f"(ip link set {'lo' if local.startswith('127.') else interface} up; "
                "`tidecast doctor` shows more)"
            ) from problem
        for channel in range(CHANNELS):
            one = _udp_socket(buffer_bytes, gro=gro)
            opened.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _bind(one, group, port + CHANNEL_PORT_OFFSET[channel], f"transport {name}")
            membership = socket.inet_aton(group) + socket.inet_aton(local)
            try:
                one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
                one.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
            except OSError as problem:
                raise ConfigError(
                    f"transport {name}: cannot join {group} on interface {interface} "
                    f"({problem.strerror}): `tidecast doctor` shows how to fix it "
                    f"(often: ip route add {group}/32 dev {interface})"
                ) from problem
    except BaseException:
        for one in opened:
            one.close()
        raise
    target = tuple(sockaddr(group, port + CHANNEL_PORT_OFFSET[c]) for c in range(CHANNELS))
    return TransportSockets(opened[0], tuple(opened[1:]), (target,))


_IP_MTU = 14
UDP_HEADERS_BYTES = 28


def path_mtu(send: socket.socket, address: bytes) -> int:
    """Bytes of the largest IP packet that reaches an address in one piece; 0: not known.

    ``address``: 16 bytes, of the socket that sends there. The kernel knows the MTU of the route,
    and smaller MTUs that routers on the way have reported.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.setsockopt(
                socket.IPPROTO_IP,
                socket.IP_MULTICAST_IF,
                send.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, 4),
            )
            probe.connect(host_and_port(address))
            return probe.getsockopt(socket.IPPROTO_IP, _IP_MTU)
        except OSError:
            return 0


def host_and_port(address: bytes) -> tuple[str, int]:
    """The dotted address and the port of a ``sockaddr_in``."""
    return socket.inet_ntoa(address[4:8]), int.from_bytes(address[2:4], "big")


def target_at(host: str, port: int) -> list[bytes]:
    """The addresses of each channel of a node. ``host``: a dotted IPv4 address."""
    return [sockaddr(host, port + CHANNEL_PORT_OFFSET[c]) for c in range(CHANNELS)]


def packet_bytes_max(mtu: int, extra: int) -> int:
    """The largest `packet_bytes` that an MTU carries in one piece.

    ``extra``: bytes by which each packet is longer on the wire, since it is sealed.
    """
    return max(mtu - UDP_HEADERS_BYTES - extra, 0) // 8 * 8


def check_packet_fits(sockets: TransportSockets, name: str, packet_bytes: int, extra: int) -> None:
    """Raise ConfigError unless a packet that is longer by ``extra`` bytes passes in one piece."""
    for target in sockets.targets:
        address = target[CHANNEL_ORDINARY]
        mtu = path_mtu(sockets.send, address)
        most = packet_bytes_max(mtu, extra)
        if mtu and packet_bytes > most:
            host, port = host_and_port(address)
            raise ConfigError(
                f"transport {name}: packet_bytes: {packet_bytes}: allowed at most {most}: a sealed "
                f"packet is {extra} bytes longer, its IP and UDP headers have {UDP_HEADERS_BYTES}, "
                f"and the MTU of the path to {host}:{port} is {mtu}"
            )


def open_unicast(
    *,
    name: str,
    bind: str,
    port: int,
    peers: list[str],
    buffer_bytes: int,
    gro: bool,
    lane: int = 0,
    lanes: int = 1,
    beside: int = 0,
) -> TransportSockets:
    """Sockets of a unicast transport; ``peers`` are ``host:port`` of the other nodes.

    Its lanes share their ports; `share_ports` lets the kernel distribute packets. ``beside``: for a
    further lane, the port of the first lane's ``send``.
    """
    opened: list[socket.socket] = []
    ports = [port + CHANNEL_PORT_OFFSET[channel] for channel in range(CHANNELS)]
    try:
        send = _udp_socket(buffer_bytes, gro=False)
        opened.append(send)
        _bind_sender(send, bind, f"transport {name}", lane, beside)
        if lanes > 1 and lane == 0:
            _check_free(bind, ports, f"transport {name}")
        for each in ports:
            one = _udp_socket(buffer_bytes, gro=gro)
            opened.append(one)
            if lanes > 1:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            _bind(one, bind, each, f"transport {name}")
    except BaseException:
        for one in opened:
            one.close()
        raise
    targets = []
    for peer in peers:
        host, _, peer_port = peer.rpartition(":")
        try:
            address = socket.gethostbyname(host)
        except OSError as problem:
            raise ConfigError(f"transport {name}: peers: {peer}: cannot resolve") from problem
        targets.append(tuple(target_at(address, int(peer_port))))
    return TransportSockets(opened[0], tuple(opened[1:]), tuple(targets))


def _check_free(host: str, ports: Sequence[int], what: str) -> None:
    """Raise Conflict when another program uses a port, also a program that would share it."""
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            _bind(probe, host, port, what)


def share_ports(name: str, lanes: Sequence[TransportSockets]) -> None:
    """Distribute packets of a unicast transport's ports to its lanes. Raises ConfigError."""
    try:
        for one in lanes[0].receive:
            share_port(one, len(lanes))
    except OSError as problem:
        raise ConfigError(no_filters(name, len(lanes), problem)) from problem


def no_filters(name: str, lanes: int, problem: OSError) -> str:
    """Text of an error: the kernel refuses filters, so lanes cannot share packets."""
    return (
        f"transport {name}: lanes: {lanes}: allowed 1 here: the kernel refuses socket filters "
        f"({problem.strerror})"
    )
