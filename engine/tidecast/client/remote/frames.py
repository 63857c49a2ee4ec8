"""The frames of a remote client and a gateway over a websocket, and their batches.

A frame is one binary websocket message: u32 length (little endian), that many bytes of MessagePack
(one of the structures here), and a body. `Publish` and `Deliver` have a batch of messages as
`tidecast.client.kernels.remote` lays it out, `Acks` and `Delivered` bytes of a member's ring
(`layout/member.py`), which the gateway's host and the client both hold, the same at the same
positions. Nothing is trusted: `from_client`, `from_gateway` and `Block.parse` check every length
before a kernel sees it, and raise BadFrame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from tidecast.api.frames.common import HEAD, Failure, Frame, Goodbye, Reply, Working, encoder
from tidecast.api.levels import FIRST, UNSAID, protocol_of
from tidecast.api.link import (
    RESUME_MAX,
    ConsumerOptions,
    PublicationOptions,
    SubscriptionOptions,
)
from tidecast.api.renamed import Cursors
from tidecast.buffers import writer
from tidecast.client.core.image import Copied
from tidecast.client.kernels import ports
from tidecast.client.kernels import remote as remote_kernels
from tidecast.events import AnyEvent
from tidecast.layout import member
from tidecast.layout import ring as ring_layout
from tidecast.native.mapped import Bytes
from tidecast.native.memory import address

_F = TypeVar("_F")
PATH = "/tidecast/2"
"""Where a gateway's websocket is, at every level. The token is in the HTTP header."""
HEADER_BYTES_MAX = 1 << 20
MESSAGE_BYTES_MAX = 16 << 20
"""Longest message through a gateway, optional fields included."""
BLOCK_BYTES = 256 << 10
"""A frame's batch ends when it has so many bytes; a longer message has a frame of its own."""
BLOCK_MESSAGES_MAX = 8192
FRAME_BYTES_MAX = HEAD.size + HEADER_BYTES_MAX + MESSAGE_BYTES_MAX + 9 * BLOCK_MESSAGES_MAX
PUBLISH_WINDOW_BYTES, SESSION_WINDOW_BYTES = 1 << 20, 16 << 20
"""Bytes that a client may have unconfirmed, of one publication and of all: so much and one
frame."""
CREDIT_BYTES = 1 << 20
"""Bytes that a gateway may send of one subscription before the client has room in its rings."""
CREDIT_BYTES_MAX = 16 << 20
DELIVERED_BYTES, ACKS_FRAME_BYTES_MAX = 256 << 10, member.ACKS_BYTES_MAX
"""Bytes of a member's ring in one frame: deliveries at most, acks at most (all there are)."""
NAME_MAX = 256
Place = tuple[
    Annotated[int, msgspec.Meta(ge=0, le=1 << 60)],
    Annotated[int, msgspec.Meta(ge=0, le=1 << 16)],
    Annotated[bytes, msgspec.Meta(max_length=ring_layout.SLOTS_MAX // 8)],
]
"""How far a session was received: the next packet, the offset in it, `Deliver.ahead`."""
Session = Annotated[int, msgspec.Meta(ge=1, le=0xFFFFFFFF)]
Places = Annotated[dict[Session, Place], msgspec.Meta(max_length=RESUME_MAX)]
"""By session."""
AHEAD_BYTES_MAX = 256 << 10
"""Of all places that a client names when it subscribes again."""


class BadFrame(ValueError):
    """A frame breaks the protocol. Its text names field, place and limit."""


# --- from the client ----------------------------------------------------------------------------
class Hello(Frame, frozen=True, kw_only=True):
    """First of all. ``session``, ``key``: of the session to resume, as its welcome gave them.

    ``levels``: lowest and highest that the client reads, see `api.levels`; ``protocol``: of the
    lowest.
    """

    name: str
    protocol: int = protocol_of("gateway")
    session: str = ""
    key: str = ""
    version: str = ""
    levels: tuple[int, int] = UNSAID
    working: bool = False
    """The client understands `Working`."""


class OpenPublication(Frame, frozen=True, kw_only=True):
    """Open a publication. ``number``: the client's; ``first``: number of its next batch.

    ``keeps_unsent``: the client keeps batches of a live topic until `Sent`, so it wants that.
    """

    id: int
    number: int
    topic: str
    options: PublicationOptions
    first: int = 1
    keeps_unsent: bool = False


class ClosePublication(Frame, frozen=True, kw_only=True):
    """All batches were confirmed; end it."""

    id: int
    number: int


class OpenSubscription(Frame, frozen=True, kw_only=True):
    """Subscribe. ``number``: the client's; ``credit``: bytes that may be sent at first.

    ``places``: by session, of a client that subscribes again, and begins there.
    """

    id: int
    number: int
    pattern: str
    options: SubscriptionOptions
    credit: int
    places: Places = msgspec.field(default_factory=dict)


class CloseSubscription(Frame, frozen=True, kw_only=True):
    """End a subscription."""

    id: int
    number: int


class Credit(Frame, frozen=True, kw_only=True):
    """So many bytes more may be sent of a subscription."""

    number: int
    n_bytes: int


class OpenConsumer(Frame, frozen=True, kw_only=True):
    """Join a durable subscription, or make it. ``number``: the client's.

    Deliveries begin when the client has sent `ResumeConsumer`.
    """

    id: int
    number: int
    pattern: str
    name: str
    options: ConsumerOptions


class ResumeConsumer(Frame, frozen=True, kw_only=True):
    """Deliver from position ``received`` on; the answer: up to where there are acks already."""

    id: int
    number: int
    received: int = 0


class CloseConsumer(Frame, frozen=True, kw_only=True):
    """Leave a durable subscription."""

    id: int
    number: int


class Acks(Frame, frozen=True, kw_only=True, tag="Settle"):
    """Deliveries before ``taken`` were looked at, those before ``released`` may be overwritten.

    The body: acks from ``position`` on, as they lie in the ring.
    """

    number: int
    taken: int
    released: int
    position: int = 0


class NodeIdOf(Frame, frozen=True, kw_only=True):
    """See `Link.node_id_of`."""

    id: int
    node: str


class Stats(Frame, frozen=True, kw_only=True):
    """See `Link.stats`."""

    id: int


class Administer(Frame, frozen=True, kw_only=True):
    """See `Link.administer`."""

    id: int
    action: str
    arguments: dict[str, Any]


class Bye(Frame, frozen=True, kw_only=True):
    """The client is done: the session needs not be kept."""


class Publish(Frame, frozen=True, kw_only=True):
    """A batch for a publication. ``batch`` counts from 1 without holes; the body is the block."""

    number: int
    batch: int
    n: int
    mixed: bool = False
    receiver: int = 0


# --- from the gateway ---------------------------------------------------------------------------
class Welcome(Frame, frozen=True, kw_only=True):
    """The gateway's answer. ``resumed``: publications continue; ``accepted``: batches by number.

    ``level``: that both speak; ``resumes``: subscriptions begin at the places that a client names.
    """

    session: str
    key: str
    resumed: bool
    client_id: int
    node_id: int
    node_name: str
    incarnation: int
    accepted: dict[int, int] = msgspec.field(default_factory=dict)
    version: str = ""
    level: int = FIRST
    resumes: bool = False


class PublicationOpened(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `OpenPublication`: the session and the geometry of its ring at the node.

    The rest: as in `PublicationGrant`.
    """

    session: int
    on_full: str
    slots: int
    slot_bytes: int
    durable: bool = False
    producer_id: int = 0
    epoch: int = 0
    first_seq: int = 1
    acked_seq: int = 0
    last_seq: int = 0
    reports_sent: bool = False
    """`Sent` follows each `Accepted`: the topic has a network, and the client wants it."""


class SubscriptionOpened(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `OpenSubscription`."""

    subscriber_id: int


class ConsumerOpened(Cursors, frozen=True, kw_only=True):
    """Answer to `OpenConsumer`: as `ConsumerGrant`, with the sizes of the member's rings."""

    deliveries_bytes: int
    acks_bytes: int
    ack_wait_s: float
    max_deliver: int
    dead_letter: str


class Accepted(Frame, frozen=True, kw_only=True):
    """All batches of a publication up to this one are in the node's ring."""

    number: int
    batch: int


class Sent(Frame, frozen=True, kw_only=True):
    """All batches of a live publication up to this one were sent to other nodes."""

    number: int
    batch: int


class Durable(Frame, frozen=True, kw_only=True):
    """All of a publication up to sequence ``seq`` is durable. ``state``: see ring ACK_STATE_AT."""

    number: int
    seq: int
    state: int = 0


class Delivered(Frame, frozen=True, kw_only=True):
    """Deliveries for a consumer: the body lies at ``position``; ``acks_read``: see member header.

    With ``more`` its last frame is not whole yet.
    """

    number: int
    position: int
    acks_read: int = msgspec.field(name="settled")
    more: bool = False


class TakenBack(Frame, frozen=True, kw_only=True):
    """A consumer's subscription was moved: its frames at these positions are not for it."""

    number: int
    positions: list[int]


class ImageOpened(Frame, frozen=True, kw_only=True):
    """A publication that a subscription reads, from packet ``seq``, offset ``at`` on."""

    number: int
    image: int
    topic: str
    node: str
    session: int
    reliability: int
    seq: int
    at: int


class ImageEnded(Frame, frozen=True, kw_only=True):
    """Nothing more will come of an image."""

    number: int
    image: int
    reason: str


class GapReported(Frame, frozen=True, kw_only=True, tag="GapTold"):
    """Packets [first, end) of an image are lost for good."""

    number: int
    image: int
    first: int
    end: int
    reason: str


class Deliver(Frame, frozen=True, kw_only=True):
    """Messages of an image; behind them, packet ``seq``, offset ``at`` is next (-1: unknown).

    ``ahead``: on unordered topics a bit for each packet from ``seq`` on, set where it was read.
    """

    number: int
    image: int
    n: int
    mixed: bool = False
    seq: int = -1
    at: int = 0
    ahead: bytes = b""


class Ended(Frame, frozen=True, kw_only=True):
    """A publication (or subscription) cannot continue."""

    number: int
    publication: bool
    failure: Failure


class EventsReported(Frame, frozen=True, kw_only=True, tag="Told"):
    """Events of the node."""

    events: list[AnyEvent]


FromClient = (
    Hello
    | OpenPublication
    | ClosePublication
    | OpenSubscription
    | CloseSubscription
    | Credit
    | NodeIdOf
    | Stats
    | Administer
    | Bye
    | Publish
    | OpenConsumer
    | ResumeConsumer
    | CloseConsumer
    | Acks
)
FromGateway = (
    Welcome | Reply | Accepted | ImageOpened | ImageEnded | GapReported | Deliver | Ended
    | EventsReported | Goodbye | Durable | Delivered | TakenBack | Sent | Working
)  # fmt: skip

_client_decoder = msgspec.msgpack.Decoder(FromClient)
_gateway_decoder = msgspec.msgpack.Decoder(FromGateway)


def encode(frame: Frame, body: Bytes | None = None) -> bytes:
    """A frame, ready to be sent."""
    header = encoder.encode(frame)
    return b"".join((HEAD.pack(len(header)), header, b"" if body is None else body.data))


def split(data: Any) -> tuple[memoryview, memoryview]:
    """Header and body of a frame. Raises BadFrame."""
    if not isinstance(data, bytes):
        raise BadFrame("a text message: frames are binary")
    if not HEAD.size <= len(data) <= FRAME_BYTES_MAX:
        raise BadFrame(f"a frame of {len(data)} bytes: allowed {HEAD.size} to {FRAME_BYTES_MAX}")
    (n,) = HEAD.unpack_from(data)
    if n > min(HEADER_BYTES_MAX, len(data) - HEAD.size):
        raise BadFrame(f"a header of {n} bytes in a frame of {len(data)}")
    whole = memoryview(data)
    return whole[HEAD.size : HEAD.size + n], whole[HEAD.size + n :]


def decoded(decoder: msgspec.msgpack.Decoder[_F], header: Any, sender: str) -> _F:
    """The header of a frame of ``sender``. Raises BadFrame."""
    try:
        return decoder.decode(header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        raise BadFrame(f"no frame of {sender}: {problem}") from None


def from_client(data: Any) -> tuple[FromClient, memoryview]:
    """A client's frame and its body. Raises BadFrame."""
    header, body = split(data)
    frame = decoded(_client_decoder, header, "a client")
    return frame, _checked(frame, body, _room_of(frame))


def from_gateway(data: Any) -> tuple[FromGateway, memoryview]:
    """A gateway's frame and its body. Raises BadFrame."""
    header, body = split(data)
    frame = decoded(_gateway_decoder, header, "a gateway")
    return frame, _checked(frame, body, _room_of(frame))


def _room_of(frame: Frame) -> int:
    """Bytes that the frame's body may have."""
    if isinstance(frame, Publish | Deliver):
        return FRAME_BYTES_MAX
    if isinstance(frame, Acks):
        return ACKS_FRAME_BYTES_MAX
    return DELIVERED_BYTES if isinstance(frame, Delivered) else 0


def _checked(frame: Frame, body: memoryview, room: int) -> memoryview:
    if body.nbytes > room:
        name = type(frame).__name__
        raise BadFrame(f"{name} with a body of {body.nbytes} bytes: it has at most {room}")
    return body


# --- batches ------------------------------------------------------------------------------------
class Block:
    """Messages of one frame, checked, and how many of them are in a ring already."""

    __slots__ = ("_address", "_data", "done", "flags", "leads", "lengths", "n", "nbytes")

    def __init__(self, data: Bytes, lengths: Any, leads: Any, flags: Any, nbytes: int) -> None:
        self._data, self.lengths, self.leads, self.flags = data, lengths, leads, flags
        self._address = address(data)
        self.n, self.nbytes = int(lengths.size), nbytes
        self.done = np.zeros(2, dtype=np.int64)

    @classmethod
    def parse(cls, n: int, mixed: bool, body: memoryview) -> Block:
        """Raises BadFrame when the body is not ``n`` messages."""
        leading = lead_bytes(n, mixed=mixed)
        if not 1 <= n <= BLOCK_MESSAGES_MAX or leading > body.nbytes:
            raise BadFrame(
                f"a batch of {n} messages in {body.nbytes} bytes: allowed 1 to {BLOCK_MESSAGES_MAX}"
            )
        lengths = np.frombuffer(body, np.uint32, n).astype(np.int64)
        data = np.frombuffer(body[leading:], np.uint8)
        leads = flags = np.empty(0, dtype=np.int64)
        if mixed:
            leads = np.frombuffer(body, np.uint32, n, 4 * n).astype(np.int64)
            flags = np.frombuffer(body, np.uint8, n, 8 * n).astype(np.int64)
            sound = bool(
                remote_kernels.check_block(address(data), data.size, lengths, leads, flags)
            )
        else:
            sound = int(lengths.sum()) == data.size
        if not sound or int(lengths.max()) > MESSAGE_BYTES_MAX:
            raise BadFrame(f"{n} messages that do not fill their {data.size} bytes")
        return cls(data, lengths, leads, flags, body.nbytes)

    def has_reserved(self) -> bool:
        """Has a message a header that only an engine may write?"""
        if not self.flags.size:
            return False
        size = self._data.size
        first = remote_kernels.first_reserved(
            self._address, size, self.lengths, self.leads, self.flags
        )
        return bool(first >= 0)

    def flags_of_all(self) -> list[int]:
        """Which optional fields each message has."""
        found: list[int] = self.flags.tolist()
        return found or [0] * self.n

    def leads_of_all(self) -> Iterator[Copied]:
        """The optional fields of each message, without its payload."""
        at = 0
        for size, lead, flags in zip(
            self.lengths.tolist(), self.leads.tolist(), self.flags.tolist(), strict=True
        ):
            yield Copied(flags, lead, self._data[at : at + lead].tobytes())
            at += size

    def without(self, left_out: Collection[int]) -> Block | None:
        """The same without some messages, by their number in the block; None: nothing is left."""
        keep, ends = np.ones(self.n, dtype=np.bool_), np.cumsum(self.lengths)
        keep[list(left_out)] = False
        if not keep.any():
            return None
        kinds = np.uint32, np.uint32, np.uint8
        columns = zip((self.lengths, self.leads, self.flags), kinds, strict=True)
        parts: list[Bytes] = [column[keep].astype(kind).view(np.uint8) for column, kind in columns]
        parts += [self._data[ends[i] - self.lengths[i] : ends[i]] for i in np.flatnonzero(keep)]
        return Block.parse(int(keep.sum()), mixed=True, body=np.concatenate(parts).data)

    @property
    def longest(self) -> int:
        """Bytes of the longest message."""
        return int(self.lengths.max())

    def put(self, port: ports.Port, receiver: int = 0) -> int:
        """Append the rest of it: 0 when all is in, else as `append_batch`."""
        if self.flags.size:
            return int(
                remote_kernels.put_block(
                    port,
                    self._address,
                    self._data.size,
                    self.lengths,
                    self.leads,
                    self.flags,
                    receiver,
                    self.done,
                )
            )
        return int(
            ports.put_many(
                port,
                self._address,
                self._data.size,
                self.lengths,
                0,
                self.n,
                receiver,
                0,
                self.done,
            )
        )


FULL, TOO_LARGE = writer.FULL, writer.TOO_LARGE


def lead_bytes(n: int, *, mixed: bool) -> int:
    """Bytes of a body before its ``n`` messages: their lengths, and flags of `Block`."""
    return n * (9 if mixed else 4)


def bodies(
    memory: memoryview, columns: ports.Port, rows: ports.Port | None, n: int
) -> Iterator[tuple[int, int, bool, Bytes]]:
    """Frames' bodies for a batch: (first message, one behind the last, mixed, body).

    The arguments are `Batch.parts`. A message over MESSAGE_BYTES_MAX comes with an empty body.
    """
    if rows is None:
        rows = np.empty((n, 4), dtype=np.int64)
        rows[:, 0] = rows[:, 2] = columns[0, :n]
        rows[:, 1] = columns[1, :n] - columns[0, :n]
        rows[:, 3] = 0
    source = np.frombuffer(memory, dtype=np.uint8)
    base, rows = address(source), np.ascontiguousarray(rows[:n])
    sizes = np.empty((n, 2), dtype=np.int64)
    remote_kernels.message_bytes(base, source.size, rows, sizes)
    ends = np.cumsum(sizes[:, 1])
    first = 0
    while first < n:
        begun = int(ends[first - 1]) if first else 0
        end = int(np.searchsorted(ends, begun + BLOCK_BYTES, side="right"))
        end = min(max(end, first + 1), first + BLOCK_MESSAGES_MAX)
        if int(ends[end - 1]) - begun > MESSAGE_BYTES_MAX:
            yield first, end, False, np.empty(0, dtype=np.uint8)
        else:
            mixed = bool((rows[first:end, 3] & remote_kernels.OPTIONAL).any())
            room = int(ends[end - 1]) - begun + lead_bytes(end - first, mixed=mixed)
            body = np.empty(room, dtype=np.uint8)
            remote_kernels.fill_block(base, source.size, rows, sizes, first, end, int(mixed), body)
            yield first, end, mixed, body
        first = end
