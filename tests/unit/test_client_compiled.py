"""Functions of the user inside the publish and receive loops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.support.clients import loop_client
from tests.support.loop_link import LoopLink

import tidecast
from tidecast.client import compiled
from tidecast.errors import Closed, ConfigError, GapError, Timeout
from tidecast.events import SubscriptionEnded
from tidecast.layout import ring as lay
from tidecast.native.atomics import load_acquire, pause, store_release
from tidecast.sync import Connection, Publisher

Pair = tuple[Connection, LoopLink]
LOOKED, RESUME, CHANGED = 0, 8, 16


@pytest.fixture
def pair() -> Iterator[Pair]:
    with loop_client() as made:
        yield made


def count_bytes(data: Any, state: Any) -> None:
    state[0] += 1
    state[1] += data.size
    for i in range(data.size):
        state[2] += data[i]


def look_at_meta(data: Any, meta: Any, state: Any) -> None:
    state[0] += meta.timestamp
    state[1] += meta.key.size
    state[2] += meta.headers.size
    state[3] = meta.node
    state[4] = meta.session
    for i in range(meta.key.size):
        state[5] += meta.key[i]


def write_number(buf: Any, i: int, state: Any) -> int:
    if i == state[0]:
        return 0
    for k in range(8):
        buf[k] = (i >> (8 * k)) & 255
    return 8 + i % 5


@pytest.mark.parametrize("tethered", [True, False])
@pytest.mark.parametrize("with_key", [False, True])
def test_messages_that_were_taken_and_not_handed_out_come_first(
    pair: Pair, tethered: bool, with_key: bool
) -> None:
    client, _ = pair
    key = "key" if with_key else None
    with client.subscribe("rest", tethered=tethered) as messages:
        for n in range(10):
            client.publish("rest", bytes([n]), key=key, timestamp=with_key)
        client.flush()
        assert messages.next(timeout=5.0).data == b"\0"
        assert messages.poll(max_messages=2).payloads() == [b"\1", b"\2"]
        state = np.zeros(6, dtype=np.int64)
        handler = look_at_meta if with_key else count_bytes
        assert messages.run_compiled(handler, state, max_messages=3, duration_s=120.0) == 3
        if with_key:
            assert (state[1], state[5]) == (9, 3 * sum(b"key"))
            assert state[3] > 0
        else:
            assert state[:3].tolist() == [3, 3, 3 + 4 + 5]
        assert messages.next(timeout=5.0).data == b"\6"
        assert messages.run_compiled(handler, state, max_messages=3, duration_s=120.0) == 3
        with pytest.raises(Timeout):
            messages.next(timeout=0.0)


def test_handler_sees_every_message_in_place(pair: Pair) -> None:
    client, _ = pair
    payloads = [bytes([i & 255]) * (i % 90) for i in range(2000)]
    payloads[700] = b"\1" * 30_000  # assembled from fragments
    state = np.zeros(3, dtype=np.int64)
    with client.subscribe("t") as sub:
        thread = threading.Thread(target=client.publish_batch, args=("t", payloads))
        thread.start()
        assert sub.run_compiled(count_bytes, state, max_messages=2000) == 2000
        thread.join()
        assert state.tolist() == [
            2000,
            sum(map(len, payloads)),
            sum(sum(each) for each in payloads),
        ]
        client.publish_batch("t", [b"a", b"b", b"c"])
        assert sub.run_compiled(count_bytes, state, max_messages=2) == 2
        assert bytes(sub.next(1.0).data) == b"c"


def test_meta(pair: Pair) -> None:
    client, _ = pair
    state = np.zeros(6, dtype=np.int64)
    with client.subscribe("t") as sub:
        client.publish("t", b"1", key=b"\1\2", timestamp=40)
        client.publish("t", bytes(5000), key=b"\4", timestamp=2, headers={"a": 1})
        client.publish("t", b"3")
        assert sub.run_compiled(look_at_meta, state, max_messages=3) == 3
        session = client.stats()["client"]["publishers"][0]["session"]
        assert state.tolist() == [42, 3, 4, 7, session, 7]


def test_ends(pair: Pair) -> None:
    client, _ = pair
    state = np.zeros(3, dtype=np.int64)
    with client.subscribe("t") as sub:
        assert sub.run_compiled(count_bytes, state, duration_s=0.02) == 0
        stop = threading.Event()
        threading.Timer(0.02, stop.set).start()
        assert sub.run_compiled(count_bytes, state, until=stop) == 0
        client.publish_batch("t", [b"x"] * 10)
        assert sub.run_compiled(count_bytes, state, until=lambda: state[0] >= 10) == 10
        client.publish_batch("t", [b"x"] * 10)
        sub.drain()
        assert sub.run_compiled(count_bytes, state) == 10


def test_the_end_of_a_subscription_is_raised_behind_what_is_there(pair: Pair) -> None:
    client, link = pair
    state = np.zeros(3, dtype=np.int64)
    with client.subscribe("t") as sub:
        client.publish_batch("t", [b"x"] * 10)
        link.push(
            SubscriptionEnded(
                subscription_id=sub.subscription_id, pattern="t", code="closed", reason="deleted"
            )
        )
        with pytest.raises(Closed, match="deleted"):
            sub.run_compiled(count_bytes, state)
        assert state[0] == 10


@pytest.mark.parametrize("early", [True, False])
def test_a_handler_is_compiled_before_messages_come(pair: Pair, early: bool) -> None:
    client, _ = pair

    def count(data: Any, state: Any) -> None:
        state[0] += data.size

    state = np.zeros(1, dtype=np.int64)
    if early:
        tidecast.compile_handler(count, state)
    with client.subscribe("t") as sub:
        if not early:
            assert sub.run_compiled(count, state, duration_s=0.001) == 0
        (kernel,) = compiled._kernels[count].values()
        assert len(kernel.signatures) == 1
        client.publish_batch("t", [b"x"] * 10)
        assert sub.run_compiled(count, state, max_messages=10) == 10
    assert state[0] == 10
    assert len(kernel.signatures) == 1  # the one that was made for no messages


def test_gap_is_told(pair: Pair) -> None:
    client, _ = pair
    publisher = client.publisher("t")
    state = np.zeros(3, dtype=np.int64)
    with client.subscribe("t", tethered=False) as sub:
        for _ in range(200):
            publisher.publish(bytes(1000), flush=True)
        with pytest.raises(GapError):
            sub.run_compiled(count_bytes, state, max_messages=10)
        assert sub.run_compiled(count_bytes, state, max_messages=10) == 10


def look_twice(data: Any, state: Any) -> None:
    """Count messages whose content changes while the handler runs: paused between two looks."""
    first = data[0]
    store_release(state, LOOKED, 1)
    while load_acquire(state, RESUME) == 0:
        pause()
    if data[0] != first:
        state[CHANGED] = 1


@pytest.fixture
def paused_handler(pair: Pair) -> Callable[..., Any]:
    """Runs `look_twice` on one message, and between its looks a function of the publisher."""
    client, _ = pair

    def run(between: Callable[[Publisher], Any], **options: Any) -> tuple[Any, list[GapError]]:
        state, gaps = np.zeros(24, dtype=np.uint8), []
        publisher = client.publisher("t")
        publisher.publish(b"a" * 1000, flush=True)
        with client.subscribe("t", start="earliest", **options) as sub:
            tidecast.compile_handler(look_twice, state)

            def consume() -> None:
                try:
                    sub.run_compiled(look_twice, state, max_messages=1, duration_s=60.0)
                except GapError as gap:
                    gaps.append(gap)

            thread = threading.Thread(target=consume)
            thread.start()
            while state[LOOKED] == 0:
                assert thread.is_alive()
            between(publisher)
            state[RESUME] = 1
            thread.join(60.0)
        return state, gaps

    return run


def test_a_handler_of_a_ring_that_may_lap_it_sees_whole_messages(
    paused_handler: Callable[..., Any],
) -> None:
    state, gaps = paused_handler(lambda own: own.publish_batch([b"b" * 1000] * 200), tethered=False)
    assert (state[CHANGED], gaps) == (0, [])


def test_a_handler_that_is_evicted_gets_the_range_that_may_be_torn(
    pair: Pair, paused_handler: Callable[..., Any]
) -> None:
    _, link = pair

    def evict(_own: Publisher) -> None:
        [publication] = link.publications.values()
        publication.mapped.array[lay.CONSUMERS_AT + lay.CONSUMER_STATE_AT] = lay.CONSUMER_EVICTED

    _, [gap] = paused_handler(evict)
    assert gap.lost_range == (0, 1)


def test_producer_writes_in_place(pair: Pair) -> None:
    client, _ = pair
    publisher = client.publisher("t")
    n = 10_000
    with client.subscribe("t") as sub:
        publisher.publish(b"before")
        found: list[bytes] = []

        def read() -> None:
            found.extend(bytes(sub.next(120.0).data) for _ in range(n + 2))

        thread = threading.Thread(target=read)
        thread.start()
        state = np.array([-1])
        assert publisher.run_compiled(write_number, state, n, message_bytes_max=12) == n
        publisher.publish(b"behind")
        thread.join()
    assert (found[0], found[-1]) == (b"before", b"behind")
    assert [int.from_bytes(each[:8], "little") for each in found[1:-1]] == list(range(n))
    assert [len(each) for each in found[1:-1]] == [8 + i % 5 for i in range(n)]
    assert publisher.stats().messages == n + 2


def test_producer_stops_waits_and_is_checked(pair: Pair) -> None:
    client, _ = pair
    publisher = client.publisher("t")
    with client.subscribe("t"):
        state = np.array([7])
        assert publisher.run_compiled(write_number, state, 100, message_bytes_max=12) == 7
        with pytest.raises(Timeout):
            publisher.run_compiled(
                write_number, np.array([-1]), 1 << 30, message_bytes_max=1000, timeout=0.02
            )
    with pytest.raises(ConfigError, match=r"message_bytes_max: 5000.*1 to 1364"):
        publisher.run_compiled(write_number, state, 1, message_bytes_max=5000)
    with pytest.raises(ConfigError, match="returned more than message_bytes_max, 8"):
        publisher.run_compiled(write_number, np.array([-1]), 5, message_bytes_max=8)
    publisher.close()
    with pytest.raises(Closed):
        publisher.run_compiled(write_number, state, 5, message_bytes_max=12)


@pytest.mark.parametrize("wrong", [5, None, print, lambda data: None, lambda a, b, c, d: None])
def test_wrong_functions_are_refused(pair: Pair, wrong: Any) -> None:
    client, _ = pair
    with client.subscribe("t") as sub, pytest.raises(ConfigError, match="fn: "):
        sub.run_compiled(wrong, np.zeros(1))
    with pytest.raises(ConfigError, match="fn: "):
        client.publisher("t").run_compiled(wrong, np.zeros(1), 1, message_bytes_max=5)


def test_what_does_not_compile_says_so(pair: Pair) -> None:
    client, _ = pair

    def opens(data: Any, state: Any) -> None:
        open("file")  # noqa: PTH123, SIM115

    with client.subscribe("t") as sub:
        client.publish("t", b"x")
        with pytest.raises(ConfigError, match=r"(?s)'opens': cannot be compiled.*open\(\"file\"\)"):
            sub.run_compiled(opens, np.zeros(1), max_messages=1)
        with pytest.raises(ConfigError, match="a state of type dict: allowed is an array"):
            sub.run_compiled(count_bytes, {}, max_messages=1)


def test_one_kernel_a_function() -> None:
    def handles(data: Any, state: Any) -> None: ...

    first = compiled.kernel_of(handles, "consume2", lambda: object())
    assert compiled.kernel_of(handles, "consume2", lambda: object()) is first
