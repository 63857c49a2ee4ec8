"""`tidecast pipeline`: the jobs of the data pipeline, on Spark. PySpark is an extra."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from tidecast.cli.common import console, data_dir_option, echo_json, json_option, token_option

F = TypeVar("F", bound=Callable[..., Any])
_DIRECTORY = click.Path(path_type=Path, file_okay=False)


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


def load_spark(module: str, name: str) -> Any:
    """From the Spark package, which the engine's package does not import."""
    from tidecast.errors import ConfigError

    try:
        return getattr(importlib.import_module(f"tidecast_spark.{module}"), name)
    except ModuleNotFoundError as problem:
        if (problem.name or "").startswith(("pyspark", "pyarrow", "py4j")):
            raise ConfigError(
                "PySpark is not installed: it is an extra. Run: pip install 'tidecast[spark]' "
                "(in a checkout: make install-spark)"
            ) from problem
        raise


def _run(
    module: str, name: str, master: str, config: tuple[str, ...], as_json: bool,
    *arguments: Any, **options: Any,
) -> None:  # fmt: skip
    """Run a job in a session and show what it reports."""
    settings = {}
    for one in config:
        key, equals, value = one.partition("=")
        if not equals:
            raise click.UsageError(f"--conf {one}: give KEY=VALUE")
        settings[key] = value
    job = load_spark(f"jobs.{module}", name)
    session = load_spark("spark_session", "session")
    errors = load_spark("failures", "spark_errors")
    with errors(), console(stderr=True).status("starting Spark"):
        spark = session(f"tidecast {module}", master=master, config=settings)
    try:
        with errors():
            report = job(spark, *arguments, **options)
    finally:
        spark.stop()
    _show(report, as_json)


def _show(report: Any, as_json: bool) -> None:
    from rich.table import Table

    value = asdict(report) if is_dataclass(report) and not isinstance(report, type) else report
    if as_json:
        echo_json(value)
        return
    for one in value if isinstance(value, list) else [value]:
        table = Table(show_header=False, box=None)
        for key, what in one.items():
            text = "\n".join(what) if isinstance(what, (tuple, list)) else str(what)
            table.add_row(key.replace("_", " "), text)
        console().print(table)


@pipeline.command()
@click.option("--topic", default="", help="One topic, or several separated by commas.")
@click.option("--pattern", default="", help="Topics by a pattern: orders.*")
@click.option("--out", type=_DIRECTORY, required=True, help="The archive's directory.")
@click.option(
    "--compression", type=click.Choice(["zstd", "snappy", "none"]), default="zstd",
    show_default=True, help="Of the Parquet files.",
)  # fmt: skip
@click.option("--no-compact", is_flag=True, help="Leave small files as they are.")
@click.option(
    "--allow-loss", is_flag=True, help="Go on although retention deleted rows not yet archived."
)
@_spark_options
@data_dir_option
def archive(
    data_dir: Path, master: str, config: tuple[str, ...], as_json: bool, no_compact: bool,
    out: Path, **options: Any,
) -> None:  # fmt: skip
    """Append to a Parquet archive what topics got since the last run, exactly once."""
    _run(
        "archive", "archive", master, config, as_json, data_dir, out,
        compact=not no_compact, **options,
    )  # fmt: skip


@pipeline.command()
@click.option("--archive", type=_DIRECTORY, required=True, help="The archive's directory.")
@click.option("--from", "source_topic", required=True, help="The topic that was archived.")
@click.option("--topic", required=True, help="The durable topic to publish to.")
@click.option("--since", default="", help="Only rows not older than this time (ISO-8601, UTC).")
@click.option("--until", default="", help="Only rows older than this time.")
@click.option("--where", default="", help="A filter in SQL: \"key = binary('k1')\"")
@click.option("--rate", type=click.IntRange(0), default=0, help="Rows a second; 0: no limit.")
@click.option("--id", "write_id", default="", help="Go on with a replay that died, by its id.")
@click.option("--dry-run", is_flag=True, help="Count what would be published.")
@_spark_options
@token_option
@data_dir_option
def replay(
    data_dir: Path, master: str, config: tuple[str, ...], as_json: bool, archive: Path,
    token: str | None, **options: Any,
) -> None:  # fmt: skip
    """Publish rows of an archive to a topic, in the order of their keys."""
    _run(
        "replay", "replay", master, config, as_json, archive, data_dir, token=token or "", **options
    )


def _rollup_options(command: F) -> F:
    for option in (
        click.option("--out", type=_DIRECTORY, required=True, help="Where the rollups are kept."),
        click.option("--topic", default="tidecast.telemetry", show_default=True,
                     help="The topic with the telemetry."),
        click.option("--postgres", default="", envvar="TIDECAST_DATABASE_URL", metavar="URL",
                     help="Also write to this Postgres [env: TIDECAST_DATABASE_URL]."),
        click.option("--watermark", default="10 minutes", show_default=True,
                     help="How late a sample may come and still be counted."),
    ):  # fmt: skip
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
    _run("rollup", "rollup", master, config, as_json, data_dir, out, **options)


@pipeline.command()
@_rollup_options
@_spark_options
@data_dir_option
def backfill(
    data_dir: Path, master: str, config: tuple[str, ...], as_json: bool, out: Path, **options: Any
) -> None:
    """Make all rollups anew from the telemetry that is there."""
    _run("rollup", "rollup", master, config, as_json, data_dir, out, again=True, **options)


@pipeline.command()
@click.option("--rollups", type=_DIRECTORY, required=True, help="Where the rollups are kept.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True,
              help="The HTML file to write.")  # fmt: skip
@click.option("--hours", type=click.IntRange(1, 24 * 366), default=168, show_default=True,
              help="How far to look back.")  # fmt: skip
@_spark_options
@data_dir_option
def report(
    data_dir: Path, master: str, config: tuple[str, ...], as_json: bool, rollups: Path, out: Path,
    hours: int,
) -> None:  # fmt: skip
    """Recommend rate limit, history and cache for each topic, with plots and reasons."""
    del data_dir
    _run("capacity", "capacity_report", master, config, as_json, rollups, out, hours=hours)


@pipeline.command()
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True,
              help="The zip file to write.")  # fmt: skip
@data_dir_option
def package(data_dir: Path, out: Path) -> None:
    """Write what a cluster needs as one file, for spark-submit --py-files."""
    del data_dir
    files = load_spark("package", "write_package")(out)
    console().print(f"{out}: {files} files. spark-submit --py-files {out} your_job.py")
