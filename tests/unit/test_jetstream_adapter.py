"""The adapter of JetStream's streams against a NATS server, alone and in an engine."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.nats_server import NatsServer, missing, nats_cluster, nats_server
from tests.support.patience import wait_until
from tests.unit.test_consumer import take, topology
from tests.unit.test_jetstream_frames import seed_of
from tests.unit.test_kafka_keys import self_signed

import tidecast.sync
from tidecast.api.start import Time
from tidecast.config.sources.jetstream import JetStreamSource, jetstream_source
from tidecast.embedded import EmbeddedLink
from tidecast.errors import AuthError, ConfigError, ConnectionLost, NotFound, StorageError
from tidecast.events import QueueUnreadable, RecordsGone, RecordsLeftOut
from tidecast.jetstream import receiver as receivers
from tidecast.jetstream.adapter import JetStreamAdapter
from tidecast.jetstream.logins import login
from tidecast.queues import conformance
from tidecast.queues.adapter import Adapter, Receiver, Record, unpack
from tidecast.sync import Connection

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
_NAMES = itertools.count()


def fresh(name: str) -> str:
    return f"{name}-{next(_NAMES)}"


@pytest.fixture(scope="module")
def shared() -> Iterator[NatsServer]:
    with nats_server() as made:
        yield made


@pytest.fixture
def stream(shared: NatsServer) -> str:
    name = fresh("t")
    shared.create(name)
    return name


def adapter_of(nats: NatsServer, streams: str, **more: Any) -> JetStreamAdapter:
    return JetStreamAdapter(jetstream_source({"servers": nats.address, "streams": streams, **more}))


@contextmanager
def fed(data_dir: Path, feed: JetStreamAdapter) -> Iterator[Connection]:
    link = EmbeddedLink.open(topology(), data_dir=data_dir, adapters={"feed": feed})
    with tidecast.sync.connect(link=link) as client:
        yield client


def drain(consumer: Any, n: int) -> list[bytes]:
    """``n`` records as they come."""
    found: list[bytes] = []
    while len(found) < n:
        for message in consumer.fetch(1000, max_wait=30.0):
            found.append(bytes(message.data))
            message.ack()
    return found


def read_all(receiver: Receiver, token: int, room: int = 1 << 16) -> list[tuple[int, Record]]:
    """All records from a token to the end."""
    found: list[tuple[int, Record]] = []
    end, buffer = receiver.latest(), np.zeros(room, dtype=np.uint8)
    while token < end:
        got = receiver.receive(token, buffer, 10.0)
        if got.need:
            buffer = np.zeros(got.need, dtype=np.uint8)
            continue
        assert got.next_token > token
        found += [one for one in unpack(buffer[: got.bytes]) if one[0] >= token]
        token = got.next_token
    return found


# --- the contract ---------------------------------------------------------------------------------


class Subject:
    """Two streams, two subjects of a stream, or two streams with holes."""

    def __init__(self, nats: NatsServer, kind: str) -> None:
        self.nats, self.kind = nats, kind
        self.names = [fresh("conform"), fresh("conform")]
        for name in self.names:
            nats.create(name)

    def open(self) -> JetStreamAdapter:
        if self.kind == "subjects":
            name = self.names[0]
            return adapter_of(self.nats, name, subjects=f"{name}.0.*,{name}.1.>")
        return adapter_of(self.nats, ",".join(self.names))

    def fill(self, adapter: Adapter, queue: int, count: int) -> None:
        del adapter
        subject = f"{self.names[queue]}.x"
        if self.kind == "subjects":
            subject = f"{self.names[0]}.{queue}.x"
        payloads = [b"%d" % i + bytes(i % 90) for i in range(count)]
        if self.kind != "holes":
            self.nats.fill(subject, payloads)
            return
        spare = [sub for one in payloads for sub in (one, b"spare")[: 1 + (one[:1] in b"147")]]
        sequences = self.nats.fill(subject, spare)
        gone = [s for s, one in zip(sequences, spare, strict=True) if one == b"spare"]
        self.nats.delete(self.names[queue], gone)


@pytest.mark.parametrize("kind", ["streams", "subjects", "holes"])
@pytest.mark.parametrize("check", conformance.CHECKS)
def test_it_conforms(check: str, kind: str, shared: NatsServer) -> None:
    conformance.run(check, Subject(shared, kind))


def test_records_of_every_shape_come_as_they_are(shared: NatsServer, stream: str) -> None:
    feed = adapter_of(shared, stream, fetch_bytes=16_384, key_header="Key")
    given: list[tuple[bytes, dict[str, str] | None]] = [
        (b"plain", None),
        (b"", {"Key": "k"}),
        (b"v" * 1000, {"Key": "a b", "other": "1"}),
        (bytes(range(256)) * 12_000, {"Key": "large"}),
        (b"", None),
        (bytes(range(256)) * 400, None),
        (b"\r\nMSG x\r\n", {"x": "y" * 5000}),
    ]
    before = time.time_ns()
    for payload, headers in given * 3:
        shared.fill(stream, [payload], headers)
    for room in (1 << 12, 1 << 23):
        found = read_all(feed.receiver(0), 1, room)
        assert [token for token, _ in found] == list(range(1, 1 + 3 * len(given)))
        for (_, record), (payload, headers) in zip(found, given * 3, strict=True):
            wanted = {n: v.encode() for n, v in (headers or {}).items()}
            assert record.payload == payload
            assert record.headers == {"nats-subject": stream.encode(), **wanted}
            assert record.key == wanted.get("Key")
            assert before < record.time_ns < time.time_ns()
    feed.close()


def test_what_is_no_stream_for_it_is_named_with_the_fix(shared: NatsServer) -> None:
    with pytest.raises(ConfigError, match=r"stream none: stream not found.*create it first"):
        adapter_of(shared, "none")
    name = fresh("work")
    shared.create(name, retention="workqueue")
    with pytest.raises(ConfigError, match=rf"stream {name}: retention workqueue: allowed is lim"):
        adapter_of(shared, name)
    with pytest.raises(ConfigError, match=r"ca /nowhere.*PEM files are needed"):
        adapter_of(shared, name, tls=True, ca="/nowhere")
    with pytest.raises(ConfigError, match=r"tls: true: the server offers no TLS"):
        adapter_of(shared, name, tls=True)
    with pytest.raises(ConnectionLost, match=r"domain|no answer to"):
        adapter_of(shared, name, domain="elsewhere")
    with pytest.raises(ConnectionLost, match=r"server 127.0.0.1:1: .*refused"):
        JetStreamAdapter(jetstream_source({"servers": "127.0.0.1:1", "streams": "x"}))


# --- in an engine ---------------------------------------------------------------------------------


def test_what_was_fetched_is_not_fetched_again_under_any_pauses(
    shared: NatsServer, tmp_path: Path
) -> None:
    names, each = [fresh("paused") for _ in range(4)], 200
    for queue, name in enumerate(names):
        shared.create(name)
        shared.fill(name, [b"%d %d " % (queue, i) + bytes(1000) for i in range(each)])
    total = each * len(names)
    plain = adapter_of(shared, ",".join(names))
    with fed(tmp_path / "plain", plain) as client, client.consumer("feed", "reader") as consumer:
        assert len(set(drain(consumer, total))) == total
        once = plain.counted().bytes
    feed, chance = adapter_of(shared, ",".join(names)), random.Random(7)
    with fed(tmp_path / "paused", feed) as client:
        consumer = client.consumer("feed", "reader", max_in_flight=20)
        found: list[bytes] = []
        paused: set[int] = set()
        for _ in range(10):
            wanted = set(range(len(names))) - {chance.randrange(len(names))}
            for queue in wanted ^ paused:
                change = client.topics.pause if queue in wanted else client.topics.resume
                change("feed", queue=queue)
            paused = wanted
            for message in consumer.fetch(20, max_wait=0.05):
                found.append(bytes(message.data))
                message.ack()
        for queue in paused:
            client.topics.resume("feed", queue=queue)
        found += drain(consumer, total - len(found))
        assert len(set(found)) == len(found) == total
        for queue in range(len(names)):
            numbers = [int(x.split()[1]) for x in found if int(x.split()[0]) == queue]
            assert numbers == list(range(each))
        assert abs(feed.counted().bytes - once) < once / 100, "names of consumers differ in bytes"


def test_one_slow_subscription_beside_nine_fast_ones_reads_each_byte_once(
    shared: NatsServer, stream: str, tmp_path: Path
) -> None:
    n = 2000
    shared.fill(stream, [b"%d " % i + bytes(500) for i in range(n)])
    stored = n * 500
    feed = adapter_of(shared, stream)
    with fed(tmp_path, feed) as client:
        slow = client.consumer("feed", "slow", max_in_flight=10)
        slowly = drain(slow, 10)
        fast = [client.consumer("feed", f"fast {i}") for i in range(9)]
        threads = [threading.Thread(target=drain, args=(one, n)) for one in fast]
        for thread in threads:
            thread.start()
        slowly += drain(slow, n - len(slowly))
        for thread in threads:
            thread.join(60.0)
        assert len(slowly) == n
        assert {one.info()["lag"] for one in fast} == {0}
        assert stored < feed.counted().bytes < 1.25 * stored, "each byte once, not ten times"


def test_messages_with_headers_that_are_too_long_are_left_out(
    shared: NatsServer, stream: str, tmp_path: Path
) -> None:
    """The server takes 65,535 bytes of headers; with the subject beside them there are more."""
    for payload, n in ((b"1", 10), (b"2", 65_510), (b"3", 65_000), (b"4", 65_511)):
        shared.fill(f"{stream}.long", [payload], {"h": "v" * n})
    feed = adapter_of(shared, stream, key_header="Key", fetch_bytes=65_536)
    with fed(tmp_path, feed) as client:
        with client.consumer("feed", "reader") as consumer:
            assert drain(consumer, 2) == [b"1", b"3"]
            wait_until(lambda: consumer.info()["lag"] == 0, 20.0, "the last one is passed")
            shared.fill(stream, [b"5"])
            assert drain(consumer, 1) == [b"5"]
        events = [e for e in client.events(0.1) if isinstance(e, RecordsLeftOut)]
        assert [(e.topic, e.queue, e.first, e.end) for e in events] == [
            ("feed", 0, 2, 3),
            ("feed", 0, 4, 5),
        ]
        for event in events:
            assert event.bytes > 65_535
            assert re.fullmatch(r"headers of 655\d\d bytes: at most 65535", event.reason)
        assert not [e for e in client.events(0.0) if isinstance(e, RecordsGone | QueueUnreadable)]


def test_messages_that_the_stream_deleted_are_told_and_passed(
    shared: NatsServer, stream: str, tmp_path: Path
) -> None:
    shared.fill(stream, [b"%d" % i for i in range(1, 101)])
    with fed(tmp_path, adapter_of(shared, stream)) as client:
        client.subscriptions.create("feed", "reader")
        shared.do(lambda _, js: js.purge_stream(stream, seq=61))
        shared.delete(stream, [70, 71, 100])
        consumer = client.consumer("feed", "reader")
        kept = [i for i in range(61, 100) if i not in (70, 71)]
        assert drain(consumer, len(kept)) == [b"%d" % i for i in kept]
        gone = next(e for e in client.events(5.0) if isinstance(e, RecordsGone))
        assert (gone.topic, gone.first, gone.end) == ("feed", 1, 61)
        wait_until(lambda: consumer.info()["lag"] == 0, 20.0, "the hole at the end to be passed")


def test_a_hole_at_the_end_is_looked_for_once(shared: NatsServer, stream: str) -> None:
    shared.fill(stream, [b"%d" % i for i in range(1, 11)])
    shared.delete(stream, [8, 9, 10])
    feed = adapter_of(shared, stream)
    receiver, buffer = feed.receiver(0), np.zeros(1 << 16, dtype=np.uint8)
    assert receiver.receive(1, buffer, 10.0).next_token == 8
    assert receiver.receive(8, buffer, 10.0)[:2] == (0, 11)
    consumers = shared.do(lambda _, js: js.stream_info(stream)).state.consumer_count
    for token in (8, 9, 10):
        assert receiver.receive(token, buffer, 0.0)[:2] == (0, 11), "no time for a look is needed"
    assert shared.do(lambda _, js: js.stream_info(stream)).state.consumer_count == consumers
    shared.fill(stream, [b"behind"])
    assert receiver.receive(8, buffer, 0.0)[:2] == (0, 11)
    assert [one for one, _ in read_all(receiver, 11)] == [11]


def test_retention_that_passes_a_reader_in_the_middle_is_told(
    shared: NatsServer, stream: str
) -> None:
    shared.fill(stream, [b"%d" % i + bytes(2000) for i in range(1, 31)])
    receiver = adapter_of(shared, stream, fetch_bytes=16_384).receiver(0)
    buffer = np.zeros(1 << 16, dtype=np.uint8)
    token = receiver.receive(1, buffer, 10.0).next_token
    assert 1 < token < 12
    shared.do(lambda _, js: js.purge_stream(stream, seq=26))
    problem, found = "", list[int]()
    while not problem:
        try:
            got = receiver.receive(token, buffer, 10.0)
        except NotFound as gone:
            problem = str(gone)
        else:
            found += [one for one, _ in unpack(buffer[: got.bytes])]
            token = got.next_token
    assert problem.endswith(f"sequence {token} is deleted: the oldest is 26")
    assert found == list(range(token - len(found), token)), "what had been sent is delivered"
    assert receiver.earliest() == 26
    assert [one for one, _ in read_all(receiver, 26)] == list(range(26, 31))


def test_a_quiet_subject_of_a_busy_stream_is_not_behind(
    shared: NatsServer, stream: str, tmp_path: Path
) -> None:
    shared.fill(f"{stream}.quiet", [b"first"])
    feed = adapter_of(shared, stream, subjects=f"{stream}.quiet,{stream}.busy")
    with fed(tmp_path, feed) as client:
        consumer = client.consumer("feed", "reader")
        assert take(consumer, 1) == [b"first"]
        shared.fill(f"{stream}.busy", [b"x"] * 500)
        assert drain(consumer, 500) == [b"x"] * 500
        wait_until(lambda: consumer.info()["lag"] == 0, 20.0, "the quiet queue to pass the hole")
        positions = {one["queue"]: one["position"] for one in consumer.info()["cursors"]}
        assert positions == {0: 502, 1: 502}
        shared.do(lambda _, js: js.purge_stream(stream, seq=400))
        shared.fill(f"{stream}.quiet", [b"second"])
        assert drain(consumer, 1) == [b"second"]
        assert not [e for e in client.events(0.1) if isinstance(e, RecordsGone)]


def test_a_subscription_seeks_by_time(shared: NatsServer, stream: str, tmp_path: Path) -> None:
    shared.fill(stream, [b"old"] * 20)
    middle = time.time_ns()
    shared.fill(stream, [b"new"] * 20)
    with fed(tmp_path, adapter_of(shared, stream)) as client:
        consumer = client.consumer("feed", "reader")
        assert drain(consumer, 40) == [b"old"] * 20 + [b"new"] * 20
        consumer.close()
        client.subscriptions.seek("feed", "reader", Time(middle))
        consumer = client.consumer("feed", "reader")
        assert drain(consumer, 20) == [b"new"] * 20


def test_a_server_is_killed_again_and_again_and_each_record_comes_once(tmp_path: Path) -> None:
    with nats_server() as nats:
        nats.create("S")
        feed = adapter_of(nats, "S", fetch_bytes=16_384)
        with fed(tmp_path, feed) as client, client.consumer("feed", "reader") as consumer:
            found, total = list[bytes](), 0
            for _ in range(3):
                nats.fill("S.k", [b"%d " % i + bytes(300) for i in range(total, total + 300)])
                total += 300
                found += drain(consumer, 100)
                nats.kill()
                nats.start()
                found += drain(consumer, total - len(found))
            assert [int(one.split()[0]) for one in found] == list(range(total))
            assert feed.counted().errors > 0
            assert not [e for e in client.events(0.1) if isinstance(e, RecordsGone)]


def test_a_consumer_that_the_server_deleted_is_made_again(shared: NatsServer, stream: str) -> None:
    receiver: Any = adapter_of(shared, stream).receiver(0)
    shared.fill(stream, [b"1"])
    buffer = np.zeros(1 << 12, dtype=np.uint8)
    assert receiver.receive(1, buffer, 10.0).next_token == 2
    (cursor,) = receiver._cursors
    shared.do(lambda _, js: js.delete_consumer(stream, cursor._consumer))
    shared.fill(stream, [b"2"])
    wait_until(lambda: receiver.receive(2, buffer, 1.0).next_token == 3, 20.0, "the next record")
    assert receiver._cursors != [cursor]
    receiver.close()


def test_consumers_are_deleted_with_their_receivers(shared: NatsServer, stream: str) -> None:
    shared.fill(stream, [b"%d" % i for i in range(9)])
    receiver = adapter_of(shared, stream).receiver(0)
    assert len(read_all(receiver, 1)) == 9
    for token in (3, 7, 1, 5):
        receiver.receive(token, np.zeros(256, dtype=np.uint8), 5.0)

    def consumers() -> int:
        return len(shared.do(lambda _, js: js.consumers_info(stream)))

    assert 1 <= consumers() <= receivers.CURSORS_MAX
    receiver.close()
    wait_until(lambda: consumers() == 0, 10.0, "the end of the consumers")


def test_a_stream_that_was_made_again_is_not_read_on(shared: NatsServer, stream: str) -> None:
    shared.fill(stream, [b"%d" % i for i in range(20)])
    feed = adapter_of(shared, stream)
    receiver = feed.receiver(0)
    assert len(read_all(receiver, 1)) == 20
    shared.do(lambda _, js: js.delete_stream(stream))
    shared.create(stream)
    shared.fill(stream, [b"other"] * 30)
    with pytest.raises(StorageError, match=r"deleted, and made again.*seek the subscriptions"):
        receiver.latest()
    feed.close()


def test_a_server_that_lost_messages_is_named(
    shared: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receivers, "PATIENCE_S", 0.0)
    shared.fill(stream, [b"1"])
    receiver = adapter_of(shared, stream).receiver(0)
    with pytest.raises(ConnectionLost, match=r"sequence 9 is behind the end, 2: .*seek"):
        receiver.receive(9, np.zeros(256, dtype=np.uint8), 10.0)


# --- logins ---------------------------------------------------------------------------------------


def test_logins_in_the_clear_and_by_tls(tmp_path: Path) -> None:
    raw = bytes(range(32))
    certificate, key = self_signed(tmp_path)
    files = {name: tmp_path / name for name in ("secret", "token", "seed", "wrong")}
    files["secret"].write_text("shop secret\n")
    files["token"].write_text("t0ken")
    files["seed"].write_text(seed_of(raw))
    files["wrong"].write_text(seed_of(bytes(32)))
    public = login(JetStreamSource(servers="h:1", streams="S", nkey_file=str(files["seed"])), "")
    users = 'authorization { users: [ {user: shop, password: "shop secret"}, {nkey: KEY} ] }\n'
    users = users.replace("KEY", public["nkey"])
    tls = f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}\n'
    context = ssl.create_default_context(cafile=certificate)
    plain = {"user": "shop", "password": "shop secret"}
    for settings, arguments in ((users, plain), (users + tls, {**plain, "tls": context})):
        with nats_server(settings, **arguments) as nats:
            nats.create("S")
            nats.fill("S", [b"hello"])
            more: dict[str, Any] = {"tls": True, "ca": certificate} if settings != users else {}
            password = {"user": "shop", "secret_file": str(files["secret"])}
            for i, given in enumerate((password, {"nkey_file": str(files["seed"])})):
                with fed(
                    tmp_path / f"{bool(more)}{i}", adapter_of(nats, "S", **given, **more)
                ) as c:
                    assert take(c.consumer("feed", "reader"), 1) == [b"hello"]
            with pytest.raises(AuthError, match=r"Authorization Violation: user shop") as caught:
                adapter_of(nats, "S", **password | {"secret_file": str(files["token"])}, **more)
            assert "t0ken" not in str(caught.value)
            with pytest.raises(AuthError, match=r"Authorization Violation: nkey_file"):
                adapter_of(nats, "S", nkey_file=str(files["wrong"]), **more)
            with pytest.raises(AuthError, match=r"no login: set user"):
                adapter_of(nats, "S", **more)
            if more:
                with pytest.raises(ConfigError, match=r"needs TLS: set tls and ca"):
                    adapter_of(nats, "S", **password)
                with pytest.raises(AuthError, match=r"certificate.*: set ca"):
                    adapter_of(nats, "S", **password, tls=True)
    with nats_server("authorization { token: t0ken }\n", token="t0ken") as nats:
        nats.create("S")
        adapter_of(nats, "S", token_file=str(files["token"])).close()


def test_rights_that_are_missing_are_named(tmp_path: Path) -> None:
    settings = """
authorization { users: [
  {user: admin, password: admin}
  {user: reader, password: reader, permissions: {
    publish: ["$JS.API.STREAM.INFO.S"], subscribe: ["_INBOX.>"] } }
] }
"""
    (tmp_path / "secret").write_text("reader")
    with nats_server(settings, user="admin", password="admin") as nats:
        nats.create("S")
        nats.fill("S", [b"1"])
        feed = adapter_of(nats, "S", user="reader", secret_file=str(tmp_path / "secret"))
        with pytest.raises(AuthError, match=r"Permissions Violation.*CONSUMER.CREATE"):
            feed.receiver(0).receive(1, np.zeros(256, dtype=np.uint8), 5.0)


# --- long -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_server_stops_dies_and_returns_under_load_and_each_record_comes_once(
    tmp_path: Path,
) -> None:
    """Publishers write on meanwhile; what JetStream has acknowledged comes once, in order."""
    with nats_server() as nats:
        nats.create("S")
        feed = adapter_of(nats, "S", subjects="S.0,S.1", fetch_bytes=65_536)
        acked: dict[int, list[int]] = {0: [], 1: []}
        found: dict[int, list[int]] = {0: [], 1: []}
        chance = random.Random(3)
        with fed(tmp_path, feed) as client, client.consumer("feed", "reader") as consumer:
            for turn in range(12):
                queue = turn % 2
                first = len(acked[queue])
                numbers = list(range(first, first + 2000))
                payloads = [json.dumps([queue, i]).encode() + bytes(200) for i in numbers]
                nats.fill(f"S.{queue}", payloads)
                acked[queue] += numbers
                wanted = chance.randrange(1, 2000)
                _take(consumer, found, wanted)
                if turn % 3 == 0:
                    nats.pause()
                    with pytest.raises(subprocess.TimeoutExpired):
                        nats._process.wait(1.0)
                    nats.resume()
                else:
                    nats.kill()
                    nats.start()
            left = sum(map(len, acked.values())) - sum(map(len, found.values()))
            _take(consumer, found, left)
            assert found == acked
            assert not [e for e in client.events(0.1) if isinstance(e, RecordsGone)]


@pytest.mark.long
def test_leaders_of_a_cluster_die_and_each_record_comes_once(tmp_path: Path) -> None:
    with nats_cluster() as servers:
        alive = dict(enumerate(servers))

        def patiently(call: Any) -> Any:
            """The result of a call of any server that is alive, once the cluster has a leader."""
            found: list[Any] = []

            def tried() -> bool:
                for one in alive.values():
                    with contextlib.suppress(Exception):
                        found.append(call(one))
                        return True
                return False

            wait_until(tried, 60.0, "a leader")
            return found[0]

        patiently(lambda one: one.create("S", num_replicas=3))
        feed = JetStreamAdapter(
            jetstream_source({"servers": ",".join(one.address for one in servers), "streams": "S"})
        )
        found, total = list[bytes](), 0
        with fed(tmp_path, feed) as client, client.consumer("feed", "reader") as consumer:
            for _ in range(4):
                _publish(patiently, range(total, total + 200))
                total += 200
                found += drain(consumer, 50)
                info = patiently(lambda one: one.do(lambda _, js: js.stream_info("S")))
                number = int(info.cluster.leader[1:])
                alive.pop(number).kill()
                found += drain(consumer, total - len(found))
                servers[number].start()
                alive[number] = servers[number]
            assert [int(one) for one in found] == list(range(total))
            assert not [e for e in client.events(0.1) if isinstance(e, RecordsGone)]


def _publish(patiently: Any, numbers: range) -> None:
    """Messages with ids: each is stored once, however often it is sent."""

    async def publish(_: Any, js: Any) -> None:
        for i in numbers:
            await js.publish("S.k", b"%d" % i, headers={"Nats-Msg-Id": str(i)})

    patiently(lambda one: one.do(publish))


def _take(consumer: Any, found: dict[int, list[int]], n: int) -> None:
    for payload in drain(consumer, n):
        queue, number = json.loads(payload.rstrip(b"\0"))
        found[queue].append(number)
