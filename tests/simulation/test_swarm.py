"""The swarm's own tests: scripts are the same each time, each check can fail, failures get short.

`make swarm` runs worlds by new seeds; those that were found and fixed stand at the end.
"""

from __future__ import annotations

import pytest
from tests.swarm import checker
from tests.swarm import history as swarm_history
from tests.swarm.due import LATE_NS
from tests.swarm.script import Script, Settings, Step, draw, dump, load
from tests.swarm.shrink import shrink
from tests.swarm.world import run

BEGUN = swarm_history.Begun(30_000_000_000)
FIRST = swarm_history.Published(1, "p0", 1, b"k", b"p0:1:")
SECOND = swarm_history.Published(2, "p0", 2, b"k", b"p0:2:")
LATER = swarm_history.Published(2, "p0", 2, b"k", b"p0:2:", 200_000_000, 2)
NEXT = swarm_history.Published(300_000_000, "p0", 3, b"k", b"p0:3:", 0, 300_000_000)
GOOD: swarm_history.History = [
    BEGUN,
    FIRST,
    SECOND,
    swarm_history.Acked(3, "p0", 2),
    swarm_history.Delivered(4, "s0", "s0.m0", 0, 0, 1, b"k", b"p0:1:", 0),
    swarm_history.Settled(4, "s0", "s0.m0", 0, 0, "ack", 0),
    swarm_history.Delivered(5, "s0", "s0.m0", 0, 1, 1, b"k", b"p0:2:", 0),
    swarm_history.Settled(5, "s0", "s0.m0", 0, 1, "term", 0),
    swarm_history.Position(6, "s0", 0, 2, 0, 0, 0),
    swarm_history.LiveSince("rb", "la", 0),
    swarm_history.LivePublished(7, "la", 0),
    swarm_history.LivePublished(7, "la", 1),
    swarm_history.LiveGot(8, "rb", "la", 0),
    swarm_history.LiveGap(9, "rb", "la", 1, 2),
    swarm_history.Stored(0, 0, b"k", b"p0:1:", 1),
    swarm_history.Stored(0, 1, b"k", b"p0:2:", 2),
    swarm_history.Disposed("s0", 0, 2),
    swarm_history.DeadLetter("s0", 0, 1),
]


def without(*kinds: type) -> swarm_history.History:
    return [entry for entry in GOOD if not isinstance(entry, kinds)]


DELETED = [swarm_history.Deleted(*e) for e in GOOD if isinstance(e, swarm_history.Stored)]
AGAIN = swarm_history.Delivered(2_000_000_000, "s0", "s0.m0", 0, 0, 2, b"k", b"p0:1:", 0)
BEHIND = swarm_history.Delivered(5, "s0", "s0.m1", 0, 1, 1, b"k", b"p0:2:", 0)
REFUSED = [  # by the second member, after it timed out at the first
    *GOOD[:5],
    swarm_history.Delivered(4, "s0", "s0.m1", 0, 0, 2, b"k", b"p0:1:", 0),
    swarm_history.Settled(4, "s0", "s0.m1", 0, 0, "nak", 0),
]
EARLY = swarm_history.Delivered(5, "s0", "s0.m0", 0, 1, 1, b"k", b"p0:2:", 0, 199_000_000)
PASSED: swarm_history.History = [
    LATER,
    NEXT,
    swarm_history.Delivered(300_000_001, "s0", "s0.m0", 0, 2, 1, b"k", b"p0:3:", 0, 300_000_001),
    swarm_history.Delivered(300_000_002, "s0", "s0.m0", 0, 1, 1, b"k", b"p0:2:", 0, 300_000_002),
]
VIOLATIONS: list[tuple[str, swarm_history.History]] = [
    ("ends", [*GOOD, swarm_history.Stuck("consumers")]),
    (
        "acked_is_stored",
        [e for e in GOOD if not isinstance(e, swarm_history.Stored) or e.token != 1],
    ),
    ("acked_is_stored", [*GOOD, swarm_history.Acked(9, "p0", 3)]),
    ("acked_is_stored", [*without(swarm_history.Stored), *DELETED[:1]]),
    ("stored_once", [*GOOD, swarm_history.Deleted(1, 0, b"k", b"p0:1:", 1)]),
    ("all_is_handled", [*without(swarm_history.Settled), *DELETED]),
    ("stored_once", [*GOOD, swarm_history.Stored(0, 2, b"k", b"p0:2:", 2)]),
    (
        "stored_once",
        [*without(swarm_history.Stored), swarm_history.Stored(0, 0, b"k", b"p0:2:", 1)],
    ),
    (
        "log_keeps_key_order",
        [
            *without(swarm_history.Stored),
            swarm_history.Stored(0, 0, b"k", b"p0:2:", 2),
            swarm_history.Stored(0, 1, b"k", b"p0:1:", 1),
        ],
    ),
    ("tokens_are_contiguous", [*GOOD, swarm_history.Stored(0, 3, b"k", b"p0:3:", 3)]),
    (
        "delivered_is_stored",
        [*GOOD, swarm_history.Delivered(9, "s1", "s1.m0", 0, 0, 1, b"k", b"p0:2:", 0)],
    ),
    ("all_is_handled", without(swarm_history.Settled)),
    ("all_is_handled", [*without(swarm_history.Disposed), swarm_history.Disposed("s0", 0, 1)]),
    ("handlers_see_key_order", [GOOD[0], FIRST, SECOND, BEHIND, *GOOD[4:]]),
    (
        "handlers_see_key_order",
        [
            GOOD[4],
            swarm_history.Settled(4, "s0", "s0.m0", 0, 0, "nak", 0),
            BEHIND,
            swarm_history.Delivered(6, "s0", "s0.m0", 0, 0, 2, b"k", b"p0:1:", 0),
        ],
    ),
    (  # a late `term` counts for nothing
        "handlers_see_key_order",
        [*REFUSED, swarm_history.Settled(4, "s0", "s0.m0", 0, 0, "term", 0), BEHIND],
    ),
    ("never_before_its_time", [LATER, EARLY]),
    ("never_before_its_time", [swarm_history.ClockSet(1, 10**9, 0), LATER, EARLY]),
    ("keys_wait_for_what_is_due", PASSED),
    ("positions_never_go_back", [*GOOD, swarm_history.Position(9, "s0", 0, 1, 0, 0, 0)]),
    ("acked_does_not_come_again", [*GOOD, AGAIN]),
    ("acked_does_not_come_again", [*GOOD, swarm_history.Crashed(1_000_000_000, "a"), AGAIN]),
    ("dead_letters_are_earned", [*GOOD, swarm_history.DeadLetter("s0", 0, 0)]),
    ("dead_letters_are_earned", without(swarm_history.DeadLetter)),
    ("live_order", [*GOOD, swarm_history.LiveGot(9, "rb", "la", 0)]),
    ("live_losses_are_reported", without(swarm_history.LiveGap)),
    ("live_losses_are_reported", [*GOOD, swarm_history.LiveGap(9, "rb", "la", 0, 1)]),
]


def test_a_good_history_has_no_complaints() -> None:
    assert checker.check(GOOD) == []


@pytest.mark.parametrize(("check", "history"), VIOLATIONS)
def test_each_check_finds_what_it_is_for(check: str, history: swarm_history.History) -> None:
    assert check in {complaint.check for complaint in checker.check(history)}


def test_each_check_has_a_violation() -> None:
    assert {name for name, _ in VIOLATIONS} == {each.__name__ for each in checker.CHECKS}


@pytest.mark.parametrize(
    "excused",
    [
        [*without(swarm_history.Stored), *DELETED],
        [*GOOD, *DELETED],
        [*GOOD, swarm_history.Crashed(100_000_000, "a"), AGAIN],
        [
            *GOOD,
            swarm_history.Frozen(10, 1_900_000_000, "a"),
            swarm_history.Crashed(1_950_000_000, "a"),
            AGAIN,
        ],
        [*without(swarm_history.LiveGap), swarm_history.LiveUnsent("la", 1)],
        [*without(swarm_history.Settled), GOOD[7], swarm_history.Gone("s0", 0, 0, 1)],
        [*REFUSED, swarm_history.Settled(4, "s0", "s0.m0", 0, 0, "late", 0), *GOOD[6:]],
    ],
)
def test_what_was_reported_or_promised_is_no_violation(excused: swarm_history.History) -> None:
    assert checker.check(excused) == []


def test_what_was_delivered_by_the_clock_or_passed_in_time_is_no_violation() -> None:
    later: swarm_history.History = [LATER, swarm_history.ClockSet(3, 200_000_000, 0), EARLY]
    assert list(checker.never_before_its_time(later)) == []
    assert list(checker.handlers_see_key_order(PASSED)) == []
    for early in (LATER.due_ns, LATER.due_ns + LATE_NS):
        passed: swarm_history.History = [LATER, NEXT._replace(wall_ns=early), *PASSED[2:]]
        assert list(checker.keys_wait_for_what_is_due(passed)) == []
    moved: swarm_history.History = [
        *PASSED[:2],
        swarm_history.ClockSet(300_000_000, 0, 300_000_000),
        *PASSED[2:],
    ]
    assert list(checker.keys_wait_for_what_is_due(moved)) == []
    back: swarm_history.History = [
        NEXT._replace(at_ns=0),
        swarm_history.ClockSet(1, 300_000_000, 0),
        LATER,
        *PASSED[2:],
    ]
    assert list(checker.keys_wait_for_what_is_due(back)) == []


def refused_and_passed(
    *between: swarm_history.Entry,
    ack_wait_ns: int = 1_000_000_000,
    member: str = "s0.m1",
    published_ns: int = 100_000_000,
    passed_ns: int = 2_000_000_000,
) -> swarm_history.History:
    """Token 1, due at 200 ms, is refused at 1900 ms; then a member handles token 2."""
    other = swarm_history.Published(published_ns, "p0", 3, b"k", b"p0:3:", 0, published_ns)
    return [
        swarm_history.Begun(ack_wait_ns),
        LATER,
        other,
        swarm_history.Delivered(1_900_000_000, "s0", "s0.m0", 0, 1, 1, b"k", b"p0:2:", 0),
        swarm_history.Settled(1_900_000_000, "s0", "s0.m0", 0, 1, "nak", 0),
        *between,
        swarm_history.Delivered(passed_ns, "s0", member, 0, 2, 1, b"k", b"p0:3:", 0),
    ]


SET_BACK = swarm_history.ClockSet(1_950_000_000, 1_950_000_000, 100_000_000)
DIED = swarm_history.Crashed(1_960_000_000, "a")


@pytest.mark.parametrize(
    "excused",
    [
        refused_and_passed(),  # an old copy that timed out, as in seed 4238
        refused_and_passed(SET_BACK, DIED, ack_wait_ns=checker.ACK_WAIT_NS_LONG),
        refused_and_passed(
            DIED, SET_BACK._replace(at_ns=1_970_000_000), ack_wait_ns=checker.ACK_WAIT_NS_LONG
        ),
        refused_and_passed(SET_BACK, DIED, published_ns=300_000_000, member="s0.m0"),
    ],
)
def test_what_passes_a_refused_record_before_its_time(excused: swarm_history.History) -> None:
    assert list(checker.handlers_see_key_order(excused)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        refused_and_passed(ack_wait_ns=checker.ACK_WAIT_NS_LONG),  # no copy timed out
        refused_and_passed(member="s0.m0"),  # the member that refused it
        refused_and_passed(published_ns=300_000_000),  # when it was due
        refused_and_passed(
            swarm_history.ClockSet(1_950_000_000, 1_950_000_000, 10**12), published_ns=300_000_000
        ),
        refused_and_passed(DIED, ack_wait_ns=checker.ACK_WAIT_NS_LONG),  # its time is over
        refused_and_passed(SET_BACK, ack_wait_ns=checker.ACK_WAIT_NS_LONG),  # no engine crashed
        refused_and_passed(  # its refusal is saved
            SET_BACK,
            DIED._replace(at_ns=2_100_000_000),
            ack_wait_ns=checker.ACK_WAIT_NS_LONG,
            passed_ns=2_200_000_000,
        ),
    ],
)
def test_what_must_not_pass_a_refused_record(wrong: swarm_history.History) -> None:
    assert list(checker.handlers_see_key_order(wrong)) != []


def test_a_seed_draws_the_same_script_and_scripts_outlive_a_file() -> None:
    one = draw(7)
    assert one == draw(7) == load(dump(one))
    assert one != draw(8)


@pytest.mark.same_kernels  # the others run worlds, too
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
    settings = Settings(
        seed=21,
        drop=0.0,
        duplicate=0.02,
        reorder=0.2,
        delay_us=20.0,
        queues=3,
        fsync="interval",
        flow="rate",
        live_history_bytes=1 << 16,
        producers=2,
        subscriptions=1,
        members=3,
        max_in_flight=500,
        ack_wait_s=0.2,
        keys=1,
        nak_share=0.0,
        term_share=0.0,
        retention_bytes=1 << 16,
        power=True,
    )
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


def test_a_topic_grows_after_a_loss_of_power_without_dropping_what_is_repeated() -> None:
    """The queues have a part of what was sent; a growth comes before the rest is sent again."""
    settings = Settings(
        seed=108,
        drop=0.0,
        duplicate=0.1,
        reorder=0.0,
        delay_us=500.0,
        queues=2,
        fsync="interval",
        flow="rate",
        live_history_bytes=1 << 16,
        producers=1,
        subscriptions=2,
        members=1,
        max_in_flight=3,
        ack_wait_s=0.2,
        keys=10,
        nak_share=0.05,
        term_share=0.0,
        retention_bytes=0,
        power=True,
    )
    steps = [
        Step("publish", 8, 32, 108),
        Step("power_lost", 34_876),
        Step("reborn", 0, 2),
        Step("grow", 2),
        Step("reborn", 2, 2),
    ]
    assert checker.check(run(Script(settings, steps))) == []


def test_clients_administer_the_engine_that_came_after_a_crash() -> None:
    """The watcher asks for positions over a session that outlived its engine."""
    settings = Settings(
        seed=1683128236,
        drop=0.2,
        duplicate=0.02,
        reorder=0.0,
        delay_us=500.0,
        queues=1,
        fsync="batch",
        flow="min",
        live_history_bytes=1 << 20,
        producers=2,
        subscriptions=1,
        members=2,
        max_in_flight=500,
        ack_wait_s=1.0,
        keys=10,
        nak_share=0.05,
        term_share=0.0,
        retention_bytes=0,
        power=False,
    )
    steps = [Step("crash", 0, 1_481_885), Step("publish", 6, 34, 96)]
    assert checker.check(run(Script(settings, steps))) == []


def test_a_seek_ends_the_hand_over_of_keys_to_another_member() -> None:
    """A member joined while records were out; the seek takes these back, no ack comes for them."""
    settings = Settings(
        seed=895473233,
        drop=0.0,
        duplicate=0.1,
        reorder=0.05,
        delay_us=500.0,
        queues=2,
        fsync="interval",
        flow="min",
        live_history_bytes=1 << 16,
        producers=1,
        subscriptions=2,
        members=3,
        max_in_flight=3,
        ack_wait_s=1.0,
        keys=1,
        nak_share=0.05,
        term_share=0.0,
        retention_bytes=0,
        power=True,
    )
    steps = [Step("publish", 6, 31, 174), Step("rejoin", 4), Step("seek", 1, 35)]
    assert checker.check(run(Script(settings, steps))) == []


def test_what_a_publisher_left_does_not_fence_the_next_one_that_waits() -> None:
    """A producer's empty session at the owner is closed amid its opening; its next one is away."""
    settings = Settings(
        seed=21,
        drop=0.0,
        duplicate=0.02,
        reorder=0.2,
        delay_us=20.0,
        queues=3,
        fsync="interval",
        flow="rate",
        live_history_bytes=1 << 16,
        producers=2,
        subscriptions=1,
        members=3,
        max_in_flight=500,
        ack_wait_s=0.2,
        keys=1,
        nak_share=0.0,
        term_share=0.0,
        retention_bytes=1 << 16,
        power=True,
    )
    steps = [
        Step("power_lost", 59_092),
        Step("reborn", 2, 1),
        Step("crash", 1, 322_629),
        Step("publish", 2, 11, 386),
    ]
    assert checker.check(run(Script(settings, steps))) == []


def test_a_late_ack_settles_what_another_member_refused() -> None:
    """A member holds records until they time out; the other one refuses the first of a key."""
    settings = Settings(
        seed=1181122200,
        drop=0.0,
        duplicate=0.02,
        reorder=0.05,
        delay_us=500.0,
        queues=2,
        fsync="batch",
        flow="rate",
        live_history_bytes=1 << 20,
        producers=3,
        subscriptions=2,
        members=2,
        max_in_flight=500,
        ack_wait_s=0.2,
        keys=3,
        nak_share=0.3,
        term_share=0.0,
        retention_bytes=0,
        power=False,
    )
    steps = [
        Step("publish", 2, 14, 171),
        Step("publish", 3, 29, 81),
        Step("take", 7, 44, 6),
        Step("rejoin", 2, 1),
        Step("run", 221_594),
        Step("take", 6, 18, 2),
    ]
    assert checker.check(run(Script(settings, steps))) == []


def test_a_ring_that_was_left_does_not_fence_a_publisher_that_lost_its_engine_behind_it() -> None:
    """Two sessions of a producer wait at one node; the program of the first one is gone."""
    settings = Settings(
        seed=1181122433,
        drop=0.01,
        duplicate=0.02,
        reorder=0.0,
        delay_us=500.0,
        queues=1,
        fsync="batch",
        flow="rate",
        live_history_bytes=1 << 20,
        producers=3,
        subscriptions=2,
        members=1,
        max_in_flight=500,
        ack_wait_s=1.0,
        keys=10,
        nak_share=0.3,
        term_share=0.0,
        retention_bytes=0,
        power=True,
    )
    steps = [
        Step("power_lost", 279_270),
        Step("publish", 6, 19, 304),
        Step("reborn", 6, 2),
        Step("live_publish", 1, 26),
        Step("crash", 2, 20_897),
    ]
    assert checker.check(run(Script(settings, steps))) == []


def test_a_loss_of_power_after_a_growth_brings_no_record_twice() -> None:
    """The marks of the new queues were not on the device: sent again, all was stored again."""
    settings = Settings(
        seed=148157526,
        drop=0.2,
        duplicate=0.0,
        reorder=0.0,
        delay_us=20.0,
        queues=1,
        fsync="batch",
        flow="min",
        live_history_bytes=1 << 16,
        producers=3,
        subscriptions=2,
        members=2,
        max_in_flight=500,
        ack_wait_s=0.2,
        keys=1,
        nak_share=0.05,
        term_share=0.0,
        retention_bytes=1 << 16,
        power=True,
    )
    steps = [
        Step("reborn", 0, 2),
        Step("run", 48_251),
        Step("power_lost", 257_793),
        Step("publish", 6, 33, 78),
        Step("take", 6, 33, 6),
        Step("grow", 2),
        Step("power_lost", 237_162),
    ]
    assert checker.check(run(Script(settings, steps))) == []


def test_a_growth_does_not_mark_records_that_a_loss_of_power_takes() -> None:
    """Records of an older queue were not synced when it grew: sent again, they were no duplicates.

    Their cut held the subscriptions back from the new queues for ever.
    """
    settings = Settings(
        seed=148159312,
        drop=0.0,
        duplicate=0.02,
        reorder=0.05,
        delay_us=500.0,
        queues=2,
        fsync="interval",
        flow="rate",
        live_history_bytes=1 << 20,
        producers=3,
        subscriptions=2,
        members=3,
        max_in_flight=3,
        ack_wait_s=1.0,
        keys=1,
        nak_share=0.0,
        term_share=0.0,
        retention_bytes=1 << 16,
        power=True,
    )
    steps = [Step("publish", 8, 38, 213), Step("grow", 2), Step("power_lost", 53_981)]
    assert checker.check(run(Script(settings, steps))) == []


def test_a_late_ack_settles_what_its_next_delivery_gives_up() -> None:
    """The ack of a delivery that timed out comes before the `term` of the next one."""
    settings = Settings(
        seed=148157716,
        drop=0.01,
        duplicate=0.1,
        reorder=0.2,
        delay_us=20.0,
        queues=2,
        fsync="batch",
        flow="min",
        live_history_bytes=1 << 20,
        producers=1,
        subscriptions=2,
        members=1,
        max_in_flight=500,
        ack_wait_s=0.2,
        keys=1,
        nak_share=0.0,
        term_share=0.02,
        retention_bytes=0,
        power=False,
    )
    steps = [
        Step("publish", 2, 34, 499),
        Step("publish", 6, 10, 260),
        Step("take", 7, 39, 6),
        Step("run", 192_238),
        Step("live_publish", 1, 18),
    ]
    assert checker.check(run(Script(settings, steps))) == []


def test_what_an_engine_asked_before_it_died_does_not_fence_its_publisher() -> None:
    """The owner still had a claim, which waited for an older session, and granted it afterwards.

    The publisher had continued at its node's next engine: it was fenced by its own first session.
    """
    settings = Settings(
        seed=1842419607,
        drop=0.01,
        duplicate=0.02,
        reorder=0.0,
        delay_us=20.0,
        queues=3,
        fsync="interval",
        flow="rate",
        live_history_bytes=1 << 20,
        producers=3,
        subscriptions=1,
        members=3,
        max_in_flight=3,
        ack_wait_s=30.0,
        keys=3,
        nak_share=0.3,
        term_share=0.02,
        retention_bytes=0,
        power=False,
    )
    steps = [
        Step("reborn", 1, 1),
        Step("take", 5, 10, 5),
        Step("crash", 1, 699_508),
        Step("run", 532_464),
        Step("publish", 7, 22, 552),
    ]
    assert checker.check(run(Script(settings, steps))) == []
