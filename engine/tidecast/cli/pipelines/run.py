"""Running one job of the pipeline: session, signals, and the result that scripts read.

`tidecast pipeline JOB --json` prints one JSON object, whatever happens, in the shape of `Result`;
docs/SPARK.md fixes it. Exit codes: 0 done, 1 failed, 2 wrong command line, 130 stopped by a signal.
"""

from __future__ import annotations

import importlib
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import click

from tidecast.cli.common import console, echo_json
from tidecast.errors import ConfigError, TidecastError

EXIT_STOPPED = 130
_SECRET = re.compile(
    r"fs\.\w+\S*(secret|access\.key|session\.token|account\.key|password)", re.IGNORECASE
)
"""Settings of connectors that are keys."""


@dataclass
class Result:
    """The result of a job. ``report`` is the job's own; ``error`` is null when ``ok``."""

    job: str
    ok: bool
    rows: int
    errors: int
    started_at: str
    duration_s: float
    report: dict[str, Any] | None
    error: dict[str, Any] | None


def load_spark(module: str, name: str) -> Any:
    """From the Spark package, which the engine's package does not import."""
    try:
        return getattr(importlib.import_module(f"tidecast_spark.{module}"), name)
    except ModuleNotFoundError as problem:
        if (problem.name or "").startswith(("pyspark", "pyarrow", "py4j")):
            raise ConfigError(
                "PySpark is not installed: it is an extra. Run: pip install 'tidecast[spark]' "
                "(in a checkout: make install-spark)"
            ) from problem
        raise


def settings_of(config: tuple[str, ...]) -> dict[str, str]:
    """``KEY=VALUE`` texts as a mapping."""
    settings = {}
    for one in config:
        key, equals, value = one.partition("=")
        if not equals:
            raise click.UsageError(f"--conf {one}: give KEY=VALUE")
        if _SECRET.search(key):
            raise click.UsageError(
                f"--conf {key}: other users of this host can read a command line: give the key in "
                "the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or in a file "
                "(spark.hadoop.hadoop.security.credential.provider.path)"
            )
        settings[key] = value
    return settings


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM ends the job as Ctrl-C does: its session is stopped, its result is printed."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_job(job: str, as_json: bool, work: Callable[[], Any]) -> None:
    """Do ``work`` and show its report, and for scripts its errors, too."""
    started_at, begun_s = datetime.now(UTC), time.monotonic()

    def result(report: Any, error: dict[str, Any] | None) -> Result:
        plain = asdict(report) if is_dataclass(report) and not isinstance(report, type) else None
        return Result(
            job=job,
            ok=error is None,
            rows=getattr(report, "rows", 0),
            errors=1 if error else getattr(report, "errors", 0),
            started_at=started_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            duration_s=round(time.monotonic() - begun_s, 3),
            report=plain,
            error=error,
        )

    def failed(code: str, message: str, retryable: bool) -> None:
        if as_json:
            failure = {"code": code, "message": message, "retryable": retryable}
            echo_json(asdict(result(None, failure)))

    try:
        with _stoppable():
            report = work()
    except KeyboardInterrupt:
        failed("stopped", "a signal stopped the job", True)
        click.echo("stopped", err=True)
        sys.exit(EXIT_STOPPED)
    except TidecastError as problem:
        failed(problem.code, str(problem), problem.retryable)
        raise
    except click.ClickException:
        raise
    except Exception as problem:
        failed("error", f"{type(problem).__name__}: {problem}"[:2000], False)
        raise
    done = result(report, None)
    if as_json:
        echo_json(asdict(done))
    else:
        _show(done)


def run_on_spark(
    job: str,
    function: str,
    master: str,
    config: tuple[str, ...],
    as_json: bool,
    *arguments: Any,
    module: str = "",
    **options: Any,
) -> None:
    """Run ``function`` of the job's module in a session of its own."""
    settings = settings_of(config)

    def work() -> Any:
        run = load_spark(f"jobs.{module or job}", function)
        session = load_spark("spark_session", "session")
        errors = load_spark("failures", "spark_errors")
        with errors():
            with console(stderr=True).status("starting Spark"):
                spark = session(f"tidecast {job}", master=master, config=settings)
            try:
                return run(spark, *arguments, **options)
            finally:
                spark.stop()

    run_job(job, as_json, work)


def _show(done: Result) -> None:
    """The report for people; --json also has the values of many lines."""
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for key, what in (done.report or {}).items():
        if isinstance(what, (list, tuple)) and what and isinstance(what[0], dict):
            continue
        text = "\n".join(map(str, what)) if isinstance(what, (tuple, list)) else str(what)
        table.add_row(key.replace("_", " "), text)
    table.add_row("duration", f"{done.duration_s:.1f} s")
    console().print(table)
