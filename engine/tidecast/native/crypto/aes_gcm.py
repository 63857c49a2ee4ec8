"""AES-GCM in kernels: seal and open one packet by libcrypto's EVP, without an allocation.

A key's context keeps the expanded key between packets; only the nonce changes. libcrypto chooses
the code for the processor, so this module requires no feature of the processor.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tidecast.native.crypto import libcrypto as lib
from tidecast.native.jit import BOUNDSCHECK, inlined
from tidecast.native.memory import Span, address_of, check, store_u8

NONCE_BYTES, TAG_BYTES = 12, 16
BYTES_MAX = 1 << 16
"""Longest text, and longest header, of a packet."""
DONE, FORGED, REFUSED = 0, 1, 2
"""Outcomes: done; the tag does not fit; a length is out of range, or libcrypto failed."""

_I64, _I32 = ir.IntType(64), ir.IntType(32)


def _call(builder: Any, function: Any, kinds: list[Any], args: list[Any]) -> Any:
    """LLVM: call a function of C by its address; its int as int64."""
    kind = ir.FunctionType(_I32, kinds)
    pointer = builder.inttoptr(function, kind.as_pointer())
    values = [
        builder.trunc(value, _I32) if want is _I32 else value
        for want, value in zip(kinds, args, strict=True)
    ]
    return builder.sext(builder.call(pointer, values), _I64)


def _entry(*kinds: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _call(builder, args[0], list(kinds), list(args[1:]))

    return types.int64(*[types.int64] * (len(kinds) + 1)), codegen


@intrinsic
def _init(typingctx: Any, function: Any, context: Any, nonce: Any) -> Any:
    def codegen(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        none = ir.Constant(_I64, 0)
        kinds = [_I64] * 5
        return _call(builder, args[0], kinds, [args[1], none, none, none, args[2]])

    return types.int64(types.int64, types.int64, types.int64), codegen


@intrinsic
def _update(
    typingctx: Any, function: Any, context: Any, out: Any, done: Any, text: Any, n: Any
) -> Any:
    return _entry(_I64, _I64, _I64, _I64, _I32)


@intrinsic
def _final(typingctx: Any, function: Any, context: Any, out: Any, done: Any) -> Any:
    return _entry(_I64, _I64, _I64)


@intrinsic
def _control(typingctx: Any, function: Any, context: Any, command: Any, n: Any, at: Any) -> Any:
    return _entry(_I64, _I32, _I32, _I64)


@inlined
def _check_ranges(nonce, header, source, target):
    check(nonce, 0, NONCE_BYTES)
    check(header.data, header.at, header.n)
    check(source.data, source.at, source.n)
    check(target.data, target.at, target.n)


@inlined
def _check_nothing(nonce, header, source, target):
    return


_check = _check_ranges if BOUNDSCHECK else _check_nothing


@inlined
def seal(evp, context, nonce, header, text, target, at, scratch):
    """Encrypt ``text`` to ``target[at:]``; the tag, 16 bytes, follows. Returns DONE or REFUSED.

    ``evp``: `Libcrypto.functions`. ``context``: of a `Key` for sealing. ``nonce``: 12 bytes, never
    used with this key before. ``header``: a `Span`, authenticated, not encrypted. ``scratch``: 8
    bytes. ``text``, a `Span`, and the target may be the same range, but must not overlap otherwise.
    """
    n = text.n
    if n < 0 or n > BYTES_MAX or header.n < 0 or header.n > BYTES_MAX:
        return REFUSED
    _check(nonce, header, text, Span(target, at, n + TAG_BYTES))
    done, to = address_of(scratch), address_of(target) + at
    if _init(evp[lib.ENCRYPT_INIT], context, address_of(nonce)) != 1:
        return REFUSED
    if header.n > 0:
        first = address_of(header.data) + header.at
        if _update(evp[lib.ENCRYPT_UPDATE], context, 0, done, first, header.n) != 1:
            return REFUSED
    if n > 0:
        first = address_of(text.data) + text.at
        if _update(evp[lib.ENCRYPT_UPDATE], context, to, done, first, n) != 1:
            return REFUSED
    if _final(evp[lib.ENCRYPT_FINAL], context, to, done) != 1:
        return REFUSED
    if _control(evp[lib.CONTROL], context, lib.GET_TAG, TAG_BYTES, to + n) != 1:
        return REFUSED
    return DONE


@inlined
def open_sealed(evp, context, nonce, header, text, target, at, scratch):
    """Decrypt ``text``, followed by its tag, to ``target[at:]``. DONE, FORGED or REFUSED.

    The arguments are those of `seal`; ``context``: of a `Key` for opening. Without DONE the target
    holds zeros: nothing of a packet that is not authentic can be read.
    """
    n = text.n
    if n < 0 or n > BYTES_MAX or header.n < 0 or header.n > BYTES_MAX:
        return REFUSED
    _check(nonce, header, Span(text.data, text.at, n + TAG_BYTES), Span(target, at, n))
    outcome = _open(evp, context, nonce, header, text, address_of(target) + at, address_of(scratch))
    if outcome != DONE:
        for i in range(at, at + n):
            store_u8(target, i, 0)
    return outcome


@inlined
def _open(evp, context, nonce, header, text, to, done):
    if _init(evp[lib.DECRYPT_INIT], context, address_of(nonce)) != 1:
        return REFUSED
    if header.n > 0:
        first = address_of(header.data) + header.at
        if _update(evp[lib.DECRYPT_UPDATE], context, 0, done, first, header.n) != 1:
            return REFUSED
    first = address_of(text.data) + text.at
    if text.n > 0 and _update(evp[lib.DECRYPT_UPDATE], context, to, done, first, text.n) != 1:
        return REFUSED
    if _control(evp[lib.CONTROL], context, lib.SET_TAG, TAG_BYTES, first + text.n) != 1:
        return REFUSED
    # libcrypto compares the tags in constant time.
    if _final(evp[lib.DECRYPT_FINAL], context, to, done) != 1:
        return FORGED
    return DONE
