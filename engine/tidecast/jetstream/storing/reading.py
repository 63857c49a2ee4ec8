"""The records of a log in a stream, from a place on up to a fence.

When another program writes to the stream, a writer finds its message refused, but messages under
way behind it may be stored. They were never acknowledged, and are stored again later: such strays
are deleted here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from tidecast.config.sources.jetstream import JetStreamSource
from tidecast.errors import StorageError
from tidecast.jetstream.cursor import Cursor
from tidecast.jetstream.storing.fencing import Fence, noted_token, record_subject
from tidecast.jetstream.storing.message_kernels import CHUNK_MESSAGES_MAX
from tidecast.jetstream.storing.messages import RebuildScanner
from tidecast.jetstream.streams import Streams
from tidecast.queues.adapter import Run

PATIENCE_S, READ_S = 30.0, 0.5


class LogReader:
    """See module. ``token``: behind the last record that was read, -1: none was yet."""

    def __init__(
        self,
        source: JetStreamSource,
        stream: str,
        log: int,
        *,
        owner: int = 0,
        begun: Callable[[Streams], None],
        check_open: Callable[[], None],
    ) -> None:
        """``owner``: of the batches. ``check_open``: raises Closed when it has to end."""
        self._subject = record_subject(stream, log)
        one = msgspec.structs.replace(source, streams=stream, subjects=self._subject)
        self._streams = Streams(one, begun=begun)
        self._stream, self._check_open, self._owner = stream, check_open, owner
        self.token = -1

    def read(self, since: int, token: int, end: Fence) -> Iterator[tuple[Run, int]]:
        """Runs with the tokens of their first records, from sequence ``since`` on.

        ``token``: of the first record; -1: any. Raises StorageError when records are missing.
        """
        streams = self._streams
        newest = streams.message(0, {"last_by_subj": self._subject})
        if newest is None or newest["seq"] < since:
            return
        if newest["seq"] >= end.first:
            raise StorageError(f"stream {self._stream}: another writer has taken it over meanwhile")
        if streams.state(0).first > since:
            token = -1  # limits of the stream have deleted earlier records
        scanner = RebuildScanner(f"stream {self._stream}", streams.source.fetch_bytes, self._owner)
        scanner.token = token
        cursor = Cursor(streams, 0, since, scanner)
        deadline = time.monotonic() + PATIENCE_S
        try:
            while cursor.position <= newest["seq"]:
                self._check_open()
                block = cursor.read(time.monotonic() + READ_S)
                if block is None:
                    if time.monotonic() >= deadline:
                        raise StorageError(
                            f"stream {self._stream}: nothing comes from sequence {cursor.position} "
                            f"on, and {newest['seq']} is there"
                        )
                    continue
                deadline = time.monotonic() + PATIENCE_S
                if block.run.size:
                    self.token = scanner.token
                    yield block.run, scanner.first
                if scanner.gap >= 0:
                    self._delete_strays(block.token, scanner.token, noted_token(newest))
                    return
        finally:
            cursor.close()

    def _delete_strays(self, since: int, due: int, newest: int) -> None:
        """Delete the records behind a gap, when they may have been under way."""
        if newest - due > CHUNK_MESSAGES_MAX:
            raise StorageError(
                f"stream {self._stream}: record {due} of the log is not there, and {newest} is: the"
                " servers lost records, or someone deleted them. To do without all before, purge "
                "the stream up to the gap"
            )
        at = since
        while True:
            self._check_open()
            found = self._streams.message(0, {"seq": at, "next_by_subj": self._subject})
            if found is None:
                return
            at = found["seq"] + 1
            if noted_token(found) > due:
                body = {"seq": at - 1, "no_erase": True}
                what = f"stream {self._stream}: sequence {at - 1}"
                self._streams.ask(f"STREAM.MSG.DELETE.{self._stream}", body, what)

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._streams.close()
