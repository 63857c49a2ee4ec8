"""Many arrays behind one word: how state is passed into and between kernels.

A tuple of twenty arrays is taken apart into some 170 words at every call that is not inlined, and
costs Python about 1 us an array on the way in (measured: 3.8 us a packet in calls alone, 23 us a
kernel entered from Python). A *handle* is the address of a block of int64 words with two words for
each array: its address and its first dimension. In kernels ``S.name`` loads both words and creates
the array on the spot; no references are counted. A `State` keeps its arrays alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
)
from numba.np.numpy_support import as_dtype

from tidecast.native.memory import address

_I64 = ir.IntType(64)


class HandleType(types.Type):  # type: ignore[misc]
    """The Numba type of a kind of handle; ``fields``: (name, type, further dimensions)."""

    def __init__(self, name: str, fields: tuple[tuple[str, Any, tuple[int, ...]], ...]) -> None:
        self.fields = {field: (k, kind, tail) for k, (field, kind, tail) in enumerate(fields)}
        super().__init__(name=f"Handle[{name}]")


@register_model(HandleType)
class _HandleModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _I64)


@infer_getattr
class _HandleAttributes(AttributeTemplate):  # type: ignore[misc]
    key = HandleType

    def generic_resolve(self, handle: Any, attribute: str) -> Any:
        found = handle.fields.get(attribute)
        return None if found is None else found[1]


@lower_getattr_generic(HandleType)
def _lower_field(context: Any, builder: Any, handle: Any, value: Any, attribute: str) -> Any:
    k, kind, tail = handle.fields[attribute]
    words = builder.inttoptr(value, _I64.as_pointer())
    first = builder.load(builder.gep(words, [ir.Constant(_I64, 2 * k)]))
    if isinstance(kind, HandleType):
        return first
    count = builder.load(builder.gep(words, [ir.Constant(_I64, 2 * k + 1)]))
    array = context.make_array(kind)(context, builder)
    element = context.get_data_type(kind.dtype)
    itemsize = as_dtype(kind.dtype).itemsize  # asking LLVM parses a module
    extents = [count, *(ir.Constant(_I64, n) for n in tail)]
    strides: list[Any] = []
    size = itemsize
    for n in (*reversed(tail), 1):
        strides.insert(0, ir.Constant(_I64, size))
        size *= n
    context.populate_array(
        array,
        data=builder.inttoptr(first, element.as_pointer()),
        shape=cgutils.pack_array(builder, extents),
        strides=cgutils.pack_array(builder, strides),
        itemsize=ir.Constant(_I64, itemsize),
        meminfo=None,
    )
    return array._getvalue()


class Kind:
    """A kind of state: ``Kind("sender", [("pubs", PUBLICATION, ()), ("tx", SEND_IO, ())])``."""

    def __init__(self, name: str, fields: Sequence[tuple[str, Any, tuple[int, ...]]]) -> None:
        self.name = name
        self.fields = tuple(fields)
        self.type: HandleType = HandleType(
            name,
            tuple(
                (field, kind.type, ())
                if isinstance(kind, Kind)
                else (field, types.Array(from_dtype(np.dtype(kind)), 1 + len(tail), "C"), tail)
                for field, kind, tail in fields
            ),
        )
        self.of = _entry(self.type)

    def make(self, **arrays: Any) -> State:
        """A state from arrays (and nested states) by field name. Shapes and dtypes are checked."""
        return State(self, arrays)


class State:
    """Arrays by name, and ``words``, the argument of kernels: ``kind.of(words)`` in a kernel."""

    def __init__(self, kind: Kind, parts: dict[str, Any]) -> None:
        self.kind = kind
        self._parts = parts
        self.words = np.zeros(2 * len(kind.fields), dtype=np.int64)
        if set(parts) != {field for field, _, _ in kind.fields}:
            raise TypeError(f"{kind.name}: fields are {[f for f, _, _ in kind.fields]}")
        for k, (field, dtype, tail) in enumerate(kind.fields):
            self._put(k, field, dtype, tail)

    def _put(self, k: int, field: str, dtype: Any, tail: tuple[int, ...]) -> None:
        part = self._parts[field]
        if isinstance(dtype, Kind):
            assert part.kind is dtype, field
            self.words[2 * k] = address(part.words)
            return
        assert part.dtype == np.dtype(dtype), f"{self.kind.name}.{field}: {part.dtype}"
        assert part.shape[1:] == tail and part.flags.c_contiguous, f"{self.kind.name}.{field}"
        self.words[2 * k], self.words[2 * k + 1] = address(part), part.shape[0]

    def replace(self, field: str, part: Any) -> None:
        """Put another array (or state) in a field's place; kernels see it at their next entry."""
        self._parts[field] = part
        for k, (name, dtype, tail) in enumerate(self.kind.fields):
            if name == field:
                self._put(k, field, dtype, tail)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_parts"][name]
        except KeyError:
            raise AttributeError(name) from None


def _entry(kind: HandleType) -> Any:
    @intrinsic
    def enter(typingctx: Any, words: Any) -> Any:
        if not isinstance(words, types.Array):
            return None

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            struct = context.make_array(signature.args[0])(context, builder, args[0])
            return builder.ptrtoint(struct.data, _I64)

        return kind(words), codegen

    return enter
