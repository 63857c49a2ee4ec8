"""Settings that all sources share: the servers of another system, and TLS to them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tidecast.config.check import shown
from tidecast.errors import ConfigError

Address = Annotated[str, Meta(max_length=300)]
File = Annotated[str, Meta(max_length=4096)]


def server_address(text: str) -> tuple[str, int]:
    """Host and port of one of ``servers``. Raises ConfigError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= 65_535:
        raise ConfigError(f"servers: {shown(text)}: allowed are HOST:PORT, separated by commas")
    return host.strip("[]"), int(port)
