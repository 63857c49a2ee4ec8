"""Files beside the logs, checked without changing them: maps, indexes, producers, subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from tidecast.errors import CorruptLog, TidecastError
from tidecast.layout import segment as lay
from tidecast.log.files import (
    MAP_NAME,
    checksum,
    index_header,
    index_name,
    open_json,
    queue_directory,
    read_index,
    segment_name,
)
from tidecast.log.grants import GRANTS_NAME, GrantLog
from tidecast.log.queue_files import queues_of, segments_of
from tidecast.log.repair.verify import Problem, Report
from tidecast.log.takeover import SUBSCRIPTIONS_NAME
from tidecast.protocol.dedup import is_snapshot
from tidecast.queues.mapper import QueueMap
from tidecast.queues.subscription_store import SubscriptionStore, key_of

SUFFIXES = (".sub", ".bad")


def verify_files(data_dir: Path, topics: list[str]) -> list[Report]:
    """The defects in files of some topics, and in subscriptions; a report for each topic.

    Their ``queue`` is -1; a topic whose files are sound has none.
    """
    found: dict[str, Report] = {}

    def note(topic: str, path: Path, what: str) -> None:
        report = found.setdefault(topic, Report(topic, -1))
        report.problems.append(Problem(topic, -1, path, -1, -1, what))

    stores = [data_dir / SUBSCRIPTIONS_NAME]
    for topic in topics:
        directory = queue_directory(data_dir, topic, 0).parent
        stores.append(directory / SUBSCRIPTIONS_NAME)
        for path, what in _of_topic(directory):
            note(topic, path, what)
        for queue in queues_of(data_dir, topic):
            for path, what in _of_queue(queue_directory(data_dir, topic, queue)):
                note(topic, path, what)
    for store in map(SubscriptionStore, stores):
        files = [path for path in store.directory.glob("*") if path.suffix in SUFFIXES]
        for pattern, name in sorted(set(map(key_of, files))):
            if (damaged := store.damaged(pattern, name)) is not None:
                note(pattern, damaged, f"subscription {name}: its file is damaged")
    return list(found.values())


def _of_topic(directory: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(directory.glob("*.json")):
        yield from _checked(path, _check_map if path.name == MAP_NAME else _check_json)
    yield from _checked(directory / GRANTS_NAME, _check_grants)


def _of_queue(directory: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(directory.glob("*.producers")):
        yield from _checked(path, _check_snapshot)
    for base in segments_of(directory)[:-1]:  # the newest is written to
        yield from _checked(directory / index_name(base), _check_index)


def _checked(path: Path, check: Callable[[Path], None]) -> Iterator[tuple[Path, str]]:
    try:
        check(path)
    except FileNotFoundError:
        return
    except (OSError, TidecastError, ValueError) as problem:  # ValueError: of msgspec, too
        yield path, str(problem)


def _check_json(path: Path) -> None:
    msgspec.json.decode(open_json(path.read_bytes()))


def _check_map(path: Path) -> None:
    msgspec.json.decode(open_json(path.read_bytes()), type=QueueMap)


def _check_grants(path: Path) -> None:
    grants = GrantLog(path.parent)
    grants.load()
    if grants.torn_bytes:
        raise CorruptLog(f"{grants.torn_bytes} bytes at its end are no grant")


def _check_snapshot(path: Path) -> None:
    if not is_snapshot(path.read_bytes(), checksum):
        raise CorruptLog("it is no snapshot of producers, or its checksum is wrong")


def _check_index(path: Path) -> None:
    segment = path.with_name(segment_name(int(path.stem)))
    with segment.open("rb") as log, path.open("rb") as index:
        head = index_header(log.read(lay.SEGMENT_HEADER_BYTES))
        if index.read(lay.SEGMENT_HEADER_BYTES) != head:
            raise CorruptLog("its header is not that of its segment's index")
    entries = (path.stat().st_size - lay.SEGMENT_HEADER_BYTES) / lay.INDEX_ENTRY_BYTES
    sound = read_index(path).shape[0]
    if sound != entries:
        raise CorruptLog(f"entry {sound} is damaged: it is not used")
    raw = np.fromfile(path, dtype=np.uint8, offset=lay.SEGMENT_HEADER_BYTES)
    behind = raw.reshape(-1, lay.INDEX_ENTRY_BYTES)[:, lay.IDX_CRC_AT + 4 :]
    bad = np.flatnonzero(behind.max(axis=1, initial=0))
    if bad.size:
        raise CorruptLog(f"entry {bad[0]}: the bytes behind its checksum are not zero")
