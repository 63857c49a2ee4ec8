"""`tidecast sub`."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from tidecast.cli.common import (
    Stop,
    all_rows,
    data_dir_option,
    server_option,
    stoppable,
    token_option,
    warn,
)
from tidecast.cli.messages import formats
from tidecast.cli.messages.pub import new_topic, url_of
from tidecast.cli.messages.reading import DurableFlow, Flow, LogFlow
from tidecast.cli.options.names import SubscriptionName, TopicName
from tidecast.cli.options.params import Duration, Moment
from tidecast.cli.options.places import PLACES, Place, of_queue

if TYPE_CHECKING:
    from tidecast.api.logs import Logs
    from tidecast.api.start import Start
    from tidecast.cli.messages.formats import Writer
    from tidecast.client.blocking import Connection
    from tidecast.client.consumer.blocking import Consumer


@click.command()
@click.argument("topic", type=TopicName())
@click.option("--count", type=click.IntRange(1), default=None, metavar="N", help="Stop after N.")
@click.option(
    "--from",
    "start",
    type=Place(),
    default=None,
    help=f"Of a durable topic: {PLACES} Its log is read then, and no subscription is made. Of a "
    "live topic: latest, or earliest, as far back as publishers' histories reach. Of a new "
    "--subscription: where it begins. [default: latest; of a --subscription earliest]",
)
@click.option(
    "--until",
    "until_ns",
    type=Moment(),
    default=None,
    help="Stop at this time: now, 2026-01-31T12:00, +5m. With --from: records that are older.",
)
@click.option(
    "--until-end",
    is_flag=True,
    help="Stop when all publishers seen have ended; with --from at the end of the log; with "
    "--subscription when its lag is 0, but for records that wait for their delivery time.",
)
@click.option("--topics", is_flag=True, help="Write the topic before each message.")
@click.option("--keys", is_flag=True, help="Write the key before each message, and a tab.")
@click.option("--headers", is_flag=True, help="Write NAME=VALUE,... before each message.")
@click.option(
    "--format",
    "template",
    metavar="TEXT",
    help="As kcat -f: %t topic, %p queue, %o sequence, %k key, %K its length, %s payload, %S its "
    "length, %h headers, %T ms since 1970; \\n, \\t. No newline is added.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for scripts.")
@click.option("--raw", is_flag=True, help="Payloads, byte for byte, nothing between.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(low=0, above=True),
    default=None,
    help="Fail when nothing came for so long.",
)
@click.option(
    "--on-gap",
    type=click.Choice(["raise", "event", "skip"]),
    default=None,
    help="After a gap that cannot be repaired: fail, report it on standard error, or continue "
    "silently [default: raise; event for unreliable topics].",
)
@click.option(
    "--subscription",
    "name",
    type=SubscriptionName(),
    metavar="NAME",
    help="Consume a durable TOPIC as a member of this subscription, which is made when it is not "
    "there: messages that were written are acked, and the next run continues behind them.",
)
@click.option("--untethered", is_flag=True, help="Never hold a publisher back; may lose messages.")
@click.option("--quiet", is_flag=True, help="Nothing on standard error but errors.")
@data_dir_option
@token_option
@server_option
def sub(
    topic: str,
    count: int | None,
    start: Start | None,
    until_ns: int | None,
    until_end: bool,
    timeout_s: float | None,
    on_gap: str | None,
    name: str | None,
    untethered: bool,
    quiet: bool,
    data_dir: Path,
    token: str | None,
    server: str | None,
    **output: Any,
) -> None:
    """Subscribe to TOPIC (* for one token, > for all that follow) and write its messages.

    Each message is a line of its own; on a terminal control characters are escaped, and a pattern
    shows topics. Without --from and --subscription only messages published from now on are read.
    Ends after --count messages, with --until or --until-end, or at Ctrl-C.
    """
    from tidecast.errors import ConfigError
    from tidecast.sync import connect

    if sys.stdout is None:  # the shell closed it
        raise ConfigError("standard output is closed: there is nowhere to write to")
    live: dict[str, Any] = {"on_gap": on_gap, "tethered": False if untethered else None}
    _check_combination(topic, start, name, until_ns, [k for k, v in live.items() if v is not None])
    writer = _writer(topic, **output)
    with contextlib.ExitStack() as opened:
        client = opened.enter_context(
            connect(server or url_of(data_dir), name="tidecast sub", token=token)
        )
        logs = None if name is not None else _logs(client, topic, start)
        _check_directives(topic, output["template"], queues=logs is not None or name is not None)
        out = sys.stdout.buffer
        if logs is not None:
            opened.callback(logs.close)
            flow: Flow = _of_log(client, logs, topic, start, until_ns, live, out, writer)
        elif name is not None:
            flow = DurableFlow(client, _consumer(opened, client, topic, name, start), out, writer)
        else:
            new = "" if quiet else new_topic(client, topic)
            subscription = client.subscribe(topic, start=start or "latest", **live)
            flow = Flow(client, opened.enter_context(subscription), out, writer)
            if new:  # a key without rights on a topic does not see that it exists
                warn(f"{new}: nothing is published on it yet")
        of = "" if name is None else f", subscription {name}"
        said = "" if quiet else f"subscribed to {topic}{of}"
        _run(flow, count, timeout_s, until_ns, said, until_end=until_end)


def _run(
    flow: Flow,
    count: int | None,
    timeout_s: float | None,
    until_ns: int | None,
    said: str,
    *,
    until_end: bool,
) -> None:
    stop = Stop()
    try:
        with stoppable(stop):
            if said:
                click.echo(said, err=True)
            flow.run(count, timeout_s, until_ns, until_end=until_end)
    except KeyboardInterrupt:
        flow.flush()
        sys.exit(stop.code)
    except BrokenPipeError:
        # The reader of our output has closed it; nothing may be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --- where messages come from ---------------------------------------------------------------------


def _check_combination(
    topic: str, start: Start | None, name: str | None, until_ns: int | None, live: list[str]
) -> None:
    """Raise `click.UsageError` for options that would have no effect."""
    from tidecast.api.start import Time, Tokens
    from tidecast.config.topology import is_pattern

    if name is not None and live:
        raise click.UsageError(f"--subscription ignores {_flags(live)}")
    if name is not None and until_ns is not None:
        raise click.UsageError("--subscription ignores --until; --until-end ends when its lag is 0")
    if is_pattern(topic) and name is None and isinstance(start, Time | Tokens):
        raise click.UsageError(
            f"--from a time or a sequence reads the log of one topic: {topic} is a pattern"
        )


def _flags(live: list[str]) -> str:
    return " and ".join({"on_gap": "--on-gap", "tethered": "--untethered"}[each] for each in live)


def _logs(client: Connection, topic: str, start: Start | None) -> Logs | None:
    """The log of a durable topic, if it is that which ``--from`` wants. Raises NotFound."""
    from tidecast.api.start import Earliest, Latest
    from tidecast.client.log.sources import no_log
    from tidecast.config.topology import is_pattern
    from tidecast.errors import NotFound

    if start is None or isinstance(start, Latest) or is_pattern(topic):
        return None

    def modes_of(pattern: str) -> dict[str, str]:
        def ask(action: str, **arguments: Any) -> Any:
            return client.link.administer(action, arguments)

        rows = all_rows(ask, "topics", pattern=pattern)
        return {row["name"]: row.get("mode", "live") for row in rows}

    modes = modes_of(topic)
    if modes.get(topic) != "durable":
        if isinstance(start, Earliest):
            return None
        raise NotFound(f"--from: {no_log(topic, modes or modes_of('>'))}")
    logs = client.link.open_logs(topic, _report_missing)
    if not logs.bounds():
        raise NotFound(f"--from: {no_log(topic, modes)}")
    return logs


def _report_missing(what: str, about: dict[str, Any]) -> None:
    warn(f"{what}: " + ", ".join(f"{name} {value}" for name, value in about.items()))


def _of_log(
    client: Connection,
    logs: Logs,
    topic: str,
    start: Start | None,
    until_ns: int | None,
    live: dict[str, Any],
    out: BinaryIO,
    writer: Writer,
) -> LogFlow:
    from tidecast.cli.messages.logs import LogReader

    given = [name for name, value in live.items() if value is not None]
    if given:
        raise click.UsageError(f"--from reads the log of {topic}, which ignores {_flags(given)}")
    assert start is not None
    begin = of_queue(start, [queue for queue, _, _ in logs.bounds()], "--from")
    return LogFlow(client, LogReader(logs, topic, begin), out, writer, until_ns)


def _consumer(
    opened: contextlib.ExitStack, client: Connection, topic: str, name: str, start: Start | None
) -> Consumer:
    from tidecast.api.start import Earliest
    from tidecast.config.suggestions import near
    from tidecast.config.topology import is_pattern
    from tidecast.errors import NotFound

    begin = of_queue(start or Earliest(), [], "--from")
    try:
        return opened.enter_context(client.consumer(topic, name, start=begin))
    except NotFound as problem:
        known = {each.name for each in client.topics.list()}
        if topic in known or is_pattern(topic):
            raise
        raise NotFound(f"{problem}{near(topic, known)}") from None


# --- how they are written -------------------------------------------------------------------------


def _writer(
    topic: str,
    *,
    topics: bool,
    keys: bool,
    headers: bool,
    template: str | None,
    as_json: bool,
    raw: bool,
) -> Writer:
    from tidecast.config.topology import is_pattern

    ways = [
        *(["--format"] if template is not None else ()),
        *(["--json"] if as_json else ()),
        *(["--raw"] if raw else ()),
    ]
    columns = {"--topics": topics, "--keys": keys, "--headers": headers}
    given = [flag for flag, on in columns.items() if on]
    if len(ways) > 1:
        raise click.UsageError(f"{' and '.join(ways)}: give one of them")
    if ways and given:
        raise click.UsageError(f"{ways[0]} ignores {' and '.join(given)}")
    terminal = sys.stdout.isatty()
    if template is not None:
        return formats.formatted(template, terminal=terminal)
    if as_json or raw:
        return formats.json_lines if as_json else formats.raw
    shown = "t" if topics or (terminal and is_pattern(topic)) else ""
    return formats.lines(
        shown + ("k" if keys else "") + ("h" if headers else ""), terminal=terminal
    )


def _check_directives(topic: str, template: str | None, *, queues: bool) -> None:
    used = formats.directives_of(template or "") & set(formats.OF_A_QUEUE)
    if used and not queues:
        named = " and ".join(f"%{each}" for each in sorted(used))
        raise click.UsageError(
            f"--format: {named} are of records in queues, and {topic} is read live: read its log "
            "(--from earliest, --from now), or with --subscription NAME"
        )
