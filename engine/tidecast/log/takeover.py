"""Taking a topic's queues over from another engine that may still believe it owns them.

Each owner has its own directory, named by its epoch. Creating the directory claims the queues: from
then on every owner with a lower epoch is fenced, because each owner looks for a higher epoch after
its sync, before it reports a record as durable. That needs no clock and no lock. An owner that was
asleep anywhere in between does no harm: no engine reads its directory any more.

The next owner's directory begins with the files of the previous owner: sealed files by hard link,
the newest segment and its index as a copy, since the previous owner may have them open: to append,
or to cut off the bytes of a failed write. An owner that hands over begins new segments before, so
there is almost nothing to copy. Positions of subscriptions are copied first and the logs after
them, so no position is ahead of the records that it counts.

    queues/.owners/<topic>/<epoch>/   map.json, 00000/ ..., subscriptions/, owner.json (made last)
    queues/<topic>                    link to the newest directory, for processes that only read
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from tidecast.disk import make_directory, sync_directory, write_atomically
from tidecast.errors import CorruptLog, Fenced
from tidecast.log.files import open_json, seal_json

OWNER_NAME, OWNERS_NAME = "owner.json", ".owners"
SUBSCRIPTIONS_NAME = "subscriptions"
_DIGITS = 10
COPIES_MAX = 8
_CANNOT_SHARE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class Owner(msgspec.Struct, frozen=True):
    """The owner of a topic's queues. ``since_ns``: since 1970."""

    epoch: int
    name: str
    since_ns: int = 0


class Owners:
    """The owners of one topic's queues, in ``queues``, the directory of all topics."""

    def __init__(self, queues: Path, topic: str) -> None:
        self.directory = queues / OWNERS_NAME / topic
        self.link = queues / topic

    def directory_of(self, epoch: int) -> Path:
        """The directory of an owner's queues."""
        return self.directory / f"{epoch:0{_DIGITS}d}"

    def newest(self) -> int:
        """The highest claimed epoch; 0 when no owner has claimed the queues."""
        epochs = self._epochs()
        first = self.directory_of(0) / OWNER_NAME if 0 in epochs else self.link / OWNER_NAME
        return max(epochs, default=0) or _read(first).epoch  # of builds without such directories

    def current(self) -> Owner:
        """The owner whose queues are complete; epoch 0 without one. Raises CorruptLog."""
        return _read(self.directory_of(self._complete() or 0) / OWNER_NAME)

    @property
    def exist(self) -> bool:
        """Whether an owner has ever claimed these queues."""
        return self.directory.exists()

    def owned(self, epoch: int) -> bool:
        """Whether no owner has claimed the queues after ``epoch``."""
        return max(self._epochs(), default=-1) == epoch

    def claim(self, epoch: int, name: str, now_ns: int) -> Path:
        """Take the queues over. Returns the directory that only this owner writes from now on.

        Raises Fenced when there is an owner with this epoch or a higher one, OSError.
        """
        make_directory(self.directory)
        if self.newest() >= epoch:
            raise self._fenced(epoch)
        self._adopt_plain()
        mine = self.directory_of(epoch)
        try:
            mine.mkdir(mode=0o700)
        except FileExistsError:
            raise self._fenced(epoch) from None
        try:
            if not self.owned(epoch):
                raise self._fenced(epoch)
            before = self._complete(below=epoch)
            if before is not None:
                _inherit(self.directory_of(before), mine)
            (mine / SUBSCRIPTIONS_NAME).mkdir(exist_ok=True, mode=0o700)
            sync_directory(mine)
            sync_directory(self.directory)
            raw = seal_json(msgspec.json.encode(Owner(epoch, name, now_ns)))
            write_atomically(mine / OWNER_NAME, raw)  # last: it marks the directory as complete
            self.show(epoch)
        except BaseException:
            self.discard(epoch)
            raise
        return mine

    def show(self, epoch: int) -> None:
        """Point the link for reading processes to the queues of this owner. Raises OSError."""
        target = Path(OWNERS_NAME) / self.link.name / self.directory_of(epoch).name
        if self.link.is_symlink() and self.link.readlink() == target:
            return
        fresh = self.directory.parent / f".{self.link.name}.{epoch}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target)
        fresh.replace(self.link)
        sync_directory(self.link.parent)

    def sweep(self, epoch: int) -> None:
        """Remove the directories of owners before ``epoch``, which has all their records."""
        for older in self._epochs():
            if older < epoch:
                self.discard(older)

    def discard(self, epoch: int) -> None:
        """Remove an owner's directory, by one rename: no process sees half of it."""
        gone = self.directory / f".{epoch}"
        with contextlib.suppress(OSError):
            self.directory_of(epoch).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        left = self._complete()
        if left is not None:
            with contextlib.suppress(OSError):
                self.show(left)

    def remove(self) -> None:
        """The topic was deleted: remove the directories of all owners."""
        with contextlib.suppress(FileNotFoundError):
            self.link.unlink()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _fenced(self, epoch: int) -> Fenced:
        newest = self.newest()
        name = _read(self.directory_of(newest) / OWNER_NAME).name
        who = f"node {name}" if name else "another engine"
        return Fenced(
            f"{self.link}: {who} owns these queues with epoch {newest}, this engine's lease has "
            f"{epoch}: it is asked for again"
        )

    def _adopt_plain(self) -> None:
        """Queues that had no owner so far become those of epoch 0."""
        if self.link.is_dir() and not self.link.is_symlink():
            with contextlib.suppress(FileNotFoundError):  # another engine does the same
                self.link.rename(self.directory_of(0))
                sync_directory(self.directory)
            self.show(0)

    def _epochs(self) -> list[int]:
        try:
            names = os.listdir(self.directory)  # noqa: PTH208 - behind each sync: 10 us, not 16
            return sorted(int(name) for name in names if name.isdecimal())
        except OSError:
            return []

    def _complete(self, below: int | None = None) -> int | None:
        """The newest epoch whose directory is complete. Epoch 0 (no owner) always is."""
        for epoch in reversed(self._epochs()):
            complete = epoch == 0 or (self.directory_of(epoch) / OWNER_NAME).exists()
            if complete and (below is None or epoch < below):
                return epoch
        return None


def owner_of(queue: Path) -> Owner:
    """The owner of the queue in this directory; epoch 0: none by a lease."""
    return _read(queue.parent / OWNER_NAME)


def _read(path: Path) -> Owner:
    try:
        return msgspec.json.decode(open_json(path.read_bytes()), type=Owner)
    except (FileNotFoundError, NotADirectoryError):
        return Owner(0, "")
    except (ValueError, msgspec.DecodeError) as problem:
        raise CorruptLog(f"{path}: {problem}") from None


def _inherit(before: Path, mine: Path) -> None:
    """All that the owner before has, so that nothing it writes later changes ours."""
    for directory in (before / SUBSCRIPTIONS_NAME, before):  # positions first: see the module
        target = mine / directory.relative_to(before)
        target.mkdir(exist_ok=True, mode=0o700)
        for path in _files(directory):
            if path.name != OWNER_NAME:
                _link(path, target)  # both are replaced as a whole, never written in place
        sync_directory(target)
    queues = [path for path in before.iterdir() if path.name.isdecimal()]
    with ThreadPoolExecutor(COPIES_MAX) as pool:  # most of it is waiting for the device
        for done in [pool.submit(_inherit_queue, queue, mine / queue.name) for queue in queues]:
            done.result()


def _inherit_queue(before: Path, mine: Path) -> None:
    mine.mkdir(mode=0o700)
    files = _files(before)
    newest = max((path.stem for path in files if path.suffix == ".log"), default="")
    for path in files:
        head = path.name[: len(newest)]
        if head < newest:
            _link(path, mine)
        elif head == newest:
            _copy(path, mine)
        # later names belong to a segment that the previous owner is about to create
    sync_directory(mine)


def _files(directory: Path) -> list[Path]:
    """The complete files of a directory: incomplete files begin with a dot, or end with "-new"."""
    try:
        found = sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    return [p for p in found if p.name[0] != "." and not p.name.endswith("-new") and p.is_file()]


def _link(path: Path, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # retention of the owner before was quicker
        (target / path.name).hardlink_to(path)


def _copy(path: Path, target: Path) -> None:
    """A copy that is on the device: a hard link would be written by two.

    A file system that can share blocks until they are written to (XFS, btrfs) copies nothing.
    """
    with path.open("rb") as source, (target / path.name).open("xb") as made:
        left = os.fstat(source.fileno()).st_size
        try:
            while left > 0 and (n := os.copy_file_range(source.fileno(), made.fileno(), left)) > 0:
                left -= n
        except OSError as problem:
            if problem.errno not in _CANNOT_SHARE:
                raise
            shutil.copyfileobj(source, made)
        made.flush()
        os.fsync(made.fileno())
