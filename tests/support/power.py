"""A disk that loses its power: it keeps what was synced apart from what was only written.

The files are real: a program sees all that it wrote, as it does with a kernel's page cache. What
the *device* holds is kept beside: the bytes of a file as they were when a sync of it began, the
names of a directory as they were when it was synced. `Disk.lose_power` makes of the files what a
device may hold then: of all that was not synced each page and each name is there or not, by seed;
pages may be torn, sizes older than the bytes.

A sync that fails stores some pages and loses the others for good: the kernel takes them for clean,
and what is written to the same blocks later is not stored either (as ext4 does with blocks that it
had just given to the file). Another file has other blocks. The kernel may also forget the pages at
once (`Disk.drops`), as ext4 does when it finds no room for bytes that it had accepted.

`Disk.write_back_fails`: the kernel writes by itself, and fails. One sync reports it, whichever file
descriptor it has; the next one succeeds.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tidecast.native.system import files

PAGE, SECTOR = 4096, 512
Name = tuple[int, str]
"""(inode, target of a symbolic link or "")"""

_real_fsync, _real_fdatasync = os.fsync, os.fdatasync
_libc = ctypes.CDLL(None, use_errno=True)
_disk: Disk | None = None


def _of_kernel(fd: int) -> int:
    """The function that a kernel calls to sync a file."""
    try:
        (_real_fdatasync if _disk is None else _disk.sync)(fd)
    except OSError as problem:
        ctypes.set_errno(problem.errno or errno.EIO)
        return -1
    return 0


_callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, use_errno=True)(_of_kernel)
"""Lives as long as the process: a log that was opened with it may be closed late."""


class Disk:
    """The disk under one directory; see module. `installed` puts it there."""

    def __init__(self, root: Path, seed: int = 0) -> None:
        self.root = root.resolve()
        self._rng = random.Random(seed)
        self._lock = threading.RLock()
        self._bytes: dict[int, bytes] = {}
        """By inode: what the device holds."""
        self._lost: dict[int, set[int]] = {}
        """Pages of which a write failed: they are never stored."""
        self._names: dict[int, dict[str, Name]] = {}
        """By inode of a directory."""
        self._kept: dict[int, int] = {}
        """A descriptor of each inode, so that none is used for another file."""
        self.failing: Callable[[Path], bool] | None = None
        """Whether a sync of a file fails."""
        self.errno = errno.EIO
        """Of a sync that fails."""
        self.drops = 0.0
        """Share of the lost pages that read as the device has them, once the sync has failed."""
        self.syncs = 0
        self._unreported: set[int] = set()
        """Inodes of which the kernel could not store some pages, and no sync has said so."""
        self._holds: Callable[[Path], bool] = _any_file
        self._held = threading.Event()
        self._held.set()
        self.entered = threading.Event()
        """A sync is held."""

    # --- syncs ------------------------------------------------------------------------------------

    def hold_syncs(self, of: Callable[[Path], bool] | None = None) -> None:
        """Syncs of files, or of some, begin, and do not end."""
        self._holds = of or _any_file
        self._held.clear()
        self.entered.clear()

    def release_syncs(self) -> None:
        """They end."""
        self._held.set()

    def sync(self, fd: int) -> None:
        """`os.fsync`, `os.fdatasync` and the kernels' fdatasync of what lies on this disk."""
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if not path.is_relative_to(self.root):
            _real_fsync(fd)
            return
        about = os.fstat(fd)
        with self._lock:
            self.syncs += 1
            self._keep(fd, about.st_ino)
            if stat.S_ISDIR(about.st_mode):
                self._names[about.st_ino] = _listed(Path(f"/proc/self/fd/{fd}"))
                return
            written = _read(fd)
        if not self._held.is_set() and self._holds(path):
            self.entered.set()
            assert self._held.wait(60.0), "a sync was held for a minute"
        with self._lock:
            fails = self.failing is not None and self.failing(path)
            self._write_back(path, about.st_ino, written, fails=fails)
            fails = fails or about.st_ino in self._unreported
            self._unreported.discard(about.st_ino)
        if fails:
            raise OSError(self.errno, os.strerror(self.errno))

    def write_back_fails(self, path: Path) -> None:
        """The kernel stores a file by itself, and loses some of its pages."""
        with self._lock:
            inode = path.stat().st_ino
            self._write_back(path, inode, path.read_bytes(), fails=True)
            self._unreported.add(inode)

    def _write_back(self, path: Path, inode: int, written: bytes, *, fails: bool) -> None:
        lost, before = self._lost.setdefault(inode, set()), self._bytes.get(inode, b"")
        fresh = [at for at in _changed(before, written) if fails and self._rng.random() < 0.7]
        lost.update(fresh)
        self._store(inode, written)
        for page in fresh:
            if self._rng.random() < self.drops:
                at = page * PAGE
                old = before[at : at + PAGE].ljust(PAGE, b"\0")[: max(0, len(written) - at)]
                with path.open("r+b") as file:
                    file.seek(at)
                    file.write(old)

    def _keep(self, fd: int, inode: int) -> None:
        if inode not in self._kept:
            self._kept[inode] = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)

    def _store(self, inode: int, written: bytes) -> None:
        before = self._bytes.get(inode, b"")
        stored = bytearray(written)
        for page in self._lost[inode]:
            at = page * PAGE
            if at < len(stored):
                old = before[at : at + PAGE].ljust(PAGE, b"\0")
                stored[at : at + PAGE] = old[: len(stored) - at]
        self._bytes[inode] = bytes(stored)

    # --- power ------------------------------------------------------------------------------------

    def lose_power(self, share: float | None = None) -> None:
        """The files then hold the bytes that the device holds. Nothing may have a file open.

        ``share``: of what was not synced that is there all the same; None: as the seed has it.
        """
        with self._lock:
            found = _Tree(self)
            found.look(self.root)
            found.choose(self._rng, share)
            for each in self.root.iterdir():
                shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
            made: dict[int, Path] = {}
            found.make(found.root, self.root, made, share)
            self.close()
            self._bytes, self._lost, self._names, self._unreported = {}, {}, {}, set()
            self.sync_all()

    def sync_all(self) -> None:
        """All is on the device."""
        for directory, _, names in os.walk(self.root):
            for path in [Path(directory), *(Path(directory) / name for name in names)]:
                if not path.is_symlink():
                    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    self.sync(fd)
                    os.close(fd)

    def torn(self, inode: int, written: bytes, share: float | None) -> bytes:
        """A content of the file that may be on the device: some unsynced bytes are lost."""
        rng = self._rng
        stored, lost = self._bytes.get(inode, b""), self._lost.get(inode, set())
        sizes = [len(stored), len(written), rng.randint(*sorted((len(stored), len(written))))]
        size = rng.choice(sizes) if share is None else sizes[share > 0]
        found = bytearray(stored[:size].ljust(size, b"\0"))
        often = rng.choice([0.0, 0.5, 1.0]) if share is None else share
        for page in _changed(stored, written):
            at = page * PAGE
            if page in lost or at >= size or rng.random() >= often:
                continue
            new = written[at : at + PAGE]
            if share is None and rng.random() < 0.3:  # torn: its first sectors
                new = new[: rng.randrange(PAGE // SECTOR) * SECTOR]
            new = new[: size - at]
            found[at : at + len(new)] = new
        return bytes(found)

    def names(self, inode: int) -> dict[str, Name]:
        """Names in a directory, on the device."""
        return self._names.get(inode, {})

    def close(self) -> None:
        """Let go of all files."""
        for fd in self._kept.values():
            os.close(fd)
        self._kept = {}


class _Tree:
    """The directories of a disk while its power goes: written, stored, and what is left."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.root = disk.root.stat().st_ino
        self.written: dict[int, dict[str, Name]] = {}
        self.left: dict[int, dict[str, Name]] = {}
        self.bytes: dict[int, bytes] = {}
        """Of files that have a name, or had."""

    def look(self, directory: Path) -> None:
        """Take in what is written below a directory."""
        inode = directory.stat().st_ino
        self.written[inode] = _listed(directory)
        for name, (each, target) in self.written[inode].items():
            path = directory / name
            if target:
                continue
            if path.is_dir():
                self.look(path)
            elif each not in self.bytes and path.is_file():
                self.bytes[each] = path.read_bytes()
        for inode, fd in self._disk._kept.items():
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                self.bytes.setdefault(inode, _read(fd))

    def choose(self, rng: random.Random, share: float | None) -> None:
        """Each name that was not synced is there or not."""
        often = rng.choice([0.0, 0.5, 1.0]) if share is None else share
        inodes = set(self.written) | set(self._disk._names)
        for inode in inodes:
            stored, written = self._disk.names(inode), self.written.get(inode, {})
            self.left[inode] = {
                name: chosen
                for name in sorted(stored.keys() | written.keys())
                if (chosen := (written if rng.random() < often else stored).get(name)) is not None
            }
        named = {each for names in self.left.values() for each, _ in names.values()}
        still = {each for names in self.written.values() for each, _ in names.values()}
        for inode, names in self._disk._names.items():  # renamed: the old name, or the new one
            for name, (each, target) in names.items():
                if each in still and each not in named:
                    self.left[inode].setdefault(name, (each, target))
                    named.add(each)

    def make(self, inode: int, directory: Path, made: dict[int, Path], share: float | None) -> None:
        """Write a directory as it is left."""
        for name, (each, target) in sorted(self.left.get(inode, {}).items()):
            path = directory / name
            if target:
                path.symlink_to(target)
            elif each in self.left:
                path.mkdir(mode=0o700)
                self.make(each, path, made, share)
            elif each in made:
                path.hardlink_to(made[each])
            elif each in self.bytes:
                path.write_bytes(self._disk.torn(each, self.bytes[each], share))
                made[each] = path


def _any_file(path: Path) -> bool:
    del path
    return True


def _listed(directory: Path) -> dict[str, Name]:
    found: dict[str, Name] = {}
    with os.scandir(directory) as entries:
        for each in entries:
            if each.is_symlink():
                found[each.name] = (each.inode(), str(Path(each.path).readlink()))
            elif each.is_file() or each.is_dir():
                found[each.name] = (each.inode(), "")
    return found


def _read(fd: int) -> bytes:
    with open(f"/proc/self/fd/{fd}", "rb") as file:  # noqa: PTH123 - its own position
        return file.read()


def _changed(before: bytes, after: bytes) -> list[int]:
    """Pages in which two contents differ."""
    pages = -(-max(len(before), len(after)) // PAGE)
    return [
        page
        for page in range(pages)
        if before[page * PAGE : page * PAGE + PAGE] != after[page * PAGE : page * PAGE + PAGE]
    ]


@contextlib.contextmanager
def installed(disk: Disk) -> Iterator[Disk]:
    """Have all code of this process sync files of ``disk`` by it. Logs opened meanwhile do."""
    global _disk
    before = files.sync_address
    disk.sync_all()
    _disk = disk
    os.fsync = os.fdatasync = disk.sync  # type: ignore[assignment]
    files.sync_address = ctypes.cast(_callback, ctypes.c_void_p).value or 0
    try:
        yield disk
    finally:
        disk.release_syncs()
        os.fsync, os.fdatasync = _real_fsync, _real_fdatasync
        files.sync_address, _disk = before, None
        disk.close()
