"""A training session, in which the JVM notes the classes it needs: `python -m ... JVM_OPTIONS`.

See `tidecast_spark.spark_session.warm_up`. The JVM writes its cache when it ends.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from tidecast_spark.bench import fill
from tidecast_spark.spark_session import session


def train(options: str) -> None:
    """The first queries of most programs, then the end of the JVM."""
    config = {"spark.driver.extraJavaOptions": options}
    with tempfile.TemporaryDirectory(prefix="tc-") as directory:
        fill(Path(directory), "in", 1, 400, [b"x"] * 400)
        spark: Any = session("warm-up", master="local[2]", config=config)
        rows = spark.read.format("tidecast").option("dataDir", directory).option("topic", "in")
        rows.load().limit(1).collect()
        rows.load().groupBy("queue").count().collect()
        spark.stop()
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - PySpark has no other end of it
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    train(sys.argv[1])
