"""Peers of unicast transports: the addresses that an engine announces, and that it gets.

The list of the service lies in `peers.json` for the next start: an engine reaches its peers also
while the service is away.
"""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tidecast.api.node import PeerAddress
from tidecast.config.check import unicast_problem
from tidecast.config.topology import NodeAddress
from tidecast.disk import write_atomically
from tidecast.errors import ConfigError

if TYPE_CHECKING:
    from tidecast.node.live.transports import TransportRuntime
    from tidecast.node.node import Node

FILE_NAME = "peers.json"
FILE_BYTES_MAX = 1 << 20
SETTING = "`advertise` of {} in node.addresses"
Peers = dict[str, list[PeerAddress]]


def announced(node: Node, link_host: str) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Where other nodes reach each unicast transport of this one, and the problems, by transport.

    ``link_host``: this host's address on the link to the service. A transport that is bound to
    every address is announced with it, unless it is the loopback's.
    """
    found: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = {}
    for runtime in node.runtimes.first():
        name = runtime.config.name
        if runtime.config.kind != "udp-unicast":
            continue
        where = node.topology.node.address_of(name)
        if where.advertise == "none":
            continue
        try:
            host, port = _address(runtime, where, link_host)
        except ConfigError as problem:
            problems[name] = f"this engine is no peer of others: {problem}"
            continue
        found[name] = {"host": host, "port": port}
        if _is_loopback(host) and not _is_loopback(link_host):
            problems[name] = (
                f"{host}: engines on other hosts do not reach it: set the interface of the "
                f"transport, or {SETTING.format(name)} of this engine"
            )
    return found, problems


def _address(runtime: TransportRuntime, where: NodeAddress, link_host: str) -> tuple[str, int]:
    host, port = where.advertised
    bound_host, bound_port = runtime.bound_address()
    setting = SETTING.format(runtime.config.name)
    if not host and bound_host == "0.0.0.0":
        if _is_loopback(link_host) or unicast_problem(link_host, bound_port):
            raise ConfigError(
                f"it is bound to every address (0.0.0.0), and its link to the control service "
                f"names none that others reach: set {setting}"
            )
        host = link_host
    try:
        host = socket.gethostbyname(host or bound_host)
    except OSError:
        raise ConfigError(f"{setting}: {host}: no such host is known") from None
    problem = unicast_problem(host, port or bound_port)
    if problem:
        raise ConfigError(f"{problem}: set {setting}")
    return host, port or bound_port


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def checked(raw: Any) -> Peers:
    """Peers by transport, as the service names them. Raises ConfigError."""
    try:
        return msgspec.convert(raw, Peers)
    except msgspec.ValidationError as problem:
        raise ConfigError(f"peers of the control service: {problem}") from None


def load_peers(data_dir: Path) -> Peers:
    """The peers of the last start; none without a file. Raises ConfigError: it is damaged."""
    path = data_dir / FILE_NAME
    try:
        raw = path.read_bytes()[: FILE_BYTES_MAX + 1]
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be read: {problem.strerror}") from None
    if len(raw) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: {len(raw)} bytes or more: allowed {FILE_BYTES_MAX}")
    try:
        return msgspec.json.decode(raw, type=Peers)
    except msgspec.MsgspecError as problem:
        raise ConfigError(f"{path}: {problem}: its peers come from the control service") from None


def save_peers(data_dir: Path, peers: Peers) -> None:
    """Keep them for the next start. Raises ConfigError."""
    path = data_dir / FILE_NAME
    try:
        write_atomically(path, msgspec.json.encode(peers))
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be written: {problem.strerror}") from None
