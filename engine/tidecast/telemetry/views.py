"""The contents of telemetry: one sample of all that a node shows of itself."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from tidecast.client.blocking import Connection
from tidecast.embedded import EmbeddedLink
from tidecast.telemetry.queues import Times
from tidecast.telemetry.queues import samples as durable_samples

if TYPE_CHECKING:
    from tidecast.node.node import Node


def connect_inside(node: Node, name: str) -> Connection:
    """A client session with the node of this very process."""
    link: Any = EmbeddedLink(node, name, owns_node=False)
    return Connection(link, name)


def _host(node: Node) -> dict[str, Any]:
    """Since when the engine runs, and the space that it writes into."""
    found: dict[str, Any] = {"started_ns": node.incarnation}
    for name, directory in (("disk", node.data_dir), ("shm", node.directory)):
        with contextlib.suppress(OSError):
            about = os.statvfs(directory)
            found[f"{name}_free_bytes"] = about.f_bavail * about.f_frsize
            found[f"{name}_bytes"] = about.f_blocks * about.f_frsize
    return found


def sample(node: Node, at_ns: int, times: Times | None = None) -> dict[str, Any]:
    """Counters and positions, now. ``mono_ns``: for rates; ``at_ns``: wall clock.

    ``times``: ages of records from the sample before.
    """
    with node.lock:
        clients = {c.id: c.name for c in node.clients.values()}
        subscriptions = {
            s.id: {"pattern": s.pattern, "client": clients.get(s.client, "")}
            for s in node.subs.values()
        }
        publishers = {p.id: clients.get(p.client, "") for p in node.pubs.values()}
    publications = node.publications()
    for row in publications:
        row["client"] = publishers.get(row["publication_id"], "")
    kafka = node.kafka.sample()
    return {
        "at_ns": at_ns,
        "mono_ns": time.monotonic_ns(),
        "host": _host(node),
        "counters": node.stats(),
        "publications": publications,
        "images": node.images(),
        "receivers": node.receivers(),
        "peers": node.discovered(),
        "subscriptions": subscriptions,
        **durable_samples(node, times if times is not None else Times(), at_ns),
        "clients": len(clients),
        **({} if kafka is None else {"kafka": kafka}),
    }
