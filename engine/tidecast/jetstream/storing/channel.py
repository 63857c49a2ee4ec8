"""A connection that messages are published over, and the answers of JetStream to them."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

import numpy as np

from tidecast.errors import (
    AuthError,
    ConfigError,
    ConnectionLost,
    PayloadTooLarge,
    StorageError,
    TidecastError,
)
from tidecast.jetstream.connection import Frame, Link
from tidecast.jetstream.storing import message_kernels as kernels
from tidecast.jetstream.streams import Streams

ANSWER_S = 8.0
"""So long JetStream may take to store messages."""
WRONG_SEQUENCE = 10_071
_FULL, _TOO_LARGE, _NO_BATCHES = (10_077, 10_023, 10_028, 10_047), 10_054, 10_174


class Refused(StorageError):
    """JetStream has not stored a message, and the cause is ``number`` of its API."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


def refusal(problem: dict[str, Any], where: str) -> TidecastError:
    """The error that an answer stands for. ConnectionLost: it may be published again as it is."""
    number, code = problem.get("err_code", 0), problem.get("code", 0)
    text = f"{where}: {problem.get('description', 'error')} ({number})"
    if number in _FULL:
        return ConnectionLost(
            f"{text}: raise max_bytes of the stream or of the account, or delete messages"
        )
    if number == _TOO_LARGE:
        return PayloadTooLarge(f"{text}: raise max_msg_size of the stream")
    if number == _NO_BATCHES:
        return ConfigError(f"{text}: set allow_atomic of the stream (NATS 2.12 or newer)")
    if code == 403:
        return AuthError(text)
    if code == 503:
        return ConnectionLost(text)
    return Refused(text, number)


class Channel:
    """See module. For one thread; `wake` may come from another."""

    def __init__(self, streams: Streams, where: str) -> None:
        self._streams, self._where = streams, where
        self.reply = f"_INBOX.tidecast.{secrets.token_hex(11)}"
        self._link: Link | None = None
        self._words = np.zeros(kernels.ANSWER_WORDS, dtype=np.int64)

    def ask(self, data: bytes | memoryview, due: int = 0) -> int:
        """Send frames; the sequence that the answer names.

        ``due``: answers with a lower sequence belong to earlier frames. Raises ConnectionLost,
        AuthError, errors of `refusal`, Closed.
        """
        try:
            if self._link is None:
                self._link = self._streams.connect(0)
                self._link.write(b"SUB %s 1\r\n" % self.reply.encode())
            self._link.write(data)
            return self._answer(self._link, due)
        except (Refused, PayloadTooLarge):
            raise
        except TidecastError:
            self.close()
            raise

    def _answer(self, link: Link, due: int) -> int:
        deadline = time.monotonic() + ANSWER_S
        while True:
            found = link.frame(deadline)
            if found is None:
                raise ConnectionLost(f"{self._where}: no answer of JetStream in {ANSWER_S:g} s")
            if found.name != "MSG" or found.subject != self.reply:
                continue
            sequence = self._sequence(found)
            if sequence >= due:
                return sequence

    def _sequence(self, found: Frame) -> int:
        """The sequence that an answer names. Raises the error of a refusal."""
        if found.status == 503:
            raise ConnectionLost(f"{self._where}: no server takes its messages: has it a leader?")
        try:
            answer = json.loads(found.body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise StorageError(f"{self._where}: an answer that is no JSON object")
        problem, sequence = answer.get("error"), answer.get("seq")
        if isinstance(problem, dict):
            raise refusal(problem, self._where)
        if not isinstance(sequence, int):
            raise StorageError(f"{self._where}: an answer without a sequence")
        return sequence

    def ask_all(self, data: memoryview, first: int, last: int) -> None:
        """Send messages that get the sequences ``first`` to ``last``; wait for their answers.

        When it raises, those before `due` are stored. Raises as `ask`.
        """
        words = self._words
        words[: kernels.A_END] = first, last
        try:
            if self._link is None:
                self._link = self._streams.connect(0)
                self._link.write(b"SUB %s 1\r\n" % self.reply.encode())
            self._link.write(data)
            self._answers(self._link)
        except TidecastError:
            self.close()
            raise

    @property
    def due(self) -> int:
        """The sequence that the next answer names."""
        return int(self._words[kernels.A_DUE])

    def _answers(self, link: Link) -> None:
        deadline, words = time.monotonic() + ANSWER_S, self._words
        while True:
            why = int(kernels.scan_answers(link.data, link.at, link.end, words))
            link.take(int(words[kernels.A_END]))
            if why == kernels.ALL:
                return
            if why == kernels.OTHER:  # an error, which raises, or of the protocol
                found = link.frame(deadline)
                if found is not None and found.name == "MSG" and found.subject == self.reply:
                    self._sequence(found)
                    raise StorageError(f"{self._where}: sequence {self.due} is due: {found.body!r}")
            elif not link.fill(deadline, int(words[kernels.A_NEED])):
                raise ConnectionLost(f"{self._where}: no answer of JetStream in {ANSWER_S:g} s")

    def wake(self) -> None:
        """End a call that waits. From any thread."""
        link = self._link
        if link is not None:
            link.wake()

    def close(self) -> None:
        """Hang up. Idempotent."""
        if self._link is not None:
            self._link.close()
            self._link = None


def frame(subject: str, reply: str, headers: dict[str, Any], payload: bytes = b"") -> bytes:
    """A message to publish."""
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    raw = f"NATS/1.0\r\n{head}\r\n".encode()
    line = f"HPUB {subject} {reply + ' ' if reply else ''}{len(raw)} {len(raw) + len(payload)}\r\n"
    return line.encode() + raw + payload + b"\r\n"
