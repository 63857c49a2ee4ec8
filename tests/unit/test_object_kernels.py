"""Kernels on Python's objects: right values, right references, everything else by Python.

Their use by publishers and subscribers is in test_client_publish and test_client_subscribe.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.support.clients import loop_client

from tidecast.client.core import metadata
from tidecast.client.core.message import Message, Origin
from tidecast.client.kernels import objects as object_kernels
from tidecast.client.kernels.objects import message_maker, payload_maker
from tidecast.errors import Closed
from tidecast.native import objects
from tidecast.native.memory import address
from tidecast.native.objects import field_offsets
from tidecast.sync import Connection

DATA = b"abcdefghijklmnopqrstuvwxyz" * 20


def columns(*bounds: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Starts and ends, in an array that has room for one more than there are."""
    return np.array([*bounds, (0, 0)], dtype=np.int64).T.copy()


BOUNDS = ((0, 3), (3, 3), (5, 6), (10, 500))
EXPECTED = [b"abc", b"", b"f", DATA[10:500]]


def base() -> int:
    return address(np.frombuffer(DATA, np.uint8))


def origin() -> Origin:
    return Origin("t", "n", 7, None, metadata.NONE)


def test_payloads_are_bytes_that_nobody_else_holds() -> None:
    made = payload_maker()(base(), columns(*BOUNDS), 4)
    assert made == EXPECTED
    references = sys.getrefcount(made[3])  # not in an assertion, which would hold it too
    assert references == 2  # the list's, and the argument's
    assert payload_maker()(base(), columns(), 0) == []


@pytest.mark.parametrize("by_python", [False, True])
def test_messages_are_whole_and_hold_their_origin(
    by_python: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert field_offsets(Message) is not None
    if by_python:  # as where objects are laid out in a way we do not know
        monkeypatch.setattr(object_kernels, "field_offsets", lambda _kind: None)
    make = message_maker.__wrapped__(Message)
    one = origin()
    before = sys.getrefcount(one)
    made = make(base(), columns(*BOUNDS), 4, one, 1)
    assert [each.data for each in made] == EXPECTED
    assert [each._row for each in made] == [0, 1, 2, 3]
    assert all(type(each) is Message and each._origin is one for each in made)
    assert (made[0].topic, made[0].session, made[3].size) == ("t", 7, 490)
    assert sys.getrefcount(one) == before + 4
    assert [each._row for each in make(base(), columns(*BOUNDS), 4, one, 0)] == [0] * 4
    del made
    assert sys.getrefcount(one) == before


def test_a_class_that_the_collector_looks_at_is_made_by_python() -> None:
    import msgspec

    class Collected(msgspec.Struct):
        data: bytes
        origin: Any
        row: int

    assert field_offsets(Collected) is None
    made = message_maker(Collected)(base(), columns(*BOUNDS), 2, None, 1)
    assert [(each.data, each.row) for each in made] == [(b"abc", 0), (b"", 1)]


@pytest.fixture
def client() -> Iterator[Connection]:
    with loop_client() as (made, _):
        yield made


def test_plain_calls_and_all_others_do_the_same(client: Connection) -> None:
    with client.subscribe("t") as sub:
        publisher = client.publisher("t")
        publish: Any = publisher.publish
        for call in (publish, type(publisher).publish.__get__(publisher)):
            assert call(b"one") is None
            assert call(payload=b"two") is None
            assert call(b"three", b"key") is None
            assert call(bytearray(b"four")) is None
        assert publisher.try_publish(b"five") is True
        got = [sub.next(5.0) for _ in range(9)]
        assert [each.data for each in got[:4]] == [b"one", b"two", b"three", b"four"]
        assert [each.data for each in got[4:]] == [b"one", b"two", b"three", b"four", b"five"]
        assert got[2].key == got[6].key == b"key"
        with pytest.raises(TypeError, match="unexpected keyword"):
            publish(b"x", colour="red")
        with pytest.raises(TypeError, match="missing"):
            publish()


def test_a_method_kept_from_its_publisher_stays_safe(client: Connection) -> None:
    publisher = client.publisher("t")
    publish = publisher.publish
    publisher.close()
    del publisher
    gc.collect()
    with pytest.raises(Closed):
        publish(b"late")


def test_a_function_keeps_what_the_interpreter_knows_of_it(client: Connection) -> None:
    """The cache forgets what threads have made at the same time, all but one."""
    publisher = client.publisher("t")
    objects._method.cache_clear()
    gc.collect()
    others = [bytes(range(size)) for size in range(256)]  # they take the memory that is free
    assert publisher.publish.__name__ == "publish"
    publisher.publish(others[7])


def test_a_subclass_that_replaces_publish_is_called(client: Connection) -> None:
    plain = client.publisher("t")

    class Counting(type(plain)):  # type: ignore[misc]
        calls = 0

        def publish(self, *given: Any, **options: Any) -> None:
            self.calls += 1
            super().publish(*given, **options)

    counting = Counting(client, "t", plain.options)
    counting.publish(b"x")
    assert counting.calls == 1
    assert counting.stats().messages == 1
    counting.close()


def test_help_and_signature_are_those_of_the_method(client: Connection) -> None:
    publisher = client.publisher("t")
    made, written = (
        inspect.signature(each) for each in (publisher.publish, type(publisher).publish)
    )
    assert list(made.parameters) == list(written.parameters)[1:]
    assert made.parameters["flush"].default is False
    assert (publisher.publish.__doc__ or "").startswith("Publish one message")


def test_a_batch_is_what_the_list_held_when_it_was_given(client: Connection) -> None:
    with client.subscribe("t") as sub:
        publisher = client.publisher("t")
        long = bytes(range(256)) * 8
        given = [b"a", bytearray(b"b"), b"", long, memoryview(b"e")]
        result = publisher.publish_batch(given)
        given[:] = [b"changed"] * 5
        assert result.ok
        assert [sub.next(5.0).data for _ in range(5)] == [b"a", b"b", b"", long, b"e"]
