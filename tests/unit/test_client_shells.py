"""Methods of both clients that are made of one flow: names, parameters, types and docstrings."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tidecast.client import aio, blocking
from tidecast.client.consumer import aio as consumer_aio
from tidecast.client.consumer import blocking as consumer_blocking
from tidecast.client.flows.shells import awaits, waits
from tidecast.client.flows.steps import TURN, Begun, Done, Flow

PAIRS = [
    (blocking.Publisher, aio.Publisher, 6),
    (blocking.Subscription, aio.Subscription, 3),
    (blocking.Responder, aio.Responder, 3),
    (consumer_blocking.Consumer, consumer_aio.Consumer, 8),
    (blocking.Connection, aio.Connection, 3),
]


def made_of_flows(kind: type[Any], beside: type[Any]) -> dict[str, Any]:
    """The calls that wrap another function, but those that both shells inherit."""
    found = {name: getattr(kind, name) for name in dir(kind)}
    return {
        name: each
        for name, each in found.items()
        if name[0] != "_"
        and hasattr(each, "__wrapped__")
        and each is not getattr(beside, name, None)
    }


@pytest.mark.parametrize(("one", "other", "least"), PAIRS)
def test_both_shells_have_the_calls_of_the_flows(
    one: type[Any], other: type[Any], least: int
) -> None:
    here, there = made_of_flows(one, other), made_of_flows(other, one)
    assert here.keys() == there.keys()
    assert len(here) >= least
    for name, call in here.items():
        awaited, flow = there[name], call.__wrapped__
        assert awaited.__wrapped__ is flow
        assert inspect.iscoroutinefunction(awaited)
        assert not inspect.iscoroutinefunction(call)
        signature = inspect.signature(call)
        assert signature == inspect.signature(awaited), name
        assert signature.parameters == inspect.signature(flow).parameters, name
        assert "Flow" not in str(signature), name
        assert "Begun" not in str(signature), name
        assert call.__doc__ == awaited.__doc__ == flow.__doc__, name
        assert call.__name__ == awaited.__name__


class Core:
    """An object with flows."""

    driven = 0

    def add_flow(self, a: int, *, b: int = 2) -> Begun[int]:
        """Add; at once when b is 2."""
        return Done(a + b) if b == 2 else self._add(a, b)

    def _add(self, a: int, b: int) -> Flow[int]:
        yield TURN
        return a + b


class Waiting(Core):
    """The blocking shell; a class made of it may override the flow."""

    add = waits(Core.add_flow)

    def _drive(self, flow: Flow[int]) -> int:
        self.driven += 1
        next(flow)
        with pytest.raises(StopIteration) as ended:
            next(flow)
        return int(ended.value.value)


class Twice(Waiting):
    """Another flow under the same method."""

    def add_flow(self, a: int, *, b: int = 2) -> Begun[int]:
        """Add twice."""
        return self._add(a, 2 * b)


class Awaiting(Core):
    """The asyncio shell."""

    add = awaits(Core.add_flow)


def test_a_flow_that_is_done_is_not_driven() -> None:
    shell = Waiting()
    assert (shell.add(1), shell.driven) == (3, 0)
    assert (shell.add(1, b=5), shell.driven) == (6, 1)
    assert str(inspect.signature(Waiting.add)) == "(self, a: 'int', *, b: 'int' = 2) -> 'int'"
    assert Waiting.add.__qualname__ == "Core.add"


def test_an_overridden_flow_is_the_one_that_runs() -> None:
    assert Twice().add(1, b=5) == 11


def test_an_awaited_call_begins_when_it_is_awaited() -> None:
    coroutine = Awaiting().add(1)
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    assert ended.value.value == 3
