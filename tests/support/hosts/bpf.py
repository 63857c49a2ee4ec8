"""A packet filter for a port of a bridge: eBPF instructions, made here and loaded by `bpf(2)`.

Where netem is missing this still loses packets at random and cuts one direction between two
hosts. A filter ends with its descriptors: nothing is left when the test's process is killed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Sequence

_NUMBERS = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _PROG_LOAD, _LINK_CREATE = 0, 1, 2, 5, 28
_MAP_TYPE_ARRAY, _PROG_TYPE_SCHED_CLS = 2, 3
_LOG_BYTES = 1 << 16
EGRESS = 47
"""Where a program is attached: `BPF_TCX_EGRESS`, packets that leave by the interface."""
_NEXT, _DROP = -1, 2
_LOOKUP_ELEM, _RANDOM, _LOAD_BYTES = 1, 7, 26
_PROTOCOL_AT = 16
"""Of `struct __sk_buff`."""
_LAST_OF_SOURCE_AT = 14 + 12 + 3
"""The last byte of an IPv4 packet's source, behind the Ethernet header."""
STATE = struct.Struct("<QQQQ")
"""Of a filter: loss by 2^32, hosts that are cut off by bits, packets passed and dropped."""
_LOSS_AT, _CUT_AT, _PASSED_AT, _DROPPED_AT = 0, 8, 16, 24
HOSTS_MAX = 64


def _i(code: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> bytes:
    """One instruction."""
    return struct.pack("<BBhi", code, src << 4 | dst, off, imm)


def _jump(code: int, dst: int, src: int, imm: int, label: str) -> tuple[bytes, str]:
    return _i(code, dst, src, 0, imm), label


def _count(offset: int) -> bytes:
    return _i(0xB7, 1, imm=1) + _i(0xDB, 7, 1, offset)  # r1 = 1; lock *(u64*)(r7 + offset) += r1


def instructions(map_fd: int) -> bytes:
    """Drop a packet by chance, or when its source is cut off; count either outcome."""
    parts: list[bytes | str | tuple[bytes, str]] = [
        _i(0xBF, 6, 1),  # r6 = packet
        _i(0x62, 10, off=-4),  # key 0
        _i(0xBF, 2, 10),
        _i(0x07, 2, imm=-4),
        _i(0x18, 1, 1, imm=map_fd) + _i(0),
        _i(0x85, imm=_LOOKUP_ELEM),
        _jump(0x15, 0, 0, 0, "next"),
        _i(0xBF, 7, 0),  # r7 = state
        _i(0x85, imm=_RANDOM),
        _i(0x67, 0, imm=32),
        _i(0x77, 0, imm=32),  # 32 bits of r0
        _i(0x79, 1, 7, _LOSS_AT),
        _jump(0xAD, 0, 1, 0, "drop"),  # r0 < r1
        _i(0x61, 2, 6, _PROTOCOL_AT),
        _jump(0x55, 2, 0, 0x0008, "pass"),  # not IPv4
        _i(0xBF, 1, 6),
        _i(0xB7, 2, imm=_LAST_OF_SOURCE_AT),
        _i(0xBF, 3, 10),
        _i(0x07, 3, imm=-8),
        _i(0xB7, 4, imm=1),
        _i(0x85, imm=_LOAD_BYTES),
        _jump(0x55, 0, 0, 0, "pass"),
        _i(0x71, 1, 10, -8),
        _i(0x57, 1, imm=HOSTS_MAX - 1),
        _i(0x79, 2, 7, _CUT_AT),
        _i(0x7F, 2, 1),  # r2 >>= r1
        _i(0x57, 2, imm=1),
        _jump(0x55, 2, 0, 0, "drop"),
        "pass",
        _count(_PASSED_AT),
        "next",
        _i(0xB7, 0, imm=_NEXT),
        _i(0x95),
        "drop",
        _count(_DROPPED_AT),
        _i(0xB7, 0, imm=_DROP),
        _i(0x95),
    ]
    return _linked(parts)


def _linked(parts: Sequence[bytes | str | tuple[bytes, str]]) -> bytes:
    """Jumps get their distances: in instructions, from the next one."""
    at, labels = 0, {}
    for part in parts:
        if isinstance(part, str):
            labels[part] = at
        else:
            at += len(part if isinstance(part, bytes) else part[0]) // 8
    code = bytearray()
    for part in parts:
        if isinstance(part, bytes):
            code += part
        elif isinstance(part, tuple):
            jump = bytearray(part[0])
            struct.pack_into("<h", jump, 2, labels[part[1]] - len(code) // 8 - 1)
            code += jump
    return bytes(code)


def _bpf(command: int, attributes: bytes) -> int:
    """The system call. Raises OSError."""
    number = _NUMBERS.get(platform.machine())
    if number is None or sys.byteorder != "little":
        raise OSError(f"no eBPF here for {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    space = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    found = int(libc.syscall(number, command, space, len(space)))
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"bpf(2), command {command}: {os.strerror(code)}")
    return found


class Filter:
    """One direction of a port. `set` changes it at once, `counts` says what it did."""

    def __init__(self, interface: int, direction: int) -> None:
        """``interface``: its number in the namespace of this thread. Raises OSError."""
        self._fds: list[int] = []
        try:
            self._map = self._keep(
                _bpf(_MAP_CREATE, struct.pack("<5I", _MAP_TYPE_ARRAY, 4, STATE.size, 1, 0))
            )
            program = self._keep(self._load(instructions(self._map)))
            self._keep(_bpf(_LINK_CREATE, struct.pack("<4I", program, interface, direction, 0)))
        except BaseException:
            self.close()
            raise

    def _keep(self, fd: int) -> int:
        self._fds.append(fd)
        return fd

    @staticmethod
    def _load(code: bytes) -> int:
        program, license_ = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL")
        log = ctypes.create_string_buffer(_LOG_BYTES)
        attributes = struct.pack(
            "<IIQQIIQ",
            _PROG_TYPE_SCHED_CLS,
            len(code) // 8,
            ctypes.addressof(program),
            ctypes.addressof(license_),
            1,
            _LOG_BYTES,
            ctypes.addressof(log),
        )
        try:
            return _bpf(_PROG_LOAD, attributes)
        except OSError as refused:
            text = log.value.decode(errors="replace")
            raise OSError(refused.errno, f"{refused.strerror}\n{text}") from None

    def _access(self, command: int, state: bytes) -> bytes:
        key, value = ctypes.create_string_buffer(4), ctypes.create_string_buffer(state, STATE.size)
        addresses = ctypes.addressof(key), ctypes.addressof(value)
        _bpf(command, struct.pack("<IIQQQ", self._map, 0, *addresses, 0))
        return value.raw

    def set(self, loss: float, cut: int) -> None:
        """``loss``: the part of packets; ``cut``: last bytes of sources, a bit each."""
        _, _, passed, dropped = STATE.unpack(self._access(_MAP_LOOKUP, bytes(STATE.size)))
        self._access(_MAP_UPDATE, STATE.pack(int(loss * (1 << 32)), cut, passed, dropped))

    def counts(self) -> tuple[int, int]:
        """Packets that passed, and that were dropped."""
        _, _, passed, dropped = STATE.unpack(self._access(_MAP_LOOKUP, bytes(STATE.size)))
        return passed, dropped

    def close(self) -> None:
        """The filter is gone. Idempotent."""
        while self._fds:
            os.close(self._fds.pop())
