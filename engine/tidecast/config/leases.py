"""Settings of topics with owner "*": engines that share a directory of queues and take turns."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

SHARED = "*"
"""As ``owner`` of a topic: the node that has the lease."""
OWNERS_MAX = 64


class LeaseConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How this node takes queues. All that share them have the same ``directory``.

    ``directory`` "": the data directory. ``store``: the keeper of leases, a ``file`` in there or
    the control ``service``, in its Postgres; ``auto``: the service that the engine is linked to,
    without one the file. ``balancer`` "leases": an equal share of the free queues; the others
    have a plan over ``owners``, the names of all nodes that share them (none: the present nodes).
    """

    directory: str = ""
    store: Literal["auto", "file", "service"] = "auto"
    balancer: Literal["leases", "best-fit", "consistent-ring", "static"] = "leases"
    owners: Annotated[list[str], Meta(max_length=OWNERS_MAX)] = []
    lease_s: Annotated[float, Meta(ge=0.5, le=3600)] = 15.0
