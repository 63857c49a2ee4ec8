"""Loads, stores and copies on byte arrays, unaligned, little endian, always as int64.

Every function takes a ``uint8[::1]`` array and a byte offset. In checked builds
(``TIDECAST_BOUNDSCHECK=1``) a range outside the array raises IndexError; in normal builds nothing
is checked here: lengths from outside are validated before they come this far.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tidecast.native.jit import BOUNDSCHECK, inlined

BYTES = types.Array(types.uint8, 1, "C")


def address_at(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    """LLVM: the address of byte ``offset`` of a byte array (for the intrinsics of this package)."""
    struct = context.make_array(array_type)(context, builder, array)
    return builder.gep(struct.data, [offset], inbounds=False)


def _is_bytes(array: Any) -> bool:
    return bool(
        isinstance(array, types.Array) and array.ndim == 1 and array.dtype in (types.uint8,)
    )


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


_load_u8, _load_u16 = _make_load(8, False), _make_load(16, False)
_load_u32, _load_i64 = _make_load(32, False), _make_load(64, True)
_store_u8, _store_u16 = _make_store(8), _make_store(16)
_store_u32, _store_i64 = _make_store(32), _make_store(64)


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
def _view(typingctx: Any, address: Any, n: Any) -> Any:
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
    if not isinstance(array, types.Array):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.ptrtoint(struct.data, ir.IntType(64))

    return types.int64(array), codegen


@inlined
def check(array, offset, n):
    """Raise IndexError unless ``[offset, offset + n)`` lies inside ``array``."""
    if offset < 0 or n < 0 or offset + n > array.size:
        raise IndexError("tidecast kernel: access outside a byte array")


@inlined
def load_u8(array, offset):
    """Byte at ``offset``."""
    if BOUNDSCHECK:
        check(array, offset, 1)
    return _load_u8(array, offset)


@inlined
def load_u16(array, offset):
    """Unsigned 16-bit value at ``offset``."""
    if BOUNDSCHECK:
        check(array, offset, 2)
    return _load_u16(array, offset)


@inlined
def load_u32(array, offset):
    """Unsigned 32-bit value at ``offset``."""
    if BOUNDSCHECK:
        check(array, offset, 4)
    return _load_u32(array, offset)


@inlined
def load_i64(array, offset):
    """Signed 64-bit value at ``offset``."""
    if BOUNDSCHECK:
        check(array, offset, 8)
    return _load_i64(array, offset)


@inlined
def store_u8(array, offset, value):
    """Store the low 8 bits of ``value``."""
    if BOUNDSCHECK:
        check(array, offset, 1)
    _store_u8(array, offset, value)


@inlined
def store_u16(array, offset, value):
    """Store the low 16 bits of ``value``."""
    if BOUNDSCHECK:
        check(array, offset, 2)
    _store_u16(array, offset, value)


@inlined
def store_u32(array, offset, value):
    """Store the low 32 bits of ``value``."""
    if BOUNDSCHECK:
        check(array, offset, 4)
    _store_u32(array, offset, value)


@inlined
def store_i64(array, offset, value):
    """Store 64 bits."""
    if BOUNDSCHECK:
        check(array, offset, 8)
    _store_i64(array, offset, value)


@inlined
def copy(target, target_at, source, source_at, n):
    """Copy ``n`` bytes between byte arrays that do not overlap."""
    if BOUNDSCHECK:
        check(target, target_at, n)
        check(source, source_at, n)
    _copy(target, target_at, source, source_at, n)


@inlined
def bytes_at(address, n):
    """A byte array over ``n`` bytes at a raw address. The caller keeps the memory alive."""
    return _view(address, n)


@inlined
def address_of(array):
    """Raw address of an array's first byte."""
    return _address(array)


def address(array: np.ndarray[Any, Any]) -> int:
    """Raw address of an array's first byte, from Python."""
    return int(array.__array_interface__["data"][0])
