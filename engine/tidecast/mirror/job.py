"""A mirror as a process of the control service: `python -m tidecast.mirror.job`.

The first line of standard input is a `Job` in JSON, so that no list of processes and no file has
its secrets. Standard output has one JSON object a line: events, `progress` each second, and
`failed` at the end. The mirror ends when standard input does: with the service, however that ends.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tidecast.config.sources import jetstream
from tidecast.config.sources.kafka import SECRET_VARIABLE, KafkaSource, kafka_source
from tidecast.errors import TidecastError
from tidecast.mirror.progress import Event, Place, Progress, Stopped
from tidecast.mirror.settings import Job
from tidecast.mirror.state import StateFile
from tidecast.mirror.target import Target
from tidecast.queues.adapter import Adapter

PROGRESS_S, END_S, PATIENCE_S = 1.0, 10.0, 60.0
JOB_BYTES_MAX = 1 << 20
OK, FAILED, STUCK = 0, 1, 3


class Mirror(Protocol):
    """`InboundMirror` or `OutboundMirror`."""

    def run(self) -> None:
        """Copy until it is stopped."""

    def places(self) -> list[Place]:
        """How far each queue is."""


class Lines:
    """Writes objects to standard output, from all threads. The service may be gone."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write, self._lock = write, threading.Lock()

    def say(self, event: str, **about: Any) -> None:
        """One object."""
        line = msgspec.json.encode({"event": event, **about}) + b"\n"
        with self._lock, suppress(OSError, ValueError):
            self._write(line)

    def tell(self, event: Event) -> None:
        """An event of the mirror."""
        self.say(event.event, text=event.text)


def _readable(text: str, stack: ExitStack) -> str:
    """A path under which this process alone reads a text: it is in memory, not on a disk."""
    number = os.memfd_create("tidecast", os.MFD_CLOEXEC)
    stack.callback(os.close, number)
    with os.fdopen(os.dup(number), "wb") as file:
        file.write(text.encode())
    return f"/proc/self/fd/{number}"


def _login(job: Job, stack: ExitStack) -> dict[str, str]:
    given = {"secret_file": job.secret, "ca": job.ca}
    return {name: _readable(text, stack) for name, text in given.items() if text}


def source_of(job: Job, stack: ExitStack) -> KafkaSource:
    """The checked settings of the cluster. Raises ConfigError."""
    return kafka_source(job.kafka | _login(job, stack))


def adapter_of(job: Job, stack: ExitStack) -> tuple[Adapter, str]:
    """The adapter that is copied from, and its name in the state file. Raises TidecastError.

    The name has no servers: they may change within a cluster.
    """
    if job.direction == "from_jetstream":
        from tidecast.jetstream.adapter import JetStreamAdapter

        streams = jetstream.jetstream_source(job.jetstream | _login(job, stack))
        chosen = f"?subjects={streams.subjects}" if streams.subjects else ""
        return JetStreamAdapter(streams), f"jetstream:{streams.streams}{chosen}"
    from tidecast.kafka.brokers.adapter import KafkaAdapter

    kafka = source_of(job, stack)
    return KafkaAdapter(kafka), f"kafka:{kafka.topic}"


def opened(job: Job, progress: Progress, stack: ExitStack) -> Mirror:
    """The mirror, ready to run; ``stack`` closes it. Raises TidecastError."""
    data_dir = Path(job.data_dir)
    options: dict[str, Any] = {"start": job.start, "on_gap": job.on_gap}
    token = job.token or None
    if job.direction == "to_kafka":
        from tidecast.mirror.outbound import FOLDER, OutboundMirror

        kafka = source_of(job, stack)
        state = stack.enter_context(StateFile(data_dir, job.name, FOLDER))
        topic = Target.of(
            job.topic, job.name, progress, data_dir=data_dir, server=None, token=token
        )
        stack.callback(topic.close)
        out = OutboundMirror(topic, data_dir, kafka, state, progress, **options)
        stack.callback(out.close)
        return out
    from tidecast.mirror.inbound import InboundMirror

    state = stack.enter_context(StateFile(data_dir, job.name))
    topic = Target.of(
        job.topic, job.name, progress, data_dir=data_dir, server=job.server or None, token=token
    )
    stack.callback(topic.close)
    adapter, source = adapter_of(job, stack)
    stack.callback(adapter.close)
    into = InboundMirror(adapter, topic, state, progress, source=source, place=job.place, **options)
    stack.callback(into.close)
    return into


def run(
    job: Job, lines: Lines, progress: Progress, asked: threading.Event, ended: threading.Event
) -> int:
    """Copy until ``progress`` stops. The exit code. ``asked``: to stop; ``ended``: set at the end.

    Only an error without a request to stop is a failure.
    """
    try:
        with ExitStack() as stack:
            mirror = opened(job, progress, stack)
            reporter = threading.Thread(
                target=_report, args=(mirror, progress, lines, ended), name="report", daemon=True
            )
            reporter.start()
            stack.callback(reporter.join)
            stack.callback(ended.set)
            mirror.run()
    except Stopped:
        return OK
    except TidecastError as problem:
        if asked.is_set():
            return OK
        lines.say("failed", text=str(problem), code=problem.code, retryable=problem.retryable)
        return FAILED
    finally:
        ended.set()
    return OK


def _report(mirror: Mirror, progress: Progress, lines: Lines, ended: threading.Event) -> None:
    over = False
    while not over:
        over = ended.wait(PROGRESS_S)  # the last line is after the end of the copy
        places = [msgspec.structs.asdict(each) for each in mirror.places()]
        lines.say("progress", queues=places, **msgspec.structs.asdict(progress.counts))


def _end_with_input(progress: Progress, asked: threading.Event, ended: threading.Event) -> None:
    """Stop at the end of standard input. A copy that hangs is cut off: no record is lost by it."""
    while os.read(sys.stdin.fileno(), 4096):
        continue
    asked.set()
    progress.stopping.set()
    if not ended.wait(END_S):
        os._exit(STUCK)


def main() -> int:
    """See the module."""
    for secret in (SECRET_VARIABLE, jetstream.SECRET_VARIABLE):
        os.environ.pop(secret, None)  # that of the service's own engine is no mirror's
    lines = Lines(lambda line: os.write(sys.stdout.fileno(), line))
    raw = sys.stdin.buffer.readline(JOB_BYTES_MAX)
    try:
        job = msgspec.json.decode(raw, type=Job)
    except msgspec.MsgspecError as problem:
        lines.say("failed", text=f"job: {problem}", code="config", retryable=False)
        return FAILED
    progress = Progress(job.rate or None, lines.tell, patience_s=PATIENCE_S)
    asked, ended = threading.Event(), threading.Event()
    watcher = threading.Thread(
        target=_end_with_input, args=(progress, asked, ended), name="input", daemon=True
    )
    watcher.start()
    return run(job, lines, progress, asked, ended)


if __name__ == "__main__":
    sys.exit(main())
