"""Hostile packets and hostile clients: nothing is raised, nothing wrong is delivered.

The checked build (`make test-checked`) runs this with every load and store verified. Packets of the
corpus are replayed in `tests/fuzz/corpus`; `python -m tests.fuzz.run_fuzz` looks for more.
"""

from __future__ import annotations

import random
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from tests.fuzz.run_fuzz import Fuzz, load_corpus, run, seeds
from tests.support import packets as packet_builder
from tests.support.simulation import Reader, Stream, network_of, transfer

from tidecast.errors import TidecastError
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.layout.counters import Counter
from tidecast.testing import Network

CAUSES = {
    "short": (b"\1", Counter.INVALID_SHORT),
    "version": (packet_builder.data(version=9), Counter.INVALID_VERSION),
    "type": (packet_builder.header(wire.TYPE_MAX + 1, 32), Counter.INVALID_TYPE),
    "field": (packet_builder.data(channel=9), Counter.INVALID_FIELD),
    "foreign topic": (packet_builder.data(topic=999, session=8), Counter.FILTERED),
    "control at the data socket": (packet_builder.status(), Counter.INVALID_TYPE),
    "truncated setup": (packet_builder.setup()[:-1], Counter.INVALID_SHORT),
}


@pytest.mark.parametrize("name", CAUSES)
def test_each_is_counted_by_cause(name: str) -> None:
    packet, counter = CAUSES[name]
    with Network() as net:
        [b] = network_of(net, "b")
        Reader(b)
        net.run(100)
        before = b.count(counter)
        net.switch.inject(b.id, packet)
        net.run(100)
        assert b.count(counter) == before + 1


CONTROL_CAUSES = {
    "data at the control socket": (packet_builder.data(), Counter.INVALID_TYPE),
    "of a session that ended": (packet_builder.status(session=4711), Counter.STALE_SESSION),
    "nak that overlaps": (packet_builder.nak([(5, 4), (6, 1)]), Counter.INVALID_FIELD),
}


@pytest.mark.parametrize("name", CONTROL_CAUSES)
def test_each_at_the_sender_is_counted_by_cause(name: str) -> None:
    packet, counter = CONTROL_CAUSES[name]
    with Network() as net:
        [a] = network_of(net, "a")
        Stream(a, count=1).push()
        net.run(100)
        before = a.count(counter)
        net.switch.inject(a.id, packet, control=True)
        net.run(100)
        assert a.count(counter) == before + 1


def test_the_seeds_themselves_do_no_harm() -> None:
    fuzz = Fuzz(1, [])
    try:
        for packet in load_corpus():
            for node in (fuzz.a, fuzz.b):
                for control in (False, True):
                    fuzz.net.switch.inject(node.id, fuzz.foreign(packet), control=control)
            fuzz.go_on(1, 5_000_000)
    finally:
        fuzz.close()
    assert len(load_corpus()) >= len(seeds())


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_mutations_do_no_harm(seed: int, sealed: bool) -> None:
    assert run(seed, 80, load_corpus(), sealed=sealed).kept


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_mutations_do_no_harm(seed: int) -> None:
    assert run(seed, 400, load_corpus(), sealed=bool(seed % 2)).kept


@hypothesis.settings(max_examples=25)
@hypothesis.given(
    st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.builds(
                lambda t, body: packet_builder.header(t, 32 + len(body)) + body,
                st.integers(0, 9),
                st.binary(max_size=200),
            ),
            st.builds(lambda body: packet_builder.data(body), st.binary(max_size=300)),
        ),
        max_size=40,
    )
)
def test_any_bytes_do_no_harm(packets: list[bytes]) -> None:
    fuzz = Fuzz(2, seeds())
    try:
        for packet in packets:
            for node in (fuzz.a, fuzz.b):
                for control in (False, True):
                    fuzz.net.switch.inject(node.id, fuzz.foreign(packet), control=control)
        fuzz.go_on(5, 20_000_000)
    finally:
        fuzz.close()


MESSAGES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(
            lambda n, flags, body: (n | flags << 24).to_bytes(4, "little") + body,
            st.integers(0, 80),
            st.integers(0, 255),
            st.binary(max_size=80),
        ),
        st.builds(
            lambda total, body: packet_builder.message(
                body, wire.BEGIN, total.to_bytes(8, "little")
            ),
            st.one_of(st.integers(0, 300), st.integers(0, (1 << 63) - 1)),
            st.binary(max_size=60),
        ),
        st.builds(lambda body: packet_builder.message(body, wire.END), st.binary(max_size=60)),
        st.builds(lambda body: packet_builder.message(body, 0), st.binary(max_size=60)),
    ),
    max_size=12,
)


@hypothesis.settings(max_examples=40)
@hypothesis.given(bodies=st.lists(MESSAGES, min_size=1, max_size=8))
def test_malformed_messages_of_a_true_session_stay_within_their_packets(
    bodies: list[list[bytes]],
) -> None:
    """A publisher with a broken encoder: its own stream is garbage, that of others is not."""
    with Network(seed=3) as net:
        a, b = network_of(net, "ab", history_bytes=32 << 10, receive_bytes=32 << 10)
        reader = Reader(b)
        good = Stream(a, count=20)
        net.switch.inject(
            b.id,
            packet_builder.setup(
                "evil",
                "t",
                source=50,
                session=66,
                incarnation=1,
                topic=_topic(b),
                packet_bytes=1400,
            ),
        )
        net.run(1000)
        for seq, body in enumerate(bodies):
            packet = packet_builder.data(*body, source=50, session=66, seq=seq, topic=_topic(b))
            net.switch.inject(b.id, packet)
        transfer(net, [good], [reader], until=lambda: len(reader.found) >= 20 and good.push())
        net.run(20_000, until=lambda: reader.take() < 0)
        mine = [m for m in reader.found if m.startswith(b"a:")]
        assert mine == good.messages
        total = sum(len(m) for body in bodies for m in body)
        assert sum(len(m) for m in reader.found) - sum(map(len, mine)) <= total


def _topic(node: Any) -> int:
    return int(node.engine.topic_by_name["t"].wire_id)


def test_a_flood_of_setups_and_sessions_is_bounded() -> None:
    with Network(seed=4) as net:
        a, b = network_of(net, "ab", receive_bytes=16 << 10)
        reader, stream = Reader(b), Stream(a, count=200)
        for i in range(6000):
            topic = _topic(b) if i % 100 == 0 else 5
            name = "t" if i % 100 == 0 else "none"
            packet = packet_builder.setup(
                f"n{i % 50}",
                name,
                source=100 + i % 50,
                session=1000 + i,
                topic=topic,
                incarnation=7,
            )
            net.switch.inject(b.id, packet)
            if i % 200 == 0:
                net.run(20)
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages


def test_receivers_that_do_not_exist_fill_a_table_and_no_more() -> None:
    with Network(seed=5) as net:
        a, b = network_of(net, "ab", flow="rate")
        reader, stream = Reader(b), Stream(a, count=10)
        assert transfer(net, [stream], [reader])
        for i in range(1000):
            net.switch.inject(
                a.id,
                packet_builder.status(
                    session=stream.publisher.session, receiver_id=i + 1, source=77
                ),
                control=True,
            )
        net.run(1000)
        assert a.count("receivers_refused") >= 870
        stream.count = 100
        assert transfer(net, [stream], [reader])
        net.run(10_000_000)
        assert len(a.engine.receivers()) == 1, "the others were silent"


def test_naks_for_all_of_history_are_answered_once() -> None:
    with Network(seed=6) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=1000, size=1300)
        assert transfer(net, [stream], [reader])
        before = net.switch.counts["packets"]
        for _ in range(500):
            packet = packet_builder.nak(
                [(0, 0xFFFFFFFF)], session=stream.publisher.session, source=77
            )
            net.switch.inject(a.id, packet, control=True)
        net.run(50)
        assert net.switch.counts["packets"] - before <= 1100, "no amplification without end"


# --- shared memory that a client scribbled on -------------------------------------------------


def scribble(rng: random.Random, ring: np.ndarray, low: int, high: int, n: int) -> None:
    for _ in range(n):
        at = rng.randrange(low, high - 8)
        word = rng.choice(
            (0, -1, 1 << 62, -(1 << 63), rng.getrandbits(63), rng.getrandbits(20), (1 << 31) - 1)
        )
        if rng.random() < 0.7:
            at &= ~7
        ring[at : at + 8].view(np.uint8)[:] = np.frombuffer(
            (word & ((1 << 64) - 1)).to_bytes(8, "little"), dtype=np.uint8
        )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("part", ["header", "control words", "slots", "all"])
def test_a_client_that_scribbles_harms_only_its_own_ring(part: str, seed: int) -> None:
    rng = random.Random(seed)
    with Network(seed=seed) as net:
        a, b = network_of(net, "ab", history_bytes=32 << 10, receive_bytes=32 << 10)
        reader, good = Reader(b), Stream(a, count=100)
        local = Reader(a)
        evil = Stream(a, count=30, size=700, name="evil")
        transfer(net, [good, evil], [reader, local], limit_us=100_000)
        [ring] = [
            p.mapped.array for p in a.engine.pubs.values() if p.session == evil.publisher.session
        ]
        slots_at = lay.slots_at(16)
        low, high = {
            "header": (0, lay.HEADER_BYTES),
            "control words": (lay.HEADER_BYTES, slots_at),
            "slots": (slots_at, ring.size),
            "all": (0, ring.size),
        }[part]
        for _ in range(20):
            scribble(rng, ring, low, high, 30)
            good.count += 5
            evil.count += 3
            packet = packet_builder.nak(
                [(0, 0xFFFFFFFF)], session=evil.publisher.session, source=b.id
            )
            net.switch.inject(a.id, packet, control=True)

            def go_on() -> bool:
                good.push()
                if not evil.publisher.closed:
                    evil.push()
                for each in (reader, local):
                    try:
                        each.take()
                    except (TidecastError, ValueError):
                        continue  # of its garbage
                return False

            net.run(3000, until=go_on)
        net.run(300_000, until=go_on)
        for each in (reader, local):
            mine = [m for m in each.found if m.startswith(b"a:")]
            assert mine[: len(good.messages)] == good.messages
        evil.publisher.close()
        late = Reader(a)
        net.run(50_000, until=go_on)
        assert late.subscription.subscription_id > 0
        a.engine.publications()


@pytest.mark.parametrize("seed", range(8))
def test_a_subscriber_that_scribbles_harms_only_that_image(seed: int) -> None:
    rng = random.Random(seed)
    with Network(seed=seed) as net:
        nodes = [
            net.node(
                name, topics=["t", "u"], history_bytes=32 << 10, receive_bytes=32 << 10, flow="rate"
            )
            for name in "ab"
        ]
        a, b = nodes
        evil, reader = Reader(b, "t"), Reader(b, "u")
        bad, good = Stream(a, "t", count=20), Stream(a, "u", count=20)
        transfer(net, [bad, good], [evil, reader], limit_us=100_000)
        [ring] = [i.mapped.array for i in b.engine.images_by_id.values() if i.topic.name == "t"]
        for _ in range(20):
            scribble(rng, ring, 0, ring.size, 40)
            bad.count += 5
            good.count += 5

            def go_on() -> bool:
                bad.push()
                good.push()
                reader.take()
                try:
                    evil.take()
                except (TidecastError, ValueError):
                    return False
                return False

            net.run(3000, until=go_on)
        net.run(300_000, until=go_on)
        assert reader.found == good.messages
        b.engine.images()
