"""Loads, stores and copies on byte arrays, unaligned, little endian, always as int64.

Every function takes a ``uint8[::1]`` array and a byte offset. In checked builds
(``TIDECAST_BOUNDSCHECK=1``) a range outside the array raises IndexError; in normal builds nothing
is checked here: lengths from outside are validated before they come this far.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tidecast.native.jit import BOUNDSCHECK, inlined

BYTES = types.Array(types.uint8, 1, "C")


class Span(NamedTuple):
    """``n`` bytes of ``data`` from ``at`` on: one argument of a kernel, not three, at no cost.

    The compiler takes it apart into its fields. ``n`` may be -1: none. For calls between kernels:
    Python would pay a microsecond for each array in it.
    """

    data: Any
    at: int
    n: int


def address_at(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    """LLVM: the address of byte ``offset`` of a byte array (for the intrinsics of this package)."""
    struct = context.make_array(array_type)(context, builder, array)
    return builder.gep(struct.data, [offset], inbounds=False)


def _is_bytes(array: Any) -> bool:
    return bool(isinstance(array, types.Array) and array.ndim == 1 and array.dtype == types.uint8)


def _make_load(width: int, signed: bool) -> Any:
    @intrinsic
    def load(typingctx: Any, array: Any, offset: Any) -> Any:
        if not _is_bytes(array):
            return None

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = address_at(context, builder, signature.args[0], args[0], args[1])
            kind = ir.IntType(width)
            pointer = builder.bitcast(pointer, kind.as_pointer())
            value = builder.load(pointer, align=1)
            if width == 64:
                return value
            extend = builder.sext if signed else builder.zext
            return extend(value, ir.IntType(64))

        return types.int64(array, types.int64), codegen

    return load


def _make_store(width: int) -> Any:
    @intrinsic
    def store(typingctx: Any, array: Any, offset: Any, value: Any) -> Any:
        if not _is_bytes(array):
            return None

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = address_at(context, builder, signature.args[0], args[0], args[1])
            kind = ir.IntType(width)
            pointer = builder.bitcast(pointer, kind.as_pointer())
            value = args[2] if width == 64 else builder.trunc(args[2], kind)
            builder.store(value, pointer, align=1)
            return context.get_dummy_value()

        return types.void(array, types.int64, types.int64), codegen

    return store


@intrinsic
def _copy(typingctx: Any, target: Any, target_at: Any, source: Any, source_at: Any, n: Any) -> Any:
    if not (_is_bytes(target) and isinstance(source, types.Array)):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = address_at(context, builder, signature.args[0], args[0], args[1])
        frm = address_at(context, builder, signature.args[2], args[2], args[3])
        cgutils.raw_memcpy(builder, to, frm, args[4], 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), codegen


@intrinsic
def _bytes_at(typingctx: Any, address: Any, n: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(BYTES)(context, builder)
        one = context.get_constant(types.intp, 1)
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        context.populate_array(
            array,
            data=pointer,
            shape=cgutils.pack_array(builder, [args[1]]),
            strides=cgutils.pack_array(builder, [one]),
            itemsize=one,
            meminfo=None,
        )
        return array._getvalue()

    return BYTES(types.int64, types.int64), codegen


@intrinsic
def _address(typingctx: Any, array: Any) -> Any:
    if not isinstance(array, types.Buffer):  # arrays, and `bytes`
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.ptrtoint(struct.data, ir.IntType(64))

    return types.int64(array), codegen


@inlined
def check(array, offset, n):
    """Raise IndexError unless ``[offset, offset + n)`` is inside ``array``."""
    if offset < 0 or n < 0 or offset + n > array.size:
        raise IndexError("tidecast kernel: access outside a byte array")


def guarded_load(name: str, raw: Any, n: int) -> Any:
    """``raw(array, offset)`` itself, or in checked builds with its range verified first."""
    if not BOUNDSCHECK:
        return raw

    def load(array, offset):
        check(array, offset, n)
        return raw(array, offset)

    return inlined(_named(name, load))


def guarded_store(name: str, raw: Any, n: int) -> Any:
    """``raw(array, offset, value)`` itself, or in checked builds with its range verified first."""
    if not BOUNDSCHECK:
        return raw

    def store(array, offset, value):
        check(array, offset, n)
        return raw(array, offset, value)

    return inlined(_named(name, store))


def _named(name: str, fn: Any) -> Any:
    # Symbols in cached kernels consist of a name and a number that counts from 0 in every process:
    # two closures with the same name were confused when both came from the cache.
    fn.__name__ = fn.__qualname__ = f"checked_{name}"
    return fn


# Plain intrinsics in normal builds: a wrapper would be compiled into every kernel that uses it,
# which took most of the time to compile the engine (48 s of 66 s).
load_u8 = guarded_load("load_u8", _make_load(8, False), 1)
load_u16 = guarded_load("load_u16", _make_load(16, False), 2)
load_u32 = guarded_load("load_u32", _make_load(32, False), 4)
load_i64 = guarded_load("load_i64", _make_load(64, True), 8)
store_u8 = guarded_store("store_u8", _make_store(8), 1)
store_u16 = guarded_store("store_u16", _make_store(16), 2)
store_u32 = guarded_store("store_u32", _make_store(32), 4)
store_i64 = guarded_store("store_i64", _make_store(64), 8)


@inlined
def _copy_checked(target, target_at, source, source_at, n):
    check(target, target_at, n)
    check(source, source_at, n)
    _copy(target, target_at, source, source_at, n)


copy = _copy_checked if BOUNDSCHECK else _copy
"""``copy(target, target_at, source, source_at, n)``: n bytes, which must not overlap."""
bytes_at = _bytes_at
"""``bytes_at(address, n)``: a byte array over raw memory. The caller keeps the memory alive."""
address_of = _address
"""``address_of(array)``: raw address of an array's first byte."""


def address(array: np.ndarray[Any, Any]) -> int:
    """Raw address of an array's first byte, from Python."""
    return int(array.__array_interface__["data"][0])
