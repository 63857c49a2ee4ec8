"""Files that outlive a loss of power: they are on the device when a call returns.

A file's bytes and its name are two things. `os.fsync` of a file stores its bytes; a name that was
made, replaced or removed is stored by a sync of its directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Wait until names made or removed in a directory are on the device. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(directory: Path) -> None:
    """Make a directory, and those above it, of mode 0700; all on the device. Raises OSError."""
    missing = []
    each = directory
    while not each.exists():
        missing.append(each)
        each = each.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True, mode=0o700)
        sync_directory(each.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file: readers see the old or the new file, never half of it, also after a crash.

    The new file is on the device when this returns. Mode 0600. A link stays: its target is
    replaced. Raises OSError, also when that is no regular file: a rename would replace a device.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise
    sync_directory(path.parent)
