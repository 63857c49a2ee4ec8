"""Batches with keys, headers and times: what may be given, what is refused, what arrives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.support.clients import loop_client
from tests.support.loop_link import LoopLink

from tidecast.errors import BackPressure, CodecError, ConfigError, PayloadTooLarge
from tidecast.layout.packet import KEY_BYTES_MAX
from tidecast.sync import Connection

Pair = tuple[Connection, LoopLink]
Row = tuple[bytes, bytes | None, dict[str, Any], int | None]
TEXTS = ["a", "", "a longer one than fits into a view", "a"]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with loop_client() as made:
        yield made


class Foreign:
    """Hands out Arrow arrays as a library other than pyarrow does: by the interface alone."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        value = self._value
        if isinstance(value, pa.Array):
            value = pa.chunked_array([value])
        return value.__arrow_c_stream__(requested_schema)


def rows(subscription: Any, n: int) -> list[Row]:
    found = []
    for _ in range(n):
        one = subscription.next(5.0)
        found.append((one.data, one.key, one.headers, one.timestamp))
    return found


def sent(client: Connection, messages: Any, **columns: Any) -> list[Row]:
    """Publish a batch that is accepted as a whole; what arrives."""
    with client.subscribe("t") as sub:
        result = client.publish_batch("t", messages, **columns)
        result.check()
        return rows(sub, result.appended)


ARROW = {
    str(kind): kind
    for kind in (
        pa.binary(),
        pa.large_binary(),
        pa.string(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.uint32(), pa.large_binary()),
    )
}


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("kind", ARROW)
def test_arrow_keys_and_payloads_of_each_type(pair: Pair, kind: str, foreign: bool) -> None:
    keys = pa.array([*TEXTS, None]).cast(ARROW[kind])
    payloads = pa.array([*TEXTS, "end"]).cast(ARROW[kind])
    wrap: Any = Foreign if foreign else (lambda value: value)
    for start in (0, 2):
        chunks = pa.chunked_array([keys[start : start + 1], keys[:0], keys[start + 1 :]])
        found = sent(pair[0], wrap(payloads[start:]), keys=wrap(chunks))
        assert [data for data, *_ in found] == [t.encode() for t in [*TEXTS, "end"][start:]]
        assert [key for _, key, *_ in found] == [*(t.encode() for t in TEXTS[start:]), None]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([b"a", "b", None, bytearray(b"d")], [b"a", b"b", None, b"d"]),
        ((k for k in "abcd"), [b"a", b"b", b"c", b"d"]),
        ("same", [b"same"] * 4),
        (b"", [b""] * 4),
        (np.array([b"a", b"bb", b"", b"d"]), [b"a", b"bb", b"", b"d"]),
        (np.array(["a", "ä", "c", "d"]), [b"a", "ä".encode(), b"c", b"d"]),
        (np.arange(8, dtype=np.uint8).reshape(4, 2), [b"\0\1", b"\2\3", b"\4\5", b"\6\7"]),
        (pa.nulls(4), [None] * 4),
        (pa.array([b"ab", b"cd", None, b"gh"], pa.binary(2)), [b"ab", b"cd", None, b"gh"]),
    ],
    ids=["list", "generator", "text", "empty", "S", "U", "rows", "nulls", "fixed"],
)
def test_keys(pair: Pair, keys: Any, expected: list[bytes | None]) -> None:
    payloads = np.arange(4, dtype="<u4")
    found = sent(pair[0], payloads, keys=keys)
    assert found == [
        (payload.tobytes(), key, {}, None) for payload, key in zip(payloads, expected, strict=True)
    ]


LONG = "n" * 300
HEADERS: list[tuple[str, Any, list[dict[str, Any]]]] = [
    ("maps", [{"a": 1, "b": b"x"}, None, {}], [{"a": 1, "b": b"x"}, {}, {}]),
    ("one for all", {"a": "b", "n": -7}, [{"a": "b", "n": -7}] * 3),
    (
        "columns",
        {"text": ["a", None, LONG], "n": np.array([-33, 127, 1 << 40]), "same": b"y"},
        [
            {"text": "a", "n": -33, "same": b"y"},
            {"n": 127, "same": b"y"},
            {"text": LONG, "n": 1 << 40, "same": b"y"},
        ],
    ),
    (
        "Arrow columns",
        {
            "b": pa.array([b"a", None, b""]),
            "s": pa.array(["ä", "", None]).cast(pa.string_view()),
            "i": pa.array([1, None, -(1 << 63)]),
            "j": [None, None, 5],
        },
        [{"b": b"a", "s": "ä", "i": 1}, {"s": ""}, {"b": b"", "i": -(1 << 63), "j": 5}],
    ),
    (
        "Arrow map",
        pa.array([[("k", b"v"), ("l", None)], None, []], pa.map_(pa.string(), pa.binary())),
        [{"k": b"v"}, {}, {}],
    ),
    (
        "Arrow map of numbers",
        pa.chunked_array(
            [
                pa.array([[("cut off", 0)], [("k", 5)]], pa.map_(pa.string(), pa.int32()))[1:],
                pa.array([[("k", 6), ("m", 7)], []], pa.map_(pa.string(), pa.int32())),
            ]
        ),
        [{"k": 5}, {"k": 6, "m": 7}, {}],
    ),
    (
        "Arrow struct",
        pa.array([{"a": "x", "n": 1}, None, {"a": None, "n": 3}]),
        [{"a": "x", "n": 1}, {}, {"n": 3}],
    ),
    (
        "MessagePack",
        pa.array([msgspec.msgpack.encode({"a": [b"", "", 1][i], LONG: -1}) for i in range(3)]),
        [{"a": b"", LONG: -1}, {"a": "", LONG: -1}, {"a": 1, LONG: -1}],
    ),
    (
        "many",
        {f"h{i}": ["x", "y", "z"] for i in range(20)},
        [{f"h{i}": v for i in range(20)} for v in "xyz"],
    ),
]


@pytest.mark.parametrize(
    ("headers", "expected"), [case[1:] for case in HEADERS], ids=[case[0] for case in HEADERS]
)
def test_headers(pair: Pair, headers: Any, expected: list[dict[str, Any]]) -> None:
    found = sent(pair[0], [b"1", b"2", b"3"], headers=headers, keys=["k", None, "m"])
    assert [each[2] for each in found] == expected
    assert [each[1] for each in found] == [b"k", None, b"m"]


NS = 1_700_000_000_123_456_789


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([1, None, NS], [1, None, NS]),
        (NS, [NS] * 3),
        (np.array([0, 5, NS]), [0, 5, NS]),
        (np.array([1, 2, 3], dtype=np.uint16), [1, 2, 3]),
        (np.array(["1970-01-01", "NaT", "1970-01-02"], "M8[D]"), [0, None, 86_400 * 10**9]),
        (pa.array([1, None, 3]), [1, None, 3]),
        (pa.array([1, None, 3], pa.timestamp("us", "UTC")), [1000, None, 3000]),
        (pa.array([1, 2, 3], pa.timestamp("s")), [10**9, 2 * 10**9, 3 * 10**9]),
        (pa.nulls(3), [None] * 3),
    ],
    ids=["list", "one", "int64", "uint16", "datetime64", "Arrow", "us", "s", "nulls"],
)
def test_times(pair: Pair, times: Any, expected: list[int | None]) -> None:
    found = sent(pair[0], [b"1", b"2", b"3"], timestamps=times)
    assert [each[3] for each in found] == expected


def test_times_of_now(pair: Pair) -> None:
    found = sent(pair[0], [b"1", b"2"], timestamps=True)
    assert found[0][3] == found[1][3]
    assert found[0][3] is not None
    assert found[0][3] > NS


FRAME = pa.record_batch(
    {
        "payload": pa.array([b"cut", b"1", b"2"]),
        "key": pa.array(["cut", "k", None]),
        "headers": pa.array([None, {"a": 1}, None]),
        "timestamp": pa.array([0, 7, None], pa.timestamp("ns")),
        "topic": pa.array(["ignored"] * 3),
        "offset": pa.array([7, 8, 9]),
    }
)[1:]
EXPECTED: list[Row] = [(b"1", b"k", {"a": 1}, 7), (b"2", None, {}, None)]


@pytest.mark.parametrize("wrap", [lambda frame: frame, Foreign], ids=["pyarrow", "foreign"])
def test_frames(pair: Pair, wrap: Any) -> None:
    assert sent(pair[0], wrap(FRAME)) == EXPECTED
    table = pa.Table.from_batches([FRAME, FRAME])
    assert sent(pair[0], wrap(table)) == 2 * EXPECTED
    names = ["value" if name == "payload" else name for name in table.column_names]
    assert sent(pair[0], wrap(table.rename_columns(names).drop_columns("key"))) == [
        (data, None, headers, stamp) for data, _, headers, stamp in 2 * EXPECTED
    ]
    only = wrap(FRAME.select(["payload"]))
    assert sent(pair[0], only, keys=["x", "y"]) == [(b"1", b"x", {}, None), (b"2", b"y", {}, None)]


def test_items_that_cannot_be_published_are_listed_and_the_others_arrive(pair: Pair) -> None:
    client, _ = pair
    limit = client.publisher("t").payload_bytes_max
    payloads = pa.array([b"0", None, bytes(limit + 1), *(b"%d" % i for i in range(3, 9))])
    keys: list[Any] = ["", "", "", bytes(KEY_BYTES_MAX + 1), bytes(2000), "", "", "", "8"]
    times = [1, 1, 1, 1, 1, -1, 1 << 63, 1, 1]
    headers: list[Any] = [None] * 7 + [{"long": bytes(70_000)}, {"a": 1}]
    with client.subscribe("t") as sub:
        result = client.publish_batch("t", payloads, keys=keys, timestamps=times, headers=headers)
        assert rows(sub, 2) == [(b"0", b"", {}, 1), (b"8", b"8", {"a": 1}, 1)]
    assert (result.requested, result.appended, result.taken, result.ok) == (9, 2, 9, False)
    assert result.error is None
    assert {each.index: type(each.error) for each in result.refused} == {
        1: CodecError,
        2: PayloadTooLarge,
        3: ConfigError,
        4: PayloadTooLarge,
        5: ConfigError,
        6: ConfigError,
        7: ConfigError,
    }
    assert [str(each.error).partition(":")[0] for each in result.refused if each.index != 2] == [
        "messages[1]",
        "keys[3]",
        "topic t",
        "timestamps[5]",
        "timestamps[6]",
        "headers[7]",
    ]
    with pytest.raises(CodecError, match="is null"):
        result.check()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"keys": ["a"]}, "keys: 1 items for 2 messages"),
    ({"keys": 5}, "keys: is int"),
    ({"keys": [b"a", 5]}, r"keys\[1\]: int"),
    ({"keys": pa.array([1, 2])}, "keys: .*type 'l'"),
    ({"keys": np.array([1, 2])}, "keys: is an array of int64"),
    ({"headers": [{"a": 1}]}, "headers: 1 items for 2"),
    ({"headers": [None, {"a": 1.5}]}, r"headers\[1\]: 'a': 1.5"),
    ({"headers": [None, {"tidecast-x": 1}]}, r"headers\[1\]: 'tidecast-x'"),
    ({"headers": {"dead-x": ["a", "b"]}}, r"headers\[0\]: a name that begins with"),
    ({"headers": {"dead-x": "a"}}, "headers: 'dead-x'"),
    ({"headers": {"a": ["b", b"c"]}}, r"headers\['a'\]: text and bytes"),
    ({"headers": {"a": ["b"]}}, r"headers\['a'\]: 1 items for 2"),
    ({"headers": {"a": [1.5, 2.0]}}, r"headers\['a'\]\[0\]: float"),
    ({"headers": {"a": pa.array([1.5, 2.0])}}, r"headers\['a'\]: .*type 'g'"),
    ({"headers": {"a": [1, 1 << 63]}}, r"headers\['a'\]: a number beyond"),
    ({"headers": "a"}, "headers: is str"),
    ({"headers": pa.array([b"\x81\xa1a\xc0", None])}, r"headers\[0\]: bytes that are no"),
    ({"headers": pa.array([None, b"\x81\xa1a\xa1\xff"])}, r"headers\[1\]: a text that is not"),
    ({"headers": pa.array([None, b"\x81\xa6dead-x\x01"])}, r"headers\[1\]: a name that begins"),
    ({"headers": pa.array([b"\x81\xa1a\x01\x01", b""])}, r"headers\[0\]: bytes that are no"),
    ({"timestamps": [1]}, "timestamps: 1 items for 2"),
    ({"timestamps": [1, "now"]}, r"timestamps\[1\]: 'now'"),
    ({"timestamps": np.array([1.0, 2.0])}, "timestamps: is an array of float64"),
    ({"timestamps": pa.array(["a", "b"])}, "timestamps: .*type 'u'"),
]


@pytest.mark.parametrize(("columns", "match"), WRONG, ids=[case[1] for case in WRONG])
def test_wrong_columns_name_the_item_and_publish_nothing(
    pair: Pair, columns: dict[str, Any], match: str
) -> None:
    client, _ = pair
    publisher = client.publisher("t")
    with pytest.raises(ConfigError, match=match):
        publisher.publish_batch([b"1", b"2"], **columns)
    assert publisher.stats().messages == 0


@pytest.mark.parametrize(
    ("frame", "columns", "match"),
    [
        (pa.table({"x": [b"a"]}), {}, "column 'x': allowed are payload"),
        (pa.table({"key": [b"a"]}), {}, 'no column "payload"'),
        (pa.table({"payload": [b"a"], "value": [b"a"]}), {}, "two columns for the payload"),
        (pa.table({"payload": [b"a"], "key": [b"a"]}), {"keys": ["b"]}, "column 'key': it is"),
        (pa.table({"payload": [1]}), {}, "messages: .*type 'l'"),
    ],
    ids=["unknown", "no payload", "two payloads", "keys twice", "numbers"],
)
def test_wrong_frames(pair: Pair, frame: Any, columns: Any, match: str) -> None:
    with pytest.raises((ConfigError, CodecError), match=match):
        pair[0].publish_batch("t", frame, **columns)


def test_a_full_ring_ends_the_batch_and_the_caller_resumes_at_taken(pair: Pair) -> None:
    client, _ = pair
    publisher = client.publisher("t", on_full="error")
    payloads = [bytes([i % 251]) * (900 if i % 50 else 3000) for i in range(300)]
    keys = [b"%d" % i if i % 7 else bytes(2000) for i in range(300)]
    first, got = 0, []
    with client.subscribe("t") as sub:
        while first < 300:
            result = publisher.publish_batch(payloads[first:], keys=keys[first:])
            assert isinstance(result.error, BackPressure) or result.taken == 300 - first
            got += rows(sub, result.appended)
            sub.poll()
            assert result.taken > 0
            first += result.taken
    accepted = [i for i in range(300) if i % 7]
    assert [each[:2] for each in got] == [(payloads[i], keys[i]) for i in accepted]
    assert publisher.stats().messages == len(accepted)
