"""Checks of consumers' requests; the start of a cursor, and its saved position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tidecast.agents.puller import entries
from tidecast.agents.puller.runtime import Puller
from tidecast.api.link import ConsumerOptions
from tidecast.errors import AuthError, ConfigError, Conflict
from tidecast.layout import member as lay
from tidecast.layout import segment as seg
from tidecast.log.queue_log import QueueLog
from tidecast.log.redriven import FOR_HEADER
from tidecast.native.packing import unpack_from
from tidecast.node.consumers.state import CursorState, QueueState, restored_rows
from tidecast.queues.attached import AttachedQueue
from tidecast.queues.cache import window as cursor_window
from tidecast.queues.filters.where import where_of
from tidecast.queues.filters.where_kernels import keeps_record
from tidecast.queues.subscription_store import SavedCursor, SavedSubscription


def or_default(chosen: Any, default: Any) -> Any:
    """The chosen value, if there is one."""
    return default if chosen is None else chosen


def start_token(log: QueueLog | AttachedQueue, options: ConsumerOptions | None) -> int:
    """Where a new cursor begins; of topics and queues that appear later: at their beginning."""
    if options is None or options.start == "earliest":
        return log.earliest_token
    if options.start == "latest":
        return log.next_token
    if options.start == "time":
        return log.token_at_time(options.start_time_ns)
    return options.start_tokens.get(log.queue, log.earliest_token)


def check_tokens(pattern: str, tokens: dict[int, int], queues: Iterable[QueueState]) -> None:
    """Raise ConfigError for places that ``queues`` do not have.

    A place behind the end is refused: the records until then would be passed over. A deleted record
    is no error: a cursor begins with the oldest record that is kept.
    """
    there = list(queues)
    unknown = sorted(set(tokens) - {one.queue for one in there})
    if unknown:
        found = f"0 to {max(one.queue for one in there)}" if there else "none"
        raise ConfigError(f"start_tokens: queue {unknown[0]}: {pattern} has {found}")
    for one in there:
        end = one.log.next_token
        if tokens.get(one.queue, 0) > end:
            raise ConfigError(
                f"start_tokens: queue {one.queue}: {tokens[one.queue]}: allowed 0 to {end}, the "
                f"end of that queue of {one.topic}"
            )


def check_options(options: ConsumerOptions) -> None:
    """Raise ConfigError for options outside their limits."""
    limits = (
        ("max_in_flight", options.max_in_flight, 1, cursor_window.WINDOW_MAX),
        ("max_bytes_in_flight", options.max_bytes_in_flight, 1, 1 << 40),
        ("ack_wait_s", options.ack_wait_s, 0.001, 7 * 86400),
        ("max_deliver", options.max_deliver, 0, cursor_window.ATTEMPTS_MAX),
        ("ring_bytes", options.ring_bytes, lay.DELIVERIES_BYTES_MIN, lay.DELIVERIES_BYTES_MAX),
    )
    for field, value, least, most in limits:
        if value is not None and not least <= value <= most:
            raise ConfigError(f"{field}: {value}: allowed {least} to {most}")
    if options.start not in ("earliest", "latest", "time", "tokens"):
        raise ConfigError(f"start: {options.start!r}: allowed earliest, latest, time, tokens")
    if any(token < 0 for token in options.start_tokens.values()):
        raise ConfigError("start_tokens: tokens are at least 0")
    where_of(options.where or "", headers=options.headers)


def check_may_create(pattern: str, name: str, options: ConsumerOptions) -> None:
    """Raise AuthError for a client that may join subscriptions only."""
    if not options.may_create:
        raise AuthError(
            f"subscription {name} of {pattern} is not there, and to create it takes the right "
            f"manage on {pattern}: create it first (tidecast subscription create {pattern} {name})"
            ", or use a key with that right"
        )


def check_same(saved: SavedSubscription, options: ConsumerOptions) -> None:
    """Raise Conflict when a consumer asks for options that its subscription does not have."""
    asked = {
        "ack_wait_s": options.ack_wait_s,
        "max_deliver": options.max_deliver,
        "dead_letter": options.dead_letter,
        "key_pattern": options.key_pattern,
        "headers": options.headers,
        "filter_digest": options.filter_digest,
        "where": options.where,
    }
    if saved.filter_digest and options.filter_digest is None:
        raise Conflict(
            f"where: subscription {saved.name} of {saved.pattern} has a compiled filter: give the "
            "same function, or delete the subscription first"
        )
    for field, value in asked.items():
        if value is not None and value != getattr(saved, field):
            raise Conflict(
                f"{field}: {value!r}: subscription {saved.name} of {saved.pattern} has "
                f"{getattr(saved, field)!r}: leave it out, or delete the subscription first"
            )


def restored(saved: SavedCursor, end: int) -> tuple[int, np.ndarray]:
    """Where a cursor resumes, and the puller's rows of acked and tried records beyond that.

    ``end``: of the log. A host that lost its power may have lost acked records: records that are
    appended in their place are new.
    """
    acked = [(first, min(last, end)) for first, last in saved.acked if first < end]
    attempts = [(token, n) for token, n in saved.attempts if token < end]
    return min(saved.position, end), restored_rows(acked, attempts)


def saved_cursors(
    puller: Puller, cursors: Iterable[tuple[tuple[str, int], CursorState]]
) -> list[SavedCursor]:
    """Positions of cursors. The puller's thread only copies: it delivers nothing meanwhile."""
    here = list(cursors)
    states = puller.call(lambda: [_state_of(puller, cursor) for _, cursor in here])
    return [
        SavedCursor(*key, state.mark, _acked(state), _attempts(state))
        for (key, _), state in zip(here, states, strict=True)
    ]


def note_unsaved(puller: Puller, cursors: Iterable[CursorState]) -> None:
    """Positions of cursors were copied and could not be written: they are to be saved again.

    In any thread: the puller writes nothing but 1 there, and only `saved_cursors` resets it.
    """
    puller.state.cursors["dirty"][[cursor.number for cursor in cursors]] = 1


class _State(NamedTuple):
    """A cursor, copied in the puller's thread."""

    mark: int
    """The watermark."""
    next_token: int
    window: np.ndarray
    """See `window.export_window`."""
    before: np.ndarray
    """The saved position's word on tokens from the mark on: see `Puller.restored_beyond`."""


def _state_of(puller: Puller, cursor: CursorState) -> _State:
    """From now on it is saved."""
    state = _look_at(puller, cursor)
    puller.state.cursors[cursor.number]["dirty"] = 0
    return state


def _look_at(puller: Puller, cursor: CursorState) -> _State:
    """In the puller's thread. A record delivered and never taken was no attempt."""
    record = puller.state.cursors[cursor.number]
    mark, next_token = entries.position_of(puller.words, cursor.number)
    out = np.zeros((int(record["w_next"] - record["w_first"]) + 1, 6), dtype=np.int64)
    window = out[: int(cursor_window.export_window(puller.state.cursors, cursor.number, out))]
    at_members = window[window[:, 1] == cursor_window.OUT]
    at_members[:, 2] -= puller.untaken(at_members[:, 3], at_members[:, 5])
    window[window[:, 1] == cursor_window.OUT] = at_members
    return _State(
        int(mark), int(next_token), window, puller.restored_beyond(cursor.number, int(mark))
    )


def unacked(puller: Puller, cursor: CursorState) -> Iterator[int]:
    """Tokens that are neither acked nor passed over by a filter, to the end of the log."""
    state = puller.call(_look_at, puller, cursor)
    yield from state.window[state.window[:, 1] != cursor_window.DONE, 0].tolist()
    end, next_token = cursor.here.log.next_token, state.next_token
    for first, behind in [*_acked(state), (end, end)]:
        yield from range(next_token, min(first, end))
        next_token = max(next_token, behind)


def keeper(saved: SavedSubscription) -> Callable[[bytes, dict[str, Any]], bool]:
    """The predicate for a record (and its parts) that a subscription gets.

    Filters that are functions run in the puller alone: here they let each record pass.
    """
    key, many = saved.key_pattern.removesuffix("*"), saved.key_pattern.endswith("*")
    text = where_of(saved.where, key if many else "", saved.headers)
    program = np.frombuffer(bytearray(text.program), dtype=np.uint8)  # nothing, if all is let pass

    def keeps(record: bytes, parts: dict[str, Any]) -> bool:
        (word,) = unpack_from("<I", record, seg.REC_LENGTH_AT)
        if word & seg.REC_ENGINE and parts["headers"].get(FOR_HEADER, saved.name) != saved.name:
            return False
        if key and not many and parts["key"] != key.encode():
            return False
        return not program.size or bool(
            keeps_record(program, np.frombuffer(bytearray(record), dtype=np.uint8), 0)
        )

    return keeps


def _acked(state: _State) -> list[tuple[int, int]]:
    """Acknowledged ranges beyond the watermark, in order; ranges that touch are merged.

    A token behind the cursor and not in the window is acked, or a filter passed it over.
    """
    found: list[tuple[int, int]] = []
    held = state.window[state.window[:, 1] != cursor_window.DONE, 0]
    here = _between(state.mark, held, state.next_token)
    for first, end in sorted([*here, *_rows(state.before[state.before[:, 2] < 0, :2])]):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return found


def _between(first: int, tokens: np.ndarray, end: int) -> list[tuple[int, int]]:
    """(first, end) of each run of tokens of [first, end) that ``tokens``, in order, lack."""
    starts, ends = np.append(first, tokens + 1), np.append(tokens, end)
    some = starts < ends
    return list(zip(starts[some].tolist(), ends[some].tolist(), strict=True))


def _attempts(state: _State) -> list[tuple[int, int]]:
    """(token, attempts) of records that were delivered and are not acked, of late or before."""
    window, before = state.window, state.before
    tried = window[(window[:, 1] != cursor_window.DONE) & (window[:, 2] > 0)]
    ahead = before[(before[:, 2] > 0) & (before[:, 0] >= state.next_token)]
    return [*_rows(tried[:, [0, 2]]), *_rows(ahead[:, [0, 2]])]


def _rows(pairs: np.ndarray) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in pairs]
