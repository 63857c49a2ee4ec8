"""Directories that live as long as a process; the next one made removes those of the dead."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path


def scratch_directory(prefix: str, root: Path | None = None) -> tuple[Path, int]:
    """A new directory below ``root`` (None: the system's place for temporary files), locked.

    Removes directories of killed processes under ``prefix`` there. Returns the new directory and
    the descriptor of its lock: `drop_scratch` removes it. Raises OSError.
    """
    root = root or Path(tempfile.gettempdir())
    for left in root.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.getuid():
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)
    # Locked under a name that no process sweeps, so that no sweep comes between.
    made = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=root))
    lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return made.rename(root / made.name.removeprefix(".")), lock


def drop_scratch(directory: Path, lock: int) -> None:
    """Remove a directory of `scratch_directory`."""
    shutil.rmtree(directory, ignore_errors=True)
    os.close(lock)
