"""Re-drive of dead letters whose subscription has its queues at another engine.

The engine that keeps the letters sends them: its SETUP announces that it itself publishes, so the
owner of the records marks the copies as an engine's. The subscription's file, at the engine of its
queues, lists the letters that were sent again. So the control service asks three times a page: for
these marks, for the page, and to note the letters that were sent.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidecast.errors import ConfigError, Conflict, NotFound
from tidecast.log.queue_log import QueueLog
from tidecast.node.consumers.letters.confirmed import MARK
from tidecast.node.consumers.redrive import Page, checked, note_sent
from tidecast.node.consumers.service import DurableSubscriptions
from tidecast.node.live.setup import LEVEL_OF_AREA

_Pairs = list[tuple[int, int]]
"""(queue of the dead-letter topic, token)."""


class Marks(msgspec.Struct):
    """The letters of a subscription that were sent again."""

    dead_letter: str
    here: bool
    """The engine of the subscription keeps the letters, too: it re-drives them itself."""
    redriven: _Pairs
    starts: _Pairs
    """Before these tokens nothing is left."""
    cursors: list[tuple[str, int]]
    """Queues of the subscription: it gave up records of these."""


class Sent(msgspec.Struct):
    """The letters that were sent again, and that the marks of the request did not have."""

    done: _Pairs
    starts: _Pairs
    is_all: bool
    recreated: list[int] = []
    """Queues that were deleted and created again since the request's marks."""


def marks_of(subs: DurableSubscriptions, pattern: str, name: str) -> dict[str, Any]:
    """The marks of a subscription. Raises NotFound: its queues are not here."""
    with subs.lock:
        subscription = subs.get(pattern, name)
        saved = subscription.saved
        marks = Marks(
            dead_letter=saved.dead_letter,
            here=not saved.dead_letter or saved.dead_letter in subs.topics,
            redriven=list(saved.redriven),
            starts=list(saved.redrive_start.items()),
            cursors=list(subscription.cursors),
        )
    return _plain(marks)


def send_page(
    subs: DurableSubscriptions,
    pattern: str,
    name: str,
    *,
    marks: Any,
    limit: int,
    dry_run: bool,
    reason: str | None = None,
    key: str | None = None,
    where: str | None = None,
    to: str | None = None,
    after: list[list[int]] | None = None,
) -> dict[str, Any]:
    """`redrive` of a page of letters that this engine keeps, and ``sent``: see `Sent`.

    Raises NotFound: it does not keep them; Conflict: its cluster is at level 1.
    """
    known = _parsed("marks", marks, Marks)
    noted = set(known.redriven)
    program, behind = checked(limit, where, after)
    if to is None and subs.ctx.topology.level < LEVEL_OF_AREA:
        raise Conflict(
            f"dead letters of subscription {name} of {pattern}: another engine keeps the records, "
            f"and the cluster is at level {subs.ctx.topology.level}: from level {LEVEL_OF_AREA} on "
            "an engine sends such letters again; raise the level, or give `to`"
        )
    with subs.lock:
        here = subs.topics.get(known.dead_letter)
        if here is None:
            raise NotFound(f"topic {known.dead_letter}: this engine does not keep it")
        queues = list(here.queues)
    places, starts, partial = set(known.cursors), dict(known.starts), bool(behind)

    def confirms(record: dict[str, Any], of_engine: bool) -> bool:
        headers = record["headers"]
        return of_engine and (headers.get(f"{MARK}topic"), headers.get(f"{MARK}queue")) in places

    with subs.redrives.of(pattern, name) as turn:
        unnoted = turn.sent_of(here)
        unnoted -= {(q, t) for q, t in unnoted if (q, t) in noted or t < starts.get(q, 0)}
        done = noted | unnoted
        page = Page(pattern, name, reason, key, program, limit, done, starts, partial=partial)
        for one in queues:
            assert isinstance(one.log, QueueLog)
            page.scan(one.queue, one.log, behind.get(one.queue, 0), dry_run, confirms)
        if not dry_run:
            page.send(subs.letters, to)
            unnoted |= {(queue, token) for queue, token, _ in page.found}
        sent = Sent(sorted(unnoted), list(page.starts.items()), page.is_all, sorted(page.recreated))
    return page.result(dry_run) | {"sent": _plain(sent)}


def note_page(subs: DurableSubscriptions, pattern: str, name: str, sent: Any) -> dict[str, Any]:
    """Another engine sent these letters of a subscription again. Raises NotFound."""
    page = _parsed("sent", sent, Sent)
    note_sent(subs, pattern, name, page.done, dict(page.starts), page.recreated, is_all=page.is_all)
    return {}


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain


def _parsed(field: str, raw: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as problem:
        raise ConfigError(f"{field}: {problem}") from None
