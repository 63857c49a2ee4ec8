"""One process of the pyaeron benches: pub, sub, ping or pong, message by message from Python.

Started as `python pyaeron_worker.py CONFIG_JSON`. The handler gets pyaeron's zero-copy view, valid
during the call. By ``handler`` it does ``nothing`` with it (the most favourable reading), or keeps
its ``bytes`` in a list, which is emptied between polls (what a user must do who needs the message
later than that). Messages are counted by poll()'s return value, and the publisher cycles through
messages made before. Loss shows (modulo the cycle) in the sequence numbers of the first and of the
last message of the window.
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
import pyaeron

import report

STREAM_OUT = 1001
STREAM_BACK = 1002
DONE = threading.Event()


def ignore(_view: Any, _header: Any) -> None:
    return None


class Sequence:
    """A fragment handler that keeps the last sequence number seen."""

    def __init__(self) -> None:
        self.value = -1

    def __call__(self, view: Any, _header: Any) -> None:
        self.value = int.from_bytes(view.tobytes()[:8], "little")


def poll_one(subscription: Any, end: float) -> int:
    """The sequence number of one message, polled alone."""
    seen = Sequence()
    while not subscription.poll(seen, 1, assemble=False):
        if DONE.is_set() or time.monotonic() > end:
            return -1
    return seen.value


def publish(aeron: Any, given: dict[str, Any], end: float) -> None:
    publication = aeron.add_exclusive_publication(given["channel"], STREAM_OUT)
    report.ready()
    offer = publication.offer
    give_way = os.sched_yield
    messages = report.cycle_of_messages(given["message_bytes"])
    cycles = 0
    while not DONE.is_set() and time.monotonic() < end:
        for message in messages:
            while not offer(message):
                give_way()
                if DONE.is_set():
                    return
        cycles += 1
    report.result(offered=cycles * len(messages))


def subscribe(aeron: Any, given: dict[str, Any], end: float) -> None:
    subscription = aeron.add_subscription(given["channel"], STREAM_OUT)
    report.ready()
    poll, give_way = subscription.poll, os.sched_yield
    kept: list[bytes] = []
    keep = kept.append
    handler = ignore
    if given["handler"] == "bytes":

        def handler(view: Any, _header: Any) -> None:
            keep(view.tobytes())

    first = poll_one(subscription, end)
    clock = time.monotonic
    warm_at = clock() + given["warmup_s"]
    while clock() < warm_at:
        if not poll(handler, 256, assemble=False):
            give_way()
        kept.clear()
    first = poll_one(subscription, end)
    start = now = clock()
    stop_at = start + given["seconds"]
    received = 0
    while now < stop_at:
        for _ in range(16):
            polled = poll(handler, 256, assemble=False)
            kept.clear()
            received += polled
            if not polled:
                give_way()
        now = clock()
    elapsed_ns = int((now - start) * 1e9)
    last = poll_one(subscription, end)
    lost = (last - first - received - 1) % report.CYCLE if last >= 0 else 0
    report.result(received=received, elapsed_ns=elapsed_ns, lost=lost, duplicated=0)


def ping(aeron: Any, given: dict[str, Any], end: float) -> None:
    subscription = aeron.add_subscription(given["back_channel"], STREAM_BACK)
    publication = aeron.add_exclusive_publication(given["channel"], STREAM_OUT)
    report.ready()
    poll, offer, clock = subscription.poll, publication.offer, time.perf_counter_ns
    give_way = given["give_way"]
    message = bytes(given["message_bytes"])
    while not (publication.is_connected and subscription.is_connected):
        if DONE.is_set() or time.monotonic() > end:
            return
    rtt_ns: list[int] = []
    started = clock()
    for round_number in range(given["warmup_rounds"] + given["rounds"]):
        sent = clock()
        while not offer(message):
            pass
        while not poll(ignore, 1, assemble=False):
            if give_way:
                os.sched_yield()
            if DONE.is_set():
                return
        got = clock()
        if round_number >= given["warmup_rounds"]:
            if not rtt_ns:
                started = sent
            rtt_ns.append(got - sent)
            if got - started > given["seconds"] * 1e9:
                break
    report.result(rounds_done=len(rtt_ns), **report.percentiles(rtt_ns))


def pong(aeron: Any, given: dict[str, Any], end: float) -> None:
    subscription = aeron.add_subscription(given["channel"], STREAM_OUT)
    publication = aeron.add_exclusive_publication(given["back_channel"], STREAM_BACK)
    report.ready()
    poll, offer = subscription.poll, publication.offer
    give_way = given["give_way"]
    message = bytes(given["message_bytes"])
    while not DONE.is_set() and time.monotonic() < end:
        for _ in range(1000):
            if poll(ignore, 1, assemble=False):
                while not offer(message) and not DONE.is_set():
                    pass
            elif give_way:
                os.sched_yield()


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    os.environ.update(given["environment"])
    threading.Thread(
        target=lambda: (os.read(sys.stdin.fileno(), 1), DONE.set()), daemon=True
    ).start()
    end = time.monotonic() + given["deadline_s"]
    role = {"pub": publish, "sub": subscribe, "ping": ping, "pong": pong}[given["role"]]
    with contextlib.ExitStack() as stack:
        aeron = stack.enter_context(pyaeron.Aeron(dir=given["dir"]))
        report.pin(given["core"])
        role(aeron, given, end)


if __name__ == "__main__":
    main()
