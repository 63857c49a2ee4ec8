"""Batches of a queue as plain values, for people and scripts."""

from __future__ import annotations

import bisect
import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from tidecast.log.files import (
    index_name,
    open_json,
    queue_directory,
    read_index,
    segment_name,
)
from tidecast.log.reading import scan
from tidecast.log.repair.damage import sound_rows
from tidecast.log.repair.recovery import segments_in
from tidecast.log.repair.verify import queue_bytes
from tidecast.log.takeover import owner_of


def list_batches(directory: Path, count: int, token: int | None) -> list[dict[str, int]]:
    """``count`` batches: the newest, or from the batch on that holds ``token``."""
    bases = segments_in(directory)
    if not bases:
        return []
    first = 0 if token is None else max(0, bisect.bisect_right(bases, token) - 1)
    if token is None:
        first = len(bases) - 1
        while first > 0 and not _rows(directory, bases[first], None, 1):
            first -= 1  # the active segment is empty yet
    found: deque[dict[str, int]] = deque(maxlen=count if token is None else None)
    for base in bases[first:]:
        with suppress(FileNotFoundError):  # retention was quicker
            found.extend(_rows(directory, base, token, count))
        if token is not None and len(found) >= count:
            break
    return list(found)[-count:] if token is None else list(found)[:count]


def _rows(directory: Path, base: int, token: int | None, count: int) -> list[dict[str, int]]:
    path = directory / segment_name(base)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    found: deque[dict[str, int]] = deque(maxlen=count if token is None else None)
    try:
        scanner = scan.Scanner(fd, os.fstat(fd).st_size)
        entries = read_index(directory / index_name(base))
        if token is not None and entries.shape[0]:
            before = entries[entries[:, 0] <= token]
            if before.shape[0] and before[-1, 1] < os.fstat(fd).st_size:
                scanner.reset(int(before[-1, 1]))
        for rows in sound_rows(scanner):
            for row in rows.tolist():
                if token is not None and row[scan.C_BASE_TOKEN] + row[scan.C_COUNT] <= token:
                    continue
                found.append(_plain(row, base))
            if token is not None and len(found) >= count:
                break
    finally:
        os.close(fd)
    return list(found)


def _plain(row: list[int], base: int) -> dict[str, int]:
    return {
        "token": row[scan.C_BASE_TOKEN],
        "records": row[scan.C_COUNT],
        "bytes": row[scan.C_LENGTH],
        "append_time": row[scan.C_APPEND_TIME],
        "time_max": row[scan.C_TIME_MAX],
        "producer": row[scan.C_PRODUCER],
        "epoch": row[scan.C_EPOCH],
        "owner": row[scan.C_OWNER],
        "first_seq": row[scan.C_BASE_SEQ],
        "last_seq": row[scan.C_LAST_SEQ],
        "acked_seq": row[scan.C_ACKED_SEQ],
        "segment": base,
        "position": row[scan.C_POSITION],
    }


PAUSED_NAME = "paused.json"


class PausedTopic(msgspec.Struct):
    """The parts of a topic that are paused for all. It lies, and moves, with the queues."""

    topic: bool = False
    queues: list[int] = []


def read_paused(directory: Path) -> PausedTopic:
    """The paused parts of the topic in this directory. Raises OSError, ValueError, MsgspecError."""
    try:
        raw = (directory / PAUSED_NAME).read_bytes()
    except FileNotFoundError:
        return PausedTopic()
    return msgspec.json.decode(open_json(raw), type=PausedTopic)


def _paused_by(directory: Path, queue: int) -> list[str]:
    """The pauses that hold a queue back: of the topic, of the queue."""
    try:
        found = read_paused(directory)
    except (OSError, ValueError, msgspec.MsgspecError):
        return ["topic"]  # an engine that starts pauses the topic, too
    return ["topic"] * found.topic + ["queue"] * (queue in found.queues)


def queue_row(data_dir: Path, topic: str, queue: int) -> dict[str, Any]:
    """One queue on disk: segments, bytes, oldest token, torn files, owner, pauses for all.

    Pauses of single subscriptions are not among ``paused_by``: ``topic``, ``queue``.
    """
    directory = queue_directory(data_dir, topic, queue)
    bases, owner = segments_in(directory), owner_of(directory)
    return {
        "topic": topic,
        "queue": queue,
        "segments": len(bases),
        "bytes": queue_bytes(directory),
        "earliest_token": bases[0] if bases else 0,
        "active_segment_token": bases[-1] if bases else 0,
        "torn_files": len(list(directory.glob("*.torn-*"))),
        "directory": str(directory),
        "owner": owner.name,
        "owner_epoch": owner.epoch,
        "owner_since_ns": owner.since_ns,
        "paused_by": _paused_by(directory.parent, queue),
    }
