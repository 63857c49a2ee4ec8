"""One process of the pyzmq benches, message by message from Python.

Started as `python zmq_worker.py CONFIG_JSON`. PUSH/PULL is ZeroMQ's lossless one-to-one pattern
and its fastest one; ping and pong use PAIR, ask and reply REQ and REP.
"""

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import zmq

import report

DONE = threading.Event()
POLL_MS = 100


def open_socket(context: zmq.Context[Any], kind: int, given: dict[str, Any]) -> zmq.Socket[Any]:
    """A socket bound (if `bind`) or connected to the channel."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, given["high_water_mark"])
    socket.setsockopt(zmq.RCVHWM, given["high_water_mark"])
    socket.setsockopt(zmq.RCVTIMEO, POLL_MS)
    socket.setsockopt(zmq.SNDTIMEO, POLL_MS)
    if given["bind"]:
        socket.bind(given["channel"])
    else:
        socket.connect(given["channel"])
    return socket


def receive(socket: zmq.Socket[Any], end: float) -> bytes:
    """The next message; empty at the end of the run."""
    while not DONE.is_set() and time.monotonic() < end:
        with contextlib.suppress(zmq.Again):
            return bytes(socket.recv())
    return b""


def publish(socket: zmq.Socket[Any], given: dict[str, Any], end: float) -> None:
    report.ready()
    send = socket.send
    messages = report.cycle_of_messages(given["message_bytes"])
    cycles = 0
    while not DONE.is_set() and time.monotonic() < end:
        for message in messages:
            while True:
                try:
                    send(message)
                    break
                except zmq.Again:
                    if DONE.is_set():
                        return
        cycles += 1
    report.result(offered=cycles * len(messages))


def subscribe(socket: zmq.Socket[Any], given: dict[str, Any], end: float) -> None:
    report.ready()
    recv, clock = socket.recv, time.monotonic
    message = receive(socket, end)
    warm_at = clock() + given["warmup_s"]
    while message and clock() < warm_at:
        message = receive(socket, end)
    first = int.from_bytes(message[:8], "little")
    received = 0
    start = now = clock()
    stop_at = start + given["seconds"]
    while now < stop_at and not DONE.is_set():
        with contextlib.suppress(zmq.Again):
            for _ in range(256):
                message = recv()
                received += 1
        now = clock()
    lost = (int.from_bytes(message[:8], "little") - first - received) % report.CYCLE
    report.result(received=received, elapsed_ns=int((now - start) * 1e9), lost=lost, duplicated=0)


def ping(socket: zmq.Socket[Any], given: dict[str, Any], end: float) -> None:
    report.ready()
    send, recv, clock = socket.send, socket.recv, time.perf_counter_ns
    message = bytes(given["message_bytes"])
    flags = zmq.NOBLOCK if given["spin"] else 0
    again = zmq.Again
    rtt_ns: list[int] = []
    started = clock()
    for round_number in range(given["warmup_rounds"] + given["rounds"]):
        sent = clock()
        send(message)
        while True:
            try:
                recv(flags)
                break
            except again:
                os.sched_yield()  # else ZeroMQ's I/O thread waits for this one's time slice
                if DONE.is_set() or time.monotonic() > end:
                    return
        got = clock()
        if round_number >= given["warmup_rounds"]:
            if not rtt_ns:
                started = sent
            rtt_ns.append(got - sent)
            if got - started > given["seconds"] * 1e9:
                break
    report.result(rounds_done=len(rtt_ns), **report.percentiles(rtt_ns))


def pong(socket: zmq.Socket[Any], given: dict[str, Any], end: float) -> None:
    report.ready()
    send, recv = socket.send, socket.recv
    flags = zmq.NOBLOCK if given["spin"] else 0
    while not DONE.is_set() and time.monotonic() < end:
        try:
            while True:
                send(recv(flags))
        except zmq.Again:
            os.sched_yield()


ROLES = {
    "pub": (publish, zmq.PUSH),
    "sub": (subscribe, zmq.PULL),
    "ping": (ping, zmq.PAIR),
    "pong": (pong, zmq.PAIR),
    "ask": (ping, zmq.REQ),
    "reply": (pong, zmq.REP),
}


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    threading.Thread(
        target=lambda: (os.read(sys.stdin.fileno(), 1), DONE.set()), daemon=True
    ).start()
    end = time.monotonic() + given["deadline_s"]
    role, kind = ROLES[given["role"]]
    with zmq.Context() as context:
        socket = open_socket(context, kind, given)
        report.pin(given["core"])
        role(socket, given, end)
        socket.close(linger=0)


if __name__ == "__main__":
    main()
