"""Input of `tidecast pub`: messages, their keys, the sender that counts."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidecast.cli.common import console, warn

if TYPE_CHECKING:
    from tidecast.cli.messages.splitting import Splitter
    from tidecast.client.blocking import Publisher

READ_BYTES = 1 << 20
PACE_S = 0.02
KNOWN_WITHIN_S = 5.0
"""How long --to waits for a node that receives the topic."""
SHOWN_BYTES = 60
Keyed = tuple[bytes | None, bytes]
"""Key and payload."""
KeyOf = Callable[[bytes, int], Keyed]
"""From a message and its number in the input, from 1 on."""


def key_function(text: str) -> KeyOf:
    """For ``--key-from``: ``:SEP``, or a field of JSON. Raises `click.BadParameter`."""
    if text.startswith(":"):
        separator = _unescaped(text[1:])
        if not separator:
            raise click.BadParameter(
                f"{text!r}: no separator behind the colon: allowed are :SEP (:, for a comma) and "
                "the name of a JSON field",
                param_hint="'--key-from'",
            )
        return lambda message, number: _key_before(message, number, separator)
    fields = text.split(".")
    if not all(fields):
        raise click.BadParameter(
            f"{text!r}: allowed are :SEP and the name of a JSON field, with dots for fields in "
            "fields: customer.id",
            param_hint="'--key-from'",
        )
    return lambda message, number: (_key_in(message, number, fields), message)


def _unescaped(text: str) -> bytes:
    return text.replace("\\t", "\t").replace("\\n", "\n").encode()


def _refused(message: bytes, number: int, problem: str) -> Exception:
    from tidecast.errors import ConfigError

    shown = message[:SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return ConfigError(f"--key-from: message {number} {problem}: {shown!r}")


def _key_before(message: bytes, number: int, separator: bytes) -> Keyed:
    key, found, payload = message.partition(separator)
    if not found:
        raise _refused(message, number, f"has no separator {separator.decode()!r}")
    return key, payload


def _key_in(message: bytes, number: int, fields: list[str]) -> bytes:
    try:
        value = json.loads(message)
    except ValueError:
        raise _refused(message, number, "is not JSON") from None
    for field in fields:
        value = value.get(field) if isinstance(value, dict) else None
        if value is None:
            raise _refused(message, number, f"has no field {'.'.join(fields)}")
    return (value if isinstance(value, str) else json.dumps(value)).encode()


class Sender:
    """Publishes lists of messages, at a rate if the command names one, and counts."""

    def __init__(
        self,
        publisher: Publisher,
        optional: dict[str, Any],
        rate_per_s: float | None,
        key_of: KeyOf | None = None,
        *,
        durable: bool = False,
        warning: str = "",
    ) -> None:
        """``durable``: `settle` waits for the disk. Raises ConfigError on a live topic then.

        ``warning``: shown before the first message.
        """
        self._warning = warning
        self.messages = self.bytes = 0
        self._publisher, self._optional, self._rate = publisher, optional, rate_per_s
        self._key_of, self._durable = key_of, durable
        self._pause = threading.Event()
        self._began_s = time.monotonic()
        if durable:
            _ = publisher.durable_position  # a live topic has none

    def send(self, messages: list[bytes]) -> None:
        """Publish all; returns when the ring has them."""
        if self._warning:
            warn(self._warning)
            self._warning = ""
        for some in self._paced(messages):
            if self._key_of is not None or self._optional:
                for each in some:
                    self._one(each)
            else:
                self._publisher.publish_batch(some).check()
                self._count(some)
            if self._rate is not None:
                self._publisher.flush()

    def _count(self, some: list[bytes]) -> None:
        self.messages += len(some)
        self.bytes += sum(map(len, some))

    def _one(self, message: bytes) -> None:
        if self._key_of is None:
            self._publish(message, self._optional)
        else:
            key, message = self._key_of(message, self.messages + 1)
            self._publish(message, self._optional | {"key": key})
        self._count([message])

    def _publish(self, message: bytes, optional: dict[str, Any]) -> None:
        """Receivers have names only once their first STATUS has come."""
        from tidecast.errors import NoResponders

        while True:
            try:
                self._publisher.publish(message, **optional)
            except NoResponders:
                if time.monotonic() > self._began_s + KNOWN_WITHIN_S:
                    raise
                self._pause.wait(PACE_S)
            else:
                return

    def flush(self) -> None:
        """Nothing more comes for the moment: send waiting messages."""
        self._publisher.flush()

    def settle(self, timeout_s: float) -> None:
        """Wait until all is on disk, if that was asked for. Raises Timeout, StorageError."""
        if self._durable and self.messages:
            self._publisher.wait_durable(timeout=timeout_s)

    def _paced(self, messages: list[bytes]) -> Iterator[list[bytes]]:
        if self._rate is None:
            yield messages
            return
        step = max(1, int(self._rate * PACE_S))
        for at in range(0, len(messages), step):
            due_s = self._began_s + self.messages / self._rate
            wait_s = due_s - time.monotonic()
            if wait_s > 0:
                self._pause.wait(wait_s)
            yield messages[at : at + step]


def stream(
    source: str, splitter: Splitter, sender: Sender, count: int | None, *, quiet: bool
) -> None:
    """Send the content of a file or of standard input (``-``), at most ``count`` messages."""
    left = count
    for data in _chunks(source, quiet=quiet):
        found = splitter.feed(data) if data is not None else splitter.end()
        if left is not None:
            found = found[:left]
            left -= len(found)
        if found:
            sender.send(found)
        if data is not None and len(data) < READ_BYTES:
            sender.flush()
        if left == 0:
            return


def _chunks(source: str, *, quiet: bool) -> Iterator[bytes | None]:
    """Parts of the input as they come; None at the end."""
    if source == "-":
        yield from _with_progress("standard input", 0, quiet=quiet or os.isatty(0))
        return
    from tidecast.errors import ConfigError, NotFound

    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"no file {source!r}; to publish it as text: --message {source!r}") from None
    except OSError as problem:
        raise ConfigError(f"{source}: cannot be read: {problem.strerror}") from None
    try:
        yield from _with_progress(Path(source).name, descriptor, quiet=quiet)
    except IsADirectoryError:
        raise ConfigError(f"{source}: is a directory") from None
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> Iterator[bytes | None]:
    while data := os.read(descriptor, READ_BYTES):
        yield data
    yield None


def _with_progress(name: str, descriptor: int, *, quiet: bool) -> Iterator[bytes | None]:
    """The input with a bar on a terminal; of a pipe, whose size is not known, a count."""
    out = console(stderr=True)
    if quiet or not out.is_terminal:
        yield from _read(descriptor)
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    size_bytes = os.fstat(descriptor).st_size
    known = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    columns = known if size_bytes else (DownloadColumn(), TransferSpeedColumn())
    with Progress(TextColumn("{task.description}"), *columns, console=out, transient=True) as bar:
        task = bar.add_task(name, total=size_bytes or None)
        for data in _read(descriptor):
            yield data
            bar.advance(task, len(data or b""))
