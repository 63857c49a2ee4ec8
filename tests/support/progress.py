"""A number that one process notes and another one reads, at any time and after any kill.

It is stored and read as one word. `struct.pack_into` first fills its room with zeros: a process
that is killed then leaves a 0 behind.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path

NUMBER = struct.Struct("<Q")
"""Of the file, and of the payloads of `tests.support.roles`."""


def _word(path: Path) -> memoryview:
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), NUMBER.size)).cast("Q")


def progress_file(path: Path) -> Path:
    """A new file, at 0."""
    path.write_bytes(bytes(NUMBER.size))
    return path


def noting(path: Path) -> Callable[[int], None]:
    """A function that notes a number in the file."""
    word = _word(path)

    def note(number: int) -> None:
        word[0] = number

    return note


def noted(path: Path) -> int:
    """The number in the file."""
    return int(_word(path)[0])
