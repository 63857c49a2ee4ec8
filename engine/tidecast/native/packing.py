"""`struct` on NumPy arrays: buffers, which their types say only from Python 3.12 on."""

from __future__ import annotations

import struct
from typing import Any

unpack_from: Any = struct.unpack_from


def pack_into(form: str, buffer: Any, at: int, *values: Any) -> None:
    """Store values at a place, each aligned word at once: a kernel or a process may read it.

    `struct.pack_into` first fills the place with zeros, and others can see them.
    """
    raw = struct.pack(form, *values)
    memoryview(buffer).cast("B")[at : at + len(raw)] = raw
