"""Taking a topic's queues over from another engine that may still believe it owns them.

The owner's epoch stands in a file beside the queues. Whoever takes over writes a higher one first
and reads the logs then; whoever appends looks at the file again after each sync and before it says
that anything is durable. So what was said to be durable was there when the next owner read.

An engine that sleeps amid an append writes on when it wakes. It writes into files that have no name
any more: the next owner has made the active segments anew.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from tidecast.config import write_atomically
from tidecast.errors import CorruptLog, Fenced
from tidecast.log.files import index_name, segment_name, sync_directory
from tidecast.log.recovery import segments_in

OWNER_NAME = "owner.json"


class _Owner(msgspec.Struct, frozen=True):
    epoch: int
    name: str


class OwnerFile:
    """The owner of a topic's queues, in the topic's ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / OWNER_NAME
        self._mine: tuple[int, int] | None = None

    def read(self) -> tuple[int, str]:
        """(epoch, name) of the newest owner; (0, "") when there was none. Raises CorruptLog."""
        try:
            found = msgspec.json.decode(self.path.read_bytes(), type=_Owner)
        except FileNotFoundError:
            return 0, ""
        except msgspec.DecodeError as problem:
            raise CorruptLog(f"{self.path}: {problem}") from None
        return found.epoch, found.name

    def take(self, epoch: int, name: str) -> None:
        """Become the owner. Raises Fenced when there is one with this epoch or a higher one."""
        newest, owner = self.read()
        if newest >= epoch:
            who = f"node {owner}" if owner else "another engine"
            raise Fenced(
                f"{self.path.parent}: {who} owns these queues with epoch {newest}, this engine's "
                f"lease has {epoch}: it is asked for again"
            )
        write_atomically(self.path, msgspec.json.encode(_Owner(epoch, name)))
        sync_directory(self.path.parent)
        found = self.path.stat()
        self._mine = (found.st_ino, found.st_mtime_ns)

    @property
    def mine(self) -> bool:
        """Nobody has taken over since `take`."""
        try:
            found = self.path.stat()
        except OSError:
            return False
        return (found.st_ino, found.st_mtime_ns) == self._mine


def isolate(directory: Path) -> None:
    """Make a queue's newest segment and its index anew, so that who has them open writes nowhere.

    Raises OSError.
    """
    try:
        newest = segments_in(directory)[-1:]
    except FileNotFoundError:
        return
    for base in newest:
        for name in (index_name(base), segment_name(base)):
            _renew(directory / name)
    if newest:
        sync_directory(directory)


def _renew(path: Path) -> None:
    fresh = path.with_name(f".{path.name}.taken")
    try:
        shutil.copyfile(path, fresh)
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
    except FileNotFoundError:
        fresh.unlink(missing_ok=True)
        return  # an index that is missing is made anew by recovery
    fresh.replace(path)
