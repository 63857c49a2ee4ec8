"""Messages and batches as a subscriber sees them: views into a ring, decoded when asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np

from tidecast import codecs
from tidecast.buffers import reader
from tidecast.client.columns.received import Fields, HeaderForm
from tidecast.client.core import metadata
from tidecast.client.core.metadata import HeaderValue, Optional
from tidecast.client.kernels import batches, ports
from tidecast.client.kernels.objects import message_maker, payload_maker
from tidecast.errors import Closed, CodecError, GapError
from tidecast.layout import packet as wire
from tidecast.native.memory import address

_T = TypeVar("_T")

SLICED_MAX = 8
"""So few payloads are sliced one by one: gathering costs some us, however few there are."""
_VIEW_BYTES = 16


class Origin:
    """Where a message comes from. The base also serves messages that were copied."""

    __slots__ = ("codec", "node", "optional", "session", "topic")

    def __init__(
        self, topic: str, node: str, session: int, codec: codecs.Codec | None, optional: Optional
    ) -> None:
        self.topic, self.node, self.session = topic, node, session
        self.codec, self.optional = codec, optional

    def fields(self, row: int) -> Optional:
        """The optional fields of message ``row``."""
        del row
        return self.optional


class Message(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One message. ``data`` is yours; key, headers and time-stamp last until the next batch.

    `copy` keeps those too. ``gc=False``: a message refers to its batch and nothing refers back, so
    there are no cycles, and the collector need not look at millions of them.
    """

    data: bytes
    _origin: Origin
    _row: int

    @property
    def size(self) -> int:
        """Payload bytes."""
        return len(self.data)

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._origin.topic

    @property
    def node(self) -> str:
        """Name of the publisher's node."""
        return self._origin.node

    @property
    def session(self) -> int:
        """Session of the publication, unique to one publisher."""
        return self._origin.session

    @property
    def key(self) -> bytes | None:
        """The key, or None."""
        return self._origin.fields(self._row).key

    @property
    def headers(self) -> dict[str, HeaderValue]:
        """The headers; empty when there are none."""
        return self._origin.fields(self._row).headers

    @property
    def timestamp(self) -> int | None:
        """The publisher's time-stamp in ns since 1970, or None."""
        return self._origin.fields(self._row).timestamp

    @property
    def value(self) -> Any:
        """The payload decoded by the subscription's codec. Raises CodecError."""
        return codecs.decode(self._origin.codec, self.data, self._origin.topic)

    def copy(self) -> Message:
        """A message with fields of its own, that lives as long as you like."""
        origin = self._origin
        kept = Origin(
            origin.topic, origin.node, origin.session, origin.codec, origin.fields(self._row)
        )
        return Message(self.data, kept, 0)

    def __repr__(self) -> str:
        return f"Message(topic={self.topic!r}, size={self.size}, node={self.node!r})"


class BatchSource(Protocol):
    """The image that a batch lies in."""

    topic: str
    node: str
    session: int
    codec: codecs.Codec | None
    generation: int
    memory: memoryview
    base: int
    port: ports.Port

    def whole(self) -> bool:
        """Nothing that the reader holds was overwritten."""

    def check_whole(self) -> None:
        """Raise GapError if it was."""


class Batch(Origin):
    """Messages of one publication, in order, in place. Valid until the next batch is taken.

    A batch of a subscription that can be lapped (untethered) was copied out of the ring, as was
    a message that came in fragments; others lie in the ring itself.
    """

    __slots__ = ("_columns", "_generation", "_image", "_memory", "_n", "_rows")

    def __init__(
        self,
        image: BatchSource,
        n: int,
        memory: memoryview,
        columns: ports.Port,
        rows: ports.Port | None,
    ) -> None:
        """``columns``: starts and ends in ``memory``; ``rows``: poll's output, None: all plain."""
        super().__init__(image.topic, image.node, image.session, image.codec, metadata.NONE)
        self._image, self._n, self._memory = image, n, memory
        self._columns, self._rows = columns, rows
        self._generation = image.generation

    def __len__(self) -> int:
        return self._n

    def __bool__(self) -> bool:
        return self._n > 0

    def __iter__(self) -> Iterator[Message]:
        """The messages."""
        return iter(self.messages)

    def head(self, end: int) -> Batch:
        """The same batch, its first ``end`` messages only."""
        first = Batch(self._image, end, self._memory, self._columns, self._rows)
        first._generation = self._generation
        return first

    @property
    def image(self) -> BatchSource | None:
        """The ring that the batch lies in; None when it was copied out of one."""
        return self._image if self._memory is self._image.memory else None

    @property
    def parts(self) -> tuple[memoryview, ports.Port, ports.Port | None, int]:
        """Memory, starts and ends, poll's output (None: all plain), count: to be passed on."""
        self._check()
        return self._memory, self._columns, self._rows, self._n

    def for_kernel(self) -> tuple[int, int, ports.Port, ports.Port]:
        """Address and size of its memory, rows as of poll, and the port of its ring."""
        self._check()
        rows = self._rows
        if rows is None:
            rows = np.zeros((self._n, reader.OUT_FIELDS), dtype=np.int64)
            rows[:, 0] = self._columns[0, : self._n]
            rows[:, 1] = self._columns[1, : self._n] - rows[:, 0]
        rows = np.ascontiguousarray(rows[: self._n])
        return self._base(), len(self._memory), rows, self._image.port

    def tail(self, start: int) -> Batch:
        """The same batch without its first ``start`` messages."""
        rows = None if self._rows is None else self._rows[start : self._n].copy()
        columns = self._columns[:, start : self._n].copy()
        rest = Batch(self._image, self._n - start, self._memory, columns, rows)
        rest._generation = self._generation
        return rest

    @property
    def messages(self) -> list[Message]:
        """All messages. `views` and `to_arrow` copy nothing.

        A subscription that can be lapped took a copy; the ring of another is not overwritten
        before it moves on, except when it is evicted: see `still_valid`.
        """
        self._check()
        return message_maker(Message)(
            self._base(), self._columns, self._n, self, self._rows is not None
        )

    def views(self) -> list[memoryview]:
        """The payloads in place, nothing copied: valid until the next batch is taken."""
        self._check()
        columns, n = self._columns, self._n
        slices = map(slice, columns[0, :n].tolist(), columns[1, :n].tolist())
        return list(map(self._memory.__getitem__, slices))

    @property
    def nbytes(self) -> int:
        """Payload bytes in all."""
        self._check()
        columns = self._columns[:, : self._n]
        return int((columns[1] - columns[0]).sum())

    @property
    def still_valid(self) -> bool:
        """Nothing overwrote the batch so far. Ask after use when the subscription may be lapped."""
        return self._generation == self._image.generation and self._image.whole()

    def payloads(self) -> list[bytes]:
        """The payloads, copied. Raises GapError when the ring was overwritten meanwhile."""
        return self._whole(self._pieces())

    def _pieces(self) -> list[bytes]:
        self._check()
        return payload_maker()(self._base(), self._columns, self._n)

    def _base(self) -> int:
        image, memory = self._image, self._memory
        if memory is image.memory:
            return image.base
        return address(np.frombuffer(memory, np.uint8)) if len(memory) else 0

    def values(self) -> list[Any]:
        """The payloads decoded by the subscription's codec. Raises CodecError."""
        return [codecs.decode(self.codec, each, self.topic) for each in self.payloads()]

    def to_numpy(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A copy as ``uint8[n, bytes]``. Raises CodecError when the lengths differ."""
        self._check()
        columns, n = self._columns, self._n
        size = int(columns[1, 0] - columns[0, 0]) if n else 0
        data = np.empty((n, size), dtype=np.uint8)
        if not batches.copy_rows(
            self._base(), len(self._memory), columns, n, size, data.reshape(-1)
        ):
            raise CodecError(
                f"topic {self.topic}: messages of different lengths are no matrix: use to_arrow "
                "or payloads"
            )
        return self._whole(data)

    def to_arrow(self, *, in_place: bool = False) -> Any:
        """An Arrow array of the payloads.

        A LargeBinary array made by one gathering copy: its values must touch, and in the ring
        there are message headers between them. ``in_place=True``: a BinaryView array, whose values
        may lie anywhere; nothing is copied except payloads of 12 bytes and less. It is valid
        until the next batch is taken.
        """
        import pyarrow as pa

        if in_place:
            return self._arrow_in_place(pa)
        data, offsets = self._whole(self._gathered())
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.large_binary(), self._n, buffers)

    def to_record_batch(self, *, headers: HeaderForm = "map") -> Any:
        """An Arrow record batch, a copy: payload, key, headers, timestamp, deliver_at, topic.

        `publish_batch` takes it. ``headers``: ``map``, of text to bytes (whole numbers as decimal
        text), or ``raw``, the MessagePack bytes as they were published. Raises ConfigError, Closed,
        and GapError when the ring was overwritten meanwhile.
        """
        import pyarrow as pa

        self._check()
        found = Fields(self._n)
        if self._rows is not None and self._n:
            rows = np.ascontiguousarray(self._rows[: self._n])
            found.of_poll(self._base(), len(self._memory), rows)
        topics = pa.DictionaryArray.from_arrays(np.zeros(self._n, dtype=np.int32), [self.topic])
        made = found.record_batch(self.to_arrow(), headers, {"topic": topics}, self.topic)
        return self._whole(made)

    def fields(self, row: int) -> Optional:
        """The optional fields of message ``row``."""
        if self._rows is None:
            return metadata.NONE
        self._check()
        _, _, at, flags = self._rows[row].tolist()
        if flags & ~wire.WHOLE == 0:
            return metadata.NONE
        return metadata.decode(self._memory, at, flags)

    def _arrow_in_place(self, pa: Any) -> Any:
        self._check()
        size = len(self._memory)
        if size >= 1 << 31:
            raise CodecError(
                f"topic {self.topic}: a view array reaches 2 GiB, this ring has {size} "
                "bytes: use to_arrow()"
            )
        views = np.empty(self._n * _VIEW_BYTES, dtype=np.uint8)
        ports.arrow_views(self._base(), size, self._columns, self._n, views)
        buffers = [None, pa.py_buffer(views), pa.py_buffer(self._memory)]
        return pa.Array.from_buffers(pa.binary_view(), self._n, buffers)

    def _whole(self, copied: _T) -> _T:
        if self._n:
            self._image.check_whole()
        return copied

    def _gathered(self) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], ports.Port]:
        self._check()
        columns, n = self._columns, self._n
        data, offsets = np.empty(self.nbytes, dtype=np.uint8), np.empty(n + 1, dtype=np.int64)
        ports.gather(self._base(), len(self._memory), columns, n, data, offsets)
        return data, offsets

    def _check(self) -> None:
        if self._n and self._generation != self._image.generation:
            raise Closed(
                f"topic {self.topic}: this batch is over, a later one was taken: use copy() or "
                "payloads() on what must live longer"
            )


class EmptyBatch(Batch):
    """The result of `poll` when there is nothing."""

    __slots__ = ()

    def __init__(self, topic: str) -> None:
        Origin.__init__(self, topic, "", 0, None, metadata.NONE)
        self._n, self._memory, self._rows = 0, memoryview(b""), None
        self._columns = np.empty((2, 0), dtype=np.int64)
        self._generation = 0

    @property
    def image(self) -> None:
        """No ring."""
        return

    def _base(self) -> int:
        return 0

    def _check(self) -> None:
        return

    @property
    def still_valid(self) -> bool:
        """Always."""
        return True


def split(raw: bytes, offsets: np.ndarray[Any, Any]) -> list[bytes]:
    """``raw`` cut at ``offsets``; at one blow when all pieces are of one size (4 x faster)."""
    n = len(offsets) - 1
    size = len(raw) // n if n else 0
    if size and offsets[1] == size and bool((np.diff(offsets) == size).all()):
        pieces: list[bytes] = np.frombuffer(raw, f"V{size}").tolist()
        return pieces
    ends = offsets.tolist()
    return list(map(raw.__getitem__, map(slice, ends, ends[1:])))


def torn(topic: str, first: int, end: int) -> GapError:
    """The error for a batch that was overwritten while it was used."""
    return GapError(
        f"topic {topic}: packets {first} to {end} were overwritten while they were read: the "
        "subscription is too slow for a ring it does not hold back",
        (first, end),
    )
