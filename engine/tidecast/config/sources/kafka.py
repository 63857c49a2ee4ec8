"""Settings of a topic that is read from, or stored in, a topic of a Kafka cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tidecast.config.check import build, raise_problems, shown
from tidecast.config.sources.servers import File, address_problems, server_address, tls_problems
from tidecast.config.sources.urls import settings_of
from tidecast.errors import ConfigError

SCHEME = "kafka://"
SECRET_VARIABLE = "TIDECAST_KAFKA_SECRET"
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


class KafkaSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A topic of a Kafka cluster.

    ``servers``: HOST:PORT of brokers to begin with, separated by commas. ``user``: logs in, with
    the secret of ``secret_file`` or of the variable TIDECAST_KAFKA_SECRET. ``ca``: PEM file of the
    authorities that the brokers' certificates are checked with; ``certificate`` and ``key``: ours.
    ``group``: name under which acknowledged offsets are committed, for Kafka's own tools.
    """

    servers: Annotated[str, Meta(min_length=1, max_length=4096)]
    topic: Annotated[str, Meta(min_length=1, max_length=249)]
    user: File = ""
    secret_file: File = ""
    mechanism: Mechanism = "SCRAM-SHA-512"
    tls: bool = False
    ca: File = ""
    certificate: File = ""
    key: File = ""
    group: Annotated[str, Meta(max_length=255)] = ""
    fetch_bytes: Annotated[int, Meta(ge=1 << 14, le=1 << 26)] = 1 << 20
    """Bytes that a queue asks for at once, and holds in memory at most, but for a larger batch."""
    refresh_s: Annotated[float, Meta(ge=1.0, le=86_400.0)] = 30.0
    """How often partitions that were added are looked for."""

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each server. Raises ConfigError."""
        return [server_address(one.strip()) for one in self.servers.split(",")]

    def secret(self) -> str:
        """The secret of ``user``. Raises ConfigError."""
        if not self.secret_file:
            found = os.environ.get(SECRET_VARIABLE, "")
            if not found:
                raise ConfigError(
                    f"user: {shown(self.user)}: no secret: name a secret_file, or set "
                    f"{SECRET_VARIABLE}"
                )
            return found
        try:
            return Path(self.secret_file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError(f"secret_file: {shown(self.secret_file)}: {problem}") from None


def kafka_source(given: dict[str, Any]) -> KafkaSource:
    """Checked settings. Raises ConfigError that names each setting that is wrong."""
    problems: list[str] = []
    made = build(KafkaSource, given, "kafka", problems)
    if made is not None:
        problems += source_problems(made)
    raise_problems(problems)
    assert made is not None
    return made


def source_problems(source: KafkaSource) -> list[str]:
    """The defects beyond types and ranges, as ``kafka.field: value: allowed values``."""
    found = address_problems("kafka", source) + tls_problems("kafka", source)
    if source.secret_file and not source.user:
        found.append("kafka.user: missing: secret_file is the secret of a user")
    return found


def kafka_source_of(url: str) -> KafkaSource:
    """Settings of ``kafka://HOST:PORT,HOST:PORT/TOPIC?setting=value``. Raises ConfigError."""
    return kafka_source(settings_of(url, "topic", ("fetch_bytes", "refresh_s")))
