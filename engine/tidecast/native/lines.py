"""Cache lines: tables whose rows fill whole lines, and asking for a line before it is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tidecast.native.memory import address

LINE_BYTES = 64


def in_lines(fields: list[tuple[str, Any]]) -> np.dtype[Any]:
    """A record of these fields, made longer until it fills whole lines."""
    plain = np.dtype(fields)
    assert plain.fields is not None
    names = list(plain.fields)
    return np.dtype(
        {
            "names": names,
            "formats": [plain.fields[name][0] for name in names],
            "offsets": [plain.fields[name][1] for name in names],
            "itemsize": -(-plain.itemsize // LINE_BYTES) * LINE_BYTES,
        }
    )


def lined_table(rows: int, dtype: Any) -> np.ndarray[Any, Any]:
    """``rows`` records of zeros, the first at the beginning of a line."""
    n = rows * np.dtype(dtype).itemsize
    raw = np.zeros(n + LINE_BYTES, dtype=np.uint8)
    at = -address(raw) % LINE_BYTES
    return raw[at : at + n].view(dtype)


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Prefetch the cache line at a raw address. An invalid address has no effect."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        ask = builder.module.declare_intrinsic("llvm.prefetch", (pointer,), kind)
        to_read, all_levels, data = ir.Constant(word, 0), ir.Constant(word, 3), ir.Constant(word, 1)
        builder.call(ask, [builder.inttoptr(args[0], pointer), to_read, all_levels, data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen
