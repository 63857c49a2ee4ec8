"""Epochs of sealed transports: when they begin and end, by the service's time and without it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import msgspec
import pytest
from tests.support.sealed_network import FAR_NS, epoch

from tidecast.node.sealing.epochs import (
    HEARD_NS,
    HELD_S_MAX,
    INSIST_NS,
    MARGIN_NS,
    OUTLIVED_NS_MAX,
    EpochChoice,
    S,
    Times,
)
from tidecast.node.sealing.service_clock import ANSWER_NS_MAX, ServiceClock
from tidecast.node.sealing.wire_keys import WireEpoch

NOW = 1_700_000_000 * S
NOBODY: Mapping[int, int] = {}


def plan(begins_s: float = 60, lasts_s: float = 30) -> list[WireEpoch]:
    """Epoch 2 begins so long after NOW, and epoch 1 ends so long after that."""
    begins_ns = NOW + round(begins_s * S)
    ends_ns = begins_ns + round(lasts_s * S)
    return [
        msgspec.structs.replace(epoch(1), retire_at_ns=ends_ns),
        msgspec.structs.replace(epoch(2), activate_at_ns=begins_ns),
    ]


class Engine:
    """An engine whose monotonic clock begins at 0."""

    def __init__(self, *, required: bool = True, off_s: float = 0, service: bool = False) -> None:
        self.choice, self.off_ns = EpochChoice(required=required), round(off_s * S)
        self.service, self.at_s = service, 0.0

    def at(
        self, at_s: float, epochs: list[WireEpoch], heard: Mapping[int, int] = NOBODY
    ) -> tuple[list[int], int]:
        """(epochs that are taken, the one in use). ``heard``: by epoch, so many seconds ago."""
        now_ns = round(at_s * S)
        times = Times(now_ns, NOW + self.off_ns + now_ns, NOW + now_ns if self.service else None)
        ages = {each: now_ns - age_s * S for each, age_s in heard.items()}
        taken, active = self.choice.choose(epochs, times, ages)
        return [each.epoch for each in taken], active


@pytest.mark.parametrize("off_s", [-1e6, 0, 1e6])
def test_by_the_services_time_epochs_begin_and_end_as_planned(off_s: float) -> None:
    engine = Engine(service=True, off_s=off_s)
    assert engine.at(-1, [epoch(1)]) == ([1], 1)
    seen = [(t, engine.at(t, plan())) for t in (0, 59, 60, 61, 89, 90, 91)]
    assert seen == [
        (0, ([1, 2], 1)),
        (59, ([1, 2], 1)),
        (60, ([1, 2], 2)),
        (61, ([1, 2], 2)),
        (89, ([1, 2], 2)),
        (90, ([2], 2)),
        (91, ([2], 2)),
    ]


def test_a_services_clock_that_is_set_ahead_ends_no_epoch_before_others_begin_the_next() -> None:
    engine = Engine(service=True)
    engine.at(0, [epoch(1)])
    begun = plan(begins_s=-3600, lasts_s=20)
    assert engine.at(1, begun) == ([1, 2], 2)
    assert engine.at(20, begun) == ([1, 2], 2)
    assert engine.at(21, begun, {1: 1}) == ([1, 2], 2), "another engine still seals under it"
    assert engine.at(30, begun, {1: HEARD_NS // S + 1}) == ([2], 2)


def test_an_epoch_that_others_use_for_ever_ends_all_the_same() -> None:
    engine = Engine(service=True)
    engine.at(0, [epoch(1)])
    begun = plan(begins_s=-3600, lasts_s=20)
    engine.at(1, begun)
    last_s = OUTLIVED_NS_MAX // S
    assert engine.at(last_s, begun, {1: 0, 2: 0}) == ([1, 2], 2)
    assert engine.at(last_s + 1, begun, {1: 0, 2: 0}) == ([2], 2)


def test_others_that_insist_begin_an_epoch_before_the_services_time() -> None:
    engine = Engine(service=True)
    engine.at(0, [epoch(1)])
    later = plan(begins_s=7200)
    assert engine.at(1, later, {2: 0}) == ([1, 2], 1)
    assert engine.at(INSIST_NS // S, later, {2: 0}) == ([1, 2], 1)
    assert engine.at(INSIST_NS // S + 1, later, {2: 0}) == ([1, 2], 2)


@pytest.mark.parametrize("off_s", [-1e6, -7200, 7200, 1e6])
def test_without_a_service_no_clock_begins_an_epoch_before_the_plan(off_s: float) -> None:
    """The others have the file when epoch 2 is planned to begin, and drop epoch 1 30 s later."""
    engine = Engine(off_s=off_s)
    engine.at(0, [epoch(1)])
    planned = plan(begins_s=30, lasts_s=30)
    for t in range(1, 30):
        assert engine.at(t, planned, {1: 0}) == ([1, 2], 1)
    assert engine.at(31, planned, {1: 0, 2: 0}) == ([1, 2], 2), "another one has begun"
    for t in range(32, 61):
        assert engine.at(t, planned, {2: 0}) == ([1, 2], 2)
    late = engine.at(100, planned, {2: 0})
    assert late == (([2], 2) if off_s * S > MARGIN_NS else ([1, 2], 2))


def test_a_node_alone_begins_an_epoch_by_its_clock_after_the_overlap() -> None:
    engine = Engine()
    engine.at(0, [epoch(1)])
    planned = plan(begins_s=-10, lasts_s=30)
    assert [engine.at(t, planned)[1] for t in (1, 30, 31)] == [1, 1, 2]
    far = [epoch(1, ends_ns=FAR_NS), epoch(2)]
    alone = Engine()
    alone.at(0, [epoch(1)])
    assert [alone.at(t, far)[1] for t in (1, HELD_S_MAX, HELD_S_MAX + 1)] == [1, 1, 2]


def test_at_a_start_the_others_decide_until_the_overlap_is_over() -> None:
    planned = plan(begins_s=-100, lasts_s=30)
    assert Engine().at(0, planned) == ([1, 2], 2), "by the clock"
    engine = Engine()
    seen = [engine.at(t, planned, {1: 0})[1] for t in (0, 1, 29, 30)]
    assert seen == [1, 1, 1, 2]
    back = Engine(off_s=7200)
    assert back.at(0, planned)[1] == 2
    assert back.at(1, planned, {1: 0})[1] == 1
    assert back.at(2, planned, {1: 0, 2: 0})[1] == 2
    assert back.at(3, planned, {1: 0})[1] == 2, "it has begun"


@pytest.mark.parametrize("required", [False, True])
def test_the_first_epoch_is_waited_for_only_where_plain_packets_may_be_sent(
    *, required: bool
) -> None:
    for service in (False, True):
        engine = Engine(required=required, service=service)
        first = [epoch(1, begins=False)]
        assert engine.at(0, first) == ([1], int(required))
        assert engine.at(INSIST_NS // S, first, {1: 0}) == ([1], int(required or not service))
        assert engine.at(2 * INSIST_NS // S, first, {1: 0}) == ([1], 1)


def test_the_last_epoch_ends_when_its_owner_planned_that() -> None:
    ended = [epoch(1, ends_ns=NOW + 10 * S)]
    engine = Engine(service=True)
    assert [engine.at(t, ended)[1] for t in (0, 9, 10)] == [1, 1, 0]
    assert Engine().at(10, ended) == ([1], 1)
    assert Engine().at(10 + MARGIN_NS / S, ended) == ([], 0)
    assert Engine().at(0, []) == ([], 0)


def test_two_nodes_that_began_with_different_epochs_agree_and_stay() -> None:
    planned = plan(begins_s=20, lasts_s=600)
    one, two = Engine(), Engine(off_s=7200)
    used = {one: 0, two: 0}
    seen = []
    for t in range(60):
        for engine, other in itertools.permutations((one, two)):
            heard = {used[other]: 0} if used[other] else NOBODY
            used[engine] = engine.at(t, planned, heard)[1]
        seen.append(tuple(used.values()))
    changes = [now for before, now in itertools.pairwise(seen) if before != now]
    assert len(changes) <= 3
    assert seen[-1] in ((1, 1), (2, 2))


def test_the_services_time_is_corrected_by_the_round_trip() -> None:
    clock = ServiceClock()
    assert clock.now_ns(0) is None
    assert clock.learn(100 * S, 102 * S, NOW)
    assert clock.now_ns(102 * S) == NOW + S
    assert clock.now_ns(202 * S) == NOW + 101 * S
    assert clock.learn(200 * S, 200 * S + 2000, NOW + 100 * S)
    exact = clock.now_ns(300 * S)
    assert not clock.learn(300 * S, 303 * S, NOW + 201 * S), "rough, and it agrees"
    assert clock.now_ns(300 * S) == exact
    assert clock.learn(400 * S, 401 * S, NOW - 3600 * S), "the service's clock was set"
    assert clock.now_ns(401 * S) == NOW - 3600 * S + S // 2


@pytest.mark.parametrize("trip_ns", [-1, ANSWER_NS_MAX + 1])
def test_an_answer_that_took_too_long_is_not_used(trip_ns: int) -> None:
    clock = ServiceClock()
    assert not clock.learn(S, S + trip_ns, NOW)
    assert clock.now_ns(S) is None
