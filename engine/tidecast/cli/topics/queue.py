"""`tidecast queue`: queues, read from their files, also without an engine; and pausing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidecast.cli.common import (
    all_rows,
    asking,
    console,
    data_dir_option,
    dir_hint,
    echo_json,
    engine_options,
    human_bytes,
    json_option,
    server_kept_option,
    server_of,
)
from tidecast.cli.options.names import TopicName
from tidecast.cli.topics.scheduled import cancel, scheduled

if TYPE_CHECKING:
    from tidecast.errors import NotFound

TOPICS_SHOWN_MAX = 20


def _queues(data_dir: Path, topic: str | None, queue: int | None) -> list[tuple[str, int, Path]]:
    """(topic, queue, directory) of the queues on disk. Raises NotFound."""
    from tidecast.errors import NotFound
    from tidecast.log.queue_files import topics_of

    base = data_dir / "queues"
    topics = topics_of(data_dir)
    if topic is not None and topic not in topics:
        raise _unknown(topic, f"in {base}", topics)
    found = []
    for name in topics if topic is None else [topic]:
        numbers = sorted(int(p.name) for p in (base / name).iterdir() if p.name.isdigit())
        if queue is not None and queue not in numbers:
            raise NotFound(f"topic {name} has queues 0..{max(numbers, default=-1)}, no {queue}")
        found += [
            (name, n, base / name / f"{n:05d}") for n in numbers if queue is None or n == queue
        ]
    return found


def _when(ns: int) -> str:
    if ns <= 0:
        return "-"
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="milliseconds")


@click.group()
def queue() -> None:
    """List, inspect and verify the queues of durable topics; pause them, cancel waiting records."""


queue.add_command(scheduled)
queue.add_command(cancel)


def _pausing(name: str, about: str, *, paused: bool) -> None:
    """Make `tidecast queue pause` or `resume`."""

    @queue.command(name, help=about)
    @click.argument("topic", type=TopicName(durable=True))
    @click.argument("number", type=click.IntRange(0), required=False)
    @engine_options
    def command(
        topic: str, number: int | None, data_dir: Path, token: str | None, as_json: bool
    ) -> None:
        from tidecast.cli.topics.subscription import ask

        of, which = ("topic", {}) if number is None else ("queue", {"queue": number})
        ask(data_dir, token, f"pause_{of}", topic=topic, paused=paused, **which)
        if as_json:
            echo_json({"topic": topic, **which, "paused": paused})
            return
        what = topic if number is None else f"queue {number} of {topic}"
        console().print(f"{what} is {'paused until it is resumed' if paused else 'resumed'}")


_pausing(
    "pause",
    "Pause TOPIC, or its queue NUMBER, for all subscriptions; consumers keep fetched messages. "
    "Publishers continue. A start of the engine does not resume it.",
    paused=True,
)
_pausing("resume", "Resume TOPIC, or its queue NUMBER.", paused=False)


def _rows(data_dir: Path, token: str | None, topic: str | None) -> list[dict[str, Any]]:
    """The queues on disk: of this machine, whether an engine runs or not, or at ``--server``."""
    from tidecast.log.inspect import queue_row

    if server_of() is None:
        found = _queues(data_dir, topic, None)
        return [queue_row(data_dir, name, number) for name, number, _ in found]
    with asking(data_dir, token) as ask:
        rows = all_rows(ask, "queues", topic=topic)
        if topic is not None and not rows:
            known = sorted({row["topic"] for row in all_rows(ask, "queues")})
            raise _unknown(topic, f"at {server_of()}", known)
    return rows


def _check_open(topic: str, adapters: list[dict[str, Any]]) -> None:
    """Raise ConnectionLost for a topic whose adapter waits for its system: it has no queues yet."""
    from tidecast.errors import ConnectionLost

    for row in adapters:
        if row["topic"] == topic and row["state"] == "waiting":
            raise ConnectionLost(
                f"topic {topic} has no queues yet: adapter {row['adapter']} waits for its system, "
                f"and tries again: {row['detail']}"
            )


def _unknown(topic: str, where: str, topics: list[str]) -> NotFound:
    from tidecast.config.suggestions import near
    from tidecast.errors import NotFound

    known = ", ".join(topics[:TOPICS_SHOWN_MAX]) or "none"
    return NotFound(f"no durable topic {topic} {where}{near(topic, topics)}: there are {known}")


@queue.command("list")
@click.argument("topic", type=TopicName(durable=True), required=False)
@engine_options
def list_queues(topic: str | None, data_dir: Path, token: str | None, as_json: bool) -> None:
    """List the queues on disk and the queues of the engine's adapters, or the queues of TOPIC."""
    from tidecast.cli.topics.subscription import asked_if_running

    found = asked_if_running(data_dir, token, "attached")
    kept = [row for row in found if topic in (None, row["topic"])]
    if topic and not kept:
        _check_open(topic, asked_if_running(data_dir, token, "adapters"))
    rows = [] if topic and kept else _rows(data_dir, token, topic)
    if as_json:
        echo_json(rows + kept)
        return
    if not rows + kept:
        hint = dir_hint(data_dir)
        click.echo(f"no durable topics; make one: tidecast topic create NAME --mode durable{hint}")
        return
    from rich.table import Table

    shared = any(row["owner_epoch"] for row in rows)
    heads = ("topic", "queue", "segments", "size", "earliest", "torn", "paused")
    table = Table(*heads, *(("owner", "epoch", "since") if shared else ()), box=None)
    for row in rows:
        owned = (row["owner"] or "-", str(row["owner_epoch"] or "-"), _when(row["owner_since_ns"]))
        table.add_row(
            row["topic"],
            str(row["queue"]),
            str(row["segments"]),
            human_bytes(row["bytes"]),
            str(row["earliest_token"]),
            str(row["torn_files"] or "-"),
            " and ".join(row.get("paused_by") or []) or "-",
            *(owned if shared else ()),
        )
    for row in kept:
        name = f"{row['topic']} (adapter {row['adapter']})"
        table.add_row(name, str(row["queue"]), "-", "-", str(row["earliest_token"]), "-", "-")
    console().print(table)


@queue.command("inspect")
@click.argument("topic", type=TopicName(durable=True))
@click.argument("number", type=int, default=0)
@click.option("--batches", type=click.IntRange(1), default=20, show_default=True, help="How many.")
@click.option("--offset", type=click.IntRange(0), help="Begin with the batch that holds it.")
@engine_options
@click.pass_context
def inspect(
    ctx: click.Context,
    topic: str,
    number: int,
    batches: int,
    offset: int | None,
    data_dir: Path,
    token: str | None,
    as_json: bool,
) -> None:
    """Show batches of queue NUMBER of TOPIC: the newest, or the batches from an offset on."""
    from tidecast.cli.topics.subscription import ask
    from tidecast.log.inspect import list_batches

    if server_of() is not None:
        where = {"topic": topic, "queue": number, "count": batches, "offset": offset}
        rows = ask(data_dir, token, "batches", **where)
    elif ctx.get_parameter_source("token") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--token is that of a --server; --offset says which batches")
    else:
        ((_, _, directory),) = _queues(data_dir, topic, number)
        rows = list_batches(directory, batches, offset)
    if as_json:
        echo_json(rows)
        return
    from rich.table import Table

    table = Table(
        "offset",
        "records",
        "bytes",
        "appended",
        "producer",
        "epoch",
        "sequences",
        "owner",
        box=None,
    )
    expected = offset if offset is not None else rows[0]["token"] if rows else 0
    for row in rows:
        if row["token"] > expected:
            what = "deleted, or damaged: tidecast queue verify"
            table.add_row(str(expected), str(row["token"] - expected), "-", what)
        expected = row["token"] + row["records"]
        table.add_row(
            str(row["token"]),
            str(row["records"]),
            str(row["bytes"]),
            _when(row["append_time"]),
            f"{row['producer']:x}",
            str(row["epoch"]),
            f"{row['first_seq']}..{row['last_seq']}",
            str(row["owner"]),
        )
    console().print(table)


@queue.command("verify")
@click.argument("topic", type=TopicName(durable=True), required=False)
@click.option("--queue", "number", type=click.IntRange(0), help="Only this queue.")
@data_dir_option
@server_kept_option
@json_option
@click.pass_context
def verify(
    ctx: click.Context, topic: str | None, number: int | None, data_dir: Path, as_json: bool
) -> None:
    """Read every batch of every segment, and the files beside them: indexes, producers, positions.

    Exit code 1 when something is not sound. It reads the files, so it runs on their host.
    """
    if server_of() is not None:
        raise click.UsageError("--server: verify reads the files of queues: run it on their host")
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    from tidecast.log.repair.verify import queue_bytes, verify_queue
    from tidecast.queues.verify import verify_files

    found = _queues(data_dir, topic, number)
    total = sum(queue_bytes(directory) for _, _, directory in found)
    screen = console(stderr=True)
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    reports = []
    with Progress(*columns, console=screen, disable=as_json) as bar:
        task = bar.add_task("verify", total=total)
        for name, queue_number, directory in found:
            bar.update(task, description=f"{name}/{queue_number}")
            reports.append(
                verify_queue(directory, name, queue_number, lambda n: bar.advance(task, n))
            )
    queues = len(reports)
    if number is None:
        reports += verify_files(data_dir, sorted({name for name, _, _ in found}))
    problems = [problem for report in reports for problem in report.problems]
    if as_json:
        echo_json(
            [
                {
                    "topic": r.topic,
                    "queue": r.queue,
                    "segments": r.segments,
                    "bytes": r.bytes,
                    "batches": r.batches,
                    "records": r.records,
                    "first_token": r.first_token,
                    "next_token": r.next_token,
                    "tail_bytes": r.tail_bytes,
                    "problems": [
                        {
                            "file": str(p.file),
                            "position": p.position,
                            "token": p.token,
                            "what": p.what,
                        }
                        for p in r.problems
                    ],
                }
                for r in reports
            ]
        )
    else:
        for problem in problems:
            click.echo(f"unsound: {problem}")
        records, n = sum(r.records for r in reports), sum(r.bytes for r in reports)
        tails = sum(r.tail_bytes for r in reports)
        tail = f", {tails} bytes behind the last batches" if tails else ""
        verdict = f"{len(problems)} problems" if problems else "all sound"
        click.echo(f"{queues} queues, {records} records, {human_bytes(n)}{tail}: {verdict}")
    ctx.exit(1 if problems else 0)


@queue.command("orphans")
@click.option("--remove", is_flag=True, help="Remove them, with their messages that no log has.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@data_dir_option
@server_kept_option
@json_option
def orphans(remove: bool, yes: bool, data_dir: Path, as_json: bool) -> None:
    """List unacked rings of topics that are not in the topology; with --remove, remove them.

    An engine that starts with the topic appends such messages. It reads the files, so it runs on
    their host; --remove needs all engines of the data directory stopped.
    """
    if server_of() is not None:
        raise click.UsageError("--server: orphans reads shared memory: run it on its host")
    if yes and not remove:
        raise click.UsageError("--yes: only with --remove")
    from dataclasses import asdict

    from tidecast.config.topology import default_topology, load_topology, shm_dir, topology_path
    from tidecast.doctor import stranded_rings
    from tidecast.errors import Conflict
    from tidecast.node.shm_directory import living_nodes

    file = topology_path(data_dir)
    topology = load_topology(file) if file.exists() else default_topology()
    found = stranded_rings(data_dir, topology)
    if not as_json:
        for each in found:
            what = f"{each.messages} messages, {human_bytes(each.bytes)}"
            click.echo(f"{each.topic}: {what} of producer {each.producer} in {each.file}")
        if not found:
            click.echo("no orphaned rings")
    if remove and found:
        if running := living_nodes(shm_dir(data_dir)):
            raise Conflict(
                f"--remove: an engine of {data_dir} runs ({running[0].name}), and may read these "
                f"rings: stop it: tidecast down{dir_hint(data_dir)}"
            )
        lost = sum(each.messages for each in found)
        if not yes:
            click.confirm(
                f"Remove {len(found)} rings with {lost} unacked messages: those that no log has "
                "are lost. Continue?",
                abort=True,
                err=True,
            )
        for each in found:
            Path(each.file).unlink(missing_ok=True)
    if as_json:
        echo_json({"rings": [asdict(each) for each in found], "removed": remove and bool(found)})
    elif remove and found:
        click.echo(f"removed {len(found)} rings")
