"""Consumer groups: the coordinator's state machine, without sockets, clocks or files.

A group is *empty*, *preparing* (members join), *completing* (its leader assigns the partitions)
or *stable*. Joins and syncs are answered later, through the function that came with them. All
methods are called in one thread; times are seconds on a monotonic clock, given by the caller.
Members are forgotten by a restart, and join again; offsets are kept by `Offsets`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from tidecast.config.kafka import GROUPS_MAX
from tidecast.kafka.codes import Code
from tidecast.kafka.wire import BadRequest, Reader, Struct, parse, reader_of

MEMBERS_MAX, PROTOCOLS_MAX = 1024, 64
GROUP_ID_BYTES_MAX = 255
SESSION_S_MIN, SESSION_S_MAX = 0.1, 1800.0
REBALANCE_S_MAX = 3600.0
METADATA_BYTES_MAX = 1 << 20
"""Bytes of one member: its metadata for all protocols, and its assignment."""
ALL_BYTES_MAX, MEMBER_BYTES = 64 << 20, 1024
"""Bytes of all members of all groups, names included; and of a member without metadata."""
FIRST_JOIN_S = 0.2
"""How long a new group waits for more members after its first."""
Answer = Callable[[Struct], None]
_SUBSCRIPTION = parse("""
    version: int16
    topics: []string
""")
_read_subscription = reader_of(_SUBSCRIPTION, 0, flexible=False)
"""The beginning of a consumer's metadata, in all versions of Kafka's consumers."""


class State(Enum):
    """States of a group, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class Member:
    """A member. ``on_join``, ``on_sync``: the requests that wait for an answer."""

    id: str
    instance: str | None
    client: str
    host: str
    session_s: float
    rebalance_s: float
    protocols: dict[str, bytes]
    heard_s: float
    assignment: bytes = b""
    on_join: Answer | None = None
    on_sync: Answer | None = None

    @property
    def n_bytes(self) -> int:
        """Its bytes that count for `ALL_BYTES_MAX`."""
        names = 2 * len(self.id) + len(self.client) + len(self.instance or "")
        said = sum(len(name) + len(each) for name, each in self.protocols.items())
        return MEMBER_BYTES + names + said + len(self.assignment)

    @property
    def waits(self) -> bool:
        """Whether a request of it waits for our answer: then it is not silent."""
        return self.on_join is not None or self.on_sync is not None


@dataclass(slots=True)
class Group:
    """A group."""

    id: str
    state: State = State.EMPTY
    generation: int = 0
    kind: str = ""
    """The kind of its members: ``consumer``."""
    protocol: str = ""
    leader: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    """Ids given to members, which must join with them, and until when."""
    due_s: float = 0.0
    """When a rebalance continues without members that have not joined or synced."""
    first: bool = False
    """Whether the group was empty when the rebalance began."""

    @property
    def common(self) -> list[str]:
        """Protocols that all members know, in the order of the first."""
        known = [each.protocols for each in self.members.values()]
        return [name for name in known[0] if all(name in each for each in known)] if known else []

    def subscribed(self) -> frozenset[str] | None:
        """Topics of its members' subscriptions; None: a member has not named its topics."""
        found: set[str] = set()
        for each in self.members.values():
            reader = Reader(each.protocols.get(self.protocol, b""))
            try:
                found.update(_read_subscription(reader)["topics"])
            except BadRequest:
                return None
        return frozenset(found)


def _failed(code: Code, member: str = "") -> Struct:
    return {"error_code": code, "generation_id": -1, "member_id": member}


class Coordinator:
    """All groups of an endpoint. ``new_id(client)`` makes the id of a member."""

    def __init__(
        self,
        new_id: Callable[[str], str],
        count: Callable[[str], None],
        groups_max: int = GROUPS_MAX,
    ) -> None:
        self._new_id, self._count, self._groups_max = new_id, count, groups_max
        self.groups: dict[str, Group] = {}
        self._bytes = 0
        """Bytes of all members: counted by each `tick`, plus members that came since."""

    # --- joining ----------------------------------------------------------------------------------

    def join(
        self, body: Struct, *, version: int, client: str, host: str, now_s: float, answer: Answer
    ) -> None:
        """A member joins, or joins again."""
        code = self._join_problem(body)
        if code is not Code.NONE:
            answer(_failed(code, body["member_id"]))
            return
        group = self.groups.get(body["group_id"])
        if group is None:
            if body["member_id"]:
                answer(_failed(Code.UNKNOWN_MEMBER_ID, body["member_id"]))
                return
            group = self.groups[body["group_id"]] = Group(body["group_id"])
        session_s = body["session_timeout_ms"] / 1000
        rebalance_s = max(body.get("rebalance_timeout_ms", 0) / 1000, session_s)
        protocols = {each["name"]: bytes(each["metadata"]) for each in body["protocols"]}
        member = Member(
            body["member_id"],
            body.get("group_instance_id"),
            client,
            host,
            session_s,
            min(rebalance_s, REBALANCE_S_MAX),
            protocols,
            now_s,
        )
        self._bytes += member.n_bytes + len(client)
        if group.members and (
            body["protocol_type"] != group.kind or not self._agrees(group, member)
        ):
            answer(_failed(Code.INCONSISTENT_GROUP_PROTOCOL, member.id))
        elif not member.id:
            group.kind = body["protocol_type"]
            self._join_new(group, member, version, now_s, answer)
        else:
            group.kind = body["protocol_type"]
            self._join_again(group, member, now_s, answer)
        if not group.members and not group.pending:
            self._forget(group)

    def _join_problem(self, body: Struct) -> Code:
        n = len(body["group_id"].encode())
        if not 1 <= n <= GROUP_ID_BYTES_MAX:
            return Code.INVALID_GROUP_ID
        if not SESSION_S_MIN <= body["session_timeout_ms"] / 1000 <= SESSION_S_MAX:
            return Code.INVALID_SESSION_TIMEOUT
        if not body["protocol_type"] or not 1 <= len(body["protocols"]) <= PROTOCOLS_MAX:
            return Code.INCONSISTENT_GROUP_PROTOCOL
        if sum(len(each["metadata"]) for each in body["protocols"]) > METADATA_BYTES_MAX:
            return Code.GROUP_MAX_SIZE_REACHED
        if self._bytes >= ALL_BYTES_MAX:
            return Code.GROUP_MAX_SIZE_REACHED
        group = self.groups.get(body["group_id"])
        if group is None:
            return Code.NONE if len(self.groups) < self._groups_max else Code.GROUP_MAX_SIZE_REACHED
        known = body["member_id"] in group.members or body["member_id"] in group.pending
        full = len(group.members) + len(group.pending) >= MEMBERS_MAX
        return Code.GROUP_MAX_SIZE_REACHED if full and not known else Code.NONE

    @staticmethod
    def _agrees(group: Group, member: Member) -> bool:
        """Whether this member and all others know a common protocol."""
        others = [each for each in group.members.values() if each.id != member.id]
        return any(all(name in each.protocols for each in others) for name in member.protocols)

    def _join_new(
        self, group: Group, member: Member, version: int, now_s: float, answer: Answer
    ) -> None:
        member.id = self._new_id(member.client)
        before = self._instance(group, member.instance)
        if before is not None:
            self._replace(group, before, member, now_s, answer)
        elif version >= 4 and member.instance is None:
            group.pending[member.id] = now_s + member.session_s
            answer(_failed(Code.MEMBER_ID_REQUIRED, member.id))
        else:
            self._add(group, member, now_s, answer)

    def _join_again(self, group: Group, member: Member, now_s: float, answer: Answer) -> None:
        if group.pending.pop(member.id, None) is not None:
            self._add(group, member, now_s, answer)
            return
        known = self._member(group, member.id, member.instance)
        if isinstance(known, Code):
            answer(_failed(known, member.id))
            return
        same = known.protocols == member.protocols
        known.heard_s, known.protocols = now_s, member.protocols
        known.session_s, known.rebalance_s = member.session_s, member.rebalance_s
        if known.on_join is not None:  # its connection broke; it asks again
            known.on_join(_failed(Code.UNKNOWN_MEMBER_ID, member.id))
        known.on_join = answer
        if group.state is State.PREPARING:
            self._complete_join(group, now_s)
        elif same and (
            group.state is State.COMPLETING
            or (group.state is State.STABLE and known.id != group.leader)
        ):
            self._answer_join(group, known)
        else:
            self._prepare(group, now_s)

    @staticmethod
    def _instance(group: Group, instance: str | None) -> Member | None:
        if instance is None:
            return None
        return next((each for each in group.members.values() if each.instance == instance), None)

    def _member(self, group: Group, member: str, instance: str | None) -> Member | Code:
        """The member, or the code that explains why there is none."""
        static = self._instance(group, instance)
        if static is not None and static.id != member:
            return Code.FENCED_INSTANCE_ID
        return group.members.get(member, Code.UNKNOWN_MEMBER_ID)

    def _replace(
        self, group: Group, before: Member, member: Member, now_s: float, answer: Answer
    ) -> None:
        """A static member is back under another id: it keeps its membership."""
        for waiting in (before.on_join, before.on_sync):
            if waiting is not None:
                waiting(_failed(Code.FENCED_INSTANCE_ID, before.id))
        same = before.protocols == member.protocols
        member.assignment = before.assignment
        group.members = {
            (member.id if each.id == before.id else each.id): (
                member if each.id == before.id else each
            )
            for each in group.members.values()
        }
        told_leader = group.leader
        if group.leader == before.id:
            group.leader = member.id
        member.on_join = answer
        if group.state is State.STABLE and same:
            # It follows, even if it leads: nothing has changed, and it gets its old assignment.
            self._answer_join(group, member, leader=told_leader)
        elif group.state is State.PREPARING:
            self._complete_join(group, now_s)
        else:
            self._prepare(group, now_s)

    def _add(self, group: Group, member: Member, now_s: float, answer: Answer) -> None:
        member.on_join = answer
        group.members[member.id] = member
        if group.state is State.PREPARING:
            self._complete_join(group, now_s)
        else:
            self._prepare(group, now_s)

    # --- rebalances -------------------------------------------------------------------------------

    def _prepare(self, group: Group, now_s: float) -> None:
        """All members must join again."""
        self._count("rebalances")
        group.first = group.state is State.EMPTY
        group.state = State.PREPARING
        for each in group.members.values():
            if each.on_sync is not None:
                each.on_sync({"error_code": Code.REBALANCE_IN_PROGRESS})
                each.on_sync = None
        longest_s = max((each.rebalance_s for each in group.members.values()), default=0.0)
        group.due_s = now_s + (min(FIRST_JOIN_S, longest_s) if group.first else longest_s)
        self._complete_join(group, now_s)

    def _complete_join(self, group: Group, now_s: float) -> None:
        """Continue when all have joined; a group that was empty waits for more members."""
        joined = all(each.on_join is not None for each in group.members.values())
        if now_s >= group.due_s or (joined and not group.pending and not group.first):
            self._joined(group, now_s)

    def _joined(self, group: Group, now_s: float) -> None:
        for each in [m for m in group.members.values() if m.on_join is None]:
            if each.instance is None:
                del group.members[each.id]
        group.generation += 1
        if not group.members:
            group.state, group.leader, group.protocol = State.EMPTY, "", ""
            return
        votes = [
            next(name for name in each.protocols if name in group.common)
            for each in group.members.values()
        ]
        group.protocol = max(group.common, key=votes.count)
        joined = [each.id for each in group.members.values() if each.on_join is not None]
        if group.leader not in joined:
            group.leader = next(iter(joined), next(iter(group.members)))
        group.state = State.COMPLETING
        group.due_s = now_s + max(each.rebalance_s for each in group.members.values())
        for each in list(group.members.values()):
            each.assignment = b""
            if each.on_join is not None:
                each.heard_s = now_s
                self._answer_join(group, each)

    def _answer_join(self, group: Group, member: Member, leader: str | None = None) -> None:
        answer, member.on_join = member.on_join, None
        assert answer is not None
        leads = member.id == group.leader and leader is None
        rows = [
            {
                "member_id": each.id,
                "group_instance_id": each.instance,
                "metadata": each.protocols[group.protocol],
            }
            for each in group.members.values()
        ]
        answer(
            {
                "error_code": Code.NONE,
                "generation_id": group.generation,
                "protocol_name": group.protocol,
                "leader": leader or group.leader,
                "member_id": member.id,
                "members": rows if leads else [],
            }
        )

    def sync(self, body: Struct, now_s: float, answer: Answer) -> None:
        """A member asks for its assignment; the leader sends the assignments of all members."""
        group, member = self._of(body)
        if isinstance(member, Code):
            answer({"error_code": member})
            return
        assert group is not None
        member.heard_s = now_s
        given = {each["member_id"]: each["assignment"] for each in body["assignments"]}
        n = sum(len(each) for each in given.values())
        if (
            len(given) > MEMBERS_MAX
            or any(len(each) > METADATA_BYTES_MAX for each in given.values())
            or self._bytes + n > ALL_BYTES_MAX
        ):
            answer({"error_code": Code.GROUP_MAX_SIZE_REACHED})
            return
        if group.state is State.PREPARING:
            answer({"error_code": Code.REBALANCE_IN_PROGRESS})
            return
        if group.state is State.STABLE:
            answer({"error_code": Code.NONE, "assignment": member.assignment})
            return
        if member.on_sync is not None:
            member.on_sync({"error_code": Code.REBALANCE_IN_PROGRESS})
        member.on_sync = answer
        if member.id != group.leader:
            return
        self._bytes += n
        for name, assignment in given.items():
            assigned = group.members.get(name)
            if assigned is not None:
                assigned.assignment = bytes(assignment)
        group.state = State.STABLE
        for each in group.members.values():
            if each.on_sync is not None:
                waiting, each.on_sync, each.heard_s = each.on_sync, None, now_s
                waiting({"error_code": Code.NONE, "assignment": each.assignment})

    def _of(self, body: Struct) -> tuple[Group | None, Member | Code]:
        """The group and member that a request names, or a code."""
        group = self.groups.get(body["group_id"])
        if group is None:
            return None, Code.UNKNOWN_MEMBER_ID
        found = self._member(group, body["member_id"], body.get("group_instance_id"))
        if isinstance(found, Member) and body["generation_id"] != group.generation:
            return group, Code.ILLEGAL_GENERATION
        return group, found

    # --- members that stay, and that go -----------------------------------------------------------

    def heartbeat(self, body: Struct, now_s: float) -> Code:
        """A member is there."""
        group, member = self._of(body)
        if isinstance(member, Code):
            return member
        member.heard_s = now_s
        preparing = group is not None and group.state is State.PREPARING
        return Code.REBALANCE_IN_PROGRESS if preparing else Code.NONE

    def leave(self, group_id: str, member: str, instance: str | None, now_s: float) -> Code:
        """A member goes; a static one is named by its instance alone."""
        group = self.groups.get(group_id)
        if group is None:
            return Code.UNKNOWN_MEMBER_ID
        if group.pending.pop(member, None) is not None:
            self._gone(group, now_s)
            return Code.NONE
        static = self._instance(group, instance)
        if static is not None and not member:
            member = static.id
        found = self._member(group, member, instance)
        if isinstance(found, Code):
            return found
        self._remove(group, found, now_s)
        return Code.NONE

    def _remove(self, group: Group, member: Member, now_s: float) -> None:
        del group.members[member.id]
        for waiting in (member.on_join, member.on_sync):
            if waiting is not None:
                waiting(_failed(Code.UNKNOWN_MEMBER_ID, member.id))
        if group.members and group.state in (State.STABLE, State.COMPLETING):
            self._prepare(group, now_s)
        else:
            self._gone(group, now_s)

    def _gone(self, group: Group, now_s: float) -> None:
        if group.state is State.PREPARING:
            self._complete_join(group, now_s)
        elif not group.members:
            group.state, group.leader, group.protocol = State.EMPTY, "", ""
        if not group.members and not group.pending:
            self._forget(group)

    def _forget(self, group: Group) -> None:
        group.state = State.DEAD
        self.groups.pop(group.id, None)

    def tick(self, now_s: float) -> None:
        """Remove silent members, and continue rebalances that are due."""
        for group in list(self.groups.values()):
            for member, until_s in list(group.pending.items()):
                if now_s >= until_s:
                    del group.pending[member]
            for each in list(group.members.values()):
                if not each.waits and now_s - each.heard_s >= each.session_s:
                    self._count("members_expired")
                    if each.id in group.members:
                        self._remove(group, each, now_s)
            if group.state is State.PREPARING:
                self._complete_join(group, now_s)
            elif group.state is State.COMPLETING and now_s >= group.due_s:
                self._drop_unsynced(group, now_s)
            if not group.members and not group.pending:
                self._forget(group)
        self._bytes = sum(self._bytes_of(group) for group in self.groups.values())

    @staticmethod
    def _bytes_of(group: Group) -> int:
        members = sum(each.n_bytes for each in group.members.values())
        return members + sum(MEMBER_BYTES + len(each) for each in group.pending)

    def _drop_unsynced(self, group: Group, now_s: float) -> None:
        """The leader sent no assignments: members that have not synced are gone."""
        for each in [m for m in group.members.values() if m.on_sync is None]:
            del group.members[each.id]
        self._prepare(group, now_s)

    # --- offsets ----------------------------------------------------------------------------------

    def may_commit(self, body: Struct, now_s: float) -> Code:
        """Whether a member may commit; without a generation only in a group without members."""
        group = self.groups.get(body["group_id"])
        if group is None or not group.members:
            alone = body["generation_id"] < 0
            return Code.NONE if alone else Code.ILLEGAL_GENERATION
        if body["generation_id"] < 0 and not body["member_id"]:
            return Code.UNKNOWN_MEMBER_ID
        _, member = self._of(body)
        if isinstance(member, Code):
            return member
        member.heard_s = now_s
        completing = group.state is State.COMPLETING
        return Code.REBALANCE_IN_PROGRESS if completing else Code.NONE

    def rows(self) -> Iterable[Group]:
        """All groups that have members."""
        return self.groups.values()
