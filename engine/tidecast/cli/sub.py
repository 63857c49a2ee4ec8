"""`tidecast sub`."""

from __future__ import annotations

import base64
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from tidecast.cli.common import data_dir_option, server_option, stoppable, token_option
from tidecast.cli.pub import tell, url_of

if TYPE_CHECKING:
    from tidecast.client.blocking import Connection, Subscription
    from tidecast.client.consumer.blocking import Consumer
    from tidecast.client.consumer.message import DurableMessage
    from tidecast.client.core.message import Message

POLL_MESSAGES = 4096
LOOK_S = 0.1
Writer = Callable[["Iterable[Message | DurableMessage]"], bytes]


@click.command()
@click.argument("topic")
@click.option("--count", type=click.IntRange(1), default=None, metavar="N", help="Stop after N.")
@click.option(
    "--from",
    "start",
    type=click.Choice(["latest", "earliest"]),
    default=None,
    help="earliest: as far back as publishers' histories reach; of a new --subscription: as "
    "its queues do. [default: latest; of a --subscription earliest]",
)
@click.option(
    "--output",
    type=click.Choice(["lines", "raw", "json", "pretty"]),
    default=None,
    help="lines: each payload and a newline; raw: payloads, byte for byte, nothing between; "
    "json: one object a line; pretty: for people, control characters escaped "
    "[default: pretty on a terminal, else lines].",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, min_open=True),
    default=None,
    metavar="SECONDS",
    help="Fail when nothing came for so long.",
)
@click.option(
    "--on-gap",
    type=click.Choice(["raise", "event", "skip"]),
    default=None,
    help="What is lost for good: fail, tell on standard error, or go on silently "
    "[default: raise; event for unreliable topics].",
)
@click.option(
    "--subscription",
    "name",
    metavar="NAME",
    help="Consume a durable TOPIC as a member of this subscription, which is made when it is not "
    "there: what was written is acked, the next run goes on behind it.",
)
@click.option(
    "--until-end",
    is_flag=True,
    help="Stop when all publishers seen have ended; with --subscription when its lag is 0.",
)
@click.option("--untethered", is_flag=True, help="Never hold a publisher back; may lose messages.")
@click.option("--quiet", is_flag=True, help="Nothing on standard error but errors.")
@data_dir_option
@token_option
@server_option
def sub(
    topic: str, count: int | None, start: str | None, output: str | None, timeout_s: float | None,
    on_gap: str | None, name: str | None, until_end: bool, untethered: bool, quiet: bool,
    data_dir: Path, token: str | None, server: str | None,
) -> None:  # fmt: skip
    """Subscribe to TOPIC (* for one token, > for all that follow) and write what arrives.

    Of a durable topic that is what is published from now on; what its queues keep is read with
    --subscription. Ends after --count messages, with --until-end, or at Ctrl-C.
    """
    if name is not None and (on_gap is not None or untethered):
        raise click.UsageError("--on-gap and --untethered are of live reading: leave them out")
    from tidecast.errors import ConfigError
    from tidecast.sync import connect

    if sys.stdout is None:  # the shell closed it
        raise ConfigError("standard output is closed: there is nowhere to write to")
    writer = _WRITERS[output or ("pretty" if sys.stdout.isatty() else "lines")]
    where = start or ("latest" if name is None else "earliest")
    with connect(server or url_of(data_dir), name="tidecast sub", token=token) as client:
        tethered = False if untethered else None
        source: Any = (
            client.subscribe(topic, start=where, on_gap=on_gap, tethered=tethered)
            if name is None
            else client.consumer(topic, name, start=where)
        )
        with source as messages:
            if not quiet:
                of = "" if name is None else f", subscription {name}"
                click.echo(f"subscribed to {topic}{of}", err=True)
            make = _Flow if name is None else _DurableFlow
            flow = make(client, messages, sys.stdout.buffer, writer)
            try:
                with stoppable() as stop:
                    flow.run(count, timeout_s, until_end=until_end)
            except KeyboardInterrupt:
                flow.flush()
                sys.exit(stop.code)
            except BrokenPipeError:
                # Whoever read our output has had enough; nothing may be flushed to it at exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Flow:
    """From a subscription to a stream, flushed whenever nothing more is there."""

    def __init__(
        self, client: Connection, messages: Subscription, out: BinaryIO, writer: Writer
    ) -> None:
        self._client, self._messages, self._out, self._writer = client, messages, out, writer
        self._seen = False

    def run(self, count: int | None, timeout_s: float | None, *, until_end: bool) -> None:
        """Until ``count`` messages were written, or the publishers ended. Raises Timeout."""
        from tidecast.errors import Timeout

        left = count
        last_s = time.monotonic()
        while left is None or left > 0:
            n = self._take(left)
            self._tell_gaps()
            if n:
                last_s = time.monotonic()
                left = None if left is None else left - n
            elif until_end and self._ended():
                break
            elif timeout_s is not None and time.monotonic() - last_s > timeout_s:
                self.flush()
                raise Timeout(f"no message on {self._messages.pattern} for {timeout_s:g} s")
        self.flush()

    def _take(self, left: int | None) -> int:
        """Write what is there, waiting a little for it. Returns how many messages."""
        from tidecast.errors import Timeout

        limit = POLL_MESSAGES if left is None else min(left, POLL_MESSAGES)
        batch = self._messages.poll(limit)
        if len(batch):
            self._out.write(self._writer(batch))
            return len(batch)
        self.flush()
        try:
            one = self._messages.next(timeout=LOOK_S)
        except Timeout:
            return 0
        self._out.write(self._writer((one,)))
        return 1

    def _ended(self) -> bool:
        there = bool(self._messages.images())
        self._seen = self._seen or there or self._messages.stats().get("messages", 0) > 0
        return self._seen and not there

    def _tell_gaps(self) -> None:
        from tidecast.events import Gap

        for event in self._client.events(timeout=0.0):
            if isinstance(event, Gap):
                click.echo(f"gap: {event.topic}: packets {event.first} to {event.end} of "
                           f"{event.node} are lost ({event.reason})", err=True)  # fmt: skip
            else:
                tell(event)

    def flush(self) -> None:
        """Nothing more is there for the moment."""
        self._out.flush()


class _DurableFlow(_Flow):
    """From a durable subscription to a stream: acked when it was written and flushed."""

    _messages: Consumer  # type: ignore[assignment]

    def _take(self, left: int | None) -> int:
        limit = POLL_MESSAGES if left is None else min(left, POLL_MESSAGES)
        batch = self._messages.fetch(limit, max_wait=LOOK_S)
        if len(batch):
            self._out.write(self._writer(batch))
            self.flush()
            batch.ack()
        return len(batch)

    def _ended(self) -> bool:
        return bool(self._messages.info()["lag"] == 0)


def _payloads(messages: Iterable[Message | DurableMessage]) -> Iterable[bytes]:
    payloads = getattr(messages, "payloads", None)
    if payloads is not None:
        return cast("Iterable[bytes]", payloads())
    return (bytes(each.data) for each in messages)


def _raw(messages: Iterable[Message | DurableMessage]) -> bytes:
    return b"".join(_payloads(messages))


def _lines(messages: Iterable[Message | DurableMessage]) -> bytes:
    return b"\n".join((*_payloads(messages), b""))


def _text_or_base64(name: str, data: bytes) -> dict[str, str]:
    with contextlib.suppress(UnicodeDecodeError):
        return {name: data.decode()}
    return {f"{name}_base64": base64.b64encode(data).decode()}


def _whence(message: Any) -> dict[str, Any]:
    token = getattr(message, "token", None)
    if token is None:
        return {"node": message.node, "session": message.session}
    return {"queue": token.queue, "token": token.sequence, "attempts": message.attempts}


def _json(messages: Iterable[Message | DurableMessage]) -> bytes:
    import msgspec

    lines = []
    for each in messages:
        value: dict[str, Any] = {"topic": each.topic, **_whence(each)}
        if each.key is not None:
            value |= _text_or_base64("key", each.key)
        if each.headers:
            value["headers"] = each.headers
        if each.timestamp is not None:
            value["timestamp_ns"] = each.timestamp
        value |= _text_or_base64("data", bytes(each.data))
        lines.append(msgspec.json.encode(value) + b"\n")
    return b"".join(lines)


def _pretty(messages: Iterable[Message | DurableMessage]) -> bytes:
    lines = []
    for each in messages:
        text = bytes(each.data).decode("utf-8", "backslashreplace")
        text = text.removesuffix("\n")
        # Control characters of a foreign publisher must not drive this terminal.
        text = "".join(c if c.isprintable() or c in "\t\n" else f"\\x{ord(c):02x}" for c in text)
        prefix = f"{each.key.decode('utf-8', 'backslashreplace')}: " if each.key else ""
        lines.append(f"{prefix}{text}\n".encode())
    return b"".join(lines)


_WRITERS: dict[str, Writer] = {
    "lines": _lines, "raw": _raw, "json": _json, "pretty": _pretty,
}  # fmt: skip
