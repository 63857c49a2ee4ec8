"""`tidecast pub`."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidecast.api.words import ChannelName
from tidecast.cli.common import (
    Stop,
    all_rows,
    data_dir_option,
    echo_json,
    human_bytes,
    human_count,
    json_option,
    server_option,
    stoppable,
    token_option,
)
from tidecast.cli.messages.sending import Sender, key_function, stream
from tidecast.cli.options.names import TopicName, complete_file
from tidecast.cli.options.params import Duration, Moment

if TYPE_CHECKING:
    from tidecast.client.blocking import Connection
    from tidecast.errors import TidecastError
    from tidecast.events import Event

COUNT_OF_ONE_BATCH = 1000
INTERRUPTED_DRAIN_S = 5.0


class _Stamp(Moment):
    """A time-stamp: True when each message gets the time at which it is published."""

    def parse(self, text: str) -> int:
        """See `Moment.parse`."""
        return True if text == "now" else super().parse(text)


@click.command()
@click.argument("topic", type=TopicName())
@click.argument("source", metavar="[FILE|-]", required=False, shell_complete=complete_file)
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
    help="lines, none, bytes:N, or length (u32 before each).",
)
@click.option("--raw", is_flag=True, help="A line keeps its newline: the bytes as they are.")
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
@click.option(
    "--key-from",
    default=None,
    metavar=":SEP|FIELD",
    help="Key of each message: the text before the first SEP (`::` for a colon, `:\\t` for a tab), "
    "which is cut off; or this field of a JSON message (customer.id for a field in a field).",
)
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option(
    "--timestamp",
    type=_Stamp(),
    metavar="TIME",
    help="Time-stamp of every message: now, 2026-01-31T12:00, @SECONDS since 1970, -1h.",
)
@click.option(
    "--deliver-in",
    type=Duration(low=0),
    metavar="TIME",
    help="No subscription gets the messages before: 10s, 5m (durable topics).",
)
@click.option(
    "--deliver-at",
    type=Moment(ahead=True),
    metavar="TIME",
    help="As --deliver-in: 2026-01-31T12:00, @SECONDS since 1970.",
)
@click.option(
    "--ack",
    type=click.Choice(["none", "engine", "durable"]),
    default="none",
    show_default=True,
    help="durable: end when all is on disk (durable topics). engine, none: when all is sent.",
)
@click.option(
    "--producer",
    metavar="NAME",
    help="Session of an idempotent producer (durable topics): a newer session of NAME fences this.",
)
@click.option(
    "--first-seq",
    type=click.IntRange(1),
    metavar="N",
    help="With --producer: sequence of the first message; sequences known already are dropped.",
)
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
    type=Duration(low=0),
    default=60.0,
    show_default=True,
    help="For messages that at the end are unsent or, with --ack durable, not on disk.",
)
@click.option("--quiet", is_flag=True, help="No summary, no warnings, no progress bar.")
@data_dir_option
@token_option
@server_option
@json_option
def pub(
    topic: str,
    source: str | None,
    messages: tuple[str, ...],
    split: str,
    raw: bool,
    count: int | None,
    rate_per_s: float | None,
    key_from: str | None,
    ack: str,
    producer: str | None,
    first_seq: int | None,
    channel: ChannelName,
    timeout_s: float,
    quiet: bool,
    data_dir: Path,
    token: str | None,
    server: str | None,
    as_json: bool,
    **each: Any,
) -> None:
    """Publish FILE, standard input (-) or --message on TOPIC, and wait until all is sent.

    Each line of the input is a message, without its newline; `tidecast sub TOPIC` writes a newline
    after each message. For the same bytes at both ends: --raw here, and `tidecast sub TOPIC --raw`.
    The summary goes to standard error.
    """
    from tidecast.cli.messages.splitting import splitter_of
    from tidecast.sync import connect

    if bool(messages) == (source is not None) and (messages or sys.stdin.isatty()):
        raise click.UsageError("give FILE, or - for standard input, or --message TEXT")
    _check_combination(messages, split, raw, key_from, each["key"], producer, first_seq)
    splitter = splitter_of(split, keep_newline=raw)
    key_of = None if key_from is None else key_function(key_from)
    optional = _optional(**each)
    with connect(server or url_of(data_dir), name="tidecast pub", token=token) as client:
        new = "" if quiet else new_topic(client, topic)
        reach = "it becomes a live topic, and only present subscribers get the messages"
        warning = new and f"{new}: {reach}"
        publisher = client.publisher(topic, channel=channel, producer=producer, first_seq=first_seq)
        sender = Sender(
            publisher, optional, rate_per_s, key_of, durable=ack == "durable", warning=warning
        )

        def feed() -> None:
            if messages:
                texts = [text.encode() for text in messages] * (count or 1)
                for at in range(0, len(texts), COUNT_OF_ONE_BATCH):
                    sender.send(texts[at : at + COUNT_OF_ONE_BATCH])
            else:
                stream(source or "-", splitter, sender, count, quiet=quiet)
            sender.settle(timeout_s)

        began_s = time.perf_counter()
        exit_code, problem = _run(client, sender, feed, timeout_s, quiet=quiet)
    if not quiet and (problem is None or sender.messages):
        _summary(topic, sender, time.perf_counter() - began_s, as_json)
    if problem is not None:
        raise problem
    sys.exit(exit_code)


def _run(
    client: Connection, sender: Sender, feed: Callable[[], None], timeout_s: float, *, quiet: bool
) -> tuple[int, TidecastError | None]:
    """Send all and close; the exit code, and the error that stopped it."""
    from tidecast.client.core.connection import RECONNECTING
    from tidecast.errors import TidecastError

    if not quiet:
        threading.Thread(target=_report_while, args=(client,), daemon=True).start()
    exit_code, problem, stop = 0, None, Stop()
    try:
        with stoppable(stop):
            feed()
    except KeyboardInterrupt:
        exit_code, timeout_s = stop.code, min(timeout_s, INTERRUPTED_DRAIN_S)
        if client.health().status == RECONNECTING:
            click.echo("error: the engine is lost, with its unsent messages", err=True)
            os._exit(exit_code)  # nothing is left that could be closed in order
    except TidecastError as met:
        problem = met  # the messages before it are published: send and report them
    client.pump()
    if problem is None or sender.messages:
        client.drain(timeout_s)
    while not quiet and (event := client.take_event()) is not None:
        tell(event)
    return exit_code, problem


def _check_combination(
    messages: tuple[str, ...],
    split: str,
    raw: bool,
    key_from: str | None,
    key: str | None,
    producer: str | None,
    first_seq: int | None,
) -> None:
    if raw and (messages or split != "lines"):
        other = "--message has no newline" if messages else f"--split {split} has no lines"
        raise click.UsageError(f"--raw keeps the newline of lines, and {other}: leave --raw out")
    if messages and split != "lines":
        raise click.UsageError(f"--split {split} is of FILE and standard input: leave it out")
    if key is not None and key_from is not None:
        raise click.UsageError("--key and --key-from: give one of them")
    if first_seq is not None and producer is None:
        raise click.UsageError("--first-seq counts the messages of a producer: give --producer too")


def new_topic(client: Connection, topic: str) -> str:
    """Words for a warning if the topic is not there yet: a mistyped name would go unnoticed."""
    from tidecast.config.suggestions import near
    from tidecast.config.topology import is_pattern
    from tidecast.errors import TidecastError

    if is_pattern(topic):
        return ""

    def ask(action: str, **arguments: Any) -> Any:
        return client.link.administer(action, arguments)

    try:
        if all_rows(ask, "topics", pattern=topic):
            return ""
        known = [each["name"] for each in all_rows(ask, "topics")]
    except TidecastError:  # a name that is none, or an older gateway
        return ""
    return f"topic {topic} is new{near(topic, known)}"


def _report_while(client: Connection) -> None:
    """Report why publishing waits: for the engine."""
    from tidecast.errors import TidecastError

    with contextlib.suppress(TidecastError):
        for event in client.events(timeout=None):
            tell(event)


def tell(event: Event) -> None:
    """Report on standard error: the engine was lost, is back, or no subscriber hears it."""
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


def _optional(
    key: str | None,
    headers: tuple[str, ...],
    timestamp: int | None,
    to: str | None,
    deliver_in: float | None,
    deliver_at: int | None,
) -> dict[str, Any]:
    """The fields that each message has, as `Publisher.publish` takes them."""
    if deliver_in is not None and deliver_at is not None:
        raise click.UsageError("--deliver-in and --deliver-at: give one of them")
    optional: dict[str, Any] = {}
    if deliver_in is not None:
        optional["deliver_in"] = deliver_in
    if deliver_at is not None:
        optional["deliver_at"] = deliver_at
    if timestamp is not None:
        optional["timestamp"] = timestamp
    if to is not None:
        optional["to"] = int(to) if to.isdecimal() else to
    if key is not None:
        optional["key"] = key.encode()
    if headers:
        optional["headers"] = headers_of(headers)
    return optional


def headers_of(headers: tuple[str, ...]) -> dict[str, str]:
    """``NAME=VALUE`` of each --header. Raises `click.BadParameter`."""
    pairs = [header.partition("=") for header in headers]
    if any(not equals or not name for name, equals, _ in pairs):
        raise click.BadParameter("allowed is NAME=VALUE", param_hint="--header")
    return {name: value for name, _, value in pairs}


def _summary(topic: str, sender: Sender, seconds: float, as_json: bool) -> None:
    rate = sender.messages / seconds if seconds else 0.0
    if as_json:
        echo_json(
            {
                "topic": topic,
                "messages": sender.messages,
                "bytes": sender.bytes,
                "seconds": round(seconds, 6),
                "messages_per_s": round(rate, 1),
            }
        )
        return
    noun = "message" if sender.messages == 1 else "messages"
    click.echo(
        f"published {sender.messages} {noun}, {human_bytes(sender.bytes)}, on {topic} in "
        f"{seconds:.2f} s ({human_count(rate)}/s)",
        err=True,
    )
