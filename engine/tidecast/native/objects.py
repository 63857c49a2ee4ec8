"""Calls into kernels that cost Python little: no dispatch, no array or buffer to unpack.

A Numba dispatcher looks at the type of each argument and unpacks arrays and `bytes` into
structures that count references: some 200 ns a call. `direct` gives the compiled function itself,
for one signature; a `bytes` argument declared as `BYTES_OBJECT` arrives as the object's address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import NativeValue, intrinsic, models, register_model, unbox

_I64 = ir.IntType(64)
LENGTH_AT = object.__basicsize__
"""Where a `bytes` object keeps its length: behind what every object has."""
DATA_AT = bytes.__basicsize__ - 1
"""Where its bytes begin: at the end of the structure, whose last byte is the closing zero."""


class BytesObject(types.Type):  # type: ignore[misc]
    """A `bytes` object that the caller holds during the call. Nothing else may be passed."""

    def __init__(self) -> None:
        super().__init__(name="BytesObject")


BYTES_OBJECT = BytesObject()


@register_model(BytesObject)
class _Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _I64)


@unbox(BytesObject)
def _unbox(typ: Any, obj: Any, c: Any) -> Any:
    return NativeValue(c.builder.ptrtoint(obj, _I64))


@intrinsic
def object_address(typingctx: Any, obj: Any) -> Any:
    """The address of a `BYTES_OBJECT` argument."""
    if not isinstance(obj, BytesObject):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return args[0]

    return types.int64(obj), codegen


def direct(kernel: Any, *signature: Any) -> Callable[..., Any]:
    """The compiled function of a kernel for one signature; arguments by position only.

    Types are not checked: the caller passes what the signature says, and nothing else.
    """
    kernel.compile(signature)
    made: Callable[..., Any] = kernel.overloads[signature].entry_point
    return made
