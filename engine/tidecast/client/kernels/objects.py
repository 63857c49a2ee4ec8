"""Python's objects in the client's kernels: take `bytes`, make `bytes` and messages.

Functions of this module are called as the interpreter's own are (see `tidecast.native.objects`),
without a dispatch and without Python code a message. `tidecast bench python` measures the gain.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from itertools import repeat
from typing import Any, TypeVar

import numpy as np

from tidecast.buffers.member_ring import ROW_AT, ROW_LENGTH, ROW_POSITION
from tidecast.buffers.writer import append_into
from tidecast.client.kernels.ports import P_BUSY, bells_of, ring_of, words_at
from tidecast.native.jit import held_kernel, inlined
from tidecast.native.memory import bytes_at
from tidecast.native.objects import (
    ARRAY_DATA_AT,
    ARRAY_STRIDES_AT,
    DATA_AT,
    LENGTH_AT,
    LIST_ITEMS_AT,
    TUPLE_ITEMS_AT,
    TYPE_AT,
    builtin,
    call_object,
    compile_builtin,
    drop,
    field_offsets,
    hold,
    int_of,
    new_bytes,
    new_int,
    new_list,
    new_object,
    put_word,
    word_at,
)

_M = TypeVar("_M")
_CELL, _SLOW, _DONE, _BYTES = (TUPLE_ITEMS_AT + 8 * i for i in range(4))
"""State of a publisher's function: an array with its port's address, the method for calls that are
not plain, the result of plain calls, the type of plain payloads."""
_KIND, _OFFSETS = TUPLE_ITEMS_AT, TUPLE_ITEMS_AT + 8
"""State of `_message_list`: the type, and where it keeps its fields."""

_WALK, _WALK_KIND, _WALK_OFFSETS, _WALK_ORIGIN, _NONE = (TUPLE_ITEMS_AT + 8 * i for i in range(5))
"""State of `_next_message`: its words, the type and where it keeps its fields, the batch, None."""
WALK_ROW, WALK_ROWS, WALK_TABLE_AT, WALK_ROW_BYTES, WALK_BASE = range(5)
WALK_EPOCH_AT, WALK_EPOCH, WALK_MOVED_AT, WALK_MOVED, WALK_TAKEN_AT = range(5, 10)
WALK_FIELDS = 10
"""Words of a walk over a durable batch: next row and number of rows; the table of rows
(`member_ring.ROW_*`), bytes of each; address of the memory of payloads; address of a number that
changes when the walk must end, and the number; the same for moves; where to mark taken records."""


@held_kernel
def _put(own: int, arguments: int, n: int, names: int) -> int:
    """``publish(payload)`` for `bytes` and room in the ring; else the slow method is called."""
    if n == 1 and names == 0:
        payload = word_at(arguments, 0)
        port = words_at(word_at(word_at(word_at(own, _CELL), ARRAY_DATA_AT), 0))
        if word_at(payload, TYPE_AT) == word_at(own, _BYTES) and port[P_BUSY] == 0:
            size = word_at(payload, LENGTH_AT)
            source = bytes_at(payload + DATA_AT, size)
            if (
                append_into(ring_of(port), bells_of(port), port, source, size, source, 0, 0, 0, 0)
                >= 0
            ):
                done = word_at(own, _DONE)
                hold(done)
                return done
    return call_object(word_at(own, _SLOW), arguments, n, names)


def fast_publish(
    cell: np.ndarray[Any, Any], slow: Callable[..., Any], done: object
) -> Callable[..., Any]:
    """A fast form of the publishing method ``slow``, for calls with `bytes` and nothing else.

    ``cell``: int64[1], the address of the publisher's port. ``done``: the result of such calls.
    """
    return builtin(_put, (cell, slow, done, bytes), slow.__name__, _about(slow.__func__))  # type: ignore[attr-defined]


@functools.cache
def _about(function: Callable[..., Any]) -> str:
    """Signature and documentation as `help` and `inspect` read them from a builtin."""
    given = [
        name if each.default is each.empty else f"{name}={each.default!r}"
        for name, each in inspect.signature(function).parameters.items()
    ]
    given[0] = "$self"
    return f"{function.__name__}({', '.join(given)})\n--\n\n{inspect.getdoc(function)}"


@inlined
def _ends(columns: int) -> int:
    """Address of the second of two columns, of the array object ``columns``."""
    return word_at(columns, ARRAY_DATA_AT) + word_at(word_at(columns, ARRAY_STRIDES_AT), 0)


@held_kernel
def _payload_list(_own: int, arguments: int, _n: int, _names: int) -> int:
    """(base address, columns, count): the payloads as a list of `bytes`."""
    base, columns = int_of(word_at(arguments, 0)), word_at(arguments, 8)
    count = int_of(word_at(arguments, 16))
    starts, ends = word_at(columns, ARRAY_DATA_AT), _ends(columns)
    made = new_list(count)
    if made == 0:
        return 0
    items = word_at(made, LIST_ITEMS_AT)
    for i in range(count):
        at = word_at(starts, 8 * i)
        one = new_bytes(base + at, word_at(ends, 8 * i) - at)
        if one == 0:
            drop(made)
            return 0
        put_word(items, 8 * i, one)
    return made


@held_kernel
def _message_list(own: int, arguments: int, _n: int, _names: int) -> int:
    """(base address, columns, count, origin, numbered): the messages as a list of messages."""
    base, columns = int_of(word_at(arguments, 0)), word_at(arguments, 8)
    count, origin = int_of(word_at(arguments, 16)), word_at(arguments, 24)
    numbered = int_of(word_at(arguments, 32))
    starts, ends = word_at(columns, ARRAY_DATA_AT), _ends(columns)
    kind, offsets = word_at(own, _KIND), word_at(word_at(own, _OFFSETS), ARRAY_DATA_AT)
    data_at, origin_at, row_at = word_at(offsets, 0), word_at(offsets, 8), word_at(offsets, 16)
    made = new_list(count)
    if made == 0:
        return 0
    items = word_at(made, LIST_ITEMS_AT)
    for i in range(count):
        at = word_at(starts, 8 * i)
        data = new_bytes(base + at, word_at(ends, 8 * i) - at)
        one = new_object(kind) if data != 0 else 0
        if one == 0:
            if data != 0:
                drop(data)
            drop(made)
            return 0
        put_word(one, data_at, data)
        hold(origin)
        put_word(one, origin_at, origin)
        put_word(one, row_at, new_int(i if numbered != 0 else 0))
        put_word(items, 8 * i, one)
    return made


@held_kernel
def _next_message(own: int, _arguments: int, _n: int, _names: int) -> int:
    """() -> the next message of a batch, marked as taken; None where Python must look."""
    walk, none = word_at(word_at(own, _WALK), ARRAY_DATA_AT), word_at(own, _NONE)
    row = word_at(walk, 8 * WALK_ROW)
    undisturbed = (
        row < word_at(walk, 8 * WALK_ROWS)
        and word_at(word_at(walk, 8 * WALK_EPOCH_AT), 0) == word_at(walk, 8 * WALK_EPOCH)
        and word_at(word_at(walk, 8 * WALK_MOVED_AT), 0) == word_at(walk, 8 * WALK_MOVED)
    )
    if not undisturbed:
        hold(none)
        return none
    at = word_at(walk, 8 * WALK_TABLE_AT) + row * word_at(walk, 8 * WALK_ROW_BYTES)
    kind, origin = word_at(own, _WALK_KIND), word_at(own, _WALK_ORIGIN)
    offsets = word_at(word_at(own, _WALK_OFFSETS), ARRAY_DATA_AT)
    data = new_bytes(
        word_at(walk, 8 * WALK_BASE) + word_at(at, 8 * ROW_AT), word_at(at, 8 * ROW_LENGTH)
    )
    one = new_object(kind) if data != 0 else 0
    if one == 0:
        if data != 0:
            drop(data)
        return 0
    put_word(one, word_at(offsets, 0), data)
    hold(origin)
    put_word(one, word_at(offsets, 8), origin)
    put_word(one, word_at(offsets, 16), new_int(row))
    put_word(word_at(walk, 8 * WALK_TAKEN_AT), 0, word_at(at, 8 * ROW_POSITION))
    put_word(walk, 8 * WALK_ROW, row + 1)
    return one


@functools.cache
def _offsets_of(kind: type[Any]) -> np.ndarray[Any, Any] | None:
    offsets = field_offsets(kind)
    return None if offsets is None else np.array(offsets, dtype=np.int64)


def message_walk(
    kind: type[_M], walk: np.ndarray[Any, Any], origin: Any, *keep: Any
) -> Callable[[], _M | None] | None:
    """A function that gives the next message of a durable batch; None: this cannot be compiled.

    ``walk``: see `WALK_ROW`. The function returns None at the end, and when the epoch or the count
    of moves changed. ``keep``: objects that own the memory whose addresses are in ``walk``.
    """
    offsets = _offsets_of(kind)  # type: ignore[arg-type]
    if offsets is None:
        return None
    return builtin(_next_message, (walk, kind, offsets, origin, None, *keep), "next_message")


@functools.cache
def payload_maker() -> Callable[[int, np.ndarray[Any, Any], int], list[bytes]]:
    """(base, columns, n): the payloads whose starts and ends, from address ``base``, lie there.

    ``columns``: int64[2, n or more].
    """
    return builtin(_payload_list, (), "payload_list")


@functools.cache
def message_maker(kind: type[_M]) -> Callable[[int, np.ndarray[Any, Any], int, Any, int], list[_M]]:
    """(base, columns, n, origin, numbered): those payloads as messages ``kind(data, origin, row)``.

    Rows are 0, or with ``numbered`` 0 to n - 1.
    """
    offsets = field_offsets(kind)
    if offsets is not None:
        own = (kind, np.array(offsets, dtype=np.int64))
        return builtin(_message_list, own, "message_list")

    def by_python(
        base: int, columns: np.ndarray[Any, Any], n: int, origin: Any, numbered: int
    ) -> list[_M]:
        rows = range(n) if numbered else repeat(0)
        return list(map(kind, payload_maker()(base, columns, n), repeat(origin), rows))

    return by_python


def compile_builtins() -> None:
    """Compile, or load from the cache, the kernels of this module."""
    compile_builtin(_put)
    compile_makers()


def compile_makers() -> None:
    """The part of it that makes `bytes` and messages."""
    for kernel in (_payload_list, _message_list, _next_message):
        compile_builtin(kernel)
