"""JetStream as the storage of a durable topic: an ack is its ack, each record is there once."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Eventually
from tests.support.jetstream_storage import last_sequence, stored, url
from tests.support.kafka_storage import (
    check_once_and_in_order,
    count_of,
    log_of,
    opened,
    publish,
    texts,
)
from tests.support.nats_server import NatsServer, missing, nats_server
from tests.support.patience import next_event
from tests.unit.test_kafka_takeover import Store, engine, fetched, keeps

import tidecast.sync
from tidecast.config.sources.storage import StreamStorage, storage_source
from tidecast.config.topology import topology_from
from tidecast.errors import ConfigError, CorruptLog, PayloadTooLarge, StorageError, Timeout
from tidecast.events import StorageBack, StorageWaits
from tidecast.jetstream import frame_kernels as frames
from tidecast.jetstream.adapter import JetStreamAdapter
from tidecast.jetstream.storing.channel import Channel, Refused, frame
from tidecast.jetstream.storing.fencing import ensure_stream, fence, streams_of
from tidecast.jetstream.storing.messages import Encoder, RebuildScanner
from tidecast.jetstream.storing.notes import NOTES
from tidecast.jetstream.streams import Streams
from tidecast.layout.counters import QueueCounter as C
from tidecast.log.building import check, record_table, records
from tidecast.queues.adapter import Record, pack, unpack

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
Body = dict[str, Any]


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    with nats_server() as made:
        yield made


# --- settings -------------------------------------------------------------------------------------

AT = "jetstream://h:1/S"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"storage": "s3://x"}, "storage: s3://x: allowed are local, .* and jetstream://HOST:PORT"),
        ({"storage": "jetstream://h/S"}, "storage: jetstream.servers: h: allowed are HOST:PORT"),
        (
            {"storage": AT + "?subjects=a"},
            "storage: jetstream.subjects: a: is for reading: allowed",
        ),
        ({"storage": AT + "?replicas=2"}, "storage: jetstream.replicas: 2: allowed are 1, 3 and 5"),
        ({"storage": AT + "?replicas=9"}, "storage: jetstream.replicas: 9"),
        ({"storage": AT + "?max_bytes=x"}, "storage: jetstream.max_bytes: "),
        ({"storage": AT + ",T"}, "storage: jetstream.streams: 'S,T': allowed is one name"),
        ({"storage": AT, "fsync": "none"}, "fsync: none: with storage on JetStream allowed"),
        ({"storage": AT, "mode": "live"}, f"storage: {AT}: allowed with mode durable"),
    ],
)
def test_a_setting_that_is_wrong_is_refused(settings: Body, problem: str) -> None:
    with pytest.raises(ConfigError, match=r"topics\[0\]\." + problem):
        topology_from({"topics": [{"name": "orders", "mode": "durable", **settings}]})


def test_two_topics_do_not_write_the_same_streams() -> None:
    topics = [{"name": name, "mode": "durable", "storage": AT} for name in ("a", "b")]
    with pytest.raises(ConfigError, match=r"topics\[1\].storage: .* topic a writes S"):
        topology_from({"topics": topics})
    found = storage_source(AT + "?replicas=3&max_age_s=60&domain=d")
    assert isinstance(found, StreamStorage)
    assert (found.settings.replicas, found.settings.max_age_s, found.source.domain) == (3, 60, "d")


# --- messages -------------------------------------------------------------------------------------


def run_of(rows: list[Record], token: int = 0) -> Any:
    return pack(rows, token)


def frames_of(data: bytes, sequence: int = 1) -> Any:
    """The frames that a consumer gets of published messages."""
    out, at, number = b"", 0, 1
    while at < len(data):
        line, _, _ = data[at:].partition(b"\r\n")
        parts = line.split(b" ")
        assert parts[0] == b"HPUB"
        size = int(parts[-1])
        body = data[at + len(line) + 2 : at + len(line) + 2 + size]
        reply = b"$JS.ACK.s.c.1.%d.%d.1.0" % (sequence, number)
        out += b"HMSG %s 1 %s %s %s\r\n%s\r\n" % (parts[1], reply, parts[-2], parts[-1], body)
        at += len(line) + 4 + size
        sequence, number = sequence + 1, number + 1
    return np.frombuffer(out, dtype=np.uint8).copy()


def rebuilt(data: Any, token: int = -1) -> Any:
    scanner = RebuildScanner("s", 1 << 24, 7)
    scanner.token = token
    assert scanner.scan(data, 0, data.size, 0, 1) == frames.MORE
    return scanner.run(data, 0)


def check_all(run: Any) -> Iterator[int]:
    """Bytes of each batch: they are sound."""
    at, table = 0, record_table()
    while at < run.size:
        assert records(run, at, run.size, table, 0) > 0
        n = int(check(run, at, run.size))
        assert n > 0
        yield n
        at += n


def random_record(chance: random.Random) -> Record:
    key: bytes | None = chance.choice(
        [None, b"", b"plain key", b" blank", bytes(chance.randbytes(9))]
    )
    headers: Any = chance.choice(
        [None, {}, {"a": "b", "c": b"\x00"}, {"n": 5, "Nats-Msg-Id": "x"}, {"long": "y" * 300}]
    )
    return Record(chance.randbytes(chance.randint(0, 300)), key, headers)


@pytest.mark.parametrize("seed", range(4))
def test_what_messages_note_makes_the_log_again(seed: int) -> None:
    chance = random.Random(seed)
    rows = [random_record(chance) for _ in range(50)]
    run = run_of(rows, 1000)
    encoder = Encoder("S.record.1", "in")
    chunk = encoder.encode(run, 1000, 5, 1 << 20)
    assert chunk is not None
    assert (chunk.token, chunk.behind, chunk.records) == (1000, 1050, 50)
    data = frames_of(bytes(chunk.data))
    found = [(token, one.payload, one.key, one.headers) for token, one in unpack(rebuilt(data))]
    assert found == [(token, one.payload, one.key, one.headers) for token, one in unpack(run)]
    assert [token for token, _ in unpack(rebuilt(data, 1020))] == list(range(1020, 1050))
    assert rebuilt(data, 990).size == 0  # nothing behind a gap


@pytest.mark.parametrize("seed", range(6))
def test_damaged_messages_are_refused_or_left_out(seed: int) -> None:
    chance = random.Random(seed)
    chunk = Encoder("S.record.1", "in").encode(
        run_of([random_record(chance) for _ in range(8)]), 0, 5, 1 << 20
    )
    assert chunk is not None
    whole = frames_of(bytes(chunk.data))
    for _ in range(400):
        data = whole.copy()
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(data.size)] = chance.randrange(256)
        scanner = RebuildScanner("s", 1 << 24, 7)
        scanner.scan(data, 0, data.size, 0, 1)
        with contextlib.suppress(StorageError):
            run = scanner.run(data, 0)
            assert run.size == sum(check_all(run))


def test_chunks_hold_to_their_limits() -> None:
    encoder = Encoder("S.record.1", "in")
    run = run_of([Record(b"x")] * 2500)
    token, sizes = 0, []
    while (chunk := encoder.encode(run, token, token, 1 << 20)) is not None:
        sizes.append(chunk.records)
        assert bytes(chunk.data).count(b" in ") == chunk.records
        token = chunk.behind
    assert sizes == [999, 999, 502]
    large = run_of([Record(b"small"), Record(bytes(3 << 20))])
    assert encoder.encode(large, 0, 0, 8 << 20).behind == 1  # type: ignore[union-attr]
    assert encoder.encode(large, 1, 1, 8 << 20).behind == 2  # type: ignore[union-attr]
    with pytest.raises(PayloadTooLarge, match="the server takes 1048576: raise its max_payload"):
        Encoder("S.record.1", "in").encode(large, 1, 1, 1 << 20)
    with pytest.raises(CorruptLog):
        encoder.encode(np.zeros(200, dtype=np.uint8), 0, 0, 1 << 20)


# --- publishing -----------------------------------------------------------------------------------


def test_a_record_is_durable_when_jetstream_has_it(tmp_path: Path, nats: NatsServer) -> None:
    with opened(tmp_path, url(nats)) as client:
        publish(client, texts(3000))
        check_once_and_in_order(stored(nats), texts(3000))
        assert count_of(client, C.STORED_RECORDS) == 3000
        assert [log_of(client, q).stored_token for q in (0, 1)] == [
            log_of(client, q).next_token for q in (0, 1)
        ]
        with client.consumer("orders", "reader") as consumer:
            assert len(consumer.fetch(3000, max_wait=30.0)) > 0
    config = nats.do(lambda _, js: js.stream_info("ORDERS_0")).config
    assert (config.num_replicas, config.discard, config.metadata["tidecast"]) == (1, "new", "1")


def test_other_engines_read_the_streams_by_the_adapter(tmp_path: Path, nats: NatsServer) -> None:
    for turn in range(2):  # each leaves markers, which are no records
        with opened(tmp_path, url(nats)) as client:
            publish(client, texts(300, 300 * turn))
    adapter = JetStreamAdapter.of(f"jetstream://{nats.address}/ORDERS_0,ORDERS_1")
    found: list[Any] = []
    with (
        tidecast.sync.connect("embedded://", adapters={"copy": adapter}) as reader,
        reader.consumer("copy", "r") as consumer,
    ):
        while len(found) < 600:
            got = consumer.fetch(1000, max_wait=30.0)
            assert got
            for message in got:
                found.append((bytes(message.data), bytes(message.key or b"")))
                message.ack()
    assert sorted(found) == sorted((v, b"k%d" % (int(v) % 7)) for v in texts(600))


def test_no_ack_before_jetstream_answers(
    tmp_path: Path, nats: NatsServer, eventually: Eventually
) -> None:
    with opened(tmp_path, url(nats)) as client:
        publish(client, texts(1))
        nats.kill()
        with client.publisher("orders") as publisher:
            for value in texts(10, 1):
                publisher.publish(value, key=b"k")
            waits = next_event(client, StorageWaits)
            assert (waits.topic, waits.final) == ("orders", False)
            assert nats.address in waits.detail
            with pytest.raises(Timeout):
                publisher.wait_durable(timeout=0.2)
            eventually(lambda: count_of(client, C.STORAGE_WAITS) == 2, "the gauge")
            nats.start()
            publisher.wait_durable(timeout=60.0)
            next_event(client, StorageBack)
        eventually(lambda: count_of(client, C.STORAGE_WAITS) == 0, "the gauge")
        assert count_of(client, C.STORE_FAILURES) > 0
    assert sorted(v for each in stored(nats) for v in each) == sorted(texts(11))


@pytest.mark.parametrize("seed", range(2))
def test_kills_of_the_server_and_restarts_lose_nothing_and_repeat_nothing(
    tmp_path: Path, nats: NatsServer, seed: int
) -> None:
    """The engine ends with records of which it is not known whether the stream has them."""
    chance, sent = random.Random(seed), 0
    notes = [tmp_path / "queues" / "orders" / NOTES.name, tmp_path / "older"]
    for turn in range(4):
        with opened(tmp_path, url(nats)) as client:
            publish(client, texts(200, sent), producer="p", first_seq=sent + 1)
            with client.publisher("orders", producer="p") as publisher:
                for value in texts(3000, sent + 200):
                    publisher.publish(value, key=b"k%d" % (int(value) % 7))
                    if value == b"%d" % (sent + 200 + chance.randrange(100, 2900)):
                        nats.kill()
                        nats.start()
                publisher.wait_durable(timeout=60.0)
            sent += 3200
            if turn == 1:  # as after a kill before newer marks were noted
                shutil.copy(*notes)
        if turn == 1:
            shutil.copy(*reversed(notes))
    check_once_and_in_order(stored(nats), texts(sent))


# --- fencing --------------------------------------------------------------------------------------


def test_no_message_of_a_fenced_writer_is_taken(nats: NatsServer) -> None:
    """It had as many under way as a writer may have, and they arrive behind the fence."""
    found = storage_source(url(nats))
    assert isinstance(found, StreamStorage)
    streams = Streams(streams_of(found, 1), check=False)
    ensure_stream(streams, 0, found.settings, is_state=False, make=True)
    first = fence(streams, 0, "old")
    channel = Channel(streams, "old")
    encoder = Encoder("ORDERS_0.record.1", channel.reply)
    run = run_of([Record(b"x")] * 2000)
    chunk = encoder.encode(run, 0, first.last, 1 << 20)
    assert chunk is not None
    channel.ask_all(chunk.data, first.last + 1, first.last + 999)
    chunk = encoder.encode(run, 999, first.last + 999, 1 << 20)
    assert chunk is not None
    second = fence(streams, 0, "new")
    assert second.first == first.last + 1000
    with pytest.raises(Refused, match="wrong last sequence"):
        channel.ask_all(chunk.data, second.last + 1, second.last + 999)
    sentinel = Channel(streams, "sentinel")  # behind all of these, on another connection
    assert sentinel.ask(frame("ORDERS_0.record.2", sentinel.reply, {}, b"1")) == second.last + 1
    assert last_sequence(nats, "ORDERS_0") == second.last + 1
    assert [len(each) for each in stored(nats, 1)] == [1000]
    channel.close()
    streams.close()


def test_a_newer_owner_fences_the_older_one(tmp_path: Path, nats: NatsServer) -> None:
    with opened(tmp_path / "a", url(nats), node="alpha", owner="alpha") as old:
        publish(old, texts(50))
        with opened(tmp_path / "b", url(nats), node="beta", owner="beta") as new:
            publish(new, texts(50, 50))
            with old.publisher("orders") as publisher:
                publisher.publish(b"1000", key=b"k")
                waits = next_event(old, StorageWaits)
                assert waits.final
                assert "another writer has taken it over" in waits.detail
                with pytest.raises(Timeout):
                    publisher.wait_durable(timeout=0.2)
            publish(new, texts(50, 100))
    check_once_and_in_order(stored(nats), texts(150))


def test_messages_of_other_programs_do_no_harm(tmp_path: Path, nats: NatsServer) -> None:
    with opened(tmp_path, url(nats)) as client:
        publish(client, texts(50))
        nats.fill("ORDERS_0.record.other", [b"1000"])
        publish(client, texts(50, 50))
    check_once_and_in_order(stored(nats), [*texts(100), b"1000"])


# --- streams that do not fit ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "stream ORDERS_0: subjects: .* allowed is"),
        ({"retention": "workqueue"}, "stream ORDERS_0: retention: workqueue: allowed is limits"),
    ],
)
def test_a_stream_with_other_settings_is_refused(
    tmp_path: Path, nats: NatsServer, config: Body, problem: str
) -> None:
    nats.create("ORDERS_0", **config)
    with opened(tmp_path, url(nats)) as client, pytest.raises(ConfigError, match=problem):
        raise ConfigError(next_event(client, StorageWaits).detail)
    assert last_sequence(nats, "ORDERS_0") == 0


def test_a_stream_that_is_full_holds_publishers_back(tmp_path: Path, nats: NatsServer) -> None:
    with opened(tmp_path, url(nats, "?max_bytes=1000000"), queues=1) as client:
        publisher = client.publisher("orders")
        with publisher:
            for _ in range(20):
                publisher.publish(bytes(100_000))
            detail = next_event(client, StorageWaits).detail
            assert "stream ORDERS_0: maximum bytes exceeded" in detail
            assert "raise max_bytes of the stream" in detail
            with pytest.raises(Timeout):
                publisher.wait_durable(timeout=0.2)

            async def raise_limit(_: Any, js: Any) -> None:
                config = (await js.stream_info("ORDERS_0")).config
                await js.update_stream(config.evolve(max_bytes=10_000_000))

            nats.do(raise_limit)
            publisher.wait_durable(timeout=60.0)
    assert [len(each) for each in stored(nats, 1)] == [20]


def test_a_stream_that_was_deleted_is_not_made_again_in_silence(
    tmp_path: Path, nats: NatsServer
) -> None:
    with opened(tmp_path, url(nats)) as client:
        publish(client, texts(5))
    nats.do(lambda _, js: js.delete_stream("ORDERS_1"))
    with opened(tmp_path, url(nats)) as client:
        detail = next_event(client, StorageWaits).detail
        assert "stream ORDERS_1: it is not there, and has records of topic orders" in detail
        assert NOTES.name in detail


def test_logins_that_are_wrong_name_the_remedy(tmp_path: Path) -> None:
    text = 'authorization { user: "shop", password: "right" }\n'
    secret = tmp_path / "secret"
    secret.write_text("wrong")
    with nats_server(text, user="shop", password="right") as server:
        at = url(server, f"?user=shop&secret_file={secret}")
        with opened(tmp_path / "a", at) as client:
            detail = next_event(client, StorageWaits).detail
            assert "Authorization Violation: user shop" in detail
            secret.write_text("right")
            publish(client, texts(3))


def test_a_missing_right_names_the_subject(tmp_path: Path) -> None:
    rights = '{ publish: { deny: ["ORDERS_0.record.>"] } }'
    user = f'{{ user: "shop", password: "right", permissions: {rights} }}'
    text = f"authorization {{ users: [ {user} ] }}\n"
    secret = tmp_path / "secret"
    secret.write_text("right")
    with nats_server(text, user="shop", password="right") as server:
        at = url(server, f"?user=shop&secret_file={secret}")
        with opened(tmp_path / "a", at, queues=1) as client:
            with client.publisher("orders") as publisher:
                publisher.publish(b"1")
                detail = next_event(client, StorageWaits).detail
            assert 'Permissions Violation for Publish to "ORDERS_0.record.' in detail


# --- engines that take turns ----------------------------------------------------------------------


def test_an_engine_with_another_directory_goes_on_where_the_one_before_was(
    tmp_path: Path, nats: NatsServer, eventually: Eventually
) -> None:
    """Records, sequences of producers, positions; and the first one again, which was gone past."""
    store, at, seen, sent = Store(), url(nats), list[bytes](), 0
    for turn, name in enumerate(("a", "b", "a", "a", "b")):
        with engine(tmp_path, name, at, store) as client:
            eventually(lambda c=client: keeps(c), f"{name} keeps it, {turn}", timeout_s=30.0)
            if sent:  # a repetition of the producer: known from the stream
                publish(client, texts(100, sent - 100), producer="p", first_seq=sent - 99)
            publish(client, texts(300, sent), producer="p", first_seq=sent + 1)
            sent += 300
            seen += fetched(client, 200)
    assert len(seen) == len(set(seen)) == 1000
    check_once_and_in_order(stored(nats), texts(sent))


def test_an_owner_that_lost_its_lease_writes_nothing(
    tmp_path: Path, nats: NatsServer, eventually: Eventually
) -> None:
    store, at = Store(), url(nats)
    with ExitStack() as stack:
        old = stack.enter_context(engine(tmp_path, "a", at, store))
        eventually(lambda: keeps(old), "a keeps it", timeout_s=30.0)
        publish(old, texts(50), producer="p", first_seq=1)
        fetched(old, 10)
        store.cut.add("a")
        new = stack.enter_context(engine(tmp_path, "b", at, store))
        eventually(lambda: keeps(new), "b keeps it", timeout_s=30.0)
        publish(new, texts(50, 50), producer="q", first_seq=1)
        if keeps(old):
            with old.publisher("orders") as publisher:
                publisher.publish(b"1000", key=b"k")
                eventually(lambda: not keeps(old), "a is fenced by the streams", timeout_s=30.0)
                with pytest.raises(Timeout):
                    publisher.wait_durable(timeout=0.1)
        assert sorted(fetched(new, 90), key=int)[-50:] == texts(50, 50)
    partitions = stored(nats)
    check_once_and_in_order(partitions, texts(100))
    with engine(tmp_path, "c", at, Store()) as third:
        eventually(lambda: keeps(third), "c keeps it", timeout_s=30.0)
        logs = third.link.node.durable.topics["orders"].logs  # type: ignore[attr-defined]
        assert [log.next_token for log in logs] == [len(each) for each in partitions]
