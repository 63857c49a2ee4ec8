"""A remote client's rings: publishers write and the link sends, or the link writes for subscribers.

So all other client code is the same as in local clients. `OutgoingRing` keeps each batch until the
gateway has confirmed it; `Incoming` keeps blocks without room, whose number the credit bounds.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from tidecast.api.link import PublicationGrant
from tidecast.buffers import reader
from tidecast.buffers.ring_file import add_consumer, create_ring, describe
from tidecast.client.core.image import BATCH_MESSAGES_MAX, Image
from tidecast.client.core.message import Batch
from tidecast.client.kernels import ports
from tidecast.client.kernels import remote as remote_kernels
from tidecast.client.remote import frames
from tidecast.client.remote.frames import Block
from tidecast.events import (
    Event,
    Gap,
    ImageAvailable,
    MessagesUnsent,
    ProducerFenced,
    PublicationEnded,
)
from tidecast.layout import packet as wire
from tidecast.layout import ring as ring_layout
from tidecast.native.mapped import Bytes, MappedFile
from tidecast.native.memory import address
from tidecast.scratch import scratch_directory

IN_SLOT_BYTES, IN_RING_BYTES = 16 << 10, 512 << 10
"""Geometry of a ring that a link writes; a larger message gets a larger ring."""
GONE_PACKETS_MAX = 8
HELD_BYTES_MAX = 8 << 20
"""Bytes of a publication that are not durable; of a live topic: not sent."""
_PREFIX = "tidecast-remote-"
LARGE_SLOT_BYTES = wire.PACKET_BYTES_MAX // 64 * 64


@dataclass
class RingDirectory:
    """The directory of a link's rings, and the doorbell lines of its client and of its pump."""

    directory: Path
    bells: Bytes
    client_line: int
    pump_line: int
    node_name: str = ""
    node_id: int = 0
    incarnation: int = 0
    rings: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def make(
        self,
        topic: str,
        node: str,
        session: int,
        slots: int,
        slot_bytes: int,
        reliability: int,
        line: int,
    ) -> MappedFile:
        """Create a ring with one consumer, entry 0, whose wake-ups ring ``line``."""
        with self.lock:
            self.rings += 1
            path = self.directory / f"ring-{self.rings}"
        mapped = create_ring(
            path,
            kind=ring_layout.KIND_PUBLICATION,
            slots=slots,
            slot_bytes=slot_bytes,
            session=session,
            topic=0,
            node=self.node_id,
            channel=wire.CHANNEL_ORDINARY,
            flow=ring_layout.FLOW_MIN,
            reliability=reliability,
            has_network=False,
            incarnation=self.incarnation,
            node_name=node,
            topic_name=topic,
        )
        add_consumer(
            mapped.array, position=0, client=0, doorbell=line, subscription=0, tethered=True
        )
        return mapped


def make_directory() -> tuple[Path, int]:
    """A directory for a client's rings, in memory, and the descriptor of its lock."""
    memory = Path("/dev/shm")
    return scratch_directory(_PREFIX, memory if memory.is_dir() else None)


class HeldBatch(NamedTuple):
    """A batch: its number, frame, messages, the sequence of the last message, bytes."""

    number: int
    data: bytes
    n: int
    seq: int
    n_bytes: int


def out_slots_max(slot_bytes: int) -> int:
    """Slots of the smallest ring with room for a gateway's longest message in one half."""
    per_packet = slot_bytes - wire.PACKET_HEADER_BYTES - wire.MESSAGE_HEADER_BYTES
    packets = -(-(frames.MESSAGE_BYTES_MAX + 8) // per_packet)
    return 1 << (2 * packets - 1).bit_length()


class OutgoingRing:
    """One publisher's messages until they are durable; of a live topic: until the engine sent them.

    For the pump's thread, but `accepted`, `durable`, `sent`, `resume` and `done`. A batch is first
    `ready`, then under way, then kept. An engine that is killed loses the batches that it accepted:
    the next engine gets the kept batches.
    """

    def __init__(
        self,
        home: RingDirectory,
        question: frames.OpenPublication,
        opened: frames.PublicationOpened,
    ) -> None:
        """``question``: the request that opened it; ``opened``: the answer."""
        self._question, self.number, self.topic = question, question.number, question.topic
        self.options = question.options
        number, topic = question.number, question.topic
        slots = min(opened.slots, out_slots_max(opened.slot_bytes))
        self.opened, self.node_session = opened, opened.session
        """As it was opened first, and the session that the node has for it now."""
        self.newest_epoch = opened.epoch
        self.session, self.on_full = opened.session, opened.on_full
        self.mapped = home.make(
            topic,
            home.node_name,
            opened.session,
            slots,
            opened.slot_bytes,
            ring_layout.RELIABLE,
            home.pump_line,
        )
        self._image = Image(
            ImageAvailable(
                subscription_id=0,
                image_id=number,
                ring_path=str(self.mapped.path),
                consumer=0,
                topic=topic,
                node=home.node_name,
                session=opened.session,
            ),
            -1,
            None,  # messages for a single subscriber are sent, too
        )
        self._about = describe(self.mapped.array)
        self._lock = threading.Lock()
        self._ready: deque[HeldBatch] = deque()
        self._under_way: deque[HeldBatch] = deque()
        self._kept: deque[HeldBatch] = deque()
        self._held_bytes = 0
        self._seq = opened.first_seq
        self.under_way_bytes = 0
        self.next_batch = 1
        self._keeps = opened.durable or opened.reports_sent
        self.done = threading.Event()
        """Closed by its publisher, and all of it confirmed."""
        self.failed: str | None = None
        self.lost = 0
        """Messages that it held when it failed."""
        self.freed = False
        """Its ring must not be read or written any more."""

    def grant(self) -> PublicationGrant:
        """The grant of its publisher."""
        opened = self.opened
        return PublicationGrant(
            publication_id=self.number,
            ring_path=str(self.mapped.path),
            topic=self.topic,
            session=opened.session,
            reliability="",
            flow="",
            on_full=opened.on_full,
            durable=opened.durable,
            producer_id=opened.producer_id,
            epoch=opened.epoch,
            first_seq=opened.first_seq,
            acked_seq=opened.acked_seq,
            last_seq=opened.last_seq,
            message_bytes_max=frames.MESSAGE_BYTES_MAX,
        )

    @property
    def unconfirmed(self) -> int:
        """Number of messages in batches that are not confirmed."""
        with self._lock:
            kept = self._kept if self.opened.durable else ()
            return sum(each.n for each in (*kept, *self._under_way, *self._ready))

    def give_up(self, *, engine_lives: bool) -> tuple[int, int]:
        """Drop held batches, and the rest of a closed ring; the count of messages, and their bytes.

        ``engine_lives``: it sends the batches that it accepted.
        """
        while not self.freed and self._is_closed() and self._collect():
            pass
        with self._lock:
            held = [*self._under_way, *self._ready]
            if self.opened.durable or not engine_lives:
                held += self._kept
            for each in (self._kept, self._under_way, self._ready):
                each.clear()
            self.under_way_bytes = self._held_bytes = 0
        n = sum(each.n for each in held)
        self.lost += n
        return n, sum(each.n_bytes for each in held)

    def accepted(self, batch: int) -> None:
        """The gateway has all batches up to this number."""
        with self._lock:
            while self._under_way and self._under_way[0].number <= batch:
                each = self._under_way.popleft()
                self.under_way_bytes -= len(each.data)
                if self._keeps:
                    self._kept.append(each)
                else:
                    self._held_bytes -= len(each.data)

    def sent(self, batch: int) -> None:
        """The engine has sent all batches of a live topic up to this number."""
        self.accepted(batch)
        with self._lock:
            while self._kept and self._kept[0].number <= batch:
                self._held_bytes -= len(self._kept.popleft().data)

    def durable(self, seq: int, state: int) -> None:
        """All messages up to this sequence are durable; ``state`` as in the ring's header."""
        with self._lock:
            while self._kept and self._kept[0].seq <= seq:
                self._held_bytes -= len(self._kept.popleft().data)
            count = min(seq - self.opened.first_seq + 1, self._seq - self.opened.first_seq)
            if not self.freed:
                remote_kernels.report_durable(self.mapped.array, max(count, 0), state)

    def resume(self, accepted: int) -> None:
        """A new connection to the same session: batches that were not accepted are sent again."""
        self.accepted(accepted)
        with self._lock:
            self._ready.extendleft(reversed(self._under_way))
            self._under_way.clear()
            self.under_way_bytes = 0

    def begin_again(self) -> frames.OpenPublication:
        """The gateway has forgotten the session: send all held batches to a new session."""
        with self._lock:
            held = [*self._kept, *self._under_way, *self._ready]
            self._ready = deque(held)
            self._kept.clear()
            self._under_way.clear()
            self.under_way_bytes = self.node_session = 0
            first = held[0].number if held else self.next_batch
            options = self.options
            if self.opened.durable:
                options = msgspec.structs.replace(
                    options,
                    producer_id=self.opened.producer_id,
                    first_seq=held[0].seq - held[0].n + 1 if held else self._seq,
                    line=self.opened.session,
                    after=self.newest_epoch,
                )
        return msgspec.structs.replace(self._question, options=options, first=first)

    def begun_again(self, opened: frames.PublicationOpened) -> None:
        """The gateway has opened the new session."""
        self.node_session = opened.session
        self.newest_epoch = max(self.newest_epoch, opened.epoch)
        self._keeps = opened.durable or opened.reports_sent

    def next_frame(self) -> bytes | None:
        """The next frame to send, if the window allows one more."""
        if self.under_way_bytes >= frames.PUBLISH_WINDOW_BYTES:
            return None
        if not self._ready and (self._held_bytes >= HELD_BYTES_MAX or not self._collect()):
            return None
        with self._lock:
            if not self._ready:
                return None
            each = self._ready.popleft()
            self._under_way.append(each)
            self.under_way_bytes += len(each.data)
        return each.data

    def _collect(self) -> bool:
        """Take messages of the ring into batches. False: there are none."""
        batch = self._image.take(BATCH_MESSAGES_MAX)
        if not isinstance(batch, Batch):
            return False
        memory, columns, rows, n = batch.parts
        for first, end, receiver in self._by_receiver(batch, columns, n):
            part = None if rows is None else rows[first:end]
            block = np.ascontiguousarray(columns[:, first:end])
            for a, b, mixed, body in frames.bodies(memory, block, part, end - first):
                frame = frames.Publish(
                    number=self.number,
                    batch=self.next_batch,
                    n=b - a,
                    mixed=mixed,
                    receiver=receiver,
                )
                data = frames.encode(frame, body)
                n_bytes = body.size - frames.lead_bytes(b - a, mixed=mixed)
                with self._lock:
                    self._seq += b - a
                    self._ready.append(
                        HeldBatch(self.next_batch, data, b - a, self._seq - 1, n_bytes)
                    )
                    self._held_bytes += len(data)
                    self.next_batch += 1
        return True

    def _by_receiver(self, batch: Batch, columns: ports.Port, n: int) -> list[tuple[int, int, int]]:
        """Runs of messages for one node: (first, end, node; 0 = all)."""
        ring, about = self.mapped.array, self._about
        found = np.zeros(1, dtype=np.int64)
        slots_at, runs, first = ring_layout.slots_at(about.slots), [], 0
        if batch.image is None:  # put together from fragments: its last packet has the flag
            slot = (int(self._image.port[reader.R_SEQ]) - 1) & (about.slots - 1)
            columns, n = np.full((2, 1), slots_at + slot * about.slot_bytes, dtype=np.int64), 1
        while first < n:
            rest = np.ascontiguousarray(columns[:, first:n])
            run = int(
                remote_kernels.receiver_run(
                    address(ring), ring.size, rest, n - first, slots_at, about.slot_bytes, found
                )
            )
            runs.append((first, first + run, int(found[0])))
            first += run
        return runs

    def arm(self) -> bool:
        """Arm the pump's doorbell. True: there is work already."""
        if self.under_way_bytes >= frames.PUBLISH_WINDOW_BYTES:
            return False  # a confirmation rings
        return bool(self._ready) or (self._held_bytes < HELD_BYTES_MAX and self._image.arm())

    def is_done(self) -> bool:
        """Whether the ring is closed, read, and wholly confirmed."""
        if not (self._is_closed() and self._is_confirmed()):
            return False
        if not ports.is_drained(self._image.port):
            self._collect()  # passes the last packet, or finds more
        return self._is_confirmed() and bool(ports.is_drained(self._image.port))

    def _is_closed(self) -> bool:
        return bool(ports.word_of(self.mapped.array, ring_layout.CLOSED_AT))

    def _is_confirmed(self) -> bool:
        return not (self._ready or self._under_way or (self.opened.durable and self._kept))

    def fail(self, reason: str) -> None:
        """Send no more; threads stop waiting for its end."""
        self.failed = reason
        self.done.set()

    def close(self) -> None:
        """Free the ring. The caller holds the lock of the link: no other thread reads the ring."""
        with self._lock:
            self.freed = True
            self.mapped.unlink()
            self._image.close()
            self.mapped.close()


def with_local_ids(event: Event, all_of_them: list[OutgoingRing]) -> Event:
    """An event, with the session number under which a publisher here was opened."""
    if isinstance(event, (MessagesUnsent, ProducerFenced, PublicationEnded)):
        for out in all_of_them:
            if out.node_session == event.session:
                return msgspec.structs.replace(event, session=out.session)
    return event


class Incoming:
    """The ring of one image. The link's reader and its pump write it, with `lock` held."""

    def __init__(
        self, home: RingDirectory, subscription: int, opened: frames.ImageOpened, image_id: int
    ) -> None:
        self.subscription, self.opened = subscription, opened
        self.image_id = image_id
        """As the client's subscription knows it; the gateway's is ``opened.image``."""
        self.lock = threading.Lock()
        self.waiting: deque[Block | frames.GapReported] = deque()
        self.position, self.ahead = (opened.seq, opened.at), b""
        """Up to where its publication has come; packets behind that have, see `Deliver.ahead`."""
        self.ended: str | None = None
        self.finished = False
        self._home = home
        self.gaps: dict[int, frames.GapReported] = {}
        self._make(IN_RING_BYTES, IN_SLOT_BYTES)

    def _make(self, size: int, slot_bytes: int) -> None:
        opened, home = self.opened, self._home
        unreliable = opened.reliability == ring_layout.UNRELIABLE
        self.mapped = home.make(
            opened.topic,
            opened.node,
            opened.session,
            ring_layout.slots_for(size, slot_bytes),
            slot_bytes,
            ring_layout.UNRELIABLE if unreliable else ring_layout.RELIABLE,
            home.client_line,
        )
        self._ring = self.mapped.array  # keeps the mapping while the port may be used
        self._port = ports.writer_port(self._ring, home.bells)

    def available(self) -> ImageAvailable:
        """The event that announces the image to the client's subscription."""
        opened = self.opened
        return ImageAvailable(
            subscription_id=self.subscription,
            image_id=self.image_id,
            consumer=0,
            ring_path=str(self.mapped.path),
            topic=opened.topic,
            node=opened.node,
            session=opened.session,
        )

    def put(self) -> tuple[int, bool]:
        """Write waiting blocks while there is room; the caller holds the lock.

        Returns the bytes of written blocks, and whether a larger ring is needed to continue.
        """
        n_bytes = 0
        while self.waiting:
            first = self.waiting[0]
            if isinstance(first, Block):
                status = first.put(self._port)
                if status == frames.TOO_LARGE:
                    return n_bytes, True
                if status != 0:
                    break
                n_bytes += first.nbytes
            else:
                lost = max(1, min(first.end - first.first, GONE_PACKETS_MAX))
                at = int(remote_kernels.put_gone(self._port, lost))
                if at < 0:
                    break
                self.gaps[at] = first
            self.waiting.popleft()
        return n_bytes, False

    def enlarge(self, image_id: int) -> None:
        """Move to a ring with room for the first waiting message; readers drain the old ring."""
        ports.finish(self._port)
        first = self.waiting[0]
        assert isinstance(first, Block)
        self.image_id, self.gaps = image_id, {}
        # Half of a ring must hold the message, and the number of slots is rounded down.
        self._make(5 * first.longest + 16 * LARGE_SLOT_BYTES, LARGE_SLOT_BYTES)

    def reach(self, seq: int, at: int, ahead: bytes = b"") -> None:
        """All packets of its publication before this position have come."""
        self.position, self.ahead = (seq, at), ahead

    def pass_gap(self, end: int) -> None:
        """Packets before this position are lost for good."""
        if end > self.position[0]:
            self.reach(end, wire.PACKET_HEADER_BYTES)

    @property
    def place(self) -> frames.Place:
        """The position at which its subscription resumes."""
        return (*self.position, self.ahead)

    def end(self, reason: str) -> None:
        """No block comes any more; waiting blocks are still written."""
        self.ended = reason

    def finish(self) -> None:
        """Close the ring: no block will be written."""
        self.finished = True
        ports.finish(self._port)

    def true_gap(self, gap: Gap) -> Gap:
        """A gap of the ring, converted to the packets of its publisher."""
        inside = sorted(at for at in self.gaps if gap.first <= at < gap.end)
        gaps = [self.gaps.pop(at) for at in inside]
        if not gaps:
            return gap
        return Gap(
            topic=gap.topic,
            node=gap.node,
            session=gap.session,
            first=gaps[0].first,
            end=max(each.end for each in gaps),
            reason=gaps[0].reason,
        )
