"""Where the records of a durable topic are stored beside its log: the text of its ``storage``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from msgspec import Meta

from tidecast.config.check import build, raise_problems, shown
from tidecast.config.sources.jetstream import SCHEME as JETSTREAM
from tidecast.config.sources.jetstream import JetStreamSource, jetstream_source_of
from tidecast.config.sources.kafka import SCHEME as KAFKA
from tidecast.config.sources.kafka import KafkaSource, kafka_source_of
from tidecast.errors import ConfigError

LOCAL = "local"
"""The storage of a topic whose records are in its log alone."""
KAFKA_SETTINGS = "user, secret_file, mechanism, tls, ca, certificate, key"
JETSTREAM_SETTINGS = (
    "domain, user, secret_file, token_file, nkey_file, creds_file, tls, ca, certificate, key, "
    "replicas, max_bytes, max_age_s"
)
_READING = {
    "kafka": ("group", "fetch_bytes", "refresh_s"),
    "jetstream": ("subjects", "key_header", "fetch_bytes"),
}
_OF_STREAMS = ("replicas", "max_bytes", "max_age_s")


class StreamSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of the streams that a storage makes.

    ``replicas``: 0 is 3 where servers form a cluster, else 1. ``max_bytes``: of each stream, which
    then takes no more; 0: no limit. ``max_age_s``: older records are deleted; 0: none.
    """

    replicas: Annotated[int, Meta(ge=0, le=5)] = 0
    max_bytes: Annotated[int, Meta(ge=0, le=1 << 60)] = 0
    max_age_s: Annotated[int, Meta(ge=0, le=10**9)] = 0


class StreamStorage(msgspec.Struct, frozen=True, kw_only=True):
    """Streams that a topic is stored in: ``STREAM_0`` and so on, one for each queue.

    ``source``: how to reach the servers; its ``streams`` is the name before the numbers.
    """

    source: JetStreamSource
    settings: StreamSettings

    @property
    def name(self) -> str:
        """Before the numbers."""
        return self.source.streams


def storage_name(storage: str) -> str:
    """The kind of a storage, for people."""
    return "JetStream" if storage.startswith(JETSTREAM) else "Kafka"


def storage_source(storage: str) -> KafkaSource | StreamStorage:
    """Settings of a topic's ``storage``. Raises ConfigError that names each that is wrong."""
    if storage.startswith(JETSTREAM):
        return _stream_storage(storage)
    if not storage.startswith(KAFKA):
        raise ConfigError(
            f"{shown(storage)}: allowed are {LOCAL}, "
            f"{KAFKA}HOST:PORT,HOST:PORT/TOPIC?setting=value, and "
            f"{JETSTREAM}HOST:PORT,HOST:PORT/STREAM?setting=value"
        )
    source = kafka_source_of(storage)
    raise_problems(_reading(storage, "kafka", KAFKA_SETTINGS))
    return source


def _reading(storage: str, kind: str, allowed: str) -> list[str]:
    given = dict(parse_qsl(urlsplit(storage).query, keep_blank_values=True))
    return [
        f"{kind}.{name}: {given[name]}: is for reading: allowed are {allowed}"
        for name in _READING[kind]
        if name in given
    ]


def _stream_storage(storage: str) -> StreamStorage:
    raise_problems(_reading(storage, "jetstream", JETSTREAM_SETTINGS))
    parts = urlsplit(storage)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    given: dict[str, Any] = {}
    for name, value in pairs:
        if name in _OF_STREAMS:
            if name in given:
                raise ConfigError(f"jetstream.{name}: given twice")
            given[name] = int(value) if value.isdecimal() else value
    rest = urlencode([pair for pair in pairs if pair[0] not in _OF_STREAMS])
    source = jetstream_source_of(parts._replace(query=rest).geturl())
    problems: list[str] = []
    settings = build(StreamSettings, given, "jetstream", problems)
    if "," in source.streams:
        problems.append(
            f"jetstream.streams: {shown(source.streams)}: allowed is one name: each queue has a "
            "stream NAME_0, NAME_1 and so on"
        )
    elif len(source.streams) > 240:
        problems.append(f"jetstream.streams: {len(source.streams)} letters: allowed are 1 to 240")
    if settings is not None and settings.replicas in (2, 4):
        problems.append(
            f"jetstream.replicas: {settings.replicas}: allowed are 1, 3 and 5; 0 is 3 in a cluster"
        )
    raise_problems(problems)
    assert settings is not None
    return StreamStorage(source=source, settings=settings)


def _place(found: KafkaSource | StreamStorage) -> tuple[str, str, str]:
    """Kind, servers, and the name there."""
    if isinstance(found, KafkaSource):
        return "kafka", found.servers, found.topic
    return "jetstream", found.source.servers, found.name


def storage_problems(topics: Sequence[Any], leases_directory: str = "") -> list[str]:
    """The defects of the ``storage`` of topics, as ``topics[i].field: value: allowed``.

    ``leases_directory``: that engines share, by ``node.leases``.
    """
    found, taken = [], dict[tuple[str, str, str], str]()
    leased = {topic.storage == LOCAL for topic in topics if topic.owner == "*"}
    if len(leased) > 1 and not leases_directory:
        found += [
            f"topics[{i}].storage: {LOCAL}: with owner * beside topics that are stored elsewhere "
            "allowed once node.leases.directory is set: engines share no other directory"
            for i, topic in enumerate(topics)
            if topic.owner == "*" and topic.storage == LOCAL
        ]
    for i, topic in enumerate(topics):
        if topic.storage == LOCAL:
            continue
        at, kind = f"topics[{i}]", storage_name(topic.storage)
        try:
            place = _place(storage_source(topic.storage))
        except ConfigError as problem:
            found += [f"{at}.storage: {each}" for each in problem.problems or [str(problem)]]
            continue
        if topic.mode != "durable":
            found.append(f"{at}.storage: {shown(topic.storage)}: allowed with mode durable")
        if topic.fsync == "none":
            found.append(f"{at}.fsync: none: with storage on {kind} allowed are interval, batch")
        other = taken.setdefault(place, topic.name)
        if other != topic.name:
            found.append(
                f"{at}.storage: {shown(topic.storage)}: topic {other} writes {place[2]}: "
                "each topic needs one of its own"
            )
    return found
