"""Re-drive: dead letters of one subscription go back to it, each once, a page at a time.

A page reads at most SCANNED_MAX records of the dead-letter topic. Where nothing of the subscription
is left before is kept with it, so that the next re-drive does not read that again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidecast.errors import ConfigError, NotFound
from tidecast.log.queue_log import QueueLog
from tidecast.log.redriven import FOR_HEADER
from tidecast.node.consumers.dead_letters import DeadLetters
from tidecast.node.consumers.letters.confirmed import MARK, Confirms, confirms_of
from tidecast.node.consumers.service import DurableSubscriptions
from tidecast.node.consumers.storage import check_target
from tidecast.queues.filters.where import where_of
from tidecast.queues.filters.where_kernels import keeps_record
from tidecast.queues.records import decoded, is_of_engine, records_from
from tidecast.queues.subscription_store import SavedSubscription

REDRIVE_MAX, SCANNED_MAX = 10_000, 100_000
TOKENS_MAX = 1000


@dataclass(slots=True)
class Page:
    """The finds of one page; ``starts``: by queue, before which nothing is left."""

    pattern: str
    name: str
    reason: str | None
    key: str | bytes | None
    program: np.ndarray | None
    """Of a filter as text."""
    limit: int
    done: set[tuple[int, int]]
    starts: dict[int, int]
    found: list[tuple[int, int, dict[str, Any]]] = field(default_factory=list)
    following: dict[int, int] = field(default_factory=dict)
    scanned: int = 0
    unverified: int = 0
    """Letters that any client may have written, and that no record of the subscription confirms."""
    partial: bool = False
    """It begins behind letters that may remain."""
    more: bool = False
    recreated: set[int] = field(default_factory=set)
    """Queues that were deleted and created again: the marks belong to the deleted letters."""

    @property
    def is_all(self) -> bool:
        """Nothing of the subscription is left."""
        chosen = self.reason is not None or self.key is not None or self.program is not None
        return not (self.more or chosen or self.partial)

    @property
    def full(self) -> bool:
        """No more fits."""
        return len(self.found) >= self.limit or self.scanned >= SCANNED_MAX

    def scan(
        self, queue: int, log: QueueLog, after: int, dry_run: bool, confirms: Confirms
    ) -> None:
        """Go through one queue of the dead-letter topic."""
        if self.starts.get(queue, 0) > log.next_token:
            self.recreated.add(queue)
            self.starts[queue] = 0
            self.done = {(q, t) for q, t in self.done if q != queue}
        start = max(log.earliest_token, self.starts.get(queue, 0))
        clear = after <= start
        self.following[queue] = max(start, after)
        for token, raw in records_from(log, max(start, after)):
            if self.full:
                self.more = True
                break
            self.scanned += 1
            self.following[queue] = token + 1
            record = decoded(raw, cut=False)
            left = self._is_mine(record) and (queue, token) not in self.done
            if left and not confirms(record, is_of_engine(raw)):
                self.unverified += 1
                left = False
            if left and self._is_meant(record, raw):
                self.found.append((queue, token, record))
                left = dry_run
            clear = clear and not left
            if clear:
                self.starts[queue] = token + 1

    def send(self, letters: DeadLetters, to: str | None) -> None:
        """Send the finds again, durably. Raises TidecastError."""
        topics = {to or record["headers"][f"{MARK}topic"] for _, _, record in self.found}
        for _, _, record in self.found:
            topic = to or record["headers"][f"{MARK}topic"]
            letters.send(topic, record, self.name if to is None else None)
        for topic in topics:
            letters.sent(topic, plain=to is not None)

    def result(self, dry_run: bool) -> dict[str, Any]:
        """The page as its caller gets it."""
        return {
            "records": len(self.found),
            "scanned": self.scanned,
            "dry_run": dry_run,
            "unverified": self.unverified,
            "tokens": [
                (record["headers"][f"{MARK}queue"], record["headers"][f"{MARK}token"])
                for _, _, record in self.found[:TOKENS_MAX]
            ],
            "next": [list(one) for one in self.following.items()] if self.more else None,
        }

    def _is_mine(self, record: dict[str, Any]) -> bool:
        headers = record["headers"]
        return bool(
            headers.get(f"{MARK}subscription") == self.name
            and headers.get(f"{MARK}pattern") == self.pattern
            and FOR_HEADER
            not in headers  # a letter that was sent again, to the subscription that gave it up
        )

    def _is_meant(self, record: dict[str, Any], raw: bytes) -> bool:
        if self.reason is not None and self.reason not in str(record["headers"][f"{MARK}reason"]):
            return False
        key = self.key.encode() if isinstance(self.key, str) else self.key
        if key is not None and record["key"] != key:
            return False
        if self.program is None:
            return True
        return bool(keeps_record(self.program, np.frombuffer(bytearray(raw), dtype=np.uint8), 0))


def checked(
    limit: int, where: str | None, after: list[list[int]] | None
) -> tuple[np.ndarray | None, dict[int, int]]:
    """The program of a filter, None if all passes; the page's begin. Raises ConfigError."""
    if not 1 <= limit <= REDRIVE_MAX:
        raise ConfigError(f"limit: {limit}: allowed 1 to {REDRIVE_MAX}")
    text = where_of(where or "").program  # nothing, if all is let pass
    program = np.frombuffer(bytearray(text), np.uint8) if text else None
    try:
        behind = {int(queue): int(token) for queue, token in after or []}
    except (TypeError, ValueError):
        raise ConfigError(f"after: {after!r}: allowed is the `next` of a page") from None
    return program, behind


def redrive(
    subs: DurableSubscriptions,
    pattern: str,
    name: str,
    *,
    dry_run: bool,
    reason: str | None = None,
    key: str | bytes | None = None,
    where: str | None = None,
    limit: int = REDRIVE_MAX,
    after: list[list[int]] | None = None,
    to: str | None = None,
) -> dict[str, Any]:
    """Deliver dead letters of one subscription again, each once; ``dry_run``: only list them.

    ``reason``: letters whose reason has this text; ``key``: of this key; ``where``: for which this
    filter holds, which sees them as they lie in the dead-letter topic; at most ``limit``.
    ``after``: the ``next`` of the page before; it is None at the end.
    ``to``: publish them to this durable topic instead. Raises ConfigError,
    and NotFound where another engine keeps the dead letters.
    """
    program, behind = checked(limit, where, after)
    with subs.redrives.of(pattern, name) as turn:
        with subs.lock:
            if to:
                check_target(subs.state, to)
            saved = subs.get(pattern, name).saved
            check_has_letters(saved)
            here = subs.topics.get(saved.dead_letter)
            if here is None:
                _check_here(subs, saved)
            unnoted = turn.sent_of(here)
            done = {(int(queue), int(token)) for queue, token in saved.redriven} | unnoted
            page = Page(pattern, name, reason, key, program, limit, done, dict(saved.redrive_start))
            queues = [] if here is None else list(here.queues)
            page.partial = bool(behind)
            confirms = confirms_of(subs.state, subs.get(pattern, name))
        for one in queues:
            assert isinstance(one.log, QueueLog)
            page.scan(one.queue, one.log, behind.get(one.queue, 0), dry_run, confirms)
        if not dry_run:
            page.send(subs.letters, to)
            sent = [(queue, token) for queue, token, _ in page.found]
            note_sent(
                subs,
                pattern,
                name,
                [*sent, *unnoted],
                page.starts,
                page.recreated,
                is_all=page.is_all,
            )
            unnoted.clear()
        elif page.is_all:
            with subs.lock:
                saved.set_dead_open(len(page.found))
    return page.result(dry_run)


def check_has_letters(saved: SavedSubscription) -> None:
    """Raise ConfigError for a subscription whose records become no dead letters."""
    if not saved.dead_letter:
        raise ConfigError(
            f"subscription {saved.name} of {saved.pattern} has no dead-letter topic: nothing is "
            "kept of a record that it gives up; create it again with dead_letter (--dead-letter)"
        )


def _check_here(subs: DurableSubscriptions, saved: SavedSubscription) -> None:
    """Raise the reason why this engine does not read the dead letters of a subscription."""
    try:
        subs.durable.topic(saved.dead_letter)
    except NotFound as problem:
        raise NotFound(
            f"dead letters of subscription {saved.name} of {saved.pattern}: {problem}; engines "
            "send each other no commands: send them again by the control service"
        ) from problem


def redrive_pages(
    subs: DurableSubscriptions, arguments: dict[str, Any], count_max: int
) -> dict[str, Any]:
    """`redrive` with ``arguments``, page by page, up to ``count_max`` records in all."""
    whole = redrive(subs, **arguments, limit=min(count_max, REDRIVE_MAX))
    while whole["next"] is not None and whole["records"] < count_max:
        left = min(count_max - whole["records"], REDRIVE_MAX)
        page = redrive(subs, **arguments, limit=left, after=whole["next"])
        whole["records"] += page["records"]
        whole["scanned"] += page["scanned"]
        whole["unverified"] += page["unverified"]
        whole["tokens"] = (whole["tokens"] + page["tokens"])[:TOKENS_MAX]
        whole["next"] = page["next"]
    return whole


def note_sent(
    subs: DurableSubscriptions,
    pattern: str,
    name: str,
    sent: list[tuple[int, int]],
    starts: dict[int, int],
    recreated: Collection[int],
    *,
    is_all: bool,
) -> None:
    """Letters were sent again: keep that with their subscription. Raises NotFound."""
    with subs.lock:
        subscription = subs.get(pattern, name)
        saved = subscription.saved
        saved.forget_letters(recreated)
        done = {(int(queue), int(token)) for queue, token in saved.redriven}
        new = [(q, t) for q, t in sent if (q, t) not in done and t >= saved.redrive_start.get(q, 0)]
        saved.set_dead_open(0 if is_all else max(0, saved.dead_open - len(new)))
        saved.note_redriven({*done, *sent}, starts)
        subs.save_or_say(subscription)  # they were sent
