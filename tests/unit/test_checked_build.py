"""A checked build refuses what lies outside of an array, wherever in a kernel it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tidecast.native.jit import BOUNDSCHECK, hot, inlined, kernel
from tidecast.native.memory import copy, load_i64, store_u8

pytestmark = pytest.mark.skipif(not BOUNDSCHECK, reason="release kernels check no bounds")


@inlined
def word_below(raw, at):  # type: ignore[no-untyped-def]
    return load_i64(raw, at)


@hot
def byte_below(raw, at):  # type: ignore[no-untyped-def]
    store_u8(raw, at, 1)
    return 0


@kernel
def reads_a_word(raw, at):  # type: ignore[no-untyped-def]
    return load_i64(raw, at)


@kernel
def reads_a_word_below(raw, at):  # type: ignore[no-untyped-def]
    return word_below(raw, at)


@kernel
def writes_a_byte_below(raw, at):  # type: ignore[no-untyped-def]
    return byte_below(raw, at + 8)


@kernel
def copies(raw, at):  # type: ignore[no-untyped-def]
    copy(raw, 0, raw, at, 8)
    return 0


@kernel
def indexes(raw, at):  # type: ignore[no-untyped-def]
    return raw[at + 8]


@pytest.mark.parametrize(
    "asks", [reads_a_word, reads_a_word_below, writes_a_byte_below, copies, indexes]
)
def test_what_lies_outside_is_refused(asks: Callable[[Any, int], int]) -> None:
    raw = np.zeros(16, dtype=np.uint8)
    assert asks(raw, 0) == 0
    assert asks(raw, 7) == 0
    for at in (9, 1 << 40, -40):
        with pytest.raises(IndexError):
            asks(raw, at)
