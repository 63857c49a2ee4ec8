"""`tidecast recorder`: the records of the agents, after a crash too."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidecast.cli.common import data_dir_option, echo_json, json_option

if TYPE_CHECKING:
    from tidecast.buffers.recorder import Record

POLL_S = 0.25
_COLORS = {"alert": "red", "low": None, "high": "bright_black"}


@click.command()
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A recorder file [default: that of the last engine of the data directory].",
)
@click.option("--previous", is_flag=True, help="That of the engine before.")
@click.option(
    "--section",
    type=click.Choice(["alert", "low", "high"]),
    multiple=True,
    help="Only these; may be repeated.",
)
@click.option(
    "--writer",
    type=click.Choice(["sender", "receiver", "conductor"]),
    multiple=True,
    help="Only records of these agents; may be repeated.",
)
@click.option("--entity", type=int, multiple=True, help="Only this session id or transport index.")
@click.option("--last", type=click.IntRange(1), default=None, metavar="N", help="Only the last N.")
@click.option("--follow", is_flag=True, help="Keep going until Ctrl-C.")
@data_dir_option
@json_option
def recorder(
    path: Path | None,
    previous: bool,
    section: tuple[str, ...],
    writer: tuple[str, ...],
    entity: tuple[int, ...],
    last: int | None,
    follow: bool,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Read the flight recorder: always on, in memory that outlives a crash of the engine.

    Rare events (alert, low) and frequent events (high) have rings of their own, so that a storm of
    repairs cannot push out its cause. All are merged by time.
    """
    from tidecast.buffers.recorder import read_records
    from tidecast.errors import AuthError
    from tidecast.native.mapped import MappedFile

    file = path or _find(data_dir, previous)
    try:
        mapped = MappedFile.open(file)
    except PermissionError:
        raise AuthError(f"{file}: it belongs to another user") from None

    def wanted(record: Record) -> bool:
        return (
            (not section or record.section in section)
            and (not writer or record.writer in writer)
            and (not entity or record.entity in entity)
        )

    records = [r for r in read_records(mapped.array) if wanted(r)]
    for each in records[-last:] if last else records:
        _show(each, as_json)
    if not follow:
        if not records and not as_json:
            click.echo("nothing was noted" if not (section or entity or writer) else "no match")
        return
    seen = set(records)
    pause = threading.Event()
    with contextlib.suppress(KeyboardInterrupt):
        while not pause.wait(POLL_S):
            now = [r for r in read_records(mapped.array) if wanted(r)]
            for each in now:
                if each not in seen:
                    _show(each, as_json)
            seen = set(now)


def _find(data_dir: Path, previous: bool) -> Path:
    from tidecast.engine.process import read_state
    from tidecast.errors import NotFound

    state = read_state(data_dir)
    path = Path(state.recorder_path) if state is not None else data_dir / "recorder"
    if previous:
        path = path.with_suffix(path.suffix + ".previous")
    if not path.exists():
        raise NotFound(f"no flight recorder {path}: has an engine run on {data_dir}?")
    return path


def _show(record: Record, as_json: bool) -> None:
    if as_json:
        echo_json(_plain(record))
        return
    at = dt.datetime.fromtimestamp(record.at_ns / 1e9).astimezone()
    entity = f" {record.entity:x}" if record.entity else ""
    line = (
        f"{at:%H:%M:%S}.{record.at_ns % 1_000_000_000:09d} {record.section:<5} "
        f"{record.writer:<9}{entity}  {record.text}"
    )
    click.echo(click.style(line, fg=_COLORS[record.section]))


def _plain(record: Record) -> dict[str, Any]:
    from tidecast.layout.recorder import MEANING, Code

    value: dict[str, Any] = {
        "at_ns": record.at_ns,
        "writer": record.writer,
        "section": record.section,
        "entity": record.entity,
    }
    try:
        code = Code(record.code)
    except ValueError:
        return value | {"code": record.code, "arguments": list(record.arguments)}
    names = MEANING[code][2]
    return value | {"code": code.name, **dict(zip(names, record.arguments, strict=False))}
