"""From options to tokens: where a read begins and ends, how much a trigger takes, its parts."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable

from tidecast.errors import ConfigError, GapError
from tidecast.log.reading.range_scan import lost
from tidecast_spark.catalogue import Queue, catalogue_of
from tidecast_spark.options import (
    EARLIEST,
    LATEST,
    Positions,
    SourceOptions,
    Where,
    topics_now,
)
from tidecast_spark.parts import QueueRange

PART_BYTES_MIN = 4 << 20
PARTS_A_CORE, FEW_ROWS = 2, 2_000_000
"""Two, so that cores end together; of few rows one: a task costs as much as 50,000 of them."""


class Planner:
    """Reads the ends of the queues of all read topics, and remembers them."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._catalogue = catalogue_of(options)

    def queues(self) -> list[Queue]:
        """All queues there are now, in order."""
        return [
            one
            for topic in topics_now(self.options, self._catalogue)
            for one in self._catalogue.queues(topic)
            if self.options.queues is None or one.queue in self.options.queues
        ]

    def ends(self) -> Positions:
        """The end of every queue."""
        return _positions((one, one.end_token()) for one in self.queues())

    def at(self, name: str, where: Where) -> Positions:
        """The tokens of option ``name``, by topic and queue. Raises ConfigError if not there."""
        queues = self.queues()
        if where.tokens is not None:
            self._check_queues(name, where.tokens)
        return _positions((one, self._token(name, one, where)) for one in queues)

    def _check_queues(self, name: str, tokens: Positions) -> None:
        for topic in topics_now(self.options, self._catalogue):
            known = [str(one.queue) for one in self._catalogue.queues(topic)]
            for queue in tokens.get(topic, {}):
                if queue not in known:
                    raise ConfigError(
                        f"option {name}: {topic}/{queue}: no such queue: allowed are "
                        f"{', '.join(known)}"
                    )

    def _token(self, name: str, one: Queue, where: Where) -> int:
        token = {"earliest": EARLIEST, "latest": LATEST}.get(where.kind, 0)
        if where.kind == "time":
            return one.token_at_time(where.time_ns)
        if where.tokens is not None:
            # not named: from its start, or not read at all
            token = where.tokens.get(one.topic, {}).get(str(one.queue), EARLIEST)
            if token > one.end_token():
                raise ConfigError(
                    f"option {name}: {one.topic}/{one.queue}: token {token} is behind the "
                    f"end: allowed are {one.earliest_token()} to {one.end_token()}"
                )
        if token == EARLIEST:
            return one.earliest_token()
        return one.end_token() if token == LATEST else token

    def limited(self, start: Positions, end: Positions, rows_max: int) -> Positions:
        """``end``, drawn nearer so that at most ``rows_max`` rows lie in between.

        Each queue gets its share by how much it has waiting, so that none starves.
        """
        waiting = {
            (t, q): token - _start_of(start, t, q, self._earliest(t, q, start))
            for t, queues in end.items()
            for q, token in queues.items()
        }
        total = sum(waiting.values())
        if total <= rows_max:
            return end
        shares = {key: n * rows_max // total for key, n in waiting.items()}
        left = rows_max - sum(shares.values())
        for key, n in waiting.items():
            more = min(left, n - shares[key], 1)
            shares[key] += more
            left -= more
        return {
            t: {q: token - waiting[t, q] + shares[t, q] for q, token in queues.items()}
            for t, queues in end.items()
        }

    def _earliest(self, topic: str, queue: str, start: Positions) -> int:
        if queue in start.get(topic, {}):
            return 0
        return self._file(topic, queue).earliest_token()

    def _file(self, topic: str, queue: str) -> Queue:
        return self._catalogue.queue(topic, int(queue))

    def ranges(self, start: Positions, end: Positions) -> list[QueueRange]:
        """The ranges of each task, in order. Raises GapError for records that are deleted."""
        wanted = []
        for topic, queues in sorted(end.items()):
            for queue, stop in sorted(queues.items(), key=lambda item: int(item[0])):
                file = self._file(topic, queue)
                first = _start_of(start, topic, queue, self._earliest(topic, queue, start))
                first = self._not_lost(file, first, stop)
                if first < stop:
                    wanted.append((file, first, stop))
        rows = sum(stop - first for _, first, stop in wanted)
        parts = self.options.partitions_min or (os.cpu_count() or 1) * (
            PARTS_A_CORE if rows > FEW_ROWS else 1
        )
        found = []
        for file, first, stop in wanted:
            share = -(-parts * (stop - first) // rows)
            cuts = file.cuts(first, stop, share, PART_BYTES_MIN)
            for low, high in itertools.pairwise(cuts):
                found.append(QueueRange(file.topic, file.queue, str(file.directory), low, high))
        return found

    def _not_lost(self, file: Queue, first: int, stop: int) -> int:
        """The first token that can be read; the same unless data was lost."""
        if first >= stop:
            return stop
        earliest = file.earliest_token()
        if first >= earliest:
            return first
        if self.options.fail_on_data_loss:
            raise lost(file.topic, file.queue, first, min(earliest, stop))
        return min(earliest, stop)


def check_forward(start: Positions, end: Positions) -> None:
    """Raise GapError when a queue or topic that was read is gone, or ends before its position."""
    for topic, queues in start.items():
        for queue, token in queues.items():
            stop = end.get(topic, {}).get(queue, -1)
            if stop < token:
                what = "is gone" if stop < 0 else f"ends at {stop}"
                raise GapError(
                    f"{topic}/{queue} {what}, the read stands at token {token}: it was deleted, "
                    "replaced or cut. Begin again with another checkpoint, or set "
                    "failOnDataLoss=false to continue with the records that are there",
                    (max(stop, 0), token),
                )


def _start_of(start: Positions, topic: str, queue: str, default: int) -> int:
    return start.get(topic, {}).get(queue, default)


def _positions(tokens: Iterable[tuple[Queue, int]]) -> Positions:
    found: Positions = {}
    for one, token in tokens:
        found.setdefault(one.topic, {})[str(one.queue)] = token
    return found


def merge_max(a: Positions, b: Positions) -> Positions:
    """For each queue the larger token."""
    merged = {t: dict(queues) for t, queues in a.items()}
    for topic, queues in b.items():
        into = merged.setdefault(topic, {})
        for queue, token in queues.items():
            into[queue] = max(token, into.get(queue, token))
    return merged
