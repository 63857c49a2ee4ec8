"""Appends of mirrors: runs for a queue that carry sequences from their source, checked and counted.

A mirror copies a queue of a source under a name. The sequence of a record is its offset in the
source plus one, so the log's memory of a producer's last sequence in a queue, its *mark*, is the
position of the mirror: it is written with the records, and no other place can disagree. A run is
appended only if the mark is the mark that its mirror has seen last: so a run that is sent again, an
answer that is lost, and two mirrors at once store no record twice. See docs/adr/0036.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidecast.config.suggestions import near
from tidecast.config.topology import check_topic_name
from tidecast.errors import ConfigError, NotFound
from tidecast.log import batch
from tidecast.log.building import check, record_table, records
from tidecast.node.consumers.service import DurableSubscriptions
from tidecast.node.durable.placed import Run, warm_up, write_run
from tidecast.node.durable.topic import DurableTopic
from tidecast.protocol.dedup import SEQ_MAX, mirror_id

RUN_BYTES_MAX = 24 << 20
NAME_MAX, SOURCES_MAX = 200, 4096
EPOCH = 0
"""A mirror has no epochs: the marks fence."""


def mirror_marks(
    subs: DurableSubscriptions, topic: str, mirror: str, sources: Any
) -> dict[str, Any]:
    """Of each source queue of a mirror: by queue of the topic, its mark (0: none is known).

    ``durable``: of each queue of the topic, the offset up to where it is durable.
    """
    _check_name(mirror)
    if not isinstance(sources, int) or not 1 <= sources <= SOURCES_MAX:
        raise ConfigError(f"sources: {sources!r}: allowed are 1 to {SOURCES_MAX}")
    warm_up()
    with subs.ctx.lock:
        here = _topic(subs, topic)
        queues = len(here.logs)
        rows = []
        for source in range(sources):
            known = here.producers.known.get(mirror_id(source_name(mirror, source)))
            rows.append([0] * queues if known is None else known.marks[:queues].tolist())
        durable = [log.durable_token for log in here.logs]
    return {"queues": queues, "marks": rows, "durable": durable}


def append_run(
    subs: DurableSubscriptions,
    topic: str,
    mirror: str,
    source: Any,
    queue: Any,
    after: Any,
    run: Any,
) -> dict[str, Any]:
    """Append whole batches to a queue, if its mark of the mirror is ``after``; else do nothing.

    The answer: was it ``appended``, or ``held`` back by the disk; the ``mark`` now; the ``end`` of
    the queue, and up to where it is ``durable``; how many ``queues`` the topic has. Raises
    ConfigError for a run that is not sound, NotFound, StorageError.
    """
    _check_name(mirror)
    for name, value, most in (
        ("source", source, SOURCES_MAX - 1),
        ("queue", queue, SOURCES_MAX - 1),
        ("after", after, SEQ_MAX),
    ):
        if not isinstance(value, int) or not 0 <= value <= most:
            raise ConfigError(f"{name}: {value!r}: allowed are 0 to {most}")
    buffer, count, last = _checked(run, after)
    producer = mirror_id(source_name(mirror, source))
    asked = Run(
        topic,
        queue,
        buffer,
        buffer.size,
        count,
        lambda _verdict: None,
        producer=producer,
        epoch=EPOCH,
    )
    registry = subs.durable
    with subs.ctx.lock:
        _topic(subs, topic)
        found: dict[str, Any] = registry.runtime.on_archiver(
            lambda: _append(subs, asked, after, last)
        )
    return found


def source_name(mirror: str, source: int) -> str:
    """The name of the producer that appends the records of a queue of the source."""
    return f"{mirror}/{source}"


def _append(subs: DurableSubscriptions, run: Run, after: int, last: int) -> dict[str, Any]:
    """Between two cycles of the archiver."""
    registry = subs.durable
    here = _topic(subs, run.topic)
    if run.queue >= len(here.logs):
        raise NotFound(f"{run.topic}/{run.queue}: the topic has {len(here.logs)} queues")
    known = here.producers.known.get(run.producer)
    mark, appended, held = 0 if known is None else int(known.marks[run.queue]), False, False
    if mark == after:
        producer = here.producers.placed(run.producer)
        token = write_run(registry, here, run, -1)
        held = token is None
        if token is not None:
            mark, appended = last, True
            producer.marks[run.queue] = last
            producer.note_placed(run.epoch + 1, registry.ctx.wall_ns())
            if registry.tables.take_awaited(here):
                registry.written(here)
    log = here.logs[run.queue]
    return {
        "appended": appended,
        "held": held,
        "mark": mark,
        "end": log.next_token,
        "durable": log.durable_token,
        "queues": len(here.logs),
    }


def _checked(run: Any, after: int) -> tuple[np.ndarray, int, int]:
    """A run's bytes, its records, and its last sequence. Raises ConfigError."""
    if not isinstance(run, bytes) or not 0 < len(run) <= RUN_BYTES_MAX:
        size = len(run) if isinstance(run, bytes) else type(run).__name__
        raise ConfigError(f"run: {size}: allowed are 1 to {RUN_BYTES_MAX} bytes")
    buffer = np.frombuffer(bytearray(run), dtype=np.uint8)
    table, at, count, last = record_table(), 0, 0, after
    while at < buffer.size:
        length = int(check(buffer, at, buffer.size))
        rows = int(records(buffer, at, at + length, table, 0)) if length > 0 else length
        if rows <= 0:
            raise ConfigError(f"run: batch at byte {at}: {batch.CAUSES[rows]}")
        sequences = table[:rows, batch.O_SEQ]
        if int(sequences[0]) <= last or (np.diff(sequences) <= 0).any():
            raise ConfigError(f"run: batch at byte {at}: sequences do not ascend above {last}")
        last = int(sequences[-1])
        if last > SEQ_MAX:
            raise ConfigError(f"run: batch at byte {at}: sequence {last}: at most {SEQ_MAX}")
        at, count = at + length, count + rows
    return buffer, count, last


def _topic(subs: DurableSubscriptions, name: str) -> DurableTopic:
    check_topic_name(name)
    found = subs.durable.topics.get(name)
    if found is not None and found.slot >= 0:
        return found
    known = subs.durable.ctx.topic_by_name
    if name not in known:
        raise NotFound(f"topic {name}: there is no such topic{near(name, known)}")
    if known[name].mode != "durable":
        raise ConfigError(f"topic {name}: mode: {known[name].mode}: a mirror needs durable")
    raise NotFound(f"topic {name}: another engine keeps its queues: run the mirror there")


def _check_name(mirror: Any) -> None:
    if not isinstance(mirror, str) or not 1 <= len(mirror) <= NAME_MAX:
        raise ConfigError(f"mirror: {mirror!r}: allowed is a name of 1 to {NAME_MAX} characters")
