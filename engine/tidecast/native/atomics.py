"""Atomic operations on 64- and 32-bit words inside byte arrays; the memory order is in the name.

Offsets must be aligned to the word. `tests/unit/test_atomics_litmus.py` holds the litmus tests
(message passing, store buffering, lost updates).
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tidecast.native.jit import BOUNDSCHECK, inlined
from tidecast.native.memory import address_at, check, guarded_load, guarded_store

_I64, _I32 = ir.IntType(64), ir.IntType(32)


def _pointer(context: Any, builder: Any, signature: Any, args: Any, kind: Any) -> Any:
    pointer = address_at(context, builder, signature.args[0], args[0], args[1])
    return builder.bitcast(pointer, kind.as_pointer())


def _make_load(kind: Any, ordering: str) -> Any:
    @intrinsic
    def load(typingctx: Any, array: Any, offset: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _pointer(context, builder, signature, args, kind)
            value = builder.load_atomic(pointer, ordering, kind.width // 8)
            return value if kind.width == 64 else builder.sext(value, _I64)

        return types.int64(array, types.int64), codegen

    return load


def _make_store(kind: Any, ordering: str) -> Any:
    @intrinsic
    def store(typingctx: Any, array: Any, offset: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _pointer(context, builder, signature, args, kind)
            value = args[2] if kind.width == 64 else builder.trunc(args[2], kind)
            builder.store_atomic(value, pointer, ordering, kind.width // 8)
            return context.get_dummy_value()

        return types.void(array, types.int64, types.int64), codegen

    return store


def _make_rmw(kind: Any, operation: str) -> Any:
    @intrinsic
    def rmw(typingctx: Any, array: Any, offset: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _pointer(context, builder, signature, args, kind)
            value = args[2] if kind.width == 64 else builder.trunc(args[2], kind)
            old = builder.atomic_rmw(operation, pointer, value, "seq_cst")
            return old if kind.width == 64 else builder.sext(old, _I64)

        return types.int64(array, types.int64, types.int64), codegen

    return rmw


@intrinsic
def _compare_and_swap(typingctx: Any, array: Any, offset: Any, old: Any, new: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature, args, _I64)
        pair = builder.cmpxchg(pointer, args[2], args[3], "acq_rel", "acquire")
        return builder.extract_value(pair, 1)

    return types.boolean(array, types.int64, types.int64, types.int64), codegen


@intrinsic
def _fence(typingctx: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _fence_acquire(typingctx: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("acquire")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _fence_release(typingctx: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("release")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _pause(typingctx: Any) -> Any:
    machine = platform.machine()

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if machine in ("x86_64", "AMD64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])
        elif machine in ("aarch64", "arm64"):
            kind = ir.FunctionType(ir.VoidType(), [_I32])
            hint = builder.module.declare_intrinsic("llvm.aarch64.hint", (), kind)
            builder.call(hint, [ir.Constant(_I32, 1)])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _prefetch(typingctx: Any, array: Any, offset: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature, args, ir.IntType(8))
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", (pointer.type,), kind)
        builder.call(fetch, [pointer, *(ir.Constant(_I32, each) for each in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@inlined
def _compare_and_swap_checked(array, offset, old, new):
    check(array, offset, 8)
    return _compare_and_swap(array, offset, old, new)


load_acquire = guarded_load("load_acquire", _make_load(_I64, "acquire"), 8)
"""64-bit load; later accesses do not move before it."""
load_relaxed = guarded_load("load_relaxed", _make_load(_I64, "monotonic"), 8)
"""64-bit load, indivisible, no order."""
store_release = guarded_store("store_release", _make_store(_I64, "release"), 8)
"""64-bit store; earlier accesses do not move behind it."""
store_relaxed = guarded_store("store_relaxed", _make_store(_I64, "monotonic"), 8)
"""64-bit store, indivisible, no order."""
fetch_add = guarded_store("fetch_add", _make_rmw(_I64, "add"), 8)
"""Add to a word and return its former value. Sequentially consistent, as all below."""
fetch_or = guarded_store("fetch_or", _make_rmw(_I64, "or"), 8)
"""Or into a word and return its former value."""
fetch_and = guarded_store("fetch_and", _make_rmw(_I64, "and"), 8)
"""And into a word and return its former value."""
exchange = guarded_store("exchange", _make_rmw(_I64, "xchg"), 8)
"""Set a word and return its former value."""
load_acquire_i32 = guarded_load("load_acquire_i32", _make_load(_I32, "acquire"), 4)
"""32-bit load (futex words); later accesses do not move before it."""
fetch_add_i32 = guarded_store("fetch_add_i32", _make_rmw(_I32, "add"), 4)
"""Add to a 32-bit word and return its former value."""
compare_and_swap = _compare_and_swap_checked if BOUNDSCHECK else _compare_and_swap
"""``compare_and_swap(array, offset, old, new)``: set the word to new if it is old; True if done."""
fence_seq_cst = _fence
"""Full fence: orders a store before with a load behind it."""
fence_acquire = _fence_acquire
"""Loads before it stay before all accesses behind it."""
fence_release = _fence_release
"""All accesses before it stay before stores behind it."""
pause = _pause
"""Hint to the core that this is a spin loop."""
prefetch = _prefetch
"""``prefetch(array, offset)``: begin to load the cache line of this byte. Any offset is allowed."""
