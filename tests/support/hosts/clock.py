"""Steps of the wall clock of one engine: a library that is preloaded (clock.c), and a file."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "TIDECAST_TEST_CLOCK"
AHEAD_S = struct.Struct("<q")
_SOURCE = Path(__file__).with_name("clock.c")
_COMPILER_S = 60.0


@functools.cache
def library() -> Path | None:
    """The library, compiled; None without a compiler of C: clocks are not stepped then."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    made = Path(tempfile.gettempdir(), f"tidecast-test-clock-{os.getuid()}-{os.getpid()}.so")
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(made), str(_SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=_COMPILER_S)
    return made if done.returncode == 0 else None


def environment() -> dict[str, str]:
    """Of a nursery whose children's clocks can be stepped."""
    found = library()
    return {**os.environ, **({"LD_PRELOAD": str(found)} if found else {})}


def forget() -> None:
    """Remove the library: processes that have it go on."""
    found = library()
    if found is not None:
        found.unlink(missing_ok=True)


def set_ahead(file: Path, seconds: int) -> None:
    """The clocks that follow the file are ahead by so much from now on."""
    if file.exists():
        with file.open("r+b") as opened:
            opened.write(AHEAD_S.pack(seconds))
    else:
        file.write_bytes(AHEAD_S.pack(seconds))


def follow(variables: Mapping[str, str]) -> None:
    """In a forked process: its clock follows the file that its environment names."""
    path = variables.get(VARIABLE)
    if path is None:
        return
    preloaded = getattr(ctypes.CDLL(None), "tidecast_test_clock", None)
    if preloaded is not None and preloaded(path.encode()) != 0:
        raise OSError(f"{path}: no clock")
