"""Compile the client's kernels ahead, so that no first message waits for the compiler."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import typeof

from tidecast.buffers import member_ring
from tidecast.buffers.reader import OUT_FIELDS
from tidecast.client.kernels import batches as batch_kernels
from tidecast.client.kernels import cells as cell_kernels
from tidecast.client.kernels import durable as durable_kernels
from tidecast.client.kernels import fields as field_kernels
from tidecast.client.kernels import header_maps as map_kernels
from tidecast.client.kernels import objects as object_kernels
from tidecast.client.kernels import ports
from tidecast.client.kernels import remote as remote_kernels
from tidecast.client.kernels.consumer import gather


def compile_kernels() -> None:
    """Compile, or load from the cache, kernels that publishers and subscribers call a message."""
    writer, words = np.zeros(ports.PORT_FIELDS, dtype=np.int64), np.zeros(1, dtype=np.int64)
    raw = np.zeros(1, dtype=np.uint8)
    _compile(
        [
            (ports.put, (writer, b"", b"", 0, 0, 0)),
            (ports.put_array, (writer, raw)),
            (ports.put_many, (writer, 0, 0, words, 0, 0, 0, 0, words)),
            (ports.seal_open, (writer,)),
            (ports.finish, (writer,)),
            (ports.word_of, (raw, 0)),
            (durable_kernels.durable_count, (raw,)),
            (durable_kernels.ack_state, (raw,)),
            (durable_kernels.arm_ack, (raw,)),
        ]
    )
    compile_reading()
    ports.append_fn()
    object_kernels.compile_builtins()
    batch_kernels.compile_builtins()


def compile_remote() -> None:
    """Compile the further kernels of a gateway and its clients."""
    writer = np.zeros(ports.PORT_FIELDS, dtype=np.int64)
    out = np.zeros((1, OUT_FIELDS), dtype=np.int64)
    columns, words = np.zeros((2, 1), dtype=np.int64), np.zeros(1, dtype=np.int64)
    raw = np.zeros(1, dtype=np.uint8)
    _compile(
        [
            (remote_kernels.message_bytes, (0, 0, out, out)),
            (remote_kernels.fill_block, (0, 0, out, out, 0, 0, 0, raw)),
            (remote_kernels.check_block, (0, 0, words, words, words)),
            (remote_kernels.first_reserved, (0, 0, words, words, words)),
            (remote_kernels.put_block, (writer, 0, 0, words, words, words, 0, words)),
            (remote_kernels.put_gone, (writer, 0)),
            (remote_kernels.receiver_run, (0, 0, columns, 0, 0, 0, words)),
            (remote_kernels.report_durable, (raw, 0, 0)),
            (remote_kernels.word, (raw, 0)),
            (remote_kernels.set_word, (raw, 0, 0)),
            (remote_kernels.mirror_out, (raw, 0, 0, 0, raw)),
            (remote_kernels.mirror_in, (raw, 0, 0, 0, 0, 0)),
            (remote_kernels.wake_if_armed, (raw, 0, raw, 0)),
            (remote_kernels.arm_word, (raw, 0)),
            (remote_kernels.taken_back, (raw, 0, 0, 0, words)),
            (remote_kernels.take_back_at, (raw, 0, words)),
        ]
    )


def compile_consumers() -> None:
    """Compile the further kernels of durable topics: of consumers, and of rings that are moved."""
    writer, words = np.zeros(ports.PORT_FIELDS, dtype=np.int64), np.zeros(1, dtype=np.int64)
    raw = np.zeros(1, dtype=np.uint8)
    state = np.zeros(member_ring.CLIENT_FIELDS, dtype=np.int64)
    rows = np.zeros((1, member_ring.ROW_FIELDS), dtype=np.int64)
    runs = np.zeros((1, member_ring.RUN_FIELDS), dtype=np.int64)
    _compile(
        [
            (durable_kernels.begin_move, (raw, words)),
            (durable_kernels.move_messages, (raw, words, writer, raw)),
            (member_ring.take, (raw, state, raw, rows, runs, 0, True)),
            (member_ring.put_ack, (raw, state, 0, 0, 0, 0, 0, raw, 0)),
            (member_ring.ack_runs, (raw, state, runs, 0, 0, raw)),
            (member_ring.arm_client, (raw, state)),
            (member_ring.wake_member, (raw, raw, 0)),
            (member_ring.note_member, (raw, 0)),
            (gather, (raw, rows, words, raw)),
        ]
    )


@functools.cache
def compile_reading() -> None:
    """The part of it that subscribers call."""
    reader = np.zeros(ports.READ_PORT_FIELDS, dtype=np.int64)
    out, columns = np.zeros((1, OUT_FIELDS), dtype=np.int64), np.zeros((2, 1), dtype=np.int64)
    words, raw = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.uint8)
    _compile(
        [
            (batch_kernels.take, (reader, out, columns, 0)),
            (batch_kernels.extend, (reader, out, columns, 0, 0)),
            (batch_kernels.await_packets, (reader, 0, 0, 0)),
            (batch_kernels.copy_rows, (0, 0, columns, 0, 0, raw)),
            (ports.gather, (0, 0, columns, 0, raw, words)),
            (ports.arrow_views, (0, 0, columns, 0, raw)),
            (ports.ready, (reader,)),
            (ports.arm_reader, (reader, 0)),
            (ports.find_ready, (words, 0, 0)),
            (ports.arm_ports, (words, 0)),
            (ports.release, (reader,)),
            (ports.is_drained, (reader,)),
            (ports.is_held, (reader,)),
            (ports.note_torn, (reader,)),
            (ports.newest, (reader,)),
            (ports.ring_line, (raw, 0)),
            (ports.wait_line, (raw, 0, 0, 0, raw)),
            (ports.wake_loop, (raw, 0, 0, raw, 0, 0, raw)),
        ]
    )
    object_kernels.compile_makers()


_columns: list[bool] = []


def columns_compiled() -> bool:
    """Has `compile_columns` run in this process?"""
    return bool(_columns)


@functools.cache
def compile_columns() -> None:
    """The kernels of `tidecast.client.columns`: for the first batch with columns of a process."""
    cells, words = np.zeros((2, 1), dtype=np.int64), np.zeros(1, dtype=np.int64)
    raw, port = np.zeros(1, dtype=np.uint8), np.zeros(ports.PORT_FIELDS, dtype=np.int64)
    _compile(
        [
            (cell_kernels.locate_offsets, (0, 0, 0, 0, 0, cells)),
            (cell_kernels.locate_fixed, (0, 0, 0, 0, cells)),
            (cell_kernels.locate_views, (0, 0, 0, words, words, cells)),
            (cell_kernels.locate_numbered, (0, 0, 0, 0, 0, cells, cells)),
            (cell_kernels.locate_numbers, (0, 0, 0, 0, 0, cells)),
            (cell_kernels.locate_ends, (0, 0, 0, 0, words)),
            (cell_kernels.scale_times, (cells, 0, words)),
            (cell_kernels.put_cells, (port, cells, cells, cells, words, 0, raw, raw, words)),
            (map_kernels.measure_maps, (words, cells, cells, raw, 0, cells, words)),
            (map_kernels.fill_maps, (words, cells, cells, raw, raw, 0, cells)),
            (map_kernels.check_maps, (0, cells, words)),
            (map_kernels.add_times, (cells, words, raw, raw, 0, cells)),
        ]
    )
    cell_kernels.locate_objects()
    _columns.append(True)


@functools.cache
def compile_fields() -> None:
    """The kernels of `tidecast.client.columns.received`: for the first record batch of a process.

    Kernels that are not on disk take seconds.
    """
    cells, words = np.zeros((2, 1), dtype=np.int64), np.zeros(1, dtype=np.int64)
    raw, ends = np.zeros(1, dtype=np.uint8), np.zeros(1, dtype=np.int32)
    _compile(
        [
            (field_kernels.locate_fields, (0, 0, cells, cells, cells, words)),
            (field_kernels.locate_record_fields, (0, 0, cells, cells, cells, words)),
            (field_kernels.locate_times, (cells, words)),
            (field_kernels.cut_times, (cells, words, raw, 0)),
            (field_kernels.measure_cells, (cells, words, raw)),
            (field_kernels.copy_cells, (cells, words, raw)),
            (field_kernels.mark_times, (words, raw)),
            (field_kernels.measure_entries, (cells, ends, raw, raw, words)),
            (field_kernels.fill_entries, (cells, ends, raw, ends, raw)),
        ]
    )


def _compile(calls: list[tuple[Any, tuple[Any, ...]]]) -> None:
    for kernel, arguments in calls:
        kernel.compile(tuple(typeof(each) for each in arguments))
