"""The puller's shell: it owns the tables, fetches blocks from sources, and runs the cycles.

A *source* returns a queue's batches: an embedded log or an adapter. Every record that a source
returns is checked when its block is listed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tidecast.agents.events import A_EVENTS, A_STOP
from tidecast.agents.guard import OnFault
from tidecast.agents.idle import BACKOFF, BLOCK, ONCE
from tidecast.agents.puller import entries, fetch
from tidecast.agents.puller import state as puller_tables
from tidecast.agents.puller.blocks import BlockMemory
from tidecast.agents.puller.observer import Dead, Observer
from tidecast.agents.run import ring_bell_line
from tidecast.agents.runner import AgentRunner
from tidecast.buffers.member_ring import MemberFile
from tidecast.errors import Conflict, NotFound, TidecastError
from tidecast.layout import member as lay
from tidecast.layout import segment as seg
from tidecast.native.lines import lined_table
from tidecast.native.mapped import Bytes
from tidecast.native.memory import address
from tidecast.native.predicates import Predicate
from tidecast.queues.cache import blocks, cursors
from tidecast.queues.cache import window as cursor_window
from tidecast.queues.cache.cache import UNKNOWN
from tidecast.queues.filters import filters
from tidecast.queues.filters.where import where_of
from tidecast.queues.mapper import hash_of
from tidecast.queues.records import record_in, record_of
from tidecast.queues.sources import Damage, Fetched, Source

COMMAND_TIMEOUT_S, STOP_PATIENCE_S = 30.0, 10.0
RETRY_NS = 1_000_000_000
PENDING_NS, PATIENCE_NS_MAX = 200_000, 100_000_000
"""Time until the first check whether a read is done; the longest time between such checks."""
_KEY_BYTES = 64
_SMALL_BYTES = _KEY_BYTES + cursor_window.WINDOW_SMALL * (
    cursor_window.ENTRY_BYTES + 2 * cursor_window.KEY_BYTES
)
_GAPS, _HOLES = 1024, 16


def _raise(_agent: str, problem: Exception, _in_a_row: int) -> None:
    """No caller asked for reports: end the thread with a traceback."""
    raise problem


def _kept(raw: bytes) -> Bytes:
    """Bytes for a kernel, and a zero behind them."""
    return np.frombuffer(raw + b"\0", dtype=np.uint8).copy()


@dataclass(slots=True)
class _Pending:
    q: int
    token: int
    b: int
    fresh: bool


@dataclass(slots=True)
class _Unread:
    """A token that could not be read: tried again at ``due_ns``, if the damage may be gone."""

    due_ns: int
    damage: Damage | None

    def is_due(self, now_ns: int) -> bool:
        if now_ns < self.due_ns:
            return False
        if self.damage is None or self.damage.may_be_gone():
            return True
        self.due_ns = now_ns + RETRY_NS
        return False


class Puller(BlockMemory):
    """One puller. ``block_bytes`` x ``blocks_max`` bounds the memory of all caches together."""

    def __init__(
        self,
        *,
        wakes: Bytes,
        bells: Bytes,
        bell: int = 0,
        block_bytes: int = blocks.BLOCK_BYTES,
        blocks_max: int = 1024,
        observer: Observer | None = None,
        on_fault: OnFault | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        if not 1 <= blocks_max <= puller_tables.BLOCKS_MAX:
            raise TidecastError(f"blocks_max: {blocks_max}: 1 to {puller_tables.BLOCKS_MAX}")
        self.state = puller_tables.puller_state(wakes=wakes, bells=bells)
        self.words = self.state.words
        self.block_bytes, self.blocks_max = block_bytes, blocks_max
        self.observer = observer or Observer()
        self.clock_ns, self._wall_ns = clock_ns, wall_ns
        self.sources: dict[int, Source] = {}
        self.oversized = 0
        self.state.misc[puller_tables.P_BELL] = bell
        wakes[lay.WAKE_BELL_AT : lay.WAKE_BELL_AT + 8].view(np.int64)[0] = bell
        self._bells, self._wakes = bells, wakes
        self._windows: dict[int, tuple[Any, ...]] = {}
        self._small = lined_table(cursors.CURSORS_MAX * _SMALL_BYTES, np.uint8).reshape(
            -1, _SMALL_BYTES
        )
        self._members: dict[int, MemberFile] = {}
        self._waiting: dict[int, int] = {}
        self._bad: dict[int, dict[int, _Unread]] = {}
        """By queue, tokens that could not be read."""
        self._reported: dict[int, dict[int, str]] = {}
        """By queue, tokens that could not be read and why, also while a token is tried again."""
        self._pending: dict[int, _Pending] = {}
        self._gaps = np.zeros((_GAPS, 3), dtype=np.int64)
        self._scratch = np.zeros(512, dtype=np.uint8)
        self._idle = BACKOFF
        self._agent = AgentRunner(
            "puller",
            self._turn,
            self.state.attention,
            lambda: None,
            self._wake,
            on_fault or _raise,
            timeout_s=COMMAND_TIMEOUT_S,
        )
        self._make_blocks()
        self._generation = (time.time_ns() >> 20) & 0x3FFFFFFF

    # --- queues -----------------------------------------------------------------------------------

    def add_queue(self, source: Source, blocks_max: int = 4) -> int:
        """A queue; its number."""
        S = self.state
        taken = np.flatnonzero(S.queues["active"] == 0)
        if taken.size == 0:
            raise Conflict(f"a puller serves at most {lay.QUEUES_MAX} queues")
        q = int(taken[0])
        record = S.queues[q]
        S.queues[q] = np.zeros((), dtype=S.queues.dtype)
        record["active"], record["end"], record["want"] = 1, UNKNOWN, -1
        record["blocks_max"] = max(2, min(blocks_max, blocks.QUEUE_BLOCKS_MAX))
        reader = source.here()
        record["reader_address"] = 0 if reader is None else address(reader)
        self.sources[q] = source
        return q

    def remove_queue(self, q: int) -> None:
        """Take a queue away; its cursors are gone already."""
        self._free_blocks_of(q)
        self.sources.pop(q, None)
        for table in (self._waiting, self._pending, self._bad, self._reported):
            table.pop(q, None)
        self.state.queues[q]["active"] = 0

    def _free_blocks_of(self, q: int) -> None:
        held = self.state.held[q, : int(self.state.queues[q]["blocks"])].tolist()
        entries.drop_queue_blocks(self.words, q)
        for b in held:
            self._plain(b)

    # --- cursors ----------------------------------------------------------------------------------

    def add_cursor(
        self,
        sub: int,
        q: int,
        token: int,
        *,
        ack_wait_ns: int = 30_000_000_000,
        deliveries_max: int = 5,
        restored: np.ndarray | None = None,
        window: int = 0,
        name: str = "",
        key_pattern: str = "",
        headers: dict[str, str] | None = None,
        where: str = "",
        predicate: Predicate | None = None,
    ) -> int:
        """A subscription's cursor in queue ``q``, at ``token``. ``restored``: see CURSOR.

        ``key_pattern``: a key (then the cursor follows one stream), or a prefix and ``*``.
        ``where``: a filter's text. ``predicate``: see `filter_by`. Raises ConfigError, Conflict.
        """
        S = self.state
        free = np.flatnonzero(S.cursors["active"] == 0)
        if free.size == 0:
            raise Conflict(f"a puller serves at most {cursors.CURSORS_MAX} cursors")
        cursor = int(free[0])
        generation = max(int(S.cursors[cursor]["generation"]) + 1, self._generation)
        rows = np.zeros((0, 3), dtype=np.int64) if restored is None else restored.copy()
        many = key_pattern.endswith("*")
        chosen = where_of(where, key_pattern[:-1] if many else "", headers)
        stream = chosen.key if many or not key_pattern else key_pattern
        key, own, program = map(_kept, (stream.encode(), name.encode(), chosen.program))
        entries_memory, keys = self._window_memory(cursor, window, bool(stream))
        if stream and key.size <= _KEY_BYTES:
            self._small[cursor, : key.size] = key
            key = self._small[cursor, : key.size]
        self._windows[cursor] = (entries_memory, keys, rows, key, own, program)
        S.cursors[cursor] = np.zeros((), dtype=cursors.CURSOR)
        record = S.cursors[cursor]
        kind = filters.STREAM if stream else filters.CHOSEN if chosen.program else filters.ALL
        values = {
            "generation": generation, "sub": sub, "queue": q, "next": token,
            "reason": cursors.NO_MEMBER, "block": -1, "parked": -1, "owner": -1,
            "window_address": address(entries_memory),
            "window_mask": entries_memory.size // cursor_window.ENTRY_BYTES - 1,
            "keys_address": address(keys),
            "keys_mask": keys.size * 8 // cursor_window.KEY_BYTES - 1,
            "ack_wait_ns": ack_wait_ns, "deliveries_max": deliveries_max,
            "restored_address": address(rows), "restored_n": len(rows),
            "restored_left": len(rows), "filter": kind,
            "stream_hash": hash_of(stream.encode()) if stream else 0,
            "filter_address": address(key), "filter_bytes": key.size - 1,
            "program_address": address(program), "program_bytes": program.size - 1,
            "name_address": address(own), "name_bytes": own.size - 1,
        }  # fmt: skip
        for field, value in values.items():
            record[field] = value
        S.links[cursor] = -1
        S.owners[cursor] = cursors.NOBODY
        S.heirs[cursor] = cursors.NOBODY
        count = int(S.misc[puller_tables.P_CURSORS])
        S.index[count] = cursor
        S.misc[puller_tables.P_CURSORS] = count + 1
        if predicate is not None:
            self.filter_by(cursor, predicate)
        record["active"] = 1
        return cursor

    def _window_memory(self, cursor: int, entries: int, one_stream: bool) -> tuple[Bytes, Any]:
        """Memory for a window. A cursor of one stream begins with few entries, next to its key."""
        if entries or not one_stream:
            return cursor_window.window_memory(entries or cursor_window.WINDOW_MIN)
        memory = self._small[cursor, _KEY_BYTES:]
        memory[:] = 0
        at = cursor_window.WINDOW_SMALL * cursor_window.ENTRY_BYTES
        return memory[:at], memory[at:].view(np.int64)

    def filter_by(self, cursor: int, predicate: Predicate) -> None:
        """Deliver only records that a compiled function keeps; it lives as long as the cursor."""
        record = self.state.cursors[cursor]
        record["filter"] = filters.STREAM if record["filter"] == filters.STREAM else filters.CHOSEN
        record["function_address"] = predicate.address
        self._windows[cursor] = (*self._windows[cursor], predicate)

    def restored_beyond(self, cursor: int, token: int) -> np.ndarray:
        """The rows of the restored position beyond ``token``; none after a seek.

        The window has no entry for records that were completed before the restart: only these rows
        know them.
        """
        rows = self._windows[cursor][2]
        rows = rows[: int(self.state.cursors[cursor]["restored_n"])]
        rows = rows[rows[:, 1] > token].copy()
        rows[:, 0] = np.maximum(rows[:, 0], token)
        return rows

    def restore(self, cursor: int, rows: np.ndarray) -> None:
        """Replace the rows of a saved position for tokens that a cursor has not reached."""
        kept, record = self._windows[cursor], self.state.cursors[cursor]
        self._windows[cursor] = (*kept[:2], rows, *kept[3:])
        record["restored_address"] = address(rows)
        record["restored_n"] = record["restored_left"] = len(rows)

    def wall_ns(self) -> int:
        """The time since 1970: delivery times are compared with it."""
        return self._wall_ns()

    def untaken(self, members: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Whether the member never took it, for each delivery (member, position in its ring)."""
        taken = self.state.members["taken"][members]
        return ((taken - positions) & 0xFFFFFFFF) - 1 >= 1 << 31

    def remove_cursor(self, cursor: int) -> None:
        """Take a cursor away."""
        entries.remove_cursor(self.words, cursor)
        self._windows.pop(cursor, None)

    def cursor_word(self, cursor: int) -> int:
        """The name of a cursor in frames."""
        return int(self.state.cursors[cursor]["generation"]) << 32 | cursor

    def share(self, cursor: int, heirs: np.ndarray | list[int]) -> None:
        """Give the shares of a cursor's keys to members (`cursors.SHARES` of them)."""
        entries.share_cursor(self.words, cursor, np.asarray(heirs, dtype=np.uint16))

    # --- members ----------------------------------------------------------------------------------

    def add_member(
        self,
        make: Callable[[int], MemberFile],
        sub: int,
        *,
        in_flight_max: int = 500,
        in_flight_bytes_max: int = 1 << 40,
        ack_wait_ns: int = 30_000_000_000,
    ) -> int:
        """A member of subscription ``sub``; ``make(number)`` makes its file. Its number."""
        S = self.state
        free = np.flatnonzero(S.members["active"] == 0)
        if free.size == 0:
            raise Conflict(f"a puller serves at most {lay.MEMBERS_MAX} members")
        member = int(free[0])
        file = make(member)
        self._members[member] = file
        S.members[member] = np.zeros((), dtype=puller_tables.MEMBER)
        record = S.members[member]
        values = {
            "sub": sub,
            "ring_address": address(file.array),
            "ring_bytes": file.array.size,
            "deliveries_bytes": file.deliveries_bytes,
            "acks_bytes": file.acks_bytes,
            "bell": file.bell,
            "in_flight_max": in_flight_max,
            "in_flight_bytes_max": in_flight_bytes_max,
            "fragment_cursor": -1,
            "sample_ns": max(1_000_000, ack_wait_ns // 16),
            "taken_ns": self.clock_ns(),
        }
        for field, value in values.items():
            record[field] = value
        record["active"] = 1
        return member

    def drop_member(self, member: int) -> int:
        """A member left or died. How many records go to others."""
        n = int(entries.drop_member(self.words, member, self.clock_ns()))
        file = self._members.pop(member)
        if file.bell:
            ring_bell_line(self._bells, file.bell)
        return n

    # --- fetching ---------------------------------------------------------------------------------

    def _next_fetch(self, q: int) -> None:
        """Fetch the wanted block of a queue; an unreadable token delays no cursor elsewhere."""
        bad = self._bad.get(q)
        if bad is None:
            self._fetch(q)
            return
        now, Q = self.clock_ns(), self.state.queues[q]
        again = [token for token, one in bad.items() if one.is_due(now)]
        for token in again:
            del bad[token]
        if int(Q["want"]) in bad:
            Q["want"], Q["fetching"] = self._elsewhere(q), 0
        if not bad:
            del self._bad[q]
        if Q["want"] >= 0:
            self._fetch(q)
        elif again:  # cursors that still want it ask again
            entries.end_fetch(self.words, q, 0, 0, 0, int(Q["end"]), False)
        if bad:
            self._waiting.setdefault(q, min(one.due_ns for one in bad.values()))

    def _fetch(self, q: int) -> None:
        plan, token, b = entries.plan_fetch(self.words, q)
        if plan == fetch.NOTHING_WANTED:
            return
        if plan == fetch.FRESH and b < 0:
            b = self._new_block(q)
        if plan == fetch.DEFER or b < 0:
            self._waiting[q] = 0
            return
        if plan == fetch.FRESH:
            self._plain(b)
        self._read(_Pending(q, token, b, plan == fetch.FRESH))

    def _read(self, job: _Pending) -> None:
        record = self.state.blocks[job.b]
        if job.fresh:
            record["used"] = record["first"] = record["end"] = record["heads_count"] = 0
            record["lead"], record["holes"] = job.token, 0
            record["holes_max"] = blocks.HOLES_MAX if self.sources[job.q].holes else 0
        buffer = self._memory[job.b][0][int(record["used"]) :]
        try:
            got = self.sources[job.q].read(job.token, buffer)
        except TidecastError as problem:
            self._failed(job, str(problem))
            return
        if got is None:
            self._pending[job.q] = job
        else:
            self._take(job, got)

    def _take(self, job: _Pending, got: Fetched) -> None:
        if got.oldest > job.token:
            self._jump(job.q, job.token, got.oldest)
            self._go_on_at(job, got.oldest)
            if not job.fresh:  # cursors further back in that block have yet to see the gap
                self._instead_fresh(job)
                return
        if got.need_bytes > 0:
            self._make_room(job, got.need_bytes)
            return
        S, b = self.state, job.b
        if got.used == 0:
            self._pass_hole(job.q, job.token, got.next_token)
            self._end(job, 0, 0, got.end if got.next_token > job.token else job.token)
            return
        record = S.blocks[b]
        used = int(record["used"])
        promised = int(blocks.entries_for(S.blocks, b, got.used))
        if promised < 0:
            self._failed(job, "a batch header is not sound")
            return
        self._index_room(b, int(record["end"] - record["first"]) + promised)
        n = int(blocks.add_batches(S.blocks, b, got.used))
        if n == blocks.NOT_CONTIGUOUS and not job.fresh:
            self._instead_fresh(job)
            return
        if n < 0:
            self._failed(job, "a batch is not sound")
            return
        first = int(record["first"])
        if first > job.token and not self.sources[job.q].holes:
            self._jump(job.q, job.token, first)
        self._end(job, int(record["used"]) - used, n, max(got.end, int(record["end"])))

    def _go_on_at(self, job: _Pending, token: int) -> None:
        """The requested records are gone: a fresh block covers the records that follow."""
        job.token = token
        self.state.queues[job.q]["want"] = token
        if job.fresh:
            self.state.blocks[job.b]["lead"] = token

    def _end(self, job: _Pending, used: int, records: int, end: int) -> None:
        if records == 0 and job.fresh:
            self._spare(job.b)
        reported = self._reported.get(job.q)
        if records > 0 and reported and reported.pop(job.token, None) is not None:
            self.observer.readable(job.q, job.token)
        entries.end_fetch(self.words, job.q, job.b, used, records, end, job.fresh)

    def _make_room(self, job: _Pending, need_bytes: int) -> None:
        if not job.fresh:
            self._instead_fresh(job)
            return
        if need_bytes > seg.BATCH_BYTES_MAX or need_bytes <= self._memory[job.b][0].size:
            self._failed(job, f"a batch claims {need_bytes} bytes")
            return
        memory = self._memory[job.b]
        memory[0] = np.empty(need_bytes, dtype=np.uint8)
        record = self.state.blocks[job.b]
        record["data_address"], record["data_bytes"] = address(memory[0]), need_bytes
        record["own"] = 1
        self.oversized += 1
        self._read(job)

    def _instead_fresh(self, job: _Pending) -> None:
        """Read into another block, because this block cannot be extended."""
        record = self.state.blocks[job.b]
        self.state.blocks[job.b]["own"] = 0
        b = -1
        if int(self.state.queues[job.q]["blocks"]) < int(self.state.queues[job.q]["blocks_max"]):
            b = self._new_block(job.q)
        else:
            b = int(entries.evict_block(self.words, job.q))
        if b < 0:
            self._waiting[job.q] = 0
            return
        del record
        self._plain(b)
        self._read(_Pending(job.q, job.token, b, True))

    def _failed(self, job: _Pending, problem: str) -> None:
        S = self.state
        S.queues[job.q]["bad"] += 1
        if job.fresh:
            self._spare(job.b)
        unread = _Unread(self.clock_ns() + RETRY_NS, self.sources[job.q].damage())
        self._bad.setdefault(job.q, {})[job.token] = unread
        self._waiting[job.q] = 0
        reported = self._reported.setdefault(job.q, {})
        if reported.get(job.token) != problem:
            reported[job.token] = problem
            self.observer.damaged(job.q, job.token, problem)

    def read_again(self, q: int) -> None:
        """Read damaged records of a queue once more, if a cursor is there."""
        for one in self._bad.get(q, {}).values():
            one.due_ns, one.damage = 0, None
            self._waiting[q] = 0

    def _elsewhere(self, q: int) -> int:
        """A token that a cursor waits for, and that is not known to be unreadable; -1: none."""
        S, bad = self.state, self._bad[q]
        cursor = int(S.chains[cursors.BLOCK_CHAINS + q])
        while cursor >= 0:
            token = int(S.cursors[cursor]["next"])
            if token not in bad and token < S.queues[q]["end"]:
                return token
            cursor = int(S.links[cursor, cursors.FOR_QUEUE, cursors.NEXT])
        return -1

    def _jump(self, q: int, token: int, first: int) -> None:
        while True:
            n = int(entries.jump_gap(self.words, q, token, first, self._gaps))
            for cursor, before, end in self._gaps[:n].tolist():
                self.observer.gap(cursor, before, end)
            if n < _GAPS:
                return

    def _pass_hole(self, q: int, token: int, first: int) -> None:
        """No record has a token in [token, first)."""
        while first > token:
            n = int(entries.pass_hole(self.words, q, token, first, self._gaps))
            for cursor, before, end in self._gaps[:n].tolist():
                self.observer.gap(cursor, before, end)
            if n < _GAPS:
                return

    def record(self, q: int, token: int) -> bytes:
        """One record of a queue, with its header. Raises TidecastError; NotFound: it is deleted."""
        found, raw = self.record_from(q, token)
        if found != token:
            raise NotFound(f"record {token} is deleted: the next is {found}")
        return raw

    def record_from(self, q: int, token: int) -> tuple[int, bytes]:
        """The first record from ``token`` on, and its token. Raises TidecastError.

        NotFound: there is none, though the queue continues behind ``token``.
        """
        S = self.state
        for b in S.held[q, : int(S.queues[q]["blocks"])].tolist():
            record = S.blocks[b]
            if record["lead"] <= token < record["end"]:
                i = max(0, token - int(record["first"]))
                while not (raw := record_of(self._memory[b], i)):
                    i += 1
                return int(record["first"]) + i, raw
        buffer, begun = np.empty(self.block_bytes, dtype=np.uint8), token
        for _ in range(_HOLES):
            got = self.sources[q].read_now(token, buffer)
            if got is not None and got.need_bytes:
                buffer = np.empty(got.need_bytes, dtype=np.uint8)
                got = self.sources[q].read_now(token, buffer)
            if got is not None and got.used:
                return record_in(buffer, got.used, token)
            if got is None or got.next_token <= token:
                break
            token = got.next_token
        if token > begun:
            raise NotFound(f"no record from {begun} to {token}")
        raise TidecastError(f"record {token} cannot be read now")

    # --- events -----------------------------------------------------------------------------------

    def _handle_events(self) -> int:
        S = self.state
        count = int(S.attention[A_EVENTS])
        rows = S.events[:count].tolist()
        reasons = [
            bytes(S.reasons[k]) if rows[k][4] == puller_tables.DEAD_TERM else b""
            for k in range(count)
        ]
        S.attention[A_EVENTS] = 0
        for row, reason in zip(rows, reasons, strict=True):
            kind, a, b, c, d, e = row[:6]
            if kind == puller_tables.E_FETCH:
                self._next_fetch(a)
            elif kind == puller_tables.E_WINDOW:
                self._grow_window(a)
            elif kind == puller_tables.E_DEAD:
                n = int.from_bytes(reason[:2], "little")
                text = reason[2 : 2 + n].decode(errors="replace")
                self.observer.dead(Dead(a, e, b, c, d, text))
            elif kind == puller_tables.E_HOSTILE:
                self.observer.hostile(a)
            elif kind == puller_tables.E_GONE:
                self.observer.gap(a, b, b + 1)
        return count

    def _grow_window(self, cursor: int) -> None:
        record = self.state.cursors[cursor]
        larger = max(4 * (int(record["window_mask"]) + 1), cursor_window.WINDOW_MIN)
        size = min(larger, cursor_window.WINDOW_MAX)
        if not record["active"] or size <= int(record["window_mask"]) + 1:
            return
        memory, keys = cursor_window.window_memory(size)
        cursor_window.move_window(self.state.cursors, cursor, memory, keys)
        self._windows[cursor] = (memory, keys, *self._windows[cursor][2:])
        record["growing"] = 0
        entries.cursor_ready(self.words, cursor)

    def _look_after_fetches(self, now_ns: int) -> None:
        for q, due_ns in list(self._waiting.items()):
            if due_ns <= now_ns and q not in self._pending:
                del self._waiting[q]
                self._next_fetch(q)
        for q, job in list(self._pending.items()):
            try:
                got = self.sources[q].poll(now_ns)
            except TidecastError as problem:
                del self._pending[q]
                self._failed(job, str(problem))
                continue
            if got is not None:
                del self._pending[q]
                self._take(job, got)

    # --- running ----------------------------------------------------------------------------------

    def work(self, now_ns: int | None = None) -> int:
        """Run one cycle in the caller's thread, its fetches and events, and posted commands."""
        if self.state.attention[A_STOP]:
            self._agent.obey()
        now = self.clock_ns() if now_ns is None else now_ns
        self.state.misc[puller_tables.P_WALL_NS] = self._wall_ns() - now
        done = int(entries.run_puller(self.words, ONCE, self._scratch, now))
        if done < 0:
            done = self._handle_events()
        if self._waiting or self._pending:
            self._look_after_fetches(now)
        return done

    def start(self, idle: int = BACKOFF, core: int | None = None) -> None:
        """Run in a thread of its own."""
        self._idle = idle
        self._agent.start(core)

    def stop(self) -> None:
        """Stop the thread. Idempotent."""
        self._agent.stop(STOP_PATIENCE_S)

    def call(self, fn: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Run ``fn`` between two cycles and return its result; its exception is raised here.

        Raises Timeout when the puller does not answer; ``fn`` never runs then.
        """
        return self._agent.call(partial(fn, *arguments, **named))

    def post(self, fn: Callable[[], None]) -> None:
        """Run ``fn`` between two cycles, some time soon."""
        self._agent.post(fn)

    def _wake(self) -> None:
        ring_bell_line(self._bells, int(self.state.misc[puller_tables.P_BELL]))

    def _turn(self) -> None:
        until_ns, idle = 0, self._idle
        if self._waiting or self._pending:
            self._look_after_fetches(self.clock_ns())
            until_ns = time.monotonic_ns() + self._patience_ns()
            idle = BLOCK if idle == BACKOFF else idle
        entries.run_puller(self.words, idle, self._scratch, until_ns)
        self._handle_events()

    def _patience_ns(self) -> int:
        """When to look after fetches again: soon, unless all of them are to be tried again later.

        A command, a member or a record ends the wait.
        """
        left = min(self._waiting.values(), default=0) - self.clock_ns()
        return PENDING_NS if self._pending else min(max(left, PENDING_NS), PATIENCE_NS_MAX)
