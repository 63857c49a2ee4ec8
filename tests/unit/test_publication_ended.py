"""A topic is deleted under a publisher that polls no events: its calls say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.gateways import TIMEOUT_S, local
from tests.support.patience import Patience

from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import Closed


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLink]:
    settings = {"transports": [{"name": "ipc", "kind": "ipc"}]}
    made = EmbeddedLink.open(topology_from(settings), data_dir=tmp_path_factory.mktemp("node"))
    yield made
    made.close()


def _array(publisher: Any) -> bool:
    return bool(publisher.try_publish(bytearray(1000)))


def _large(publisher: Any) -> bool:
    """Of several packets, which have room in a run."""
    return bool(publisher.try_publish(bytes(5000)))


def _batch(publisher: Any) -> bool:
    publisher.publish_batch([bytes(1000)] * 3, timeout=TIMEOUT_S).check()
    return True


CALLS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "try_publish": (lambda p: p.try_publish(bytes(1000)), 1),
    "try_publish of an array": (_array, 1),
    "try_publish of a large message": (_large, 1),
    "publish": (lambda p: p.publish(bytes(1000), timeout=TIMEOUT_S) or True, 1),
    "publish_batch": (_batch, 3),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_loop_that_polls_no_events_ends_with_the_topic(
    link: EmbeddedLink, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Before, it published into a ring that nobody read, without an end."""
    monkeypatch.setattr("tidecast.node.live.publications.ENDING_PATIENCE_S", 0.01)
    call, n = CALLS[name]
    with local(link) as client:
        publisher = client.publisher("loop", history_bytes=64 << 10)
        assert call(publisher)
        link.node.delete_topic("loop")
        patience, accepted = Patience(60), n

        def loop() -> None:
            nonlocal accepted
            while not patience.over():
                accepted += n if call(publisher) else 0

        with pytest.raises(Closed, match="topic loop: it was deleted"):
            loop()
        assert accepted > n
        with pytest.raises(Closed, match="topic loop: it was deleted"):
            publisher.publish(b"more")
