"""The topology's section about topics that are read from other systems."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from tidecast.config.check import shown
from tidecast.config.sources.jetstream import JetStreamSource, stream_problems
from tidecast.config.sources.kafka import KafkaSource, source_problems


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A topic of this engine whose queues are kept by another system.

    ``kafka``: they are the partitions of a topic on a Kafka cluster; ``jetstream``: streams of NATS
    JetStream, or subjects of a stream. Exactly one of both.
    """

    topic: Annotated[str, Meta(min_length=1, max_length=256)]
    kafka: KafkaSource | None = None
    jetstream: JetStreamSource | None = None


def adapter_problems(
    adapters: Sequence[AdapterConfig], declared: set[str], named: Collection[str] = ()
) -> list[str]:
    """The defects beyond types and ranges, as ``adapters[i].field: value: allowed values``.

    ``named``: paths of settings that are known to be wrong, and so are not here.
    """
    found, names = [], set(declared)
    for i, one in enumerate(adapters):
        at = f"adapters[{i}]"
        if one.topic in names:
            found.append(f"{at}.topic: {shown(one.topic)}: another topic has this name")
        names.add(one.topic)
        is_whole = not any(path.startswith(f"{at}.") for path in named)
        if is_whole and (one.kafka is None) == (one.jetstream is None):
            given = "missing" if one.kafka is None else "given beside jetstream"
            found.append(f"{at}.kafka: {given}: allowed is one of kafka, jetstream")
        if one.kafka is not None:
            found += [f"{at}.{problem}" for problem in source_problems(one.kafka)]
        if one.jetstream is not None:
            found += [f"{at}.{problem}" for problem in stream_problems(one.jetstream)]
    return found
