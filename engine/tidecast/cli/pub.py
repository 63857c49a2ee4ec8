"""`tidecast pub`."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidecast.cli.common import (
    console,
    data_dir_option,
    echo_json,
    human_bytes,
    human_count,
    json_option,
    server_option,
    stoppable,
    token_option,
)

if TYPE_CHECKING:
    from tidecast.cli.splitting import Splitter
    from tidecast.client.blocking import Connection, Publisher
    from tidecast.events import Event

READ_BYTES = 1 << 20
PACE_S = 0.02
COUNT_OF_ONE_BATCH = 1000
KNOWN_WITHIN_S = 5.0
"""How long --to waits for a node that receives the topic."""
INTERRUPTED_DRAIN_S = 5.0


@click.command()
@click.argument("topic")
@click.argument("source", metavar="[FILE|-]", required=False)
@click.option(
    "--message",
    "messages",
    multiple=True,
    metavar="TEXT",
    help="Publish this text; may be repeated.",
)
@click.option(
    "--split",
    default="lines",
    show_default=True,
    metavar="HOW",
    help="lines (without the newline), raw-lines (with it), none, bytes:N, or length (u32 before "
    "each).",
)
@click.option(
    "--count",
    type=click.IntRange(1),
    default=None,
    metavar="N",
    help="At most N messages of the input; each --message N times.",
)
@click.option(
    "--rate",
    "rate_per_s",
    type=click.FloatRange(0, min_open=True),
    default=None,
    metavar="N",
    help="Messages a second.",
)
@click.option("--key", default=None, metavar="TEXT", help="Key of every message.")
@click.option("--header", "headers", multiple=True, metavar="KEY=VALUE", help="May be repeated.")
@click.option(
    "--to",
    default=None,
    metavar="NODE",
    help="For this node alone, by name or id; others that read the topic do not get it.",
)
@click.option(
    "--channel",
    type=click.Choice(["ordinary", "control", "large"]),
    default="ordinary",
    help="`large` for messages of megabytes.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="For what is still unsent at the end.",
)
@click.option("--quiet", is_flag=True, help="No summary, no progress bar.")
@data_dir_option
@token_option
@server_option
@json_option
def pub(
    topic: str, source: str | None, messages: tuple[str, ...], split: str, count: int | None,
    rate_per_s: float | None, key: str | None, headers: tuple[str, ...], to: str | None,
    channel: str, timeout_s: float, quiet: bool, data_dir: Path, token: str | None,
    server: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Publish FILE, standard input (-) or --message on TOPIC, and wait until all is sent.

    Each line of the input is a message, without its newline; `tidecast sub TOPIC` writes a newline
    after each message. For the same bytes at both ends: --split raw-lines here, and
    `tidecast sub TOPIC --output raw`. The summary goes to standard error.
    """
    from tidecast.cli.splitting import splitter_of
    from tidecast.client.core.connection import RECONNECTING
    from tidecast.errors import TidecastError
    from tidecast.sync import connect

    if bool(messages) == (source is not None) and (messages or sys.stdin.isatty()):
        raise click.UsageError("give FILE, or - for standard input, or --message TEXT")
    splitter = splitter_of(split)
    optional = _optional(key, headers, to)
    with connect(server or url_of(data_dir), name="tidecast pub", token=token) as client:
        sender = _Sender(client.publisher(topic, channel=channel), optional, rate_per_s)
        if not quiet:
            threading.Thread(target=_tell_while, args=(client,), daemon=True).start()
        began_s = time.perf_counter()
        exit_code, problem = 0, None
        try:
            with stoppable() as stop:
                if messages:
                    texts = [text.encode() for text in messages] * (count or 1)
                    for at in range(0, len(texts), COUNT_OF_ONE_BATCH):
                        sender.send(texts[at : at + COUNT_OF_ONE_BATCH])
                else:
                    _stream(source or "-", splitter, sender, count, quiet=quiet)
        except KeyboardInterrupt:
            exit_code, timeout_s = stop.code, min(timeout_s, INTERRUPTED_DRAIN_S)
            if client.health().status == RECONNECTING:
                click.echo("error: the engine is lost; what it had not sent is lost", err=True)
                os._exit(exit_code)  # nothing is left that could be closed in order
        except TidecastError as met:
            problem = met  # what came before it is published: it is sent and told
        client.pump()
        if problem is None or sender.messages:
            client.drain(timeout_s)
        while not quiet and (event := client.take_event()) is not None:
            tell(event)
    if not quiet and (problem is None or sender.messages):
        _summary(topic, sender, time.perf_counter() - began_s, as_json)
    if problem is not None:
        raise problem
    sys.exit(exit_code)


def _tell_while(client: Connection) -> None:
    """Say why nothing goes on, while publishing waits for the engine."""
    from tidecast.errors import TidecastError

    with contextlib.suppress(TidecastError):
        for event in client.events(timeout=None):
            tell(event)


def tell(event: Event) -> None:
    """Say on standard error that the engine went or came, or that nobody can hear."""
    from tidecast.events import EngineBack, EngineLost, PublisherUnheard

    if isinstance(event, EngineLost):
        click.echo(f"engine lost: {event.reason}; waiting for it", err=True)
    elif isinstance(event, EngineBack):
        click.echo("engine is back", err=True)
    elif isinstance(event, PublisherUnheard):
        click.echo(f"warning: {event.mend}", err=True)


def url_of(data_dir: Path) -> str:
    """The engine of a data directory, as `tidecast.connect` names it."""
    from urllib.parse import quote

    return f"tidecast://{quote(str(data_dir))}"


def _optional(key: str | None, headers: tuple[str, ...], to: str | None) -> dict[str, Any]:
    optional: dict[str, Any] = {}
    if to is not None:
        optional["to"] = int(to) if to.isdecimal() else to
    if key is not None:
        optional["key"] = key.encode()
    if headers:
        pairs = [header.partition("=") for header in headers]
        if any(not equals or not name for name, equals, _ in pairs):
            raise click.BadParameter("allowed is KEY=VALUE", param_hint="--header")
        optional["headers"] = {name: value for name, _, value in pairs}
    return optional


class _Sender:
    """Publishes lists of messages, at a rate if one is asked for, and counts."""

    def __init__(
        self, publisher: Publisher, optional: dict[str, Any], rate_per_s: float | None
    ) -> None:
        self.messages = self.bytes = 0
        self._publisher, self._optional, self._rate = publisher, optional, rate_per_s
        self._pause = threading.Event()
        self._began_s = time.monotonic()

    def send(self, messages: list[bytes]) -> None:
        """Publish all; returns when the ring has them."""
        for some in self._paced(messages):
            if self._optional:
                for each in some:
                    self._publish(each)
            else:
                self._publisher.publish_batch(some).check()
            self.messages += len(some)
            self.bytes += sum(map(len, some))
            if self._rate is not None:
                self._publisher.flush()

    def _publish(self, message: bytes) -> None:
        """Who receives is known by name only once its first STATUS has come."""
        from tidecast.errors import NoResponders

        while True:
            try:
                self._publisher.publish(message, **self._optional)
            except NoResponders:
                if time.monotonic() > self._began_s + KNOWN_WITHIN_S:
                    raise
                self._pause.wait(PACE_S)
            else:
                return

    def flush(self) -> None:
        """Nothing more comes for the moment: send what waits."""
        self._publisher.flush()

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


def _stream(
    source: str, splitter: Splitter, sender: _Sender, count: int | None, *, quiet: bool
) -> None:
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
    """What can be read, as it comes; None at the end."""
    if source == "-":
        yield from _read(0)
        return
    from tidecast.errors import ConfigError, NotFound

    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"no file {source!r}; to publish it as text: --message {source!r}") from None
    except OSError as problem:
        raise ConfigError(f"{source}: cannot be read: {problem.strerror}") from None
    try:
        yield from _with_progress(source, descriptor, quiet=quiet)
    except IsADirectoryError:
        raise ConfigError(f"{source}: is a directory") from None
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> Iterator[bytes | None]:
    while data := os.read(descriptor, READ_BYTES):
        yield data
    yield None


def _with_progress(source: str, descriptor: int, *, quiet: bool) -> Iterator[bytes | None]:
    out = console(stderr=True)
    size_bytes = os.fstat(descriptor).st_size
    if quiet or not out.is_terminal or not size_bytes:
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

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(),
               TransferSpeedColumn(), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task(Path(source).name, total=size_bytes)
        for data in _read(descriptor):
            yield data
            bar.advance(task, len(data or b""))


def _summary(topic: str, sender: _Sender, seconds: float, as_json: bool) -> None:
    rate = sender.messages / seconds if seconds else 0.0
    if as_json:
        echo_json({
            "topic": topic, "messages": sender.messages, "bytes": sender.bytes,
            "seconds": round(seconds, 6), "messages_per_s": round(rate, 1),
        })  # fmt: skip
        return
    noun = "message" if sender.messages == 1 else "messages"
    click.echo(
        f"published {sender.messages} {noun}, {human_bytes(sender.bytes)}, on {topic} in "
        f"{seconds:.2f} s ({human_count(rate)}/s)",
        err=True,
    )
