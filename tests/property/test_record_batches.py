"""Record batches through the platform: what `publish_batch` takes, `to_record_batch` gives back."""

from __future__ import annotations

from typing import Any

import hypothesis
import msgspec
import pyarrow as pa
from hypothesis import strategies as st
from tests.support.clients import loop_client

from tidecast.layout.header_names import is_reserved

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NAME = TEXT.filter(lambda name: not is_reserved(name))
NUMBER = st.one_of(st.integers(-200, 300), st.integers(-(1 << 63), (1 << 63) - 1))
ROW = st.tuples(
    st.one_of(st.binary(max_size=60), st.just(bytes(3000))),
    st.one_of(st.none(), st.binary(max_size=60)),
    st.dictionaries(NAME, st.one_of(st.binary(max_size=40), TEXT, NUMBER), max_size=20),
    st.one_of(st.none(), st.integers(0, (1 << 63) - 1)),
)
LARGE = (bytes(3000), bytes(60), {f"{n:040d}": bytes(40) for n in range(20)}, 1)
"""The longest row: the ring has to hold as many of them as a frame has rows, read by nobody yet."""
NAMES = ("payload", "key", "headers", "timestamp")
RAW = pa.schema(
    [
        ("payload", pa.large_binary()),
        ("key", pa.large_binary()),
        ("headers", pa.large_binary()),
        ("timestamp", pa.timestamp("ns", "UTC")),
    ]
)


def through(client: Any, frame: Any, headers: str) -> Any:
    """Publish a frame on its own and read it back as one table."""
    with client.subscribe("t") as sub:
        client.publish_batch("t", frame).check()
        parts, n = [], 0
        for batch in sub.batches(max_messages=7):
            parts.append(batch.to_record_batch(headers=headers))
            n += len(batch)
            if n == frame.num_rows:
                return pa.Table.from_batches(parts).select(NAMES)
    raise AssertionError("the subscription ended")


def as_map(headers: dict[str, Any]) -> list[tuple[str, bytes]] | None:
    values = [(n, v if isinstance(v, bytes) else str(v).encode()) for n, v in headers.items()]
    return values or None


@hypothesis.given(rows=st.lists(ROW, min_size=1, max_size=30))
@hypothesis.example(rows=[LARGE] * 30)
def test_what_goes_in_comes_out(rows: list[Any]) -> None:
    payloads, keys, maps, times = zip(*rows, strict=True)
    packed = [msgspec.msgpack.encode(each) if each else None for each in maps]
    frame = pa.table([payloads, keys, packed, times], schema=RAW)
    with loop_client(slots=128, slot_bytes=8192) as (client, _):
        assert through(client, frame, "raw") == frame
        shown = through(client, frame, "map")
        assert shown.column("headers").to_pylist() == [as_map(each) for each in maps]
        again = through(client, shown, "map")
        assert again == shown
        again.validate(full=True)
