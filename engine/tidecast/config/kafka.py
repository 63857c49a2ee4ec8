"""The topology's section about the Kafka endpoint. Topics on brokers: `config.sources.kafka`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tidecast.access import is_loopback
from tidecast.config.check import build, raise_problems, shown
from tidecast.config.sources.servers import pair_problems
from tidecast.errors import ConfigError

OFF = "off"
LOOPBACK = "127.0.0.1"
MIB = 1 << 20
GROUPS_MAX = 1000
Address = Annotated[str, Meta(max_length=300)]
File = Annotated[str, Meta(max_length=4096)]


class KafkaConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Kafka endpoint. Read when the engine starts.

    ``listen``: HOST:PORT, :PORT for loopback, or ``off``. ``advertised``: the address that clients
    get for it; "": the address by which each has reached it. ``certificate``, ``key``: PEM files,
    absolute paths. ``insecure``: clear text beyond loopback is meant.
    """

    listen: Address = OFF
    advertised: Address = ""
    certificate: File = ""
    key: File = ""
    insecure: bool = False
    connections_max: Annotated[int, Meta(ge=1, le=65_536)] = 256
    connections_per_host_max: Annotated[int, Meta(ge=1, le=65_536)] = 128
    request_bytes_max: Annotated[int, Meta(ge=MIB, le=17 * MIB)] = 17 * MIB
    """Of one request, so of the record batches in it."""
    all_requests_bytes_max: Annotated[int, Meta(ge=17 * MIB, le=1 << 40)] = 128 * MIB
    """Of all requests that arrive or wait for their answer; beyond it no more are read."""
    cache_bytes: Annotated[int, Meta(ge=0, le=1 << 40)] = 64 * MIB
    """Of record batches kept in memory for the next Fetch; 0: none."""
    idle_s: Annotated[float, Meta(ge=1, le=86_400)] = 600.0
    """A client that sends nothing for so long is disconnected."""
    frame_s: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    """So long a request may take to arrive, from its first byte to its last."""
    groups_max: Annotated[int, Meta(ge=1, le=100_000)] = GROUPS_MAX
    """Groups with offsets, and groups with members."""
    offsets_retention_s: Annotated[float, Meta(ge=60, le=1e9)] = 604_800.0
    """Offsets of a group without members are deleted so long after its last commit."""

    @property
    def is_on(self) -> bool:
        """There is an endpoint."""
        return self.listen != OFF

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        return address_of(self.listen)


def address_of(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``, ``[::1]:PORT``, ``:PORT`` (loopback). Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 <= int(port) <= 65_535:
        raise ConfigError(f"{shown(text)}: allowed are HOST:PORT, :PORT for loopback, off")
    return host.strip("[]") or LOOPBACK, int(port)


def kafka_problems(kafka: KafkaConfig) -> list[str]:
    """The defects beyond types and ranges, as ``kafka.field: value: allowed values``."""
    found = []
    for name in ("listen", "advertised"):
        text = getattr(kafka, name)
        if text in ((OFF,) if name == "listen" else ("",)):
            continue
        try:
            address_of(text)
        except ConfigError as problem:
            found.append(f"kafka.{name}: {problem}")
    found += pair_problems("kafka", kafka.certificate, kafka.key)
    found += [
        f"kafka.{name}: {shown(path)}: allowed is an absolute path"
        for name, path in (("certificate", kafka.certificate), ("key", kafka.key))
        if path and not Path(path).is_absolute()
    ]
    return found


def with_options(kafka: KafkaConfig, options: dict[str, Any]) -> KafkaConfig:
    """The settings, with the options of a command before them. Raises ConfigError."""
    problems: list[str] = []
    given = msgspec.structs.asdict(kafka) | options
    made = build(KafkaConfig, given, "kafka", problems)
    problems += [] if made is None else kafka_problems(made)
    raise_problems(problems)
    assert made is not None
    return made


def is_beyond_loopback(kafka: KafkaConfig) -> bool:
    """Other hosts may reach it."""
    return not is_loopback(kafka.address[0])
