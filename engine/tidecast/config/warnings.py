"""Settings that are allowed and seldom meant, each with its remedy."""

from __future__ import annotations

from tidecast.config.topology import DURABLE_FIELDS, Topology, unused_settings


def topology_warnings(topology: Topology) -> list[str]:
    """As problems are named: the field, then the rest."""
    return [
        f"topics[{i}].{field}: {text}: set `mode: durable` for {topic.name}, or leave it out"
        for i, topic in enumerate(topology.topics)
        for field, text in unused_settings(
            topic.mode, {name: getattr(topic, name) for name in DURABLE_FIELDS}
        )
    ]
