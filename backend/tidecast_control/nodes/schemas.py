"""Nodes: the engines as the service sees them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from tidecast_control.kit.schemas import (
    Count,
    Int64,
    Model,
    Name,
    Resource,
    ResourceInput,
    Short,
    Status,
    View,
)


class NodeSpec(Model):
    """The desired state of a node. It is created when an engine registers."""

    quarantined: bool = Field(False, description="Other nodes refuse its packets")
    site: Short = ""
    drained: bool = Field(
        False, description="It transfers its leased topics to other nodes, and takes none"
    )


class NodeStatus(Status):
    """The last report of a node."""

    state: Literal["up", "down", "never"] = "never"
    node_id: Count | None = None
    incarnation: Int64 | None = None
    version: str = ""
    host: str = ""
    address: str = ""
    topology_version: Int64 = Field(0, description="The newest topology it applied")
    wanted_version: Int64 = 0
    connected_at: datetime | None = None
    seen_at: datetime | None = None
    keeps: list[str] = Field([], description="Topics whose queues it has by a lease")
    restart_needed: list[str] = []
    errors: dict[str, str] = {}


class Node(Resource[NodeSpec, NodeStatus]):
    """A node."""


class NodeInput(ResourceInput[NodeSpec]):
    """The desired state of a node."""


class EnrolmentInput(Model):
    """A token that lets engines register."""

    name: Name
    uses_max: int = Field(1, ge=1, le=10_000)
    expires_s: float = Field(86_400, gt=0, le=366 * 86_400)
    node: Name | Literal[""] = Field("", description='The node that it is for; "" = any new one')
    replace: bool = Field(
        False,
        description="The node may have registered before: the credential of that engine ends",
    )


class Enrolment(View):
    """An enrolment token, without its secret."""

    id: str
    name: str
    uses: Count
    uses_max: Count
    node: str = Field(description='The node that it is for; "" = any new one')
    replace: bool
    created_at: datetime
    created_by: str
    expires_at: datetime


class EnrolmentSecret(Enrolment):
    """Shown once."""

    token: str


class RecorderRecord(View):
    """One record of a flight recorder."""

    at: datetime
    at_ns: Int64
    section: Literal["alert", "low", "high"]
    writer: str
    code: str
    entity: Int64
    values: dict[str, str]
    text: str


class RecorderPage(View):
    """Newest last."""

    node: str
    records: list[RecorderRecord]


class NodeCounters(View):
    """Every counter of a node: kind -> rows."""

    node: str
    at: datetime
    counters: dict[str, list[dict[str, Any]]]


class ClusterEngine(View):
    """An engine and its levels."""

    node: str
    state: Literal["up", "down"]
    version: str
    level: Count = Field(description="The level that it writes")
    level_min: Count = Field(description="The lowest level that it reads")
    level_max: Count = Field(description="The highest level that it reads")
    seen_at: datetime | None = None
    refused: str = Field(description="Why its link was refused last; empty: it was not")
    blocks: bool = Field(description="It holds the next level back")
    drained: bool = Field(description="It transfers its leased topics, and takes none")
    addresses: dict[str, str] = Field(
        {}, description="Where other nodes reach it, by unicast transport: host:port"
    )


class Cluster(View):
    """The level that engines write, and whether it may be raised."""

    level: Count
    level_max: Count = Field(description="The newest level of this service")
    finalized_at: datetime | None = None
    finalized_by: str = ""
    blocked_by: list[str] = Field(description="Why the level cannot be raised to `level_max`")
    engines: list[ClusterEngine]


class PeerPath(View):
    """The way from a peer to a node, on one unicast transport."""

    node: str = Field(description="The node whose engine reports")
    transport: str
    peer: str
    address: str = Field(description="Where `node` sends to `peer`: host:port")
    heard_age_s: float | None = Field(
        description="Seconds since `node` heard a packet of `peer`; null: never"
    )
    silent: bool = Field(description="`peer` was not heard for ten seconds")
    peer_state: Literal["up", "down"] = Field(
        description="Whether the engine of `peer` is connected"
    )


class ClusterPeers(View):
    """The discovered peers of all connected engines."""

    paths: list[PeerPath] = Field(description="By node, transport and peer")
    unanswered: list[str] = Field(
        description="Connected nodes whose engine did not answer, or is too old to"
    )


class DrainStay(View):
    """A thing that a drain leaves on its node."""

    kind: Literal["topic", "publication"]
    name: str
    reason: str


class DrainMove(View):
    """A leased topic that came to a node, or left it."""

    at: datetime
    kind: Literal["taken", "released", "lost"]
    topic: str
    epoch: Int64
    reason: str


class NodeDrain(View):
    """The resources that a drain of a node moves, read from its engine now."""

    node: str
    wanted: bool = Field(description="The node is to be drained")
    drained: bool = Field(description="Its engine drains")
    empty: bool = Field(description="It is drained, and has no leased topic any more")
    keeps: list[str] = Field(description="Leased topics that it has")
    moving: list[str] = Field(description="Topics of `keeps` that it transfers")
    stays: list[DrainStay] = Field(description="At most 1,000 of the things that stay")
    stays_total: Count
    moves: list[DrainMove] = Field(description="At most 256 moves of leased topics, newest last")
