"""When a session was born, by the SETUPs that ask for it."""

from __future__ import annotations

from tidecast.node.durable.session_order import claim_of_setup
from tidecast.node.live.setup import ProducerBlock, Setup

STAMP_NS, S = 1_700_000_000 * 10**9, 10**9


def born_ns(*, received_s: float, age_s: float, now_s: float, older_s: float = 0.0) -> float:
    """Seconds after the engine began at which a session was born, handled at ``now_s``."""
    setup = Setup(
        session=7,
        topic_id=1,
        channel=1,
        source=2,
        next_seq=0,
        incarnation=1,
        age_ns=int(age_s * S),
        oldest=0,
        slots=64,
        packet_bytes=1400,
        group=0,
        flow=0,
        reliability=0,
        node="n2",
        topic="t",
        address_words=(0, 0),
        received_ns=int(received_s * S),
    )
    block = ProducerBlock(5, 0, 1, packet=0, offset=0, count=0, older_ns=int(older_s * S))
    clock_ns = int(now_s * S)
    made = claim_of_setup(setup, block, "t", stamp_ns=STAMP_NS + clock_ns, clock_ns=clock_ns)
    return (made.born_ns - STAMP_NS) / S


def test_sessions_keep_their_order_however_late_their_setups_are_handled() -> None:
    """The first one sent its SETUP at once, the second one 0.9 s after it was born."""
    for now_s in (1.0, 3.0, 60.0):
        first = born_ns(received_s=0.0, age_s=0.0, now_s=now_s)
        second = born_ns(received_s=1.0, age_s=0.9, now_s=now_s)
        assert (first, second) == (0.0, 0.1)


def test_a_ring_that_was_taken_over_is_as_old_as_it_was_at_its_first_engine() -> None:
    assert born_ns(received_s=9.0, age_s=2.0, older_s=5.0, now_s=20.0) == 2.0


def test_a_setup_from_the_future_counts_as_of_now() -> None:
    assert born_ns(received_s=21.0, age_s=0.0, now_s=20.0) == 20.0
