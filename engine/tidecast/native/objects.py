"""Calls into kernels that cost Python little: no dispatch, no array or buffer to unpack.

A Numba dispatcher looks at the type of each argument and unpacks arrays and `bytes` into
structures that count references: some 200 ns a call. `direct` gives the compiled function itself,
for one signature; a `bytes` argument declared as `BYTES_OBJECT` arrives as the object's address.

`builtin` turns a kernel into a builtin function of the interpreter (20 ns a call): the kernel gets
addresses of objects and returns an address. It uses objects through the functions of Python's C
interface below. Only this module knows offsets within objects; it derives them from the
interpreter.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.types import ExternalFunction
from numba.extending import NativeValue, intrinsic, models, register_model, unbox

from tidecast.native.jit import hot
from tidecast.native.memory import bytes_at, load_i64, store_i64

_I64 = ir.IntType(64)
TYPE_AT = object.__basicsize__ - 8
"""Where an object names its type: the last word of the part that every object has."""
LENGTH_AT = object.__basicsize__
"""Where a `bytes` object keeps its length: behind the part that every object has."""
DATA_AT = bytes.__basicsize__ - 1
"""Where its bytes begin: at the end of the structure, whose last byte is the closing zero."""
TUPLE_ITEMS_AT = tuple.__basicsize__
"""Where a tuple's items begin: behind the structure."""
LIST_ITEMS_AT = LENGTH_AT + 8
"""Where a list keeps the address of its items: behind its length."""
ARRAY_DATA_AT = object.__basicsize__
"""Where a NumPy array keeps the address of its elements: first of its own fields."""

ARRAY_STRIDES_AT = ARRAY_DATA_AT + 24
"""Where it keeps the address of its strides: behind data, dimensions and their address."""

_FASTCALL, _KEYWORDS = 0x80, 0x02
_SIGNATURE = types.int64(types.int64, types.int64, types.int64, types.int64)

new_bytes = ExternalFunction("PyBytes_FromStringAndSize", types.int64(types.int64, types.int64))
"""(address, length): a new `bytes`, or 0 with MemoryError set."""
new_list = ExternalFunction("PyList_New", types.int64(types.int64))
"""(length): a new list whose items are to be stored, or 0 with MemoryError set."""
new_int = ExternalFunction("PyLong_FromLongLong", types.int64(types.int64))
int_of = ExternalFunction("PyLong_AsLongLong", types.int64(types.int64))
new_object = ExternalFunction("_PyObject_New", types.int64(types.int64))
"""(type): a new object without fields set, of a type that the collector does not track; or 0."""
call_object = ExternalFunction(
    "PyObject_Vectorcall", types.int64(types.int64, types.int64, types.int64, types.int64)
)
"""(function, arguments, count, names): the function's result, or 0 with its exception set."""
hold = ExternalFunction("Py_IncRef", types.void(types.int64))
drop = ExternalFunction("Py_DecRef", types.void(types.int64))


@hot
def word_at(at, offset):
    """A word of an object, or of its items."""
    return load_i64(bytes_at(at + offset, 8), 0)


@hot
def put_word(at, offset, value):
    """Store a word of an object, or of its items."""
    store_i64(bytes_at(at + offset, 8), 0, value)


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

    Types are not checked: the caller must pass arguments of the signature's types.
    """
    kernel.compile(signature)
    made: Callable[..., Any] = kernel.overloads[signature].entry_point
    return made


class _Method(ctypes.Structure):
    """`PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@functools.cache
def _method(kernel: Any, name: str, doc: str) -> _Method:
    compile_builtin(kernel)
    made = kernel.overloads[_SIGNATURE.args]
    at = made.library.get_pointer_to_function(made.fndesc.llvm_cfunc_wrapper_name)
    return _Method(name.encode(), at, _FASTCALL | _KEYWORDS, doc.encode())


def compile_builtin(kernel: Any) -> None:
    """Compile, or load from the cache, a kernel that `builtin` takes."""
    kernel.compile(_SIGNATURE.args)


def builtin(kernel: Any, own: tuple[Any, ...], name: str, doc: str = "") -> Callable[..., Any]:
    """A function of Python whose body is a held kernel.

    The kernel is ``(own, arguments, count, names) -> object``, all addresses or counts: of the
    tuple ``own``, which the function keeps alive; of the arguments; how many are given by position;
    of the tuple of names of the others, or 0. It returns a new reference, or 0 with an exception
    set.
    """
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p),
    )
    method = _method(kernel, name, doc)
    # The function has only the address. Threads that come here together may each create a method,
    # and the cache keeps only one of them.
    function: Callable[..., Any] = make(ctypes.addressof(method), (*own, method), None)
    return function


def field_offsets(kind: type[Any]) -> list[int] | None:
    """Offsets of the fields in objects of a class with slots; None: they cannot be determined."""
    names = kind.__struct_fields__
    marks = [object() for _ in names]
    one = kind(*marks)
    words = np.frombuffer(ctypes.string_at(id(one), kind.__basicsize__), dtype=np.int64).tolist()
    if kind.__flags__ & _COLLECTED or any(words.count(id(mark)) != 1 for mark in marks):
        return None
    return [8 * words.index(id(mark)) for mark in marks]


_COLLECTED = 1 << 14
"""Flag of types whose objects the collector tracks: `new_object` does not create their header."""
