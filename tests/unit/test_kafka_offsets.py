"""Groups over the wire: joins, commits and offsets, what is on disk, real clients that share."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from tests.conftest import Eventually
from tests.support.kafka import TIMEOUT_S, Bare, Served, administration_of, batch_of

from tidecast.config.kafka import KafkaConfig
from tidecast.disk import write_atomically
from tidecast.kafka.codes import Code
from tidecast.kafka.groups import service
from tidecast.kafka.groups.service import Offset, Offsets
from tidecast.kafka.schemas import tables
from tidecast.kafka.server import KafkaEndpoint
from tidecast.node.durable.topic import DurableTopic

TOPICS = [
    {"name": f"t{i}", "mode": "durable", "queues": 4, "fsync_interval_ms": 2} for i in range(6)
]
_names = iter(range(6))
N = 400


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("node"), TOPICS)
    yield made
    assert made.endpoint.counters.of("faults") == 0
    made.close()


@pytest.fixture
def bare(served: Served) -> Iterator[Bare]:
    made = served.bare()
    yield made
    made.close()


@pytest.fixture
def topic() -> str:
    return f"t{next(_names)}"


def commit(bare: Bare, group: str, topic: str, partition: int, offset: int, **body: Any) -> int:
    row = {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_metadata": "note",
        "committed_leader_epoch": 3,
    } | body.pop("row", {})
    asked = {
        "group_id": group,
        "generation_id": -1,
        "member_id": "",
        "topics": [{"name": topic, "partitions": [row]}],
    } | body
    answer = bare.ask(tables.OFFSET_COMMIT, 7, asked)
    return int(answer["topics"][0]["partitions"][0]["error_code"])


def offsets(bare: Bare, group: str) -> dict[tuple[str, int], int]:
    answer = bare.ask(tables.OFFSET_FETCH, 5, {"group_id": group, "topics": None})
    return {
        (topic["name"], row["partition_index"]): row["committed_offset"]
        for topic in answer["topics"]
        for row in topic["partitions"]
    }


def test_offsets_are_kept_over_a_restart_of_the_endpoint(served: Served, bare: Bare) -> None:
    assert commit(bare, "kept", "t0", 1, 41) == 0
    assert commit(bare, "kept", "t0", 1, 42) == 0
    assert commit(bare, "kept", "t1", 0, 7) == 0
    another = KafkaEndpoint(
        served.link.node, administration_of(served.link.node), KafkaConfig(listen=":0")
    )
    another.start()
    again = Bare(another.port)
    assert offsets(again, "kept") == {("t0", 1): 42, ("t1", 0): 7}
    asked = [{"name": "t0", "partition_indexes": [1, 2]}]
    answer = again.ask(tables.OFFSET_FETCH, 5, {"group_id": "kept", "topics": asked})
    first, second = answer["topics"][0]["partitions"]
    assert (first["committed_offset"], first["committed_leader_epoch"]) == (42, 3)
    assert (first["metadata"], second["committed_offset"]) == ("note", -1)
    assert offsets(again, "unknown") == {}
    again.close()
    another.stop()


def test_what_cannot_be_committed(bare: Bare) -> None:
    long = {"committed_metadata": "x" * 4097}
    assert commit(bare, "g", "t0", 0, 1, row=long) == Code.OFFSET_METADATA_TOO_LARGE
    assert commit(bare, "g", "t0", 9, 1) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(bare, "g", "missing", 0, 1) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(bare, "g", "t0", 0, -5) == Code.OFFSET_OUT_OF_RANGE
    assert commit(bare, "g", "t0", 0, 1, generation_id=3) == Code.ILLEGAL_GENERATION
    assert offsets(bare, "g") == {}


def test_groups_are_listed_and_described(served: Served, bare: Bare) -> None:
    assert commit(bare, "idle", "t0", 0, 1) == 0
    asked = {
        "group_id": "busy",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
    }
    joined = bare.ask(tables.JOIN_GROUP, 3, asked)
    member, generation = joined["member_id"], joined["generation_id"]
    shares = [{"member_id": member, "assignment": b"all"}]
    body = {"group_id": "busy", "generation_id": generation, "member_id": member}
    synced = bare.ask(tables.SYNC_GROUP, 3, body | {"assignments": shares})
    assert bytes(synced["assignment"]) == b"all"
    assert bare.ask(tables.HEARTBEAT, 3, body)["error_code"] == 0
    listed = {row["group_id"] for row in bare.ask(tables.LIST_GROUPS, 2, {})["groups"]}
    assert {"idle", "busy"} <= listed
    rows = bare.ask(tables.DESCRIBE_GROUPS, 4, {"groups": ["busy", "idle", "none"]})["groups"]
    assert [row["group_state"] for row in rows] == ["Stable", "Empty", "Dead"]
    assert bytes(rows[0]["members"][0]["member_assignment"]) == b"all"
    assert commit(bare, "busy", "t0", 0, 5, generation_id=generation, member_id=member) == 0
    left = bare.ask(
        tables.LEAVE_GROUP,
        3,
        {"group_id": "busy", "members": [{"member_id": member, "group_instance_id": None}]},
    )
    assert left["members"][0]["error_code"] == 0
    assert "busy" not in served.endpoint.groups.coordinator.groups


def _names_nobody(row: Any) -> bool:
    return type(row) is dict and row.get("member_id") == "unheard-of"


def test_a_member_that_waits_for_its_leader_keeps_no_request(
    served: Served, bare: Bare, eventually: Eventually
) -> None:
    """A SyncGroup may name a member 65,000 times, and wait for an hour."""
    members = [bare, served.bare()]
    asked = {
        "group_id": "waiting",
        "session_timeout_ms": 600_000,
        "rebalance_timeout_ms": 600_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
    }
    for each in members:
        each.send(tables.JOIN_GROUP, 3, asked)
    joined = [each.answer(tables.JOIN_GROUP, 3)[1] for each in members]
    (follower,) = [each for each in zip(members, joined, strict=True) if not each[1]["members"]]
    body = {"group_id": "waiting"}
    body |= {key: follower[1][key] for key in ("generation_id", "member_id")}
    rows = [{"member_id": "unheard-of", "assignment": b""}] * 600
    follower[0].send(tables.SYNC_GROUP, 3, body | {"assignments": rows})
    del rows

    def waits() -> bool:
        group = served.endpoint.groups.coordinator.groups["waiting"]
        return group.members[body["member_id"]].on_sync is not None

    eventually(waits, "the follower to wait for its leader")
    eventually(lambda: not any(_names_nobody(each) for each in gc.get_objects()), "no row kept")
    members[1].close()


def test_a_file_that_is_damaged_is_set_aside(tmp_path: Path) -> None:
    async def fill() -> None:
        made = Offsets(tmp_path, wall_s=lambda: 5.0)
        made.load()
        many = [made.commit(f"g{i % 3}", {("t", i): Offset(i)}) for i in range(30)]
        await asyncio.gather(*many)
        made.stop()

    asyncio.run(fill())
    first, *rest = sorted(tmp_path.glob("*.json"))
    raw = first.read_bytes()
    first.write_bytes(raw.replace(b"[1", b"[2", 1).replace(b"[0", b"[3", 1))
    again = Offsets(tmp_path)
    again.load()
    again.stop()
    assert len(again.groups) == len(rest) == 2
    assert first.with_suffix(".bad").exists()
    assert not first.exists()
    for group, stored in again.groups.items():
        assert stored.offsets["t"] == {i: Offset(i) for i in range(30) if f"g{i % 3}" == group}


def test_offsets_have_limits_and_those_of_before_need_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Offsets(tmp_path, groups_max=2)
    made.load()
    many = {("t", i): Offset(i) for i in range(6)}
    monkeypatch.setattr(service, "OFFSETS_MAX", 8)
    assert made.room("g", many)
    asyncio.run(made.commit("g", many))
    assert made.room("g", {place: Offset(9) for place in many})
    assert made.room("g", {("t", 6): Offset(0), ("u", 0): Offset(0)})
    assert not made.room("g", {("u", i): Offset(0) for i in range(3)})
    used = 6 * service.OFFSET_BYTES
    monkeypatch.setattr(service, "ALL_BYTES_MAX", used + service.OFFSET_BYTES + 5)
    assert made.room("h", {("t", 0): Offset(0, metadata="12345")})
    assert not made.room("h", {("t", 0): Offset(0, metadata="123456")})
    assert not made.room("g", {("t", 0): Offset(1, metadata="x" * (service.OFFSET_BYTES + 6))})
    assert made.room("g", many)  # it does not grow
    asyncio.run(made.forget("g"))
    assert made._bytes == {}
    made.stop()


def test_a_disk_that_refuses_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "full")

    async def main() -> None:
        made = Offsets(tmp_path)
        made.load()
        await made.commit("g", {("t", 0): Offset(1)})
        with monkeypatch.context() as patched:
            patched.setattr(service, "write_atomically", full)
            with pytest.raises(OSError, match="full"):
                await made.commit("g", {("t", 0): Offset(2)})
        assert made.get("g", "t", 0) == Offset(1)
        await made.commit("g", {("t", 0): Offset(3)})
        assert made.get("g", "t", 0) == Offset(3)
        made.stop()

    asyncio.run(main())


class HeldWrites:
    """The first write of offsets waits for `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self._released = threading.Event(), threading.Event()
        self._write = write_atomically
        monkeypatch.setattr(service, "write_atomically", self._held)

    def _held(self, path: Path, content: bytes) -> None:
        self.begun.set()
        assert self._released.wait(TIMEOUT_S)
        self._write(path, content)

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, TIMEOUT_S)

    def release(self) -> None:
        self._released.set()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("all_topics", [False, True])
def test_offsets_that_are_being_written_are_deleted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool, all_topics: bool
) -> None:
    async def main() -> None:
        made = Offsets(tmp_path)
        made.load()
        if known:
            await made.commit("g", {("kept", 0): Offset(7)})
        held = HeldWrites(monkeypatch)
        committed = asyncio.create_task(made.commit("g", {("t", 0): Offset(1)}))
        await held.wait()
        forgotten = asyncio.create_task(made.forget("g") if all_topics else made.forget_topic("t"))
        await asyncio.sleep(0)
        held.release()
        await asyncio.gather(committed, forgotten)
        assert made.get("g", "t", 0) is None
        assert (made.get("g", "kept", 0) is None) == (all_topics or not known)
        made.stop()
        again = Offsets(tmp_path)
        again.load()
        assert again.get("g", "t", 0) is None
        assert again.groups.keys() == made.groups.keys()
        again.stop()

    asyncio.run(main())


def test_a_group_that_commits_just_now_does_not_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]

    async def main() -> None:
        made = Offsets(tmp_path, wall_s=lambda: now_s[0])
        made.load()
        await made.commit("g", {("t", 0): Offset(1)})
        now_s[0] += 1000
        held = HeldWrites(monkeypatch)
        committed = asyncio.create_task(made.commit("g", {("t", 1): Offset(2)}))
        await held.wait()
        assert made.sweep(set(), 100.0) == {}
        held.release()
        await committed
        made.stop()
        again = Offsets(tmp_path)
        again.load()
        assert again.get("g", "t", 0) == Offset(1)
        assert again.get("g", "t", 1) == Offset(2)
        again.stop()

    asyncio.run(main())


def test_offsets_are_kept_as_long_after_the_last_member_as_after_a_commit(tmp_path: Path) -> None:
    now_s = [1000.0]
    retention_s = 100.0

    async def main() -> None:
        made = Offsets(tmp_path, wall_s=lambda: now_s[0])
        made.load()
        await made.commit("g", {("t", 0): Offset(1)})
        for _ in range(5):  # its members commit nothing: there is nothing to read
            now_s[0] += 60
            assert made.sweep({"g"}, retention_s) == {}
        now_s[0] += 90
        assert made.sweep(set(), retention_s) == {}
        await made.commit("other", {("t", 0): Offset(1)})  # and what was staged is written
        made.stop()
        again = Offsets(tmp_path, wall_s=lambda: now_s[0])
        again.load()
        assert again.groups["g"].at == 1000.0
        assert again.sweep(set(), retention_s + every_s) == {}, "a start knows it, too"
        now_s[0] += 11
        assert made.sweep(set(), retention_s) == {"g": 1}
        assert not made._seen.keys() - made.groups.keys()
        again.stop()

    every_s = retention_s / 2
    asyncio.run(main())


def test_groups_with_members_need_no_room_of_others(tmp_path: Path) -> None:
    async def main() -> None:
        made = Offsets(tmp_path, groups_max=2, wall_s=lambda: now_s[0])
        made.load()
        await made.commit("g", {("t", 0): Offset(1)})
        now_s[0] += 1000
        made.sweep({"g"}, 1e6)
        assert made.room("h", {("t", 0): Offset(1)})
        await made.commit("h", {("t", 0): Offset(1)})
        assert not made.room("i", {("t", 0): Offset(1)})
        made.stop()

    now_s = [100.0]
    asyncio.run(main())


def test_a_commit_while_a_topic_is_deleted_leaves_no_offset(
    short_dir: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(short_dir, [TOPICS[0] | {"name": "gone"}])
    bare, codes = served.bare(), list[int]()
    delete = DurableTopic.delete

    def slow(topic: DurableTopic) -> None:
        delete(topic)
        codes.append(commit(bare, "g", "gone", 0, 7))

    monkeypatch.setattr(DurableTopic, "delete", slow)
    served.link.node.delete_topic("gone")
    assert len(codes) == 1
    eventually(lambda: "g" not in served.endpoint.groups.offsets.groups, "no offset of it")
    assert commit(bare, "g", "gone", 0, 7) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert not served.endpoint.groups.offsets._staged
    assert offsets(bare, "g") == {}
    bare.close()
    served.close()


def test_groups_without_members_expire(tmp_path: Path) -> None:
    now_s = [100.0]

    async def main() -> None:
        made = Offsets(tmp_path, wall_s=lambda: now_s[0])
        made.load()
        for group in ("old", "alive"):
            await made.commit(group, {("t", 0): Offset(1)})
        now_s[0] += 50
        await made.commit("young", {("t", 0): Offset(1)})
        now_s[0] += 60
        assert made.sweep({"alive"}, 100.0) == {"old": 1}
        assert set(made.groups) == {"alive", "young"}
        made.stop()

    asyncio.run(main())
    assert len(list(tmp_path.glob("*.json"))) == 2


def fill(bare: Bare, topic: str) -> set[bytes]:
    values = [b"%d" % i for i in range(N)]
    for queue in range(4):
        assert bare.produce(topic, queue, batch_of(*values[queue::4]))["error_code"] == 0
    return set(values)


def test_librdkafka_members_share_a_topic(served: Served, bare: Bare, topic: str) -> None:
    values = fill(bare, topic)
    settings = {
        "bootstrap.servers": served.endpoint.address,
        "group.id": "rd",
        "session.timeout.ms": 6000,
        "auto.offset.reset": "earliest",
    }
    consumers = [confluent_kafka.Consumer(settings) for _ in range(2)]
    got: set[bytes] = set()
    by_member: list[set[int]] = [set(), set()]
    ends_s = time.monotonic() + TIMEOUT_S
    for consumer in consumers:
        consumer.subscribe([topic])
    while (got != values or not all(by_member)) and time.monotonic() < ends_s:
        for mine, consumer in zip(by_member, consumers, strict=True):
            for message in consumer.consume(50, 0.2):
                assert message.error() is None
                got.add(message.value())
                mine.add(message.partition())
        if got == values and not all(by_member):
            fill(bare, topic)
    assert got == values
    assert all(by_member)
    for consumer in consumers:
        consumer.close()
    assert served.endpoint.groups.coordinator.groups.get("rd") is None
    assert sum(offset for (name, _), offset in offsets(bare, "rd").items() if name == topic) >= N


def test_kafka_python_goes_on_where_it_was(served: Served, bare: Bare, topic: str) -> None:
    values = fill(bare, topic)

    def consume(n: int) -> set[bytes]:
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=served.endpoint.address,
            group_id="py",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=n,
            consumer_timeout_ms=20_000,
        )
        found = {next(consumer).value for _ in range(n)}
        consumer.commit()
        consumer.close()
        return found

    first = consume(100)
    second = consume(N - 100)
    assert first | second == values
    assert not first & second


def test_aiokafka_in_a_group(served: Served, bare: Bare, topic: str) -> None:
    values = fill(bare, topic)

    async def main() -> None:
        async with aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=served.endpoint.address,
            group_id="aio",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            got: set[bytes] = set()
            while got != values:
                for records in (await consumer.getmany(timeout_ms=20_000)).values():
                    got |= {each.value for each in records}
            await consumer.commit()
            for queue in range(4):
                committed = await consumer.committed(aiokafka.TopicPartition(topic, queue))
                assert committed == N // 4

    asyncio.run(main())
