"""File system calls for kernels: positioned reads and writes, opening by name.

All return ``-errno`` on failure. Writes and syncs take a *disk table*: the failures that a test
injects, and the address of the system call that syncs. So a test runs the code of production on a
disk that it controls.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.types import ExternalFunction
from numba.extending import intrinsic

from tidecast.native.jit import BOUNDSCHECK, inlined
from tidecast.native.memory import address_of, check
from tidecast.native.system.syscalls import EINTR, EIO, errno

O_READ = os.O_RDONLY | os.O_CLOEXEC
ENOENT, EMFILE, ENOSPC, EDQUOT = 2, 24, 28, 122
SEEK_END = 2
_WRITES_MAX = 64

_pread = ExternalFunction("pread", types.int64(types.int32, types.int64, types.int64, types.int64))
_pwrite = ExternalFunction(
    "pwrite", types.int64(types.int32, types.int64, types.int64, types.int64)
)
_openat = ExternalFunction("openat", types.int32(types.int32, types.int64, types.int32))
_close = ExternalFunction("close", types.int32(types.int32))
_lseek = ExternalFunction("lseek", types.int64(types.int32, types.int64, types.int32))

F_ROOM_BYTES, F_ERRNO, F_SYNC_ERRNO, F_FAILED = 0, 1, 2, 3
F_SYNC = 4
DISK_FIELDS = 5
"""A disk table: bytes that may still be written before F_ERRNO (0: no fault) is the answer,
errno of a sync (0: none), how many calls failed by it; address of ``int fdatasync(int)``."""

sync_address: int = ctypes.cast(ctypes.CDLL(None).fdatasync, ctypes.c_void_p).value or 0
"""The function that a new disk table calls."""


def disk_table() -> np.ndarray:
    """A disk table that injects no fault."""
    table = np.zeros(DISK_FIELDS, dtype=np.int64)
    table[F_SYNC] = sync_address
    return table


@intrinsic
def _call_sync(typingctx: Any, target: Any, fd: Any) -> Any:
    """``fdatasync(fd)`` at the address ``target``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32)])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.int32(types.int64, types.int32), codegen


@inlined
def pread(fd, buffer, at, n, position):
    """Read up to ``n`` bytes at ``position`` into ``buffer[at:]``; how many, 0 at the end."""
    if BOUNDSCHECK:
        check(buffer, at, n)
    while True:
        done = _pread(types.int32(fd), address_of(buffer) + at, n, position)
        if done >= 0:
            return done
        problem = errno()
        if problem != EINTR:
            return -problem


@inlined
def pread_all(fd, buffer, at, n, position):
    """Like `pread`, until ``n`` bytes are there or the file ends."""
    done = 0
    while done < n:
        some = pread(fd, buffer, at + done, n - done, position + done)
        if some < 0:
            return some
        if some == 0:
            break
        done += some
    return done


@inlined
def pwrite_all(fd, buffer, at, n, position, disk):
    """Write all ``n`` bytes of ``buffer[at:]`` at ``position``: 0, or ``-errno`` (part may be)."""
    if BOUNDSCHECK:
        check(buffer, at, n)
    done = 0
    for _ in range(_WRITES_MAX):
        wanted = n - done
        if disk[F_ERRNO] != 0:
            wanted = min(wanted, disk[F_ROOM_BYTES])
            if wanted <= 0:
                disk[F_FAILED] += 1
                return -disk[F_ERRNO]
        source = address_of(buffer) + at + done
        some = _pwrite(types.int32(fd), source, wanted, position + done)
        if some < 0:
            problem = errno()
            if problem != EINTR:
                return -problem
            continue
        done += some
        if disk[F_ERRNO] != 0:
            disk[F_ROOM_BYTES] -= some
        if done >= n:
            return 0
    return -EIO


@inlined
def fdatasync(fd, disk):
    """Wait until the file's bytes are on the device: 0 or ``-errno``."""
    if disk[F_SYNC_ERRNO] != 0:
        disk[F_FAILED] += 1
        return -disk[F_SYNC_ERRNO]
    if _call_sync(disk[F_SYNC], types.int32(fd)) < 0:
        return -errno()
    return 0


@inlined
def open_at(directory_fd, name):
    """Open for reading by a name that ends with a zero byte; the descriptor."""
    fd = _openat(types.int32(directory_fd), address_of(name), types.int32(O_READ))
    if fd < 0:
        return -errno()
    return types.int64(fd)


@inlined
def close(fd):
    """Close a descriptor."""
    _close(types.int32(fd))


@inlined
def file_bytes(fd):
    """Length of an open file."""
    end = _lseek(types.int32(fd), 0, types.int32(SEEK_END))
    if end < 0:
        return -errno()
    return end
