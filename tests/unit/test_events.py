"""Events cross sockets as one of a union: each must be in it."""

from __future__ import annotations

import typing

from tidecast import events


def test_every_event_can_be_told_to_clients() -> None:
    made = {one for one in vars(events).values() if isinstance(one, type)}
    kinds = {one for one in made if issubclass(one, events.Event)} - {events.Event}
    assert len(kinds) > 30
    assert kinds == set(typing.get_args(events.AnyEvent))
