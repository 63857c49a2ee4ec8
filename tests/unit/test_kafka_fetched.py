"""Answers of brokers, sound and not: what is read from them, and what the error says."""

from __future__ import annotations

import base64
import gzip
import random
import re
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kafka import batch, batch_of, record, varint

from tidecast.config.sources.kafka import KafkaSource, kafka_source, kafka_source_of
from tidecast.connections.tcp import Address
from tidecast.errors import AuthError, ConfigError, ConnectionLost, CorruptLog, StorageError
from tidecast.kafka.brokers import logins
from tidecast.kafka.brokers.connection import Link
from tidecast.kafka.brokers.fetched import Decoder, Fetched
from tidecast.queues.adapter import LeftOut, Record, unpack


def fetched(raw: bytes, token: int = 0, aborted: Any = ()) -> Fetched:
    return Fetched("orders/3 at broker:9092", token, memoryview(raw), aborted, 1 << 40)


def read(
    answer: Fetched, token: int, room: int = 1 << 16, left_out: list[LeftOut] | None = None
) -> list[tuple[int, Record]]:
    """All that an answer holds from a token on, by receives of ``room`` bytes.

    ``left_out`` gets what is left out.
    """
    found: list[tuple[int, Record]] = []
    decoder, buffer = Decoder(), np.zeros(room, dtype=np.uint8)
    while answer.covers(token):
        got = answer.receive(token, buffer, decoder)
        if got.need:
            buffer = np.zeros(got.need, dtype=np.uint8)
            continue
        assert got.next_token > token
        if got.left_out is not None:
            assert left_out is not None
            assert (got.bytes, got.left_out.end) == (0, got.next_token)
            left_out.append(got.left_out)
        found += [one for one in unpack(buffer[: got.bytes]) if one[0] >= token]
        token = got.next_token
    return found


def sparse(base: int, deltas: list[int], last: int | None = None, **header: Any) -> bytes:
    """A batch with records at these offsets alone, as compaction leaves it."""
    raw = batch(
        b"".join(record(d, b"k", b"%d" % (base + d)) for d in deltas),
        len(deltas),
        offset=base,
        **header,
    )
    body = bytearray(raw)
    struct.pack_into(">i", body, 23, deltas[-1] if last is None else last)
    return sealed(body)


def sealed(body: bytearray) -> bytes:
    from tidecast.kafka import record_kernels

    data: Any = np.frombuffer(bytes(body), dtype=np.uint8)
    struct.pack_into(">I", body, 17, int(record_kernels.checksum(data, 21, data.size - 21)))
    return bytes(body)


def test_compacted_batches_are_read_with_their_offsets() -> None:
    raw = sparse(10, [0, 1, 4, 9], last=12) + sparse(30, [2, 3], last=3)
    answer = fetched(raw, token=5)
    assert [(t, r.payload) for t, r in read(answer, 5)] == [
        (t, b"%d" % t) for t in (10, 11, 14, 19, 32, 33)
    ]
    for room in (100, 150, 1 << 10):
        assert [t for t, _ in read(answer, 15, room)] == [19, 32, 33]
    assert answer.receive(20, np.zeros(1 << 10, dtype=np.uint8), Decoder()).next_token == 34


def odd(i: int, *, key: bytes = b"k", headers: Any = (), time_ms: int = 0) -> bytes:
    """A record of a batch, the ``i``-th: names of headers are bytes, its time may be any."""
    body = b"\0" + varint(time_ms) + varint(i) + varint(len(key)) + key + varint(1) + b"v"
    body += varint(len(headers))
    for name, value in headers:
        body += varint(len(name)) + name + varint(len(value)) + value
    return varint(len(body)) + body


LEFT_OUT: dict[str, tuple[dict[str, Any], str]] = {
    "headers": (
        {"headers": [(b"h", bytes(70_000))]},
        "headers of 70008 bytes: at most 65535",
    ),
    "many headers": (
        {"headers": [(b"h%d" % i, b"") for i in range(20_000)]},
        r"headers of \d+ bytes: at most 65535",
    ),
    "key": ({"key": bytes(65_536)}, "a key of 65536 bytes: at most 65535"),
    "time": ({"time_ms": 1 << 43}, "its time is out of range: allowed are 0 to"),
    "name": ({"headers": [(b"\xff", b"")]}, "the name of a header is not UTF-8"),
}


@pytest.mark.parametrize("kind", LEFT_OUT)
@pytest.mark.parametrize("places", ["0", "1", "3", "01", "13", "0123"])
def test_records_that_a_run_cannot_hold_are_left_out_and_named(kind: str, places: str) -> None:
    given, says = LEFT_OUT[kind]
    gone = [int(place) for place in places]
    records = [
        odd(i, **given) if i in gone else record(i, b"k", b"%d" % (10 + i)) for i in range(4)
    ]
    raw = batch(b"".join(records), 4, offset=10) + batch_of(b"14", offset=14)
    for room in (100, 1 << 16):
        left_out: list[LeftOut] = []
        found = read(fetched(raw, token=10), 10, room, left_out)
        assert [(t, r.payload) for t, r in found] == [
            (10 + i, b"%d" % (10 + i)) for i in range(5) if i not in gone
        ]
        assert [(one.first, one.end, one.records) for one in left_out] == [
            (10 + i, 11 + i, 1) for i in gone
        ]
        for i, one in zip(gone, left_out, strict=True):
            assert one.bytes == len(records[i])
            assert re.match(says, one.reason), one.reason
    left_out.clear()
    behind = 11 + gone[-1]
    assert [t for t, _ in read(fetched(raw, token=10), behind, 100, left_out)] == [
        t for t in range(10, 15) if t >= behind
    ]
    assert not left_out, "a reader behind them meets none"


def test_the_largest_key_and_headers_are_read() -> None:
    """The map of headers has six bytes more than the value here."""
    large = odd(0, key=bytes(65_535), headers=[(b"h", bytes(65_529))])
    assert [t for t, _ in read(fetched(batch(large, 1, offset=3)), 3, 1 << 20)] == [3]


def test_a_batch_with_an_impossible_time_is_left_out_whole() -> None:
    left_out: list[LeftOut] = []
    raw = batch_of(b"a", b"b", offset=5, time_ms=1 << 50) + batch_of(b"c", offset=7)
    assert [t for t, _ in read(fetched(raw, token=5), 5, left_out=left_out)] == [7]
    (one,) = left_out
    assert one[:3] == (5, 7, 2)
    assert one.reason.startswith(f"a time of {1 << 50} ms: allowed are 0 to")
    left_out.clear()
    assert [t for t, _ in read(fetched(raw, token=5), 6, left_out=left_out)] == [7]
    assert [about.first for about in left_out] == [5]


def test_a_batch_that_decompresses_to_too_much_is_left_out_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidecast.kafka.brokers.fetched.PLAIN_BYTES_MAX", 1000)
    body = record(0, None, bytes(2000))
    head = batch(body, 1, offset=4, attributes=1)[:61]
    large = bytearray(head + gzip.compress(body))
    struct.pack_into(">i", large, 8, len(large) - 12)
    raw = sealed(large) + batch_of(b"c", offset=5)
    left_out: list[LeftOut] = []
    assert [t for t, _ in read(fetched(raw, token=4), 4, left_out=left_out)] == [5]
    (one,) = left_out
    assert one[:4] == (4, 5, 1, len(large))
    assert "1000" in one.reason


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.lists(st.integers(0, 20), min_size=1, unique=True)),
        min_size=1,
        max_size=8,
    ),
    st.integers(80, 4000),
    st.integers(0, 300),
)
@settings(max_examples=60)
def test_any_holes_in_and_between_batches(
    batches: list[tuple[int, list[int]]], room: int, begin: int
) -> None:
    raw, offset, expected = b"", 0, list[int]()
    for gap, deltas in batches:
        base = offset + gap
        raw += sparse(base, sorted(deltas), last=21)
        expected += [base + d for d in sorted(deltas)]
        offset = base + 22
    token = min(begin, offset - 1)
    raw = b"".join([raw])
    whole = fetched(raw)
    assert [t for t, _ in read(whole, token, room)] == [t for t in expected if t >= token]


def marker(base: int, producer: int, kind: int) -> bytes:
    key = struct.pack(">hh", 0, kind)
    return batch(record(0, key, b"\0" * 6), 1, offset=base, producer=producer, attributes=0x30)


def test_aborted_transactions_and_markers_are_left_out() -> None:
    def of(producer: int, base: int, *values: bytes) -> bytes:
        return batch_of(*values, offset=base, producer=producer, attributes=0x10)

    raw = (
        of(1, 0, b"lost", b"lost")
        + of(2, 2, b"kept")
        + batch_of(b"plain", offset=3)
        + marker(4, 1, 0)
        + of(1, 5, b"kept too")
        + marker(6, 2, 1)
        + marker(7, 1, 1)
    )
    answer = fetched(raw, aborted=[{"producer_id": 1, "first_offset": 0}])
    assert [(t, r.payload) for t, r in read(answer, 0)] == [
        (2, b"kept"),
        (3, b"plain"),
        (5, b"kept too"),
    ]
    got = answer.receive(6, np.zeros(1 << 10, dtype=np.uint8), Decoder())
    assert (got.bytes, got.next_token) == (0, 8), "markers at the end are a hole"


def spoiled(change: Callable[[bytearray], None]) -> bytes:
    raw = bytearray(batch_of(b"one", b"two", offset=0) + batch_of(b"three", offset=2))
    change(raw)
    return bytes(raw)


def put(form: str, at: int, value: int) -> Callable[[bytearray], None]:
    return lambda raw: struct.pack_into(form, raw, at, value)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (spoiled(put(">I", 17, 5)), r"offset 0: its checksum is .*, and it says 00000005"),
        (spoiled(put(">b", 16, 1)), r"offset 0: record format 1, and only 2"),
        (spoiled(put(">i", 8, 10)), r"offset 0: a length of 10"),
        (spoiled(put(">i", 8, 1 << 20)), r"offset 0: it is cut off: \d+ bytes came"),
        (spoiled(put(">i", 23, -5)), r"offset 0: a last offset of -5"),
        (batch_of(b"a", offset=7) + batch_of(b"b", offset=6), r"offset 6: offsets go back: 8"),
        (sparse(0, [0, 0]), r"offset 0: offsets are not contiguous"),
        (sealed(bytearray(batch(b"\x50" * 30, 3))), r"offset 0: a length does not fit"),
        (batch_of(b"a", attributes=2), r"offset 0: snappy"),
        (batch_of(b"a", attributes=7), r"offset 0: compression codec 7"),
    ],
)
def test_a_broker_that_lies_is_named_with_the_place_and_the_fix(raw: bytes, says: str) -> None:
    with pytest.raises(CorruptLog, match=rf"orders/3 at broker:9092: batch at {says}"):
        read(fetched(raw), 0)


def test_offsets_below_what_was_asked_for_go_back() -> None:
    with pytest.raises(CorruptLog, match=r"offsets go back: 50 is due.*kafka-dump-log"):
        fetched(batch_of(b"a", offset=7), token=50)


def test_no_bytes_harm() -> None:
    chance = random.Random(5)
    sound = sparse(3, [0, 2, 5]) + batch_of(b"x" * 50, b"y", offset=20) + marker(30, 1, 0)
    for _ in range(600):
        raw = bytearray(sound)
        for _ in range(chance.randint(1, 6)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        try:
            answer = fetched(bytes(raw[: chance.randint(0, len(raw))]))
            for part in answer._parts:
                if not part.is_hole:  # as if its checksum were right
                    Decoder().batch(answer, part, memoryview(sealed_part(answer, part)))
        except CorruptLog:
            pass


def sealed_part(answer: Fetched, part: Any) -> bytes:
    raw = bytearray(answer._records)
    raw[part.at : part.at + part.length] = sealed(raw[part.at : part.at + part.length])
    return bytes(raw)


# --- logins ---------------------------------------------------------------------------------------


def test_scram_is_that_of_rfc_7677() -> None:
    flow = logins.scram("user", "pencil", "sha256", lambda: "rOprNGfwEbeRWgbNEkqO")
    assert next(flow) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    last = flow.send(b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert last == b"c=biws,r=" + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    with pytest.raises(StopIteration):
        flow.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    ("challenge", "verdict", "says"),
    [
        (b"r=other,s=AAAA,i=4096", b"", "nonce"),
        (b"r=mine+,s=AAAA,i=10", b"", "10 iterations: allowed 4096"),
        (b"r=mine+,s=AAAA,i=99999999", b"", "iterations: allowed"),
        (b"r=mine+,s=!,i=4096", b"", "lacks r, s or i"),
        (b"\xff", b"", "not SCRAM"),
        (b"r=mine+,s=AAAA,i=4096", b"v=" + base64.b64encode(bytes(32)), "does not prove"),
        (b"r=mine+,s=AAAA,i=4096", b"e=invalid-proof", "invalid-proof"),
    ],
)
def test_a_broker_that_does_not_know_the_secret_is_refused(
    challenge: bytes, verdict: bytes, says: str
) -> None:
    flow = logins.scram("user", "pencil", "sha256", lambda: "mine")
    next(flow)
    with pytest.raises(AuthError, match=says):
        _ = [flow.send(answer) for answer in (challenge, verdict)]


# --- connections ----------------------------------------------------------------------------------


def server(answers: list[bytes]) -> Address:
    """A port whose one client gets these bytes, one to each request."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as client:
            for answer in answers:
                client.recv(1 << 16)
                client.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return Address("127.0.0.1", listener.getsockname()[1])


def framed(raw: bytes, length: int | None = None) -> bytes:
    return struct.pack(">i", len(raw) if length is None else length) + raw


SOURCE = KafkaSource(servers="127.0.0.1:1", topic="orders")


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            StorageError,
            r"answer of 1213486160 bytes.*listener",
        ),
        (framed(b"", -1), StorageError, r"an answer of -1 bytes"),
        (framed(struct.pack(">i", 77)), StorageError, r"it answers request 77, not 1"),
        (framed(struct.pack(">ihi", 1, 0, 1 << 30)), StorageError, r"an array of 1073741824 items"),
        (framed(struct.pack(">ih", 1, 35)), StorageError, r"ApiVersions 0 cannot be read"),
        (framed(struct.pack(">ihi", 1, 35, 0)), ConfigError, r"ApiVersions: error 35"),
        (b"", ConnectionLost, r"it closed the connection"),
    ],
)
def test_what_is_no_broker_is_named(answer: bytes, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=rf"broker 127.0.0.1:\d+: .*{says}"):
        Link(server([answer]), SOURCE, None)


def test_an_old_broker_is_named_with_the_version_that_is_needed() -> None:
    apis = struct.pack(">ihi", 1, 0, 2) + struct.pack(">hhhhhh", 18, 0, 3, 1, 0, 3)
    link = Link(server([framed(apis)]), SOURCE, None)
    with pytest.raises(ConfigError, match=r"Fetch in versions 4 to 11 is not served: Kafka 2.4"):
        link.version(1)
    link.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("kafka://h/t", r"servers: h: allowed are HOST:PORT"),
        ("kafka://h:1/", r"topic: '': "),
        ("kafka://h:1/t?nonsense=1", r"kafka.nonsense: unknown setting"),
        ("kafka://h:1/t?mechanism=GSSAPI", r"kafka.mechanism: GSSAPI: allowed"),
        ("kafka://me:pw@h:1/t", r"a login does not belong into it"),
        ("kafka://h:1/t?certificate=/a.pem", r"kafka.key: missing"),
        ("kafka://h:1/t?ca=/a.pem", r"kafka.tls: false: ca needs tls: true"),
        ("kafka://h:1/t?secret_file=/s", r"kafka.user: missing"),
        ("kafka://h:1/t?fetch_bytes=1", r"kafka.fetch_bytes: 1: allowed"),
        ("kafka://h:1/t?refresh_s=0", r"kafka.refresh_s: 0: allowed"),
    ],
)
def test_settings_that_are_wrong_are_named(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        kafka_source_of(url)


def test_a_url_has_all_settings() -> None:
    found = kafka_source_of(
        "kafka://a:1,b:2/the%20topic?user=me&tls=true&ca=/c&fetch_bytes=65536&group=g&refresh_s=5"
    )
    assert found == kafka_source(
        {
            "servers": "a:1,b:2",
            "topic": "the topic",
            "user": "me",
            "tls": True,
            "ca": "/c",
            "fetch_bytes": 65_536,
            "group": "g",
            "refresh_s": 5,
        }
    )
    assert found.addresses == [("a", 1), ("b", 2)]
