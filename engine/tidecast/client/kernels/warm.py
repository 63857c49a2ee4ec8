"""Compile the client's kernels ahead, so that no first message waits for the compiler."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import typeof

from tidecast.buffers import member_ring as mr
from tidecast.buffers.reader import OUT_FIELDS
from tidecast.client.kernels import batches as bk
from tidecast.client.kernels import durable as dk
from tidecast.client.kernels import objects as ok
from tidecast.client.kernels import ports as k
from tidecast.client.kernels import remote as rk
from tidecast.client.kernels.consumer import gather


def compile_kernels() -> None:
    """Compile, or load from the cache, what publishers and subscribers call message by message."""
    writer = np.zeros(k.PORT_FIELDS, dtype=np.int64)
    out = np.zeros((1, OUT_FIELDS), dtype=np.int64)
    columns = np.zeros((2, 1), dtype=np.int64)
    words, raw = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.uint8)
    state = np.zeros(mr.CLIENT_FIELDS, dtype=np.int64)
    rows = np.zeros((1, mr.ROW_FIELDS), dtype=np.int64)
    runs = np.zeros((1, mr.RUN_FIELDS), dtype=np.int64)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (k.put, (writer, b"", b"", 0, 0, 0)),
        (k.put_array, (writer, raw)),
        (k.put_many, (writer, 0, 0, words, 0, 0, 0, 0, words)),
        (k.seal_open, (writer,)),
        (k.finish, (writer,)),
        (rk.message_bytes, (0, 0, out, out)),
        (rk.fill_block, (0, 0, out, out, 0, 0, 0, raw)),
        (rk.check_block, (0, 0, words, words, words)),
        (rk.first_reserved, (0, 0, words, words, words)),
        (rk.put_block, (writer, 0, 0, words, words, words, 0, words)),
        (rk.put_gone, (writer, 0)),
        (rk.receiver_run, (0, 0, columns, 0, 0, 0, words)),
        (rk.tell_durable, (raw, 0, 0)),
        (rk.word, (raw, 0)),
        (rk.set_word, (raw, 0, 0)),
        (rk.mirror_out, (raw, 0, 0, 0, raw)),
        (rk.mirror_in, (raw, 0, 0, 0, 0, 0)),
        (rk.wake_if_armed, (raw, 0, raw, 0)),
        (rk.arm_word, (raw, 0)),
        (rk.taken_back, (raw, 0, 0, 0, words)),
        (rk.take_back_at, (raw, 0, words)),
        (dk.durable_count, (raw,)),
        (dk.ack_state, (raw,)),
        (dk.arm_ack, (raw,)),
        (dk.begin_move, (raw, words)),
        (dk.move_messages, (raw, words, writer, raw)),
        (mr.take, (raw, state, raw, rows, runs, 0, True)),
        (mr.put_ack, (raw, state, 0, 0, 0, 0, 0, raw, 0)),
        (mr.ack_runs, (raw, state, runs, 0, 0, raw)),
        (mr.arm_client, (raw, state)),
        (mr.wake_member, (raw, raw, 0)),
        (mr.note_member, (raw, 0)),
        (gather, (raw, rows, words, raw)),
    ]
    _compile(calls)
    compile_reading()
    k.putter()
    ok.compile_builtins()
    bk.compile_builtins()


@functools.cache
def compile_reading() -> None:
    """The part of it that subscribers call."""
    reader = np.zeros(k.READ_PORT_FIELDS, dtype=np.int64)
    out, columns = np.zeros((1, OUT_FIELDS), dtype=np.int64), np.zeros((2, 1), dtype=np.int64)
    words, raw = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.uint8)
    _compile(
        [
            (bk.take, (reader, out, columns, 0)),
            (bk.extend, (reader, out, columns, 0, 0)),
            (bk.await_packets, (reader, 0, 0, 0)),
            (bk.copy_rows, (0, 0, columns, 0, 0, raw)),
            (k.gather, (0, 0, columns, 0, raw, words)),
            (k.arrow_views, (0, 0, columns, 0, raw)),
            (k.ready, (reader,)),
            (k.arm_reader, (reader, 0)),
            (k.find_ready, (words, 0, 0)),
            (k.arm_ports, (words, 0)),
            (k.let_go, (reader,)),
            (k.is_drained, (reader,)),
            (k.is_held, (reader,)),
            (k.note_torn, (reader,)),
            (k.newest, (reader,)),
            (k.ring_line, (raw, 0)),
            (k.wait_line, (raw, 0, 0, 0, raw)),
        ]
    )
    ok.compile_makers()


def _compile(calls: list[tuple[Any, tuple[Any, ...]]]) -> None:
    for kernel, arguments in calls:
        kernel.compile(tuple(typeof(each) for each in arguments))
