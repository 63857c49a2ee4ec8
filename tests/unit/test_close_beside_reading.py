"""A subscription or responder is closed by another thread while its own looks into the rings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
import pytest
from tests.support.gateways import TIMEOUT_S, local

from tidecast.buffers import reader
from tidecast.client import compiled
from tidecast.client.core.image import Image
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import Closed


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLink]:
    settings = {"transports": [{"name": "ipc", "kind": "ipc"}]}
    made = EmbeddedLink.open(topology_from(settings), data_dir=tmp_path_factory.mktemp("node"))
    yield made
    made.close()


class _Closer:
    """Closes in a thread of its own, from the middle of what the reader does."""

    def __init__(self, close: Callable[[], Any]) -> None:
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(close,))

    def _run(self, close: Callable[[], Any]) -> None:
        self._began.set()
        close()

    def start(self) -> None:
        """It has begun, and is done if nothing holds it up."""
        self._thread.start()
        assert self._began.wait(TIMEOUT_S)
        self._thread.join(0.2)

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("name", ["take", "take_copies"])
def test_a_ring_is_not_given_back_while_it_is_read(
    link: EmbeddedLink, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Before, kernels read and wrote at address 0: the process ended with a signal."""
    with local(link) as client, client.subscribe("t") as subscription:
        client.publish("t", b"message", flush=True)
        client.pump()
        closer = _Closer(subscription.close)
        take = getattr(Image, name)

        def late(image: Image, limit: int) -> Any:
            closer.start()
            assert image.port[reader.R_SLOTS] > 0, "the ring is there until the look is over"
            return take(image, limit)

        monkeypatch.setattr(Image, name, late)
        if name == "take":
            batch = subscription.step(10)
            assert batch is not None
        else:
            found = subscription.step_copies(10)
            assert found is not None
            assert [each.raw for each in found[1]] == [b"message"]
        closer.join()
        assert subscription.step(10) is None
        assert subscription.step_copies(10) is None
        assert subscription.closed


def test_a_batch_in_hand_outlives_its_subscription(link: EmbeddedLink) -> None:
    """Its memory stays, but others may fill it: what is read of it then is an error."""
    with local(link) as client, client.subscribe("t") as subscription:
        client.publish("t", b"message", flush=True)
        batch = next(subscription.batches(10, max_wait=0.0))
        image: Any = batch.image
        whole = batch.payloads()
        subscription.close()
        assert whole == [b"message"]
        assert (batch.still_valid, image.whole()) == (False, False)
        with pytest.raises(Closed, match="copy a batch before"):
            image.check_whole()


def test_a_compiled_handler_ends_its_look_before_the_ring_goes(
    link: EmbeddedLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    with local(link) as client, client.subscribe("t") as subscription:
        client.publish("t", b"message", flush=True)
        client.pump()
        closer = _Closer(subscription.close)
        run = compiled.run_kernel

        def late(*arguments: Any) -> Any:
            closer.start()
            (image,) = subscription._images
            assert image.port[reader.R_SLOTS] > 0
            return run(*arguments)

        def handler(data: Any, state: Any) -> None:
            state[0] += data.size

        state = np.zeros(1, dtype=np.int64)
        made = compiled.CompiledHandler(subscription, numba.njit(handler), state, None, None)
        monkeypatch.setattr(compiled, "run_kernel", late)
        assert made.step()
        closer.join()
        monkeypatch.setattr(compiled, "run_kernel", run)
        assert not made.step()
        assert state[0] == len(b"message")


def test_draining_waits_for_a_look_too(link: EmbeddedLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks the rings how far they are; the reader drops those that ended."""
    with local(link) as client, client.subscribe("t") as subscription:
        publisher = client.publisher("t")
        publisher.publish(b"message", flush=True)
        assert bytes(subscription.next(TIMEOUT_S).data) == b"message"
        (image,) = subscription._images
        publisher.close()
        client.link.sync()
        closer = _Closer(subscription._start_drain)
        counts = Image.counts

        def late(image: Image) -> dict[str, int]:
            closer.start()
            return counts(image)

        def newest(image: Image) -> int:
            assert image.port[reader.R_SLOTS] > 0, "it was dropped meanwhile"
            return 0

        monkeypatch.setattr(Image, "counts", late)
        monkeypatch.setattr(Image, "newest", newest)
        assert subscription.step(10) is None
        closer.join()
        assert subscription._images == []
        assert image.port[reader.R_SLOTS] == 0


def test_many_are_closed_while_messages_come(link: EmbeddedLink) -> None:
    """Whatever the moment: what was read is whole, and the process goes on."""
    ended = threading.Event()
    wrong: list[Any] = []
    with local(link) as one, local(link) as other:

        def publish() -> None:
            publisher = one.publisher("t")
            while not ended.is_set():
                publisher.publish(b"m" * 50, timeout=TIMEOUT_S)

        def read(subscription: Any) -> None:
            while not subscription.ended:
                found = subscription.step_copies(10)
                messages = [] if found is None else found[1]
                wrong.extend(m for m in messages if m.raw[m.lead :] != b"m" * 50)

        publishing = threading.Thread(target=publish)
        publishing.start()
        try:
            for _ in range(40):
                subscription = other.subscribe("t").open()
                reading = threading.Thread(target=read, args=(subscription,))
                reading.start()
                subscription.close()
                reading.join(TIMEOUT_S)
        finally:
            ended.set()
            publishing.join(TIMEOUT_S)
    assert wrong == []
