"""Records whose headers and key do not fit into a message of NATS: they are stored byte by byte."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import Eventually
from tests.support.nats_server import NatsServer, missing, nats_server
from tests.unit.test_jetstream_storage import check_all, frames_of, rebuilt
from tests.unit.test_kafka_takeover import Store, engine, keeps

from tidecast.config.sources.jetstream import jetstream_source
from tidecast.config.sources.storage import StreamStorage, storage_source
from tidecast.errors import PayloadTooLarge, StorageError
from tidecast.jetstream import frame_kernels as frames
from tidecast.jetstream.adapter import JetStreamAdapter
from tidecast.jetstream.cursor import Scanner
from tidecast.jetstream.storing.channel import Channel
from tidecast.jetstream.storing.fencing import ensure_stream, fence, record_subject, streams_of
from tidecast.jetstream.storing.message_kernels import HEADER_BYTES_MAX
from tidecast.jetstream.storing.messages import Encoder, RebuildScanner
from tidecast.jetstream.storing.reading import LogReader
from tidecast.jetstream.streams import Streams
from tidecast.queues.adapter import Record, pack, unpack

FIELD_MAX = 65_535
MESSAGE_MAX = 1 << 20
SERVER_HEADERS_MAX = 65_535
LINES, MAP, TAIL = "lines", "map", "tail"


def record(headers_n: int, key: bytes | None = None, letter: str = "v") -> Record:
    """One whose headers have so many bytes, as they are in the log."""
    assert headers_n == 0 or headers_n > 300
    if headers_n == 0:
        return Record(b"payload", key, None)
    overhead = 1 + 2 + (2 if headers_n < 256 + 5 else 3)
    return Record(b"payload", key, {"h": letter * (headers_n - overhead)})


def encoded(one: Record, message_max: int = MESSAGE_MAX) -> bytes:
    chunk = Encoder("S.record.1", "in").encode(pack([one], 5), 5, 7, message_max)
    assert chunk is not None
    assert chunk.records == 1
    return bytes(chunk.data)


def headers_of(message: bytes) -> bytes:
    line, _, rest = message.partition(b"\r\n")
    return rest[: int(line.split(b" ")[-2])]


def form(one: Record, message_max: int = MESSAGE_MAX) -> str:
    block = headers_of(encoded(one, message_max))
    if b"\r\ntidecast-tail: " in block:
        return TAIL
    return LINES if b"\r\nh: " in block else MAP


def scanned(data: Any, key_header: str = "tidecast-key") -> tuple[Scanner, int]:
    """As an adapter reads a stream that a topic is stored in."""
    scanner = Scanner(key_header, 1 << 24, stored=True)
    return scanner, scanner.scan(data, 0, data.size, 0, 1)


def check(one: Record, message_max: int = MESSAGE_MAX) -> None:
    message = encoded(one, message_max)
    block = headers_of(message)
    assert len(block) <= HEADER_BYTES_MAX < SERVER_HEADERS_MAX
    data = frames_of(message)
    ((token, found),) = unpack(rebuilt(data))
    assert (token, found) == (5, one)
    scanner, why = scanned(data)
    assert why == frames.MORE
    ((_, seen),) = unpack(scanner.run(data, 0))
    assert seen.payload == one.payload
    if b"\r\ntidecast-tail: " in block:
        assert seen.key == one.key
        assert one.headers is None or seen.headers == one.headers
    elif b"tidecast-key-hex" not in block:
        assert seen.key == one.key


def boundaries(letter: str, key: bytes | None) -> list[int]:
    """Bytes of headers with which the form changes."""
    found = list[int]()
    before = form(record(301, key, letter))
    low = 301
    while low < FIELD_MAX:
        high = FIELD_MAX
        if form(record(high, key, letter)) == before:
            break
        while high - low > 1:
            middle = (low + high) // 2
            if form(record(middle, key, letter)) == before:
                low = middle
            else:
                high = middle
        found.append(high)
        low, before = high, form(record(high, key, letter))
    return found


KEYS = (None, b"", b"key", b"k" * 20_000, b"\x00" * 20_000)


@pytest.mark.parametrize("key", KEYS, ids=["none", "empty", "short", "long", "binary"])
@pytest.mark.parametrize("letter", ["v", "\x01"], ids=["text", "binary"])
def test_each_size_around_the_change_of_a_form_is_read_again(
    key: bytes | None, letter: str
) -> None:
    changes = boundaries(letter, key)
    assert changes, "large headers need another form"
    for at in changes:
        for n in range(at - 4, at + 5):
            check(record(n, key, letter))
    check(record(FIELD_MAX, key, letter))


def test_the_first_form_that_fits_is_taken() -> None:
    assert boundaries("v", b"key") == [26_284, 45_995]
    assert [form(record(n, b"key")) for n in (26_283, 26_284, 45_994, 45_995, FIELD_MAX)] == [
        LINES,
        MAP,
        MAP,
        TAIL,
        TAIL,
    ]
    assert boundaries("\x01", b"key") == [45_995]
    whole = encoded(record(FIELD_MAX, b"k" * FIELD_MAX))
    assert b"\r\ntidecast-tail: 65535 65535\r\n\r\npayloadkkk" in whole
    assert b"\r\ntidecast-tail: - 65535\r\n" in encoded(record(FIELD_MAX))
    assert b"\r\ntidecast-tail: 65535 -\r\n" in encoded(record(0, b"k" * FIELD_MAX))


def test_a_message_that_is_too_large_for_the_server_takes_a_smaller_form() -> None:
    one = record(20_000, b"key")
    sizes = dict[str, int]()
    for limit in range(30_000, 50_000, 50):
        with contextlib.suppress(PayloadTooLarge):
            check(one, limit)
            sizes.setdefault(form(one, limit), limit)
    assert list(sizes) == [MAP, LINES]
    with pytest.raises(PayloadTooLarge, match=r"record 5: a message of 20\d\d\d bytes"):
        encoded(one, 20_000)
    check(one, 20_300)
    assert form(one, 20_300) == TAIL


_BYTES = st.integers(0, FIELD_MAX)
_ANY = st.sampled_from([b"v", b"\x00", b" ", b"\xff", b":"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(_BYTES, _ANY), max_size=4), st.none() | st.tuples(_BYTES, _ANY), _BYTES)
def test_any_key_and_headers_that_the_log_holds_are_read_again(
    parts: list[tuple[int, bytes]], key: tuple[int, bytes] | None, payload_n: int
) -> None:
    left, headers = FIELD_MAX - 32, dict[str, Any]()
    for i, (n, letter) in enumerate(parts):
        headers[f"n{i}"] = letter * min(n, left)
        left -= min(n, left)
    made = None if key is None else key[1] * key[0]
    check(Record(b"p" * payload_n, made, headers or None))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"-",
        b"3",
        b"3 ",
        b" 9",
        b"3 -",
        b"- 9",
        b"3 9 1",
        b"3 65536",
        b"65536 9",
        b"-1 9",
        b"3 99999999999999999999",
        b"12 12",
        b"a b",
        b"0x3 9",
    ],
)
def test_a_tail_that_does_not_add_up_is_refused_or_left_out(value: bytes) -> None:
    message = encoded(record(50_000, b"key"))
    assert message.count(b"tidecast-tail: 3 50000") == 1
    block = headers_of(message)
    line, _, rest = message.partition(b"\r\n")
    short = block.replace(b"3 50000", value)
    body = short + b"payload" + b"key" + b"headers"
    head = b" ".join([*line.split(b" ")[:-2], b"%d" % len(short), b"%d" % len(body)])
    data = frames_of(head + b"\r\n" + body + b"\r\n")
    assert rest
    with pytest.raises(StorageError, match="is damaged"):
        rebuilt(data)
    scanner, why = scanned(data)
    if value in (b"3 -", b"- 9"):
        assert why == frames.MORE  # an adapter does not know that the record has both
        return
    assert why == frames.LEFT_OUT
    about = scanner.left_out()
    assert (about.first, about.end, about.bytes) == (1, 2, data.size)
    assert about.reason == "its header tidecast-tail is damaged, or its payload is shorter"


@pytest.mark.parametrize("seed", range(4))
def test_damaged_messages_with_a_tail_are_refused_or_left_out(seed: int) -> None:
    chance = random.Random(seed)
    many = Encoder("S.record.1", "in").encode(
        pack([record(50_000, b"key"), record(0, b"k" * 40_000), record(400)]), 0, 5, MESSAGE_MAX
    )
    assert many is not None
    whole = frames_of(bytes(many.data))
    places = [
        at + i
        for at in range(whole.size - 40)
        if bytes(whole[at : at + 6]) == b"-tail:"
        for i in range(40)
    ]
    for _ in range(300):
        data = whole.copy()
        for _ in range(chance.randint(1, 3)):
            at = chance.choice(places) if chance.random() < 0.7 else chance.randrange(data.size)
            data[at] = chance.choice(b"0123456789- \r\n:") if chance.random() < 0.8 else 0xFF
        scanner, _ = scanned(data)
        if scanner.words[frames.W_RECORDS]:
            assert sum(check_all(scanner.run(data, 0)))
        rebuilding = RebuildScanner("s", 1 << 24, 7)
        rebuilding.scan(data, 0, data.size, 0, 1)
        with contextlib.suppress(StorageError):
            run = rebuilding.run(data, 0)
            assert run.size == sum(check_all(run))


# --- a real server --------------------------------------------------------------------------------

needs_nats = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    with nats_server() as made:
        yield made


def at_boundaries() -> list[Record]:
    found = list[Record]()
    for key in (b"key", b"\x00" * 20_000):
        for at in boundaries("v", key):
            found += [record(n, key) for n in (at - 1, at, at + 1)]
    found += [record(FIELD_MAX, b"k" * FIELD_MAX), record(0, b"k" * FIELD_MAX), record(FIELD_MAX)]
    return found


@needs_nats
def test_a_server_takes_all_forms_and_gives_them_back(nats: NatsServer) -> None:
    found = storage_source(f"jetstream://{nats.address}/ORDERS")
    assert isinstance(found, StreamStorage)
    streams = Streams(streams_of(found, 1), check=False)
    ensure_stream(streams, 0, found.settings, is_state=False, make=True)
    first = fence(streams, 0, "one")
    channel = Channel(streams, "one")
    rows = at_boundaries()
    run, token, last = pack(rows), 0, first.last
    encoder = Encoder(record_subject("ORDERS_0", 1), channel.reply)
    while (chunk := encoder.encode(run, token, last, MESSAGE_MAX)) is not None:
        channel.ask_all(chunk.data, last + 1, last + chunk.records)
        token, last = chunk.behind, last + chunk.records
    channel.close()
    source = jetstream_source({"servers": nats.address, "streams": "ORDERS_0"})
    reader = LogReader(source, "ORDERS_0", 1, begun=lambda _: None, check_open=lambda: None)
    again = [
        one for part, _ in reader.read(1, -1, fence(streams, 0, "two")) for one in unpack(part)
    ]
    reader.close()
    assert again == list(enumerate(rows))
    adapter = JetStreamAdapter.of(f"jetstream://{nats.address}/ORDERS_0")
    receiver, buffer, seen = adapter.receiver(0), np.empty(4 << 20, dtype=np.uint8), list[Record]()
    at, end = receiver.earliest(), last
    while at <= end:
        got = receiver.receive(at, buffer, 20.0)
        assert got.left_out is None
        seen += [one for _, one in unpack(buffer[: got.bytes])]
        at = got.next_token
    adapter.close()
    streams.close()
    assert [one.payload for one in seen] == [one.payload for one in rows]
    in_tail = [form(one) == TAIL for one in rows]
    assert 3 < sum(in_tail) < len(rows)
    for one, other, is_tail in zip(rows, seen, in_tail, strict=True):
        if is_tail:
            assert other.key == one.key
            assert one.headers is None or dict(other.headers or {}) == one.headers


@needs_nats
def test_the_next_owner_makes_records_with_large_headers_again(
    tmp_path: Path, nats: NatsServer, eventually: Eventually
) -> None:
    """As a mirror appends them: a publisher's key and headers fit into a packet."""
    store, at = Store(), f"jetstream://{nats.address}/ORDERS"
    rows = at_boundaries()
    run = pack(rows, base_seq=1).tobytes()

    def log_of(client: Any) -> Any:
        return client.link.node.durable.topics["orders"].logs[0]

    with engine(tmp_path, "a", at, store) as client:
        eventually(lambda: keeps(client), "a keeps it", timeout_s=30.0)
        perform = client.link.node.consumers.perform  # type: ignore[attr-defined]
        given = {"topic": "orders", "mirror": "m", "source": 0, "queue": 0, "after": 0}
        assert perform("append_run", {**given, "run": run})["appended"]
        log = log_of(client)
        eventually(lambda: log.stored_token == len(rows), "all is stored", timeout_s=60.0)
    with engine(tmp_path, "b", at, store) as client:
        eventually(lambda: keeps(client), "b keeps it", timeout_s=30.0)
        log, buffer = log_of(client), np.empty(4 << 20, dtype=np.uint8)
        eventually(lambda: log.stored_token == len(rows), "b knows it", timeout_s=60.0)
        reader, found = log.reader(), list[Any]()
        token = log.earliest_token
        while n := reader.read_block(token, buffer):
            found += unpack(buffer[:n].copy())
            token = reader.next_token
        reader.close()
    assert found == list(enumerate(rows))
