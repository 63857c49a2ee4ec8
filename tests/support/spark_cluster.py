"""A stand-alone Spark cluster: a master and two workers, each a process of its own, on loopback.

Each worker has an address of its own: Spark repeats a slow task only on another host.

`python -m tests.support.spark_cluster MASTER DATA_DIR STAGING_DIR` is a driver of it: it copies
topic `in` to topic `out`, once, however often it runs.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark

from tests.conftest import Eventually
from tests.support.lab import Lab
from tests.support.process import Process
from tests.support.roles import say
from tidecast_spark import session
from tidecast_spark.java import find_java

_DEPLOY = "org.apache.spark.deploy"
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-Dspark.master.rest.enabled=false")
_STARTED = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Registering worker ")


class SparkCluster:
    """``workers``: their processes. An executor is a child of its worker."""

    def __init__(self, lab: Lab, directory: Path, eventually: Eventually, workers: int = 2) -> None:
        self._lab, self._directory = lab, directory
        self._master = self._spawn("master.Master", "--port", "0")
        eventually(lambda: _STARTED.search(self._written()), "the master", timeout_s=60.0)
        found = _STARTED.search(self._written())
        assert found is not None
        self.url = found.group(1)
        self.workers = [self._worker(n) for n in range(workers)]
        eventually(
            lambda: len(_REGISTERED.findall(self._written())) == workers,
            "all workers",
            timeout_s=60.0,
        )

    def _written(self) -> str:
        return self._master.log.read_text()

    def _worker(self, number: int) -> Process:
        work = self._directory / f"worker-{number}"
        size = ("--cores", "1", "--memory", "600m", "--work-dir", str(work))
        return self._spawn("worker.Worker", *size, self.url, address=f"127.0.0.{1 + number}")

    def _spawn(self, kind: str, *arguments: str, address: str = "127.0.0.1") -> Process:
        home, java = Path(pyspark.__file__).parent, find_java().home
        [core] = (home / "jars").glob("spark-core_*.jar")  # of the wheel, which is no distribution
        environment = {
            **os.environ,
            "JAVA_HOME": str(java),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": address,
            "SPARK_SCALA_VERSION": core.name.removeprefix("spark-core_").partition("-")[0],
            "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
        }
        where = ("--host", address, "--webui-port", "0")
        command = [str(java / "bin" / "java"), *_JVM, "-cp", str(home / "jars" / "*")]
        return self._lab._process(
            [*command, f"{_DEPLOY}.{kind}", *where, *arguments],
            env=environment,
            start_new_session=True,
        )

    def kill(self, number: int) -> None:
        """kill -9 of a worker and its executors: a host of the cluster is gone."""
        os.killpg(self.workers[number].pid, signal.SIGKILL)

    def kill_executor(self, number: int) -> bool:
        """kill -9 of a worker's executor, which the worker starts again. False: it has none."""
        pids = Path(f"/proc/{self.workers[number].pid}/task").glob("*/children")
        children = [int(pid) for one in pids for pid in one.read_text().split()]
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        return bool(children)


def cluster_session(name: str, master: str, config: Mapping[str, str]) -> Any:
    """A session of a driver on this host."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return session(
        name,
        master=master,
        config={
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.python.authenticate.socketTimeout": "120s",  # of a machine that is busy
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
            **config,
        },
    )


def main(master: str, data_dir: str, staging: str) -> None:
    """See module."""
    spark = cluster_session("cluster", master, {})
    say("ready")
    told = {"dataDir": data_dir}
    frame = spark.read.format("tidecast").options(**told, topic="in").load()
    (
        frame.select("key", "value", "timestamp")
        .write.format("tidecast")
        .mode("append")
        .options(**told, topic="out", stagingDir=staging, writeId="copy")
        .save()
    )
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    say(f"done on {executors}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
