"""A mirror to Kafka whose topic does not take a record: a hole that is reported, or the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.durable import Platform
from tests.support.fake_broker import FakeBroker
from tests.support.kafka_storage import payloads, stored

from tidecast.config.sources.kafka import kafka_source
from tidecast.errors import PayloadTooLarge, StorageError, TidecastError
from tidecast.kafka.brokers.cluster import Cluster
from tidecast.kafka.codes import Code
from tidecast.kafka.storing import batches
from tidecast.kafka.storing.writer import PartitionWriter
from tidecast.mirror.outbound import FOLDER, OutboundMirror
from tidecast.mirror.progress import Event, Progress
from tidecast.mirror.state import StateFile
from tidecast.queues.adapter import Record, pack

LARGEST = 4000
BAD = b"bad"


class Engine:
    """The engine of a data directory, which has stopped: its records are durable."""

    topic = "orders"

    def __init__(self, directory: Path, payloads: list[bytes]) -> None:
        self.platform = Platform(directory, queues=1)
        given = {"topic": "orders", "mirror": "m", "source": 0, "queue": 0, "after": 0}
        run = pack([Record(one, b"k") for one in payloads]).tobytes()
        perform = self.platform.node.consumers.perform
        assert perform("append_run", {**given, "run": run})["appended"]
        self.platform.run()
        self.end = len(payloads)
        self.data_dir = self.platform.node.data_dir
        self.platform.node.stop()

    def marks(self, sources: int) -> dict[str, Any]:
        """See `Target.marks`."""
        assert sources == 1
        return {"durable": [self.end]}


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    made = FakeBroker("copy", 1)
    made.settings["max.message.bytes"] = str(LARGEST)
    yield made
    made.close()


def mirror(
    engine: Engine,
    fake: FakeBroker,
    events: list[Event],
    on_gap: str,
    rate: float | None = None,
) -> tuple[Progress, TidecastError | None]:
    progress = Progress(rate, events.append, patience_s=5.0)
    kafka = kafka_source({"servers": f"127.0.0.1:{fake.port}", "topic": "copy"})
    target: Any = engine
    with StateFile(engine.data_dir, "out", FOLDER) as state:
        out = OutboundMirror(
            target, engine.data_dir, kafka, state, progress, on_gap=on_gap, follow=False
        )
        try:
            out.run()
        except TidecastError as problem:
            return progress, problem
        finally:
            out.close()
    return progress, None


def judge(fake: FakeBroker, verdict: Callable[[bytes], int]) -> None:
    """Judge each batch by its bytes."""

    def fault(body: Any) -> int:
        fake.faults.append(fault)
        return verdict(bytes(body["topics"][0]["partitions"][0]["records"]))

    fake.faults.append(fault)


def by_size(raw: bytes) -> int:
    return Code.MESSAGE_TOO_LARGE if len(raw) > LARGEST else Code.NONE


REFUSALS = [
    pytest.param(by_size, bytes(5000), "more than the topic takes (4000)", id="size"),
    pytest.param(
        lambda raw: Code.INVALID_TIMESTAMP if BAD in raw else Code.NONE,
        BAD,
        "INVALID_TIMESTAMP (32): see message.timestamp.before.max.ms",
        id="time",
    ),
    pytest.param(
        lambda raw: Code.INVALID_RECORD if BAD in raw else Code.NONE,
        BAD,
        "INVALID_RECORD (87): a topic that is compacted takes no record without a key",
        id="record",
    ),
]


@pytest.mark.parametrize(("verdict", "refused", "reason"), REFUSALS)
def test_refused_records_are_holes_that_are_reported(
    short_dir: Path, fake: FakeBroker, verdict: Any, refused: bytes, reason: str
) -> None:
    bad = {0, 7, 8, 19}
    payloads = [refused if i in bad else b"%d" % i for i in range(20)]
    engine, events = Engine(short_dir, payloads), list[Event]()
    judge(fake, verdict)
    progress, problem = mirror(engine, fake, events, "report")
    assert problem is None
    assert stored(fake) == [[b"%d" % i for i in range(20) if i not in bad]]
    found = [e for e in events if e.event == "RecordsLeftOut"]
    assert [(e.about["first"], e.about["end"]) for e in found] == [(i, i + 1) for i in sorted(bad)]
    for event in found:
        assert reason in event.about["reason"]
        assert f"queue 0 of orders: offset {event.about['first']} (" in event.text
        assert event.about["bytes"] > 0
    assert (progress.counts.records, progress.counts.left_out) == (16, 4)
    progress, problem = mirror(engine, fake, events, "stop")  # they are passed, once and for all
    assert (problem, progress.counts.records, progress.counts.left_out) == (None, 0, 0)


@pytest.mark.parametrize(("verdict", "refused", "reason"), REFUSALS)
def test_a_mirror_that_must_not_lose_any_ends_and_names_the_record(
    short_dir: Path, fake: FakeBroker, verdict: Any, refused: bytes, reason: str
) -> None:
    payloads = [refused if i == 7 else b"%d" % i for i in range(20)]
    engine, events = Engine(short_dir, payloads), list[Event]()
    judge(fake, verdict)
    for _ in range(2):  # also when it is started again
        _, problem = mirror(engine, fake, events, "stop")
        assert isinstance(problem, PayloadTooLarge | StorageError)
        assert "queue 0 of orders: offset 7 (" in str(problem)
        assert reason in str(problem)
        assert "pass the record with --on-gap report" in str(problem)
        assert stored(fake) == [[b"%d" % i for i in range(7)]]
    assert not [e for e in events if e.event == "RecordsLeftOut"]
    mirror(engine, fake, events, "report")
    assert stored(fake) == [[b"%d" % i for i in range(20) if i != 7]]


def test_a_record_above_all_limits_is_refused_by_the_encoder(
    short_dir: Path, fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "ROOM_BYTES_MAX", 3 << 20)
    engine, events = Engine(short_dir, [b"1", bytes(2 << 20), b"3"]), list[Event]()
    _, problem = mirror(engine, fake, events, "report")
    assert problem is None
    assert stored(fake) == [[b"1", b"3"]]
    (event,) = [e for e in events if e.event == "RecordsLeftOut"]
    assert "at most 3145728 are made" in event.about["reason"]


def test_a_record_that_is_refused_makes_no_later_batch_smaller(fake: FakeBroker) -> None:
    cluster = Cluster(kafka_source({"servers": f"127.0.0.1:{fake.port}", "topic": "copy"}))
    writer = PartitionWriter(cluster, 0, batches.Identity(7, 3), patience_s=0.0)
    judge(fake, by_size)
    for turn in range(5):
        with pytest.raises(PayloadTooLarge):
            writer.write(pack([Record(bytes(5000))], turn), turn)
        assert writer.refused is not None
        assert (writer.refused.first, writer.refused.end) == (turn, turn + 1)
    assert writer.write(pack([Record(b"%d" % i) for i in range(100)], 5), 5) == 105
    assert (writer.refused, writer.batches) == (None, 1)
    writer.close()
    cluster.close()


def test_a_mirror_with_a_rate_sends_small_batches(tmp_path: Path, fake: FakeBroker) -> None:
    """Batches have the records of a fifth of a second, however small the records are."""
    engine = Engine(tmp_path, [b"%d" % n for n in range(1_000)])
    progress, problem = mirror(engine, fake, [], "report", rate=1_000.0)
    assert (problem, progress.counts.records) == (None, 1_000)
    assert [len(payloads(raw)) for raw in fake.partitions[0].records()] == [200] * 5
