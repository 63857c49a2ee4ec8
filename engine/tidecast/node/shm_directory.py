"""The directory of a node's shared memory: living nodes, and the rings of dead nodes.

A living node holds a lock (flock) on the file ``alive`` in its directory; the kernel drops it with
the process. A pid would not do: it is in use again soon, and that of a zombie is never free.

A ring that holds messages of a durable topic that are not acked outlives its node: only the next
node of its data directory takes it; the file ``home`` names that directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

from tidecast.errors import AuthError, TidecastError
from tidecast.native.mapped import MappedFile
from tidecast.node.durable.archiver_tables import UnackedRing, describe_unacked, holds_unacked

ALIVE_NAME, HOME_NAME = "alive", "home"
_BASE_TRIES = 10
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


def _make_base(base: Path) -> None:
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    about = base.lstat()  # a link of another user's is his, wherever it leads
    if about.st_uid != os.getuid():  # that user could replace our rings by others
        raise AuthError(
            f"shared memory at {base} belongs to user {about.st_uid}: have it removed, or choose "
            "another --data-dir"
        )


def make_directory(directory: Path, home: Path) -> int:
    """Create a node's directory; the descriptor that holds its lock. Raises OSError, AuthError.

    ``home``: its data directory.
    """
    # It gets its name when the lock is held: others never see it unlocked.
    unborn = directory.with_name(f".{directory.name}")
    for left in reversed(range(_BASE_TRIES)):
        try:
            _make_base(directory.parent)
            unborn.mkdir(mode=0o700)
            break
        except (FileExistsError, FileNotFoundError):
            if not left:  # else an engine that starts beside us found the base empty
                raise
    try:
        (unborn / HOME_NAME).write_bytes(os.fsencode(home.absolute()))
        descriptor = os.open(unborn / ALIVE_NAME, _FLAGS, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unborn.rename(directory)
    except BaseException:
        shutil.rmtree(unborn, ignore_errors=True)
        raise
    return descriptor


def _is_dead(directory: Path) -> bool:
    """No process holds its lock. Raises FileNotFoundError where there is none.

    The lock is asked for as a shared one, so that concurrent callers see the same.
    """
    descriptor = os.open(directory / ALIVE_NAME, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _directories(base: Path) -> list[Path]:
    """Nodes of this data directory, alive or dead. An engine may remove the base meanwhile."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(base.iterdir())
    return []


def dead_nodes(base: Path) -> list[Path]:
    """Directories of this data directory's nodes that are dead, before they are removed."""
    found = []
    for directory in _directories(base):
        with contextlib.suppress(OSError):
            if _is_dead(directory):
                found.append(directory)
    return found


def living_nodes(base: Path) -> list[Path]:
    """Directories of this data directory's nodes that run."""
    dead = dead_nodes(base)
    there = _directories(base)
    return [each for each in there if (each / ALIVE_NAME).exists() and each not in dead]


def unacked_rings(base: Path, spool: Path) -> list[UnackedRing]:
    """Rings with unacked messages that engines of a data directory left: no publisher uses them.

    They include rings that a running engine found at its start.
    """
    dead, running = dead_nodes(base), living_nodes(base)
    paths = [path for each in (*dead, spool) if each.is_dir() for path in each.glob("pub-*")]
    paths += [path for each in running for path in each.glob("pub-left-*")]
    found = []
    for path in sorted(paths):
        with contextlib.suppress(TidecastError, OSError):
            mapped = MappedFile.open(path)
            left = describe_unacked(mapped)
            mapped.close()
            if left is not None:
                found.append(left)
    return found


def clear_leftovers(base: Path) -> None:
    """Remove rings of dead nodes in ``base``, and in the same place of other data directories.

    Embedded nodes in temporary data directories never start there again, so another node must.
    Messages in ``base`` were taken before; rings of others stay while their data directory exists.
    """
    stem, dash, _ = base.name.rpartition("-")
    bases = base.parent.glob(f"{stem}-*") if dash else [base]
    for each in bases:
        with contextlib.suppress(OSError):
            gone = [_clear(directory, keep=each != base) for directory in each.iterdir()]
            if any(gone) and each != base:
                each.rmdir()


def remove_directory(directory: Path, *, keep: bool = True) -> bool:
    """Remove a node's directory. False: rings with messages that are not acked stay in it.

    ``keep``: they do, if the next node of its data directory can be expected.
    """
    rings = []
    if keep:
        with contextlib.suppress(OSError):
            if Path(os.fsdecode((directory / HOME_NAME).read_bytes())).is_dir():
                rings = [path for path in directory.glob("pub-*") if holds_unacked(path)]
    if not rings:
        shutil.rmtree(directory, ignore_errors=True)
        return True
    for path in directory.iterdir():
        if path not in rings and path.name not in (ALIVE_NAME, HOME_NAME):
            with contextlib.suppress(OSError):
                path.unlink()
    return False


def adopt_recorder(fresh: Path, path: Path) -> None:
    """A node has started: its recorder takes its place, the one before is kept once.

    Not earlier: a start that fails must not remove the records of a crashed engine.
    """
    if path.exists():
        path.replace(path.with_suffix(path.suffix + ".previous"))
    fresh.replace(path)


def _clear(directory: Path, *, keep: bool) -> bool:
    try:
        if directory.name.startswith("."):
            raise FileNotFoundError
        return _is_dead(directory) and remove_directory(directory, keep=keep)
    except FileNotFoundError:  # not born yet, or of a version without the lock
        if _is_process(directory):
            return False
        shutil.rmtree(directory, ignore_errors=True)
        return True


def _is_process(directory: Path) -> bool:
    pid = directory.name.rpartition("-")[2]
    return pid.isdigit() and Path(f"/proc/{pid}").exists()
