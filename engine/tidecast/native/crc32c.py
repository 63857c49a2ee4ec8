"""CRC32C (Castagnoli) of byte ranges: by the processor's instruction, or by tables without it.

An instruction takes three cycles and the next instruction needs its result, so three stripes are
computed side by side, and joined by tables (M. Adler's crc32c.c). Measured on one core, 64 KiB:
26 GB/s, one stripe 6.8 GB/s, slicing by 8 2.0 GB/s.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tidecast.native.jit import inlined
from tidecast.native.memory import load_i64, load_u8

_I64, _I32 = ir.IntType(64), ir.IntType(32)
_POLYNOMIAL = 0x82F63B78
_MASK = 0xFFFFFFFF


def _instruction() -> str:
    """The LLVM intrinsic for 8 bytes on this processor, or ""."""
    try:
        features = llvmlite.binding.get_host_cpu_features()
    except RuntimeError:
        return ""
    if features.get("sse4.2"):
        return "llvm.x86.sse42.crc32.64.64"
    if features.get("crc"):
        return "llvm.aarch64.crc32cx"
    return ""


INSTRUCTION = _instruction()


def _tables() -> np.ndarray:
    tables = np.zeros((8, 256), dtype=np.int64)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, 8):
        tables[k] = tables[0, tables[k - 1] & 0xFF] ^ (tables[k - 1] >> 8)
    return tables


_TABLES = _tables()


@intrinsic
def _crc_word(typingctx: Any, crc: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = _I64 if INSTRUCTION.startswith("llvm.x86") else _I32
        function = ir.FunctionType(kind, [kind, _I64])
        step = builder.module.declare_intrinsic(INSTRUCTION, (), function)
        crc = args[0] if kind is _I64 else builder.trunc(args[0], _I32)
        value = builder.call(step, [crc, args[1]])
        return value if kind is _I64 else builder.zext(value, _I64)

    return types.int64(types.int64, types.int64), codegen


@inlined
def _crc_bytes(data, at, end, crc):
    while at < end:
        crc = _TABLES[0, (crc ^ load_u8(data, at)) & 0xFF] ^ (crc >> 8)
        at += 1
    return crc


@inlined
def crc32c_by_tables(data, at, n):
    """CRC32C of ``data[at:at + n]`` without the instruction: slicing by 8."""
    crc = _MASK
    end = at + n
    while at + 8 <= end:
        word = load_i64(data, at) ^ crc
        crc = 0
        for k in range(8):
            crc ^= _TABLES[7 - k, (word >> (8 * k)) & 0xFF]
        at += 8
    return _crc_bytes(data, at, end, crc) ^ _MASK


def _times(matrix: list[int], vector: int) -> int:
    found, row = 0, 0
    while vector:
        if vector & 1:
            found ^= matrix[row]
        vector, row = vector >> 1, row + 1
    return found


def _zeros(n: int) -> np.ndarray:
    """int64[4, 256]: a checksum, byte by byte, to that of the same bytes and ``n`` zeros behind.

    ``n``: a power of two. Squares the matrix of one zero bit as often as it takes.
    """
    matrix = [_POLYNOMIAL, *(1 << k for k in range(31))]
    for _ in range((8 * n).bit_length() - 1):
        matrix = [_times(matrix, row) for row in matrix]
    table = np.zeros((4, 256), dtype=np.int64)
    for k in range(4):
        for byte in range(256):
            table[k, byte] = _times(matrix, byte << (8 * k))
    return table


_LONG, _SHORT = 4096, 256
_LONG_ZEROS, _SHORT_ZEROS = _zeros(_LONG), _zeros(_SHORT)


@inlined
def _shifted(table, crc):
    return (
        table[0, crc & 0xFF]
        ^ table[1, crc >> 8 & 0xFF]
        ^ table[2, crc >> 16 & 0xFF]
        ^ table[3, crc >> 24 & 0xFF]
    )


@inlined
def _striped(data, at, stripe, table, crc):
    """The checksum behind three stripes of ``stripe`` bytes that begin at ``data[at]``."""
    second = 0
    third = 0
    for k in range(at, at + stripe, 8):
        crc = _crc_word(crc, load_i64(data, k))
        second = _crc_word(second, load_i64(data, k + stripe))
        third = _crc_word(third, load_i64(data, k + 2 * stripe))
    return _shifted(table, _shifted(table, crc) ^ second) ^ third


@inlined
def _crc32c_by_instruction(data, at, n):
    crc = _MASK
    end = at + n
    while at + 3 * _LONG <= end:
        crc = _striped(data, at, _LONG, _LONG_ZEROS, crc)
        at += 3 * _LONG
    while at + 3 * _SHORT <= end:
        crc = _striped(data, at, _SHORT, _SHORT_ZEROS, crc)
        at += 3 * _SHORT
    while at + 8 <= end:
        crc = _crc_word(crc, load_i64(data, at))
        at += 8
    return _crc_bytes(data, at, end, crc) ^ _MASK


crc32c = _crc32c_by_instruction if INSTRUCTION else crc32c_by_tables
"""``crc32c(data, at, n)``: CRC32C of ``data[at:at + n]``, 0..2^32-1."""
