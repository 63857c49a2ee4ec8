"""A function that kernels share is compiled once, and only kernels become machine code."""

from __future__ import annotations

import numpy as np
from numba.core import event
from numba.core.caching import NullCache

from tidecast.native.jit import closure_kernel, held_kernel, inlined, kernel
from tidecast.native.memory import load_i64


class _Compiled(event.Listener):  # type: ignore[misc]
    """The functions that Numba compiles meanwhile."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_start(self, event: event.Event) -> None:
        self.names.append(event.data["dispatcher"].py_func.__name__)

    def on_end(self, event: event.Event) -> None:
        """Nothing to note."""


@inlined
def compiled_lower(raw, at):  # type: ignore[no-untyped-def]
    return load_i64(raw, at) + 1


@inlined
def compiled_middle(raw, at):  # type: ignore[no-untyped-def]
    return compiled_lower(raw, at) * 2


def compiled_first(raw, at):  # type: ignore[no-untyped-def]
    return compiled_middle(raw, at) + compiled_lower(raw, 8)


def compiled_second(raw):  # type: ignore[no-untyped-def]
    return compiled_middle(raw, 0) + compiled_lower(raw, 8)


def test_a_shared_function_is_compiled_once_for_all_kinds_of_kernels() -> None:
    released, held = kernel(compiled_first), held_kernel(compiled_second)
    released._cache = held._cache = NullCache()
    raw = np.array([20, 5], dtype=np.int64).view(np.uint8)
    noted = _Compiled()
    with event.install_listener("numba:compile", noted):
        assert released(raw, 0) == held(raw) == 42 + 6
    ours = [name for name in noted.names if name.startswith("compiled_")]
    assert sorted(ours) == [
        "compiled_first",
        "compiled_lower",
        "compiled_middle",
        "compiled_second",
    ]
    (made,) = held.overloads.values()
    assert {each.name for each in made.library.parts} >= {"compiled_lower", "compiled_middle"}
    assert made.library._compiled
    assert not any(each._compiled for each in made.library.parts), "machine code of a part"


@inlined
def called_by_a_user(raw):  # type: ignore[no-untyped-def]
    return called_below(raw) * 2


@inlined
def called_below(raw):  # type: ignore[no-untyped-def]
    return load_i64(raw, 0)


def users_function(raw):  # type: ignore[no-untyped-def]
    return called_by_a_user(raw) + called_below(raw)


def test_a_users_function_takes_in_parts_and_what_they_call() -> None:
    entered = closure_kernel(users_function)
    assert entered(np.full(1, 7, dtype=np.int64).view(np.uint8)) == 21
