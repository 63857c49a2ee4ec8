"""The nursery that forks Spark's Python daemons, spoken to as Spark speaks to its Python."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conftest import Eventually

from tidecast_spark import nursery, nursery_client
from tidecast_spark.spark_session import python_wrapper

VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


DEAF = """
import os, signal, sys

def end(number, frame):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(1)

signal.signal(signal.SIGTERM, end)
os.register_at_fork(after_in_parent=lambda: os.write(1, b"forks") and signal.pause())
if os.fork() == 0:
    os._exit(0)
while True:
    signal.pause()
"""
"""A daemon that gets its SIGTERM within the hooks of a fork: Python drops the SystemExit."""


@contextmanager
def daemon(name: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A daemon, and the process id of a worker that it forked."""
    environment = os.environ | {nursery.VARIABLE: name, "PYTHON_WORKER_FACTORY_SECRET": "s"}
    command = [str(python_wrapper()), "-m", "pyspark.daemon", "pyspark.worker"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    with process:
        assert process.stdout is not None
        (port,) = struct.unpack("!i", process.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as worker:
            (pid,) = struct.unpack("!i", worker.recv(4, socket.MSG_WAITALL))
            worker.sendall(struct.pack("!i", 1) + b"s")  # once it answers, it heeds signals
            assert worker.recv(6, socket.MSG_WAITALL) == struct.pack("!i", 2) + b"ok"
            yield process, pid
        assert process.stdin is not None
        process.stdin.close()  # Spark stops


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[str, int]]:
    """Its name and process id. The session's own, if tests have one, is left alone."""
    kept = nursery._started
    nursery._started = None
    before = os.environ.get(nursery.VARIABLE)
    nursery.start()
    assert nursery._started is not None
    pid, name = nursery._started.pid, os.environ[nursery.VARIABLE]
    yield name, pid
    nursery.stop()
    assert not Path(f"/proc/{pid}").exists()
    nursery._started = kept
    if before is None:
        del os.environ[nursery.VARIABLE]
    else:
        os.environ[nursery.VARIABLE] = before


def test_daemons_are_forked_and_end_with_spark(
    running: tuple[str, int], eventually: Eventually
) -> None:
    name, pid = running
    with daemon(name) as (process, worker):
        forked = parent(worker)
        assert parent(forked) == pid
        assert Path(f"/proc/{forked}/stat").read_text().split()[4] == str(forked), "a group"
        assert process.poll() is None
    eventually(lambda: process.poll() == 0, "the one that stands for it")
    eventually(lambda: not Path(f"/proc/{worker}").exists(), "the worker's end")


def test_a_daemon_that_is_ended_takes_what_stands_for_it_along(running: tuple[str, int]) -> None:
    with daemon(running[0]) as (process, _):
        process.terminate()
        assert process.wait(60) == 0


def test_a_daemon_that_forks_as_it_is_ended_is_asked_again(
    running: tuple[str, int], tmp_path: Path
) -> None:
    (tmp_path / "deaf.py").write_text(DEAF)
    environment = os.environ | {nursery.VARIABLE: running[0], "PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(nursery_client.__file__), "deaf"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"forks"
        process.terminate()
        assert process.wait(60) == 0


def test_a_daemon_that_ends_at_once_takes_its_stand_in_along(running: tuple[str, int]) -> None:
    """The client is stopped until the daemon has ended: it had no id to look it up by."""
    script = f"""
import os, runpy, signal, socket
receive = socket.recv_fds

def late(*args):
    socket.recv_fds = receive
    nursery = args[0]
    nursery.recv(2, socket.MSG_PEEK | socket.MSG_WAITALL)  # both ends of it are the daemon's
    return receive(*args)

socket.recv_fds = late
runpy.run_path({str(nursery_client.__file__)!r}, run_name="__main__")
"""
    environment = os.environ | {nursery.VARIABLE: running[0]}
    done = subprocess.run(
        [sys.executable, "-c", script, "no_such_module"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "No module named" in done.stderr
    assert "Traceback" not in done.stderr.partition("No module named")[2]
    assert done.returncode == 0


def test_without_a_nursery_spark_starts_its_own() -> None:
    with daemon("there-is-none") as (process, worker):
        assert parent(parent(worker)) == os.getpid()
        assert parent(worker) == process.pid


def test_others_are_refused_and_the_version_needs_nobody(running: tuple[str, int]) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(f"\0{running[0]}")
        one.sendall(b"nonsense")
        with contextlib.suppress(ConnectionResetError):
            assert one.recv(1) == b""
    said = subprocess.run(
        [str(python_wrapper()), "-c", VERSION], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"{sys.version_info.major}.{sys.version_info.minor}\n"
