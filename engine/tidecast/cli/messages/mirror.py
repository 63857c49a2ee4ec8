"""`tidecast mirror`: a source to a durable topic, or such a topic to Kafka, each record once."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from tidecast.cli.common import (
    Stop,
    data_dir_option,
    echo_json,
    human_count,
    json_option,
    server_kept_option,
    server_of,
    stoppable,
    token_option,
)
from tidecast.cli.messages.mirrors import commands

if TYPE_CHECKING:
    from tidecast.mirror.inbound import InboundMirror
    from tidecast.mirror.progress import Event, Progress
    from tidecast.queues.adapter import Adapter

SHOW_S = 1.0


class Closing(Protocol):
    """A part of a mirror that is closed at its end."""

    def close(self) -> None:
        """End it."""


@click.group(invoke_without_command=True)
@click.option(
    "--from",
    "source",
    metavar="SOURCE",
    help="kafka://HOST:PORT/TOPIC, jetstream://HOST:PORT/STREAM, MODULE:FUNCTION of an adapter, or "
    "a durable topic.",
)
@click.option(
    "--to",
    "topic",
    metavar="TARGET",
    help="A durable topic; from such a topic, kafka://HOST:PORT/TOPIC.",
)
@click.option("--name", help="Name of the mirror; its position has it [default: of both topics].")
@click.option(
    "--rate", type=click.IntRange(1, 100_000_000), metavar="N", help="Records a second, at most."
)
@click.option(
    "--once/--follow",
    default=False,
    help="End when all is copied, or continue [default: --follow].",
)
@click.option(
    "--start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where a new mirror begins.",
)
@click.option(
    "--place",
    type=click.Choice(["auto", "queue", "key"]),
    default="auto",
    show_default=True,
    help="auto: queue to queue when the counts agree, else by key.",
)
@click.option(
    "--on-gap",
    type=click.Choice(["report", "stop"]),
    default="report",
    show_default=True,
    help="When the source deleted records before they were copied.",
)
@click.option(
    "--retry-s",
    type=click.FloatRange(0, 86_400),
    default=300.0,
    show_default=True,
    help="How long an error of source or engine may last.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan; copy nothing.")
@data_dir_option
@server_kept_option
@token_option
@json_option
@click.pass_context
def mirror(
    ctx: click.Context,
    source: str | None,
    topic: str | None,
    name: str | None,
    rate: int | None,
    once: bool,
    start: str,
    place: str,
    on_gap: str,
    retry_s: float,
    dry_run: bool,
    data_dir: Path,
    token: str | None,
    as_json: bool,
) -> None:
    """Copy a source to a durable topic, or a durable topic to Kafka, each record once.

    Each queue keeps its order. After a crash of any part the same command continues. The commands
    below are for mirrors that the control service keeps running.
    """
    from tidecast.config.sources.kafka import SCHEME

    if ctx.invoked_subcommand is not None:
        if source is not None or topic is not None:
            raise click.UsageError(f"--from, --to: they belong behind {ctx.invoked_subcommand}")
        return
    if source is None or topic is None:
        missing = "--from" if source is None else "--to"
        raise click.UsageError(f"Missing option '{missing}'.")

    if topic.startswith(SCHEME):
        options = {"start": start, "on_gap": on_gap, "follow": not once}
        limits = (rate, retry_s)
        _to_kafka(source, topic, name, limits, place, dry_run, data_dir, token, as_json, **options)
        return
    from tidecast.mirror.inbound import InboundMirror
    from tidecast.mirror.progress import Progress
    from tidecast.mirror.state import StateFile
    from tidecast.mirror.target import Target

    kind, source_topic = _named(source)
    screen = _Screen(as_json)
    progress = Progress(rate, screen.event, patience_s=retry_s)
    with StateFile(data_dir, name or f"{source_topic}-to-{topic}") as state:
        target = Target.of(
            topic, state.name, progress, data_dir=data_dir, server=server_of(), token=token
        )
        adapter = _opened(source, progress)
        into = InboundMirror(
            adapter,
            target,
            state,
            progress,
            source=kind,
            place=place,
            start=start,
            on_gap=on_gap,
            follow=not once,
        )
        with _until_stopped(progress, screen, into, adapter, target, quiet=dry_run):
            if dry_run:
                _show_plan(into, adapter, topic, as_json)
            else:
                into.run(lambda: screen.show(progress))


@contextlib.contextmanager
def _until_stopped(
    progress: Progress, screen: _Screen, *parts: Closing, quiet: bool
) -> Iterator[None]:
    """Run a mirror; then close its parts, and show a summary unless ``quiet``."""
    from tidecast.mirror.progress import Stopped

    stop, started_s = Stop(), time.monotonic()
    try:
        with stoppable(stop):
            yield
    except (KeyboardInterrupt, Stopped):
        raise SystemExit(stop.code) from None
    finally:
        progress.stopping.set()
        for part in parts:
            part.close()
        if not quiet:
            screen.summary(progress, time.monotonic() - started_s)


def _to_kafka(
    topic: str,
    url: str,
    name: str | None,
    limits: tuple[int | None, float],
    place: str,
    dry_run: bool,
    data_dir: Path,
    token: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """``limits``: records a second, and how long errors may last."""
    from tidecast.config.sources.kafka import kafka_source_of
    from tidecast.mirror.outbound import FOLDER, OutboundMirror
    from tidecast.mirror.progress import Progress
    from tidecast.mirror.state import StateFile
    from tidecast.mirror.target import Target

    kafka = kafka_source_of(url)
    _check_out(topic, place)
    screen = _Screen(as_json)
    progress = Progress(limits[0], screen.event, patience_s=limits[1])
    with StateFile(data_dir, name or f"{topic}-to-{kafka.topic}", FOLDER) as state:
        source = Target.of(topic, state.name, progress, data_dir=data_dir, server=None, token=token)
        out = OutboundMirror(source, data_dir, kafka, state, progress, **options)
        with _until_stopped(progress, screen, out, source, quiet=dry_run):
            if dry_run:
                _show_rows(out.rows(), topic, kafka.topic, "queue", as_json)
            else:
                out.run(lambda: screen.show(progress))


def _check_out(topic: str, place: str) -> None:
    """Raise ConfigError for options that a mirror to Kafka does not support."""
    from tidecast.config.topology import topic_name_problem
    from tidecast.errors import ConfigError

    problem = topic_name_problem(topic)
    if problem is not None:
        raise ConfigError(f"--from: {topic}: to Kafka only a durable topic is copied: {problem}")
    if place == "key":
        raise ConfigError(
            "--place: key: to Kafka each queue goes to its partition: allowed are auto, queue"
        )
    if server_of() is not None:
        raise ConfigError(
            "--server: a mirror to Kafka reads the log's files: run it on the engine's host, with "
            "--data-dir"
        )


def _named(source: str) -> tuple[str, str]:
    """The name of a source in the state file, without options; the topic's name."""
    from tidecast.config.sources import jetstream
    from tidecast.config.sources.kafka import SCHEME, kafka_source_of

    if source.startswith(SCHEME):
        found = kafka_source_of(source)
        return f"{SCHEME}{found.servers}/{found.topic}", found.topic
    if source.startswith(jetstream.SCHEME):
        streams = jetstream.jetstream_source_of(source)
        chosen = f"?subjects={streams.subjects}" if streams.subjects else ""
        place = f"{jetstream.SCHEME}{streams.servers}/{streams.streams}{chosen}"
        return place, streams.queues[0][0]
    return source, source.rpartition(":")[2]


def _adapter(source: str) -> Any:
    from tidecast.engine.adapters import made_by
    from tidecast.errors import ConfigError

    try:
        _, _, make = made_by(f"source={source}")
    except ConfigError as problem:
        raise ConfigError(
            f"--from: {source}: {str(problem).removeprefix('adapter: ')}", problem.problems
        ) from None
    open_it: Any = make
    return open_it()


def _opened(source: str, progress: Progress) -> Adapter:
    """The adapter, tried again while its system is away. Raises TidecastError."""
    from tidecast.errors import TidecastError
    from tidecast.mirror.retries import Retries

    retries = Retries(progress, "SourceAway")
    while True:
        try:
            adapter: Adapter = _adapter(source)
        except TidecastError as problem:
            if not problem.retryable:
                raise
            retries.wait(problem)
        else:
            return adapter


def _show_plan(into: InboundMirror, adapter: Adapter, topic: str, as_json: bool) -> None:
    plan = into.plan()
    rows = []
    for route in plan.routes:
        end = into.end_of(route.source)
        queue = plan.placing.fixed(route.source)
        rows.append(
            {
                "source": route.source,
                "queue": queue,
                "position": route.position,
                "end": end,
                "records": max(0, end - route.position),
            }
        )
    _show_rows(rows, adapter.name, topic, plan.placing.place, as_json)


def _show_rows(
    rows: list[dict[str, Any]], source: str, topic: str, place: str, as_json: bool
) -> None:
    if as_json:
        echo_json({"topic": topic, "place": place, "queues": rows})
        return
    for row in rows:
        where = "by key" if row["queue"] is None else f"queue {row['queue']}"
        click.echo(
            f"{source} {row['source']} -> {topic} {where}: offsets {row['position']} to "
            f"{row['end']}, {row['records']} at most"
        )


class _Screen:
    """Progress: a line that is rewritten on a terminal, else a line a second; or JSON."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._shown_s, self._records = time.monotonic(), 0
        self._rewrites = sys.stderr.isatty()

    def event(self, event: Event) -> None:
        """An event of the mirror."""
        if self._json:
            echo_json({"event": event.event, "text": event.text, **event.about})
        else:
            click.echo(f"{event.event}: {event.text}", err=True)

    def show(self, progress: Progress) -> None:
        """How it does, once a second."""
        now_s = time.monotonic()
        past_s = now_s - self._shown_s
        if past_s < SHOW_S:
            return
        found = self._figures(progress)
        rate = (found["records"] - self._records) / past_s
        self._shown_s, self._records = now_s, found["records"]
        eta_s = found["lag"] / rate if rate else None
        if self._json:
            echo_json({"event": "progress", "rate": round(rate, 1), "eta_s": eta_s, **found})
            return
        left = "" if eta_s is None or not found["lag"] else f", {eta_s:.0f} s left"
        text = (
            f"{human_count(found['records'])} records, {human_count(rate)} records/s, "
            f"lag {human_count(found['lag'])}{left}"
        )
        click.echo(f"\r\x1b[K{text}" if self._rewrites else text, err=True, nl=not self._rewrites)

    def summary(self, progress: Progress, past_s: float) -> None:
        """The figures at the end."""
        found = self._figures(progress)
        rate = found["records"] / past_s if past_s else 0.0
        if self._json:
            echo_json({"event": "done", "seconds": round(past_s, 3), **found})
            return
        click.echo("\r\x1b[K" if self._rewrites else "", err=True, nl=False)
        click.echo(
            f"{found['records']} records, {found['repeated']} there already, {found['gone']} "
            f"offsets gone, {found['left_out']} records left out, {past_s:.1f} s, "
            f"{human_count(rate)} records/s"
        )

    @staticmethod
    def _figures(progress: Progress) -> dict[str, Any]:
        import msgspec

        return dict(msgspec.structs.asdict(progress.counts))


for _command in commands():
    mirror.add_command(_command)
