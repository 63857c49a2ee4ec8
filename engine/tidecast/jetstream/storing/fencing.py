"""The streams of a topic, and the fence: they refuse messages of the writer before.

Messages of a writer expect ascending sequences, so one marker is not enough: the second message of
the writer before would fit behind it. A fence is a batch of markers that JetStream stores at once
or not at all, more of them than a writer has messages under way: such a message then expects the
sequence of a marker, or an earlier one, and never the last sequence of the stream.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
from typing import Any, NamedTuple

import msgspec

from tidecast.config.sources.jetstream import JetStreamSource
from tidecast.config.sources.storage import StreamSettings, StreamStorage
from tidecast.errors import ConfigError, StorageError, TidecastError
from tidecast.jetstream.storing.channel import Channel, frame
from tidecast.jetstream.storing.message_kernels import CHUNK_MESSAGES_MAX
from tidecast.jetstream.streams import STORED_MARK, NoStream, Streams

MARKERS = CHUNK_MESSAGES_MAX + 1
"""Of a fence."""
STATE = "tidecast"
"""Behind the name of the topic's streams: the stream of its small files."""
_NS = 1_000_000_000
_DUPLICATES_NS = 100_000_000


class Fence(NamedTuple):
    """The sequences of the first and of the last marker."""

    first: int
    last: int


def stream_name(name: str, queue: int | str) -> str:
    """Of a queue, or of STATE."""
    return f"{name}_{queue}"


def record_subject(stream: str, log: int) -> str:
    """The subject of the records of a log."""
    return f"{stream}.record.{log:x}"


def writer_subject(stream: str) -> str:
    """The subject of the markers."""
    return f"{stream}.writer"


def streams_of(storage: StreamStorage, queues: int) -> JetStreamSource:
    """How to reach the streams of a topic: those of the queues, then the one of the small files."""
    names = [stream_name(storage.name, queue) for queue in (*range(queues), STATE)]
    return msgspec.structs.replace(storage.source, streams=",".join(names))


def ensure_stream(
    streams: Streams, queue: int, settings: StreamSettings, *, is_state: bool, make: bool
) -> str:
    """Have a stream with the settings that a writer needs; when it was made, as the server says.

    Raises ConfigError for other settings, and for a stream that is not there unless ``make``.
    """
    stream, _ = streams.queues[queue]
    wanted = _wanted(stream, settings, is_state, "cluster" in streams.server)
    try:
        found = streams.ask(f"STREAM.INFO.{stream}", {}, f"stream {stream}")
    except NoStream:
        if not make:
            raise
        wanted = _wanted(stream, settings, is_state, "cluster" in streams.server)
        found = streams.ask(f"STREAM.CREATE.{stream}", wanted, f"stream {stream}")
    config = found.get("config")
    if not isinstance(config, dict):
        raise StorageError(f"stream {stream}: the answer lacks its settings")
    _check_stream(stream, config, wanted, settings)
    return str(found.get("created", ""))


def _wanted(
    stream: str, settings: StreamSettings, is_state: bool, clustered: bool
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": stream,
        "retention": "limits",
        "storage": "file",
        "num_replicas": settings.replicas or (3 if clustered else 1),
        "duplicate_window": _DUPLICATES_NS,
        "metadata": {STORED_MARK: "1"},
    }
    if is_state:
        return found | {
            "subjects": [f"{stream}.>"],
            "max_msgs_per_subject": 1,
            "discard": "old",
        }
    return found | {
        "subjects": [f"{stream}.record.*", writer_subject(stream)],
        "max_msgs_per_subject": -1,
        "max_bytes": settings.max_bytes or -1,
        "max_age": settings.max_age_s * _NS,
        "discard": "new",
        "allow_atomic": True,
    }


def _check_stream(
    stream: str, config: dict[str, Any], wanted: dict[str, Any], settings: StreamSettings
) -> None:
    checked = ["retention", "subjects", "max_msgs_per_subject"]
    checked += ["allow_atomic"] if "allow_atomic" in wanted else []
    checked += ["num_replicas"] if settings.replicas else []
    checked += ["max_bytes"] if settings.max_bytes and "max_bytes" in wanted else []
    checked += ["max_age"] if settings.max_age_s and "max_age" in wanted else []
    for name in checked:
        value, allowed = config.get(name), wanted[name]
        if name == "subjects":
            value, allowed = sorted(value or ()), sorted(allowed)
        if value != allowed:
            older = ": NATS 2.12 or newer is needed" if name == "allow_atomic" else ""
            raise ConfigError(
                f"stream {stream}: {name}: {value}: allowed is {allowed}{older}: change the "
                "stream, or name another one in storage"
            )
    for name in ("mirror", "sources", "sealed", "no_ack"):
        if config.get(name):
            raise ConfigError(f"stream {stream}: {name}: allowed is none: name another in storage")


def fence(streams: Streams, queue: int, node: str) -> Fence:
    """Take a stream over. Raises ConnectionLost, AuthError, StorageError; then call it again."""
    stream, _ = streams.queues[queue]
    batch, subject = secrets.token_hex(16), writer_subject(stream)
    channel = Channel(streams, f"stream {stream}")
    parts = [
        frame(subject, "", {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": i})
        for i in range(1, MARKERS)
    ]
    head = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": MARKERS, "Nats-Batch-Commit": 1}
    parts.append(frame(subject, channel.reply, head, node.encode()))
    try:
        last = channel.ask(b"".join(parts))
    finally:
        channel.close()
    with contextlib.suppress(TidecastError):  # markers that remain cost a little room
        body = {"filter": subject, "keep": 1}
        streams.ask(f"STREAM.PURGE.{stream}", body, f"stream {stream}")
    return Fence(last - MARKERS + 1, last)


def noted_token(message: dict[str, Any]) -> int:
    """The token that a message of a writer notes. Raises StorageError."""
    try:
        raw = base64.b64decode(message.get("hdrs", ""))
        for line in raw.split(b"\r\n"):
            name, _, value = line.partition(b": ")
            if name == b"tidecast-log":
                return int(value.split(b" ")[0], 16)
    except (ValueError, TypeError):
        pass
    raise StorageError(f"sequence {message.get('seq')}: it lacks tidecast-log: not by Tidecast")
