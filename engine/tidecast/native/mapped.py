"""Files mapped into memory as byte arrays: created whole or not at all, never a late SIGBUS.

Mapped by libc itself: Python's `mmap` keeps a descriptor open a mapping, and an engine of 4,096
topics has some 16,000 of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from tidecast.errors import NotFound, SharedMemoryError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def _mapped(descriptor: int, size_bytes: int) -> Bytes:
    """The file as an array; it is unmapped when the last view of it dies. Raises OSError."""
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc.mmap(None, size_bytes, access, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))
    memory = (ctypes.c_uint8 * size_bytes).from_address(address)
    weakref.finalize(memory, _libc.munmap, address, size_bytes).atexit = False
    return np.frombuffer(memory, dtype=np.uint8)  # type: ignore[call-overload]


class MappedFile:
    """A file of fixed size, mapped shared. ``array`` is its content as ``uint8[::1]``.

    The pages are reserved when it is created (``posix_fallocate``), so a full /dev/shm is an error
    here and not a crash later. `close` is idempotent; views handed out stay valid until they die.
    """

    def __init__(self, path: Path, array: Bytes) -> None:
        self.path, self.array = path, array

    @classmethod
    def create(cls, path: Path, size_bytes: int) -> MappedFile:
        """Create ``path`` with ``size_bytes`` zero bytes. Raises SharedMemoryError."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
            array = _mapped(descriptor, size_bytes)
        except OSError as problem:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            if problem.errno in (errno.ENOSPC, errno.ENOMEM):
                stats = os.statvfs(path.parent)
                raise SharedMemoryError(
                    f"no room for {size_bytes} bytes at {path.parent} "
                    f"({stats.f_bavail * stats.f_frsize} bytes free): enlarge it "
                    "(mount -o remount,size=4G /dev/shm; docker run --shm-size) or lower "
                    "history_bytes and receive_bytes of the topics"
                ) from problem
            raise
        finally:
            os.close(descriptor)
        return cls(path, array)

    @classmethod
    def open(cls, path: Path) -> MappedFile:
        """Map an existing file. Raises NotFound when it is not there."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError as problem:
            raise NotFound(f"shared-memory file {path} is gone: is its engine running?") from (
                problem
            )
        try:
            size_bytes = os.fstat(descriptor).st_size
            if size_bytes == 0:
                raise SharedMemoryError(f"shared-memory file {path} is empty")
            array = _mapped(descriptor, size_bytes)
        finally:
            os.close(descriptor)
        return cls(path, array)

    @property
    def size_bytes(self) -> int:
        """Length of the mapping."""
        return int(self.array.size)

    def rename(self, path: Path) -> None:
        """Give it another name. Raises FileNotFoundError when it has none any more."""
        self.path = self.path.rename(path)

    def unlink(self) -> None:
        """Remove the name; mappings live on."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def close(self) -> None:
        """Unmap now if no view exists, else when the last view is gone."""
        self.array = np.empty(0, dtype=np.uint8)
