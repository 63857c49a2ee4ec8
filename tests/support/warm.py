"""Code that all workers need, made once before all tests, not by each of them beside the others.

    python -m tests.support.warm

Kernels that engines compile when they first need them: three workers compiled those of Kafka for
8 s of CPU each. The files of tests, whose asserts pytest rewrites: 9 s of CPU for each worker.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from tests import parts
from tests.project import ROOT
from tidecast.native.jit import build_directory

COMPILE_S = 600.0
STALE_MAX = 20
"""Files that workers rewrite by themselves. More are quicker rewritten once."""


def mark() -> Path:
    """The file that says that they are in the cache: what `modules` imports decides."""
    return build_directory(Path(__file__)) / "complete"


def is_rewritten(file: Path) -> bool:
    """Whether pytest's bytecode of a file of tests is there, and is that of its text."""
    name = f"{file.stem}.{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    try:
        return (file.parent / "__pycache__" / name).stat().st_mtime >= file.stat().st_mtime
    except FileNotFoundError:
        return False


def commands(part: str) -> list[list[str]]:
    """The commands that make what is not there yet; ``part``: as the option of pytest."""
    found = []
    if not mark().exists():
        found.append(["-m", "tests.support.warm"])
    stale = [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if not is_rewritten(path) and parts.has_tests(part, path, ROOT)
    ]
    if len(stale) > STALE_MAX and not sys.dont_write_bytecode:
        found.append(["-m", "pytest", "--collect-only", "-qq", "-m", "not long", "--part", part])
    return [[sys.executable, *each] for each in found]


@contextmanager
def beside(part: str) -> Iterator[None]:
    """Run `commands` while the block runs."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                subprocess.Popen(
                    each, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
                )
            )
            for each in commands(part)
        ]
        yield
        for child in children:
            if child.wait(COMPILE_S):
                raise RuntimeError(f"{child.args!r}: exit code {child.returncode}")


def modules() -> tuple[ModuleType, ...]:
    """Each has kernels that `tidecast.agents.warmup` leaves to those who need them."""
    from tidecast.jetstream import cursor
    from tidecast.jetstream.storing import messages
    from tidecast.kafka import records
    from tidecast.kafka.brokers import fetched
    from tidecast.kafka.storing import batches
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
