"""Settings of a topic that is read from NATS JetStream."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tidecast.config.check import build, raise_problems, shown
from tidecast.config.sources.servers import (
    Address,
    File,
    address_problems,
    server_address,
    tls_problems,
)
from tidecast.config.sources.urls import settings_of
from tidecast.errors import ConfigError

SCHEME = "jetstream://"
SECRET_VARIABLE = "TIDECAST_NATS_SECRET"
QUEUES_MAX = 1024
_STREAM = re.compile(r"[^\s.*>/\\]{1,255}")
_SUBJECT = re.compile(r"[^\s.*>]+|\*")
_HEADER = re.compile(r"[!-9;-~]*")
_LOGINS = ("user", "token_file", "nkey_file", "creds_file")


class JetStreamSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Streams of a NATS cluster, or subjects of a stream: each is a queue.

    ``servers``: HOST:PORT of servers to begin with, separated by commas. ``streams``: names,
    separated by commas. ``subjects``: of a single stream, each is a queue. ``domain``: of
    JetStream. ``key_header``: the header with the key of a message; without it the subject is the
    key. ``user``: logs in, with the secret of ``secret_file`` or of the variable
    TIDECAST_NATS_SECRET; ``token_file``, ``nkey_file`` (a seed) and ``creds_file`` are other
    logins. ``ca``: PEM file of the authorities that the servers' certificates are checked with;
    ``certificate`` and ``key``: ours.
    """

    servers: Annotated[str, Meta(min_length=1, max_length=4096)]
    streams: Annotated[str, Meta(min_length=1, max_length=65_536)]
    subjects: Annotated[str, Meta(max_length=65_536)] = ""
    domain: Address = ""
    key_header: Annotated[str, Meta(max_length=255)] = ""
    user: File = ""
    secret_file: File = ""
    token_file: File = ""
    nkey_file: File = ""
    creds_file: File = ""
    tls: bool = False
    ca: File = ""
    certificate: File = ""
    key: File = ""
    fetch_bytes: Annotated[int, Meta(ge=1 << 14, le=1 << 26)] = 1 << 20
    """Bytes that a queue asks for at once, and holds in memory, but for a larger message."""

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each server. Raises ConfigError."""
        return [server_address(one.strip()) for one in self.servers.split(",")]

    @property
    def queues(self) -> list[tuple[str, str]]:
        """Stream and subject of each queue; the subject is "" when all of the stream is meant."""
        streams = [one.strip() for one in self.streams.split(",")]
        if not self.subjects:
            return [(one, "") for one in streams]
        return [(streams[0], one.strip()) for one in self.subjects.split(",")]

    def secret(self, name: str) -> str:
        """The text of a file of a login, or of the variable. Raises ConfigError."""
        path = getattr(self, name)
        if not path:
            found = os.environ.get(SECRET_VARIABLE, "")
            if not found:
                raise ConfigError(
                    f"jetstream.user: {shown(self.user)}: no secret: name a secret_file, or set "
                    f"{SECRET_VARIABLE}"
                )
            return found
        try:
            return Path(path).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError(f"jetstream.{name}: {shown(path)}: {problem}") from None


def overlap(one: str, other: str) -> bool:
    """Can a subject match both filters?"""
    left, right = one.split("."), other.split(".")
    for mine, theirs in zip(left, right, strict=False):
        if ">" in (mine, theirs):
            return True
        if mine != theirs and "*" not in (mine, theirs):
            return False
    return len(left) == len(right)


def _is_filter(text: str) -> bool:
    parts = text.split(".")
    if parts[-1] == ">":
        parts.pop()
    return len(text) <= 4096 and all(_SUBJECT.fullmatch(part) for part in parts)


def _queue_problems(source: JetStreamSource) -> list[str]:
    queues = source.queues
    found = [
        f"jetstream.streams: {shown(name)}: allowed are names without dots, wildcards and spaces"
        for name in dict.fromkeys(one.strip() for one in source.streams.split(","))
        if not _STREAM.fullmatch(name)
    ]
    if source.subjects and "," in source.streams:
        found.append(f"jetstream.subjects: {shown(source.subjects)}: allowed with a single stream")
    if len(queues) > QUEUES_MAX:
        return [*found, f"jetstream.streams: {len(queues)} queues: allowed are 1 to {QUEUES_MAX}"]
    for i, (stream, subject) in enumerate(queues):
        if source.subjects and not _is_filter(subject):
            found.append(f"jetstream.subjects: {shown(subject)}: allowed are subjects of NATS")
        for _, other in queues[:i]:
            if subject and overlap(subject, other):
                found.append(
                    f"jetstream.subjects: {shown(subject)}: {other} has messages of it, too: "
                    "allowed are subjects without a message in common"
                )
        if not subject and (stream, "") in queues[:i]:
            found.append(f"jetstream.streams: {shown(stream)}: given twice")
    return found


def stream_problems(source: JetStreamSource) -> list[str]:
    """The defects beyond types and ranges, as ``jetstream.field: value: allowed values``."""
    found = _queue_problems(source)
    found += address_problems("jetstream", source)
    if not _HEADER.fullmatch(source.key_header):
        found.append(
            f"jetstream.key_header: {shown(source.key_header)}: allowed are printable letters of "
            "ASCII without a colon"
        )
    if source.domain and not _STREAM.fullmatch(source.domain):
        found.append(f"jetstream.domain: {shown(source.domain)}: allowed are names without dots")
    logins = [name for name in _LOGINS if getattr(source, name)]
    if len(logins) > 1:
        found.append(f"jetstream.{logins[1]}: given beside {logins[0]}: allowed is one login")
    if source.secret_file and not source.user:
        found.append("jetstream.user: missing: secret_file is the secret of a user")
    found += tls_problems("jetstream", source)
    return found


def jetstream_source(given: dict[str, Any]) -> JetStreamSource:
    """Checked settings. Raises ConfigError that names each setting that is wrong."""
    problems: list[str] = []
    made = build(JetStreamSource, given, "jetstream", problems)
    if made is not None:
        problems += stream_problems(made)
    raise_problems(problems)
    assert made is not None
    return made


def jetstream_source_of(url: str) -> JetStreamSource:
    """Settings of ``jetstream://HOST:PORT/STREAM,STREAM?setting=value``. Raises ConfigError."""
    return jetstream_source(settings_of(url, "streams", ("fetch_bytes",)))
