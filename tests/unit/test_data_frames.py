"""Frames of pandas and Polars, published as they are and made of what is read.

They are large, so they are no part of the developers' tools: `pip install pandas polars`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidecast
import tidecast.testing
from tidecast.errors import CodecError, ConfigError

REASON = "`pip install pandas polars` runs it"
COLUMNS: dict[str, list[Any]] = {
    "payload": ["one", "two", "three", "\N{SNOWMAN}"],
    "key": ["a", None, "b", ""],
    "timestamp": [1_000, 2_000, 3_000, 4_000],
}


def pandas_frame(columns: dict[str, list[Any]]) -> Any:
    pandas = pytest.importorskip("pandas", reason=REASON)
    frame = pandas.DataFrame(columns)
    if "timestamp" in columns:
        frame["timestamp"] = frame["timestamp"].astype("datetime64[ns]")
    return frame


def polars_frame(columns: dict[str, list[Any]]) -> Any:
    polars = pytest.importorskip("polars", reason=REASON)
    frame = polars.DataFrame(columns)
    if "timestamp" in columns:
        frame = frame.with_columns(polars.col("timestamp").cast(polars.Datetime("ns")))
    return frame


FRAMES = pytest.mark.parametrize("frame", [pandas_frame, polars_frame])
Make = Callable[[dict[str, list[Any]]], Any]


@pytest.fixture
def client() -> Iterator[tidecast.sync.Connection]:
    with tidecast.testing.connect(durable=["in", "out"]) as made:
        yield made


def seen(client: tidecast.sync.Connection, topic: str = "in") -> list[tuple[bytes, Any, int]]:
    """Payload, key, time of each record."""
    return [(each.data, each.key, each.timestamp) for each in client.read(topic)]


@FRAMES
def test_a_frame_is_a_batch(client: tidecast.sync.Connection, frame: Make) -> None:
    result = client.publish_batch("in", frame(COLUMNS), ack="durable")
    result.check()
    assert (result.requested, result.appended) == (4, 4)
    assert seen(client) == [
        (b"one", b"a", 1_000),
        (b"two", None, 2_000),
        (b"three", b"b", 3_000),
        ("\N{SNOWMAN}".encode(), b"", 4_000),
    ]


@FRAMES
def test_a_part_of_a_frame_and_its_columns(client: tidecast.sync.Connection, frame: Make) -> None:
    whole = frame(COLUMNS)
    client.publish_batch("in", whole[1:3], ack="durable").check()
    client.publish_batch("in", whole["payload"], keys=whole["key"], ack="durable").check()
    assert [(data, key) for data, key, _ in seen(client)] == [
        (b"two", None),
        (b"three", b"b"),
        (b"one", b"a"),
        (b"two", None),
        (b"three", b"b"),
        ("\N{SNOWMAN}".encode(), b""),
    ]


@FRAMES
def test_what_is_no_message_is_refused(client: tidecast.sync.Connection, frame: Make) -> None:
    result = client.publish_batch("in", frame({"payload": ["a", None, "b"]}), ack="durable")
    assert (result.appended, [each.index for each in result.refused]) == (2, [1])
    with pytest.raises((ConfigError, CodecError), match="price"):
        client.publish_batch("in", frame({"payload": ["a"], "price": [1.5]}))
    with pytest.raises((ConfigError, CodecError), match="of type 'g'"):
        client.publish_batch("in", frame({"payload": [1.5]}))
    assert [data for data, _, _ in seen(client)] == [b"a", b"b"]


def published(client: tidecast.sync.Connection) -> None:
    """Four records with keys, headers and times."""
    payloads = [each.encode() for each in COLUMNS["payload"]]
    client.publish_batch(
        "in",
        payloads,
        keys=COLUMNS["key"],
        headers={"n": [1, 2, 3, 4]},
        timestamps=COLUMNS["timestamp"],
        ack="durable",
    ).check()


def test_what_is_read_becomes_a_frame_of_pandas(client: tidecast.sync.Connection) -> None:
    pandas = pytest.importorskip("pandas", reason=REASON)
    published(client)
    frame = client.read("in").to_table(headers="raw").to_pandas()
    assert frame["payload"].str.decode("utf-8").tolist() == COLUMNS["payload"]
    assert frame["offset"].tolist() == [0, 1, 2, 3]
    assert frame["timestamp"].dt.tz is not None
    assert pandas.isna(frame["key"][1])
    client.publish_batch("out", frame, ack="durable").check()
    assert seen(client, "out") == seen(client)
    assert [each.headers for each in client.read("out")] == [{"n": n} for n in (1, 2, 3, 4)]


def test_what_is_read_becomes_a_frame_of_polars(client: tidecast.sync.Connection) -> None:
    polars = pytest.importorskip("polars", reason=REASON)
    published(client)
    frame = polars.from_arrow(client.read("in").to_table(headers="raw"))
    assert frame["offset"].to_list() == [0, 1, 2, 3]
    assert frame["key"].to_list() == [b"a", None, b"b", b""]
    client.publish_batch("out", frame, ack="durable").check()
    assert seen(client, "out") == seen(client)
    assert [each.headers for each in client.read("out")] == [{"n": n} for n in (1, 2, 3, 4)]


def test_a_consumed_batch_becomes_a_frame(client: tidecast.sync.Connection) -> None:
    polars = pytest.importorskip("polars", reason=REASON)
    pytest.importorskip("pandas", reason=REASON)
    published(client)
    with client.consumer("in", "s") as consumer:
        batch = consumer.fetch(10, max_wait=5.0)
        arrow = batch.to_record_batch(headers="raw")
        assert polars.from_arrow(arrow)["payload"].to_list() == batch.payloads()
        assert arrow.to_pandas()["payload"].tolist() == batch.payloads()
        batch.ack()
