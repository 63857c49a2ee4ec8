"""Processes that the service runs: the end of their output, signals to their group, their end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from dataclasses import dataclass, field

from tidecast_control.kit.models import storable


@dataclass
class Tail:
    """The last bytes of a stream; ``total`` counts all of them."""

    bytes_max: int
    kept: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, data: bytes) -> None:
        """Append bytes, and forget the oldest beyond ``bytes_max``."""
        self.total += len(data)
        self.kept += data
        if len(self.kept) > self.bytes_max:
            del self.kept[: -self.bytes_max]

    async def read(self, stream: asyncio.StreamReader | None) -> None:
        """Take a stream until its end."""
        assert stream is not None
        while data := await stream.read(64 << 10):
            self.add(data)

    @property
    def text(self) -> str:
        """The bytes as text that Postgres accepts."""
        return storable(self.kept.decode("utf-8", "replace"))


def signal_group(pid: int, number: int) -> None:
    """Send a signal to a process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def error_of(code: int | None, errors: str) -> str:
    """Why a process failed: the signal, else the last line of its standard error, else its code."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"its process was ended by {signal.Signals(-code).name}"
    lines = [line for line in errors.splitlines() if line.strip()]
    last = re.sub("^[Ee]rror: ", "", lines[-1]) if lines else ""
    return last or f"its process ended with status {code}"
