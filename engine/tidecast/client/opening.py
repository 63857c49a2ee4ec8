"""From a URL to a `Link`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tidecast.client.link import Link
from tidecast.client.outgoing import reject
from tidecast.config import default_data_dir
from tidecast.errors import ConfigError

MODES = ("threads", "inline")
_SCHEMES = "tidecast:// (an engine process here), embedded:// (an engine in this process)"
_EMBEDDED = "tidecast.node.embedded", "EmbeddedLink"
_MEMORY = "tidecast.testing", "memory_link"
"""Imported by name: the client knows nodes only as links."""


def open_link(url: str, name: str, token: str | None, options: dict[str, Any]) -> Link:
    """Open the link a URL names. Raises ConfigError, EngineNotRunning, AuthError."""
    parts = urlsplit(url)
    if parts.scheme == "tidecast":
        _refuse(options | dict(parse_qsl(parts.query)), "tidecast://")
        return _socket_link(url, parts.netloc, unquote(parts.path), name, token)
    if parts.scheme == "embedded":
        return _embedded_link(parts.path, dict(parse_qsl(parts.query)) | options, name)
    if parts.scheme == "memory":
        link: Link = _load(*_MEMORY)(name=name, **(dict(parse_qsl(parts.query)) | options))
        return link
    raise reject("url", url, f"are {_SCHEMES}")


def _socket_link(url: str, host: str, path: str, name: str, token: str | None) -> Link:
    if host:
        raise ConfigError(
            f"url: {url!r}: a gateway on another host cannot be reached yet: allowed are "
            "tidecast:// and tidecast:///path/to/data-dir, the engine of this machine"
        )
    from tidecast.client.socket_link import SocketLink

    return SocketLink.connect(Path(path) if path else default_data_dir(), name, token)


def _embedded_link(path: str, options: dict[str, Any], name: str) -> Link:
    mode = options.pop("mode", "threads")
    if mode not in MODES:
        raise reject("mode", mode, f"are {', '.join(MODES)}")
    topology = options.pop("topology", path or None)
    if isinstance(topology, str):
        topology = Path(topology)
    _refuse(options, "embedded://")
    link: Link = _load(*_EMBEDDED).open(topology=topology, mode=mode, name=name)
    return link


def _refuse(options: dict[str, Any], scheme: str) -> None:
    for option, value in options.items():
        raise reject(option, value, f"is no option of {scheme}")


def _load(module: str, attribute: str) -> Any:
    return getattr(importlib.import_module(module), attribute)
