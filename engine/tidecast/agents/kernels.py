"""The kernels of the engine and its clients by name; a process of `warmup` compiles some of them.

    python -m tidecast.agents.kernels NICE NAME ...

It writes each name when it is done, and marks it in the cache.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import typeof

from tidecast.agents.warmup import marker
from tidecast.layout import counters, recorder
from tidecast.layout import ring as lay

_KEPT: list[Any] = []


def _states() -> tuple[Any, Any, Any]:
    from tidecast.agents.states import SCRATCH_BYTES, receiver_state, sender_state
    from tidecast.transport.wire_io import KIND_MEMORY, receive_io, send_io

    shared: Any = {
        "counters": np.zeros((1, counters.COLUMNS), dtype=np.int64),
        "recorder": np.zeros(recorder.FILE_BYTES, dtype=np.uint8),
        "bells": np.zeros(lay.DOORBELLS_MAX * lay.DOORBELL_BYTES, dtype=np.uint8),
    }
    tx = send_io(KIND_MEMORY, -1, [], 1400, False)
    rx = [receive_io(KIND_MEMORY, -1) for _ in range(4)]
    sender = sender_state(tx, rx[3], **shared)
    receiver = receiver_state(rx[:3], tx, name="", seed=1, **shared)
    _KEPT.extend((sender, receiver))
    return sender.words, receiver.words, np.zeros(SCRATCH_BYTES, dtype=np.uint8)


def _compile(kernel: Any, *arguments: Any) -> None:
    kernel.compile(tuple(typeof(a) for a in arguments))


def _archiver() -> None:
    from tidecast.agents.archiver import cycle as archiver_cycle
    from tidecast.agents.archiver.state import archiver_state

    raw, words = np.zeros(64, dtype=np.uint8), np.zeros(8, dtype=np.int64)
    state = archiver_state(counters=np.zeros((1, counters.COLUMNS), dtype=np.int64), bells=raw)
    _KEPT.append(state)
    _compile(archiver_cycle.run_archiver, state.words, 0, words, raw, 0, 0)
    _compile(archiver_cycle.topic_unread, state.words, 0)
    _compile(archiver_cycle.wait_for_sync, state.words, 0, raw)
    _compile(archiver_cycle.sync_done, state.words)
    _compile(archiver_cycle.borrow_archiver, state.words)
    _compile(archiver_cycle.give_back, state.words)
    _compile(archiver_cycle.notify_ring, raw, raw, 0)


def _log() -> None:
    from tidecast.log import append, files
    from tidecast.log.reading import read, scan, select

    raw, words = np.zeros(64, dtype=np.uint8), np.zeros(8, dtype=np.int64)
    rows = np.zeros((1, 2), dtype=np.int64)
    _compile(select.select_records, raw, 0, words, raw, words, words, rows)
    _compile(select.keep_listed, raw, 0, 0, rows, 0, raw)
    _compile(select.find_batch, raw, 0, 0, 0)
    _compile(append.append_sealed, words, raw, 0)
    _compile(append.sync_active, words)
    _compile(append.note_stored, words, 0)
    _compile(read.read_run, words, 0, raw, 0, 0)
    _compile(read.close_reader, words)
    _compile(read.seek_time, words, 0, 0)
    _compile(scan.scan_batches, words, 0, 0)
    files.checksum(b"")


def _puller_state() -> Any:
    from tidecast.agents.puller.state import puller_state
    from tidecast.layout.member import WAKES_BYTES

    state = puller_state(
        wakes=np.zeros(WAKES_BYTES, dtype=np.uint8),
        bells=np.zeros(lay.DOORBELLS_MAX * lay.DOORBELL_BYTES, dtype=np.uint8),
    )
    _KEPT.append(state)
    return state


def _puller() -> None:
    from tidecast.agents.puller import entries

    _compile(entries.run_puller, _puller_state().words, 0, np.zeros(64, dtype=np.uint8), 0)


def _puller_entries() -> None:
    from tidecast.agents.puller import cancelling
    from tidecast.agents.puller import entries as puller_entries
    from tidecast.buffers import member_ring
    from tidecast.queues.cache import blocks, window
    from tidecast.queues.filters import scheduled, where_kernels

    S, raw = _puller_state(), np.zeros(64, dtype=np.uint8)
    words, rows = S.words, np.zeros((1, 3), dtype=np.int64)
    one = (
        puller_entries.plan_fetch,
        puller_entries.steal_block,
        puller_entries.evict_block,
        puller_entries.drop_queue_blocks,
        puller_entries.cursor_ready,
    )
    for each in (
        *one,
        puller_entries.spare_block,
        puller_entries.remove_cursor,
        puller_entries.position_of,
        puller_entries.oldest_due,
        puller_entries.refresh_owners,
    ):
        _compile(each, words, 0)
    for each in (
        puller_entries.drop_one_block,
        puller_entries.pause_cursor,
        puller_entries.drop_member,
        puller_entries.seek_cursor,
    ):
        _compile(each, words, 0, 0)
    _compile(scheduled.deliver_at_of, raw)
    numbers = np.zeros(1, dtype=np.int64)
    _compile(cancelling.cancel_passed, words, 0, numbers, 0, True, numbers)
    _compile(cancelling.scheduled_of, words, 0, numbers)
    _compile(puller_entries.end_fetch, words, 0, 0, 0, 0, 0, True)
    _compile(puller_entries.jump_gap, words, 0, 0, 0, rows)
    _compile(puller_entries.share_cursor, words, 0, np.zeros(1, dtype=np.uint16))
    _compile(puller_entries.complete_dead, words, 0, 0, 0)
    _compile(puller_entries.hurry_timers, words)
    _compile(puller_entries.pass_hole, words, 0, 0, 0, rows)
    _compile(blocks.entries_for, S.blocks, 0, 0)
    _compile(blocks.add_batches, S.blocks, 0, 0)
    _compile(window.move_window, S.cursors, 0, raw, np.zeros(1, dtype=np.int64))
    _compile(window.export_window, S.cursors, 0, np.zeros((1, 6), dtype=np.int64))
    _compile(member_ring.wake_queue, raw, raw, 0)
    _compile(where_kernels.keeps_record, raw, raw, 0)


def tasks() -> dict[str, Callable[[], None]]:
    """The kernels to compile, by name."""
    from tidecast.agents import run
    from tidecast.agents.live import leave, remote_acks
    from tidecast.buffers import reader, writer
    from tidecast.buffers import recorder as rec

    tx, rx, scratch = _states()
    raw = np.zeros(64, dtype=np.uint8)
    words = np.zeros(8, dtype=np.int64)
    out = np.zeros((1, 4), dtype=np.int64)

    def sender() -> None:
        _compile(run.run_sender, tx, 0, scratch)

    def receiver() -> None:
        _compile(run.run_receiver, rx, 0, scratch, raw, 0, 0)
        _compile(leave.leave_session, rx, 0, 0)
        _compile(remote_acks.answer_setup, rx, words, 0, 0)

    def inline() -> None:
        _compile(run.inline_agents, (tx, rx, scratch), 0)

    def rings() -> None:
        _compile(writer.append, raw, raw, words, raw, 0, raw, 0, 0, 0, True)
        _compile(writer.append_batch, raw, raw, words, raw, words, 0, 0, 0, True, words)
        _compile(writer.flush_open, raw, raw, words)
        _compile(writer.close_ring, raw, raw, words)
        _compile(writer.close_abandoned, raw, raw, 0)
        _compile(reader.poll, raw, words, raw, out, 0)
        for each in (reader.arm, reader.drained, reader.still_held):
            _compile(each, raw, words)
        _compile(rec.record_from_python, raw, *([0] * 9))
        _compile(run.ring_bell_line, raw, 0)

    def queues() -> None:
        from tidecast.queues import adapter, generator, mapper

        _compile(mapper.hash_bytes, raw, 0, 0)
        _compile(adapter.fit_run, raw, 0, 0, words)
        _compile(adapter.restamp_run, raw, 0, 0, 0)
        _compile(generator.generate_run, raw, 0, 0, words, words)
        _compile(mapper.grow_table, np.zeros(mapper.SLOTS, dtype=np.uint16), 1, 1)

    from tidecast.client.kernels import warm as of_client

    return {
        "receiver": receiver,
        "sender": sender,
        "rings": rings,
        "inline": inline,
        "client": of_client.compile_kernels,
        "remote": of_client.compile_remote,
        "consumers": of_client.compile_consumers,
        "archiver": _archiver,
        "log": _log,
        "queues": queues,
        "puller": _puller,
        "puller entries": _puller_entries,
    }


def _main(nice: int, names: list[str]) -> None:
    gc.disable()  # the compiler's objects refer to each other in circles, and live to the end
    os.nice(nice)
    by_name = tasks()
    for name in names:
        by_name[name]()
        marker(name).touch()
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
