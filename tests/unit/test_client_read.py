"""`client.read`: durable topics without a subscription, in the process, at an engine, remotely."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.gateways import TOKEN, make_gateway, remote

import tidecast
import tidecast.sync
import tidecast.testing
from tidecast import Json, LogRecord, Time, Tokens
from tidecast.access import Access, Scope, digest_of
from tidecast.client.log import aio, blocking
from tidecast.client.log.sources import RemoteLogs
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.engine.process import Engine
from tidecast.errors import AuthError, Closed, ConfigError, CorruptLog, NotFound
from tidecast.events import RecordsGone
from tidecast.log.files import queue_directory

SETTINGS: dict[str, Any] = {
    "transports": [{"name": "ipc", "kind": "ipc"}],
    "topics": [
        {"name": "one", "mode": "durable", "fsync": "none"},
        {"name": "three", "mode": "durable", "fsync": "none", "queues": 3},
        {"name": "small", "mode": "durable", "fsync": "none", "segment_bytes": "64KiB"},
        {"name": "prices"},
    ],
}
SECOND_NS = 1_000_000_000


class Place:
    """A client of an engine, and how to connect another one."""

    def __init__(self, client: tidecast.sync.Connection, url: str, data_dir: Path) -> None:
        self.client, self.url, self.data_dir = client, url, data_dir
        self.link: EmbeddedLink | None = None

    def on_loop(self) -> Any:
        """An asyncio client of the same engine."""
        if self.link is None:
            return tidecast.connect(self.url, token=TOKEN)
        return tidecast.connect(link=EmbeddedLink(self.link.node, "loop", owns_node=False))


@pytest.fixture(params=["embedded", "engine", "gateway"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    topology = topology_from(SETTINGS)
    if request.param == "engine":
        engine = Engine(tmp_path, topology)
        engine.start()
        with tidecast.sync.connect(f"tidecast://{tmp_path}") as made:
            yield Place(made, f"tidecast://{tmp_path}", tmp_path)
        engine.stop()
        return
    link = EmbeddedLink.open(topology, data_dir=tmp_path, name="host")
    if request.param == "embedded":
        with tidecast.sync.connect(link=EmbeddedLink(link.node, "near", owns_node=False)) as made:
            found = Place(made, "", tmp_path)
            found.link = link
            yield found
    else:
        gateway = make_gateway(link, data_dir=tmp_path)
        with remote(gateway.url) as made:
            yield Place(made, gateway.url, tmp_path)
        gateway.stop()
    link.close()


@pytest.fixture
def client(place: Place) -> tidecast.sync.Connection:
    return place.client


def offsets(records: Any) -> list[tuple[int, int]]:
    """(queue, offset) of each."""
    return [(each.queue, each.offset) for each in records]


def test_records_are_read_without_a_subscription(client: tidecast.sync.Connection) -> None:
    client.publish("one", b"a", key="k", headers={"n": 1, "t": "x"}, timestamp=5)
    client.publish("one", b"", ack="durable")
    read = client.read("one")
    client.publish("one", b"later", ack="durable")
    first, second = read
    assert isinstance(first, LogRecord)
    assert (first.data, first.key, first.headers, first.timestamp) == (
        b"a",
        b"k",
        {"n": 1, "t": "x"},
        5,
    )
    assert (first.topic, first.queue, first.offset, first.size) == ("one", 0, 0, 1)
    assert (second.data, second.key, second.headers, second.offset) == (b"", None, {}, 1)
    assert second.timestamp > SECOND_NS
    assert read.ranges == {0: (0, 2)}
    assert offsets(read) == [(0, 0), (0, 1)]  # again
    assert [each.data for each in client.read("one")] == [b"a", b"", b"later"]
    assert client.subscriptions.list() == []
    assert first.key == b"k"  # it owns its memory


def test_a_range_is_chosen_by_offset_time_queue_and_key(client: tidecast.sync.Connection) -> None:
    times = [n * SECOND_NS for n in range(1, 31)]
    keys = [f"key {n % 5}" for n in range(30)]
    payloads = [b"%d" % n for n in range(30)]
    client.publish_batch("three", payloads, keys=keys, timestamps=times, ack="durable").check()

    def read(**options: Any) -> list[int]:
        return [int(each.data) for each in client.read("three", **options)]

    assert read() == list(range(30))  # merged by time
    assert read(start=Time(11 * SECOND_NS), end=Time(21 * SECOND_NS)) == list(range(10, 20))
    assert read(keys=["key 2"]) == list(range(2, 30, 5))
    assert read(keys=[b"key 2", "key 4"], end=Time(11 * SECOND_NS)) == [2, 4, 7, 9]
    assert read(start="latest") == read(end="earliest") == []
    everything = list(client.read("three"))
    whole = client.read("three").ranges
    some = next(queue for queue, (first, end) in whole.items() if end - first > 3)
    of_some = [int(each.data) for each in everything if each.queue == some]
    assert read(queues=[some]) == of_some
    assert read(queues=[some], start=Tokens({some: 1}), end=Tokens({some: 3})) == of_some[1:3]
    assert read(queues=[some], start=Tokens({some: 2}), end=Tokens({some: 1})) == []
    assert read(queues=[some], end=Tokens({some: 10_000})) == of_some


def test_batches_and_tables(client: tidecast.sync.Connection) -> None:
    n = 2500
    headers = [{"n": i} for i in range(n)]
    client.publish_batch(
        "three",
        [b"%d" % i for i in range(n)],
        keys=[f"{i % 7}" for i in range(n)],
        headers=headers,
        ack="durable",
    ).check()
    read = client.read("three")
    batches = list(read.batches(max_messages=100))
    assert all(0 < len(each) <= 100 for each in batches)
    queues = [each.queue for each in batches]
    assert queues == sorted(queues)
    for each in batches:
        assert each.payloads() == [record.data for record in each]
        assert [record.token for record in each] == each.tokens()
        assert [record.headers["n"] for record in each] == [int(data) for data in each.payloads()]
    table = read.to_table()
    assert table.column_names == [
        "payload",
        "key",
        "headers",
        "timestamp",
        "deliver_at",
        "topic",
        "queue",
        "offset",
    ]
    assert sorted(map(int, table["payload"].to_pylist())) == list(range(n))
    assert table["headers"][0].as_py() == [("n", table["payload"][0].as_py())]
    assert set(table["topic"].to_pylist()) == {"three"}
    nothing = client.read("three", start="latest").to_table()
    assert nothing.num_rows == 0
    assert nothing.schema == table.schema
    client.publish_batch("one", table, ack="durable").check()
    copied = client.read("one").to_table(headers="raw")
    assert copied["payload"].to_pylist() == table["payload"].to_pylist()
    assert copied["key"].to_pylist() == table["key"].to_pylist()


def test_the_last_record_of_each_key_also_when_queues_were_added(
    client: tidecast.sync.Connection,
) -> None:
    for value in range(3):
        for n in range(20):
            client.publish("one", b"%d" % value, key=f"k{n}", timestamp=100 - value)
    client.publish("one", b"no key", ack="durable")
    client.topics.edit("one", queues=4)
    assert client.topics.get("one").queues == 4
    for n in range(0, 20, 2):
        client.publish("one", b"new", key=f"k{n}", timestamp=1, ack="durable")
    last = client.read("one").last_by_key()
    expected: dict[bytes | None, bytes] = {
        f"k{n}".encode(): b"2" if n % 2 else b"new" for n in range(20)
    }
    assert {key: each.data for key, each in last.items()} == expected | {None: b"no key"}
    assert len({each.queue for each in last.values()}) > 1


def test_what_cannot_be_read_is_refused(client: tidecast.sync.Connection) -> None:
    client.publish("one", b"a", ack="durable")
    with pytest.raises(NotFound, match="topic three has the queues \\[0, 1, 2\\], not 7"):
        client.read("three", queues=[7])
    with pytest.raises(NotFound, match="not 9"):
        client.read("three", end=Tokens({9: 1}))
    with pytest.raises(ConfigError, match=r"queue 0 of one ends at 1: .* not 5"):
        client.read("one", start=Tokens({0: 5}))
    refused: list[tuple[dict[str, Any], str]] = [
        ({"topic": "t.*"}, "topic: 't.\\*'"),
        ({"topic": "one", "start": "begin"}, "start: 'begin': allowed are 'earliest'"),
        ({"topic": "one", "end": Time(-1)}, "end: Time"),
        ({"topic": "one", "queues": ["0"]}, "queues: '0'"),
        ({"topic": "one", "keys": "k"}, "keys: 'k'"),
        ({"topic": "one", "keys": [5]}, "keys: 5"),
        ({"topic": "one", "keys": ["k"] * 65}, "keys"),
        ({"topic": "one", "codec": "xml"}, "codec: 'xml'"),
    ]
    for arguments, text in refused:
        with pytest.raises(ConfigError, match=text):
            client.read(**arguments)
    with pytest.raises(ConfigError, match="max_messages: 0"):
        client.read("one").batches(0)


def test_a_topic_without_a_log_is_not_found(place: Place) -> None:
    if place.link is None and place.url.startswith("tidecast://127"):
        with pytest.raises(NotFound, match="no durable topic at this gateway"):
            place.client.read("prices")
        return
    with pytest.raises(NotFound, match="topic prices is live"):
        place.client.read("prices")
    with pytest.raises(NotFound, match="no topic thre \\(did you mean three\\?\\)"):
        place.client.read("thre")


def test_values_are_decoded(client: tidecast.sync.Connection) -> None:
    client.publish("one", b'{"a": 1}', ack="durable")
    read = client.read("one", codec=Json(dict[str, int]))
    assert [each.value for each in read] == [{"a": 1}]
    assert [each.values() for each in read.batches()] == [[{"a": 1}]]
    with pytest.raises(ConfigError, match="no codec"):
        _ = next(iter(client.read("one"))).value


def test_the_asyncio_client_reads_the_same(place: Place) -> None:
    place.client.publish_batch(
        "three",
        [b"%d" % n for n in range(3000)],
        keys=[f"{n % 11}" for n in range(3000)],
        ack="durable",
    ).check()
    expected = place.client.read("three")

    async def main() -> None:
        async with place.on_loop() as client:
            read = client.read("three")
            assert read.ranges == {}
            assert [each.token async for each in read] == [each.token for each in expected]
            assert read.ranges == expected.ranges
            sizes = [len(each) async for each in client.read("three").batches(999)]
            assert sizes == [len(each) for each in expected.batches(999)]
            assert (await client.read("three").to_table()).equals(expected.to_table())
            last = await client.read("three").last_by_key()
            assert {k: v.token for k, v in last.items()} == {
                k: v.token for k, v in expected.last_by_key().items()
            }
            with pytest.raises(NotFound):
                await client.read("nothing").to_table()
            walk = aiter(client.read("three"))
            assert (await anext(walk)).topic == "three"
            await walk.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())


def test_a_reader_that_is_cancelled_leaves_the_client_usable(place: Place) -> None:
    place.client.publish_batch("one", [bytes(1000)] * 4000, ack="durable").check()

    async def main() -> None:
        async with place.on_loop() as client:
            for _ in range(20):
                task = asyncio.create_task(client.read("one").to_table())
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert (await client.read("one").to_table()).num_rows == 4000

    asyncio.run(main())


def test_both_clients_have_the_same_words() -> None:
    for name in blocking.Records.PUBLIC.split():
        one, other = getattr(blocking.Records, name, None), getattr(aio.Records, name, None)
        if not inspect.isfunction(one):
            continue
        assert inspect.isfunction(other)
        assert [*inspect.signature(one).parameters.values()] == [
            *inspect.signature(other).parameters.values()
        ]
        assert one.__doc__ == other.__doc__


def segments(place: Place) -> list[Path]:
    return sorted(queue_directory(place.data_dir, "small", 0).glob("*.log"))


def test_retention_that_overtakes_a_read_is_reported(place: Place) -> None:
    for _ in range(10):
        place.client.publish_batch("small", [bytes(10_000)] * 10, ack="durable").check()
    read = place.client.read("small")
    first, second, *_ = segments(place)
    first.unlink()
    kept = int(second.stem)
    assert offsets(read) == [(0, n) for n in range(kept, 100)]
    gone = [e for e in place.client.events(0.1) if isinstance(e, RecordsGone)]
    assert [(e.topic, e.queue, e.first, e.end) for e in gone] == [("small", 0, 0, kept)]


def test_damage_is_not_passed_over(place: Place) -> None:
    for _ in range(4):
        place.client.publish_batch("small", [bytes(1000)] * 10, ack="durable").check()
    path = segments(place)[0]
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptLog):
        list(place.client.read("small"))


def test_batches_through_a_gateway_take_one_connection(tmp_path: Path) -> None:
    link = EmbeddedLink.open(topology_from(SETTINGS), data_dir=tmp_path, name="host")
    gateway = make_gateway(link, data_dir=tmp_path)
    with remote(gateway.url) as client:
        client.publish_batch(
            "three", [b"1"] * 90, keys=[f"{n}" for n in range(90)], ack="durable"
        ).check()
        logs = client.link.open_logs("three", lambda *_: None)
        assert isinstance(logs, RemoteLogs)
        ranges = client.read("three").plan()
        assert sum(len(rows) for each in ranges for _, rows in logs.blocks(each)) == 90
        assert len(logs._readers) == 1
        side_by_side = [logs.blocks(each, len(ranges)) for each in ranges]
        assert [len(next(each)[1]) > 0 for each in side_by_side] == [True] * 3
        assert len(logs._readers) == 3
        logs.close()
    gateway.stop()
    link.close()


def test_queues_that_are_read_side_by_side_share_memory() -> None:
    with tidecast.testing.connect(durable=["d"]) as client:
        client.publish("d", b"1", ack="durable")
        (asked,) = client.read("d").plan()
        logs = client.link.open_logs("d", lambda *_: None)
        alone, among_many = (next(logs.blocks(asked, n))[0].base for n in (1, 1000))
        assert isinstance(alone, np.ndarray)
        assert isinstance(among_many, np.ndarray)
        assert (alone.nbytes, among_many.nbytes) == (8 << 20, 128 << 10)
        client.publish("d", bytes(1 << 20), ack="durable")  # longer than a block
        (asked,) = client.read("d").plan()
        assert sum(len(rows) for _, rows in logs.blocks(asked, 1000)) == 2


def test_a_gateway_asks_for_the_right_to_read_payloads(tmp_path: Path) -> None:
    link = EmbeddedLink.open(topology_from(SETTINGS), data_dir=tmp_path, name="host")
    scopes = {
        "reader": Scope(pattern="one", rights=["read_payloads"]),
        "member": Scope(pattern="one", rights=["subscribe", "publish", "manage"]),
    }
    known = {digest_of(name): Access(name, name, (scope,)) for name, scope in scopes.items()}
    gateway = make_gateway(link, data_dir=tmp_path, find_key=known.get)
    with remote(gateway.url) as owner:
        owner.publish("one", b"a", ack="durable")
    with remote(gateway.url, token="reader") as reader:
        assert [each.data for each in reader.read("one")] == [b"a"]
        with pytest.raises(AuthError, match="read_payloads on three"):
            reader.read("three")
    lacks = pytest.raises(AuthError, match="key member lacks the right read_payloads on one")
    with remote(gateway.url, token="member") as member, lacks:
        member.read("one")
    gateway.stop()
    link.close()


def test_a_closed_client_reads_nothing() -> None:
    client = tidecast.testing.connect(durable=["d"])
    client.publish("d", b"1", ack="durable")
    read = client.read("d")
    assert [each.data for each in read] == [b"1"]
    client.close()
    with pytest.raises(Closed):
        client.read("d")
    with pytest.raises(Closed):
        list(read)
