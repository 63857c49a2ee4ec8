"""A child process whose standard output is read line by line."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import IO, Any

from tests.support.patience import Patience, wait_ended

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND_TIMEOUT_S = 60.0
LINE_TIMEOUT_S = 100.0
"""Of progress, see `Patience`: less than a test's limit, so the error names the line."""
LOOK_S = 0.05

Text = subprocess.CompletedProcess[str]


class Child:
    """A process that a test started; each subclass has its own `signal` and `wait`."""

    def __init__(self, pid: int, log: Path, stdin: IO[str] | None, stdout: IO[str] | None) -> None:
        self.pid, self.log, self.stdin, self.stdout = pid, log, stdin, stdout
        self._said = b""
        """Read from its standard output, behind the last line that was taken."""

    def signal(self, number: int) -> None:
        """Send a signal; nothing when it has ended."""
        raise NotImplementedError

    def wait(self, timeout_s: float) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        raise NotImplementedError

    @property
    def running(self) -> bool:
        """It has not ended."""
        raise NotImplementedError

    def line(self, what: str = "its next line", timeout_s: float = LINE_TIMEOUT_S) -> str:
        """The next line it says; ``what`` it is, for the error.

        Fails with its log when it has ended, or says nothing for seconds of progress.
        """
        assert self.stdout is not None
        patience, fd = Patience(timeout_s), self.stdout.fileno()
        while b"\n" not in self._said:
            if select.select([fd], [], [], LOOK_S)[0]:
                more = os.read(fd, 1 << 16)
                if not more:
                    break
                self._said += more
            elif patience.over():
                log = self.log.read_text()
                raise AssertionError(f"{what}: nothing for {timeout_s:g} s; its log:\n{log}")
        if not self._said:
            code = self.wait(COMMAND_TIMEOUT_S)
            raise AssertionError(f"{what}: it ended, code {code}:\n{self.log.read_text()}")
        line, _, self._said = self._said.partition(b"\n")
        return line.decode().strip()

    def tell(self, text: str) -> None:
        """A line to its standard input."""
        assert self.stdin is not None
        self.stdin.write(f"{text}\n")
        self.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and reap."""
        self.signal(signal.SIGKILL)
        self.wait(COMMAND_TIMEOUT_S)

    def end(self) -> int:
        """SIGTERM; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(COMMAND_TIMEOUT_S)

    def code(self, timeout_s: float = COMMAND_TIMEOUT_S) -> int:
        """Wait for its end; the exit code."""
        return self.wait(timeout_s)

    def close(self) -> None:
        """The end of a test."""
        self.kill()
        for stream in (self.stdin, self.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class Process(Child):
    """A program of its own."""

    def __init__(self, command: list[str], log: Path, *, cwd: Path = ROOT, **options: Any) -> None:
        with log.open("ab") as errors:
            self.popen = subprocess.Popen(
                command,
                stderr=errors,
                cwd=cwd,
                text=True,
                **({"stdin": subprocess.PIPE, "stdout": subprocess.PIPE} | options),
            )
        super().__init__(self.popen.pid, log, self.popen.stdin, self.popen.stdout)

    def signal(self, number: int) -> None:
        """See `Child`."""
        self.popen.send_signal(number)

    @property
    def running(self) -> bool:
        """See `Child`."""
        return self.popen.poll() is None

    def wait(self, timeout_s: float) -> int:
        """See `Child`."""
        return wait_ended(self.popen, timeout_s)
