"""Files mapped into memory as byte arrays: created whole or not at all, never a late SIGBUS."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from tidecast.errors import NotFound, SharedMemoryError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class MappedFile:
    """A file of fixed size, mapped shared. ``array`` is its content as ``uint8[::1]``.

    The pages are reserved when it is created (``posix_fallocate``), so a full /dev/shm is an error
    here and not a crash later. `close` is idempotent; views handed out stay valid until they die.
    """

    def __init__(self, path: Path, handle: mmap.mmap) -> None:
        self.path = path
        self._map: mmap.mmap | None = handle
        self.array: Bytes = np.frombuffer(handle, dtype=np.uint8)

    @classmethod
    def create(cls, path: Path, size_bytes: int) -> MappedFile:
        """Create ``path`` with ``size_bytes`` zero bytes. Raises SharedMemoryError."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
            handle = mmap.mmap(descriptor, size_bytes)
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
        return cls(path, handle)

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
            handle = mmap.mmap(descriptor, size_bytes)
        finally:
            os.close(descriptor)
        return cls(path, handle)

    @property
    def size_bytes(self) -> int:
        """Length of the mapping."""
        return int(self.array.size)

    def unlink(self) -> None:
        """Remove the name; mappings live on."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def close(self) -> None:
        """Unmap now if nobody holds a view, else when the last view dies."""
        handle, self._map = self._map, None
        if handle is None:
            return
        self.array = np.empty(0, dtype=np.uint8)
        with contextlib.suppress(BufferError):
            handle.close()
