"""The swarm's own tests: scripts are the same each time, each check can fail, failures get short.

`make swarm` runs worlds by new seeds; those that were found and fixed stand at the end.
"""

from __future__ import annotations

import msgspec
import pytest
from tests.swarm import checker
from tests.swarm import history as h
from tests.swarm.script import Script, Step, draw, dump, load
from tests.swarm.shrink import shrink
from tests.swarm.world import run

BEGUN = h.Begun(30_000_000_000)
FIRST = h.Published(1, "p0", 1, b"k", b"p0:1:")
SECOND = h.Published(2, "p0", 2, b"k", b"p0:2:")
GOOD: h.History = [
    BEGUN,
    FIRST,
    SECOND,
    h.Acked(3, "p0", 2),
    h.Delivered(4, "s0", "s0.m0", 0, 0, 1, b"k", b"p0:1:", 0),
    h.Settled(4, "s0", "s0.m0", 0, 0, "ack", 0),
    h.Delivered(5, "s0", "s0.m0", 0, 1, 1, b"k", b"p0:2:", 0),
    h.Settled(5, "s0", "s0.m0", 0, 1, "term", 0),
    h.Position(6, "s0", 0, 2, 0, 0, 0),
    h.LiveSince("rb", "la", 0),
    h.LivePublished(7, "la", 0),
    h.LivePublished(7, "la", 1),
    h.LiveGot(8, "rb", "la", 0),
    h.LiveGap(9, "rb", "la", 1, 2),
    h.Stored(0, 0, b"k", b"p0:1:", 1),
    h.Stored(0, 1, b"k", b"p0:2:", 2),
    h.Earliest(0, 0),
    h.Disposed("s0", 0, 2),
    h.DeadLetter("s0", 0, 1),
]


def without(*kinds: type) -> h.History:
    return [entry for entry in GOOD if not isinstance(entry, kinds)]


AGAIN = h.Delivered(2_000_000_000, "s0", "s0.m0", 0, 0, 2, b"k", b"p0:1:", 0)
BEHIND = h.Delivered(5, "s0", "s0.m1", 0, 1, 1, b"k", b"p0:2:", 0)
VIOLATIONS: list[tuple[str, h.History]] = [
    ("ends", [*GOOD, h.Stuck("consumers")]),
    ("acked_is_stored", [e for e in GOOD if not isinstance(e, h.Stored) or e.token != 1]),
    ("acked_is_stored", [*GOOD, h.Acked(9, "p0", 3)]),
    ("stored_once", [*GOOD, h.Stored(0, 2, b"k", b"p0:2:", 2)]),
    ("stored_once", [*without(h.Stored), h.Stored(0, 0, b"k", b"p0:2:", 1)]),
    (
        "log_keeps_key_order",
        [*without(h.Stored), h.Stored(0, 0, b"k", b"p0:2:", 2), h.Stored(0, 1, b"k", b"p0:1:", 1)],
    ),
    ("tokens_are_contiguous", [*GOOD, h.Stored(0, 3, b"k", b"p0:3:", 3)]),
    ("delivered_is_stored", [*GOOD, h.Delivered(9, "s1", "s1.m0", 0, 0, 1, b"k", b"p0:2:", 0)]),
    ("all_is_handled", without(h.Settled)),
    ("all_is_handled", [*without(h.Disposed), h.Disposed("s0", 0, 1)]),
    ("handlers_see_key_order", [GOOD[0], FIRST, SECOND, BEHIND, *GOOD[4:]]),
    (
        "handlers_see_key_order",
        [
            GOOD[4],
            h.Settled(4, "s0", "s0.m0", 0, 0, "nak", 0),
            BEHIND,
            h.Delivered(6, "s0", "s0.m0", 0, 0, 2, b"k", b"p0:1:", 0),
        ],
    ),
    ("positions_never_go_back", [*GOOD, h.Position(9, "s0", 0, 1, 0, 0, 0)]),
    ("acked_does_not_come_again", [*GOOD, AGAIN]),
    ("acked_does_not_come_again", [*GOOD, h.Crashed(1_000_000_000, "a"), AGAIN]),
    ("dead_letters_are_earned", [*GOOD, h.DeadLetter("s0", 0, 0)]),
    ("dead_letters_are_earned", without(h.DeadLetter)),
    ("live_order", [*GOOD, h.LiveGot(9, "rb", "la", 0)]),
    ("live_losses_are_reported", without(h.LiveGap)),
    ("live_losses_are_reported", [*GOOD, h.LiveGap(9, "rb", "la", 0, 1)]),
]


def test_a_good_history_has_no_complaints() -> None:
    assert checker.check(GOOD) == []


@pytest.mark.parametrize(("check", "history"), VIOLATIONS)
def test_each_check_finds_what_it_is_for(check: str, history: h.History) -> None:
    assert check in {complaint.check for complaint in checker.check(history)}


def test_each_check_has_a_violation() -> None:
    assert {name for name, _ in VIOLATIONS} == {each.__name__ for each in checker.CHECKS}


@pytest.mark.parametrize(
    "excused",
    [
        [*GOOD, h.Crashed(100_000_000, "a"), AGAIN],
        [*GOOD, h.Frozen(10, 1_900_000_000, "a"), h.Crashed(1_950_000_000, "a"), AGAIN],
        [*without(h.LiveGap), h.LiveUnsent("la", 1)],
        [*without(h.Settled), GOOD[7], h.Gone("s0", 0, 0, 1)],
    ],
)
def test_what_was_reported_or_promised_is_no_violation(excused: h.History) -> None:
    assert checker.check(excused) == []


def test_a_seed_draws_the_same_script_and_scripts_outlive_a_file() -> None:
    one = draw(7)
    assert one == draw(7) == load(dump(one))
    assert one != draw(8)


def test_a_world_is_the_same_each_time() -> None:
    script = draw(5)
    short = Script(script.settings, script.steps[:12])
    assert run(short) == run(short)


def test_a_failing_script_is_shrunk_to_the_steps_that_matter() -> None:
    steps = [Step("run", n) for n in range(40)]
    needed = {steps[7], steps[31]}
    found = shrink(Script(draw(1).settings, steps), lambda s: needed <= set(s.steps))
    assert set(found.steps) == needed


# --- found by the swarm, fixed since --------------------------------------------------------------


def test_a_session_that_never_began_does_not_fence_its_publisher() -> None:
    """The publisher's engine crashes twice before the owner has heard of its first session."""
    settings = msgspec.structs.replace(draw(21).settings, ack_wait_s=0.2, nak_share=0.0)
    steps = [
        Step("reborn", 2, 1),
        Step("crash", 1, 109_416),
        Step("run", 565_169),
        Step("take", 0, 60, 1),
        Step("crash", 1, 322_629),
        Step("publish", 2, 11, 386),
        Step("rejoin", 3),
        Step("take", 0, 24, 3),
    ]
    assert checker.check(run(Script(settings, steps))) == []
