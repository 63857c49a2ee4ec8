"""A process that forks Spark's Pythons, with all they need loaded: `python -m ... DESCRIPTOR`.

Spark starts a Python for each step of a query (which columns, which parts, the tasks, ...), and
each imports PySpark, PyArrow and the kernels: one to four seconds a step on two cores. The nursery
imports them once, while the JVM starts. The script that Spark runs as Python
(`spark_session.python_wrapper`) asks it for one, by `nursery_client`, and hands over its
streams and its environment.

It ends with the driver, whose pipe is its standard input. Its socket is an abstract one: nothing
is left of it. Only processes of the same user are served.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import secrets
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import warnings
from typing import Any

VARIABLE = "TIDECAST_SPARK_NURSERY"
REQUEST_BYTES_MAX = 4 << 20
CLIENTS_MAX = 64
STOP_S, REQUEST_S = 10.0, 10.0
_PEER = struct.Struct("iII")
MODULES = (
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark_tidecast",
    "tidecast.sync",
    "tidecast_spark.outlet",
    "tidecast_spark.planning",
    "tidecast_spark.putting",
    "tidecast_spark.reading",
    "tidecast_spark.sink",
    "tidecast_spark.telemetry_source",
)

_started: subprocess.Popen[bytes] | None = None


def start() -> None:
    """Start one for this process, if there is none; Spark finds it by the environment."""
    global _started
    if _started is not None and _started.poll() is None:
        return
    name = f"tidecast-nursery-{secrets.token_hex(8)}"
    # PySpark has strings hashed alike in all workers; that is fixed when a Python starts.
    environment = os.environ | {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(f"\0{name}")
        listening.listen(CLIENTS_MAX)  # an early client waits
        _started = subprocess.Popen(
            [sys.executable, "-P", "-m", "tidecast_spark.nursery", str(listening.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment,
            pass_fds=[listening.fileno()],
        )
    os.environ[VARIABLE] = name
    atexit.register(stop)


def stop() -> None:
    """End the one of this process. Daemons that it forked live as long as Spark wants them."""
    global _started
    nursery, _started = _started, None
    if nursery is not None:
        assert nursery.stdin is not None
        nursery.stdin.close()
        nursery.wait(STOP_S)


def load() -> None:
    """Import the modules that daemons and their workers will need."""
    for name in MODULES:
        # A PySpark that has moved a module loads it when it is needed.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from tidecast_spark.reading import load_kernels

    load_kernels()
    # Workers collect garbage after each task: objects of now are not garbage, and are skipped.
    gc.collect()
    gc.freeze()


def serve(listening: socket.socket) -> None:
    """Fork a daemon for each client, until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps ended daemons
    waiting = select.poll()
    for each in (0, listening.fileno()):
        waiting.register(each, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in waiting.poll()]
        if 0 in ready and not os.read(0, 1):
            return
        if listening.fileno() in ready:
            client, _ = listening.accept()
            with client, contextlib.suppress(OSError, ValueError):
                _fork(client, listening)


def _fork(client: socket.socket, listening: socket.socket) -> None:
    request, streams = receive(client)
    if os.fork():
        for each in streams:
            os.close(each)
        return
    code = 1
    try:
        listening.close()
        _answer(client)
        client.set_inheritable(True)  # open as long as the daemon and its workers live
        _become(request, streams)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - a forked child must not continue as its parent
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _answer(client: socket.socket) -> None:
    """Send the client a descriptor of this process: it stays valid after the process ends."""
    own = os.pidfd_open(os.getpid())
    socket.send_fds(client, [b"\1"], [own])
    os.close(own)


def receive(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A client's request, and its three streams. Raises OSError, ValueError."""
    client.settimeout(REQUEST_S)
    raw_peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    if _PEER.unpack(raw_peer)[1] != os.getuid():
        raise ValueError("of another user")
    head, streams, _, _ = socket.recv_fds(client, 4, 3)
    if len(head) != 4 or len(streams) != 3:
        raise ValueError("no request")
    (n,) = struct.unpack("<I", head)
    if n > REQUEST_BYTES_MAX:
        raise ValueError(f"a request of {n} bytes")
    raw = bytearray()
    while len(raw) < n:
        more = client.recv(n - len(raw))
        if not more:
            raise ValueError("the request ends early")
        raw += more
    request: dict[str, Any] = json.loads(raw)
    return request, streams


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Be the Python that was asked for."""
    for at, each in enumerate(streams):
        os.dup2(each, at)
        os.close(each)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["directory"])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    zipped = ("pyspark.zip", "-src.zip")
    sys.path[:0] = [p for p in given if p and p not in sys.path and not p.endswith(zipped)]
    module, *sys.argv[1:] = request["arguments"]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.filterwarnings("ignore", ".* found in sys.modules", RuntimeWarning)  # on purpose
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main(descriptor: int) -> None:
    """See module."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: for the driver
    with socket.socket(fileno=descriptor) as listening:
        load()
        serve(listening)


if __name__ == "__main__":
    main(int(sys.argv[1]))
