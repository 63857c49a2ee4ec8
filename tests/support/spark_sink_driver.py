"""A driver on a cluster whose tasks publish: `python -m tests.support.spark_sink_driver ...`.

Arguments: `MASTER DATA_DIR CHECKPOINT ROWS [AT]`. Copies topic `in` to topic `out` in a stream of
`ROWS` a batch; a value is `NUMBER,PARTITION`. ``AT``: `POINT:BATCH`: at `written` and `finished`
(before the commit, behind it) the driver is killed with all its processes; at `slow` the first
attempt of partition 0 waits until another attempt has claimed it, then both publish.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from tests.support.patience import wait_until
from tests.support.roles import say
from tests.support.spark_cluster import cluster_session
from tidecast_spark.sink import StreamWriter
from tidecast_spark.source import TidecastDataSource

POINTS = ("written", "finished", "slow")
SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "200ms",
}


def faulty_source(point: str, batch: int, group: int, state: Path) -> type[TidecastDataSource]:
    """The sink with a fault; ``state``: files that tell attempts of each other."""

    def kill() -> None:
        os.killpg(group, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def first(partition: int) -> bool:
        try:
            (state / f"slow-{partition}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    class FaultyWriter(StreamWriter):
        def write(self, iterator: Iterator[Any]) -> Any:
            task = TaskContext.get()
            assert task is not None
            now = int(str(task.getLocalProperty("streaming.sql.batchId")))
            if (point, now, task.partitionId()) == ("slow", batch, 0) and first(0):
                staging, name = self._options.staging_dir, f"{batch:012d}.json"
                claim = f"*/partitions/000000/{name}"
                wait_until(lambda: any(staging.glob(claim)), 200.0, "another attempt's claim")
                (state / "both").touch()
            return super().write(iterator)

        def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
            if (point, batch) == ("written", batchId):
                kill()
            super().commit(messages, batchId)
            if (point, batch) == ("finished", batchId):
                kill()

    class FaultySource(TidecastDataSource):
        @classmethod
        def name(cls) -> str:
            return "tidecast_faulty"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            made: Any = super().streamWriter(schema, overwrite)
            made.__class__ = FaultyWriter
            return made

    return FaultySource


def main(master: str, data_dir: str, checkpoint: str, rows: int, at: str = "") -> None:
    """See module."""
    spark = cluster_session("sink", master, SETTINGS)
    sink = "tidecast"
    if at:
        point, _, batch = at.partition(":")
        assert point in POINTS
        state = Path(checkpoint).parent
        spark.dataSource.register(faulty_source(point, int(batch), os.getpgid(0), state))
        sink = "tidecast_faulty"
    say("ready")
    source = (
        spark.readStream.format("tidecast")
        .options(dataDir=data_dir, topic="in", maxRecordsPerTrigger=str(rows), minPartitions="6")
        .load()
    )
    query = (
        source.selectExpr("key", "concat_ws(',', string(value), spark_partition_id()) value")
        .writeStream.format(sink)
        .options(dataDir=data_dir, topic="out", checkpointLocation=checkpoint, commit="partitions")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    say(f"done in {1 + max(each['batchId'] for each in query.recentProgress)} batches")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
