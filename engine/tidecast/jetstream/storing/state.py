"""The state of a topic beside its records, in a stream: its writer, and its small files.

The stream keeps the newest message of each subject. It has one message of a writer under way at a
time, so one marker is the fence.
"""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

import msgspec

from tidecast.connections.retries import Attempts
from tidecast.errors import ConnectionLost, Fenced, StorageError
from tidecast.jetstream.storing.channel import WRONG_SEQUENCE, Channel, Refused, frame
from tidecast.jetstream.storing.fencing import writer_subject
from tidecast.jetstream.streams import Streams
from tidecast.node.storing.small_files import SmallFiles, known_files

PATIENCE_S = 5.0
_GONE = "tidecast-gone"


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The last writer of a topic, and the log that it writes."""

    log: int
    writer: int
    queues: int
    node: str


class Kept(NamedTuple):
    """The state that the stream has. ``files``: contents by name."""

    head: Head | None
    files: dict[str, bytes]


def _payload(found: dict[str, Any]) -> bytes:
    return base64.b64decode(found.get("data", ""))


def read_head(streams: Streams, queue: int) -> Head | None:
    """The last writer; None: there was none. Raises ConnectionLost, StorageError."""
    stream, _ = streams.queues[queue]
    found = streams.message(queue, {"last_by_subj": f"{stream}.head"})
    try:
        return None if found is None else msgspec.json.decode(_payload(found), type=Head)
    except (ValueError, msgspec.MsgspecError) as problem:
        raise StorageError(f"stream {stream}: {stream}.head: {problem}") from None


def read_state(streams: Streams, queue: int) -> Kept:
    """All that is there; to be called behind a fence. Raises ConnectionLost, StorageError."""
    stream, _ = streams.queues[queue]
    head, files, at = read_head(streams, queue), dict[str, bytes](), 1
    while True:
        found = streams.message(queue, {"seq": at, "next_by_subj": f"{stream}.file.*"})
        if found is None:
            return Kept(head, known_files(files))
        at = found["seq"] + 1
        try:
            letters = str(found["subject"]).rpartition(".")[2]
            name = base64.urlsafe_b64decode(letters + "=" * (-len(letters) % 4)).decode()
            files.pop(name, None)
            if _GONE.encode() not in base64.b64decode(found.get("hdrs", "")):
                files[name] = _payload(found)
        except ValueError as problem:
            raise StorageError(f"stream {stream}: sequence {at - 1}: {problem}") from None


class StateWriter(SmallFiles):
    """Writes the state of a topic. For one thread; `close` may come from another."""

    def __init__(self, streams: Streams, queue: int, writer: int) -> None:
        """It fences the writer before with its first message; call `begin` next."""
        super().__init__({})
        self._streams, self._queue, self._writer = streams, queue, writer
        self._stream, _ = streams.queues[queue]
        self._channel = Channel(streams, f"stream {self._stream}")
        self._expected = -1
        self._pending: tuple[str, dict[str, Any], bytes] | None = None
        self._put(writer_subject(self._stream), {}, b"")

    def begin(self, kept: Kept) -> None:
        """The files that the stream has."""
        self._kept = dict(kept.files)

    def write_head(self, head: Head) -> None:
        """Name the writer from now on."""
        self._put(f"{self._stream}.head", {}, msgspec.json.encode(head))

    def _put_file(self, name: str, raw: bytes | None) -> None:
        letters = base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")
        headers = {_GONE: 1} if raw is None else {}
        self._put(f"{self._stream}.file.{letters}", headers, raw or b"")

    def _put(self, subject: str, headers: dict[str, Any], payload: bytes) -> None:
        """One message. Raises ConnectionLost, Fenced, StorageError, AuthError, Closed."""
        if self._pending is not None:  # in doubt: it comes first
            self._settle(*self._pending)
        self._pending = (subject, headers, payload)
        self._settle(subject, headers, payload)

    def _settle(self, subject: str, headers: dict[str, Any], payload: bytes) -> None:
        limit = int(self._streams.server.get("max_payload", 1 << 20))
        if len(payload) + 512 > limit:
            raise StorageError(
                f"stream {self._stream}: {subject}: {len(payload)} bytes, and the server takes "
                f"{limit} a message: raise its max_payload"
            )
        headers = headers | {"tidecast-writer": f"{self._writer:x}"}
        if self._expected >= 0:
            headers |= {"Nats-Expected-Last-Sequence": self._expected}
        data = frame(subject, self._channel.reply, headers, payload)
        attempts = Attempts(PATIENCE_S, self._streams.pause)
        while True:
            try:
                self._expected = self._channel.ask(data, self._expected + 1)
                break
            except Refused as refused:
                if refused.number != WRONG_SEQUENCE:
                    raise
                self._check_mine(subject, payload)
                self._expected += 1
                break
            except ConnectionLost as problem:
                attempts.wait(problem)
        self._pending = None

    def _check_mine(self, subject: str, payload: bytes) -> None:
        """Is the message behind the expected one the one that was refused? Raises Fenced."""
        found = self._streams.message(self._queue, {"seq": self._expected + 1})
        mine = f"tidecast-writer: {self._writer:x}\r\n".encode()
        if (
            found is not None
            and found.get("subject") == subject
            and _payload(found) == payload
            and mine in base64.b64decode(found.get("hdrs", ""))
        ):
            return
        raise Fenced(f"stream {self._stream}: another writer has taken it over")

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._channel.wake()
