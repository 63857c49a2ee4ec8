"""Spark's own Kafka source and sink on the same rows: the comparison of `tidecast bench spark`.

Batches only: the newest available connector, 4.0, is older than this PySpark, and its streams fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidecast_spark.java import find_java

PORT, CONTROLLER_PORT = 19_092, 19_093
MASTER = "local[2]"
CONNECTOR = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
START_S = 60.0
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={directory}/logs
num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def _run_java(jars: Path, main: str, *arguments: str) -> list[str]:
    java = find_java().home / "bin" / "java"
    return [str(java), "-Xmx1g", "-cp", f"{jars}/*", main, *arguments]


@contextmanager
def broker(jars: Path, directory: Path) -> Iterator[str]:
    """A broker of one node with its files in ``directory``; its address."""
    directory.mkdir(parents=True)
    settings = directory / "server.properties"
    settings.write_text(
        _SETTINGS.format(port=PORT, controller=CONTROLLER_PORT, directory=directory)
    )
    cluster = ("-t", uuid.uuid4().hex[:22], "--standalone")
    log = directory / "broker.log"
    with log.open("wb") as output:
        subprocess.run(
            _run_java(jars, "kafka.tools.StorageTool", "format", "-c", str(settings), *cluster),
            check=True,
            stdout=output,
            stderr=output,
            timeout=START_S,
        )
        process = subprocess.Popen(
            _run_java(jars, "kafka.Kafka", str(settings)), stdout=output, stderr=output
        )
    try:
        yield f"127.0.0.1:{PORT}"
    finally:
        process.terminate()
        process.wait(30)


def _version(directory: Path, name: str) -> str:
    """Of a jar."""
    found = sorted(p.stem for p in directory.glob(f"{name}*.jar"))
    return found[0].rpartition("-")[2] if found else "?"


def run_kafka(
    jars: Path, directory: Path, rows: int, keys: int, value_bytes: int
) -> dict[str, Any]:
    """The figures beside Kafka: rows written by Spark's sink, then read three times."""
    from tidecast_spark import session

    found = [p for p in (jars / "spark").glob("*.jar") if p.name.startswith(CONNECTOR)]
    config = {
        "spark.sql.shuffle.partitions": "2",
        "spark.jars": ",".join(map(str, found)),
    }
    with broker(jars / "broker", directory) as address:
        spark = session("bench kafka", master=MASTER, config=config)
        try:
            frame = spark.range(rows).selectExpr(
                f"cast(concat('key-', id % {keys}) as binary) key",
                f"cast(repeat('x', {value_bytes}) as binary) value",
            )
            options = {"kafka.bootstrap.servers": address}
            begun = time.perf_counter()
            frame.write.format("kafka").options(**options).option("topic", "in").save()
            sink_s = time.perf_counter() - begun
            source = (
                spark.read.format("kafka")
                .options(**options)
                .option("subscribe", "in")
                .option("startingOffsets", "earliest")
                .load()
            )
            times = []
            for _ in range(3):
                begun = time.perf_counter()
                source.write.format("noop").mode("overwrite").save()
                times.append(time.perf_counter() - begun)
            return {
                "config": {
                    "rows": rows,
                    "broker": _version(jars / "broker", "kafka_"),
                    "connector": _version(jars / "spark", CONNECTOR[0]),
                },
                "metrics": {
                    "source_rows_per_s": round(rows / min(times)),
                    "sink_rows_per_s": round(rows / sink_s),
                },
            }
        finally:
            spark.stop()


def in_its_own_process(jars: Path, directory: Path, rows: int, keys: int, size: int) -> Any:
    """`run_kafka` with a JVM that has the connector's jars from its start."""
    words = [str(jars), str(directory), str(rows), str(keys), str(size)]
    ran = subprocess.run(
        [sys.executable, "-m", "tidecast_spark.bench_kafka", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no output"])[-1]
        return {"error": f"exit code {ran.returncode}: {last}"}
    return json.loads(ran.stdout.splitlines()[-1])


if __name__ == "__main__":
    _jars, _directory, *_numbers = sys.argv[1:]
    _found = run_kafka(Path(_jars), Path(_directory), *map(int, _numbers))
    sys.stdout.write(json.dumps(_found) + "\n")
