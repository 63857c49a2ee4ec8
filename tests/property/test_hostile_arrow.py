"""Arrow arrays that lie about themselves end in an error or in messages, never in a crash.

Two ways in: pyarrow arrays over buffers of random content, whose sizes pyarrow knows, and
structures of the C data interface with random counts, whose buffers are as large as any of them.
"""

from __future__ import annotations

import ctypes
from typing import Any

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from tests.support.clients import loop_client

from tidecast.client.columns.batch import Optional, Scheduling, batch_runs
from tidecast.client.columns.cells import located
from tidecast.errors import CodecError, ConfigError, PayloadTooLarge, TidecastError
from tidecast.native.arrow import interface as arrow

KINDS = [
    pa.binary(),
    pa.large_binary(),
    pa.string(),
    pa.binary_view(),
    pa.binary(3),
    pa.dictionary(pa.int8(), pa.string()),
    pa.int64(),
    pa.timestamp("s"),
    pa.map_(pa.string(), pa.binary()),
]
BUFFER = st.binary(max_size=96).map(pa.py_buffer)
RAW = st.one_of(st.none(), BUFFER)

UNUSED = Scheduling(lambda field: None, 0)


def refused(*_: int) -> TidecastError:
    return PayloadTooLarge("too large")


def publish(**columns: Any) -> None:
    """Publish a batch with a column that may be hostile: in part, or not at all."""
    with loop_client() as (client, _), client.subscribe("t") as sub:
        n = len(next(iter(columns.values())))
        messages = columns.pop("messages", [b"x"] * n)
        try:
            result = client.publish_batch("t", messages, **columns)
        except (ConfigError, CodecError):
            return
        found = [sub.next(5.0) for _ in range(result.appended)]
        assert all(len(each.data) <= 4096 and each.headers is not None for each in found)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(data=st.data())
def test_random_buffers(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    length, offset = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 3))
    children: list[Any] = []
    values, layout = [], 3
    try:
        if pa.types.is_map(kind):
            layout = 2
            entries = pa.array(
                [{"key": "k", "value": b"v"}] * 3,
                pa.struct(
                    [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
                ),
            )
            children = [entries]
        elif pa.types.is_dictionary(kind):
            indices = pa.Array.from_buffers(
                pa.int8(), length, [None, data.draw(RAW)], offset=offset
            )
            values = [pa.DictionaryArray.from_arrays(indices, ["a", "b"], safe=False)]
        elif pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind):
            layout = 2
        if not values:
            # pyarrow's own constructor crashes on views without a buffer
            content = BUFFER if kind == pa.binary_view() else RAW
            buffers = [data.draw(RAW), *(data.draw(content) for _ in range(layout - 1))]
            values = [pa.Array.from_buffers(kind, length, buffers, -1, offset, children)]
    except (ValueError, pa.ArrowException):
        return  # pyarrow has refused to make it
    field = data.draw(st.sampled_from(["messages", "keys", "headers", "timestamps"]))
    publish(**{field: values[0]})


class Structures:
    """Hands out structures of the C data interface over a buffer of 4,096 bytes."""

    def __init__(self, form: bytes, counts: dict[str, int], content: bytes) -> None:
        self.content = ctypes.create_string_buffer(content.ljust(4096, b"\0"), 4096)
        at = ctypes.addressof(self.content)
        self.buffers = (ctypes.c_void_p * 6)(*(at,) * 6)
        if counts.pop("no_buffer", 0):
            self.buffers[1] = None
        self.schema, self.array = arrow._Schema(), arrow._Array()
        self.schema.format, self.schema.release = form, 1
        self.array.release = 1
        self.array.buffers = ctypes.addressof(self.buffers)
        for name, count in counts.items():
            setattr(self.array, name, count)

    def __len__(self) -> int:
        return max(self.array.length, 0)

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        del requested_schema
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return (
            make(ctypes.addressof(self.schema), b"arrow_schema", None),
            make(ctypes.addressof(self.array), b"arrow_array", None),
        )


FORMS = [b"z", b"U", b"vz", b"w:4", b"w:-4", b"w:", b"+s", b"+m", b"n", b"l", b"tsu:", b"?", b""]


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
    form=st.sampled_from(FORMS),
    counts=st.fixed_dictionaries(
        {
            "length": st.one_of(st.integers(0, 8), st.sampled_from([-1, -(1 << 63), 1 << 60])),
            "offset": st.one_of(st.integers(0, 8), st.sampled_from([-1, 1 << 62])),
            "null_count": st.sampled_from([-1, 0, 1, 99]),
            "n_buffers": st.one_of(st.integers(0, 5), st.sampled_from([-1, 1 << 40])),
            "n_children": st.sampled_from([0, 0, 0, 1, -1]),
            "no_buffer": st.integers(0, 1),
        }
    ),
    content=st.one_of(
        st.binary(max_size=256),
        st.lists(st.integers(0, 400), max_size=40).map(
            lambda ends: b"".join(end.to_bytes(4, "little") for end in sorted(ends))
        ),
    ),
)
def test_random_structures(form: bytes, counts: dict[str, int], content: bytes) -> None:
    hostile = Structures(form, dict(counts), content)
    if counts["length"] > 8:
        with pytest.raises((ConfigError, CodecError)):
            batch_runs(
                hostile, Optional(), "t", of_engine=False, problem=refused, scheduling=UNUSED
            )
        return
    try:
        cells = located(hostile, "keys", None).cells
    except ConfigError:
        return
    low = ctypes.addressof(hostile.content)
    for start, n in cells.T.tolist():
        assert n in (-1, 0) or form in (b"z", b"U", b"w:4", b"vz")
        inside = low <= start and start + n <= low + 4096
        # The size of the values is not part of the interface: offsets are the producer's word.
        assert inside or n <= 0 or form in (b"z", b"U")


def test_offsets_that_fall_and_views_beyond_their_buffer_are_named() -> None:
    offsets = pa.py_buffer(b"".join(i.to_bytes(4, "little") for i in (0, 3, 1, 4)))
    falling = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(b"abcd")])
    view = (99).to_bytes(4, "little") + b"abcd" + (1).to_bytes(4, "little") + bytes(4)
    beyond = Structures(b"vz", {"length": 1, "n_buffers": 4}, view)  # its buffers are 0 to 0
    with pytest.raises(ConfigError, match="item 1 of the Arrow array"):
        located(falling, "keys", None)
    with pytest.raises(ConfigError, match="item 0 of the Arrow array"):
        located(beyond, "keys", None)
