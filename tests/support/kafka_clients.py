"""Kafka's clients that are no Python packages: kcat, kafkajs, Go's franz-go, Spark's connector.

    python3 -m tests.support.kafka_clients        # fetch and build them now: some 2 minutes

Builds are kept outside of the repository, where `tests.support.kafka_brokers` keeps its jars. Tests
that need a client are skipped with the reason where it cannot be had.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.kafka_brokers import jars, java

KAFKAJS, FRANZ_GO, SPARK = "2.2.4", "v1.22.2", "4.2.0"
BUILD_S, RUN_S = 300.0, 100.0
PROGRAMS = Path(__file__).parent / "kafka_programs"
_COMMAND = "python3 -m tests.support.kafka_clients"
_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidecast.tests</groupId><artifactId>spark-kafka</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.spark</groupId>
      <artifactId>spark-sql-kafka-0-10_2.13</artifactId><version>{SPARK}</version></dependency>
  </dependencies>
</project>
"""


class Unavailable(Exception):
    """A client that cannot be had here, and why."""


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"no {name} on the path")
    return found


def _ran(command: Sequence[str], directory: Path) -> None:
    try:
        ran = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=BUILD_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} took more than {BUILD_S:g} s") from None
    if ran.returncode:
        told = (ran.stderr + ran.stdout).strip()[:400] or "no output"
        raise Unavailable(f"{' '.join(command[:3])}: {told}")


def _built(place: Path, build: Callable[[Path], None]) -> Path:
    """The directory of a client, made now unless it is there."""
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as directory:
            made = Path(directory) / "made"
            made.mkdir()
            build(made)
            with contextlib.suppress(OSError):  # another run was faster
                made.rename(place)
    return place


def _kafkajs_place() -> Path:
    return jars().parent / f"kafkajs-{KAFKAJS}"


def _go_place() -> Path:
    digest = hashlib.sha256((PROGRAMS / "client.go").read_bytes()).hexdigest()[:12]
    return jars().parent / f"franz-go-{FRANZ_GO}-{digest}"


def _spark_place() -> Path:
    return jars().parent / f"spark-kafka-{SPARK}"


def fetch_kafkajs() -> Path:
    """Get kafkajs by npm. Raises Unavailable."""

    def build(made: Path) -> None:
        (made / "package.json").write_text('{"private": true}\n')
        _ran([_tool("npm"), "install", "--no-audit", "--no-fund", f"kafkajs@{KAFKAJS}"], made)

    _tool("node")
    return _built(_kafkajs_place(), build)


def fetch_go() -> Path:
    """Build the program with franz-go. Raises Unavailable."""

    def build(made: Path) -> None:
        go = _tool("go")
        (made / "go.mod").write_text("module tidecast.test/kafka\n\ngo 1.24\n")
        shutil.copy(PROGRAMS / "client.go", made)
        _ran([go, "get", f"github.com/twmb/franz-go@{FRANZ_GO}"], made)
        _ran([go, "mod", "tidy"], made)
        _ran([go, "build", "-o", "client", "."], made)

    return _built(_go_place(), build)


def fetch_spark() -> Path:
    """Get the jars of Spark's connector by Maven. Raises Unavailable."""

    def build(made: Path) -> None:
        (made / "pom.xml").write_text(_POM)
        _ran(
            [
                _tool("mvn"),
                "--batch-mode",
                "--quiet",
                "dependency:copy-dependencies",
                "-DincludeScope=runtime",
                "-DoutputDirectory=lib",
            ],
            made,
        )

    return _built(_spark_place(), build)


# --- running them ---------------------------------------------------------------------------------


@functools.cache
def missing_kcat() -> str:
    """Why kcat cannot run here; empty: it can."""
    return "" if shutil.which("kcat") else "no kcat on the path: install the package kcat"


@functools.cache
def missing_kafkajs() -> str:
    """Why kafkajs cannot run here; empty: it can."""
    if not shutil.which("node"):
        return "no node on the path for kafkajs"
    return "" if _kafkajs_place().is_dir() else f"no kafkajs: run {_COMMAND}"


@functools.cache
def missing_go() -> str:
    """Why franz-go cannot run here; empty: it can."""
    return "" if _go_place().is_dir() else f"no build of franz-go: run {_COMMAND}"


@functools.cache
def missing_spark() -> str:
    """Why Spark's connector cannot run here; empty: it can."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "no PySpark: the extra spark"
    if java() is None:
        return "no Java for Spark"
    return "" if _spark_place().is_dir() else f"no jars of Spark's connector: run {_COMMAND}"


def _found(command: Sequence[str], **environment: str) -> Any:
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        env=os.environ | environment,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


def kafkajs(address: str, action: str, topic: str, *rest: str) -> Any:
    """The output of kafkajs for an action, decoded."""
    program = str(PROGRAMS / "client.js")
    modules = str(_kafkajs_place() / "node_modules")
    return _found(["node", program, address, action, topic, *rest], NODE_PATH=modules)


def franz_go(address: str, action: str, topic: str, *rest: str) -> Any:
    """The output of franz-go for an action, decoded."""
    return _found([str(_go_place() / "client"), address, action, topic, *rest])


def kcat(address: str, *arguments: str, stdin: str = "", fails: bool = False) -> str:
    """The output of kcat."""
    ran = subprocess.run(
        ["kcat", "-b", address, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert (ran.returncode != 0) == fails, ran.stderr
    return ran.stdout if not fails else ran.stdout + ran.stderr


def spark_jars() -> list[str]:
    """Jars that Spark needs beside its own."""
    own = ("kafka-clients", "spark-sql-kafka", "spark-token-provider", "commons-pool2")
    found = (_spark_place() / "lib").glob("*.jar")
    return [str(each) for each in found if each.name.startswith(own)]


if __name__ == "__main__":
    failed = 0
    for fetch in (fetch_kafkajs, fetch_go, fetch_spark):
        try:
            sys.stdout.write(f"{fetch()}\n")
        except Unavailable as problem:
            sys.stderr.write(f"{problem}\n")
            failed = 1
    sys.exit(failed)
