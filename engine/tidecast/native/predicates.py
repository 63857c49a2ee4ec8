"""A user's function, compiled, called from kernels on every record: the filter of a consumer.

Compiled by Numba to a C function; kernels get its address, so it works only in the process of an
embedded engine. Its arrays have their true lengths and every index is checked; its exceptions do
not reach the engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tidecast.errors import ConfigError
from tidecast.native.memory import bytes_at

DROPS, KEEPS, RAISED = 0, 1, 2
"""The answers of a predicate. A record about which it raises is delivered."""
_SIGNATURE = types.int32(types.int64, types.int64, types.int64, types.int64, types.int64)


@intrinsic
def call_predicate(
    typingctx: Any, function: Any, key: Any, key_n: Any, value: Any, value_n: Any, time_ns: Any
) -> Any:
    """Call the predicate at address ``function``; key and value are addresses and lengths."""
    word, answer = ir.IntType(64), ir.IntType(32)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(answer, [word] * 5)
        target = builder.inttoptr(args[0], kind.as_pointer())
        return builder.zext(builder.call(target, args[1:]), word)

    return types.int64(*[types.int64] * 6), codegen


class Predicate:
    """``fn(key: uint8[:], value: uint8[:], timestamp: int64) -> bool``, compiled.

    ``digest`` identifies functions by their code and constants. Keep it alive while its
    ``address`` is in use. Raises ConfigError when it does not compile.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        plain = getattr(fn, "py_func", fn)
        code = getattr(plain, "__code__", None)
        if code is None or code.co_argcount != 3:
            raise ConfigError(
                f"where: {fn!r}: a function of (key, value, timestamp) that returns a bool"
            )
        self.digest = digest_of(plain)
        try:
            self._compiled = _compile(plain)
        except numba.core.errors.NumbaError as problem:
            raise ConfigError(f"where: {plain.__name__} does not compile: {problem}") from problem
        self.address = int(self._compiled.address)


def digest_of(fn: Callable[..., Any]) -> str:
    """16 hex digits of a function's code, its closed-over values and the globals that it names."""
    digest = hashlib.sha256()
    _add(digest, fn, set())
    return digest.hexdigest()[:16]


def _add(digest: Any, value: Any, seen: set[int]) -> None:
    value = getattr(value, "py_func", value)
    code = value if hasattr(value, "co_code") else getattr(value, "__code__", None)
    if code is None:
        raw = value.tobytes() if hasattr(value, "tobytes") else repr(value).encode()
        digest.update(raw + b";")
        return
    if id(code) in seen:
        return
    seen.add(id(code))
    digest.update(code.co_code + repr(code.co_names).encode())
    doc = getattr(value, "__doc__", None)
    for constant in code.co_consts:
        if constant is not doc or constant is None:
            _add(digest, constant, seen)
    for cell in getattr(value, "__closure__", None) or ():
        _add(digest, cell.cell_contents, seen)
    names = getattr(value, "__globals__", {})
    for name in code.co_names:
        if name in names:
            _add(digest, names[name], seen)


def _compile(fn: Callable[..., Any]) -> Any:
    keeps = numba.njit(nogil=True, boundscheck=True, error_model="numpy")(fn)

    def predicate(key: int, key_n: int, value: int, value_n: int, time_ns: int) -> int:
        try:
            if keeps(bytes_at(key, key_n), bytes_at(value, value_n), time_ns):
                return KEEPS
        except Exception:  # noqa: BLE001 - whatever it is, it must not end the engine
            return RAISED
        return DROPS

    return numba.cfunc(_SIGNATURE)(predicate)
