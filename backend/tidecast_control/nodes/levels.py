"""The cluster's level: the engines write it, and an operator raises it.

An engine that does not read the cluster's level is refused at its link, and shown so. The level is
raised by hand, once every engine that may come back reads the next one; it is never lowered.
"""

from __future__ import annotations

from datetime import timedelta

from sqlmodel import Session

from tidecast.api import levels as known
from tidecast.errors import ConfigError
from tidecast.layout.levels import LEVELS
from tidecast_control.api import resources
from tidecast_control.audit import service as audit
from tidecast_control.kit import repository as kit
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.models import utc_now
from tidecast_control.kit.problems import ProblemError, invalid
from tidecast_control.kit.schemas import Plan
from tidecast_control.nodes import repository
from tidecast_control.nodes.hello import Hello
from tidecast_control.nodes.models import ClusterRow, NodeStateRow
from tidecast_control.nodes.schemas import Cluster, ClusterEngine

LATELY = timedelta(days=7)
"""An engine that was away for longer does not hold the level back: it is refused if it returns."""


class Unreadable(ProblemError):
    """An engine does not read the level of the service, or of the cluster.

    ``noted``: its node shows the refusal, and the audit has it.
    """

    def __init__(self, node: str, detail: str) -> None:
        super().__init__("conflict", detail)
        self.node, self.noted = node, False


def ensure(session: Session) -> None:
    """A new cluster begins at the newest level."""
    if session.get(ClusterRow, 1) is None:
        session.add(ClusterRow(id=1, level=known.OURS.high))


def level_of(session: Session) -> int:
    """The cluster's level."""
    row = session.get(ClusterRow, 1)
    return row.level if row is not None else known.OURS.high


def check(session: Session, node: str, hello: Hello) -> known.Range:
    """The levels that an engine reads, the cluster's among them. Raises Unreadable."""
    version = hello.version
    try:
        reads = known.range_of("control", hello.protocol, hello.levels)
        known.agreed("engine", version, reads, "control service")
    except ConfigError as problem:
        raise Unreadable(node, str(problem)) from None
    level = level_of(session)
    if level not in reads:
        cure = (
            f">= {LEVELS[level].since}"
            if level in LEVELS
            else f"a version that reads level {level}"
        )
        raise Unreadable(
            node,
            f"engine {version} reads {reads}, the cluster is at level {level}: install "
            f"tidecast {cure} on this node",
        )
    return reads


def note_refusal(session: Session, refused: Unreadable, address: str) -> bool:
    """Show a refusal at its node, and in the audit once for each reason. False: no such node."""
    state = repository.state(session, refused.node, lock=True)
    if state is None:
        return False
    if state.refused == refused.detail:
        return True
    state.refused = refused.detail
    session.add(state)
    actor = Actor(kind="engine", name=refused.node, role="viewer", address=address)
    audit.record(session, actor, "refuse", "node", refused.node, detail=refused.detail)
    return True


def status(session: Session) -> Cluster:
    """The level, the engines, and the reasons that hold the next level back."""
    row = session.get(ClusterRow, 1) or ClusterRow(id=1, level=known.OURS.high)
    target = known.OURS.high
    blocked = _blocked(session, target)
    specs = {each.name: each.spec for each in kit.all_of(session, "node")}
    return Cluster(
        level=row.level,
        level_max=target,
        finalized_at=row.finalized_at,
        finalized_by=row.finalized_by,
        blocked_by=sorted(blocked.values()) if target > row.level else [],
        engines=[
            ClusterEngine(
                node=name,
                state="up" if each.connected else "down",
                version=each.software,
                level=each.level,
                level_min=each.level_min,
                level_max=each.level_max,
                seen_at=each.seen_at,
                refused=each.refused,
                blocks=target > row.level and name in blocked,
                drained=bool(specs.get(name, {}).get("drained")),
                addresses={
                    key: f"{at['host']}:{at['port']}" for key, at in sorted(each.addresses.items())
                },
            )
            for name, each in repository.states(session).items()
        ],
    )


def finalize(session: Session, level: int | None, actor: Actor, *, dry_run: bool) -> Plan:
    """Raise the cluster's level; None: to the newest of this service.

    Raises `invalid_request`; `conflict` while an engine does not read the level, or to lower it.
    """
    ensure(session)
    row = session.get(ClusterRow, 1, with_for_update=True)
    assert row is not None
    target = known.OURS.high if level is None else level
    if target not in known.OURS:
        raise invalid("query/level", f"{target}: this service reads {known.OURS}", str(known.OURS))
    if target < row.level:
        raise ProblemError(
            "conflict", f"the cluster is at level {row.level}: a level is never lowered"
        )
    before = {"level": row.level}
    if target > row.level:
        blocked = _blocked(session, target)
        if blocked:
            raise ProblemError("conflict", "; ".join(sorted(blocked.values())))
        if not dry_run:
            row.level, row.finalized_at, row.finalized_by = target, utc_now(), actor.name
            session.add(row)
            kit.announce(session, kit.next_version(session), "cluster", "cluster", before)
            audit.record(
                session, actor, "finalize", "cluster", "cluster", before, {"level": target}
            )
    return resources.plan_of("cluster", "cluster", before, {"level": target}, dry_run=dry_run)


def _blocked(session: Session, target: int) -> dict[str, str]:
    """Why engines that are here, or may come back, hold a level back; by node."""
    found = {}
    for name, state in repository.states(session).items():
        if _counts(state) and not state.level_min <= target <= state.level_max:
            reads = known.Range(state.level_min, state.level_max)
            found[name] = (
                f"node {name} ({state.software or 'version not named'}) reads {reads}: install "
                f"tidecast >= {LEVELS[target].since} there"
            )
            if not state.connected:
                found[name] += ", or revoke its credential if it does not come back"
    return found


def _counts(state: NodeStateRow) -> bool:
    enrolled = bool(state.credential or state.credential_next)
    lately = state.seen_at is None or state.seen_at > utc_now() - LATELY
    return state.connected or (enrolled and lately)
