"""The coordinator of groups as a state machine: a clock of its own, answers in lists."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidecast.kafka.codes import Code
from tidecast.kafka.groups import coordinator
from tidecast.kafka.groups.coordinator import Coordinator, State

Answers = list[dict[str, Any]]


class Club:
    """One group, and its members."""

    def __init__(self) -> None:
        numbers = itertools.count(1)
        self.now_s = 100.0
        self.counted: list[str] = []
        self.coordinator = Coordinator(
            lambda client: f"{client}-{next(numbers)}", self.counted.append
        )

    @property
    def group(self) -> coordinator.Group:
        return self.coordinator.groups["g"]

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.coordinator.tick(self.now_s)

    def join(self, member: str = "", *, version: int = 5, **body: Any) -> Answers:
        answers: Answers = []
        given = {
            "group_id": "g",
            "member_id": member,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 30_000,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": member.encode()}],
        } | body
        self.coordinator.join(
            given, version=version, client="c", host="h", now_s=self.now_s, answer=answers.append
        )
        return answers

    def sync(self, member: str, generation: int = 1, **assignments: bytes) -> Answers:
        answers: Answers = []
        rows = [{"member_id": m.replace("_", "-"), "assignment": a} for m, a in assignments.items()]
        body = {
            "group_id": "g",
            "member_id": member,
            "generation_id": generation,
            "assignments": rows,
            "group_instance_id": None,
        }
        self.coordinator.sync(body, self.now_s, answers.append)
        return answers

    def heartbeat(self, member: str, generation: int = 1, instance: str | None = None) -> Code:
        body = {
            "group_id": "g",
            "member_id": member,
            "generation_id": generation,
            "group_instance_id": instance,
        }
        return self.coordinator.heartbeat(body, self.now_s)

    def commit(self, member: str, generation: int) -> Code:
        body = {"group_id": "g", "member_id": member, "generation_id": generation}
        return self.coordinator.may_commit(body, self.now_s)

    def stable(self, n: int) -> list[str]:
        """``n`` members that have joined and know what they read."""
        joins = [self.join(version=3) for _ in range(n)]
        self.wait(coordinator.FIRST_JOIN_S)
        members = [each[0]["member_id"] for each in joins]
        shares = {each.replace("-", "_"): each.encode() for each in members}
        for each in members[1:]:
            assert self.sync(each, self.group.generation) == []
        (led,) = self.sync(members[0], self.group.generation, **shares)
        assert led["assignment"] == members[0].encode()
        assert self.group.state is State.STABLE
        return members


@pytest.fixture
def club() -> Club:
    return Club()


def test_members_join_and_the_leader_assigns(club: Club) -> None:
    first, second = club.join(version=3), club.join(version=3)
    assert first == second == []
    club.wait(coordinator.FIRST_JOIN_S)
    (led,), (followed,) = first, second
    assert led["leader"] == led["member_id"] == "c-1"
    assert followed["leader"] == "c-1"
    assert [each["member_id"] for each in led["members"]] == ["c-1", "c-2"]
    assert followed["members"] == []
    waits = club.sync("c-2")
    assert waits == []
    assert club.sync("c-1", c_1=b"one", c_2=b"two")[0]["assignment"] == b"one"
    assert waits[0]["assignment"] == b"two"
    assert club.sync("c-2")[0]["assignment"] == b"two"
    assert club.heartbeat("c-2") is Code.NONE


def test_a_member_must_join_with_the_id_that_it_was_given(club: Club) -> None:
    (refused,) = club.join(version=4)
    assert (refused["error_code"], refused["member_id"]) == (Code.MEMBER_ID_REQUIRED, "c-1")
    answers = club.join("c-1")
    club.wait(coordinator.FIRST_JOIN_S)
    assert answers[0]["generation_id"] == 1
    assert club.join("c-99")[0]["error_code"] == Code.UNKNOWN_MEMBER_ID


def test_an_id_that_is_not_used_is_forgotten(club: Club) -> None:
    club.join()
    club.wait(10.0)
    assert club.coordinator.groups == {}
    assert club.join("c-1")[0]["error_code"] == Code.UNKNOWN_MEMBER_ID


def test_one_who_joins_makes_all_join_again(club: Club) -> None:
    members = club.stable(2)
    third = club.join(version=3)
    assert [club.heartbeat(each) for each in members] == [Code.REBALANCE_IN_PROGRESS] * 2
    again = [club.join(each) for each in members]
    assert [each[0]["generation_id"] for each in (*again, third)] == [2, 2, 2]
    assert again[0][0]["leader"] == members[0]


def test_one_who_does_not_join_in_time_is_out(club: Club) -> None:
    first, second = club.stable(2)
    third = club.join(version=3)
    again = club.join(first)
    for _ in range(4):
        club.wait(9.0)
        club.heartbeat(second)
    assert again[0]["generation_id"] == third[0]["generation_id"] == 2
    assert club.heartbeat(second, 2) is Code.UNKNOWN_MEMBER_ID


def test_one_who_is_silent_is_out(club: Club) -> None:
    first, second = club.stable(2)
    club.wait(6.0)
    assert club.heartbeat(first) is Code.NONE
    club.wait(6.0)
    assert "members_expired" in club.counted
    assert club.heartbeat(first) is Code.REBALANCE_IN_PROGRESS
    (alone,) = club.join(first)
    assert [each["member_id"] for each in alone["members"]] == [first]
    assert club.heartbeat(second, 2) is Code.UNKNOWN_MEMBER_ID


def test_one_who_leaves_is_out_at_once(club: Club) -> None:
    first, second = club.stable(2)
    assert club.coordinator.leave("g", second, None, club.now_s) is Code.NONE
    assert club.coordinator.leave("g", second, None, club.now_s) is Code.UNKNOWN_MEMBER_ID
    assert club.join(first)[0]["generation_id"] == 2
    assert club.coordinator.leave("g", first, None, club.now_s) is Code.NONE
    assert club.coordinator.groups == {}


def test_a_leader_that_never_assigns_is_out(club: Club) -> None:
    club.stable(1)
    second = club.join(version=3)
    club.join("c-1")
    member = second[0]["member_id"]
    waits = club.sync(member, 2)
    for _ in range(4):
        club.wait(8.0)
        club.heartbeat("c-1", 2)
    assert waits[0]["error_code"] == Code.REBALANCE_IN_PROGRESS
    (led,) = club.join(member)
    assert led["leader"] == member


def test_old_generations_are_refused(club: Club) -> None:
    (member,) = club.stable(1)
    assert club.heartbeat(member, 0) is Code.ILLEGAL_GENERATION
    assert club.sync(member, 7)[0]["error_code"] == Code.ILLEGAL_GENERATION
    assert club.commit(member, 2) is Code.ILLEGAL_GENERATION
    assert club.commit(member, 1) is Code.NONE
    assert club.commit("", -1) is Code.UNKNOWN_MEMBER_ID
    assert club.commit("who", 1) is Code.UNKNOWN_MEMBER_ID
    club.coordinator.leave("g", member, None, club.now_s)
    assert club.commit("", -1) is Code.NONE
    assert club.commit(member, 1) is Code.ILLEGAL_GENERATION


def test_a_static_member_keeps_its_place(club: Club) -> None:
    one = club.join(group_instance_id="i1")
    two = club.join(group_instance_id="i2")
    club.wait(coordinator.FIRST_JOIN_S)
    leader, second = one[0]["member_id"], two[0]["member_id"]
    club.sync(second)
    shares = {leader.replace("-", "_"): b"1", second.replace("-", "_"): b"2"}
    club.sync(leader, 1, **shares)
    (back,) = club.join(group_instance_id="i1")
    assert (back["generation_id"], back["leader"]) == (1, leader)
    fresh = back["member_id"]
    assert fresh != leader
    assert club.sync(fresh)[0]["assignment"] == b"1"
    assert club.heartbeat(leader, 1, "i1") is Code.FENCED_INSTANCE_ID
    assert club.heartbeat(second) is Code.NONE
    assert club.coordinator.leave("g", "", "i2", club.now_s) is Code.NONE


def test_what_cannot_join(club: Club) -> None:
    cases: list[tuple[dict[str, Any], Code]] = [
        ({"group_id": ""}, Code.INVALID_GROUP_ID),
        ({"group_id": "x" * 256}, Code.INVALID_GROUP_ID),
        ({"session_timeout_ms": 1}, Code.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1 << 30}, Code.INVALID_SESSION_TIMEOUT),
        ({"protocols": []}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, Code.INCONSISTENT_GROUP_PROTOCOL),
        (
            {"protocols": [{"name": "a", "metadata": bytes(coordinator.METADATA_BYTES_MAX + 1)}]},
            Code.GROUP_MAX_SIZE_REACHED,
        ),
    ]
    for body, code in cases:
        assert club.join(version=3, **body)[0]["error_code"] == code
    assert club.coordinator.groups == {}
    club.stable(1)
    other = [{"name": "sticky", "metadata": b""}]
    assert club.join(protocols=other)[0]["error_code"] == Code.INCONSISTENT_GROUP_PROTOCOL
    assert club.join(protocol_type="c")[0]["error_code"] == Code.INCONSISTENT_GROUP_PROTOCOL


def test_groups_and_members_are_limited(club: Club, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "MEMBERS_MAX", 1)
    monkeypatch.setattr(club.coordinator, "_groups_max", 1)
    (member,) = club.stable(1)
    assert club.join()[0]["error_code"] == Code.GROUP_MAX_SIZE_REACHED
    assert club.join(group_id="h")[0]["error_code"] == Code.GROUP_MAX_SIZE_REACHED
    assert club.join(member)[0]["generation_id"] == 2


def test_what_all_members_say_is_limited(club: Club, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "ALL_BYTES_MAX", 4 * coordinator.MEMBER_BYTES)
    (member,) = club.stable(1)
    said = [{"name": "range", "metadata": bytes(3 * coordinator.MEMBER_BYTES)}]
    assert club.join(version=3, group_id="h", protocols=said) == []  # it is below the limit yet
    assert club.join(version=3, group_id="i")[0]["error_code"] == Code.GROUP_MAX_SIZE_REACHED
    club.coordinator.leave("h", "c-2", None, club.now_s)
    club.wait(0.0)  # counts again
    assert club.join(member)[0]["error_code"] == 0


def test_assignments_are_limited(club: Club, monkeypatch: pytest.MonkeyPatch) -> None:
    club.join(version=3)
    club.wait(coordinator.FIRST_JOIN_S)
    monkeypatch.setattr(coordinator, "METADATA_BYTES_MAX", 10)
    refused = {"error_code": Code.GROUP_MAX_SIZE_REACHED}
    assert club.sync("c-1", c_1=bytes(11)) == [refused]  # and not cut off
    monkeypatch.setattr(coordinator, "MEMBERS_MAX", 1)
    assert club.sync("c-1", c_1=b"", c_2=b"") == [refused]
    (led,) = club.sync("c-1", c_1=bytes(10))
    assert led["assignment"] == bytes(10)


class AnyOrder(RuleBasedStateMachine):
    """Members join, sync, leave and are silent in any order; their answers are consistent."""

    def __init__(self) -> None:
        super().__init__()
        self.club = Club()
        self.waiting: list[tuple[str, Answers]] = []
        self.told: dict[str, dict[str, Any]] = {}

    def members(self) -> list[str]:
        group = self.club.coordinator.groups.get("g")
        return [] if group is None else list(group.members)

    @rule()
    def arrive(self) -> None:
        self.waiting.append(("", self.club.join(version=3)))

    @rule(comes=st.booleans())
    def arrive_with_an_id(self, comes: bool) -> None:
        (refused,) = self.club.join(version=4)
        if comes and refused["error_code"] == Code.MEMBER_ID_REQUIRED:
            member = refused["member_id"]
            self.waiting.append((member, self.club.join(member)))

    @rule(data=st.data())
    def again(self, data: st.DataObject) -> None:
        if self.members():
            member = data.draw(st.sampled_from(self.members()))
            self.waiting.append((member, self.club.join(member)))

    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        if self.members():
            member = data.draw(st.sampled_from(self.members()))
            group = self.club.group
            shares = {each.replace("-", "_"): each.encode() for each in self.members()}
            given = shares if member == group.leader else {}
            for told in self.club.sync(member, group.generation, **given):
                if told["error_code"] == Code.NONE:
                    assert told["assignment"] in (member.encode(), b"")

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.members():
            member = data.draw(st.sampled_from(self.members()))
            self.club.coordinator.leave("g", member, None, self.club.now_s)

    @rule(seconds=st.sampled_from([0.1, 1.0, 9.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.club.wait(seconds)

    @invariant()
    def it_holds_together(self) -> None:
        group = self.club.coordinator.groups.get("g")
        for member, answers in self.waiting:
            assert len(answers) <= 1, member
        if group is None:
            return
        assert group.members or group.pending
        if group.state in (State.STABLE, State.COMPLETING):
            assert group.leader in group.members
            assert all(each.on_join is None for each in group.members.values())
        if group.state is not State.COMPLETING:
            assert all(each.on_sync is None for each in group.members.values())

    def teardown(self) -> None:
        """After long enough silence nothing is left, and everybody was answered."""
        for _ in range(12):
            self.club.wait(11.0)
        assert self.club.coordinator.groups == {}
        assert all(len(answers) == 1 for _, answers in self.waiting)


AnyOrder.TestCase.settings = settings(max_examples=12, stateful_step_count=20)
test_any_order = AnyOrder.TestCase
