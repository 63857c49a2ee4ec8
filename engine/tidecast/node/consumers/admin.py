"""Queries and commands about durable subscriptions: `Link.administer`.

Each action takes a mapping and returns plain values, so that the socket, the REST API and the
command line share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec

from tidecast import events
from tidecast.agents.puller import entries
from tidecast.api.link import ConsumerOptions
from tidecast.api.renamed import OLD_CURSORS, both_names
from tidecast.config.suggestions import near
from tidecast.errors import ConfigError, NotFound, StorageError
from tidecast.node.consumers import lists
from tidecast.node.consumers import redrive as redriving
from tidecast.node.consumers.checks import (
    check_options,
    check_tokens,
    keeper,
    start_token,
    unacked,
)
from tidecast.node.consumers.lag import age_s, lag_of
from tidecast.node.consumers.service import DurableSubscriptions
from tidecast.node.consumers.state import (
    PAUSED_BY,
    CursorState,
    QueueState,
    SubscriptionState,
    TopicState,
    reason_of,
)
from tidecast.node.consumers.storage import report_paused, save_paused, stands_by
from tidecast.node.mirroring import appends
from tidecast.node.scheduling import scheduled
from tidecast.queues.records import decoded

PEEK_MAX = 1000


# --- looking ------------------------------------------------------------------------------------


def list_all(subs: DurableSubscriptions) -> list[dict[str, Any]]:
    """All subscriptions, each with its sums."""
    subs.await_appends()
    with subs.lock:
        here = [k for k, s in sorted(subs.subscriptions.items()) if not stands_by(subs.state, s)]
        return [_show(subs, *key, cursors=False) for key in here]


def show(
    subs: DurableSubscriptions, pattern: str, name: str, cursors: bool = True
) -> dict[str, Any]:
    """A subscription: settings, members, sums, and each of its cursors.

    The lag counts all that this engine's publishers had published before, and ``arriving``.
    """
    subs.await_appends()
    return _show(subs, pattern, name, cursors=cursors)


def _show(subs: DurableSubscriptions, pattern: str, name: str, *, cursors: bool) -> dict[str, Any]:
    with subs.lock:
        subscription = subs.get(pattern, name)
        saved, arriving = subscription.saved, subs.arriving(subscription)
        rows = [cursor_row(subs, cursor) for _, cursor in sorted(subscription.cursors.items())]
        found: dict[str, Any] = {
            "pattern": saved.pattern,
            "name": saved.name,
            "ack_wait_s": saved.ack_wait_s,
            "max_deliver": saved.max_deliver,
            "dead_letter": saved.dead_letter,
            "key_pattern": saved.key_pattern,
            "headers": saved.headers,
            "where": saved.where,
            "paused": saved.paused,
            "created_ns": saved.created_ns,
            "queues": len(rows),
            "members": [
                _member_row(subs, m.number, m.client, m.id) for m in subscription.members.values()
            ],
        }
        for field in _SUMS:
            found[field] = sum(row[field] for row in rows)
        found["arriving"] = arriving
        found["lag"] += arriving
        found["dead_open"] = subs.state.dead_open(saved)
        found["lag_s"] = max((row["lag_s"] for row in rows), default=0.0)
        if cursors:
            found |= both_names(rows)
        return found


_SUMS = (
    "lag",
    "acked_ahead",
    "outstanding",
    "waiting",
    "delivered",
    "settled",
    "redelivered",
    "naks",
    "timeouts",
    "dead",
    "scheduled",
    "cancelled",
)
_FIGURES = (
    "delivered",
    "settled",
    "redelivered",
    "naks",
    "timeouts",
    "dead",
    "filtered",
    "scheduled",
    "cancelled",
)


def cursor_row(subs: DurableSubscriptions, cursor: CursorState) -> dict[str, Any]:
    """One cursor: position, next token, lag in records and seconds, outstanding, why it waits.

    ``lag``: records not acknowledged; ``acked_ahead``: acknowledged records beyond ``position``.
    """
    assert subs.puller is not None
    puller, here, now_ns = subs.puller, cursor.here, subs.state.ctx.wall_ns()
    found = lag_of(puller, cursor, _FIGURES)
    coming = subs.coming(here.topic)
    lag = max(found.records, 1) if coming else found.records
    record = puller.state.cursors[cursor.number]
    numbers = {member.number: member.id for member in _members_of(subs, cursor)}
    return {
        "topic": here.topic,
        "queue": here.queue,
        "position": found.position,
        "next": found.next_token,
        "end": found.end,
        "lag": lag,
        "acked_ahead": found.acked_ahead,
        "lag_s": age_s(puller, cursor, found.oldest, now_ns) if found.late else 0.0,
        "outstanding": found.figures["out"],
        "waiting": found.figures["again_n"],
        "reason": reason_of(cursor, record),
        "paused_by": [name for bit, name in PAUSED_BY.items() if int(record["paused"]) & bit],
        "consumers": sorted({numbers[n] for n in cursor.owners if n in numbers}),
        **{name: found.figures[name] for name in _FIGURES},
    }


def _members_of(subs: DurableSubscriptions, cursor: CursorState) -> list[Any]:
    return [
        member
        for subscription in subs.subscriptions.values()
        if subscription.cursors.get((cursor.here.topic, cursor.here.queue)) is cursor
        for member in subscription.members.values()
    ]


def _member_row(subs: DurableSubscriptions, number: int, client: int, identity: int) -> Any:
    assert subs.puller is not None
    record = subs.puller.state.members[number]
    name = subs.state.ctx.clients[client].name if client in subs.state.ctx.clients else ""
    return {
        "consumer_id": identity,
        "client_id": client,
        "client": name,
        "in_flight": int(record["in_flight"]),
        "max_in_flight": int(record["in_flight_max"]),
        "in_flight_bytes": int(record["in_flight_bytes"]),
        "delivered": int(record["delivered"]),
        "acked": int(record["acked"]),
    }


def cursors(subs: DurableSubscriptions, pattern: str, name: str) -> list[tuple[int, str, int]]:
    """(word in frames, topic, queue) of each cursor."""
    with subs.lock:
        found = subs.subscriptions.get((pattern, name))  # it may stand by meanwhile
        return subs.cursors_of(found or subs.get(pattern, name))


def peek(
    subs: DurableSubscriptions, pattern: str, name: str, limit: int = 10
) -> list[dict[str, Any]]:
    """The next records that are not acknowledged, without delivering them.

    Records that a filter will pass over are left out; of a function, those already passed. Of
    each queue PEEK_MAX records are looked at, at most.
    """
    if not 1 <= limit <= PEEK_MAX:
        raise ConfigError(f"limit: {limit}: allowed 1 to {PEEK_MAX}")
    found: list[dict[str, Any]] = []
    with subs.lock:
        subscription = subs.get(pattern, name)
        keeps = keeper(subscription.saved)
        for (topic, queue), cursor in sorted(subscription.cursors.items()):
            for token, record in _unacked_records(subs, cursor):
                if len(found) >= limit:
                    return found
                parts = decoded(record)
                if keeps(record, parts):
                    found.append({"topic": topic, "queue": queue, "token": token, **parts})
    return found


def _unacked_records(
    subs: DurableSubscriptions, cursor: CursorState
) -> Iterator[tuple[int, bytes]]:
    """Records that are not acknowledged, from the oldest on; other tokens are left out."""
    assert subs.puller is not None
    puller, there = subs.puller, -1
    for token in islice(unacked(puller, cursor), PEEK_MAX):
        if token < there:
            continue
        try:
            there, record = puller.call(puller.record_from, cursor.here.row, token)
        except NotFound:
            return
        if there == token:
            yield token, record


# --- changing -----------------------------------------------------------------------------------


def create(subs: DurableSubscriptions, pattern: str, name: str, **options: Any) -> dict[str, Any]:
    """A new subscription without members."""
    try:
        chosen = msgspec.convert(options, ConsumerOptions)
    except msgspec.ValidationError as problem:
        raise ConfigError(f"subscription {name}: {problem}") from None
    check_options(chosen)
    subs.create(pattern, name, chosen)
    return show(subs, pattern, name)


def delete(subs: DurableSubscriptions, pattern: str, name: str) -> None:
    """End a subscription for good."""
    subs.delete(pattern, name)


def pause(subs: DurableSubscriptions, pattern: str, name: str) -> None:
    """Pause a subscription; remembered over restarts."""
    _set_paused(subs, pattern, name, True)


def resume(subs: DurableSubscriptions, pattern: str, name: str) -> None:
    """Resume."""
    _set_paused(subs, pattern, name, False)


def _set_paused(subs: DurableSubscriptions, pattern: str, name: str, paused: bool) -> None:
    with subs.lock:
        subscription = subs.get(pattern, name)
        before = subscription.saved.set_paused(paused)
        try:
            subs.save_now(subscription)
        except StorageError:
            subscription.saved.set_paused(before)
            raise
        for cursor in subscription.cursors.values():
            subs.apply_pause(subscription, cursor)
    report_paused(subs.state, pattern, -1, name, paused=paused)


def _no_topic(subs: DurableSubscriptions, topic: str) -> NotFound:
    return NotFound(f"no durable topic {topic}{near(topic, subs.topics)}")


def pause_queue(subs: DurableSubscriptions, topic: str, queue: int, paused: bool = True) -> None:
    """Pause or resume one queue for all subscriptions; remembered over restarts."""
    with subs.lock:
        subs.state.check_open(topic)
        here = subs.topics.get(topic)
        if here is None:
            raise _no_topic(subs, topic)
        if not 0 <= queue < len(here.queues):
            raise NotFound(f"no queue {queue} of topic {topic}: it has 0..{len(here.queues) - 1}")
        _pause(subs, here, here.queues[queue], paused)
    report_paused(subs.state, topic, queue, "", paused=paused)


def pause_topic(subs: DurableSubscriptions, topic: str, paused: bool = True) -> None:
    """Pause or resume all queues of a topic for all subscriptions; remembered over restarts."""
    with subs.lock:
        subs.state.check_open(topic)
        here = subs.topics.get(topic)
        if here is None:
            raise _no_topic(subs, topic)
        _pause(subs, here, here, paused)
    report_paused(subs.state, topic, -1, "", paused=paused)


def _pause(
    subs: DurableSubscriptions, here: TopicState, what: TopicState | QueueState, paused: bool
) -> None:
    before = what.set_paused(paused)
    try:
        save_paused(here)
    except StorageError:
        what.set_paused(before)
        raise
    topic = here.config.name
    for subscription in subs.subscriptions.values():
        for key, cursor in subscription.cursors.items():
            if key[0] == topic:
                subs.apply_pause(subscription, cursor)


def seek(
    subs: DurableSubscriptions,
    pattern: str,
    name: str,
    *,
    start: str = "earliest",
    start_time_ns: int = 0,
    start_tokens: dict[int, int] | None = None,
    shift: int = 0,
    topic: str | None = None,
    queue: int | None = None,
    dry_run: bool = False,
) -> list[dict[str, Any]]:
    """Move a subscription, or its cursors of one topic or queue; ``shift``: by so many records.

    To tokens only the queues that are named move. Returns a row a cursor: before, after, how many
    records will come again (below 0) or be passed. A place before the oldest record becomes the
    oldest record; a time or ``shift`` behind the end becomes the end. Raises ConfigError, NotFound.
    """
    options = ConsumerOptions(
        start=start, start_time_ns=start_time_ns, start_tokens=start_tokens or {}
    )
    check_options(options)
    if start == "latest":
        subs.await_appends()
    rows: list[dict[str, Any]] = []
    with subs.lock:
        subscription = subs.get(pattern, name)
        subs.state.check_open(topic or pattern)
        moving = _cursors_of(subscription, topic, queue)
        check_tokens(pattern, options.start_tokens, [cursor.here for cursor in moving.values()])
        for key, cursor in sorted(moving.items()):
            if start == "tokens" and key[1] not in options.start_tokens:
                continue
            before, _ = subs.position_of(cursor)
            log = cursor.here.log
            after = before + shift if shift else start_token(log, options)
            after = min(max(after, log.earliest_token), log.next_token)
            assert subs.puller is not None
            forgotten = int(subs.puller.state.cursors[cursor.number]["out"])
            if not dry_run:
                forgotten = _seek_cursor(subs, cursor, after)
            rows.append(
                {
                    "topic": key[0],
                    "queue": key[1],
                    "before": before,
                    "after": after,
                    "records": after - before,
                    "forgotten": forgotten,
                }
            )
        if not dry_run:
            subs.letters.forget_stored(subscription)
            subs.save_or_say(subscription)  # it has moved
            subs.state.ctx.notify_all(
                events.SubscriptionMoved(
                    topic=pattern,
                    subscription=name,
                    records=sum(row["records"] for row in rows),
                    forgotten=sum(row["forgotten"] for row in rows),
                )
            )
    return rows


def _cursors_of(
    subscription: SubscriptionState, topic: str | None, queue: int | None
) -> dict[tuple[str, int], CursorState]:
    """The cursors of one topic, of one queue, or (None) of all. Raises NotFound."""
    found = {
        key: cursor
        for key, cursor in subscription.cursors.items()
        if topic in (None, key[0]) and queue in (None, key[1])
    }
    if subscription.cursors and not found:
        pattern, name = subscription.key
        which = "queues" if queue is None else f"queue {queue}"
        raise NotFound(f"subscription {name} of {pattern}: no {which} of {topic or pattern}")
    return found


def _seek_cursor(subs: DurableSubscriptions, cursor: CursorState, token: int) -> int:
    assert subs.puller is not None
    puller = subs.puller
    forgotten = puller.call(entries.seek_cursor, puller.words, cursor.number, token)
    puller.call(puller.read_again, cursor.here.row)
    cursor.set_word(puller.cursor_word(cursor.number))
    return int(forgotten)


def redrive(
    subs: DurableSubscriptions, pattern: str, name: str, *, dry_run: bool = False, **which: Any
) -> dict[str, Any]:
    """Deliver dead letters again. See `consumers.redrive`."""
    return redriving.redrive(subs, pattern, name, dry_run=dry_run, **which)


def attached(subs: DurableSubscriptions) -> list[dict[str, Any]]:
    """The queues that adapters keep, which are in no topology. See `Attached.rows`."""
    return subs.attached.rows()


def adapters(subs: DurableSubscriptions) -> list[dict[str, Any]]:
    """The adapters, waiting adapters included. See `Attached.states`."""
    return subs.attached.states()


ACTIONS: dict[str, Callable[..., Any]] = {
    "topics": lists.topics, "queues": lists.queues, "batches": lists.batches,
    "read_log": lists.read_log, "counters": lists.counters, "receivers": lists.receivers,
    "attached": attached, "adapters": adapters,
    "list": list_all, "show": show, "cursors": cursors, OLD_CURSORS: cursors, "peek": peek,
    "create": create, "delete": delete, "pause": pause, "resume": resume, "seek": seek,
    "pause_queue": pause_queue, "pause_topic": pause_topic, "redrive": redrive,
    "scheduled": scheduled.listed, "cancel_scheduled": scheduled.cancel,
    "mirror_marks": appends.mirror_marks, "append_run": appends.append_run,
}  # fmt: skip
