"""The directory of a node's shared memory: who is alive, and what dead nodes left behind.

A living node holds a lock (flock) on the file ``alive`` in its directory; the kernel drops it with
the process. A pid would not do: it is in use again soon, and that of a zombie is never free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

ALIVE_NAME = "alive"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


def make_directory(directory: Path) -> int:
    """Create a node's directory; the descriptor that holds its lock. Raises OSError."""
    # It gets its name when the lock is held: nobody ever sees it without.
    unborn = directory.with_name(f".{directory.name}")
    unborn.mkdir(parents=True, mode=0o700)
    try:
        descriptor = os.open(unborn / ALIVE_NAME, _FLAGS, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unborn.rename(directory)
    except BaseException:
        shutil.rmtree(unborn, ignore_errors=True)
        raise
    return descriptor


def dead_nodes(base: Path) -> list[Path]:
    """Directories of this data directory's nodes that are dead, before they are removed."""
    found = []
    for directory in sorted(base.iterdir()) if base.is_dir() else []:
        try:
            descriptor = os.open(directory / ALIVE_NAME, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.append(directory)
        except OSError:
            pass
        finally:
            os.close(descriptor)
    return found


def clear_leftovers(base: Path) -> None:
    """Remove what dead nodes left in ``base``, and in the same place of other data directories.

    Nodes in temporary data directories (embedded ones) never start there again: somebody else must.
    """
    stem, dash, _ = base.name.rpartition("-")
    bases = base.parent.glob(f"{stem}-*") if dash else [base]
    for each in bases:
        with contextlib.suppress(OSError):
            gone = [_remove_if_dead(directory) for directory in each.iterdir()]
            if any(gone) and each != base:
                each.rmdir()


def adopt_recorder(fresh: Path, path: Path) -> None:
    """A node has started: its recorder takes its place, the one before is kept once.

    Not earlier: a start that fails must not push out what a crashed engine noted.
    """
    if path.exists():
        path.replace(path.with_suffix(path.suffix + ".previous"))
    fresh.replace(path)


def _remove_if_dead(directory: Path) -> bool:
    try:
        if directory.name.startswith("."):
            raise FileNotFoundError
        descriptor = os.open(directory / ALIVE_NAME, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # not born yet, or of a version without the lock
        if _is_process(directory):
            return False
        shutil.rmtree(directory, ignore_errors=True)
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        shutil.rmtree(directory, ignore_errors=True)
        return True
    finally:
        os.close(descriptor)


def _is_process(directory: Path) -> bool:
    pid = directory.name.rpartition("-")[2]
    return pid.isdigit() and Path(f"/proc/{pid}").exists()
