"""Resources of a node, page by page: topics, queues on disk, counters, receivers.

For commands on hosts without an engine: an answer has to fit a frame.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import msgspec

from tidecast.config.topology import check_pattern, check_topic_name, matches
from tidecast.errors import ConfigError, NotFound
from tidecast.log.files import queue_directory
from tidecast.log.inspect import list_batches, queue_row
from tidecast.log.queue_files import queues_of, topics_of
from tidecast.node import inspect
from tidecast.node.consumers.service import DurableSubscriptions

ROWS_MAX = 500
Page = dict[str, Any]
"""``rows``, and ``next``: the ``after`` of the next page, None when there is none."""


def _page(keys: list[Any], after: Any, row: Callable[[Any], Any]) -> Page:
    """The rows of the sorted keys behind ``after``."""
    try:
        start = 0 if after is None else bisect_right(keys, after)
    except TypeError:
        raise ConfigError(f"after: {after!r}: allowed is the `next` of the page before") from None
    some = keys[start : start + ROWS_MAX]
    more = start + len(some) < len(keys)
    return {"rows": [row(key) for key in some], "next": some[-1] if more else None}


def topics(subs: DurableSubscriptions, pattern: str = ">", after: str | None = None) -> Page:
    """Topics as a topology writes them, topics made on first use included."""
    check_pattern(pattern)
    with subs.ctx.lock:
        found = {name: t for name, t in subs.ctx.topic_by_name.items() if matches(pattern, name)}
    return _page(sorted(found), after, lambda name: msgspec.to_builtins(found[name]))


def queues(
    subs: DurableSubscriptions, topic: str | None = None, after: list[Any] | None = None
) -> Page:
    """Queues on disk: see `tidecast.log.inspect.queue_row`."""
    data_dir = subs.ctx.data_dir
    names = [name for name in topics_of(data_dir) if topic in (None, name)]
    keys = [[name, number] for name in names for number in queues_of(data_dir, name)]
    return _page(keys, after, lambda key: queue_row(data_dir, *key))


def batches(
    subs: DurableSubscriptions, topic: str, queue: int, count: int = 20, offset: int | None = None
) -> list[dict[str, int]]:
    """Batches of a queue on disk: see `tidecast.log.inspect.list_batches`."""
    if not 1 <= count <= ROWS_MAX:
        raise ConfigError(f"count: {count!r}: allowed are 1 to {ROWS_MAX} batches")
    there = queues_of(subs.ctx.data_dir, check_topic_name(topic))
    if queue not in there:
        raise NotFound(f"queue {queue} of {topic}: this node has the queues {there}")
    return list_batches(queue_directory(subs.ctx.data_dir, topic, queue), count, offset)


def read_log(subs: DurableSubscriptions, topic: str) -> None:
    """A local client is about to read the files of a topic: its right was checked."""
    del subs
    check_topic_name(topic)


def counters(subs: DurableSubscriptions, after: int | None = None) -> Page:
    """Rows of the counters file; ``values`` by `tidecast.layout.counters`."""
    found = {row.index: row for row in subs.ctx.counters.rows()}

    def plain(index: int) -> dict[str, Any]:
        row = found[index]
        return {
            "index": index,
            "kind": row.kind,
            "session": row.session,
            "name": row.name,
            "detail": row.detail,
            "created_ns": row.created_ns,
            "values": row.values.tolist(),
        }

    return _page(sorted(found), after, plain)


def receivers(subs: DurableSubscriptions, after: int | None = None) -> Page:
    """Receivers of the publications of this node."""
    found = inspect.receivers(subs.ctx)
    return _page(list(range(len(found))), after, found.__getitem__)
