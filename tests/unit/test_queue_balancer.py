"""Balancers: even, the same everywhere, and moving little when nodes come and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidecast.queues.leases.balancer import (
    BALANCERS,
    Balancer,
    Plan,
    best_fit,
    consistent_ring,
    static,
    targets,
)

SMALL = [(queues, nodes) for queues in range(1, 21) for nodes in range(1, 21)]


def names(count: int) -> list[str]:
    return [f"node-{i}" for i in range(count)]


def moved(before: Plan, after: Plan) -> int:
    owner = {q: node for node, held in before.items() for q in held}
    return sum(owner.get(q) != node for node, held in after.items() for q in held)


def is_even(plan: Plan, queues: int) -> bool:
    counts = [len(held) for held in plan.values()]
    everything = sorted(q for held in plan.values() for q in held)
    return everything == list(range(queues)) and max(counts) - min(counts) <= 1


@pytest.mark.parametrize("name", BALANCERS)
def test_counts_within_one_for_all_small_groups(name: str) -> None:
    for queues, nodes in SMALL:
        group = names(nodes)
        plan = BALANCERS[name](queues, group, group)
        assert set(plan) == set(group)
        assert is_even(plan, queues), (queues, nodes)


def test_lease_targets_within_one_for_all_small_groups() -> None:
    for queues, nodes in SMALL:
        wanted = targets(queues, names(nodes))
        assert sum(wanted.values()) == queues
        assert max(wanted.values()) - min(wanted.values()) <= 1
        assert list(wanted.values()) == sorted(wanted.values(), reverse=True), "the first get more"


@pytest.mark.parametrize("balancer", [best_fit, consistent_ring])
@given(st.integers(0, 200), st.sets(st.integers(0, 40), min_size=1), st.randoms())
def test_even_whoever_left_and_in_whatever_order(
    balancer: Balancer, queues: int, group: set[int], chance: object
) -> None:
    nodes = [f"n{i}" for i in group]
    active = nodes[: max(1, len(nodes) // 2)]
    plan = balancer(queues, nodes, active)
    assert set(plan) == set(active)
    assert is_even(plan, queues)
    assert balancer(queues, nodes[::-1] + nodes[:1], active[::-1]) == plan


@given(st.integers(1, 200), st.integers(2, 20), st.data())
def test_best_fit_moves_only_the_queues_of_who_left(
    queues: int, count: int, data: st.DataObject
) -> None:
    nodes = names(count)
    gone = data.draw(st.sampled_from(nodes))
    whole = best_fit(queues, nodes, nodes)
    without = best_fit(queues, nodes, [n for n in nodes if n != gone])
    assert moved(whole, without) == len(whole[gone])
    assert best_fit(queues, nodes, nodes) == whole


def test_best_fit_gives_neighbours() -> None:
    assert best_fit(5, ["b", "a"], ["a", "b"]) == {"a": (0, 1, 2), "b": (3, 4)}


def test_static_queues_wait_for_their_node() -> None:
    assert static(4, ["a", "b"], ["b", "c"]) == {"b": (2, 3)}


def test_the_ring_moves_little_when_a_node_joins() -> None:
    """Bounded loads move some queues more than the least; a plain modulo would move nearly all."""
    least = actual = 0
    for count in range(2, 20):
        before = consistent_ring(240, [], names(count))
        after = consistent_ring(240, [], names(count + 1))
        least += 240 // (count + 1)
        actual += moved(before, after)
    assert actual < 2.5 * least


def test_nobody_there() -> None:
    assert targets(4, []) == {}
    for balancer in BALANCERS.values():
        assert balancer(4, ["a"], []) == {}
