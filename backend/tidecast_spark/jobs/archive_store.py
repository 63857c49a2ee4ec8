"""Where an archive lies: a directory, or a URL of a file system that Spark's connectors know.

A commit is a file that one job alone can make. A directory links a draft. An object store
gets a conditional write, where its connector has it (`s3a`); others a rename that fails if the name
is there (HDFS, ABFS).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote, urlparse

from tidecast.disk import sync_directory
from tidecast.errors import ConfigError, StorageError
from tidecast_spark.staging import write_durably

T = TypeVar("T")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://\S+")
_CONDITIONAL = "fs.option.create.conditional.overwrite"


class Store(Protocol):
    """Files of an archive, by names relative to its root."""

    root: Any
    """A `Path`, or the URL as text; for people, and for Spark."""

    def place(self, name: str) -> str:
        """A path or URL that Spark takes."""

    def files(self, folder: str) -> dict[str, int]:
        """All files below a folder, in order, and their bytes; none if it is not there."""

    def read(self, name: str) -> str:
        """The text of a file."""

    def create(self, name: str, value: dict[str, Any]) -> None:
        """Make a file of JSON, whole or not at all. Raises FileExistsError."""

    def settle(self, name: str) -> None:
        """Wait until a file that Spark wrote is durable."""

    def has(self, name: str) -> bool:
        """Whether there is such a file."""

    def move(self, source: str, target: str) -> None:
        """Move a file; nothing if it was moved before, or another job moves it now.

        Raises StorageError: it is in neither place.
        """

    def remove(self, name: str) -> None:
        """Remove a file or a folder, if it is there."""

    def untouched(self, folder: str, since_s: float) -> list[str]:
        """The folders in a folder in which nothing was written since a time (s since 1970)."""


def _missing(root: Any, name: str) -> StorageError:
    return StorageError(
        f"archive: {root}: {name} is in the log of the archive and not in its place: bring it back"
    )


class DirectoryStore:
    """On a disk that the driver and the tasks share."""

    def __init__(self, root: Path) -> None:
        if "://" in str(root) or ":/" in str(root):
            raise ConfigError(
                f"archive: {root}: must be a directory, or a URL as s3a://BUCKET/PATH"
            )
        self.root = root.absolute()

    def place(self, name: str) -> str:
        """See `Store`."""
        return str(self.root / name)

    def files(self, folder: str) -> dict[str, int]:
        """See `Store`."""
        found = sorted(p for p in (self.root / folder).rglob("*") if p.is_file())
        return {str(p.relative_to(self.root)): p.stat().st_size for p in found}

    def read(self, name: str) -> str:
        """See `Store`."""
        return (self.root / name).read_text()

    def create(self, name: str, value: dict[str, Any]) -> None:
        """See `Store`."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{os.getpid()}-{path.name}")
        write_durably(draft, value)
        try:
            os.link(draft, path)  # fails if it is there
        finally:
            draft.unlink()
        sync_directory(path.parent)

    def settle(self, name: str) -> None:
        """See `Store`."""
        fd = os.open(self.root / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def move(self, source: str, target: str) -> None:
        """See `Store`."""
        old, new = self.root / source, self.root / target
        if old.exists():
            new.parent.mkdir(parents=True, exist_ok=True)
        try:
            old.replace(new)
        except FileNotFoundError:
            if not new.exists():
                raise _missing(self.root, target) from None

    def has(self, name: str) -> bool:
        """See `Store`."""
        return (self.root / name).is_file()

    def remove(self, name: str) -> None:
        """See `Store`."""
        path = self.root / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def untouched(self, folder: str, since_s: float) -> list[str]:
        """See `Store`."""
        found = []
        for path in sorted((self.root / folder).glob("*/")):
            with suppress(FileNotFoundError):  # its job is over, and removes it
                if max(each.stat().st_mtime for each in (path, *path.rglob("*"))) < since_s:
                    found.append(str(path.relative_to(self.root)))
        return found


class HadoopStore:
    """On a file system of Hadoop, through the connectors and settings of the session."""

    def __init__(self, spark: Any, url: str) -> None:
        self.root = url.rstrip("/")
        context: Any = spark.sparkContext
        self._jvm: Any = context._jvm  # noqa: SLF001 - as PySpark's own users do
        with self._errors("cannot be opened", ConfigError):
            settings = context._jsc.hadoopConfiguration()  # noqa: SLF001
            self._fs = self._path("").getFileSystem(settings)
            self._base = self._fs.makeQualified(self._path("")).toString()
            self._conditional = self._fs.hasPathCapability(self._path(""), _CONDITIONAL)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{name}".rstrip("/"))

    @contextmanager
    def _errors(self, what: str, kind: type[Exception] = StorageError) -> Iterator[None]:
        """The text of the connector, without its stack. Never with a key: it logs none."""
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except Py4JJavaError as problem:
            java = problem.java_exception
            name = java.getClass().getSimpleName()
            text = (java.getMessage() or "").splitlines()
            raise kind(f"archive: {self.root}: {what}: {name}: {(text or [''])[0]}") from None

    def _unless_missing(self, work: Callable[[], T]) -> T | None:
        from py4j.protocol import Py4JJavaError

        try:
            return work()
        except Py4JJavaError as problem:
            if problem.java_exception.getClass().getSimpleName() != "FileNotFoundException":
                raise
            return None

    def place(self, name: str) -> str:
        """See `Store`."""
        return f"{self.root}/{name}"

    def files(self, folder: str) -> dict[str, int]:
        """See `Store`."""
        return dict(sorted((name, status.getLen()) for name, status in self._listed(folder)))

    def _listed(self, folder: str) -> Iterator[tuple[str, Any]]:
        """The name and the status of each file below a folder."""
        with self._errors("cannot be listed"):
            every = self._unless_missing(lambda: self._fs.listFiles(self._path(folder), True))
            while every is not None and every.hasNext():
                status = every.next()
                yield status.getPath().toString().removeprefix(self._base).lstrip("/"), status

    def read(self, name: str) -> str:
        """See `Store`."""
        with self._errors(f"{name}: cannot be read"):
            stream = self._fs.open(self._path(name))
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def create(self, name: str, value: dict[str, Any]) -> None:
        """See `Store`."""
        raw = bytearray(json.dumps(value).encode())
        with self._errors(f"{name}: cannot be written"):
            if self._fs.exists(self._path(name)):
                raise FileExistsError(name)
            if self._conditional:
                self._write_if_new(name, raw)
                return
            draft = self._path(f"{Path(name).parent}/.{uuid.uuid4().hex}")
            stream = self._fs.create(draft, False)
            stream.write(raw)
            stream.close()
            if not self._fs.rename(draft, self._path(name)):
                self._fs.delete(draft, False)
                raise FileExistsError(name)

    def _write_if_new(self, name: str, raw: bytearray) -> None:
        """The store decides when the stream is closed: 412 if the name is there."""
        from py4j.protocol import Py4JJavaError

        builder = self._fs.createFile(self._path(name)).overwrite(True)
        stream = builder.must(_CONDITIONAL, "true").recursive().build()
        stream.write(raw)
        try:
            stream.close()
        except Py4JJavaError as problem:
            name_of = problem.java_exception.getClass().getSimpleName()
            if name_of in ("RemoteFileChangedException", "FileAlreadyExistsException"):
                raise FileExistsError(name) from None
            raise

    def settle(self, name: str) -> None:
        """Files of these systems are durable when Spark has closed them."""

    def move(self, source: str, target: str) -> None:
        """See `Store`. On an object store a copy, which appears whole, then a removal."""
        with self._errors(f"{source}: cannot be moved"):
            old, new = self._path(source), self._path(target)
            if not self._fs.exists(new):
                self._fs.mkdirs(new.getParent())
                # It fails for the later one of two jobs that do this at the same time.
                self._unless_missing(lambda: self._fs.rename(old, new))
                if not self._fs.exists(new):
                    raise _missing(self.root, target)
            self._fs.delete(old, False)

    def has(self, name: str) -> bool:
        """See `Store`."""
        with self._errors(f"{name}: cannot be looked at"):
            return bool(self._fs.exists(self._path(name)))

    def remove(self, name: str) -> None:
        """See `Store`."""
        with self._errors(f"{name}: cannot be removed"):
            self._fs.delete(self._path(name), True)

    def untouched(self, folder: str, since_s: float) -> list[str]:
        """See `Store`. A folder without a file is none."""
        newest: dict[str, float] = {}
        for name, status in self._listed(folder):
            child = "/".join(name.split("/")[: folder.count("/") + 2])
            written_s = status.getModificationTime() / 1000
            newest[child] = max(newest.get(child, 0.0), written_s)
        return sorted(name for name, written_s in newest.items() if written_s < since_s)


def is_url(place: Path | str) -> bool:
    """Whether an archive is on a file system of Hadoop."""
    found = _URL.fullmatch(place) if isinstance(place, str) else None
    return found is not None and found.group(1) != "file"


def store_of(place: Path | str, spark: Any = None) -> Store:
    """The store of an archive; a URL needs a session. Raises ConfigError."""
    if is_url(place):
        assert spark is not None
        return HadoopStore(spark, str(place))
    if isinstance(place, str) and place.startswith("file://"):
        place = unquote(urlparse(place).path)
    return DirectoryStore(Path(place))
