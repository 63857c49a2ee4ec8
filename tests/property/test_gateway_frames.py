"""The gateway's frame parser: what comes from outside is a frame or a BadFrame, nothing else."""

from __future__ import annotations

import contextlib
import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.gateway_frames import FRAMES

from tidecast.api.frames.common import Frame
from tidecast.api.link import RESUME_MAX, PublicationOptions, SubscriptionOptions
from tidecast.client.core import metadata
from tidecast.client.remote import frames
from tidecast.client.remote.frames import BadFrame, Block
from tidecast.layout import ring as ring_layout

PARSERS = [frames.from_client, frames.from_gateway]
Message = tuple[bytes, bytes, int]

messages = st.lists(
    st.builds(
        lambda payload, key, headers, time: (
            payload,
            *metadata.encode(key, headers, time, None),
        ),
        st.binary(max_size=50),
        st.none() | st.binary(max_size=9),
        st.none() | st.dictionaries(st.text(max_size=3), st.integers(-9, 9), max_size=2),
        st.none() | st.integers(0, 1 << 40),
    ),
    min_size=1,
    max_size=20,
)


def memory_of(given: list[Message]) -> tuple[memoryview, np.ndarray]:
    """Messages as a poll leaves them: memory and rows (payload at, bytes, fields at, flags)."""
    data, rows = b"", []
    for payload, meta, flags in given:
        rows.append([len(data) + 4 + len(meta), len(payload), len(data) + 4, flags | 3])
        data += b"....".join([b"", meta + payload])
    return memoryview(data + b"\0"), np.array(rows, dtype=np.int64)


def messages_of(block: Block, body: bytes) -> list[Message]:
    """The messages of a parsed body."""
    at, found = block.n * (9 if block.flags.size else 4), []
    for i in range(block.n):
        size = int(block.lengths[i])
        lead = int(block.leads[i]) if block.flags.size else 0
        flags = int(block.flags[i]) if block.flags.size else 0
        found.append((body[at + lead : at + size], body[at : at + lead], flags))
        at += size
    return found


@given(messages)
def test_what_a_ring_holds_arrives_as_it_was(given: list[Message]) -> None:
    memory, rows = memory_of(given)
    found = []
    for first, end, mixed, body in frames.bodies(
        memory, np.empty((2, 0), np.int64), rows, len(rows)
    ):
        frame = frames.Publish(number=1, batch=1, n=end - first, mixed=mixed)
        again, part = frames.from_client(frames.encode(frame, body))
        assert again == frame
        found += messages_of(Block.parse(end - first, mixed, part), bytes(part))
    assert found == given


@given(messages, st.data())
def test_a_damaged_batch_is_refused_or_still_fills_its_bytes(
    given: list[Message], data: st.DataObject
) -> None:
    memory, rows = memory_of(given)
    ((first, end, mixed, body),) = frames.bodies(
        memory, np.empty((2, 0), np.int64), rows, len(rows)
    )
    raw = bytearray(body.tobytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    raw = raw[:cut] if data.draw(st.booleans()) else raw
    try:
        block = Block.parse(end - first, mixed, memoryview(bytes(raw)))
    except BadFrame:
        return
    assert int(block.lengths.sum()) + block.n * (9 if mixed else 4) == len(raw)
    for (payload, meta, flags), size in zip(
        messages_of(block, bytes(raw)), block.lengths.tolist(), strict=True
    ):
        assert len(payload) + len(meta) == size
        metadata.decode(memoryview(meta), 0, flags)  # all inside


@pytest.mark.parametrize("parse", PARSERS)
@given(st.binary(max_size=200))
def test_any_bytes(parse: object, data: bytes) -> None:
    assert callable(parse)
    with contextlib.suppress(BadFrame):
        parse(data)


@pytest.mark.parametrize("parse", PARSERS)
@given(st.binary(max_size=60), st.integers(0, 1 << 32))
def test_any_header(parse: object, data: bytes, n: int) -> None:
    assert callable(parse)
    with contextlib.suppress(BadFrame):
        parse(struct.pack("<I", n & 0xFFFFFFFF) + data)


@given(st.data())
def test_a_damaged_frame(data: st.DataObject) -> None:
    whole = frames.encode(
        frames.OpenPublication(id=1, number=2, topic="logs", options=PublicationOptions())
    )
    raw = bytearray(whole)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        frame, body = frames.from_client(bytes(raw))
    except BadFrame:
        return
    assert isinstance(frame, Frame)
    assert body.nbytes == 0


@pytest.mark.parametrize(
    "bad",
    [
        "text",
        b"",
        b"\0\0\0",
        b"\xff\xff\xff\xff" + bytes(100),
        bytes(frames.FRAME_BYTES_MAX + 1),
        frames.encode(frames.Bye(), np.zeros(1, dtype=np.uint8)),
        frames.encode(
            frames.Welcome(
                session="",
                key="",
                resumed=False,
                client_id=1,
                node_id=1,
                node_name="",
                incarnation=1,
            )
        ),
        struct.pack("<I", 100_000) + b"\x91" * 100_000,
    ],
    ids=["text", "empty", "short", "length", "long", "body", "direction", "nesting"],
)
def test_frames_that_cannot_be(bad: object) -> None:
    with pytest.raises(BadFrame):
        frames.from_client(bad)


@pytest.mark.parametrize("n", [-1, 0, frames.BLOCK_MESSAGES_MAX + 1, 1 << 62])
def test_counts_that_cannot_be(n: int) -> None:
    with pytest.raises(BadFrame):
        Block.parse(n, False, memoryview(bytes(100)))


# --- all frames --------------------------------------------------------------------------------
@pytest.mark.parametrize(("frame", "body"), FRAMES, ids=lambda part: type(part).__name__)
def test_each_frame_arrives_as_it_was(frame: Frame, body: bytes) -> None:
    whole = frames.encode(frame, np.frombuffer(body, dtype=np.uint8))
    parse = frames.from_client if isinstance(frame, frames.FromClient) else frames.from_gateway
    again, rest = parse(whole)
    assert (again, bytes(rest)) == (frame, body)


def test_every_kind_of_frame_is_among_them() -> None:
    told = {type(frame) for frame, _ in FRAMES}
    assert told == {*frames.FromClient.__args__, *frames.FromGateway.__args__}


@given(st.sampled_from(FRAMES), st.data())
def test_any_damage_to_any_frame(given: tuple[Frame, bytes], data: st.DataObject) -> None:
    frame, body = given
    raw = bytearray(frames.encode(frame, np.frombuffer(body, dtype=np.uint8)))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    for parse in PARSERS:
        with contextlib.suppress(BadFrame):
            again, rest = parse(bytes(raw))
            assert isinstance(again, Frame)
            assert rest.nbytes <= len(raw)


@pytest.mark.parametrize(
    ("frame", "n"),
    [
        (frames.Acks(number=1, taken=0, released=0), frames.ACKS_FRAME_BYTES_MAX + 8),
        (frames.Delivered(number=1, position=0, acks_read=0), frames.DELIVERED_BYTES + 8),
        (frames.Durable(number=1, seq=1), 1),
        (frames.ResumeConsumer(id=1, number=1), 1),
    ],
    ids=["settle", "delivered", "durable", "resume"],
)
def test_bodies_that_are_too_long(frame: Frame, n: int) -> None:
    parse = frames.from_client if isinstance(frame, frames.FromClient) else frames.from_gateway
    with pytest.raises(BadFrame, match="at most"):
        parse(frames.encode(frame, np.zeros(n, dtype=np.uint8)))


# --- places --------------------------------------------------------------------------------------
SUBSCRIBE = frames.OpenSubscription(
    id=1, number=2, pattern="t", options=SubscriptionOptions(), credit=1
)
DELIVER = frames.Deliver(number=1, image=1, n=1)
AHEAD_MAX = ring_layout.SLOTS_MAX // 8
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.integers(0, 9), inner),
    max_leaves=8,
)


def with_field(frame: Frame, name: str, value: object) -> bytes:
    """A frame with one field of any kind."""
    header = msgspec.msgpack.encode(msgspec.to_builtins(frame, builtin_types=(bytes,)))
    fields = msgspec.msgpack.decode(header, strict=False)
    raw = msgspec.msgpack.encode({**fields, name: value})
    return struct.pack("<I", len(raw)) + raw


@given(
    anything
    | st.dictionaries(
        st.integers(-2, 1 << 33),
        anything
        | st.tuples(st.integers(-2, 1 << 62), st.integers(-2, 1 << 17), st.binary(max_size=9)),
        max_size=4,
    )
)
def test_any_places_are_in_range_or_refused(places: object) -> None:
    try:
        frame, _ = frames.from_client(with_field(SUBSCRIBE, "places", places))
    except BadFrame:
        return
    assert isinstance(frame, frames.OpenSubscription)
    for session, (seq, offset, ahead) in frame.places.items():
        assert 1 <= session < 1 << 32
        assert 0 <= seq <= 1 << 60
        assert 0 <= offset <= 1 << 16
        assert isinstance(ahead, bytes)


@given(anything)
def test_any_bits_of_packets_are_bytes_or_refused(ahead: object) -> None:
    with contextlib.suppress(BadFrame):
        frame, _ = frames.from_gateway(with_field(DELIVER, "ahead", ahead))
        assert isinstance(frame, frames.Deliver)
        assert isinstance(frame.ahead, bytes)


@pytest.mark.parametrize(
    "places",
    [
        dict.fromkeys(range(1, RESUME_MAX + 2), (1, 32, b"")),
        {1: (1, 32, bytes(AHEAD_MAX + 1))},
        {0: (1, 32, b"")},
        {1 << 32: (1, 32, b"")},
        {1: (-1, 32, b"")},
        {1: (1, (1 << 16) + 1, b"")},
        {1: (1, 32)},
        {1: (1, 32, b"", 4)},
        {"1": (1, 32, b"")},
    ],
    ids=["many", "ahead", "no-session", "session", "packet", "offset", "short", "long", "text"],
)
def test_places_that_cannot_be(places: object) -> None:
    with pytest.raises(BadFrame):
        frames.from_client(with_field(SUBSCRIBE, "places", places))


def test_as_many_places_as_a_client_names_arrive() -> None:
    places = dict.fromkeys(range(1, RESUME_MAX + 1), (1 << 60, 1 << 16, b""))
    frame, _ = frames.from_client(with_field(SUBSCRIBE, "places", places))
    assert isinstance(frame, frames.OpenSubscription)
    assert frame.places == places
