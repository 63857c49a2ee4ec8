"""Stands for a Python daemon of Spark that the nursery forks: `python -I -S THIS MODULE ARGUMENT`.

Hands over its streams and environment, and stays until the daemon has ended, since Spark watches
it. Only the standard library, and little of it: it starts in 20 ms. When nobody answers, it is that
daemon itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys

VARIABLE = "TIDECAST_SPARK_NURSERY"


def ask(nursery: socket.socket) -> int:
    """The daemon's process id. Raises OSError."""
    request = {
        "environment": dict(os.environ), "directory": os.getcwd(),  # noqa: PTH109 - imports little
        "arguments": sys.argv[1:],
    }  # fmt: skip
    raw = json.dumps(request).encode()
    nursery.connect("\0" + os.environ[VARIABLE])
    socket.send_fds(nursery, [struct.pack("<I", len(raw))], [0, 1, 2])
    nursery.sendall(raw)
    answer = nursery.recv(4)
    if len(answer) < 4:
        raise ConnectionError("the nursery refuses")
    return int(struct.unpack("<i", answer)[0])


def main() -> None:
    """See module."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as nursery:
        try:
            pid = ask(nursery)
        except OSError:
            os.execv(sys.executable, [sys.executable, "-m", *sys.argv[1:]])
        for each in (0, 1, 2):  # they are the daemon's now
            os.dup2(os.open(os.devnull, os.O_RDWR), each)
        signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
        nursery.recv(1)  # ends with the daemon and all of its workers


if __name__ == "__main__":
    main()
