"""Kernels that engines compile when they first need them: once before all tests, for all workers.

    python -m tests.support.warm

After a change three workers compiled those of Kafka beside each other, for 8 s of CPU each.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from tests.project import ROOT
from tidecast.native.jit import build_directory

COMPILE_S = 600.0


def mark() -> Path:
    """The file that says that they are in the cache: what `modules` imports decides."""
    return build_directory(Path(__file__)) / "complete"


@contextmanager
def beside() -> Iterator[None]:
    """Compile them in a process of their own while the block runs, unless they are there."""
    if mark().exists():
        yield
        return
    command = [sys.executable, "-m", "tests.support.warm"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL) as child:
        yield
        if child.wait(COMPILE_S):
            raise RuntimeError(f"{' '.join(command)}: exit code {child.returncode}")


def modules() -> tuple[ModuleType, ...]:
    """Each has kernels that `tidecast.agents.warmup` leaves to those who need them."""
    from tidecast.jetstream import cursor
    from tidecast.jetstream.storing import messages
    from tidecast.kafka import records
    from tidecast.kafka.brokers import fetched
    from tidecast.kafka.producing import batches
    from tidecast.mirror import runs
    from tidecast.node.durable import placed

    return batches, cursor, messages, records, fetched, placed, runs


def main() -> None:
    """Compile them, and note it."""
    for module in modules():
        module.warm_up()
    mark().touch()


if __name__ == "__main__":
    main()
