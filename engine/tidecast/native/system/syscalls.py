"""System calls for kernels, declared as external C symbols so that kernels stay cacheable.

A failing call returns ``-errno``. Structures are built in byte arrays with the offsets below
(Linux, 64 bit).
"""

from __future__ import annotations

import platform

from numba import types
from numba.core.types import ExternalFunction

from tidecast.native.jit import inlined
from tidecast.native.memory import address_of, bytes_at, load_i64, load_u32, store_i64

CLOCK_REALTIME, CLOCK_MONOTONIC = 0, 1
NOW = -1
"""For kernels that take a time: look at the clock."""
MSG_DONTWAIT = 0x40
EINTR, EIO, EAGAIN, EINVAL, EMSGSIZE, ENOBUFS, ECONNREFUSED = 4, 5, 11, 22, 90, 105, 111
ENOKEY = 126
SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
POLLIN, POLLFD_BYTES = 1, 8

IOVEC_BYTES, MMSGHDR_BYTES, SOCKADDR_IN_BYTES = 16, 64, 16
MSG_NAME_AT, MSG_NAMELEN_AT, MSG_IOV_AT, MSG_IOVLEN_AT = 0, 8, 16, 24
MSG_CONTROL_AT, MSG_CONTROLLEN_AT, MSG_FLAGS_AT, MMSG_LEN_AT = 32, 40, 48, 56
CMSG_LEN_AT, CMSG_LEVEL_AT, CMSG_TYPE_AT, CMSG_DATA_AT = 0, 8, 12, 16

_SYS_FUTEX = 98 if platform.machine() in ("aarch64", "arm64") else 202
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1

_clock_gettime = ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))
_errno_location = ExternalFunction("__errno_location", types.int64())
_sendmmsg = ExternalFunction(
    "sendmmsg", types.int32(types.int32, types.int64, types.uint32, types.int32)
)
_recvmmsg = ExternalFunction(
    "recvmmsg", types.int32(types.int32, types.int64, types.uint32, types.int32, types.int64)
)
_sendto = ExternalFunction(
    "sendto",
    types.int64(types.int32, types.int64, types.int64, types.int32, types.int64, types.uint32),
)
_recvmsg = ExternalFunction("recvmsg", types.int64(types.int32, types.int64, types.int32))
_syscall6 = ExternalFunction(
    "syscall",
    types.int64(
        types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64
    ),
)
_ppoll = ExternalFunction("ppoll", types.int32(types.int64, types.int64, types.int64, types.int64))
_write = ExternalFunction("write", types.int64(types.int32, types.int64, types.int64))
_sched_yield = ExternalFunction("sched_yield", types.int32())


@inlined
def errno():
    """The calling thread's last error number."""
    return load_u32(bytes_at(_errno_location(), 4), 0)


@inlined
def clock_ns(clock, scratch):
    """Nanoseconds of a clock. ``scratch``: at least 16 bytes."""
    _clock_gettime(types.int32(clock), address_of(scratch))
    return load_i64(scratch, 0) * 1_000_000_000 + load_i64(scratch, 8)


@inlined
def sendmmsg(fd, headers_address, n, flags):
    """Number of messages sent, or ``-errno``."""
    done = _sendmmsg(types.int32(fd), headers_address, types.uint32(n), types.int32(flags))
    if done < 0:
        return -errno()
    return types.int64(done)


@inlined
def recvmmsg(fd, headers_address, n, flags):
    """Number of messages received, or ``-errno``."""
    done = _recvmmsg(types.int32(fd), headers_address, types.uint32(n), types.int32(flags), 0)
    if done < 0:
        return -errno()
    return types.int64(done)


@inlined
def sendto(fd, base, n, flags, name_address):
    """Send ``n`` bytes to a ``sockaddr_in``. Bytes sent, or ``-errno``."""
    done = _sendto(
        types.int32(fd), base, n, types.int32(flags), name_address, types.uint32(SOCKADDR_IN_BYTES)
    )
    if done < 0:
        return -errno()
    return done


@inlined
def recvmsg(fd, header_address, flags):
    """Fill one ``struct msghdr``. Bytes received, or ``-errno``."""
    done = _recvmsg(types.int32(fd), header_address, types.int32(flags))
    if done < 0:
        return -errno()
    return done


@inlined
def ppoll(pollfds, n, timeout_ns, scratch):
    """Wait for any of ``n`` descriptors (struct pollfd each): the number ready, or ``-errno``."""
    store_i64(scratch, 0, timeout_ns // 1_000_000_000)
    store_i64(scratch, 8, timeout_ns % 1_000_000_000)
    done = _ppoll(address_of(pollfds), n, address_of(scratch), 0)
    if done < 0:
        return -errno()
    return types.int64(done)


@inlined
def futex_wait(word_address, expected, timeout_ns, scratch):
    """Sleep while the shared 32-bit word is ``expected``; 0 when woken, else ``-errno``."""
    store_i64(scratch, 0, timeout_ns // 1_000_000_000)
    store_i64(scratch, 8, timeout_ns % 1_000_000_000)
    done = _syscall6(
        _SYS_FUTEX, word_address, _FUTEX_WAIT, expected & 0xFFFFFFFF, address_of(scratch), 0, 0
    )
    if done < 0:
        return -errno()
    return done


@inlined
def futex_wake(word_address, n):
    """Wake at most ``n`` sleepers on the word."""
    return _syscall6(_SYS_FUTEX, word_address, _FUTEX_WAKE, n, 0, 0, 0)


@inlined
def eventfd_write(fd, scratch):
    """Make an eventfd readable; 8 when done, else ``-errno``. ``scratch``: at least 8 bytes."""
    store_i64(scratch, 0, 1)
    done = _write(types.int32(fd), address_of(scratch), 8)
    if done < 0:
        return -errno()
    return done


@inlined
def sched_yield():
    """Let another thread run on this core."""
    _sched_yield()
