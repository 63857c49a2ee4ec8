"""Stands for a Python daemon of Spark that the nursery forks: `python -I -S THIS MODULE ARGUMENT`.

Passes on its streams and environment, and stays until the daemon has ended, since Spark watches it.
It imports only the standard library, and little of it: it starts in 20 ms. When no nursery answers,
it becomes the daemon itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys

VARIABLE = "TIDECAST_SPARK_NURSERY"
REPEAT_S = 1.0


def ask(nursery: socket.socket) -> int:
    """A descriptor of the daemon's process. Raises OSError."""
    request = {
        "environment": dict(os.environ),
        "directory": os.getcwd(),  # noqa: PTH109 - imports little
        "arguments": sys.argv[1:],
    }
    raw = json.dumps(request).encode()
    nursery.connect("\0" + os.environ[VARIABLE])
    socket.send_fds(nursery, [struct.pack("<I", len(raw))], [0, 1, 2])
    nursery.sendall(raw)
    _, descriptors, _, _ = socket.recv_fds(nursery, 1, 1)
    if not descriptors:
        raise ConnectionError("the nursery refuses")
    return descriptors[0]


def main() -> None:
    """See module."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as nursery:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until a handler is there
        try:
            daemon = ask(nursery)
        except OSError:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            os.execv(sys.executable, [sys.executable, "-m", *sys.argv[1:]])
        for each in (0, 1, 2):  # they are the daemon's now
            os.dup2(os.open(os.devnull, os.O_RDWR), each)
        for signal_number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(signal_number, lambda *_: _end(daemon))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        nursery.recv(1)  # ends with the daemon and all of its workers


def _end(daemon: int) -> None:
    """Ask the daemon to end, and again after `REPEAT_S`.

    Its handler raises SystemExit, and Python drops an exception that a signal raises within the
    hooks of `os.fork`: the daemon would live on.
    """
    signal.setitimer(signal.ITIMER_REAL, REPEAT_S)
    with contextlib.suppress(ProcessLookupError):  # its workers may live longer
        signal.pidfd_send_signal(daemon, signal.SIGTERM)


if __name__ == "__main__":
    main()
