"""The counters file: create it, name rows, read it from anywhere."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tidecast.errors import SharedMemoryError
from tidecast.layout import counters as lay
from tidecast.native.mapped import Bytes, MappedFile
from tidecast.native.packing import pack_into, unpack_from


@dataclass(frozen=True, slots=True)
class Row:
    """An entity and its counters (int64[COLUMNS], indexed by `Counter`)."""

    index: int
    kind: str
    session: int
    peer: int
    channel: int
    created_ns: int
    name: str
    detail: str
    values: np.ndarray[Any, np.dtype[np.int64]]


class CountersFile:
    """A node's counters. ``values`` is int64[ROWS_MAX, COLUMNS], written by the agents."""

    def __init__(self, mapped: MappedFile) -> None:
        self.mapped = mapped
        self._taking = threading.Lock()
        raw = mapped.array[lay.VALUES_AT : lay.FILE_BYTES]
        self.values = raw.view(np.int64).reshape(lay.ROWS_MAX, lay.COLUMNS)

    @classmethod
    def create(cls, path: Path) -> CountersFile:
        """Create the file, replacing an old file."""
        path.unlink(missing_ok=True)
        mapped = MappedFile.create(path, lay.FILE_BYTES)
        pack_into("<QQ", mapped.array, 0, lay.MAGIC, lay.ROWS_MAX)
        return cls(mapped)

    @classmethod
    def open(cls, path: Path) -> CountersFile:
        """Map an existing file. Raises NotFound, SharedMemoryError."""
        mapped = MappedFile.open(path)
        sound = mapped.size_bytes >= lay.FILE_BYTES
        if not sound or unpack_from("<Q", mapped.array, 0)[0] != lay.MAGIC:
            raise SharedMemoryError(f"{path} is not a counters file of this version")
        return cls(mapped)

    def allocate(
        self,
        kind: int,
        name: str,
        detail: str = "",
        *,
        session: int = 0,
        peer: int = 0,
        channel: int = 0,
    ) -> int:
        """Take a free row, zeroed. Raises SharedMemoryError when all are taken. Thread-safe."""
        with self._taking:
            return self._take(kind, name, detail, session, peer, channel)

    def _take(
        self, kind: int, name: str, detail: str, session: int, peer: int, channel: int
    ) -> int:
        kinds = self._info[lay.INFO_AT : lay.VALUES_AT].reshape(-1, lay.ROW_INFO_BYTES)[:, 0]
        index = int(np.argmin(kinds))
        if kinds[index] != lay.ROW_FREE:
            raise SharedMemoryError(f"all {lay.ROWS_MAX} counter rows are taken")
        at = lay.INFO_AT + index * lay.ROW_INFO_BYTES
        self.values[index] = 0
        raw_name, raw_detail = name.encode()[:200], detail.encode()[:88]
        pack_into(
            "<IIIqII200s88s",
            self._info,
            at + 4,
            session,
            peer,
            channel,
            time.time_ns(),
            len(raw_name),
            len(raw_detail),
            raw_name,
            raw_detail,
        )
        pack_into("<I", self._info, at, kind)
        return index

    def free(self, index: int) -> None:
        """Give a row back."""
        pack_into("<I", self._info, lay.INFO_AT + index * lay.ROW_INFO_BYTES, lay.ROW_FREE)

    def rows(self) -> list[Row]:
        """All rows in use, with copies of their values."""
        found = []
        kinds = self._info[lay.INFO_AT : lay.VALUES_AT].reshape(-1, lay.ROW_INFO_BYTES)[:, 0]
        for index in np.flatnonzero(kinds).tolist():
            at = lay.INFO_AT + index * lay.ROW_INFO_BYTES
            kind, session, peer, channel, created, name_n, detail_n, name, detail = unpack_from(
                "<IIIIqII200s88s", self._info, at
            )
            if not 0 < kind < len(lay.ROW_KIND_NAMES):
                continue
            found.append(
                Row(
                    index,
                    lay.ROW_KIND_NAMES[kind],
                    session,
                    peer,
                    channel,
                    created,
                    name[: min(name_n, 200)].decode(errors="replace"),
                    detail[: min(detail_n, 88)].decode(errors="replace"),
                    self.values[index].copy(),
                )
            )
        return found

    @property
    def _info(self) -> Bytes:
        return self.mapped.array
