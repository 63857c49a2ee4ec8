"""Cancels records before their delivery time. On the puller's thread, between two cycles.

A cancelled record is completed: the cursor never delivers it. A record that the cursor has passed
waits in the window. A record that the cursor has not reached gets a row of the saved position, as
if it had been completed before this engine started.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tidecast.agents.puller.cycle import puller_of
from tidecast.agents.puller.runtime import Puller
from tidecast.errors import Conflict
from tidecast.native.jit import held_kernel, inlined
from tidecast.native.memory import load_i64, load_u8
from tidecast.queues.cache import cursors, window

CANCELLED, TOO_LATE, ACKED = range(3)
"""The fates of a record: it is cancelled; its time has come, or it was delivered before; it was
acked or cancelled before, or a filter excluded it."""
AHEAD_MAX = window.WINDOW_MAX
"""Rows that a cursor keeps about records that it has yet to come to."""


class Outcome(NamedTuple):
    """How many records of a call are cancelled, are too late to cancel, and were acked before."""

    cancelled: int = 0
    too_late: int = 0
    acked: int = 0

    def plus(self, other: Outcome) -> Outcome:
        """The sums."""
        return Outcome(*(a + b for a, b in zip(self, other, strict=True)))


@inlined
def _cancel(C, win, token, wall_ns, dry_run):
    """Cancel one record that the cursor has passed."""
    w = window.first_at_or_behind(C, win, token)
    if w >= C.w_next:
        return ACKED
    e = window.entry_at(C, w)
    if load_i64(win, e + window.W_TOKEN) != token or window.state_of(win, e) == window.DONE:
        return ACKED
    scheduled = load_u8(win, e + window.W_STATE) & window.SCHEDULED != 0
    if not scheduled or load_i64(win, e + window.W_DEADLINE) <= wall_ns:
        return TOO_LATE
    if not dry_run:
        window.delist(C, win, e)
        window.set_state(win, e, window.DONE)
    return CANCELLED


@held_kernel
def cancel_passed(words, cursor, tokens, wall_ns, dry_run, counts):
    """Cancel those of ``tokens`` (in order) that the cursor has passed. How many it has passed.

    ``counts``: int64[3], by outcome; they are added.
    """
    S = puller_of(words)
    C = S.cursors[cursor]
    cursors.catch_up(S, C, cursor)
    win = window.window_of(C)
    n, cancelled = 0, 0
    while n < tokens.shape[0] and tokens[n] < C.next:
        outcome = _cancel(C, win, tokens[n], wall_ns, dry_run)
        counts[outcome] += 1
        cancelled += 1 if outcome == CANCELLED else 0
        n += 1
    if cancelled > 0 and not dry_run:
        C.cancelled += cancelled
        C.settled += cancelled
        C.dirty = 1
        window.pop_done(C, win)
        if C.reason == cursors.WINDOW_FULL:
            cursors.make_ready(S, cursor)
    return n


@held_kernel
def scheduled_of(words, cursor, out):
    """Tokens of a cursor's window that wait for their delivery time, into ``out``. How many."""
    S = puller_of(words)
    C = S.cursors[cursor]
    win = window.window_of(C)
    n = 0
    for w in range(C.w_first, C.w_next):
        e = window.entry_at(C, w)
        if n < out.shape[0] and load_u8(win, e + window.W_STATE) & window.SCHEDULED:
            out[n] = load_i64(win, e + window.W_TOKEN)
            n += 1
    return n


class Waiting(NamedTuple):
    """A cursor, copied in the puller's thread."""

    tokens: np.ndarray
    """Records in its window that wait for their delivery time."""
    next_token: int
    settled: np.ndarray
    """int64[n, 2] ranges behind ``next_token`` that are completed."""

    def holds(self, token: int) -> bool:
        """Whether the record may still wait for this cursor."""
        if token < self.next_token:
            i = int(np.searchsorted(self.tokens, token))
            return i < self.tokens.size and int(self.tokens[i]) == token
        i = int(np.searchsorted(self.settled[:, 0], token, side="right")) - 1
        return i < 0 or token >= int(self.settled[i, 1])


def look(puller: Puller, cursor: int) -> Waiting:
    """The records that a cursor holds back until their delivery time."""
    record = puller.state.cursors[cursor]
    tokens = np.zeros(int(record["scheduled"]), dtype=np.int64)
    n = int(scheduled_of(puller.words, cursor, tokens))
    next_token = int(record["next"])
    rows = puller.restored_beyond(cursor, next_token)
    return Waiting(tokens[:n], next_token, rows[rows[:, 2] < 0, :2])


def check_room(puller: Puller, cursor: int, count: int) -> None:
    """Raise Conflict when a cursor would keep more than AHEAD_MAX rows for ``count`` records."""
    rows = len(puller.restored_beyond(cursor, int(puller.state.cursors[cursor]["next"])))
    if rows + count > AHEAD_MAX:
        raise Conflict(
            f"{count} records: the subscription keeps {rows} rows about records that it has yet to "
            f"come to, at most {AHEAD_MAX}: let its consumers catch up first"
        )


def cancel(
    puller: Puller, cursor: int, tokens: np.ndarray, due_ns: np.ndarray, *, dry_run: bool
) -> Outcome:
    """Cancel records with delivery times ``due_ns`` (since 1970), in order of their tokens.

    ``dry_run``: only count. The caller has called `check_room`.
    """
    counts, wall_ns = np.zeros(3, dtype=np.int64), puller.wall_ns()
    rows = puller.restored_beyond(cursor, int(puller.state.cursors[cursor]["next"]))
    passed = int(cancel_passed(puller.words, cursor, tokens, wall_ns, dry_run, counts))
    fresh = []
    for token, due in zip(tokens[passed:].tolist(), due_ns[passed:].tolist(), strict=True):
        outcome = _ahead(rows, token, due, wall_ns)
        counts[outcome] += 1
        if outcome == CANCELLED:
            fresh.append(token)
    if fresh and not dry_run:
        record = puller.state.cursors[cursor]
        kept = puller.restored_beyond(cursor, int(record["next"]))
        puller.restore(cursor, _merged(kept, np.array(fresh, dtype=np.int64)))
        record["cancelled"] += len(fresh)
        record["settled"] += len(fresh)
        record["dirty"] = 1
    return Outcome(*counts.tolist())


def _ahead(rows: np.ndarray, token: int, due_ns: int, wall_ns: int) -> int:
    """The outcome for a record that the cursor has not reached; ``rows``: its saved position."""
    i = int(np.searchsorted(rows[:, 0], token, side="right")) - 1
    if i >= 0 and token < int(rows[i, 1]):
        return ACKED if rows[i, 2] < 0 else TOO_LATE
    return CANCELLED if due_ns > wall_ns else TOO_LATE


def _merged(rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Rows of a saved position, with ``tokens`` as completed; completed neighbours are merged."""
    fresh = np.stack([tokens, tokens + 1, np.full_like(tokens, -1)], axis=1)
    every = np.concatenate([rows, fresh])
    found: list[list[int]] = []
    for first, end, attempts in every[np.argsort(every[:, 0], kind="stable")].tolist():
        if found and found[-1][1] == first and found[-1][2] == attempts == -1:
            found[-1][1] = end
        else:
            found.append([first, end, attempts])
    return np.array(found, dtype=np.int64).reshape(-1, 3)
