"""From a URL to a `Link`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from tidecast.api.link import Link
from tidecast.api.words import NodeMode
from tidecast.client.core.outgoing import check_text, reject
from tidecast.config.topology import TopicConfig, Topology, default_data_dir
from tidecast.errors import ConfigError

if TYPE_CHECKING:
    from tidecast.queues.adapter import Adapter

MODES = get_args(NodeMode)
_SCHEMES = (
    "tidecast:// (an engine process here), tidecast://HOST:PORT (a gateway), tidecast+tls:// (one "
    "behind TLS), embedded:// (an engine in this process)"
)
_EMBEDDED = "tidecast.embedded", "EmbeddedLink"
_MEMORY = "tidecast.testing", "memory_link"
_WARM_UP = "tidecast.agents.warmup", "warm_up"
"""Imported by name: the client knows nodes only as links."""


class NetworkSettings(TypedDict, total=False):
    """Settings of the `tidecast.testing.Network` that a first connection to it creates."""

    seed: int
    drop: float
    duplicate: float
    reorder: float
    delay_us: float
    packet_bytes: int
    inbox_packets: int
    real_time: bool


class ConnectOptions(NetworkSettings, total=False):
    """Options of `connect`.

    ``embedded://``: ``topology`` (a checked one, a mapping as in YAML, or a file), ``mode``,
    ``adapters`` (by name, topics whose queues they are). ``memory://``: see
    `tidecast.testing.connect`.
    """

    topology: Topology | Mapping[str, Any] | Path | str | None
    mode: NodeMode
    adapters: Mapping[str, Adapter] | None
    network: str
    node: str
    topics: Iterable[str | TopicConfig]
    durable: Iterable[str]


def open_link(url: str, name: str, token: str | None, given: ConnectOptions) -> Link:
    """Open the link a URL names. Raises ConfigError, EngineNotRunning, AuthError."""
    options: dict[str, Any] = {**given}
    for field, value in (("url", url), ("name", name), ("token", token or "")):
        check_text(field, value)
    parts = urlsplit(url)
    if parts.scheme in ("tidecast", "tidecast+tls"):
        _refuse(options | dict(parse_qsl(parts.query)), f"{parts.scheme}://")
        if parts.netloc:
            return _remote_link(url, name, token)
        return _socket_link(unquote(parts.path), name, token)
    if parts.scheme == "embedded":
        if parts.netloc:
            raise ConfigError(
                f"url: {url!r}: allowed is embedded://, with topology={parts.netloc!r} for a file, "
                "or embedded:///PATH/OF/FILE"
            )
        return _embedded_link(parts.path, dict(parse_qsl(parts.query)) | options, name)
    if parts.scheme == "memory":
        if parts.netloc:
            options = {"network": parts.netloc} | options
        if node := parts.path.strip("/"):
            options = {"node": unquote(node)} | options
        link: Link = _load(*_MEMORY)(name=name, **(dict(parse_qsl(parts.query)) | options))
        return link
    raise reject("url", url, f"are {_SCHEMES}")


def _remote_link(url: str, name: str, token: str | None) -> Link:
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError as problem:
        raise ConfigError(f"url: {url!r}: {problem}: allowed is tidecast://HOST:PORT") from None
    if not host or parts.path.strip("/") or parts.username is not None:
        raise ConfigError(
            f"url: allowed is {parts.scheme}://HOST:PORT; the token goes into token=..., or "
            "TIDECAST_TOKEN"
        )
    from tidecast.client.remote.link import PORT, RemoteLink

    load_kernels("REMOTE")
    where = f"[{host}]" if ":" in host else host
    token = token or os.environ.get("TIDECAST_TOKEN")
    tls = parts.scheme == "tidecast+tls"
    return RemoteLink(f"{where}:{port or PORT}", name, token, tls=tls)


def _socket_link(path: str, name: str, token: str | None) -> Link:
    from tidecast.client.links.socket import SocketLink

    token = token or os.environ.get("TIDECAST_TOKEN")
    link = SocketLink.connect(Path(path) if path else default_data_dir(), name, token)
    try:
        load_kernels("CLIENT")
    except BaseException:
        link.close()
        raise
    return link


def _embedded_link(path: str, options: dict[str, Any], name: str) -> Link:
    mode = options.pop("mode", "threads")
    if mode not in MODES:
        raise reject("mode", mode, f"are {', '.join(MODES)}")
    topology = options.pop("topology", path or None)
    if isinstance(topology, str):
        topology = Path(topology)
    adapters = options.pop("adapters", None)
    _refuse(options, "embedded://")
    link: Link = _load(*_EMBEDDED).open(topology=topology, mode=mode, name=name, adapters=adapters)
    return link


def _refuse(options: dict[str, Any], scheme: str) -> None:
    for option, value in options.items():
        how = f": it goes into the URL, {scheme}/PATH" if option == "data_dir" else ""
        raise ConfigError(f"{option}: {value!r}: {scheme} has no such option{how}")


def load_kernels(names: str) -> None:
    """Compile kernels of the client that are not cached yet, in processes of their own.

    ``names``: as in `tidecast.agents.warmup`. Call it in no event loop: a first call of a kernel
    there would compile it in the loop.
    """
    _load(*_WARM_UP)(names=_load(_WARM_UP[0], names))


def _load(module: str, attribute: str) -> Any:
    return getattr(importlib.import_module(module), attribute)
