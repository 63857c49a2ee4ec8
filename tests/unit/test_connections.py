"""Connections to servers of other systems: waking, time-outs, and waiting for absent servers."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from tidecast.connections.registry import ConnectionRegistry
from tidecast.connections.retries import Attempts, Outage
from tidecast.connections.tcp import Address, Connection
from tidecast.errors import Closed, ConnectionLost

LONG_S = 60.0


class _Waits:
    """Notes pauses in place of waiting."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.fixture
def pair() -> tuple[socket.socket, Address]:
    """A server that accepts, and its address."""
    server = socket.create_server(("127.0.0.1", 0))
    return server, Address(*server.getsockname())


def test_closing_the_registry_ends_a_read_that_waits(
    pair: tuple[socket.socket, Address],
) -> None:
    server, address = pair
    registry = ConnectionRegistry("kafka orders")
    problems: list[Exception] = []
    with server:
        connection = Connection(address, registry.add)

        def read() -> None:
            try:
                connection.read_into(memoryview(bytearray(1)), time.monotonic() + LONG_S)
            except Closed as problem:
                problems.append(problem)

        reader = threading.Thread(target=read)
        reader.start()
        registry.close()
        reader.join(LONG_S)
    assert [str(one) for one in problems] == [f"server {address}: the connection is closed"]
    with pytest.raises(Closed, match="kafka orders: used after close"):
        Connection(address, registry.add)
    with pytest.raises(Closed, match="kafka orders: used after close"):
        registry.pause(0.0)


def test_a_connection_that_is_woken_before_it_connects_is_closed(
    pair: tuple[socket.socket, Address],
) -> None:
    server, address = pair
    with server:
        with pytest.raises(Closed, match="the connection is closed"):
            Connection(address, Connection.wake)
        there, _ = server.accept()
        with there:
            assert there.recv(1) == b""


def test_bytes_are_read_once_after_the_deadline(pair: tuple[socket.socket, Address]) -> None:
    server, address = pair
    with server:
        connection = Connection(address)
        there, _ = server.accept()
        room = bytearray(4)
        assert connection.read_into(memoryview(room), 0.0) == 0
        connection.write(b"ask")
        assert there.recv(3, socket.MSG_WAITALL) == b"ask"
        there.sendall(b"word")
        assert connection.read_into(memoryview(room), time.monotonic() + LONG_S) == 4
        assert room == b"word"
        there.close()
        with pytest.raises(ConnectionLost, match=f"server {address}: it closed the connection"):
            connection.read_into(memoryview(room), time.monotonic() + LONG_S)
        with pytest.raises(ConnectionLost, match=f"server {address}: "):
            connection.write(b"more")


def test_attempts_pause_longer_each_time_and_end_with_the_problem() -> None:
    waits, problem = _Waits(), ConnectionLost("away")
    attempts = Attempts(LONG_S, waits)
    for _ in range(3):
        attempts.wait(problem)
    assert waits.pauses == sorted(waits.pauses)
    assert len(set(waits.pauses)) == 3
    with pytest.raises(ConnectionLost, match="away"):
        Attempts(0.0, waits).wait(problem)
    assert len(waits.pauses) == 3


def test_an_outage_is_an_error_after_the_patience_and_begins_again_after_an_answer() -> None:
    outage, problem = Outage(10.0), ConnectionLost("away")
    outage.note(problem, 100.0)
    outage.note(problem, 110.0)
    assert outage.pause_s(LONG_S) > 0
    assert outage.pause_s(-1.0) == 0.0
    with pytest.raises(ConnectionLost, match=r"away \(since 11 s\)"):
        outage.note(problem, 111.0)
    outage.end()
    outage.note(problem, 200.0)
