"""Publishing a staged batch to the engine in producer sessions of guaranteed delivery."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from tidecast.errors import TidecastError

if TYPE_CHECKING:
    from tidecast_spark.options import SinkOptions
    from tidecast_spark.staging import Manifest, StagingArea

TRIES_MAX = 5


def publish_batch(
    options: SinkOptions, area: StagingArea, batch: int, manifest: Manifest
) -> None:  # fmt: skip
    """Publish what is not yet durable of a batch, topic by topic. Raises TidecastError.

    An engine that goes away meanwhile is tried again: the session then goes on where it ended.
    """
    for topic in manifest.rows:
        for attempt in range(1, TRIES_MAX + 1):
            try:
                _publish_topic(options, area, batch, manifest, topic)
                break
            except TidecastError as problem:
                if not problem.retryable or attempt == TRIES_MAX:
                    raise


def rows_of(
    area: StagingArea, batch: int, manifest: Manifest, topic: str, skip: int
) -> Iterator[Any]:
    """The rows of a topic in the order of the manifest, without the first ``skip``."""
    for name in manifest.files:
        for table in area.read(batch, name):
            mine = table
            if len(manifest.rows) > 1:
                mine = table.filter(pc.equal(table.column(0), topic))
            if skip >= mine.num_rows:
                skip -= mine.num_rows
                continue
            yield mine.slice(skip)
            skip = 0


def _publish_topic(
    options: SinkOptions, area: StagingArea, batch: int, manifest: Manifest, topic: str
) -> None:  # fmt: skip
    """Publish a topic's rows from where its producer's session is durable; wait until all are."""
    import tidecast.sync

    first_seq = manifest.first_seq[topic]
    url = f"tidecast://{options.data_dir}"
    with tidecast.sync.connect(url, token=options.token or None) as client:
        producer = f"spark-{area.directory.name}"
        session: dict[str, Any] = {"producer": producer, "first_seq": first_seq}
        with client.publisher(topic, on_full="block", **session) as publisher:
            # what of it is in the log already is a duplicate by its sequence, and is dropped there
            for table in rows_of(area, batch, manifest, topic, 0):
                publish_rows(publisher, table)
            publisher.flush()


def publish_rows(publisher: Any, table: Any) -> None:
    """Publish one record batch of `STAGED_SCHEMA` in order."""
    for row in table.to_pylist():
        publisher.publish(row["value"], key=row["key"])
