"""Client processes for the system tests: `python -m tests.support.roles ROLE URL ...`.

They say "ready" when they are, and end when they are killed or their input ends.
"""

from __future__ import annotations

import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tidecast.sync
from tests.support.progress import NUMBER, noting
from tidecast.api.start import Earliest

MARKED = struct.Struct("<QQ")
"""A producer's number, and that of its message."""
KEYS = 7
BLOCK = 2_000
"""Messages of a call of `stream`."""


def say(text: str) -> None:
    """To the test."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def count(url: str, topic: str, progress: str) -> None:
    """Publish numbers without end; how many calls returned stands in the file ``progress``.

    Each message is handed over by itself, so what the file counts is committed.
    """
    note_count = noting(Path(progress))
    publisher = tidecast.sync.connect(url).publisher(topic)
    say("ready")
    sys.stdin.readline()
    number = 0
    while True:
        publisher.publish(NUMBER.pack(number) + bytes(number % 61))
        number += 1
        note_count(number)


def hold(url: str, topic: str) -> None:
    """Subscribe, take one message, and never read on."""
    subscription = tidecast.sync.connect(url).subscribe(topic)
    say("ready")
    subscription.next()
    say("held")
    sys.stdin.read()


def respond(url: str, topic: str) -> None:
    """Reply to requests in upper case; say "held" for the request "hold", and keep it."""
    kept = []
    with tidecast.sync.connect(url) as client, client.responder(topic) as responder:
        say("ready")
        for request in responder:
            if request.data == b"hold":
                kept.append(request)
                say("held")
            else:
                request.respond(request.data.upper())


def collect(url: str, topic: str, n: str) -> None:
    """Take ``n`` messages of numbers; say how many are not the one that was due."""
    with tidecast.sync.connect(url) as client, client.subscribe(topic) as subscription:
        say("ready")
        wrong = 0
        for due in range(int(n)):
            message = subscription.next(timeout=60.0)
            wrong += NUMBER.unpack_from(message.data)[0] != due
        say(f"wrong {wrong}")


def echo(url: str, asked: str, answers: str, n: str) -> None:
    """Publish ``n`` messages of one topic again on another."""
    with tidecast.sync.connect(url) as client, client.subscribe(asked, start=Earliest()) as source:
        with client.publisher(answers) as target:
            say("ready")
            for _ in range(int(n)):
                target.publish(bytes(source.next(timeout=60.0).data), flush=True)
        sys.stdin.read()


def embed(topology: str) -> None:
    """A node in this process; says where its shared memory lies."""
    client = tidecast.sync.connect("embedded://", topology=topology)
    say("ready")
    link: Any = client.link
    say(str(link.node.directory))
    sys.stdin.read()


def produce(url: str, topic: str, progress: str, pace_s: str = "0") -> None:
    """Publish numbers to a durable topic without end, each its own sequence, by a producer's name.

    The file ``progress`` says up to which number all is durable. Goes on where the engine says.
    ``pace_s``: seconds between a hundred and the next.
    """
    note_durable = noting(Path(progress))
    publisher = tidecast.sync.connect(url).publisher(topic, producer="producer", buffer=False)
    session = publisher.producer_session
    assert session is not None
    number, pace = session.first_seq, threading.Event()
    say("ready")
    sys.stdin.readline()
    while True:
        for _ in range(100):
            payload = NUMBER.pack(number) + bytes(number % 301)
            publisher.publish(payload, key=b"k%d" % (number % 7))
            number += 1
        note_durable(publisher.durable_position)
        pace.wait(float(pace_s))


def consume(url: str, topic: str, seen: str) -> None:
    """Handle numbers of a durable topic without end: into the file ``seen``, then acked."""
    consumer = tidecast.sync.connect(url).consumer(
        topic, "handler", ack_wait=1.0, max_deliver=0, max_in_flight=50_000
    )
    say("ready")
    with Path(seen).open("ab", buffering=0) as file:
        for batch in consumer.batches(4096):
            file.write(b"".join(payload[: NUMBER.size] for payload in batch.payloads()))
            batch.ack()


def keyed(url: str, topic: str, mark: str, progress: str, pace_s: str) -> None:
    """Publish numbers to a durable topic until "stop", then wait until all is durable.

    ``mark``: the producer's number, in the payload and in the keys. See `produce`.
    """
    note_durable = noting(Path(progress))
    name = f"producer-{mark}"
    publisher = tidecast.sync.connect(url).publisher(topic, producer=name, buffer=False)
    session = publisher.producer_session
    assert session is not None
    number, stopping = session.first_seq, threading.Event()
    say("ready")

    def listen() -> None:
        sys.stdin.readline()
        stopping.set()

    threading.Thread(target=listen, daemon=True).start()
    while not stopping.wait(float(pace_s)):
        for _ in range(20):
            payload = MARKED.pack(int(mark), number) + bytes(number % 301)
            publisher.publish(payload, key=f"{mark}-{number % KEYS}".encode())
            number += 1
        note_durable(publisher.durable_position)
    payload = MARKED.pack(int(mark), number)
    publisher.publish(payload, key=f"{mark}-{number % KEYS}".encode(), ack="durable", timeout=120.0)
    note_durable(publisher.durable_position)
    say(f"durable {number}")


def note(url: str, topic: str, seen: str) -> None:
    """Consume what `keyed` publishes: each record with the time into the file ``seen``, acked."""
    consumer = tidecast.sync.connect(url).consumer(
        topic, "noted", ack_wait=2.0, max_deliver=0, max_in_flight=5_000
    )
    say("ready")
    with Path(seen).open("ab", buffering=0) as file:
        for batch in consumer.batches(1000):
            head = struct.pack("<Q", time.monotonic_ns())
            file.write(b"".join(head + bytes(p[: MARKED.size]) for p in batch.payloads()))
            batch.ack()


def keep(url: str, topic: str, seen: str) -> None:
    """Consume numbers without end: note each in the file ``seen`` before it is acked, once.

    What the file holds when it starts is dropped if it comes again.
    """
    path = Path(seen)
    whole = path.stat().st_size // NUMBER.size * NUMBER.size
    known = {n for (n,) in NUMBER.iter_unpack(path.read_bytes()[:whole])}
    consumer = tidecast.sync.connect(url).consumer(topic, "keeper")
    say("ready")
    with path.open("r+b", buffering=0) as file:
        file.truncate(whole)
        file.seek(whole)
        while True:
            batch = consumer.fetch(500, max_wait=1.0)
            numbers = [NUMBER.unpack_from(message.data)[0] for message in batch]
            fresh = [n for n in numbers if n not in known]
            file.write(b"".join(NUMBER.pack(n) for n in fresh))
            known.update(fresh)
            batch.ack()


def stream(url: str, topic: str, mark: str, n: str) -> None:
    """Publish ``n`` numbers of the publisher ``mark`` in blocks; say "sent" behind the last.

    The history stays until the input ends: others may still ask for repairs.
    """
    with tidecast.sync.connect(url) as client, client.publisher(topic) as publisher:
        say("ready")
        sys.stdin.readline()
        for first in range(0, int(n), BLOCK):
            block = np.empty((min(BLOCK, int(n) - first), 2), dtype="<u8")
            block[:, 0] = int(mark)
            block[:, 1] = np.arange(first, first + len(block))
            publisher.publish_batch(block.view(np.uint8)).check()
        publisher.flush(timeout=120.0)
        say("sent")
        sys.stdin.read()


def tally(url: str, topic: str, marks: str, n: str) -> None:
    """Take ``n`` numbers of each of ``marks`` publishers; say how many came out of order.

    A gap ends it with an error. See `stream`.
    """
    due = dict.fromkeys(range(int(marks)), 0)
    wrong = 0
    with tidecast.sync.connect(url) as client, client.subscribe(topic) as subscription:
        say("ready")
        for batch in subscription.batches(max_messages=4096):
            rows = batch.to_numpy().view("<u8")
            mark = int(rows[0, 0])
            first = due[mark]
            expected = np.arange(first, first + len(rows), dtype=np.uint64)
            wrong += int(np.count_nonzero((rows[:, 1] != expected) | (rows[:, 0] != mark)))
            due[mark] = first + len(rows)
            if all(each >= int(n) for each in due.values()):
                break
        say(f"wrong {wrong} of {sum(due.values())}")
        sys.stdin.read()  # a message too many would still be seen by the counters


ROLES: dict[str, Callable[..., Any]] = {
    "count": count,
    "hold": hold,
    "collect": collect,
    "echo": echo,
    "embed": embed,
    "produce": produce,
    "keep": keep,
    "consume": consume,
    "respond": respond,
    "keyed": keyed,
    "note": note,
    "stream": stream,
    "tally": tally,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
