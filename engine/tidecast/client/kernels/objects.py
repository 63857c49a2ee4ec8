"""What the client does with Python's objects in kernels: take `bytes`, make `bytes` and messages.

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
"""What a publisher's function owns: its port's address in an array, the method for all that is not
plain, what it returns, the type of plain payloads."""
_KIND, _OFFSETS = TUPLE_ITEMS_AT, TUPLE_ITEMS_AT + 8
"""What `_message_list` owns: the type, and where it keeps its fields."""


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
    """``slow``, a method that publishes, for who calls it with `bytes` and nothing else.

    ``cell``: int64[1], the address of the publisher's port. ``done``: what it returns then.
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
    """Compile, or load from the cache, what this module makes functions of."""
    compile_builtin(_put)
    compile_makers()


def compile_makers() -> None:
    """The part of it that makes `bytes` and messages."""
    for kernel in (_payload_list, _message_list):
        compile_builtin(kernel)
