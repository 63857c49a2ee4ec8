"""A socket filter in the kernel: a node's own multicast packets are dropped before they are copied.

Classic BPF, run once a datagram (once a GRO bundle, whose packets have one source). Without it a
publisher with subscriptions pays for receiving everything it sends (measured: 85 us instead of
14 us for a run of 48 packets).
"""

from __future__ import annotations

import ctypes
import socket
import struct

_SO_ATTACH_FILTER = 26
_LOAD_HALF_ABSOLUTE, _JUMP_EQUAL, _RETURN = 0x28, 0x15, 0x06
_UDP_HEADER_BYTES = 8


def drop_own_packets(one: socket.socket, source_at: int, node_id: int) -> None:
    """Let ``one`` never receive packets whose 16-bit field at ``source_at`` is ``node_id``.

    Raises OSError where the kernel refuses filters.
    """
    swapped = ((node_id & 0xFF) << 8) | (node_id >> 8)  # BPF loads big endian, the wire is little
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (_LOAD_HALF_ABSOLUTE, 0, 0, _UDP_HEADER_BYTES + source_at),
            (_JUMP_EQUAL, 0, 1, swapped),
            (_RETURN, 0, 0, 0),
            (_RETURN, 0, 0, 0xFFFFFFFF),
        )
    )
    code = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, fprog)
