"""Settings that all sources share: the servers of another system, and TLS to them."""

from __future__ import annotations

from typing import Annotated, Protocol

from msgspec import Meta

from tidecast.config.check import shown
from tidecast.errors import ConfigError

Address = Annotated[str, Meta(max_length=300)]
File = Annotated[str, Meta(max_length=4096)]


class ServerSettings(Protocol):
    """Settings of a source that both kinds of servers have."""

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each server. Raises ConfigError."""

    @property
    def tls(self) -> bool:
        """The servers speak TLS."""

    @property
    def ca(self) -> str:
        """The PEM file of the authorities of the servers, or empty."""

    @property
    def certificate(self) -> str:
        """The PEM file of this client's certificate, or empty."""

    @property
    def key(self) -> str:
        """The PEM file of its key, or empty."""


def server_address(text: str) -> tuple[str, int]:
    """Host and port of one of ``servers``. Raises ConfigError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= 65_535:
        raise ConfigError(f"servers: {shown(text)}: allowed are HOST:PORT, separated by commas")
    return host.strip("[]"), int(port)


def address_problems(section: str, settings: ServerSettings) -> list[str]:
    """The defects of ``servers``, as ``section.field: value: allowed values``."""
    try:
        _ = settings.addresses
    except ConfigError as problem:
        return [f"{section}.{problem}"]
    return []


def tls_problems(section: str, settings: ServerSettings) -> list[str]:
    """The defects of the settings about TLS."""
    found = pair_problems(section, settings.certificate, settings.key)
    given = {"ca": settings.ca, "certificate": settings.certificate}
    found += [
        f"{section}.tls: false: {name} needs tls: true"
        for name, path in given.items()
        if path and not settings.tls
    ]
    return found


def pair_problems(section: str, certificate: str, key: str) -> list[str]:
    """The defect of a certificate without a key, or of a key without a certificate."""
    if bool(certificate) == bool(key):
        return []
    missing = "certificate" if key else "key"
    return [f"{section}.{missing}: missing: a certificate and its key belong together"]
