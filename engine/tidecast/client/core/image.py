"""One ring that a subscription reads: a remote publication's image, or a local publication."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tidecast.buffers import reader
from tidecast.buffers.ring_file import describe
from tidecast.client.core.errors import mapping
from tidecast.client.core.message import Batch, torn
from tidecast.client.kernels import batches, ports
from tidecast.codecs import Codec
from tidecast.errors import Closed
from tidecast.events import Gap, ImageAvailable
from tidecast.layout import packet as wire
from tidecast.layout import ring as ring_layout
from tidecast.native.mapped import MappedFile
from tidecast.native.memory import address

BATCH_MESSAGES_MAX = 4096
"""Messages a batch may have."""
AWAIT_SPINS = 300
"""Looks at a packet that is to come, 0.2 us each."""
_ASSEMBLY_KEPT_BYTES_MAX = 1 << 20
_ASSEMBLY_BYTES_MIN = 1 << 12

_ASSEMBLY_FIELDS = (
    reader.R_TOTAL,
    reader.R_FILLED,
    reader.R_META_AT,
    reader.R_META_N,
    reader.R_FLAGS,
)

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class ReadPosition(NamedTuple):
    """Where a reader was in a session whose ring it has read to its end."""

    seq: int
    offset: int
    """In packet ``seq``."""
    unfinished: tuple[list[int], Bytes] | None
    """The message whose first fragments were read."""
    ahead: tuple[Bytes, int] | None
    """Unordered topics: bits of the packets behind a hole that were read, by slot of so many."""
    read_no: int = 0
    """See `Image.read_no`."""


def position_of(seq: int, offset: int, ahead: bytes) -> ReadPosition:
    """A position as a remote client keeps it; ``ahead``: see `Image.ahead`."""
    if not ahead:
        return ReadPosition(seq, offset, None, None)
    read = np.unpackbits(np.frombuffer(ahead, dtype=np.uint8), bitorder="little")
    slots = 1 << (read.size - 1).bit_length()
    bits = np.zeros(slots, dtype=np.uint8)
    bits[(seq + np.arange(read.size)) & (slots - 1)] = read
    return ReadPosition(seq, offset, None, (np.packbits(bits, bitorder="little"), slots))


class Copied(NamedTuple):
    """A message that was copied out of a ring."""

    flags: int
    """Which optional fields it has."""
    lead: int
    """Bytes of them."""
    raw: bytes
    """They, then the payload."""


class Image:
    """Reads one ring through one consumer entry. For one thread at a time."""

    __slots__ = (
        "_assembly",
        "_columns",
        "_gathered",
        "_mapped",
        "_out",
        "_passed",
        "_ring",
        "_seen",
        "after",
        "base",
        "codec",
        "generation",
        "gone",
        "image_id",
        "low",
        "memory",
        "misplaced",
        "node",
        "port",
        "read_no",
        "reliability",
        "session",
        "subscription_id",
        "tethered",
        "topic",
    )

    def __init__(self, event: ImageAvailable, subscriber: int, codec: Codec | None) -> None:
        """Map the ring that ``event`` names. Raises NotFound, SharedMemoryError."""
        with mapping(event.topic):
            self._mapped = MappedFile.open(Path(event.ring_path))
        self._ring = self._mapped.array
        about = describe(self._ring)
        self.topic, self.node, self.session = event.topic, event.node, event.session
        self.image_id, self.subscription_id = event.image_id, event.subscription_id
        self.reliability, self.codec = about.reliability, codec
        self.port = ports.reader_port(self._ring, event.consumer, subscriber)
        self.port[ports.Q_NODE], self.port[ports.Q_SESSION] = about.node, about.session
        self._seen: Bytes = np.zeros(about.slots // 8, dtype=np.uint8)
        if about.reliability == ring_layout.UNORDERED:
            self.port[reader.R_SEEN] = address(self._seen)
        entry = int(self.port[reader.R_ENTRY]) + ring_layout.CONSUMER_TETHERED_AT
        self.tethered = bool(self._ring[entry])
        self.port[ports.Q_IN_PLACE] = int(self.tethered)
        self.memory = self._ring.data.toreadonly()
        self.base = address(self._ring)
        """Where `memory` lies."""
        self.low = 0
        """Offsets of the last batch are offsets of the ring less this."""
        self._assembly: Bytes = np.empty(0, dtype=np.uint8)
        self._gathered: Bytes = np.empty(0, dtype=np.uint8)
        self._out = np.empty((0, reader.OUT_FIELDS), dtype=np.int64)
        self._columns = np.empty((2, 0), dtype=np.int64)
        self.generation = 0
        self.gone: str | None = None
        self.read_no = 0
        """The subscription's reads when this was read last: the order of last messages."""
        self._passed: tuple[int, int] | None = None
        """A place that another process names: it has read the messages before it in this packet."""
        self.misplaced = 0
        """Places at which no message ends."""
        self.after: Image | None = None
        """The same session's image from before its publisher was silent for long: read first."""

    def take(self, limit: int) -> Batch | Gap | None:
        """The next part: up to ``limit`` messages in place, or a gap, or None."""
        n = self._take(limit)
        while n > 0 and self._passed is not None:
            left = self._pass_over(n, self._passed)
            if left:
                return self._batch(left)
            n = self._take(limit)
        if n > 0:
            return self._batch(n)
        if n == reader.ASSEMBLED:
            return self._assembled()
        return self.gap() if n == reader.GAP else None

    def take_copies(self, limit: int) -> list[Copied] | Gap | None:
        """`take` for few messages that are kept: a copy of each. 3 us, a batch of one takes 15."""
        n = self._take(limit)
        if n > 0:
            memory = self.memory
            found = [
                Copied(flags & ~wire.WHOLE, at - meta_at, bytes(memory[meta_at : at + length]))
                for at, length, meta_at, flags in self._rows(n).tolist()
            ]
            return found if self.tethered or ports.is_held(self.port) else self.torn()
        if n == reader.ASSEMBLED:
            port, whole = self.port, self._assembly.data
            at, size = int(port[reader.R_META_AT]), int(port[reader.R_META_N])
            raw = b"".join((whole[at : at + size], whole[: int(port[reader.R_TOTAL])]))
            return [Copied(int(port[reader.R_FLAGS]) & ~wire.WHOLE, size, raw)]
        return self.gap() if n == reader.GAP else None

    def _rows(self, n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Of the last batch, see OUT_*. Of plain messages in place the kernel writes columns."""
        rows = self._out[:n]
        if self.tethered and self._plain:
            rows[:, reader.OUT_AT] = rows[:, reader.OUT_META_AT] = self._columns[0, :n]
            rows[:, reader.OUT_LENGTH] = self._columns[1, :n] - self._columns[0, :n]
            rows[:, reader.OUT_FLAGS] = wire.WHOLE
        return rows

    @property
    def _plain(self) -> bool:
        """No message of the last batch has optional fields."""
        return int(self.port[ports.Q_FLAGS]) & ~wire.WHOLE == 0

    def _pass_over(self, n: int, passed: tuple[int, int]) -> int:
        """Leave messages out of the last batch that end at the place or before; how many stay.

        A packet is read from its beginning, so a place shows no bytes that are not of a message.
        """
        rows, columns, port = self._rows(n), self._columns[:, :n], self.port
        seq, offset = passed
        places = np.stack((rows[:, reader.OUT_META_AT] - wire.MESSAGE_HEADER_BYTES, columns[1]))
        slot_bytes = int(port[reader.R_SLOT_BYTES])
        begin = int(port[reader.R_SLOTS_AT]) + (seq & int(port[reader.R_MASK])) * slot_bytes
        first, end = places - begin
        inside = (end > 0) & (end <= slot_bytes)
        self.misplaced += int((inside & (first < offset) & (offset < end)).sum())
        stay = ~(inside & (end <= offset))
        left = int(stay.sum())
        self._out[:left], self._columns[:, :left] = rows[stay], columns[:, stay]
        return left

    def _take(self, limit: int) -> int:
        if self._out.shape[0] < limit:
            self._out = np.empty((limit, reader.OUT_FIELDS), dtype=np.int64)
            self._columns = np.empty((2, limit), dtype=np.int64)
        self.generation += 1
        if self._passed is not None and self.port[reader.R_SEQ] > self._passed[0]:
            self._passed = None
        if self._assembly.size > _ASSEMBLY_KEPT_BYTES_MAX:
            self._drop_assembly()
        n = batches.take(self.port, self._out, self._columns, limit)
        if n == reader.NEED_BUFFER:
            self.make_room()
            n = batches.take(self.port, self._out, self._columns, limit)
        return int(n)

    def extend(self, batch: Batch, limit: int) -> Batch | Gap | None:
        """More messages behind those of ``batch``, same place. None: no more may be added."""
        n = len(batch)
        if not self.tethered or limit > self._out.shape[0] or self._passed is not None:
            return None
        more = batches.extend(self.port, self._out, self._columns, n, limit)
        if more == ports.NOTHING:
            return None
        self.generation += 1
        return self._batch(more) if more > 0 else self.gap()

    def await_more(self, have: int, limit: int, spins: int = AWAIT_SPINS) -> None:
        """Give the writer some 50 us to extend a batch from ``have`` messages to ``limit``."""
        batches.await_packets(self.port, limit, have, spins)

    def gap(self, reason: str = "") -> Gap:
        """The last gap as an event; its reason as the reader noted it, unless another is given."""
        first, end = int(self.port[reader.R_GAP_FIRST]), int(self.port[reader.R_GAP_END])
        return Gap(
            topic=self.topic,
            node=self.node,
            session=self.session,
            first=first,
            end=end,
            reason=reason or reader.GAP_REASONS[int(self.port[reader.R_GAP_REASON])],
        )

    def torn(self) -> Gap:
        """The last batch was overwritten while it was read: the gap. Reading resumes behind it.

        Raises Closed when the ring was given back meanwhile.
        """
        port = self.port
        if not port[reader.R_SLOTS]:
            raise Closed(f"topic {self.topic}: its subscription was closed: copy a batch before")
        ports.note_torn(port)
        return self.gap()

    def whole(self) -> bool:
        """Nothing overwrote the last batch since it was taken. Always, if it was copied.

        False once the ring was given back, maybe by another thread: others may fill it.
        """
        port = self.port
        return not self.tethered or bool(port[reader.R_SLOTS] and ports.is_held(port))

    def arm(self, *, keep: bool = False) -> bool:
        """Ask for the doorbell. True: there is something already."""
        return bool(ports.arm_reader(self.port, int(keep)))

    def release(self) -> None:
        """Give back the batch that was taken last."""
        self.generation += 1
        ports.release(self.port)

    def has_more(self) -> bool:
        """There is something to take."""
        return bool(ports.ready(self.port))

    def follow(self, before: Image | None) -> None:
        """Be read behind another image of the session; None: at once."""
        self.after = before

    def note_read(self, read_no: int) -> None:
        """The subscription reads it now."""
        self.read_no = read_no

    def leave(self, reason: str) -> bool:
        """No more comes into it. Returns whether that was not known."""
        news, self.gone = self.gone is None, reason
        return news

    def finished(self) -> bool:
        """Gone, and all that was left is read."""
        return self.gone is not None and not ports.ready(self.port)

    @property
    def may_grow(self) -> bool:
        """Its writer is a publisher of this node that has not closed it."""
        own = self.port[reader.R_KIND] == ring_layout.KIND_PUBLICATION
        return bool(own and not ports.is_drained(self.port))

    def behind(self) -> int:
        """Packets that are in the ring and not read yet."""
        if not ports.ready(self.port):
            return 0
        return max(0, int(ports.newest(self.port)) - int(self.port[reader.R_SEQ]))

    def newest(self) -> int:
        """The packet behind the newest one."""
        return int(ports.newest(self.port))

    def counts(self) -> dict[str, int]:
        """Messages read and lost since the image began."""
        port = self.port
        return {
            "messages": int(port[reader.R_MESSAGES]),
            "bytes": int(port[reader.R_BYTES]),
            "gaps": int(port[reader.R_GAPS]),
            "lost_packets": int(port[reader.R_LOST_PACKETS]),
            "malformed": int(port[reader.R_MALFORMED]),
            "behind_packets": self.behind(),
        }

    def check_whole(self) -> None:
        """Raises GapError when the last batch was overwritten meanwhile."""
        if not self.whole():
            gap = self.torn()
            raise torn(self.topic, gap.first, gap.end)

    def close(self) -> None:
        """Unmap. Batches that were handed out stay valid as long as they live."""
        self.generation += 1
        self.port = np.zeros(ports.READ_PORT_FIELDS, dtype=np.int64)
        self._ring = self._assembly = np.empty(0, dtype=np.uint8)
        self.memory = memoryview(b"")
        self._mapped.close()

    def _batch(self, n: int) -> Batch | Gap:
        self.low = 0
        if not self.tethered:
            return self._copied(n)
        return Batch(self, n, self.memory, self._columns, None if self._plain else self._out)

    def _copied(self, n: int) -> Batch | Gap:
        """A batch of a ring that may overrun us: copy the span, then see that it was whole."""
        rows = self._out[:n]
        low = min(int(rows[:, reader.OUT_META_AT].min()), int(rows[:, reader.OUT_AT].min()))
        high = int((rows[:, reader.OUT_AT] + rows[:, reader.OUT_LENGTH]).max())
        kept = bytes(self.memory[low:high])
        if not ports.is_held(self.port):
            return self.torn()
        self.low, rows = low, rows.copy()
        rows[:, [reader.OUT_AT, reader.OUT_META_AT]] -= low
        return Batch(self, n, memoryview(kept), self._columns[:, :n] - low, rows)

    def _assembled(self) -> Batch:
        port = self.port
        total = int(port[reader.R_TOTAL])
        columns = np.array([[0], [total]], dtype=np.int64)
        rows = np.array(
            [[0, total, int(port[reader.R_META_AT]), int(port[reader.R_FLAGS])]], dtype=np.int64
        )
        return Batch(self, 1, self._assembly.data.toreadonly(), columns, rows)

    def position(self) -> ReadPosition | None:
        """Where the reader is; None: the ring was closed."""
        port = self.port
        if not port[reader.R_SLOTS]:
            return None
        unfinished = None
        if port[reader.R_FILLED] < port[reader.R_TOTAL]:
            unfinished = [int(port[field]) for field in _ASSEMBLY_FIELDS], self._assembly
        ahead = (self._seen, int(port[reader.R_SLOTS])) if port[reader.R_SEEN] else None
        return ReadPosition(
            int(port[reader.R_SEQ]), int(port[reader.R_AT]), unfinished, ahead, self.read_no
        )

    def resume_from(self, place: ReadPosition) -> Gap | None:
        """Continue where an older ring of the session was left. Packets between are a gap."""
        port, seq = self.port, int(self.port[reader.R_SEQ])
        if seq > place.seq:
            port[reader.R_GAPS] += 1
            port[reader.R_LOST_PACKETS] += seq - place.seq
            port[reader.R_GAP_FIRST], port[reader.R_GAP_END] = place.seq, seq
            return self.gap("reconnect")
        port[reader.R_SEQ], port[reader.R_AT] = place.seq, place.offset
        if place.ahead is not None and port[reader.R_SEEN]:
            self._skip_seen(place.seq, *place.ahead)
        if place.unfinished is not None:
            fields, self._assembly = place.unfinished
            for field, value in zip(_ASSEMBLY_FIELDS, fields, strict=True):
                port[field] = value
            port[ports.Q_ASSEMBLY] = address(self._assembly)
            port[ports.Q_ASSEMBLY_BYTES] = self._assembly.size
        return None

    def resume_at(self, place: ReadPosition) -> None:
        """`resume_from` for a place of another process, which counts where the ring begins there.

        It may name no message: reading begins with the packet, see `_pass_over`.
        """
        header = wire.PACKET_HEADER_BYTES
        if not header <= place.offset <= self.port[reader.R_SLOT_BYTES]:
            self.misplaced += 1
        elif self.port[reader.R_SEQ] == place.seq:
            self.resume_from(place._replace(offset=header))
            if place.offset > header:
                self._passed = place.seq, place.offset

    @property
    def place(self) -> tuple[int, int]:
        """Packet, and offset in it, up to where all was read, here or before `resume_at`."""
        here = int(self.port[reader.R_SEQ]), int(self.port[reader.R_AT])
        return here if self._passed is None else max(here, self._passed)

    def take_misplaced(self) -> int:
        """`misplaced` since the last call."""
        found, self.misplaced = self.misplaced, 0
        return found

    def place_behind(self, end: int) -> tuple[int, int]:
        """Packet, and offset in it, behind a message of the last batch that ends at ``end``."""
        port = self.port
        behind = end + self.low - int(port[reader.R_SLOTS_AT])
        slot, at = divmod(behind - 1, int(port[reader.R_SLOT_BYTES]))
        newest = int(port[reader.R_SEQ])
        return newest - ((newest - slot) & int(port[reader.R_MASK])), at + 1

    def ahead(self) -> bytes:
        """Unordered topics: a bit for each packet from R_SEQ on, set where it was read."""
        port = self.port
        if not port[reader.R_SEEN] or not self._seen.any():
            return b""
        seqs = int(port[reader.R_SEQ]) + np.arange(int(port[reader.R_SLOTS]))
        bits = np.unpackbits(self._seen, bitorder="little")[seqs & int(port[reader.R_MASK])]
        n = int(np.flatnonzero(bits)[-1]) + 1
        return np.packbits(bits[:n], bitorder="little").tobytes()

    def _skip_seen(self, seq: int, seen: Bytes, slots: int) -> None:
        own = int(self.port[reader.R_SLOTS])
        seqs = seq + np.arange(min(slots, own))
        read = np.unpackbits(seen, bitorder="little")[seqs & (slots - 1)]
        bits = np.zeros(own, dtype=np.uint8)
        bits[seqs & (own - 1)] = read
        self._seen[:] = np.packbits(bits, bitorder="little")

    def make_room(self) -> None:
        """Give the kernel the assembly buffer that it asked for."""
        self._assemble_in(int(self.port[reader.R_TOTAL] + self.port[reader.R_META_N]))

    def _drop_assembly(self) -> None:
        """Give a large buffer back once its message is handed out; never within a message."""
        if self.port[reader.R_FILLED] >= self.port[reader.R_TOTAL]:
            self._assemble_in(0)

    def _assemble_in(self, size: int) -> None:
        """Give the kernel an assembly buffer of at least ``size`` bytes; 0 takes it away."""
        room = max(_ASSEMBLY_BYTES_MIN, 1 << (size - 1).bit_length()) if size else 0
        self._assembly = np.empty(room, dtype=np.uint8)
        self.port[ports.Q_ASSEMBLY] = address(self._assembly)
        self.port[ports.Q_ASSEMBLY_BYTES] = room
