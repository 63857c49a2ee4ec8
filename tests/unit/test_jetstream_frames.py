"""Bytes of NATS servers, sound and not: what is read from them, and what the error says."""

from __future__ import annotations

import base64
import binascii
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidecast.config.sources.jetstream import (
    JetStreamSource,
    jetstream_source,
    jetstream_source_of,
    overlap,
)
from tidecast.config.topology import dump_topology, load_topology, topology_from
from tidecast.connections.tcp import Address
from tidecast.engine.adapters import made_by
from tidecast.errors import AuthError, ConfigError, ConnectionLost, StorageError
from tidecast.jetstream import frame_kernels as kernels
from tidecast.jetstream.connection import Link
from tidecast.jetstream.cursor import Scanner
from tidecast.jetstream.logins import login
from tidecast.jetstream.streams import rfc3339
from tidecast.queues.adapter import Record, unpack

BLOCK = b"NATS/1.0\r\n"
LIMIT = 1 << 20


def message(
    sequence: int,
    number: int,
    payload: bytes = b"x",
    *,
    subject: str = "s.a",
    headers: bytes | None = None,
    time_ns: int = 5,
    pending: int = 0,
    place: str = "S.c",
    end: str = "",
) -> bytes:
    reply = f"$JS.ACK.{place}.1.{sequence}.{number}.{time_ns}.{pending}{end}"
    if headers is None:
        return f"MSG {subject} 1 {reply} {len(payload)}\r\n".encode() + payload + b"\r\n"
    n = len(headers)
    line = f"HMSG {subject} 1 {reply} {n} {n + len(payload)}\r\n"
    return line.encode() + headers + payload + b"\r\n"


def listed(*lines: bytes) -> bytes:
    return BLOCK + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def scanned(
    raw: bytes, *, due: int = 0, number: int = 1, key_header: str = "", limit: int = LIMIT
) -> tuple[int, list[tuple[int, Record]], Any]:
    """Why the scan ends, the records before that, the words of the scan."""
    data: Any = np.frombuffer(raw, dtype=np.uint8).copy()
    scanner = Scanner(key_header, limit)
    why = scanner.scan(data, 0, data.size, due, number)
    words = scanner.words
    if not words[kernels.W_RECORDS]:
        return why, [], words
    return why, unpack(scanner.run(data, 0)), words


def test_messages_become_records_with_their_sequences_as_tokens() -> None:
    raw = (
        message(7, 1, b"one", time_ns=10, pending=3)
        + message(8, 2, b"", subject="s.b", time_ns=20, pending=2)
        + message(12, 3, b"three", headers=listed(b"a: 1", b"B:\t 2 "), time_ns=30, pending=1)
    )
    why, found, words = scanned(raw, due=7)
    assert why == kernels.MORE
    assert found == [
        (7, Record(b"one", b"s.a", None, 10)),
        (8, Record(b"", b"s.b", None, 20)),
        (12, Record(b"three", b"s.a", {"a": b"1", "B": b"2"}, 30)),
    ]
    assert words[kernels.W_END] == len(raw)
    assert (words[kernels.W_BEHIND], words[kernels.W_PENDING], words[kernels.W_GAPS]) == (13, 1, 1)
    assert words[kernels.W_LAST_NUMBER] == 3


@pytest.mark.parametrize(
    ("place", "end"), [("S.c", ""), ("D.hash.S.c", ""), ("_.hash.S.c", ".random")]
)
def test_replies_of_both_forms_are_read(place: str, end: str) -> None:
    why, found, _ = scanned(message(5, 1, b"x", place=place, end=end, time_ns=1 << 60))
    assert (why, found) == (kernels.MORE, [(5, Record(b"x", b"s.a", None, 1 << 60))])


def test_the_key_can_be_a_header() -> None:
    with_key = message(1, 1, headers=listed(b"k: mine", b"o: 1"))
    without = (
        message(2, 2, headers=listed(b"o: 1"))
        + message(3, 3)
        + message(4, 4, headers=listed(b"k:"))
    )
    _, found, _ = scanned(with_key + without, key_header="k")
    assert [record.key for _, record in found] == [b"mine", None, None, b""]
    assert found[0][1].headers == {"nats-subject": b"s.a", "k": b"mine", "o": b"1"}
    assert found[2][1].headers == {"nats-subject": b"s.a"}


@pytest.mark.parametrize(
    "lines",
    [
        [b"a: 1", b"a: 2"],
        [b"nats-subject: x"],
        [b"nats-headers: x"],
        [b"no colon"],
        [b": no name"],
        [b"a b: space"],
        ["ä: 1".encode()],
        [b"h%d: x" % i for i in range(33)],
    ],
)
def test_headers_that_fit_no_map_are_kept_as_they_came(lines: list[bytes]) -> None:
    _, found, _ = scanned(message(1, 1, b"p", headers=listed(*lines)))
    kept = b"".join(line + b"\r\n" for line in lines)
    assert found == [(1, Record(b"p", b"s.a", {"nats-headers": kept}, 5))]


def test_thirty_two_headers_and_long_ones_fit() -> None:
    lines = [b"h%d: " % i + b"v" * (9 * i) for i in range(32)] + []
    _, found, _ = scanned(message(1, 1, headers=listed(*lines)))
    assert found[0][1].headers == {f"h{i}": b"v" * (9 * i) for i in range(32)}
    _, found, _ = scanned(message(1, 1, headers=listed(b"n" * 300 + b": " + b"v" * 60_000)))
    assert found[0][1].headers == {"n" * 300: b"v" * 60_000}


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (message(1, 2), kernels.LOST),
        (message(1, 1) + message(2, 3), kernels.LOST),
        (message(1, 1) + message(1, 2), kernels.BAD_ORDER),
        (message(1 << 63, 1), kernels.BAD_FRAME),
        (message((1 << 61) + 1, 1), kernels.BAD_ORDER),
        (message(1, 1, headers=listed(b"n: " + b"v" * 65_536)), kernels.LEFT_OUT),
        (message(1, 2, headers=listed(b"n: " + b"v" * 65_536)), kernels.LOST),
        (b"PING\r\n", kernels.OTHER),
        (b"-ERR 'x'\r\n", kernels.OTHER),
        (b"MSG s 1 3\r\nabc\r\n", kernels.OTHER),
        (b"MSG s 1 reply 3\r\nabc\r\n", kernels.OTHER),
        (b"HMSG s 1 12 12\r\nNATS/1.0\r\n\r\n\r\n", kernels.OTHER),
        (b"MSG s 1 $JS.ACK.S.c.1.1.1.1 1\r\nx\r\n", kernels.OTHER),
        (b"MSG s 1 $JS.ACK.S.c.1.x.1.1.0 1\r\nx\r\n", kernels.BAD_FRAME),
        (b"MSG s 1 $JS.ACK.S.c.1..1.1.0 1\r\nx\r\n", kernels.BAD_FRAME),
        (b"MSG s 1 $JS.ACK.S.c.1.1.1.1.0 -1\r\nx\r\n", kernels.BAD_FRAME),
        (b"MSG s 1 $JS.ACK.S.c.1.1.1.1.0 999999999999\r\nx\r\n", kernels.BAD_FRAME),
        (b"MSG s 1 $JS.ACK.S.c.1.1.1.1.0 1\r\nxxx\r\n", kernels.BAD_FRAME),
        (b"MSG s 1 a b c $JS.ACK.S.c.1.1.1.1.0 1\r\nx\r\n", kernels.BAD_FRAME),
        (b"MSG s\r\n", kernels.BAD_FRAME),
        (b"MSG " + b"s" * (1 << 15), kernels.BAD_FRAME),
        (b"HMSG s 1 $JS.ACK.S.c.1.1.1.1.0 9 3\r\nx\r\n", kernels.BAD_FRAME),
        (b"HMSG s 1 $JS.ACK.S.c.1.1.1.1.0 3 3\r\nabc\r\n", kernels.BAD_FRAME),
        (b"HMSG s 1 $JS.ACK.S.c.1.1.1.1.0 12 12\r\nNATS/1.0\r\nxx\r\n", kernels.BAD_FRAME),
        (b"M", kernels.MORE),
        (b"MSG s 1 $JS.ACK.S.c.1.1.1.1.0 5\r\nx", kernels.MORE),
    ],
)
def test_what_cannot_be_read_ends_the_scan(raw: bytes, why: int) -> None:
    sound = message(1, 1)
    assert scanned(raw)[0] == why
    if raw.startswith(sound):
        assert [token for token, _ in scanned(raw)[1]] == [1]


def test_a_scan_says_how_many_bytes_a_frame_needs() -> None:
    whole = message(1, 1, b"p" * 300)
    for n in range(len(whole)):
        why, found, words = scanned(whole[:n])
        assert (why, found) == (kernels.MORE, [])
        assert words[kernels.W_NEED] in (0, len(whole))
    assert scanned(whole[:-5])[2][kernels.W_NEED] == len(whole)


def test_a_run_is_not_longer_than_wanted_but_for_one_message() -> None:
    raw = b"".join(message(i, i, b"p" * 100) for i in range(1, 50))
    why, found, words = scanned(raw, limit=500)
    assert (why, len(found)) == (kernels.FULL, 4)
    assert raw[int(words[kernels.W_END]) :].startswith(b"MSG s.a 1 $JS.ACK.S.c.1.5.5.")


_NAMES = st.text("abcXYZ-_0", min_size=1, max_size=9)
_HEADERS = st.none() | st.dictionaries(_NAMES, st.binary(max_size=40), max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.binary(max_size=200), _HEADERS), min_size=1, max_size=30
    ),
    st.randoms(use_true_random=False),
)
def test_any_messages_cut_anywhere_come_as_they_are(given: Any, chance: random.Random) -> None:
    raw, expected, sequence = b"", [], 0
    for number, (step, payload, headers) in enumerate(given, 1):
        sequence += step
        lines, kept = [], {}
        for name, value in (headers or {}).items():
            clean = value.replace(b"\r", b"").replace(b"\n", b"").strip(b" \t")
            lines.append(name.encode() + b": " + clean)
            kept[name] = clean
        block = listed(*lines) if lines else None
        raw += message(sequence, number, payload, headers=block)
        expected.append((sequence, Record(payload, b"s.a", kept or None, 5)))
    data: Any = np.frombuffer(raw, dtype=np.uint8).copy()
    scanner, found, at, due, number = Scanner("", 1 << 12), list[Any](), 0, 0, 1
    end = 0
    while at < len(raw):
        why = scanner.scan(data, at, end, due, number)
        words = scanner.words
        if words[kernels.W_RECORDS]:
            found += unpack(scanner.run(data, at))
            at, due = int(words[kernels.W_END]), int(words[kernels.W_BEHIND])
            number = int(words[kernels.W_LAST_NUMBER]) + 1
            continue
        assert why == kernels.MORE
        end = min(len(raw), end + chance.randrange(1, 400))
    assert found == expected


def test_bytes_that_are_damaged_anywhere_are_read_or_refused() -> None:
    chance = random.Random(11)
    sound = b"".join(
        message(i, i, b"p" * i, headers=listed(b"a: 1", b"b: 2") if i % 2 else None)
        for i in range(1, 12)
    )
    for _ in range(3000):
        raw = bytearray(sound)
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(raw))
            change = chance.randrange(3)
            if change == 0:
                raw[at] = chance.choice(b"\r\n .$0129:MHS\xff")
            elif change == 1:
                del raw[at : at + chance.randrange(1, 20)]
            else:
                raw[at:at] = bytes(chance.choice(b"\r\n 09.") for _ in range(3))
        scanned(bytes(raw), key_header=chance.choice(["", "a"]))
        scanned(chance.randbytes(chance.randrange(1, 200)))


# --- connections ----------------------------------------------------------------------------------

INFO = b'INFO {"headers":true,"version":"2.12.0"}\r\n'


@contextmanager
def told(*pieces: bytes) -> Iterator[Address]:
    """A server that says this to its first client, a piece for each that it hears."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                for piece in pieces:
                    connection.sendall(piece)
                    if not connection.recv(65_536):
                        return

        thread = threading.Thread(target=serve)
        thread.start()
        yield Address(*listening.getsockname())
        thread.join(10.0)


SOURCE = JetStreamSource(servers="127.0.0.1:1", streams="S")


@pytest.mark.parametrize(
    ("pieces", "kind", "text"),
    [
        ((b"HTTP/1.1 400 Bad Request\r\n",), StorageError, "is it a NATS server"),
        ((b"INFO {oops}\r\n",), StorageError, "no JSON object"),
        ((b"INFO []\r\n",), StorageError, "no JSON object"),
        ((b"INFO {}\r\n",), ConfigError, "NATS 2.9 or newer"),
        ((b'INFO {"headers":true,"tls_required":true}\r\n',), ConfigError, "needs TLS"),
        ((INFO, b"-ERR 'Authorization Violation'\r\n"), AuthError, "no login: set user"),
        ((INFO, b"-ERR 'maximum connections exceeded'\r\n"), ConnectionLost, "maximum"),
        ((INFO, b"MSG s 1 9999999999999\r\n"), StorageError, "a message of 9999999999999"),
        ((INFO, b"MSG s 1 x\r\n"), StorageError, "a line"),
        ((INFO, b"HMSG s 1 5 3\r\nabc\r\n"), StorageError, "a message of 3 bytes, 5"),
        ((INFO, b"MSG s 1 1\r\nabcd"), StorageError, "without an end"),
        ((INFO, b"x" * 40_000), StorageError, "a line of more than"),
        ((INFO,), ConnectionLost, "closed the connection|reset by peer"),
    ],
)
def test_what_a_server_says_at_first_is_named(
    pieces: tuple[bytes, ...], kind: type[Exception], text: str
) -> None:
    with told(*pieces) as address, pytest.raises(kind, match=text):
        Link(address, SOURCE, None)


def test_a_ping_is_answered_and_long_messages_make_room() -> None:
    body = b"b" * 300_000
    pieces = (INFO, b"PING\r\nPONG\r\n", b"MSG s 1 %d\r\n" % len(body) + body + b"\r\n")
    with told(*pieces) as address:
        link = Link(address, SOURCE, None)
        found = link.frame(time.monotonic() + 30.0)
        assert found is not None
        assert (found.name, found.subject, found.body) == ("MSG", "s", body)
        link.close()


# --- logins ---------------------------------------------------------------------------------------


def seed_of(raw: bytes, kind: int = 20 << 3) -> str:
    head = bytes([18 << 3 | kind >> 5, (kind & 31) << 3]) + raw
    checked = head + binascii.crc_hqx(head, 0).to_bytes(2, "little")
    return base64.b32encode(checked).decode().rstrip("=")


def test_an_nkey_signs_the_nonce(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    path = tmp_path / "user.nk"
    path.write_text(seed_of(bytes(range(32))) + "\n")
    fields = login(JetStreamSource(servers="h:1", streams="S", nkey_file=str(path)), "nonce")
    raw = base64.b32decode(fields["nkey"])
    assert fields["nkey"].startswith("U")
    signature = base64.urlsafe_b64decode(fields["sig"] + "==")
    Ed25519PublicKey.from_public_bytes(raw[1:33]).verify(signature, b"nonce")


@pytest.mark.parametrize("name", ["nkey_file", "creds_file"])
@pytest.mark.parametrize(
    "text", ["", "oops", seed_of(bytes(32))[:-1] + "A", seed_of(bytes(32), 0), "SU" + "A" * 56]
)
def test_a_seed_that_is_none_is_refused_without_showing_it(
    name: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    if name == "creds_file":
        path.write_text(
            "-----BEGIN NATS USER JWT-----\njwt\n------END NATS USER JWT------\n"
            f"-----BEGIN USER NKEY SEED-----\n{text}\n------END USER NKEY SEED------\n"
        )
    given: dict[str, Any] = {name: str(path)}
    with pytest.raises(ConfigError, match=f"jetstream.{name}: it ") as caught:
        login(JetStreamSource(servers="h:1", streams="S", **given), "nonce")
    assert len(text) < 10 or text not in str(caught.value)


def test_times_are_written_with_nanoseconds() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00.000000000Z"
    assert rfc3339(1_795_815_224_469_037_015) == "2026-11-27T21:33:44.469037015Z"
    assert rfc3339(-5) == rfc3339(0)
    assert rfc3339(1 << 62).startswith("2116-")


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("jetstream://h/S", r"servers: h: allowed are HOST:PORT"),
        ("jetstream://h:1/", r"jetstream.streams: '': "),
        ("jetstream://h:1/a.b", r"jetstream.streams: a.b: allowed are names"),
        ("jetstream://h:1/A,A", r"jetstream.streams: A: given twice"),
        ("jetstream://h:1/A,B?subjects=x", r"jetstream.subjects: x: allowed with a single stream"),
        ("jetstream://h:1/A?subjects=x..y", r"jetstream.subjects: x..y: allowed are subjects"),
        ("jetstream://h:1/A?subjects=x,,y", r"jetstream.subjects: '': allowed are subjects"),
        ("jetstream://h:1/A?subjects=a.*,a.b", r"jetstream.subjects: a.b: a.\* has messages of it"),
        ("jetstream://h:1/S?nonsense=1", r"jetstream.nonsense: unknown setting"),
        ("jetstream://h:1/S?key_header=a:b", r"jetstream.key_header: a:b: allowed"),
        ("jetstream://h:1/S?domain=a.b", r"jetstream.domain: a.b: allowed"),
        ("jetstream://me:pw@h:1/S", r"a login does not belong into it"),
        ("jetstream://h:1/S?user=a&token_file=/t", r"jetstream.token_file: given beside user"),
        ("jetstream://h:1/S?certificate=/a.pem", r"jetstream.key: missing"),
        ("jetstream://h:1/S?ca=/a.pem", r"jetstream.tls: false: ca needs tls: true"),
        ("jetstream://h:1/S?secret_file=/s", r"jetstream.user: missing"),
        ("jetstream://h:1/S?fetch_bytes=1", r"jetstream.fetch_bytes: 1: allowed"),
        ("jetstream://h:1/S?domain=a&domain=b", r"jetstream.domain: given twice"),
    ],
)
def test_a_url_that_is_wrong_names_the_setting(url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        jetstream_source_of(url)


def test_a_url_has_all_settings() -> None:
    source = jetstream_source_of(
        "jetstream://a:1,b:2/ORDERS?subjects=o.0.%3E,o.1.%3E&domain=hub&key_header=Customer"
        "&user=me&secret_file=/s&tls=true&ca=/c&fetch_bytes=65536"
    )
    assert source == jetstream_source(
        {
            "servers": "a:1,b:2",
            "streams": "ORDERS",
            "subjects": "o.0.>,o.1.>",
            "domain": "hub",
            "key_header": "Customer",
            "user": "me",
            "secret_file": "/s",
            "tls": True,
            "ca": "/c",
            "fetch_bytes": 65_536,
        }
    )
    assert source.queues == [("ORDERS", "o.0.>"), ("ORDERS", "o.1.>")]
    assert made_by("t=jetstream://h:1/A,B")[:2] == ("t", "jetstream")
    with pytest.raises(ConfigError, match=r"adapter: t: .*jetstream.streams"):
        made_by("t=jetstream://h:1/")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.*", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.*", "a.b.c", False),
        (">", "x", True),
        ("a", "a.b", False),
        ("*.b", "a.*", True),
    ],
)
def test_subjects_with_messages_in_common_are_found(one: str, other: str, same: bool) -> None:
    assert overlap(one, other) == overlap(other, one) == same


def test_streams_are_loaded_and_saved(tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text("adapters: [{topic: orders, jetstream: {servers: 'a:1', streams: 'A,B'}}]")
    topology = load_topology(path)
    (one,) = topology.adapters
    assert one.jetstream is not None
    assert one.jetstream.queues == [("A", ""), ("B", "")]
    path.write_text(dump_topology(topology))
    assert load_topology(path) == topology


@pytest.mark.parametrize(
    ("adapter", "problem"),
    [
        ({"jetstream": {"servers": "a", "streams": "S"}}, "adapters[0].jetstream.servers: a: "),
        ({"jetstream": {"servers": "a:1"}}, "adapters[0].jetstream.streams: missing"),
        ({}, "adapters[0].kafka: missing: allowed is one of kafka, jetstream"),
        (
            {
                "kafka": {"servers": "a:1", "topic": "t"},
                "jetstream": {"servers": "a:1", "streams": "S"},
            },
            "adapters[0].kafka: given beside jetstream: allowed is one of",
        ),
    ],
)
def test_what_is_wrong_with_a_section_is_named(adapter: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        topology_from({"adapters": [{"topic": "o", **adapter}]})
    assert problem in str(caught.value)
