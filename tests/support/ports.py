"""Ports of this machine for tests: no other test gets one, no passing socket takes it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import tempfile
from pathlib import Path

FIRST, BLOCK, BLOCKS = 20_000, 4, 2_900
"""Below the range from which the system gives sockets their ports (32,768 on Linux)."""
_DIRECTORY = Path(tempfile.gettempdir(), f"tidecast-test-ports-{os.getuid()}")
_held: list[int] = []
"""Locked files, one a block: until the end of this process no other one gets its ports."""


def free_port() -> int:
    """A port that is free for UDP and TCP, with the three behind it."""
    _DIRECTORY.mkdir(exist_ok=True)
    while True:
        port = FIRST + BLOCK * secrets.randbelow(BLOCKS)
        lock = os.open(_DIRECTORY / str(port), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _probe(range(port, port + BLOCK))
        except OSError:
            os.close(lock)
        else:
            _held.append(lock)
            return port


def _probe(ports: range) -> None:
    """Raises OSError when one is in use."""
    with contextlib.ExitStack() as stack:
        for port in ports:
            for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                probe = stack.enter_context(socket.socket(socket.AF_INET, kind))
                probe.bind(("127.0.0.1", port))
