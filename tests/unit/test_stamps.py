"""Stamps of rings: the time of day, and always later than the one before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidecast.config.topology import topology_from
from tidecast.node.context import STAMP_AHEAD_NS_MAX, NodeContext

NOON_NS = 1_700_000_000_000_000_000


@pytest.fixture
def wall() -> list[int]:
    return [NOON_NS]


@pytest.fixture
def timer() -> list[int]:
    return [5]


@pytest.fixture
def ctx(tmp_path: Path, wall: list[int], timer: list[int]) -> NodeContext:
    topology = topology_from({"transports": [{"name": "ipc", "kind": "ipc"}]})
    return NodeContext(
        topology, tmp_path, inline=True, wall_ns=lambda: wall[0], clock_ns=lambda: timer[0]
    )


@pytest.mark.parametrize("jump_ns", [-3_600 * 10**9, 3_600 * 10**9])
def test_stamps_follow_the_timers_whatever_the_clock_does(
    ctx: NodeContext, wall: list[int], timer: list[int], jump_ns: int
) -> None:
    assert ctx.stamp_ns() == NOON_NS
    assert ctx.stamp_ns() == NOON_NS + 1
    wall[0] += jump_ns
    assert ctx.stamp_ns() == NOON_NS + 2
    timer[0] += 1_000
    assert ctx.stamp_ns() == NOON_NS + 1_000


def test_stamps_of_an_earlier_engine_come_before(ctx: NodeContext, timer: list[int]) -> None:
    ctx.note_stamp(NOON_NS + 60 * 10**9)
    ctx.note_stamp(NOON_NS - 60 * 10**9)
    assert ctx.stamp_ns() == NOON_NS + 60 * 10**9 + 1
    timer[0] += 1_000
    assert ctx.stamp_ns() == NOON_NS + 60 * 10**9 + 1_000


@pytest.mark.parametrize("stamp_ns", [NOON_NS + STAMP_AHEAD_NS_MAX, (1 << 63) - 1])
def test_a_stamp_of_a_damaged_ring_is_not_believed(ctx: NodeContext, stamp_ns: int) -> None:
    ctx.note_stamp(stamp_ns)
    assert ctx.stamp_ns() == NOON_NS
