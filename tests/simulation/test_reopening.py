"""A subscription that opens again while another thread reads: no session's place is missed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.simulation import Reader, Stream, network_of, transfer

from tidecast.errors import NotFound
from tidecast.testing import Network


class Interleaved(list[Any]):
    """A list: another thread does ``meanwhile`` when it is looked at, before or after the look."""

    def __init__(self, found: list[Any], meanwhile: Callable[[], None], *, after: bool) -> None:
        super().__init__(found)
        self.meanwhile: Callable[[], None] | None = meanwhile
        self.after = after

    def __iter__(self) -> Iterator[Any]:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is None:
            return super().__iter__()
        if not self.after:
            meanwhile()
        found = iter(list(super().__iter__()))
        if self.after:
            meanwhile()
        return found


@pytest.mark.parametrize("after", [False, True])
def test_a_session_whose_ring_goes_meanwhile_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    with Network(seed=1, delay_us=20) as net:
        a, b = network_of(net, "ab")
        reader = Reader(b)
        net.run(1000)
        stream = Stream(a, count=30)
        assert transfer(net, [stream], [reader])
        subscription: Any = reader.subscription
        subscription.lose("killed")
        subscription._take_in_all()
        [image] = subscription._images
        place = image.position().seq
        assert place > 0
        subscription._images = Interleaved(
            subscription._images, lambda: subscription._drop(image), after=after
        )
        asked: list[Any] = []

        def refuse(_pattern: str, options: Any) -> None:
            asked.append(options)
            raise NotFound("enough")

        monkeypatch.setattr(subscription.connection.link, "open_subscription", refuse)
        with pytest.raises(NotFound, match="enough"):
            subscription.reopen()
        assert asked[0].resume == {stream.publisher.session: place}
        assert subscription._images == []
