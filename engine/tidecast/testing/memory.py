"""Connections to networks in memory by name: URLs with ``memory://``."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Unpack, get_type_hints

from tidecast.client import aio
from tidecast.client.blocking import Connection
from tidecast.client.connecting import Connecting
from tidecast.client.links.open import NetworkSettings
from tidecast.codecs import Codec, TopicCodecs
from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError
from tidecast.testing.network import Network, SimulatedLink, SimulatedNode, network_of

_lock = threading.RLock()


def memory_link(
    *,
    name: str = "",
    network: str | Network = "default",
    node: str = "",
    topics: Iterable[str | TopicConfig] = (),
    durable: Iterable[str] = (),
    **settings: Any,
) -> SimulatedLink:
    """A session with a node of a network in memory, for the URL ``memory://NETWORK/NODE``.

    See `connect`. Values of ``settings`` may be texts, as in a URL. Raises ConfigError.
    """
    topics, durable = tuple(topics), tuple(durable)
    with _lock:
        found = network if isinstance(network, Network) else network_of(network)
        if found is None:
            assert isinstance(network, str)
            found = _network(network, settings)
        elif settings:
            raise ConfigError(
                f"{', '.join(settings)}: network {found.name} has its settings: they belong to its "
                "first connection"
            )
        return _node(found, node, topics, durable).new_link(name)


def _network(name: str, settings: dict[str, Any]) -> Network:
    numbers: dict[str, Any] = {"real_time": True}
    allowed = get_type_hints(NetworkSettings)
    for field, value in settings.items():
        if field not in allowed:
            raise ConfigError(f"{field}: allowed are {', '.join(allowed)}")
        try:
            numbers[field] = _value(allowed[field], value)
        except ValueError as problem:
            raise ConfigError(f"{field}: {value!r}: {problem}") from None
    made = Network(name=name, **numbers)
    made.end_with_sessions()
    return made


def _value(kind: type, value: Any) -> Any:
    """A value of a URL's query as its field wants it; others as they are."""
    if not isinstance(value, str):
        return value
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise ValueError("allowed are true, false")
        return value.lower() == "true"
    return kind(value)


def _node(
    network: Network, name: str, topics: tuple[str | TopicConfig, ...], durable: tuple[str, ...]
) -> SimulatedNode:
    found = next((n for n in network.nodes if n.name == name and n.alive), None) if name else None
    if found is None:
        return network.node(name, topics, durable=durable)
    if topics or durable:
        raise ConfigError(
            f"topics: node {name} of network {network.name} runs, with the topics of its first "
            "connection"
        )
    return found


def connect(
    network: str | Network = "default",
    *,
    name: str = "",
    node: str = "",
    topics: Iterable[str | TopicConfig] = (),
    durable: Iterable[str] = (),
    codec: Codec | str | None = None,
    topic_codecs: Mapping[str, Codec | str] | None = None,
    **settings: Unpack[NetworkSettings],
) -> Connection:
    """A blocking connection to a network in memory; no engine, no sockets, no disk.

    ``network``: a name, or a `Network`. Each connection has a node of its own, and connections that
    name the same ``node`` share it. ``topics``, ``durable``: topics of a new node; other live
    topics are made on first use. ``settings`` of a network's first connection: those of `Network`;
    the time is real, unless ``real_time=False``. ``codec``, ``topic_codecs``: as of
    `tidecast.connect`. Raises ConfigError.
    """
    link = memory_link(
        name=name, network=network, node=node, topics=topics, durable=durable, **settings
    )
    return Connection(link, name, TopicCodecs(codec, topic_codecs))


def connect_async(
    network: str | Network = "default",
    *,
    name: str = "",
    node: str = "",
    topics: Iterable[str | TopicConfig] = (),
    durable: Iterable[str] = (),
    codec: Codec | str | None = None,
    topic_codecs: Mapping[str, Codec | str] | None = None,
    **settings: Unpack[NetworkSettings],
) -> Connecting:
    """An asyncio connection to a network in memory: use it with ``async with``. See `connect`."""
    link = partial(
        memory_link,
        name=name,
        network=network,
        node=node,
        topics=topics,
        durable=durable,
        **settings,
    )
    found = TopicCodecs(codec, topic_codecs)
    return Connecting(lambda: aio.Connection(link(), name, found))
