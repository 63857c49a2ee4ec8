"""`tidecast pipeline`: the jobs of the data pipeline, on Spark. PySpark is an extra."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tidecast.cli.common import console, data_dir_option, echo_json, json_option, token_option
from tidecast.cli.pipelines.run import load_spark, run_on_spark

F = TypeVar("F", bound=Callable[..., Any])
_DIRECTORY = click.Path(path_type=Path, file_okay=False)


class _Archive(click.Path):
    """A directory, or a URL of a file system that Spark's connectors know, as text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        return value if "://" in str(value) else super().convert(value, param, ctx)


_ARCHIVE = _Archive(path_type=Path, file_okay=False)


@click.group()
def pipeline() -> None:
    """Archive, replay and roll up durable topics with Spark.

    Needs PySpark, an extra: pip install 'tidecast[spark]' (in a checkout: make install-spark).
    """


def _spark_options(command: F) -> F:
    """``--master``, ``--conf``, ``--json``."""
    for option in (
        json_option,
        click.option(
            "--conf", "config", multiple=True, metavar="KEY=VALUE", help="A setting of Spark."
        ),
        click.option(
            "--master", default="local[*]", show_default=True, help="Where Spark runs the job."
        ),
    ):
        command = option(command)
    return command


@pipeline.command()
@click.option("--topic", default="", help="One topic, or several separated by commas.")
@click.option("--pattern", default="", help="Topics by a pattern: orders.*")
@click.option("--out", type=_ARCHIVE, required=True, help="The archive: a directory or a URL.")
@click.option(
    "--compression",
    type=click.Choice(["zstd", "snappy", "none"]),
    default="zstd",
    show_default=True,
    help="Of the Parquet files.",
)
@click.option("--no-compact", is_flag=True, help="Leave small files as they are.")
@click.option(
    "--allow-loss",
    is_flag=True,
    help="Continue although retention deleted rows before they were archived.",
)
@click.option(
    "--skip-corrupt", is_flag=True, help="Leave corrupt batches out, and count their rows."
)
@click.option(
    "--hold",
    default="",
    metavar="NAME",
    help="Keep records until they are archived, by a subscription of this name.",
)
@_spark_options
@token_option
@data_dir_option
def archive(
    data_dir: Path,
    master: str,
    config: tuple[str, ...],
    as_json: bool,
    no_compact: bool,
    out: Path | str,
    token: str | None,
    **options: Any,
) -> None:
    """Append records since the last run to a Parquet archive, exactly once."""
    run_on_spark(
        "archive",
        "archive",
        master,
        config,
        as_json,
        data_dir,
        out,
        compact=not no_compact,
        token=token or "",
        **options,
    )


@pipeline.command()
@click.option("--archive", type=_ARCHIVE, required=True, help="Its directory or URL.")
@click.option("--from", "source_topic", required=True, help="The topic that was archived.")
@click.option("--topic", required=True, help="The durable topic to publish to.")
@click.option("--since", default="", help="Only rows not older than this time (ISO-8601, UTC).")
@click.option("--until", default="", help="Only rows older than this time.")
@click.option("--where", default="", help="A filter in SQL: \"key = binary('k1')\"")
@click.option("--rate", type=click.IntRange(0), default=0, help="Rows a second; 0: no limit.")
@click.option("--id", "write_id", default="", help="Resume the replay with this id.")
@click.option("--dry-run", is_flag=True, help="Count what would be published.")
@_spark_options
@token_option
@data_dir_option
def replay(
    data_dir: Path,
    master: str,
    config: tuple[str, ...],
    as_json: bool,
    archive: Path | str,
    token: str | None,
    **options: Any,
) -> None:
    """Publish rows of an archive to a topic, in the order of their keys."""
    run_on_spark(
        "replay", "replay", master, config, as_json, archive, data_dir, token=token or "", **options
    )


def _rollup_options(command: F) -> F:
    for option in (
        click.option("--out", type=_DIRECTORY, required=True, help="Where the rollups are kept."),
        click.option(
            "--topic",
            default="tidecast.telemetry",
            show_default=True,
            help="The topic with the telemetry.",
        ),
        click.option(
            "--postgres",
            default="",
            envvar="TIDECAST_DATABASE_URL",
            metavar="URL",
            help="Also write to this Postgres [env: TIDECAST_DATABASE_URL].",
        ),
        click.option(
            "--watermark",
            default="10 minutes",
            show_default=True,
            help="How late a sample may come and still be counted.",
        ),
    ):
        command = option(command)
    return command


@pipeline.command()
@_rollup_options
@_spark_options
@data_dir_option
def rollup(
    data_dir: Path, master: str, config: tuple[str, ...], as_json: bool, out: Path, **options: Any
) -> None:
    """Roll telemetry up by minute and hour, on from the last run."""
    run_on_spark("rollup", "rollup", master, config, as_json, data_dir, out, **options)


@pipeline.command()
@_rollup_options
@_spark_options
@data_dir_option
def backfill(
    data_dir: Path, master: str, config: tuple[str, ...], as_json: bool, out: Path, **options: Any
) -> None:
    """Make all rollups again from the telemetry that is there."""
    run_on_spark(
        "backfill",
        "rollup",
        master,
        config,
        as_json,
        data_dir,
        out,
        module="rollup",
        again=True,
        **options,
    )


@pipeline.command()
@click.option("--rollups", type=_DIRECTORY, required=True, help="Where the rollups are kept.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The HTML file to write.",
)
@click.option(
    "--hours",
    type=click.IntRange(1, 24 * 366),
    default=168,
    show_default=True,
    help="How far to look back.",
)
@_spark_options
@data_dir_option
def report(
    data_dir: Path,
    master: str,
    config: tuple[str, ...],
    as_json: bool,
    rollups: Path,
    out: Path,
    hours: int,
) -> None:
    """Recommend rate limit, history and cache for each topic, with plots and reasons."""
    del data_dir
    run_on_spark(
        "report",
        "capacity_report",
        master,
        config,
        as_json,
        rollups,
        out,
        module="capacity",
        hours=hours,
    )


@pipeline.command("warm-up")
@click.option("--again", is_flag=True, help="Also when it was done before.")
@data_dir_option
@json_option
def warm_up(data_dir: Path, again: bool, as_json: bool) -> None:
    """Let sessions on this machine start faster: keep the classes that the JVM has linked."""
    del data_dir
    with console(stderr=True).status("warming up") as status:
        made = load_spark("spark_session", "warm_up")(status.update, again=again)
    if as_json:
        echo_json({"path": str(made), "bytes": made.stat().st_size})
        return
    console().print(f"{made}: {made.stat().st_size >> 20} MiB")


@pipeline.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The zip file to write.",
)
@data_dir_option
@json_option
def package(data_dir: Path, out: Path, as_json: bool) -> None:
    """Write the modules that a cluster needs into one file, for spark-submit --py-files."""
    del data_dir
    files = load_spark("package", "write_package")(out)
    if as_json:
        echo_json({"path": str(out), "files": files})
        return
    console().print(f"{out}: {files} files. spark-submit --py-files {out} your_job.py")
